"""Hosts on the fake core, for tests of the host's decisions."""

import pytest

from tests.vmhost.fake_core import FakeCore
from vmhost import host as host_module
from vmhost.bytecode.format import Bundle, Manifest, Module
from vmhost.host import Host


@pytest.fixture
def fake_host(monkeypatch):
    """A function that makes a Host on a FakeCore: (host, core). All are closed at the end."""
    hosts = []

    def make(core=None, **settings):
        core = core or FakeCore()
        monkeypatch.setattr(host_module.isolation, "core", lambda: core)
        monkeypatch.setattr(host_module, "system_code_store", lambda native: native.CodeStore())
        settings.setdefault("allow_unsigned", True)
        host = Host(**settings)
        hosts.append((host, core))
        return host, core

    yield make
    for host, core in hosts:
        core.guest = core.guest or (lambda value, entry: value)
        host._service.begin_close(False)
        for vm in core.in_state("booting"):
            vm.boot()
        host.close(drain=False)


class _Bundle(Bundle):
    """A bundle whose code is never run."""

    def verify(self):
        pass


@pytest.fixture
def bundle():
    """A function that makes a Bundle in memory: bundle(name="echo", version="1", digest=..., limits=..., ...)."""

    def make(name="echo", version="1.0.0", digest=None, **fields):
        manifest = Manifest(name=name, version=version, entry="main:run", **fields)
        digest = digest or f"{name}@{version}".encode().ljust(32, b".")
        return _Bundle(manifest, {"main": Module(False, b"")}, {}, {}, digest, None, f"{name}.vmb")

    return make
