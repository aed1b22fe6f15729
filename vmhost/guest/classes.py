"""Dataclasses, namedtuples, enums and exceptions that cross between interpreters: read into their parts, and made again
without calling code that the class defines.

Each side has its own copy of this module. A Shape reads and makes the values of one class: fields are set where the
instance stores them; `__init__`, `__new__`, `__post_init__`, properties and other descriptors of the class do not run.
A VM may send forged data: `make` returns a complete value of the class, or raises Malformed.
"""

import builtins
import sys

from vmhost.guest.kinds import Malformed, expect

# Kinds as in vmhost.guest.kinds, which has the lower numbers. Their detail is the class, "module:qualname".
FIELDS, TUPLE, MEMBER, ERROR, CONVERTED, ERROR_CLASS = range(100, 106)
_WORDS = {
    FIELDS: "dataclass",
    TUPLE: "namedtuple",
    MEMBER: "enum",
    ERROR: "exception",
    CONVERTED: "converted class",
    ERROR_CLASS: "exception class",
}
# Of the parts of a function that no name leads to (vmhost/runtime/made_functions.py), the first of each item.
VALUE, FUNCTION, NAMED, MODULE, BOUND, EMPTY = range(6)
_HEAP_TYPE = 1 << 9
_MAX_NAME_CHARS = 500
_NOTHING = object()


class Unfit(ValueError):
    """A class whose values cannot be read and made in this way; the text says why."""


def name_of(cls):
    """The name of a class on the wire."""
    return f"{cls.__module__}:{cls.__qualname__}"


def shape_of(cls):
    """The Shape of the class. Unfit: why it has none."""
    shape = _shapes.get(cls)
    if shape is None:
        shape = _shapes[cls] = _new_shape(cls)
    return shape


def shape_of_state(cls):
    """A Shape for a class that has none: its values cross as all that is stored in them. Unfit: why it has none."""
    return _State(cls)


def has_shape(cls):
    """Whether it is a dataclass, namedtuple, enum or exception, fit or not."""
    return (
        issubclass(cls, BaseException)
        or issubclass(cls, tuple)
        and type(_found(cls, "_fields")) is tuple
        or type(_found(cls, "_member_map_")) is dict
        or "__dataclass_fields__" in vars(cls)
    )


def find(module, path):
    """The class at `path` ("Outer.Inner") of a module, looked up without running code; None."""
    found = module
    for part in path.split("."):
        found = vars(found).get(part) if isinstance(found, type) or found is module else None
    return found if isinstance(found, type) else None


def is_builtin_error(cls):
    """Whether it is one of Python's own exceptions, which need not be registered."""
    return issubclass(cls, Exception) and vars(builtins).get(cls.__name__) is cls


def shape_of_builtin(name):
    """The Shape of the builtin exception with this name on the wire, or None."""
    module, _, path = name.partition(":")
    cls = vars(builtins).get(path) if module == "builtins" else None
    return shape_of(cls) if isinstance(cls, type) and is_builtin_error(cls) else None


_shapes = {}


def _new_shape(cls):
    if issubclass(cls, BaseException):
        return _Errors(cls)
    if type(_found(cls, "_member_map_")) is dict:  # before tuples: a member may be a namedtuple too
        return _Members(cls)
    if issubclass(cls, tuple) and type(_found(cls, "_fields")) is tuple:
        return _Tuples(cls)
    if "__dataclass_fields__" in vars(cls):
        return _Fields(cls)
    raise _unfit(cls)


def _unfit(cls):
    name = cls.__qualname__
    if _found(cls, "__dataclass_fields__") is not _NOTHING:
        return Unfit(f"`{name}` derives from a dataclass and is none itself; decorate it as well, or convert it")
    return Unfit(f"`{name}` is no dataclass, namedtuple, enum or exception; convert it with a pair of functions")


def _found(cls, name):
    """The attribute of this name in the class or a base, without descriptors; or _NOTHING."""
    for base in type.mro(cls) if type(cls) is type else cls.__mro__:
        found = vars(base).get(name, _NOTHING)
        if found is not _NOTHING:
            return found
    return _NOTHING


def _builtin_bases(cls):
    """Its base classes that are implemented in C, without object."""
    return [base for base in cls.__mro__ if not base.__flags__ & _HEAP_TYPE and base is not object]


def _hashes_plainly(cls):
    """Whether its values can be hashed and compared without calling code of the class."""
    for name in ("__hash__", "__eq__"):
        owner = next(base for base in cls.__mro__ if name in vars(base))
        code = getattr(vars(owner)[name], "__code__", None)
        if (
            owner.__flags__ & _HEAP_TYPE
            and owner.__module__ != "enum"
            and not ("__dataclass_params__" in vars(owner) and code is not None and code.co_filename == "<string>")
        ):
            return vars(owner)[name] is None  # unhashable: using it as a key raises anyway
    return True


class _Shape:
    """Of one class: `kind`; `read(value)` returns the payload, `make(payload, in_key)` a value."""

    names = ()  # (names of the fields,) or (None,), if the wire may read and make further values of a message itself

    def __init__(self, cls):
        self.cls = cls
        self.name = cls.__qualname__[:_MAX_NAME_CHARS]
        self._hashes_plainly = _hashes_plainly(cls)

    def packed(self, name, value):
        """What the codec gives the wire (wire/wire.h)."""
        return self.kind, name, self.read(value), *self.names

    def make(self, payload, in_key):
        """A value of the class. Raises Malformed. `in_key`: it will be hashed and compared."""
        if in_key and not self._hashes_plainly:
            raise Malformed(
                f"not a `{self.name}`: the class has a __hash__ or __eq__ of its own, which is not run for what a VM "
                "sends: it cannot be a key of a dict or an item of a set"
            )
        try:
            return self._make(payload)
        except Malformed as error:
            raise Malformed(f"not a `{self.name}`: {error}") from error
        except (TypeError, ValueError, OverflowError) as error:
            raise Malformed(f"not a `{self.name}`: {error}") from error


class _Fields(_Shape):
    """A dataclass: a dict of its fields. Other attributes do not cross."""

    kind = FIELDS

    def __init__(self, cls):
        super().__init__(cls)
        from dataclasses import fields

        if builtin := _builtin_bases(cls):
            raise Unfit(f"`{self.name}` derives from `{builtin[0].__name__}`; convert it with a pair of functions")
        self._dict = _found(cls, "__dict__")
        self._slots = {}
        for field in fields(cls):
            found = _found(cls, field.name)
            if type(found) is _SLOT:
                self._slots[field.name] = found
            elif hasattr(type(found), "__set__") or hasattr(type(found), "__delete__"):
                raise Unfit(
                    f"`{self.name}`: its field {field.name} is a descriptor (`{type(found).__name__}`), which is not "
                    "run for what crosses; convert it with a pair of functions"
                )
            elif type(self._dict) is not _GETSET:
                raise Unfit(f"`{self.name}`: there is no place for its field {field.name}")
            else:
                self._slots[field.name] = None
        self.names = (tuple(self._slots),)
        self._in_dict = self._dict.__get__ if not any(self._slots.values()) and type(self._dict) is _GETSET else None

    def read(self, value):
        if self._in_dict is not None:
            inside = self._in_dict(value)
            if inside.keys() == self._slots.keys():
                return dict(inside)
        inside = None if all(self._slots.values()) else self._dict.__get__(value)
        fields = {}
        for name, slot in self._slots.items():
            try:
                fields[name] = inside[name] if slot is None else slot.__get__(value)
            except KeyError, AttributeError:
                # an unset default is in the class
                fields[name] = default = _found(self.cls, name) if slot is None else _NOTHING
                if default is _NOTHING:
                    raise ValueError(f"a `{self.name}` without its field {name} cannot cross") from None
        return fields

    def _make(self, payload):
        expect("its fields", payload, dict)
        if payload.keys() != self._slots.keys():
            missing = ", ".join(name for name in self._slots if name not in payload)
            extra = ", ".join(sorted(str(name)[:50] for name in payload if name not in self._slots)[:5])
            raise Malformed(f"missing fields: {missing or 'none'}; unknown fields: {extra or 'none'}")
        value = object.__new__(self.cls)
        if self._in_dict is not None:
            self._in_dict(value).update(payload)
            return value
        for name, slot in self._slots.items():
            if slot is None:
                self._dict.__get__(value)[name] = payload[name]
            else:
                slot.__set__(value, payload[name])
        return value


class _State(_Shape):
    """A plain class: a dict of the attributes that its values have."""

    kind = FIELDS

    def __init__(self, cls):
        super().__init__(cls)
        if builtin := _builtin_bases(cls):
            raise Unfit(f"`{self.name}` derives from `{builtin[0].__name__}`; convert it with a pair of functions")
        if type(cls) is not type or cls is object or _found(cls, "__dataclass_fields__") is not _NOTHING:
            raise _unfit(cls)
        found = _found(cls, "__dict__")
        self._dict = found if type(found) is _GETSET else None
        self._slots = {
            name: slot for base in reversed(cls.__mro__) for name, slot in vars(base).items() if type(slot) is _SLOT
        }

    def read(self, value):
        state = {} if self._dict is None else dict(self._dict.__get__(value))
        for name, slot in self._slots.items():
            try:
                state[name] = slot.__get__(value)
            except AttributeError:
                pass  # not set
        return state

    def _make(self, payload):
        expect("its attributes", payload, dict)
        if not all(map(_is_own, payload)):
            raise Malformed("its attributes: expected names that do not begin with two underscores")
        value = object.__new__(self.cls)
        for name, part in payload.items():
            if name in self._slots:
                self._slots[name].__set__(value, part)
            elif self._dict is None:
                raise Malformed(f"there is no place for its attribute {name[:100]}")
            else:
                self._dict.__get__(value)[name] = part
        return value


class _Tuples(_Shape):
    """A namedtuple: a tuple of its fields."""

    kind = TUPLE
    names = (None,)

    def __init__(self, cls):
        super().__init__(cls)
        self._count = len(_found(cls, "_fields"))
        if _builtin_bases(cls) != [tuple]:
            raise Unfit(f"`{self.name}` derives from more than tuple; convert it with a pair of functions")

    def read(self, value):
        return tuple(tuple.__iter__(value))

    def _make(self, payload):
        expect("its fields", payload, tuple)
        if len(payload) != self._count:
            raise Malformed(f"expected {self._count} fields, got {len(payload)}")
        return tuple.__new__(self.cls, payload)


class _Members(_Shape):
    """An enum: the name of a member."""

    kind = MEMBER
    names = (None,)

    def __init__(self, cls):
        super().__init__(cls)
        self._members = _found(cls, "_member_map_")

    def read(self, value):
        name = vars(value).get("_name_")
        if type(name) is not str or self._members.get(name) is not value:
            raise ValueError(f"a `{self.name}` that is no member by name cannot cross; send its value")
        return name

    def _make(self, payload):
        member = self._members.get(expect("its member", payload, str))
        if type(member) is not self.cls:
            raise Malformed(f"there is no member {payload[:100]!r}")
        return member


class _Errors(_Shape):
    """An exception: its arguments, and a dict of its own attributes and notes. A group's second argument holds its
    members."""

    kind = ERROR

    def __init__(self, cls):
        super().__init__(cls)
        if not issubclass(cls, Exception):
            raise Unfit(f"`{self.name}` is no plain Exception, and cannot cross")
        self._base = cls
        while self._base.__flags__ & _HEAP_TYPE:
            self._base = _base_of(self._base)  # the one whose layout it has
        self._slots = {
            name: vars(kind)[name]
            for kind, names in _TEXTS_OF.items()
            if issubclass(self._base, kind)
            for name in names
        }

    def read(self, value):
        args, state = _args_of(value), _dict_of(value)
        if isinstance(value, OSError) and len(args) == 2:  # OSError removes file names from its args
            names = [vars(OSError)[name].__get__(value) for name in ("filename", "filename2")]
            args += (names[0], None, names[1]) if names[1] is not None else (names[0],) if names[0] is not None else ()
        elif isinstance(value, SyntaxError) and len(args) == 2 and type(args[1]) is tuple:
            args = args[0], args[1][: len(_PLACE)]  # the parser adds data of its own
        own = {name: state[name] for name in state if _is_own(name)}
        if self.cls.__module__.partition(".")[0] in sys.stdlib_module_names:
            args = tuple(map(_exact, args))
            own = {name: _exact(part) for name, part in own.items()}
        own.update((name, text) for name, slot in self._slots.items() if type(text := slot.__get__(value)) is str)
        notes = state.get("__notes__")
        if type(notes) is list and notes and all(type(note) is str for note in notes):
            own["__notes__"] = notes
        return args, own

    def _make(self, payload):
        expect("its parts", payload, tuple)
        if len(payload) != 2:
            raise Malformed(f"expected 2 parts, got {len(payload)}")
        args, state = payload
        expect("its arguments", args, tuple)
        expect("its attributes", state, dict)
        state = dict(state)
        notes = expect("its notes", state.pop("__notes__", []), list)
        for note in notes:
            expect("its notes", note, str)
        if not all(map(_is_own, state)):
            raise Malformed("its attributes: expected names that do not begin with two underscores")
        if issubclass(self._base, SyntaxError):
            _check_syntax(args)
        texts = {name: expect(f"its {name}", state.pop(name), str) for name in self._slots if name in state}
        if self.cls is self._base:
            error = self._base(*args)
        else:
            error = self._base.__new__(self.cls, *args)
            self._base.__init__(error, *args)
        for name, text in texts.items():
            self._slots[name].__set__(error, text)
        _dict_of(error).update(state)
        for note in notes:
            BaseException.add_note(error, note)
        return error


# How to make an exact value of one of a subclass, without its code: the library's own exceptions hold such texts.
_EXACT = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
}


def _exact(value):
    kind = type(value)
    if kind in _EXACT or kind is bool:
        return value
    return next((make(value) for base, make in _EXACT.items() if issubclass(kind, base)), value)


# Attributes of builtin exceptions that are not among their arguments; they cross where they are texts.
_TEXTS_OF = {ImportError: ("name", "path", "name_from"), NameError: ("name",), AttributeError: ("name",)}
# Code that prints a SyntaxError expects these behind its message.
_PLACE = {"filename": str, "lineno": int, "offset": int, "text": str, "end_lineno": int, "end_offset": int}
_MAX_PLACE = 1 << 30


def _check_syntax(args):
    """Raises Malformed unless `args` are a message alone, or with a place of known parts."""
    if len(args) < 2:
        return
    if len(args) > 2 or not 4 <= len(expect("its place", args[1], tuple)) <= len(_PLACE):
        raise Malformed("its arguments: expected a message and its place")
    for value, (name, kind) in zip(args[1], _PLACE.items()):
        expect(f"its {name}", value, kind, _NONE)
        if kind is int and value is not None and not -1 <= value <= _MAX_PLACE:
            raise Malformed(f"its {name}: expected a number of a line or column")


def _is_own(name):
    return type(name) is str and not name.startswith("__")


_NONE = type(None)
_base_of = vars(type)["__base__"].__get__
_args_of, _dict_of = (vars(BaseException)[name].__get__ for name in ("args", "__dict__"))
_SLOT = type(type("_Slotted", (), {"__slots__": ("slot",)}).slot)
_GETSET = type(vars(BaseException)["args"])


def unknown(kind, name):
    """The Malformed for a value of a class that this side does not have."""
    word = _WORDS.get(kind, "value")
    return Malformed(f"the {word} `{name[:_MAX_NAME_CHARS]}` is not known here")


def split(name):
    """(module, path) of a name on the wire. Malformed."""
    expect("its class", name, str)
    module, colon, path = name.partition(":")
    if not (module and colon and path) or len(name) > _MAX_NAME_CHARS:
        raise Malformed(f"its class: expected module:name, got {name[:100]!r}")
    return module, path


def is_class_kind(kind):
    return kind in _WORDS
