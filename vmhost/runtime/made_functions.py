"""Functions that no name leads to: closures, lambdas, functions made inside functions.

Such a function travels as the place of its code in its module, with the values of its defaults and cells as they are
when it is submitted. The VM finds the code in its own copy of the module's bytecode; no code crosses.
"""

import functools
import marshal
import sys
import types

from vmhost.errors import CrossingError
from vmhost.guest.classes import BOUND, EMPTY, FUNCTION, MODULE, NAMED, VALUE
from vmhost.runtime import travel


def parts_of(function, check):
    """(spec, its Luggage, [(module here, Luggage) of all that it needs]) of a Python function. `check(value, what)`
    raises ValueError or TypeError for a value that cannot cross. CrossingError."""
    parts = _Parts(function, check)
    parts.function(function)
    parts.check_values()
    return (parts.functions, parts.cells), parts.luggages[0][1], parts.luggages


class _Parts:
    def __init__(self, root, check):
        self._root, self._check = root, check
        self.functions, self.cells, self.luggages = [], [], []
        self._indices = {}  # id of a function or cell -> its index
        self._values = []  # (value, what it is)

    def function(self, function):
        """The index of the function among the parts."""
        known = self._indices.get(id(function))
        if known is not None:
            return known
        module = function.__globals__.get("__name__")
        home = sys.modules.get(module)
        if home is None or vars(home) is not function.__globals__:
            raise CrossingError(f"{travel.shown(function)} cannot travel to a VM: its globals are those of no module")
        luggage = travel.compile_module(module, function.__qualname__, function)
        self.luggages.append((home, luggage))
        path = _path_to(luggage, function)
        index = self._indices[id(function)] = len(self.functions)
        self.functions.append(None)
        names = function.__code__.co_varnames
        defaults = function.__defaults__
        first = function.__code__.co_argcount - len(defaults or ())
        self.functions[index] = (
            luggage.name,
            path,
            function.__name__,
            function.__qualname__,
            defaults and [self._item(each, f"default of {names[first + at]}") for at, each in enumerate(defaults)],
            {name: self._item(each, f"default of {name}") for name, each in (function.__kwdefaults__ or {}).items()},
            [self._cell(*each) for each in zip(function.__code__.co_freevars, function.__closure__ or ())],
        )
        return index

    def _cell(self, name, cell):
        known = self._indices.get(id(cell))
        if known is not None:
            return known
        index = self._indices[id(cell)] = len(self.cells)
        self.cells.append((EMPTY,))
        try:
            value = cell.cell_contents
        except ValueError:
            return index
        self.cells[index] = self._item(value, f"variable {name}")
        return index

    def _item(self, value, what):
        if isinstance(value, types.ModuleType):
            luggage = travel.module_luggage(value.__name__, self._root)
            self.luggages.append((value, luggage))
            return MODULE, luggage.name
        if isinstance(value, types.MethodType) and not isinstance(value.__self__, type):
            return BOUND, self._item(value.__func__, what), self._item(value.__self__, what)
        if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
            try:
                module, path = travel.place_of(value)
            except travel.Unreachable:
                if isinstance(value, types.FunctionType):
                    return FUNCTION, self.function(value)
                raise CrossingError(
                    f"{travel.shown(self._root)} cannot travel to a VM: its {what} is {value!r:.80}, to which"
                    " no name leads"
                ) from None
            luggage = travel.compile_module(module, path, value)
            self.luggages.append((sys.modules[module], luggage))
            return NAMED, luggage.name, path
        self._values.append((value, what))
        return VALUE, value

    def check_values(self):
        for value, what in self._values:
            try:
                self._check(value, f"its {what}")
            except (TypeError, ValueError) as error:
                raise CrossingError(f"{travel.shown(self._root)} cannot travel to a VM: {error}") from None


def _path_to(luggage, function):
    """The indices among constants that lead from the module's code to the function's. CrossingError."""
    module, code = luggage.modules.get(luggage.name), function.__code__
    found = [] if module is None else [(path, each) for path, each in _codes_of(module.code) if _is_alike(each, code)]
    if len(found) > 1:
        found = [(path, each) for path, each in found if _does_the_same(each, code)]
    if not found:
        raise CrossingError(
            f"{travel.shown(function)} cannot travel to a VM: {travel.why_unreachable(function)}, and its code is not"
            f" in the source of {luggage.name} as it is now"
        )
    return found[0][0]


@functools.lru_cache(maxsize=64)
def _codes_of(data):
    """(path, code) of all code objects inside a module's marshalled one."""
    found, pending = [], [([], marshal.loads(data))]
    while pending:
        path, code = pending.pop()
        found.append((path, code))
        pending += [([*path, at], each) for at, each in enumerate(code.co_consts) if isinstance(each, types.CodeType)]
    return found


def _is_alike(one, other):
    return all(
        getattr(one, name) == getattr(other, name)
        for name in ("co_qualname", "co_firstlineno", "co_freevars", "co_varnames", "co_names", "co_flags")
    )


def _does_the_same(one, other):
    def constants(code):
        return [repr(each) for each in code.co_consts if not isinstance(each, types.CodeType)]

    return one.co_code == other.co_code and constants(one) == constants(other)
