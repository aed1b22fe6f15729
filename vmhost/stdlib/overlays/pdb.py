"""pdb without terminal and tracing: the names that packages import at their top; debugging is denied.

Replaces the standard library's module in a VM. `Pdb` can be subclassed and its methods replaced, as test tools do.
"""

__all__ = ["run", "pm", "Pdb", "runeval", "runctx", "runcall", "set_trace", "post_mortem", "help"]


class Restart(Exception):
    pass


class Pdb:
    def __init__(self, *unused, **unused_by_name):
        _refuse("Pdb")

    def set_trace(self, *unused, **unused_by_name):
        _refuse("Pdb.set_trace")


def run(statement, globals=None, locals=None):
    _refuse("run")


def runctx(statement, globals, locals):
    _refuse("runctx")


def runeval(expression, globals=None, locals=None):
    _refuse("runeval")


def runcall(*args, **kwargs):
    _refuse("runcall")


def set_trace(*, header=None, commands=None):
    _refuse("set_trace")


async def set_trace_async(*, header=None, commands=None):
    _refuse("set_trace_async")


def set_default_backend(backend):
    _refuse("set_default_backend")


def get_default_backend():
    return "settrace"


def post_mortem(t=None):
    _refuse("post_mortem")


def pm():
    _refuse("pm")


def help():
    _refuse("help")


def _refuse(name):
    from vmhost.guest import PermissionDenied

    raise PermissionDenied(13, f"pdb.{name}: a VM has no terminal and traces nothing; debug the task on the host, with "
                              "vmhost.guest.testing for what only a VM has")
