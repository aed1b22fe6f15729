"""What fails of NumPy's own tests, and why: reasons.toml has the reasons, filed.txt a line for each test that fails,
"REASON NAME". A name that ends in `*` is that of all tests whose names begin so: the cases of a function, a class or a
file of which no test passes. figures.json has the sums, for docs/numpy.md."""

import collections
import fnmatch
import json
import tomllib
from pathlib import Path

FOLDERS = ("_core", "lib", "linalg", "random", "fft")
KINDS = ("absent", "different", "harness", "open")
_HERE = Path(__file__).resolve().parent
_FILED, _FIGURES = _HERE / "filed.txt", _HERE / "figures.json"


def reasons():
    """{reason: {"kind", "why", "messages": patterns of an error's text, "tests": patterns of names}}, in order."""
    return tomllib.loads((_HERE / "reasons.toml").read_text(encoding="utf-8"))


def left_out():
    """{file: why it is not run}."""
    found = tomllib.loads((_HERE / "left_out.toml").read_text(encoding="utf-8"))
    return {f"numpy/{name}.py": why for why, names in found.items() for name in names}


def quick():
    return (_HERE / "quick.txt").read_text(encoding="utf-8").split()


def _groups(name):
    """The names with `*` that a test may be filed under, the widest first."""
    file, *rest = name.partition("[")[0].split("::")
    yield from ("::".join((file, *rest[:depth], "*")) for depth in range(len(rest)))
    if "[" in name:
        yield name.partition("[")[0] + "[*"


class Filed:
    """The lines of filed.txt."""

    def __init__(self, version, lines):
        self.version, self.lines = version, lines

    def line(self, name):
        """The line's name that files this test, or None."""
        return next((one for one in (*_groups(name), name) if one in self.lines), None)

    def reason(self, name):
        return self.lines.get(self.line(name))


def read():
    if not _FILED.exists():
        return Filed(None, {})
    first, *lines = _FILED.read_text(encoding="utf-8").splitlines()
    return Filed(
        first.rpartition(" ")[2], {name: reason for reason, _, name in (line.partition(" ") for line in lines)}
    )


def classify(name, message, known):
    """The first reason whose patterns the test or its message meets; "open" if there is none."""
    text = " ".join(message.split())
    for reason, of in known.items():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in of.get("tests", ())):
            return reason
        if any(fnmatch.fnmatchcase(text, f"*{pattern}*") for pattern in of.get("messages", ())):
            return reason
    return "open"


def compare(outcomes, filed, files):
    """What is not as filed, as lines. `files`: those that were run."""
    wrong, met = [], set()
    for name, (outcome, message) in outcomes.items():
        line = filed.line(name)
        if outcome == "failed":
            met.add(line)
            if line is None:
                wrong.append(f"fails and is not filed: {name}: {' '.join(message.split())[:200]}")
        elif outcome == "passed" and line is not None:
            wrong.append(f"passes and is filed ({filed.lines[line]}): {name}")
            met.add(line)
    ran = set(files)
    wrong += [
        f"is filed, and no test has the name: {line}"
        for line in filed.lines
        if line not in met and line.split("::")[0] in ran
    ]
    return wrong


def write(outcomes, version):
    """Files the failures, each group of one reason of which nothing passes as one line; writes the figures."""
    known = reasons()
    failed = {
        name: classify(name, message, known) for name, (outcome, message) in outcomes.items() if outcome == "failed"
    }
    of_group, passing = collections.defaultdict(set), set()
    for name, (outcome, _) in outcomes.items():
        for group in _groups(name):
            if outcome == "failed":
                of_group[group].add(failed[name])
            elif outcome == "passed":
                passing.add(group)
    lines = {}
    for name, reason in failed.items():
        whole = (group for group in _groups(name) if group not in passing and len(of_group[group]) == 1)
        lines[next(whole, name)] = reason
    text = [f"# NumPy {version}", *(f"{reason} {name}" for name, reason in sorted(lines.items()))]
    _FILED.write_text("\n".join(text) + "\n", encoding="utf-8")
    figures = {folder: dict.fromkeys(("run", "pass", *KINDS), 0) for folder in FOLDERS}
    for name, (outcome, _) in outcomes.items():
        row = figures[name.split("/")[1]]
        row["run"] += outcome in ("passed", "failed")
        row["pass"] += outcome == "passed"
        if outcome == "failed":
            row["open" if failed[name] == "open" else known[failed[name]]["kind"]] += 1
    _FIGURES.write_text(json.dumps({"numpy": version, "folders": figures}, indent=1) + "\n", encoding="utf-8")
