"""One package's suite made into a task: its tests beside the packages that they need, and the bundle of all that."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tokenize
from pathlib import Path

from vmhost.bytecode.compiler import compile_task
from vmhost.bytecode.packages import Requirements, installed
from vmhost.bytecode.spec import read_task

HERE = Path(__file__).resolve().parent
_FILE_SECONDS, _TEXT = 1800, 3000
_NOT_TESTED = {"__main__", "setup"}


class Suite:
    """The suite `name` of suites.toml in the folder `home`: `root` holds the archive as its makers packed it."""

    def __init__(self, name, described, home):
        self.name, self._described = name, described
        self.archive, self.sha256 = described["archive"], described["sha256"]
        self.home = home / name
        self.root = self.home / "root" / described.get("folder", described["archive"].removesuffix(".tar.gz"))
        self.writable = self.home / "writable"
        self.options = described.get("options", [])
        self.bundle = self.home / "suite.vmb"
        self._site = self.home / "site-packages"
        self._task = self.home / "task"

    def unpack(self, archive):
        """Puts the archive's files in place."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.writable.mkdir(parents=True)
        with tarfile.open(archive) as packed:
            packed.extractall(self.root.parent, filter="data")
        if not _has_settings(self.root):
            (self.root / "pytest.ini").write_text("[pytest]\n")  # else pytest takes those of a folder above

    def files(self):
        """The test files, as paths below `root`."""
        found = []
        for tests in self._described["tests"]:
            found += [path for path in (self.root / tests).rglob("*.py") if _is_test_file(path)]
        return sorted(str(path.relative_to(self.root)) for path in found)

    def request(self, files, processes):
        """The files that guest/suite.py runs."""
        return {
            "root": str(self.root),
            "writable": str(self.writable),
            "files": files,
            "options": self.options,
            "marks": self._described.get("marks", []),
            "processes": processes,
            "environment": self._environment(),
        }

    def _environment(self):
        wanted = self._described.get("environment", {})
        return {name: value.format(root=self.root) for name, value in wanted.items()}

    def prepare(self):
        """Makes the task's folder and its packages, with the tests among them."""
        spec = read_task(HERE / "environment")
        shutil.rmtree(self._site, ignore_errors=True)
        shutil.rmtree(self._task, ignore_errors=True)
        shutil.copytree(installed(Requirements.of_task(spec)), self._site)
        modules = set()
        for tests in self._described["tests"]:
            for path in sorted((self.root / tests).rglob("*.py")):
                if path.stem not in _NOT_TESTED:
                    modules.add(self._place(path))
        for package in ("_pytest", "pytest", "pluggy", *self._described.get("whole", [])):
            modules |= _modules_of(self._site, package)
        modules |= {"_hypothesis_pytestplugin"} & set(self.options)
        shutil.copy(HERE / "guest" / "suite.py", self._site)
        self._task.mkdir()
        (self._task / "main.py").write_text(
            "from suite import run\n\n\ndef needs():  # never called: so that the bundle holds them\n"
            + "".join(f"    import {name}\n" for name in sorted(modules))
        )
        resources = [self._copy_resources(self.root / folder) for folder in self._described.get("resources", [])]
        (self._task / "script.py").write_text(
            "import json, os\nimport suite\n\n"
            "with open(os.environ['SUITE_REQUEST']) as file:\n    answer = suite.run(json.load(file))\n"
            "with open(os.environ['SUITE_ANSWER'], 'w') as file:\n    json.dump(answer, file)\n"
        )
        read = json.dumps([f"{self.root}/**", f"{self.writable}/**", "/dev/null", "/usr/share/zoneinfo/**"])
        write = json.dumps([f"{self.writable}/**", "/dev/null"])
        (self._task / "task.yaml").write_text(
            f"name: suite-{self.name}\nversion: 1.0.0\nentry: main:run\n"
            f'python: "{sys.version_info[0]}.{sys.version_info[1]}"\n'
            "limits: {memory: 2 GiB, wall_time: 1800 s, stack: 8 MiB, concurrency: 1}\n"
            f"permissions: {{read: {read}, write: {write}}}\nfiles: {json.dumps(resources)}\n"
        )

    def run_plain(self):
        """Runs the tests in plain Python, with nothing else installed, and returns the answer."""
        request, answer = self.home / "request.json", self.home / "plain.json"
        request.write_text(json.dumps(self.request(self.files(), {})))
        environment = {**os.environ, **self._environment(), "PYTHONPATH": str(self._site), "PYTHONHASHSEED": "0"}
        environment |= {"SUITE_REQUEST": str(request), "SUITE_ANSWER": str(answer)}
        command = [sys.executable, "-S", "-P", str(self._task / "script.py")]
        answer.unlink(missing_ok=True)
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True)
        if not answer.exists():
            output = done.stderr[-2000:]
            raise RuntimeError(f"{self.name}: pytest in plain Python ended with {done.returncode}: {output}")
        return json.loads(answer.read_text())

    def compile(self, processes):
        """Runs the tests once more, recorded, and writes the bundle with what they compiled. `processes` is of the
        plain answer."""
        request, answer = self.home / "request.json", self.home / "recorded.json"
        request.write_text(json.dumps(self.request(self.files(), processes)))
        os.environ |= self._environment() | {"SUITE_REQUEST": str(request), "SUITE_ANSWER": str(answer)}
        compiled = compile_task(self._task, script=self._task / "script.py", packages=self._site)
        self.bundle.write_bytes(compiled.to_bytes())

    def run_in_vms(self, host, processes):
        """Runs the tests in VMs of the host, file by file, and returns {id: [outcome, text]}; a file that lost its VM
        has its own name for an id."""
        import vmhost

        task, outcomes = host.load(self.bundle), {}
        try:
            for file in self.files():
                try:
                    outcomes |= task(self.request([file], processes), timeout_s=_FILE_SECONDS)["outcomes"]
                except vmhost.VMHostError as error:
                    outcomes[file] = ["failed", f"{type(error).__name__}: {error}"[-_TEXT:]]
        finally:
            host.unload(task.name)
        return outcomes

    def _copy_resources(self, package):
        """Copies what a package of the tests has beside its modules into the task; returns a pattern of these files."""
        relative = package.relative_to(_import_root(package))
        shutil.copytree(package, self._task / relative, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        return f"{relative}/**"

    def _place(self, path):
        """Copies a file of the tests to where pytest imports it from; returns the module's name."""
        folder = _import_root(path.parent)
        relative = path.relative_to(folder)
        target = self._site / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_addressed(path.read_text(encoding="utf-8"), path), encoding="utf-8")
        parts = relative.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _import_root(folder):
    """The folder that modules in `folder` are imported from: the first above that is no package."""
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


_SETTINGS = {"pytest.ini": "", "pyproject.toml": "[tool.pytest", "tox.ini": "[pytest]", "setup.cfg": "[tool:pytest]"}


def _has_settings(root):
    files = ((root / name, section) for name, section in _SETTINGS.items())
    return any(path.exists() and section in path.read_text(encoding="utf-8") for path, section in files)


def _is_test_file(path):
    return re.fullmatch(r"test_.*|.*_test", path.stem) is not None


def _modules_of(site, package):
    top = site / package
    if not top.is_dir():
        return {package}
    found = set()
    for path in top.rglob("*.py"):
        parts = path.relative_to(site).with_suffix("").parts
        if "tests" not in parts and parts[-1] != "__main__" and all(part.isidentifier() for part in parts):
            found.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def _addressed(text, path):
    """The text with `__file__` as the path where the tests' data lie: in a VM it is a name in the bundle."""
    if "__file__" not in text:
        return text
    lines = text.splitlines(keepends=True)
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(text).readline))):
        row, column = token.start
        line = token.type == tokenize.NAME and token.string == "__file__" and lines[row - 1]
        if line and not line[:column].endswith("."):
            lines[row - 1] = line[:column] + repr(str(path)) + line[column + len("__file__") :]
    return "".join(lines)
