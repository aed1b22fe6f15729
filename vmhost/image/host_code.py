"""The host's own Python code as a bundle: the sources of a full host, except for the files in `device/`.

`device/<dotted name>.py` replaces that module. The bundle includes CPython's importer, compiled without docstrings."""

import ast
import functools
import marshal
import platform
import re
import sys
import sysconfig
from pathlib import Path

import msgpack

from vmhost import bytecode
from vmhost.bytecode.format import Manifest, Module, module_path, write_bundle
from vmhost.bytecode.source import compile_source
from vmhost.bytecode.texts import collect_texts
from vmhost.image.line_tables import without_columns
from vmhost.image.modules import imports_of
from vmhost.stdlib.splitting import compile_patterns

_DEVICE = Path(__file__).parent / "device"
_PACKAGES = {
    "vmhost": Path(__file__).parent.parent,
    "vmhost.bytecode": Path(bytecode.__file__).parent,
    "msgpack": Path(msgpack.__file__).parent,
}
# Only with the deployment platform's agent; imports of these by name are followed at any depth.
_OF_AGENT = ("vmhost.deployment", "vmhost.stores", "yaml")
# Nothing is compiled on a device, and packages with native parts are absent there.
_LEFT_OUT = (
    "vmhost.cli",
    "vmhost.cli.demonstration",
    "vmhost.compiler",
    "vmhost.executor",
    "vmhost.guest",
    "vmhost.host_tables",
    "vmhost.settings.host",
    "vmhost.settings.pages",
    "vmhost.image",
    "vmhost.runtime.interactive",
    "vmhost.runtime.travel",
    "vmhost.bytecode.closure",
    "vmhost.bytecode.compiler",
    "vmhost.bytecode.source",
    "vmhost.bytecode.spec",
    "vmhost.stdlib",
    "vmhost.task_models",
    "vmhost.bytecode.texts",
    "vmhost.baseline",
    "vmhost.masking",
    "vmhost.runtime.crash_notes",
    "vmhost.runtime.recorder",
    "vmhost.deployment.cloud",
    "vmhost.deployment.demonstration",
    "vmhost.operations",
    "msgpack._cmsgpack",
    "yaml.cyaml",
)
# Imported by a computed name.
_BY_NAME = (f"vmhost.bytecode.opcodes_{sys.version_info.major}_{sys.version_info.minor}",)
_IMPORTER = {"_frozen_importlib": "importlib._bootstrap", "_frozen_importlib_external": "importlib._bootstrap_external"}


@functools.cache
def host_code(*, agent=False, yaml=False):
    """(bytes of the bundle, names that its code imports from the standard library, those that its agent imports).

    `agent`: with the deployment platform's agent; `yaml`: with a YAML reader."""
    sources, modules, texts, waiting = _sources(agent, yaml), {}, {}, ["vmrun", *_BY_NAME]
    foreign, of_agent = set(), set()
    while waiting:
        name = waiting.pop()
        if name in modules:
            continue
        if name not in sources:
            foreign.add(name)
            continue
        path, is_package = sources[name]
        source = path.read_bytes() if path.is_file() else b""  # namespace package
        code = without_columns(
            compile_source(
                _without_words(_without_patterns(source)),
                f"host/{module_path(name, is_package)}.py",
                str(path),
                optimize=2,
            )
        )
        modules[name] = Module(is_package, code)
        texts |= collect_texts(source)
        parents = [name.rsplit(".", count)[0] for count in range(1, name.count(".") + 1)]
        imported = [imported for imported, _ in imports_of(marshal.loads(code), name, is_package)]
        waiting += parents + imported
        if f"{name}.".startswith(tuple(f"{part}." for part in _OF_AGENT)):
            of_agent.update(imported)
    for name, module in _IMPORTER.items():
        source = Path(sysconfig.get_path("stdlib"), *module.split(".")).with_suffix(".py").read_bytes()
        modules[name] = Module(False, without_columns(compile_source(source, f"<frozen {module}>", module, optimize=2)))
    version = platform.python_version()
    manifest = Manifest(name="host", version=version, kind="stdlib", exact_python=version, optimize=2)
    return write_bundle(manifest, modules, texts=texts), frozenset(foreign), frozenset(of_agent & foreign)


def _without_patterns(source):
    """`source` with its regular expressions compiled in advance, and without `import re` if nothing else needs it."""
    text = compile_patterns(source.decode())
    if not re.search(r"\bre\.(?!compile\()", text) and "re.compile(" not in text:
        text = re.sub(r"^import re$", "", text, flags=re.MULTILINE)
    return text.encode()


def _without_words(source):
    """`source` without the words of its settings, which only pages and help show."""
    if b"setting(" not in source:
        return source
    lines = source.splitlines(keepends=True)
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and len(node.args) > 1)
    words = [node.args[1] for node in calls if isinstance(node.func, ast.Name) and node.func.id == "setting"]
    for each in sorted(words, key=lambda each: (each.lineno, each.col_offset), reverse=True):
        first, last = each.lineno - 1, each.end_lineno - 1
        rest = lines[last][each.end_col_offset :]
        lines[first : last + 1] = [lines[first][: each.col_offset] + b'""' + b"\n" * (last - first) + rest]
    return b"".join(lines)


def _sources(agent, yaml):
    """Dotted name to (path, whether it is a package) of everything that may be on a device."""
    sources, packages = {}, dict(_PACKAGES)
    left_out = _LEFT_OUT if agent else (*_LEFT_OUT, *_OF_AGENT)
    if yaml:
        import yaml as package

        packages["yaml"] = Path(package.__file__).parent
    for package, folder in packages.items():
        for path in sorted(folder.rglob("*.py")):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            is_package = parts[-1] == "__init__"
            sources[".".join(parts[:-1] if is_package else parts)] = (path, is_package)
    for name in [name for name in sources if "." in name]:
        sources.setdefault(name.rpartition(".")[0], (packages[name.partition(".")[0]] / "__init__.py.absent", True))
    sources = {
        name: found for name, found in sources.items() if not any(f"{name}.".startswith(f"{out}.") for out in left_out)
    }
    sources.update((path.stem, (path, False)) for path in _DEVICE.glob("*.py"))
    return sources
