"""Audiences: the devices that a release, a step or a file is for. Plain data, checked when read; tests are pure.

    app: ">=2.1, <3"        versions: comparisons that must all hold, or a list of which one must hold
    os: [linux, android]    names: one, or a list
    host, python            versions of vmhost and of Python
    cores: ">=2"            numbers; memory and free_disk (rounded down by less than a fifth) in bytes, or "512 MiB"
    isa: avx2               one or a list, of which the device must have all
    cohorts: [staff]        named cohorts, kept on the platform: the device must be in one of them
    percent: 5              by the device's cohort for the task, 1..1000
    allow: [kitchen-1]      these devices in any case
    deny: [lab-3]           these devices never

All keys must hold; one that the device states nothing about does not. No audience: all devices. Versions are texts, in
quotes: YAML reads 2.10 as the number 2.1. Comparisons that must all hold have commas between them.
"""

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass

from vmhost.bytecode import quantities
from vmhost.deployment import identifiers
from vmhost.deployment.errors import RefusedError

_OPERATORS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_COMPARISON = re.compile(r"(>=|<=|==|!=|>|<)?\s*(.+)")
_VERSION = re.compile(r"[vV]?[0-9][0-9A-Za-z.+_-]*")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
VERSIONS = ("app", "host", "python")
NUMBERS = ("cores", "memory", "free_disk")
_KEYS = (*VERSIONS, "os", *NUMBERS, "isa", "cohorts", "percent", "allow", "deny")
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


class Audience:
    """The audience for `plain` (a mapping or None); RefusedError, naming `where`, if it is invalid. `is_stored`: it was
    accepted before, maybe with versions that were not checked then."""

    def __init__(self, plain, where="audience", is_stored=False):
        plain = {} if plain is None else plain
        if not isinstance(plain, Mapping):
            raise RefusedError(f"{where}: expected keys such as `os: linux`, got {plain!r}")
        unknown = [key for key in plain if key not in _KEYS]
        if unknown:
            raise RefusedError(f"{where}: {unknown[0]}: expected one of {', '.join(_KEYS)}")
        self.plain = dict(plain)
        self.allow = _listed(plain, "allow", "device", where)
        self.deny = _listed(plain, "deny", "device", where)
        self._tests = []  # (key, test of Facts, function of Facts for the device's value)
        for key in VERSIONS:
            if key in plain:
                self._add(key, _any_of(plain[key], f"{where}: {key}", version_key if is_stored else _checked_version))
        for key in NUMBERS:
            if key in plain:
                self._add(key, _any_of(plain[key], f"{where}: {key}", size))
        if "os" in plain:
            names = frozenset(_texts(plain["os"], f"{where}: os"))
            self._add("os", lambda value: value in names)
        if "isa" in plain:
            needed = frozenset(_texts(plain["isa"], f"{where}: isa"))
            self._add("isa", lambda value: needed <= set(value))
        if "cohorts" in plain:
            named = _listed(plain, "cohorts", "cohort", where)
            self._tests.append(("cohorts", lambda facts: bool(named & facts.named), lambda facts: sorted(facts.named)))
        if "percent" in plain:
            max_cohort = percent(plain["percent"], f"{where}: percent")
            self._tests.append(("percent", lambda facts: facts.cohort <= max_cohort, lambda facts: facts.cohort / 10))

    def _add(self, key, holds):
        def test(facts):
            value = facts.facts.get(key)
            return value is not None and holds(value)

        self._tests.append((key, test, lambda facts: facts.facts.get(key)))

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


def percent(value, where):
    """Thousandths, for a percentage from 0.1 to 100."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 100:
        raise RefusedError(f"{where}: expected a percentage above 0 and up to 100, got {value!r}")
    return max(1, round(value * 10))


def size(value):
    """Bytes, or any number: 4, 0.5, "512 MiB", "4"."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return float(value)
    found = quantities.byte_count(value)
    if found is None:
        raise ValueError(f"expected a number or a size such as 512 MiB, got {value!r:.80}")
    return found


def _checked_version(text):
    if not _VERSION.fullmatch(text):
        raise ValueError(f'expected versions with >=, <=, ==, !=, >, < and commas, such as ">=2.1, <3", got {text!r}')
    return version_key(text)


def _any_of(value, where, key):
    """A test of a value against comparisons: all in one text, any of a list. `key`: the sort key of a bound."""
    alternatives = []
    for text in value if isinstance(value, list) else [value]:
        tests = []
        if key is _checked_version and not isinstance(text, str):
            raise RefusedError(f"{where}: expected text, got {text!r:.80}; put it in quotes")
        if not isinstance(text, (str, int, float)) or isinstance(text, bool):
            raise RefusedError(f'{where}: expected a comparison such as ">=2", got {text!r:.80}')
        for part in str(text).split(","):
            found = _COMPARISON.fullmatch(part.strip())
            if not found:
                raise RefusedError(f'{where}: expected a comparison such as ">=2", got {text!r}')
            try:
                tests.append((_OPERATORS[found[1] or "=="], key(found[2].strip())))
            except ValueError as error:
                raise RefusedError(f"{where}: {error}") from None
        alternatives.append(tests)
    if not alternatives:
        raise RefusedError(f"{where}: expected at least one comparison, got an empty list")

    def holds(value):
        value = key(value) if key is size else version_key(str(value))
        return any(all(compare(value, bound) for compare, bound in tests) for tests in alternatives)

    return holds


def _texts(value, where):
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(each, str) for each in values):
        raise RefusedError(f"{where}: expected a name or a list of names, got {value!r}")
    return values


def _listed(plain, key, kind, where):
    values = plain.get(key, [])
    values = [values] if isinstance(values, str) else values
    if not isinstance(values, list) or len(values) > _MAX_LISTED:
        raise RefusedError(f"{where}: {key}: expected a list of at most {_MAX_LISTED:,} names, got {values!r:.80}")
    return frozenset(identifiers.check(kind, value) for value in values)
