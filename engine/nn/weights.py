"""Named arrays in a file, in the safetensors format (https://github.com/huggingface/safetensors, "Format"): 8 bytes
length, a header in JSON, then the arrays' bytes."""

import json
import os

import vmhost.engine.numpy as np

_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}
_DTYPES = {code: name for name, code in _CODES.items()}
_METADATA = "__metadata__"  # a name that the format takes for itself
_HEADER_MAX = 100_000_000


def save_arrays(path, arrays):
    """Writes a dict of arrays atomically: the file is written beside `path` and renamed."""
    header, start, parts = {}, 0, []
    for name, array in arrays.items():
        if not isinstance(name, str) or name == _METADATA:
            raise ValueError(f"{name!r}: an array in a safetensors file has a text as its name, not {_METADATA}")
        array = np.asarray(array)
        if array.dtype.name not in _CODES:
            raise ValueError(f"{name}: arrays of {array.dtype} cannot be saved")
        header[name] = {
            "dtype": _CODES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [start, start + array.nbytes],
        }
        start += array.nbytes
        parts.append(array)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    temporary = f"{os.fspath(path)}.new"
    with open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in parts:
            file.write(array.tobytes())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load_arrays(path):
    """The arrays of a file by name. ValueError says what is wrong with the file."""
    with open(path, "rb") as file:
        data = file.read()
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_HEADER_MAX, len(data) - 8):
        raise ValueError(f"{path}: no safetensors file, or cut off")
    try:
        header = json.loads(data[8 : 8 + length])
        body, arrays = memoryview(data)[8 + length :], {}
        for name, entry in header.items():
            if name == _METADATA:
                continue
            begin, end = entry["data_offsets"]
            dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
            count = 1
            for size in shape:
                count *= size
            if not 0 <= begin <= end <= len(body) or end - begin != count * dtype.itemsize or min(shape, default=0) < 0:
                raise ValueError(f"{name}: {end - begin} bytes at {begin} do not hold {dtype} {shape}")
            arrays[name] = np.array(np.frombuffer(bytes(body[begin:end]), dtype)).reshape(shape)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: no valid safetensors file: {error}") from error
    return arrays
