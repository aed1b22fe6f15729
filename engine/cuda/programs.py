"""A network's program on a GPU at one set of sizes: steps over one arena, derived from a model file. Pure Python: needs
neither a GPU nor the library.

A step iterates over the elements of a shape; an operand is a tensor that is no view, with an offset and strides in
elements (0: broadcast). With `fused`, elementwise steps are merged into the only step that reads them, including
reductions, and independent steps, such as the copies of a concatenation, become one launch."""

import dataclasses
import math
import struct

from vmhost.engine.cuda.files import COMPUTED, CONSTANT, VIEW
from vmhost.engine.onnx.network import CURVES
from vmhost.engine.onnx.operations import BINARY, REDUCE, UNARY

MAX_OPERANDS, MAX_INSTRUCTIONS, MAX_TOGETHER, ALIGNMENT = 8, 12, 256, 256
# In the order of vme_cuda.h.
FUNCTIONS = (
    *("load", "add", "subtract", "subtract from", "multiply", "divide", "divide by", "maximum", "minimum", "clip"),
    *("negative", "absolute", "square", "sqrt", "reciprocal", "exp", "log", "tanh", "erf", "relu", "gelu", "gelu tanh"),
    *("sigmoid", "silu", "mish", "hard sigmoid", "hard swish"),
)
STEPS = ("map", "reduce", "product", "softmax")
REDUCTIONS = ("sum", "prod", "max", "min")
_REVERSED = {name: name for name in ("add", "multiply", "maximum", "minimum")} | {
    "subtract": "subtract from",
    "subtract from": "subtract",
    "divide": "divide by",
    "divide by": "divide",
}
_BINARY = {"add", "subtract", "multiply", "divide", "maximum", "minimum"}
_UNARY = {"negative", "absolute", "square", "sqrt", "reciprocal", "exp", "log", "tanh", "erf"}
_OPERATORS = "Gemm, MatMul, Add, Relu, Clip, Flatten, Copy, Unary, Binary, Reduce, Softmax and Activate"


class UnsupportedError(ValueError):
    """The network has an operator that the GPU lacks; the text names it."""


@dataclasses.dataclass
class Operand:
    tensor: int
    offset: int
    strides: tuple


@dataclasses.dataclass
class Instruction:
    function: str
    operand: int = -1  # index in the step's operands
    low: float = 0.0
    high: float = 0.0


@dataclasses.dataclass
class Step:
    """`operands[0]` is the result; in a reduction `before` is the number of instructions before it. A product's shape
    is batch, m, n, k, and its operands are result, a, b, and the bias or None, with three dimensions each."""

    op: str
    name: str
    shape: tuple
    operands: list
    instructions: list = dataclasses.field(default_factory=list)
    before: int = 0
    reduction: str = "sum"
    reduced: tuple = ()  # dimensions
    scale: float = 1.0
    together: int = 1


@dataclasses.dataclass
class Program:
    """`inputs` and `outputs`: (name, shape, offset in bytes) of each, at the start of the arena; `offsets`: tensors to
    their offsets."""

    steps: list
    inputs: list
    outputs: list
    offsets: dict
    arena_bytes: int


def build(file, sizes, *, fused=True):
    """The Program of a ModelFile at these sizes. UnsupportedError: an operator or dtype that the GPU lacks."""
    if file.guards:
        raise UnsupportedError(
            "the GPU does not run networks with data-dependent branches (If); open the network with device='cpu'"
        )
    builder = _Builder(file, file.at(sizes))
    for node in file.nodes:
        builder.add(node)
    builder.finish_outputs()
    steps = [_without_ones(step) for step in builder.steps]
    if fused:
        steps = _fuse(steps, set(builder.outputs), builder.tensors)
        _group(steps)
    return _allocated(builder, [_merged(step) for step in steps])


def _contiguous(shape):
    strides, size = [], 1
    for one in reversed(shape):
        strides.append(size)
        size *= one
    return tuple(reversed(strides))


def _float(bits):
    return struct.unpack("<f", struct.pack("<i", bits))[0]


class _Builder:
    def __init__(self, file, tensors):
        self.file, self.tensors, self.steps = file, tensors, []
        self.outputs = list(file.outputs)

    def operand(self, number, shape, node):
        """The tensor, broadcast to the shape."""
        tensor = self.tensors[number]
        if tensor.dtype != "float32":
            raise UnsupportedError(
                f"node {node.name!r}: {node.op}: the GPU supports float32, not {tensor.dtype}; open the network with"
                " device='cpu'"
            )
        base, offset = (tensor.base, tensor.offset) if tensor.kind == VIEW else (number, 0)
        strides = tensor.strides if tensor.kind == VIEW else _contiguous(tensor.shape)
        own = (1,) * (len(shape) - len(tensor.shape)) + tensor.shape
        strides = (0,) * (len(shape) - len(strides)) + strides
        if any(size not in (1, wanted) for size, wanted in zip(own, shape)) or len(own) > len(shape):
            raise UnsupportedError(f"node {node.name!r}: {node.op}: {tensor.shape} does not broadcast to {shape}")
        return Operand(base, offset, tuple(0 if size == 1 else stride for size, stride in zip(own, strides)))

    def map(self, node, inputs, functions, shape=None, output=None):
        """`functions`: (name, index in inputs or -1) each, or Instructions without an operand."""
        output = node.output if output is None else output
        shape = self.tensors[output].shape if shape is None else shape
        operands = [self.operand(output, shape, node), *(self.operand(one, shape, node) for one in inputs)]
        instructions = [
            one if isinstance(one, Instruction) else Instruction(one[0], one[1] + 1 if one[1] >= 0 else -1)
            for one in functions
        ]
        self.steps.append(Step("map", node.name, shape, operands, instructions))

    def lacking(self, node, what):
        return UnsupportedError(
            f"node {node.name!r}: the GPU lacks {what}; it has {_OPERATORS}: open the network with device='cpu'"
        )

    def add(self, node):
        method = getattr(self, f"_{node.op.lower()}", None)
        if method is None:
            raise self.lacking(node, node.op)
        method(node)

    def activation(self, node):
        """The activation in an image operator's parameters, as Instructions."""
        kind, low, high = node.parameters[11], _float(node.parameters[12]), _float(node.parameters[13])
        if kind == 0:
            return []
        if kind == 2:
            return [Instruction("clip", -1, low, high)]
        return [Instruction("relu" if kind == 1 else CURVES[kind - 3])]

    # ---- image operators on two dimensions
    def _gemm(self, node):
        x, weights, bias, *addend = node.inputs
        m, n = self.tensors[node.output].shape
        k = self.tensors[weights].shape[1]
        addend = addend[0] if addend else None
        plain = self.operand(x, (m, k), node)
        if k > 1 and plain.strides[1] != 1 or m > 1 and plain.strides[0] < k:
            raise self.lacking(node, "a Gemm of such a view")
        after = self.activation(node)
        result = self.operand(node.output, (m, n), node)
        side = self.operand(weights, (n, k), node)
        operands = [
            dataclasses.replace(result, strides=(0, *result.strides)),
            dataclasses.replace(plain, strides=(0, *plain.strides)),
            dataclasses.replace(side, strides=(0, 1, k)),
            None,
        ]
        instructions = []
        if bias is not None:
            operands[3] = dataclasses.replace(self.operand(bias, (n,), node), strides=(0, 0, 0 if n == 1 else 1))
            instructions.append(Instruction("add", 3))
        if addend is None:
            instructions += after
        self.steps.append(Step("product", node.name, (1, m, n, k), operands, instructions))
        if addend is not None:
            self.map(node, [node.output, addend], [("load", 0), ("add", 1), *after])

    def _add(self, node):
        self.map(node, node.inputs, [("load", 0), ("add", 1), *self.activation(node)])

    def _relu(self, node):
        self.map(node, node.inputs, [("load", 0), ("relu", -1)])

    def _clip(self, node):
        self.map(node, node.inputs, [("load", 0), *self.activation(node)])

    def _flatten(self, node):
        x = self.tensors[node.inputs[0]]
        if x.kind == VIEW and x.strides != _contiguous(x.shape):
            raise self.lacking(node, "a Flatten of such a view")
        shape, result = x.shape, self.operand(node.output, self.tensors[node.output].shape, node)
        if result.strides != tuple(
            0 if size == 1 else one
            for size, one in zip(self.tensors[node.output].shape, _contiguous(self.tensors[node.output].shape))
        ):
            raise self.lacking(node, "a Flatten to such a view")
        whole = Operand(result.tensor, result.offset, _contiguous(shape))
        operands = [whole, self.operand(node.inputs[0], shape, node)]
        self.steps.append(Step("map", node.name, shape, operands, [Instruction("load", 1)]))

    # ---- operators on tensors
    def _copy(self, node):
        self.map(node, node.inputs, [("load", 0)])

    def _unary(self, node):
        name = UNARY[node.parameters[0]]
        if name not in _UNARY and name != "positive":
            raise self.lacking(node, f"Unary {name}")
        self.map(node, node.inputs, [("load", 0), *([] if name == "positive" else [(name, -1)])])

    def _binary(self, node):
        name = BINARY[node.parameters[0]]
        if name not in _BINARY:
            raise self.lacking(node, f"Binary {name}")
        self.map(node, node.inputs, [("load", 0), (name, 1)])

    def _activate(self, node):
        self.map(node, node.inputs, [("load", 0), (CURVES[node.parameters[0]], -1)])

    def _reduce(self, node):
        name = REDUCE[node.parameters[0]]
        if name not in REDUCTIONS:
            raise self.lacking(node, f"Reduce {name}")
        shape = self.tensors[node.inputs[0]].shape
        reduced = tuple(d for d in range(len(shape)) if node.parameters[2] >> d & 1)
        kept = self.operand(node.output, tuple(1 if d in reduced else size for d, size in enumerate(shape)), node)
        operands = [kept, self.operand(node.inputs[0], shape, node)]
        self.steps.append(Step("reduce", node.name, shape, operands, [Instruction("load", 1)], 1, name, reduced))

    def _softmax(self, node):
        if node.parameters[0]:
            raise self.lacking(node, "Softmax's logarithm")
        shape = self.tensors[node.output].shape
        x, addend = node.inputs
        operands = [self.operand(node.output, shape, node), self.operand(x, shape, node)]
        operands.append(None if addend is None else self.operand(addend, shape, node))
        self.steps.append(Step("softmax", node.name, shape, operands, scale=_float(node.parameters[1])))

    def _matmul(self, node):
        shape = self.tensors[node.output].shape
        a, b = node.inputs
        m, n, k = shape[-2], shape[-1], self.tensors[a].shape[-1]
        batch = shape[:-2]
        sides = [
            self.operand(node.output, (*batch, m, n), node),
            self.operand(a, (*batch, m, k), node),
            self.operand(b, (*batch, k, n), node),
        ]
        rows, columns, operands = (m, m, k), (n, k, n), []
        for number, one in enumerate(sides):
            step = _one_step(batch, one.strides[:-2])
            row, column = one.strides[-2:]
            flat = columns[number] == 1 or column == 1 and (rows[number] == 1 or row >= columns[number])
            transposed = rows[number] == 1 or row == 1 and (columns[number] == 1 or column >= rows[number])
            if step is None or not (flat or (transposed and number > 0)):
                raise self.lacking(node, f"a MatMul of such views ({self.tensors[(node.output, a, b)[number]].shape})")
            operands.append(dataclasses.replace(one, strides=(step, row, column)))
        self.steps.append(Step("product", node.name, (math.prod(batch), m, n, k), [*operands, None]))

    # ---- outputs
    def finish_outputs(self):
        """Makes outputs contiguous tensors of their own."""
        written = {step.operands[0].tensor for step in self.steps}
        for index, number in enumerate(self.outputs):
            tensor = self.tensors[number]
            if tensor.kind == COMPUTED and number in written and number not in self.outputs[:index]:
                continue
            own = dataclasses.replace(tensor, kind=COMPUTED, base=0, offset=0, strides=())
            self.tensors.append(own)
            self.outputs[index] = len(self.tensors) - 1
            self.map(_Output(tensor.name, "Output"), [number], [("load", 0)], output=self.outputs[index])


@dataclasses.dataclass
class _Output:
    name: str
    op: str
    output: int = -1


def _one_step(batch, strides):
    """The single stride that walks all batch dimensions as one; None: there is none."""
    pairs = [(size, stride) for size, stride in zip(batch, strides) if size > 1]
    for (_, stride), (size, inner) in zip(pairs, pairs[1:]):
        if stride != size * inner:
            return None
    return pairs[-1][1] if pairs else 0


# ---- simplification of steps
def _with_dimensions(step, dimensions):
    """The step with only these dimensions."""
    operands = [
        None if one is None else dataclasses.replace(one, strides=tuple(one.strides[d] for d in dimensions))
        for one in step.operands
    ]
    return dataclasses.replace(
        step,
        shape=tuple(step.shape[d] for d in dimensions),
        operands=operands,
        reduced=tuple(index for index, d in enumerate(dimensions) if d in step.reduced),
    )


def _without_ones(step):
    if step.op == "product":
        return step
    kept = [d for d, size in enumerate(step.shape) if size != 1 or (step.op == "softmax" and d == len(step.shape) - 1)]
    return _with_dimensions(step, kept)


def _merged(step):
    """Merges neighbouring dimensions if the strides of all operands allow it."""
    if step.op == "product":
        return step
    at, last = 0, len(step.shape) - (2 if step.op == "softmax" else 1)  # a softmax's rows stay rows
    while at < last:
        size = step.shape[at + 1]
        if (at in step.reduced) == (at + 1 in step.reduced) and all(
            one is None or one.strides[at] == size * one.strides[at + 1] for one in step.operands
        ):
            whole = step.shape[at] * size
            step = _with_dimensions(step, [d for d in range(len(step.shape)) if d != at])
            step.shape = (*step.shape[:at], whole, *step.shape[at + 1 :])
            last -= 1
        else:
            at += 1
    return step


def _writes_whole_tensor(step, tensors):
    """Whether its result is a whole contiguous tensor."""
    out = step.operands[0]
    kept = [size for d, size in enumerate(step.shape) if d not in step.reduced]
    strides = [stride for d, stride in enumerate(out.strides) if d not in step.reduced]
    whole = math.prod(tensors[out.tensor].shape) == math.prod(kept)
    return whole and out.offset == 0 and tuple(strides) == _contiguous(kept)


def _fuse(steps, outputs, tensors):
    done = []
    reads = {}
    for step in steps:
        for one in step.operands[1:]:
            if one is not None:
                reads[one.tensor] = reads.get(one.tensor, 0) + 1
    for step in steps:
        while step.op in ("map", "reduce"):
            for index, one in enumerate(step.operands[1:], 1):
                producer = next((other for other in reversed(done) if other.operands[0].tensor == one.tensor), None)
                if (
                    producer is not None
                    and reads[one.tensor] == 1
                    and one.tensor not in outputs
                    and producer.op in ("map", "reduce")
                    and _writes_whole_tensor(producer, tensors)
                    and (joined := _joined(producer, step, index)) is not None
                ):
                    done = [other for other in done if other is not producer]
                    step = joined
                    break
            else:
                break
        done.append(step)
    return done


def _joined(producer, step, index):
    """The step merged with the step that computes its operand `index`, or None."""
    one = step.operands[index]
    kept = tuple(size for d, size in enumerate(producer.shape) if d not in producer.reduced)
    if one.offset or one.strides != _contiguous(step.shape) or kept != step.shape:
        return None
    if producer.op == "reduce" and step.op == "reduce":
        return None
    if sum(other.operand == index for other in step.instructions) != 1:
        return None
    first, *rest = step.instructions
    if first.operand == index:
        rest_before = step.before - 1
    elif rest and rest[0].operand == index and rest[0].function in _REVERSED and (step.op == "map" or step.before >= 2):
        rest = [Instruction(_REVERSED[rest[0].function], first.operand), *rest[1:]]
        rest_before = step.before - 1
    else:
        return None
    # operands: the step's result, the maker's operands, the step's other operands, broadcast to the maker's dimensions
    positions, operands = {}, [None, *producer.operands[1:]]
    for number, other in enumerate(step.operands):
        strides, shape = iter(other.strides), range(len(producer.shape))
        spread = dataclasses.replace(other, strides=tuple(0 if d in producer.reduced else next(strides) for d in shape))
        if number == 0:
            operands[0] = spread
        elif number != index:
            same = next((p for p, old in enumerate(operands[1:], 1) if old == spread), None)
            if same is None:
                operands.append(spread)
                same = len(operands) - 1
            positions[number] = same
    rest = [dataclasses.replace(r, operand=positions[r.operand] if r.operand >= 0 else -1) for r in rest]
    instructions = producer.instructions + rest
    if len(operands) > MAX_OPERANDS or len(instructions) > MAX_INSTRUCTIONS:
        return None
    source = producer if producer.op == "reduce" else step
    before = producer.before if producer.op == "reduce" else len(producer.instructions) + rest_before
    return Step(source.op, step.name, producer.shape, operands, instructions, before if source.op == "reduce" else 0,
                source.reduction, source.reduced)  # fmt: skip


def _group(steps):
    """Sets at the first of consecutive maps how many of them can be one launch."""
    at = 0
    while at < len(steps):
        count, written = 0, set()
        while at + count < len(steps) and count < MAX_TOGETHER and steps[at + count].op == "map":
            step = steps[at + count]
            if any(one.tensor in written for one in step.operands[1:]):
                break
            written.add(step.operands[0].tensor)
            count += 1
        if count > 1:
            steps[at].together = count
        at += max(count, 1)


# ---- arena offsets
def _allocated(builder, steps):
    tensors, file = builder.tensors, builder.file
    offsets, end = {}, 0

    def size_of(number):
        size = math.prod(tensors[number].shape) * 4
        return size + -size % ALIGNMENT

    ports = []
    for numbers in (file.inputs, builder.outputs):
        group = []
        for number in numbers:
            tensor = tensors[number]
            if tensor.dtype != "float32":
                raise UnsupportedError(
                    f"{tensor.name!r}: inputs and outputs on the GPU are float32, not {tensor.dtype}; open the network"
                    " with device='cpu'"
                )
            offsets[number] = end
            group.append((tensor.name, tensor.shape, end))
            end += size_of(number)
        ports.append(group)
    first, last, at = {}, {}, 0
    for number, launch in zip(range(len(steps)), _launches(steps)):
        for one in steps[number].operands:
            if one is not None and tensors[one.tensor].kind != CONSTANT and one.tensor not in offsets:
                first.setdefault(one.tensor, launch)
                last[one.tensor] = launch
    free = []  # (offset, size) of gaps between live tensors
    living = []  # (last turn, offset, size)
    top = end
    for number in sorted(first, key=first.get):
        for one in [one for one in living if one[0] < first[number]]:
            living.remove(one)
            free.append(one[1:])
        free = _joined_gaps(free)
        size = size_of(number)
        fitting = min((gap for gap in free if gap[1] >= size), key=lambda gap: gap[1], default=None)
        if fitting is None:
            at, top = top, top + size
        else:
            free.remove(fitting)
            at = fitting[0]
            if fitting[1] > size:
                free.append((at + size, fitting[1] - size))
        offsets[number] = at
        living.append((last[number], at, size))
    return Program(steps, *ports, offsets, top)


def _launches(steps):
    """For each step the number of its launch."""
    launch, left = -1, 0
    for step in steps:
        if left == 0:
            launch, left = launch + 1, step.together
        left -= 1
        yield launch


def _joined_gaps(gaps):
    found = []
    for at, size in sorted(gaps):
        if found and sum(found[-1]) == at:
            found[-1] = (found[-1][0], found[-1][1] + size)
        else:
            found.append((at, size))
    return found
