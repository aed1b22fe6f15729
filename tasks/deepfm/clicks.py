"""A generator of click data with a known best possible AUC, as each click is drawn with a known probability.

The logit is the sum of a weight for each id, products of latent vectors for pairs of fields, a linear term in the
numbers and a nonlinear one. Ids follow Zipf's law. It contains no real data.
"""

import numpy

FIELDS = {"user": 300, "item": 200, "shop": 60, "category": 20, "city": 50, "hour": 24, "device": 8, "page": 12}
NUMBERS = ("price", "age", "clicks_today", "position")
ROWS = sum(FIELDS.values())
HIDDEN = 4
GROUP = 16_000  # rows
PAIRS = (("user", "item"), ("user", "category"), ("item", "hour"), ("city", "shop"))


def generate(count, seed, world=0):
    """Columns by name for `count` examples: an int64 column for each of FIELDS, with ids from 0, a float32 column for
    each of NUMBERS, `click` (uint8) and its `probability` (float64). `world` determines what is clicked, `seed` the
    examples."""
    truth, draw = numpy.random.default_rng(world), numpy.random.default_rng([seed, 1])
    columns, logit, vectors = {}, numpy.full(count, -1.6), {}
    for name, size in FIELDS.items():
        shares = 1 / numpy.arange(1, size + 1) ** 0.9
        columns[name] = draw.choice(size, count, p=shares / shares.sum())
        logit += truth.normal(0, 0.35, size)[columns[name]]
        vectors[name] = truth.normal(0, 0.55, (size, HIDDEN))[columns[name]]
    for one, other in PAIRS:
        logit += (vectors[one] * vectors[other]).sum(1)
    numbers = draw.normal(size=(len(NUMBERS), count)).astype("float32")
    logit += truth.normal(0, 0.4, len(NUMBERS)) @ numbers + 0.5 * numpy.cos(2 * numbers[0]) * numbers[1]
    columns |= dict(zip(NUMBERS, numbers))
    columns["probability"] = 1 / (1 + numpy.exp(-logit))
    columns["click"] = (draw.random(count) < columns["probability"]).astype("uint8")
    return columns


def write(path, columns):
    """Writes the columns as a Parquet file."""
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path, row_group_size=GROUP)


def probabilities(path):
    """The true probabilities of a file's clicks, which tasks do not see."""
    from pyarrow import parquet

    with parquet.ParquetFile(path, pre_buffer=False) as file:
        return file.read(["probability"], use_threads=False)["probability"].to_numpy()


def batches(path, size, seed=None, epochs=1):
    """The batches of the task's host function: `size` examples each of a Parquet file, the remainder dropped; row
    groups, and the examples in each, are shuffled by `seed`."""
    from pyarrow import parquet

    starts = numpy.cumsum([0, *FIELDS.values()])[:-1]
    with parquet.ParquetFile(path, pre_buffer=False) as file:
        order = numpy.random.default_rng(seed)
        for _ in range(epochs):
            groups = numpy.arange(file.num_row_groups)
            if seed is not None:
                order.shuffle(groups)
            for group in groups:
                table = file.read_row_group(int(group), [*FIELDS, *NUMBERS, "click"], use_threads=False)
                if any(column.null_count for column in table.columns):
                    raise ValueError(f"{path}: a column has nulls")
                columns = [column.to_numpy() for column in table.columns]
                ids = numpy.stack(columns[: len(FIELDS)], 1).astype("int64") + starts
                numbers = numpy.stack(columns[len(FIELDS) : -1], 1).astype("float32")
                clicks = columns[-1].astype("float32")
                places = numpy.arange(len(clicks))
                if seed is not None:
                    order.shuffle(places)
                for start in range(0, len(places) - size + 1, size):
                    some = places[start : start + size]
                    yield {"ids": ids[some], "numbers": numbers[some], "clicks": clicks[some]}
