"""CPython's own tests in a process without a compiler: `python tests/guest/cpython_suite.py FOLDER [MODULE ...]`.

FOLDER holds CPython's tests (the folder `test` of its standard library; Debian packs it as libpython3.14-testsuite).
Prints, for each module, how many tests pass in CPython and how many of those in the sealed process, and names those
that do not. Exit status 1 if any. Not part of the test suite, since the tests are not everywhere and take minutes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODULES = (
    "test_annotationlib",
    "test_collections",
    "test_contextlib",
    "test_dataclasses",
    "test_enum",
    "test_functools",
    "test_gettext",
    "test_inspect.test_inspect",
    "test_statistics",
    "test_types",
    "test_typing",
    "test_urlparse",
    "test_asyncio.test_base_events",
    "test_asyncio.test_runners",
    "test_asyncio.test_tasks",
    "test_unittest.testmock.testmock",
)

PROGRAM = """
import importlib, io, os, sys, unittest, warnings
import test
test.__path__.append(os.environ["SUITE"])
warnings.simplefilter("ignore")

class Names(unittest.TestResult):
    passed = ()

    def addSuccess(self, test):
        self.passed = (*self.passed, test.id())

result = Names()
result.buffer = True
module = importlib.import_module("test." + os.environ["SUITE_MODULE"])
unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
import json
with open(os.environ["SUITE_OUT"], "w") as file:
    failed = {one.id(): text for one, text in result.failures + result.errors}
    json.dump({"passed": result.passed, "failed": failed}, file)
"""


def run(folder, module, *before):
    """(names of tests that passed, {name: traceback of those that failed})"""
    program, out = Path("program.py").resolve(), Path("out.json").resolve()
    program.write_text(PROGRAM, encoding="utf-8")
    out.unlink(missing_ok=True)
    exempt = f"{folder}{os.sep}:{Path(os.__file__).parent / 'test'}{os.sep}:{Path(os.__file__).parent / 'doctest.py'}"
    done = subprocess.run(
        [sys.executable, "-s", "-P", "-S", *before, program],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={
            **os.environ,
            "SUITE": str(folder),
            "SUITE_MODULE": module,
            "SUITE_OUT": str(out),
            "SEALED_EXCEPT": exempt,
        },
    )
    if not out.exists():
        return set(), {module: done.stderr}
    found = json.loads(out.read_text())
    return set(found["passed"]), found["failed"]


def main(folder, *modules):
    import tempfile

    os.chdir(tempfile.mkdtemp())
    lost = 0
    for module in modules or MODULES:
        passed, _ = run(folder, module)
        sealed, failed = run(folder, module, HERE / "sealed_python.py")
        print(
            f"{module:36}{len(passed):6} pass in CPython,{len(passed & sealed):6} of them without a compiler",
            flush=True,
        )
        for name in sorted(passed - sealed):
            lost += 1
            reason = failed.get(name) or failed.get(module) or "?"
            print(f"    {name}: {reason.strip().splitlines()[-1][:120]}")
    return 1 if lost else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    raise SystemExit(main(str(Path(sys.argv[1]).resolve()), *sys.argv[2:]))
