"""Results whose sizes depend on values: found, chosen or distinct elements. Answers are ONNX Runtime's, also for empty
results."""

import os
import subprocess
import sys

import numpy
import pytest
from onnx import TensorProto, helper, numpy_helper

import vmhost
from bench import other_models
from tests.engine.library import backends, on_backend
from tests.engine.test_other_models import assert_same, by_onnx_runtime
from vmhost.compiler import compile_folder
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

RANDOM = numpy.random.default_rng(11)
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def floats(*shape):
    return RANDOM.random(shape).astype("float32")


def node(op, inputs, outputs="y", **attributes):
    return helper.make_node(op, inputs.split(" "), outputs.split(" "), **attributes)


def model(nodes, inputs, outputs, constants=None, opens=None):
    """`outputs`: names to element types and ranks."""
    ports = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(values.dtype), (opens or {}).get(name, values.shape)
        )
        for name, values in inputs.items()
    ]
    made = [
        helper.make_tensor_value_info(name, kind, [f"{name}{d}" for d in range(rank)])
        for name, (kind, rank) in outputs.items()
    ]
    values = [numpy_helper.from_array(numpy.asarray(values), name) for name, values in (constants or {}).items()]
    graph = helper.make_graph(nodes, "counted", ports, made, values)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)], ir_version=9
    ).SerializeToString()


def boxes(images, count):
    corners = floats(images, count, 2)
    return numpy.concatenate([corners, corners + 0.2], 2)


def case_nonzero():
    x = (floats(3, 7) > 0.5).astype("float32")
    return [node("NonZero", "x")], [{"x": x}, {"x": x * 0}, {"x": x * 0 + 1}], {"y": (INT, 2)}


def case_expansion_to_an_open_size():
    """The size that is counted must be n; the engine once refused the file, which had other numbers for the two."""
    nodes = [node("Expand", "one size", "many"), node("Mul", "many x", "y")]
    given = [{"x": floats(n), "size": numpy.array([n])} for n in (1, 4, 40)]
    return nodes, given, {"y": (FLOAT, 1)}, {"one": floats(1)}, {"x": ["n"]}


def case_suppression():
    inputs = {"boxes": boxes(2, 30), "scores": floats(2, 3, 30)}
    constants = {"most": [5], "overlap": numpy.float32(0.3), "least": numpy.float32(0.2), "one": [1], "two": [2]}
    nodes = [
        node("NonMaxSuppression", "boxes scores most overlap least", "chosen"),
        node("Slice", "chosen one two one", "classes"),
        node("Shape", "chosen", "shape"),
    ]
    outputs = {"chosen": (INT, 2), "classes": (INT, 2), "shape": (INT, 1)}
    nothing = {"boxes": inputs["boxes"], "scores": inputs["scores"] * 0}
    return nodes, [inputs, nothing, {**inputs, "scores": inputs["scores"].round(1)}], outputs, constants


def case_suppression_of_middles_by_value():
    middles = numpy.concatenate([floats(1, 40, 2), floats(1, 40, 2) * 0.3], 2)
    inputs = {"boxes": middles, "scores": floats(1, 2, 40), "most": numpy.array([7]), "overlap": numpy.array([0.1])}
    inputs["overlap"] = inputs["overlap"].astype("float32")
    nodes = [node("NonMaxSuppression", "boxes scores most overlap", center_point_box=1)]
    return nodes, [inputs, {**inputs, "most": numpy.array([0])}], {"y": (INT, 2)}


def case_compress():
    x, kept = floats(7, 4), numpy.array([1, 0, 1, 1, 0, 0, 1], bool)
    return (
        [node("Compress", "x kept", axis=0)],
        [{"x": x, "kept": kept}, {"x": x, "kept": kept & False}],
        {"y": (FLOAT, 2)},
    )


def case_largest():
    x = floats(3, 9)
    given = [{"x": x, "k": numpy.array([k])} for k in (4, 9, 1)]
    return [node("TopK", "x k", "y places")], given, {"y": (FLOAT, 2), "places": (INT, 2)}


def case_range():
    given = [{name: numpy.array(n) for name, n in zip("abc", some)} for some in ((2, 11, 3), (9, -3, -2), (9, 3, 2))]
    return [node("Range", "a b c")], given, {"y": (INT, 1)}


def case_slice():
    x = floats(6, 9)
    ends = [([1, -4], [5, 1000]), ([4, 0], [2, 3]), ([0, 0], [-1, 9])]
    given = [{"x": x, "starts": numpy.array(starts), "ends": numpy.array(stops)} for starts, stops in ends]
    return [node("Slice", "x starts ends axes steps")], given, {"y": (FLOAT, 2)}, {"axes": [0, 1], "steps": [1, 2]}


def case_unique():
    x = RANDOM.integers(0, 5, 12).astype("float32")
    outputs = {"y": (FLOAT, 1), "first": (INT, 1), "inverse": (INT, 1), "counts": (INT, 1)}
    given = [{"x": x}, {"x": x * 0}, {"x": numpy.arange(12, 0, -1).astype("float32")}]
    return [node("Unique", "x", "y first inverse counts")], given, outputs


def case_unique_in_order():
    outputs = {"y": (INT, 1), "first": (INT, 1), "inverse": (INT, 1), "counts": (INT, 1)}
    given = [{"x": RANDOM.integers(0, below, (3, 4))} for below in (5, 100, 1)]
    return [node("Unique", "x", "y first inverse counts", sorted=0)], given, outputs


def case_unique_columns():
    outputs = {"y": (FLOAT, 2), "first": (INT, 1), "inverse": (INT, 1), "counts": (INT, 1)}
    given = [{"x": RANDOM.integers(0, below, (2, 9)).astype("float32")} for below in (3, 2, 100)]
    return [node("Unique", "x", "y first inverse counts", axis=1)], given, outputs


def case_expand_and_fill():
    nodes = [node("Expand", "x s"), node("ConstantOfShape", "s", "zeros")]
    given = [{"x": floats(1, 4), "s": numpy.array(shape)} for shape in ([3, 1], [5, 4], [1, 1])]
    return nodes, given, {"y": (FLOAT, 2), "zeros": (FLOAT, 2)}


def case_open_rows():
    """Beside a size that calls choose, and with a product after it."""
    nodes = [
        node("Greater", "x half", "more"),
        node("NonZero", "more", "places"),
        node("Transpose", "places", "rows"),
        node("GatherND", "x rows", "values"),
        node("MatMul", "x weights", "product"),
        node("Gather", "places zero", "first", axis=0),
        node("Gather", "product first", "made", axis=0),
        node("Relu", "made", "y"),
    ]
    outputs = {"values": (FLOAT, 1), "product": (FLOAT, 2), "y": (FLOAT, 2)}
    constants = {"half": numpy.float32(0.5), "weights": floats(3, 4), "zero": 0}
    x = floats(5, 3)
    return nodes, [{"x": x}, {"x": floats(50, 3)}, {"x": x * 0}], outputs, constants, {"x": ["n", 3]}


def case_detections():
    """The best ten of the remaining boxes, as at the end of detectors."""
    nodes = [
        node("NonMaxSuppression", "boxes scores most overlap", "chosen"),
        node("Gather", "chosen two", "places", axis=1),
        node("Squeeze", "boxes zero", "all"),
        node("Gather", "all places", "kept", axis=0),
        node("Reshape", "scores flat", "row"),
        node("Gather", "row places", "marks", axis=0),
        node("Shape", "marks", "n"),
        node("Min", "n ten", "k"),
        node("TopK", "marks k", "best order"),
        node("Gather", "kept order", "y", axis=0),
    ]
    constants = {"most": [50], "overlap": numpy.float32(0.3), "two": 2, "zero": [0], "flat": [-1], "ten": [10]}
    given = [{"boxes": boxes(1, 60), "scores": floats(1, 1, 60)} for _ in range(2)]
    given.append({"boxes": given[0]["boxes"] * 0 + floats(1, 1, 4), "scores": given[0]["scores"]})
    return nodes, given, {"y": (FLOAT, 2), "best": (FLOAT, 1)}, constants


def case_first_of_found():
    """The first ten of the found elements, or all if there are fewer, or none."""
    nodes = [
        node("NonZero", "x", "places"),
        node("Squeeze", "places zero", "all"),
        node("Slice", "all zero ten", "first"),
        node("Gather", "x first", "y"),
    ]
    x = floats(40)
    given = [{"x": x}, {"x": x * (numpy.arange(40) % 8 == 0)}, {"x": x * 0}]
    return nodes, given, {"y": (FLOAT, 1)}, {"zero": [0], "ten": [10]}


def case_best_of_the_later_ones():
    """Of what was found but the first, a few: the file once had as many of them as were found, and did not load."""
    nodes = [
        node("NonZero", "x", "places"),
        node("Squeeze", "places zero", "all"),
        node("Slice", "all one hundred", "later"),
        node("Gather", "x later", "values"),
        node("Shape", "values", "n"),
        node("Min", "n ten", "k"),
        node("TopK", "values k", "y order"),
    ]
    x = floats(40)
    given = [{"x": x}, {"x": x * (numpy.arange(40) % 8 == 0)}, {"x": x * (numpy.arange(40) == 5)}, {"x": x * 0}]
    return nodes, given, {"y": (FLOAT, 1), "order": (INT, 1)}, {"zero": [0], "one": [1], "hundred": [100], "ten": [10]}


def case_many():
    """More sizes than a file had once; each cuts the others' tensors."""
    nodes, outputs = [], {}
    for number in range(20):
        nodes += [
            node("Greater", f"x bound{number}", f"more{number}"),
            node("NonZero", f"more{number}", f"places{number}"),
            node("Squeeze", f"places{number} zero", f"all{number}"),
            node("Gather", f"x all{number}", f"y{number}"),
        ]
        outputs[f"y{number}"] = (FLOAT, 1)
    constants = {f"bound{number}": numpy.float32(number / 20) for number in range(20)} | {"zero": [0]}
    return nodes, [{"x": floats(30)}, {"x": floats(30) * 0.5}], outputs, constants


def branch(*nodes):
    return helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info("result", FLOAT, None)])


def case_nothing_left_over():
    """Rows that are left over, if there are any, go through a branch that adds a dimension, as KNNImputer's does: what
    follows cannot work on its result."""
    branches = {
        "then_branch": branch(node("Unsqueeze", "rows one", "result")),
        "else_branch": branch(node("Identity", "rows", "result")),
    }
    nodes = [
        node("Compress", "numbers kept", "places", axis=0),
        node("GatherND", "x places", "rows"),
        node("Not", "kept", "lost"),
        node("Compress", "x lost", "others", axis=0),
        node("Size", "others", "size"),
        node("Greater", "size zero", "some"),
        node("If", "some", "made", **branches),
        node("ScatterND", "x places made"),
    ]
    constants = {"zero": 0, "one": [1], "numbers": [[3], [1], [6], [2], [5], [4], [0]]}
    return nodes, [{"x": floats(7, 4), "kept": numpy.ones(7, bool)}], {"y": (FLOAT, 2)}, constants


CASES = {name.removeprefix("case_"): make for name, make in globals().items() if name.startswith("case_")}


@pytest.fixture(scope="module")
def expected():
    made = {name: make() for name, make in CASES.items()}
    data = {name: model(nodes, given[0], *rest) for name, (nodes, given, *rest) in made.items()}
    asked = {f"{name} {n}": (data[name], some) for name, (_, given, *_) in made.items() for n, some in enumerate(given)}
    return {name: given for name, (_, given, *_) in made.items()}, data, by_onnx_runtime(asked)


@pytest.mark.parametrize("name", CASES)
def test_as_many_as_onnx_runtime_says(expected, name):
    compiled = compile_model(expected[1][name], name)
    for backend in backends():
        with on_backend(backend):
            counted = opened(name, compiled)
            for number, given in enumerate(expected[0][name]):
                answers = counted(given)
                for output, theirs in expected[2][f"{name} {number}"]:
                    assert_same(answers[output], theirs)


def test_leftovers_that_the_compiled_branch_does_not_take_are_refused():
    nodes, [given], *rest = case_nothing_left_over()
    found = opened("left", compile_model(model(nodes, given, *rest), "left"))
    kept = given["kept"].copy()
    kept[2] = False
    with pytest.raises(ValueError, match="^left: count of others is 1, expected at most 0$"):
        found(given | {"kept": kept})


def test_sizes_say_what_they_count():
    nodes, given, outputs = case_nonzero()
    found = opened("found", compile_model(model(nodes, given[0], outputs), "found"))
    assert [port.shape for port in found.outputs] == [(2, "count of y")]
    assert {step.kind for step in found.steps} >= {"Scan", "Scatter", "Output"}
    answers, steps = found.run(given[0], profile=True)
    assert numpy.asarray(answers["y"]).shape[1] == numpy.count_nonzero(given[0]["x"])
    assert all(step.ms >= 0 for step in steps)
    found.warmup()
    assert repr(found.backends)


def test_a_vm_runs_all_parts(tmp_path):
    nodes, given, outputs = case_nonzero()
    (tmp_path / "found.onnx").write_bytes(model(nodes, given[0], outputs))
    (tmp_path / "main.py").write_text(
        "from vmhost import engine\n\n\ndef run(value):\n    return engine.load('found')(value)\n"
    )
    (tmp_path / "task.yaml").write_text(
        'name: finds\nversion: "1.0.0"\nentry: main:run\npython: "3.14"\nmodels: {found: found.onnx}\n'
    )
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(compile_folder(tmp_path).to_bytes())
        for some in given:
            places = numpy.asarray(task(some)["y"])
            assert places.tolist() == [row.tolist() for row in numpy.nonzero(some["x"])]


def test_what_is_found_behind_the_first_elements():
    """A part of an open size that is empty at 1."""
    constants = {"first": numpy.array([5]), "end": numpy.array([1 << 31])}
    nodes = [node("Slice", "x first end", "part"), node("NonZero", "part", "y")]
    data = model(nodes, {"x": floats(9)}, {"y": (INT, 2)}, constants, {"x": ["n"]})
    found = opened("m", compile_model(data, "m"))
    for x in (floats(9), floats(7), numpy.ones(6, "float32")):
        assert numpy.asarray(found({"x": x})["y"]).tolist() == [list(numpy.flatnonzero(x[5:]))]


def test_what_is_made_of_nothing_is_the_callers_error():
    """Nothing is the largest of no elements; ONNX Runtime refuses it too."""
    nodes = [
        node("NonZero", "x", "places"),
        node("Transpose", "places", "rows"),
        node("GatherND", "x rows", "values"),
        node("ArgMax", "values", "y", keepdims=0),
    ]
    largest = opened("largest", compile_model(model(nodes, {"x": floats(4)}, {"y": (INT, 0)}), "largest"))
    assert numpy.asarray(largest({"x": numpy.array([0, 3, 9, 0], "float32")})["y"]) == 1
    refused = "^this model does not work at count of places = 0: .* would make a result that has elements of a tensor"
    with pytest.raises(ValueError, match=refused):
        largest({"x": numpy.zeros(4, "float32")})


def test_as_many_values_as_places_that_are_constant():
    """The file once had a tensor of an impossible shape, and did not load."""
    nodes = [
        node("NonZero", "x", "places"),
        node("Transpose", "places", "rows"),
        node("GatherND", "x rows", "values"),
        node("ScatterND", "x ends values"),
    ]
    data = model(nodes, {"x": floats(6)}, {"y": (FLOAT, 1)}, {"ends": [[0], [5]]})
    two = opened("two", compile_model(data, "two"))
    assert two({"x": numpy.float32([0, 3, 0, 0, 9, 0])})["y"].tolist() == [3, 3, 0, 0, 9, 9]
    for found in ([0, 3, 0, 0, 0, 0], [0] * 6, [1, 2, 3, 0, 0, 0]):
        with pytest.raises(ValueError, match="^this model does not work at count of places = "):
            two({"x": numpy.float32(found)})


def test_sizes_beyond_all_bounds_are_the_callers_error():
    given = {name: numpy.array(number) for name, number in zip("abc", (0, 5, 1))}
    row = opened("row", compile_model(model([node("Range", "a b c")], given, {"y": (INT, 1)}), "row"))
    with pytest.raises(
        ValueError, match="row: count of y is 4,611,686,018,427,387,904, expected at most 1,073,741,824"
    ):
        row({**given, "b": numpy.array(1 << 62)})
    shape = numpy.ones(3, "int64")
    filled = compile_model(model([node("ConstantOfShape", "s")], {"s": shape}, {"y": (FLOAT, 3)}), "filled")
    with pytest.raises(MemoryError):
        opened("filled", filled)({"s": shape << 13})
    with pytest.raises(ValueError, match="filled: count of y is -1, expected"):
        opened("filled", filled)({"s": -shape})


def test_parts_that_are_damaged_are_refused():
    nodes, given, outputs = case_nonzero()
    data = compile_model(model(nodes, given[0], outputs), "found")
    first = int.from_bytes(data[16:24], "little")
    assert len(data) > first
    for damaged in (data[:first], data[first:], data[: first + 200], data + data[first:]):
        with pytest.raises((ValueError, KeyError)):
            opened("damaged", damaged)(given[0])


def test_counts_that_have_to_be_a_number_are_looked_at_by_each_call():
    nodes = [node("NonZero", "x", "places"), node("Add", "places five")]
    data = compile_model(model(nodes, {"x": floats(8)}, {"y": (INT, 2)}, {"five": numpy.arange(5)}), "five")
    five = opened("five", data)
    x = numpy.float32([0, 1, 1, 0, 1, 1, 1, 0])
    assert five({"x": x})["y"].tolist() == [[1, 3, 6, 8, 10]]
    with pytest.raises(ValueError, match="^this model does not work at count of places = 8: "):
        five({"x": x * 0 + 1})


def test_what_is_found_is_written_back_also_where_nothing_is():
    """As detectors do, of each level of a pyramid: which regions are its own, and their features among all."""
    nodes = [
        node("Greater", "x least", "own"),
        node("NonZero", "own", "found"),
        node("Squeeze", "found first", "places"),
        node("Gather", "x places", "values"),
        node("Neg", "values", "made"),
        node("Transpose", "found", "rows", perm=[1, 0]),
        node("ScatterND", "start rows made"),
    ]
    constants = {"least": numpy.float32(0.5), "first": [0], "start": numpy.arange(6, dtype="float32")}
    back = opened("back", compile_model(model(nodes, {"x": floats(6)}, {"y": (FLOAT, 1)}, constants), "back"))
    x = numpy.float32([0, 1, 0, 0, 2, 0])
    assert back({"x": x})["y"].tolist() == [0, -1, 2, 3, -2, 5]
    assert back({"x": x * 0})["y"].tolist() == [0, 1, 2, 3, 4, 5]


def test_the_same_model_gives_the_same_bytes_whatever_seeds_hashes():
    program = (
        "import hashlib, sys; from vmhost.engine.onnx import compile_model;"
        "print(hashlib.sha256(compile_model(sys.stdin.buffer.read(), 'ssd')).hexdigest())"
    )
    data = other_models.make("detection/ssd", small=True)[0].SerializeToString()
    made = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            input=data,
            stdout=subprocess.PIPE,
            check=True,
            timeout=200,
        ).stdout
        for seed in ("1", "2", "3", "4")
    }
    assert len(made) == 1
