"""ONNX models for tests: small ones, made anew each time, and their outputs by ONNX's reference or ONNX Runtime."""

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
from onnx import TensorProto, helper, load_model_from_string, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from bench.networks import resnet18


def small(**changes):
    """ResNet18's form on a 1x3x32x32 image with 4 channels at first, as bytes."""
    return resnet18(**{"size": 32, "width": 4, "classes": 10, **changes}).SerializeToString()


def images(**changes):
    """The same network for any number of images, `batch`."""
    model = load_model_from_string(small(**changes))
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return model.SerializeToString()


def graph(nodes, inputs, outputs, constants=None, opset=17):
    """The bytes of a model; `inputs` and `outputs` map names to shapes (None: images, of sizes that follow),
    `constants` names to arrays."""

    def ports(shapes):
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape or "abcd") for name, shape in shapes.items()
        ]

    onnx_graph = helper.make_graph(
        nodes,
        "test",
        ports(inputs),
        ports(outputs),
        [numpy_helper.from_array(numpy.asarray(values), name) for name, values in (constants or {}).items()],
    )
    return helper.make_model(
        onnx_graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    ).SerializeToString()


def graph_of(nodes, inputs, outputs, constants=None, opset=18):
    """The bytes of a model whose inputs are like the arrays `inputs`; `outputs` are names, of dtypes and shapes that
    follow."""

    def port(name, array):
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    onnx_graph = helper.make_graph(
        nodes,
        "test",
        [port(name, array) for name, array in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(numpy.asarray(array), name) for name, array in (constants or {}).items()],
    )
    model = helper.make_model(onnx_graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    model = shape_inference.infer_shapes(model, data_prop=True)
    for value in model.graph.output:  # the checker needs types; our own compiler infers the shapes
        if not value.type.tensor_type.elem_type:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
        if not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.dim.add().dim_param = "unknown"
    return model.SerializeToString()


def values(shape, seed=0):
    return numpy.random.default_rng(seed).standard_normal(shape, dtype="float32")


def expected(model, inputs):
    """The outputs of ONNX's own reference in NumPy: a list of arrays. Too slow for large models."""
    return ReferenceEvaluator(load_model_from_string(model)).run(None, inputs)


def by_onnx_runtime(model, inputs):
    """The one output for each of `inputs`, arrays for the one input, by ONNX Runtime."""
    [name] = (port.name for port in load_model_from_string(model).graph.input)
    return [output for [output] in all_by_onnx_runtime(model, [{name: x} for x in inputs])]


def all_by_onnx_runtime(model, inputs):
    """The outputs, as lists, for each of `inputs`, {name: array}, by ONNX Runtime: in a process and a home of its own,
    since it opens files and starts threads that it keeps."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model.onnx").write_bytes(model)
        for number, given in enumerate(inputs):
            numpy.savez(Path(folder, f"{number}.npz"), **given)
        subprocess.run(
            [sys.executable, "-c", RUNTIME, str(len(inputs))],
            cwd=folder,
            env={**os.environ, "HOME": folder},
            check=True,
            timeout=200,
        )
        answers = []
        for number in range(len(inputs)):
            with numpy.load(Path(folder, f"made{number}.npz")) as outputs:
                answers.append([outputs[f"arr_{index}"] for index in range(len(outputs.files))])
        return answers


def each_by_onnx_runtime(cases):
    """The outputs, as a list, of each (model, {name: array}), by one process of ONNX Runtime's for all of them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "cases").write_bytes(pickle.dumps(cases))
        subprocess.run(
            [sys.executable, "-c", EACH],
            cwd=folder,
            env={**os.environ, "HOME": folder},
            check=True,
            timeout=200,
        )
        return pickle.loads(Path(folder, "answers").read_bytes())


EACH = """
import onnxruntime, pickle
onnxruntime.set_default_logger_severity(4)
with open("cases", "rb") as file:
    cases = pickle.load(file)
answers = [
    onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, given) for model, given in cases
]
with open("answers", "wb") as file:
    pickle.dump(answers, file)
"""


RUNTIME = """
import numpy, onnxruntime, sys
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.x64quantprecision", "1")  # its sums saturate where a CPU has no VNNI
session = onnxruntime.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])
for number in range(int(sys.argv[1])):
    with numpy.load(f"{number}.npz") as given:
        numpy.savez(f"made{number}.npz", *session.run(None, dict(given)))
"""


def assert_close(ours, theirs, tolerance=1e-5):
    ours = numpy.asarray(ours)
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    assert numpy.abs(ours - theirs).max() <= tolerance * max(numpy.abs(theirs).max(), 1e-30)
