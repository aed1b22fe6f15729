"""ONNX's own tests of single nodes: the engine computes all claimed nodes as ONNX says. docs/onnx-operators.md
tells the numbers."""

import re
from pathlib import Path

from tests.engine import onnx_nodes
from vmhost.engine.onnx import READERS


def test_what_is_claimed_is_right_on_every_backend():
    """In one process: ONNX makes its cases anew in each, which takes longer than to run them."""
    cases = [case for operator, case in onnx_nodes.cases() if operator in READERS and onnx_nodes.left_out(case) is None]
    found = {case.name: onnx_nodes.failure(case) for case in cases}
    assert {name: wrong for name, wrong in found.items() if wrong is not None} == {}
    assert {name for name, _ in onnx_nodes.absent()} <= set(onnx_nodes.ABSENT)
    page = (Path(__file__).parents[2] / "docs" / "onnx-operators.md").read_text()
    own = [name for name in READERS if not name.startswith(onnx_nodes.DOMAINS)]
    assert f"{len(own)} operators are claimed: {len(cases)} cases pass, 0 fail" in re.sub(r"\s+", " ", page), (
        "make docs/onnx-operators.md again: python -m tests.engine.onnx_nodes > docs/onnx-operators.md"
    )
