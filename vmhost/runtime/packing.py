"""Makes a Luggage: finds what a module imports, compiles all of it, and collects what its packages need besides.

Packages compile texts while they are imported: these are recorded in a separate process, once for each state of the
sources, and cached in the user's cache folder.
"""

import ast
import logging
import os
import re
import time
from collections import Counter
from pathlib import Path

from vmhost.bytecode.closure import closure_of_module, is_installed
from vmhost.bytecode.compiler import code_of
from vmhost.bytecode.format import Module
from vmhost.bytecode.inert import table
from vmhost.bytecode.packages import files_of, packages_in
from vmhost.bytecode.recording import Program, Recorded, read_record, recorded_imports
from vmhost.bytecode.texts import absence, deferrals
from vmhost.runtime import program_packages
from vmhost.runtime.kept_luggage import Luggage, Packed, digest_of, state_of_packages
from vmhost.runtime.working_folder import absolute

# Replaces, in a VM, a name that its module cannot import there.
_GAP = "__import__('vmhost.guest.gaps', fromlist=['Gap']).Gap"
_COMPILES = re.compile(
    rb"(?:(?<![.\w])|builtins\.)(?:exec|eval|compile)\b|\bast\b|\b(?:getsource(?:lines)?|findsource)\b"
)
_SLOW_S = 1.0
_log = logging.getLogger("vmhost")


def pack(source, roots, packages, is_own, kept):
    """The Packed of the ModuleSource and of what it imports from the folders `roots`; `packages` replaces all that is
    installed, or is None. `kept`: Compilations, or None. BytecodeError."""
    begin = time.monotonic()
    data, gap = program_packages.locked_data(packages), _GAP if is_own else None
    closure = closure_of_module(
        source.name, source.text, roots, source.path, source.is_package, gap, data, is_own, kept, defers=True
    )
    modules, texts, codes = {}, {}, {}
    for name, each in closure.sources.items():
        code, of_code, codes[name] = code_of(each.text, each.path, kept=kept)
        modules[name] = Module(each.is_package, code)
        texts.update(of_code)
    sites = _sites(closure)
    files, linked, described = _files(sites)
    recorded, is_final = _of_imports(closure, source.name, tuple(sites), kept)
    records, script = [recorded], program_packages.script()
    others = {path: digest_of(path) for path in described}
    if script is not None and not os.environ.get(program_packages.IN_RECORDER):
        path = program_packages.record_path(script)
        others[str(path)] = digest_of(path)
        records.append(read_record(path))
    for record in records:
        texts |= record.texts
        files |= record.files(closure.sources)
    texts |= dict(map(absence, closure.absent)) | deferrals(closure.deferred)
    texts |= dict(_inert_table(module, kept) for module in closure.inert)
    luggage = Luggage(
        source.name,
        modules,
        texts,
        _gaps(closure.sources[source.name].text),
        files,
        {each.name: each.reason for each in closure.absent},
        closure.later,
        (roots, packages),
        frozenset(closure.deferred),
    )
    states = {site: state_of_packages(site) for site in sites}
    _tell_slow(source, closure, time.monotonic() - begin)
    return Packed(luggage, codes, closure.found, others, states, linked, is_final)


def _inert_table(module, kept):
    key = kept and kept.key("inert", module)
    found = kept and kept.get(key)
    if found is None:
        found = table(module)  # starts a process that imports them
        if kept:
            kept.put(key, found)
    return found


def _sites(closure):
    """{folder of packages: top-level names that the Closure has of them}"""
    sites = {}
    found = [(name, each.path, each.is_package) for name, each in closure.sources.items() if is_installed(each)]
    found += [(name, *place) for name, place in closure.deferred.items() if "." not in name]
    for name, path, is_package in found:
        parts = Path(path).parts[: -name.count(".") - 1 - (is_package and path.endswith(".py"))]
        sites.setdefault(str(Path(*parts)), set()).add(name.partition(".")[0])
    return sites


def _files(sites):
    """The files of the packages: path to bytes; {path: where it lies} of those that come along unchanged; and where the
    others lie."""
    files, linked, described = {}, {}, []
    for site, tops in sites.items():
        for package in packages_in(site, tops):
            for path, data in files_of(package, site).items():
                first = path.partition("/")[0]
                if first.endswith(".dist-info"):
                    described.append(str(Path(site, path)))
                elif first in tops:
                    linked[path] = str(Path(site, path))
                else:
                    continue
                files[path] = data
    return files, linked, described


def _of_imports(closure, module, sites, kept):
    """What is Recorded of the imports of `module`, and whether it is final."""
    package_sources = [source for source in closure.sources.values() if is_installed(source)]
    if not sites or os.environ.get(program_packages.IN_RECORDER):
        return Recorded(), True
    if not any(_COMPILES.search(source.text) for source in package_sources):
        return Recorded(), True
    texts = {name: source.text for name, source in closure.sources.items()}
    program = Program(
        entry=module,
        roots=sites,
        modules=tuple(source.name for source in package_sources),
        absent={
            name: each.reason
            for each in closure.absent
            if not (each.names and closure.deferred)  # what is deferred may name these
            for name in each.names or (each.name,)
        },
        replaced=closure.replaced,
        path=None,
        sources=tuple(
            (source.name, source.text, source.path, source.is_package)
            for source in closure.sources.values()
            if not is_installed(source)
        ),
        folder=absolute(),
        environment={program_packages.IN_RECORDER: "1"},
    )
    found, problems = recorded_imports(program, texts, kept)
    for problem in problems:
        _log.warning("%s", problem)
    return found, not problems


def _tell_slow(source, closure, took_s):
    """Logs which import cost the time where it was much."""
    if took_s < _SLOW_S:
        return
    sizes = Counter()
    for name, each in closure.sources.items():
        sizes[name.partition(".")[0]] += len(each.text)
    tops = [f"{name} ({size >> 10:,} KiB)" for name, size in sizes.most_common(3) if name != source.name]
    _log.warning(
        "%s: compiling it for VMs took %.1f s, with %d modules that it imports, most of them of %s; `import x` at the"
        " top of the program's own modules waits until something uses it, where `from x import y` does not",
        source.path,
        took_s,
        len(closure.sources) - 1,
        ", ".join(tops),
    )


def _gaps(text):
    """The names that a module's text binds to gaps, or derives from them at top level, and the gaps' reasons."""
    if _GAP.encode() not in text:
        return {}
    tree = ast.parse(text)
    gaps = {
        node.targets[0].id: ast.literal_eval(node.value.args[1])
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith(f"{_GAP}(")
    }
    for statement in tree.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            sources, names = [statement.value], [target.id for target in targets if isinstance(target, ast.Name)]
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            sources, names = statement.decorator_list + getattr(statement, "bases", []), [statement.name]
        else:
            continue
        used = [
            node.id
            for part in sources
            if part is not None
            for node in ast.walk(part)
            if isinstance(node, ast.Name) and node.id in gaps
        ]
        if used:
            gaps.update(dict.fromkeys(names, gaps[used[0]]) | gaps)
    return gaps
