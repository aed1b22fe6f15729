"""CPython's own tests in sealed VMs: `python -m tests.conformance [MODULE ...] [--suite FOLDER] [--vms N] [--times N]`.

Compiles each test module into a bundle, runs it in a sealed VM and in plain CPython, and prints for each how many tests
pass there and here. Left out of the share are tests for which plain CPython's own run raised an audit event, from the
test's own frames, that a sealed VM denies. What still differs must have a reason in reasons.toml. Writes
build/conformance/report.json and report.html. Exit status 1 if a difference has no reason, or a module could not be run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import report
from .folders import Folder, original

HERE = Path(__file__).resolve().parent
_PLAIN_SECONDS = 900
_CLASS_SECONDS, _TEST_SECONDS = 300, 60


def _plain(tests, module, writable, out, keep):
    """What plain.py wrote about the module."""
    if keep and out.exists():
        kept = json.loads(out.read_text(encoding="utf-8"))
        if "error" not in kept:
            return kept
    out.unlink(missing_ok=True)
    try:
        done = subprocess.run([sys.executable, "-s", "-P", HERE / "plain.py", tests, module, writable, out],
                              capture_output=True, text=True, errors="replace", timeout=_PLAIN_SECONDS, check=False,
                              stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return {"error": f"plain CPython took longer than {_PLAIN_SECONDS} s"}
    if not out.exists():
        return {"error": f"plain CPython ended with {done.returncode}: {done.stderr.strip()[-300:]}"}
    return json.loads(out.read_text(encoding="utf-8"))


def _sealed(host, bundle, names, writable, home):
    """{id: [outcome, text]} of the tests `names`, run class by class in VMs of the host."""
    import vmhost

    task = host.load(bundle)
    outcomes, classes = {}, {}
    for name in names:
        classes.setdefault(name.rpartition(".")[0], []).append(name)

    def call(some, seconds):
        return task({"folder": writable, "home": home, "names": some}, timeout_s=seconds)

    try:
        for some in classes.values():
            try:
                found = call(some, _CLASS_SECONDS)
            except vmhost.VMHostError:      # the class lost its VM: test by test, to know which
                found = {}
                for name in some:
                    try:
                        found |= call([name], _TEST_SECONDS)
                    except vmhost.VMHostError as error:
                        found[name] = ["failed", f"{getattr(error, 'guest_traceback', '') or ''}\n"
                                                 f"{type(error).__name__}: {error}"]
            outcomes |= found
    finally:
        host.unload(task.name)
    return outcomes


def _one(module, home, tests, folder, host, lock, keep):
    writable = Path(tempfile.mkdtemp(dir=home / "writable")).resolve()
    folders = [writable / side for side in ("plain", "sealed")]
    for folder_of_side in folders:
        folder_of_side.mkdir()
    name = module.replace(".", "_")
    start = time.monotonic()
    plain = _plain(tests, module, folders[0], home / f"{name}.plain.json", keep)
    middle = time.monotonic()
    if "error" in plain:
        return {"module": module, "error": f"in plain CPython: {plain['error']}"}
    bundle = home / f"{name}.vmb"
    with lock:
        try:
            problem = folder.compile(module, bundle)
        except (OSError, SyntaxError, UnicodeDecodeError) as error:
            problem = f"{type(error).__name__}: {error}"
    if problem:
        return {"module": module, "error": f"not compiled: {problem}"}
    began = time.monotonic()
    try:
        outcomes = _sealed(host, bundle, plain["listed"], str(folders[1]), str(tests / "test"))
    except Exception as error:
        return {"module": module, "error": f"in a VM: {type(error).__name__}: {error}"}
    return {"module": module, "plain": plain["outcomes"], "denied": plain["denied"], "sealed": outcomes,
            "seconds": [round(middle - start, 2), round(time.monotonic() - began, 2)]}


def main(arguments=None):
    import vmhost
    from vmhost.limits import BreakerPolicy, Policy, TaskPolicy

    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="test_dict, test_json.test_decode, ... (default: all)")
    parser.add_argument("--suite", type=Path, help="the folder of CPython's tests, if the Python has none")
    parser.add_argument("--vms", type=int, default=2, help="modules that run side by side (2)")
    parser.add_argument("--keep", action="store_true", help="take plain CPython's results of the last run")
    parser.add_argument("--home", type=Path, default=Path("build/conformance"), help="where bundles and reports go")
    options = parser.parse_args(arguments)
    modules = options.modules or (HERE / "modules.txt").read_text(encoding="utf-8").split()
    home = options.home.resolve()
    (home / "writable").mkdir(parents=True, exist_ok=True)
    try:
        tests = original(home, options.suite)
    except FileNotFoundError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    folder, lock = Folder(home, tests, (home / "writable").resolve()), threading.Lock()
    policy = Policy(task=TaskPolicy(breaker=BreakerPolicy(enabled=False)))
    found = []
    with vmhost.Host(allow_unsigned=True, policy=policy) as host, ThreadPoolExecutor(options.vms) as threads:
        for one in threads.map(lambda module: _one(module, home, tests, folder, host, lock, options.keep), modules):
            found.append(report.judge(one))
            print(report.line(found[-1]), flush=True)
    totals = report.total(found)
    print(report.closing(totals))
    report.write(found, totals, home)
    print(f"whole report: {os.path.relpath(home / 'report.html')} and report.json")
    return 1 if totals["unexplained"] or totals["errors"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
