"""A VM gives way to other threads while it boots; once it serves calls it must be scheduled as they are, or callers
wait."""

import ctypes
import os
import struct

import vmhost
from tests.hosts import bundle
from vmhost.limits import Policy

_SCHED_GETATTR = {"x86_64": 315}.get(os.uname().machine, 275)  # 275: the numbers that all newer architectures share


def slice_ns(thread):
    """The time slice of the thread with this number; 0 where the kernel has none to tell (before Linux 6.12)."""
    attributes = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None, use_errno=True).syscall(_SCHED_GETATTR, thread, attributes, 48, 0) == 0, ctypes.get_errno()
    return struct.unpack("IIQiIQQQ", attributes.raw)[5]


def test_a_vm_that_serves_is_as_urgent_as_any_thread():
    before = set(os.listdir("/proc/self/task"))
    with vmhost.Host(allow_unsigned=True, policy=Policy(max_warm=0, warm=0)) as host:
        task = host.load(bundle("def run(value): return value"))
        assert task(1) == 1
        threads = set(os.listdir("/proc/self/task")) - before
        assert len(threads) >= 2  # the VM's, and the host's service
        usual = slice_ns(os.getpid())
        assert [slice_ns(int(thread)) for thread in threads if slice_ns(int(thread)) > usual] == []
