"""Means, norms and logarithms of sums of integers, whose sums may not fit the dtype: exact, rounded toward zero, within
the dtype's limits. ONNX's reference implementation and ONNX Runtime let the sums wrap."""

import math

import numpy

INTEGER_MEANS = {"ReduceMean": 0, "ReduceL2": 1, "ReduceLogSum": 2, "ReduceLogSumExp": 3}


def integer_mean(add, op, source, axes):
    """The reduction `op` of integers, exact and rounded toward zero; reduced axes keep size 1."""
    shape = add.shape(source)
    kept = [d for d in range(len(shape)) if d not in axes]
    rows = add.transpose(source, (*kept, *axes)) if kept + axes != list(range(len(shape))) else source
    rows = add.reshape(rows, (*(shape[d] for d in kept), math.prod(shape[d] for d in axes)))
    result = add.reader.add_layer(
        "IntegerMean", add.node, [rows], (*add.shape(rows)[:-1], 1), add.dtype(source), add.fresh("mean"),
        parameters=(INTEGER_MEANS[op],),
    )  # fmt: skip
    return add.reshape(result, [1 if d in axes else size for d, size in enumerate(shape)])


def integer_mean_of(op, values, axes, keeps):
    """The same of a constant."""
    kept = [d for d in range(values.ndim) if d not in axes]
    rows = values.transpose(*kept, *axes).reshape(*(values.shape[d] for d in kept), -1)
    results = numpy.empty(rows.shape[:-1], values.dtype)
    limits = numpy.iinfo(values.dtype)
    for place in numpy.ndindex(results.shape):
        found = _exact(op, rows[place].tolist(), limits.min)
        results[place] = min(max(found, limits.min), limits.max)
    shape = [1 if d in axes else size for d, size in enumerate(values.shape)]
    return results.reshape(shape) if keeps else results


def _exact(op, row, lowest):
    total = sum(row)
    if op == "ReduceMean":
        return abs(total) // len(row) * (-1 if total < 0 else 1) if row else 0
    if op == "ReduceL2":
        return math.isqrt(sum(x * x for x in row))
    if op == "ReduceLogSum":
        return int(math.log(total)) if total > 0 else lowest
    if not row:
        return lowest
    largest = max(row)
    logarithm = math.log(sum(math.exp(x - largest) for x in row))
    return max(largest + math.floor(logarithm), min(largest + math.ceil(logarithm), 0))
