"""faulthandler without signal handlers, which belong to the process: status, and tracebacks of this VM; handlers are
denied.

Replaces the standard library's module in a VM. The host has its own crash handler for all VMs.
"""

import sys

__all__ = [
    "cancel_dump_traceback_later", "disable", "dump_traceback", "dump_traceback_later", "enable", "is_enabled",
    "register", "unregister",
]


def is_enabled():
    return False


def disable():
    return False


def unregister(signum):
    return False


def cancel_dump_traceback_later():
    pass


def dump_traceback(file=None, all_threads=True):
    file = sys.stderr if file is None else file
    frame = sys._getframe(1)
    print("Stack (most recent call first):", file=file)
    while frame is not None:
        code = frame.f_code
        print(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}', file=file)
        frame = frame.f_back


def enable(file=None, all_threads=True, c_stack=True):
    _refuse("enable")


def register(signum, file=None, all_threads=True, chain=False):
    _refuse("register")


def dump_traceback_later(timeout, repeat=False, file=None, exit=False):
    _refuse("dump_traceback_later")


def _refuse(name):
    from vmhost.guest import PermissionDenied

    raise PermissionDenied(13, f"faulthandler.{name}: signals belong to the whole process; the host reports crashes")
