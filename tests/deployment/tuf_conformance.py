"""Runs the conformance suite of The Update Framework on the device's client, and compares its results with kept ones.

    python tests/deployment/tuf_conformance.py build/tuf-conformance [--write] [-k WORD]

`make tuf-conformance` brings the suite and runs this. tuf_conformance.txt has one line for each test: its result and
its name. A different result, a missing test and a new test are errors; --write keeps the results of
this run.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
KEPT = HERE / "tuf_conformance.txt"
CLIENT = HERE / "tuf_client.py"


def run(folder, arguments):
    """{name of a test: its result}, as pytest tells them."""
    with tempfile.TemporaryDirectory() as scratch:
        report, client = Path(scratch) / "report.xml", Path(scratch) / "client"
        client.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{CLIENT}" "$@"\n')
        client.chmod(0o755)
        path = os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", os.defpath)])
        command = [folder / "env" / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
        command += [
            "-c",
            "pyproject.toml",
            "tuf_conformance",
            f"--entrypoint={client}",
            f"--junitxml={report}",
            *arguments,
        ]
        subprocess.run(command, cwd=folder / "suite", env=os.environ | {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1"})
        found = {}
        for case in ElementTree.parse(report).iter("testcase"):
            kinds = {"failure": "failed", "error": "failed", "skipped": "skipped"}
            [result] = [kinds[child.tag] for child in case if child.tag in kinds][:1] or ["passed"]
            found[f"{case.get('classname').rpartition('.')[2]}::{case.get('name')}"] = result
    return found


def differences(kept, found, is_part):
    """The differences from the kept results, one line each."""
    names = found if is_part else sorted(kept | found)
    return [
        f"{name}: expected {kept.get(name, 'no such test')}, got {found.get(name, 'no such test')}"
        for name in names
        if kept.get(name) != found.get(name)
    ]


def read_kept():
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    return {name: result for result, _, name in (line.partition(" ") for line in lines)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("-k", metavar="WORD")
    given = parser.parse_args()
    found = run(given.folder.resolve(), ["-k", given.k] if given.k else [])
    if given.write and not given.k:
        KEPT.write_text("".join(f"{result} {name}\n" for name, result in sorted(found.items())))
    wrong = differences(read_kept(), found, given.k is not None)
    print("\n".join([*wrong, f"{sum(result == 'passed' for result in found.values())} of {len(found)} tests pass"]))
    sys.exit(bool(wrong) or not found)


if __name__ == "__main__":
    main()
