"""The vision task's preparation of pictures, against loops that say what it should be, and its answers in a VM."""

import json
from pathlib import Path

import numpy
import pytest

import vmhost
import vmhost.engine.numpy as np
from tasks import cases
from tasks.training import vision
from tasks.training.onnx_files import read_weights
from tasks.vision import pictures
from vmhost.compiler import compile_folder

TASKS = Path(__file__).resolve().parents[2] / "tasks"


@pytest.fixture(scope="module")
def ask():
    with vmhost.Host(allow_unsigned=True) as host:
        yield host.load(compile_folder(TASKS / "vision", strict=True).to_bytes())


def by_loops(image, height, width):
    """Each new pixel is a mean of old ones, weighed by a triangle over the place where it lies, as wide as a new pixel
    or an old one."""
    picture = numpy.zeros((height, width, image.shape[2]))
    for row in range(height):
        for column in range(width):
            total = 0
            down, right = max(1, image.shape[0] / height), max(1, image.shape[1] / width)
            middle = (row + 0.5) * image.shape[0] / height, (column + 0.5) * image.shape[1] / width
            for y in range(image.shape[0]):
                for x in range(image.shape[1]):
                    weight = max(0, 1 - abs(y + 0.5 - middle[0]) / down) * max(0, 1 - abs(x + 0.5 - middle[1]) / right)
                    picture[row, column] += weight * image[y, x]
                    total += weight
            picture[row, column] /= total
    return picture


@pytest.mark.parametrize("size", [(5, 4), (9, 7), (16, 15), (3, 20)])
def test_resizing_is_a_weighed_mean(size):
    image = numpy.random.default_rng(3).uniform(0, 255, (9, 7, 3)).astype("float32")
    ours = numpy.asarray(pictures.resize(np.asarray(image), *size))
    numpy.testing.assert_allclose(ours, by_loops(image, *size), rtol=1e-5)


@pytest.mark.parametrize("shape", [(36, 36, 3), (64, 200, 3), (90, 41, 3), (9, 8, 3)])
def test_what_the_network_takes(shape):
    """Height and width change together, the middle is what is left, channels come first."""
    picture = numpy.zeros(shape, "uint8")
    picture[..., 0], picture[..., 2] = 255, 51
    prepared = numpy.asarray(pictures.prepare(np.asarray(picture)))
    assert prepared.shape == (1, 3, 32, 32) and prepared.dtype == numpy.float32 and prepared.flags.c_contiguous
    levels = (numpy.asarray([1, 0, 0.2]) - pictures.MEAN) / pictures.DEVIATION
    numpy.testing.assert_allclose(prepared, numpy.broadcast_to(levels[:, None, None], (3, 32, 32))[None], atol=1e-5)


def test_the_middle_is_cut_out():
    image = np.reshape(np.arange(8 * 6 * 1), (8, 6, 1))
    assert pictures.crop(image, 4)[:, :, 0].tolist() == [
        [13, 14, 15, 16],
        [19, 20, 21, 22],
        [25, 26, 27, 28],
        [31, 32, 33, 34],
    ]


def test_pictures_of_held_out_digits_are_read_in_a_vm(ask):
    asked = cases.cases("vision")
    answers = list(ask.map([{**value, "count": 10} for value, _ in asked]))
    assert sum(answer[0]["label"] == label for answer, (_, label) in zip(answers, asked)) >= 0.9 * len(asked)
    weights, _ = read_weights((TASKS / vision.FILE).read_bytes())
    images = numpy.concatenate(
        [numpy.asarray(pictures.prepare(value["picture"])) for value, _ in asked[:20]]
    ).transpose(0, 2, 3, 1)
    powers = numpy.exp(vision.scores(weights, images).astype("float64"))
    labels = json.loads((TASKS / "vision/labels.json").read_text())
    for answer, shares in zip(answers, powers / powers.sum(axis=1, keepdims=True)):
        ours = [one["share"] for one in answer]
        assert ours == sorted(ours, reverse=True) and sum(ours) == pytest.approx(1, abs=1e-5)
        assert ours == pytest.approx([shares[labels.index(one["label"])] for one in answer], abs=1e-4)


def test_as_many_answers_as_asked_for(ask):
    value, _ = cases.pictures(1)[0]
    whole = ask({**value, "count": 10})
    assert len(whole) == 10 and ask(value) == whole[:3] and ask({**value, "count": 1}) == whole[:1]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"picture": numpy.zeros((40, 40, 3))},
            r"expected uint8 of shape \(height, width, 3\), sides from 8 to 4096, got float64",
        ),
        ({"picture": numpy.zeros((40, 40), "uint8")}, r"got uint8 of \(40, 40\)"),
        ({"picture": numpy.zeros((40, 7, 3), "uint8")}, r"got uint8 of \(40, 7, 3\)"),
        ({"picture": numpy.zeros((40, 40, 3), "uint8"), "count": 11}, "count: expected 1 to 10, got 11"),
    ],
)
def test_wrong_pictures_are_named(ask, value, message):
    with pytest.raises(vmhost.TaskError, match=message):
        ask(value)
