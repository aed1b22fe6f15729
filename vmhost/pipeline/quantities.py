"""Times in the pipeline's files: texts such as `30 min`, or plain numbers of seconds, in whole milliseconds."""

from vmhost.bytecode import quantities
from vmhost.bytecode.kinds import Time, refused

MAX_MS = 1 << 52
_UNITS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1000, "ms": 1}


class Milliseconds(Time):
    """Whole milliseconds, at least `ge` of them. A plain number in a file is one of seconds."""

    example, suffix, types = "a time such as 500 ms, 30 min or 7 d", "_ms", (int,)

    def __init__(self, ge=1):
        super().__init__(words=f"a whole number of milliseconds from {ge}")
        self.gt, self.ge, self.le, self.words = None, ge, MAX_MS, self.example

    def given(self, value):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        try:
            found = value * 1000 if is_number else quantities.milliseconds(value)
        except ValueError as error:
            raise refused("whole milliseconds", value) from error
        if found is None:
            raise refused(self.words, value)
        if not self.ge <= found <= self.le:
            raise refused(f"a time{' above zero' * (self.ge > 0)} such as 30 min", value)
        return round(found)


def time_text(ms):
    """The milliseconds as a text such as "30 min"."""
    unit = "s" if ms == 0 else next(unit for unit, size in _UNITS.items() if ms % size == 0)
    return f"{int(ms) // _UNITS[unit]} {unit}"
