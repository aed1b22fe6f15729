"""Folders of saves. Each save is a folder of files: it is written beside its place, and renamed into it when it is
whole."""

import os

_UNFINISHED = ".saving-"


def unfinished(folder, name):
    """Where the save `name` of `folder` is written."""
    return os.path.join(folder, _UNFINISHED + name)


def remove_unfinished(folder):
    """Removes saves that did not end."""
    for name in os.listdir(folder):
        if name.startswith(_UNFINISHED):
            remove(os.path.join(folder, name))


def remove(save):
    """Removes a save, which holds files only."""
    for name in os.listdir(save):
        os.remove(os.path.join(save, name))
    os.rmdir(save)


def write(path, data):
    """Writes a file. Its bytes are on the disk when it returns."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def flush(folder):
    """Names in the folder are on the disk when it returns."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a task may write there and not read
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
