"""Does any code object that the verifier accepts crash the interpreter? Runs mutants that it accepts.

    python -m tests.properties.verifier_mutations --count 100000 [--seed N] [--jobs 2] [--only INDEX]

Every mutant follows from the seed and its index, so one can be made again alone (`--only`). A worker process mutates
and verifies; an accepted mutant runs in a child forked for it, in an empty folder, without builtins that reach the
machine, under limits of memory, CPU time and file size, with allocator checks on (PYTHONMALLOC=debug: freed memory is
overwritten, so a dangling reference shows). A child that ends by a signal other than those of its limits is a crash;
the mutant is written to `tests/crashers/` and the exit status is 1.
"""

import argparse
import base64
import builtins
import difflib
import dis
import gc
import importlib
import inspect
import io
import json
import marshal
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

from tests.properties.code_mutations import code_objects, load_specimens, mutant
from vmhost.bytecode.verifier import VerifyError, load, verify

ROOT = Path(__file__).resolve().parents[2]
CRASHERS = ROOT / "tests" / "crashers"
DEFAULT_SEED = 20261121

REJECTED, RAN, STUCK, UNREADABLE = "rejected", "ran", "stuck", "unreadable"
_STUCK_STATUS = 77
_ALARM_S, _GIVE_UP_S = 0.25, 1.5
_LIMIT_SIGNALS = {signal.SIGXCPU, signal.SIGKILL, signal.SIGALRM}


# -- running what was accepted


class TooLong(BaseException):
    """A mutant has had its time."""


# typing is among them as in a VM: 3.14.8 itself crashes on `class A[*T]` where it can't import typing
_ALLOWED_IMPORTS = frozenset(
    "math re itertools functools operator collections types numbers decimal fractions random bisect weakref copyreg "
    "json enum html string typing _weakref _json _heapq _bisect _string _typing".split()
)
_REMOVED = (
    "open",
    "input",
    "exec",
    "eval",
    "compile",
    "breakpoint",
    "exit",
    "quit",
    "help",
    "print",
    "license",
    "credits",
    "copyright",
    "memoryview",
)


def _safe_import(name, namespace=None, local=None, fromlist=(), level=0):
    if level or type(name) is not str or name.partition(".")[0] not in _ALLOWED_IMPORTS:
        raise ImportError(name)
    return __import__(name, None, None, fromlist if type(fromlist) is tuple else (), 0)


def _safe_builtins():
    safe = {name: value for name, value in vars(builtins).items() if name not in _REMOVED}
    safe["__import__"] = _safe_import
    safe["print"] = lambda *values, **named: None
    return safe


_ARGUMENTS = (
    (1, 2, 3, 4, 5, 6),
    ("ab", "c", "d", "e", "f", "g"),
    ([3, 1, 2], (1, 2), {"a": 1}, 2, "x", None),
    (None, 1.5, b"x", 3j, ..., {1}),
)


def _drive(value, depth=0):
    """Pulls at what a function gave: iterators, coroutines, asynchronous iterators, functions."""
    kind = type(value)
    if kind is types.GeneratorType or kind is types.CoroutineType:
        for step in range(6):
            value.send(None)
        if depth % 2:
            value.throw(ValueError("thrown"))
        value.close()
    elif kind is types.AsyncGeneratorType:
        for _ in range(4):
            step = value.asend(None)
            try:
                step.send(None)
            except StopIteration:
                pass
        value.aclose().send(None)
    elif kind is types.FunctionType and depth < 2:
        _call(value, depth + 1)
    else:
        repr(value)


def _look_at(error):
    """Reads what tools read of frames and code after an error."""
    trace = error.__traceback__
    for _ in range(20):
        if trace is None:
            break
        frame = trace.tb_frame
        trace.tb_lineno, frame.f_lineno, frame.f_lasti
        for name, value in frame.f_locals.items():
            type(value)
        list(frame.f_code.co_positions()), list(frame.f_code.co_lines())
        trace = trace.tb_next


def _call(function, depth=0):
    code = function.__code__
    wanted = code.co_argcount
    named = (
        dict.fromkeys(code.co_varnames[wanted : wanted + code.co_kwonlyargcount], 1)
        if code.co_kwonlyargcount < 20
        else {}
    )
    for round_ in range(7 if depth == 0 else 2):  # often enough for the interpreter to specialise instructions
        arguments = _ARGUMENTS[round_ % len(_ARGUMENTS) if round_ > 3 else 0][:wanted]
        try:
            _drive(function(*arguments, **named), depth + round_)
        except TooLong:
            raise
        except BaseException as error:
            _look_at(error)


def exercise(module, traced):
    """Runs a module's code, then calls every function and method it defines. May crash: that is the question."""
    namespace = {"__name__": "specimen", "__builtins__": _safe_builtins(), "__file__": "specimen.py"}
    if traced:
        sys.settrace(lambda frame, event, argument: _tracer)
    try:
        try:
            exec(module, namespace)
        except TooLong:
            raise
        except BaseException as error:
            _look_at(error)
        for value in list(namespace.values()):
            if type(value) is types.FunctionType:
                _call(value)
            elif isinstance(value, type) and value.__module__ == "specimen":
                try:
                    instance = value()
                except TooLong:
                    raise
                except BaseException:
                    instance = value
                for name, member in list(vars(value).items()):
                    if type(member) is types.FunctionType:
                        _call(member)
                        try:
                            getattr(instance, name)()
                        except TooLong:
                            raise
                        except BaseException as error:
                            _look_at(error)
    finally:
        sys.settrace(None)
    for _, code in code_objects(module):
        list(code.co_positions()), list(code.co_lines()), list(code.co_branches()), hash(code), marshal.dumps(code)


def _tracer(frame, event, argument):
    return _tracer


def _alarm(signum, frame):
    _alarm.count += 1
    if _alarm.count * 0.05 > _GIVE_UP_S:
        os._exit(_STUCK_STATUS)
    raise TooLong


_LIMITS = (
    (resource.RLIMIT_AS, 2 << 30),
    (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_FSIZE, 0),
    (resource.RLIMIT_CPU, 4),
    (resource.RLIMIT_NPROC, 0),
)


def _run_in_child(module, traced, verified):
    """The child's whole life. `module` is code, or marshalled bytes: read and verified here, since reading may crash
    too."""
    for what, amount in _LIMITS:
        resource.setrlimit(what, (amount, amount))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, 64)
    status = 0
    try:
        if type(module) is bytes:
            try:
                module = load(module, where="mutant") if verified else marshal.loads(module)
                if verified:
                    verify(module, where="mutant")
            except VerifyError:
                os._exit(2)
            except ValueError, TypeError, EOFError, SystemError, MemoryError, OverflowError, RecursionError:
                os._exit(3)
        _alarm.count = 0
        signal.signal(signal.SIGALRM, _alarm)
        signal.setitimer(signal.ITIMER_REAL, _ALARM_S, 0.05)
        try:
            exercise(module, traced)
        except TooLong:
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        module = None
        gc.collect()
    except BaseException:
        status = 0  # errors are as good as results: only a crash counts
    os._exit(status)


def run_accepted(module, traced, verified=True):
    """Runs a module's code in a child; gives RAN, STUCK, REJECTED, UNREADABLE or the name of the signal that killed it.

    With `verified` false, marshalled bytes run unverified: to see that what crashed still would.
    """
    child = os.fork()
    if child == 0:
        _run_in_child(module, traced, verified)
    deadline = time.monotonic() + 30
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            break
        time.sleep(0.0005)
    if os.WIFSIGNALED(status):
        killer = os.WTERMSIG(status)
        return STUCK if killer in _LIMIT_SIGNALS else signal.Signals(killer).name
    return {_STUCK_STATUS: STUCK, 2: REJECTED, 3: UNREADABLE}.get(os.WEXITSTATUS(status), RAN)


def judge(specimens, seed, index):
    """(name, what was done, outcome) of one mutant."""
    name, done, module = mutant(specimens, seed, index)
    if module is None:
        return name, done, UNREADABLE
    if type(module) is not bytes:
        try:
            verify(module, where="mutant")
        except VerifyError:
            return name, done, REJECTED
    return name, done, run_accepted(module, traced=index % 4 == 0)


# -- counting


def work(seed, indices, output):
    """One worker: a line of JSON for every mutant."""
    specimens = load_specimens()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in _ALLOWED_IMPORTS:  # once here, not in every child
            importlib.import_module(name)
        gc.freeze()
        for index in indices:
            name, done, outcome = judge(specimens, seed, index)
            print(json.dumps([index, name, done, outcome]), file=output, flush=outcome not in (REJECTED, RAN))
        output.flush()
        os.chdir("/")


def judge_files(paths, verified):
    """Prints a line of JSON, [file name, outcome], for each mutant that `keep` wrote."""
    with tempfile.TemporaryDirectory() as folder:
        files = [(Path(path).name, base64.decodebytes(Path(path).read_bytes().partition(b"\n")[2])) for path in paths]
        os.chdir(folder)
        for name, data in files:
            print(json.dumps([name, run_accepted(data, False, verified)]), flush=True)
        os.chdir("/")


def keep(seed, index):
    """Writes a mutant that crashed to `tests/crashers/`; returns the path."""
    name, done, module = mutant(load_specimens(), seed, index)
    data = module if type(module) is bytes else marshal.dumps(module)
    version = "{}.{}".format(*sys.version_info[:2])
    path = CRASHERS / f"verifier-{version}-{seed}-{index}.txt"
    path.parent.mkdir(exist_ok=True)
    what = f"marshalled module {name}, mutated by {', '.join(done)}"
    path.write_text(f"# {what}; crashes Python {version} when it runs unverified\n{base64.encodebytes(data).decode()}")
    return path


def start(arguments, **streams):
    """This program in a process of its own, with the allocator's checks on; a Popen."""
    environment = os.environ | {"PYTHONMALLOC": "debug", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.properties.verifier_mutations", *arguments], cwd=ROOT, env=environment, **streams
    )


def measure(seed, count, jobs):
    """Judges `count` mutants in `jobs` workers; returns {outcome: number}, {mutation: [accepted, all]} and the
    crashes."""
    workers = []
    for job in range(jobs):
        output = tempfile.TemporaryFile("w+")
        arguments = ["--worker", f"{job}:{jobs}", "--count", str(count), "--seed", str(seed)]
        workers.append((start(arguments, stdout=output), output))
    outcomes, kinds, crashes, failed = {}, {}, [], []
    for process, output in workers:
        if process.wait():
            failed.append(process.returncode)
        output.seek(0)
        for line in output:
            index, name, done, outcome = json.loads(line)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            if len(done) == 1:
                accepted = kinds.setdefault(done[0], [0, 0])
                accepted[0] += outcome not in (REJECTED, UNREADABLE)
                accepted[1] += 1
            if outcome not in (REJECTED, RAN, STUCK, UNREADABLE):
                crashes.append((index, name, done, outcome))
        output.close()
    if failed:
        raise RuntimeError(f"workers ended with status {failed}")
    return outcomes, kinds, crashes


def report(seed, outcomes, kinds, crashes):
    """The lines that say what was found."""
    total = sum(outcomes.values())
    crashed = len(crashes)
    ran = outcomes.get(RAN, 0) + outcomes.get(STUCK, 0) + crashed
    yield (
        f"seed {seed}: {total} mutants, {outcomes.get(REJECTED, 0)} rejected, "
        f"{outcomes.get(UNREADABLE, 0)} not even made, {ran} accepted and run ({100 * ran / max(1, total):.1f} %), "
        f"{outcomes.get(STUCK, 0)} of these stopped by their limits, {crashed} crashed"
    )
    for kind, (accepted, all_) in sorted(kinds.items()):
        yield f"    {kind:24} {accepted:6} of {all_:6} accepted"
    for index, name, done, outcome in crashes:
        yield f"    CRASH {outcome} mutant {index} of {name}: {', '.join(done)}"


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Mutates code objects, verifies them, and runs what is accepted.")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--only", type=int, help="judge this one mutant, and disassemble the code object that was changed"
    )
    parser.add_argument("--files", nargs="+", help="judge mutants that were kept in these files")
    parser.add_argument("--unverified", action="store_true", help="with --files: run them without asking the verifier")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        job, jobs = map(int, options.worker.split(":"))
        work(options.seed, range(job, options.count, jobs), sys.stdout)
        return 0
    if options.files:
        judge_files(options.files, not options.unverified)
        return 0
    if options.only is not None:
        specimens = load_specimens()
        name, done, outcome = judge(specimens, options.seed, options.only)
        print(f"mutant {options.only} of {name}: {', '.join(done)}: {outcome}")
        show_difference(specimens, options.seed, options.only)
        return 0
    begun = time.monotonic()
    outcomes, kinds, crashes = measure(options.seed, options.count, options.jobs)
    for line in report(options.seed, outcomes, kinds, crashes):
        print(line)
    for index, *_ in crashes[:20]:
        print("    kept in", keep(options.seed, index).relative_to(ROOT))
    print(f"    {time.monotonic() - begun:.0f} s")
    return 1 if crashes else 0


def show_difference(specimens, seed, index):
    """Prints how the changed code object differs from its original."""

    name, _, module = mutant(specimens, seed, index)
    if module is None or type(module) is bytes:
        return
    original = next(
        code
        for one, code in specimens[0] + specimens[1]
        if one == name and code.co_flags == module.co_flags and len(code_objects(code)) == len(code_objects(module))
    )

    def text(code):
        out = io.StringIO()
        dis.dis(code, depth=0, file=out)
        fields = [
            f"{field}={getattr(code, field)!r}"
            for field in dir(code)
            if field.startswith("co_")
            and field
            not in ("co_code", "co_consts", "co_lines", "co_positions", "co_branches", "co_linetable", "co_lnotab")
        ]
        return out.getvalue().splitlines() + fields

    for (_, old), (_, new) in zip(code_objects(original), code_objects(module)):
        if old.replace(co_consts=()) != new.replace(co_consts=()) or not inspect.iscode(new):
            print(
                "\n".join(
                    difflib.unified_diff(text(old), text(new), old.co_qualname, new.co_qualname, lineterm="", n=6)
                )
            )


if __name__ == "__main__":
    sys.exit(main())
