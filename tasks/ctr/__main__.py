"""`python -m tasks.ctr FOLDER`: a DeepFM on embedding tables of the host, from Parquet to served answers.

Writes clicks with texts as FOLDER/train-N.parquet and FOLDER/test.parquet unless they exist, and trains the task in a
VM: the host reads batches, owns the tables, and saves checkpoints in FOLDER/run-N-E. The same command resumes from the
last checkpoint, even after kill -9. At the end it publishes network, features and tables as a version in FOLDER/served,
serves that with a group of two sessions, and prints the AUC on unseen examples, beside the best possible one. Needs
pyarrow (extra `parquet`) and the extra `models`."""

import argparse
import logging
import sys
import time
from pathlib import Path

import numpy

import vmhost
from tasks.deepfm import clicks
from vmhost.compiler import compile_folder
from vmhost.engine import nn
from vmhost.engine.embedding import EmbeddingVariable, save
from vmhost.engine.features import FeatureSpec
from vmhost.serving.exports import publish
from vmhost.serving.sessions import SessionGroup
from vmhost.training import shards
from vmhost.training.runs import Run
from vmhost.training.samples import ParquetSamples

HERE = Path(__file__).resolve().parent
BATCH, SERVED, TESTED, WINDOW = 512, 1000, 48_000, 4 * clicks.GROUP  # examples
TEXTS = ("user", "item", "shop", "city")  # columns with text ids in the files
QUOTA = 256 << 20  # bytes of one table


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tasks.ctr", description="Trains and serves a DeepFM on tables.")
    parser.add_argument("folder", type=Path, help="where data, checkpoints and the model are written")
    parser.add_argument("--examples", type=int, default=200_000, help="examples to train on (%(default)s)")
    parser.add_argument("--epochs", type=int, default=4, help="times that each is seen (%(default)s)")
    parser.add_argument("--every", type=int, default=200, help="steps between two checkpoints (%(default)s)")
    parser.add_argument("--shards", type=int, default=1, help="processes that train together (%(default)s)")
    given = parser.parse_args(arguments)
    if given.examples < BATCH or given.epochs < 1 or given.every < 1:
        parser.error(f"--examples: at least {BATCH}, --epochs and --every: at least 1")
    if not 1 <= given.shards <= 8 or given.examples < given.shards * clicks.GROUP * (given.shards > 1):
        parser.error(f"--shards: 1 to 8, with --examples of at least {clicks.GROUP} for each")
    given.folder.mkdir(parents=True, exist_ok=True)
    train, test = given.folder / f"train-{given.examples}.parquet", given.folder / "test.parquet"
    for path, count, seed in ((train, given.examples, 1), (test, TESTED, 2)):
        if not path.exists():
            write(path, count, seed)
    spec = FeatureSpec.read((HERE / "features.json").read_bytes())
    tables = new_tables(spec)
    if given.shards == 1:
        answer = trained(given, train, spec, tables)
    else:
        from tasks.ctr.__main__ import trained_shard  # by the name that other processes know it by

        answer = shards.run(trained_shard, given.shards, given, train)[0]
        shards.restore(tables, given.folder / f"rows-{given.shards}")
        save(tables, given.folder / "rows")
    version = publish(given.folder / "served", answer["onnx"], answer["lookups"], spec, tables, name="ctr")
    labels, scores, best = served(given.folder / "served", test)
    print(f"served: version {version} of {given.folder / 'served'}")
    print(f"tables: {', '.join(f'{name} {len(one):,} rows' for name, one in tables.items())}")
    own, highest = nn.auc(labels, scores), nn.auc(labels, best)
    print(f"AUC: {own:.4f} of {len(labels):,} examples not seen; best possible: {highest:.4f}")
    print(f"log loss: {nn.log_loss(labels, scores):.4f}; best possible: {nn.log_loss(labels, best):.4f}")
    return 0


def write(path, count, seed):
    """Writes clicks as a Parquet file, atomically; ids of TEXTS are texts."""
    columns = clicks.generate(count, seed)
    for name in TEXTS:
        columns[name] = numpy.array([f"{name}-{number}" for number in range(clicks.FIELDS[name])])[columns[name]]
    beside = path.with_suffix(".new")
    clicks.write(beside, columns)
    beside.replace(path)


def new_tables(spec):
    """The specification's tables, empty, with the slots of the task's optimizer."""
    return {
        name: EmbeddingVariable(one["dim"], optimizer="adam", initializer=one["initializer"], quota=QUOTA, name=name)
        for name, one in spec.tables.items()
    }


def trained_shard(shard, given, path):
    """As `trained`, in one of several processes. All rows are saved at the end."""
    logging.basicConfig(level=logging.INFO if shard.rank == 0 else logging.WARNING, format="%(message)s")
    spec = FeatureSpec.read((HERE / "features.json").read_bytes())
    tables = new_tables(spec)
    answer = trained(given, path, spec, tables, shard)
    shard.save(tables, given.folder / f"rows-{shard.count}")
    return answer


def trained(given, path, spec, tables, shard=None):
    """The task's result after all epochs."""
    number, count = (0, 1) if shard is None else (shard.rank, shard.count)

    def samples(position):
        return ParquetSamples(
            path, BATCH // count, spec=spec, labels=["click"], drop_remainder=True, shuffle_window=WINDOW, seed=3,
            epochs=given.epochs, start=position, partition=(number, count),
        )  # fmt: skip

    folder = given.folder / f"run-{given.examples}-{given.epochs}{f'-by-{count}' if count > 1 else ''}"
    with Run(folder, samples, tables, shard=shard) as run:
        with vmhost.Host(allow_unsigned=True, functions=run.functions, tables=run.tables) as host:
            task = host.load(compile_folder(HERE).to_bytes())
            started = time.perf_counter()
            answer = task({"steps": given.examples * given.epochs // BATCH, "every": given.every})
            seconds = time.perf_counter() - started
        where = f", from step {answer['resumed']} on" if answer["resumed"] else ""
        rate = (answer["steps"] - answer["resumed"]) * BATCH / seconds
        waited = run.samples.waited_s / seconds
    if number == 0:
        by = "" if shard is None else f" by {count} processes"
        steps = f"{answer['steps']} steps of {BATCH}{by}{where}"
        print(f"trained: {steps}, {rate:,.0f} examples/s, {waited:.1%} waiting for data")
    return answer


def served(folder, path):
    """Labels, the served network's probabilities and the true ones, for the examples of a file."""
    with SessionGroup(folder) as group:
        with ParquetSamples(path, SERVED, spec=group.spec, labels=["click"]) as samples:
            asked = [(batch["click"], group.submit(batch)) for batch in samples]
        labels, scores = zip(*((labels, answer.result()["click"]) for labels, answer in asked))
    return numpy.concatenate(labels), numpy.concatenate(scores), clicks.probabilities(path)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main())
