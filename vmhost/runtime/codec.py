"""The host's codec for values of classes that the native wire does not know: it packs and unpacks them.

Each service has a Codec; its lanes call it, on the thread that sends a value or asks for a result. A VM may send forged
values: `vmhost.guest.kinds` and `vmhost.guest.classes` check every part, and a class is looked up only among those that
were registered, or in modules of functions that were submitted. Nothing is imported on behalf of a VM.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vmhost.bytecode.fields import shown
from vmhost.errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A value of `types` for display only: values of unknown classes become their parts: a dict of fields, a tuple, the name
# of an enum member, type and arguments of an exception, or the result of the task's own conversion.
PARTS = object()
# A value of `types` for passing values through: those of unknown classes become Foreign.
FOREIGN = object()


@dataclass(frozen=True, slots=True)
class Foreign:
    """A value of a class that only the task knows, in its encoded form: `kind`, `detail` (such as the task's name for
    the class) and `payload`, its parts."""

    kind: int
    detail: "Any"
    payload: "Any"


@dataclass(frozen=True, slots=True)
class Conversion:
    """A class whose values cross as `to_plain(value)`, and are created by `from_plain(plain)`.

    The host calls `from_plain` with data from a task: it must check the data, and raise if it is invalid.
    """

    cls: type
    to_plain: Callable[["Any"], "Any"]
    from_plain: Callable[["Any"], "Any"]

    def __post_init__(self) -> None:
        if not isinstance(self.cls, type):
            raise ConfigurationError(f"Conversion: expected a class, got {shown(self.cls)}")
        for name in ("to_plain", "from_plain"):
            if not callable(getattr(self, name)):
                raise ConfigurationError(f"Conversion: {name}: expected a function, got {shown(getattr(self, name))}")


class Codec:
    """Packs and unpacks values for the lanes of one service: of classes of the standard library, and of `types`.

    `types` are classes or Conversions: a list, known by their own names "module:Class", or a mapping from the tasks'
    names for them; or PARTS or FOREIGN. `of_executor`: plain classes may be among them; exceptions, enums,
    namedtuples and dataclasses of the standard library cross too, where the host has imported their module. Raises
    ConfigurationError.
    """

    def __init__(self, types=None, of_executor=False):
        self._library = self._plain_classes = of_executor
        self._in_parts, self._foreign = types is PARTS, types is FOREIGN
        self.homes = {}  # of an executor: module in its VMs -> module here, whose classes are also known
        self.conversions = {}  # name -> Conversion
        self.plain = {}  # name -> class that is no dataclass, namedtuple, enum or exception
        self._known = {}  # name -> Shape
        self._names = {}  # class -> name
        self._by_own_name = {}  # the homes by their names here
        self._packers = {}  # class of a home -> (function that packs a value, name)
        self._makers = {}  # name -> (class of a home, its Shape)
        for name, given in _named(types):
            self._register(name, given)

    def _register(self, name, given):
        from vmhost.guest.classes import Unfit, has_shape, shape_of, shape_of_state

        cls = given.cls if isinstance(given, Conversion) else given
        if name in self._known or name in self.conversions or cls in self._names:
            raise ConfigurationError(f"types: {name}: given twice")
        if isinstance(given, Conversion):
            self.conversions[name] = given
        else:
            plain = self._plain_classes and not has_shape(cls)
            try:
                self._known[name] = (shape_of_state if plain else shape_of)(cls)
                if plain:
                    self.plain[name] = cls
            except Unfit as error:
                raise ConfigurationError(f"types: {name}: {error}") from error
        self._names[cls] = name

    def pack(self, value):
        """(kind, detail, payload) of a value that can cross; None: unknown class. ValueError: why it cannot."""
        from vmhost.guest import kinds  # imported late: few calls need it

        if type(value) is Foreign:
            return value.kind, value.detail, value.payload
        packed = kinds.pack(value)
        if packed is not None:
            return packed
        from vmhost.guest.classes import CONVERTED, ERROR_CLASS, has_shape, is_builtin_error, name_of, shape_of

        kind = type(value)
        known = self._packers.get(kind)
        if known is not None and self._own_class(known[1]) is kind:
            return known[0](known[1], value)
        is_class = kind is type and self._library and issubclass(value, Exception)
        cls = value if is_class else kind
        name = self._names.get(cls)
        if name in self.conversions:
            return None if is_class else (CONVERTED, name, self.conversions[name].to_plain(value))
        if name is None and has_shape(cls):
            name = name_of(cls) if is_builtin_error(cls) or self._is_of_a_home(cls) else self._library_name(cls)
            if name is None:
                raise ValueError(
                    f"a `{name_of(cls)}` cannot cross: its class is not registered; name it in `types` of the "
                    "Host or VMExecutor"
                )
        if name is None:
            return None
        if is_class:
            return ERROR_CLASS, name, None
        shape = self._known.get(name) or shape_of(cls)
        if self._own_class(name) is cls:
            self._packers[cls] = shape.packed, name
        return shape.packed(name, value)

    def _own_class(self, name):
        """The class that VMs call `name`, if it is in the home of this name itself; None."""
        module, _, path = name.partition(":")
        home = self.homes.get(module) or self._by_own_name.get(module)
        found = None if home is None else vars(home).get(path)
        return found if isinstance(found, type) and found.__module__ == home.__name__ else None

    def add_home(self, name, module):
        """From now on the classes of `module`, which VMs call `name`, are known."""
        self.homes[name] = self._by_own_name[module.__name__] = module

    def unpack(self, kind, detail, payload, in_key, _entry=None):
        """The value that a VM packed; `in_key`: it must be hashable. ValueError if it is invalid."""
        from vmhost.guest import kinds
        from vmhost.guest.classes import (
            CONVERTED,
            ERROR,
            ERROR_CLASS,
            FIELDS,
            MEMBER,
            TUPLE,
            is_class_kind,
            split,
            unknown,
        )

        if not is_class_kind(kind):
            return kinds.unpack(kind, detail, payload)
        known = self._makers.get(detail) if type(detail) is str else None
        if known is not None and kind == known[1].kind and self._own_class(detail) is known[0]:
            return known[1].make(payload, in_key)
        split(detail)
        if self._foreign:
            return f"{detail}: {payload!r}" if in_key else Foreign(kind, detail, payload)
        if kind == CONVERTED:
            return self._convert(detail, payload)
        shape = self._shape(detail)
        if shape is None and self._in_parts and kind in (TUPLE, MEMBER, FIELDS) and not (in_key and kind == FIELDS):
            return payload
        if shape is None and self._in_parts and kind == ERROR and not in_key:
            args = payload[0] if type(payload) is tuple and payload else ()
            return {"type": detail, "args": args}
        if shape is None:
            error = unknown(kind, detail)
            raise type(error)(f"{error}; name it in `types` of the Host or VMExecutor")
        if kind == ERROR_CLASS and shape.kind == ERROR and self._library:
            return shape.cls
        if shape.kind != kind:
            raise kinds.Malformed(f"`{detail}` is another kind of class here")
        if self._own_class(detail) is shape.cls:
            self._makers[detail] = shape.cls, shape
        return shape.make(payload, in_key)

    def _shape(self, name):
        """The Shape of the class that VMs call `name`, if it is known here; None."""
        from vmhost.guest.classes import shape_of_builtin

        return (
            self._known.get(name) or shape_of_builtin(name) or self._library_shape(name) or self._shape_in_homes(name)
        )

    def error(self, report):
        """The exception in a guest's report, as far as it is plain, if its class is known here; None. Parts of an
        exception make no exception of a class of the program's own."""
        from vmhost.guest.classes import ERROR, is_builtin_error
        from vmhost.guest.kinds import Malformed

        if report["args"] is None or not report["type"] or not report["module"]:
            return None
        name = f"{report['module']}:{report['type']}"
        try:
            shape = self._shape(name)
            if shape is None or shape.kind != ERROR:
                return None
            if not (report["whole"] or is_builtin_error(shape.cls) or self._library_name(shape.cls)):
                return None
            args, state = tuple(report["args"]), report["state"] | {"__notes__": report["notes"]}
            given = report["attributes"]
            if issubclass(shape.cls, OSError):
                if len(args) == 2 and "filename" in given:
                    args += (given["filename"], None, given.get("filename2"))[: 3 if "filename2" in given else 1]
            else:
                state |= {name: text for name, text in given.items() if type(text) is str}
            return shape.make((args, state), False)
        except Malformed:  # a forged report
            return None

    def _convert(self, name, payload):
        from vmhost.guest.classes import CONVERTED, unknown
        from vmhost.guest.kinds import Malformed

        conversion = self.conversions.get(name)
        if conversion is None and self._in_parts:
            return payload
        if conversion is None:
            raise unknown(CONVERTED, name)
        try:
            value = conversion.from_plain(payload)
        except Exception as error:
            raise Malformed(f"not a `{name}`: its function raised {type(error).__name__}: {error}") from error
        if not isinstance(value, conversion.cls):
            raise Malformed(f"not a `{name}`: its function gave a `{type(value).__name__}`")
        return value

    # -- of an executor -------------------------------------------------------------------------------------------

    def _library_shape(self, name):
        """The Shape of a class of the standard library whose module the host has imported; None."""
        from vmhost.guest.classes import shape_of

        cls = _library_class(name) if self._library else None
        return None if cls is None else shape_of(cls)

    def _library_name(self, cls):
        """The name that VMs have for a class of the standard library; None for another class."""
        if not self._library:
            return None
        from vmhost.guest.classes import name_of
        from vmhost.runtime.library_classes import LIBRARY_CLASSES

        if _library_class(name := name_of(cls)) is cls:
            return name
        if cls.__module__.partition(".")[0] not in sys.stdlib_module_names:
            return None
        return next((name for name in LIBRARY_CLASSES if _library_class(name) is cls), None)

    def _is_of_a_home(self, cls):
        """Whether a submitted function could refer to the class: it is in the function's module, or global there."""
        from vmhost.guest.classes import find

        return any(
            home.__name__ == cls.__module__
            and find(home, cls.__qualname__) is cls
            or any(value is cls for value in list(vars(home).values()))
            for home in self._own_modules()
        )

    def _own_modules(self):
        return {id(home): home for home in list(self.homes.values())}.values()

    def _shape_in_homes(self, name):
        """The Shape of the class that VMs call `name`, if `_is_of_a_home` holds for it; None."""
        from vmhost.guest.classes import Unfit, find, has_shape, shape_of, split
        from vmhost.guest.kinds import Malformed

        if not self.homes:
            return None
        module, path = split(name)
        home = self.homes.get(module)
        cls = find(home, path) if home is not None else None
        if cls is None or cls.__module__ != home.__name__:
            cls = next(
                (
                    value
                    for home in self._own_modules()
                    for value in list(vars(home).values())
                    if isinstance(value, type) and value.__module__ == module and value.__qualname__ == path
                ),
                None,
            )
        if cls is None or not has_shape(cls):
            return None
        try:
            return shape_of(cls)
        except Unfit as error:
            raise Malformed(str(error)) from error


def _library_class(name):
    """The class "module:Class" of the standard library if its values cross and its module is imported; None."""
    from vmhost.guest.classes import find, has_shape
    from vmhost.runtime.library_classes import LIBRARY_CLASSES

    module, _, path = name.partition(":")
    home = sys.modules.get(module) if name in LIBRARY_CLASSES else None
    cls = None if home is None else find(home, path)
    return cls if cls is not None and has_shape(cls) else None


def _named(types):
    """(name, class or Conversion) of each of `types`. Raises ConfigurationError."""
    from vmhost.guest.classes import name_of

    if types is None or types is PARTS or types is FOREIGN:
        return
    if isinstance(types, (str, bytes)) or not isinstance(types, (Mapping, list, tuple, set, frozenset)):
        raise ConfigurationError(
            f"types: expected a list of classes, or a mapping of names to them, got {shown(types)}"
        )
    given = types.items() if isinstance(types, Mapping) else ((None, value) for value in types)
    for name, value in given:
        if not isinstance(value, (type, Conversion)):
            raise ConfigurationError(f"types: expected a class or a Conversion, got {shown(value)}")
        if name is None:
            name = name_of(value.cls if isinstance(value, Conversion) else value)
        if not isinstance(name, str) or not all(name.partition(":")):
            raise ConfigurationError(f"types: expected a name such as main:Order, got {shown(name)}")
        yield name, value
