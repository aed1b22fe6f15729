"""Heavy task: trains a DeepFM on embedding tables of its host, on batches of clicks from the host, and returns the
network as ONNX.

Functions of the host (vmhost.training.runs): `batch()` returns columns by name (those of features.json, and `click`),
or None after the last batch; `checkpoint(state)` saves the task's state with the tables and the reader's position;
`resume()` returns the last such state, or None. `shard()` and `exchange()` are for several processes that train
together.

Takes `{"steps": approximate number of batches}`, over which the learning rate falls to 0, and optionally "rate", "seed"
of the initial weights, and "every": steps between checkpoints. Returns `{"onnx": bytes, "lookups": [[input, table, dim,
ids, weights, combiner, default_id]], "steps": number, "resumed": the step that it resumed from, "losses": means over a
hundred steps each}`.
"""

import network

import vmhost.engine.numpy as np
from vmhost.engine import embedding, nn, optim, runs
from vmhost.engine.features import FeatureSpec
from vmhost.guest import host, resources

LOG_STEPS = 100  # steps for which a mean loss is logged


def run(value):
    rate, every = value.get("rate", 0.02), value.get("every", 200)
    if type(every) is not int or every < 1:
        raise ValueError(f"every: expected a whole number above 0, got {every!r}")
    spec = FeatureSpec.read(resources.read_bytes("features.json"))
    nn.seed(value.get("seed", 0))
    shards = embedding.Shards.of(host)
    tables = {name: embedding.table(name) for name in spec.tables}
    if shards.count > 1:
        tables = {name: shards.table(one) for name, one in tables.items()}
    model = network.DeepFM(spec, tables)
    optimizer = optim.Adam(optim.cosine_decay(rate, value["steps"]))
    step = nn.value_and_grad(model, lambda inputs, y: nn.binary_cross_entropy(model.logits(*inputs), y))
    losses, last, resumed = [], [], 0
    if (state := host.resume()) is not None:
        runs.put_state(state, model=model, optimizer=optimizer)
        losses, last, resumed = list(state["losses"]), list(state["last"]), optimizer.state["step"]
        print(f"goes on at step {resumed}")
    saved = steps = resumed
    while (batch := host.batch()) is not None:
        loss, gradients = step(spec.transform(batch), np.asarray(batch["click"], "float32"))
        optimizer.update(model, shards.averaged(gradients) if shards.count > 1 else gradients)
        steps = optimizer.state["step"]
        last.append(float(loss))
        if len(last) == LOG_STEPS:
            losses.append(sum(last) / LOG_STEPS)
            last = []
            print(f"step {steps}: loss {losses[-1]:.4f}")
        if steps % every == 0:
            host.checkpoint(runs.state_of(model=model, optimizer=optimizer, losses=losses, last=last))
            saved = steps
    if not steps:
        raise ValueError("batch: the host has no clicks")
    if saved != steps:
        host.checkpoint(runs.state_of(model=model, optimizer=optimizer, losses=losses, last=last))
    onnx, lookups = nn.export(model, _example(spec)._asdict(), ("click",), with_lookups=True)
    return {
        "onnx": onnx,
        "lookups": [list(one) for one in lookups],
        "steps": steps,
        "resumed": resumed,
        "losses": losses,
    }


def _example(spec):
    """Two examples, for the shapes in an export."""
    texts = {one["column"] for one in spec.features.values() if one["kind"] == "vocabulary"}
    return spec.transform({name: ["", ""] if name in texts else [0, 0] for name in spec.columns()})
