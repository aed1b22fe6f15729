"""Texts that programs give to `compile`, `exec` and `eval`: collected by running them, compiled into the bundle.

Packages generate Python and compile it when they are imported or used: attrs' methods, networkx's decorators,
templates. `record` runs a task's imports, and a script of the user's, in plain Python, and writes every such text to
`recorded.json` beside task.yaml. `record_imports` runs the imports alone, and repeats that when the sources change;
`recorded_imports` does so for a running program. `read_record` turns the texts into bundle entries: code by digest.

A record also has the texts that programs parse into syntax trees, the trees that they compile, and the names of the
modules whose sources they read: the bundle gets the parsed trees, the code of the compiled ones, and the sources.

Many texts contain parts that differ from run to run: counters, hashes, ids. So the bundle also describes the kind of
each text: the text with all such parts masked, which of them may differ, and the names and numbers in the code that
contain them. A VM replaces names and numbers in verified code, and nothing else (`renamed_code` in
vmhost/isolation/seal/function_code.c). Here each kind is tested with other parts first; only parts where renaming gives
the compiler's result are marked as free.
"""

import ast
import contextlib
import hashlib
import io
import json
import os
import pickle
import random
import re
import subprocess
import sys
import tempfile
import tokenize
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

from .corrections import corrected
from .errors import CompileError, Diagnostic
from .format import module_path
from .replacing import replace_file
from .source import marshalled
from .texts import compile_text, text_digest
from .trees import text_of, unpacked

RECORD_NAME = "recorded.json"
FUTURES = 0x1FE0000  # flags of a code object: what its module imported from __future__
GENERATED = re.compile("[0-9a-f]{32}|-?[0-9]+")  # what programs put into names to make them unique: UUIDs, counters
_RESERVED = re.compile("__[^0-9]*__")  # Python's own names: never renamed
_SMALL = 255  # larger numbers are constants of the code, smaller ones operands of instructions
_SIGNS = 3  # texts with at most this many numbers are tried with both signs of each
_MODES = ("exec", "eval", "single")
_ROWS = {*_MODES, "source"} | {f"{what} {mode}" for what in ("parse", "tree") for mode in _MODES}
_FORM = 2  # of records of imports: older ones are made again


@dataclass(frozen=True)
class Recorded:
    """What a record brings: `texts`, digest to marshalled code, and `sources`, the names of modules."""

    texts: dict = field(default_factory=dict)
    sources: tuple = ()

    def files(self, sources, packages=None):
        """The recorded sources as files of the bundle: path to bytes. `sources` maps module names to Source, `packages`
        is the folder that installed ones are in."""
        found = {}
        for name in self.sources:
            source = sources.get(name)
            if source is not None:
                path = Path(source.path)
                if packages is not None and not path.is_absolute():
                    path = Path(packages).parent / path
                with contextlib.suppress(OSError):
                    found[f"{module_path(name, source.is_package)}.py"] = path.read_bytes()
        return found


@dataclass(frozen=True)
class Program:
    """What to record: `entry`, a dotted name or the path of a script; `roots`, the folders of its modules and packages;
    `modules`, the packages' modules that it may import; `absent`, {dotted name: reason}, the modules that a VM lacks.
    `replaced`: where such a module can be imported all the same, {path: lines}. `path` is the file of its texts.
    `sources`: modules that take precedence, as tuples of dotted name, text, path and whether it is a package. It runs
    in `folder` (None: the first root), with this process's environment and the variables `environment`."""

    entry: str
    roots: tuple
    modules: tuple
    absent: dict
    path: Path
    sources: tuple = ()
    folder: str | None = None
    environment: dict = field(default_factory=dict)
    replaced: dict = field(default_factory=dict)

    def stamp(self, sources):
        """A digest of everything that its imports depend on; `sources` maps dotted names to texts."""
        found = hashlib.sha256(f"{_FORM}\0{sys.version_info[:2]}\0{self.entry}\0{sorted(self.absent)}".encode())
        for name, text in sorted(sources.items()):
            found.update(f"\0{name}\0{len(text)}\0".encode() + text)
        return found.hexdigest()


def record(program, script):
    """Imports what `program` may import, then runs the script, in plain Python, and writes the texts compiled
    meanwhile; returns their number. CompileError if the program fails or the file can't be written."""
    texts, _ = _run(program, str(Path(script).resolve()))
    try:
        write_record(program.path, texts)
    except OSError as error:
        raise CompileError([Diagnostic(str(program.path), 0, f"can't be written: {error.strerror}")]) from error
    return len(texts)


def record_imports(program, sources):
    """Records the imports of a task for which no script was run; again when `sources` changed.

    Returns what is Recorded, and the problems as Diagnostics. CompileError for a damaged record."""
    stamp = program.stamp(sources)
    if program.path.exists() and _read(program.path).get("imports", stamp) == stamp:
        return read_record(program.path), ()
    texts, problems = _of_imports(program)
    if not problems:
        try:
            write_record(program.path, texts, {"imports": stamp})
        except OSError as error:
            message = f"can't be written: {error.strerror}; each compilation imports the program again"
            problems = (Diagnostic(str(program.path), 0, message),)
    return _compiled(texts), problems


def recorded_imports(program, sources, kept):
    """The same for the imports of a running program, whose texts are kept in `kept`, Compilations or None."""
    key = kept and kept.key("texts of imports", program.stamp(sources))
    texts, problems = kept and kept.get(key), ()
    if texts is None:
        texts, problems = _of_imports(program)
        if kept and not problems:
            kept.put(key, texts)
    return _compiled(texts), problems


def _of_imports(program):
    """The texts of its imports, and the problems as Diagnostics: with any, it may be other texts tomorrow."""
    try:
        texts, problem = _run(program)
    except CompileError as error:
        return [], tuple(error.diagnostics)
    if problem is None:
        return texts, ()
    message = f"fails with what a VM has, so that texts which packages compile may be missing: {problem}"
    return texts, (Diagnostic(f"import {program.entry}", 0, message),)


def _run(program, script=""):
    """The texts, and the error of the program's import, or None."""
    with tempfile.TemporaryDirectory(prefix="vmhost-record-") as work:
        request, found = Path(work, "request.json"), Path(work, "texts.json")
        asked = {
            "entry": program.entry,
            "script": script,
            "modules": program.modules,
            "absent": program.absent,
            "replaced": program.replaced,
            "roots": program.roots,
            "sources": [(name, text.decode("latin-1"), *others) for name, text, *others in program.sources],
            "library": str(Path(__file__).parents[2]),
        }
        request.write_text(json.dumps(asked))
        # a fixed hash seed: most texts come out the same each time
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", **program.environment}
        command = [sys.executable, str(Path(__file__).with_name("recorder.py")), str(request), str(found)]
        done = subprocess.run(
            command,
            cwd=program.folder or program.roots[0],
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode or not found.exists():
            output = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
            what = script or f"import {program.entry}"
            where = _place_in(done.stderr, (script, os.path.join(program.roots[0], "")))
            message = f"failed in plain Python while it was recorded: {output[-1]}{where}"
            raise CompileError([Diagnostic(what, 0, message)])
        answer = json.loads(found.read_text(encoding="utf-8", errors="surrogatepass"))
    return sorted({(text["mode"], text["futures"], text["text"]) for text in answer["texts"]}), answer["problem"]


def _place_in(traceback, paths):
    """The innermost line in one of the files or folders, as " (FILE:LINE)"; "" where the traceback names none."""
    lines = re.findall(r'^ *File "(.+)", line ([1-9][0-9]*)', traceback, re.MULTILINE)
    found = [f" ({file}:{line})" for file, line in lines if file.startswith(tuple(path for path in paths if path))]
    return found[-1] if found else ""


def write_record(path, texts, head=None):
    """Writes a record's file: `texts` as tuples of mode, flags and text, `head` other fields."""
    rows = [json.dumps({"mode": mode, "futures": futures, "text": text}) for mode, futures, text in sorted(set(texts))]
    fields = "".join(f"{json.dumps(name)}: {json.dumps(value)}, " for name, value in (head or {}).items())
    replace_file(path, ("{" + fields + '"texts": [\n' + ",\n".join(rows) + "\n]}\n").encode())


def _read(path):
    try:
        record = json.loads(path.read_text())
        for row in record["texts"]:
            if row["mode"] not in _ROWS or type(row["futures"]) is not int or type(row["text"]) is not str:
                raise ValueError("a text has no mode")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = (
            f"can't be read: {error}; make it again with `vmhost compile --record SCRIPT`, or `vmhost record PROGRAM`"
        )
        raise CompileError([Diagnostic(str(path), 0, message)]) from error
    return record


def read_record(path):
    """What is Recorded in the file `path`, if it exists. CompileError for a damaged file."""
    if not path.exists():
        return Recorded()
    return _compiled([(row["mode"], row["futures"], row["text"]) for row in _read(path)["texts"]])


def _compiled(rows):
    made, kinds, sources = {}, {}, []
    for mode, futures, text in rows:
        what, _, inner = mode.partition(" ")
        if what == "source":
            sources.append(text)
            continue
        if inner:
            with contextlib.suppress(SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
                made.update([(_parsed if what == "parse" else _of_tree)(inner, futures, text)])
            continue
        futures &= FUTURES
        try:
            code = corrected(compile(text, "<string>", mode, futures, dont_inherit=True, optimize=0))
        except SyntaxError, ValueError, RecursionError, MemoryError:
            continue  # the program expects that, or handles it
        key = f"{mode} {futures:x}" if futures else mode
        made[text_digest(key, text)] = marshalled(code)
        if text.startswith("\n"):  # for right line numbers; later texts will begin with more or fewer
            rest = text.lstrip("\n")
            above = corrected(compile(rest, "<string>", mode, futures, dont_inherit=True, optimize=0))
            made[text_digest(key, rest)] = marshalled(above)
        for alike, alike_code in _of_all_signs(code, mode, futures, text):
            if (kind := _kind(alike_code, mode, futures, alike)) is not None:
                digest = text_digest(key, alike)
                made[digest] = marshalled(alike_code)
                kinds.setdefault((f"kinds of {key}", GENERATED.sub("\0", text)), set()).add((digest, *kind))
    for (key, masked), rows in kinds.items():
        made[text_digest(key, masked)] = compile_text("eval", repr(tuple(sorted(rows, key=repr))))
    return Recorded(made, tuple(sources))


def _parsed(mode, flags, text):
    """Digest and code of a text that is parsed: an expression with the pickled tree."""
    flags &= FUTURES | ast.PyCF_TYPE_COMMENTS
    tree = compile(text, "<string>", mode, flags | ast.PyCF_ONLY_AST, dont_inherit=True)
    data = pickle.dumps(tree, 5)  # CPython makes the same of the same text
    return text_digest(f"parse {mode} {flags:x}", text), compile_text("eval", repr(data))


def _of_tree(mode, futures, text):
    """Digest and code of a tree that is compiled."""
    futures, tree = futures & FUTURES, unpacked(text)
    code = corrected(compile(tree, "<string>", mode, futures, dont_inherit=True, optimize=0))
    key = f"tree {mode} {futures:x}" if futures else f"tree {mode}"
    return text_digest(key, text_of(tree)), marshalled(code)


def _of_all_signs(code, mode, futures, text):
    """The text and its code, then the same with each other combination of signs of its large numbers (often hashes),
    for which the compiler emits other instructions."""
    yield text, code
    parts = [(found.start(), found.group()) for found in GENERATED.finditer(text)]
    numbers = [pieces[0] for _, pieces in _tokens(text, parts)[1]]
    if not 0 < len(numbers) <= _SIGNS:
        return
    for chosen in range(1, 1 << len(numbers)):
        new, at = [], 0
        for index, (place, part) in enumerate(parts):
            if index in numbers and chosen >> numbers.index(index) & 1:
                part = part[1:] if part.startswith("-") else f"-{part}"
            new += [text[at:place], part]
            at = place + len(parts[index][1])
        alike = "".join([*new, text[at:]])
        with contextlib.suppress(SyntaxError):
            yield alike, corrected(compile(alike, "<string>", mode, futures, dont_inherit=True, optimize=0))


def _kind(code, mode, futures, text):
    """Which generated parts of `text` may differ, and how: (fixed, tokens), or None if none may. `fixed`: pairs of
    index and text of the other parts. `tokens`: pairs of a name or number in the code and its pieces: a str is literal,
    an int the index of a free part."""
    parts = [(found.start(), found.group()) for found in GENERATED.finditer(text)]
    if not parts or mode not in _MODES:
        return None
    names, numbers, strings = _tokens(text, parts)
    for chosen in (names + numbers + strings, names + strings, names + numbers, names):
        free = {piece for _, pieces in chosen for piece in pieces if type(piece) is int}
        if free and all(_is_right(code, mode, futures, text, parts, chosen, free, seed) for seed in range(3)):
            fixed = tuple((index, part) for index, (_, part) in enumerate(parts) if index not in free)
            return fixed, tuple(dict.fromkeys((old, tuple(pieces)) for old, pieces in chosen))
    return None


def _tokens(text, parts):
    """The names, the numbers, and the strings that are identifiers, in `text` that contain generated parts: three lists
    of pairs of the token's value and its pieces."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    names, numbers, strings = [], [], []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in (tokenize.NAME, tokenize.NUMBER, tokenize.STRING):
                continue
            start, end = (starts[line - 1] + column for line, column in (token.start, token.end))
            if text[start:end] != token.string:
                return [], [], []  # tokenize counts other line ends than str.splitlines
            if token.type == tokenize.STRING:
                if token.string[0] not in "'\"" or not token.string[1:-1].isidentifier():
                    continue
                start, end = start + 1, end - 1
            pieces, at = [], start
            for index, (place, part) in enumerate(parts):
                if start - part.startswith("-") <= place and place + len(part) <= end:
                    pieces += [text[at:place], index] if place > at else [index]
                    at = place + len(part)
            if not any(type(piece) is int for piece in pieces):
                continue
            if at < end:
                pieces.append(text[at:end])
            if token.type == tokenize.NAME:
                names.append((token.string, pieces))
            elif token.type == tokenize.STRING:
                strings.append((token.string[1:-1], pieces))
            elif token.string.isdecimal() and len(pieces) == 1 and _SMALL < int(token.string):
                numbers.append((int(parts[pieces[0]][1]), pieces))
    except tokenize.TokenError, SyntaxError, IndexError, ValueError:
        return [], [], []
    return names, numbers, strings


def _is_right(code, mode, futures, text, parts, tokens, free, seed):
    """Does renaming `code` give what the compiler makes of the text with other parts?"""
    chance = random.Random(f"{seed} {text}")
    others = {}
    for index in sorted(free):
        part = parts[index][1].removeprefix("-")
        digits = "0123456789" if part.isdecimal() else "0123456789abcdef"
        other = chance.choice("3456789") + "".join(chance.choices(digits, k=len(part) - 1))
        others.setdefault(parts[index][1], "-" * (parts[index][1] != part) + other)
    if len(set(others.values())) < len(others):
        return True  # no evidence: two parts became equal
    new, at = [], 0
    for index, (place, part) in enumerate(parts):
        new += [text[at:place], others[part] if index in free else part]
        at = place + len(part)
    new.append(text[at:])
    renames = {}
    for old, pieces in tokens:
        name = "".join(piece if type(piece) is str else others[parts[piece][1]] for piece in pieces)
        if type(old) is int:
            renames[old], renames[-old] = int(name), -int(name)
        else:
            renames[old] = name
    if any(type(name) is str and _RESERVED.fullmatch(name) for name in (*renames, *renames.values())):
        return False
    try:
        expected = corrected(compile("".join(new), "<string>", mode, futures, dont_inherit=True, optimize=0))
    except SyntaxError:
        return False
    return _same(_renamed(renames, code), expected)


def _renamed(renames, value):
    """The result of the guest's `renamed_code` for a code object or one of its constants."""
    if type(value) is str and "<" in value:
        return ".".join(renames.get(part, part) for part in value.split("."))
    if type(value) is str or type(value) is int:
        return renames.get(value, value)
    if type(value) is tuple:
        return tuple(_renamed(renames, item) for item in value)
    if not isinstance(value, CodeType):
        return value
    names = ("co_names", "co_varnames", "co_cellvars", "co_freevars", "co_consts")
    return value.replace(
        co_name=renames.get(value.co_name, value.co_name),
        co_qualname=".".join(renames.get(part, part) for part in value.co_qualname.split(".")),
        **{name: _renamed(renames, getattr(value, name)) for name in names},
    )


def _same(one, other):
    """Are two code objects equal but for source positions?"""
    one, other = _without_positions(one), _without_positions(other)
    inner = [constant for constant in one.co_consts if isinstance(constant, CodeType)]
    other_constant = [constant for constant in other.co_consts if isinstance(constant, CodeType)]
    return one == other and one.co_qualname == other.co_qualname and all(map(_same, inner, other_constant))


def _without_positions(code):
    constants = (_without_positions(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_linetable=b"", co_consts=tuple(constants))
