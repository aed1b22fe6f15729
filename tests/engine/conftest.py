"""What the engine's tests share: every operator runs on each backend, and nothing stays charged."""

import pytest

from tests.engine.library import Context, backend_name, backends, check, library


@pytest.fixture(params=backends(), ids=backend_name)
def backend(request):
    check(library.vme_backend_force(request.param))
    yield request.param
    check(library.vme_backend_force(-1))


@pytest.fixture
def context():
    made = Context()
    yield made
    assert made.charged == 0
    made.close()
