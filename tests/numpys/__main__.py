"""NumPy's own tests with `vmhost.engine.numpy` in its place: `python -m tests.numpys [FILE ...] [--quick] [--write]`.

Runs the test files of the installed NumPy (numpy/_core, lib, linalg, random, fft) but those of left_out.toml, in a few
processes. Every test that fails is filed in filed.txt under a reason of reasons.toml. Exit status 1 if a test
fails that is not filed, one passes that is, or a process crashes. --write files what is found, and its figures."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy

from . import filing

HERE = Path(__file__).resolve().parent
_PACKAGES = Path(numpy.__file__).resolve().parent.parent
_BATCH_SECONDS = 3600


def run(batch, folder):
    """{name of a test: (outcome, message)} of these files; RuntimeError with the last test if the process does not end
    well."""
    outcomes = folder / (batch[0].replace("/", "_") + ".jsonl")
    outcomes.touch()
    environment = os.environ | {
        "NPY_AVAILABLE_MEM": "0",  # tests that want gigabytes are skipped
        "NUMPYS_OUTCOMES": str(outcomes),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(HERE.parent.parent),
        "PYTHONHASHSEED": "0",
    }
    environment.pop("PYTEST_ADDOPTS", None)
    options = [
        "-q",
        "-p",
        "tests.numpys.plugin",
        "-p",
        "no:cacheprovider",
        "--noconftest",
        "--continue-on-collection-errors",
        "-m",
        "not slow",
        "-c",
        os.devnull,
    ]
    options += [f"--rootdir={_PACKAGES}", "--import-mode=importlib", "-W", "ignore", "--tb=native"]
    with tempfile.TemporaryFile("w+") as said:
        try:
            status = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *batch],
                cwd=_PACKAGES,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=_BATCH_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status = f"no end in {_BATCH_SECONDS} s"
        said.seek(0)
        text = said.read()
    found, last = {}, None
    for line in outcomes.read_text(encoding="utf-8").splitlines():
        name, outcome, message = json.loads(line)
        if outcome == "began":
            last = name
        elif found.get(name, ("passed",))[0] == "passed":  # a failure of set-up or tear-down is the test's
            found[name] = outcome, message
    if status not in (0, 1, 5):
        raise RuntimeError(
            f"CRASHED: {', '.join(batch)}: the process ended with {status} in {last}: {text.strip()[-500:]}"
        )
    return found


def files():
    """The test files that are run, relative to the folder of packages, and {file: why it is left out}."""
    left_out = filing.left_out()
    every = sorted(
        str(path.relative_to(_PACKAGES))
        for part in filing.FOLDERS
        for path in (_PACKAGES / "numpy" / part / "tests").glob("test_*.py")
    )
    return [file for file in every if file not in left_out], left_out


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.numpys", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="numpy/lib/tests/test_histograms.py, ... (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="the files of quick.txt: two minutes")
    parser.add_argument("--processes", type=int, default=2, help="files that run side by side (2)")
    parser.add_argument("--write", action="store_true", help="file what fails, and write the figures")
    parser.add_argument("--verbose", action="store_true", help="print the message of each failure that is not filed")
    options = parser.parse_args(arguments)
    if options.write and (options.files or options.quick):
        parser.error("--write files the results of all tests: name no files")
    filed = filing.read()
    if filed.version != numpy.__version__ and not options.write:
        print(
            f"filed.txt is of NumPy {filed.version}, installed is {numpy.__version__}: run it with --write, and look at"
            " what that changes"
        )
        return 1
    every, _ = files()
    chosen = options.files or (filing.quick() if options.quick else every)
    outcomes, crashes = {}, []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.processes) as threads:

        def one(batch):
            began = time.monotonic()
            try:
                found = run(batch, Path(folder))
            except RuntimeError as error:
                crashes.append(str(error))
                return
            outcomes.update(found)
            for file in batch:
                own = [outcome for name, (outcome, _) in found.items() if name.partition("::")[0] == file]
                print(f"{file:50}{own.count('passed'):6} pass{own.count('failed'):6} fail", flush=True)
            print(f"    {time.monotonic() - began:.1f} s", flush=True)

        count = options.processes  # few processes: each begins with seconds of imports
        list(threads.map(one, [batch for i in range(count) if (batch := chosen[i::count])]))
    if options.write and not crashes:
        filing.write(outcomes, numpy.__version__)
        filed = filing.read()
    wrong = filing.compare(outcomes, filed, chosen)
    for line in crashes + wrong:
        print(line)
    if options.verbose:
        for name, (outcome, message) in outcomes.items():
            if outcome == "failed" and filed.reason(name) is None:
                print(f"{name}: {message}")
    passed = sum(outcome == "passed" for outcome, _ in outcomes.values())
    failed = sum(outcome == "failed" for outcome, _ in outcomes.values())
    told = f"{passed + failed} run, {passed} pass, {failed} fail"
    print(f"{told}; {len(wrong)} are not as filed, {len(crashes)} crashes")
    return 1 if wrong or crashes else 0


if __name__ == "__main__":
    raise SystemExit(main())
