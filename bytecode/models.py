"""ONNX models to the engine's model file (docs/model-format.md). Needs the package `onnx`, which the extra `models` brings.

The graph is read once, front to back: what has constant operands only is computed, dropped or renamed nodes vanish, the rest becomes
layers of the engine. Then layers are fused: batch normalization into the convolution before it, additions and ReLU into what makes
their operand. What nothing reads is left out. Unsupported operators are all reported at once.
"""

import math
import struct
from dataclasses import dataclass, field

import numpy

from .errors import CompileError, Diagnostic

VERSION = 1
_FLOAT32 = 10                   # the engine's number of the dtype
_ABSENT = 0xFFFFFFFF
_ALIGNMENT = 64
_RANK, _PARAMETERS = 8, 24
_OPS = {"Conv": 1, "MaxPool": 2, "GlobalAveragePool": 3, "Gemm": 4, "Add": 5, "Relu": 6, "Flatten": 7}
_LARGEST_CONSTANT = 1 << 24     # bytes that a node may be computed to ahead of time


@dataclass
class Layer:
    """One node of the engine: `inputs` are names of tensors or None, `window` the 11 parameters of a window."""

    op: str
    name: str
    inputs: list
    output: str
    window: tuple = ()
    relu: bool = False


@dataclass
class Normalization(Layer):
    """Not the engine's: goes into the convolution before it."""

    factor: numpy.ndarray = None
    offset: numpy.ndarray = None


@dataclass
class Network:
    """A model on its way: `shapes` of all tensors, `constants` as float32 arrays."""

    inputs: list
    outputs: list
    shapes: dict
    constants: dict
    layers: list = field(default_factory=list)


def compile_model(data, where):
    """The engine's model file for the ONNX model `data` (bytes). CompileError with all that stands in the way; `where` names it."""
    try:
        import onnx
    except ImportError as error:
        raise CompileError([Diagnostic(where, 0, "models need the package onnx; install it: pip install 'vmhost[models]'")]) from error
    try:
        model = onnx.load_model_from_string(data)
        onnx.checker.check_model(model)
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except Exception as error:      # protobuf's, onnx's C++ and numpy's own, of no common class
        raise CompileError([Diagnostic(where, 0, f"not an ONNX model: {str(error).strip().splitlines()[0]}")]) from error
    network = _Reader(model, where).read()
    _fold_normalizations(network, where)
    _fuse(network)
    _drop_dead(network)
    return _write(network)


class _Reader:
    def __init__(self, model, where):
        from onnx import numpy_helper
        self.model, self.graph, self.where = model, model.graph, where
        self.problems = []
        self.constants = {item.name: numpy_helper.to_array(item) for item in self.graph.initializer}
        self.shapes = {}
        self.renamed = {}
        for value in (*self.graph.input, *self.graph.value_info, *self.graph.output):
            sizes = value.type.tensor_type.shape.dim
            if all(size.HasField("dim_value") and size.dim_value > 0 for size in sizes):
                self.shapes[value.name] = tuple(size.dim_value for size in sizes)
        self.dtypes = {value.name: value.type.tensor_type.elem_type for value in (*self.graph.input, *self.graph.output)}

    def read(self):
        inputs = [value.name for value in self.graph.input if value.name not in self.constants]
        for name in (*inputs, *(value.name for value in self.graph.output)):
            if name not in self.shapes:
                self.problems.append(f"{name}: expected fixed sizes; export the model with a fixed input shape")
            elif self.dtypes[name] != 1:
                self.problems.append(f"{name}: expected float32, got ONNX's element type {self.dtypes[name]}")
        network = Network(inputs, [], self.shapes, {})
        for node in self.graph.node:
            if not self._compute(node):
                self._layer(node, network)
        network.outputs = [self._name(value.name) for value in self.graph.output]
        made = {layer.output for layer in network.layers}
        for value, name in zip(self.graph.output, network.outputs):
            if name not in made and not self.problems:
                self.problems.append(f"output {value.name}: no operator computes it")
        if self.problems:
            raise CompileError([Diagnostic(self.where, 0, problem) for problem in self.problems])
        names = {name: value.name for value, name in zip(self.graph.output, network.outputs)}
        for layer in network.layers:            # an output keeps its name when Identity gave it another one
            layer.output = names.get(layer.output, layer.output)
            layer.inputs = [names.get(name, name) for name in layer.inputs]
        for old, new in names.items():
            self.shapes.setdefault(new, self.shapes.get(old))
        network.outputs = [value.name for value in self.graph.output]
        return network

    def _name(self, name):
        while name in self.renamed:
            name = self.renamed[name]
        return name

    def _compute(self, node):
        """Whether the node is a constant or computes one of constants."""
        if not all(not name or self._name(name) in self.constants for name in node.input):
            return False
        from onnx import helper
        from onnx.reference import ReferenceEvaluator
        operands = {name: self.constants[self._name(name)] for name in node.input if name}
        if any(math.prod(self.shapes.get(name, ())) * 8 > _LARGEST_CONSTANT for name in node.output):
            return False
        try:
            graph = helper.make_graph([node], "constant", [helper.make_empty_tensor_value_info(name) for name in operands],
                                      [helper.make_empty_tensor_value_info(name) for name in node.output if name])
            single = helper.make_model(graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version)
            values = ReferenceEvaluator(single).run(None, operands)
        except Exception:           # whatever an operator raises: then it is not computed here, and is reported as it stands
            return False
        self.constants.update(zip((name for name in node.output if name), map(numpy.asarray, values)))
        return True

    def _layer(self, node, network):
        attributes = {item.name: _attribute(item) for item in node.attribute}
        inputs = [self._name(name) or None for name in node.input]
        reader = getattr(self, f"_read_{node.op_type}", None) if node.domain in ("", "ai.onnx") else None
        problem = None
        if reader is None:
            problem = "is not supported"
        elif any(node.output[1:]) and node.op_type != "Dropout":
            problem = "has more than one output that is used"
        else:
            for name in inputs:
                if name in self.constants:
                    self.shapes[name] = self.constants[name].shape
            if not all(self.shapes.get(name) for name in (*filter(None, inputs[:1]), node.output[0])):
                problem = "works on shapes that are not fixed"
        result = problem or reader(node, inputs, attributes)
        if isinstance(result, str):
            self.problems.append(f"operator {node.op_type} (node {node.name or node.output[0]!r}) {result}")
        elif result is not None:
            network.layers.append(result)
            for name in result.inputs:
                if name in self.constants:
                    network.constants[name] = numpy.ascontiguousarray(self.constants[name], "float32")

    # Each gives a Layer, None where nothing is left of the node, or a text that says why it is not supported.

    def _read_Identity(self, node, inputs, attributes):
        self.renamed[node.output[0]] = inputs[0]

    _read_Dropout = _read_Identity

    def _read_Conv(self, node, inputs, attributes):
        if len(self.shapes[inputs[0]]) != 4:
            return "is not two-dimensional"
        if inputs[1] not in self.constants or (len(inputs) > 2 and inputs[2] and inputs[2] not in self.constants):
            return "has weights that are not constant"
        if attributes.get("group", 1) != 1:
            return f"has group {attributes['group']}, expected 1"
        window = self._window(node, inputs, attributes, self.constants[inputs[1]].shape[2:])
        return Layer("Conv", node.name, (inputs + [None, None])[:3] + [None], node.output[0], window)

    def _read_MaxPool(self, node, inputs, attributes):
        if len(self.shapes[inputs[0]]) != 4:
            return "is not two-dimensional"
        window = self._window(node, inputs, attributes, attributes["kernel_shape"])
        return Layer("MaxPool", node.name, inputs[:1], node.output[0], window)

    def _window(self, node, inputs, attributes, kernel):
        """The window's parameters; padding is made explicit, and longer at the end where sizes are rounded up."""
        strides, dilations = attributes.get("strides", (1, 1)), attributes.get("dilations", (1, 1))
        begin, end = list(attributes.get("pads", (0,) * 4)[:2]), list(attributes.get("pads", (0,) * 4)[2:])
        sizes, made = self.shapes[inputs[0]][2:], self.shapes[node.output[0]][2:]
        automatic = attributes.get("auto_pad", "NOTSET")
        for d in range(2):
            needed = (made[d] - 1) * strides[d] + dilations[d] * (kernel[d] - 1) + 1
            if automatic in ("SAME_UPPER", "SAME_LOWER"):
                whole = max(0, needed - sizes[d])
                begin[d] = whole // 2 if automatic == "SAME_UPPER" else whole - whole // 2
                end[d] = whole - begin[d]
            end[d] = max(end[d], needed - sizes[d] - begin[d])
        return (*kernel, *strides, *begin, *end, *dilations, 1)

    def _read_GlobalAveragePool(self, node, inputs, attributes):
        if len(self.shapes[inputs[0]]) != 4:
            return "is not two-dimensional"
        return Layer("GlobalAveragePool", node.name, inputs[:1], node.output[0])

    def _read_Flatten(self, node, inputs, attributes):
        if attributes.get("axis", 1) not in (1, 1 - len(self.shapes[inputs[0]])):
            return f"has axis {attributes['axis']}, expected 1"
        return Layer("Flatten", node.name, inputs[:1], node.output[0])

    def _read_Relu(self, node, inputs, attributes):
        return Layer("Relu", node.name, inputs[:1], node.output[0])

    def _read_Add(self, node, inputs, attributes):
        if any(name in self.constants for name in inputs) or self.shapes[inputs[0]] != self.shapes.get(inputs[1]):
            return "adds a constant or another shape"
        return Layer("Add", node.name, inputs, node.output[0])

    def _read_BatchNormalization(self, node, inputs, attributes):
        if any(name not in self.constants for name in inputs[1:]) or attributes.get("training_mode", 0):
            return "is not made for inference"
        scale, bias, mean, variance = (self.constants[name].astype("float64") for name in inputs[1:])
        factor = scale / numpy.sqrt(variance + attributes.get("epsilon", 1e-5))
        return Normalization("BatchNormalization", node.name, inputs[:1], node.output[0], factor=factor, offset=bias - mean * factor)

    def _read_Gemm(self, node, inputs, attributes):
        bias = inputs[2] if len(inputs) > 2 else None
        if attributes.get("transA", 0) or len(self.shapes[inputs[0]]) != 2:
            return "transposes its first operand"
        if inputs[1] not in self.constants or (bias and bias not in self.constants):
            return "has weights that are not constant"
        weights = self.constants[inputs[1]] if attributes.get("transB", 0) else self.constants[inputs[1]].T
        weights_name, bias_name = f"{node.output[0]}/weights", None
        self.constants[weights_name] = weights * numpy.float32(attributes.get("alpha", 1.0))
        if bias:
            values = self.constants[bias] * numpy.float32(attributes.get("beta", 1.0))
            if values.size not in (1, len(weights)):
                return "adds a matrix that is no row"
            bias_name = f"{node.output[0]}/bias"
            self.constants[bias_name] = numpy.broadcast_to(values.reshape(-1), (len(weights),))
        return Layer("Gemm", node.name, [inputs[0], weights_name, bias_name], node.output[0])


def _attribute(item):
    from onnx import helper
    value = helper.get_attribute_value(item)
    return value.decode() if isinstance(value, bytes) else value


def _readers(network):
    """Tensor to the layers that read it; outputs count as read once more."""
    found = {}
    for layer in network.layers:
        for name in filter(None, layer.inputs):
            found.setdefault(name, []).append(layer)
    for name in network.outputs:
        found.setdefault(name, []).append(None)
    return found


def _fold_normalizations(network, where):
    readers, makers = _readers(network), {layer.output: layer for layer in network.layers}
    problems, kept = [], []
    for layer in network.layers:
        if not isinstance(layer, Normalization):
            kept.append(layer)
            continue
        before = makers.get(layer.inputs[0])
        if before is None or before.op != "Conv" or len(readers[layer.inputs[0]]) != 1:
            problems.append(f"operator BatchNormalization (node {layer.name or layer.output!r}) does not follow a convolution of its own")
            continue
        weights, bias = network.constants[before.inputs[1]], network.constants.get(before.inputs[2], 0)
        own = [f"{layer.output}/weights", f"{layer.output}/bias"]
        network.constants[own[0]] = (weights * layer.factor[:, None, None, None]).astype("float32")
        network.constants[own[1]] = (bias * layer.factor + layer.offset).astype("float32")
        before.inputs[1:3] = own
        before.output = layer.output
        makers[layer.output] = before
    if problems:
        raise CompileError([Diagnostic(where, 0, problem) for problem in problems])
    network.layers = kept


def _fuse(network):
    """Additions go into the convolution that makes one operand, ReLU into what makes its operand, if nothing else reads that."""
    readers, place, kept = _readers(network), {}, []
    for layer in network.layers:
        if layer.op == "Add":
            makers = [place[name] for name in layer.inputs if name in place and len(readers[name]) == 1]
            makers = [number for number in makers if kept[number].op == "Conv" and not kept[number].inputs[3] and not kept[number].relu]
            if makers and layer.inputs[0] != layer.inputs[1]:
                number = max(makers)
                maker, kept[number] = kept[number], None
                maker.inputs[3] = next(name for name in layer.inputs if name != maker.output)
                maker.output = layer.output
                layer = maker           # it moves here, where its addend is known
        elif layer.op == "Relu":
            number = place.get(layer.inputs[0])
            maker = None if number is None else kept[number]
            if maker is not None and maker.op in ("Conv", "Gemm", "Add") and not maker.relu and len(readers[layer.inputs[0]]) == 1:
                maker.relu, maker.output = True, layer.output
                place[layer.output] = number
                continue
        place[layer.output] = len(kept)
        kept.append(layer)
    network.layers = [layer for layer in kept if layer is not None]


def _drop_dead(network):
    needed, kept = set(network.outputs), []
    for layer in reversed(network.layers):
        if layer.output in needed:
            needed.update(filter(None, layer.inputs))
            kept.append(layer)
    network.layers = kept[::-1]
    network.constants = {name: values for name, values in network.constants.items() if name in needed}


def _write(network):
    """The file's bytes: header, tensors, nodes, inputs, outputs, operands, names, weights."""
    tensors = {name: number for number, name in enumerate(
        dict.fromkeys((*network.inputs, *(layer.output for layer in network.layers), *network.constants)))}
    names, records, weights = bytearray(), bytearray(), bytearray()

    def name_at(text):
        data = text.encode()[:1024]
        names.extend(data)
        return len(names) - len(data), len(data)

    for name in tensors:
        values = network.constants.get(name)
        shape = network.shapes[name] if values is None else values.shape
        data = b"" if values is None else values.astype("<f4").tobytes()
        at = len(weights) if data else 0
        weights += data + bytes(-len(data) % _ALIGNMENT)
        visible = name_at(name) if name in network.inputs or name in network.outputs else (0, 0)
        records += struct.pack("<4I8q2QI28x", *visible, _FLOAT32, len(shape), *shape, *(0,) * (_RANK - len(shape)), at, len(data),
                               int(values is not None))
    nodes, operands = bytearray(), []
    for layer in network.layers:
        window = (*(layer.window or (0,) * 11), int(layer.relu))
        nodes += struct.pack(f"<6I{_PARAMETERS}i8x", *name_at(layer.name), _OPS[layer.op], len(operands), len(layer.inputs), 1,
                             *window, *(0,) * (_PARAMETERS - len(window)))
        operands += [_ABSENT if name is None else tensors[name] for name in layer.inputs] + [tensors[layer.output]]
    lists = [tensors[name] for name in (*network.inputs, *network.outputs)] + operands
    middle = records + nodes + struct.pack(f"<{len(lists)}I", *lists) + names
    middle += bytes(-len(middle) % _ALIGNMENT)
    header = struct.pack("<8s2IQ6I2Q64x", b"VMEMODEL", VERSION, 0, 128 + len(middle) + len(weights), len(tensors), len(network.layers),
                         len(network.inputs), len(network.outputs), len(operands), 0, len(names), len(weights))
    return bytes(header + middle + weights)
