"""Reads `task.yaml` by its table (`task_table.py`) and checks it against the task's folder.

All problems are reported at once, each as `file:line: key: expected …, got …`.
"""

import ast
import copy
import difflib
import glob
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import yaml

from .archive import MAX_BYTES, MAX_ENTRIES, path_problem
from .errors import CompileError, TaskSpecError
from .fields import GRANTS, shown
from .kinds import Refused
from .lookup import find_module
from .reading import read
from .source import parse
from .stream_task import FieldError, Table, Trigger
from .task_table import TASK
from .yaml_loader import Loader

SPEC_NAME = "task.yaml"
MAX_SPEC_BYTES = 1 << 20
# `permissions.tunnel` of task.yaml names channels; each stands for a host function with this prefix (vmhost/tunnel).
TUNNEL_FUNCTION = "tunnel_"
MAX_DEPTH = 8
_LFS_POINTER, _MAX_POINTER_BYTES = b"version https://git-lfs.github.com/spec/", 1024  # of Git LFS's specification
_ELSEWHERE = "leave them where they are, and grant their folder under permissions.read"

_PLAIN = (str, int, float, type(None))  # not dates and bytes
_MAX_NUMBER_CHARS = 1024  # reading a number in sixties, 1:30:00, takes the square of its length
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MAX_SHOWN_KEY = 120
_YAML_ADVICE = {  # message of the YAML reader -> the author's likely mistake
    "mapping values are not allowed here": (
        "indent the keys of one level alike, and put a text with ': ' in it in quotes"
    ),
    "found character '\\t' that cannot start any token": "indent with spaces",
    "could not find expected ':'": "write each line as `key: value`",
}


@dataclass(frozen=True)
class TaskSpec:
    """The content of a `task.yaml`. `folder` is the task's; `file` the yaml's name in messages.

    `limits` has those of memory_bytes, wall_time_s, cpu_time_s, stack_bytes, concurrency, descriptors, output_bytes
    that are given; `permissions` all of GRANTS, as tuples of str. `files` are paths below `folder` with `/`, patterns
    resolved, sorted; `models` maps names to such paths, sorted by name, and `trainable` some of these names to tuples
    of patterns of weights; `requirements` are packages in pip's syntax, `imports` modules that come along unasked, as
    "pkg.part" or "pkg.*". `trigger` and `table` are None for a task that is no stream task.
    `lines` maps a key's path ("limits.memory") to its line."""

    folder: Path
    file: str
    name: str
    version: str
    entry_module: str
    entry_function: str
    python: str
    limits: Mapping
    permissions: Mapping
    files: tuple
    models: Mapping
    trainable: Mapping
    requirements: tuple
    imports: tuple
    priority: int
    fresh: bool
    trigger: Trigger | None
    table: Table | None
    lines: Mapping

    @property
    def entry(self):
        """`module:function`"""
        return f"{self.entry_module}:{self.entry_function}"


def read_task(folder):
    """The TaskSpec of the task in `folder` (str or Path); TaskSpecError with all its problems."""
    folder = Path(folder)
    file = str(folder / SPEC_NAME)
    problems = _Problems(file)
    written, problems.lines = _load(folder / SPEC_NAME, problems)
    values = read(TASK, written, problems)
    problems.stop()

    patterns = ((f"files[{index}]", pattern) for index, pattern in enumerate(values.get("files", ())))
    files = _find_resources(folder, patterns, problems)
    models = {}
    for name, path in sorted(values.get("models", {}).items()):
        models.update((name, found) for found in _find_resources(folder, [(f"models.{name}", path)], problems))
    trainable = dict(sorted(values.get("trainable", {}).items()))
    for name in trainable:
        if name not in values.get("models", {}):
            problems.add([f"trainable.{name}"], "expected the name of a model under `models`")
        if f"{name}.trainable" in files:
            problems.add([f"trainable.{name}"], f"the file {name}.trainable is in the task's folder; name it otherwise")
    _check_sizes(folder, {"files": files, "models": tuple(models.values())}, problems)
    module, function = values["entry"].split(":")
    _check_entry(folder, module, function, problems)
    if "trigger" in values:
        on = values["trigger"]["on"]
        values["trigger"]["on"] = [list(ids) for ids in ([on] if isinstance(on[0], str) else on)]
    trigger = _described(values, "trigger", Trigger, problems)
    table = _described(values, "table", Table, problems)
    problems.stop()
    return TaskSpec(
        folder=folder,
        file=file,
        name=values["name"],
        version=values["version"],
        entry_module=module,
        entry_function=function,
        python=values["python"],
        limits=MappingProxyType(values.get("limits", {})),
        permissions=MappingProxyType(_granted(values.get("permissions", {}))),
        files=files,
        models=MappingProxyType(models),
        trainable=MappingProxyType(trainable),
        requirements=values.get("requirements", ()),
        imports=values.get("imports", ()),
        priority=values.get("priority", 0),
        fresh=values.get("fresh", False),
        trigger=trigger,
        table=table,
        lines=MappingProxyType(problems.lines),
    )


def _granted(permissions):
    """The permissions as bundles have them: a channel of the tunnel is a host function there."""
    granted = {name: permissions.get(name, ()) for name in GRANTS}
    channels = [TUNNEL_FUNCTION + channel for channel in permissions.get("tunnel", ())]
    granted["host"] += tuple(name for name in channels if name not in granted["host"])
    return granted


def read_plain(path):
    """The plain value in the YAML file at `path` (a Path), by the rules for task.yaml: bounded size and depth, no
    aliases, no tags, no key twice. TaskSpecError with all problems."""
    problems = _Problems(str(path))
    value, _ = _load(path, problems)
    return value


def lined_plain_of(data, where):
    """As `read_plain`, for the bytes of a YAML text (None for an empty one), and the line of each key."""
    return _parsed(data, where, _Problems(where))


class _Problems:
    """The problems of a file; `part` is a view for what is below a key (`reading.py`)."""

    error = TaskSpecError

    def __init__(self, file):
        self.file, self.lines, self.found, self._key = file, {}, [], ""

    def part(self, *where, names=None):  # noqa: ARG002
        part = copy.copy(self)
        part._key = self._below(where)
        return part

    def _below(self, where):
        parts = (f"[{each}]" if isinstance(each, int) else f".{each}" for each in where)
        return f"{self._key}{''.join(parts)}".removeprefix(".")

    def add(self, where, message, line=None):
        """`where`: the key's path, as a sequence."""
        key = self._below(where)
        if isinstance(message, Refused) and hasattr(message, "expected"):
            message = f"expected {message.expected}, got {_shown(message.value)}{_advice(key, message.value)}"
        prefix = f"{_shown_key(key)}: " if key else ""
        if line is None:
            while key not in self.lines and "." in key:
                key = key.rpartition(".")[0]
            line = self.lines.get(key, 1)
        self.found.append((line, f"{self.file}:{line}: {prefix}{message}"))

    def missing(self, setting):
        self.add([setting.key], f"is missing; expected {setting.kind.words}")

    def stop(self):
        if self.found:
            raise TaskSpecError(text for _, text in sorted(set(self.found)))


def _load(path, problems):
    """The plain value of the yaml file, and the line of each key. Duplicate keys, aliases and tags are refused."""
    try:
        data = path.read_bytes()
    except OSError as error:
        advice = (
            "; there is no such folder"
            if not path.parent.is_dir()
            else (
                "; a task's folder has one, with at least name, version, entry and python" if not path.exists() else ""
            )
        )
        raise TaskSpecError([f"{path}: can't read the task's description: {error.strerror}{advice}"]) from error
    value, lines = _parsed(data, path, problems)
    if value is None:
        raise TaskSpecError([f"{path}:1: the file is empty; expected at least name, version, entry and python"])
    return value, lines


def _parsed(data, path, problems):
    """The plain value of the YAML in `data`, or None if there is none, and the line of each key."""
    if len(data) > MAX_SPEC_BYTES:
        raise TaskSpecError([f"{path}: expected at most {MAX_SPEC_BYTES} bytes, got {len(data)}"])
    try:
        text = data.decode()
        depth = 0
        loader = Loader(text)
        while loader.check_event():
            event = loader.get_event()
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                line = event.start_mark.line + 1
                raise TaskSpecError([f"{path}:{line}: nested too deeply; expected {MAX_DEPTH} levels"])
            if isinstance(event, yaml.AliasEvent):
                problems.add([], "aliases (*name) are not allowed; write the value again", event.start_mark.line + 1)
        problems.stop()
        root = yaml.compose(text, Loader=Loader)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TaskSpecError([f"{path}:{line}: expected UTF-8, got byte {data[error.start]:#04x}"]) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if error.context == "while scanning a simple key":
            mark = error.context_mark  # the key; the missing colon shows only on the next line
        line = mark.line + 1 if mark else 1
        problem = error.problem or error.context
        advice = f"; {_YAML_ADVICE[problem]}" if problem in _YAML_ADVICE else ""
        raise TaskSpecError([f"{path}:{line}: not YAML: {problem}{advice}"]) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = f"unacceptable character {error.character:#04x}; remove it, or write it as an escape in double quotes"
        raise TaskSpecError([f"{path}:{line}: not YAML: {problem}"]) from error
    except ValueError as error:  # PyYAML's own, of a version of too many digits
        raise TaskSpecError([f"{path}:{loader.line + 1}: not YAML: {error}"]) from error
    if root is None:
        return None, {}
    lines = {}
    value = _construct(root, "", lines, problems)
    problems.stop()
    return value, lines


def _construct(node, key, lines, problems):
    lines.setdefault(key, node.start_mark.line + 1)
    if not isinstance(node, yaml.ScalarNode) and node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
        message = f"tags such as {node.tag!r} are not allowed; write a plain value"
        problems.add([key], message, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        value = {}
        for name_node, item in node.value:
            line = name_node.start_mark.line + 1
            if not isinstance(name_node, yaml.ScalarNode):
                problems.add([key], "expected a plain key", line)
                continue
            name = name_node.value
            inner = f"{key}.{name}" if key else name
            if name in value:
                problems.add([inner], f"is there twice, first on line {lines[inner]}; remove one", line)
                continue
            lines[inner] = line
            value[name] = _construct(item, inner, lines, problems)
        return value
    if isinstance(node, yaml.SequenceNode):
        return [_construct(item, f"{key}[{index}]", lines, problems) for index, item in enumerate(node.value)]
    constructor = yaml.SafeLoader("")
    try:
        if node.tag in _NUMBERS and len(node.value) > _MAX_NUMBER_CHARS:
            raise ValueError(f"expected a number of at most {_MAX_NUMBER_CHARS} characters")
        value = constructor.construct_object(node)
        if type(value) is int and abs(value) >= 1 << 64:
            raise ValueError("expected a number of at most 64 bits")
        if not isinstance(value, _PLAIN):
            raise ValueError("expected text, a number, true or false: put it in quotes")
        return value
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        # the last two: PyYAML's, where the text is not of the type that a tag such as !!bool says
        is_told = isinstance(error, (yaml.YAMLError, ValueError))
        problem = (getattr(error, "problem", None) or error) if is_told else f"got {_shown(node.value)}; remove the tag"
        message = f"can't be read as {node.tag}: {problem}"
        problems.add([key], message, node.start_mark.line + 1)
        return None
    finally:
        constructor.dispose()


def _shown(value):
    try:
        text = json.dumps(value, ensure_ascii=False, default=str).encode(errors="backslashreplace").decode()
    except ValueError:  # a number with more digits than Python prints
        return shown(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _shown_key(key):
    text = key if key.isprintable() else ascii(key)
    return text if len(text) <= _MAX_SHOWN_KEY else text[: _MAX_SHOWN_KEY - 3] + "..."


def _advice(path, value):
    if path in ("python", "version") and isinstance(value, (int, float)) and not isinstance(value, bool):
        return "; YAML reads it as a number: put it in quotes"
    return ""


def _described(values, key, kind, problems):
    """The `kind` (Trigger, Table) under `key` in task.yaml, or None."""
    try:
        return kind.from_fields(values[key]) if key in values else None
    except FieldError as error:
        problems.add([f"{key}.{error.key.removesuffix('_ms')}"], str(error))
        return None


def _find_resources(folder, patterns, problems):
    """The paths of the files that `patterns`, pairs of a key in task.yaml and its value, match."""
    root = folder.resolve()
    found = set()
    for where, pattern in patterns:
        paths = (
            [Path(path) for path in glob.glob(pattern, root_dir=folder, recursive=True)]
            if glob.has_magic(pattern)
            else [Path(pattern)]
        )
        if not paths:
            problems.add([where], f"expected a file in {folder}, nothing matches {pattern!r}")
        for path in paths:
            whole = folder / path
            if not whole.resolve().is_relative_to(root):
                problems.add([where], f"expected a file inside the task's folder, got {str(path)!r}; copy it there")
            elif whole.is_dir():
                if not glob.has_magic(pattern):
                    problems.add([where], f"{str(path)!r} is a folder; name its files, or write {str(path)}/**")
            elif not whole.is_file():
                near = difflib.get_close_matches(path.name, [p.name for p in whole.parent.glob("*")], 1)
                advice = f"; did you mean {near[0]!r}?" if near else ""
                problems.add([where], f"expected a file in {folder}, there is no {str(path)!r}{advice}")
            else:
                found.add(whole.resolve().relative_to(root).as_posix() if ".." in path.parts else path.as_posix())
    return tuple(sorted(found))


def _check_sizes(folder, resources, problems):
    """Reports files that do not fit a bundle, before any is read."""
    total = 0
    for key, paths in resources.items():
        for path in paths:
            problem = path_problem(path.encode(errors="surrogateescape"))
            if problem:
                problems.add([key], f"{path!r}: {problem}; rename it")
            size = (folder / path).stat().st_size
            total += size
            if size <= _MAX_POINTER_BYTES and (folder / path).read_bytes().startswith(_LFS_POINTER):
                problems.add(
                    [key],
                    f"{path!r} is a pointer of Git LFS, not the file; fetch it: git lfs pull, or keep it in git",
                )
            if size > MAX_BYTES:
                problems.add([key], f"{path!r} has {size:,} bytes, a bundle holds at most {MAX_BYTES:,}; {_ELSEWHERE}")
    count = sum(map(len, resources.values()))
    if count > MAX_ENTRIES:
        problems.add(["files"], f"{count:,} files match, a bundle holds at most {MAX_ENTRIES:,}; {_ELSEWHERE}")
    if not problems.found and total > MAX_BYTES:
        problems.add(["files"], f"{total:,} bytes in all, a bundle holds at most {MAX_BYTES:,}; {_ELSEWHERE}")


def _check_entry(folder, module, function, problems):
    found = find_module(folder, module)
    if found is None or found[0].is_dir():
        modules = [path.stem for path in folder.glob("*.py")]
        near = difflib.get_close_matches(module, modules, 1)
        advice = f"did you mean {near[0]!r}?" if near else f"add {module.replace('.', '/')}.py, or name another module"
        problems.add(["entry"], f"there is no module {module!r} in {folder}; {advice}")
        return
    path = found[0]
    try:
        tree = parse(path.read_bytes(), str(path))
    except CompileError:
        return  # the compiler reports it, with the line
    names, star = _top_level_names(tree.body)
    if function not in names and not star:
        near = difflib.get_close_matches(function, names, 1)
        advice = f"did you mean {near[0]!r}?" if near else f"define `def {function}(value):` in it, or name another one"
        problems.add(["entry"], f"{path} has no function {function!r}; {advice}")
        return
    node = names.get(function)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.decorator_list:
        if _yields(node):
            problems.add(
                ["entry"],
                f"{path}:{node.lineno}: expected a function that returns one value, got the "
                f"generator {function!r}; return a list",
            )
        given, needed = _positional(node.args)
        if not given >= 1 >= needed or any(default is None for default in node.args.kw_defaults):
            problems.add(
                ["entry"],
                f"{path}:{node.lineno}: expected a function that takes the caller's one value, "
                f"such as `def {function}(value):`, got `def {function}({ast.unparse(node.args)}):`",
            )
    elif isinstance(node, ast.ClassDef):
        problems.add(["entry"], f"{path}:{node.lineno}: expected a function, got the class {function!r}")


def _yields(function):
    """Is the node `function` a generator function, async or not?"""
    pending = list(function.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.GeneratorExp)):
            pending += ast.iter_child_nodes(node)
    return False


def _positional(arguments):
    given = len(arguments.posonlyargs) + len(arguments.args)
    return given + (1 if arguments.vararg else 0), given - len(arguments.defaults)


def _top_level_names(body):
    """Names that a module binds outside functions and classes, with the binding node; whether it has a star import."""
    names, star, pending = {}, False, list(reversed(body))
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names[node.name] = node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                star = star or alias.name == "*"
                names[alias.asname or alias.name.partition(".")[0]] = node
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = node
        elif not isinstance(node, ast.Lambda):
            pending += reversed(list(ast.iter_child_nodes(node)))
    return names, star
