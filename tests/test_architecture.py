"""The arrows between rooms, as docs/architecture.md draws them: every import of every source file, read and held against them."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = {"vmhost", "tools", "tasks", "bench", "tests"}

# What all of the host stands on.
BENEATH = {f"vmhost.{name}" for name in ("bytecode", "engine", "errors", "future", "isolation", "limits", "statistics", "stdlib")}
# What lies in a folder may import these packages of ours, and no other. The first folder that holds a file decides.
ROOMS = {
    "vmhost/guest": {"vmhost.guest"},
    "vmhost/isolation": {"vmhost.isolation"},
    "vmhost/stdlib/overlays": {"vmhost.guest"},
    "vmhost/stdlib": {"vmhost.stdlib", "vmhost.bytecode"},
    "vmhost/lines": {"vmhost.lines", "vmhost.bytecode", "vmhost.errors"},
    "vmhost/runtime": {*BENEATH, "vmhost.runtime", "vmhost.task"},
    "vmhost/image/device": {"vmhost"},
    "vmhost/image": {*BENEATH, "vmhost.image", "vmhost.runtime.system_bundle"},
    "vmhost": {"vmhost"},
    "bytecode": {"vmhost.bytecode"},
    "engine": {"vmhost.engine"},
    "tools": {"vmhost.bytecode"},
    "tasks": {"tasks", "vmhost"},
    "bench": {"bench", "tasks", "vmhost", "tests.engine.op_cases"},
}
# Within vmhost a module imports none that stands after it here.
STACK = ["vmhost.isolation", "vmhost.runtime.pool", "vmhost.runtime.scheduler", "vmhost.runtime.service", "vmhost.host", "vmhost.executor", "vmhost.cli"]
# What a VM itself offers to the guest runtime: made by vmhost/isolation, known to no other Python.
IN_EVERY_VM = {"_vmhost"}
# What only a device image has: `vmhost/image`.
IN_EVERY_IMAGE = {"_vmrun", "vmrun_commands"}
# Dependencies that callers use with vmhost: their arrays cross the wall by the buffer protocol, without an import of ours.
FOR_CALLERS = {"numpy"}
# PyPI's name of what is imported under another one.
DISTRIBUTIONS = {"yaml": "pyyaml", "onnx_ir": "onnx-ir"}


def sources():
    return sorted(path.relative_to(ROOT) for room in ROOMS if "/" not in room for path in (ROOT / room).rglob("*.py"))


def room_of(path):
    return next(room for room in ROOMS if path.is_relative_to(room))


def module_of(path):
    """The dotted name under which the source is imported: `bytecode/` and `engine/` lie in `vmhost` by a link."""
    parts = path.with_suffix("").parts
    return ".".join(("vmhost", *parts) if parts[0] in ("bytecode", "engine") else parts)


def imported_modules(path, text):
    """Dotted names of all that the source imports, at any depth; `from a import b` counts as a.b."""
    package = module_of(path).split(".")[:-1]
    for node in ast.walk(ast.parse(text, str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[:len(package) - node.level + 1] if node.level else [])
            module = ".".join(filter(None, (base, node.module)))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def inside(module, packages):
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def wrong_arrows(path, text):
    """Sentences about what the source may not import."""
    room = room_of(path)
    for module in imported_modules(path, text):
        if module.partition(".")[0] in OURS and not inside(module, ROOMS[room]):
            yield f"{path} imports {module}; {room} may import {', '.join(sorted(ROOMS[room]))} only"
    here = module_of(path)
    height = next((level for level, member in enumerate(STACK) if inside(here, [member])), None)
    if height is not None:
        for module in imported_modules(path, text):
            if inside(module, STACK[height + 1:]):
                yield f"{path} imports {module}, which stands above it"


def foreign(path, text):
    """Top-level names that are neither ours nor the standard library's."""
    beside = {other.stem for other in (ROOT / path).parent.glob("*.py")}
    names = {module.partition(".")[0] for module in imported_modules(path, text)}
    return names - OURS - set(sys.stdlib_module_names) - IN_EVERY_VM - IN_EVERY_IMAGE - (beside if path.is_relative_to("tasks") else set())


@pytest.mark.parametrize("path", sources(), ids=str)
def test_imports_follow_the_arrows(path):
    assert list(wrong_arrows(path, (ROOT / path).read_text())) == []


def test_the_guest_imports_the_standard_library_only():
    found = {str(path): names for path in sources() if room_of(path) == "vmhost/guest"
             and (names := foreign(path, (ROOT / path).read_text()))}
    assert found == {}


def test_what_the_packages_import_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared, extra = ({re.match(r"[\w-]+", line)[0].lower() for line in lines}
                       for lines in (project["dependencies"], [*extras["models"], *extras["bench"]]))
    imported = set()
    for path in sources():
        if path.parts[0] in ("vmhost", "bytecode", "engine"):
            imported |= {DISTRIBUTIONS.get(name, name) for name in foreign(path, (ROOT / path).read_text())}
    assert imported - declared - extra == set(), "imported, but `pip install .` would not bring it"
    assert declared - imported - FOR_CALLERS == set(), "declared, but imported nowhere"


@pytest.mark.parametrize(("path", "text"), [
    ("bytecode/format.py", "import vmhost.host"),
    ("vmhost/guest/boot.py", "from vmhost import host"),
    ("vmhost/guest/boot.py", "from .. import errors"),
    ("bytecode/format.py", "from vmhost import engine"),
    ("engine/models.py", "from ..bytecode import format"),
    ("vmhost/isolation/vm.py", "from vmhost.bytecode.format import read_bundle"),
    ("vmhost/runtime/pool.py", "def late():\n    import vmhost.runtime.scheduler"),
    ("vmhost/isolation/vm.py", "from vmhost.runtime.pool import Pool"),
    ("vmhost/runtime/service.py", "from vmhost.host import Host"),
    ("vmhost/stdlib/build.py", "from vmhost import engine"),
    ("vmhost/task.py", "import tests.vmhost"),
    ("tools/compile_cloud.py", "import vmhost"),
])
def test_a_wrong_arrow_is_found(path, text):
    assert list(wrong_arrows(Path(path), text)) != []
