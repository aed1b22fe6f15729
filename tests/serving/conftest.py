"""Groups, networks and tables of a test are freed when it ends."""

import gc

import pytest


@pytest.fixture(autouse=True)
def nothing_waits_to_be_collected():
    yield
    gc.collect()
