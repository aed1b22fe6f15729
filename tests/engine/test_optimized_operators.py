"""The fused operators that ONNX Runtime's optimizers write (com.microsoft) give what ONNX Runtime computes, and so do
transformers after its optimizer."""

import os
import subprocess
import sys
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import networks
from tests.engine.library import backends, on_backend
from tests.engine.test_exported_models import FOLDER, texts
from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compile_model

BATCH, LENGTH, HEADS, SIZE, GROUPS = 2, 5, 4, 16, 2
WIDTH = HEADS * SIZE
RANDOM = numpy.random.default_rng(3)


def numbers(*shape, scale=1.0):
    return (RANDOM.standard_normal(shape) * scale).astype("float32")


def integers(below, *shape, dtype="int32"):
    return RANDOM.integers(0, below, shape).astype(dtype)


class Case:
    """One node; inputs in capitals are constants, those that are None are left out. `opens` names sizes of inputs."""

    def __init__(self, label, op, inputs, outputs=("y",), opens=None, domain="com.microsoft", **attributes):
        self.label, self.op, self.inputs, self.outputs, self.opens = label, op, inputs, outputs, opens or {}
        self.domain, self.attributes = domain, attributes

    @property
    def given(self):
        return {name: values for name, values in self.inputs.items() if values is not None and name.islower()}

    def model(self, ranks=None):
        """Its bytes; `ranks` of the outputs, which ONNX's checker wants and ONNX Runtime does not."""
        node = helper.make_node(
            self.op,
            [name if values is not None else "" for name, values in self.inputs.items()],
            self.outputs,
            "fused",
            domain=self.domain,
            **self.attributes,
        )
        made = [name for name in self.outputs if name]
        outputs = [
            helper.make_tensor_value_info(
                name,
                TensorProto.INT32 if name == "counts" else TensorProto.FLOAT,
                [f"{name}{d}" for d in range(rank)] if ranks else None,
            )
            for name, rank in zip(made, ranks or [0] * len(made))
        ]
        constants = {name: values for name, values in self.inputs.items() if values is not None and name.isupper()}
        graph = helper.make_graph(
            [node],
            "fused",
            [self._port(name, values) for name, values in self.given.items()],
            outputs,
            [numpy_helper.from_array(values, name) for name, values in constants.items()],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()

    def _port(self, name, values):
        opens = (*self.opens.get(name, ()), *[None] * values.ndim)
        shape = [given or size for given, size in zip(opens, values.shape)]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values.dtype), shape)


def activations():
    x = {"x": numbers(BATCH, LENGTH, WIDTH)}
    yield Case("gelu", "Gelu", x)
    yield Case("fast gelu", "FastGelu", x)
    yield Case("fast gelu with a bias", "FastGelu", {**x, "B": numbers(WIDTH)})
    yield Case("bias gelu", "BiasGelu", {**x, "B": numbers(WIDTH)})
    yield Case("quick gelu", "QuickGelu", x, alpha=1.5)


def normalizations():
    x, row = numbers(BATCH, LENGTH, WIDTH), numbers(WIDTH)
    outputs = ["y", "", "", "total"]
    both = {"x": x, "skip": numbers(BATCH, LENGTH, WIDTH), "SCALE": row}
    yield Case("sum", "SkipLayerNormalization", {**both, "BETA": row}, outputs, epsilon=1e-5)
    yield Case(
        "sum with a bias",
        "SkipLayerNormalization",
        {**both, "skip": numbers(LENGTH, WIDTH), "BETA": row, "BIAS": numbers(WIDTH)},
        outputs,
        epsilon=1e-5,
    )
    yield Case("root of sum", "SkipSimplifiedLayerNormalization", {**both, "BIAS": row}, outputs, epsilon=1e-5)
    yield Case("root", "SimplifiedLayerNormalization", {"x": x, "SCALE": row}, domain="", axis=-1, epsilon=1e-5)
    tables = {"WORDS": numbers(20, WIDTH), "PLACES": numbers(10, WIDTH), "KINDS": numbers(2, WIDTH)}
    ids = {"ids": integers(20, BATCH, LENGTH), "kinds": integers(2, BATCH, LENGTH)}
    ends = {"SCALE": row, "BETA": row}
    embed = "EmbedLayerNormalization"
    yield Case("embeddings", embed, {**ids, **tables, **ends}, ["y", "counts"], epsilon=1e-12)
    yield Case(
        "embeddings with a mask",
        embed,
        {**ids, **tables, **ends, "mask": integers(2, BATCH, LENGTH)},
        ["y", "counts", "total"],
        epsilon=1e-12,
    )
    yield Case(
        "embeddings at places",
        embed,
        {**ids, "kinds": None, **tables, "KINDS": None, **ends, "mask": None, "places": integers(10, BATCH, LENGTH)},
        ["y", "counts"],
        epsilon=1e-12,
    )


def products():
    yield Case("turned", "FusedMatMul", {"a": numbers(3, 4, 5), "b": numbers(3, 6, 5)}, alpha=0.5, transB=1)
    yield Case("turned, weights", "FusedMatMul", {"a": numbers(3, 5, 4), "B": numbers(5, 6)}, alpha=2.0, transA=1)
    yield Case("batch inside", "FusedMatMul", {"a": numbers(4, 2, 3, 5), "b": numbers(2, 3, 5, 6)}, transBatchA=1)
    yield Case("gemm", "FusedGemm", {"a": numbers(3, 4), "B": numbers(4, 5), "C": numbers(5)}, activation="Relu")
    image = {"x": numbers(1, 3, 8, 8), "W": numbers(4, 3, 3, 3), "B": numbers(4)}
    yield Case("convolution", "FusedConv", image, activation="Relu", pads=[1] * 4)
    yield Case("convolution and sum", "FusedConv", {**image, "z": numbers(1, 4, 8, 8)}, activation="Relu", pads=[1] * 4)


def attentions():
    mask = numpy.ones((BATCH, LENGTH), "int32")
    mask[1, 3:] = 0
    each = (RANDOM.random((BATCH, LENGTH, LENGTH)) < 0.7).astype("int32")
    each[:, :, 0] = 1
    x = {
        "x": numbers(BATCH, LENGTH, WIDTH),
        "WEIGHTS": numbers(WIDTH, 3 * WIDTH, scale=0.1),
        "BIAS": numbers(3 * WIDTH),
    }
    wide = {"x": x["x"], "WEIGHTS": numbers(WIDTH, 2 * WIDTH + 16, scale=0.1), "BIAS": numbers(2 * WIDTH + 16)}
    past, longer = numbers(2, BATCH, HEADS, 3, SIZE), numpy.ones((BATCH, LENGTH + 3), "int32")
    longer[0, :2] = 0
    sizes = {"x": ("batch", "length"), "mask": ("batch", "length")}
    cached = {"x": ("batch", "length"), "mask": ("batch", "keys"), "past": (None, "batch", None, "before")}
    for label, inputs, outputs, opens, attributes in (
        ("plain", x, ["y"], {}, {}),
        ("keys that count", {**x, "mask": mask}, ["y"], sizes, {}),
        ("lengths", {**x, "mask": numpy.array([5, 3], "int32")}, ["y"], {}, {}),
        ("ends and starts", {**x, "mask": numpy.array([5, 4, 0, 2], "int32")}, ["y"], {}, {}),
        ("keys of each row", {**x, "mask": each}, ["y"], {}, {"unidirectional": 1}),
        ("causal", {**x, "mask": mask}, ["y", "present"], sizes, {"unidirectional": 1}),
        ("cache", {**x, "mask": None, "past": past}, ["y", "present"], {}, {"unidirectional": 1}),
        ("cache and mask", {**x, "mask": longer, "past": past}, ["y", "present"], cached, {"unidirectional": 1}),
        (
            "bias",
            {**x, "mask": mask, "past": None, "more": numbers(1, HEADS, LENGTH, LENGTH)},
            ["y"],
            {},
            {"scale": 0.3},
        ),
        ("narrow values", wide, ["y"], {}, {"qkv_hidden_sizes": [WIDTH, WIDTH, 16]}),
    ):
        yield Case(label, "Attention", inputs, outputs, opens, num_heads=HEADS, **attributes)
    yield from of_heads()
    yield from of_groups()


def of_heads():
    q, keys = numbers(BATCH, LENGTH, WIDTH), (BATCH, 7, WIDTH)
    given = {"q": q, "k": numbers(*keys), "v": numbers(*keys)}
    bias, mask = numbers(3 * WIDTH), numpy.ones((BATCH, 7), "int32")
    mask[1, 4:] = 0
    cache = {"pastk": numbers(BATCH, HEADS, 3, SIZE), "pastv": numbers(BATCH, HEADS, 3, SIZE)}
    ours = {"q": q, "k": numbers(*q.shape), "v": numbers(*q.shape), "BIAS": bias, "mask": None, "more": None}
    sizes = dict.fromkeys(("k", "v", "mask"), ("batch", "keys")) | {"q": ("batch", "length")}
    for label, inputs, outputs, opens, attributes in (
        ("heads", given, ["y"], {}, {}),
        ("heads, bias", {**given, "BIAS": bias, "mask": mask}, ["y"], sizes, {}),
        ("heads, lengths", {**given, "BIAS": bias, "mask": numpy.array([7, 2], "int32")}, ["y"], {}, {}),
        ("heads, more", {**given, "BIAS": None, "mask": mask, "more": numbers(BATCH, HEADS, LENGTH, 7)}, ["y"], {}, {}),
        ("heads, cache", {**ours, **cache}, ["y", "presentk", "presentv"], {}, {"unidirectional": 1}),
        (
            "heads already",
            {"q": q, "k": numbers(BATCH, HEADS, 7, SIZE), "v": numbers(BATCH, HEADS, 7, SIZE)},
            ["y"],
            {},
            {},
        ),
    ):
        yield Case(label, "MultiHeadAttention", inputs, outputs, opens, num_heads=HEADS, **attributes)


def of_groups():
    tables = {"COS": numbers(20, SIZE // 2), "SIN": numbers(20, SIZE // 2)}
    for interleaved in (0, 1):
        x, places = numbers(BATCH, LENGTH, WIDTH), integers(20, BATCH, LENGTH, dtype="int64")
        kind = {"interleaved": interleaved}
        yield Case(f"rotary {interleaved}", "RotaryEmbedding", {"x": x, "places": places, **tables}, **kind)
        yield Case(
            f"rotary, a place {interleaved}",
            "RotaryEmbedding",
            {"x": numbers(BATCH, HEADS, LENGTH, SIZE), "places": numpy.array([3]), **tables},
            **kind,
        )
        yield Case(
            f"rotary, a part {interleaved}",
            "RotaryEmbedding",
            {"x": x, "places": places, "COS": numbers(20, 4), "SIN": numbers(20, 4)},
            num_heads=HEADS,
            rotary_embedding_dim=8,
            **kind,
        )
    attributes = {"num_heads": HEADS, "kv_num_heads": GROUPS}
    outputs = ["y", "presentk", "presentv"]

    def inputs(length, before, lengths, turned=True, packed=False):
        own = numbers(BATCH, length, GROUPS * SIZE)
        cache = numbers(BATCH, GROUPS, before, SIZE) if before else None
        return {
            "q": numbers(BATCH, length, WIDTH + 2 * GROUPS * SIZE if packed else WIDTH),
            "k": None if packed else own,
            "v": None if packed else own,
            "pastk": cache,
            "pastv": cache,
            "lengths": numpy.array(lengths, "int32"),
            "TOTAL": numpy.array(before + length, "int32"),
            **(tables if turned else {}),
        }

    op, prompt = "GroupQueryAttention", [LENGTH - 1] * BATCH
    yield Case("groups", op, inputs(LENGTH, 0, prompt, False), outputs, **attributes)
    yield Case("groups, turned", op, inputs(LENGTH, 0, prompt), outputs, do_rotary=1, **attributes)
    packed = inputs(LENGTH, 0, prompt, packed=True)
    yield Case("groups, together", op, packed, outputs, do_rotary=1, rotary_interleaved=1, **attributes)
    yield Case("groups, window", op, inputs(LENGTH, 0, prompt, False), outputs, local_window_size=2, **attributes)
    yield Case("groups, cap", op, inputs(LENGTH, 0, prompt, False), outputs, softcap=1.5, **attributes)
    yield Case("groups, cache", op, inputs(1, 6, [6, 6]), outputs, do_rotary=1, **attributes)
    sizes = dict.fromkeys("qkv", ("batch", "length")) | {"lengths": ("batch",)}
    sizes |= dict.fromkeys(("pastk", "pastv"), ("batch", None, "before"))
    yield Case("groups, cache, open", op, inputs(1, 6, [6, 6]), outputs, sizes, do_rotary=1, **attributes)
    yield Case("groups, shorter", op, inputs(1, 6, [6, 3]), outputs, sizes, do_rotary=1, **attributes)


CASES = [*activations(), *normalizations(), *products(), *attentions()]


def test_fused_operators_give_what_onnx_runtime_computes():
    wrong = []
    expected = networks.each_by_onnx_runtime([(case.model(), case.given) for case in CASES])
    for case, theirs in zip(CASES, expected, strict=True):
        file = compile_model(case.model([values.ndim for values in theirs]), case.label)
        for backend in backends():
            with on_backend(backend):
                ours = [numpy.asarray(values) for values in opened(case.label, file)(case.given).values()]
            for made, values in zip(ours, theirs, strict=True):
                if case.label == "groups, shorter" and made.ndim == 4:  # what lies behind is anything
                    made, values = made[:, :, :4], values[:, :, :4]
                if made.shape != values.shape or not numpy.allclose(made, values, rtol=1e-4, atol=1e-4):
                    wrong.append(case.label)
    assert wrong == []


LSTM = dict(zip(("forward", "reverse", "bidirectional"), (1, 1, 2)))


@pytest.mark.parametrize(("direction", "directions"), LSTM.items())
@pytest.mark.parametrize(("dtype", "low"), [("int8", -100), ("uint8", 0)])
@pytest.mark.parametrize("columns", [False, True])
def test_lstm_with_integer_weights_is_that_of_float32_with_these_weights(direction, directions, dtype, low, columns):
    """ONNX Runtime rounds inputs and states as well: its results are near."""
    hidden, inputs = 6, 10
    wholes = [
        RANDOM.integers(low, low + 200, (directions, rows, 4 * hidden)).astype(dtype) for rows in (inputs, hidden)
    ]
    shape = (directions, 4 * hidden) if columns else (directions,)
    scales = [(RANDOM.random(shape) * 0.01 + 0.002).astype("float32") for _ in wholes]
    zeros = [numpy.full(shape, low + 100, dtype) for _ in wholes]
    x, bias, state = numbers(7, 3, inputs), numbers(directions, 8 * hidden), numbers(directions, 3, hidden)
    rest = {"B": bias, "L": None, "H": state, "C": None, "P": None}
    steps = {"WS": scales[0], "WZ": zeros[0], "RS": scales[1], "RZ": zeros[1]}
    attributes = {"hidden_size": hidden, "direction": direction}
    outputs = ("y", "h", "c")
    given = {"x": x, "W": wholes[0], "R": wholes[1], **rest, **steps}
    case = Case("lstm", "DynamicQuantizeLSTM", given, outputs, **attributes)
    wide = [
        numpy.ascontiguousarray(
            ((whole.astype("float32") - zero.reshape(directions, 1, -1)) * scale.reshape(directions, 1, -1)).swapaxes(
                1, 2
            )
        )
        for whole, scale, zero in zip(wholes, scales, zeros)
    ]
    exact = Case("wide", "LSTM", {"x": x, "W": wide[0], "R": wide[1], **rest}, outputs, domain="", **attributes)
    ours = opened("lstm", compile_model(case.model([4, 3, 3]), "lstm"))({"x": x})
    rounded, right = networks.each_by_onnx_runtime([(some.model(), {"x": x}) for some in (case, exact)])
    for made, near, wanted in zip(ours.values(), rounded, right, strict=True):
        numpy.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5)
        numpy.testing.assert_allclose(made, near, atol=0.05)


def by_onnx_runtime(nodes, given, constants):
    """The output y of nodes of ONNX's own operators, of one input."""
    [x] = given.values()
    [made] = networks.by_onnx_runtime(networks.graph_of(nodes, given, ["y"], constants, opset=21), [x])
    return made


FIRST, LAST = [0, 3, 1, 2], [0, 2, 3, 1]


@pytest.mark.parametrize("domain", ["com.microsoft", "com.ms.internal.nhwc"])
def test_convolutions_with_channels_last(domain):
    """ONNX Runtime has these kernels for GPUs only: the reference is its convolution between two transposes."""
    x, constants = numbers(2, 9, 8, 6), {"W": numbers(4, 3, 3, 3), "B": numbers(4)}
    attributes = {"pads": [1, 0, 1, 2], "strides": [2, 1], "group": 2}
    op = "NhwcConv" if domain == "com.microsoft" else "Conv"
    case = Case("conv", op, {"x": x, **constants}, domain=domain, **attributes)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=FIRST),
        helper.make_node("Conv", ["t", "W", "B"], ["c"], **attributes),
        helper.make_node("Transpose", ["c"], ["y"], perm=LAST),
    ]
    made = opened("conv", compile_model(with_domain(case.model([4]), domain), "conv"))({"x": x})["y"]
    numpy.testing.assert_allclose(made, by_onnx_runtime(nodes, {"x": x}, constants), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("op", "attributes"), [("MaxPool", {"kernel_shape": [3, 2], "strides": [2, 2]}),
                                               ("GlobalAveragePool", {})])  # fmt: skip
def test_pools_with_channels_last(op, attributes):
    x = numbers(2, 9, 8, 6)
    case = Case("pool", op, {"x": x}, domain="com.ms.internal.nhwc", **attributes)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=FIRST),
        helper.make_node(op, ["t"], ["p"], **attributes),
        helper.make_node("Transpose", ["p"], ["y"], perm=LAST),
    ]
    made = opened("pool", compile_model(with_domain(case.model([4]), case.domain), "pool"))({"x": x})["y"]
    numpy.testing.assert_allclose(made, by_onnx_runtime(nodes, {"x": x}, {}), rtol=1e-5, atol=1e-6)


def with_domain(data, domain):
    """The model with that domain among its opsets."""
    model = onnx.load_model_from_string(data)
    if all(item.domain != domain for item in model.opset_import):
        model.opset_import.append(helper.make_opsetid(domain, 11))
    return model.SerializeToString()


@pytest.mark.parametrize(("last", "activation"), [(1, 0), (1, 1), (0, 1)])
@pytest.mark.parametrize("skips", [False, True])
def test_group_norm(last, activation, skips):
    """ONNX Runtime has no CPU kernel of it: the reference is its GroupNormalization, Sigmoid and sums."""
    x, skip, row = numbers(2, 5, 7, 8), numbers(2, 8), {"G": numbers(8), "B": numbers(8)}
    own = x if last else numpy.ascontiguousarray(x.transpose(FIRST))
    given = {"x": own, **row, **({"skip": skip, "BIAS": numbers(8)} if skips else {})}
    op, outputs = ("SkipGroupNorm", ("y", "s")) if skips else ("GroupNorm", ("y",))
    attributes = {"groups": 4, "channels_last": last, "activation": activation, "epsilon": 1e-3}
    case = Case("norm", op, given, outputs, **attributes)
    made = opened("norm", compile_model(case.model([4] * len(outputs)), "norm"))(case.given)
    total = x + (skip[:, None, None] + given["BIAS"] if skips else 0)
    first = numpy.ascontiguousarray(total.transpose(FIRST))
    nodes = [helper.make_node("GroupNormalization", ["x", "G", "B"], ["n"], num_groups=4, epsilon=1e-3)]
    nodes += [helper.make_node("Sigmoid", ["n"], ["s"]), helper.make_node("Mul", ["n", "s"], ["m"])]
    nodes.append(
        helper.make_node("Transpose", ["m" if activation else "n"], ["y"], perm=LAST if last else [0, 1, 2, 3])
    )
    numpy.testing.assert_allclose(made["y"], by_onnx_runtime(nodes, {"x": first}, row), rtol=1e-4, atol=1e-5)
    if skips:
        numpy.testing.assert_allclose(made["s"], total if last else first, rtol=1e-5, atol=1e-6)


OPTIMIZE = """
import onnxruntime, sys
onnxruntime.set_default_logger_severity(4)
for source, target in zip(sys.argv[1::2], sys.argv[2::2]):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = target
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
"""


@pytest.fixture(scope="module")
def optimized(tmp_path_factory):
    """{name: path} of the exported transformers, as ONNX Runtime's optimizer leaves them."""
    folder = tmp_path_factory.mktemp("optimized")
    paths = {path.stem: folder / path.name for path in sorted(FOLDER.glob("*.onnx"))}
    pairs = [str(path) for name, target in paths.items() for path in (FOLDER / f"{name}.onnx", target)]
    environment = {**os.environ, "HOME": str(folder)}
    subprocess.run([sys.executable, "-c", OPTIMIZE, *pairs], env=environment, check=True, timeout=200)
    return paths


def test_optimized_transformers_give_what_the_exported_ones_do(optimized):
    for name, path in optimized.items():
        data = path.read_bytes()
        assert b"com.microsoft" in data
        model = opened(name, compile_model(data, name))
        plain = opened(name, compile_model(Path(FOLDER / f"{name}.onnx").read_bytes(), name))
        for count, words in ((2, 7), (3, 16)):
            given = texts(count, words, words)
            [ours], [theirs] = model(given).values(), plain(given).values()
            numpy.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_root_mean_squares_as_exporters_write_them_are_one_step():
    x, scale = numbers(3, WIDTH), numbers(WIDTH)
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["squares"]),
        helper.make_node("ReduceMean", ["squares"], ["mean"], axes=[-1]),
        helper.make_node("Add", ["mean", "epsilon"], ["variance"]),
        helper.make_node("Sqrt", ["variance"], ["root"]),
        helper.make_node("Div", ["one", "root"], ["inverse"]),
        helper.make_node("Mul", ["x", "inverse"], ["normal"]),
        helper.make_node("Mul", ["scale", "normal"], ["y"]),
    ]
    constants = {name: numpy.float32(value) for name, value in {"two": 2, "epsilon": 1e-6, "one": 1}.items()}
    data = networks.graph_of(nodes, {"x": x}, ["y"], {**constants, "scale": scale}, opset=17)
    model = opened("root", compile_model(data, "root"))
    assert [step.kind for step in model.steps if step.kind not in ("Input", "Output")] == ["Normalize"]
    [theirs] = networks.expected(data, {"x": x})
    numpy.testing.assert_allclose(model({"x": x})["y"], theirs, rtol=1e-5, atol=1e-6)


def test_what_is_not_supported_is_named():
    case = Case("rotary", "RotaryEmbedding", {"x": numbers(1, 2, 16), "places": numpy.array([0]), "COS": numbers(4, 8),
                                             "SIN": numbers(4, 8)}, scale=2.0)  # fmt: skip
    with pytest.raises(OnnxError, match=r"operator com.microsoft.RotaryEmbedding \(node 'fused'\) has scale"):
        compile_model(case.model([3]), "rotary")
