"""Passes lines that a guest prints or logs to the host's loggers.

Whole lines of task `name` go to the logger `vmhost.task.<name>`, with the attributes `version` and `vm` on each record.
The native core limits how many lines it keeps; nothing here blocks a VM. Without a handler nothing is shown.
"""

import logging

_root = logging.getLogger("vmhost")
_root.addHandler(logging.NullHandler())


tap = None  # a function of (name, lines) that also gets all lines


def write(name, version, vm_id, lines):
    """Log `lines`, pairs of (level, text), of VM `vm_id`. `name` None: lines from before the VM had a task."""
    logger = logging.getLogger(f"vmhost.task.{name}" if name else "vmhost.vm")
    if tap is not None:
        lines = list(lines)
        tap(name, lines)
    extra = {"version": version, "vm": vm_id}
    for level, line in lines:
        logger.log(level, "%s", line, extra=extra)
