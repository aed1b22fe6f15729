"""What is known to crash CPython itself, and so the process: recursion in C that CPython does not count, over the end of a VM's stack.

None of it can be kept from a task. Held here: should it happen, the next host with the state folder names the task and starts with its breaker
open. A Python that has learnt to count answers with an error, which is as good.
"""

import signal

import pytest

from tests.hosts import in_a_process

DEEP = {
    "map": "it = iter([1])\n    for _ in range(10**6): it = map(abs, it)\n    next(it, 0)",
    "itertools.chain": "import itertools\n    it = iter(())\n    for _ in range(10**6): it = itertools.chain(it)\n    next(it, 0)",
    "generic aliases": "alias = int\n    for _ in range(10**5): alias = list[alias]\n    hash(alias)",
    "filter": "it = iter([1])\n    for _ in range(10**6): it = filter(None, it)\n    next(it, 0)",
    "enumerate": "it = iter([1])\n    for _ in range(10**6): it = enumerate(it)\n    next(it, 0)",
    "zip": "it = iter([1])\n    for _ in range(10**6): it = zip(it)\n    next(it, 0)",
    "itertools.islice": "import itertools\n    it = iter([1])\n    for _ in range(10**6): it = itertools.islice(it, 1)\n    next(it, 0)",
    "functools.partial": "import functools\n    call = len\n    for _ in range(10**6):\n        outer = functools.partial(len)\n"
                         "        outer.__setstate__((call, (), {}, {}))\n        call = outer\n    call([])",
}

SCRIPT = """
    from tests.crashers.test_c_stack import DEEP
    with vmhost.Host(allow_unsigned=True, state=sys.argv[2]) as host:
        print([(crash.task, crash.phase, crash.signal) for crash in host.crashes])
        limits = {"memory_bytes": 256 << 20}
        task = host.load(bundle(f"def run(value):\\n    {DEEP[sys.argv[1]]}\\n", "deep", limits=limits))
        try:
            task(1, timeout_s=30)
        except vmhost.VMHostError as error:
            print(type(error).__name__)
"""


def check(what, folder):
    first = in_a_process(SCRIPT, what, folder)
    if first.returncode == 0:
        return
    assert first.returncode == -signal.SIGSEGV, first.stderr
    second = in_a_process(SCRIPT, what, folder)
    assert second.returncode == 0, second.stderr
    assert second.stdout.splitlines() == ["[('deep', 'call', 'SIGSEGV')]", "BreakerOpenError"]


@pytest.mark.parametrize("what", list(DEEP)[:2])
def test_a_stack_that_cpython_does_not_guard_is_laid_at_the_tasks_door(what, tmp_path):
    check(what, tmp_path)


@pytest.mark.stress
@pytest.mark.parametrize("what", list(DEEP)[2:])
def test_the_other_stacks_that_cpython_does_not_guard(what, tmp_path):
    check(what, tmp_path)
