"""Random chains of rearranging operators, over open sizes: reshapes (with -1, 0, allowzero, computed shapes),
slices, splits, broadcasts and the like, in a graph or in a body of If, Loop or Scan within it.

Each model is called at many sizes. Where ONNX Runtime answers, ours answers the same or refuses; where it raises, since
the sizes do not fit, ours raises too: `python -m tests.differential --rearrangements`."""

import random

import numpy
from onnx import TensorProto, helper, numpy_helper

from tests.differential.comparison import NotTheirsError, onnx_runtime_session
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 24, 64, 128, 130)
OPSET = 18
_INT64_MAX = (1 << 63) - 1


class Chain:
    """A random model of one output, `y`: `data()` and, for a call at random sizes, `inputs(number)`."""

    def __init__(self, seed, length=4):
        self.seed, self.random = seed, random.Random(seed)
        self.names = [f"n{number}" for number in range(self.random.choice([1, 2, 2, 3]))]
        self.shapes = [self._shape() for _ in range(self.random.choice([1, 1, 2]))]
        self.nodes, self.constants, self.number = [], {}, 0
        self.within = self.random.choice(["", "", "", "If", "Loop", "Scan"])
        x, rank = "x0", len(self.shapes[0])
        if self.random.random() < 0.5:
            x = self.node("Exp" if self.random.random() < 0.5 else "Neg", [x])
        for _ in range(self.random.randint(1, length)):
            x, rank = self.random.choice(KINDS)(self, x, rank)
            if rank > 5:
                break
        self.rank = rank
        self.last = self.node("Abs", [x])

    def _shape(self):
        fixed = [1, 2, 3, 4, 6, 8, 12]
        shape = [self.random.choice(self.names + fixed) for _ in range(self.random.choice([1, 2, 3, 3, 4]))]
        shape[self.random.randrange(len(shape))] = self.random.choice(self.names)
        return shape

    def integers(self, *numbers):
        name = f"c{len(self.constants)}"
        self.constants[name] = numpy.array(numbers, "int64")
        return name

    def node(self, op, inputs, count=1, **attributes):
        names = [f"v{self.number + number}" for number in range(count)]
        self.number += count
        self.nodes.append(helper.make_node(op, inputs, names, name=f"{op.lower()}{len(self.nodes)}", **attributes))
        return names[0] if count == 1 else names

    def axis(self, rank):
        axis = self.random.randrange(rank)
        return axis if self.random.random() < 0.7 else axis - rank

    def size_of(self, x, axis):
        """The name of that size, as a tensor of one element, perhaps of a product or quotient of it."""
        size = self.node("Gather", [self.node("Shape", [x]), self.integers(axis)])
        draw = self.random.random()
        if draw < 0.25:
            return self.node(self.random.choice(["Mul", "Div"]), [size, self.integers(self.random.choice([2, 3, 4]))])
        if draw < 0.35:
            return self.node("Add", [size, self.integers(self.random.choice([-1, 1]))])
        return size

    # ---- the model
    def data(self):
        x = [
            helper.make_tensor_value_info(f"x{number}", TensorProto.FLOAT, shape)
            for number, shape in enumerate(self.shapes)
        ]
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [f"d{d}" for d in range(self.rank)])
        nodes = [*self.nodes, helper.make_node("Identity", [self.last], ["y"])]
        if self.within:
            nodes, x = self._wrapped(nodes, x)
        constants = [numpy_helper.from_array(values, name) for name, values in self.constants.items()]
        graph = helper.make_graph(nodes, "chain", x, [y], constants)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9
        ).SerializeToString()

    def _wrapped(self, nodes, x):
        """The nodes in a body that stands in the model's graph."""
        result = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
        nodes = [*nodes[:-1], helper.make_node("Identity", [self.last], ["inner"])]
        if self.within == "If":
            flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
            other = helper.make_node("Neg", [self.last + "/other"], ["inner2"])
            again = _renamed(nodes[:-1], "/other")
            branches = {
                "then_branch": helper.make_graph(nodes, "then", [], [result]),
                "else_branch": helper.make_graph(
                    [*again, other], "else", [], [helper.make_tensor_value_info("inner2", TensorProto.FLOAT, None)]
                ),
            }
            return [helper.make_node("If", ["flag"], ["y"], name="chosen", **branches)], [*x, flag]
        if self.within == "Loop":
            self.constants["trips"] = numpy.array(2, "int64")
            self.constants["goes"] = numpy.array(True)
            ports = [
                helper.make_tensor_value_info("pass", TensorProto.INT64, []),
                helper.make_tensor_value_info("on", TensorProto.BOOL, []),
                helper.make_tensor_value_info("carried", TensorProto.FLOAT, None),
            ]
            nodes = [
                *nodes,
                helper.make_node("Identity", ["on"], ["on2"]),
                helper.make_node("Neg", ["carried"], ["c2"]),
            ]
            outs = [
                helper.make_tensor_value_info("on2", TensorProto.BOOL, []),
                helper.make_tensor_value_info("c2", TensorProto.FLOAT, None),
                result,
            ]
            body = helper.make_graph(nodes, "body", ports, outs)
            loop = helper.make_node("Loop", ["trips", "goes", "x0"], ["unused", "rows"], name="again", body=body)
        else:
            self.constants["steps"] = numpy.zeros(2, "float32")
            ports = [helper.make_tensor_value_info("step", TensorProto.FLOAT, [])]
            body = helper.make_graph(nodes, "body", ports, [result])
            loop = helper.make_node("Scan", ["steps"], ["rows"], name="along", body=body, num_scan_inputs=1)
        return [loop, helper.make_node("Gather", ["rows", self._scalar(1)], ["y"], axis=0)], x

    def _scalar(self, number):
        self.constants["scalar"] = numpy.array(number, "int64")
        return "scalar"

    def inputs(self, number):
        draw = random.Random(self.seed * 1000 + number)
        sizes = {name: draw.choice(SIZES) for name in self.names}
        given = {}
        for place, shape in enumerate(self.shapes):
            whole = [sizes.get(size, size) for size in shape]
            count = numpy.prod(whole, dtype=int)
            given[f"x{place}"] = (numpy.arange(1, count + 1, dtype="float32") / 8 + place).reshape(whole)
        if self.within == "If":
            given["flag"] = numpy.array(draw.random() < 0.5)
        return given


def _renamed(nodes, suffix):
    made = {name for node in nodes for name in node.output}
    again = []
    for node in nodes:
        own = type(node)()
        own.CopyFrom(node)
        own.input[:] = [name + suffix if name in made else name for name in node.input]
        own.output[:] = [name + suffix for name in node.output]
        own.name += suffix
        again.append(own)
    return again


# ---- operators: each takes a chain, a tensor and its rank, and gives those of what it makes
def reshape(chain, x, rank):
    draw = chain.random
    kind = draw.randrange(6)
    if kind == 0:  # rows of so many
        return chain.node("Reshape", [x, chain.integers(-1, draw.choice([1, 2, 3, 4, 6, 8, 12]))]), 2
    if kind == 1:
        return chain.node("Reshape", [x, chain.integers(-1)]), 1
    if kind == 2:  # the first ones as they are
        kept = draw.randrange(rank)
        return chain.node("Reshape", [x, chain.integers(*(0,) * kept, -1)]), kept + 1
    if kind == 3:  # the first one taken apart
        by = draw.choice([2, 3, 4, 8])
        return chain.node("Reshape", [x, chain.integers(by, -1, draw.choice([1, 2, 4]))]), 3
    if kind == 4:  # by computed sizes
        sizes = [chain.size_of(x, draw.randrange(rank)) for _ in range(draw.choice([1, 1, 2]))]
        sizes.insert(draw.randint(0, len(sizes)), chain.integers(-1))
        shape = chain.node("Concat", sizes, axis=0)
        return chain.node("Reshape", [x, shape], allowzero=draw.choice([0, 1])), len(sizes)
    wanted = [draw.choice([2, 3, 4, 6, 8, 12, 16]) for _ in range(draw.choice([1, 2, 2]))]
    return chain.node("Reshape", [x, chain.integers(*wanted)]), len(wanted)


def flatten(chain, x, rank):
    return chain.node("Flatten", [x], axis=chain.random.randint(0, rank)), 2


def squeeze(chain, x, rank):
    if rank < 2:
        return x, rank
    if chain.random.random() < 0.2:
        return chain.node("Squeeze", [x]), rank  # of a rank that is not known here
    return chain.node("Squeeze", [x, chain.integers(chain.axis(rank))]), rank - 1


def unsqueeze(chain, x, rank):
    return chain.node("Unsqueeze", [x, chain.integers(chain.random.randint(0, rank))]), rank + 1


def expand(chain, x, rank):
    draw = chain.random
    if draw.random() < 0.5:
        sizes = [draw.choice([1, 1, 2, 3, 4, 8]) for _ in range(draw.choice([rank, rank, rank + 1]))]
        return chain.node("Expand", [x, chain.integers(*sizes)]), len(sizes)
    sizes = [chain.size_of(x, d) if draw.random() < 0.6 else chain.integers(1) for d in range(rank)]
    shape = chain.node("Concat", sizes, axis=0)
    return chain.node("Expand", [x, shape]), rank


def split(chain, x, rank):
    draw, axis = chain.random, chain.axis(rank)
    count = draw.choice([2, 2, 3])
    if draw.random() < 0.5:
        parts = chain.node("Split", [x], count, axis=axis, num_outputs=count)
    else:
        sizes = [draw.choice([1, 2, 3, 4]) for _ in range(count - 1)]
        if draw.random() < 0.5:
            rest = chain.node("Sub", [chain.size_of(x, axis), chain.integers(sum(sizes))])
            given = chain.node("Concat", [chain.integers(*sizes), rest], axis=0)
        else:
            given = chain.integers(*sizes, draw.choice([1, 2, 4, 8]))
        parts = chain.node("Split", [x, given], count, axis=axis)
    return draw.choice(parts), rank


def slices(chain, x, rank):
    draw, axis = chain.random, chain.axis(rank)
    step = draw.choice([1, 1, 1, 2, 3, -1, -2])
    start, end = draw.choice([0, 0, 1, 2, 5, -1, -3, 20, 128]), draw.choice([3, 5, 8, 128, -1, -2, _INT64_MAX, 2])
    if step < 0:
        start, end = draw.choice([-1, 7, 20, _INT64_MAX]), draw.choice([0, 2, -4, -_INT64_MAX])
    ends = chain.integers(end)
    if step > 0 and draw.random() < 0.3:
        ends = chain.size_of(x, axis)
    operands = [x, chain.integers(start), ends, chain.integers(axis), chain.integers(step)]
    return chain.node("Slice", operands), rank


def concat(chain, x, rank):
    draw = chain.random
    axis = draw.randrange(rank)
    other = x
    if draw.random() < 0.7:
        end = chain.integers(draw.choice([1, 2, 4, 128, _INT64_MAX]))
        along = axis if draw.random() < 0.7 else draw.randrange(rank)
        start = chain.integers(draw.choice([0, 0, 1, 20]))
        other = chain.node("Slice", [x, start, end, chain.integers(along)])
    return chain.node("Concat", draw.sample([x, other], 2), axis=axis), rank


def gather(chain, x, rank):
    if rank < 2:
        return x, rank
    name = f"c{len(chain.constants)}"
    chain.constants[name] = numpy.array(chain.random.choice([0, 1, 3, 5, -1, -2, -6]), "int64")
    return chain.node("Gather", [x, name], axis=chain.axis(rank)), rank - 1


def transpose(chain, x, rank):
    order = list(range(rank))
    chain.random.shuffle(order)
    return chain.node("Transpose", [x], perm=order), rank


def pad(chain, x, rank):
    draw = chain.random
    widths = [draw.choice([0, 0, 1, -1, 2]) for _ in range(2 * rank)]
    return chain.node("Pad", [x, chain.integers(*widths)], mode=draw.choice(["constant", "edge"])), rank


def sum_of_both(chain, x, rank):
    """With another one that broadcasts to it, of a length that is cut off."""
    axis = chain.random.randrange(rank)
    ends = chain.integers(chain.random.choice([1, 2, 8, 128]))
    part = chain.node("Slice", [x, chain.integers(0), ends, chain.integers(axis)])
    return chain.node("Add", [x, part]), rank


KINDS = (
    [reshape] * 6 + [slices] * 4 + [split] * 2 + [expand] * 2 + [concat] * 2 + [gather, transpose, transpose]
    + [flatten, squeeze, unsqueeze, pad, sum_of_both]
)  # fmt: skip


def difference(chain, calls=8):
    """None, or a text that says at which sizes the engines' answers differ. OnnxError: our compiler refuses it."""
    data = chain.data()
    try:
        session = onnx_runtime_session(data)
    except Exception as error:
        raise NotTheirsError(f"{type(error).__name__} {error}") from error
    run = opened("chain", compile_model(data, "chain"))
    for number in range(calls):
        given = chain.inputs(number)
        shapes = {name: array.shape for name, array in given.items()}
        made = error = None
        try:
            [made] = run.run(None, given)
        except ValueError as raised:
            error = raised
            if "this model does not work at " in str(error) or str(error).startswith(("chain: input", "input")):
                continue  # whatever ONNX Runtime does: a slice backwards of no elements, for one, ends its process
        try:
            [right] = session.run(None, given)
        except Exception as raised:  # ONNX Runtime's own, of sizes that do not fit
            if "must have the shape set" in str(raised):  # of a Scan's result, whatever the sizes are
                raise NotTheirsError(str(raised)) from raised
            right = None
        if error is not None:
            if right is not None:
                return f"{error} at {shapes}\n{text(chain)}"
            continue
        if right is None:
            return f"ours answers where ONNX Runtime raises, at {shapes}\n{text(chain)}"
        if made.shape != right.shape or not numpy.allclose(made, right, 1e-4, 1e-5):
            return f"{made.shape} for {right.shape}, at {shapes}\n{text(chain)}"
    return None


def text(chain):
    lines = [f"  x{number}: {shape}" for number, shape in enumerate(chain.shapes)] + [
        f"  within {chain.within or 'none'}"
    ]
    for node in chain.nodes:
        attributes = [str(item).replace("\n", " ") for item in node.attribute]
        lines.append(f"  {', '.join(node.output)} = {node.op_type}({', '.join(node.input)}) {attributes}")
    return "\n".join([*lines, *(f"  {name}: {array.tolist()}" for name, array in chain.constants.items())])
