"""Files that are no models, or damaged ones: each is refused with one sentence, or is a model all the same and runs;
never a crash.

One file of each kind of operators, and every damage done to all of them."""

import functools
import math
import resource
import struct
from pathlib import Path

import numpy
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import bench.networks
import vmhost.engine.numpy
from bench.other_models import classic
from tests import networks
from tests.batches import each
from vmhost.engine import _array
from vmhost.engine.models import Model
from vmhost.engine.onnx import compile_model

_TENSOR, _NODE, _HEADER = 192, 128, 128  # bytes of records: docs/model-format.md
HOSTILE = (0, 1, 2, 3, 5, 9, 10, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 20)


def node(operator, inputs, outputs="y", **attributes):
    return helper.make_node(operator, inputs.split(" "), outputs.split(), **attributes)


def _images():
    nodes = [
        node("MaxPool", "x", "i", kernel_shape=[1, 1]),
        node("Conv", "i d", "a", group=6, pads=[1] * 4),
        node("Split", "a halves", "l r", axis=1),
        node("Conv", "r g", "s", group=3),
        node("AveragePool", "l", "m", kernel_shape=[3, 3]),
        node("Clip", "s low high", "t"),
        node("Concat", "m t m", "n", axis=1),
        node("Reshape", "n five", "o"),
        node("Transpose", "o", "p", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "p four", "q"),
        node("ReduceMean", "q", "u", axes=[2, 3]),
        node("Conv", "q v", "y"),
    ]
    return networks.graph(
        nodes,
        {"x": (2, 6, 7, 5)},
        {"y": None, "u": None},
        {
            "d": networks.values((6, 1, 3, 3), 1),
            "halves": numpy.array([3, 3]),
            "g": networks.values((3, 1, 3, 3), 2),
            "five": numpy.array([2, 3, 3, 5, 3]),
            "four": numpy.array([2, 9, 5, 3]),
            "v": networks.values((4, 9, 1, 1), 3),
            "low": numpy.float32(-0.5),
            "high": numpy.float32(0.75),
        },
    )


def _views():
    nodes = [
        node("Transpose", "x", "t", perm=[0, 1, 3, 2]),
        node("Conv", "t w", "c"),
        node("Sigmoid", "c", "s"),
        node("ReduceMax", "s axes", "m"),
        node("Where", "b m s"),
    ]
    return networks.graph_of(
        nodes,
        {"x": networks.values((1, 2, 3, 4)), "b": numpy.ones(3, bool)},
        ("y",),
        {"w": networks.values((2, 2, 1, 1)), "axes": numpy.array([1])},
    )


def _edits():
    nodes = [
        node("CumSum", "x axis", "c"),
        node("TopK", "c k", "v i"),
        node("GatherElements", "x i", "g"),
        node("ScatterElements", "x i g", "s", reduction="add"),
        node("ScatterND", "s j v", "y", reduction="max"),
        node("GatherND", "y j", "z"),
    ]
    return networks.graph_of(
        nodes,
        {"x": networks.values((3, 4)), "j": numpy.array([[0], [2], [1]])},
        ("y", "z"),
        {"axis": numpy.array(1), "k": numpy.array([4])},
    )


def _classic():
    """Trees, pairs of classes and texts."""
    random = numpy.random.default_rng(0)
    forest, _ = classic.classifier(random, ["a", "b", "c"], 2, 2, lambda tree: [tree], "NONE", features=3)
    machine, _ = classic.machine(random, 3, "LINEAR", True, features=3)
    machine.graph.node[0].output[:] = ["chosen", "probabilities of machines"]
    outputs = [*forest.graph.output, classic.port("chosen", onnx.TensorProto.STRING, "n")]
    return classic.model([*forest.graph.node, *machine.graph.node], forest.graph.input, outputs).SerializeToString()


@pytest.fixture(scope="module", autouse=True)
def bounded_memory():
    """Damaged sizes ask for gigabytes, and some machines have them: here the address space ends half of one beyond what
    the process has, so that memory refused is the error."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 29), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def _many():
    """As many open sizes as a file can have, some with a quotient."""
    names = [f"n{number}" for number in range(64)]
    nodes = [node("Relu", f"x{name}", f"r{name}") for name in names]
    for name in names[:8]:
        nodes += [
            node("Shape", f"x{name}", f"s{name}"),
            node("Div", f"s{name} two", f"h{name}"),
            node("Slice", f"x{name} zero h{name}", f"y{name}"),
        ]
    nodes.append(node("Concat", " ".join(f"r{name}" for name in names), "y", axis=0))
    outputs = {f"y{name}": (f"m{name}",) for name in names[:8]} | {"y": ("all",)}
    constants = {"two": numpy.array([2]), "zero": numpy.array([0])}
    return networks.graph(nodes, {f"x{name}": (name,) for name in names}, outputs, constants)


FILES = {
    "network": networks.small,
    "images": _images,
    "views": _views,
    "places": _edits,
    "open": lambda: networks.graph(
        [
            node("MatMul", "x w", "m"),
            node("Transpose", "m", "t", perm=[1, 0, 2]),
            node("Concat", "t t", "c", axis=1),
            node("Softmax", "c"),
        ],
        {"x": ("b", "n", 6)},
        {"y": ("n", "c", 3)},
        {"w": networks.values((6, 3))},
    ),
    "rounded": lambda: networks.graph(
        [
            node("MaxPool", "x", "p", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
            node("Conv", "p w", "c", strides=[2, 2]),
            node("Resize", "c  s", mode="linear"),
        ],
        {"x": (1, 3, "h", "w0")},
        {"y": None},
        {"w": networks.values((2, 3, 3, 3)), "s": numpy.array([1, 1, 2, 2], "float32")},
    ),
    "chosen": lambda: networks.graph(  # the inner condition is made where the outer one holds
        [
            node("ReduceSum", "x", "s", keepdims=0),
            node("Greater", "s zero", "c"),
            node("Exp", "x", "e"),
            node("ReduceMax", "e", "m", keepdims=0),
            node("Greater", "m one", "d"),
            node("Sqrt", "e", "r"),
            node("Neg", "e", "n"),
            node("Where", "d r n", "i"),
            node("Where", "c i x"),
        ],
        {"x": ("b", 5)},
        {"y": ("b", 5)},
        {"zero": numpy.float32(0), "one": numpy.float32(1)},
    ),
    "needy": lambda: networks.graph(
        [node("Exp", "x", "e"), node("Reshape", "e rows", "r"), node("Slice", "r two three zero")],
        {"x": ("b", "n")},
        {"y": ("c", 4)},
        {"rows": numpy.array([-1, 4]), "two": numpy.array([1]), "three": numpy.array([3]), "zero": numpy.array([0])},
    ),
    "bert": lambda: bench.networks.bert(4, 1, 8, 2, 8, 10).SerializeToString(),
    "classic": _classic,
    "many": _many,
    "din": lambda: bench.networks.din(5, 10, 10, 4).SerializeToString(),
}


@functools.cache
def file_of(name):
    return compile_model(FILES[name](), f"{name}.onnx")


def opened(data):
    return Model("model", _array._model_open(bytes(data)))


def refuses(data):
    """Whether the file is refused, with one sentence; a weight or a name may be anything, and a valid model runs."""
    try:
        model = opened(data)
    except (ValueError, MemoryError, NotImplementedError) as error:
        assert "\n" not in str(error)
        return True
    if _largest(data) < 1 << 18:
        for size in (1, 3):
            try:
                _run(model, size)
            except (IndexError, MemoryError) as error:  # indices are values, and are looked at when they are there
                assert "\n" not in str(error)
            except (ValueError, NotImplementedError) as error:
                assert "\n" not in str(error) and _open_sizes(data)
    return False


def _run(model, size):
    """One on zeros, with all open sizes the same, unless these make it large."""
    shapes = (tuple(size if isinstance(own, str) else own for own in port.shape) for port in model.inputs)
    inputs = tuple(vmhost.engine.numpy.zeros(shape, port.dtype) for shape, port in zip(shapes, model.inputs))
    if max(math.prod(step[4]) for step in _array._model_steps(model._session, inputs)) < 1 << 18:
        _array._model_run(model._session, inputs)


def test_values_beyond_memory_are_refused():
    """Two of a gigabyte: the arena is had when the model is opened."""
    size = 1 << 28
    file = compile_model(networks.graph([node("Sigmoid", "x")], {"x": (size,)}, {"y": (size,)}), "large")
    with pytest.raises(MemoryError, match="the system has no"):
        opened(file)


def _open_sizes(file):
    return struct.unpack_from("<I", file, 44)[0]


def test_what_is_whole_is_not_refused():
    assert not any(refuses(file_of(name)) for name in FILES)


@given(st.sampled_from(list(FILES)), st.data())
@settings(deadline=None)
def test_a_file_that_ends_early_is_refused(name, data):
    file = file_of(name)
    assert refuses(file[: data.draw(st.integers(0, len(file) - 1))])


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_other_bytes_are_refused(data):
    assert refuses(data)


@pytest.mark.parametrize("name", FILES)
@given(data=st.data(), value=st.sampled_from(HOSTILE))
@settings(deadline=None, max_examples=350)
def test_hostile_numbers_never_crash(name, data, value):
    file = bytearray(file_of(name))
    struct.pack_into("<I", file, 4 * data.draw(st.integers(0, _records(file) // 4 - 1)), value)
    refuses(file)


@pytest.mark.parametrize("name", FILES)
@given(data=st.data(), values=st.lists(st.integers(0, 255), min_size=1, max_size=4))
@settings(deadline=None, max_examples=150)
def test_damaged_records_never_crash(name, data, values):
    file = bytearray(file_of(name))
    records = _records(file)
    for value in values:
        file[data.draw(st.integers(0, records - 1))] = value
    refuses(file)


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
@settings(deadline=None, max_examples=150)
def test_exchanged_records_never_crash(name, data):
    """Nodes or tensors in another order: operands of other shapes, dtypes and layouts."""
    file = bytearray(file_of(name))
    tensors, nodes = struct.unpack_from("<2I", file, 24)
    at, size, count = data.draw(
        st.sampled_from([(_HEADER, _TENSOR, tensors), (_HEADER + _TENSOR * tensors, _NODE, nodes)])
    )
    one, other = (at + size * data.draw(st.integers(0, count - 1)) for _ in range(2))
    file[one : one + size], file[other : other + size] = file[other : other + size], file[one : one + size]
    refuses(file)


def _largest(file):
    """Elements of the file's largest tensor: what is not as small as the models here are is prepared, but takes too
    long to run."""
    tensors = struct.unpack_from("<I", file, 24)[0]
    return max(
        math.prod(
            struct.unpack_from("<8q", file, _HEADER + _TENSOR * number + 16)[
                : struct.unpack_from("<I", file, _HEADER + _TENSOR * number + 12)[0]
            ]
        )
        for number in range(tensors)
    )


def _records(file):
    """Bytes before the weights."""
    return struct.unpack_from("<Q", file, 16)[0] - struct.unpack_from("<Q", file, 56)[0]


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (44, b"\1", "its header says"),
        (0, b"X", "does not begin with VMEMODEL"),
        (8, b"\2", "has format 2, this engine reads format 4"),
        (16, b"\1", "its header says"),
    ],
)
def test_the_header_says_what_is_wrong(at, value, message):
    file = file_of("network")
    with pytest.raises(ValueError, match=message):
        opened(file[:at] + value + file[at + 1 :])


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (100, 99, "is a view of tensor 99 of"),
        (104, 1000, "is a view beyond the elements of tensor"),
        (96, 3, "is of the unknown kind 3"),
    ],
)
def test_a_wrong_view_is_named(offset, value, message):
    file = bytearray(file_of("bert"))
    first = next(at for at in range(_HEADER, len(file), _TENSOR) if struct.unpack_from("<I", file, at + 96)[0] == 2)
    struct.pack_into("<I", file, first + offset, value)
    with pytest.raises(ValueError, match=message):
        opened(file)


def altered(name, operator, parameter, value):
    """The file with another parameter of its first node of that operator."""
    file = bytearray(file_of(name))
    tensors, nodes = struct.unpack_from("<2I", file, 24)
    first = _HEADER + _TENSOR * tensors
    at = next(
        at for at in range(first, first + _NODE * nodes, _NODE) if struct.unpack_from("<I", file, at + 8)[0] == operator
    )
    struct.pack_into("<i", file, at + 24 + 4 * parameter, value)
    return file


@each(
    ("name", "operator", "parameter", "value", "message"),
    [
        ("images", 1, 10, 4, "has 4 groups"),
        ("images", 1, 10, 0, "has 0 groups"),
        ("images", 1, 11, 10, "unknown activation 10"),
        ("images", 1, 11, -1, "unknown activation -1"),
        ("images", 9, 11, 3, "unknown activation 3"),
        ("images", 9, 15, 1, "excludes more padding than there is"),
        ("images", 11, 17, 4, "slices channels beyond its operand's"),
        ("images", 11, 17, -1, "slices channels beyond its operand's"),
        ("images", 12, 10, 2, "does not shuffle 2 equal groups"),
        ("images", 12, 10, 0, "does not shuffle 0 equal groups"),
        ("places", 38, 0, 1, "takes 2 dimensions from number 1 of 2"),
        ("places", 42, 0, 4, "unknown operation 4"),
        ("places", 42, 1, 99, "unknown operation 0 or dtype 99"),
        ("places", 42, 2, 2, "along axis 2"),
        ("places", 43, 0, -1, "not int64 of the operand.s shape, or no axis -1"),
        ("places", 44, 0, 1, "takes 2 dimensions from number 1 of 2"),
        ("places", 44, 1, 3, "unknown operation 3 for dtype 10"),
        ("places", 44, 1, -2, "unknown operation -2"),
        ("classic", 47, 0, 3, "combines leaves by an unknown operation"),
        ("classic", 47, 2, 0, "combines leaves by an unknown operation"),
        ("classic", 47, 2, 3, "are no decision trees"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(name, operator, parameter, value, message):
    with pytest.raises(ValueError, match=message):
        opened(altered(name, operator, parameter, value))


def varying(number, field, value):
    """The file with open sizes, with another 32-bit field of its first number that varies (first term: of that
    term)."""
    file = bytearray(file_of("open"))
    tensors, nodes, inputs, outputs, operands, opens = struct.unpack_from("<6I", file, 24)
    first = _HEADER + _TENSOR * tensors + _NODE * nodes + 4 * (inputs + outputs + operands)
    at = {
        "open": first,
        "varying": first + 16 * opens,
        "term": first + 16 * opens + 24 * struct.unpack_from("<I", file, 64)[0],
    }[number]
    struct.pack_into("<I", file, at + 4 * field, value)
    return file


def rounded(quotient, field, value):
    """The file with rounded sizes, with another field of that quotient."""
    file = bytearray(file_of("rounded"))
    tensors, nodes, inputs, outputs, operands, opens = struct.unpack_from("<6I", file, 24)
    varyings, terms, _, _, quotients = struct.unpack_from("<5I", file, 64)
    first = _HEADER + _TENSOR * tensors + _NODE * nodes + 4 * (inputs + outputs + operands) + 16 * opens
    first += 24 * varyings
    if field == "under":  # the first term of what it divides by
        [at] = struct.unpack_from("<I", file, first + 16 * terms + 16 * quotient + 8)
        struct.pack_into("<q", file, first + 16 * at, value)
    else:
        assert quotient < quotients
        struct.pack_into("<I", file, first + 16 * terms + 16 * quotient + 4 * field, value)
    return file


def behind(name, record, field, value):
    """The file with another field of the first record of a section behind the quotients."""
    file = bytearray(file_of(name))
    struct.pack_into("<I", file, _behind_quotients(file, record) + 4 * field, value)
    return file


def _behind_quotients(file, record):
    """Where the first "need" or "guard" is."""
    tensors, nodes, inputs, outputs, operands, opens = struct.unpack_from("<6I", file, 24)
    varyings, terms, _, _, quotients, needs = struct.unpack_from("<6I", file, 64)
    at = _HEADER + _TENSOR * tensors + _NODE * nodes + 4 * (inputs + outputs + operands) + 16 * opens
    return at + 24 * varyings + 16 * terms + 16 * quotients + (24 * needs if record == "guard" else 0)


@pytest.mark.parametrize(
    ("name", "record", "field", "value", "message"),
    [
        ("needy", "need", 0, 1 << 20, "need 0 has terms that do not exist"),
        ("needy", "need", 1, 1 << 20, "need 0 has terms that do not exist"),
        ("needy", "need", 2, 1 << 26, "the name of need 0 lies outside the names"),
        ("needy", "need", 3, 1 << 20, "the name of need 0 lies outside the names"),
        ("needy", "need", 4, 2, "need 0 has terms that do not exist, or the unknown kind 2"),
        ("chosen", "guard", 0, 1 << 20, r"guard 0 is of tensor \d+ of"),
        ("chosen", "guard", 1, 2, "guard 0 is of tensor .* side 2"),
        ("chosen", "guard", 2, 1, "guard 0 is of tensor .* parent 1"),
    ],
)
def test_needs_and_guards_that_are_not_there_are_refused(name, record, field, value, message):
    with pytest.raises(ValueError, match=message):
        opened(behind(name, record, field, value))


def test_what_a_file_says_stays_one_line():
    file = file_of("needy")
    at = file.index(b"Reshape", 128 + 192)
    model = opened(file[:at] + b"Re\n\x7fape" + file[at + 7 :])
    with pytest.raises(ValueError, match=r"does not work at b = 1, n = 1: .*Re\?\?ape"):
        model({"x": vmhost.engine.numpy.zeros((1, 1), "float32")})


def test_a_guard_is_a_computed_bool():
    file = file_of("chosen")
    tensors = struct.unpack_from("<I", file, 24)[0]
    for tensor in range(tensors):
        dtype = struct.unpack_from("<I", file, _HEADER + _TENSOR * tensor + 8)[0]
        if dtype != 0:
            with pytest.raises(ValueError, match=f"has a guard on tensor {tensor}, which is not a computed bool"):
                opened(behind("chosen", "guard", 0, tensor))


def test_a_node_stands_under_a_guard_that_is_there():
    file = bytearray(file_of("chosen"))
    tensors, nodes = struct.unpack_from("<2I", file, 24)
    for number in range(nodes):
        damaged = bytearray(file)
        struct.pack_into("<I", damaged, _HEADER + _TENSOR * tensors + _NODE * number + 120, 99)
        with pytest.raises(ValueError, match=f"node {number} has guard 99 of "):
            opened(damaged)


def test_an_output_that_no_step_writes_is_zero():
    """It is in memory that may have held something of another task."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
        branches (float[64, 64] x, bool c) => (float[64, 64] y) {
            y = If (c) < then_branch = a () => (float[64, 64] t) { t = Exp(x) },
                else_branch = b () => (float[64, 64] t) { t = Neg(x) }>
        }""")
    file = bytearray(compile_model(model.SerializeToString(), "branches"))
    guards = _behind_quotients(file, "guard")
    sides = [struct.unpack_from("<I", file, guards + 16 * number + 4)[0] for number in (0, 1)]
    assert sorted(sides) == [0, 1]
    struct.pack_into("<I", file, guards + 20, sides[0])
    run, x = opened(file), vmhost.engine.numpy.ones((64, 64), "float32")
    for _ in range(3):
        secret = vmhost.engine.numpy.full((64, 64), 7, "float32")
        del secret
        assert numpy.asarray(run({"x": x, "c": numpy.array(not sides[0])})["y"]).any() == 0


@pytest.mark.parametrize(("opens", "quotients"), [(65, 8), (64, 192), (17, 239), (16, 240)])
def test_more_sizes_and_quotients_than_a_byte_tells_apart_are_refused(opens, quotients):
    """Terms would name the wrong ones."""
    file = bytearray(file_of("many"))
    struct.pack_into("<I", file, 44, opens)
    struct.pack_into("<I", file, 80, quotients)
    with pytest.raises(ValueError, match=f" {opens} open sizes and {quotients} quotients are not possible"):
        opened(file)


@pytest.mark.parametrize(("field", "value"), [(0, 1 << 20), (1, 1 << 20), (2, 1 << 31), (3, 1 << 20)])
def test_quotients_of_terms_that_are_not_there_are_refused(field, value):
    with pytest.raises(ValueError, match="quotient 1 has terms that do not exist, or later quotients"):
        opened(rounded(1, field, value))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "a size would be divided by 0"),
        (-4, "a size would be divided by -4"),
        (1 << 62, r"this model does not work at h = 30, w0 = 31"),
    ],
)
def test_sizes_that_cannot_be_divided_are_the_callers_error(value, message):
    x = numpy.ones((1, 3, 30, 31), "float32")
    assert numpy.asarray(opened(file_of("rounded"))({"x": x})["y"]).shape == (1, 2, 14, 14)
    with pytest.raises(ValueError, match=message):
        opened(rounded(0, "under", value))({"x": x})


@pytest.mark.parametrize(
    ("number", "field", "value", "message"),
    [
        ("open", 2, 1, "open size 0 is that of dimension 0 of input 1, which does not exist"),
        ("open", 3, 3, "dimension 3 of input 0"),
        ("open", 0, 1 << 20, "the name of open size 0 lies outside the names"),
        ("varying", 0, 99, "varying number 0 is number 0 of tensor 99"),
        ("varying", 1, 17, "is number 17 of tensor 0"),
        ("varying", 2, 1 << 20, "of 1 terms"),
        ("varying", 3, 1 << 20, "of 1048576 terms"),
        ("varying", 4, 1 << 20, "the name of varying number 0"),
        ("term", 2, 5, "term 0 has variable 5 of 2"),
        ("term", 2, 3 << 16, "term 0 has variable 3 of 2"),
    ],
)
def test_wrong_open_sizes_are_refused(number, field, value, message):
    with pytest.raises(ValueError, match=message):
        opened(varying(number, field, value))


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        (0, "tensor 1 is a view beyond the elements of tensor 0"),
        (2, "input 'x': expected a contiguous array"),
        (0x7FFFFFFF, "input 'x': expected a contiguous array"),
    ],
)
def test_open_sizes_that_come_to_nonsense_are_refused_when_they_are_asked_for(factor, message):
    model = opened(varying("term", 0, factor))
    with pytest.raises((ValueError, MemoryError), match=message):
        _array._model_run(model._session, (vmhost.engine.numpy.zeros((2, 5, 6), "float32"),))


def with_node(place, number, value):
    """The file "classic" with another number (key, link) of a node of its first tree."""
    file = bytearray(file_of("classic"))
    tensors = struct.unpack_from("<I", file, 24)[0]
    records = [struct.unpack_from("<4I8q2QI", file, _HEADER + _TENSOR * tensor) for tensor in range(tensors)]
    [at] = [record[12] for record in records if record[2:4] == (3, 2) and record[5] == 2 and record[14] == 1]
    struct.pack_into("<i", file, _records(file) + at + 8 * place + 4 * number, value)
    return file


@pytest.mark.parametrize(
    ("place", "number", "value"),
    [
        (0, 1, 0),  # a branch whose children are itself
        (0, 1, 1 << 16 | 9),  # of a feature that is not there
        (0, 1, 999 << 16),  # whose children are not there
        (0, 1, -1),
    ],
)
def test_nodes_that_are_no_trees_are_refused(place, number, value):
    """A traversal would not end, or leave the model."""
    with pytest.raises(ValueError, match="the nodes of ensemble '' are no decision trees"):
        opened(with_node(place, number, value))
