"""Says whether the Python that runs this file can carry vmhost.

Prints its version and the path of its executable, outside of any virtual environment, with a tab between, and ends with
0; or prints the reason why not and ends with 1. Written so that any Python since 2.7 can run it."""

import os
import platform
import sys
import sysconfig

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "vmhost"))
from supported import PYTHON


def reason_against():
    if platform.python_implementation() != "CPython":
        return "it is %s, and vmhost needs CPython" % platform.python_implementation()
    if tuple(sys.version_info[:2]) != PYTHON:
        return "it is Python %s, and vmhost needs %d.%d" % ((platform.python_version(),) + PYTHON)
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return (
            "it is a free-threaded build, and vmhost needs the default one, where each interpreter has a GIL of its own"
        )
    if sysconfig.get_config_var("Py_DEBUG"):
        return "it is a debug build, and vmhost needs a release build"
    headers = os.path.join(sysconfig.get_path("include"), "Python.h")
    if not os.path.exists(headers):
        return "it has no C headers (%s is missing); install its development package" % headers
    return None


if __name__ == "__main__":
    reason = reason_against()
    if reason:
        print(reason)
        sys.exit(1)
    print("%s\t%s" % (platform.python_version(), getattr(sys, "_base_executable", None) or sys.executable))
