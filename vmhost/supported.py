"""Where vmhost runs. setup.py asks before it builds, tools/python_probe.py before it takes a Python, and the package
when it is imported; so old Pythons must read this file too."""

import sys

PYTHON = (3, 14)  # what the verifier, the patches of the standard library and the core know


def refusal():
    """Why this Python cannot run vmhost, and what to do instead; None where it can."""
    systems = {"darwin": "macOS", "win32": "Windows"}
    if not sys.platform.startswith("linux"):
        return _told(systems.get(sys.platform, sys.platform), "run it in a Linux container or virtual machine")
    if sys.implementation.name != "cpython" or sys.version_info[:2] != PYTHON:
        here = f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}"
        return _told(here, "install CPython 3.14, for example with: uv python install 3.14")
    if "t" in sys.abiflags:
        return _told("the free-threaded build", "take the default build: its VMs have a GIL each, and run side by side")
    return None


def version_line(version):
    """What `vmhost --version` prints; `version`: of vmhost."""
    return f"vmhost {version}, Python {sys.version.split()[0]}"


def _told(here, instead):
    return f"vmhost runs on Linux with CPython 3.14, and this is {here}; {instead}"
