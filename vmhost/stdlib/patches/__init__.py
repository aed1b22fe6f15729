"""Patches to the standard library's sources for VMs, applied when the standard-library bundle is built.

    3.14/required/NAME.patch    changes that the module NAME needs in a VM: no compiler, a shared process
    3.14/startup/NAME.patch     only saves time and memory of its import; applied after the required patch

A patch file is a unified diff of one module against the standard library of that Python; the lines before the diff give
the reason. `patch` finds a hunk by its lines, whatever their line numbers, and refuses it unless they occur exactly
once: a Python with other sources fails the build with the module and the hunk. `python -m vmhost.stdlib.patches --check
LIB` lists all hunks that do not apply to the library in the folder LIB.

This file imports only `os` and `sys`: the tests' stand-in for a VM runs it before any patched module.
"""

import os
import sys

SETS = ("required", "startup")  # in the order in which they are applied
FOLDER = os.path.dirname(os.path.abspath(__file__))
VERSION = "{}.{}".format(*sys.version_info)


class PatchError(Exception):
    """A patch does not apply to a source, or is malformed."""


class Hunk:
    """One change of a patch: `header` as in the diff, and the lines `before` and `after` the change."""

    def __init__(self, header):
        self.header = header
        self.before = []
        self.after = []


class Patch:
    """A patch file: `name`, its path from the version on; `reason`; `target`, the path of the changed source in the
    library's folder; `hunks`."""

    def __init__(self, name):
        self.name = name
        self.target = None
        self.hunks = []
        with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
            lines = file.read().removesuffix("\n").split("\n")
        start = next((number for number, line in enumerate(lines) if line.startswith("--- ")), len(lines))
        self.reason = "\n".join(lines[:start]).strip()
        for line in lines[start:]:
            mark, text = line[:1] or " ", line[1:]  # editors strip the blank of an empty line
            if line.startswith("+++ b/") and not self.hunks:
                self.target = line.removeprefix("+++ b/").partition("\t")[0]
            elif line.startswith("@@ "):
                self.hunks.append(Hunk(line))
            elif self.hunks and mark in (" ", "-", "+"):
                if mark != "+":
                    self.hunks[-1].before.append(text)
                if mark != "-":
                    self.hunks[-1].after.append(text)
            elif not line.startswith("--- ") or self.hunks:
                raise PatchError(f"{name}: not a line of a unified diff: {line!r}")
        for hunk in self.hunks:
            counts = [int(lines.partition(",")[2] or 1) for lines in hunk.header.split()[1:3]]  # of -7,3 +7,4
            if counts != [len(hunk.before), len(hunk.after)]:
                raise PatchError(f"{name}: the number of lines does not match {hunk.header}")
        if self.target is None or not self.hunks:
            raise PatchError(f"{name}: a unified diff of one file is expected, with a/ and b/ before its path")

    def apply(self, source):
        """(`source` with all hunks that apply, [(hunk, number of matches)] of the others)."""
        lines = source.split("\n")
        refused = []
        for hunk in self.hunks:
            count = len(hunk.before)
            found = [start for start in range(len(lines)) if lines[start : start + count] == hunk.before]
            if len(found) == 1:
                lines[found[0] : found[0] + count] = hunk.after
            else:
                refused.append((hunk, len(found)))
        return "\n".join(lines), refused

    def refusal(self, hunk, found):
        """The message for a hunk that `apply` refused."""
        return (
            f"vmhost/stdlib/patches/{self.name}: {hunk.header} does not apply: {self.target} must hold these lines "
            f"once, and holds them {found} times:\n" + "\n".join(hunk.before)
        )


def patch_names(version=VERSION):
    """The names of all patches for that Python, grouped by set, sorted within each."""
    if not os.path.isdir(os.path.join(FOLDER, version)):
        raise PatchError(
            f"vmhost/stdlib/patches has no patches for Python {version}; docs/development.md says how to make them"
        )
    return [
        f"{version}/{group}/{name}"
        for group in SETS
        for name in sorted(os.listdir(os.path.join(FOLDER, version, group)))
        if name.endswith(".patch")
    ]


def patched_modules(version=VERSION):
    """The names of all modules with a patch."""
    return {os.path.basename(name).removesuffix(".patch") for name in patch_names(version)}


def patch(module_name, source, sets=SETS):
    """`source`, a module of the running Python's standard library, patched for VMs; PatchError if a hunk does not
    apply."""
    for name in patch_names():
        _, group, file = name.split("/")
        if group in sets and file == f"{module_name}.patch":
            change = Patch(name)
            source, refused = change.apply(source)
            if refused:
                raise PatchError(
                    f"{module_name} of Python {sys.version.split()[0]} is not as a VM's patches expect it\n"
                    + "\n".join(change.refusal(hunk, found) for hunk, found in refused)
                )
    return source
