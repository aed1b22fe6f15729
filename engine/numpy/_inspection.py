"""The array API standard's inspection of a namespace: capabilities, devices, dtypes."""

from vmhost.engine import _array as _a

_KINDS = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
_KINDS["integral"] = _KINDS["signed integer"] + _KINDS["unsigned integer"]
_KINDS["numeric"] = _KINDS["integral"] + _KINDS["real floating"] + _KINDS["complex floating"]


class __array_namespace_info__:
    """The standard's inspection functions; the class name is the standard's. The only device is "cpu"."""

    def capabilities(self):
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self):
        return "cpu"

    def devices(self):
        return ("cpu",)

    def default_dtypes(self, *, device=None):
        _check(device)
        return {
            "real floating": _a.float64,
            "complex floating": _a.complex128,
            "integral": _a.int64,
            "indexing": _a.int64,
        }

    def dtypes(self, *, device=None, kind=None):
        """{name: dtype} of the standard's dtypes, of one or several kinds."""
        _check(device)
        if kind is None:
            names = _KINDS["bool"] + _KINDS["numeric"]
        else:
            names = []
            for one in kind if isinstance(kind, tuple) else (kind,):
                if one not in _KINDS:
                    raise ValueError(f"unsupported kind: {one!r}")
                names += [name for name in _KINDS[one] if name not in names]
        return {name: getattr(_a, name) for name in names}


def _check(device):
    if device not in (None, "cpu"):
        raise ValueError(f'Device not understood. Only "cpu" is allowed, but received: {device!r}')
