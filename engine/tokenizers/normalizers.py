"""Normalizers: functions that change an Aligned text in place, made from tokenizer.json's `normalizer`."""

import base64
import struct
import unicodedata

from vmhost.engine.tokenizers import characters, patterns
from vmhost.engine.tokenizers.document import TokenizerError

_HANGUL = range(0xAC00, 0xD7A4)


def make(section):
    """The normalizer of a Section."""
    return section.make(_MAKERS, "normalizer")


def _sequence(section):
    steps = [make(each) for each in section.sections("normalizers")]

    def normalize(text):
        for each in steps:
            each(text)

    return normalize


def _bert(section):
    clean = section.take("clean_text", bool, True)
    chinese = section.take("handle_chinese_chars", bool, True)
    lower = section.take("lowercase", bool, True)
    accents = section.take("strip_accents", bool, lower)

    def normalize(text):
        if text.text.isascii():
            if clean:
                if not text.text.isprintable():
                    text.keep(lambda c: not characters.is_control(c))
                    text.translate(lambda c: " " if c in "\t\n\r" else c)
            if lower and text.text:
                text.text = text.text.lower()
            return
        if clean and not (text.text.isprintable() and "\ufffd" not in text.text):  # the others are not printable
            text.keep(lambda c: not characters.is_control(c))
            text.translate(lambda c: " " if c in _SPACES else c)
        if chinese and max(text.text, default="") >= _FIRST_CHINESE:
            text.translate(lambda c: f" {c} " if characters.is_chinese(c) else c)
        if accents:
            _decompose(text, "NFD")
            text.keep(lambda c: not characters.is_nonspacing_mark(c))
        if lower:
            _lowercase(text)

    return normalize


_FIRST_CHINESE = "\u3400"  # of characters.is_chinese
_SPACES = frozenset(
    "\t\n\r \xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)


def _lowercase(text):
    if text.text.isascii():
        text.text = text.text.lower()
    else:
        text.translate(str.lower)


def _strip(section):
    left, right = section.take("strip_left", bool, True), section.take("strip_right", bool, True)

    def normalize(text):
        whole = text.text
        start = len(whole) - len(whole.lstrip(characters.WHITESPACE)) if left else 0
        end = len(whole.rstrip(characters.WHITESPACE)) if right else len(whole)
        if start or end < len(whole):
            kept = range(start, end) if start < end else range(0)
            text.replace_all([whole[start:end]], kept)

    return normalize


def _decompose(text, form):
    """NFD or NFKD."""
    if unicodedata.is_normalized(form, text.text):
        return
    text.apply_changes(_decomposed(text.text, form))


def _decomposed(whole, form):
    combining, normalize, later = unicodedata.combining, unicodedata.normalize, characters.is_newer_decomposition
    changes, marks = [], []
    for c in whole:
        result = c if c < "\x80" or later(c) else normalize(form, c)
        for k, part in enumerate(result):
            change = 1 if k else 0
            if combining(part):
                marks.append((part, change))
                continue
            if marks:
                changes += sorted(marks, key=lambda mark: combining(mark[0]))
                marks.clear()
            changes.append((part, change))
    return changes + sorted(marks, key=lambda mark: combining(mark[0]))


def _compose(text, form):
    """NFC or NFKC: a character composed with marks comes from the first of its parts."""
    if unicodedata.is_normalized(form, text.text):
        return
    combining = unicodedata.combining
    result, starter, last_class = [], None, None  # `starter`: its index in `result`
    for part, change in _decomposed(text.text, "NFD" if form == "NFC" else "NFKD"):
        combining_class = combining(part)
        if starter is not None and (last_class is None or (last_class and last_class < combining_class)):
            composed = _pair(result[starter][0], part)
            if composed is not None:
                result[starter] = (composed, result[starter][1] + change - 1)
                continue
        if combining_class:
            last_class = combining_class
        else:
            starter, last_class = len(result), None
        result.append((part, change))
    text.apply_changes(result)


def _pair(first, second):
    """The character that the two compose to, or None."""
    result = unicodedata.normalize("NFC", first + second)
    return result if len(result) == 1 else None


def _nmt(section):
    def normalize(text):
        if text.text.isprintable() and "\u2581" not in text.text and "\ufffd" not in text.text:
            return  # no other printable character is concerned
        text.keep(lambda c: not (c < "\t" or c == "\v" or "\x0e" <= c <= "\x1f" or c in "\x7f\x8f\x9f") or c == "\0")
        text.translate(lambda c: " " if c in _NMT_SPACES else c)

    return normalize


_NMT_SPACES = frozenset("\t\n\f\r\u1680\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u2581\ufeff\ufffd")


def _replace(section):
    pattern, content = patterns.of_section(section), section.take("content", str)
    return lambda text: text.replace(pattern.spans(text.text), content)


def _prepend(section):
    prefix = section.take("prepend", str)
    return lambda text: text.prepend(prefix)


def bytes_as_characters(text):
    """Replaces each byte of the UTF-8 encoding by its character."""
    if text.text.isascii():
        text.text = text.text.translate(characters.BYTE_CHARACTERS)
    else:
        text.translate(
            lambda c: c.encode("utf-8", "surrogatepass").decode("latin-1").translate(characters.BYTE_CHARACTERS)
        )


class _Precompiled:
    """SentencePiece's normalization: a double-array trie of strings to replace, and their replacements."""

    def __init__(self, section):
        where = f"{section.where}.precompiled_charsmap"
        given = section.take("precompiled_charsmap", str)
        try:
            data = base64.b64decode(given, validate=True)
            (size,) = struct.unpack_from("<I", data)
            self.units = struct.unpack_from(f"<{size // 4}I", data, 4)
            self.texts = data[4 + size :]
            self.texts.decode()
        except (ValueError, struct.error) as error:
            raise TokenizerError(f"{where}: is no map of SentencePiece's, or cut short: {error}") from None
        if size % 4 or not self.units:
            raise TokenizerError(f"{where}: is no map of SentencePiece's: {size} bytes of units")
        self.known = {}

    def replacement(self, part):
        """The replacement of `part`, or None: that of its shortest known prefix."""
        if part in self.known:
            return self.known[part]
        units, found = self.units, None
        try:
            node = _offset(units[0])
            for byte in part.encode():
                if not byte:
                    break
                node ^= byte
                unit = units[node]
                if unit & 0x800000FF != byte:
                    break
                node ^= _offset(unit)
                if unit >> 8 & 1:
                    start = units[node] & 0x7FFFFFFF
                    found = self.texts[start : self.texts.index(b"\0", start)].decode()
                    break
        except IndexError, ValueError:
            raise TokenizerError("precompiled_charsmap: an offset of its trie is out of range") from None
        if len(self.known) < 10_000:
            self.known[part] = found
        return found

    def __call__(self, text):
        changes, modified = [], False
        for cluster in characters.clusters(text.text):
            result = self.replacement(cluster) if len(cluster.encode()) < 6 else None
            for part, replaced in (
                ((cluster, result),) if result is not None else ((c, self.replacement(c)) for c in cluster)
            ):
                if replaced is None:
                    changes.append((part, 0))
                    continue
                modified = True
                more = len(replaced) - len(part)
                new = [[c, 0] for c in replaced]
                if more > 0:
                    for each in new[-more:]:
                        each[1] = 1
                    if more > len(new):  # what is inserted before is changed too
                        new = new[-more:]
                elif more < 0 and (new or changes):
                    if new:
                        new[-1][1] += more
                    else:
                        last, change = changes.pop()
                        changes.append((last, change + more))
                changes += map(tuple, new)
        if modified:
            text.apply_changes(changes)


def _offset(unit):
    return (unit >> 10) << ((unit & 1 << 9) >> 6)


_MAKERS = {
    "Sequence": _sequence,
    "BertNormalizer": _bert,
    "Strip": _strip,
    "StripAccents": lambda section: lambda text: text.keep(lambda c: not characters.is_mark(c)),
    "NFC": lambda section: lambda text: _compose(text, "NFC"),
    "NFD": lambda section: lambda text: _decompose(text, "NFD"),
    "NFKC": lambda section: lambda text: _compose(text, "NFKC"),
    "NFKD": lambda section: lambda text: _decompose(text, "NFKD"),
    "Lowercase": lambda section: _lowercase,
    "Nmt": _nmt,
    "Replace": _replace,
    "Prepend": _prepend,
    "ByteLevel": lambda section: bytes_as_characters,
    "Precompiled": _Precompiled,
}
