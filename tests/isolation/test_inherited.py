"""A VM's threads do not keep what threads inherit: blocked signals, a rounding mode, tracing of memory."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests.hosts import PROLOGUE, ROOT


def run(program, *, options=(), env=None, timeout_s=180):
    """The exit status and the output of a program in a process of its own."""
    ended = subprocess.run(
        [sys.executable, *options, "-c", PROLOGUE + textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=env,
    )
    return ended.returncode, ended.stdout, ended.stderr


OVERFLOW = textwrap.dedent("""
    OVERFLOW = '''
        def run(value):
            if value:
                nested = iter([1])
                for _ in range(200_000):
                    nested = map(int, nested)
                next(nested)
            return "right"
    '''
    def overflows(host):
        try:
            host.load(bundle(OVERFLOW))(1)
        except vmhost.VMLostError:
            return host.load(bundle(OVERFLOW, name="other"))(0)
""")


def test_a_stack_overflow_loses_one_vm_where_all_signals_are_blocked():
    program = OVERFLOW + textwrap.dedent("""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with vmhost.Host(allow_unsigned=True) as host:
        print(overflows(host), flush=True)
    os._exit(0)
    """)
    code, out, err = run(program)
    assert (code, out) == (0, "right\n"), err


def test_signals_to_the_process_are_left_to_the_host():
    """Threads of VMs and of the engine, and the warden, block them; faults of the thread itself they do not: the system
    would end the process without a report."""
    program = """
    import contextlib
    GUEST = '''
        import threading
        import vmhost.engine.numpy as np

        def run(value):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            large = np.ones((700, 700))
            large @ large
            np.linalg.svd(np.eye(3))
            return value
    '''
    with vmhost.Host(allow_unsigned=True) as host:
        host.load(bundle(GUEST))(1)
        known = {thread.native_id for thread in threading.enumerate()}
        for _ in range(1000):  # a thread that is just being made blocks all of them
            masks = []
            for tid in {int(name) for name in os.listdir("/proc/self/task")} - known:
                with contextlib.suppress(OSError), open(f"/proc/self/task/{tid}/status") as status:
                    masks += [int(line.split()[1], 16) for line in status if line.startswith("SigBlk")]
            faults = [mask >> number - 1 & 1 for mask in masks for number in (signal.SIGSEGV, signal.SIGBUS)]
            if not any(faults):
                break
            time.sleep(0.01)
        bits = [[mask >> number - 1 & 1 for number in (signal.SIGTERM, signal.SIGINT)] for mask in masks]
        # the VM's two, the warden, one for LAPACK, and the engine's helpers where there are cores
        print(len(masks) >= 4, {tuple(pair) for pair in bits}, any(faults))
    """
    code, out, err = run(program)
    assert (code, out) == (0, "True {(1, 1)} False\n"), err


def test_a_vm_rounds_and_keeps_subnormals_whatever_the_host_does():
    program = """
    import ctypes, ctypes.util
    libm = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
    FE_UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}[os.uname().machine]
    GUEST = '''
        import threading
        def run(value):
            got = []
            thread = threading.Thread(target=lambda: got.append(value / 3))
            thread.start()
            thread.join()
            return [value / 3, *got]
    '''
    one = float(len(sys.argv))
    plain = one / 3
    libm.fesetround(FE_UPWARD)
    up = one / 3
    with vmhost.Host(allow_unsigned=True) as host:
        results = host.load(bundle(GUEST))(1.0)
        libm.fesetround(0)
        print(up > plain, results == [plain, plain])
    """
    assert run(program)[:2] == (0, "True True\n")


BOOTS = textwrap.dedent("""
    GUEST = '''
        import json, decimal, dataclasses, collections
        @dataclasses.dataclass
        class Record:
            number: int
        def run(value):
            return json.dumps([Record(number).number for number in range(value)])
    '''
    def boot_and_end(rounds):
        for _ in range(rounds):
            with vmhost.Host(allow_unsigned=True) as host:
                tasks = [host.load(bundle(GUEST, name=f"task{at}")) for at in range(4)]
                for future in [task.submit(100) for task in tasks]:
                    future.result()
""")


def test_vms_boot_import_and_end_while_the_host_traces_its_memory():
    """tracemalloc's table of file names is shared by all interpreters: it kept strings of ended ones."""
    program = BOOTS + textwrap.dedent("""
    import tracemalloc
    tracemalloc.start(25)
    boot_and_end(4)
    snapshot = tracemalloc.take_snapshot()
    names = {frame.filename for trace in snapshot.traces for frame in trace.traceback}
    print("traced", any("host" in name for name in names), [name for name in names if "task0" in name])
    """)
    assert run(program)[:2] == (0, "traced True []\n")


HELD = textwrap.dedent("""
    HOG = '''
        def run(value):
            kept = []
            while len(kept) < value:
                kept.append([0] * 100_000)
            return len(kept)
        def small(value):
            kept = []
            while len(kept) < value:
                kept.append(("x", len(kept), [1.5 * len(kept)]))
            return len(kept)
        def raw(value):
            kept = bytearray()
            while len(kept) < value:
                kept += bytes(100_000)
            return len(kept)
    '''
    def held():
        ends = []
        with vmhost.Host(allow_unsigned=True) as host:
            task = host.load(bundle(HOG, limits={"memory": "32 MiB"}))
            ends.append(task(5))
            for entry, count in (("run", 600), ("small", 4_000_000), ("raw", 500_000_000)):
                try:
                    ends.append(task(count, entry="main:" + entry))
                except vmhost.MemoryLimitError:
                    ends.append("held")
        return ends
""")


@pytest.mark.parametrize("allocator", ["default", "malloc", "debug", "malloc_debug"])
def test_memory_limits_are_held_with_every_allocator(allocator):
    """The default is pymalloc, with `debug` pymalloc_debug."""
    code, out, err = run(HELD + "print(held())", env={**os.environ, "PYTHONMALLOC": allocator})
    assert (code, out) == (0, "[5, 'held', 'held', 'held']\n"), err


def test_memory_limits_are_held_in_development_mode():
    code, out, err = run(HELD + "print(held())", options=("-X", "dev"))
    assert (code, out) == (0, "[5, 'held', 'held', 'held']\n"), err


@pytest.mark.parametrize("allocator", ["mimalloc", "mimalloc_debug"])
def test_a_host_refuses_to_start_where_limits_cannot_be_held(allocator):
    code, out, err = run(
        """
        try:
            vmhost.Host(allow_unsigned=True)
        except vmhost.ConfigurationError as error:
            print(error)
        """,
        env={**os.environ, "PYTHONMALLOC": allocator},
    )
    assert code == 0 and "PYTHONMALLOC=mimalloc" in out and "set it to pymalloc" in out, (out, err)


def test_the_doctor_says_once_that_limits_cannot_be_held():
    ended = subprocess.run(
        [sys.executable, "-m", "vmhost", "doctor"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONMALLOC": "mimalloc"},
    )
    wrong = [line for line in ended.stdout.splitlines() if line.startswith("WRONG")]
    assert ended.returncode != 0 and len(wrong) == 1 and "no host starts" in wrong[0], ended.stdout


@pytest.mark.parametrize("when", ["before the first host", "while it runs"])
def test_memory_limits_are_held_after_tracemalloc_was_stopped(when):
    program = HELD + textwrap.dedent(f"""
    import tracemalloc
    if {when!r} == "before the first host":
        tracemalloc.start()
    with vmhost.Host(allow_unsigned=True) as first:
        task = first.load(bundle("def run(value): return value"))
        task(1)
        if {when!r} == "while it runs":
            tracemalloc.start()
        task(2)
    traced = held()
    tracemalloc.stop()
    print(traced, held())
    """)
    code, out, err = run(program)
    assert (code, out) == (0, "[5, 'held', 'held', 'held'] [5, 'held', 'held', 'held']\n"), err


@pytest.mark.parametrize("policy, priority", [("SCHED_FIFO", 1), ("SCHED_FIFO", 50), ("SCHED_RR", 1)])
def test_a_loop_is_stopped_under_a_real_time_policy_on_one_core(policy, priority):
    """A real-time thread runs until it waits: VMs stand below the thread that stops them."""
    try:
        os.sched_setscheduler(0, getattr(os, policy), os.sched_param(priority))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except PermissionError:
        pytest.skip("needs the privilege to set a real-time policy (CAP_SYS_NICE)")
    program = f"""
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    os.sched_setscheduler(0, os.{policy}, os.sched_param({priority}))
    GUEST = '''
        import threading
        def run(value):
            for _ in range(value or 0):
                threading.Thread(target=run, args=(0,), daemon=True).start()
            while value is not None:
                pass
            return "right"
    '''
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(bundle(GUEST))
        for threads in (0, 2):
            try:
                task(threads, timeout_s=0.5)
            except vmhost.TimeLimitError:
                print("stopped")
        print(task(None))
    """
    code, out, err = run(program, timeout_s=60)
    assert (code, out) == (0, "stopped\nstopped\nright\n"), err
