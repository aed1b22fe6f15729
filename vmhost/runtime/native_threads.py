"""CPython's own threads, locks and queues, also where a program has replaced them: gevent's monkey patches make threads
greenlets, which run only while the thread that made them waits in gevent. A host's threads must run beside it."""

import importlib.machinery
import importlib.util
import sys
import threading
import types
from _queue import SimpleQueue


def _own_thread_module():
    """CPython's module _thread: the one that is imported, or a new one if its functions were replaced."""
    import _thread

    if isinstance(_thread.allocate_lock, types.BuiltinFunctionType):
        return _thread
    spec = importlib.machinery.BuiltinImporter.find_spec("_thread")
    own = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    return own


_thread = _own_thread_module()
Lock, RLock, get_ident = _thread.allocate_lock, _thread.RLock, _thread.get_ident
__all__ = ["Handle", "Lock", "RLock", "SimpleQueue", "current_thread", "get_ident", "new_thread"]


class Handle:
    """A thread that one call into C starts: Ctrl-C in `threading.Thread.start` can leave a lock locked for which the
    new thread waits for ever."""

    def __init__(self):
        self._handle = _thread._ThreadHandle()  # as in threading.Thread

    def start(self, function):
        _thread.start_joinable_thread(function, handle=self._handle, daemon=True)

    def join(self, timeout_s=None):
        """Wait for its end. True if it has ended, or never began."""
        if self._handle.ident:
            self._handle.join(-1 if timeout_s is None else max(timeout_s, 0.0))
        return not self.is_alive()

    def is_alive(self):
        return bool(self._handle.ident) and not self._handle.is_done()

    @property
    def ident(self):
        """Its get_ident(); None before it began."""
        return self._handle.ident or None


class _Replaced:
    """What this package uses of threading.Thread, for programs that have replaced that."""

    def __init__(self, target, args):
        self._run, self._args, self._handle = target, args, Handle()

    def start(self):
        self._handle.start(lambda: self._run(*self._args))

    def join(self, timeout_s=None):
        self._handle.join(timeout_s)

    @property
    def ident(self):
        return self._handle.ident


def new_thread(target, name, args=()):
    """A daemon, as threading.Thread makes them. RuntimeError from its `start`: the machine has no room for it."""
    if isinstance(threading._start_joinable_thread, types.BuiltinFunctionType):
        _have_stderr()
        return threading.Thread(target=target, args=args, name=name, daemon=True)
    return _Replaced(target, args)


def current_thread():
    """The threading.Thread of this thread, made where this is none of Python's."""
    _have_stderr()
    return threading.current_thread()


def _have_stderr():
    """Threads of Python read sys.stderr when they are made; a program that has deleted it means None."""
    if not hasattr(sys, "stderr"):
        sys.stderr = None
