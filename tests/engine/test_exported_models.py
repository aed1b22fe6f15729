"""Transformers with any number and length of texts, as PyTorch's exporters write them (exported/export.py): every size
gives what ONNX Runtime computes."""

from pathlib import Path

import numpy
import pytest

from tests import networks
from tests.engine.library import backends, on_backend
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

FOLDER = Path(__file__).parent / "exported"
NAMES = sorted(path.stem for path in FOLDER.glob("*.onnx"))


def texts(count, words, seed=0):
    """Ids of words, and a mask that leaves out the end of the last text."""
    mask = numpy.ones((count, words), "int64")
    mask[-1, max(1, words * 2 // 3) :] = 0
    return {"input_ids": numpy.random.default_rng(seed).integers(0, 40, (count, words)), "attention_mask": mask}


@pytest.fixture(scope="module")
def files():
    return {name: compile_model((FOLDER / f"{name}.onnx").read_bytes(), name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_every_number_and_length_of_texts_gives_what_onnx_runtime_computes(files, name):
    given = [texts(count, words, words) for count, words in ((2, 7), (1, 1), (3, 16), (1, 32), (5, 2))]
    expected = networks.all_by_onnx_runtime((FOLDER / f"{name}.onnx").read_bytes(), given)
    for backend in backends():
        with on_backend(backend):
            model = opened(name, files[name])
            for inputs, [theirs] in zip(given, expected, strict=True):
                ours = numpy.asarray(model(inputs)["y"])
                assert ours.shape == theirs.shape
                numpy.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * numpy.abs(theirs).max())


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ((2, 6), r"input 'attention_mask': expected shape \(batch, sequence\) with batch = 2, sequence = 7, got"),
        ((3, 7), r"input 'attention_mask': expected shape \(batch, sequence\) with batch = 2, sequence = 7, got"),
        ((7,), r"input 'attention_mask': expected shape \(batch, sequence\) with batch = 2, sequence = 7, got"),
    ],
)
def test_a_mask_of_other_sizes_says_what_was_expected(files, mask, message):
    model = opened("distilbert", files["distilbert-traced"])
    given = {"input_ids": numpy.zeros((2, 7), "int64"), "attention_mask": numpy.ones(mask, "int64")}
    with pytest.raises(ValueError, match=message):
        model(given)


def test_more_words_than_there_are_positions_says_so(files):
    with pytest.raises(ValueError, match="this model does not work at batch = 1, sequence = 33: "):
        opened("distilbert", files["distilbert-traced"])(texts(1, 33))


def test_sizes_that_have_to_be_equal_are_one(files):
    """The exporter gives each input names of its own; the mask of a decoder has the sizes of what it masks."""
    model = opened("gpt2", files["gpt2"])
    shapes = {port.name: port.shape for port in (*model.inputs, *model.outputs)}
    batch, sequence = shapes["input_ids"]
    assert shapes == {"input_ids": (batch, sequence), "attention_mask": (batch, sequence), "y": (batch, sequence, 40)}
