"""Bits: packed into bytes and unpacked, counted, and written as text."""

from engine import _array as _a
from engine.numpy._shapes import _axis


def _order(bitorder):
    if bitorder not in ("big", "little"):
        raise ValueError("'order' must be either 'little' or 'big'")
    return bitorder == "big"


def packbits(a, /, axis=None, bitorder="big"):
    """Eight truth values to a uint8; missing ones are zero."""
    a = _a.asarray(a)
    if a.dtype.kind not in "biu":
        raise TypeError("Expected an input array of integer or boolean data type")
    big = _order(bitorder)
    if axis is None:
        a, axis = a.ravel(), 0
    axis = _axis(axis, a.ndim)
    a = (a != 0).swapaxes(axis, -1)
    whole = -(-a.shape[-1] // 8)
    bits = _a.zeros((*a.shape[:-1], 8 * whole), _a.uint8)
    bits[..., :a.shape[-1]] = a
    words = _a.ascontiguousarray(bits).view(_a.uint64).reshape(*a.shape[:-1], whole)
    # the eight bytes of a word, 0 or 1 each, come together in its highest byte
    packed = (words * _a.uint64(0x8040201008040201 if big else 0x0102040810204080)) >> _a.uint64(56)
    return packed.astype(_a.uint8).swapaxes(axis, -1)


def unpackbits(a, /, axis=None, count=None, bitorder="big"):
    """Each uint8 to eight of 0 and 1."""
    a = _a.asarray(a)
    if a.dtype != _a.uint8:
        raise TypeError("Expected an input array of unsigned byte data type")
    big = _order(bitorder)
    if axis is None:
        a, axis = a.ravel(), 0
    axis = _axis(axis, a.ndim)
    a = a.swapaxes(axis, -1)
    places = _a.arange(8, dtype=_a.uint8)
    each = (_a.arange(256, dtype=_a.uint8)[:, None] >> (places[::-1] if big else places)) & _a.uint8(1)
    bits = _a.take(each.view(_a.uint64)[:, 0], a.astype(int))       # the eight bits of a byte, side by side in a word
    bits = bits.reshape(*a.shape, 1).view(_a.uint8).reshape(*a.shape[:-1], 8 * a.shape[-1])
    if count is not None:
        length = bits.shape[-1]
        if count < -length:
            raise ValueError("-count larger than number of elements")
        if count <= length:
            bits = bits[..., :count]
        else:
            bits = _a.concatenate((bits, _a.zeros((*bits.shape[:-1], count - length), _a.uint8)), -1)
    return _a.ascontiguousarray(bits.swapaxes(axis, -1))


def _bitwise_count(x):
    x = _a.asarray(x)
    if x.dtype.kind not in "biu":
        raise TypeError("ufunc 'bitwise_count' not supported for the input types, and the inputs could not be safely coerced to any "
                        "supported types according to the casting rule ''safe''")
    bits = 8 * x.itemsize
    x = _a.asarray(x if x.dtype.kind == "u" else _a.absolute(x))
    x = x.astype(f"u{x.itemsize}", copy=False)
    low, shift = (1 << bits) - 1, x.dtype
    x = x - ((x >> shift(1)) & shift(0x5555555555555555 & low))
    x = (x & shift(0x3333333333333333 & low)) + ((x >> shift(2)) & shift(0x3333333333333333 & low))
    x = (x + (x >> shift(4))) & shift(0x0F0F0F0F0F0F0F0F & low)
    return ((x * shift(0x0101010101010101 & low)) >> shift(bits - 8)).astype(_a.uint8)


def binary_repr(num, width=None):
    """The binary digits of an integer; negative ones with a sign, or as two's complement of `width` digits."""
    num = num.__index__()
    if num == 0:
        return "0" * (width or 1)
    if num > 0:
        digits = f"{num:b}"
        if width is not None and width < len(digits):
            raise ValueError(f"Insufficient bit width={width} provided for binwidth={len(digits)}")
        return digits.zfill(width or 0)
    if width is None:
        return f"-{-num:b}"
    least = (-num - 1).bit_length() + 1
    if width < least:
        raise ValueError(f"Insufficient bit width={width} provided for binwidth={least}")
    return f"{num + (1 << width):b}".zfill(width)


def base_repr(number, base=2, padding=0):
    """The digits of an integer in a base from 2 to 36."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    if base > len(digits):
        raise ValueError("Bases greater than 36 not handled in base_repr.")
    if base < 2:
        raise ValueError("Bases less than 2 not handled in base_repr.")
    rest, made = abs(int(number)), []
    while rest:
        rest, digit = divmod(rest, base)
        made.append(digits[digit])
    made.append("0" * padding if padding or made else "0")
    if number < 0:
        made.append("-")
    return "".join(reversed(made))
