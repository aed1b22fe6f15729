"""Readers of ONNX's recurrent layers, RNN, GRU and LSTM: one product of all time steps' inputs with the weights of both
directions, then the engine's operator over time (engine/src/models/recurrence.c)."""

import math

import numpy

from . import sizes
from .lowering import Lowering
from .network import float_bits
from .readers import Unsupported, reads
from .tensor_operators import product

SLIVER = 64  # adjacent columns of packed weights: VME_SLIVER in engine/src/models/row_kernels.h
KINDS = ("RNN", "GRU", "LSTM")  # in the order of the engine's numbers, like FUNCTIONS
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULT_ACTIVATIONS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}
# Default alpha and beta of the functions that have them.
FUNCTIONS = {
    "sigmoid": (),
    "tanh": (),
    "relu": (),
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01,),
    "thresholdedrelu": (1.0,),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0,),
    "softsign": (),
    "softplus": (),
}
_REVERSE, _RESET_AFTER, _INPUT_FORGET = 1, 2, 4


@reads(*KINDS)
def recurrent(reader, node):
    add = Lowering(reader, node)
    dtype = add.dtype(node.inputs[0])
    if dtype.name not in ("float32", "float16"):
        raise Unsupported(f"works on {dtype}, expected float32 or float16")
    x, weights, state_weights, bias, lengths, state, cell, peepholes = (*node.inputs, *[None] * 8)[:8]
    directions, _, hidden = add.shape(state_weights)
    times_axis = node.get("layout", 0)
    times, batch = (add.shape(x)[axis] for axis in ((1, 0) if times_axis else (0, 1)))
    reset_after = node.op == "GRU" and bool(node.get("linear_before_reset", 0))
    bias, state_bias = _biases(add, bias, reset_after, (directions, GATES[node.op], hidden))
    gates = _gates(reader, add, _as_float32(add, x), _as_float32(add, weights), bias, times_axis)
    operands = [
        gates,
        _packed(add, _as_float32(add, state_weights)),
        state_bias,
        None if peepholes is None else _as_float32(add, peepholes),
        _state(add, state, times_axis),
        _state(add, cell, times_axis),
        _lengths(add, lengths, times),
    ]
    final_count = 2 if node.op == "LSTM" else 1
    all_states = reader.add_layer(
        "Recurrence",
        node,
        operands,
        (times + final_count, directions, batch, hidden),
        numpy.float32,
        add.fresh("states"),
        parameters=_parameters(node, directions, reset_after),
    )
    _outputs(add, all_states, times, dtype, times_axis)


def _as_float32(add, name):
    """The tensor as float32."""
    values = add.reader.constant(name)
    if values is not None:
        return name if values.dtype == numpy.float32 else add.constant(values, numpy.float32)
    return add.cast(name, numpy.float32)


def _parameters(node, directions, reset_after):
    direction = node.get("direction", "forward").lower()
    if directions != (2 if direction == "bidirectional" else 1):
        raise Unsupported(f"has weights for {directions} directions, but its direction is {direction}")
    names = [
        name.decode() if isinstance(name, bytes) else name for name in node.get("activations", ())
    ] or _DEFAULT_ACTIVATIONS[node.op] * directions
    if len(names) != len(_DEFAULT_ACTIVATIONS[node.op]) * directions:
        raise Unsupported(
            f"has {len(names)} activations, expected {len(_DEFAULT_ACTIVATIONS[node.op])} for each direction"
        )
    alphas_and_betas = [list(node.get(key, ())) for key in ("activation_alpha", "activation_beta")]
    functions = []
    for name in names:
        key = name.lower()
        if key not in FUNCTIONS:
            raise Unsupported(f"has the activation {name}")
        numbers = [values.pop(0) if values else default for values, default in zip(alphas_and_betas, FUNCTIONS[key])]
        functions.append((list(FUNCTIONS).index(key), *map(float_bits, (*numbers, 0.0, 0.0)[:2])))
    per_direction = len(_DEFAULT_ACTIVATIONS[node.op])
    table = [functions[number * per_direction : number * per_direction + per_direction] for number in range(directions)]
    table = [[*row, *[functions[0]] * (3 - per_direction)] for row in (table * 2)[:2]]
    flags = (
        _REVERSE * (direction == "reverse")
        + _RESET_AFTER * reset_after
        + _INPUT_FORGET * bool(node.get("input_forget", 0))
    )
    clip = node.get("clip")
    return (
        KINDS.index(node.op),
        flags,
        float_bits(math.inf if not clip else clip),
        *(number for row in table for function in row for number in function),
    )


def _biases(add, name, reset_after, shape):
    """Returns (bias of the gates [directions * gates * hidden], bias of the product that GRU's reset gate multiplies
    [directions, hidden]); None for no bias."""
    directions, gates, hidden = shape
    if name is None:
        return None, add.constant(numpy.zeros((directions, hidden)), numpy.float32) if reset_after else None
    candidate, values = None, add.reader.constant(name)
    if values is not None:
        parts = values.astype("float32").reshape(directions, 2, gates, hidden)
        total = parts[:, 0] + parts[:, 1]
        if reset_after:
            total[:, 2] = parts[:, 0, 2]
            candidate = add.constant(parts[:, 1, 2], numpy.float32)
        return add.constant(total.reshape(-1), numpy.float32), candidate
    biases = add.reshape(_as_float32(add, name), (directions, 2, gates, hidden))
    input_bias, state_bias = (
        add.reshape(add.part(biases, 1, index, index + 1), (directions, gates, hidden)) for index in range(2)
    )
    if reset_after:
        candidate = add.copy(add.reshape(add.part(state_bias, 1, 2, 3), (directions, hidden)))
        update_and_reset = add.do("add", add.part(input_bias, 1, 0, 2), add.part(state_bias, 1, 0, 2))
        total = add.joined([update_and_reset, add.part(input_bias, 1, 2, 3)], 1)
    else:
        total = add.do("add", input_bias, state_bias)
    return add.reshape(total, (directions * gates * hidden,)), candidate


def _gates(reader, add, x, weights, bias, times_axis):
    """The inputs' contribution to all gates: [times, batch, directions * gates * hidden]."""
    shape, (directions, columns, inputs) = add.shape(x), add.shape(weights)
    columns = directions * columns
    add.network.need_same(shape[2], inputs)
    rows = add.reshape(x, (shape[0] * shape[1], inputs))
    values, bias_values = reader.constant(weights), None if bias is None else reader.constant(bias)
    if values is not None and (bias is None or bias_values is not None):
        name = add.fresh("gates")
        product(
            reader, _Named(add.node, name), rows, values.reshape(columns, inputs), bias_values, (*shape[:2], columns)
        )
    else:
        name = add.matmul(rows, add.transpose(add.reshape(weights, (columns, inputs)), (1, 0)))
        name = add.reshape(name if bias is None else add.do("add", name, bias), (*shape[:2], columns))
    return add.transpose(name, (1, 0, 2)) if times_axis else name


class _Named:
    """A node with another output name."""

    def __init__(self, node, output):
        self.name, self.output = node.name, output


def _packed(add, weights):
    """[directions, gates * hidden, hidden] in the engine's layout; each block of gates begins a new sliver."""
    directions, rows, hidden = add.shape(weights)
    blocks = [(0, 2 * hidden), (2 * hidden, rows)] if add.node.op == "GRU" else [(0, rows)]
    values, parts = add.reader.constant(weights), []
    for begin, end in blocks:
        slivers = -(-(end - begin) // SLIVER)
        widths = ((0, 0), (0, slivers * SLIVER - (end - begin)), (0, 0))
        shape = (directions, slivers, SLIVER, hidden)
        if values is not None:
            parts.append(numpy.pad(values[:, begin:end], widths).reshape(shape).swapaxes(2, 3))
        else:
            padded = add.padded(add.part(weights, 1, begin, end), *zip(*widths), 0)
            parts.append(add.transpose(add.reshape(padded, shape), (0, 1, 3, 2)))
    if values is not None:
        return add.constant(numpy.concatenate(parts, 1), numpy.float32)
    return add.joined(parts, 1)


def _state(add, name, times_axis):
    if name is None:
        return None
    name = _as_float32(add, name)
    return add.transpose(name, (1, 0, 2)) if times_axis else name


def _lengths(add, name, times):
    if name is None:
        return None
    values = add.reader.constant(name)
    if values is None:
        return add.cast(name, numpy.int64)
    if not sizes.is_open(times) and (values == times).all():
        return None
    return add.constant(values, numpy.int64)


def _outputs(add, all_states, times, dtype, times_axis):
    """Makes the node's outputs, parts of the states [times + 1 or 2, directions, batch, hidden]."""
    outputs = (*add.node.outputs, "", "", "")[:3]
    if outputs[0]:
        states = add.part(all_states, 0, 0, times)  # times, directions, batch, hidden
        add.done(add.cast(add.transpose(states, (2, 0, 1, 3)) if times_axis else states, dtype), outputs[0])
    for index, output in enumerate(outputs[1:]):
        if output and (index == 0 or add.node.op == "LSTM"):
            last = add.reshape(add.part(all_states, 0, times + index, times + index + 1), add.shape(all_states)[1:])
            add.done(add.cast(add.transpose(last, (1, 0, 2)) if times_axis else last, dtype), output)


@reads("com.microsoft.DynamicQuantizeLSTM")
def with_integer_weights(reader, node):
    """LSTM with 8-bit weights [directions, inputs, gates * hidden], which are converted to float32 at compile time.
    ONNX Runtime also rounds inputs and states to 8 bits in each step; here they stay float32, which is closer to the
    network before quantization."""
    add, inputs = Lowering(reader, node), (*node.inputs, *[None] * 12)[:12]
    x, *weights = inputs[:3]
    widened = [_widened(add, name, scale, zero) for name, scale, zero in zip(weights, inputs[8:12:2], inputs[9:12:2])]
    outputs = (*node.outputs, "", "", "")[:3]
    names = [add.fresh(f"state {index}") if output else "" for index, output in enumerate(outputs)]
    add.operator("LSTM", x, *widened, *inputs[3:8], outputs=names, **dict(node.attributes))
    for name, output in zip(names, outputs):
        if output:
            add.done(reader.name_of(name), output)


def _widened(add, name, scale, zero):
    """The weights in LSTM's layout, [directions, gates * hidden, inputs]. Scales and zero points are per direction, or
    per column of each direction."""
    values, scales, zeros = (add.reader.constant(operand) for operand in (name, scale, zero))
    if values is None or scales is None or (zero is not None and zeros is None):
        raise Unsupported("has weights, scales or zero points that are computed at run time")
    widened = values.astype("float32")
    if zeros is not None:
        widened = widened - zeros.reshape(len(widened), 1, -1).astype("float32")
    return add.constant((widened * scales.reshape(len(widened), 1, -1)).swapaxes(1, 2), numpy.float32)
