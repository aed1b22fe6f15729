"""`python -m tasks.deepfm FOLDER`: from Parquet to a served DeepFM.

Writes click data as FOLDER/train.parquet and FOLDER/test.parquet unless they exist, trains the task in a VM, compiles
its ONNX to FOLDER/deepfm.vmm, serves that with the model engine, and prints the AUC on unseen examples, beside the best
possible one. Needs pyarrow (extra `parquet`) and the extra `models`."""

import argparse
import logging
import sys
import time
from pathlib import Path

import numpy

import vmhost
from tasks.deepfm import clicks
from vmhost import engine
from vmhost.compiler import compile_folder
from vmhost.engine import nn
from vmhost.engine.onnx import compile_model

HERE = Path(__file__).resolve().parent
BATCH, SERVED, TESTED = 512, 1000, 48_000  # the last fills whole row groups


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tasks.deepfm", description="From Parquet to a served DeepFM.")
    parser.add_argument("folder", type=Path, help="where data and model are written")
    parser.add_argument("--examples", type=int, default=200_000, help="examples to train on (%(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="times that each is seen (%(default)s)")
    given = parser.parse_args(arguments)
    if given.examples < BATCH or given.epochs < 1:
        parser.error(f"--examples: at least {BATCH}, --epochs: at least 1")
    given.folder.mkdir(parents=True, exist_ok=True)
    train, test = given.folder / f"train-{given.examples}.parquet", given.folder / "test.parquet"
    for path, count, seed in ((train, given.examples, 1), (test, TESTED, 2)):
        if not path.exists():
            beside = path.with_suffix(".new")
            clicks.write(beside, clicks.generate(count, seed))
            beside.replace(path)
    answer, seconds = trained(train, given.epochs, given.examples * given.epochs // BATCH)
    model = given.folder / "deepfm.vmm"
    model.write_bytes(compile_model(answer["onnx"], "deepfm.onnx"))
    (given.folder / "deepfm.onnx").write_bytes(answer["onnx"])
    labels, scores, best = served(model, test)
    rate = answer["steps"] * BATCH / seconds
    print(f"trained: {answer['steps']} steps of {BATCH} in {seconds:.1f} s, {rate:,.0f} examples/s")
    own, highest = nn.auc(labels, scores), nn.auc(labels, best)
    print(f"AUC: {own:.4f} of {len(labels):,} examples not seen; best possible: {highest:.4f}")
    print(f"log loss: {nn.log_loss(labels, scores):.4f}; best possible: {nn.log_loss(labels, best):.4f}")
    print(f"model: {model}, ONNX beside it")
    return 0


def trained(path, epochs, steps):
    """The task's result, and the seconds that it took."""
    left = clicks.batches(path, BATCH, seed=3, epochs=epochs)
    with vmhost.Host(allow_unsigned=True, functions={"batch": lambda _: next(left, None)}) as host:
        task = host.load(compile_folder(HERE).to_bytes())
        started = time.perf_counter()
        return task({"rows": clicks.ROWS, "steps": steps}), time.perf_counter() - started


def served(model, path):
    """Labels, the served model's probabilities and the true ones, for the examples of a file."""
    network = engine.load(str(model))
    pairs = [
        (batch["clicks"], network({"ids": batch["ids"], "numbers": batch["numbers"]})["click"])
        for batch in clicks.batches(path, SERVED)
    ]
    labels, scores = (numpy.concatenate(column) for column in zip(*pairs))
    return labels, scores, clicks.probabilities(path)[: len(labels)]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main())
