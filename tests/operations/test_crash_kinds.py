"""The programs in tests/crashers once crashed the process: run without the checks that refuse them now, each leads to
a crash report that names the task."""

import signal
from pathlib import Path

import pytest

from tests.hosts import in_a_process
from vmhost.operations.crash_reports import CrashFolder

CRASHERS = sorted(Path(__file__).parents[1].joinpath("crashers").glob("verifier-3.14-*.txt"))

FATAL = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)

# The module `mutant` of the task is damaged code, which is not verified here.
MUTANT = """
    import base64, dataclasses
    from pathlib import Path
    from vmhost.bytecode.format import bundle_in_memory

    path, state = sys.argv[1:]
    text = "".join(line for line in Path(path).read_text().splitlines() if not line.startswith("#"))
    code = base64.b64decode(text)
    made = bundle('''
        def call(function, depth):
            for arguments in ((), (1,), (1, 2), ([1, 2], 3, 4)):
                try:
                    found = function(*arguments)
                    if depth and callable(found):
                        call(found, depth - 1)
                    if hasattr(found, "send"):
                        found.send(None)
                    list(found)
                except Exception:
                    pass

        def run(value):
            import mutant
            for name, function in list(vars(mutant).items()):
                if callable(function):
                    call(function, 2)
    ''', "bad", limits={"wall_time": "5 s"})
    modules = {**made.modules, "mutant": type(made.modules["main"])(False, code)}
    made = bundle_in_memory(dataclasses.replace(made.manifest, files={}), modules)
    type(made).verify = lambda self: None
    with vmhost.Host(allow_unsigned=True, state=state) as host:
        try:
            host.load(made)(1)
        except vmhost.VMHostError as error:
            print(type(error).__name__)
"""


def report_of(script, *arguments, state):
    """(how the process ended, the only report of its crash; None: it did not crash)."""
    done = in_a_process(script, *arguments, state)
    folder = CrashFolder(state)
    folder.take_dump()
    reports = folder.collect()
    # Damaged code may do anything, so also end the process in another way.
    assert len(reports) == (-done.returncode in FATAL), (done.returncode, done.stderr)
    return done.returncode, reports[0] if reports else None


def test_damaged_code_that_crashes_cpython_leads_to_a_report_of_its_task(tmp_path):
    def one(path):
        return report_of(MUTANT, path, state=tmp_path / path.stem)

    found = list(map(one, CRASHERS))
    crashed = [(code, report) for code, report in found if report is not None]
    assert len(crashed) > len(CRASHERS) / 4, "what is kept crashes CPython"
    for code, report in crashed:
        assert (report.signal, report.task, report.version) == (signal.Signals(-code).name, "bad", "1.0.0")
        # damage may have an effect only when the VM ends
        assert report.phase in ("call", "end") and report.complete and report.native
        assert report.call["entry"] == "main:run" if report.phase == "call" else report.call is None


NULL = """
    import ctypes
    from vmhost.isolation import vm
    where, state = sys.argv[1:]
    host = vmhost.Host(allow_unsigned=True, state=state, functions={"read": lambda address: ctypes.string_at(8)})
    source = "from vmhost.guest import host\\ndef run(value):\\n    return host.read(8)\\n"
    task = host.load(bundle(source, "bad", permissions={"host": ["read"]}))
    if where == "a host function":
        task(1)
    if where == "a map of a cut file":
        import mmap
        with open(state + "-file", "w+b") as file:
            file.write(bytes(1 << 16))
            file.flush()
            mapped = mmap.mmap(file.fileno(), 1 << 16)
            file.truncate(0)
            mapped[1 << 15]
    if where == "abort":
        os.abort()
"""


@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("a host function", signal.SIGSEGV),
        ("a map of a cut file", signal.SIGBUS),
        ("abort", signal.SIGABRT),
    ],
)
def test_a_crash_of_the_host_itself_names_no_task(tmp_path, where, number):
    code, report = report_of(NULL, where, state=tmp_path / "state")
    assert code == -number
    assert (report.signal, report.task, report.call) == (number.name, None, None)
    assert report.complete and report.native
