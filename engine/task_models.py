"""Models by name outside VMs, so that a task's modules run as plain Python: `engine.load("digits")` finds what
task.yaml calls so.

Names are looked up in the task folder that the calling module lies in, else in the one that is the current folder;
`look_in` names another, or a bundle. Whoever can read these says so with an entry point of the group
`vmhost.engine.models`: a function of a folder or a bundle and a name that gives the bytes of the model file, and raises
LookupError where there is no such model. The engine itself knows neither."""

import contextlib
import os
import sys
from importlib import metadata
from pathlib import Path

SPEC_NAME = "task.yaml"
_named = []


@contextlib.contextmanager
def look_in(source):
    """Meanwhile `engine.load` takes names from `source`, a task's folder or a bundle, in the whole process."""
    _named.append(Path(source))
    try:
        yield
    finally:
        _named.pop()


def find(name):
    """What to call the model, and its model file's bytes, in a bytearray where nobody else has them. `name` is that of
    a model of the task, or the path of a model file.

    LookupError says where it was looked for.
    """
    source = None if isinstance(name, os.PathLike) or os.sep in name else _source()
    if source is None and not os.path.isfile(name):
        raise LookupError(
            f"there is no model file {os.fspath(name)!r}, and no {SPEC_NAME} beside the caller or in the current folder"
            " that could name a model so; name a file, call it from the task's folder, or say where: with"
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
        with memoryview(data) as room:
            while more := file.readinto(room[read:]):
                read += more
        del data[read:]
        return os.fspath(name), data


def _source():
    """Where names are looked up now; None: nowhere."""
    if _named:
        return _named[-1]
    frame = sys._getframe()
    while frame is not None and f"{frame.f_globals.get('__name__', '')}.".startswith("vmhost.engine."):
        frame = frame.f_back
    file = None if frame is None else frame.f_globals.get("__file__")
    caller = () if file is None else Path(file).resolve().parents
    return next((folder for folder in (*caller, Path.cwd()) if (folder / SPEC_NAME).is_file()), None)


def _reader():
    for found in metadata.entry_points(group="vmhost.engine.models"):
        return found.load()
    raise LookupError(
        "nothing installed here reads task folders and bundles; install vmhost (pip install vmhost, or make build), or"
        " name a model file"
    )
