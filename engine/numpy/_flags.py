"""`array.flags`: a frozen answer, by attribute and by NumPy's keys."""


class Flags:
    """What an array's memory allows: `flags.writeable`, `flags["C_CONTIGUOUS"]`."""

    __slots__ = ("c_contiguous", "f_contiguous", "writeable", "aligned", "owndata")

    def __init__(self, c_contiguous, f_contiguous, writeable, aligned, owndata):
        for name, value in zip(self.__slots__, (c_contiguous, f_contiguous, writeable, aligned, owndata)):
            object.__setattr__(self, name, value)

    def __setattr__(self, name, value):
        raise AttributeError(f"flags are changed with setflags(), not by setting {name!r}")

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
        "C": "c_contiguous", "F": "f_contiguous", "W": "writeable", "A": "aligned", "O": "owndata",
        "CONTIGUOUS": "c_contiguous", "FORTRAN": "f_contiguous",
    }

    def __getitem__(self, key):
        name = self._KEYS.get(key, key.lower() if isinstance(key, str) else None)
        if name not in self.__slots__:
            raise KeyError("Unknown flag")
        return getattr(self, name)

    def __repr__(self):
        names = ("C_CONTIGUOUS", "F_CONTIGUOUS", "OWNDATA", "WRITEABLE", "ALIGNED")
        return "".join(f"  {name} : {self[name]}\n" for name in names)
