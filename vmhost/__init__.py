"""vmhost: run cloud-compiled Python tasks, each in a VM (a subinterpreter with a GIL of its own) on a thread of its
own.

    with vmhost.Host() as host:
        digits = host.load("build/digits.vmb")
        label = digits({"image": pixels})
"""

from vmhost.errors import (
    BreakerOpenError,
    BundleError,
    ClosedError,
    ConfigurationError,
    CrossingError,
    MemoryLimitError,
    PermissionDenied,
    QueueFullError,
    TaskError,
    TimeLimitError,
    VMHostError,
    VMLostError,
)
from vmhost.host import Host
from vmhost.limits import BreakerPolicy, Limits, Policy, TaskPolicy
from vmhost.task import Task

__all__ = [
    "BreakerOpenError", "BreakerPolicy", "BundleError", "ClosedError", "ConfigurationError", "CrossingError", "Host",
    "Limits", "MemoryLimitError", "PermissionDenied", "Policy", "QueueFullError", "Task", "TaskError", "TaskPolicy",
    "TimeLimitError",
    "VMExecutor", "VMHostError", "VMLostError",
]


def __getattr__(name):
    if name == "__version__":
        from importlib import metadata      # the version stands in pyproject.toml, and in what was installed from it

        try:
            return metadata.version("vmhost")
        except metadata.PackageNotFoundError:
            return "checkout"               # that nobody installed
    if name in ("BrokenVMExecutor", "VMExecutor"):
        from vmhost import executor         # it needs the compiler, which a host of finished bundles does not

        return getattr(executor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
