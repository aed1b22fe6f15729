"""The tensor engine: one C library for the host and every VM. `import vmhost.engine.numpy as np` computes,
`engine.load` opens a model.

This file imports nothing until it is used.
"""

if __name__ == "engine":
    raise ImportError("engine: this folder is the package vmhost.engine; import that")


def load(name, **options):
    """The model `name` of the task's bundle, or outside a VM of the task's folder, or the model file at that path:
    vmhost.engine.models.load."""
    from vmhost.engine.models import load as open_model

    return open_model(name, **options)


def __getattr__(name):
    if name == "numpy":
        from importlib import import_module

        return import_module(f"{__name__}.numpy")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*(name for name in globals() if name.startswith("__")), "load", "numpy"})
