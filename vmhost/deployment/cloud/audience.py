"""Audiences: the devices that a release, a step or a file is for. Plain data, checked when read; tests are pure.

All keys must hold; one that the device states nothing about does not. No audience: all devices.
"""

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass

from vmhost.bytecode import quantities
from vmhost.bytecode.either import Either
from vmhost.bytecode.kinds import Items, Kind, Refused, Section, Setting, Text, refused
from vmhost.deployment.cloud import written

_OPERATORS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_COMPARISON = re.compile(r"(>=|<=|==|!=|>|<)?\s*(.+)")
_VERSION, _STORED_VERSION = "[vV]?[0-9][0-9A-Za-z.+_-]*", "[^,]*[^, ][^,]*"
_NUMBER = "[0-9]+(\\.[0-9]+)?"
_MAX_LISTED = 100_000


def version_key(text):
    """The sort key of a version: numbers as numbers, a pre-release ("1.2-rc1") before its release."""
    release, _, pre = text.partition("-")
    parts = [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.findall(r"\d+|[A-Za-z]+", release)]
    while parts and parts[-1] == (1, 0, ""):
        parts.pop()
    tail = [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.findall(r"\d+|[A-Za-z]+", pre)]
    return (parts, not pre, tail)


@dataclass(frozen=True)
class Facts:
    """A device's facts when an audience is tested."""

    device: str
    facts: Mapping  # as the device stated them
    cohort: int  # 1..1000 for this task
    named: frozenset = frozenset()  # named cohorts


class _Comparisons(Kind):
    """A function that compares a device's value. `key`: the sort key of a bound, which matches `pattern`. `types`: of a
    text, or of a number that stands for one."""

    def __init__(self, words, key, pattern, *types):
        one = rf"\s*(>=|<=|==|!=|>|<)?\s*({pattern})\s*"
        self.words, self.key, self.types = words, key, types
        self.pattern = re.compile(f"{one}(,{one})*")
        names = ["string"] if types == (str,) else ["string", "number"]
        text = {"type": names, "pattern": f"^{self.pattern.pattern}$", "minimum": 0}
        self.schema = {"anyOf": [text, {"type": "array", "minItems": 1, "items": text}]}

    def given(self, value):
        alternatives = [self._all_of(text) for text in (value if isinstance(value, list) else [value])]
        if not alternatives:
            raise Refused("expected at least one comparison, got an empty list")

        def holds(value):
            value = self.key(value if self.key is size else str(value))
            return any(all(compare(value, bound) for compare, bound in tests) for tests in alternatives)

        return holds

    def _all_of(self, text):
        if not isinstance(text, self.types) or isinstance(text, bool):
            if int not in self.types:
                raise Refused(f"expected text, got {text!r:.80}; put it in quotes")
            raise refused(self.words, text)
        if not self.pattern.fullmatch(str(text)):
            raise refused(self.words, text)
        found = (_COMPARISON.fullmatch(part.strip()) for part in str(text).split(","))
        return [(_OPERATORS[each[1] or "=="], self.key(each[2].strip())) for each in found]


def size(value):
    """Bytes, or any number: 4, 0.5, "512 MiB", "4". ValueError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(_NUMBER, value):
        return float(value)
    found = quantities.byte_count(value)
    if found is None:
        raise ValueError(f"expected a number or a size such as 512 MiB, got {value!r:.80}")
    return found


def _listed(kind):
    names = written.Names(kind, _MAX_LISTED)
    return Either(names.words, (str, names.item), (list, names))


def _some():
    words, name = "a name or a list of names", Text("a name")
    return Either(words, (str, name), (list, Items(name, words, 1, unique=False)))


def _table(version, *types):
    of_version = _Comparisons(
        'versions with >=, <=, ==, !=, >, < and commas, in quotes, such as ">=2.1, <3"',
        version_key,
        version,
        str,
        *types,
    )
    number = _Comparisons(
        'a comparison such as ">=2"', size, f"{_NUMBER}|{quantities.SIZE_PATTERN[1:-1]}", str, int, float
    )
    rows = (
        (
            "app",
            of_version,
            "the app's version: comparisons that all hold, or a list of such texts, of which one holds",
        ),
        ("host", of_version, "the version of vmhost"),
        ("python", of_version, "the version of Python"),
        ("os", _some(), "one of these"),
        ("cores", number, "their number"),
        ("memory", number, 'bytes, as in ">=512 MiB"'),
        ("free_disk", number, "bytes, rounded down by less than a fifth"),
        ("isa", _some(), "all of these, such as avx2"),
        ("cohorts", _listed("cohort"), "one of these named cohorts, kept on the platform"),
        ("percent", written.Percentage(), "by the device's cohort for the task"),
        ("allow", _listed("device"), "in any case"),
        ("deny", _listed("device"), "in no case"),
    )
    return Section([Setting(key, kind, words, (key,)) for key, kind, words in rows], null=True)


AUDIENCE, STORED = _table(_VERSION), _table(_STORED_VERSION, int, float)


class Audience:
    """The audience for `plain` (a mapping or None); RefusedError, naming `where`, if it is invalid. `is_stored`: it was
    accepted before, maybe with versions that were not checked then."""

    def __init__(self, plain, where="audience", is_stored=False):
        found = written.read(STORED if is_stored else AUDIENCE, plain, where)
        self.plain = dict(plain or {})
        found = {key: frozenset([value]) if isinstance(value, str) else value for key, value in found.items()}
        self.allow, self.deny = found.pop("allow", frozenset()), found.pop("deny", frozenset())
        self._tests = [self._test(key, value) for key, value in found.items()]

    @staticmethod
    def _test(key, wanted):
        """(key, test of Facts, function of Facts for the device's value)"""
        if key == "cohorts":
            return key, lambda facts: bool(wanted & facts.named), lambda facts: sorted(facts.named)
        if key == "percent":
            return key, lambda facts: facts.cohort <= wanted, lambda facts: facts.cohort / 10
        holds = wanted
        if key == "os":
            holds = frozenset(wanted).__contains__
        elif key == "isa":
            holds = lambda value: frozenset(wanted) <= set(value)

        def test(facts):
            value = facts.facts.get(key)
            return value is not None and holds(value)

        return key, test, lambda facts: facts.facts.get(key)

    def why_not(self, facts):
        """None if the device belongs to the audience, else the reason in words."""
        if facts.device in self.deny:
            return "it is in `deny`"
        if facts.device in self.allow:
            return None
        for key, test, has in self._tests:
            try:
                holds = test(facts)
            except TypeError, ValueError:
                holds = False  # the stated value cannot be compared
            if not holds:
                return f"{key}: expected {self.plain[key]}, it has {has(facts)}"
        return (
            None if self._tests or not self.allow or self.plain.keys() - {"allow", "deny"} else "it is not in `allow`"
        )

    def __contains__(self, facts):
        return self.why_not(facts) is None
