"""Texts that programs give to `compile`, `exec` and `eval`: collected by running them, compiled into the bundle.

Packages write Python and compile it while they are imported or used: attrs' methods, networkx's decorators, templates.
`record` runs a task's imports, and a script of the user's, in plain Python, and writes every such text to
`recorded.json` beside task.yaml; `record_imports` does without a script, and again when the sources have changed.
`recorded_texts` makes of these what a bundle holds: their code under their digests.

Many texts hold parts that differ from run to run: counters, hashes, ids. So the bundle also says of which kind each
text is: the text with all such parts masked, which of them may differ, and what the names and numbers with them are
called in the code. A VM puts other names and numbers into verified code, and nothing else (`renamed_code` in
vmhost/isolation/seal/function_code.c); here each kind is tried out with other parts first, and only what the compiler
would have made of them as well is marked as free.
"""

import contextlib
import hashlib
import io
import json
import os
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
from .replacing import replace_file
from .source import marshalled
from .texts import compile_text, text_digest

RECORD_NAME = "recorded.json"
FUTURES = 0x1FE0000  # flags of a code object: what its module imported from __future__
GENERATED = re.compile("[0-9a-f]{32}|-?[0-9]+")  # what programs put into names to make them unique
_RESERVED = re.compile("__[^0-9]*__")  # of Python's own: these stay
_SMALL = 255  # larger numbers are constants of the code, smaller ones operands of instructions
_SIGNS = 3  # at most so many numbers of a text are tried with both signs
_MODES = ("exec", "eval", "single")


@dataclass(frozen=True)
class Program:
    """What is recorded: `entry`, a dotted name or the path of a script; `roots`, the folders where its modules and
    packages are; `modules`, the packages' modules that it may import; `absent`, {dotted name: reason}, what a VM would
    not find. `path` is the file of its texts. `sources`: modules that it finds before all others, as tuples of dotted
    name, text, path and whether it is a package. It runs in `folder` (None: the first of the roots), with the variables
    `environment` beside those of this process."""

    entry: str
    roots: tuple
    modules: tuple
    absent: dict
    path: Path
    sources: tuple = ()
    folder: str | None = None
    environment: dict = field(default_factory=dict)

    def stamp(self, sources):
        """A digest of all that its imports depend on; `sources` maps dotted names to texts."""
        found = hashlib.sha256(f"{sys.version_info[:2]}\0{self.entry}\0{sorted(self.absent)}".encode())
        for name, text in sorted(sources.items()):
            found.update(f"\0{name}\0{len(text)}\0".encode() + text)
        return found.hexdigest()


def record(program, script):
    """Imports what `program` may import, then runs the script, in plain Python, and writes the texts that were compiled
    meanwhile; returns how many. CompileError if the program fails or the file can't be written."""
    texts, _ = _run(program, str(Path(script).resolve()))
    try:
        write_record(program.path, texts)
    except OSError as error:
        raise CompileError([Diagnostic(str(program.path), 0, f"can't be written: {error.strerror}")]) from error
    return len(texts)


def record_imports(program, sources):
    """Where nobody ran a script for `program`: a record of its imports alone, made again when `sources` changed.

    Returns the digest to marshalled code that a bundle holds, and what stands in the way as Diagnostics. CompileError
    where a record is damaged."""
    stamp, problems = program.stamp(sources), []
    if program.path.exists() and _read(program.path).get("imports", stamp) == stamp:
        return recorded_texts(program.path), ()
    try:
        texts, problem = _run(program)
    except CompileError as error:
        return {}, error.diagnostics
    if problem is not None:
        message = f"fails with what a VM has, so that texts which packages compile may be missing: {problem}"
        return _compiled(texts), (Diagnostic(f"import {program.entry}", 0, message),)  # not kept: it may work tomorrow
    try:
        write_record(program.path, texts, {"imports": stamp})
    except OSError as error:
        message = f"can't be written: {error.strerror}; each compilation imports the program again"
        problems.append(Diagnostic(str(program.path), 0, message))
    return _compiled(texts), tuple(problems)


def _run(program, script=""):
    """The texts, and what went wrong with the program's import, or None."""
    with tempfile.TemporaryDirectory(prefix="vmhost-record-") as work:
        request, found = Path(work, "request.json"), Path(work, "texts.json")
        asked = {
            "entry": program.entry,
            "script": script,
            "modules": program.modules,
            "absent": program.absent,
            "roots": program.roots,
            "sources": [(name, text.decode("latin-1"), *others) for name, text, *others in program.sources],
            "library": str(Path(__file__).parents[2]),
        }
        request.write_text(json.dumps(asked))
        # one hash seed: most texts come out the same each time
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
            said = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
            what = script or f"import {program.entry}"
            where = _place_in(done.stderr, (script, os.path.join(program.roots[0], "")))
            message = f"failed in plain Python while it was recorded: {said[-1]}{where}"
            raise CompileError([Diagnostic(what, 0, message)])
        answer = json.loads(found.read_text(encoding="utf-8", errors="surrogatepass"))
    return sorted({(text["mode"], text["futures"], text["text"]) for text in answer["texts"]}), answer["problem"]


def _place_in(traceback, paths):
    """The innermost line in one of the files or folders, as " (FILE:LINE)"; "" where the traceback names none."""
    lines = re.findall(r'^ *File "(.+)", line ([1-9][0-9]*)', traceback, re.MULTILINE)
    found = [f" ({file}:{line})" for file, line in lines if file.startswith(tuple(path for path in paths if path))]
    return found[-1] if found else ""


def write_record(path, texts, head=None):
    """Writes the file of a record: `texts` as tuples of mode, flags and text, `head` other fields."""
    rows = [json.dumps({"mode": mode, "futures": futures, "text": text}) for mode, futures, text in sorted(set(texts))]
    fields = "".join(f"{json.dumps(name)}: {json.dumps(value)}, " for name, value in (head or {}).items())
    replace_file(path, ("{" + fields + '"texts": [\n' + ",\n".join(rows) + "\n]}\n").encode())


def _read(path):
    try:
        record = json.loads(path.read_text())
        for row in record["texts"]:
            if row["mode"] not in _MODES or type(row["futures"]) is not int or type(row["text"]) is not str:
                raise ValueError("a text has no mode")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = (
            f"can't be read: {error}; make it again with `vmhost compile --record SCRIPT`, or `vmhost record PROGRAM`"
        )
        raise CompileError([Diagnostic(str(path), 0, message)]) from error
    return record


def recorded_texts(path):
    """What a bundle holds of the texts recorded in the file `path`, if it is there: digest to marshalled code.
    CompileError where it is damaged."""
    if not path.exists():
        return {}
    return _compiled([(row["mode"], row["futures"], row["text"]) for row in _read(path)["texts"]])


def _compiled(texts):
    made, kinds = {}, {}
    for mode, futures, text in texts:
        futures &= FUTURES
        try:
            code = corrected(compile(text, "<string>", mode, futures, dont_inherit=True, optimize=0))
        except SyntaxError, ValueError, RecursionError, MemoryError:
            continue  # the program expects that, or tries something else then
        key = f"{mode} {futures:x}" if futures else mode
        made[text_digest(key, text)] = marshalled(code)
        if text.startswith("\n"):  # so that lines are counted right: others will begin with more or fewer
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
    return made


def _of_all_signs(code, mode, futures, text):
    """The text and its code; and the same with the other sign of its large numbers, for which the compiler writes other
    instructions. Hashes are such numbers."""
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
    """Which generated parts of `text` may differ, and how: (fixed, tokens). `fixed` has the others, as pairs of index
    and part; `tokens` what holds the free ones, as pairs of what it is in the code and of its pieces: a str as it is,
    an int for the part of that index. None: none may."""
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
    """The names, the numbers, and the strings that could be names, in `text` that hold generated parts: three lists of
    pairs of what they are and of their pieces."""
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
                return [], [], []  # lines end in another way than tokenize counts
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
    """Whether `code` under other names and numbers is what the compiler makes of the text with other parts."""
    chance = random.Random(f"{seed} {text}")
    others = {}
    for index in sorted(free):
        part = parts[index][1].removeprefix("-")
        digits = "0123456789" if part.isdecimal() else "0123456789abcdef"
        other = chance.choice("3456789") + "".join(chance.choices(digits, k=len(part) - 1))
        others.setdefault(parts[index][1], "-" * (parts[index][1] != part) + other)
    if len(set(others.values())) < len(others):
        return True  # says nothing: two parts became one
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
    """What `renamed_code` in the guest makes of a code object, or of one of its constants."""
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
    """Whether two code objects are equal in all but the columns of their source."""
    one, other = _without_positions(one), _without_positions(other)
    inner = [constant for constant in one.co_consts if isinstance(constant, CodeType)]
    theirs = [constant for constant in other.co_consts if isinstance(constant, CodeType)]
    return one == other and one.co_qualname == other.co_qualname and all(map(_same, inner, theirs))


def _without_positions(code):
    constants = (_without_positions(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_linetable=b"", co_consts=tuple(constants))
