"""CPython's own tests in sealed VMs: `python -m tests.conformance [MODULE ...] [--suite FOLDER] [--vms N] [--times N]`.

Without names and --list, all modules of CPython's are run but those that left_out.toml names. Compiles each test module
into a bundle, runs it in a sealed VM and in plain CPython, and prints for each how many tests pass there and here. Left
out of the share are tests for which plain CPython's own run raised an audit event, from the test's own frames, that a
sealed VM denies. What still differs must have a reason in reasons.toml. Writes build/conformance/report.json and
report.html. Exit status 1 if a difference has no reason, the process crashed, a module could not be run, or (--check) a
module passes less than docs/conformance.md says."""

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

from . import device, report, selection
from .folders import Folder, original
from .sealed import Crashed, Process

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parent.parent / "docs" / "conformance.md"
_PLAIN_SECONDS = 900
_SKIPPED = ("SkipTest: ", "ResourceDenied: ")  # of a module that skips itself, as plain.py tells it


class Run:
    """One run of the command: its folders, and the process of the VMs."""

    def __init__(self, options, tests):
        self.home, self.tests = options.home.resolve(), tests
        self.keep, self.resume, self.seconds = options.keep, options.resume, options.seconds
        self.folder, self.lock = Folder(self.home, tests, (self.home / "writable").resolve()), threading.Lock()
        self.process = Process(options.vms) if options.vmrun is None else device.Process(options.vmrun.resolve())

    def module(self, module):
        """The input of judge(): both runs of the module, or {"module", "error"}."""
        name = module.replace(".", "_")
        kept = self.home / f"{name}.run.json"
        if self.resume and kept.exists():
            return json.loads(kept.read_text(encoding="utf-8"))
        start = time.monotonic()
        plain = self._plain(module, self.home / f"{name}.plain.json")
        if plain.get("error", "").startswith(_SKIPPED):
            return {"module": module, "skipped": plain["error"].partition(": ")[2]}
        if "error" in plain:
            return {"module": module, "error": f"in plain CPython: {plain['error']}"}
        middle = time.monotonic()
        bundle = self.home / f"{name}.vmb"
        problem = self._compile(module, bundle)
        if problem:
            return {"module": module, "error": f"not compiled: {problem}"}
        # tests of denied operations come last: some wait in vain, and use up the module's time
        names = sorted(plain["listed"], key=lambda name: name in plain["denied"])
        found = {"module": module, "plain": plain["outcomes"], "denied": plain["denied"]} | self.sealed(
            module, bundle, names
        )
        found["seconds"].insert(0, round(middle - start, 2))
        if "error" not in found:
            kept.write_text(json.dumps(found), encoding="utf-8")
        return found

    def sealed(self, module, bundle, names):
        """{"sealed": outcomes, "seconds": [in a VM]}, or {"error", "seconds"}."""
        began = time.monotonic()
        try:
            found = {
                "sealed": self.process.run(
                    {
                        "module": module,
                        "bundle": str(bundle),
                        "names": names,
                        "folder": str(self._writable()),
                        "home": str(self.tests / "test"),
                        "seconds": self.seconds,
                    }
                )
            }
        except Crashed as crash:
            found = {"error": f"CRASHED: {crash}"}
        except RuntimeError as error:
            found = {"error": str(error)}
        return found | {"seconds": [round(time.monotonic() - began, 2)]}

    def _writable(self):
        """A new folder, never empty, so that os.removedirs in it leaves it there for the tests that follow."""
        folder = Path(tempfile.mkdtemp(dir=self.home / "writable")).resolve()
        (folder / "kept").touch()
        return folder

    def _plain(self, module, out):
        """The output of plain.py for the module."""
        if (self.keep or self.resume) and out.exists():
            kept = json.loads(out.read_text(encoding="utf-8"))
            if "error" not in kept:
                return kept
        out.unlink(missing_ok=True)
        try:
            done = subprocess.run(
                [sys.executable, "-s", "-P", HERE / "plain.py", self.tests, module, self._writable(), out],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PLAIN_SECONDS,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"plain CPython took longer than {_PLAIN_SECONDS} s"}
        if not out.exists():
            return {"error": f"plain CPython ended with {done.returncode}: {done.stderr.strip()[-300:]}"}
        return json.loads(out.read_text(encoding="utf-8"))

    def _compile(self, module, bundle):
        if self.keep and bundle.exists():
            return None
        with self.lock:
            try:
                return self.folder.compile(module, bundle)
            except (OSError, SyntaxError, UnicodeDecodeError) as error:
                return f"{type(error).__name__}: {error}"


def _parsed(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "modules", nargs="*", metavar="MODULE", help="test_dict, test_json.test_decode, ... (default: --list's)"
    )
    parser.add_argument("--list", type=Path, help="a file of modules (default: all but those of left_out.toml)")
    parser.add_argument("--suite", type=Path, help="the folder of CPython's tests, if the Python has none")
    parser.add_argument("--vms", type=int, default=2, help="modules that run side by side (2)")
    parser.add_argument("--times", type=int, default=1, help="how often all of them run in VMs (1)")
    parser.add_argument("--seconds", type=int, default=300, help="what a module may take in a VM (300)")
    parser.add_argument(
        "--keep", action="store_true", help="take plain CPython's results and the bundles of the last run"
    )
    parser.add_argument("--resume", action="store_true", help="take whole results of the last run, where it has them")
    parser.add_argument("--home", type=Path, default=Path("build/conformance"), help="where bundles and reports go")
    parser.add_argument(
        "--vmrun", type=Path, help="run the modules by this executable of a device image, not by the full host"
    )
    parser.add_argument("--check", action="store_true", help=f"fail if a module passes less than {DOCUMENT.name} says")
    parser.add_argument("--write", action="store_true", help=f"write the results into {DOCUMENT.name}")
    return parser.parse_args(arguments)


def _again(run, found, times, vms, reasons):
    """Runs what ran well `times` more times, all side by side; returns what happened that should not, as lines.

    What passed before and does not again may have a reason, as a difference has: a descriptor that a test has closed
    belongs to a VM beside it."""
    wrong = []
    whole = [one for one in found if "error" not in one]

    def sealed(one):
        return one["module"], run.sealed(
            one["module"], run.home / f"{one['module'].replace('.', '_')}.vmb", list(one["plain"])
        )

    for round_ in range(2, times + 2):
        passed = {
            one["module"]: {name for name, (outcome, _) in one["sealed"].items() if outcome != "failed"}
            for one in whole
        }
        with ThreadPoolExecutor(vms) as threads:
            for module, again in threads.map(sealed, whole):
                if "error" in again:
                    wrong.append(f"round {round_}: {module}: {again['error']}")
                    continue
                for name, (outcome, text) in again["sealed"].items():
                    if outcome == "failed" and name in passed[module]:
                        reason = report.reason_of(name, text, reasons)
                        if reason is None:
                            wrong.append(f"round {round_}: {name} passed before")
                        else:
                            print(f"    round {round_}: {name} passed before: {reason}", flush=True)
        print(
            f"round {round_}: {len(whole)} modules, {vms} side by side, {run.process.crashes} crashes so far",
            flush=True,
        )
    return wrong


def _modules(options, tests):
    """The modules to run, and {module: why it is left out}, which is empty where the command names the modules."""
    if options.modules or options.list:
        return options.modules or options.list.read_text(encoding="utf-8").split(), {}
    every, patterns = selection.all_modules(tests), selection.left_out_patterns()
    for name in selection.idle_patterns(every, patterns):
        print(f"left_out.toml: {name} names no module of this suite", flush=True)
    return selection.select(every, patterns)


def main(arguments=None):
    options = _parsed(arguments)
    (options.home / "writable").mkdir(parents=True, exist_ok=True)
    try:
        run = Run(options, original(options.home.resolve(), options.suite))
    except FileNotFoundError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    modules, left_out = _modules(options, run.tests)
    found, raw, reasons = [], [], report.known_reasons()
    with ThreadPoolExecutor(options.vms) as threads:
        for one in threads.map(run.module, modules):
            if "skipped" in one:
                left_out[one["module"]] = f"plain CPython skips it here: {one['skipped']}"
                print(f"{one['module']:40} {left_out[one['module']]}", flush=True)
                continue
            raw.append(one)
            found.append(report.judge(one, reasons))
            print(report.line(found[-1]), flush=True)
    wrong = _again(run, raw, options.times - 1, options.vms, reasons)
    end = run.process.close()
    wrong += [f"the end: {end}"] if end else []
    if options.check:
        wrong += report.less_than(found, report.read_table(DOCUMENT))
    totals = report.total(found)
    print(*wrong, report.closing(totals), sep="\n")
    report.write(found, totals, options.home)
    if options.write:
        report.write_table(found, totals, left_out, DOCUMENT)
    print(f"whole report: {os.path.relpath(options.home / 'report.html')} and report.json")
    return 1 if totals["unexplained"] or totals["errors"] or run.process.crashes or wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
