"""Models by name outside VMs, so that a task's modules run as plain Python: `engine.load("digits")` finds the model
with this name in task.yaml.

Names are looked up in the task folder that contains the calling module, or else in the current folder; `look_in` sets
another folder, or a bundle. A package that can read these registers an entry point in the group `vmhost.engine.models`:
a function that takes a folder or a bundle and a name, returns the bytes of the model file, and raises LookupError if
there is no such model. The engine itself knows neither folders nor bundles."""

import contextlib
import os
import sys
from importlib import metadata
from pathlib import Path

SPEC_NAME = "task.yaml"
_named = []


@contextlib.contextmanager
def look_in(source):
    """Within this context `engine.load` takes names from `source`, a task folder or a bundle, in the whole process."""
    _named.append(Path(source))
    try:
        yield
    finally:
        _named.pop()


def find(name):
    """The model's name, and its model file's bytes, in a bytearray if nobody else has them. `name` is that of a model
    of the task, or the path of a model file.

    LookupError says where it was looked for.
    """
    source = None if isinstance(name, os.PathLike) or os.sep in name else _source()
    if source is None and not os.path.isfile(name):
        raise LookupError(
            f"there is no model file {os.fspath(name)!r}, and no {SPEC_NAME} beside the caller or in the current"
            " folder; pass the path of a model file, run in the task's folder, or choose the folder with"
            " vmhost.engine.task_models.look_in(FOLDER_OR_BUNDLE)"
        )
    if source is not None:
        try:
            return name, _reader()(source, name)
        except LookupError:
            if not os.path.isfile(name):
                raise
    with open(name, "rb", buffering=0) as file:
        data = bytearray(os.fstat(file.fileno()).st_size)
        read = 0
        with memoryview(data) as buffer:
            while count := file.readinto(buffer[read:]):
                read += count
        del data[read:]
        return os.fspath(name), data


def _source():
    """The source in which names are looked up now; None: none."""
    if _named:
        return _named[-1]
    frame = sys._getframe()
    while frame is not None and f"{frame.f_globals.get('__name__', '')}.".startswith("vmhost.engine."):
        frame = frame.f_back
    file = None if frame is None else frame.f_globals.get("__file__")
    caller = () if file is None else Path(file).resolve().parents
    found = next((folder for folder in (*caller, Path()) if (folder / SPEC_NAME).is_file()), None)
    return found and found.absolute()


def _reader():
    for found in metadata.entry_points(group="vmhost.engine.models"):
        return found.load()
    raise LookupError(
        "nothing installed here reads task folders and bundles; install vmhost (pip install vmhost, or make build), or"
        " name a model file"
    )
