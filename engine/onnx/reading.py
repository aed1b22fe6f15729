"""Reads an ONNX graph, front to back, into a network. Unsupported operators are all reported at once."""

import math
from collections.abc import Mapping

import numpy

from . import sizes
from .lowering import Lowering
from .network import Network, has_dtype
from .problems import ELEMENTS, OPERATOR, OTHERS_OPERATOR, SHAPE, TEXTS, OnnxError, Problem, told
from .readers import BY_VALUE, EARLY, READERS, WHOLE, Unsupported
from .savings import Savings
from .shape_values import NUMBERS, parts_of, value_of
from .texts import KEEPERS, READERS_OF_TEXTS, is_text, numbers_of_texts, vocabulary

_LARGEST_CONSTANT = 1 << 24  # bytes that a node may be computed to ahead of time, if it is given no more
_LARGEST_KEPT = 64  # numbers of operands by which results are known
_LARGEST_SAID = 64  # numbers of a constant of floats that ONNX is told when it is asked for a shape
_SIZED = ("MelWeightMatrix", "HannWindow", "HammingWindow", "BlackmanWindow")
_MAX_RANK = 8
_STRUCTURES = ("sequence_type", "optional_type")
_MAX_ELEMENTS = 1 << 48  # of a tensor: more than any machine holds
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")  # whose operators everybody knows
_MAX_PARAMETER = (1 << 31) - 1  # of a layer, which model files hold as 32 bits


class _Attributes(Mapping):
    """A node's attributes by name, as Python values that are made when they are asked for."""

    def __init__(self, proto):
        self._items = {item.name: item for item in proto.attribute}
        self._made = {}

    def __getitem__(self, name):
        if name not in self._made:
            from onnx import helper

            value = helper.get_attribute_value(self._items[name])
            if isinstance(value, bytes):
                value = value.decode(errors="replace")
            elif isinstance(value, list) and value and isinstance(value[0], bytes):
                texts = {text: text.decode(errors="replace") for text in set(value)}
                value = [texts[text] for text in value]
            self._made[name] = value
        return self._made[name]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


class Node:
    """One node: inputs by their names in the network, None where one is left out; attributes as Python values."""

    def __init__(self, proto, inputs, opset):
        self.op, self.domain, self.opset = proto.op_type, proto.domain, opset
        self.name, self.label = proto.name, proto.name or proto.output[0]
        self.inputs, self.outputs = inputs, list(proto.output)
        self.names = list(proto.input)  # of inputs in the model
        self.attributes = _Attributes(proto)

    def input(self, number):
        """The name of that input, or None."""
        return self.inputs[number] if number < len(self.inputs) else None

    def get(self, attribute, default=None):
        return self.attributes.get(attribute, default)

    @property
    def output(self):
        return self.outputs[0]


class Reader:
    """What readers of operators work with: the `network` so far, and what ONNX's shape inference says."""

    def __init__(self, model, where, opens=None, contradiction=None, weights=None, kept=None):
        from .parsing import array_of

        self._kept = {} if kept is None else kept

        self.contradiction = contradiction
        self.reading = opens.number if opens else 0  # which of several, at other sizes
        self.model, self.graph, self.where, self.opens = model, model.graph, where, opens and opens.variables
        self.opset = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 1)
        self.problems = []
        self.open_inputs = opens
        self.renamed = {}
        self.made = {}  # names in the model to the nodes that make them
        self.quantized = {}  # and to what quantization.py knows of them
        self.blocks = {}  # and to the narrow_products.Blocks that constants are
        self.inferred = {}  # names to shapes and dtypes
        self.structures = {}  # and to what structures.py knows of sequences and optionals
        self.depth = self.read_in_bodies = 0  # bodies that are being read, and nodes read in bodies so far
        self.network = Network([])
        self.vocabulary = vocabulary(model)
        self.network.vocabulary = list(self.vocabulary)
        self._given = set()  # texts that callers give, whatever they are
        for number, item in enumerate(self.graph.initializer):
            try:
                self.keep_constant(item.name, self.once(("weights", number), lambda: array_of(item, weights or {})))
            except ValueError as error:
                self.problems.append(Problem(None, item.name, f"its data do not fit its shape and type: {error}"))
        self._take_inferred((*self.graph.input, *self.graph.value_info, *self.graph.output))

    def read(self):
        network = self.network
        network.inputs = [value.name for value in self.graph.input if value.name not in network.constants]
        kinds = {value.name for value in self.graph.input if value.type.WhichOneof("value") in _STRUCTURES}
        for name in network.inputs:
            if name in kinds:
                cause = "is a sequence or an optional, of no length that is known; take its tensors as inputs"
                self.problems.append(Problem(None, f"input {name}", cause))
            elif name not in self.inferred:
                self.problems.append(Problem(None, name, "expected a tensor with a number of dimensions"))
            elif not _is_possible(self.inferred[name][0]):
                self.problems.append(Problem(None, name, f"no tensor has the shape {self.inferred[name][0]}"))
            else:
                shape, dtype = self.inferred[name]
                if is_text(numpy.empty(0, dtype)):
                    self.network.texts.add(name)
                    self._given.add(name)
                    dtype = numpy.dtype("int64")
                network.declare(name, self.open_inputs.shape(name, shape) if self.open_inputs else shape, dtype)
        self.network.counted = {}
        whole = self._kept.get("whole nodes", {})  # of those that ONNX was told less of
        for number, proto in enumerate(self.graph.node):
            self.read_inner(whole.get(number, proto))
        computed = sum(all(name in network.constants for name in proto.output if name) for proto in self.graph.node)
        network.savings = Savings(len(self.graph.node), len(self.graph.node), computed)
        if not self.problems:
            self._name_outputs()
            self._check_tensors()
        if self.contradiction and (self.problems or not self._outputs_are_as_said()):
            raise OnnxError(self.where, self.contradiction, *told(self.problems))
        if self.problems:
            raise OnnxError(self.where, *told(self.problems))
        return network

    # ---- for readers of operators
    def shape(self, name):
        return self.network.shape(name)

    def dtype(self, name):
        return self.network.dtype(name)

    def constant(self, name):
        """The array that the tensor is, or None: it is computed, or `name` is None."""
        return self.network.constants.get(name)

    def inferred_shape(self, name):
        """What ONNX says about an output of the node that is being read."""
        if name not in self.inferred:
            self._infer_here()
        if name not in self.inferred:
            raise Unsupported("makes a tensor whose shape does not follow from the shapes of its operands", SHAPE)
        shape = self.inferred[name][0]
        if not _is_possible(shape):
            raise Unsupported(f"makes a tensor of the shape {shape}, which is impossible")
        return shape

    def number(self, name):
        """The one number that the constant is, a Size where it follows from open sizes."""
        value = self.network.values.get(name, self.network.constants[name]).reshape(())[()]
        return value if isinstance(value, sizes.Size) else int(value)

    def add_layer(self, op, node, inputs, shape, dtype=None, output=None, **fields):
        """Adds a layer; the tensor that it makes, by default the node's output of the dtype of the first input."""
        from .network import Layer

        for value in fields.values():
            for number in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(number, int) and abs(number) > _MAX_PARAMETER:
                    raise Unsupported(f"has the number {number:,}, expected at most {_MAX_PARAMETER:,}")
        output = output or node.output
        self.network.declare(output, shape, dtype or self.dtype(inputs[0]))
        self.network.layers.append(Layer(op, node.name, list(inputs), output, **fields))
        return output

    def same(self, name, other):
        """The tensor `name` is `other` from now on."""
        self.renamed[name] = other

    def knows(self, name):
        """Whether there is a tensor, sequence or optional of that name."""
        return name in self.network.shapes or name in self.network.constants or name in self.structures

    def told(self, shape):
        """The shape, with open sizes as they follow from the inputs'."""
        return f"({', '.join(map(self.told_size, shape))}{',' if len(shape) == 1 else ''})"

    def told_size(self, size):
        from .open_sizes import OpenSizes

        return OpenSizes(list(self.opens or ()), None).told(size) if sizes.is_open(size) else str(size)

    def emit(self, op, inputs, outputs, **attributes):
        """Reads a node that is not in the model, with these names, as it would be if it were. `axes` and `split` become
        operands where the model's opset has them so."""
        from onnx import helper

        inputs = list(inputs)
        for key in ("axes", "split"):
            if key in attributes and self.opset >= 13:
                inputs.append(self.network.constant(f"{outputs[0]}/{key}", attributes.pop(key), numpy.int64))
        self.read_inner(helper.make_node(op, inputs, outputs, **attributes))

    def once(self, key, make):
        """What `make` makes of a node's attributes alone, which is the same in each reading of the model: made in the
        first one. `key` tells it from all else."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def keep_constant(self, name, values):
        """Makes the tensor that constant; returns its name."""
        values = numpy.asarray(values)
        if is_text(values):
            values = numbers_of_texts(self, values)
            self.network.texts.add(name)
        self.network.constants[name] = values
        return name

    # ----
    def _take_inferred(self, values):
        """Remembers the tensors whose sizes are all given."""
        from onnx import helper

        for value in values:
            tensor = value.type.tensor_type
            if not value.type.HasField("tensor_type") or not tensor.HasField("shape") or tensor.elem_type == 0:
                continue
            if all(size.HasField("dim_value") for size in tensor.shape.dim):
                self.inferred[value.name] = (
                    tuple(size.dim_value for size in tensor.shape.dim),
                    helper.tensor_dtype_to_np_dtype(tensor.elem_type),
                )

    def name_of(self, name):
        """The tensor's name in the network; None: it is left out."""
        while name in self.renamed:
            name = self.renamed[name]
        return name or None

    def _infer_here(self):
        """Asks ONNX again about the node that is being read: its operands' shapes are known here, even where what makes
        them has told ONNX nothing."""
        import onnx
        from onnx import helper, numpy_helper

        proto, known = self.proto, []
        constants = {name: self.constant(self.name_of(name)) for name in dict.fromkeys(filter(None, proto.input))}
        for name, values in constants.items():
            if values is not None and values.dtype.kind == "f" and values.size > _LARGEST_SAID:
                constants[name] = values = None  # whose numbers no shape follows from
            if values is None:
                known.append(
                    helper.make_tensor_value_info(
                        name,
                        helper.np_dtype_to_tensor_dtype(self.dtype(self.name_of(name))),
                        self.shape(self.name_of(name)),
                    )
                )
        graph = helper.make_graph(
            [proto],
            "one",
            known,
            [helper.make_empty_tensor_value_info(name) for name in proto.output if name],
            [numpy_helper.from_array(values, name) for name, values in constants.items() if values is not None],
        )
        model = helper.make_model(graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version)
        self._take_inferred(onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output)

    def read_inner(self, proto):
        node = Node(proto, [self.name_of(name) for name in proto.input], self.opset)
        self.network.reads = f"{_operator(proto)} {node.label!r}"
        if _operator(proto) in WHOLE or any(name in self.structures for name in node.inputs):
            self._read_whole(node, proto)
            return
        if not (self._follows(node, proto) or self._early(node, proto) or self._compute(node, proto)):
            self._read_node(node, proto)
        self.made.update(dict.fromkeys(filter(None, node.outputs), node))

    def _read_whole(self, node, proto):
        """Of nodes that work on graphs, sequences and optionals, and of the identity of these."""
        operator, self.proto = _operator(proto), proto
        lost = [name for name in node.inputs if name and not self.knows(name)]
        if lost and self.problems:
            return  # what made it is reported
        try:
            if operator == "Identity":
                self.structures[node.output] = self.structures[node.inputs[0]]
            elif operator not in WHOLE:
                raise Unsupported(f"works on {next(filter(self.structures.get, node.inputs))!r}, which is no tensor")
            else:
                READERS[operator](self, node)
        except Unsupported as error:
            self.problems.append(Problem(operator, node.label, str(error), error.remedy))
        except ValueError as error:
            self.problems.append(Problem(operator, node.label, f"has operands that do not go together: {error}"))

    def _early(self, node, proto):
        self.proto = proto
        return _operator(proto) in EARLY and EARLY[_operator(proto)](self, node)

    def _follows(self, node, proto):
        """Whether the node makes a constant that follows from sizes."""
        network = self.network
        if proto.domain not in ("", "ai.onnx"):
            return False
        if proto.op_type in ("Shape", "Size"):
            name = node.inputs[0]
            if name not in network.shapes and name not in network.constants:
                return False
            shape = network.shape(name)
            if proto.op_type == "Size":
                self._keep(node.output, numpy.array(math.prod(shape), object), numpy.int64)
            else:
                whole = numpy.empty(len(shape), object)
                whole[:] = shape
                self._keep(node.output, whole[node.get("start", 0) : node.get("end")], numpy.int64)
            return True
        if not any(name in network.values for name in node.inputs) or not all(
            name is None or name in network.constants for name in node.inputs
        ):
            return False
        values = [name and network.values.get(name, network.constants[name]) for name in node.inputs]
        if proto.op_type == "Split":
            parts = parts_of(node, values)
            for name, part in zip(node.outputs, parts or ()):
                self._keep(name, part, self.dtype(node.inputs[0]))
            return parts is not None
        made = value_of(node, values, [name and self.dtype(name) for name in node.inputs])
        if made is None:
            return False
        self._keep(node.output, *made)
        return True

    def _keep(self, name, values, dtype):
        """Makes the tensor the constant `values`, an array of objects."""
        self.network.constants[name] = values.astype(dtype)
        if sizes.is_open(values):
            self.network.values[name] = values

    def as_tensor(self, name, node):
        """The tensor's name, or that of what layers compute, where it is a constant that follows from open sizes."""
        values = self.network.values.get(name)
        return name if values is None else Lowering(self, node).of_sizes(values, self.dtype(name))

    def _compute(self, node, proto):
        """Whether the node is a constant or computes one of constants."""
        constants = self.network.constants
        if (
            not all(name is None or name in constants for name in node.inputs)
            or node.op.startswith(("Random", "Bernoulli", "Multinomial"))
            or (node.op in _SIZED and not self._is_small(proto))
            or any(name in self.network.values for name in node.inputs)
            or (self._texts_of(proto) and _operator(proto) not in KEEPERS)
        ):
            return False
        from onnx import numpy_helper

        if node.op == "Constant" and list(node.attributes) == ["value"]:
            self.keep_constant(node.output, numpy_helper.to_array(node.get("value")))
            return True
        operands = {name: constants[own] for name, own in zip(node.names, node.inputs) if name}
        bound = max(_LARGEST_CONSTANT, *(8 * values.size for values in operands.values()), 0)
        if any(math.prod(self.inferred.get(name, ((),))[0]) * 8 > bound for name in proto.output):
            return False
        values = self._computed(proto, operands)
        if values is None:
            return False
        for name, made in zip(filter(None, node.outputs), values):
            self.keep_constant(name, made)
        self._mark_texts(proto)
        return True

    def _computed(self, proto, operands):
        """What the node makes of constants, by ONNX's own implementation; None: it has none, or it is no tensor. Kept,
        since equal nodes are in each layer of a model and in each reading of it."""
        if all(values.size <= _LARGEST_KEPT and values.dtype.kind != "O" for values in operands.values()):
            places = {name: place for place, name in enumerate(operands)}
            key = (
                _operator(proto),
                tuple(places.get(name) for name in proto.input),
                tuple(map(bool, proto.output)),
                tuple(item.SerializeToString(deterministic=True) for item in proto.attribute),
                tuple((values.dtype.str, values.shape, values.tobytes()) for values in operands.values()),
            )
            return self.once(key, lambda: self._evaluated(proto, operands))
        return self._evaluated(proto, operands)

    def _evaluated(self, proto, operands):
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        try:
            graph = helper.make_graph(
                [proto],
                "constant",
                [helper.make_empty_tensor_value_info(name) for name in operands],
                [helper.make_empty_tensor_value_info(name) for name in proto.output if name],
            )
            single = helper.make_model(graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version)
            values = ReferenceEvaluator(single).run(None, operands)
        except Exception:  # whatever an operator raises: then it is not computed here, and is reported as it stands
            return None
        known = numpy.ndarray, numpy.generic, int, float, bool
        return values if all(isinstance(value, known) for value in values) else None

    def _is_small(self, proto):
        """Whether numbers that say how much is made say little."""
        operands = [self.network.constants[self.name_of(name)] for name in proto.input if name]
        return all(abs(values.astype("float64")).max(initial=0) <= _LARGEST_CONSTANT >> 4 for values in operands)

    def _texts_of(self, proto):
        """The node's operands that are texts."""
        if not self.network.texts:
            return []
        return [name for name in map(self.name_of, proto.input) if name in self.network.texts]

    def _mark_texts(self, proto):
        """What a node that rearranges texts has made are texts."""
        texts = self._texts_of(proto)
        if texts and _operator(proto) in KEEPERS:
            made = set(filter(None, map(self.name_of, proto.output)))
            self.network.texts |= made
            if not self._given.isdisjoint(texts):
                self._given |= made

    def _read_node(self, node, proto):
        operator = _operator(proto)
        reader, self.proto = READERS.get(operator), proto
        network = self.network
        known = [name for name in node.inputs if name and (name in network.shapes or name in network.constants)]
        lost = [name for name in node.inputs if name and name not in known]
        try:
            if reader is None:
                raise Unsupported("is not supported", OPERATOR if proto.domain in _DOMAINS else OTHERS_OPERATOR)
            if lost and self.problems:
                return  # what made it is reported
            if lost:
                raise Unsupported(f"works on {lost[0]!r}, of a shape that is not fixed", SHAPE)
            self._check_texts(proto)
            foreign = [name for name in known if not has_dtype(self.dtype(name))]
            self.problems += [Problem(None, name, _no_element_type(self.dtype(name)), ELEMENTS) for name in foreign]
            if not foreign:
                numbers = NUMBERS.get(operator, ()) or (range(1, 9) if operator.startswith("Reduce") else ())
                if operator in BY_VALUE and any(
                    name and place in numbers and self.constant(name) is None for place, name in enumerate(node.inputs)
                ):
                    reader = BY_VALUE[operator]
                if network.values:
                    node.inputs = [
                        name if place in numbers else self.as_tensor(name, node)
                        for place, name in enumerate(node.inputs)
                    ]
                reader(self, node)
                self._mark_texts(proto)
        except Unsupported as error:
            self.problems.append(Problem(operator, node.label, str(error), error.remedy))
        except (ValueError, ZeroDivisionError) as error:  # of operands that ONNX's shape inference let pass
            self.problems.append(Problem(operator, node.label, f"has operands that do not go together: {error}"))

    def _check_texts(self, proto):
        texts, operator = self._texts_of(proto), _operator(proto)
        if texts and operator not in READERS_OF_TEXTS:
            raise Unsupported(f"works on the texts {texts[0]!r}", TEXTS)
        if texts and operator == "Equal" and not any(name in self.network.constants for name in texts):
            raise Unsupported(
                "compares texts that are both computed: they are known only as far as the model says them", TEXTS
            )

    def _name_outputs(self):
        """Outputs get their own names, and layers that make them, where they are inputs, constants, or other outputs
        too."""
        network, taken = self.network, set(self.network.inputs)
        for value in self.graph.output:
            name = self.name_of(value.name)
            if name in self.structures:
                cause = "is a sequence or an optional; give its tensors as outputs (SequenceAt, ConcatFromSequence)"
                self.problems.append(Problem(None, f"output {value.name}", cause))
                continue
            if name not in network.shapes and name not in network.constants:
                self.problems.append(Problem(None, f"output {value.name}", "no operator computes it"))
                continue
            if name in self._given:
                cause = "gives back texts of an input; only texts that the model says can be told"
                self.problems.append(Problem(None, f"output {value.name}", cause))
                continue
            if name in network.values:
                made = self.as_tensor(name, Node(self.graph.node[-1], [], self.opset))
                network.constants.pop(value.name, None)
                network.values.pop(value.name, None)
                self.renamed.pop(value.name, None)
                network.copied(value.name, made)
                taken.add(value.name)
                network.outputs.append(value.name)
                continue
            if network.as_view(name).base in network.constants or name in taken:
                if name == value.name:
                    if name in taken:
                        self.problems.append(Problem(None, f"output {name}", "is an input, and nothing computes it"))
                        continue
                    name = network.fresh(f"{name}/constant")
                    network.rename(value.name, name)
                network.copied(value.name, name)
                if name in network.texts:
                    network.texts.add(value.name)
                if name in network.labels:
                    network.labels[value.name] = network.labels[name]
            elif name != value.name:
                network.rename(name, value.name)
                self.renamed.pop(value.name)  # which led to `name`
                self.renamed[name] = value.name
            taken.add(value.name)
            network.outputs.append(value.name)

    def _outputs_are_as_said(self):
        """Whether outputs have the ranks and numbers that the model says."""
        for value in self.graph.output:
            said, shape = value.type.tensor_type.shape.dim, self.network.shape(value.name)
            if value.type.tensor_type.HasField("shape") and (
                len(said) != len(shape)
                or any(
                    size.HasField("dim_value") and not sizes.is_open(own) and size.dim_value != own
                    for size, own in zip(said, shape)
                )
            ):
                return False
        return True

    def _check_tensors(self):
        network = self.network
        for name in dict.fromkeys(
            (
                *network.inputs,
                *(name for layer in network.layers for name in (*layer.inputs, layer.output) if name),
                *network.outputs,
            )
        ):
            shape, dtype = network.shape(name), network.dtype(name)
            if not has_dtype(dtype):
                self.problems.append(Problem(None, name, _no_element_type(dtype), ELEMENTS))
            elif any(size < 1 for size in shape) or len(shape) > _MAX_RANK:
                self.problems.append(
                    Problem(
                        None,
                        name,
                        f"expected at most {_MAX_RANK} dimensions of fixed sizes of at least 1, got {shape}",
                    )
                )


def _operator(proto):
    """As readers are entered."""
    return proto.op_type if proto.domain in ("", "ai.onnx") else f"{proto.domain}.{proto.op_type}"


def _is_possible(shape):
    return min(shape, default=0) >= 0 and math.prod(shape) <= _MAX_ELEMENTS


def _no_element_type(dtype):
    name = "string" if dtype.kind in "OUST" else dtype.name
    return f"the engine has no element type {name}" + (
        "" if name == "string" else "; export the model in float32, float16 or integers"
    )


def read(model, where, opens=None, contradiction=None, weights=None, kept=None):
    """The network of a checked ONNX model with inferred shapes; `opens` has the Sizes of inputs' shapes, where some are
    open (open_sizes.Opens); `contradiction` is what
    ONNX's shape inference has against the model; `weights` are kept apart from it (parsing.py); `kept` is a dict that
    all readings of a model are given (Reader.once). OnnxError names all nodes that are in the way."""
    return Reader(model, where, opens, contradiction, weights, kept).read()
