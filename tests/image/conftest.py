"""One device image for all tests of this folder, made by the command as a user would; and helpers to run it."""

import os
import subprocess

import pytest

from tests.images import device_tools, make_once


@pytest.fixture(scope="session")
def tools():
    return device_tools()


@pytest.fixture(scope="session")
def image(tools, tmp_path_factory):
    """The folder of an image with the default modules."""
    return make_once(tmp_path_factory)


@pytest.fixture(scope="session")
def engine_image(tools, tmp_path_factory):
    """The folder of an image with the tensor engine and LAPACK too."""
    return make_once(tmp_path_factory, "--with-lapack")


@pytest.fixture(scope="session")
def sqlite_image(tools, tmp_path_factory):
    """The default modules and sqlite3."""
    return make_once(tmp_path_factory, "--module", "sqlite3")


@pytest.fixture
def vmrun(image):
    """vmrun(*arguments) -> CompletedProcess, of the shared image, with nothing of this Python in its environment.
    OpenBLAS takes the same kernels in both: others round differently."""
    kernels = {name: value for name, value in os.environ.items() if name.startswith("OPENBLAS_")}

    def run(*arguments, folder=image):
        return subprocess.run(
            [folder / "vmrun", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            env={"PATH": "/nonexistent", "LANG": os.environ.get("LANG", "C"), **kernels},
        )

    return run


@pytest.fixture
def task(tmp_path):
    """task(source) -> path of a compiled bundle with this one module, whose entry point is `run`."""
    from vmhost.compiler import compile_folder

    def build(source, name="probe", key=None):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "main.py").write_text(source)
        (folder / "task.yaml").write_text(
            f'name: {name}\nversion: 1.0.0\nentry: main:run\npython: "3.14"\nlimits: {{memory: 64 MiB, wall_time: 20'
            " s}\n"
        )
        path = tmp_path / f"{name}.vmb"
        path.write_bytes(compile_folder(folder).to_bytes(key))
        return path

    return build
