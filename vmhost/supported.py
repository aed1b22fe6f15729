"""Where vmhost runs. setup.py asks before it builds, tools/python_probe.py before it takes a Python, and the package
when it is imported; so Pythons of any age must read this file."""

import sys

PYTHON = (3, 14)  # what the verifier, the patches of the standard library and the core know
NEEDED = "CPython %d.%d" % PYTHON


def refusal():
    """Why this Python cannot run vmhost, and what to do instead; None where it can."""
    systems = {"darwin": "macOS", "win32": "Windows"}
    if not sys.platform.startswith("linux"):
        return _told(systems.get(sys.platform, sys.platform), "run it in a Linux container or virtual machine")
    if sys.implementation.name != "cpython" or sys.version_info[:2] != PYTHON:
        here = "%s %d.%d" % ((sys.implementation.name,) + tuple(sys.version_info[:2]))
        return _told(here, "install %s, for example with: uv python install %d.%d" % ((NEEDED,) + PYTHON))
    if "t" in sys.abiflags:
        return _told("the free-threaded build", "take the default build: its VMs have a GIL each, and run side by side")
    return None


def version_line(version):
    """What `vmhost --version` prints; `version`: of vmhost."""
    return "vmhost %s, Python %s" % (version, sys.version.split()[0])


def _told(here, instead):
    return "vmhost runs on Linux with %s, and this is %s; %s" % (NEEDED, here, instead)
