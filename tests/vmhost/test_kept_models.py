"""Prepared models in a state folder that is damaged, open to others, full, read-only or missing: answers stay right,
loads succeed."""

import os
import resource
import shutil
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest

import vmhost
from tests import networks
from tests.hosts import in_a_process
from vmhost.compiler import compile_folder
from vmhost.runtime.kept_models import KeptModels

MAIN = """
from vmhost import engine

def run(value):
    return engine.load("net")(value)
"""


@pytest.fixture
def bundle(tmp_path):
    """The path of a bundle of a task with a network."""
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "main.py").write_text(MAIN)
    (folder / "net.onnx").write_bytes(networks.small())
    (folder / "task.yaml").write_text(
        'name: small\nversion: "1.0.0"\nentry: main:run\npython: "3.14"\nmodels: {net: net.onnx}\n'
    )
    path = tmp_path / "small.vmb"
    path.write_bytes(compile_folder(folder).to_bytes())
    return path


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


def check(task):
    x = networks.values((1, 3, 32, 32))
    networks.assert_close(
        numpy.asarray(task({"input": x})["output"]), networks.expected(networks.small(), {"input": x})[0]
    )


def answers(bundle, state):
    """Loads it in a host of this state folder, checks an answer; the files in the folder's `models`, if it is one."""
    with vmhost.Host(allow_unsigned=True, state=state) as host:
        check(host.load(bundle))
    return files(state)


def files(state):
    folder = state / "models"
    return sorted(file.name for file in folder.iterdir()) if folder.is_dir() else None


def test_a_bundle_that_is_cut_off_or_overwritten_while_its_model_runs_is_no_matter(bundle, state):
    with vmhost.Host(allow_unsigned=True, state=state) as host:
        task = host.load(bundle)
        check(task)
        os.truncate(bundle, 100)
        check(task)
        bundle.write_bytes(b"\xff" * 100_000)
        check(task)


def test_a_kept_model_that_was_damaged_between_runs_is_prepared_anew(bundle, state):
    [kept, _] = answers(bundle, state)
    path = state / "models" / kept
    good, before = path.read_bytes(), path.stat().st_ino
    for at in (7, 21, 29, 33, 45, 4096, len(good) // 2, len(good) - 1):  # header, with sizes; sum, choices, weights
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :])
        assert answers(bundle, state) == [kept, "rates.json"]
        assert path.read_bytes() == good and path.stat().st_ino != before
        before = path.stat().st_ino


@pytest.mark.parametrize("mode", [0o770, 0o777])
def test_a_folder_that_others_can_write_in_keeps_nothing(bundle, state, mode, caplog):
    (state / "models").mkdir(parents=True)
    (state / "models").chmod(mode)
    assert answers(bundle, state) == []
    assert "prepared models are not kept" in caplog.text and "writable by others" in caplog.text


def test_a_link_or_a_file_in_the_folders_place_keeps_nothing(bundle, state, tmp_path, caplog):
    state.mkdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (state / "models").symlink_to(tmp_path / "elsewhere")
    assert answers(bundle, state) == []
    (state / "models").unlink()
    (state / "models").write_text("")
    assert answers(bundle, state) is None
    assert caplog.text.count("prepared models are not kept") == 2


def test_what_a_killed_host_had_begun_is_taken_away(bundle, state):
    left = answers(bundle, state)
    for name in (f"{left[0]}.Ab3dEf", "rates.abc12345"):
        (state / "models" / name).write_bytes(b"begun")
    (state / "models" / "notes.txt").write_text("somebody's own")
    assert answers(bundle, state) == sorted([*left, "notes.txt"])


def test_a_full_disk_keeps_nothing_and_leaves_nothing(bundle, state, caplog):
    with vmhost.Host(allow_unsigned=True, state=state) as host:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # every write into a file fails, as on a full disk
        try:
            task = host.load(bundle)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        check(task)
    assert files(state) == []
    assert "the measured rates of this machine's cores are not kept" in caplog.text
    assert len(answers(bundle, state)) == 2


def test_a_kept_model_that_is_swapped_under_load_is_right_in_every_call_and_prepared_anew(bundle, state):
    [kept, _] = answers(bundle, state)
    path = state / "models" / kept
    good = path.read_bytes()
    with vmhost.Host(allow_unsigned=True, state=state) as host:
        task = host.load(bundle)  # it is mapped
        with ThreadPoolExecutor(2) as callers:
            ended = threading.Event()

            def call():
                count = 0
                while not ended.is_set() or count == 0:
                    check(task)
                    count += 1
                return count

            running = [callers.submit(call) for _ in range(2)]
            try:
                for content in (b"", good[: len(good) // 2], bytes(len(good)), good[:-1] + bytes([good[-1] ^ 1])):
                    (state / "models" / "swapped").write_bytes(content)
                    os.replace(state / "models" / "swapped", path)
                    host.unload("small")
                    task = host.load(bundle)
                    check(task)
                    assert path.read_bytes() == good
            finally:
                ended.set()
            assert all(
                future.exception() is None or isinstance(future.exception(), vmhost.ClosedError) for future in running
            )


def test_a_pipe_in_a_kept_models_place_is_not_waited_for(bundle, state):
    [kept, _] = answers(bundle, state)
    (state / "models" / kept).unlink()
    os.mkfifo(state / "models" / kept)
    done = in_a_process(
        """
        with vmhost.Host(allow_unsigned=True, state=sys.argv[1]) as host:
            host.load(sys.argv[2])
    """,
        state,
        bundle,
        timeout_s=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    answers(bundle, state)


def test_a_folder_that_is_taken_away_meanwhile_is_done_without(bundle, state, caplog):
    with vmhost.Host(allow_unsigned=True, state=state) as host:
        check(host.load(bundle))
        shutil.rmtree(state / "models")
        check(host.load(bundle))
    assert "a prepared model is not kept" in caplog.text


def test_a_folder_that_becomes_read_only_is_done_without(bundle, state, caplog, monkeypatch):
    def read_only(path, *_):
        raise OSError(30, "Read-only file system", str(path))

    with vmhost.Host(allow_unsigned=True, state=state) as host:
        check(host.load(bundle))
        monkeypatch.setattr("vmhost.runtime.kept_models.os.utime", read_only)
        check(host.load(bundle))
    assert "a prepared model is not kept: Read-only file system" in caplog.text


def test_a_state_folder_that_cannot_be_written_is_refused_before_anything_is_loaded(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        vmhost.ConfigurationError, match="expected a folder that can be written, .*choose another folder for `state`"
    ):
        vmhost.Host(state=tmp_path / "file" / "state")


OTHER_HOST = """
import sys, vmhost
try:
    vmhost.Host(state=sys.argv[1])
except vmhost.ConfigurationError as error:
    print(error)
"""


def test_a_second_host_does_not_get_a_folder_whose_files_are_mapped(bundle, state):
    with vmhost.Host(allow_unsigned=True, state=state) as host:
        task = host.load(bundle)
        with pytest.raises(vmhost.ConfigurationError, match="already in use"):
            vmhost.Host(state=state)
        output = subprocess.run(
            [sys.executable, "-c", OTHER_HOST, str(state)],
            cwd=Path(vmhost.__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "already in use" in output.stdout, output.stderr
        check(task)


def test_more_models_than_are_kept_leave_the_last_used(state):
    state.mkdir()
    kept = KeptModels(state)
    for number in range(20):
        path = kept.path_of(bytes([number]))
        path.write_bytes(b"")
        os.utime(path, (number, number))
    assert files(state) == sorted([*(kept.path_of(bytes([number])).name for number in range(4, 20)), "rates.json"])
    assert stat.S_IMODE((state / "models").stat().st_mode) == 0o700
