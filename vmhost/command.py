"""The start of the `vmhost` command. Ctrl-C during the imports ends it as quietly as later.

A separate module, because the imports take most of that time, and `vmhost --version` needs none of them.
"""

import os
import signal
import sys

# Exit codes as in vmhost.lines.exit_codes, which is not yet imported.
_INTERRUPTED, _PIPE_CLOSED, _HOST_FAILED = 130, 141, 5


def _leave(number, frame):
    os.write(2, b"vmhost: interrupted\n")
    os._exit(_INTERRUPTED)


def main():
    """Runs the process's own command line and returns its exit code."""
    _hold_closed_streams()
    if sys.argv[1:] == ["--version"]:
        return _print_version()
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # not if the shell made this process ignore Ctrl-C
        signal.signal(signal.SIGINT, _leave)
    from vmhost.cli import main as run

    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, usual)
    return run()


def _hold_closed_streams():
    """Standard streams that the caller has closed lead nowhere. Else files that this process opens would have their
    descriptors, and get what C code and signal handlers write to stderr."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - until the end


def _print_version():
    from vmhost import __version__
    from vmhost.lines import stdout
    from vmhost.supported import version_line

    try:
        stdout.write(version_line(__version__))
    except BrokenPipeError:
        stdout.abandon()
        return _PIPE_CLOSED
    except stdout.OutputError as error:
        stdout.abandon()
        os.write(2, f"error: {error}\n".encode())
        return _HOST_FAILED
    return 0
