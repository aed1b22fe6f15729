"""Open sizes that are equal where a model is read and differ elsewhere: a length that is cut off at 128, images that
are cropped, windows of 7 and 8 at the same stride. Each model is called below, at and above the size of divergence."""

import numpy
import pytest
from onnx import helper

from tests import networks
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model
from vmhost.engine.onnx.sizes import Size

node = helper.make_node
LENGTHS = [{"b": 3, "n": n} for n in (5, 100, 128, 130, 300)]
SIDES = [{"b": 1, "h": h, "w": w} for h, w in ((16, 16), (7, 9), (263, 266), (300, 131))]
WINDOWS = [{"b": 2, "n": n} for n in (8, 13, 16, 40, 90)]
ROWS, TEXTS, SOUND, IMAGES = ("b", "n"), ("b", "n", 6), ("b", 3, "n"), ("b", 3, "h", "w")
CONSTANTS = {
    "zero": numpy.array([0]),
    "all": numpy.array([-1]),
    "last": numpy.array([0, -1]),
    "128": numpy.array([128]),
    "16": numpy.array([16]),
    "two": numpy.array([2]),
    "first axis": numpy.array(1),
    "nothing": numpy.float32(0),
    "step": numpy.float32(1),
    "pairs": numpy.array([-1, 2]),
    "couples": numpy.array([0, -1, 2]),
    "least": numpy.array([-(1 << 63) + 1]),
    **{f"axis{axis}": numpy.array([axis]) for axis in range(4)},
    "weights": networks.values((6, 6), 1),
    "bias": networks.values((6,), 2),
    "kernel": networks.values((4, 3, 3, 3), 3),
    "long kernel": networks.values((4, 3, 8), 4),
    "channels": networks.values((1, 4, 1, 1), 5),
}


def cut(x, y, axis=1):
    return node("Slice", [x, "zero", "128", f"axis{axis}"], [y])


def product(x="x", y="m"):
    return node("MatMul", [x, "weights"], [y])


def convolution(x="x", y="c"):
    return node("Conv", [x, "kernel"], [y], pads=[1] * 4)


def pooled(x="x", y="p", op="MaxPool", window=8):
    return node(op, [x], [y], kernel_shape=[window], strides=[8])


MODELS = {  # nodes, inputs, sizes to call it at
    "a cut is reshaped": ([cut("x", "y"), node("Reshape", ["y", "all"], ["z"])], {"x": ROWS}, LENGTHS),
    "a result is cut and reshaped": (
        [node("Relu", ["x"], ["r"]), cut("r", "y"), node("Reshape", ["y", "all"], ["q"]), node("Exp", ["q"], ["z"])],
        {"x": ROWS},
        LENGTHS,
    ),
    "a cut is copied in another order": (
        [
            node("Exp", ["x"], ["r"]),
            cut("r", "y"),
            node("Transpose", ["y"], ["t"], perm=[1, 0]),
            node("Concat", ["t", "other"], ["z"], axis=0),
        ],
        {"x": ROWS, "other": (2, "b")},
        LENGTHS,
    ),
    "a cut is put to others": (
        [node("Exp", ["x"], ["r"]), cut("r", "y"), node("Concat", ["y", "other"], ["z"], axis=1)],
        {"x": ROWS, "other": ("b", 2)},
        LENGTHS,
    ),
    "a row is added to a product's cut": (
        [product(), cut("m", "y"), node("Add", ["y", "bias"], ["a"]), node("Relu", ["a"], ["z"])],
        {"x": TEXTS},
        LENGTHS,
    ),
    "a cut is added to a product's cut": (
        [product(), cut("m", "y"), cut("o", "p"), node("Add", ["y", "p"], ["a"]), node("Relu", ["a"], ["z"])],
        {"x": TEXTS, "o": TEXTS},
        LENGTHS,
    ),
    "a product's cut is activated": ([product(), cut("m", "y"), node("Relu", ["y"], ["z"])], {"x": TEXTS}, LENGTHS),
    "a cut is multiplied": ([cut("x", "y"), product("y"), node("Relu", ["m"], ["z"])], {"x": TEXTS}, LENGTHS),
    "a cut's mean by the whole length": (
        [
            cut("x", "y"),
            node("ReduceSum", ["y", "axis1"], ["s"]),
            node("Shape", ["x"], ["shape"]),
            node("Gather", ["shape", "axis1"], ["length"]),
            node("Cast", ["length"], ["f"], to=1),
            node("Div", ["s", "f"], ["z"]),
        ],
        {"x": ROWS},
        LENGTHS,
    ),
    "a convolution's cut is scaled": (
        [convolution(), cut("c", "y", 2), node("Mul", ["y", "channels"], ["m"]), node("Relu", ["m"], ["z"])],
        {"x": IMAGES},
        SIDES,
    ),
    "two convolutions' cuts are added": (
        [
            convolution(),
            cut("c", "y", 2),
            convolution(y="d"),
            cut("d", "e", 2),
            node("Add", ["y", "e"], ["a"]),
            node("Relu", ["a"], ["z"]),
        ],
        {"x": IMAGES},
        SIDES,
    ),
    "a cropped image": (
        [cut("x", "y", 3), convolution("y"), node("GlobalAveragePool", ["c"], ["z"])],
        {"x": IMAGES},
        SIDES,
    ),
    "a cropped image is flattened": (
        [convolution(), cut("c", "y", 2), node("Flatten", ["y"], ["f"]), node("Exp", ["f"], ["z"])],
        {"x": IMAGES},
        SIDES,
    ),
    "one pixel that is many elsewhere": (  # 11 // 8 and 17 // 8 are 1 and 2
        [
            node("Conv", ["x", "long kernel"], ["p"], strides=[8]),
            node("Transpose", ["p"], ["t"], perm=[1, 0, 2]),
            node("Reshape", ["t", "last"], ["r"]),
            node("Exp", ["r"], ["z"]),
        ],
        {"x": SOUND},
        WINDOWS,
    ),
    "one pixel that is stretched to many": (
        [pooled(), node("Shape", ["p"], ["shape"]), pooled("o", "q"), node("Expand", ["q", "shape"], ["z"])],
        {"x": ("n", 3, "n"), "o": ("n", 3, "n")},
        WINDOWS,
    ),
    "made even, as PyTorch's pads are written": (  # pairs of an axis each, from behind, are turned round
        [
            node("Shape", ["x"], ["shape"]),
            node("Gather", ["shape", "axis1"], ["length"]),
            node("Mod", ["length", "two"], ["odd"]),
            node("Concat", ["zero", "odd", "zero", "zero"], ["flat"], axis=0),
            node("Reshape", ["flat", "pairs"], ["rows"]),
            node("Slice", ["rows", "all", "least", "axis0", "all"], ["turned"]),
            node("Transpose", ["turned"], ["columns"], perm=[1, 0]),
            node("Reshape", ["columns", "all"], ["pads"]),
            node("Pad", ["x", "pads"], ["even"]),
            node("Reshape", ["even", "couples"], ["couple"]),
            node("ReduceSum", ["couple", "axis2"], ["z"]),
        ],
        {"x": ROWS},
        LENGTHS,
    ),
    "as many as a length says, in floats": (
        [
            node("Shape", ["x"], ["shape"]),
            node("Gather", ["shape", "first axis"], ["length"]),
            node("Cast", ["length"], ["float"], to=1),
            node("Range", ["nothing", "float", "step"], ["places"]),
            node("Unsqueeze", ["length", "zero"], ["words"]),
            node("Concat", ["axis1", "words"], ["row"], axis=0),
            node("Reshape", ["places", "row"], ["p"]),
            node("Mul", ["x", "p"], ["z"]),
        ],
        {"x": ROWS},
        LENGTHS,
    ),
    "a mark for each place": (
        [
            node("Transpose", ["x"], ["t"], perm=[1, 0]),
            node("MatMul", ["t", "x"], ["square"]),
            node("EyeLike", ["square"], ["marks"], dtype=1, k=1),
            node("MatMul", ["x", "marks"], ["z"]),
        ],
        {"x": ROWS},
        LENGTHS,
    ),
    "every sixteenth": (
        [
            node("Slice", ["x", "zero", "128", "axis1", "16"], ["y"]),
            node("Reshape", ["y", "all"], ["z"]),
        ],
        {"x": ROWS},
        LENGTHS,
    ),
}


def compiled(nodes, inputs, name):
    used = {operand for some in nodes for operand in some.input}
    constants = {key: values for key, values in CONSTANTS.items() if key in used}
    shapes = {"z": ("d",) * len(_made(nodes, inputs, constants))}
    model = networks.graph(nodes, inputs, shapes, constants)
    return model, opened(name, compile_model(model, name))


def _made(nodes, inputs, constants):
    model = networks.graph(nodes, inputs, {"z": ()}, constants)
    some = {
        key: networks.values([size if isinstance(size, int) else 8 for size in shape]) for key, shape in inputs.items()
    }
    return networks.expected(model, some)[0].shape


@pytest.mark.parametrize("name", MODELS)
def test_every_size_gives_what_the_reference_computes(name):
    nodes, inputs, calls = MODELS[name]
    model, run = compiled(nodes, inputs, name)
    for sizes in calls:
        given = {
            key: networks.values([sizes.get(size, size) for size in shape], seed)
            for seed, (key, shape) in enumerate(inputs.items())
        }
        [expected] = networks.expected(model, given)
        numpy.testing.assert_allclose(numpy.asarray(run(given)["z"]), expected, 1e-3, 1e-4, err_msg=str(sizes))


def test_what_is_joined_where_sizes_differ_says_so():
    windows = [pooled(), pooled(y="q", op="AveragePool", window=7), node("Concat", ["p", "q"], ["z"], axis=1)]
    model, run = compiled(windows, {"x": SOUND}, "joined")
    x = networks.values((2, 3, 16))
    [expected] = networks.expected(model, {"x": x})
    numpy.testing.assert_allclose(numpy.asarray(run({"x": x})["z"]), expected, 1e-5, 1e-6)
    with pytest.raises(ValueError, match="does not work at b = 2, n = 23"):
        run({"x": networks.values((2, 3, 23))})


def test_a_batch_that_the_model_takes_for_one_is_one():
    """As dynamo writes what was traced with one example, with the batch left open."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Slice", ["shape", "axis2", "128"], ["sides"]),
        node("ReduceProd", ["sides"], ["pixels"]),
        node("Slice", ["shape", "zero", "axis1"], ["examples"]),
        node("Concat", ["examples", "two", "pixels"], ["rows"], axis=0),
        node("Relu", ["x"], ["r"]),
        node("Reshape", ["r", "rows"], ["y"]),
        node("Concat", ["axis1", "two", "sides"], ["back"], axis=0),
        node("Reshape", ["y", "back"], ["z"]),
    ]
    constants = {name: CONSTANTS[name] for name in ("zero", "two", "axis1", "axis2", "128")}
    model = networks.graph(nodes, {"x": ("b", 2, "h", "w")}, {"z": (1, 2, "h", "w")}, constants)
    run = opened("one", compile_model(model, "one"))
    assert run.inputs[0].shape == (1, 2, "h", "w")
    x = networks.values((1, 2, 5, 7))
    numpy.testing.assert_array_equal(numpy.asarray(run({"x": x})["z"]), networks.expected(model, {"x": x})[0])
    with pytest.raises(ValueError, match=r"expected shape \(1, 2, h, w\)"):
        run({"x": networks.values((3, 2, 5, 7))})


def test_a_mask_that_comes_before_a_cache_is_longer_than_that():
    """As decoders with learned positions: those of new words are behind those of the cache's."""
    nodes = [
        node("Shape", ["past"], ["shape"]),
        node("Gather", ["shape", "axis1"], ["known"]),
        node("Squeeze", ["axis1"], ["axis"]),
        node("CumSum", ["mask", "axis"], ["places"]),
        node("Slice", ["places", "known", "128", "axis1"], ["new"]),
        node("Add", ["x", "new"], ["z"]),
    ]
    constants = {name: CONSTANTS[name] for name in ("axis1", "128")}
    inputs = {"x": ("b", "n"), "mask": ("b", "t"), "past": ("b", "p", 3)}
    model = networks.graph(nodes, inputs, {"z": ("b", "n")}, constants)
    run = opened("cache", compile_model(model, "cache"))
    for new, known in ((1, 4), (5, 2), (3, 30)):
        shapes = {"x": (2, new), "mask": (2, new + known), "past": (2, known, 3)}
        given = {name: networks.values(shape, seed) for seed, (name, shape) in enumerate(shapes.items())}
        [expected] = networks.expected(model, given)
        numpy.testing.assert_allclose(numpy.asarray(run(given)["z"]), expected, 1e-5, 1e-6)
    with pytest.raises(ValueError, match="expected"):
        run({**given, "mask": given["mask"][:, 1:].copy()})


def test_sizes_that_are_broadcast_to_many_are_computed_once_each():
    """As the places of a text relative to others, of which each row is the same."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "axis1"], ["length"]),
        node("Sub", ["length", "column"], ["own"]),
        node("Expand", ["own", "wide"], ["many"]),
        node("Cast", ["many"], ["numbers"], to=1),
        node("Relu", ["x"], ["r"]),
        node("ReduceSum", ["r"], ["sum"]),
        node("Add", ["numbers", "sum"], ["z"]),
    ]
    constants = {"axis1": CONSTANTS["axis1"], "column": numpy.arange(8)[:, None], "wide": numpy.array([8, 64])}
    model = networks.graph(nodes, {"x": ROWS}, {"z": (8, 64)}, constants)
    run = opened("many", compile_model(model, "many"))
    assert len(run.steps) < 100
    for length in (3, 20):
        x = networks.values((2, length))
        numpy.testing.assert_allclose(numpy.asarray(run({"x": x})["z"]), networks.expected(model, {"x": x})[0], 1e-5)


@pytest.mark.parametrize("where", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
def test_images_of_any_size_are_interpolated_by_cubes(where):
    """To twice the size, and to the size of another image."""
    attributes = {"mode": "cubic", "coordinate_transformation_mode": where, "cubic_coeff_a": -0.6}
    nodes = [
        node("Resize", ["x", "", "scales"], ["large"], **attributes),
        node("Shape", ["y"], ["shape"]),
        node("Resize", ["large", "", "", "shape"], ["z"], **attributes),
    ]
    inputs = {"x": ("b", 3, "h", "w"), "y": ("b", 3, "v", "u")}
    model = networks.graph(nodes, inputs, {"z": ("b", 3, "v", "u")}, {"scales": numpy.float32([1, 1, 2, 2])})
    run = opened("cubes", compile_model(model, "cubes"))
    calls = [((5, 7), (13, 9)), ((2, 3), (3, 50)), ((30, 16), (7, 8))]
    given = [{"x": networks.values((2, 3, *x), 1), "y": networks.values((2, 3, *y), 2)} for x, y in calls]
    for some, [expected] in zip(given, networks.all_by_onnx_runtime(model, given), strict=True):
        numpy.testing.assert_allclose(numpy.asarray(run(some)["z"]), expected, 1e-4, 1e-5)


def test_a_size_equals_what_it_is_at_all_sizes_only():
    n = Size.open("n", 11)
    assert n != 11 and 11 != n and n // 8 != 1 and numpy.int64(11) != n
    assert n == Size.open("n", 11) and (n, 2) == (n * 2 // 2, 2) and n + 1 - 1 == n
    assert (n + 1) // 4 != n // 4 and len({n, n * 1, 11, n // 8, 1}) == 4
