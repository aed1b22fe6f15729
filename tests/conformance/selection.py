"""Which of CPython's test modules are run: all of them but those that left_out.toml names, each with its reason."""

import fnmatch
import tomllib
from pathlib import Path

_LEFT_OUT = Path(__file__).with_name("left_out.toml")


def all_modules(tests):
    """The dotted names of all test modules in the folder `tests`/test, sorted: files test_*.py, and packages that hold
    tests themselves."""
    found = set()
    for path in (tests / "test").rglob("*.py"):
        name = path.parent if path.name == "__init__.py" else path.with_suffix("")
        if name.name.startswith("test_") and (
            path.name != "__init__.py" or "    def test_" in path.read_text(encoding="utf-8", errors="replace")
        ):
            found.add(".".join(name.relative_to(tests / "test").parts))
    return sorted(found)


def left_out_patterns():
    """{reason: names of modules, with * as in file names}."""
    return tomllib.loads(_LEFT_OUT.read_text(encoding="utf-8"))


def reason_for(module, patterns):
    """Why `module` is left out, or None: it is run."""
    return next(
        (reason for reason, names in patterns.items() if any(fnmatch.fnmatchcase(module, name) for name in names)), None
    )


def select(modules, patterns):
    """([modules to run], {module: why it is left out})."""
    left_out = {module: reason for module in modules if (reason := reason_for(module, patterns)) is not None}
    return [module for module in modules if module not in left_out], left_out


def idle_patterns(modules, patterns):
    """The patterns that leave nothing out: a newer suite has no such modules any more."""
    return [name for names in patterns.values() for name in names if not fnmatch.filter(modules, name)]
