"""Starts a host in the environments that people have, and looks whether it does what it must: right answers, a stop, a
memory limit, a stack overflow, 200 VMs booted and ended, Ctrl-C; or one clear refusal.

    python -m tests.environments [--quick] [--only TEXT] [--packages FOLDER] [--vms COUNT]

Ends with 1 if any environment failed. What an environment needs and this machine refuses is said, and left out."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.environments.settings import ENVIRONMENTS, PROBE, ROOT, remove_groups

_PARTS = ["answers", "stop", "memory_limit", "stack_overflow", "ctrl_c", "many", "end"]
_TIMEOUT_S = 600


def _start(environment, report, vms, folder):
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), f"{folder}/packages"])}
    for name, value in environment.variables.items():
        variables[name] = value(folder) if callable(value) else value
    return subprocess.Popen(
        [*environment.prefix, sys.executable, *environment.options, *environment.program, report, str(vms)],
        cwd=ROOT,
        env=variables,
        preexec_fn=environment.enter,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        errors="replace",
    )


def _judge(environment, status, lines):
    """What is wrong; None: nothing."""
    if status != 0:
        return f"ended with status {status} after: {', '.join(lines) or 'nothing'}"
    if environment.refusal is not None:
        refused = [line for line in lines if line.startswith("refused: ")]
        fits = len(refused) == 1 and environment.refusal in refused[0]
        return None if fits else f"expected a refusal with {environment.refusal!r}, got: {', '.join(lines)}"
    if lines and lines[0].startswith("refused: "):
        return lines[0]
    missing = [part for part in _PARTS if part not in lines]
    if environment.program != PROBE or missing == ["ctrl_c"]:
        missing = [part for part in missing if part != "ctrl_c"]  # where SIGINT is blocked, or servers handle it
    return f"lacks: {', '.join(missing)}" if missing else None


def run(environment, folder, vms):
    """(what is wrong or None, output, seconds)."""
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o777)  # the program may run as another user
        report = Path(scratch, "report")
        begun = time.monotonic()
        process = _start(environment, str(report), vms, folder)
        try:
            output, _ = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            output += f"\nstill ran after {_TIMEOUT_S} s"
        lines = report.read_text().splitlines() if report.exists() else []
        return _judge(environment, process.returncode, lines), output, time.monotonic() - begun


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.environments", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the environments that differ most, with 12 VMs each")
    parser.add_argument("--only", default="", metavar="TEXT", help="environments with this in their name")
    parser.add_argument("--packages", default=ROOT / ".python" / "environments", help="of tools/environments.sh")
    parser.add_argument("--vms", type=int, help="VMs to boot and end in each")
    options = parser.parse_args(arguments)
    failed, left_out = [], []
    try:
        for environment in ENVIRONMENTS:
            if options.only not in environment.name or (options.quick and not environment.quick):
                continue
            lacks = environment.needs(options.packages)
            if lacks is not None:
                left_out.append(environment.name)
                print(f"left out  {environment.name}: {lacks}", flush=True)
                continue
            vms = options.vms or (12 if options.quick else environment.vms)
            wrong, output, seconds = run(environment, options.packages, vms)
            print(f"{'WRONG' if wrong else 'right':9} {environment.name} ({seconds:.1f} s)", flush=True)
            if wrong:
                failed.append(environment.name)
                print(f"          {wrong}\n{output[-3000:]}", flush=True)
    finally:
        remove_groups()
    told = f"{len(failed)} of the environments failed: {', '.join(failed)}" if failed else "all environments are right"
    print(f"{told}; {len(left_out)} left out")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
