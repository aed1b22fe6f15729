"""Lists the classes of the standard library whose values cross: `python -m tests.vmhost.library_classes` writes
vmhost/runtime/library_classes.py for the running Python."""

import importlib
import sys
from pathlib import Path

import vmhost
from vmhost.bytecode.offered import offered_modules

FILE = Path(vmhost.__file__).parent / "runtime" / "library_classes.py"
_HEAD = '''\
"""The exceptions, enums, namedtuples and dataclasses of the standard library, outside builtins, whose values cross
between a VMExecutor and its VMs: names as VMs have them, "module:Class". Written by tests/vmhost/library_classes.py; do
not edit."""

LIBRARY_CLASSES = frozenset(
    """
'''
_TAIL = '''""".split()
)
'''


def classes_of(modules):
    """Run in a VM: "module:Class" of each public class of the standard library that a codec can make."""
    from vmhost.guest.classes import has_shape, shape_of

    def crosses(cls):
        if issubclass(cls, BaseException):
            return issubclass(cls, Exception) and all(issubclass(base, BaseException) for base in cls.__mro__[:-1])
        try:
            return has_shape(cls) and bool(shape_of(cls)) and getattr(cls, "_member_map_", None) != {}
        except ValueError:
            return False

    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:
            continue  # needs what no VM has
    return sorted(
        {
            f"{value.__module__}:{value.__qualname__}"
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] in sys.stdlib_module_names
            for value in list(vars(module).values())
            if isinstance(value, type)
            and value.__module__ != "builtins"
            and value.__module__.partition(".")[0] in sys.stdlib_module_names
            and not value.__qualname__.startswith("_")
            and crosses(value)
        }
    )


def text():
    """What the file holds for this Python."""
    modules = sorted(name for name in offered_modules() if not name.startswith("vmhost") and name != "__main__")
    with vmhost.VMExecutor(1) as pool:
        names = pool.submit(classes_of, modules).result()
    return _HEAD + "".join(f"    {name}\n" for name in names) + _TAIL


if __name__ == "__main__":
    FILE.write_text(text())
