"""Passes lines that a guest prints or logs to the host's loggers; those of an executor to stderr if nobody logs them.

Whole lines of task `name` go to the logger `vmhost.task.<name>`, with the attributes `version` and `vm` on each record.
The native core limits how many lines it keeps, and escapes what is no text; nothing here blocks a VM.
"""

import contextlib
import logging
import sys

_root = logging.getLogger("vmhost")
_root.addHandler(logging.NullHandler())


tap = None  # a function of (name, lines) that also gets all lines


def write(name, version, vm_id, lines, shown=False):
    """Log `lines`, pairs of (level, text), of VM `vm_id`. `name` None: lines from before the VM had a task. `shown`:
    write those that no handler takes to the sys.stderr of the moment, as the workers of a process pool would."""
    logger = logging.getLogger(f"vmhost.task.{name}" if name else "vmhost.vm")
    if tap is not None:
        lines = list(lines)
        tap(name, lines)
    extra = {"version": version, "vm": vm_id}
    unheard = []
    for level, line in lines:
        logger.log(level, "%s", line, extra=extra)
        if shown and not _is_silenced(logger, level) and not _is_handled(logger, level):
            unheard.append(f"{name}: {line}\n")
    if unheard:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
            sys.stderr.write("".join(unheard))
            sys.stderr.flush()


def _is_handled(logger, level):
    """Whether a handler takes records of this level. NullHandlers take none."""
    if not logger.isEnabledFor(level):
        return False
    while logger is not None:
        if any(level >= handler.level and type(handler) is not logging.NullHandler for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def _is_silenced(logger, level):
    """Whether the program wants no lines of this level: by the level of this logger, or of one above it up to `vmhost`,
    INFO where none is set. The root's level is for the program's own lines: WARNING where nobody has set it."""
    while logger.level == logging.NOTSET and logger is not _root:
        logger = logger.parent
    return level < (logger.level or logging.INFO)
