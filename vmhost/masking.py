"""Masking: hides parts of values and texts before they are stored, by rules.

A field is hidden by its name at any depth: "email", or by the end of its path, "customer.name", with * for any part of
a name. A pattern hides its matches in any text. A hidden text becomes the same pseudonym wherever it occurs in one
record, so that a replay that passes it on still gives the recorded result.
"""

import base64
import fnmatch
import functools
import hashlib
import hmac
import json
import os
import re
import sys
import urllib.parse
from collections.abc import Iterable, Mapping

import msgpack

from vmhost.errors import ConfigurationError
from vmhost.runtime.codec import Foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Named patterns.
PATTERNS = {
    "email": r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+",
    "phone": r"(?<![\w.])\+?\d{1,3}(?:[ /-]?\d{2,4}){3,5}(?![\w.])",
    "card": r"(?<![\w-])(?:\d[ -]?){12,18}\d(?![\w-])",
    "ip": r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])",
    "token": r"(?i:bearer|basic) [\w.~+/-]{8,}=*|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
}
_PSEUDONYM = re.compile(r"masked-[0-9a-f]{12}")
_PLAIN = frozenset((bool, int, float, complex, bytes))
_MIN_ENCODED_BYTES = 6  # shorter texts are in Base64 and hex by chance
_MIN_SECRET_CHARS = 3  # characters: a shorter hidden text is not hidden elsewhere too


class Masking:
    """Rules: `fields` by name, `patterns` by a name of PATTERNS or as a regular expression. ConfigurationError."""

    def __init__(self, fields: Iterable[str] = (), patterns: Iterable[str] = ()) -> None:
        self.fields, self.patterns = _texts(fields, "fields"), _texts(patterns, "patterns")
        self._rules = [tuple(part.lower() for part in rule.split(".")) for rule in self.fields]
        self._found = [_compiled(pattern) for pattern in self.patterns]
        self._in_lines = _line_rules(self._rules)
        self._known = {}  # path -> is it hidden?
        self._key = os.urandom(16)  # prevents guessing texts by their pseudonyms

    @property
    def names(self) -> tuple[str, ...]:
        """The rules as they were given."""
        return (*self.fields, *self.patterns)

    def __bool__(self) -> bool:
        return bool(self._rules or self._found)

    def pseudonym(self, text: str) -> str:
        """The pseudonym of `text`: for this object always the same."""
        if _PSEUDONYM.fullmatch(text):
            return text  # already hidden
        given = text.encode("utf-8", "surrogatepass")
        return f"masked-{hmac.new(self._key, given, hashlib.sha256).hexdigest()[:12]}"

    def value(self, value: "Any", secrets: dict[str, str], pack_other: "Any" = None) -> "Any":
        """`value` with hidden texts replaced by pseudonyms and hidden numbers by 0. `secrets` collects text ->
        pseudonym; its texts are hidden wherever they occur, also before the field that hides them, in bytes, and as
        JSON, URLs, Base64 and Python write them. `pack_other` decomposes values of other classes, as in
        vmhost.baseline."""
        known = None
        while known != len(secrets):  # a match of a pattern may show up only in what is hidden elsewhere
            known = len(secrets)
            shown = self._walk(value, (), secrets, pack_other)
        return shown

    def text(self, text: str, secrets: Mapping[str, str] = {}) -> str:  # noqa: B006 - read only
        """A log line or message without matches of patterns, values of hidden fields in `name=value`, `name: value`,
        `"name": value` and their like, and `secrets`."""
        text = _without(text, secrets)
        if self._in_lines is not None:
            text = self._without_fields(text)
        for pattern in self._found:
            text = pattern.sub(self._pseudonym_of, text)
        return text

    def _without_fields(self, text):
        parts, at = [], 0
        for found in self._in_lines.finditer(text):
            if found.start() < at:  # within a hidden value
                continue
            begin, end, around = _value_at(text, found)
            if begin < end:
                parts += [text[at:begin], around, self.pseudonym(text[begin:end]), around]
                at = end
        return "".join(parts) + text[at:]

    def _pseudonym_of(self, found):
        return self.pseudonym(found[0]) if _is_meant(found.re, found[0]) else found[0]

    def _hides(self, path):
        known = self._known.get(path)
        if known is None:
            known = any(
                len(rule) <= len(path) and all(map(fnmatch.fnmatchcase, path[len(path) - len(rule) :], rule))
                for rule in self._rules
            )
            if len(self._known) < 10_000:
                self._known[path] = known
        return known

    def _walk(self, value, path, secrets, pack_other):
        kind = type(value)
        if kind is str:
            return self._shown(value, secrets)
        if kind is dict:
            return {
                self._key_of(key, secrets): self._item(key, item, path, secrets, pack_other)
                for key, item in value.items()
            }
        if kind in (list, tuple, set, frozenset):
            return kind([self._walk(item, path, secrets, pack_other) for item in value])
        if kind is bytes:
            return _without_bytes(value, secrets)
        if value is None or kind in _PLAIN:
            return value
        if (packed := _packed()) is not None and kind is packed:
            return self._repacked(value, packed, path, secrets, pack_other)
        parts = (value.kind, value.detail, value.payload) if kind is Foreign else pack_other and pack_other(value)
        if parts is None:
            return value
        return Foreign(parts[0], parts[1], self._walk(parts[2], path, secrets, pack_other))

    def _repacked(self, value, packed, path, secrets, pack_other):
        try:
            inner = msgpack.unpackb(value.data, strict_map_key=False)
            return packed(msgpack.packb(self._walk(inner, path, secrets, pack_other)))
        except ValueError, TypeError, RecursionError, msgpack.UnpackException:  # no rule can look into it
            return packed(msgpack.packb("masked"))

    def _key_of(self, key, secrets):
        return self._shown(key, secrets) if type(key) is str else key

    def _item(self, key, item, path, secrets, pack_other):
        if type(key) is str:
            path = (*path, key.lower())
            if self._hides(path):
                return self._hidden(item, secrets)
        return self._walk(item, path, secrets, pack_other)

    def _hidden(self, value, secrets):
        kind = type(value)
        if kind is str:
            pseudonym = self.pseudonym(value)
            if len(value) >= _MIN_SECRET_CHARS and pseudonym != value:
                secrets[value] = pseudonym
            return pseudonym
        if kind is bytes:
            return b"masked"
        if kind is dict:
            return {self._hidden_key(key, secrets): self._hidden(item, secrets) for key, item in value.items()}
        if kind in (list, tuple, set, frozenset):
            return kind([self._hidden(item, secrets) for item in value])
        if kind in (int, float, complex, bool):
            return kind(0)
        return None if value is None else self.pseudonym(str(value))

    def _hidden_key(self, key, secrets):
        return (
            key if key is None or type(key) is bool else self._hidden(key if type(key) is str else repr(key), secrets)
        )

    def _shown(self, text, secrets):
        text = _without(text, secrets)
        if self._in_lines is not None:  # it may be JSON, a form or a log line
            text = self._without_fields(text)
        for pattern in self._found:
            for found in {match[0] for match in pattern.finditer(text) if _is_meant(pattern, match[0])}:
                secrets[found] = self.pseudonym(found)
                text = text.replace(found, secrets[found])
        return text


class CurrentMasking:
    """Masks as the Masking of `policy()` does, a host's Policy, which `Host.reload` may replace. It stays as it is when
    that is None later: its host is gone."""

    def __init__(self, policy: "Any") -> None:
        given = policy()
        self._policy, self._made = policy, (given, given.masking())

    @property
    def now(self) -> Masking:
        """The Masking; another object whenever the policy is another one."""
        policy = self._policy()
        if policy is not None and policy is not self._made[0]:
            self._made = policy, policy.masking()
        return self._made[1]

    def value(self, value: "Any", secrets: dict[str, str], pack_other: "Any" = None) -> "Any":
        return self.now.value(value, secrets, pack_other)

    def text(self, text: str, secrets: Mapping[str, str] = {}) -> str:  # noqa: B006 - read only
        return self.now.text(text, secrets)


def _packed():
    """The class Packed; None where no value can be one, as the native core is not loaded."""
    module = sys.modules.get("vmhost.packed")
    return None if module is None else module.Packed


@functools.lru_cache(4096)
def _forms(secret):
    """How a text is written elsewhere: as it is, and in JSON, Python, URLs and Base64; long ones first."""
    data = secret.encode("utf-8", "surrogatepass")
    found = {secret, repr(secret)[1:-1], ascii(secret)[1:-1]}
    for _ in range(2):  # JSON in JSON
        found |= {json.dumps(text, ensure_ascii=plain)[1:-1] for text in found for plain in (True, False)}
    found |= {urllib.parse.quote(data, safe=""), urllib.parse.quote(data), urllib.parse.quote_plus(data)}
    if len(data) >= _MIN_ENCODED_BYTES:
        found |= {base64.b64encode(data).decode().rstrip("="), base64.urlsafe_b64encode(data).decode().rstrip("=")}
        found |= {data.hex(), data.hex().upper()}
    return tuple(sorted(found, key=len, reverse=True))


def _longest_first(secrets):
    return sorted(secrets.items(), key=lambda pair: len(pair[0]), reverse=True) if len(secrets) > 1 else secrets.items()


def _without(text, secrets):
    for secret, pseudonym in _longest_first(secrets):
        for form in _forms(secret):
            if form in text:
                text = text.replace(form, pseudonym)
    return text


def _without_bytes(data, secrets):
    for secret, pseudonym in _longest_first(secrets):
        for form in _forms(secret):
            if (mark := form.encode("utf-8", "surrogatepass")) in data:
                data = data.replace(mark, pseudonym.encode())
    return data


def _is_meant(pattern, found):
    """Is a match of `pattern` a real one? Card numbers have a check digit (ISO/IEC 7812-1, annex B)."""
    if pattern.pattern != PATTERNS["card"]:
        return True
    digits = [int(digit) for digit in found if digit.isdecimal()][::-1]
    return sum(sum(divmod(digit << at % 2, 10)) for at, digit in enumerate(digits)) % 10 == 0


def _texts(given, what):
    if isinstance(given, str) or not all(isinstance(rule, str) and rule for rule in given):
        raise ConfigurationError(f"mask: {what}: expected a list of texts, got {given!r:.100}")
    return tuple(given)


def _compiled(pattern):
    try:
        compiled = re.compile(PATTERNS.get(pattern, pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigurationError(
            f"mask: patterns: {pattern!r:.100} is neither one of {', '.join(PATTERNS)} nor a regular expression: "
            f"{error}"
        ) from error
    if compiled.match(""):
        raise ConfigurationError(f"mask: patterns: {pattern!r:.100} finds the empty text, and so would hide nothing")
    return compiled


def _line_rules(rules):
    """A pattern for what stands before the values of hidden fields in lines: name=, name:, "name":, name =>."""
    if not rules:
        return None
    names = "|".join(re.escape(rule[-1]).replace(r"\*", r"[\w-]*") for rule in rules)
    quoted, plain = r"(?P<quote>\\*[\"'])\s{0,3}(?:=>?|->|[:,])", r"\s{0,3}(?:=>?|->|(?P<header>:))"
    return re.compile(rf"(?i)(?:{names})(?:{quoted}|{plain})\s{{0,3}}")


_QUOTED = re.compile(r"""[bBfFrRuU]{0,2}(?:"((?:[^"\\]|\\.)*)"?|'((?:[^'\\]|\\.)*)'?)""", re.DOTALL)
_QUOTED_WITHIN = re.compile(r"""(\\+)(["'])(.*?)(?:(?<!\\)\1\2|$)""", re.DOTALL)  # as in JSON in JSON
_PLAIN_VALUES = {
    "quote": re.compile(r"[^\s,;&}\])]+"),  # a number in JSON, or as Python shows it
    "header": re.compile(r"[^\r\n]+"),  # may have spaces
    None: re.compile(r"[^\s,;&]+"),
}
_BRACKETS = {"{": "}", "[": "]", "(": ")"}


def _value_at(text, found):
    """(begin and end of a hidden field's value, the quotes that its pseudonym needs), after what _line_rules found."""
    at = found.end()
    if quoted := _QUOTED.match(text, at):
        return *quoted.span(2 if quoted[1] is None else 1), ""
    if quoted := _QUOTED_WITHIN.match(text, at):
        return *quoted.span(3), ""
    if text[at : at + 1] in _BRACKETS:
        return at, _closed(text, at), found["quote"] or ""
    plain = _PLAIN_VALUES[found.lastgroup].match(text, at)
    return (*plain.span(), found["quote"] or "") if plain else (at, at, "")


def _closed(text, at):
    """Where the bracket at `at` is closed; the text's end if it is not."""
    waiting = []
    while at < len(text):
        if quoted := _QUOTED.match(text, at) or _QUOTED_WITHIN.match(text, at):
            at = quoted.end()
            continue
        if text[at] in _BRACKETS:
            waiting.append(_BRACKETS[text[at]])
        elif waiting and text[at] == waiting[-1]:
            waiting.pop()
            if not waiting:
                return at + 1
        at += 1
    return at
