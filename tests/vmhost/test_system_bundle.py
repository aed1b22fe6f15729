"""Where the standard-library bundle of an installed vmhost comes from."""

import marshal
import platform
from pathlib import Path

import pytest

from vmhost import host
from vmhost.bytecode.acceptance import is_accepted
from vmhost.bytecode.format import Manifest, Module, read_bundle, write_bundle
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
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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
    with pytest.raises(ConfigurationError, match=r"writable by others; set XDG_CACHE_HOME"):
        system_bundle(tmp_path / "missing")
    path.chmod(0o600)
    cache.chmod(0o777)
    with pytest.raises(ConfigurationError, match=r"writable by others"):
        system_bundle(tmp_path / "missing")


def test_a_cache_that_cannot_be_written_is_named(tmp_path, cache, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        ConfigurationError, match=r"file/vmhost/stdlib-.*cannot be kept here \(Not a directory\); set XDG_CACHE_HOME"
    ):
        system_bundle(tmp_path / "missing")


def test_code_that_the_verifier_refuses_reaches_no_vm(tmp_path, monkeypatch):
    code = compile("word = 'text'", "stdlib@3/word.py", "exec").replace(co_consts=())
    manifest = Manifest(name="stdlib", version="1", kind="stdlib", exact_python=platform.python_version())
    path = tmp_path / "stdlib.vmb"
    path.write_bytes(write_bundle(manifest, {"word": Module(False, marshal.dumps(code))}))
    monkeypatch.setattr(host, "SYSTEM_BUNDLE", path)
    monkeypatch.setattr(host, "_system_code_stores", {})
    with pytest.raises(ConfigurationError, match=r"stdlib\.vmb: module word.*; run `make build`"):
        host.system_code_store(core())
