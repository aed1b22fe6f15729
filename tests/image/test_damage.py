"""Each file of an image, flipped, cut, overwritten and swapped at random places: `vmrun` says which file is damaged,
and neither hangs nor goes on."""

import os
import random
import shutil
import subprocess

import pytest

from vmhost.cli import failures


def flip(data, at, _):
    data[at] ^= 1 << at % 8


def overwrite(data, at, draw):
    data[at : at + 64] = draw.randbytes(len(data[at : at + 64]))


def fill(data, at, _):
    data[at : at + 4096] = b"\1" * len(data[at : at + 4096])


def cut(data, at, _):
    del data[at:]


def grow(data, at, draw):
    data += draw.randbytes(1 + at % 5000)


DAMAGES = (flip, overwrite, fill, cut, grow)


def damaged(image, copy, name, bundle):
    """For each of some damages to the file `name` of a copy of the image: (what was done, the CompletedProcess of a
    call)."""
    shutil.copytree(image, copy)
    whole = (image / name).read_bytes()
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    for number in range(3 * len(DAMAGES)):
        data, damage = bytearray(whole), DAMAGES[number % len(DAMAGES)]
        at = draw.randrange(len(data))
        damage(data, at, draw)
        (copy / name).unlink()  # the executable of an earlier run may be held for a moment
        (copy / name).write_bytes(data)
        os.chmod(copy / name, 0o755)
        try:
            done = subprocess.run(
                [copy / "vmrun", "run", bundle, "--allow-unsigned"],
                capture_output=True,
                text=True,
                timeout=20,
                errors="replace",
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            done = error
        yield f"{damage.__name__} at {at}", done


@pytest.fixture
def bundle(task):
    return task("def run(value):\n    return value\n")


@pytest.mark.parametrize("name", ["manifest", "host.vmb", "stdlib.vmb"])
def test_damage_anywhere_is_told(image, bundle, tmp_path, name):
    for where, done in damaged(image, tmp_path / "copy", name, bundle):
        assert isinstance(done, subprocess.CompletedProcess), (where, done)
        assert done.returncode == failures.HOST_FAILED, (where, done)
        assert f"{name}: " in done.stderr and (
            "altered or damaged" in done.stderr
            or "expected an image for Python" in done.stderr
            or "is empty" in done.stderr
        ), (where, done.stderr)
        assert "Traceback" not in done.stderr, where


def test_damage_to_the_executable_is_told_where_it_gets_as_far_as_to_look(image, bundle, tmp_path):
    reported = [
        isinstance(done, subprocess.CompletedProcess)
        and done.returncode == failures.HOST_FAILED
        and "vmrun: altered or damaged" in done.stderr
        for _, done in damaged(image, tmp_path / "copy", "vmrun", bundle)
    ]
    assert (
        sum(reported) >= len(reported) // 3
    )  # the kernel refuses a cut file; damaged code that runs earlier may do anything
