"""Heavy task: trains a DeepFM on batches of clicks from its host, and returns the network as ONNX.

Takes `{"rows": rows of the one table for all fields, "steps": approximate number of batches}` and optionally "rate" and
"seed"; the learning rate falls to 0 over the steps. The host's function `batch()` returns `{"ids": int64 (n, fields),
"numbers": float32 (n, count), "clicks": float32 (n)}`, or None after the last one. Returns `{"onnx": bytes, "steps":
number, "losses": means over a hundred steps each}`.
"""

import network

from vmhost.engine import nn, optim
from vmhost.guest import host

LOG_STEPS = 100  # steps for which a mean loss is logged


def run(value):
    batch = host.batch()
    if batch is None:
        raise ValueError("batch: the host has no clicks")
    _check(batch, value["rows"])
    nn.seed(value.get("seed", 0))
    model = network.DeepFM(value["rows"], batch["ids"].shape[1], batch["numbers"].shape[1])
    optimizer = optim.Adam(optim.cosine_decay(value.get("rate", 0.015), value["steps"]))
    step = nn.value_and_grad(model, lambda ids, numbers, clicks: nn.binary_cross_entropy(model(ids, numbers), clicks))
    example = {"ids": batch["ids"][:2], "numbers": batch["numbers"][:2]}
    losses, means = [], []
    while batch is not None:
        _check(batch, value["rows"])
        loss, gradients = step(batch["ids"], batch["numbers"], batch["clicks"])
        optimizer.update(model, gradients)
        losses.append(float(loss))
        if len(losses) % LOG_STEPS == 0:
            means.append(sum(losses[-LOG_STEPS:]) / LOG_STEPS)
            print(f"step {len(losses)}: loss {means[-1]:.4f}")
        batch = host.batch()
    return {"onnx": nn.export(network.Clicks(model), example, ("click",)), "steps": len(losses), "losses": means}


def _check(batch, rows):
    ids, numbers, clicks = batch["ids"], batch["numbers"], batch["clicks"]
    if ids.ndim != 2 or numbers.ndim != 2 or not len(ids) == len(numbers) == len(clicks) >= 2:
        raise ValueError(
            f"batch: expected two dimensions of ids and numbers for as many clicks, at least 2, got shapes "
            f"{ids.shape}, {numbers.shape} and {clicks.shape}"
        )
    if int(ids.min()) < 0 or int(ids.max()) >= rows:
        raise ValueError(f"batch: ids from 0 to {rows - 1}, got {int(ids.min())} to {int(ids.max())}")
