"""Reports of the runs: per module how many tests pass, every difference with its reason, as lines, JSON, an HTML page,
and the table in docs/conformance.md, the baseline of later runs."""

import collections
import fnmatch
import html
import json
import platform
import re
import tomllib
from pathlib import Path

_GAP = "gaps.AbsentError: "  # what guest/gaps.py raises
_RESULTS = "## Results\n"  # the heading in docs/conformance.md after which all is written by the command
_ROW = re.compile(r"\| (test_[\w.]+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|")


def known_reasons():
    """The contents of reasons.toml, for `judge` and `reason_of`."""
    path = Path(__file__).with_name("reasons.toml")
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def reason_of(name, text, reasons):
    """Why the test `name` may fail so in a VM, as `reasons` have it; None if it must not. `text` ends with the
    failure's last line."""
    for reason, patterns in reasons.get("tests", {}).items():
        if any(fnmatch.fnmatchcase(name.removeprefix("test."), pattern) for pattern in patterns):
            return reason
    last = text.strip().splitlines()[-1] if text.strip() else ""
    for reason, patterns in reasons.get("messages", {}).items():
        if any(fnmatch.fnmatchcase(last, pattern) for pattern in patterns):
            return reason
    return None


def judge(one, reasons):
    """Adds to one module's run: `passed` in plain CPython, `denied` of these, `counted`, `same`, and `differences`."""
    if "error" in one:
        return one
    passed = [name for name, (outcome, _) in one["plain"].items() if outcome in ("passed", "expected")]
    sealed = one["sealed"]
    # A module that compiles text while it is imported, and none of whose tests runs in a VM, takes them along.
    compiled = {event: kind for event, kind in one["denied"].get("", {}).items() if kind == "compile"}
    lost = compiled if not any(outcome != "failed" for outcome, _ in sealed.values()) else None
    differences = []
    same = same_counted = gaps = 0
    for name in passed:
        outcome, text = sealed.get(name, ("failed", "it was not run"))
        denied = one["denied"].get(name) or lost
        if outcome in ("passed", "expected"):
            same += 1
            same_counted += not denied
            continue
        if outcome == "skipped":
            text = f"skipped: {text}"
        if not denied and text.strip().rpartition("\n")[2].startswith(
            _GAP
        ):  # it used what its module imported, and no VM has
            denied = {event: kind for event, kind in one["denied"].get("", {}).items() if kind == "import"} or None
            gaps += denied is not None
        differences.append(
            {
                "test": name,
                "denied": denied,
                "text": text,
                "reason": f"plain CPython raised {', '.join(denied)}" if denied else reason_of(name, text, reasons),
            }
        )
    return {
        "module": one["module"],
        "seconds": one["seconds"],
        "run": len(one["plain"]),
        "passed": len(passed),
        "counted": sum(not (one["denied"].get(name) or lost) for name in passed) - gaps,
        "same": same,
        "same_counted": same_counted,
        "differences": differences,
    }


def line(one):
    """One module in one line, and one line for each difference that is not explained by a denied event."""
    if "error" in one:
        return f"{one['module']:40} ERROR {one['error']}"
    shown = [
        f"{one['module']:40}{one['run']:6} run{one['passed']:6} pass{one['same']:6} in a VM   counted "
        f"{one['same_counted']}/{one['counted']}   {one['seconds'][0]:.1f} s, {one['seconds'][1]:.1f} s"
    ]
    for difference in one["differences"]:
        if not difference["denied"]:
            last = difference["text"].strip().splitlines()[-1:] or ["?"]
            shown.append(f"    {difference['test']}: {difference['reason'] or 'UNEXPLAINED: ' + last[0][:160]}")
    return "\n".join(shown)


def total(found):
    """Sums over all modules."""
    good = [one for one in found if "error" not in one]
    sums = {key: sum(one[key] for one in good) for key in ("run", "passed", "counted", "same", "same_counted")}
    sums |= {
        "modules": len(found),
        "errors": len(found) - len(good),
        "unexplained": sum(difference["reason"] is None for one in good for difference in one["differences"]),
    }
    return sums


def _share(part, whole):
    return f"{part}/{whole} = {100 * part / whole:.2f} %" if whole else "none"


def closing(totals):
    return (
        f"{totals['modules']} modules, {totals['errors']} could not be run; {totals['run']} tests run, "
        f"{totals['passed']} pass in plain CPython\n"
        f"in a sealed VM: {_share(totals['same'], totals['passed'])} of all that pass; "
        f"{_share(totals['same_counted'], totals['counted'])} of those that raise no denied event\n"
        f"{totals['unexplained']} differences have no reason"
    )


def write(found, totals, home):
    """Writes report.json and report.html into the folder `home`."""
    (home / "report.json").write_text(json.dumps({"totals": totals, "modules": found}, indent=1), encoding="utf-8")
    rows = []
    for one in found:
        if "error" in one:
            rows.append(f"<tr><td>{one['module']}<td colspan=6 class=bad>{html.escape(one['error'])}")
            continue
        listed = "".join(
            f"<li class={'' if difference['reason'] else 'bad'}><code>{html.escape(difference['test'])}</code> "
            f"{html.escape(difference['reason'] or 'no reason')}<pre>{html.escape(difference['text'][-1500:])}</pre>"
            for difference in one["differences"]
        )
        rows.append(
            f"<tr><td>{one['module']}<td>{one['run']}<td>{one['passed']}<td>{one['same']}<td>{one['counted']}"
            f"<td>{one['same_counted']}<td>"
            + (f"<details><summary>{len(one['differences'])}</summary><ul>{listed}</ul></details>" if listed else "0")
        )
    (home / "report.html").write_text(
        "<!doctype html><meta charset=utf-8><title>Conformance</title><style>body{font:14px sans-serif;margin:2em}"
        "td,th{padding:2px 10px;text-align:right;vertical-align:top}td:first-child,td:last-child{text-align:left}"
        "pre{color:#555;white-space:pre-wrap}.bad{color:#b00}</style><h1>CPython's own tests in sealed VMs</h1>"
        f"<p>{html.escape(closing(totals)).replace(chr(10), '<br>')}<table><tr><th>module<th>run<th>pass in CPython"
        "<th>pass in a VM<th>without denied events<th>of these in a VM<th>differences" + "".join(rows) + "</table>",
        encoding="utf-8",
    )


def write_table(found, totals, left_out, document):
    """Replaces the results in the Markdown file `document`; `left_out` are modules that were not run, with the reason
    for each."""
    head = document.read_text(encoding="utf-8").partition(_RESULTS)[0]
    reasons = collections.Counter(
        difference["reason"] or "no reason"
        for one in found
        for difference in one.get("differences", ())
        if not difference["denied"]
    )
    document.write_text(
        "\n".join(
            [
                head
                + _RESULTS
                + f"CPython {platform.python_version()}, written by `make conformance ARGS=--write`: "
                + closing(totals).replace("\n", ". ")
                + f". Left out are {len(left_out)} modules more.",
                "",
                "| why a module is left out | modules |",
                "| --- | --- |",
                *(f"| {reason} | {', '.join(_shortened(names))} |" for reason, names in _by_reason(left_out).items()),
                "",
                "| why a test that raises no denied event differs | tests |",
                "| --- | ---: |",
                *(f"| {reason} | {count} |" for reason, count in reasons.most_common()),
                "",
                "| module | run | pass in CPython | pass in a VM | raise no denied event | of these in a VM |",
                "| --- | ---: | ---: | ---: | ---: | ---: |",
                *(
                    (
                        f"| {one['module']} | {one['run']} | {one['passed']} | {one['same']} | {one['counted']} |"
                        f" {one['same_counted']} |"
                        if "error" not in one
                        else f"| {one['module']} | {one['error']} | | | | |"
                    )
                    for one in sorted(found, key=lambda one: one["module"])
                ),
                "",
            ]
        ),
        encoding="utf-8",
    )


def _by_reason(left_out):
    reasons = {}
    for module, reason in left_out.items():
        reasons.setdefault(reason, []).append(module)
    return reasons


def _shortened(modules):
    """The modules' names, those of one package as "test_ctypes (63)"."""
    packages = collections.Counter(module.partition(".")[0] for module in modules)
    return dict.fromkeys(
        f"{name} ({packages[name]})" if packages[name] > 1 else module
        for module in modules
        for name in [module.partition(".")[0]]
    )


def read_table(document):
    """{module: (tests that pass in a VM, tests without a denied event that do not)}, as the Markdown file `document`
    says."""
    rows = (_ROW.match(row) for row in document.read_text(encoding="utf-8").splitlines())
    return {row[1]: (int(row[4]), int(row[5]) - int(row[6])) for row in rows if row}


def less_than(found, table):
    """The modules that pass less than read_table()'s `table` says, or that it does not have, as lines.

    Whether a test of threads raises a denied event depends on their timing, so a module's counted tests differ by one
    or two from run to run: what may not rise is how many of them fail."""
    wrong = []
    for one in found:
        if "error" in one:
            continue
        if one["module"] not in table:
            wrong.append(f"{one['module']}: docs/conformance.md has no row for it (make conformance ARGS=--write)")
            continue
        passing, failing = table[one["module"]]
        if one["same"] < passing:
            wrong.append(f"{one['module']}: {one['same']} tests pass in a VM, docs/conformance.md says {passing}")
        if one["counted"] - one["same_counted"] > failing:
            wrong.append(
                f"{one['module']}: {one['counted'] - one['same_counted']} tests without a denied event do not pass in a"
                f" VM, docs/conformance.md says {failing}"
            )
    return wrong
