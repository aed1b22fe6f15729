"""Functions for classes that exist only at run time: reads the source text that `dataclasses` generates into recipes.

A VM cannot compile. Where CPython compiles text of a known shape (the methods of a dataclass, the `__new__` of a named
tuple), this file parses that text into a recipe: which method, which fields, where their values come from. The native
writer (`vmhost/isolation/seal/function_code.c`) checks the recipe and writes the instructions that the compiler would
write. The result differs from the compiler's only in that it has no column positions (as under `-X no_debug_ranges`);
`tests/guest/test_assembler.py` compares the two for the running Python.

Promises: a name that no compiler would accept raises SyntaxError; a body of no known shape raises NoCompilerError, and
never produces a wrong function.
"""

import keyword
from types import CellType, FunctionType

from vmhost.guest.texts import NoCompilerError

_FACTORY_MARK = "__dataclass_HAS_DEFAULT_FACTORY__"
_OBJECT = "__dataclass_builtins_object__"
_COMPARISONS = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}


def identifier(name):
    """`name` as the compiler would read it in a source text; SyntaxError if it would not be one identifier."""
    if not name.isascii():
        import unicodedata

        name = unicodedata.normalize("NFKC", name)
    if not name.isidentifier() or keyword.iskeyword(name) or name == "__debug__":
        raise SyntaxError(f"invalid syntax: {name!r} cannot be the name of a field")
    return name


def _distinct(names, function):
    if len(set(names)) != len(names):
        raise SyntaxError(f"duplicate argument in the definition of {function}")
    return tuple(names)


def namedtuple_new(native, fields):
    """The code of `lambda _cls, a, b: _tuple_new(_cls, (a, b))`; `native` has the writer's functions."""
    return native.namedtuple_code(_distinct(["_cls", *map(identifier, fields)], "<lambda>")[1:])


def dataclass_functions(native, globals, variables, definitions):
    """The functions that `dataclasses` would get by compiling its source text, in order.

    `native` has the writer's functions. `definitions` has (name, parameters, body lines, decorator line or None) of
    each function, `variables` the values of the enclosing function's parameters. Functions that use the same variable
    share its cell, as if compiled.
    """
    variables = {identifier(name): value for name, value in variables.items()}
    cells, functions, line = {}, [], 2
    for name, parameters, body, decorator in definitions:
        first_line, body_line = line, line + 1 + bool(decorator)
        line = body_line + len(body)
        reader = _READERS.get(name)
        if reader is None:
            raise _unknown(name, body)
        try:
            code = native.method_code(name, first_line, body_line, *reader(name, parameters, body))
        except (IndexError, KeyError, ValueError) as error:
            raise _unknown(name, body) from error
        for free in code.co_freevars:
            if free not in cells:
                cells[free] = CellType(variables[free])
        defaults = {
            parameter: variables[identifier(default)]
            for parameter, _, default in (text.partition("=") for text in parameters)
            if default
        }
        bare = [identifier(parameter) for parameter in defaults]
        keyword_only = code.co_varnames[code.co_argcount :]
        function = FunctionType(
            code,
            globals,
            name,
            tuple(value for key, value in zip(bare, defaults.values()) if key not in keyword_only) or None,
            tuple(cells[free] for free in code.co_freevars) or None,
            {key: value for key, value in zip(bare, defaults.values()) if key in keyword_only} or None,
        )
        if decorator:
            function = variables[decorator.strip().removeprefix("@").removesuffix("()")]()(function)
        functions.append(function)
    return functions


def _unknown(name, body):
    return NoCompilerError(
        f"dataclasses asks for a {name} of an unknown shape, which only a compiler could make: "
        f"{' '.join(map(str.strip, body))!r}; define the class in the task's sources, so that the cloud "
        f"compiler sees it, or write {name} there"
    )


def _between(text, start, end):
    """The text between a known start and a known end; ValueError if they are missing."""
    if not (text.startswith(start) and text.endswith(end) and len(text) >= len(start) + len(end)):
        raise ValueError(f"expected {start!r}...{end!r}, got {text!r}")
    return text[len(start) : len(text) - len(end)]


def _expect(found, expected):
    if list(found) != list(expected):
        raise ValueError(f"expected {expected!r}, got {found!r}")


def _init(name, parameters, body):
    names = [identifier(parameter.partition("=")[0]) for parameter in parameters if parameter != "*"]
    positional = parameters.index("*") if "*" in parameters else len(names)
    return _distinct(names, name), positional, tuple(_init_step(line.strip(), names) for line in body)


def _init_step(line, names):
    """The recipe of one line of an `__init__`."""
    this = names[0]
    if line == "pass":
        return ("pass",)
    if line.startswith(f"{this}.__post_init__("):
        passed = _between(line, f"{this}.__post_init__(", ")")
        return "post_init", tuple(identifier(name) for name in passed.split(",") if name)
    if line.startswith(f"{_OBJECT}.__setattr__("):
        quoted, _, value = _between(line, f"{_OBJECT}.__setattr__({this},", ")").partition(",")
        return "frozen", _between(quoted, "'", "'"), *_value(value, names)
    target, _, value = line.partition("=")
    return "field", identifier(_between(target, f"{this}.", "")), *_value(value, names)


def _value(text, names):
    """The recipe for the value of a field."""
    words = text.split(" ")
    if len(words) == 1 and text.endswith("()"):
        return "factory", identifier(text[:-2])
    if len(words) == 1:
        name = identifier(text)
        return "parameter" if name in names else "variable", name
    factory, parameter = identifier(_between(words[0], "", "()")), words[2]
    _expect(words[1:], ["if", parameter, "is", _FACTORY_MARK, "else", parameter])
    return "given", identifier(parameter), factory


def _identifiers(fields):
    return (tuple(map(identifier, fields)),)


def _repr(name, parameters, body):
    _expect(parameters, ["self"])
    (line,) = body
    shown_fields = _between(line.strip(), 'return f"{self.__class__.__qualname__}(', ')"')
    fields = [
        (part.partition("=")[0], _between(part.partition("=")[2], "{self.", "!r}"))
        for part in (shown_fields.split(", ") if shown_fields else [])
    ]
    _expect([shown for shown, _ in fields], [field for _, field in fields])
    return tuple(identifier(field) for _, field in fields), tuple(field for _, field in fields)


def _eq(name, parameters, body):
    _expect(parameters, ["self", "other"])
    lines = [line.strip() for line in body]
    _expect(
        lines[:3] + lines[4:],
        ["if self is other:", "return True", "if other.__class__ is self.__class__:", "return NotImplemented"],
    )
    terms = _between(lines[3], "return ", "")
    fields = []
    if terms != "True":
        fields = [_between(term.partition("==")[0], "self.", "") for term in terms.split(" and ")]
    return _identifiers(fields)


def _fields_of_tuple(text, owner):
    """The fields in `(self.a,self.b,)`."""
    if text == "()":
        return []
    return [_between(part, f"{owner}.", "") for part in _between(text, "(", ",)").split(",")]


def _order(name, parameters, body):
    _expect(parameters, ["self", "other"])
    lines = [line.strip() for line in body]
    _expect([lines[0], lines[2]], ["if other.__class__ is self.__class__:", "return NotImplemented"])
    own_values, other_values = _between(lines[1], "return ", "").split(_COMPARISONS[name])
    fields = _fields_of_tuple(own_values, "self")
    _expect(_fields_of_tuple(other_values, "other"), fields)
    return _identifiers(fields)


def _hash(name, parameters, body):
    _expect(parameters, ["self"])
    (line,) = body
    return _identifiers(_fields_of_tuple(_between(line.strip(), "return hash(", ")"), "self"))


def _frozen(name, parameters, body):
    """`__setattr__` and `__delattr__` of a frozen class."""
    verb, arguments = {"__setattr__": ("assign to", ["name", "value"]), "__delattr__": ("delete", ["name"])}[name]
    _expect(parameters, ["self", *arguments])
    lines = [line.strip() for line in body]
    _expect(
        lines[1:],
        [
            f'raise FrozenInstanceError(f"cannot {verb} field {{name!r}}")',
            f"super(__class__, self).{name}({', '.join(arguments)})",
        ],
    )
    condition = _between(lines[0], "if type(self) is __class__", ":")
    fields = []
    if condition:
        fields = [_between(part, "'", "'") for part in _between(condition, " or name in {", "}").split(", ")]
    return (tuple(fields),)


_READERS = {
    "__init__": _init,
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
    "__lt__": _order,
    "__le__": _order,
    "__gt__": _order,
    "__ge__": _order,
    "__setattr__": _frozen,
    "__delattr__": _frozen,
}
