"""vmhost: run cloud-compiled Python tasks, each in a VM (a subinterpreter with its own GIL) on its own thread.

    with vmhost.Host() as host:
        digits = host.load("build/digits.vmb")
        label = digits({"image": pixels})

Names are imported when first used, so that `vmhost.bytecode` and `vmhost.engine` work without a host.
"""

from vmhost.supported import refusal as _refusal

if (_why := _refusal()) is not None:
    raise ImportError(_why)

TYPE_CHECKING = False
if TYPE_CHECKING:  # the same names again, for static analysis; `as` marks them as exported
    from vmhost.errors import (
        BreakerOpenError as BreakerOpenError,
        BundleError as BundleError,
        ClosedError as ClosedError,
        ConfigurationError as ConfigurationError,
        CrossingError as CrossingError,
        MemoryLimitError as MemoryLimitError,
        PermissionDenied as PermissionDenied,
        QueueFullError as QueueFullError,
        TaskError as TaskError,
        TimeLimitError as TimeLimitError,
        VMHostError as VMHostError,
        VMLostError as VMLostError,
    )
    from vmhost.executor import (
        BrokenVMExecutor as BrokenVMExecutor,
        VMExecutor as VMExecutor,
    )
    from vmhost.host import (
        Host as Host,
    )
    from vmhost.limits import (
        BreakerPolicy as BreakerPolicy,
        DebugPolicy as DebugPolicy,
        Limits as Limits,
        Policy as Policy,
        RecordPolicy as RecordPolicy,
        TaskPolicy as TaskPolicy,
    )
    from vmhost.packed import (
        Packed as Packed,
    )
    from vmhost.runtime.codec import (
        Conversion as Conversion,
    )
    from vmhost.task import (
        Task as Task,
    )

_HOMES = {
    "errors": (
        "BreakerOpenError",
        "BundleError",
        "ClosedError",
        "ConfigurationError",
        "CrossingError",
        "MemoryLimitError",
        "PermissionDenied",
        "QueueFullError",
        "TaskError",
        "TimeLimitError",
        "VMHostError",
        "VMLostError",
    ),
    "executor": ("BrokenVMExecutor", "VMExecutor"),
    "host": ("Host",),
    "limits": ("BreakerPolicy", "DebugPolicy", "Limits", "Policy", "RecordPolicy", "TaskPolicy"),
    "packed": ("Packed",),
    "runtime.codec": ("Conversion",),
    "task": ("Task",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_PACKAGES = ("bytecode", "engine")
__all__ = sorted(_HOME_OF)


def __getattr__(name):
    if name in _HOME_OF:
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value
    if name == "__version__":
        from importlib import metadata  # the version is in pyproject.toml, and in the installed metadata

        try:
            return metadata.version("vmhost")
        except metadata.PackageNotFoundError:
            return "checkout"  # not installed
    if name in _PACKAGES:
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, *_PACKAGES, "__version__"})
