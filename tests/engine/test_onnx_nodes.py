"""ONNX's own tests of single nodes: what the compiler takes, the engine computes as ONNX says. docs/operators.md tells the numbers."""

import pytest

from bytecode.errors import CompileError
from bytecode.models import READERS
from tests.engine import onnx_nodes


@pytest.fixture(scope="module")
def cases():
    return [(operator, case) for operator, case in onnx_nodes.cases() if operator in READERS and onnx_nodes.left_out(case) is None]


def test_what_is_taken_is_right(backend, cases):
    wrong, right = {}, 0
    for _, case in cases:
        try:
            found = onnx_nodes.failure(case)
        except CompileError:            # refused by name, which docs/operators.md counts
            continue
        right += found is None
        if found is not None:
            wrong[case.name] = found
    assert not wrong
    assert right >= 380
