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
        if name == "aligned":
            if value and not self.aligned:
                raise ValueError("cannot set aligned flag of mis-aligned array to True")
            return
        if name != "writeable":
            raise AttributeError(f"only writeable can be set, not {name!r}")
        self._array.setflags(write=value)
        object.__setattr__(self, name, bool(value))

    def __eq__(self, other):
        return isinstance(other, Flags) and self.num == other.num

    __hash__ = None

    def __delattr__(self, name):
        raise AttributeError(f"Cannot delete flag {name!r}")

    @property
    def contiguous(self):
        return self.c_contiguous

    @property
    def forc(self):
        return self.c_contiguous or self.f_contiguous

    @property
    def fnc(self):
        return self.f_contiguous and not self.c_contiguous

    fortran = fnc

    @property
    def behaved(self):
        return self.aligned and self.writeable

    @property
    def carray(self):
        return self.behaved and self.c_contiguous

    @property
    def farray(self):
        return self.behaved and self.fnc

    @property
    def num(self):
        return sum(bit for bit, name in self._BITS.items() if getattr(self, name))

    writebackifcopy = False  # there is no array that is written back later
    _BITS = {1: "c_contiguous", 2: "f_contiguous", 4: "owndata", 0x100: "aligned", 0x400: "writeable"}
    _KEYS = {
        "C": "c_contiguous",
        "F": "f_contiguous",
        "W": "writeable",
        "A": "aligned",
        "O": "owndata",
        "X": "writebackifcopy",
        "B": "behaved",
        "CA": "carray",
        "FA": "farray",
        "CONTIGUOUS": "c_contiguous",
        "FORTRAN": "f_contiguous",
    }
    _READ = {*_NAMES, "writebackifcopy", "behaved", "carray", "farray", "fnc", "forc"}

    def __getitem__(self, key):
        name = self._KEYS.get(key, key.lower() if isinstance(key, str) and key.isupper() else None)
        if name not in self._READ:
            raise KeyError("Unknown flag")
        return getattr(self, name)

    def __setitem__(self, key, value):
        if self._KEYS.get(key, key.lower() if isinstance(key, str) else None) != "writeable":
            raise KeyError("Unknown flag")
        self.writeable = value

    def __repr__(self):
        names = ("C_CONTIGUOUS", "F_CONTIGUOUS", "OWNDATA", "WRITEABLE", "ALIGNED")
        return "".join(f"  {name} : {self[name]}\n" for name in names)
