"""Reads an ONNX graph, front to back, into a network. All unsupported operators are reported at once."""

import math
from collections.abc import Mapping

import numpy

from . import sizes
from .integer_means import INTEGER_MEANS, integer_mean_of
from .lists import array_of_list
from .lowering import Lowering
from .network import Network, has_dtype
from .problems import ELEMENTS, OPERATOR, OTHERS_OPERATOR, SHAPE, TEXTS, OnnxError, Problem, as_sentences
from .readers import BY_VALUE, EARLY, READERS, WHOLE, Unsupported
from .savings import Savings
from .shape_values import NUMBERS, parts_of, value_of
from .structures import Sequence
from .tensor_operators import reduced_axes
from .texts import KEEPERS, READERS_OF_TEXTS, is_text, numbers_of_texts, vocabulary

_MAX_CONSTANT_BYTES = 1 << 24  # bytes of a precomputed result, unless an operand is larger
_MAX_COMPARED_BY_VALUE = 64  # elements of an operand that is compared by value, not identity
_MAX_INFERRED = 64  # elements of a float constant that is passed to ONNX's shape inference
_SIZED = ("MelWeightMatrix", "HannWindow", "HammingWindow", "BlackmanWindow")
_MAX_RANK = 8
_STRUCTURES = ("sequence_type", "optional_type")
_MAX_ELEMENTS = 1 << 48  # of a tensor; exceeds any machine's memory
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.ms.internal.nhwc")  # standard domains
_MAX_PARAMETER = (1 << 31) - 1  # of a layer; model files store 32 bits


class _Attributes(Mapping):
    """A node's attributes by name, as Python values converted on access."""

    def __init__(self, proto):
        self._items = {item.name: item for item in proto.attribute}
        self._values = {}

    def __getitem__(self, name):
        if name not in self._values:
            from onnx import helper

            value = helper.get_attribute_value(self._items[name])
            if isinstance(value, bytes):
                value = value.decode(errors="replace")
            elif isinstance(value, list) and value and isinstance(value[0], bytes):
                texts = {text: text.decode(errors="replace") for text in set(value)}
                value = [texts[text] for text in value]
            self._values[name] = value
        return self._values[name]

    def array(self, name, dtype):
        """The attribute, a list of numbers, as a new array; None if there is none."""
        item = self._items.get(name)
        if item is None:
            return None
        return array_of_list(item, dtype) if item.floats or item.ints else numpy.array(self[name], dtype)

    def texts(self, name):
        """The attribute's list of texts as bytes; empty if there is none."""
        return list(self._items[name].strings) if name in self._items else []

    def once(self, name, make):
        """The result of `make` for the attribute, computed once."""
        if (name, make) not in self._values:
            self._values[name, make] = make(self[name])
        return self._values[name, make]

    def get(self, name, default=None):
        return self[name] if name in self._items else default

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


class Node:
    """A node. `inputs` are names in the network, None for omitted ones; attributes are Python values; `operator` is the
    name that readers are registered by."""

    def __init__(self, proto, inputs, opset):
        self.op, self.domain, self.opset = proto.op_type, proto.domain, opset
        self.operator = self.op if self.domain in ("", "ai.onnx") else f"{self.domain}.{self.op}"
        self.outputs = list(proto.output)
        self.name = proto.name
        self.label = self.name or self.outputs[0]
        self.inputs = inputs
        self.names = list(proto.input)  # the inputs' names in the model
        self.attributes = _Attributes(proto)

    def again(self):
        """A copy of the node for another reading."""
        result = Node.__new__(Node)
        result.__dict__.update(self.__dict__)
        return result

    def input(self, number):
        """The name of input `number`, or None."""
        return self.inputs[number] if number < len(self.inputs) else None

    def get(self, attribute, default=None):
        return self.attributes.get(attribute, default)

    def tensor(self, attribute):
        """The attribute's array, shared by all readings."""
        from onnx import numpy_helper

        return self.attributes.once(attribute, numpy_helper.to_array)

    @property
    def output(self):
        return self.outputs[0]


class _Inferred(Mapping):
    """The shapes that ONNX inferred completely: tensor names to (shape, NumPy dtype), converted on access."""

    def __init__(self):
        self._values, self._converted = {}, {}

    def take(self, values):
        """Adds these ValueInfoProtos; one without information does not replace an earlier one."""
        for value in values:
            name = value.name
            if name not in self._values or self._shape_and_dtype(value):
                self._values[name] = value
                self._converted.pop(name, None)

    def get(self, name, default=None):
        found = self._converted.get(name)
        if found is None and name in self._values:
            found = self._converted[name] = self._shape_and_dtype(self._values[name])
        return found or default

    def __getitem__(self, name):
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def __contains__(self, name):
        return self.get(name) is not None

    def __iter__(self):
        return iter(name for name in self._values if name in self)

    def __len__(self):
        return sum(1 for _ in self)

    @staticmethod
    def _shape_and_dtype(value):
        from onnx import helper

        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not tensor.HasField("shape") or tensor.elem_type == 0:
            return ()
        if not all(size.HasField("dim_value") for size in tensor.shape.dim):
            return ()
        return tuple(size.dim_value for size in tensor.shape.dim), helper.tensor_dtype_to_np_dtype(tensor.elem_type)


class Reader:
    """Reads a graph into `network`, and is the interface that readers of operators use."""

    def __init__(self, model, where, opens=None, contradiction=None, weights=None, cache=None):
        from .parsing import array_of

        self._cache = {} if cache is None else cache

        self.contradiction = contradiction
        self.reading = opens.number if opens else 0  # number of this reading
        self.model, self.graph, self.where, self.opens = model, model.graph, where, opens and opens.variables
        self.opset = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 1)
        self.problems = []
        self.open_inputs = opens
        self.renamed = {}
        self.producers = {}  # names in the model to the nodes that make them
        self.quantized = {}  # names to their Quantized
        self.blocks = {}  # names of constants to their narrow_products.Blocks
        self.borders = {}  # names of tensors padded with zeros to (the tensor inside, widths before, widths after)
        self.inferred = _Inferred()  # names to shapes and dtypes
        self.structures = {}  # names of sequences and optionals to structures.py's records
        self.depth = self.read_in_bodies = 0  # nesting of bodies; nodes read in bodies so far
        self.network = Network([], shared_constants=self._cache.setdefault("parts", {}))
        self.vocabulary = vocabulary(model)
        self.network.vocabulary = list(self.vocabulary)
        self._input_texts = set()  # texts from callers, whose values are unknown
        for number, item in enumerate(self.graph.initializer):
            try:
                self.keep_constant(item.name, self.once(("weights", number), lambda: array_of(item, weights or {})))
            except ValueError as error:
                self.problems.append(Problem(None, item.name, f"its data do not fit its shape and type: {error}"))
        self.inferred.take((*self.graph.input, *self.graph.value_info, *self.graph.output))

    def read(self):
        network = self.network
        network.inputs = [value.name for value in self.graph.input if value.name not in network.constants]
        structure_names = {value.name for value in self.graph.input if value.type.WhichOneof("value") in _STRUCTURES}
        for name in network.inputs:
            if name in structure_names:
                cause = "is a sequence or an optional, whose length is unknown; take its tensors as inputs"
                self.problems.append(Problem(None, f"input {name}", cause))
            elif name not in self.inferred:
                self.problems.append(Problem(None, name, "expected a tensor with a number of dimensions"))
            elif not _is_possible(self.inferred[name][0]):
                self.problems.append(Problem(None, name, f"no tensor has the shape {self.inferred[name][0]}"))
            else:
                shape, dtype = self.inferred[name]
                if is_text(numpy.empty(0, dtype)):
                    self.network.texts.add(name)
                    self._input_texts.add(name)
                    dtype = numpy.dtype("int64")
                network.declare(name, self.open_inputs.shape(name, shape) if self.open_inputs else shape, dtype)
        self.network.counted = {}
        originals = self._cache.get("whole nodes", {})  # of nodes without their lists (parsing.without_lists)
        nodes = self._cache.setdefault("nodes", [])  # shared by all readings
        for number, proto in enumerate(self.graph.node):
            proto = originals.get(number, proto)
            if number == len(nodes):
                nodes.append(Node(proto, None, self.opset))
            self._read(nodes[number].again(), proto)
        constants = network.constants
        computed = sum(all(name in constants for name in node.outputs if name) for node in nodes)
        network.savings = Savings(len(self.graph.node), len(self.graph.node), computed)
        if not self.problems:
            self._name_outputs()
            self._check_tensors()
        if self.contradiction and (self.problems or not self._has_declared_shapes()):
            raise OnnxError(self.where, self.contradiction, *as_sentences(self.problems))
        if self.problems:
            raise OnnxError(self.where, *as_sentences(self.problems))
        return network

    # ---- for readers of operators
    def shape(self, name):
        return self.network.shape(name)

    def dtype(self, name):
        return self.network.dtype(name)

    def constant(self, name):
        """The tensor's array if it is a constant, else None; also None for `name` None."""
        return self.network.constants.get(name)

    def inferred_shape(self, name):
        """ONNX's inferred shape of an output of the current node."""
        if name not in self.inferred:
            self._infer_here()
        if name not in self.inferred:
            raise Unsupported("makes a tensor whose shape does not follow from the shapes of its operands", SHAPE)
        shape = self.inferred[name][0]
        if not _is_possible(shape):
            raise Unsupported(f"makes a tensor of the shape {shape}, which is impossible")
        return shape

    def number(self, name):
        """The constant's only element, a Size if it depends on open sizes."""
        value = self.network.values.get(name, self.network.constants[name]).reshape(())[()]
        return value if isinstance(value, sizes.Size) else int(value)

    def add_layer(self, op, node, inputs, shape, dtype=None, output=None, **fields):
        """Adds a layer and returns its tensor: by default the node's output, with the dtype of the first input."""
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
        """Makes the tensor `name` an alias of `other`."""
        self.renamed[name] = other

    def knows(self, name):
        """Whether a tensor, sequence or optional has that name."""
        return name in self.network.shapes or name in self.network.constants or name in self.structures

    def shape_text(self, shape):
        """The shape as text, with open sizes as expressions of the inputs'."""
        return f"({', '.join(map(self.size_text, shape))}{',' if len(shape) == 1 else ''})"

    def size_text(self, size):
        from .open_sizes import OpenSizes

        return OpenSizes(list(self.opens or ()), None).size_text(size) if sizes.is_open(size) else str(size)

    def emit(self, op, inputs, outputs, **attributes):
        """Reads a node that is not in the model, with these names. `axes` and `split` become operands if the model's
        opset requires it."""
        from onnx import helper

        inputs = list(inputs)
        for key in ("axes", "split"):
            if key in attributes and self.opset >= 13:
                inputs.append(self.network.constant(f"{outputs[0]}/{key}", attributes.pop(key), numpy.int64))
        self.read_inner(helper.make_node(op, inputs, outputs, **attributes))

    def once(self, key, make):
        """The result of `make`, which must depend only on a node's attributes: computed in the first reading, kept for
        the others. `key` identifies it."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def keep_constant(self, name, values):
        """Makes the tensor `name` a constant of these values. Returns the name."""
        values = numpy.asarray(values)
        if is_text(values):
            values = numbers_of_texts(self, values)
            self.network.texts.add(name)
        self.network.constants[name] = values
        return name

    # ---- names, shapes, constants
    def name_of(self, name):
        """The tensor's name in the network; None if it is omitted."""
        while name in self.renamed:
            name = self.renamed[name]
        return name or None

    def _infer_here(self):
        """Repeats ONNX's shape inference for the current node with its operands' shapes, which ONNX may not have
        known."""
        import onnx
        from onnx import helper, numpy_helper

        proto, value_infos = self.proto, []
        constants = {name: self.constant(self.name_of(name)) for name in dict.fromkeys(filter(None, proto.input))}
        for name, values in constants.items():
            if values is not None and values.dtype.kind == "f" and values.size > _MAX_INFERRED:
                constants[name] = values = None  # no shape depends on its elements
            if values is None:
                value_infos.append(
                    helper.make_tensor_value_info(
                        name,
                        helper.np_dtype_to_tensor_dtype(self.dtype(self.name_of(name))),
                        self.shape(self.name_of(name)),
                    )
                )
        graph = helper.make_graph(
            [proto],
            "one",
            value_infos,
            [helper.make_empty_tensor_value_info(name) for name in proto.output if name],
            [numpy_helper.from_array(values, name) for name, values in constants.items() if values is not None],
        )
        model = helper.make_model(graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version)
        self.inferred.take(onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output)

    def read_inner(self, proto):
        self._read(Node(proto, None, self.opset), proto)

    def _read(self, node, proto):
        renamed = self.renamed
        node.inputs = [self.name_of(name) if name in renamed else name or None for name in node.names]
        self.network.reads = node
        if node.operator in WHOLE or (self.structures and any(name in self.structures for name in node.inputs)):
            self._read_whole(node, proto)
            return
        if not (self._evaluate_sizes(node) or self._read_early(node, proto) or self._evaluate_constants(node, proto)):
            self._read_node(node, proto)
        for name in node.outputs:
            if name:
                self.producers[name] = node

    def _read_whole(self, node, proto):
        """Reads nodes on graphs, sequences and optionals, and Identity of these."""
        operator, self.proto = node.operator, proto
        missing = [name for name in node.inputs if name and not self.knows(name)]
        if missing and self.problems:
            return  # its producer is reported
        try:
            if operator == "Identity":
                self.structures[node.output] = self.structures[node.inputs[0]]
            elif operator not in WHOLE:
                raise Unsupported(f"works on {next(filter(self.structures.get, node.inputs))!r}, which is not a tensor")
            else:
                READERS[operator](self, node)
        except Unsupported as error:
            self.problems.append(Problem(operator, node.label, str(error), error.remedy))
        except ValueError as error:
            self.problems.append(Problem(operator, node.label, f"has incompatible operands: {error}"))

    def _read_early(self, node, proto):
        self.proto = proto
        return node.operator in EARLY and EARLY[node.operator](self, node)

    def _evaluate_sizes(self, node):
        """Makes the node's result a constant if it depends only on sizes. Returns whether it does."""
        network = self.network
        if node.operator != node.op:
            return False
        if node.op in ("Shape", "Size"):
            name = node.inputs[0]
            if name not in network.shapes and name not in network.constants:
                return False
            shape = network.shape(name)
            if node.op == "Size":
                self._keep(node.output, numpy.array(math.prod(shape), object), numpy.int64)
            else:
                dimensions = numpy.empty(len(shape), object)
                dimensions[:] = shape
                self._keep(node.output, dimensions[node.get("start", 0) : node.get("end")], numpy.int64)
            return True
        if (
            not network.values
            or not any(name in network.values for name in node.inputs)
            or not all(name is None or name in network.constants for name in node.inputs)
        ):
            return False
        values = [name and network.values.get(name, network.constants[name]) for name in node.inputs]
        if node.op == "Split":
            parts = parts_of(node, values)
            for name, part in zip(node.outputs, parts or ()):
                self._keep(name, part, self.dtype(node.inputs[0]))
            return parts is not None
        node.assumed = []
        result = value_of(node, values, [name and self.dtype(name) for name in node.inputs])
        if result is None:
            return False
        for size in node.assumed:
            self.network.need(size, 0, lambda: "is compiled for sizes of at least 1: call it with such sizes", False)
        self._keep(node.output, *result)
        return True

    def _keep(self, name, values, dtype):
        """Makes the tensor a constant; `values` is an object array."""
        self.network.constants[name] = values.astype(dtype)
        if sizes.is_open(values):
            self.network.values[name] = values

    def as_tensor(self, name, node):
        """The tensor's name; for a constant that depends on open sizes, that of a tensor computed by layers."""
        values = self.network.values.get(name)
        return name if values is None else Lowering(self, node).of_sizes(values, self.dtype(name))

    def _evaluate_constants(self, node, proto):
        """Evaluates the node if its operands are constants. Returns whether it did."""
        constants, values = self.network.constants, self.network.values
        for name in node.inputs:
            if name is not None and (name not in constants or name in values):
                return False
        if (
            node.op.startswith(("Random", "Bernoulli", "Multinomial"))
            or (node.op in _SIZED and not self._is_small(proto))
            or (self._texts_of(proto) and node.operator not in KEEPERS)
        ):
            return False
        if node.operator == "Identity" and node.inputs[0] is not None:
            constants[node.output] = constants[node.inputs[0]]
            self._mark_texts(proto)
            return True
        if node.op == "Constant" and list(node.attributes) == ["value"]:
            self.keep_constant(node.output, node.tensor("value"))
            return True
        operands = {name: constants[operand] for name, operand in zip(node.names, node.inputs) if name}
        bound = max(_MAX_CONSTANT_BYTES, *(8 * values.size for values in operands.values()), 0)
        if any(math.prod(self.inferred.get(name, ((),))[0]) * 8 > bound for name in proto.output):
            return False
        if node.operator in INTEGER_MEANS and self.dtype(node.inputs[0]).kind in "iu":
            axes = reduced_axes(self, node) or []
            values = [integer_mean_of(node.op, constants[node.inputs[0]], axes, node.get("keepdims", 1))]
        else:
            values = self._evaluated_once(proto, operands)
        if values is None:
            return False
        for name, result in zip(filter(None, node.outputs), values):
            self.keep_constant(name, result)
        self._mark_texts(proto)
        return True

    def _evaluated_once(self, proto, operands):
        """Evaluates the node on constants by ONNX's reference implementation; None if it has none, or if a result is
        not a tensor. Results are kept: models repeat equal nodes in their layers, and are read several times."""
        positions = {name: index for index, name in enumerate(operands)}
        key = (
            _operator(proto),
            tuple(positions.get(name) for name in proto.input),
            tuple(map(bool, proto.output)),
            tuple(item.SerializeToString(deterministic=True) for item in proto.attribute),
            tuple(
                (values.dtype.str, values.shape, values.tobytes())
                if values.size <= _MAX_COMPARED_BY_VALUE and values.dtype.kind != "O"
                else id(values)
                for values in operands.values()
            ),
        )
        # the operands are kept as well, so that their ids are not reused
        return self.once(key, lambda: (self._evaluated(proto, operands), operands))[0]

    def _evaluated(self, proto, operands):
        import onnx.shape_inference
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        try:
            graph = helper.make_graph(
                [proto],
                "constant",
                [_port(name, values) for name, values in operands.items()],
                [helper.make_empty_tensor_value_info(name) for name in proto.output if name],
            )
            single = helper.make_model(graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version)
            values = ReferenceEvaluator(single).run(None, operands)
            shapes = _shapes_of(onnx.shape_inference.infer_shapes(single).graph.output)
        except Exception:  # any error: leave the node unevaluated, to be reported as it is
            return None
        tensor_types = numpy.ndarray, numpy.generic, int, float, bool
        if not all(isinstance(value, tensor_types) for value in values):
            return None
        # ONNX 1.23's reference implementation reduces two dimensions in GlobalMaxPool, whatever the rank
        return values if all(shape in (None, numpy.shape(value)) for shape, value in zip(shapes, values)) else None

    def _is_small(self, proto):
        """Whether the operands that determine the result's size are small."""
        operands = [self.network.constants[self.name_of(name)] for name in proto.input if name]
        return all(abs(values.astype("float64")).max(initial=0) <= _MAX_CONSTANT_BYTES >> 4 for values in operands)

    def _texts_of(self, proto):
        """The node's operands that are texts."""
        if not self.network.texts:
            return []
        return [name for name in map(self.name_of, proto.input) if name in self.network.texts]

    def _mark_texts(self, proto):
        """Marks the results of a node that rearranges texts as texts."""
        texts = self._texts_of(proto)
        if texts and _operator(proto) in KEEPERS:
            result = set(filter(None, map(self.name_of, proto.output)))
            self.network.texts |= result
            if not self._input_texts.isdisjoint(texts):
                self._input_texts |= result

    def _read_node(self, node, proto):
        operator = node.operator
        reader, self.proto = READERS.get(operator), proto
        network = self.network
        known = [name for name in node.inputs if name and (name in network.shapes or name in network.constants)]
        missing = [name for name in node.inputs if name and name not in known]
        try:
            if reader is None:
                raise Unsupported("is not supported", OPERATOR if proto.domain in _DOMAINS else OTHERS_OPERATOR)
            if missing and self.problems:
                return  # its producer is reported
            if missing:
                raise Unsupported(f"works on {missing[0]!r}, whose shape is not fixed", SHAPE)
            if network.texts:
                self._check_texts(proto)
            unsupported = [name for name in known if not has_dtype(self.dtype(name))]
            self.problems += [Problem(None, name, _no_element_type(self.dtype(name)), ELEMENTS) for name in unsupported]
            if not unsupported:
                numbers = NUMBERS.get(operator, ()) or (range(1, 9) if operator.startswith("Reduce") else ())
                if operator in BY_VALUE and any(
                    name and index in numbers and self.constant(name) is None for index, name in enumerate(node.inputs)
                ):
                    reader = BY_VALUE[operator]
                if network.values:
                    node.inputs = [
                        name if index in numbers else self.as_tensor(name, node)
                        for index, name in enumerate(node.inputs)
                    ]
                reader(self, node)
                self._mark_texts(proto)
        except Unsupported as error:
            self.problems.append(Problem(operator, node.label, str(error), error.remedy))
        except (ValueError, ZeroDivisionError) as error:  # wrong operands that ONNX's shape inference accepted
            self.problems.append(Problem(operator, node.label, f"has incompatible operands: {error}"))

    def _check_texts(self, proto):
        texts, operator = self._texts_of(proto), _operator(proto)
        if texts and operator not in READERS_OF_TEXTS:
            raise Unsupported(f"works on the texts {texts[0]!r}", TEXTS)
        if texts and operator == "Equal" and not any(name in self.network.constants for name in texts):
            raise Unsupported("compares two computed texts: a model only knows the texts that it contains", TEXTS)

    def _name_outputs(self):
        """Gives outputs their names. One that is also an input, a constant or another output becomes a copy of it."""
        network, taken = self.network, set(self.network.inputs)
        for output, item in self._output_tensors():
            name = self.name_of(item)
            if name not in network.shapes and name not in network.constants:
                self.problems.append(Problem(None, f"output {output}", "no operator computes it"))
                continue
            if name in self._input_texts:
                cause = "returns texts of an input; a model can only return texts that it contains"
                self.problems.append(Problem(None, f"output {output}", cause))
                continue
            if name in network.values:
                result = self.as_tensor(name, Node(self.graph.node[-1], [], self.opset))
                network.constants.pop(output, None)
                network.values.pop(output, None)
                self.renamed.pop(output, None)
                network.copied(output, result)
                taken.add(output)
                network.outputs.append(output)
                continue
            if network.base(name) in network.constants or name in taken:
                if name == output:
                    if name in taken:  # an input, which keeps the name in the network
                        shown = network.fresh(f"{output}/shown")
                        network.copied(shown, name)
                        network.shown[shown] = output
                        network.outputs.append(shown)
                        continue
                    name = network.fresh(f"{name}/constant")
                    network.rename(output, name)
                network.copied(output, name)
                if name in network.texts:
                    network.texts.add(output)
                if name in network.labels:
                    network.labels[output] = network.labels[name]
            elif name != output:
                network.rename(name, output)
                self.renamed.pop(output, None)  # it was an alias of `name`
                self.renamed[name] = output
            taken.add(output)
            network.outputs.append(output)

    def _output_tensors(self):
        """Pairs (name of an output, its tensor). A sequence gives an output per item."""
        pairs = []
        for value in self.graph.output:
            structure = self.structures.get(self.name_of(value.name))
            if structure is None:
                pairs.append((value.name, value.name))
            elif isinstance(structure, Sequence) and structure.items:
                names = [f"{value.name}[{number}]" for number in range(len(structure.items))]
                self.network.sequences[value.name] = names
                pairs += zip(names, structure.items)
            else:
                kind = "an empty sequence" if isinstance(structure, Sequence) else "an optional"
                cause = f"is {kind}; give tensors as outputs (OptionalGetElement)"
                self.problems.append(Problem(None, f"output {value.name}", cause))
        return pairs

    def _has_declared_shapes(self):
        """Whether outputs have the ranks and sizes that the model declares."""
        for value in self.graph.output:
            if value.name in self.network.sequences:
                continue
            declared, shape = value.type.tensor_type.shape.dim, self.network.shape(value.name)
            if value.type.tensor_type.HasField("shape") and (
                len(declared) != len(shape)
                or any(
                    size.HasField("dim_value") and not sizes.is_open(actual) and size.dim_value != actual
                    for size, actual in zip(declared, shape)
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
            elif min(shape, default=1) < 1 or len(shape) > _MAX_RANK:
                self.problems.append(
                    Problem(
                        None,
                        name,
                        f"expected at most {_MAX_RANK} dimensions of fixed sizes of at least 1, got {shape}",
                    )
                )


def _port(name, values):
    """The description of a constant operand, for shape inference."""
    from onnx import TensorProto, helper

    text = values.dtype.kind in "OSU"
    dtype = TensorProto.STRING if text else helper.np_dtype_to_tensor_dtype(values.dtype)
    return helper.make_tensor_value_info(name, dtype, values.shape)


def _shapes_of(ports):
    """The inferred shape of each port; None if a dimension is unknown."""
    shapes = []
    for port in ports:
        kind = port.type.tensor_type
        known = kind.HasField("shape") and all(dimension.HasField("dim_value") for dimension in kind.shape.dim)
        shapes.append(tuple(dimension.dim_value for dimension in kind.shape.dim) if known else None)
    return shapes


def _operator(proto):
    """The name that readers are registered by."""
    return proto.op_type if proto.domain in ("", "ai.onnx") else f"{proto.domain}.{proto.op_type}"


def _is_possible(shape):
    return min(shape, default=0) >= 0 and math.prod(shape) <= _MAX_ELEMENTS


def _no_element_type(dtype):
    name = "string" if dtype.kind in "OUST" else dtype.name
    return f"the engine has no element type {name}" + (
        "" if name == "string" else "; export the model in float32, float16 or integers"
    )


def read(model, where, opens=None, contradiction=None, weights=None, cache=None):
    """The network of a checked ONNX model with inferred shapes. `opens` (open_sizes.Opens) has the Sizes of inputs if
    some are open; `contradiction` is ONNX's shape inference error, if any; `weights` are constants stored outside the
    model (parsing.py); `cache` is a dict shared by all readings (Reader.once). OnnxError names all unsupported
    nodes."""
    return Reader(model, where, opens, contradiction, weights, cache).read()
