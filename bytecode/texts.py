"""Texts that CPython would compile at run time, compiled ahead.

`namedtuple`, `typing.NamedTuple` and `dataclass` generate Python text and compile it when a class is defined. A VM has
no compiler. So for definitions that can be read from the source, the bundle has the code of exactly that text, under
the text's digest. For others, the guest runtime builds the same functions another way.

Dataclasses aren't imitated: the running Python's own `dataclasses` generates the text, for a class with the same
fields, options and methods. A copy of that module records the text.
"""

import ast
import collections
import dataclasses
import functools
import hashlib
import importlib.util
import keyword
import marshal
import threading
import typing

from .source import nodes_of, parse

_WORDS = (b"namedtuple", b"NamedTuple", b"dataclass")
_ANY = 0  # placeholder for default values: the text only depends on whether there is one


def text_digest(mode, text):
    """The key of a text: SHA-256 over mode ("eval" or "exec"), a zero byte, and the text."""
    return hashlib.sha256(f"{mode}\0{text}".encode()).digest()


def absence(absent):
    """Digest and marshalled code of the text that gives a VM the reason why a module is missing: an expression with
    that value; for an Absent that stands for several, the reason and their names. The guest's importer looks it up when
    an import fails."""
    value = (absent.reason, absent.names) if absent.names else absent.reason
    return text_digest("absent", absent.name), compile_text("eval", repr(value), "<absent>")


def deferrals(deferred):
    """Digests and code of the texts that tell a VM which modules of packages it may ask for (`Closure.deferred`)."""
    return dict.fromkeys((text_digest("deferred", name) for name in deferred), compile_text("eval", "1"))


def compile_text(mode, text, filename="<string>"):
    """Marshalled code of `text`."""
    return marshal.dumps(compile(text, filename, mode, dont_inherit=True, optimize=0))


def collect_texts(source):
    """Digest to marshalled code, for each text that the module `source` (bytes that parse) visibly needs."""
    if not any(word in source for word in _WORDS):
        return {}
    nodes = nodes_of(parse(source, "<text>"))
    aliases = {
        alias.asname: alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    found, stubs = {}, {}
    for node in nodes:
        texts = []
        if isinstance(node, ast.Call):
            fields = _called_fields(node, aliases)
            if fields is not None:
                texts.append(("eval", _namedtuple_text(fields)))
        elif isinstance(node, ast.ClassDef):
            if any(_last_name(base, aliases) == "NamedTuple" for base in node.bases):
                texts.append(("eval", _namedtuple_text([statement.target.id for statement in _annotated(node)])))
            texts += [("exec", text) for text in _dataclass_texts(node, aliases, stubs)]
        found.update((text_digest(mode, text), (mode, text)) for mode, text in texts if text is not None)
    return {digest: compile_text(mode, text) for digest, (mode, text) in sorted(found.items())}


def _last_name(node, aliases):
    if isinstance(node, ast.Subscript):
        node = node.value
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
    return aliases.get(name, name)


def _annotated(node):
    return [item for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]


def _called_fields(node, aliases):
    """The literal field names of `namedtuple("P", ...)` or `NamedTuple("P", ...)`, or None."""
    name = _last_name(node.func, aliases)
    if name not in ("namedtuple", "NamedTuple"):
        return None
    given = dict(zip(("typename", "field_names" if name == "namedtuple" else "fields"), node.args))
    given.update((item.arg, item.value) for item in node.keywords)
    try:
        if name == "NamedTuple":
            return [ast.literal_eval(field.elts[0]) for field in given["fields"].elts]
        rename = ast.literal_eval(given["rename"]) if "rename" in given else False
        return collections.namedtuple("typename", ast.literal_eval(given["field_names"]), rename=rename)._fields
    except KeyError, ValueError, TypeError, AttributeError, IndexError:
        return None  # only known at run time, or wrong: then it raises at run time


def _namedtuple_text(fields):
    """The text of `__new__` that CPython's `collections.namedtuple` generates; None for invalid fields."""
    if not all(isinstance(field, str) and field.isidentifier() and not keyword.iskeyword(field) for field in fields):
        return None
    arguments = ", ".join(fields) + ("," if len(fields) == 1 else "")
    return f"lambda _cls, {arguments}: _tuple_new(_cls, ({arguments}))"


def _dataclass_texts(node, aliases, stubs):
    """The texts that the class `node` compiles; none if it is no dataclass or not fully readable.

    `stubs` maps the names of the dataclasses read so far to equivalent classes; this one is added.
    """
    options = None
    for decorator in node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        if _last_name(call.func if call else decorator, aliases) == "dataclass":
            options = {item.arg: item.value for item in call.keywords} if call else {}
    if options is None:
        return []
    module, texts, lock = _listening_dataclasses()
    bases = tuple(stubs[name] for name in map(lambda base: _last_name(base, aliases), node.bases) if name in stubs)
    with lock:
        texts.clear()
        try:
            namespace = _stub_namespace(node, aliases, module)
            options = {name: ast.literal_eval(value) for name, value in options.items()}
            stubs[node.name] = module.dataclass(**options)(type(node.name, bases, namespace))
        except ValueError, TypeError, SyntaxError:
            return []  # only known at run time, or wrong: then it raises at run time
        return list(texts)


def _stub_namespace(node, aliases, module):
    """The namespace of a class for which `dataclasses` generates the same text as for `node`."""
    namespace = {"__annotations__": {}}
    for item in node.body:
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            namespace[item.name] = lambda *arguments: None
        elif isinstance(item, ast.Assign):
            for target in item.targets:
                if isinstance(target, ast.Name):
                    is_none = isinstance(item.value, ast.Constant) and item.value.value is None
                    namespace[target.id] = None if is_none else _ANY
    for item in _annotated(node):
        namespace["__annotations__"][item.target.id] = _stub_annotation(item.annotation, aliases)
        if isinstance(item.value, ast.Call) and _last_name(item.value.func, aliases) == "field":
            namespace[item.target.id] = _stub_field(item.value, module)
        elif item.value is not None:
            namespace[item.target.id] = _ANY
    return namespace


def _stub_annotation(annotation, aliases):
    text = annotation.value if isinstance(annotation, ast.Constant) else None
    if isinstance(text, str):
        try:
            annotation = ast.parse(text, mode="eval").body
        except SyntaxError:
            return object
    name = _last_name(annotation, aliases)
    # `dataclasses` compares with sys.modules, so these come from the real module, not the copy.
    known = {"ClassVar": typing.ClassVar, "InitVar": dataclasses.InitVar, "KW_ONLY": dataclasses.KW_ONLY}
    return known.get(name, object)


def _stub_field(call, module):
    given = {}
    for item in call.keywords:
        if item.arg == "default":
            given["default"] = _ANY
        elif item.arg == "default_factory":
            given["default_factory"] = int
        elif item.arg in ("init", "repr", "hash", "compare", "kw_only"):
            given[item.arg] = ast.literal_eval(item.value)
        elif item.arg is None:
            raise ValueError("field(**options) is only known at run time")
    return module.field(**given)


@functools.cache
def _listening_dataclasses():
    """A copy of the module `dataclasses` that records each text before it runs it; the list of texts; a lock for
    both."""
    specification = importlib.util.find_spec("dataclasses")
    module = importlib.util.module_from_spec(specification)
    texts = []

    def listening_exec(text, names, found):
        texts.append(text)
        exec(text, names, found)

    module.exec = listening_exec
    specification.loader.exec_module(module)
    return module, texts, threading.Lock()
