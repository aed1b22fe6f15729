"""The models of a task's folder or of a bundle, for `engine.load` outside VMs: the entry point `engine.models` of pyproject.toml."""

import functools
from pathlib import Path

from .format import read_bundle
from .models import compile_model
from .spec import read_task


def model_file(place, name):
    """The bytes of the model file of the model `name` of `place`, a task's folder, whose ONNX file is compiled, or a bundle, signed or not.

    LookupError names the models that there are; TaskSpecError, CompileError and BundleError say what is wrong with the folder or bundle.
    """
    place = Path(place)
    models = read_task(place).models if place.is_dir() else read_bundle(place, allow_unsigned=True).models
    if name not in models:
        raise LookupError(f"{place}: this task has no model {name!r}; it has {', '.join(models) or 'none'} (task.yaml, models)")
    if not place.is_dir():
        return models[name]
    path = place / models[name]
    return _compiled(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=4)
def _compiled(path, _written_ns):
    """A test opens the same model again and again."""
    return compile_model(path.read_bytes(), str(path))
