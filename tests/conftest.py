"""What holds for every test. Warnings are errors and `stress` tests wait for `make stress`: see pyproject.toml.

Checks that wrap every test (VMs, threads, file descriptors left behind) belong here, as autouse fixtures.
"""

from pathlib import Path

import pytest


def pytest_sessionstart(session):
    if not any(Path(session.config.rootpath, "vmhost", "isolation").glob("_core.*.so")):
        pytest.exit("the native core is not built; run `make test`, or `make build` once", returncode=3)
