"""Fixtures of the engine's tests: every operator runs on each backend, and nothing stays charged."""

import gc

import pytest

import vmhost.engine.numpy
from tests.engine.library import Context, backend_name, backends, check, library
from vmhost.engine import _array, nn

vmhost.engine.numpy.True_, vmhost.engine.numpy.False_  # constants: made once, kept by the module
nn.seed(0)  # as is the generator of initial weights


@pytest.fixture(params=backends(), ids=backend_name)
def backend(request):
    check(library.vme_backend_force(request.param))
    yield request.param
    check(library.vme_backend_force(-1))


@pytest.fixture
def context():
    new = Context()
    yield new
    assert new.charged == 0
    new.close()


@pytest.fixture(autouse=True)
def no_engine_bytes_are_left():
    before = _array._statistics()
    yield
    after = _array._statistics()
    if after["buffers"] != before["buffers"]:  # what a reference cycle holds
        gc.collect()
        after = _array._statistics()
    left = {name: after[name] - before[name] for name in ("live_bytes", "buffers")}
    # fewer than before: a cycle of an earlier test, of another folder, was collected meanwhile
    assert max(left.values()) <= 0, f"engine memory left behind: {left}"
