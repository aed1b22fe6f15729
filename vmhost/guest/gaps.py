"""What stands for something that a VM does not have, until it is used."""

import sys


class Gap:
    """Replaces something that a module of the host's program imports and a VM does not have.

    While its module is being imported it accepts most operations, for example as a decorator. Later use raises
    ImportError with the reason.
    """

    def __init__(self, module, reason):
        self._module, self._reason = module, reason

    def _used(self, *_, **__):
        module = sys.modules.get(self._module)
        if module is None or not module.__spec__._initializing:
            raise ImportError(self._reason)
        return self

    __call__ = __getitem__ = __or__ = __ror__ = __and__ = __rand__ = _used
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __matmul__ = _used
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __pos__ = __invert__ = _used
    __lt__ = __le__ = __gt__ = __ge__ = _used

    def _refused(self, *_):
        raise ImportError(self._reason)

    __iter__ = __len__ = __int__ = __float__ = __index__ = __enter__ = __contains__ = __setitem__ = _refused

    def __getattr__(self, name):
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        return self._used()

    def __mro_entries__(self, bases):
        self._used()
        return ()
