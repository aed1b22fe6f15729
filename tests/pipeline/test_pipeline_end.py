"""Ctrl-C at any point of a pipeline: all is closed, no lock stays taken, and calls are left to the next start."""

import contextlib
import os
import signal
import threading
import time

import pytest

from tests.hosts import until
from tests.pipeline.stream_tasks import ROWS, WAIT_S, clicks, open_pipeline, stream_task
from vmhost.cli.pipeline import opening
from vmhost.pipeline import PipelineError, interrupts

FOREVER = "import time\n\n\ndef run(value):\n    time.sleep(3600)\n"


class InterruptedLock(threading.RLock().__class__):
    """A lock that Ctrl-C hits between its acquisition and the block that releases it, once."""

    armed = False

    def __enter__(self):
        super().__enter__()
        if self.armed and threading.current_thread() is threading.main_thread():
            self.armed = False
            signal.raise_signal(signal.SIGINT)
        return self


def with_interrupted_lock(pipeline):
    lock = pipeline._lock = InterruptedLock()
    pipeline._idle = threading.Condition(lock)
    return lock


@contextlib.contextmanager
def closed_at_the_end(pipeline):
    """Fails, instead of waiting forever, if the test's thread still holds the pipeline's lock."""
    try:
        yield pipeline
    finally:
        free = not pipeline._lock._is_owned()
        while pipeline._lock._is_owned():
            pipeline._lock.release()
        pipeline.close(drain=False)
        assert free


def test_an_interrupt_cuts_off_the_last_calls(tmp_path):
    pipeline = open_pipeline(tmp_path, stream_task(tmp_path, FOREVER))
    pipeline.append_many(clicks("a", "b"))

    def interrupt():
        with contextlib.suppress(PipelineError):  # it is closed, and its lock is free: `close` waits
            while True:
                pipeline.wait_for_room(0)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        pipeline.close(keep_visits=True)
    interrupting.join()
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS)) as again:
        assert again.wait(WAIT_S)
        assert [row["visit"] for row in again.table("clicks").read()] == ["a", "b"]


def test_an_interrupt_that_meets_a_lock_comes_when_it_is_free(tmp_path):
    with closed_at_the_end(open_pipeline(tmp_path, stream_task(tmp_path, ROWS))) as pipeline:
        with_interrupted_lock(pipeline).armed = True
        with pytest.raises(KeyboardInterrupt):
            pipeline.append_many(clicks("a"))
        until(lambda: time.monotonic() > interrupts._interrupts._ignored_until_s)  # an echo of the first one
        pipeline._lock.armed = True
        with pytest.raises(KeyboardInterrupt):
            pipeline.statistics()
            threading.Event().wait(WAIT_S)
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS)) as again:
        assert again.wait(WAIT_S)
        assert [row["visit"] for row in again.table("clicks").read()] == ["a"]


@pytest.mark.parametrize("method", ["wait", "close", "withdraw", "wait_for_room"])
def test_an_interrupt_that_meets_a_lock_ends_a_wait(tmp_path, method):
    bundle = stream_task(tmp_path, FOREVER, "on: [click], queue: 1")
    with closed_at_the_end(open_pipeline(tmp_path, bundle)) as pipeline:
        pipeline.append_many(clicks("a", "b"))
        with_interrupted_lock(pipeline).armed = True
        with pytest.raises(KeyboardInterrupt):
            getattr(pipeline, method)(*["clicks"] * (method == "withdraw"))


def test_a_second_ctrl_c_of_the_command_that_meets_a_lock_ends_the_wait(tmp_path):
    bundle = stream_task(tmp_path, FOREVER)
    with closed_at_the_end(open_pipeline(tmp_path, bundle)) as pipeline, opening.Interrupts() as signals:
        pipeline.append_many(clicks("a"))
        lock = with_interrupted_lock(pipeline)
        lock.armed = True
        assert not pipeline.wait(0) and signals.asked == signal.SIGINT
        lock.armed = True
        with pytest.raises(KeyboardInterrupt):
            while not pipeline.wait(WAIT_S):
                pass


def test_an_interrupt_outside_of_pipelines_is_raised_at_once(tmp_path):
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS)) as pipeline, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert pipeline.final is not None


def test_an_application_keeps_its_handler(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    try:
        mine = [].append
        signal.signal(signal.SIGINT, lambda *signal: mine(signal))
        handler = signal.getsignal(signal.SIGINT)
        with open_pipeline(tmp_path, stream_task(tmp_path, ROWS)):
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_handler_is_that_of_before_after_the_last_pipeline(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    (tmp_path / "one").mkdir()
    with open_pipeline(tmp_path, stream_task(tmp_path, ROWS)):
        with open_pipeline(tmp_path / "one", stream_task(tmp_path, ROWS)):
            pass
        assert signal.getsignal(signal.SIGINT) == interrupts.heard
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(PipelineError):
        open_pipeline(tmp_path, stream_task(tmp_path, ROWS), intake={"no": 1})
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.stress
def test_interrupts_at_any_moment(tmp_path):
    """A timer interrupts a program that appends and reads, each time a little later; it always ends, and
    each accepted event has its row afterwards."""
    bundle = stream_task(tmp_path, ROWS, "on: [click], queue: 100000")
    previous = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        for turn in range(50):
            (folder := tmp_path / str(turn)).mkdir()
            with contextlib.suppress(KeyboardInterrupt), open_pipeline(folder, bundle) as pipeline:
                signal.setitimer(signal.ITIMER_REAL, 0.001 + turn * 0.002)
                for visit in range(1_000_000):
                    pipeline.append_many(clicks(str(visit), begin_ms=1_790_000_000_000 + visit))
                    pipeline.explain("clicks")  # no `if`: CPython 3.14 has no handlers at a jump back out of one
            assert not pipeline._lock._is_owned() and pipeline.final is not None
            with open_pipeline(folder, bundle) as again:
                assert again.wait(WAIT_S)
                assert len(again.table("clicks").read()) == pipeline.final["position"]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
