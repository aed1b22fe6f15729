"""Recursion in C that CPython does not count runs over the end of a VM's stack: the VM is lost, and nothing else
(overflow.c).

Its caller is told, its task's breaker opens, other calls go on, the process forks and leaves with its own status. A
crash that is not an overflow still ends the process, attributed, with every handler's turn. A Python that has learnt to
count answers a call that overflows here with an error of the task's, which is as good."""

import signal

import pytest

from tests.hosts import in_a_process

DEEP = {
    "map": "it = iter([1])\n    for _ in range(10**5): it = map(abs, it)\n    next(it, 0)",
    "itertools.chain": (
        "import itertools\n    it = iter(())\n    for _ in range(10**5): it = itertools.chain(it)\n    next(it, 0)"
    ),
    "generic aliases": "alias = int\n    for _ in range(10**5): alias = list[alias]\n    hash(alias)",
    "filter": "it = iter([1])\n    for _ in range(10**5): it = filter(None, it)\n    next(it, 0)",
    "enumerate": "it = iter([1])\n    for _ in range(10**5): it = enumerate(it)\n    next(it, 0)",
    "zip": "it = iter([1])\n    for _ in range(10**5): it = zip(it)\n    next(it, 0)",
    "itertools.islice": (
        "import itertools\n    it = iter([1])\n    for _ in range(10**5): it = itertools.islice(it, 1)\n    next(it, 0)"
    ),
    "functools.partial": (
        "import functools\n    call = len\n    for _ in range(10**5):\n        outer = functools.partial(len)\n"
        "        outer.__setstate__((call, (), {}, {}))\n        call = outer\n    call([])"
    ),
    # arguments add up, so each level asks malloc for memory, whose frames lie deepest: it is there that the end of the
    # stack is met
    "in malloc": (
        "import functools\n    call = len\n    for _ in range(10**4):\n        outer = functools.partial(len)\n"
        "        outer.__setstate__((call, (1,), {}, {}))\n        call = outer\n    call([])"
    ),
}

WHERE = """
import threading

def deep():
    {deep}

class Last:
    def __del__(self):
        deep()

def setup():
    if PHASE == "load":
        deep()

def teardown():
    if PHASE == "end":
        deep()

def run(value):
    if PHASE == "call":
        deep()
    if PHASE == "thread":
        thread = threading.Thread(target=deep)
        thread.start()
        thread.join()
    if PHASE == "finaliser":
        threading.last = Last()     # found when the interpreter itself is taken down
    return value

PHASE = {phase!r}
"""

GOES_ON = """
    from tests.crashers.test_c_stack import DEEP, WHERE
    what, phase, folder = sys.argv[1:]
    policy = Policy(task=TaskPolicy(breaker=BreakerPolicy(open_s=60)))
    host = vmhost.Host(allow_unsigned=True, state=folder, policy=policy)
    good = host.load(bundle("def run(value):\\n    return [str(n) * 100 for n in range(1000)][value]\\n", "good"))
    answers, stop = [], threading.Event()
    def go_on():
        while not stop.is_set():
            answers.append(good(7, timeout_s=20) == "7" * 100)
    others = [threading.Thread(target=go_on) for _ in range(2)]
    for thread in others:
        thread.start()
    bad = host.load(bundle(WHERE.format(deep=DEEP[what], phase=phase), "bad", limits={"memory_bytes": 256 << 20}))
    try:
        print("answered", bad(1, timeout_s=60))
    except vmhost.VMHostError as error:
        print(type(error).__name__, "C stack" in str(error))
    host.unload("bad") if phase in ("end", "finaliser") else None
    until(lambda: host.statistics().quarantined)
    print([(vm.task, vm.state) for vm in host.statistics().quarantined])
    seen = len(answers)
    until(lambda: len(answers) > seen + 20)
    stop.set()
    for thread in others:
        thread.join()
    print(all(answers))
    if phase not in ("end", "finaliser"):
        try:
            bad(1)
        except vmhost.BreakerOpenError:
            print("BreakerOpenError")
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    child = os.fork()
    if child == 0:
        os._exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    host.close()
    with vmhost.Host(allow_unsigned=True, state=folder) as again:
        print([crash.task for crash in again.crashes],
              again.load(bundle("def run(value):\\n    return value\\n", "new"))(4))
    sys.exit(6)
"""


def check(what, phase, folder):
    done = in_a_process(GOES_ON, what, phase, folder)
    if done.stdout.startswith("TaskError"):
        return
    outcome = "answered 1" if phase in ("end", "finaliser") else "VMLostError True"
    opened = [] if phase in ("end", "finaliser") else ["BreakerOpenError"]
    assert done.stdout.splitlines() == [outcome, "[('bad', 'quarantined')]", "True", *opened, "3", "[] 4"], done.stderr
    assert done.returncode == 6, done.stderr
    assert "Fatal" not in done.stderr


@pytest.mark.parametrize("what", ["map", "functools.partial", "in malloc"])
def test_a_call_that_runs_over_the_end_of_its_stack_loses_its_vm_and_nothing_else(what, tmp_path):
    check(what, "call", tmp_path)


@pytest.mark.parametrize("phase", ["load", "thread", "end", "finaliser"])
def test_so_it_is_wherever_in_the_vm_it_happens(phase, tmp_path):
    check("map", phase, tmp_path)


@pytest.mark.stress
@pytest.mark.parametrize(
    "what", ["itertools.chain", "generic aliases", "filter", "enumerate", "zip", "itertools.islice"]
)
def test_the_other_recursions_that_cpython_does_not_count(what, tmp_path):
    check(what, "call", tmp_path)


MANY = """
    from tests.crashers.test_c_stack import DEEP
    import random
    seed = int(sys.argv[1])
    print("seed", seed)
    choice = random.Random(seed)
    deep = "\\n".join(f"def deep_{n}():\\n    {text.replace('10**5', 'DEPTH').replace('10**4', 'DEPTH')}\\n"
                      for n, text in enumerate(DEEP.values()))
    source = deep + ("def run(value):\\n    global DEPTH\\n    kind, DEPTH = value\\n"
                     "    globals()[f'deep_{kind}']()\\n    return 'fitted'\\n")
    policy = Policy(task=TaskPolicy(breaker=BreakerPolicy(enabled=False)))
    host = vmhost.Host(allow_unsigned=True, policy=policy)
    good = host.load(bundle("def run(value):\\n    return [dict(n=[n] * 99) for n in range(300)][value]\\n", "good"))
    bad = host.load(bundle(source, limits={"stack_bytes": 128 << 10}))
    ends, stop, answers = {}, threading.Event(), []
    def go_on():
        while not stop.is_set():
            answers.append(good(7, timeout_s=20) == {"n": [7] * 99})
    other = threading.Thread(target=go_on)
    other.start()
    for _ in range(int(sys.argv[2])):
        try:
            end = bad((choice.randrange(len(DEEP)), choice.randrange(500, 3000)), timeout_s=30)
        except vmhost.VMHostError as error:
            end = type(error).__name__
        ends[end] = ends.get(end, 0) + 1
    stop.set()
    other.join()
    quarantined = len(host.close())
    print(ends, quarantined, len(answers), all(answers))
    assert (all(answers) and answers and quarantined == ends["VMLostError"]
            and set(ends) <= {"VMLostError", "fitted", "TaskError", "MemoryLimitError"})
    sys.exit(6)
"""


def check_many(seed, calls):
    done = in_a_process(MANY, seed, calls)
    assert done.returncode == 6, done.stdout + done.stderr


def test_calls_that_just_fit_or_just_do_not_are_all_answered():
    check_many(1, 60)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(10, 20))
def test_thousands_of_calls_that_just_fit_or_just_do_not_are_all_answered(seed):
    check_many(seed, 400)


def test_malloc_at_the_end_of_the_stack_leaves_pages_in_which_cpython_does_not_abort():
    """Each depth around the one that just fits: malloc meets the end, is let on, and returns to code above it."""
    done = in_a_process("""
        from tests.crashers.test_c_stack import DEEP
        text = DEEP["in malloc"].replace("10**4", "value")
        policy = Policy(task=TaskPolicy(breaker=BreakerPolicy(enabled=False)))
        host = vmhost.Host(allow_unsigned=True, policy=policy)
        bad = host.load(bundle(f"def run(value):\\n    {text}\\n", limits={"stack_bytes": 128 << 10}))
        def end(depth):
            try:
                return bad(depth, timeout_s=30)
            except vmhost.VMHostError as error:
                return type(error).__name__
        fits, too_deep = 100, 4000
        while too_deep - fits > 1:
            middle = (fits + too_deep) // 2
            fits, too_deep = (fits, middle) if end(middle) == "VMLostError" else (middle, too_deep)
        print(sorted({end(depth) for depth in range(fits - 10, fits + 40)}))
        host.close()
        sys.exit(6)
    """)
    assert (done.stdout.splitlines(), done.returncode) == (["['TaskError', 'VMLostError']"], 6), done.stderr


def test_a_queue_full_of_calls_that_all_overflow_costs_a_few_vms_not_one_each():
    done = in_a_process("""
        from tests.crashers.test_c_stack import DEEP
        host = vmhost.Host(allow_unsigned=True, policy=Policy(max_vms=2))
        bad = host.load(bundle(f"def run(value):\\n    {DEEP['map']}\\n", "bad"))
        futures = [bad.submit(n) for n in range(50)]
        print({type(future.exception(timeout=60)).__name__ for future in futures})
        print(3 <= len(host.close()) <= 6)
        sys.exit(6)
    """)
    assert (done.stdout.splitlines(), done.returncode) == (["{'VMLostError'}", "True"], 6), done.stderr


# The code of the bundle is damaged where no verifier looks: LOAD_FAST of a local that was never set, whose NULL it then
# calls.
NULL = """
    import ctypes, faulthandler, marshal
    from vmhost.isolation import vm as isolation
    from vmhost.host import system_code_store
    faulthandler.enable()
    core = isolation.core()
    core.crash_open(os.path.join(sys.argv[2], "crash.map"))
    if sys.argv[1] == "host":
        ctypes.string_at(8)
    source = "def run(value):\\n    value()\\n"
    made = bundle(source, "bad")
    code = marshal.loads(made.modules["main"].code)
    [run] = [const for const in code.co_consts if hasattr(const, "co_code")]
    import opcode
    raw = bytearray(run.co_code)
    raw[:] = raw.replace(bytes((opcode.opmap["LOAD_FAST_BORROW"], 0)), bytes((opcode.opmap["LOAD_FAST"], 1)))
    assert bytes(raw) != run.co_code
    damaged = run.replace(co_code=bytes(raw), co_nlocals=2, co_varnames=("value", "other"))
    code = code.replace(co_consts=tuple(damaged if const is run else const for const in code.co_consts))
    store = core.CodeStore()
    store.add_module("main", False, marshal.dumps(code))
    events = core.Events()
    lane = core.Lane("bad", "1", store, "main:run", events)
    vm = core.VM(system_code_store(core), events)
    vm.attach(lane)
    lane.call(1, 20)
"""

NEXT = """
    with vmhost.Host(state=sys.argv[1]) as host:
        print([(crash.task, crash.phase, crash.signal) for crash in host.crashes])
"""


@pytest.mark.parametrize(("where", "expected"), [("host", []), ("vm", [("bad", "call", "SIGSEGV")])])
def test_a_null_pointer_is_no_overflow_and_ends_the_process_attributed(where, expected, tmp_path):
    done = in_a_process(NULL, where, tmp_path)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    assert "Fatal Python error: Segmentation fault" in done.stderr, (
        "faulthandler, which was there before, has its turn too"
    )
    assert in_a_process(NEXT, tmp_path).stdout.splitlines() == [str(expected)]
