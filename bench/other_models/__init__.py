"""Models as people bring them, beyond the networks of the paper: what exporters and converters write, made here with
`onnx.helper` only, of weights that a seed gives. A file has one family; its MODELS maps names to functions of a random
generator (NumPy's) that give a ModelProto and the inputs of a typical call, arrays by name (of texts: of objects).

Names are FAMILY/MODEL. `vmhost bench others` (bench/cases/others.py) runs them beside ONNX Runtime, and
tests/engine/test_other_models.py compares their answers."""

import importlib
import pkgutil
import zlib


def names(family=None):
    """All of them, or those of a family."""
    return [
        f"{module.name}/{name}"
        for module in pkgutil.iter_modules(__path__)
        if family in (None, module.name)
        for name in importlib.import_module(f"{__name__}.{module.name}").MODELS
    ]


def make(name):
    """The ModelProto and its inputs; the same ones each time."""
    import numpy

    family, model = name.split("/")
    return importlib.import_module(f"{__name__}.{family}").MODELS[model](
        numpy.random.default_rng(zlib.crc32(name.encode()))
    )
