"""Where the standard-library bundle of an installed vmhost comes from."""

import marshal
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts import ROOT
from vmhost import host
from vmhost.bytecode import caches
from vmhost.bytecode.acceptance import is_accepted
from vmhost.bytecode.errors import TaskSpecError
from vmhost.bytecode.format import Manifest, Module, read_bundle, write_bundle
from vmhost.bytecode.packages import cache_folder
from vmhost.errors import ConfigurationError
from vmhost.isolation.vm import core
from vmhost.runtime import system_bundle as module
from vmhost.runtime.system_bundle import system_bundle
from vmhost.stdlib import build as builder


def bundle(number):
    manifest = Manifest(name="stdlib", version=str(number), kind="stdlib", exact_python=platform.python_version())
    return write_bundle(manifest, {})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own, and a standard library that compiles in no time."""
    monkeypatch.delenv("VMHOST_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    caches._own.cache_clear()
    builds = []

    def build():
        builds.append(1)
        return bundle(len(builds))

    monkeypatch.setattr(builder, "build_stdlib", build)
    return tmp_path / "cache" / "vmhost"


def test_a_checkout_s_own_bundle_comes_first(tmp_path, cache):
    own = tmp_path / "stdlib.vmb"
    own.write_bytes(b"own")
    assert system_bundle(own) == own
    assert not cache.exists()


def test_an_installation_makes_it_once_and_keeps_it(tmp_path, cache):
    path = system_bundle(tmp_path / "missing")
    assert path.parent == cache
    assert system_bundle(tmp_path / "missing") == path
    assert path.read_bytes() == bundle(1)
    assert sorted(cache.iterdir()) == [path, path.with_name(f"{path.name}.accepted")], "nothing half made is left"
    assert is_accepted(read_bundle(path, allow_unsigned=True), path)


def test_other_sources_make_another_bundle(tmp_path, cache, monkeypatch):
    first = system_bundle(tmp_path / "missing")
    monkeypatch.setattr(module, "_sources_digest", lambda: "other")
    assert system_bundle(tmp_path / "missing") != first


def test_other_patches_make_another_bundle(tmp_path, cache, monkeypatch):
    first = system_bundle(tmp_path / "missing")
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"" if path.suffix == ".patch" else read_bytes(path))
    assert system_bundle(tmp_path / "missing") != first


def test_a_bundle_that_others_could_have_written_is_refused(tmp_path, cache):
    path = system_bundle(tmp_path / "missing")
    path.chmod(0o666)
    with pytest.raises(ConfigurationError, match=r"writable by others; set VMHOST_CACHE"):
        system_bundle(tmp_path / "missing")
    path.chmod(0o600)
    cache.chmod(0o777)
    with pytest.raises(ConfigurationError, match=r"writable by others"):
        system_bundle(tmp_path / "missing")


def test_the_environment_names_the_folder(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("VMHOST_CACHE", str(tmp_path / "own" / "place"))
    assert system_bundle(tmp_path / "missing").parent == tmp_path / "own" / "place"
    assert (tmp_path / "own" / "place").stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("VMHOST_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for none in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", none)
        assert system_bundle(tmp_path / "missing").parent == tmp_path / "home" / ".cache" / "vmhost"


def test_a_cache_that_was_named_and_cannot_be_written_is_an_error(tmp_path, cache, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("VMHOST_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(
        ConfigurationError, match=r"file/below: .* cannot be kept here \(Not a directory\); set VMHOST_CACHE"
    ):
        system_bundle(tmp_path / "missing")


def test_a_cache_that_others_can_write_is_used_for_nothing(tmp_path, cache, monkeypatch, caplog):
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "vmhost").mkdir()
    (tmp_path / "open" / "vmhost").chmod(0o777)
    monkeypatch.setenv("VMHOST_CACHE", str(tmp_path / "open" / "vmhost"))
    with pytest.raises(TaskSpecError, match=r"open/vmhost: cannot be used: .* is writable by others"):
        cache_folder("packages")
    monkeypatch.delenv("VMHOST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "open"))
    assert tmp_path not in cache_folder("packages").parents and "is writable by others" in caplog.text


def test_without_a_home_that_can_be_written_the_folder_is_the_process_s_own(tmp_path, cache, monkeypatch, caplog):
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(caches.tempfile, "tempdir", str(tmp_path / "temporary"))
    path = system_bundle(tmp_path / "missing")
    assert path.parent.parent == tmp_path / "temporary" and path.parent.stat().st_mode & 0o777 == 0o700
    assert system_bundle(tmp_path / "missing") == path and "set VMHOST_CACHE" in caplog.text
    caches._own.cache_clear()
    assert system_bundle(tmp_path / "missing").parent != path.parent  # of another process: no name to guess
    script = "from vmhost.bytecode import caches; print(caches.folder())"
    environment = {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).parent == tmp_path and not Path(done.stdout.strip()).exists()


def test_a_bundle_made_before_is_used_where_nothing_can_be_written(tmp_path, cache, monkeypatch):
    path = system_bundle(tmp_path / "missing")
    monkeypatch.setattr(caches.os, "access", lambda *_: False)
    assert system_bundle(tmp_path / "missing") == path


def test_code_that_the_verifier_refuses_reaches_no_vm(tmp_path, monkeypatch):
    code = compile("word = 'text'", "stdlib@3/word.py", "exec").replace(co_consts=())
    manifest = Manifest(name="stdlib", version="1", kind="stdlib", exact_python=platform.python_version())
    path = tmp_path / "stdlib.vmb"
    path.write_bytes(write_bundle(manifest, {"word": Module(False, marshal.dumps(code))}))
    monkeypatch.setattr(host, "SYSTEM_BUNDLE", path)
    monkeypatch.setattr(host, "_system_code_stores", {})
    with pytest.raises(ConfigurationError, match=r"stdlib\.vmb: module word.*; run `make build`"):
        host.system_code_store(core())
