"""CPython's test package made into task folders: one folder for all of it, with an entry module for each test module.

`original(home)` is the test package as CPython ships it, `Folder` the copy that is compiled for VMs, in which imports
that a VM can't have are gaps (guest/gaps.py): they are found by the bundle compiler's own diagnostics."""

import ast
import functools
import hashlib
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from vmhost.bytecode.closure import close_over_folder
from vmhost.bytecode.offered import left_out, offered_modules

HERE = Path(__file__).resolve().parent
_BYTECODE = HERE.parent.parent / "bytecode"
_MODULE = re.compile(r"test(\.[A-Za-z_]\w*)+")
_ROUNDS = 60  # of patching: each shows what the last one's imports led to


def original(home, suite=None):
    """The folder that holds the package `test`, whole, in `home`: from the folder `suite`, or from the running Python.

    Debian packs most of the package apart from the standard library (libpython3.14-testsuite), so the two are merged.
    """
    found = home / "original"
    if not (found / "complete").exists():
        own = Path(sysconfig.get_path("stdlib")) / "test"
        folders = [own, *([Path(suite)] if suite else [])]
        if not any((folder / "test_dict.py").exists() for folder in folders):
            raise FileNotFoundError(
                f"no test_dict.py in {' or '.join(map(str, folders))}: CPython's tests are not installed with this"
                " Python; name the folder that holds them with --suite (Debian: package libpython3.14-testsuite)"
            )
        shutil.rmtree(found, ignore_errors=True)
        for folder in folders:
            shutil.copytree(folder, found / "test", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        (found / "complete").touch()
    return found


class Folder:
    """The task folder `home`/tasks. Bundles made from it may read and write `writable`, and read `tests`.

    It is kept from one run to the next while all that it is made of stays the same.
    """

    def __init__(self, home, tests, writable):
        self.path = home / "tasks"
        self._tests, self._writable = tests, writable
        stamp = home / "tasks.stamp"
        made_of = _digest([*(HERE / "guest").glob("*.py"), Path(__file__), *_BYTECODE.glob("*.py"), tests / "complete"])
        if stamp.exists() and stamp.read_text() == made_of:
            return
        stamp.unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(tests / "test", self.path / "test")
        for path in (HERE / "guest").glob("*.py"):
            shutil.copy(path, self.path)
        for path in (self.path / "test").rglob("*.py"):
            _address(path)
        stamp.write_text(made_of)

    def compile(self, module, out):
        """Compiles the test module `module` (`test_dict`) with the project's own command into the bundle `out`.

        Returns None, or what is wrong.
        """
        name = module.replace(".", "_").lower()
        parts = module.split(".")
        outers = [".".join(parts[:length]) for length in range(1, len(parts))]
        (self.path / f"main_{name}.py").write_text(
            "\n".join(
                [
                    "import runner",
                    "import stand_ins",
                    "",
                    "",
                    "def run(request):",
                    '    stand_ins.place(request["home"])',
                    "    stand_ins.install()",
                    '    runner.prepare(request["folder"], request["home"])',
                    *(
                        f"    import test.{outer}; test.{outer}.__file__ = place_of(test.{outer}.__file__)"
                        for outer in outers
                    ),
                    f"    import test.{module}",
                    f"    return runner.run(test.{module}, request)",
                    "",
                    "",
                    "def needs():        # never called: so that the bundle holds them",
                    *(f"    import {needed}" for needed in (f"test.{module}", *self._named_in(module))),
                    "",
                ]
            ),
            encoding="utf-8",
        )
        problem, sources = self._leave_gaps(f"main_{name}")
        if problem:
            return problem
        # the sources go along as files, so that tracebacks and inspect show them
        files = sorted(str(Path(source.path).relative_to(self.path)) for source in sources.values() if source.text)
        (self.path / "task.yaml").write_text(
            f"name: {name.replace('_', '-')}\nversion: 1.0.0\nentry: main_{name}:run\nfiles: {json.dumps(files)}\n"
            f'python: "{sys.version_info[0]}.{sys.version_info[1]}"\n'
            "limits: {memory: 512 MiB, wall_time: 600 s, stack: 8 MiB, concurrency: 1}\n"
            f"permissions: {{read: ['{self._writable}/**', '{self._tests}/**'], write: ['{self._writable}/**'], "
            "net: ['127.0.0.1:*', 'localhost:*'], listen: ['127.0.0.1:*', 'localhost:*']}\n",
            encoding="utf-8",
        )
        done = subprocess.run(
            [sys.executable, HERE.parent.parent / "tools" / "compile_cloud.py", self.path, "-o", out],
            capture_output=True,
            text=True,
            check=False,
        )
        return None if done.returncode == 0 else done.stderr.strip().splitlines()[-1]

    def _named_in(self, module):
        """Modules of the package `test` that the test module names in texts: it imports them by name."""
        path = self.path / "test" / Path(*module.split("."))
        source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_bytes()
        named = {
            node.value
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _MODULE.fullmatch(node.value)
        }
        return sorted(name for name in named if (self.path / Path(*name.split("."))).with_suffix(".py").exists())

    def _leave_gaps(self, entry):
        for _ in range(_ROUNDS):
            closure = close_over_folder(self.path, entry)
            loading = [warning for warning in closure.warnings if _loads_tests(self.path / warning.file, warning.line)]
            errors = [*closure.errors, *loading]
            if not errors:
                return None, closure.sources
            by_file = {}
            for error in errors:
                by_file.setdefault(error.file, []).append(error)
            for file, found in by_file.items():
                if not _patch(self.path / file, found):
                    return str(found[0]), {}
        return f"imports of {entry} still lead on after {_ROUNDS} rounds", {}


def _digest(paths):
    return hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in sorted(paths))).hexdigest()


def _address(path):
    """Has the module in `path` look for files beside it where CPython's tests lie: its `__file__` is a name in the
    bundle."""
    try:
        text = path.read_text(encoding="utf-8")
        if "__file__" not in text:
            return
        nodes = list(ast.walk(ast.parse(text)))
        names = [
            node
            for node in nodes
            if isinstance(node, ast.Name) and node.id == "__file__" and isinstance(node.ctx, ast.Load)
        ]
        landmarks = [
            (node, alias.asname)
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.name == "__file__" and alias.asname
        ]
    except UnicodeDecodeError, SyntaxError, ValueError:
        return  # files that are wrong on purpose
    lines = text.encode().splitlines(keepends=True)
    for node, name in landmarks:
        line = lines[node.end_lineno - 1]
        lines[node.end_lineno - 1] = b"%s; %s = place_of(%s)%s" % (
            line[: node.end_col_offset],
            name.encode(),
            name.encode(),
            line[node.end_col_offset :],
        )
    for node in sorted(names, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = line[: node.col_offset] + b"place_of(__file__)" + line[node.end_col_offset :]
    path.write_bytes(b"".join(lines))


def _loads_tests(path, line):
    """Is it an import that runs while the module is imported or asked which tests it has, and that nothing guards?"""
    return line in _loading_lines(path, path.stat().st_mtime_ns)


@functools.cache
def _loading_lines(path, _changed):
    lines, pending = set(), [ast.parse(path.read_bytes())]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            lines.add(node.lineno)
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        if not isinstance(node, ast.Try) and (not is_function or getattr(node, "name", "") == "load_tests"):
            pending += ast.iter_child_nodes(node)
    return lines


def _patch(path, diagnostics):
    """Puts gaps where the imports stand that `diagnostics` name; False if one of them is no import."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (SyntaxError, UnicodeDecodeError) as error:  # wrong on purpose: importing it shall fail
        path.write_text(f"raise SyntaxError({str(error)!r})\n", encoding="utf-8")
        return True
    inside = {}
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            if getattr(function, "name", "") != "load_tests":
                inside.update(dict.fromkeys(ast.walk(function)))
    imports = {node.lineno: node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))}
    lines = text.splitlines(keepends=True)
    wanted = {}
    for diagnostic in diagnostics:
        wanted.setdefault(diagnostic.line, []).append(diagnostic.message)
    for line, messages in sorted(wanted.items(), reverse=True):
        node = imports.get(line)
        if node is None:
            return False
        reason = messages[0].partition(": ")[2]
        good, bad = [], []
        for alias in node.names:
            (bad if _is_refused(node, alias, messages) else good).append(alias)
        parts = [
            ast.unparse(
                ast.Import([alias])
                if isinstance(node, ast.Import)
                else ast.ImportFrom(node.module, [alias], node.level)
            )
            for alias in good
        ]
        if node in inside:
            parts.append(f"raise ImportError({messages[0]!r})")
        else:
            parts.append("from gaps import Gap")
            for alias in bad:
                top = alias.name.partition(".")[0]
                if isinstance(node, ast.Import) and not alias.asname and top != alias.name and _is_offered(top):
                    parts.append(f"import {top}")
                    continue
                whole = alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
                name = alias.asname or (top if isinstance(node, ast.Import) else alias.name)
                if name != "*":
                    parts.append(f"{name} = Gap({whole!r}, {reason!r})")
        first, last = node.lineno - 1, node.end_lineno - 1
        raw_first, raw_last = lines[first].encode(), lines[last].encode()
        lines[first : last + 1] = [
            raw_first[: node.col_offset].decode()
            + "; ".join(parts)
            + "\n" * (last - first)
            + raw_last[node.end_col_offset :].decode()
        ]
    path.write_text("".join(lines), encoding="utf-8")
    return True


def _is_refused(node, alias, messages):
    if isinstance(node, ast.Import):
        return any(message.startswith(f"import {alias.name}:") for message in messages)
    return any(alias.name in message.partition(":")[0].rpartition("import ")[2].split(", ") for message in messages)


def _is_offered(name):
    return name in offered_modules() and left_out(name) is None
