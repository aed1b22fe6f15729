"""Models as users bring them, beyond the networks of the paper: the output of exporters and converters, made here with
`onnx.helper` only, with weights from a seed. A file has one family; its MODELS maps names to functions of a random
generator (NumPy's) that return a ModelProto and the inputs of a typical call, arrays by name (texts as objects).
Optionally, SMALL maps names to arguments that make a small model of the same form, for tests, and TOLERANCE is the
largest distance of answers from ONNX Runtime's, relative to the largest answer.

QUICK, if present, names the models that tests run on every backend, instead of all.

Names are FAMILY/MODEL. `vmhost bench others` (bench/cases/others.py) runs them beside ONNX Runtime, and
tests/engine/test_other_models.py compares their answers."""

import importlib
import pkgutil
import zlib

TOLERANCE = 1e-4


def names(family=None):
    """All of them, or those of a family."""
    return [
        f"{module.name}/{name}"
        for module in pkgutil.iter_modules(__path__)
        if family in (None, module.name)
        for name in _family(module.name).MODELS
    ]


def make(name, small=False):
    """The ModelProto and its inputs; the same ones each time."""
    import numpy

    family, model = name.split("/")
    made = _family(family)
    arguments = getattr(made, "SMALL", {}).get(model, {}) if small else {}
    return made.MODELS[model](numpy.random.default_rng(zlib.crc32(name.encode())), **arguments)


def quick(name):
    """Whether tests may run it on every backend."""
    family, model = name.split("/")
    return model in getattr(_family(family), "QUICK", (model,))


def tolerance(name):
    return getattr(_family(name.split("/")[0]), "TOLERANCE", TOLERANCE)


def _family(name):
    return importlib.import_module(f"{__name__}.{name}")
