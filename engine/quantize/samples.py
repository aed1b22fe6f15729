"""Calibration data: arrays in .npz and .npy files as feeds of a model."""

from pathlib import Path

import numpy

from vmhost.engine.quantize.errors import QuantizeError

_ROWS = 8  # rows of a feed, if the model leaves the number open


def feeds(paths, ports, labels=None):
    """(feeds, labels): dicts of arrays by input, and an array of the indices of the right classes for each feed, or
    None. `ports` are the model's inputs; `labels` is the name of an array beside them.

    An .npz file has an array for each input; an .npy file is that of the only input. If the first dimension is larger
    than the model's, it counts examples; a missing dimension is added. A folder stands for the files in it."""
    found, found_labels = [], []
    for path in _files(paths):
        arrays = _arrays(path, ports)
        wanted = arrays.pop(labels, None) if labels is not None else None
        if labels is not None and wanted is None:
            raise QuantizeError(f"{path}: there is no array {labels!r} of labels; there are {_names(arrays)}")
        known = {port.name: port for port in ports}
        for name in known:
            if name not in arrays:
                raise QuantizeError(
                    f"{path}: there is no array {name!r}; the model's inputs are {_names(known)}, the file has"
                    f" {_names(arrays)}"
                )
        given = {name: _fitting(arrays[name], port, path) for name, port in known.items()}
        batch_feeds = _split_feeds(given, known, path)
        found += batch_feeds
        if wanted is not None:
            found_labels += _labels(wanted, batch_feeds, known, path)
    return found, found_labels if labels is not None else None


def _files(paths):
    found = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(each for each in path.iterdir() if each.suffix in (".npy", ".npz"))
            if not inside:
                raise QuantizeError(f"{path}: there are no .npz and no .npy files in this folder")
            found += inside
        elif not path.is_file():
            raise QuantizeError(f"{path}: no such file; --calibrate takes .npz and .npy files and folders of them")
        else:
            found.append(path)
    return found


def _arrays(path, ports):
    try:
        with open(path, "rb") as file:  # NumPy leaves it open if it is no zip
            read = numpy.load(file, allow_pickle=False)
            if isinstance(read, numpy.ndarray):
                if len(ports) != 1:
                    raise QuantizeError(
                        f"{path}: is one array, and the model has {len(ports)} inputs; save an .npz with"
                        f" {_names_of(ports)}"
                    )
                return {ports[0].name: read}
            with read:
                return {name: read[name] for name in read.files}
    except QuantizeError:
        raise
    except Exception as error:  # errors of zipfile, zlib and NumPy, which have no common class
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if "allow_pickle" in reason:  # NumPy's advice for a file that it does not know
            reason = "it holds neither arrays nor an archive of them"
        raise QuantizeError(f"{path}: is no .npz or .npy file of numbers: {reason}") from error


def _fitting(array, port, path):
    where = f"{path}: array {port.name!r}"
    wanted = numpy.dtype(str(port.dtype)) if str(port.dtype) != "str" else None
    if wanted is None:
        raise QuantizeError(f"{where}: the model takes texts; calibration needs numbers")
    if array.size == 0:
        raise QuantizeError(f"{where}: is empty, of shape {array.shape}; give at least one example")
    if array.dtype != wanted:
        if wanted.kind != array.dtype.kind and not (wanted.kind in "iu" and array.dtype.kind in "iu"):
            raise QuantizeError(f"{where}: is of {array.dtype}, expected {wanted}; prepare it as the model's user does")
        array = array.astype(wanted)
    if array.dtype.kind == "f" and not numpy.isfinite(array).all():
        raise QuantizeError(f"{where}: has numbers that are NaN or infinite; leave these examples out")
    if array.ndim == len(port.shape) - 1:
        array = array[None]
    fits = array.ndim == len(port.shape) and all(
        isinstance(size, str) or size == given for size, given in zip(port.shape[1:], array.shape[1:])
    )
    first = port.shape[0] if port.shape else None
    if not fits or (isinstance(first, int) and array.shape[0] % first):
        shape = ", ".join(map(str, port.shape))
        raise QuantizeError(
            f"{where}: is of shape {array.shape}, expected ({shape}), or many of them one after another"
        )
    return numpy.ascontiguousarray(array)


def _split_feeds(given, ports, path):
    """Feeds of the sizes that the model accepts."""
    counts = {}
    for name, array in given.items():
        first = ports[name].shape[0] if ports[name].shape else None
        if first is None:
            continue
        step = first if isinstance(first, int) else min(_ROWS, array.shape[0])
        counts[name] = (step, -(-array.shape[0] // step))
    longest = max((count for _, count in counts.values()), default=1)
    if any(count not in (1, longest) for _, count in counts.values()):
        listing = ", ".join(f"{name!r} has {given[name].shape[0]}" for name in counts)
        raise QuantizeError(f"{path}: the arrays do not have the same number of examples: {listing}")
    split = []
    for i in range(longest):
        feed = {}
        for name, array in given.items():
            step, count = counts.get(name, (1, 1))
            feed[name] = array if count == 1 or array.ndim == 0 else array[i * step : (i + 1) * step]
        split.append(feed)
    return split


def _labels(wanted, batch_feeds, ports, path):
    name = next(iter(ports))
    rows = [feed[name].shape[0] for feed in batch_feeds]
    if wanted.ndim != 1 or len(wanted) != sum(rows) or wanted.dtype.kind not in "iu":
        raise QuantizeError(
            f"{path}: labels are of shape {wanted.shape} and {wanted.dtype}, expected a whole number for each of"
            f" {sum(rows)} examples"
        )
    return numpy.split(wanted, numpy.cumsum(rows)[:-1])


def _names(names):
    return ", ".join(map(repr, names)) or "none"


def _names_of(ports):
    return _names(port.name for port in ports)
