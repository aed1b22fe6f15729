"""The same work for every contender: module-level functions that pools can import, and tasks as run by a peer's worker.

A peer runs the sources of `tasks/NAME`: `load(name)` makes the folder importable, opens its files and calls setup()."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_loaded = {}


def empty(value):
    return value


def load(name):
    """The entry function of the task folder `name`, ready to be called."""
    if name not in _loaded:
        folder = ROOT / "tasks" / name
        sys.path.insert(0, str(folder))
        try:
            spec = importlib.util.spec_from_file_location(f"bench_task_{name}", folder / "main.py")
            module = importlib.util.module_from_spec(spec)
            # a task opens its files by relative name; chdir would be process-wide, and race between two interpreters
            module.open = lambda path, *args, **kwargs: open(folder / path, *args, **kwargs)
            spec.loader.exec_module(module)
            if hasattr(module, "setup"):
                module.setup()
        finally:
            sys.path.remove(str(folder))
        _loaded[name] = module.run
    return _loaded[name]


def digits(value):
    return load("digits")(value)


def neighbours(value):
    return load("neighbours")(value)


def forest(value):
    return load("forest")(value)


grove = forest  # the same, with fewer trees


def small_arrays(steps):
    import vmhost.engine.numpy as np  # not where this module is imported: interpreters that are pooled cannot load it
    from bench.tasks.arrays.small import work

    return work(np, steps)


def use_one_engine_thread():
    """In this process: a measurement with one worker must use one core only."""
    import vmhost.engine.library  # not where this module is imported: interpreters that are pooled cannot load it

    vmhost.engine.library.set_threads(1)


def import_all(names):
    for name in names:
        importlib.import_module(name)
    return os.getpid()


def size_of(data):
    return len(data)


def give_bytes(size):
    return bytes(size)
