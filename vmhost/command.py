"""Where the `vmhost` command begins: what it needs is imported with Ctrl-C in mind, which ends it then as quietly as
later.

A module of its own: what it imports is most of that time.
"""

import os
import signal

_INTERRUPTED = 130  # vmhost.cli.failures.INTERRUPTED, which is not there yet


def _leave(number, frame):
    os.write(2, b"vmhost: interrupted\n")
    os._exit(_INTERRUPTED)


def main():
    """Runs the process's own command line and returns its exit code."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # not where the shell said that Ctrl-C is not meant for this process
        signal.signal(signal.SIGINT, _leave)
    from vmhost.cli import main as run

    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, usual)
    return run()
