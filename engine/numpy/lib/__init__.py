"""numpy.lib's public modules: `stride_tricks`, `array_utils`, `scimath`."""


def __getattr__(name):
    from importlib import import_module

    if name in ("stride_tricks", "array_utils", "scimath"):
        return import_module(f"vmhost.engine.numpy.lib.{name}")
    raise AttributeError(
        f"module 'vmhost.engine.numpy.lib' has no attribute {name!r}; it has stride_tricks, array_utils and scimath"
    )


def __dir__():
    return ["array_utils", "scimath", "stride_tricks"]
