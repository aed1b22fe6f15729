"""What people write for the platform (plans, audiences, alerts): its kinds of values, and its reader. All problems
come at once, in a RefusedError, with their lines."""

import re

from vmhost.bytecode import quantities
from vmhost.bytecode.errors import TaskSpecError
from vmhost.bytecode.kinds import Items, Kind, Number, Text, Time, refused
from vmhost.bytecode.spec import lined_plain_of
from vmhost.deployment import identifiers
from vmhost.deployment.errors import RefusedError
from vmhost.errors import ConfigurationError
from vmhost.settings.files import checked

_MAX_TOLD = 20  # problems
MAX_COUNT = 10**9


class Share(Kind):
    """A part of one, from 0 to 1 or from 0 % to 100 %."""

    words = "a share such as 2 % or 0.02"
    pattern = re.compile(r"\s*([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?\s*%?\s*")
    schema = {"type": ["string", "number"], "pattern": f"^{pattern.pattern}$", "minimum": 0, "maximum": 1}

    def given(self, value):
        text = str(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else ""
        if self.pattern.fullmatch(text):
            share = float(text.strip().removesuffix("%")) / (100 if "%" in text else 1)
            if share <= 1:
                return share
        raise refused(self.words, value)

    @staticmethod
    def text(share):
        return f"{share * 100:g} %"


class Span(Time):
    """A time with its unit, of at most `le` seconds."""

    example = "a time such as 10 min"
    schema = {"type": "string", "pattern": quantities.TIME_PATTERN}

    def __init__(self, le=None, words=None, **bounds):
        Number.__init__(self, le=le, words=words or self.example, **(bounds or {"ge": 0}))

    def given(self, value):
        found = quantities.seconds(value)
        if found is None or not self.accepts(found):
            raise refused(self.words, value)
        return found


class Percentage(Number):
    """A percentage, read as thousandths."""

    def __init__(self):
        super().__init__(gt=0, le=100, words="a percentage above 0 and up to 100")

    def given(self, value):
        return max(1, round(super().given(value) * 10))


class Names(Items):
    """A list of names of one kind of `identifiers`, which may be there twice."""

    def __init__(self, kind, max_items=None):
        pattern, characters = identifiers.KINDS[kind]
        most = "" if max_items is None else f"at most {max_items:,} "
        name = Text(f"a name of {characters} characters", pattern)
        super().__init__(name, f"a list of {most}names of {kind}s", max_items=max_items, unique=False)

    def kept(self, value):
        return frozenset(value)


def parsed(text, where):
    """(plain data, lines of keys) of a YAML text. RefusedError."""
    try:
        plain, lines = lined_plain_of(text.encode(errors="replace"), where)
    except TaskSpecError as error:
        raise RefusedError(str(error)[:1000]) from None
    return plain, {tuple(re.findall(r"[^.\[\]]+", key)): line for key, line in lines.items()}


def read(section, plain, where, lines=None, also=None):
    """What plain data say, by the section's fields. RefusedError, whose lines begin with `where`. `also`: as for
    `vmhost.settings.files.checked`."""
    try:
        return checked(section, plain, where, also, lines)
    except ConfigurationError as error:
        told = str(error).splitlines()
        more = [f"{where}: there are {len(told) - _MAX_TOLD} more"] if len(told) > _MAX_TOLD else []
        raise RefusedError("\n".join(told[:_MAX_TOLD] + more)) from None
