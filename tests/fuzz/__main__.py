"""`python -m tests.fuzz [--seconds N] [--seed S] [--first ROUND] [--rounds N] [--fitting]`: fuzzes VMs in
processes of their own, from a seed that it prints.

A crash names the round and the calls that were under way, and is tried again with `--first ROUND --rounds 1`. What a
batch does follows from the seed; which thread is when where does not. Exit status 1: the process died, or a task had
an effect on the host.
"""

import argparse
import itertools
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.fuzz.guest_notes import notes

ROOT = Path(__file__).parents[2]
ROUNDS_MOST = 30  # of one process: references that CPython loses keep some MiB of each VM
HANG_S, FITTING_HANG_S = 120.0, 360.0  # no round takes as long


class Totals(dict):
    def add(self, counts):
        for name in ("steps", "timeouts", "lost", "errors"):
            self[name] = self.get(name, 0) + counts[name]
        self["rounds"] = self.get("rounds", 0) + 1
        for name in ("functions", "types", "resident_mib"):
            self[name] = max(self.get(name, 0), counts[name])


def process(options, first, seconds, totals):
    """Runs rounds from `first` on in one process: (the next round, what went wrong or "")."""
    folder = Path(tempfile.mkdtemp(prefix="vmhost-fuzz-"))
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        "tests.fuzz.process",
        folder,
        options.seed,
        str(first),
        str(seconds),
        str(min(options.rounds, ROUNDS_MOST)),
        *(["fitting"] if options.fitting else []),
    ]
    errors = folder / "errors"
    number = first
    try:
        with errors.open("wb") as file:
            child = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file, text=True
            )
        alarm = None
        try:
            for line in itertools.chain([""], child.stdout):
                if alarm is not None:
                    alarm.cancel()
                alarm = threading.Timer(
                    FITTING_HANG_S if options.fitting else HANG_S, child.send_signal, (signal.SIGABRT,)
                )  # its threads' tracebacks come with that
                alarm.start()
                if not line:
                    continue
                try:
                    counts = json.loads(line)
                except ValueError:  # such as what LAPACK says of wrong arguments
                    told = f"printed on the host's standard output, in round {number}: {line!r}"
                    return number, "\n".join([told, *running(folder)])
                totals.add(counts)
                number = counts["round"] + 1
                if options.verbose or counts["effects"]:
                    print(line, end="", flush=True)
            status = child.wait()
        finally:
            alarm.cancel()
            child.kill()
            child.wait()
        if status in (0, 4):
            return number, ""
        what = (
            "a task had an effect on the host"
            if status == 3
            else f"the process died: {signal.Signals(-status).name if status < 0 else f'status {status}'}"
        )
        failed = number - (status == 3)
        findings = [
            f"{what}, in round {failed}; again: python -m tests.fuzz --seed {options.seed} --first {failed} --rounds 1"
            f"{' --fitting' if options.fitting else ''}"
        ]
        findings += running(folder)
        findings.append(errors.read_text(errors="replace")[-6000:])
        return number, "\n".join(findings)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def running(folder):
    """The latest calls of each guest thread, as it noted them."""
    return [f"    thread {thread}: {line}" for thread, lines in notes(folder / "notes").items() for line in lines[-12:]]


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", default="17")
    parser.add_argument("--first", type=int, default=0, help="the round to begin with")
    parser.add_argument("--rounds", type=int, default=1 << 30)
    parser.add_argument(
        "--fitting", action="store_true", help="arguments that fit the arrays' native functions, one of them bent"
    )
    parser.add_argument("--verbose", action="store_true", help="a line for each round")
    options = parser.parse_args()
    print(f"fuzzing VMs for {options.seconds:g} s, seed {options.seed}", flush=True)
    end, number, totals = time.monotonic() + options.seconds, options.first, Totals()
    while time.monotonic() < end and number - options.first < options.rounds:
        number, wrong = process(options, number, end - time.monotonic(), totals)
        if wrong:
            print(wrong)
            return 1
    summary = ", ".join(f"{value} {name}" for name, value in totals.items())
    if totals.get("functions", 0) < 2000 or totals.get("types", 0) < 500 or not totals.get("steps"):
        print(f"{summary}: the fuzzer found hardly anything to call")
        return 1
    print(f"{summary}: no crash, no effect on the host")
    return 0


if __name__ == "__main__":
    sys.exit(main())
