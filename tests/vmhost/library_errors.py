"""Lists the exceptions of the standard library that VMs can raise: `python -m tests.vmhost.library_errors` writes
vmhost/runtime/library_errors.py for the running Python."""

import importlib
import sys
from pathlib import Path

import vmhost
from vmhost.bytecode.offered import offered_modules

FILE = Path(vmhost.__file__).parent / "runtime" / "library_errors.py"
_HEAD = '''\
"""The exceptions of the standard library, outside builtins, that functions of a VMExecutor may raise in the host: names
as VMs have them, "module:Class". Written by tests/vmhost/library_errors.py; do not edit."""

LIBRARY_ERRORS = frozenset(
    """
'''
_TAIL = '''""".split()
)
'''


def exceptions_of(modules):
    """Run in a VM: "module:Class" of each public exception of the standard library that is nothing else."""
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
            and issubclass(value, Exception)
            and value.__module__ != "builtins"
            and value.__module__.partition(".")[0] in sys.stdlib_module_names
            and not value.__qualname__.startswith("_")
            and all(issubclass(base, BaseException) for base in value.__mro__[:-1])
        }
    )


def text():
    """What the file holds for this Python."""
    modules = sorted(name for name in offered_modules() if not name.startswith("vmhost") and name != "__main__")
    with vmhost.VMExecutor(1) as pool:
        names = pool.submit(exceptions_of, modules).result()
    return _HEAD + "".join(f"    {name}\n" for name in names) + _TAIL


if __name__ == "__main__":
    FILE.write_text(text())
