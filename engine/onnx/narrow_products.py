"""Matrix products with constant narrow weights: float16, and blocks of 8- or 4-bit integers as in com.microsoft's
MatMulNBits or DequantizeLinear before a product (engine/src/models/narrow_products.c)."""

import math
from typing import NamedTuple

import numpy

from .lowering import Lowering
from .readers import Unsupported, reads

COLUMNS = 32  # NARROW_COLUMNS of engine/src/models/narrow_kernels.h
_HALF, _BYTES, _NIBBLES = 0, 3, 4  # narrow_kind there


class Blocks(NamedTuple):
    """Unsigned integers [columns, k] of `bits` bits, in blocks along k: (number - zero) * scale; `scales` and `zeros`
    are [columns, k / block]."""

    numbers: numpy.ndarray
    scales: numpy.ndarray
    zeros: numpy.ndarray
    block: int
    bits: int


def blocks_of(values, scales, zeros, axis, block):
    """The Blocks of a DequantizeLinear with constants of rank 2, in columns along the other axis; None if the engine
    has no product for such blocks."""
    bits = 4 if values.dtype.name in ("int4", "uint4") else 8 if values.dtype.name in ("int8", "uint8") else 0
    if values.ndim != 2 or not bits or block % _numbers_per_step(bits) or values.shape[axis] % block:
        return None
    lowest = -(1 << bits - 1) if values.dtype.name.startswith("int") else 0
    unsigned = values.astype("int32") - lowest
    zero_points = numpy.full(scales.shape, -lowest) if zeros is None else zeros.astype("int32") - lowest
    if axis % 2 == 0:
        unsigned, scales, zero_points = unsigned.T, scales.T, zero_points.T
    return Blocks(unsigned.astype("uint8"), scales.astype("float32"), zero_points.astype("float32"), block, bits)


def multiplied_by_halves(add, x, weights, bias=None):
    """x @ weights.T in float16 with weights [columns, k]; sums are float32."""
    packed = _slivers(weights.astype("float16")).transpose(0, 2, 1)
    return _product(add, x, len(weights), (_HALF, 0), [(packed, "float16"), None, None], bias)


def multiplied_by_blocks(add, x, blocks, bias=None):
    """x @ weights.T in float32 or float16."""
    packed = _slivers(blocks.numbers)  # [slivers, 32, k]
    count, columns, _ = packed.shape
    packed = packed.view("uint32")  # four bytes at a time: values below 16, so a shift by 4 stays within each byte
    if blocks.bits == 4:
        packed = packed[:, :, ::2] | packed[:, :, 1::2] << 4
    packed = numpy.ascontiguousarray(packed.transpose(0, 2, 1)).view("uint8").reshape(count, -1, columns * 4)
    kind, zero = _NIBBLES if blocks.bits == 4 else _BYTES, blocks.zeros.flat[0] if blocks.zeros.size else 0
    uniform = float(zero).is_integer() and (blocks.zeros == zero).all()
    scales_and_zeros = [
        None if values is None else (_slivers(values).transpose(0, 2, 1), "float32")
        for values in (blocks.scales, None if uniform else blocks.zeros)
    ]
    parameters = kind, blocks.block, int(zero) if uniform else 0
    return _product(add, x, len(blocks.numbers), parameters, [(packed, "uint8"), *scales_and_zeros], bias)


def _numbers_per_step(bits):
    """Consecutive numbers that the kernel sums at once; a block must be a multiple."""
    return 8 if bits == 4 else 4


def _slivers(rows):
    """[columns, n] as [slivers, 32, n]."""
    count = -(-len(rows) // COLUMNS)
    if len(rows) % COLUMNS:
        rows = numpy.pad(rows, ((0, count * COLUMNS - len(rows)), (0, 0)))
    return numpy.ascontiguousarray(rows).reshape(count, COLUMNS, rows.shape[1])


def _product(add, x, columns, parameters, constants, bias):
    shape = add.shape(x)
    rows = add.reshape(x, (math.prod(shape[:-1]) if len(shape) > 1 else 1, shape[-1]))
    if not add.network.is_dense(rows):
        rows = add.copy(rows)
    names = [None if constant is None else add.constant(*constant) for constant in constants]
    names.append(None if bias is None else add.constant(bias, "float32"))
    result = add.reader.add_layer(
        "NarrowProduct",
        add.node,
        [rows, *names],
        (add.shape(rows)[0], columns),
        output=add.fresh("product"),
        parameters=parameters,
    )
    return add.reshape(result, (*shape[:-1], columns))


@reads("com.microsoft.MatMulNBits")
def product_of_few_bits(reader, node):
    add, (x, weights, scales, zeros, order, bias) = Lowering(reader, node), (*node.inputs, *[None] * 6)[:6]
    k, columns, bits, block = (node.get(name) for name in ("K", "N", "bits", "block_size"))
    bits = bits or 4
    constants = [None if name is None else reader.constant(name) for name in (weights, scales, zeros, bias)]
    if order is not None or any(
        name is not None and value is None for name, value in zip((weights, scales, zeros, bias), constants)
    ):
        raise Unsupported("has weights, scales, zero points or a bias that are computed, or a g_idx")
    if bits not in (4, 8) or not block or block % _numbers_per_step(bits):
        raise Unsupported(f"has {bits} bits in blocks of {block}, expected 4 or 8 in blocks of a multiple of 8")
    if add.dtype(x) not in (numpy.float32, numpy.float16):
        raise Unsupported(f"works on {add.dtype(x)}, expected float32 or float16")
    packed, scales, zeros, bias = constants
    count = -(-k // block)
    numbers = _unpacked(packed.reshape(columns, -1), bits)[:, : count * block]
    scales = scales.reshape(columns, count).astype("float32")
    if zeros is None:
        zero_points = numpy.full(scales.shape, 1 << bits - 1)
    elif zeros.dtype == numpy.uint8:
        zero_points = _unpacked(zeros.reshape(columns, -1), bits)[:, :count]
    else:
        zero_points = zeros.reshape(columns, count)
    if k < count * block:
        rank = len(add.shape(x))
        x = add.padded(x, (0,) * rank, (*(0,) * (rank - 1), count * block - k), 0)
    add.done(multiplied_by_blocks(add, x, Blocks(numbers, scales, zero_points.astype("float32"), block, bits), bias))


def _unpacked(packed, bits):
    """Bytes [rows, n] as numbers; 4-bit ones low nibble first."""
    if bits == 8:
        return packed
    return numpy.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)
