"""Device images for tests, and the tools that build them."""

import fcntl
import os
import subprocess

import pytest

from tests.hosts import ROOT
from vmhost.cli import main
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


def make_once(factory, *options):
    """The folder of the image that `vmhost image` makes with these options: one for all workers of a run, made by the
    first that asks, while the others wait. `factory`: tmp_path_factory. Tests must not write into the folder."""
    base = factory.getbasetemp()
    images = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "images"
    images.mkdir(exist_ok=True)
    image = images / ("image" + "".join(options))
    with open(images / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not image.exists():
            assert main(["image", str(images / "made"), *options]) == 0
            (images / "made").rename(image)
    return image
