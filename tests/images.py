"""What tests that make device images need first."""

import subprocess

import pytest

from tests.hosts import ROOT
from vmhost.image import ImageError, toolchain


def device_tools():
    """The Toolchain, with the static libraries fetched where they are missing. Skips the test where the Python came
    without a static library, and so has no image to test: tests/image/test_toolchain.py holds what is said then."""
    try:
        toolchain.python_library()
    except ImageError as error:
        pytest.skip(str(error))
    subprocess.run(["sh", "tools/device_libraries.sh"], cwd=ROOT, check=True)
    return toolchain.find()
