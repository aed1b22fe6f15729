"""A task folder, or sources in memory, to a bundle.

Reproducible: the same sources and Python give the same bytes, whatever the machine, the hash seed, the folder's path or
earlier imports.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .closure import close_over_folder, is_installed
from .errors import CompileError, Diagnostic, TaskSpecError
from .format import TARGET, Manifest, Module, bundle_in_memory, module_path, write_bundle
from .inert import table
from .packages import Package, Requirements, files_of, installed, packages_in
from .recording import RECORD_NAME, Program, read_record, record, record_imports
from .source import compile_source
from .spec import TaskSpec, read_task
from .texts import absence, collect_texts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .signing import SigningKey


@dataclass(frozen=True)
class Included:
    """What the bundle includes of a required Package: the number of modules and files, and their bytes before
    packing."""

    package: Package
    modules: int
    files: int
    bytes: int


@dataclass(frozen=True)
class CompiledTask:
    """A task ready to be written. `warnings`: what fails in a VM if it runs; `savings`: by model, what compiling it
    saved (see `compile_model`); `trained`: by model, the names of its trained weights; `included`: an Included per
    required package; `absent`: the missing modules (Absent); `recorded`: the number of texts that a script compiled,
    None without one."""

    manifest: Manifest
    modules: Mapping
    files: Mapping
    texts: Mapping
    warnings: tuple
    models: Mapping
    savings: Mapping
    trained: Mapping
    included: tuple = ()
    absent: tuple = ()
    recorded: int | None = None

    def to_bytes(self, key: "SigningKey | None" = None) -> bytes:
        """The bundle's bytes, signed with the SigningKey `key` if given."""
        return write_bundle(self.manifest, self.modules, self.files, self.texts, key, self.models)


def compile_task(
    task, *, target=None, optimize=0, strict=False, script=None, compile_model=None, packages=None, with_packages=()
):
    """The CompiledTask of `task`, a folder or a TaskSpec. `vmhost.compiler.compile_folder` compiles its models, too.

    `target` overrides the Python that task.yaml names; it must be the running one. `optimize` is 0, 1 or 2, CPython's
    -O. With `strict`, warnings are errors. Texts are recorded while the file `script` runs (recording.py); without one,
    while packages are imported. `compile_model(path)` compiles a model that task.yaml names. It returns an object with
    `data`, the bytes of the model file, and `savings`, or raises CompileError. `compile_model(path, weights)` compiles
    one of which these weights are trained; its object also has `trainable`, the trainable part. `packages` is a folder
    called site-packages that replaces the packages of the task's lock file. `with_packages` are requirements beside
    those of task.yaml. TaskSpecError or CompileError with all findings.
    """
    spec = task if isinstance(task, TaskSpec) else read_task(task)
    _check_target(spec, target)
    _check_positions()
    folder = Path(packages) if packages is not None else installed(Requirements.of_task(spec, with_packages))
    packages = packages_in(folder) if folder is not None else ()
    data = [name for package in packages for name in package.data]
    named = {name: (spec.file, spec.lines[f"import[{at}]"]) for at, name in enumerate(spec.imports)}
    closure = close_over_folder(spec.folder, spec.entry_module, folder, data, named)
    modules, texts, errors, found = {}, {}, list(closure.errors), list(closure.warnings)
    unparsed = {error.file for error in errors}
    for name, source in closure.sources.items():
        if source.path in unparsed:
            continue
        filename = f"{spec.name}@{spec.version}/{module_path(name, source.is_package)}.py"
        try:
            warned = None if is_installed(source) else found  # no warnings for installed packages
            code = compile_source(source.text, filename, source.path, optimize, warned)
        except CompileError as error:
            errors += error.diagnostics
            continue
        modules[name] = Module(source.is_package, code)
        texts.update(collect_texts(source.text))
    found = sorted(set(found), key=lambda warning: (warning.file, warning.line, warning.message))
    models, savings, trainable = _compile_models(spec, compile_model, errors)
    trained = {name: compiled.trained for name, compiled in trainable.items()}
    if errors:
        raise CompileError(errors + found if strict else errors)
    recorded, count, problems = _record(spec, folder, closure, script)
    found += problems
    if strict and found:
        raise CompileError(found)
    texts.update(recorded.texts)
    texts.update(map(absence, closure.absent))
    texts.update(map(table, closure.inert))
    included, files = _include(folder, packages, closure, modules)
    files.update(recorded.files(closure.sources, folder))
    files.update((path, (spec.folder / path).read_bytes()) for path in spec.files)
    files.update((f"{name}.trainable", compiled.trainable) for name, compiled in trainable.items())
    manifest = Manifest(
        name=spec.name,
        version=spec.version,
        entry=spec.entry,
        optimize=optimize,
        limits=spec.limits,
        permissions=spec.permissions,
        models=tuple(spec.models),
        priority=spec.priority,
        fresh=spec.fresh,
        trigger=spec.trigger,
        table=spec.table,
    )
    return CompiledTask(
        manifest,
        modules,
        files,
        texts,
        tuple(found),
        models,
        savings,
        trained,
        included,
        closure.absent if folder is not None else (),
        count,
    )


def _record(spec, folder, closure, script):
    """What is Recorded of the task; the number of texts recorded while the script ran, or None; and the problems with
    recording the imports."""
    program = Program(
        entry=spec.entry_module,
        roots=tuple(str(each.resolve()) for each in (spec.folder, folder) if each is not None),
        modules=tuple(name for name, source in closure.sources.items() if is_installed(source)),
        absent={name: each.reason for each in closure.absent for name in each.names or (each.name,)},
        path=spec.folder / RECORD_NAME,
        replaced={str(folder.resolve().parent / path): lines for path, lines in closure.replaced.items()},
    )
    if script is None and folder is not None:
        recorded, problems = record_imports(program, {name: each.text for name, each in closure.sources.items()})
        return recorded, None, problems
    count = None if script is None else record(program, script)
    return read_record(program.path), count, ()


def _include(folder, packages, closure, modules):
    """What the bundle includes of the packages installed in `folder`: a tuple of Included, and the files of those whose
    modules are in the closure."""
    included, files = [], {}
    installed_modules = {name for name, source in closure.sources.items() if is_installed(source)}
    for package in packages:
        names = [name for name in installed_modules if name.partition(".")[0] in package.top_level]
        contents = files_of(package, folder) if names else {}
        size = sum(len(modules[name].code) for name in names) + sum(map(len, contents.values()))
        included.append(Included(package, len(names), len(contents), size))
        files.update(contents)
    return tuple(included), files


def compile_sources(sources, *, entry, name, version, optimize=0, limits=None, permissions=None, files=None):
    """An unsigned Bundle in memory.

    `sources` maps dotted names to (source as bytes or str, filename for tracebacks, is_package), as `closure_of_module`
    gives them; `limits` and `permissions` are as in Manifest. CompileError if a source doesn't compile.
    """
    modules, texts = {}, {}
    for module, (source, filename, is_package) in sources.items():
        code, of_code, _ = code_of(source.encode() if isinstance(source, str) else source, filename, optimize)
        modules[module] = Module(is_package, code)
        texts.update(of_code)
    manifest = Manifest(
        name=name, version=version, entry=entry, optimize=optimize, limits=limits or {}, permissions=permissions or {}
    )
    return bundle_in_memory(manifest, modules, files, texts)


def code_of(text, filename, optimize=0, kept=None):
    """(code, texts that it needs, key) of a source's `text`. CompileError.

    `kept`: the Compilations that keep both, under the key."""
    key = kept.key("code", filename, optimize, text) if kept else None
    found = kept.get(key) if kept else None
    if found is None:
        found = compile_source(text, filename, filename, optimize), collect_texts(text)
        if kept:
            kept.put(key, found)
    return *found, key


def _compile_models(spec, compile_model, errors):
    """The model files and savings of a task's models by name, and what was compiled of those that are trained; adds
    problems to `errors`."""
    models, savings, trainable = {}, {}, {}
    if spec.models and compile_model is None:
        missing = "models: no compiler of models was given; call vmhost.compiler.compile_folder, or pass compile_model"
        errors.append(Diagnostic(str(spec.file), spec.lines["models"], missing))
        return models, savings, trainable
    for name, path in spec.models.items():
        try:
            weights = (spec.trainable[name],) if name in spec.trainable else ()
            compiled = compile_model(spec.folder / path, *weights)
        except CompileError as error:
            errors += error.diagnostics
        else:
            models[name], savings[name] = compiled.data, compiled.savings
            if weights:
                trainable[name] = compiled
    return models, savings, trainable


def _check_target(spec, target):
    wanted = target or spec.python
    if wanted == TARGET:
        return
    message = f"expected Python {TARGET}, the one that compiles, got {wanted}"
    if target:
        raise CompileError([Diagnostic("--target", 0, f"{message}; run the compiler with Python {wanted}")])
    raise TaskSpecError(
        [
            f"{spec.file}:{spec.lines['python']}: python: {message}; {_advice_for(wanted)}give it "
            f"--target {TARGET} if the task works there too"
        ]
    )


def _check_positions():
    """CompileError if this Python leaves columns out of code: its bundles would differ from those of others."""
    if next(compile("x", "", "eval").co_positions())[2] is None:
        message = "makes this Python leave columns out of bundles; unset it, and leave out -X no_debug_ranges"
        raise CompileError([Diagnostic("PYTHONNODEBUGRANGES", 0, message)])


def _advice_for(wanted):
    """Advice to use Python `wanted`; none for one before 3.14, which cannot compile for VMs."""
    return f"run the compiler with Python {wanted}, or " if tuple(map(int, wanted.split("."))) >= (3, 14) else ""
