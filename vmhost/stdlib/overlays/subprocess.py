"""subprocess without processes: the names that the standard library imports; starting one is denied.

Replaces the standard library's module in a VM, which would load select, selectors, signal and threading in vain.
"""

PIPE = -1
STDOUT = -2
DEVNULL = -3

__all__ = ["Popen", "PIPE", "STDOUT", "call", "check_call", "getstatusoutput", "getoutput", "check_output", "run",
           "CalledProcessError", "DEVNULL", "SubprocessError", "TimeoutExpired", "CompletedProcess"]


class SubprocessError(Exception):
    pass


class CalledProcessError(SubprocessError):
    def __init__(self, returncode, cmd, output=None, stderr=None):
        self.returncode = returncode
        self.cmd = cmd
        self.output = output
        self.stderr = stderr


class TimeoutExpired(SubprocessError):
    def __init__(self, cmd, timeout, output=None, stderr=None):
        self.cmd = cmd
        self.timeout = timeout
        self.output = output
        self.stderr = stderr


class CompletedProcess:
    def __init__(self, args, returncode, stdout=None, stderr=None):
        self.args = args
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr


class Popen:
    def __init__(self, args, *unused, **unused_by_name):
        from vmhost.guest import PermissionDenied

        raise PermissionDenied(13, f"subprocess: {args!r} cannot be started: a task has no processes; ask for a host function "
                               "(task.yaml: permissions.host)")


def run(*args, **kwargs):
    Popen(*args, **kwargs)


call = check_call = check_output = getoutput = getstatusoutput = run


def list2cmdline(seq):
    """The arguments as one line, quoted for Windows, as the standard library prints them on all systems."""
    import os

    return " ".join(map(_quoted, map(os.fsdecode, seq)))


def _quoted(argument):
    quoted, backslashes = [], 0
    for character in argument:
        if character == '"':
            quoted.append("\\" * backslashes + "\\")
        backslashes = backslashes + 1 if character == "\\" else 0
        quoted.append(character)
    if argument and " " not in argument and "\t" not in argument:
        return "".join(quoted)
    return f'"{"".join(quoted)}{"\\" * backslashes}"'
