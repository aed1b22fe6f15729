"""Why a VM cannot import a module."""

import difflib
import re
import sys

from ..offered import ALIASES, REFUSED, left_out, offered_modules
from .results import is_installed

_REFUSES_VMS = "its C part refuses interpreters with a GIL of their own"
THIRD_PARTY = {
    "numpy": f"{_REFUSES_VMS}; import vmhost.engine.numpy, which has its names",
    "cffi": f"{_REFUSES_VMS}; call the library on the host, as a host function",
    "cryptography": f"{_REFUSES_VMS}; use hashlib and hmac, or a host function",
    "msgpack": f"{_REFUSES_VMS}; use json or struct",
    "psutil": f"{_REFUSES_VMS}; measure on the host",
    "yaml": f"{_REFUSES_VMS}; use json or tomllib",
    **dict.fromkeys(
        ("jax", "matplotlib", "onnxruntime", "pandas", "PIL", "scipy", "sklearn", "tensorflow", "torch"),
        f"{_REFUSES_VMS}, or NumPy's does; compute on the host, and pass values to the task",
    ),
}
_BESIDE = "beside the program, nor on sys.path,"

# Modules without a file: the text sets its own path, installs a finder, or puts modules into sys.modules.
_MAKES_MODULES = re.compile(rb"^__path__ *=|\bsys\.meta_path\b|\bsys\.modules\[[^\]\n]*\] *=", re.MULTILINE)


class Problems:
    """Why the modules that are found by `looks` can't be imported. `of_package(name)`: the same for one of an installed
    package, which may fail as it is imported; None: not asked."""

    def __init__(self, looks, of_package):
        self._looks, self._of_package, self._is_task = looks, of_package, looks.finder.is_task

    def of(self, name, own=True):
        """Why the module `name` can't be imported in a VM, or None. Does not add it. `own`: the task's own code imports
        it; the text then advises."""
        top = name.partition(".")[0]
        found = self._looks.find(top)
        if found is not None:
            if top in THIRD_PARTY and is_installed(found):
                return f"a VM can't load it: {THIRD_PARTY[top]}"
            problem = self._missing_inside(name)
            return self._of_package(name) if problem is None and self._of_package and is_installed(found) else problem
        native = self._looks.native(top)
        if native is not None:
            return _not_pure(top, native)
        if top == "vmhost":
            if name in ("vmhost", "vmhost.guest") or name in offered_modules():
                return None
            return "a VM has vmhost.guest and vmhost.engine only, the host's side stays on the host"
        if name in ALIASES or (name in offered_modules() and (name not in REFUSED or not own)):
            return None  # of refused modules, a VM has some for packages that import more than they use
        reason = REFUSED.get(name) or left_out(name)
        if reason:
            return f"a VM does not have it: {reason}"
        if top in sys.stdlib_module_names:
            if top != name and self.of(top) is None:
                return f"the standard library has no such module in Python {sys.version_info[0]}.{sys.version_info[1]}"
            return "a VM does not have it"
        if top in THIRD_PARTY:
            return f"a VM can't load it: {THIRD_PARTY[top]}"
        near = difflib.get_close_matches(top, offered_modules(), 1, 0.85) if own else ()
        advice = (
            f"did you mean {near[0]!r}?"
            if near
            else (
                "name it under requirements in task.yaml, or do this on the host"
                if self._is_task
                else "VMs take pure Python modules that the program can import, or that its `# /// script` block names"
            )
        )
        where = "in the task's folder, nor among its requirements," if self._is_task else _BESIDE
        return f"neither {where} nor in a VM's standard library; {advice}"

    def first_missing(self, name):
        """The first missing one of the parent packages of `name`, or `name` itself."""
        parts = name.split(".")
        prefixes = (".".join(parts[:length]) for length in range(1, len(parts)))
        return next((prefix for prefix in prefixes if self.of(prefix) is not None), name)

    def _missing_inside(self, name):
        parts = name.split(".")
        for length in range(2, len(parts) + 1):
            prefix, outer = ".".join(parts[:length]), self._looks.find(".".join(parts[: length - 1]))
            if self._looks.find(prefix) is None:
                if _MAKES_MODULES.search(outer.text):
                    return None  # such as six.moves, which six creates: only a run can tell
                if not outer.is_package:
                    return f"{outer.path} is a module, not a package"
                native = self._looks.native(prefix) if is_installed(outer) else None
                if native is not None:
                    return _not_pure(prefix, native)
                if self._is_task and not is_installed(outer):
                    return f"the task's folder has no module {prefix}"
                return f"{outer.path} is of a package that has no Python module {prefix}"
        return None


def _not_pure(name, path):
    top = name.partition(".")[0]
    return f"a VM can't load it: {THIRD_PARTY.get(top) or f'it is not pure Python ({path}); use it on the host'}"
