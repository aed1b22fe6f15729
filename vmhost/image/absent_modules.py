"""Python stand-ins for two native modules that are not linked in, `_ast` and `_tokenize`, and for `encodings.idna`.

Nodes of `_ast` are data: `ast.literal_eval`, annotations and `vmhost.guest.expressions` make and read them without a
parser. Their classes are generated from those of the running Python, so fields, bases and defaults are the same.
`_tokenize` splits one line, as `inspect` needs for signatures of native functions, and refuses anything else.
`encodings.idna`, with which sockets encode host names, would need Unicode's tables (a megabyte): the stand-in handles
only ASCII names."""

import _ast

from vmhost.bytecode.format import Module
from vmhost.bytecode.source import compile_source

_HEAD = """
class AST:
    _fields = _attributes = __match_args__ = ()
    _lists = ()

    def __init__(self, *values, **named):
        fields, name = self._fields, type(self).__name__
        if len(values) > len(fields):
            plural = "s" * (len(fields) != 1)
            raise TypeError(f"{name} constructor takes at most {len(fields)} positional argument{plural}")
        for field, value in zip(fields, values):
            if field in named:
                raise TypeError(f"{name} got multiple values for argument {field!r}")
            setattr(self, field, value)
        for field, value in named.items():
            setattr(self, field, value)
        for field in fields[len(values):]:
            if field not in named and field in self._lists:
                setattr(self, field, [])
            elif field == "ctx" and field not in named:
                self.ctx = Load()

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name, None)!r}' for name in self._fields)})"

    def __reduce__(self):
        return type(self), (), self.__dict__

    def __replace__(self, **named):
        known = {name: value for name, value in self.__dict__.items() if name in (*self._fields, *self._attributes)}
        return type(self)(**known | named)


AST.__module__ = "ast"
"""
_TOKENIZE = rb"""
import re

_TOKEN = re.compile(r"[ \t\f]*(?:(?P<name>[^\W\d]\w*)|(?P<number>(?:\d[\w.]*|\.\d\w*)(?:(?<=[eE])[+-]\d\w*)?)|"
                    r"(?P<string>'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")|"
                    r"(?P<op>->|:=|\.\.\.|\*\*|//|==|!=|<=|>=|<<|>>|[-+*/%@&|^~<>()\[\]{},:.;=$?!]))")
_TYPES = {"name": 1, "number": 2, "string": 3, "op": 55}


class TokenizerIter:
    def __init__(self, readline, *, encoding=None, extra_tokens=False):
        def line():
            try:
                text = readline()
            except StopIteration:
                return ""
            return text.decode(encoding) if isinstance(text, bytes) else text

        text = line()
        if text[:1] in " \t" or line():
            raise RuntimeError("this Python has no tokenizer: it runs bytecode only")
        self._tokens = self._of(text)

    def _of(self, text):
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                raise RuntimeError("this Python has no tokenizer: it runs bytecode only")
            kind, at = found.lastgroup, found.end()
            yield _TYPES[kind], found[kind], (1, found.start(kind)), (1, at), text
        yield 4, text[end:], (1, end), (1, end + 1), text
        yield 0, "", (2, 0), (2, 0), ""

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._tokens)
"""


_IDNA = rb"""
import codecs


def encode(name, errors="strict"):
    if not name.isascii():
        raise UnicodeError(f"{name}: names of hosts are ASCII in a device image; write it as xn--...")
    labels = name.removesuffix(".").split(".")
    if name and not all(0 < len(label) < 64 for label in labels):
        raise UnicodeError(f"{name}: expected labels of 1 to 63 characters")
    return name.encode("ascii"), len(name)


def decode(data, errors="strict"):
    return str(bytes(data), "ascii"), len(data)


def getregentry():
    return codecs.CodecInfo(encode, decode, name="idna")
"""


def stand_ins():
    """{name: Module} of the stand-ins."""
    sources = {"_ast": _ast_source().encode(), "_tokenize": _TOKENIZE, "encodings.idna": _IDNA}
    return {
        name: Module(False, compile_source(source, f"stdlib/{name}.py", name, docstrings=False))
        for name, source in sources.items()
    }


def _ast_source():
    blocks = [_HEAD]
    classes = [
        value
        for value in vars(_ast).values()
        if isinstance(value, type) and issubclass(value, _ast.AST) and value is not _ast.AST
    ]
    for node in sorted(classes, key=lambda node: (len(node.__mro__), node.__name__)):
        types = getattr(node, "_field_types", {})
        lists = tuple(name for name in node._fields if getattr(types.get(name), "__origin__", None) is list)
        own = {
            "__module__": "ast",
            "_fields": node._fields,
            "__match_args__": node.__match_args__,
            "_attributes": node._attributes,
            "_lists": lists,
        }
        own |= {name: None for name in (*node._fields, *node._attributes) if getattr(node, name, ...) is None}
        body = "".join(f"    {name} = {value!r}\n" for name, value in own.items())
        blocks.append(f"class {node.__name__}({node.__base__.__name__}):\n{body}\n")
    blocks += [f"{name} = {value!r}\n" for name, value in vars(_ast).items() if name.startswith("PyCF_")]
    return "\n".join(blocks)
