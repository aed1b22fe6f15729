"""`array.flags`: an array's memory layout, by attribute and by NumPy's keys; `writeable` can be set."""


class Flags:
    """The flags of an array: `flags.writeable`, `flags["C_CONTIGUOUS"]`."""

    _NAMES = ("c_contiguous", "f_contiguous", "writeable", "aligned", "owndata")
    __slots__ = (*_NAMES, "_array")

    def __init__(self, array, c_contiguous, f_contiguous, writeable, aligned, owndata):
        for name, value in zip(
            self.__slots__, (c_contiguous, f_contiguous, writeable, aligned, owndata, array), strict=True
        ):
            object.__setattr__(self, name, value)

    def __setattr__(self, name, value):
        if name != "writeable":
            raise AttributeError(f"only writeable can be set, not {name!r}")
        self._array.setflags(write=value)
        object.__setattr__(self, name, bool(value))

    @property
    def contiguous(self):
        return self.c_contiguous

    @property
    def forc(self):
        return self.c_contiguous or self.f_contiguous

    @property
    def fnc(self):
        return self.f_contiguous and not self.c_contiguous

    _KEYS = {
        "C": "c_contiguous",
        "F": "f_contiguous",
        "W": "writeable",
        "A": "aligned",
        "O": "owndata",
        "CONTIGUOUS": "c_contiguous",
        "FORTRAN": "f_contiguous",
    }

    def __getitem__(self, key):
        name = self._KEYS.get(key, key.lower() if isinstance(key, str) else None)
        if name not in self._NAMES:
            raise KeyError("Unknown flag")
        return getattr(self, name)

    def __setitem__(self, key, value):
        if self._KEYS.get(key, key.lower() if isinstance(key, str) else None) != "writeable":
            raise KeyError("Unknown flag")
        self.writeable = value

    def __repr__(self):
        names = ("C_CONTIGUOUS", "F_CONTIGUOUS", "OWNDATA", "WRITEABLE", "ALIGNED")
        return "".join(f"  {name} : {self[name]}\n" for name in names)
