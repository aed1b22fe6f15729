"""Tables of parameters in the Python reference, from docstrings.

A docstring describes a parameter by a sentence that begins with its name and a colon: `timeout_s`: seconds until … The
description goes on until the next of these, or to the end of the paragraph."""

import dataclasses
import inspect
import re

_NAMES = r"`?\w+`?(?:(?:,\s+|\s+and\s+)`?\w+`?)*"
_BEGIN = re.compile(rf"(?:^(?:- )?|(?<=[.;)] )|(?<=[.;)]\n))({_NAMES}):\s", re.MULTILINE)


# Made by the library, never by programs: how to make one is not shown.
MADE_INSIDE = (
    *("CudaModel", "Encoding", "Entry", "Export", "Gpu", "Message", "Model", "Port", "Request", "Statistics", "Step"),
    *("Task", "TaskFuture", "Window"),
)
# Defaults that depend on the machine.
_COUNTED = {"cores": "CPUs", "max_warm": "max(2, CPUs)", "boots_at_once": "max(2, CPUs)"}


def parameters(thing):
    """{name: inspect.Parameter} of a class or function, without `self`, `*args` and `**options`; empty where Python
    knows no signature."""
    try:
        found = inspect.signature(thing).parameters.values()
    except TypeError, ValueError:
        return {}
    return {
        one.name: one
        for one in found
        if one.name not in ("self", "cls") and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    }


def described(docstring, names):
    """(the docstring without what describes parameters, {name: description})."""
    kept, found = [], {}
    for paragraph in docstring.split("\n\n"):
        text = inspect.cleandoc(paragraph) if "\n" in paragraph else paragraph
        begins = [
            match
            for match in _BEGIN.finditer(text)
            if set(re.findall(r"\w+", re.sub(r"\band\b", "", match[1]))) <= names
        ]
        if not begins:
            kept.append(paragraph)
            continue
        if before := text[: begins[0].start()].strip():
            kept.append(before)
        ends = [match.start() for match in begins[1:]] + [len(text)]
        for match, end in zip(begins, ends):
            words = " ".join(text[match.end() : end].split())
            for name in re.findall(r"\w+", re.sub(r"\band\b", "", match[1])):
                found[name] = words
    return "\n\n".join(kept), found


def _number(value):
    """A large number: sizes as whole MiB."""
    return f"{value >> 20} << 20" if not value & ((1 << 20) - 1) else f"{value:_}"


def default(thing, parameter):
    """The default of a parameter of `thing` as a reader writes it; "" if it has none."""
    value = parameter.default
    if value is inspect.Parameter.empty:
        return ""
    if repr(value) == "<factory>":
        [field] = [field for field in dataclasses.fields(thing) if field.name == parameter.name]
        made = field.default_factory()
        return _COUNTED.get(parameter.name) or (repr(made) if made == {} else f"{type(made).__name__}()")
    if type(value) is int and value >= 1 << 20:
        return _number(value)
    if inspect.isroutine(value) or inspect.isclass(value):
        return value.__name__
    return repr(value)


def _plain(text):
    """Text of a docstring as reStructuredText that shows it: outside of `…`, no character has a meaning."""
    pieces = re.split(r"(`[^`]*`)", text)
    pieces[::2] = [re.sub(r"([*|\\]|(?<=\w)_(?!\w))", r"\\\1", piece) for piece in pieces[::2]]
    return "".join(pieces)


def _table(rows):
    lines = [".. list-table::", "   :header-rows: 1", "   :class: parameters", ""]
    lines += ["   * - parameter", "     - default", "     - "]
    for name, given, text in rows:
        lines += [f"   * - ``{name}``", f"     - ``{given}``" if given else "     - required", f"     - {_plain(text)}"]
    return [*lines, ""]


def _with_table(app, what, name, thing, options, lines):
    if what not in ("class", "function", "method") or getattr(thing, "__name__", "") in MADE_INSIDE:
        return
    shown = parameters(thing)
    rest, texts = described("\n".join(lines), set(shown))
    if texts:
        rows = [(key, default(thing, one), texts.get(key, "")) for key, one in shown.items()]
        lines[:] = [*rest.splitlines(), "", *_table(rows)]


def _with_all_defaults(app, what, name, thing, options, signature, returned):
    """The signature with the defaults that Python leaves out (`<factory>`), and sizes in MiB."""
    if not signature:
        return None
    if what == "exception" or what == "class" and thing.__name__ in MADE_INSIDE:
        return "", None
    if what == "class" and dataclasses.is_dataclass(thing):
        for one in parameters(thing).values():
            if repr(one.default) == "<factory>":
                signature, count = re.subn(
                    rf"(\b{one.name}: [^=]*= )<factory>", rf"\g<1>{default(thing, one)}", signature
                )
                assert count == 1, (name, one.name)
    signature = re.sub(r"<(?:built-in )?function (\w+)[^>]*>", r"\1", signature)
    return re.sub(r"\b\d{7,}\b", lambda number: _number(int(number[0])), signature), None


def setup(app):
    app.connect("autodoc-process-docstring", _with_table)
    app.connect("autodoc-process-signature", _with_all_defaults)
    return {"parallel_read_safe": True}
