"""Columns of samples: a NumPy array, a list of texts, or a Ragged of one of these."""

import numpy

from vmhost.engine.embedding import Ragged
from vmhost.engine.features import hashed
from vmhost.training.errors import SamplesError


def from_arrow(column, where, default, hash):
    """The column for a pyarrow ChunkedArray.

    where: its name in errors. default: replaces nulls; None: nulls are refused. hash: the name of the hash that turns
    texts into keys; None: they stay texts."""
    from pyarrow import types

    column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    kind = column.type
    if types.is_list(kind) or types.is_large_list(kind):
        return _of_lists(column, where, default, hash)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind):
        return column.to_pylist() if hash is None else _keys(column, where, hash)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return _numbers(column, where, default)
    raise SamplesError(f"{where}: expected numbers, texts or lists of them, got {kind}")


def _of_lists(column, where, default, hash):
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        column = pc.fill_null(column, pa.scalar([], column.type))
    offsets = column.offsets.to_numpy().astype("int64")
    values = from_arrow(pa.chunked_array([column.values]), where, default, hash)
    return Ragged(part(values, int(offsets[0]), int(offsets[-1])), offsets - offsets[0])


def _keys(column, where, hash):
    """The keys of texts; each distinct text is hashed once. A null becomes the key -1."""
    from pyarrow import types

    coded = column if types.is_dictionary(column.type) else column.dictionary_encode()
    texts = coded.dictionary
    if not (types.is_string(texts.type) or types.is_large_string(texts.type)):
        raise SamplesError(f"{where}: expected texts in a dictionary, got {texts.type}")
    keys = numpy.append(numpy.asarray(hashed(texts.to_pylist(), hash)), -1)
    places = coded.indices.fill_null(len(keys) - 1) if coded.null_count else coded.indices
    return keys[places.to_numpy()]


def _numbers(column, where, default):
    import pyarrow as pa
    from pyarrow import types

    kind = column.type
    if column.null_count:
        if default is None:
            raise SamplesError(
                f"{where}: {column.null_count} values are null, and the field has no value that stands for them"
            )
        column = column.fill_null(bool(default) if types.is_boolean(kind) else pa.scalar(default, kind))
    dtype = "float32" if types.is_floating(kind) else "uint8" if types.is_boolean(kind) else "int64"
    return column.to_numpy(zero_copy_only=False).astype(dtype, copy=False)


def part(column, begin, end):
    """Rows in [begin, end)."""
    if not isinstance(column, Ragged):
        return column[begin:end]
    offsets = column.offsets[begin : end + 1]
    return Ragged(column.values[offsets[0] : offsets[-1]], offsets - offsets[0])


def joined(parts):
    """The concatenation of columns of one kind."""
    if isinstance(parts[0], list):
        return [value for each in parts for value in each]
    if not isinstance(parts[0], Ragged):
        return numpy.concatenate(parts)
    ends = numpy.cumsum([0, *(each.offsets[-1] for each in parts)])
    offsets = [each.offsets[1:] + end for each, end in zip(parts, ends)]
    return Ragged(joined([each.values for each in parts]), numpy.concatenate([[0], *offsets]))


def taken(column, order):
    """The rows with the numbers in `order`, in that order."""
    if isinstance(column, list):
        return [column[row] for row in order.tolist()]
    if not isinstance(column, Ragged):
        return column[order]
    counts = numpy.diff(column.offsets)[order]
    offsets = numpy.concatenate([[0], numpy.cumsum(counts)])
    at = numpy.arange(offsets[-1]) - numpy.repeat(offsets[:-1] - column.offsets[:-1][order], counts)
    return Ragged(taken(column.values, at), offsets)
