"""Folders of saves. Each save is a folder of files: it is written beside its place, and renamed when it is complete."""

import errno
import os

_UNFINISHED = ".saving-"


def absolute(folder):
    """The absolute path of `folder`. FileNotFoundError if that needs the working folder, and it was removed."""
    try:
        return os.path.abspath(os.fspath(folder))
    except FileNotFoundError:
        text = "the working folder of this process was removed: change to another one, or give an absolute path"
        raise FileNotFoundError(errno.ENOENT, text, os.fspath(folder)) from None


def unfinished(folder, name):
    """The path at which the save `name` of `folder` is written."""
    return os.path.join(folder, _UNFINISHED + name)


def remove_unfinished(folder):
    """Removes incomplete saves."""
    for name in os.listdir(folder):
        if name.startswith(_UNFINISHED):
            remove(os.path.join(folder, name))


def remove(save):
    """Removes a save, which contains only files."""
    for name in os.listdir(save):
        os.remove(os.path.join(save, name))
    os.rmdir(save)


def write(path, data):
    """Writes a file and syncs its bytes to disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def flush(folder):
    """Syncs the names in the folder to disk."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a task may have permission to write there but not to read
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
