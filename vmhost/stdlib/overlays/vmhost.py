"""The package `vmhost` inside a VM: it holds `vmhost.guest` and `vmhost.engine`.

A module whose functions travel to a VM may also be the program that makes the host or the executor. Its `import vmhost`
and `from vmhost import VMExecutor` work here, and raise only when the host's side is used.
"""


class _HostSide:
    """Placeholder for a name of the host's side."""

    def __init__(self, name):
        self._name = name

    def __repr__(self):
        return f"<vmhost.{self._name}: on the host only>"

    def __call__(self, *arguments, **options):
        raise RuntimeError(f"vmhost.{self._name} is on the host; inside a VM there are vmhost.guest and vmhost.engine only")

    def __mro_entries__(self, bases):
        return ()  # a program's subclass is a class without it

    def __getattr__(self, attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return _HostSide(f"{self._name}.{attribute}")


def __getattr__(name):
    if name.startswith("__") or name in ("guest", "engine"):
        raise AttributeError(f"module 'vmhost' has no attribute {name!r}")
    return _HostSide(name)
