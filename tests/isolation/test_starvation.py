"""Stops on a machine without a free core: a VM that is not scheduled cannot unwind, and is not quarantined for that.

The program and six busy loops share one core: each thread has a turn every twenty milliseconds or so, which is many
times the grace."""

import os
from textwrap import dedent

import pytest

from tests.hosts import in_a_process

STARVED = """
    import atexit, subprocess
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    host = vmhost.Host(allow_unsigned=True, policy=Policy(grace_s=0.004, warm=0))
    def spinning(name):
        task = host.load(bundle("def run(value):\\n    while value is None: pass\\n    return value\\n", name))
        assert task(1) == 1
        return task
    def compete():
        # ends by itself, should this program fail
        loop = "import signal\\nsignal.alarm(60)\\nprint(flush=True)\\nwhile True: pass"
        for _ in range(6):
            process = subprocess.Popen([sys.executable, "-S", "-c", loop], stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL)
            atexit.register(process.kill)
            process.stdout.readline()
"""

CASES = {
    "stop()": (
        """
        task = spinning("task")
        compete()
        for _ in range(3):
            future = task.submit(None)
            until(future.running)
            future.stop()
            try:
                future.result()
            except BaseException as error:
                print(type(error).__name__)
    """
    ),
    "closing": (
        """
        futures = [task.submit(None) for task in [spinning("one"), spinning("two"), spinning("three")]]
        for future in futures:
            until(future.running)
        compete()
    """
    ),
}


@pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="this kernel does not tell what threads wait for cores"
)
@pytest.mark.parametrize("case", CASES)
def test_a_vm_that_has_no_turn_is_not_quarantined(case):
    done = in_a_process(dedent(STARVED) + dedent(CASES[case]) + "print(host.close(drain=False))\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == (["CancelledError"] * 3 if case == "stop()" else []) + ["()"]
