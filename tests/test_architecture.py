"""Checks the dependencies between rooms that docs/architecture.md draws: every import of every source file, and every
`#include` of the C files of vmhost/isolation and engine/src."""

import ast
import functools
import os
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import vmhost
from tests.batches import each
from vmhost.stdlib.policy import POLICY

ROOT = Path(__file__).resolve().parent.parent
OURS = {"vmhost", "tools", "tasks", "bench", "tests"}


def module_parts(path):
    """The parts of a path as those of a module: `bytecode/` and `engine/` lie in `vmhost` by a link."""
    return ("vmhost", *path.parts) if path.parts[0] in ("bytecode", "engine") else path.parts


# The modules that all of the host is built on.
BENEATH = {
    f"vmhost.{name}"
    for name in (
        "baseline",
        "bytecode",
        "engine",
        "errors",
        "future",
        "isolation",
        "limits",
        "memory_lines",
        "statistics",
        "stdlib",
    )
}
# All files may import these: the names of `vmhost` itself.
PUBLIC = {f"vmhost.{name}" for name in vmhost.__all__}
# Files of a folder may import these packages of ours, and no other. The first folder that holds a file decides.
ROOMS = {
    "vmhost/guest": {"vmhost.guest"},
    "vmhost/isolation": {"vmhost.isolation"},
    "vmhost/stdlib/overlays": {"vmhost.guest"},
    "vmhost/stdlib": {"vmhost.stdlib", "vmhost.bytecode"},
    "vmhost/lines": {"vmhost.lines", "vmhost.bytecode", "vmhost.errors"},
    "vmhost/runtime": {
        *BENEATH,
        "vmhost.__version__",
        "vmhost.runtime",
        "vmhost.task",
        "vmhost.guest.kinds",
        "vmhost.guest.classes",
    },
    "vmhost/image/device": {"vmhost"},
    "vmhost/image": {*BENEATH, "vmhost.image", "vmhost.runtime.system_bundle"},
    "vmhost/settings/pages.py": {
        "vmhost.bytecode",
        "vmhost.deployment",
        "vmhost.pipeline",
        "vmhost.settings",
    },
    "vmhost/settings": {
        "vmhost.bytecode",
        "vmhost.engine.embedding",
        "vmhost.engine.optim",
        "vmhost.errors",
        "vmhost.limits",
        "vmhost.settings",
    },
    "vmhost/stores": {"vmhost.stores"},
    "vmhost/pipeline/sending.py": {*PUBLIC, "vmhost.settings.tokens", "vmhost.tunnel"},
    "vmhost/pipeline": {
        *PUBLIC,
        "vmhost.baseline",
        "vmhost.callbacks",
        "vmhost.cohorts",
        "vmhost.pipeline",
        "vmhost.stores",
        "vmhost.bytecode.either",
        "vmhost.bytecode.fields",
        "vmhost.bytecode.kinds",
        "vmhost.bytecode.quantities",
        "vmhost.bytecode.reading",
        "vmhost.guest.stream",
        "vmhost.settings",
        "vmhost.web_server",
    },
    "vmhost/training": {*PUBLIC, "vmhost.training", "vmhost.engine"},
    # An executor whose lane is a cluster.
    "vmhost/ray": {
        *PUBLIC,
        "vmhost.bytecode.fields",
        "vmhost.bytecode.format",
        "vmhost.bytecode.task_kinds",
        "vmhost.errors",
        "vmhost.executor",
        "vmhost.guest.kinds",
        "vmhost.host",
        "vmhost.isolation",
        "vmhost.limits",
        "vmhost.packed",
        "vmhost.ray",
        "vmhost.runtime",
        "vmhost.task",
    },
    "vmhost/serving": {
        *PUBLIC,
        "vmhost.bytecode.errors",
        "vmhost.bytecode.signing",
        "vmhost.engine",
        "vmhost.serving",
    },
    "vmhost/tunnel": {*PUBLIC, "vmhost.callbacks", "vmhost.tunnel", "vmhost.stores"},
    "vmhost/operations/debugging": {
        *PUBLIC,
        "vmhost.__version__",
        "vmhost.access",
        "vmhost.bytecode.errors",
        "vmhost.bytecode.signing",
        "vmhost.debug_links",
        "vmhost.lines",
        "vmhost.masking",
        "vmhost.operations",
        "vmhost.profile",
        "vmhost.stores",
    },
    "vmhost/operations": {
        *PUBLIC,
        "vmhost.__version__",
        "vmhost.addresses",
        "vmhost.baseline",
        "vmhost.lines",
        "vmhost.masking",
        "vmhost.operations",
        "vmhost.source_coverage",
        "vmhost.statistics",
        "vmhost.web_server",
    },
    "vmhost/access": {"vmhost.access", "vmhost.stores"},
    # Builds are the compiler's own; what a device runs is checked by the same code as everywhere.
    "vmhost/deployment/cloud": {
        *PUBLIC,
        "vmhost.access",
        "vmhost.bytecode",
        "vmhost.cohorts",
        "vmhost.compiler",
        "vmhost.debug_links",
        "vmhost.deployment",
        "vmhost.errors",
        "vmhost.lines",
        "vmhost.operations.debugging",
        "vmhost.operations.posting",
        "vmhost.settings",
        "vmhost.statistics",
        "vmhost.stores",
        "vmhost.web_server",
    },
    "vmhost/deployment/device": {
        *PUBLIC,
        "vmhost.__version__",
        "vmhost.bytecode.ed25519",
        "vmhost.bytecode.fields",
        "vmhost.bytecode.kinds",
        "vmhost.bytecode.reading",
        "vmhost.bytecode.signing",
        "vmhost.deployment",
        "vmhost.limits",
        "vmhost.operations.crash_reports",
        "vmhost.settings",
        "vmhost.stores",
    },
    "vmhost/deployment": {
        *PUBLIC,
        "vmhost.bytecode.archive",
        "vmhost.bytecode.ed25519",
        "vmhost.bytecode.errors",
        "vmhost.bytecode.signing",
        "vmhost.deployment",
        "vmhost.lines",
    },
    "vmhost": {"vmhost"},
    "bytecode": {"vmhost.bytecode"},
    "engine/onnx": {"vmhost.engine.onnx", "vmhost.engine.models"},  # each compile opens its result
    "engine": {"vmhost.engine"},
    "tools": {"vmhost.cli"},
    "tasks": {"tasks", "vmhost"},
    "bench": {
        "bench",
        "tasks",
        "vmhost",
        "tests.engine.op_cases",
        "tests.pipeline.features_reference",
        "tests.pipeline.flink.__main__",
    },
}
# Within vmhost a module imports none that is listed after it here.
STACK = [
    "vmhost.isolation",
    "vmhost.runtime.pool",
    "vmhost.runtime.scheduler",
    "vmhost.runtime.service",
    "vmhost.host",
    "vmhost.executor",
    "vmhost.cli",
]
# What a VM itself offers to the guest runtime: made by vmhost/isolation, and by an executor with `types`; known to no
# other Python.
IN_EVERY_VM = {"_vmhost", "__vmhost_conversions__"}
# Native modules, which import nothing of ours, by the name of each shared library in the checkout.
NATIVE = {
    ".".join((*module_parts(path.parent.relative_to(ROOT)), path.name.partition(".")[0]))
    for room in ("vmhost", "engine")
    for path in (ROOT / room).rglob("_*.so")
}
# Modules that import each other in a circle, directly or not, imports in functions counted. The list only shrinks: end
# a circle by moving what both need into a module below them.
CIRCLES = [
    {
        "vmhost.guest",
        "vmhost.guest.assembler",
        "vmhost.guest.boot",
        "vmhost.guest.codec",
        "vmhost.guest.executor",
        "vmhost.guest.expressions",
        "vmhost.guest.texts",
    },
    {"vmhost.pipeline.asynchronous", "vmhost.pipeline.pipeline"},
]
# Modules that only a device image has: `vmhost/image`.
IN_EVERY_IMAGE = {"_vmrun", "vmrun_commands"}
# Dependencies that callers use with vmhost: their arrays cross the wall by the buffer protocol, without an import of
# ours.
FOR_CALLERS = {"numpy"}
# The PyPI names of packages that are imported under another name.
DISTRIBUTIONS = {"cel_expr_python": "cel-expr-python", "yaml": "pyyaml", "onnx_ir": "onnx-ir"}


def sources():
    return sorted(path.relative_to(ROOT) for room in ROOMS if "/" not in room for path in (ROOT / room).rglob("*.py"))


def room_of(path):
    return next(room for room in ROOMS if path.is_relative_to(room))


def module_of(path):
    """The dotted name under which the source is imported; that of a package ends in `.__init__`."""
    return ".".join(module_parts(path.with_suffix("")))


@functools.cache
def imports_of(path, text):
    """All that the source imports, at any depth: (dotted name, whether it is under `if TYPE_CHECKING:`);
    `from a import b` counts as a.b."""
    package, found, left = module_of(path).split(".")[:-1], [], [(ast.parse(text, str(path)), False)]
    while left:
        node, typing = left.pop()
        if isinstance(node, ast.Import):
            found += ((alias.name, typing) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1] if node.level else [])
            module = ".".join(filter(None, (base, node.module)))
            found += ((f"{module}.{alias.name}", typing) for alias in node.names)
        else:
            body = node.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) else ()
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                    left.append((child, typing or child in body))
    return tuple(found)


def imported_modules(path, text, typing=True):
    """Dotted names of all that the source imports; `typing`: what is under `if TYPE_CHECKING:` as well."""
    return (module for module, is_typing in imports_of(path, text) if typing or not is_typing)


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
            if inside(module, STACK[height + 1 :]):
                yield f"{path} imports {module}, which stands above it"


def foreign(path, text):
    """Top-level names that are neither ours nor the standard library's."""
    beside = {other.stem for other in (ROOT / path).parent.glob("*.py")}
    names = {module.partition(".")[0] for module in imported_modules(path, text)}
    return (
        names
        - OURS
        - set(sys.stdlib_module_names)
        - IN_EVERY_VM
        - IN_EVERY_IMAGE
        - (beside if path.is_relative_to("tasks") else set())
    )


@each("path", sources(), ids=str)
def test_imports_follow_the_arrows(path):
    assert list(wrong_arrows(path, (ROOT / path).read_text())) == []


def test_the_guest_imports_the_standard_library_only():
    found = {
        str(path): names
        for path in sources()
        if room_of(path) == "vmhost/guest" and (names := foreign(path, (ROOT / path).read_text()))
    }
    assert found == {}


def test_what_the_packages_import_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    known = ("models", "bench", "cel", "cloud", "coverage", "dask", "joblib", "operations", "parquet", "ray", "web")
    known += ("tunnel-postgresql",)
    declared, extra = (
        {re.match(r"[\w-]+", line)[0].lower() for line in lines}
        for lines in (project["dependencies"], sum(map(extras.get, known), []))
    )
    imported = set()
    for path in sources():
        if path.parts[0] in ("vmhost", "bytecode", "engine"):
            imported |= {DISTRIBUTIONS.get(name, name) for name in foreign(path, (ROOT / path).read_text())}
    assert imported - declared - extra == set(), "imported, but `pip install .` would not bring it"
    assert declared - imported - FOR_CALLERS == set(), "declared, but imported nowhere"


def circles(texts):
    """The largest sets of modules that all import each other, directly or through others; `texts`: of each path."""
    names = {path: module_of(path).removesuffix(".__init__") for path in texts}
    known, arrows = NATIVE.union(names.values()), {}
    for path, text in texts.items():
        found = arrows.setdefault(names[path], set())
        for module in imported_modules(path, text, typing=False):
            while module and module not in known:
                module = module.rpartition(".")[0]
            found.add(module)
        found.discard(names[path])
    reached = {}
    for start in arrows:
        seen, left = set(), [start]
        while left:
            new = arrows.get(left.pop(), set()) - seen
            seen |= new
            left += new
        reached[start] = seen
    return {
        frozenset(other for other in others if module in reached.get(other, ()))
        for module, others in reached.items()
        if module in others
    }


def test_the_only_circles_of_modules_are_the_known_ones():
    found = circles({path: (ROOT / path).read_text() for path in sources()})
    assert found == set(map(frozenset, CIRCLES))


@each(
    ("texts", "found"),
    [
        ({"vmhost/a.py": "import vmhost.b", "vmhost/b.py": "def late():\n    from vmhost import a"}, "a b"),
        (
            {"vmhost/a.py": "from . import b", "vmhost/b.py": "from .c import x", "vmhost/c.py": "import vmhost.a"},
            "a b c",
        ),
        (
            {"vmhost/a.py": "try:\n    x()\nexcept E:\n    import vmhost.b", "vmhost/b.py": "from vmhost.a import x"},
            "a b",
        ),
        ({"vmhost/a/__init__.py": "from .b import x", "vmhost/a/b.py": "from vmhost.a import y"}, "a a.b"),
        ({"vmhost/a.py": "import vmhost.b", "vmhost/b.py": "if TYPE_CHECKING:\n    from vmhost import a"}, ""),
        ({"vmhost/a.py": "import vmhost.b", "vmhost/b.py": "import vmhost.c", "vmhost/c.py": "import vmhost.d"}, ""),
        ({"engine/__init__.py": "from .models import x", "engine/models.py": "from vmhost.engine import _array"}, ""),
    ],
)
def test_a_circle_of_modules_is_found(texts, found):
    expected = {frozenset(f"vmhost.{name}" for name in found.split())} if found else set()
    assert circles({Path(path): text for path, text in texts.items()}) == expected


@each(
    ("path", "text"),
    [
        ("bytecode/format.py", "import vmhost.host"),
        ("vmhost/guest/boot.py", "from vmhost import host"),
        ("vmhost/guest/boot.py", "from .. import errors"),
        ("bytecode/format.py", "from vmhost import engine"),
        ("bytecode/compiler.py", "def late():\n    from vmhost.engine.onnx import compiled"),
        ("engine/models.py", "from ..bytecode import format"),
        ("engine/onnx/problems.py", "from ...bytecode.errors import CompileError"),
        ("engine/onnx/writing.py", "from .. import library"),
        ("vmhost/isolation/vm.py", "from vmhost.bytecode.format import read_bundle"),
        ("vmhost/runtime/pool.py", "def late():\n    import vmhost.runtime.scheduler"),
        ("vmhost/isolation/vm.py", "from vmhost.runtime.pool import Pool"),
        ("vmhost/runtime/service.py", "from vmhost.host import Host"),
        ("vmhost/stdlib/build.py", "from vmhost import engine"),
        ("vmhost/task.py", "import tests.vmhost"),
        ("tools/compile_cloud.py", "import vmhost"),
        ("vmhost/pipeline/runs.py", "from vmhost.runtime.service import Service"),
        ("vmhost/deployment/device/agent.py", "from vmhost.bytecode.format import read_bundle"),
        ("vmhost/deployment/cloud/builds.py", "from vmhost.runtime.service import Service"),
        ("vmhost/access/accounts.py", "from vmhost.deployment import errors"),
        ("vmhost/settings/files.py", "from vmhost.host import Host"),
        ("vmhost/stores/database.py", "from vmhost.pipeline.events import Event"),
        ("vmhost/tunnel/device.py", "from vmhost.pipeline.pipeline import Pipeline"),
    ],
)
def test_a_wrong_arrow_is_found(path, text):
    assert list(wrong_arrows(Path(path), text)) != []


# ---- the C files of vmhost/isolation: `#include "room/file.h"`

ISOLATION = ROOT / "vmhost" / "isolation"
# Files of a room may include the room's own headers and those of these rooms.
C_ROOMS = {
    "lanes": set(),
    "cpython": set(),
    "memory": {"lanes", "cpython", "profile"},
    "crash": {"memory", "cpython"},
    "profile": {"lanes"},
    "wire": {"lanes", "cpython", "memory"},
    "seal": {"lanes", "cpython", "memory", "wire"},
    "sqlite": {"lanes", "cpython", "memory", "seal"},
    "vm": {"lanes", "cpython", "memory", "crash", "wire", "seal", "sqlite", "profile"},
    "python": {"lanes", "cpython", "memory", "crash", "wire", "seal", "sqlite", "vm", "profile"},
}
# Headers that are not of the core, and the files that may include them.
C_OUTSIDE = {
    "Python.h": {"cpython/compat.h"},
    "internal/": {"cpython/compat.c", "cpython/stack.c"},
    "opcode_ids.h": {"cpython/compat.c"},
    "policy_table.h": {"seal/gates.c"},
    "vme_python.h": {"wire/engine.c", "wire/wire.c"},
}
# Built and tested without CPython: lanes/, and files whose first lines say so.
NO_PYTHON = re.compile(r"\A/\*(?:(?!\*/).)*No Python in here", re.DOTALL)


def c_sources():
    """Of each C file of the core, as `room/file`, its text."""
    return {str(path.relative_to(ISOLATION)): path.read_text() for path in sorted(ISOLATION.rglob("*.[ch]"))}


def c_includes(text):
    """The headers that a file includes in quotes, and CPython's header in angle brackets."""
    return re.findall(r'^\s*#\s*include\s*(?="|<Python\.h>)["<]([^">]+)', text, re.MULTILINE)


def c_reached(name, sources):
    """All headers that a file includes, directly or through others."""
    reached, left = set(), [name]
    while left:
        for header in c_includes(sources.get(left.pop(), "")):
            if header not in reached:
                reached.add(header)
                left.append(header)
    return reached


def cycle(arrows):
    """The nodes of one cycle of `{from: {to, ...}}`, in its order; [] if there is none."""
    done = set()

    def walk(node, chain):
        if node in chain:
            return chain[chain.index(node) :]
        if node in done:
            return []
        for other in sorted(arrows.get(node, ())):
            if found := walk(other, [*chain, node]):
                return found
        done.add(node)
        return []

    return next((found for node in sorted(arrows) if (found := walk(node, []))), [])


def wrong_includes(sources):
    """Sentences about what files of the core may not include."""
    for name, text in sources.items():
        room = name.partition("/")[0]
        for header in c_includes(text):
            outside = next((allowed for begin, allowed in C_OUTSIDE.items() if header.startswith(begin)), None)
            if outside is not None:
                if name not in outside:
                    yield f"{name} includes {header}, which is for {', '.join(sorted(outside))} only"
            elif header not in sources:
                yield f'{name} includes "{header}", which is no file of the core; ours are written "room/file.h"'
            elif (other := header.partition("/")[0]) != room and other not in C_ROOMS[room]:
                allowed = ", ".join(sorted(C_ROOMS[room])) or "no other room"
                yield f"{name} includes {header}; {room} may include {allowed}"
        if (room == "lanes" or NO_PYTHON.match(text)) and "Python.h" in c_reached(name, sources):
            yield f"{name} includes Python.h, itself or through others, and is built without CPython"
    headers = {name: set(c_includes(text)) for name, text in sources.items() if name.endswith(".h")}
    if found := cycle(headers):
        yield f"headers include each other in a circle: {' -> '.join([*found, found[0]])}"


def test_includes_of_the_core_follow_the_arrows():
    assert cycle(C_ROOMS) == []
    assert list(wrong_includes(c_sources())) == []


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("lanes/new.c", '#include "cpython/compat.h"', "lanes may include no other room"),
        ("lanes/new.h", "#include <Python.h>", "lanes/new.h includes Python.h, itself or through others"),
        ("lanes/new.c", '#include "lanes/clock.h"', ""),
        (
            "crash/new.h",
            '/* Breadcrumbs. No Python in here. */\n#include "memory/overflow_py.h"',
            "built without CPython",
        ),
        ("memory/new.c", '#include "vm/vm_private.h"', "memory may include cpython, lanes"),
        ("seal/new.c", '#include "sqlite/sqlite_use.h"', "seal may include"),
        ("seal/new.c", '#include "gates.h"', 'written "room/file.h"'),
        ("vm/new.c", '#include "vme_python.h"', "for wire/engine.c, wire/wire.c only"),
        ("lanes/events.h", '#include "lanes/lane.h"', "in a circle: lanes/events.h -> lanes/lane.h -> lanes/events.h"),
    ],
)
def test_a_wrong_include_is_found(path, text, why):
    sources = c_sources() | {"memory/overflow_py.h": '#include "cpython/compat.h"', path: text}
    messages = list(wrong_includes(sources))
    assert any(why in sentence for sentence in messages) if why else messages == []


def test_a_circle_of_rooms_is_found():
    assert cycle({"vm": {"wire"}, "wire": {"memory"}, "memory": {"vm"}}) == ["memory", "vm", "wire"]


# A room of engine/src may include these others. Kernels are headers that the backends compile.
ENGINE_ROOMS = {
    "vendor": set(),
    "runtime": set(),
    "operators": {"runtime", "vendor"},
    "models": {"runtime", "operators"},
    "embedding": {"runtime"},
    "cuda": set(),
    "kernels": {"runtime", "operators", "models", "embedding"},
    "portable": {"runtime", "kernels"},
    "avx2": {"runtime", "kernels"},
    "avx512": {"runtime", "kernels"},
}


def wrong_engine_includes(sources, public):
    """Sentences about what files of the engine may not include; `public`: the names in engine/include."""
    headers = {}
    for name, text in sources.items():
        headers[name] = set()
        for header in re.findall(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', text, re.MULTILINE):
            beside = os.path.normpath(f"{os.path.dirname(name)}/{header}")
            found = beside if beside in sources else header
            room, other = name.partition("/")[0], found.partition("/")[0]
            if found in sources:
                headers[name].add(found)
                if other != room and other not in ENGINE_ROOMS[room]:
                    allowed = ", ".join(sorted(ENGINE_ROOMS[room])) or "no other"
                    yield f"{name} includes {found}; {room} may include {allowed}"
            elif header not in public:
                yield f'{name} includes "{header}", which is no file of the engine'
    if found := cycle({name: others for name, others in headers.items() if name.endswith(".h")}):
        yield f"headers include each other in a circle: {' -> '.join([*found, found[0]])}"


def engine_sources():
    folder = ROOT / "engine" / "src"
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.[ch]")}


def engine_headers():
    return {path.name for path in (ROOT / "engine" / "include").glob("*.h")}


def test_includes_of_the_engine_follow_the_arrows():
    sources = engine_sources()
    assert {name.partition("/")[0] for name in sources} == set(ENGINE_ROOMS)
    assert cycle(ENGINE_ROOMS) == []
    assert list(wrong_engine_includes(sources, engine_headers())) == []


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("runtime/new.c", '#include "operators/nest.h"', "runtime may include no other"),
        ("runtime/new.c", '#include "models/file.h"', "runtime may include no other"),
        ("runtime/new.h", '#include "../kernels/loops.h"', "includes kernels/loops.h"),
        ("operators/new.c", '#include "models/model.h"', "operators may include runtime, vendor"),
        ("models/new.c", '#include "strange.h"', "which is no file of the engine"),
        ("models/value.h", '#include "models/step.h"', "in a circle: models/step.h -> models/value.h -> models/step.h"),
    ],
)
def test_a_wrong_include_of_the_engine_is_found(path, text, why):
    messages = list(wrong_engine_includes(engine_sources() | {path: text}, engine_headers()))
    assert any(why in sentence for sentence in messages), messages


# ---- the C files of vmhost/pipeline/triggers: core/ knows no Python, python/ is how Python sees it

TRIGGERS = ROOT / "vmhost" / "pipeline" / "triggers"
TRIGGER_ROOMS = {"core": set(), "python": {"core"}}


def wrong_trigger_includes(sources):
    """Sentences about what files of the trigger engine may not include."""
    for name, text in sources.items():
        room = name.partition("/")[0]
        for header in c_includes(text):
            if header == "Python.h" and room == "python":
                continue
            if header not in sources:
                yield f"{name} includes {header}, which is no file of the trigger engine"
            elif (other := header.partition("/")[0]) != room and other not in TRIGGER_ROOMS[room]:
                allowed = ", ".join(sorted(TRIGGER_ROOMS[room])) or "no other room"
                yield f"{name} includes {header}; {room} may include {allowed}"
    headers = {name: set(c_includes(text)) for name, text in sources.items() if name.endswith(".h")}
    if found := cycle(headers):
        yield f"headers include each other in a circle: {' -> '.join([*found, found[0]])}"


def trigger_sources():
    return {path.relative_to(TRIGGERS).as_posix(): path.read_text() for path in TRIGGERS.rglob("*.[ch]")}


def test_includes_of_the_trigger_engine_follow_the_arrows():
    sources = trigger_sources()
    assert {name.partition("/")[0] for name in sources} == set(TRIGGER_ROOMS)
    assert list(wrong_trigger_includes(sources)) == []


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("core/new.c", "#include <Python.h>", "includes Python.h, which is no file of the trigger engine"),
        ("core/new.c", '#include "python/new.h"', "core may include no other room"),
        ("python/new.c", '#include "lanes/lane.h"', "which is no file of the trigger engine"),
        ("core/memory.h", '#include "core/engine.h"', "in a circle"),
    ],
)
def test_a_wrong_include_of_the_trigger_engine_is_found(path, text, why):
    messages = list(wrong_trigger_includes(trigger_sources() | {"python/new.h": "", path: text}))
    assert any(why in sentence for sentence in messages), messages


# ---- the C files of vmhost/pipeline/patterns: as above; its core shares memory and tables of the trigger engine's

PATTERNS = ROOT / "vmhost" / "pipeline" / "patterns"
SHARED_WITH_PATTERNS = {"core/memory.h", "core/table.h", "core/triggers.h"}


def test_includes_of_the_matcher_of_patterns_follow_the_arrows():
    sources = {path.relative_to(PATTERNS).as_posix(): path.read_text() for path in PATTERNS.rglob("*.[ch]")}
    shared = {name: text for name, text in trigger_sources().items() if name in SHARED_WITH_PATTERNS}
    assert {name.partition("/")[0] for name in sources} == set(TRIGGER_ROOMS)
    assert not shared.keys() & sources.keys()
    assert list(wrong_trigger_includes(sources | shared)) == []
    assert list(wrong_trigger_includes(sources | shared | {"core/new.c": "#include <Python.h>"})) != []


def gating_rows():
    """The modules of the table in gates.c that says which gates a native module has, and what is left to do with it."""
    text = (ISOLATION / "seal" / "gates.c").read_text()
    table = re.search(r"^\} gatings\[\] = \{\n(.*?)^\};", text, re.MULTILINE | re.DOTALL)
    return re.findall(r'^    \{ ?"(\w+)",', table[1], re.MULTILINE)


def test_every_gated_module_has_a_row_of_gates():
    rows = gating_rows()
    gated = {
        module
        for module, rules in POLICY.items()
        if rules.gated or any("." in name for name in rules.allowed | rules.refused)
    }
    assert gated - set(rows) == set(), "filed as gated; a VM refuses to load it without a row in gates.c"
    assert set(rows) - POLICY.keys() == set()
    assert sorted(set(rows)) == rows


def test_no_two_files_of_tests_have_one_name():
    """pytest imports them by their names alone, and says so only when the last of many has run."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_the_page_has_a_row_for_each_room():
    page = (ROOT / "docs/architecture.md").read_text()
    rooms = {
        f"`{top}/{folder.name}/`"
        for top in ("vmhost", "engine")
        for folder in (ROOT / top).iterdir()
        if (folder / "__init__.py").exists() and not folder.is_symlink()
    }
    assert len(rooms) > 20
    assert not {room for room in rooms if room not in page}
