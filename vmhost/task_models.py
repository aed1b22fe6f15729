"""The models of a task's folder or bundle, for `engine.load` outside VMs: the entry point `vmhost.engine.models` of
pyproject.toml."""

from pathlib import Path

from vmhost.bytecode.format import read_bundle
from vmhost.bytecode.spec import read_task
from vmhost.compiler import compile_onnx


def model_file(path, name):
    """The bytes of the model file of the model `name` of `path`: a task's folder, whose ONNX file is compiled, or a
    bundle, signed or not.

    LookupError lists the models; TaskSpecError, CompileError and BundleError describe problems of the folder or
    bundle."""
    path = Path(path)
    task = read_task(path) if path.is_dir() else read_bundle(path, allow_unsigned=True)
    models = task.models
    if name not in models:
        raise LookupError(
            f"{path}: this task has no model {name!r}; it has {', '.join(models) or 'none'} (task.yaml, models)"
        )
    if not path.is_dir():
        return models[name]
    return _compiled(path / models[name], task.trainable.get(name, ()))


# (path, trainable weights) -> (stamps of the source files, the model file): tests open the same model repeatedly
_kept = {}
_MAX_KEPT = 4


def _compiled(path, trainable):
    kept = _kept.get((path, trainable))
    if kept is not None and all(_stamp(file) == stamp for file, stamp in kept[0].items()):
        return kept[1]
    stamps = {path: _stamp(path)}
    compiled = compile_onnx(path, trainable)
    stamps.update((Path(file), _stamp(file)) for file in compiled.weight_files)
    while len(_kept) >= _MAX_KEPT:
        _kept.pop(next(iter(_kept)), None)
    _kept[path, trainable] = stamps, compiled.data
    return compiled.data


def _stamp(file):
    """A value that changes when the file is written; None if there is no file."""
    try:
        status = Path(file).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
