"""`make packages`: runs packages' own test suites in plain Python and in VMs, and prints the differences and reasons.

    python -m tests.packages [NAME...] [--write] [--check]

The suites are those of suites.toml. Each is fetched (archives.py), made into a task with its tests beside the packages
that they need (suite_folder.py; versions and hashes: environment/requirements.lock), run by pytest in plain Python with
nothing else installed, run once more to record the texts that it compiles, and run in VMs. Results are in
build/packages/, those of `--write` in docs/packages.md. The exit status is 1 where less than 97 % pass in VMs of what
passes in plain Python, reasons.toml's aside, or with `--check` less than docs/packages.md says.
"""

import argparse
import fnmatch
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

from tests.packages import archives
from tests.packages.suite_folder import Suite

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HOME = ROOT / "build" / "packages"
PAGE = ROOT / "docs" / "packages.md"
MARK = "## Results\n"
_ENOUGH = 0.97
_SHOWN = 20  # kinds of differences


def suites():
    """The Suites by name."""
    with open(HERE / "suites.toml", "rb") as file:
        return {name: Suite(name, described, HOME) for name, described in tomllib.load(file).items()}


def main(arguments=None):
    """Runs the command line and returns the exit status."""
    known = suites()
    parser = argparse.ArgumentParser(prog="python -m tests.packages", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)} (default: all)")
    parser.add_argument("--write", action="store_true", help="write the results into docs/packages.md")
    parser.add_argument("--check", action="store_true", help="fail if less passes than docs/packages.md says")
    parser.add_argument("--keep", action="store_true", help="take plain Python's results and bundles of the last run")
    parser.add_argument("--in-vms", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no such suite: {', '.join(unknown)}")
    chosen = [known[name] for name in options.names or known]
    if options.in_vms:
        return _in_vms(chosen)
    rows = read_page()
    before, failed = dict(rows), False
    for suite in chosen:
        row = Row.of(suite, *_run(suite, options.keep))
        rows[suite.name] = row.cells()
        print(row.text(), flush=True)
        failed |= row.share() < _ENOUGH
        if options.check and suite.name in before:
            failed |= row.passed < int(before[suite.name][3])
    if options.write:
        write_page({name: rows[name] for name in known if name in rows})
    return int(failed)


def _run(suite, keep):
    """(plain Python's outcomes, the VMs') of a suite. The VMs are in a process of their own."""
    kept = suite.home / "plain.json"
    if not (keep and suite.bundle.exists() and kept.exists()):
        suite.unpack(archives.fetch(suite.archive, suite.sha256, HOME))
        suite.prepare()
        plain = suite.run_plain()
        suite.compile(plain["processes"])
    plain = json.loads(kept.read_text())
    answer = suite.home / "in_vms.json"
    answer.unlink(missing_ok=True)
    done = subprocess.run([sys.executable, "-m", "tests.packages", "--in-vms", suite.name], cwd=ROOT)
    if not answer.exists():
        raise RuntimeError(f"{suite.name}: the process of the VMs ended with {done.returncode}")
    return plain["outcomes"], json.loads(answer.read_text())


def _in_vms(chosen):
    import vmhost
    from vmhost.limits import BreakerPolicy, Policy, TaskPolicy

    with vmhost.Host(allow_unsigned=True, policy=Policy(task=TaskPolicy(breaker=BreakerPolicy(enabled=False)))) as host:
        for suite in chosen:
            processes = json.loads((suite.home / "plain.json").read_text())["processes"]
            (suite.home / "in_vms.json").write_text(json.dumps(suite.run_in_vms(host, processes)))
    return 0


class Row:
    """The result of one suite: how many tests pass in plain Python, of these in VMs, and why the others fail."""

    def __init__(self, suite, run, plain, passed, reasons, unexplained):
        self.suite, self.run, self.plain, self.passed = suite, run, plain, passed
        self.reasons, self.unexplained = reasons, unexplained

    @classmethod
    def of(cls, suite, plain, in_vms):
        """From the outcomes of both."""
        good = [name for name, (outcome, _) in plain.items() if outcome == "passed"]
        reasons, unexplained, passed = Counter(), {}, 0
        for name in good:
            outcome, text = in_vms.get(name) or in_vms.get(name.partition("::")[0]) or ["missing", "it was not run"]
            if outcome == "passed":
                passed += 1
                continue
            reason = reason_of(name, text)
            if reason is None:
                unexplained[name] = _last_line(text)
            else:
                reasons[reason] += 1
        return cls(suite, len(plain), len(good), passed, reasons, unexplained)

    def share(self):
        """The share of tests that pass in VMs among those that could, from 0 to 1."""
        could = self.plain - self.reasons.total()
        return self.passed / could if could else 0.0

    def cells(self):
        """The row of the page."""
        left_out = "; ".join(f"{reason} ({count})" for reason, count in self.reasons.most_common())
        version = re.search(r"[-_]([0-9][0-9.]*[0-9])\.", self.suite.archive)[1]
        share = f"{100 * self.share():.2f} %"
        every = f"{100 * self.passed / max(1, self.plain):.2f} %"
        rest = len(self.unexplained)
        return [version, str(self.run), str(self.plain), str(self.passed), every, share, str(rest), left_out]

    def text(self):
        """For a terminal: the row, and the kinds of differences that have no reason."""
        cells = self.cells()
        lines = [
            f"{self.suite.name} {cells[0]}: {self.passed}/{self.plain} pass ({cells[4]}; {cells[5]} of what could)"
        ]
        lines += [f"  left out: {count} {reason}" for reason, count in self.reasons.most_common()]
        alike = Counter(self.unexplained.values())
        first = {line: name for name, line in reversed(self.unexplained.items())}
        lines += [f"  differs: {count} {line} ({first[line]})" for line, count in alike.most_common(_SHOWN)]
        return "\n".join(lines)


def reason_of(name, text):
    """Why the test may fail in a VM, by reasons.toml, or None."""
    with open(HERE / "reasons.toml", "rb") as file:
        for reason, patterns in tomllib.load(file).items():
            for pattern in patterns:
                if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(_last_line(text), pattern):
                    return reason
    return None


def _last_line(text):
    """Of a failure, what pytest shows of the exception."""
    lines = [line for line in text.splitlines() if line.startswith("E ")] or text.strip().splitlines() or [""]
    return lines[-1].removeprefix("E ").strip()[:300]


_COLUMNS = [
    "version",
    "tests",
    "pass in plain Python",
    "pass in a VM",
    "of all",
    "of what could",
    "no reason",
    "left out",
]


def read_page():
    """The rows of docs/packages.md by the suites' names."""
    rows = {}
    for line in PAGE.read_text().partition(MARK)[2].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(_COLUMNS) + 1 and cells[0] not in ("package", "---"):
            rows[cells[0]] = cells[1:]
    return rows


def write_page(rows):
    """Writes the rows into docs/packages.md."""
    text = PAGE.read_text().partition(MARK)[0]
    lines = [f"| {' | '.join(['package', *_COLUMNS])} |", "| --- |" + " --- |" + " ---: |" * 6 + " --- |"]
    lines += [f"| {' | '.join([name, *cells])} |" for name, cells in rows.items()]
    PAGE.write_text(f"{text}{MARK}\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
