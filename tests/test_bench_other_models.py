"""How `vmhost bench others` compares our answers with ONNX Runtime's."""

import numpy

from bench.cases.others import _difference

THEIRS = {
    "boxes": numpy.array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 8, 7, 6]], "float32"),
    "labels": numpy.array([7, 8, 9]),
    "scores": numpy.array([0.9, 0.5, 0.5], "float32"),
}


def test_rows_of_scores_that_are_nearly_equal_may_come_in_another_order():
    ours = {name: value[[0, 2, 1]] for name, value in THEIRS.items()}
    ours["scores"] = numpy.array([0.9, 0.500001, 0.499999], "float32")
    assert _difference(ours, THEIRS) < 1e-5


def test_rows_in_another_order_are_wrong_where_scores_differ():
    ours = {name: value[[1, 0, 2]] for name, value in THEIRS.items()} | {"scores": THEIRS["scores"]}
    assert _difference(ours, THEIRS) > 0.1


def test_a_row_counts_once():
    ours = {name: value[[0, 1, 1]] for name, value in THEIRS.items()}
    assert _difference(ours, THEIRS) > 0.1


def test_rows_without_scores_keep_their_order():
    theirs = {"boxes": THEIRS["boxes"]}
    assert _difference({"boxes": theirs["boxes"][[0, 2, 1]]}, theirs) > 0.1
