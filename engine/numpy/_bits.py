"""Packing bits into bytes and unpacking them; integers as text in other bases."""

from operator import index

from vmhost.engine import _array as _a
from vmhost.engine.numpy._shapes import _axis


def _order(bitorder):
    if not isinstance(bitorder, str):
        raise TypeError(f"pack() argument 3 must be str, not {type(bitorder).__name__}")
    if bitorder not in ("big", "little"):
        raise ValueError("'order' must be either 'little' or 'big'")
    return bitorder == "big"


def packbits(a, /, axis=None, bitorder="big"):
    """Packs eight booleans into each uint8, padding with zeros."""
    a = _a.asarray(a)
    kind = a.dtype.kind
    if kind not in "biu":
        raise TypeError("Expected an input array of integer or boolean data type")
    big = _order(bitorder)
    if kind != "b":
        a = a != 0
    if axis is None:
        return _a._bits_packed(a.ravel(), big)
    axis = _axis(axis, a.ndim)
    if axis != a.ndim - 1:
        return _a.ascontiguousarray(_a._bits_packed(_a.ascontiguousarray(a.swapaxes(axis, -1)), big).swapaxes(axis, -1))
    return _a._bits_packed(_a.ascontiguousarray(a), big)


def unpackbits(a, /, axis=None, count=None, bitorder="big"):
    """Unpacks each uint8 into eight elements of 0 or 1."""
    a = _a.asarray(a)
    if a.dtype != _a.uint8:
        raise TypeError("Expected an input array of unsigned byte data type")
    big = _order(bitorder)
    if axis is None:
        a, axis = a.ravel(), 0
    axis = _axis(axis, a.ndim)
    length = 8 * a.shape[axis]
    if count is None:
        count = length
    elif count < -length:
        raise ValueError("-count larger than number of elements")
    elif count < 0:
        count += length
    if axis != a.ndim - 1:
        return _a.ascontiguousarray(
            _a._bits_unpacked(_a.ascontiguousarray(a.swapaxes(axis, -1)), count, big).swapaxes(axis, -1)
        )
    return _a._bits_unpacked(_a.ascontiguousarray(a), count, big)


def binary_repr(num, width=None):
    """The binary digits of an integer; negative ones with a sign, or as two's complement of `width` digits."""
    num = index(num)
    if num == 0:
        return "0" * (width or 1)
    if num > 0:
        digits = f"{num:b}"
        if width is not None and width < len(digits):
            raise ValueError(f"Insufficient bit width={width} provided for binwidth={len(digits)}")
        return digits.zfill(width or 0)
    if width is None:
        return f"-{-num:b}"
    min_width = (-num - 1).bit_length() + 1
    if width < min_width:
        raise ValueError(f"Insufficient bit width={width} provided for binwidth={min_width}")
    return f"{num + (1 << width):b}".zfill(width)


def base_repr(number, base=2, padding=0):
    """The digits of an integer in a base from 2 to 36."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    if base > len(digits):
        raise ValueError("Bases greater than 36 not handled in base_repr.")
    if base < 2:
        raise ValueError("Bases less than 2 not handled in base_repr.")
    rest, characters = abs(int(number)), []
    while rest:
        rest, digit = divmod(rest, base)
        characters.append(digits[digit])
    characters.append("0" * padding if padding or characters else "0")
    if number < 0:
        characters.append("-")
    return "".join(reversed(characters))
