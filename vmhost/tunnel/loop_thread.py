"""An asyncio loop for threads: it runs on a thread of its own, and is lent to threads that wait for it.

Handing a coroutine to a loop on another thread costs two thread switches, each longer than a small request. So when a
thread makes calls in quick succession, the loop's own thread steps aside and the calling thread runs the loop while it
waits, without a switch. After `LENT_S` without a call the loop's thread takes the loop back; other work of the loop
(pushes, heartbeats) waits at most that long. A thread that calls rarely never runs the loop.
"""

import asyncio
import concurrent.futures
import contextlib
import signal
import threading
import time

from vmhost import callbacks

LENT_S = 0.002


class LoopEndedError(Exception):
    """The loop has ended, possibly before the call did."""


class _Call:
    """A coroutine whose result a thread waits for."""

    def __init__(self, coroutine):
        self.coroutine = coroutine
        self.done = concurrent.futures.Future()
        self._task, self._cancelled = None, False

    def begin(self, loop):
        """Called on the loop."""
        self._task = loop.create_task(self.coroutine)
        if self._cancelled:
            self._task.cancel()
        return self._task

    def cancel(self):
        """Called on the loop."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()


class LoopThread:
    """`begin()`, `end()`: coroutines that run first and last, on the thread `name`. `loop_factory`: as for
    `asyncio.Runner`. `on_broken()` is called on the loop after a foreign exception (such as a signal handler's) went
    through the loop while another thread ran it: the interrupted work is half done."""

    def __init__(self, name, begin, end, loop_factory, on_broken):
        self._begin, self._end, self._factory, self._on_broken = begin, end, loop_factory, on_broken
        self._turn = threading.Condition(threading.Lock())  # guards the next six
        self._runs = True  # whether some thread runs the loop, or is about to
        self._borrower = None  # the call of the thread that borrowed the loop
        self._guests = set()  # calls handed over to the running thread
        self._awaited = False  # the loop's own thread waits for the current runner
        self._closing = False
        self._ended = False
        self._used_at = 0.0  # when the last call ended
        self._at_home = False  # the loop's own thread runs it, until stopped
        self.loop = None
        self._started = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self):
        """Raises the error of `begin()`, if any."""
        self._thread.start()
        try:
            self._started.result()
        except BaseException:
            self._thread.join()
            raise

    def close(self):
        """Running calls raise LoopEndedError."""
        if self.loop is None:
            return
        with self._turn:
            self._closing = True
            self._turn.notify()
        self.call_soon_threadsafe(self._stop)
        self._thread.join()

    def _stop(self):
        if self._at_home:
            self.loop.stop()
        elif self._borrower is not None:
            self._borrower.cancel()

    def call_soon_threadsafe(self, function):
        """Makes the loop call the function, unless it has ended."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function)

    # ---- the loop's own thread

    def _main(self):
        try:
            with asyncio.Runner(loop_factory=self._factory) as runner:
                self.loop = runner.get_loop()
                self.loop.set_task_factory(callbacks.guarded_task)
                runner.run(self._begin())
                self._started.set_result(None)
                while not self._closing:
                    self._at_home = True
                    self.loop.run_forever()
                    self._at_home = False
                    self._lend()
                runner.run(self._end())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)
        finally:
            with self._turn:
                self._ended = True
                left, self._guests = self._guests, set()
            for call in left:  # handed over too late
                call.coroutine.close()
                call.done.set_exception(LoopEndedError())

    def _lend(self):
        """Lends the loop; returns when it is this thread's again."""
        with self._turn:
            self._runs = False
            while True:
                if self._runs:
                    self._awaited = True
                    self._turn.wait()
                    self._awaited = False
                    continue
                left = self._used_at + LENT_S - time.monotonic()
                if self._guests or self._closing or left <= 0:
                    self._runs = True
                    return
                self._turn.wait(left)

    # ---- other threads

    def run(self, coroutine):
        """The coroutine's result. LoopEndedError."""
        call = _Call(coroutine)
        with _interrupts(lambda: self.call_soon_threadsafe(call.cancel)):
            with self._turn:
                if self._ended:
                    coroutine.close()
                    raise LoopEndedError
                may_borrow = asyncio._get_running_loop() is None  # a thread can run only one loop
                lent = may_borrow and not self._runs and not self._closing
                if lent:
                    self._runs, self._borrower = True, call
                else:
                    self._guests.add(call)
                    if not self._runs:
                        self._turn.notify()
            return self._run_here(call) if lent else self._run_there(call, may_borrow)

    def _run_here(self, call):
        task = None
        try:
            task = call.begin(self.loop)
            return self.loop.run_until_complete(task)
        except asyncio.CancelledError:
            raise LoopEndedError from None
        except BaseException:
            if task is not None and not task.done():
                task.cancel()
                self.loop.call_soon(self._on_broken)
            raise
        finally:
            with self._turn:
                self._runs, self._borrower = False, None
                self._used_at = time.monotonic()
                if self._awaited or self._guests or self._closing:
                    self._turn.notify()

    def _run_there(self, call, may_borrow):
        often = may_borrow and time.monotonic() - self._used_at < LENT_S
        self.call_soon_threadsafe(lambda: self._take_in(call, often))
        try:
            return call.done.result()
        except BaseException:
            self.call_soon_threadsafe(call.cancel)
            raise

    def _take_in(self, call, often):
        """Runs on the loop: begins a call that was handed over."""

        def ended(task):
            with self._turn:
                self._guests.discard(call)
                self._used_at = time.monotonic()
                alone = not self._guests
            if task.cancelled():
                call.done.set_exception(LoopEndedError())
            elif task.exception() is not None:
                call.done.set_exception(task.exception())
            else:
                call.done.set_result(task.result())
            if often and alone and self._at_home:
                self.loop.stop()  # lend it: the next call is likely to come at once

        call.begin(self.loop).add_done_callback(ended)


@contextlib.contextmanager
def _interrupts(cancel):
    """In the block, Ctrl-C calls `cancel`, and KeyboardInterrupt is raised at the block's end: raised inside, it would
    leave locks held and the loop's work half done. A second Ctrl-C raises at once, whatever it breaks. Only on the main
    thread and with Python's own handler, or a pipeline's, which would wait for the block's end; otherwise nothing
    changes."""
    main, handler = threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGINT)
    if not main or not (handler is signal.default_int_handler or getattr(handler, "defers_interrupts", False)):
        yield
        return
    count = 0

    def interrupted(number, frame):
        nonlocal count
        count += 1
        if count > 1:
            raise KeyboardInterrupt
        with contextlib.suppress(RuntimeError):
            cancel()

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    except BaseException:
        if count:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, handler)
    if count:
        raise KeyboardInterrupt
