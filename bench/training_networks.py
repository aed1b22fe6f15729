"""Training of DeepFM, and inference of DeepFM and DLRM, beside torch: samples per second."""

import time

import numpy

from bench import click_networks
from bench.measure import Result, interleaved
from bench.training_peers import threads_of, torch_or_none

RATE, STEPS = 0.01, 8
MIN_TRAINING, MIN_SERVING = 1.3, 1.2


def run(quick):
    results = []
    for threads in (1, 2):
        for size in (512, 2048):
            results.append(_training(size, threads, 3 if quick else 9))
    for kind in ("deepfm", "dlrm"):
        results.append(_serving(kind, 3 if quick else 15))
    return results


def _rate(step, batches):
    """Samples per second over STEPS steps."""
    turn = 0

    def once():
        nonlocal turn
        begun = time.perf_counter()
        for _ in range(STEPS):
            step(*batches[turn % len(batches)])
            turn += 1
        return STEPS * len(batches[0][2]) / (time.perf_counter() - begun)

    return once


def our_trainer(rate=RATE):
    """(model, tables, a step function of keys, numbers, labels) for DeepFM."""
    import vmhost.engine.numpy as np
    from vmhost.engine import nn, optim

    nn.seed(0)
    model, tables = click_networks.ours("deepfm")
    optimizer = optim.Adagrad(rate, initial=0.1)
    step = nn.value_and_grad(model, lambda ids, numbers, y: nn.binary_cross_entropy(model(numbers, ids), y))

    def once(keys, numbers, labels):
        ids = {f"k{i}": np.asarray(numpy.ascontiguousarray(keys[:, i])) for i in range(click_networks.TABLES)}
        loss, gradients = step(ids, np.asarray(numbers), np.asarray(labels))
        optimizer.update(model, gradients)
        return float(loss)

    return model, tables, once


def _torch_trainer(torch, form, rate=RATE):
    torch.manual_seed(0)
    model, sparse, rest = click_networks.of_torch(torch, "deepfm", form)
    options = {"lr": rate, "initial_accumulator_value": 0.1}
    optimizers = [torch.optim.Adagrad(sparse, **options), torch.optim.Adagrad(rest, **options)]

    def once(keys, numbers, labels):
        for one in optimizers:
            one.zero_grad()
        loss = model.loss(model(torch.from_numpy(numbers), torch.from_numpy(keys)), torch.from_numpy(labels))
        loss.backward()
        for one in optimizers:
            one.step()
        return float(loss.detach())

    return model, once


def _training(size, threads, rounds):
    batches = click_networks.batches(16, size)
    torch = torch_or_none()
    with threads_of(threads, torch):
        contenders = {"vmhost": _rate(our_trainer()[2], batches)}
        for form in ("26 tables", "one table") if torch else ():
            contenders[f"torch, {form}"] = _rate(_torch_trainer(torch, form)[1], batches)
        for one in contenders.values():  # makes the rows of the keys
            one(), one()
        figures = interleaved(contenders, rounds, "samples/s", "more")
    note = f"26 x D{click_networks.DIM} + 13 numbers, Adagrad, {threads} thread(s); DeepRec: 7,815/s a core"
    return _compared(f"DeepFM training, batch {size}, {threads} thread(s)", figures, MIN_TRAINING, note)


def _compared(name, figures, wanted, note):
    ratios = {peer: figures["vmhost"].advantage_over(of) for peer, of in figures.items() if peer != "vmhost"}
    promises = ()
    if ratios:
        ratio = min(ratios.values())
        promises = ((f"{ratio:.2f}x torch's faster form (at least {wanted}x)", ratio >= wanted),)
    return Result(name, figures, promises=promises, ratios=ratios, note=note)


def _serving(kind, rounds):
    import vmhost.engine.numpy as np
    from vmhost.engine import nn, optim
    from vmhost.engine.embedding import group_embedding_lookup_sparse
    from vmhost.engine.models import opened
    from vmhost.engine.onnx import compile_model

    size, torch = 512, torch_or_none()
    model, tables = click_networks.ours(kind)
    every, optimizer = np.arange(click_networks.ROWS), optim.Adagrad(RATE, initial=0.1)
    for one in tables:
        one.step(every, np.zeros((len(every), click_networks.DIM), "float32"), optimizer, 1)
    batches = click_networks.batches(16, size)
    ids = {f"k{i}": batches[0][0][:, i].copy() for i in range(click_networks.TABLES)}
    example = {"numbers": np.asarray(batches[0][1]), "ids": {name: np.asarray(one) for name, one in ids.items()}}
    onnx, lookups = nn.export(model, example, ("y",), with_lookups=True)
    with threads_of(1, torch):
        network = opened(kind, compile_model(onnx, kind), threads=1)

        def ours(keys, numbers, _):
            columns = [np.asarray(numpy.ascontiguousarray(keys[:, i])) for i in range(click_networks.TABLES)]
            rows = group_embedding_lookup_sparse(tables, columns, combiners="sum")
            network({"numbers": numbers, **{one.input: part for one, part in zip(lookups, rows)}})

        contenders = {"vmhost": _rate(ours, batches)}
        for form in ("26 tables", "one table") if torch else ():
            made = click_networks.of_torch(torch, kind, form)[0].eval()

            def theirs(keys, numbers, _, made=made):
                with torch.inference_mode():
                    made(torch.from_numpy(numbers), torch.from_numpy(keys))

            contenders[f"torch, {form}"] = _rate(theirs, batches)
        figures = interleaved(contenders, rounds, "samples/s", "more")
    note = f"{kind}, batch {size}, 1 thread, 26 tables of {click_networks.ROWS:,} rows"
    return _compared(f"{kind} exported, inference", figures, MIN_SERVING, note)


def same_trainers(torch, rate):
    """((our model, its step), (torch's, its step)) for DeepFM with equal weights."""
    from vmhost.engine.grad.trees import leaves

    model, tables, ours = our_trainer(rate)
    theirs, step = _torch_trainer(torch, "26 tables", rate)
    given = {".".join(map(str, path)): numpy.asarray(array) for path, array in leaves(model.parameters())}
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name.startswith("tables."):
                first = numpy.asarray(tables[int(name.split(".")[1])].rows_without_keys())
                own = first[numpy.arange(click_networks.ROWS) % len(first)]
            else:
                own = given[name.replace("deep.", "deep.layers.").replace("last.", "last.layers.")]
            parameter.copy_(torch.from_numpy(own.copy()))
    return (model, ours), (theirs, step)
