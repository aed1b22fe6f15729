"""Several forked processes that do the same: watched, restarted when one dies, ended together."""

import contextlib
import logging
import os
import signal
import sys
import time

_log = logging.getLogger("vmhost.tunnel")
_SHORT_S = 5.0  # a process that lived shorter is restarted after a pause
_PAUSE_S = 1.0


def supervise(work, count, end_s, started=None):
    """Runs `work()` in `count` forked processes until SIGTERM or SIGINT, which is passed on to them; those still
    running `end_s` later are killed. A process that dies is restarted. Returns 0, or 1 if one had to be killed.

    The calling process must have no other threads.
    """
    wanted = []
    before = {number: signal.signal(number, lambda number, frame: wanted.append(number)) for number in _SIGNALS}
    children = {}
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, (*_SIGNALS, signal.SIGCHLD))
        try:
            for _ in range(count):
                children[_fork(work)] = time.monotonic()
            if started is not None:
                started()
            while not wanted:
                _wait(children)
                number = signal.sigtimedwait((*_SIGNALS, signal.SIGCHLD), 0.5)
                if number is not None and number.si_signo in _SIGNALS:
                    wanted.append(number.si_signo)
                for pid in [pid for pid, began in children.items() if began is None]:
                    del children[pid]
                    if not wanted:
                        _log.error("tunnel: a process of the server died and is restarted")
                        children[_fork(work)] = time.monotonic()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_SIGNALS, signal.SIGCHLD))
        return _end(children, end_s)
    finally:
        _end(children, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def _fork(work):
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _end_with(parent)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_SIGNALS, signal.SIGCHLD))
        work()
        code = 0
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        _log.exception("tunnel: a process of the server failed")
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _end_with(parent):
    """Makes the kernel end this process when its parent dies."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def _wait(children):
    """Reaps ended processes: their time becomes None."""
    for pid, began in list(children.items()):
        if began is not None and os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() - began < _SHORT_S:
                time.sleep(_PAUSE_S)
            children[pid] = None


def _end(children, within_s):
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    end, killed = time.monotonic() + within_s, 0
    while children:
        for pid in list(children):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del children[pid]
        if children and time.monotonic() > end:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            killed = len(children)
            children.clear()
        time.sleep(0.01 if children else 0)
    return 1 if killed else 0
