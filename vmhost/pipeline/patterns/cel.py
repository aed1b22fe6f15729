"""Conditions in CEL, the Common Expression Language: parsed and type-checked by Google's own implementation
(`cel-expr-python`, the extra `cel`), then lowered to postfix programs that the matcher in C runs. Devices do not need
the compiler: `compiled(rule)` is the rule with programs in place of texts.

A subset of the language is supported (docs/patterns.md): values that are null, bools, numbers, texts and bytes; fields;
has(); comparisons, arithmetic, logic, `?:`, `in` a list; size, contains, startsWith, endsWith, int, uint, double, dyn.
Anything else is refused, with its position.
"""

import struct

from vmhost.pipeline.patterns.conditions import GATHERS
from vmhost.pipeline.patterns.programs import ERROR, Program, program_data
from vmhost.pipeline.patterns.rules import RuleError

FIELD_TYPES = ("bool", "int", "double", "string", "dyn")
_EVENT = {"name": "string", "key": "string", "page": "string", "visit": "string", "time_ms": "int"}
# functions over the events that a match has taken: sum("step", "field"), count("step"), ...
GATHER_TYPES = {
    "sum": "double",
    "count": "int",
    "min": "double",
    "max": "double",
    "avg": "double",
    "first": "dyn",
    "last": "dyn",
}
MAX_CHARS = 10_000
MAX_OPERATIONS = 2_000
_BINARY = {
    "_==_": "EQ", "_!=_": "NE", "_<_": "LT", "_<=_": "LE", "_>_": "GT", "_>=_": "GE", "_+_": "ADD", "_-_": "SUBTRACT",
    "_*_": "MULTIPLY", "_/_": "DIVIDE", "_%_": "MODULO", "_&&_": "AND", "_||_": "OR", "contains": "CONTAINS",
    "startsWith": "STARTS_WITH", "endsWith": "ENDS_WITH",
}  # fmt: skip
_UNARY = {
    "!_": "NOT",
    "-_": "NEGATE",
    "size": "SIZE",
    "int": "TO_INT",
    "uint": "TO_UINT",
    "double": "TO_DOUBLE",
    "dyn": "TO_DYN",
}
_NUMBERS = ("int64", "uint64", "double")


class Unsupported(ValueError):
    """A part of CEL outside of the subset."""


def reader(path, fields=None, root="event"):
    """A function that reads CEL conditions of a rule. `fields` (names to FIELD_TYPES): the only fields of its events;
    None: any fields, of any type. `path(text)`: the path of a field. `root`: the name of the mapping that fields belong
    to; other than `event`, it is not an event. RuleError."""
    environment = None

    def read(text, place):
        nonlocal environment
        if len(text) > MAX_CHARS:
            raise RuleError(f"{place}: an expression of more than {MAX_CHARS} characters")
        if environment is None:
            environment = _environment(fields, place, root)
        checked = compile_checked(environment, text, place)
        try:
            kind, operations = _Lowering(checked, path, fields, root=root).program()
        except Unsupported as error:
            raise RuleError(f"{place}: {error} (docs/patterns.md has what conditions may use)") from None
        if kind not in ("bool", "dyn"):
            raise RuleError(f"{place}: expected a condition, true or false; this is of type {kind}: {text}")
        return ("leaf", Program(text, operations))

    return read


def _cel():
    try:
        from cel_expr_python import cel
    except ImportError as error:
        raise RuleError(
            "conditions in CEL are compiled where vmhost[cel] is installed; install it, or compile the rule elsewhere "
            "(vmhost pipeline compile-rule)"
        ) from error
    return cel


def _environment(fields, place, root):
    cel = _cel()
    kinds = {name: getattr(cel.Type, name.upper()) for name in FIELD_TYPES}
    variables = {f"event.{name}": kinds[kind] for name, kind in _EVENT.items()} if root == "event" else {}
    if fields is None:
        variables[root] = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
    else:
        variables |= {f"event.{name}": kinds[kind] for name, kind in fields.items()}
    text = cel.Type.STRING
    functions = [
        cel.FunctionDecl(
            name,
            [
                cel.Overload(f"{name}_of", kinds[kind], [text, text]),
                *([cel.Overload(f"{name}_steps", kinds[kind], [text])] if name == "count" else []),
            ],
        )
        for name, kind in GATHER_TYPES.items()
    ]
    try:
        return cel.NewEnv(variables=variables, functions=functions)
    except Exception as error:
        raise RuleError(f"{place}: fields: {error}") from error


def compile_checked(environment, text, place):
    """The Checked for a text. RuleError with the message of Google's checker."""
    try:
        serialized = environment.compile(text).serialize()
    except Exception as error:
        message = str(error).removeprefix("INVALID_ARGUMENT: ").removesuffix(" [INVALID_ARGUMENT]")
        raise RuleError(f"{place}: {message}") from None
    return Checked(serialized)


# ---- protocol buffers: cel.expr.CheckedExpr, with field numbers from cel/expr/checked.proto and syntax.proto


def _fields(data):
    """(field number, value) pairs of a message; a value is an integer, or bytes (8 or 4 for fixed-size fields)."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 2:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            size = 8 if wire == 1 else 4
            value, at = data[at : at + size], at + size
        yield number, value


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _message(data):
    """{number: [values]}"""
    found = {}
    for number, value in _fields(data):
        found.setdefault(number, []).append(value)
    return found


def _signed(value):
    return value - (1 << 64) if value >> 63 else value


class Checked:
    """A checked expression: `root` is its message; `names`, `overloads` and `types` map ids of expressions."""

    def __init__(self, serialized):
        outer = _message(serialized)  # a google.protobuf.Any
        message = _message(outer[2][0])
        self.root = _message(message[4][0])
        self.names, self.overloads, self.types = {}, {}, {}
        for entry in message.get(2, ()):
            pair = _message(entry)
            reference = _message(pair.get(2, [b""])[0])
            expression = pair.get(1, [0])[0]
            self.names[expression] = reference.get(1, [b""])[0].decode()
            self.overloads[expression] = [one.decode() for one in reference.get(3, ())]
        for entry in message.get(3, ()):
            pair = _message(entry)
            self.types[pair.get(1, [0])[0]] = _type(_message(pair.get(2, [b""])[0]))


def _type(message):
    if 3 in message:
        return ("", "bool", "int", "uint", "double", "string", "bytes")[message[3][0]]
    names = {2: "null", 4: "wrapper", 5: "well known", 6: "list", 7: "map", 8: "function", 9: "message", 11: "type"}
    for number, name in names.items():
        if number in message:
            return name
    return "dyn"


# ---- lowering


class _Lowering:
    def __init__(self, checked, path, fields, variables=(), root="event"):
        self.checked, self.path, self.fields, self.variables = checked, path, fields or {}, variables
        self.root = root
        self.operations = []

    def program(self):
        """(type, operations). Unsupported."""
        self.lower(self.checked.root)
        return self.kind(self.checked.root), tuple(self.operations)

    def kind(self, node):
        return self.checked.types.get(node.get(2, [0])[0], "dyn")

    def emit(self, name, a=0, b=0, c=0):
        self.operations.append((name, a, b, c))
        if len(self.operations) > MAX_OPERATIONS:
            raise Unsupported(f"an expression of more than {MAX_OPERATIONS} operations")

    def lower(self, node):
        if 3 in node:
            self.constant(_message(node[3][0]))
        elif 4 in node or 5 in node:
            self.select(node)
        elif 6 in node:
            self.call(node, _message(node[6][0]))
        elif 7 in node:
            raise Unsupported("a list stands only behind `in`")
        elif 8 in node:
            raise Unsupported("maps and messages are left out")
        else:
            raise Unsupported("macros over lists (all, exists, map, filter) are left out")

    def constant(self, message):
        ((number, (value, *_)),) = message.items() if message else ((1, [0]),)
        if number == 1:
            self.emit("CONSTANT", (False, None))
        elif number == 2:
            self.emit("CONSTANT", (False, bool(value)))
        elif number == 3:
            self.emit("CONSTANT", (False, _signed(value)))
        elif number == 4:
            self.emit("CONSTANT", (True, value))
        elif number == 5:
            self.emit("CONSTANT", (False, struct.unpack("<d", value)[0]))
        elif number == 6:
            self.emit("CONSTANT", (False, bytes(value).decode()))
        elif number == 7:
            self.emit("CONSTANT", (False, bytes(value)))
        else:
            raise Unsupported("times are left out: use event.time_ms")

    def select(self, node):
        test_only = 5 in node and _message(node[5][0]).get(3, [0])[0]
        names = self.names(node)
        if names is None:
            raise Unsupported("fields are those of `event`")
        if test_only:
            parent = names[:-1]
            if len(parent) > 1:  # a field of a missing value: an error
                self.emit("HAS", self.place(parent))
                self.emit("HAS", self.place(names))
                self.emit("CONSTANT", (False, ERROR))
                self.emit("CHOOSE")
            else:
                self.emit("HAS", self.place(names))
            return
        if len(names) == 1 and not self.variables:
            raise Unsupported("`event` stands with a field of it")
        self.emit("FIELD", self.place(names))
        if self.fields.get(".".join(names[1:])) == "double":
            self.emit("TO_DOUBLE")  # JSON may hold an integer here

    def names(self, node):
        """["event", field, ...] of an identifier, of selections, and of indexing with texts."""
        identity = node.get(2, [0])[0]
        if 4 in node:
            name = self.checked.names.get(identity) or _message(node[4][0])[1][0].decode()
            return [name] if self.variables else name.split(".")
        if 5 in node:
            message = _message(node[5][0])
            if (known := self.checked.names.get(identity)) and not self.variables:
                return known.split(".")
            operand = self.names(_message(message[1][0]))
            return None if operand is None else [*operand, message[2][0].decode()]
        if 6 in node:
            message = _message(node[6][0])
            if message.get(2, [b""])[0] == b"_[_]":
                operand, key = (_message(one) for one in message[3])
                constant = _message(key[3][0]) if 3 in key else {}
                names = self.names(operand) if 6 in constant else None
                return None if names is None else [*names, constant[6][0].decode()]
        return None

    def place(self, names):
        if self.variables:
            return (0, *names)
        if names[0] != self.root:
            raise Unsupported(f"there is only `{self.root}`, not {names[0]!r}")
        return self.path(".".join(names[1:])) if all("." not in name for name in names) else (0, *names[1:])

    def call(self, node, message):
        name = message[2][0].decode()
        given = [_message(one) for one in (*message.get(1, ()), *message.get(3, ()))]
        if name in GATHER_TYPES and not self.variables:
            self.gather(name, given)
        elif name == "_[_]":
            self.select_index(node)
        elif name == "_?_:_":
            for one in given:
                self.lower(one)
            self.emit("CHOOSE")
        elif name == "@in":
            self.within(given)
        elif name in _BINARY and len(given) == 2:
            if name == "_+_":
                for one in (node, *given):
                    if self.kind(one) in ("string", "bytes", "list"):
                        raise Unsupported("texts and lists are not joined")
            for one in given:
                self.lower(one)
            self.emit(_BINARY[name])
        elif name in _UNARY and len(given) == 1:
            if name in ("int", "uint", "double") and self.kind(given[0]) not in ("int", "uint", "double", "dyn"):
                raise Unsupported(f"{name}() is of numbers only")
            self.lower(given[0])
            self.emit(_UNARY[name])
        elif name in ("@not_strictly_false",):
            raise Unsupported("macros over lists (all, exists, map, filter) are left out")
        else:
            raise Unsupported(f"the function {name} is left out")

    def select_index(self, node):
        names = self.names(node)
        if names is None:
            raise Unsupported("an index is a text, of a field of `event`")
        self.emit("FIELD", self.place(names))

    def within(self, given):
        value, listed = given
        if 7 not in listed:
            raise Unsupported("`in` wants a list that is written out")
        elements = [_message(one) for one in _message(listed[7][0]).get(1, ())]
        if len(elements) > 60:
            raise Unsupported("a list of more than 60 values")
        self.lower(value)
        for one in elements:
            self.lower(one)
        self.emit("IN", len(elements))

    def gather(self, name, given):
        texts = []
        for one in given:
            constant = _message(one[3][0]) if 3 in one else {}
            if 6 not in constant:
                raise Unsupported(f'{name}() wants names that are written out: {name}("step", "field")')
            texts.append(constant[6][0].decode())
        path = self.path(texts[1]) if len(texts) == 2 else None
        self.emit("GATHER", path, texts[0], f"{name}_of")
        if name in ("first", "last"):
            self.emit("TO_DYN")


assert {f"{name}_of" for name in GATHER_TYPES} == set(GATHERS)


# ---- rules for devices


def compiled(rule, path):
    """The rule, a mapping, with {"cel": text, "program": [...]} in place of each text. RuleError."""
    read = reader(path, rule.get("fields") if isinstance(rule, dict) else None)

    def walk(data, place, condition):
        if isinstance(data, str) and condition:
            _, leaf = read(data, place)
            return program_data(leaf)
        if isinstance(data, list | tuple):
            return [walk(one, f"{place}[{number}]", condition) for number, one in enumerate(data)]
        if isinstance(data, dict):
            return {
                key: walk(
                    one,
                    f"{place}.{key}",
                    condition=key in ("where", "or", "until") or (condition and key in ("all", "any", "not")),
                )
                for key, one in data.items()
            }
        return data

    return walk(rule, "rule", False)
