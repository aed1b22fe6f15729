"""Arrays as text, exactly as NumPy prints them: `repr`, `str`, `array2string`, and the printing options.

Numbers are printed with the fewest digits that identify them (`vmhost.engine._array._shortest`), correctly rounded to
`precision`, and padded so that decimal points align. The rules are those of NumPy's arrayprint."""

import struct
from contextlib import contextmanager
from operator import index

from vmhost.engine import _array

_options = {
    "edgeitems": 3,
    "threshold": 1000,
    "floatmode": "maxprec",
    "precision": 8,
    "suppress": False,
    "linewidth": 75,
    "nanstr": "nan",
    "infstr": "inf",
    "sign": "-",
    "formatter": None,
    "legacy": False,
    "override_repr": None,
}
_FLOAT_MODES = ("fixed", "unique", "maxprec", "maxprec_equal")
# decimal digits that a dtype surely holds: beyond them arrays are printed with exponents
_PRECISION = {"float16": 3, "float32": 6, "float64": 15}
_UNNAMED = ("bool", "int64", "float64", "complex128")  # what literals of Python make


# ---- options


def _refuse_legacy(legacy):
    if legacy:
        raise ValueError(
            f"legacy printing option {legacy!r}: arrays are printed as today's NumPy prints them; expected None or"
            " False"
        )


def set_printoptions(
    precision=None,
    threshold=None,
    edgeitems=None,
    linewidth=None,
    suppress=None,
    nanstr=None,
    infstr=None,
    formatter=None,
    sign=None,
    floatmode=None,
    *,
    legacy=None,
    override_repr=None,
):
    """Sets how this interpreter prints arrays. None leaves an option unchanged, except that it resets `formatter`."""
    changes = {
        "precision": precision,
        "threshold": threshold,
        "edgeitems": edgeitems,
        "linewidth": linewidth,
        "suppress": suppress,
        "nanstr": nanstr,
        "infstr": infstr,
        "sign": sign,
        "floatmode": floatmode,
    }
    _refuse_legacy(legacy)
    if threshold is not None:
        if not isinstance(threshold, (int, float)):
            raise TypeError("threshold must be numeric")
        if threshold != threshold:
            raise ValueError("threshold must be non-NAN, try sys.maxsize for untruncated representation")
    if precision is not None:
        index(precision)
    if floatmode is not None and floatmode not in _FLOAT_MODES:
        raise ValueError(f"floatmode option must be one of {', '.join(repr(mode) for mode in _FLOAT_MODES)}")
    if sign is not None and sign not in (" ", "+", "-"):
        raise ValueError("sign option must be one of ' ', '+', or '-'")
    _options.update({name: value for name, value in changes.items() if value is not None})
    _options["formatter"] = formatter
    _options["override_repr"] = override_repr


def get_printoptions():
    return dict(_options)


@contextmanager
def printoptions(*args, **kwargs):
    before = dict(_options)
    set_printoptions(*args, **kwargs)
    try:
        yield dict(_options)
    finally:
        _options.update(before)


# ---- digits


def _split(shortest):
    """(is negative, digits without leading or trailing zeros, power of ten of the first digit) of e.g. "-1.25e-03"."""
    negative = shortest.startswith("-")
    mantissa, _, exponent = shortest.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    power = int(exponent or 0) + len(whole) - 1
    digits = whole + fraction
    stripped = digits.lstrip("0")
    power -= len(digits) - len(stripped)
    return negative, stripped.rstrip("0"), power if stripped else 0


def _positional(value, shortest, precision, unique, sign):
    """(whole, fraction) of a finite number; the fraction has no trailing zeros unless `unique` is false."""
    if not unique:
        text = f"{value:.{precision}f}"
        negative = text.startswith("-")
        whole, _, fraction = text.lstrip("-").partition(".")
    else:
        negative, digits, power = _split(shortest)
        if power >= 0:
            digits = digits.ljust(power + 1, "0")
            whole, fraction = digits[: power + 1], digits[power + 1 :]
        else:
            whole, fraction = "0", "0" * (-power - 1) + digits if digits else ""
        if precision is not None and len(fraction) > precision:
            whole, _, fraction = f"{abs(value):.{precision}f}".partition(".")
            fraction = fraction.rstrip("0")
    return ("-" if negative else "+" if sign == "+" else "") + whole, fraction


def _scientific(value, shortest, precision, unique, sign):
    """(whole, fraction, signed exponent) of a finite number."""
    negative, digits, power = _split(shortest) if unique else (str(value).startswith("-"), "", 0)
    if not unique or (precision is not None and len(digits) - 1 > precision):
        mantissa, _, exponent = f"{abs(value):.{precision}e}".partition("e")
        whole, _, fraction = mantissa.partition(".")
        power = int(exponent)
        if unique:
            fraction = fraction.rstrip("0")
    else:
        whole, fraction = digits[:1] or "0", digits[1:]
    exponent = ("-" if power < 0 else "+") + str(abs(power)).zfill(2)
    return ("-" if negative else "+" if sign == "+" else "") + whole, fraction, exponent


def _is_finite(value):
    return value - value == 0


def _special(value, sign, options):
    if value != value:
        return ("+" if sign == "+" else "") + options["nanstr"]
    return ("-" if value < 0 else "+" if sign == "+" else "") + options["infstr"]


def _rounded(value, array):
    """A float rounded to the array's dtype: NumPy compares in the array's precision."""
    letter = {2: "e", 4: "f"}.get(array.dtype.itemsize, "d")
    try:
        return struct.unpack(letter, struct.pack(letter, value))[0]
    except OverflowError:
        return float("inf")


def _float_words(array, options, sign=None):
    """The elements of a float array in C order as text of equal width."""
    sign = options["sign"] if sign is None else sign
    mode = options["floatmode"]
    precision = None if mode == "unique" else options["precision"]
    unique = mode != "fixed"
    shortest = _array._shortest(array)
    values = array.ravel().tolist()
    finite = [(value, text) for value, text in zip(values, shortest) if _is_finite(value)]
    sizes = [abs(value) for value, _ in finite if value != 0]
    scientific = False
    if sizes:
        largest, smallest = max(sizes), min(sizes)
        scientific = largest >= 10.0 ** min(8, _PRECISION[array.dtype.name]) or (
            not options["suppress"]
            and (smallest < _rounded(0.0001, array) or _rounded(largest / smallest, array) > 1000.0)
        )
    left = right = 0
    exponent_size = -1
    if finite and scientific:
        parts = [_scientific(value, text, precision, unique, sign) for value, text in finite]
        left = max(len(whole) for whole, _, _ in parts)
        precision = max(len(fraction) for _, fraction, _ in parts)
        exponent_size = max(len(exponent) for _, _, exponent in parts) - 1
        right = exponent_size + 2 + precision
    elif finite:
        parts = [_positional(value, text, precision, unique, sign) for value, text in finite]
        left = max(len(whole) for whole, _ in parts)
        right = max(len(fraction) for _, fraction in parts)
    if sign == " " and not any(text.startswith("-") for _, text in finite):
        left += 1
    if len(finite) != len(values):
        room = right + 1
        negative = sign != "-" or any(value < 0 and not _is_finite(value) for value in values)
        left = max(left, len(options["nanstr"]) - room, len(options["infstr"]) + negative - room)
    ready = iter(parts if finite else ())
    words = []
    for value in values:
        if not _is_finite(value):
            words.append(_special(value, sign, options).rjust(left + right + 1))
        elif scientific:
            whole, fraction, exponent = next(ready)
            if len(fraction) < precision:  # further digits are those of the exact value
                whole, fraction, exponent = _scientific(value, "", precision, False, sign)
            words.append(
                f"{whole.rjust(left)}.{fraction.ljust(precision, '0')}e{exponent[0]}{exponent[1:].zfill(exponent_size)}"
            )
        else:
            whole, fraction = next(ready)
            if mode == "maxprec_equal" and len(fraction) < right:
                fraction = f"{value:.{right}f}".partition(".")[2]
            words.append(f"{whole.rjust(left)}.{fraction.ljust(right)}")
    return words


def _complex_words(array, options):
    real = _float_words(_contiguous(array.real), options)
    imaginary = _float_words(_contiguous(array.imag), options, sign="+")
    return [a + b.rstrip() + "j" + b[len(b.rstrip()) :] for a, b in zip(real, imaginary)]


def _contiguous(array):
    return array.copy()


def _integer_words(array, options):
    values = array.ravel().tolist()
    sign = options["sign"]
    width = 0
    if values:
        largest, smallest = max(values), min(values)
        if sign == " " and smallest < 0:
            sign = "-"
        width = max(len(str(largest)) + (largest >= 0 and sign in "+ "), len(str(smallest)))
    return [f"{value:{sign}{width}d}" for value in values]


def _bool_words(array):
    true = " True" if array.ndim else "True"
    return [true if value else "False" for value in array.ravel().tolist()]


_FORMATTER_KEYS = {
    "b": ("bool",),
    "i": ("int", "int_kind"),
    "u": ("int", "int_kind"),
    "f": ("float", "float_kind"),
    "c": ("complexfloat", "complex_kind"),
}


def _words(array, options):
    kind = array.dtype.kind
    formatter = options["formatter"] or {}
    for key in (*_FORMATTER_KEYS[kind], "all"):
        if formatter.get(key) is not None:
            return [formatter[key](value) for value in array.ravel()]
    if kind == "f":
        return _float_words(array, options)
    if kind == "c":
        return _complex_words(array, options)
    return _bool_words(array) if kind == "b" else _integer_words(array, options)


# ---- layout


def _corners(array, edge, axis=0):
    """The first and last `edge` elements of each dimension that has more than twice as many."""
    for axis in range(array.ndim):
        if array.shape[axis] > 2 * edge:
            before = (slice(None),) * axis
            tail = array[(*before, slice(-edge, None))] if edge else array[(*before, slice(0, 0))]
            array = _array.concatenate((array[(*before, slice(edge))], tail), axis)
    return array


class _Layout:
    """Lays out words in lines: brackets, separators, line breaks at the width, "..." for omitted elements."""

    def __init__(self, shape, words, separator, edge, summarized):
        self.shape, self.separator, self.edge, self.summarized = shape, separator, edge, summarized
        self.words = iter(words)

    def _shown(self, axis):
        """Returns (number of elements before "...", number after it or in all, whether there is "...")."""
        size = self.shape[axis]
        if self.summarized and 2 * self.edge < size:
            return self.edge, self.edge, True
        return 0, size, False

    def lines(self, axis, indent, width):
        if axis == len(self.shape):
            return next(self.words)
        leading, trailing, dots = self._shown(axis)
        pieces = leading + trailing
        inner = [self.lines(axis + 1, indent + " ", width - 1) for _ in range(pieces)]
        if dots:
            inner.insert(leading, "...")
        if axis == len(self.shape) - 1:
            text = self._row(inner, dots and leading, indent, width)
        else:
            end = self.separator.rstrip() + "\n" * (len(self.shape) - axis - 1)
            text = end.join(indent + piece for piece in inner)
        return f"[{text[len(indent) :]}]"

    def _row(self, words, dots_at, indent, width):
        width -= max(len(self.separator.rstrip()), 1)
        text, line = "", indent
        for number, word in enumerate(words):
            if number:
                line += self.separator
            lines = word.splitlines() or [""]
            if len(line) + len(lines[0]) > width and len(line) > len(indent):
                text += line.rstrip() + "\n"
                line = indent
            line += lines[0]
        return text + line


def _array2string(array, options, separator, prefix):
    summarized = array.size > options["threshold"]
    shown = _corners(array, options["edgeitems"]) if summarized else array
    layout = _Layout(array.shape, _words(shown, options), separator, options["edgeitems"], summarized)
    return layout.lines(0, " " * (len(prefix) + 1), options["linewidth"])


def array2string(
    a,
    max_line_width=None,
    precision=None,
    suppress_small=None,
    separator=" ",
    prefix="",
    *,
    formatter=None,
    threshold=None,
    edgeitems=None,
    sign=None,
    floatmode=None,
    suffix="",
    legacy=None,
):
    """The elements as text in brackets, as `numpy.array2string`."""
    _refuse_legacy(legacy)
    changes = {
        "linewidth": max_line_width,
        "precision": precision,
        "suppress": suppress_small,
        "formatter": formatter,
        "threshold": threshold,
        "edgeitems": edgeitems,
        "sign": sign,
        "floatmode": floatmode,
    }
    options = _options | {name: value for name, value in changes.items() if value is not None}
    options["linewidth"] -= len(suffix)
    a = _array.asarray(a)
    if a.size == 0:
        return "[]"
    return _array2string(a, options, separator, prefix)


# ---- scalars

_CUTOFF = {"float16": 1e3, "float32": 1e6, "float64": 1e16}


def _scalar_float(value, shortest, dtype, sign=""):
    if not _is_finite(value):
        return _special(value, sign, _options)
    if value == 0 or 1e-4 <= abs(value) < _CUTOFF[dtype]:
        whole, fraction = _positional(value, shortest, None, True, sign)
        return f"{whole}.{fraction or '0'}"
    whole, fraction, exponent = _scientific(value, shortest, None, True, sign)
    return f"{whole}{'.' * bool(fraction)}{fraction}e{exponent}"


def _scalar_text(array):
    """A 0-d array's value as NumPy's scalar of its dtype prints it."""
    kind, value = array.dtype.kind, array.item()
    if kind == "f":
        return _scalar_float(value, _array._shortest(array)[0], array.dtype.name)
    if kind != "c":
        return str(value)
    part = "float32" if array.dtype.name == "complex64" else "float64"

    def piece(component, sign):
        text = _scalar_float(component.item(), _array._shortest(component)[0], part, sign)
        return text.removesuffix(".0")

    real, imaginary = _contiguous(array.real), _contiguous(array.imag)
    if real.item() == 0 and not str(real.item()).startswith("-"):
        return piece(imaginary, "") + "j"
    return f"({piece(real, '')}{piece(imaginary, '+')}j)"


def array_str(a, max_line_width=None, precision=None, suppress_small=None):
    """`str(a)`."""
    if a.ndim == 0:
        return _scalar_text(a)
    return array2string(a, max_line_width, precision, suppress_small, " ", "")


def array_repr(arr, max_line_width=None, precision=None, suppress_small=None):
    """`repr(arr)`; a scalar's repr where NumPy would have a scalar."""
    if _options["override_repr"] is not None:
        return _options["override_repr"](arr)
    dtype = arr.dtype
    if isinstance(arr, dtype):
        text = _scalar_text(arr)
        return f"np.{text}_" if dtype.kind == "b" else f"np.{dtype.name}({text.strip('()')})"
    width = max_line_width or _options["linewidth"]
    text = "array(" + array2string(arr, width, precision, suppress_small, ", ", "array(", suffix=")")
    extras = []
    if (arr.size == 0 and arr.shape != (0,)) or arr.size > _options["threshold"]:
        extras.append(f"shape={arr.shape}")
    if dtype.name not in _UNNAMED or arr.size == 0:
        extras.append(f"dtype={dtype.name}")
    if not extras:
        return text + ")"
    text += ","
    extra = ", ".join(extras) + ")"
    last_line = len(text) - (text.rfind("\n") + 1)
    return text + ("\n      " if last_line + len(extra) + 1 > width else " ") + extra


# ---- single numbers


def _as_float(x):
    x = _array.asarray(x)
    if x.dtype.kind != "f":
        x = x.astype(float)
    return x.item(), _array._shortest(x.reshape(1))[0]


def _trimmed(whole, fraction, trim):
    """ "whole.fraction" trimmed: "k" unchanged, "." without trailing zeros, "0" with at least one digit, "-" also
    without the point."""
    if trim not in ("k", ".", "0", "-"):
        raise TypeError(f"if supplied, trim must be 'k', '.', '0' or '-' found `{trim}`")
    if trim != "k":
        fraction = fraction.rstrip("0")
    if trim == "0" and not fraction:
        fraction = "0"
    return whole if trim == "-" and not fraction else f"{whole}.{fraction}"


def _padded(text, pad_left, pad_right):
    """Pads with blanks to `pad_left` characters before the point and `pad_right` after it."""
    whole, point, fraction = text.partition(".")
    if pad_left is not None:
        whole = whole.rjust(pad_left)
    if pad_right is not None:
        point, fraction = point or " ", fraction.ljust(pad_right)
    return whole + point + fraction


def format_float_positional(
    x,
    precision=None,
    unique=True,
    fractional=True,
    trim="k",
    sign=False,
    pad_left=None,
    pad_right=None,
    min_digits=None,
):
    """A number without an exponent. `precision` counts digits after the point, or all digits if not `fractional`."""
    value, shortest = _as_float(x)
    if not _is_finite(value):
        return _padded(_special(value, "+" if sign else "-", _options), pad_left, None)
    if not unique and precision is None:
        raise ValueError("in non-unique mode `precision` must be supplied")
    _, digits, power = _split(shortest)
    decimals = max(len(digits) - 1 - power, 0)
    if precision is not None:
        max_decimals = precision if fractional else precision - 1 - power
        decimals = max_decimals if not unique else min(decimals, max_decimals)
    text = f"{abs(value):.{max(decimals, 0)}f}" if decimals >= 0 else f"{round(abs(value), decimals):.0f}"
    whole, _, fraction = text.partition(".")
    cut = decimals < len(digits) - 1 - power
    if unique and not (cut and float(text) < abs(value)):  # keep zeros that replace digits cut off
        fraction = fraction.rstrip("0")
    if min_digits is not None:
        fraction = fraction.ljust(min_digits if fractional else min_digits - 1 - power, "0")
    sign = "-" if str(value).startswith("-") else "+" if sign else ""
    return _padded(sign + _trimmed(whole, fraction, trim), pad_left, pad_right)


def format_float_scientific(
    x, precision=None, unique=True, trim="k", sign=False, pad_left=None, exp_digits=None, min_digits=None
):
    """A number with an exponent. `precision` counts digits after the point."""
    value, shortest = _as_float(x)
    if not _is_finite(value):
        return _padded(_special(value, "+" if sign else "-", _options), pad_left, None)
    if not unique and precision is None:
        raise ValueError("in non-unique mode `precision` must be supplied")
    _, digits, power = _split(shortest)
    decimals = max(len(digits) - 1, 0)
    if precision is not None:
        decimals = precision if not unique else min(decimals, precision)
    mantissa, _, exponent = f"{abs(value):.{decimals}e}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    if unique:
        fraction = fraction.rstrip("0")
    if min_digits is not None:
        fraction = fraction.ljust(min_digits, "0")
    sign = "-" if str(value).startswith("-") else "+" if sign else ""
    number = _padded(sign + _trimmed(whole, fraction, trim), pad_left, None)
    return f"{number}e{exponent[0]}{exponent[1:].lstrip('0').zfill(exp_digits or 2)}"
