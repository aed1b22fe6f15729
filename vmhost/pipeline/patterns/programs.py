"""Programs of conditions in CEL: cel.py makes them, the matcher in C runs them, devices read them as data instead of
texts."""

from dataclasses import dataclass

from vmhost.pipeline.patterns.rules import RuleError

ERROR = ()  # stands for a constant that cannot be represented: any use of it is an error


@dataclass(frozen=True)
class Program:
    """A leaf of conditions: operations (name, a, b, c). `a` of FIELD, HAS and GATHER is a path, that of CONSTANT is
    (is unsigned, value); `b` of GATHER is a step's name. `text`: the source."""

    text: str
    operations: tuple


def program_data(program):
    """The Program as a condition that `program_of` reads."""
    return {"cel": program.text, "program": [[name, _data(a), b, c] for name, a, b, c in program.operations]}


def _data(a):
    """A path or a constant in a form that JSON has."""
    if isinstance(a, tuple) and len(a) == 2 and isinstance(a[0], bool):
        unsigned, value = a
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        if value == ERROR and isinstance(value, tuple):
            return {"error": True}
        if isinstance(value, float) and value - value != 0:  # JSON has no NaN and no infinity
            return {"float": repr(value)}
        return {"uint": value} if unsigned else {"value": value}
    return list(a) if isinstance(a, tuple) else a


def program_of(data, place):
    """The leaf for a condition that `program_data` made. RuleError."""
    try:
        rows = []
        for name, a, b, c in data["program"]:
            if name == "CONSTANT":
                ((kind, value),) = a.items()
                value = {"bytes": bytes.fromhex, "float": float, "error": lambda _: ERROR}.get(kind, lambda same: same)(
                    value
                )
                a = (kind == "uint", value)
            elif isinstance(a, list):
                root, *keys = a
                if type(root) is not int or not all(type(key) is str for key in keys):
                    raise ValueError("a path is a number and texts")
                a = (root, *keys)
            elif a is not None and (type(a) is not int or not 0 <= a < 1 << 32):
                raise ValueError(f"got {a!r}")
            rows.append((str(name), a, b, c))
        return ("leaf", Program(str(data.get("cel", "")), tuple(rows)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RuleError(f"{place}: not a compiled condition: {error}; compile the rule again") from None
