"""Times and sizes in the pipeline's files: texts such as `30 min` and `64 MiB`, or plain numbers."""

from vmhost.bytecode import quantities

MAX_MS = 1 << 52


def milliseconds(value, least=1):
    """The milliseconds of a text such as "30 min", or of a number of seconds. ValueError, with what was expected, if
    there are none, or not from `least` to MAX_MS."""
    expected = f"a time{' above zero' * (least > 0)} such as 30 min"
    return _within(quantities.milliseconds, 1000, value, least, expected)


def byte_count(value, least=1):
    """The bytes of a text such as "64 MiB", or of a number of bytes. ValueError as for `milliseconds`."""
    return _within(quantities.byte_count, 1, value, least, "a size such as 64 MiB")


def _within(read, unit, value, least, expected):
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    found = value * unit if is_number else read(value)
    if found is None or not least <= found <= MAX_MS:
        raise ValueError(f"expected {expected}, got {value!r:.80}")
    return round(found)
