"""Functions for classes that exist only at run time, put together from fragments of bytecode.

A VM cannot compile. Where CPython compiles text whose shape is known (the methods of a dataclass, the `__new__` of a
named tuple), this file writes the instructions that the compiler would write: one fragment per field, relocated to the
field's own name, local variable and constant. What comes out differs from the compiler's only in having no column
positions (as under `-X no_debug_ranges`); `tests/guest/test_assembler.py` compares the two for the running Python.

Assumes that the caller has the native `make_code(template, **replacements)` of the guest's boot; this file is the only
one that calls it. Promises: a name that no compiler would accept is a SyntaxError; a body that is none of the known
shapes is a NoCompilerError, never a wrong function.
"""

import itertools
import keyword
import opcode
import operator
from types import CellType, FunctionType

from vmhost.guest.texts import NoCompilerError

_OPCODES = opcode.opmap
_CACHES = opcode._inline_cache_entries
_COMPARISONS = {"<": 2, "<=": 42, "==": 72, ">": 132, ">=": 172}  # the operands of COMPARE_OP, with their result masks
_FUSED = "LOAD_FAST_BORROW_LOAD_FAST_BORROW"
_REPR = 2  # CONVERT_VALUE's operand for !r
_FACTORY_MARK = "__dataclass_HAS_DEFAULT_FACTORY__"
_OBJECT = "__dataclass_builtins_object__"

# How many values an instruction leaves on the stack, more than it takes; those with an operand of their own are below.
_EFFECTS = {
    _FUSED: 2, "COPY_FREE_VARS": 0, "RESUME": 0, "LOAD_FAST": 1, "LOAD_FAST_BORROW": 1, "LOAD_CONST": 1,
    "LOAD_DEREF": 1, "PUSH_NULL": 1, "STORE_ATTR": -2, "IS_OP": -1, "CONTAINS_OP": -1, "COMPARE_OP": -1, "COPY": 1,
    "TO_BOOL": 0,
    "POP_JUMP_IF_FALSE": -1, "POP_JUMP_IF_TRUE": -1, "NOT_TAKEN": 0, "POP_TOP": -1, "JUMP_FORWARD": 0,
    "RETURN_VALUE": -1, "CONVERT_VALUE": 0, "FORMAT_SIMPLE": 0, "RAISE_VARARGS": -1,
}
_VARIABLE_EFFECTS = {
    "LOAD_GLOBAL": lambda operand: 1 + (operand & 1),
    "LOAD_ATTR": lambda operand: operand & 1,
    "LOAD_SUPER_ATTR": lambda operand: -2 + (operand & 1),
    "CALL": lambda operand: -1 - operand,
    "BUILD_TUPLE": lambda operand: 1 - operand,
    "BUILD_STRING": lambda operand: 1 - operand,
}

_OPTIMIZED_NEWLOCALS = 0x3
_NESTED = 0x10


def identifier(name):
    """`name` as the compiler would read it in a text; SyntaxError where it would read something else."""
    if not name.isascii():
        import unicodedata

        name = unicodedata.normalize("NFKC", name)
    if not name.isidentifier() or keyword.iskeyword(name) or name == "__debug__":
        raise SyntaxError(f"invalid syntax: {name!r} cannot be the name of a field")
    return name


class _Function:
    """One function being written: its instructions in order, and the tables that they point into."""

    def __init__(self, name, qualname, line, positional, keyword_only=(), free=(), nested=True):
        self.name = name
        self.qualname = qualname
        self.first_line = self.line = line
        self.positional = len(positional)
        self.keyword_only = len(keyword_only)
        self.locals = {local: index for index, local in enumerate([*positional, *keyword_only])}
        if len(self.locals) != self.positional + self.keyword_only:
            raise SyntaxError(f"duplicate argument in the definition of {name}")
        self.free = tuple(sorted(free))
        self.flags = _OPTIMIZED_NEWLOCALS | (_NESTED if nested else 0)
        self.names = {}
        self.constants = {}
        self.pieces = []  # the instructions, encoded
        self.lines = []  # of each; None: no location
        self.jumps = []  # (index of the piece, instruction, label)
        self.marks = {}  # label -> index of the piece that it stands before
        self.last_local = None  # (index of the piece, line, operand) of the last borrowing load
        self.depth = self.deepest = 0
        self.ended = False
        if self.free:
            self.line = None
            self.emit("COPY_FREE_VARS", len(self.free))
            self.line = line
        self.emit("RESUME")

    def emit(self, name, operand=0):
        piece, effect = _KNOWN.get((name, operand)) or _instruction(name, operand)
        self.depth += effect
        if self.depth > self.deepest:
            self.deepest = self.depth
        self.pieces.append(piece)
        self.lines.append(self.line)

    def _name(self, name):
        return self.names.setdefault(name, len(self.names))

    def local(self, name):
        """Two loads in a row on one line, both of the first 16 variables, are one instruction."""
        operand = self.locals[name]
        position = len(self.pieces)
        before = (position - 1, self.line)
        if operand < 16 and self.last_local is not None and self.last_local[:2] == before and not self.marked(position):
            self.pieces.pop()
            self.lines.pop()
            self.depth -= 1
            self.emit(_FUSED, self.last_local[2] << 4 | operand)
            self.last_local = None
        else:
            self.emit("LOAD_FAST_BORROW", operand)
            self.last_local = (position, self.line, operand) if operand < 16 else None

    def marked(self, position):
        return bool(self.marks) and position in self.marks.values()

    def local_across_branches(self, name):
        """A local variable that stays on the stack past a jump, so that it cannot be borrowed."""
        self.emit("LOAD_FAST", self.locals[name])

    def variable(self, name):
        """A variable of the enclosing function."""
        self.emit("LOAD_DEREF", len(self.locals) + self.free.index(name))

    def builtin(self, name, called=False):
        self.emit("LOAD_GLOBAL", self._name(name) << 1 | called)

    def attribute(self, name):
        self.emit("LOAD_ATTR", self._name(name) << 1)

    def method(self, name):
        self.emit("LOAD_ATTR", self._name(name) << 1 | 1)

    def super_method(self, name):
        """After `super`, a class and its instance: the method `name` of super(class, instance)."""
        self.emit("LOAD_SUPER_ATTR", self._name(name) << 2 | 3)

    def store(self, name):
        self.emit("STORE_ATTR", self._name(name))

    def constant(self, value):
        self.emit("LOAD_CONST", self.constants.setdefault((type(value), value), len(self.constants)))

    def jump(self, name, label):
        self.jumps.append((len(self.pieces), name, label))
        self.emit(name, 0)
        if name != "JUMP_FORWARD":
            self.emit("NOT_TAKEN")

    def mark(self, label, depth=None):
        """The next instruction is where `label` points; `depth` where the one before does not run into it."""
        self.marks[label] = len(self.pieces)
        if depth is not None:
            self.depth = depth

    def end(self):
        self.ended = True
        self.constant(None)
        self.emit("RETURN_VALUE")

    def code(self, make_code):
        self._resolve_jumps()
        return make_code(
            _template.__code__,
            co_argcount=self.positional,
            co_posonlyargcount=0,
            co_kwonlyargcount=self.keyword_only,
            co_nlocals=len(self.locals),
            co_stacksize=self.deepest,
            co_flags=self.flags,
            co_code=b"".join(self.pieces),
            co_consts=tuple(value for _, value in self.constants) or (None,),
            co_names=tuple(self.names),
            co_varnames=tuple(self.locals),
            co_freevars=self.free,
            co_cellvars=(),
            co_filename="<string>",
            co_name=self.name,
            co_qualname=self.qualname,
            co_firstlineno=self.first_line,
            co_linetable=self._line_table(),
            co_exceptiontable=b"",
        )

    def _resolve_jumps(self):
        """A jump's operand may need a prefix, which moves what follows it: repeat until nothing moves."""
        moved = bool(self.jumps)
        while moved:
            moved = False
            ends = list(itertools.accumulate(map(len, self.pieces)))
            for index, name, label in self.jumps:
                distance = (ends[self.marks[label] - 1] - ends[index]) // 2
                piece = _instruction(name, distance)[0]
                moved = moved or len(piece) != len(self.pieces[index])
                self.pieces[index] = piece

    def _line_table(self):
        """The location table (CPython's Objects/locations.md): how many code units belong to which line; no columns."""
        table, last_line = [], self.first_line
        for line, pieces in itertools.groupby(zip(self.lines, self.pieces), key=_first):
            units = sum(len(piece) for _, piece in pieces) // 2
            if line is None:
                table.append(bytes((0x80 | 15 << 3 | units - 1,)))  # COPY_FREE_VARS, the only one
                continue
            key = (line - last_line, units)
            table.append(_LOCATIONS.get(key) or _location(*key))
            last_line = line
        return b"".join(table)


def _template():
    """The code object whose fields are replaced."""


_first = operator.itemgetter(0)
_KNOWN = {}  # (instruction, operand) -> (encoded, with room for its caches; effect on the stack)
_LOCATIONS = {}  # (lines further, code units) -> entries of the location table


def _instruction(name, operand):
    """An instruction encoded, with the prefixes that its operand needs, and how it changes the depth of the stack."""
    effect = _VARIABLE_EFFECTS[name](operand) if name in _VARIABLE_EFFECTS else _EFFECTS[name]
    prefixes = b"".join(
        bytes((_OPCODES["EXTENDED_ARG"], operand >> shift & 255)) for shift in (24, 16, 8) if operand >> shift)
    piece = prefixes + bytes((_OPCODES[name], operand & 255)) + bytes(2 * _CACHES.get(name, 0))
    known = piece, effect
    if len(_KNOWN) < 2000:
        _KNOWN[name, operand] = known
    return known


def _location(lines_further, units):
    key = lines_further, units
    entries = bytearray()
    number = -lines_further << 1 | 1 if lines_further < 0 else lines_further << 1
    while units:
        now = min(units, 8)
        units -= now
        entries.append(0x80 | 13 << 3 | now - 1)
        while number >= 64:
            entries.append(number & 63 | 64)
            number >>= 6
        entries.append(number)
        number = 0
    made = bytes(entries)
    if len(_LOCATIONS) < 2000:
        _LOCATIONS[key] = made
    return made


def namedtuple_new(make_code, fields):
    """The code of `lambda _cls, a, b: _tuple_new(_cls, (a, b))`."""
    names = [identifier(field) for field in fields]
    function = _Function("<lambda>", "<lambda>", 1, ["_cls", *names], nested=False)
    function.builtin("_tuple_new", called=True)
    function.local("_cls")
    if names:
        for name in names:
            function.local(name)
        function.emit("BUILD_TUPLE", len(names))
    else:
        function.constant(())
    function.emit("CALL", 2)
    function.emit("RETURN_VALUE")
    return function.code(make_code)


def dataclass_functions(make_code, globals, variables, parts):
    """The functions that `dataclasses` would get by compiling its text, in order.

    `parts` holds (name, parameters, body lines, decorator line or None) of each function, `variables` the values of the
    enclosing function's parameters. Functions that name the same variable share its cell, as they would if compiled.
    """
    variables = {identifier(name): value for name, value in variables.items()}
    cells, functions, line = {}, [], 2
    for name, parameters, body, decorator in parts:
        first_line, body_line = line, line + 1 + bool(decorator)
        line = body_line + len(body)
        writer = _WRITERS.get(name)
        if writer is None:
            raise _unknown(name, body)
        try:
            code = writer(name, first_line, body_line, parameters, body).code(make_code)
        except (IndexError, KeyError, ValueError) as error:
            raise _unknown(name, body) from error
        for free in code.co_freevars:
            if free not in cells:
                cells[free] = CellType(variables[free])
        defaults = {parameter: variables[identifier(default)]
                    for parameter, _, default in (text.partition("=") for text in parameters) if default}
        bare = [identifier(parameter) for parameter in defaults]
        keyword_only = code.co_varnames[code.co_argcount:]
        function = FunctionType(
            code, globals, name,
            tuple(value for key, value in zip(bare, defaults.values()) if key not in keyword_only) or None,
            tuple(cells[free] for free in code.co_freevars) or None,
            {key: value for key, value in zip(bare, defaults.values()) if key in keyword_only} or None)
        if decorator:
            function = variables[decorator.strip().removeprefix("@").removesuffix("()")]()(function)
        functions.append(function)
    return functions


def _unknown(name, body):
    return NoCompilerError(
        f"dataclasses asks for a {name} of an unknown shape, which only a compiler could make: "
        f"{' '.join(map(str.strip, body))!r}; define the class in the task's sources, so that the cloud "
        f"compiler sees it, or write {name} there")


def _between(text, start, end):
    """What stands between a known start and a known end; ValueError where they are not there."""
    if not (text.startswith(start) and text.endswith(end) and len(text) >= len(start) + len(end)):
        raise ValueError(f"expected {start!r}...{end!r}, got {text!r}")
    return text[len(start):len(text) - len(end)]


def _expect(found, expected):
    if list(found) != list(expected):
        raise ValueError(f"expected {expected!r}, got {found!r}")


def _init(name, first_line, body_line, parameters, body):
    names = [identifier(parameter.partition("=")[0]) for parameter in parameters if parameter != "*"]
    count = parameters.index("*") if "*" in parameters else len(names)
    steps = [_init_step(line.strip(), names) for line in body]
    free = {variable for step in steps for variable in step[1]}
    function = _Function(name, f"__create_fn__.<locals>.{name}", first_line, names[:count], names[count:], free)
    for offset, (write, _, operands) in enumerate(steps):
        function.line = body_line + offset
        write(function, offset == len(steps) - 1, *operands)
    if not function.ended:
        function.end()
    return function


def _init_step(line, names):
    """(writer, variables of the enclosing function that it needs, its last operands) of one line of an `__init__`."""
    this = names[0]
    if line == "pass":
        return _write_nothing, (), ()
    if line.startswith(f"{this}.__post_init__("):
        passed = _between(line, f"{this}.__post_init__(", ")")
        return _write_post_init, (), (this, [identifier(name) for name in passed.split(",") if name])
    if line.startswith(f"{_OBJECT}.__setattr__("):
        quoted, _, value = _between(line, f"{_OBJECT}.__setattr__({this},", ")").partition(",")
        field = _between(quoted, "'", "'")
        value = _value(value, names)
        return _write_frozen_field, (_OBJECT, *value[1]), (this, field, value)
    target, _, value = line.partition("=")
    value = _value(value, names)
    return _write_field, value[1], (this, identifier(_between(target, f"{this}.", "")), value)


def _value(text, names):
    """(writer, variables of the enclosing function, operands) of the value that a field gets."""
    words = text.split(" ")
    if len(words) == 1 and text.endswith("()"):
        factory = identifier(text[:-2])
        return _write_made, (factory,), (factory,)
    if len(words) == 1:
        name = identifier(text)
        return (_Function.local, (), (name,)) if name in names else (_Function.variable, (name,), (name,))
    factory, parameter = identifier(_between(words[0], "", "()")), words[2]
    _expect(words[1:], ["if", parameter, "is", _FACTORY_MARK, "else", parameter])
    return _write_given_or_made, (factory, _FACTORY_MARK), (factory, identifier(parameter))


def _write_nothing(function, last):
    pass


def _write_made(function, factory):
    function.variable(factory)
    function.emit("PUSH_NULL")
    function.emit("CALL", 0)


def _write_given_or_made(function, factory, parameter, end=None):
    """The value of a field with a factory. On the last line both branches have an `end`, as in the compiler."""
    given, done = object(), object()
    function.local(parameter)
    function.variable(_FACTORY_MARK)
    function.emit("IS_OP", 0)
    function.jump("POP_JUMP_IF_FALSE", given)
    depth = function.depth
    _write_made(function, factory)
    if end is None:
        function.jump("JUMP_FORWARD", done)
    else:
        end()
    function.mark(given, depth)
    function.local_across_branches(parameter)
    if end is None:
        function.mark(done)
    else:
        end()


def _write_value(function, value, assign, last):
    """The value of a field, and what assigns it."""
    write, _, operands = value
    if last and write is _write_given_or_made:
        def end():
            assign()
            function.end()

        write(function, *operands, end)
    else:
        write(function, *operands)
        assign()


def _write_field(function, last, this, field, value):
    def assign():
        function.local(this)
        function.store(field)

    _write_value(function, value, assign, last)


def _write_frozen_field(function, last, this, field, value):
    def assign():
        function.emit("CALL", 3)
        function.emit("POP_TOP")

    function.variable(_OBJECT)
    function.method("__setattr__")
    if value[0] is _write_given_or_made:
        function.local_across_branches(this)
    else:
        function.local(this)
    function.constant(field)
    _write_value(function, value, assign, last)


def _write_post_init(function, last, this, passed):
    function.local(this)
    function.method("__post_init__")
    for name in passed:
        function.local(name)
    function.emit("CALL", len(passed))
    function.emit("POP_TOP")


def _repr(name, first_line, body_line, parameters, body):
    _expect(parameters, ["self"])
    (line,) = body
    parts = _between(line.strip(), 'return f"{self.__class__.__qualname__}(', ')"')
    fields = [_between(part.partition("=")[2], "{self.", "!r}") for part in parts.split(", ")] if parts else []
    function = _Function(name, f"__create_fn__.<locals>.{name}", first_line, parameters)
    function.line = body_line
    function.local("self")
    function.attribute("__class__")
    function.attribute("__qualname__")
    function.emit("FORMAT_SIMPLE")
    before = "("
    for field in fields:
        function.constant(f"{before}{field}=")
        function.local("self")
        function.attribute(identifier(field))
        function.emit("CONVERT_VALUE", _REPR)
        function.emit("FORMAT_SIMPLE")
        before = ", "
    function.constant(")" if fields else "()")
    function.emit("BUILD_STRING", 2 * len(fields) + 2)
    function.emit("RETURN_VALUE")
    return function


def _same_class_or_skip(function, skip):
    function.local("other")
    function.attribute("__class__")
    function.local("self")
    function.attribute("__class__")
    function.emit("IS_OP", 0)
    function.jump("POP_JUMP_IF_FALSE", skip)


def _not_implemented(function):
    function.builtin("NotImplemented")
    function.emit("RETURN_VALUE")


def _eq(name, first_line, body_line, parameters, body):
    _expect(parameters, ["self", "other"])
    lines = [line.strip() for line in body]
    _expect(lines[:3] + lines[4:], ["if self is other:", "return True", "if other.__class__ is self.__class__:",
                                    "return NotImplemented"])
    terms = _between(lines[3], "return ", "")
    fields = []
    if terms != "True":
        fields = [_between(term.partition("==")[0], "self.", "") for term in terms.split(" and ")]
    function = _Function(name, f"__create_fn__.<locals>.{name}", first_line, parameters)
    different, other_class, decided = object(), object(), object()
    function.line = body_line
    function.local("self")
    function.local("other")
    function.emit("IS_OP", 0)
    function.jump("POP_JUMP_IF_FALSE", different)
    function.line = body_line + 1
    function.constant(True)
    function.emit("RETURN_VALUE")
    function.line = body_line + 2
    function.mark(different, 0)
    _same_class_or_skip(function, other_class)
    function.line = body_line + 3
    for index, field in enumerate(map(identifier, fields)):
        if index:
            function.emit("COPY", 1)
            function.emit("TO_BOOL")
            function.jump("POP_JUMP_IF_FALSE", decided)
            function.emit("POP_TOP")
        function.local("self")
        function.attribute(field)
        function.local("other")
        function.attribute(field)
        function.emit("COMPARE_OP", _COMPARISONS["=="])
    if not fields:
        function.constant(True)
    function.mark(decided)
    function.emit("RETURN_VALUE")
    function.line = body_line + 4
    function.mark(other_class, 0)
    _not_implemented(function)
    return function


def _fields_of_tuple(text, owner):
    """The fields in `(self.a,self.b,)`."""
    if text == "()":
        return []
    return [_between(part, f"{owner}.", "") for part in _between(text, "(", ",)").split(",")]


def _write_tuple(function, owner, fields):
    for field in fields:
        function.local(owner)
        function.attribute(identifier(field))
    if fields:
        function.emit("BUILD_TUPLE", len(fields))
    else:
        function.constant(())


def _order(name, first_line, body_line, parameters, body):
    _expect(parameters, ["self", "other"])
    lines = [line.strip() for line in body]
    _expect([lines[0], lines[2]], ["if other.__class__ is self.__class__:", "return NotImplemented"])
    comparison = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}[name]
    mine, theirs = _between(lines[1], "return ", "").split(comparison)
    fields = _fields_of_tuple(mine, "self")
    _expect(_fields_of_tuple(theirs, "other"), fields)
    function = _Function(name, f"__create_fn__.<locals>.{name}", first_line, parameters)
    other_class = object()
    function.line = body_line
    _same_class_or_skip(function, other_class)
    function.line = body_line + 1
    _write_tuple(function, "self", fields)
    _write_tuple(function, "other", fields)
    function.emit("COMPARE_OP", _COMPARISONS[comparison])
    function.emit("RETURN_VALUE")
    function.line = body_line + 2
    function.mark(other_class, 0)
    _not_implemented(function)
    return function


def _hash(name, first_line, body_line, parameters, body):
    _expect(parameters, ["self"])
    (line,) = body
    fields = _fields_of_tuple(_between(line.strip(), "return hash(", ")"), "self")
    function = _Function(name, f"__create_fn__.<locals>.{name}", first_line, parameters)
    function.line = body_line
    function.builtin("hash", called=True)
    _write_tuple(function, "self", fields)
    function.emit("CALL", 1)
    function.emit("RETURN_VALUE")
    return function


def _frozen(name, first_line, body_line, parameters, body):
    """`__setattr__` and `__delattr__` of a frozen class."""
    verb, arguments = {"__setattr__": ("assign to", ["name", "value"]), "__delattr__": ("delete", ["name"])}[name]
    _expect(parameters, ["self", *arguments])
    lines = [line.strip() for line in body]
    _expect(lines[1:], [f'raise FrozenInstanceError(f"cannot {verb} field {{name!r}}")',
                        f"super(__class__, self).{name}({', '.join(arguments)})"])
    condition = _between(lines[0], "if type(self) is __class__", ":")
    fields = []
    if condition:
        fields = [_between(part, "'", "'") for part in _between(condition, " or name in {", "}").split(", ")]
    function = _Function(name, f"__create_fn__.<locals>.{name}", first_line, parameters,
                         free=("__class__", "FrozenInstanceError"))
    refuse, pass_on = object(), object()
    function.line = body_line
    function.builtin("type", called=True)
    function.local("self")
    function.emit("CALL", 1)
    function.variable("__class__")
    function.emit("IS_OP", 0)
    if fields:
        function.jump("POP_JUMP_IF_TRUE", refuse)
        function.local("name")
        function.constant(frozenset(fields))
        function.emit("CONTAINS_OP", 0)
    function.jump("POP_JUMP_IF_FALSE", pass_on)
    function.mark(refuse)
    function.line = body_line + 1
    function.variable("FrozenInstanceError")
    function.emit("PUSH_NULL")
    function.constant(f"cannot {verb} field ")
    function.local("name")
    function.emit("CONVERT_VALUE", _REPR)
    function.emit("FORMAT_SIMPLE")
    function.emit("BUILD_STRING", 2)
    function.emit("CALL", 1)
    function.emit("RAISE_VARARGS", 1)
    function.mark(pass_on, 0)
    function.line = body_line + 2
    function.builtin("super")
    function.variable("__class__")
    function.local("self")
    function.super_method(name)
    for argument in arguments:
        function.local(argument)
    function.emit("CALL", len(arguments))
    function.emit("POP_TOP")
    function.end()
    return function


_WRITERS = {"__init__": _init, "__repr__": _repr, "__eq__": _eq, "__hash__": _hash, "__lt__": _order, "__le__": _order,
            "__gt__": _order, "__ge__": _order, "__setattr__": _frozen, "__delattr__": _frozen}
