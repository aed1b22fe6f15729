"""Times in the pipeline's files, as texts such as `30 min`."""

_UNITS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1000, "ms": 1}


def time_text(ms):
    """The milliseconds as a text such as "30 min"."""
    unit = "s" if ms == 0 else next(unit for unit, size in _UNITS.items() if ms % size == 0)
    return f"{int(ms) // _UNITS[unit]} {unit}"
