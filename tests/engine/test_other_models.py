"""Models from other sources (bench/other_models): the answers are ONNX Runtime's."""

import numpy
import pytest

from bench import other_models
from tests import onnx_runtime
from tests.batches import each
from tests.engine.library import backends, on_backend
from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compile_model

# What the compiler refuses, and why: no more than 64 sizes may be open.
REFUSED = {"exported/ssdlite320_mobilenet_v3_large": "leaves 270 sizes open .* how many elements NonZero finds"}
NAMES = [name for name in other_models.names() if other_models.quick(name)]


def by_onnx_runtime(asked):
    """{name: [(output, answer), …]} of {name: (model, inputs)}."""
    found = onnx_runtime.answers([(data, [given]) for data, given in asked.values()])
    return {name: outputs for name, [outputs] in zip(asked, found)}


def plain(given):
    return {name: value.tolist() if value.dtype == object else value for name, value in given.items()}


def assert_same(ours, theirs, tolerance=1e-5):
    if isinstance(theirs, list):  # a dict of each row; theirs are sorted
        assert [sorted(row) for row in ours] == [sorted(row) for row in theirs]
        ours, theirs = (numpy.array([[row[key] for key in sorted(row)] for row in rows]) for rows in (ours, theirs))
    elif theirs.dtype == object:
        assert ours == theirs.tolist()
        return
    else:
        ours = numpy.asarray(ours)
        assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    scale = numpy.abs(theirs[numpy.isfinite(theirs)]).max(initial=1e-30)
    numpy.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * scale)


@pytest.fixture(scope="module")
def made():
    """{name: (model, inputs)}."""
    models = {name: other_models.make(name, small=True) for name in NAMES}
    return {name: (model.SerializeToString(), given) for name, (model, given) in models.items()}


@pytest.fixture(scope="module")
def expected(made):
    return by_onnx_runtime(made)


@each("name", NAMES)
def test_a_model_answers_as_onnx_runtime_does(made, expected, name):
    data, given = made[name]
    tolerance = other_models.tolerance(name) if other_models.tolerance(name) > other_models.TOLERANCE else 1e-5
    compiled = compile_model(data, name)
    for backend in backends():
        with on_backend(backend):
            answers = opened(name, compiled)(plain(given))
            for output, theirs in expected[name]:
                assert_same(answers[output], theirs, tolerance)


@pytest.mark.stress
@pytest.mark.parametrize("name", [name for name in other_models.names() if not other_models.quick(name)])
def test_a_large_model_answers_as_onnx_runtime_does(name):
    model, given = other_models.make(name)
    data = model.SerializeToString()
    if name in REFUSED:
        with pytest.raises(OnnxError, match=REFUSED[name]):
            compile_model(data, name)
        return
    expected = by_onnx_runtime({name: (data, given)})[name]
    answers = opened(name, compile_model(data, name))(plain(given))
    for output, theirs in expected:
        assert_same(answers[output], theirs, other_models.TOLERANCE)
