"""bdb without tracing: the names that packages import at their top; tracing is denied.

Replaces the standard library's module in a VM. Test runners catch `BdbQuit` around all tests.
"""

__all__ = ["BdbQuit", "Bdb", "Breakpoint"]


class BdbQuit(Exception):
    pass


class Bdb:
    def __init__(self, *unused, **unused_by_name):
        _refuse("Bdb")


class Breakpoint:
    def __init__(self, *unused, **unused_by_name):
        _refuse("Breakpoint")


def set_trace():
    _refuse("set_trace")


def _refuse(name):
    from vmhost.guest import PermissionDenied

    raise PermissionDenied(13, f"bdb.{name}: a VM traces nothing; debug the task on the host")
