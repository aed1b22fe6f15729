"""The task's interface to its host: `from vmhost.guest import resources, log, deadline, host`.

resources          the files of the bundle: resources.read_bytes(path), .read_text(path), .open(path), .names()
log                log.info("text %s", value): a line to the host's logger; `logging` and print go there too
deadline()         seconds left to the current call (float), or None
host               functions granted by name in host.yaml: host.lookup(value) -> value
Buffer             large data that crosses without a copy: Buffer(shape, format="B")
register           register(Class, to_plain, from_plain): lets values of a class cross as plain ones
PermissionDenied   raised (a PermissionError) for what task.yaml does not grant
Stopped            raised (a BaseException) when the host stops the call

`vmhost.guest.stream` has streams of events: windows, keys, reductions, joins. `vmhost.guest.cascade` asks the cloud for
what a small model is not sure of.
"""

try:
    from _vmhost import Buffer, PermissionDenied, Stopped, deadline, host_call, identity
    from _vmhost import log as _log
except ModuleNotFoundError:  # plain Python: a task's own tests
    from vmhost.guest.testing import Buffer, PermissionDenied, Stopped, deadline, host_call, identity
    from vmhost.guest.testing import log as _log

__all__ = [
    "Buffer",
    "HostFunctionError",
    "PermissionDenied",
    "Stopped",
    "deadline",
    "host",
    "identity",
    "log",
    "register",
    "resources",
]


class HostFunctionError(Exception):
    """A host function failed, or host.yaml does not grant it; the text is the host's."""


class _Host:
    """host.name(value) calls the function that host.yaml grants under that name, and returns its result."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def function(value=None):
            ok, result = host_call(name, value)
            if not ok:
                raise HostFunctionError(result)
            return result

        function.__name__ = name
        return function


class _Log:
    """Lines for the host's logger, with %-formatting as in `logging` but cheaper."""

    @staticmethod
    def _line(level, text, args):
        text = str(text) % args if args else str(text)
        for line in text.split("\n"):
            _log(level, line)

    def debug(self, text, *args):
        self._line(10, text, args)

    def info(self, text, *args):
        self._line(20, text, args)

    def warning(self, text, *args):
        self._line(30, text, args)

    def error(self, text, *args):
        self._line(40, text, args)


def __getattr__(name):
    """Loads these two on demand: the standard library's own start-up passes through this package."""
    if name == "resources":
        import importlib

        return importlib.import_module("vmhost.guest.files")
    if name == "register":
        from vmhost.guest.codec import register

        return register
    raise AttributeError(f"module 'vmhost.guest' has no attribute {name!r}")


host = _Host()
log = _Log()
