"""ONNX models for tests: small ones, made anew each time, and their outputs by ONNX's reference or ONNX Runtime."""

import numpy
from onnx import TensorProto, helper, load_model_from_string, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from bench.networks import resnet18
from tests import onnx_runtime


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
    """The outputs, as lists, for each of `inputs`, {name: array}, by ONNX Runtime."""
    [found] = onnx_runtime.answers([(model, inputs)], exact=True)
    return [[value for _, value in outputs] for outputs in found]


def each_by_onnx_runtime(cases, *, exact=True):
    """The outputs, as a list, of each (model, {name: array}). Not `exact`: sums of products of bytes may saturate."""
    found = onnx_runtime.answers([(model, [given]) for model, given in cases], exact=exact, quiet=True)
    return [[value for _, value in outputs] for [outputs] in found]


def assert_close(ours, theirs, tolerance=1e-5):
    ours = numpy.asarray(ours)
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    assert numpy.abs(ours - theirs).max() <= tolerance * max(numpy.abs(theirs).max(), 1e-30)
