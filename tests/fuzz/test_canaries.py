"""The fuzzer's checks after each round: each forbidden effect of a task on the host is noticed, and without an
effect nothing is."""

import os
import resource
import signal
import time

import pytest

from tests.fuzz.guest_notes import notes
from tests.fuzz.process import Canaries

EFFECTS = {
    "a file is written": (lambda one: (one.folder / "outside" / "d" / "secret").write_text("x"), "files"),
    "a file is removed": (lambda one: (one.folder / "outside" / "secret").unlink(), "files"),
    "a file appears": (lambda one: (one.folder / "readable" / "new").touch(), "files"),
    "a position moves": (lambda one: one.held[0].seek(0), "descriptor"),
    "a flag changes": (lambda one: os.set_blocking(one.pipe[0], False), "descriptor"),
    "a pipe is read": (lambda one: os.read(one.pipe[0], 1), "pipe"),
    "a socket is read": (lambda one: one.sockets[1].recv(1), "pipe"),
    "the environment": (lambda one: os.environ.update(VMHOST_FUZZ_MORE="1"), "environment"),
    "the current folder": (lambda one: os.chdir(one.folder), "current folder"),
    "the umask": (lambda one: os.umask(0o27), "umask"),
    "a handler": (lambda one: signal.signal(signal.SIGUSR2, signal.SIG_IGN), "signals"),
    "a timer": (lambda one: signal.setitimer(signal.ITIMER_REAL, 1000), "timers"),
    "a limit": (
        lambda one: resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1])),
        "limits",
    ),
}


@pytest.fixture
def canaries(tmp_path):
    folder, mask, handler, core = (
        os.getcwd(),
        os.umask(0o22),
        signal.getsignal(signal.SIGUSR2),
        resource.getrlimit(resource.RLIMIT_CORE),
    )
    if core[1] == resource.RLIM_INFINITY or core[1] > 0:
        resource.setrlimit(resource.RLIMIT_CORE, (1, core[1]))  # so that it can be seen to change
    watched = Canaries(tmp_path / "canaries")
    yield watched
    watched.close()
    resource.setrlimit(resource.RLIMIT_CORE, core)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGUSR2, handler)
    os.umask(mask)
    os.chdir(folder)
    for name in ("VMHOST_FUZZ_MORE", "VMHOST_FUZZ_SECRET"):
        os.environ.pop(name, None)


def test_nothing_is_told_of_nothing(canaries):
    assert canaries.changed(0) == []
    (canaries.folder / "inside" / "new").write_text("a task may write there")
    time.sleep(0.01)
    assert canaries.changed(0) == []


@pytest.mark.parametrize("name", EFFECTS)
def test_an_effect_is_told(canaries, name):
    effect, word = EFFECTS[name]
    if name == "a limit" and resource.getrlimit(resource.RLIMIT_CORE)[0] == 0:
        pytest.skip("this process may have no core files, so there is no limit to lower")
    canaries.changed(0)
    effect(canaries)
    changes = canaries.changed(0)
    assert any(one.startswith(word) for one in changes), changes


def test_a_descriptor_that_is_left_open_is_told_unless_a_vm_was_lost(canaries):
    canaries.changed(0)
    left = os.open(canaries.folder / "inside", os.O_RDONLY)
    try:
        assert [str(canaries.folder / "inside") in one for one in canaries.changed(0)] == [True]
        assert canaries.changed(1) == []
    finally:
        os.close(left)


def test_the_last_calls_of_each_thread_come_in_order(tmp_path):
    (tmp_path / "0.notes").write_bytes(b"33: third()\n31: first()  \n32: second(\\xff)\n")
    assert notes(tmp_path) == {"0": ["31: first()", "32: second(\\xff)", "33: third()"]}
