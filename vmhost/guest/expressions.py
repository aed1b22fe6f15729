"""Parses and evaluates Python expressions without a compiler.

For the few places where the standard library of a VM needs an expression that exists only at run time: forward
references and string annotations, literals, plural forms, arguments in logging configurations, and the signatures that
built-in functions carry as text. `parse` returns nodes of `ast`, like `ast.parse`, with line numbers but without
columns; `evaluate` returns what `eval` returns.

Covers every expression except those that contain code of their own: lambda, comprehensions, f- and t-strings, yield,
await and `:=`; these raise NoCompilerError. Text that is not an expression raises SyntaxError.
"""

import operator
import re
from _ast import (
    Add,
    And,
    Attribute,
    BinOp,
    BitAnd,
    BitOr,
    BitXor,
    BoolOp,
    Call,
    Compare,
    Constant,
    Dict,
    Div,
    Eq,
    Expression,
    FloorDiv,
    FunctionDef,
    Gt,
    GtE,
    IfExp,
    In,
    Invert,
    Is,
    IsNot,
    List,
    Load,
    LShift,
    Lt,
    LtE,
    MatMult,
    Mod,
    Module,
    Mult,
    Name,
    Not,
    NotEq,
    NotIn,
    Or,
    Pass,
    Pow,
    RShift,
    Set,
    Slice,
    Starred,
    Sub,
    Subscript,
    Tuple,
    UAdd,
    UnaryOp,
    USub,
    arg,
    arguments,
    keyword,
)
from keyword import iskeyword

from vmhost.guest.texts import NoCompilerError, name_value

_MAX_DEPTH = 90  # of nested brackets and operators; the compiler's limit is near 200, but a VM's stack is small

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\f]+|\\\r?\n|\#[^\n]*)
  | (?P<line>\r?\n)
  | (?P<number>0[xX](?:_?[0-9a-fA-F])+|0[bB](?:_?[01])+|0[oO](?:_?[0-7])+
      |(?:(?:\d(?:_?\d)*)?\.\d(?:_?\d)*|\d(?:_?\d)*\.?)(?:[eE][-+]?\d(?:_?\d)*)?[jJ]?)
  | (?P<string>(?P<prefix>[a-zA-Z]{0,2})(?:
        \"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
  | (?P<name>[^\W\d]\w*)
  | (?P<operator>\.\.\.|\*\*|//|<<|>>|<=|>=|==|!=|:=|->|[-+*/%@&|^~<>()\[\]{},:.=;])
""",
    re.VERBOSE | re.DOTALL,
)

_ESCAPE = re.compile(r"\\(?:\r?\n|[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|.)", re.DOTALL)
_SHORT_ESCAPES = {
    "\\": "\\",
    "'": "'",
    '"': '"',
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\n": "",
}

_LOAD = Load()
_BINARY = {  # operator -> (precedence, node)
    "|": (0, BitOr()),
    "^": (1, BitXor()),
    "&": (2, BitAnd()),
    "<<": (3, LShift()),
    ">>": (3, RShift()),
    "+": (4, Add()),
    "-": (4, Sub()),
    "*": (5, Mult()),
    "/": (5, Div()),
    "//": (5, FloorDiv()),
    "%": (5, Mod()),
    "@": (5, MatMult()),
}
_NO_OPERATOR = (-1, None)
_ATOMS = ("name", "number", "string")
_UNARY = {"-": USub(), "+": UAdd(), "~": Invert()}
_COMPARISONS = {"<": Lt(), ">": Gt(), "<=": LtE(), ">=": GtE(), "==": Eq(), "!=": NotEq(), "in": In(), "is": Is()}
_NAMED_CONSTANTS = {"True": True, "False": False, "None": None}
_HAS_CODE = {
    "lambda": "a lambda",
    "yield": "yield",
    "await": "await",
    "for": "a comprehension",
    "async": "a comprehension",
    ":=": "an assignment (:=)",
}


def parse(source, filename="<unknown>", mode="exec"):
    """The `ast` tree of an expression (mode "eval") or of `def name(parameters): pass` (mode "exec")."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        source = bytes(source).decode()
    parser = _Parser(source, filename)
    if mode == "eval":
        return Expression(body=parser.whole_expression())
    if mode == "exec" and parser.at("def"):
        return Module(body=[parser.empty_function()], type_ignores=[])
    raise NoCompilerError(
        f"ast.parse: there is no compiler in a VM to read {_shown(source)} with (mode {mode!r}), and nobody has "
        'recorded it; only expressions can be read there, with mode="eval"; compile the task with '
        "`vmhost compile --record SCRIPT`, where SCRIPT makes the program come here"
    )


def parse_literal(source):
    """The tree of an expression for `ast.literal_eval`; an expression that needs a compiler is malformed there."""
    try:
        return parse(source, mode="eval")
    except NoCompilerError as error:
        raise ValueError(f"malformed node or string: {error}") from None


def _shown(source):
    return repr(source if len(source) <= 80 else source[:77] + "...")


class _Parser:
    """Recursive descent over the tokens of one source text."""

    def __init__(self, source, filename):
        if "\0" in source:
            raise SyntaxError("source code string cannot contain null bytes")
        self.source = source
        self.filename = filename
        self.depth = 0
        self.tokens = list(self._tokens())
        self.index = 0
        self.kind, self.text, self.line = self.tokens[0]

    def _tokens(self):
        position, line, open_brackets, source = 0, 1, 0, self.source
        while position < len(source):
            match = _TOKEN.match(source, position)
            if match is None:
                raise self._error(
                    f"invalid character or unfinished string at {source[position : position + 20]!r}", line
                )
            kind, text = match.lastgroup, match.group()
            if kind == "prefix":
                kind = "string"
            if kind == "operator":
                open_brackets += (text in "([{") - (text in ")]}")
            if kind == "space" and not position and text[0] in " \t":
                raise IndentationError("unexpected indent", (self.filename, 1, 1, source))
            if kind == "line" and open_brackets <= 0 or kind not in ("space", "line"):
                yield kind, text, line
            line += text.count("\n")
            position = match.end()
        yield "end", "", line

    def _error(self, message="invalid syntax", line=None):
        line = line or self.line
        lines = self.source.splitlines()
        return SyntaxError(message, (self.filename, line, None, lines[line - 1] if line <= len(lines) else None))

    def _advance(self):
        self.index += 1
        self.kind, self.text, self.line = self.tokens[self.index]

    def at(self, text):
        return self.text == text and self.kind in ("name", "operator")

    def _take(self, text):
        if self.at(text):
            self._advance()
            return True
        return False

    def _need(self, text):
        if not self._take(text):
            raise self._unexpected()

    def _unexpected(self):
        if self.kind in ("name", "operator") and self.text in _HAS_CODE:
            return NoCompilerError(
                f"{_shown(self.source)} holds {_HAS_CODE[self.text]}, which needs a compiler, and a VM has none; "
                "write it in the task's sources, as a function or a name that this expression can refer to"
            )
        return self._error()

    def _deeper(self):
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self._error("too many nested parentheses")

    def whole_expression(self):
        while self.kind == "line":
            self._advance()
        node = self._expressions(self._expression)
        while self.kind == "line":
            self._advance()
        if self.kind != "end":
            raise self._unexpected()
        return node

    def empty_function(self):
        line = self.line
        self._advance()
        name = self._identifier()
        self._need("(")
        parameters = self._parameters()
        self._need(":")
        self._need("pass")
        if self.kind not in ("end", "line"):
            raise self._unexpected()
        return FunctionDef(
            name=name,
            args=parameters,
            body=[Pass(lineno=line)],
            decorator_list=[],
            returns=None,
            type_comment=None,
            type_params=[],
            lineno=line,
        )

    def _parameters(self):
        positional_only, positional, defaults = [], [], []
        keyword_only, keyword_defaults, rest, keywords = [], [], None, None
        after_star = False
        while not self._take(")"):
            if self._take("/"):
                if positional_only or not positional or after_star:
                    raise self._error()
                positional_only, positional = positional, []
            elif self._take("**"):
                keywords = arg(arg=self._identifier(), annotation=self._annotation())
            elif self._take("*"):
                if after_star:
                    raise self._error("* argument may appear only once")
                after_star = True
                if self.kind == "name":
                    rest = arg(arg=self._identifier(), annotation=self._annotation())
            else:
                parameter = arg(arg=self._identifier(), annotation=self._annotation())
                default = self._expression() if self._take("=") else None
                if after_star:
                    keyword_only.append(parameter)
                    keyword_defaults.append(default)
                else:
                    positional.append(parameter)
                    if default is not None:
                        defaults.append(default)
                    elif defaults:
                        raise self._error("parameter without a default follows parameter with a default")
            if not self.at(")"):
                self._need(",")
        return arguments(
            posonlyargs=positional_only,
            args=positional,
            vararg=rest,
            kwonlyargs=keyword_only,
            kw_defaults=keyword_defaults,
            kwarg=keywords,
            defaults=defaults,
        )

    def _annotation(self):
        return self._expression() if self._take(":") else None

    def _identifier(self):
        if self.kind != "name" or iskeyword(self.text):
            raise self._unexpected()
        name = self._name_text()
        self._advance()
        return name

    def _name_text(self):
        if self.text.isascii():
            return self.text
        import unicodedata

        name = unicodedata.normalize("NFKC", self.text)
        if not name.isidentifier():
            raise self._error(f"invalid character in {self.text!r}")
        return name

    def _expressions(self, element):
        """One expression, or several separated by commas: a tuple. `element` parses one of them."""
        line = self.line
        first = element()
        if not self.at(","):
            if type(first) is Starred:
                raise self._error("can't use starred expression here")
            return first
        return Tuple(elts=self._more([first], element), ctx=_LOAD, lineno=line)

    def _more(self, elements, element):
        """The elements after the first one, up to a closing bracket or the end."""
        while self._take(","):
            if self.kind in ("end", "line") or self.kind == "operator" and self.text in ")]}":
                break
            elements.append(element())
        return elements

    def _starred(self):
        """An element of a display: after a star, a comparison needs brackets."""
        line = self.line
        if self._take("*"):
            return Starred(value=self._binary(0), ctx=_LOAD, lineno=line)
        return self._expression()

    def _argument(self):
        """An argument of a call, or an item of a subscript."""
        line = self.line
        if self._take("*"):
            return Starred(value=self._expression(), ctx=_LOAD, lineno=line)
        return self._expression()

    def _expression(self):
        if self.kind in _ATOMS:
            following_kind, following, _ = self.tokens[self.index + 1]
            if following_kind == "end" or following_kind == "operator" and following in ",)]}:":
                return self._atom()
        self._deeper()
        line = self.line
        node = self._or()
        if self._take("if"):
            test = self._or()
            self._need("else")
            node = IfExp(test=test, body=node, orelse=self._expression(), lineno=line)
        self.depth -= 1
        return node

    def _or(self):
        return self._boolean("or", Or, self._and)

    def _and(self):
        return self._boolean("and", And, self._not)

    def _boolean(self, word, kind, operand):
        line = self.line
        node = operand()
        if not self.at(word):
            return node
        values = [node]
        while self._take(word):
            values.append(operand())
        return BoolOp(op=kind(), values=values, lineno=line)

    def _not(self):
        line = self.line
        if self._take("not"):
            self._deeper()
            node = UnaryOp(op=Not(), operand=self._not(), lineno=line)
            self.depth -= 1
            return node
        left = self._binary(0)
        comparisons, operands = [], []
        while self.kind in ("name", "operator") and (self.text in _COMPARISONS or self.text == "not"):
            comparison = self.text
            self._advance()
            if comparison == "not":
                self._need("in")
                comparisons.append(NotIn())
            elif comparison == "is" and self._take("not"):
                comparisons.append(IsNot())
            else:
                comparisons.append(_COMPARISONS[comparison])
            operands.append(self._binary(0))
        return Compare(left=left, ops=comparisons, comparators=operands, lineno=line) if operands else left

    def _binary(self, loosest):
        """Binary operators with a precedence of at least `loosest`; left-associative within a level."""
        line = self.line
        node = self._unary()
        while self.kind == "operator":
            level, operation = _BINARY.get(self.text, _NO_OPERATOR)
            if level < loosest:
                break
            self._advance()
            node = BinOp(left=node, op=operation, right=self._binary(level + 1), lineno=line)
        return node

    def _unary(self):
        line = self.line
        if self.kind == "operator" and self.text in _UNARY:
            operation = _UNARY[self.text]
            self._advance()
            self._deeper()
            node = UnaryOp(op=operation, operand=self._unary(), lineno=line)
            self.depth -= 1
            return node
        base = self._primary()
        if self._take("**"):
            self._deeper()
            base = BinOp(left=base, op=Pow(), right=self._unary(), lineno=line)
            self.depth -= 1
        return base

    def _primary(self):
        line = self.line
        node = self._atom()
        while True:
            if self._take("."):
                node = Attribute(value=node, attr=self._identifier(), ctx=_LOAD, lineno=line)
            elif self._take("["):
                node = Subscript(value=node, slice=self._subscript(), ctx=_LOAD, lineno=line)
            elif self._take("("):
                node = self._call(node, line)
            else:
                return node

    def _subscript(self):
        self._deeper()
        line = self.line
        elements = [self._slice()]
        several = False
        while self._take(","):
            several = True
            if self.at("]"):
                break
            elements.append(self._slice())
        self._need("]")
        self.depth -= 1
        if several or type(elements[0]) is Starred:
            return Tuple(elts=elements, ctx=_LOAD, lineno=line)
        return elements[0]

    def _slice(self):
        line = self.line
        lower = None if self.at(":") else self._argument()
        if not self._take(":"):
            return lower
        upper = None if self.at(":") or self.at("]") or self.at(",") else self._expression()
        step = None
        if self._take(":") and not (self.at("]") or self.at(",")):
            step = self._expression()
        return Slice(lower=lower, upper=upper, step=step, lineno=line)

    def _call(self, function, line):
        self._deeper()
        positional, keywords = [], []
        while not self._take(")"):
            if self._take("**"):
                keywords.append(keyword(arg=None, value=self._expression(), lineno=line))
            elif self.kind == "name" and self.tokens[self.index + 1][1] == "=" and not iskeyword(self.text):
                name = self._identifier()
                self._need("=")
                if any(name == other.arg for other in keywords):
                    raise self._error(f"keyword argument repeated: {name}")
                keywords.append(keyword(arg=name, value=self._expression(), lineno=line))
            else:
                value = self._argument()
                if keywords and type(value) is not Starred:
                    raise self._error("positional argument follows keyword argument")
                positional.append(value)
            if not self.at(")"):
                self._need(",")
        self.depth -= 1
        return Call(func=function, args=positional, keywords=keywords, lineno=line)

    def _atom(self):
        line, kind, text = self.line, self.kind, self.text
        if kind == "name":
            if text in _NAMED_CONSTANTS:
                self._advance()
                return Constant(value=_NAMED_CONSTANTS[text], kind=None, lineno=line)
            return Name(id=self._identifier(), ctx=_LOAD, lineno=line)
        if kind == "number":
            self._advance()
            return Constant(value=self._number(text), kind=None, lineno=line)
        if kind == "string":
            return self._strings()
        if self._take("..."):
            return Constant(value=..., kind=None, lineno=line)
        if kind == "operator" and text in "([{":
            self._advance()
            self._deeper()
            node = {"(": self._parenthesised, "[": self._list, "{": self._dict_or_set}[text](line)
            self.depth -= 1
            return node
        raise self._unexpected()

    def _parenthesised(self, line):
        if self._take(")"):
            return Tuple(elts=[], ctx=_LOAD, lineno=line)
        node = self._expressions(self._starred)
        self._need(")")
        return node

    def _list(self, line):
        elements = [] if self.at("]") else self._more([self._starred()], self._starred)
        self._need("]")
        return List(elts=elements, ctx=_LOAD, lineno=line)

    def _dict_or_set(self, line):
        if self._take("}"):
            return Dict(keys=[], values=[], lineno=line)
        if not self.at("**"):
            first = self._starred()
            if not self.at(":"):
                elements = self._more([first], self._starred)
                self._need("}")
                return Set(elts=elements, lineno=line)
            self._advance()
            keys, values = [first], [self._expression()]
        else:
            self._advance()
            keys, values = [None], [self._binary(0)]
        while self._take(","):
            if self.at("}"):
                break
            if self._take("**"):
                keys.append(None)
                values.append(self._binary(0))
            else:
                keys.append(self._expression())
                self._need(":")
                values.append(self._expression())
        self._need("}")
        return Dict(keys=keys, values=values, lineno=line)

    def _number(self, text):
        try:
            if text[-1] in "jJ":
                return complex(0.0, float(text[:-1]))
            if text[:2].lower() in ("0x", "0o", "0b") or text.replace("_", "").isdecimal():
                return int(text, 0)
            return float(text)
        except ValueError as error:
            raise self._error(f"invalid number {text!r}: {error}") from None

    def _strings(self):
        line, values, unicode_prefix = self.line, [], self.text[0] == "u"
        while self.kind == "string":
            values.append(self._string(self.text))
            self._advance()
        if len({type(value) for value in values}) > 1:
            raise self._error("cannot mix bytes and nonbytes literals")
        return Constant(value=type(values[0])().join(values), kind="u" if unicode_prefix else None, lineno=line)

    def _string(self, text):
        start = min(text.index(quote) for quote in "\"'" if quote in text)
        prefix, body = text[:start].lower(), text[start:]
        if prefix in ("f", "fr", "rf", "t", "tr", "rt"):
            raise NoCompilerError(
                f"{_shown(self.source)} holds a {prefix.strip('r')}-string, which needs a compiler, and a VM has none; "
                "write the string out, or build it in the task's sources"
            )
        if prefix not in ("", "r", "u", "b", "br", "rb"):
            raise self._error()
        width = 3 if len(body) >= 6 and body[:3] == body[0] * 3 else 1
        body = body[width:-width].replace("\r\n", "\n")
        if "b" in prefix:
            if not body.isascii():
                raise self._error("bytes can only contain ASCII literal characters")
            return (body if "r" in prefix else _ESCAPE.sub(self._byte_escape, body)).encode("latin-1")
        return body if "r" in prefix or "\\" not in body else _ESCAPE.sub(self._escape, body)

    def _byte_escape(self, match):
        text = match.group()
        if text[1] in "NuU":
            return text
        value = self._escape(match)
        return value if len(value) != 1 else chr(ord(value) & 255)

    def _escape(self, match):
        text = match.group()
        kind, digits = text[1], text[2:]
        if kind in _SHORT_ESCAPES:
            return _SHORT_ESCAPES[kind]
        if kind in "01234567":
            return chr(int(text[1:], 8))
        if kind not in "xuUN":
            return text
        try:
            if kind != "N":
                return chr(int(digits, 16))
            import unicodedata

            return unicodedata.lookup(digits[1:-1])
        except ValueError, KeyError:
            raise self._error(f"(unicode error) {text!r} is no character: truncated or unknown escape") from None


_OPERATIONS = {
    Add: operator.add,
    Sub: operator.sub,
    Mult: operator.mul,
    Div: operator.truediv,
    FloorDiv: operator.floordiv,
    Mod: operator.mod,
    MatMult: operator.matmul,
    Pow: operator.pow,
    LShift: operator.lshift,
    RShift: operator.rshift,
    BitOr: operator.or_,
    BitXor: operator.xor,
    BitAnd: operator.and_,
    USub: operator.neg,
    UAdd: operator.pos,
    Invert: operator.invert,
    Not: operator.not_,
    Eq: operator.eq,
    NotEq: operator.ne,
    Lt: operator.lt,
    LtE: operator.le,
    Gt: operator.gt,
    GtE: operator.ge,
    Is: operator.is_,
    IsNot: operator.is_not,
    In: lambda left, right: left in right,
    NotIn: lambda left, right: left not in right,
}


def evaluate(node, globals, locals):
    """The value of an expression's node; names are looked up in `locals`, `globals` and the builtins, in that order."""
    return _EVALUATORS[type(node)](node, globals, locals)


def _constant(node, globals, locals):
    return node.value


def _name(node, globals, locals):
    return name_value(node.id, globals, locals)


def _attribute(node, globals, locals):
    return getattr(evaluate(node.value, globals, locals), node.attr)


def _subscript(node, globals, locals):
    return evaluate(node.value, globals, locals)[evaluate(node.slice, globals, locals)]


def _slice(node, globals, locals):
    return slice(
        *(None if part is None else evaluate(part, globals, locals) for part in (node.lower, node.upper, node.step))
    )


def _elements(nodes, globals, locals):
    values = []
    for node in nodes:
        if type(node) is Starred:
            values.extend(evaluate(node.value, globals, locals))
        else:
            values.append(evaluate(node, globals, locals))
    return values


def _tuple(node, globals, locals):
    return tuple(_elements(node.elts, globals, locals))


def _list(node, globals, locals):
    return _elements(node.elts, globals, locals)


def _set(node, globals, locals):
    return set(_elements(node.elts, globals, locals))


def _dict(node, globals, locals):
    result = {}
    for key, value in zip(node.keys, node.values):
        if key is None:
            result.update(evaluate(value, globals, locals))
        else:
            key = evaluate(key, globals, locals)
            result[key] = evaluate(value, globals, locals)
    return result


def _call(node, globals, locals):
    function = evaluate(node.func, globals, locals)
    positional = _elements(node.args, globals, locals)
    keywords = {}
    for item in node.keywords:
        value = evaluate(item.value, globals, locals)
        for name, each in ({item.arg: value} if item.arg is not None else value).items():
            if name in keywords:
                raise TypeError(f"{function!r} got multiple values for keyword argument {name!r}")
            keywords[name] = each
    return function(*positional, **keywords)


def _binary(node, globals, locals):
    left = evaluate(node.left, globals, locals)
    return _OPERATIONS[type(node.op)](left, evaluate(node.right, globals, locals))


def _unary(node, globals, locals):
    return _OPERATIONS[type(node.op)](evaluate(node.operand, globals, locals))


def _boolean(node, globals, locals):
    stop = type(node.op) is Or
    for operand in node.values:
        value = evaluate(operand, globals, locals)
        if bool(value) is stop:
            break
    return value


def _compare(node, globals, locals):
    left = evaluate(node.left, globals, locals)
    last = len(node.ops) - 1
    for index, (operation, operand) in enumerate(zip(node.ops, node.comparators)):
        right = evaluate(operand, globals, locals)
        value = _OPERATIONS[type(operation)](left, right)
        if index == last or not value:
            break
        left = right
    return value


def _conditional(node, globals, locals):
    return evaluate(node.body if evaluate(node.test, globals, locals) else node.orelse, globals, locals)


_EVALUATORS = {
    Constant: _constant,
    Name: _name,
    Attribute: _attribute,
    Subscript: _subscript,
    Slice: _slice,
    Tuple: _tuple,
    List: _list,
    Set: _set,
    Dict: _dict,
    Call: _call,
    BinOp: _binary,
    UnaryOp: _unary,
    BoolOp: _boolean,
    Compare: _compare,
    IfExp: _conditional,
}
