"""Character classes as Hugging Face's library defines them.

Its regular expressions use Unicode 16, as Python 3.14 does; its normalizers and its punctuation use older versions. The
differences are listed here as ranges."""

import functools
import unicodedata

from vmhost.engine.tokenizers import patterns

WHITESPACE = "".join(
    map(chr, (*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000))
)
_ASCII_PUNCTUATION = "!-/:-@[-`{-~"

# Differences of the older Unicode: not yet punctuation (U+166D and U+111C9: still punctuation), not yet marks, and so
# on.
_PUNCTUATION_CHANGED = (
    "61d 9fd a76 c77 c84 166d 1b4e-1b4f 1b7d-1b7f 2e43-2e4f 2e52-2e5d 10d6e 10ead 10f55-10f59 10f86-10f89 111c9 "
    "113d4-113d5 113d7-113d8 1144b-1144f 1145a-1145b 1145d 11660-1166c 116b9 1183b 11944-11946 119e2 11a3f-11a46 "
    "11a9a-11a9c 11a9e-11aa2 11b00-11b09 11be1 11c41-11c45 11c70-11c71 11ef7-11ef8 11f43-11f4f 11fff 12ff1-12ff2 "
    "16d6d-16d6f 16e97-16e9a 16fe2 1e5ff 1e95e-1e95f"
)
_MARKS_CHANGED = (
    "7fd 897-89f 8ca-8d3 9fe afa-aff b55 c04 c3c cf3 d00 d3b-d3c d81 eba ece 1715 180f 1abf-1ace 1cf2-1cf3 1cf7 "
    "1df6-1dfa a82c a8ff 10d24-10d27 10d69-10d6d 10eab-10eac 10efc-10eff 10f46-10f50 10f82-10f85 11070 11073-11074 "
    "110c2 11145-11146 111c9 111ce-111cf 11241 1133b 113b8-113c0 113c2 113c5 113c7-113ca 113cc-113d0 113d2 "
    "113e1-113e2 1145e 1182c-1183a 11930-11935 11937-11938 1193b-1193e 11940 11942-11943 119d1-119d7 119da-119e0 "
    "119e4 11a01-11a0a 11a33-11a39 11a3b-11a3e 11a47 11a51-11a5b 11a8a-11a99 11d31-11d36 11d3a 11d3c-11d3d "
    "11d3f-11d45 11d47 11d8a-11d8e 11d90-11d91 11d93-11d97 11ef3-11ef6 11f00-11f01 11f03 11f34-11f3a 11f3e-11f42 "
    "11f5a 13440 13447-13455 1611e-1612f 16f4f 16f7f-16f87 16fe4 16ff0-16ff1 1cf00-1cf2d 1cf30-1cf46 1e08f "
    "1e130-1e136 1e2ae 1e2ec-1e2ef 1e4ec-1e4ef 1e5ee-1e5ef"
)
_NONSPACING_CHANGED = (
    "7fd 897-89f 8ca-8e1 9fe afa-aff b55 c04 c3c d00 d3b-d3c d81 eba ece 1734 180f 1885-1886 1abf-1ace 1df6-1dfb "
    "a82c a8c5 a8ff a9bd 10d24-10d27 10d69-10d6d 10eab-10eac 10efc-10eff 10f46-10f50 10f82-10f85 11070 11073-11074 "
    "110c2 111c9 111cf 1123e 11241 1133b 113bb-113c0 113ce 113d0 113d2 113e1-113e2 11438-1143f 11442-11444 11446 "
    "1145e 1171e 1182f-11837 11839-1183a 1193b-1193c 1193e 11943 119d4-119d7 119da-119db 119e0 11a01-11a0a "
    "11a33-11a38 11a3b-11a3e 11a47 11a51-11a56 11a59-11a5b 11a8a-11a96 11a98-11a99 11c30-11c36 11c38-11c3d 11c3f "
    "11c92-11ca7 11caa-11cb0 11cb2-11cb3 11cb5-11cb6 11d31-11d36 11d3a 11d3c-11d3d 11d3f-11d45 11d47 11d90-11d91 "
    "11d95 11d97 11ef3-11ef4 11f00-11f01 11f36-11f3a 11f40 11f42 11f5a 13440 13447-13455 1611e-16129 1612d-1612f "
    "16f4f 16fe4 1cf00-1cf2d 1cf30-1cf46 1e000-1e006 1e008-1e018 1e01b-1e021 1e023-1e024 1e026-1e02a 1e08f "
    "1e130-1e136 1e2ae 1e2ec-1e2ef 1e4ec-1e4ef 1e5ee-1e5ef 1e944-1e94a"
)
_CONTROLS_CHANGED = "890-891 8e2 110cd 13430-1343f"
_DECOMPOSITIONS_NEW = (
    "32ff a7f2-a7f4 ab69 105c9 105e4 10781-10785 10787-107b0 107b2-107ba 11383 11385 1138e 11391 113c5 113c7-113c8 "
    "11938 16121-16128 16d68-16d6a 1ccd6-1ccf9 1e030-1e06d 1f16c 1fbf0-1fbf9"
)


def _characters(ranges):
    for each in ranges.split():
        first, _, last = each.partition("-")
        yield from map(chr, range(int(first, 16), int(last or first, 16) + 1))


@functools.cache
def _set(ranges):
    return frozenset(_characters(ranges))


def is_control(c):
    """The characters that BERT's normalizer removes."""
    if c < "\x7f":
        return c < " " and c not in "\t\n\r"
    return c == "\ufffd" or (unicodedata.category(c) in ("Cc", "Cf", "Co")) != (c in _set(_CONTROLS_CHANGED))


def is_mark(c):
    return c > "\x7f" and (unicodedata.category(c)[0] == "M") != (c in _set(_MARKS_CHANGED))


def is_nonspacing_mark(c):
    return c > "\x7f" and (unicodedata.category(c) == "Mn") != (c in _set(_NONSPACING_CHANGED))


def is_newer_decomposition(c):
    return c in _set(_DECOMPOSITIONS_NEW)


def is_chinese(c):
    return (
        "\u3400" <= c <= "\u4dbf"
        or "\u4e00" <= c <= "\u9fff"
        or "\uf900" <= c <= "\ufaff"
        or "\U00020000" <= c <= "\U0002a6df"
        or "\U0002a700" <= c <= "\U0002b81f"
        or "\U0002b920" <= c <= "\U0002ceaf"
        or "\U0002f800" <= c <= "\U0002fa1f"
    )


def is_word(c):
    """`\\w` in Rust's regular expressions."""
    return patterns.any_of(lambda limit: patterns.word_class(limit, of_rust=True)).at(c).match(c) is not None


def punctuation(limit):
    """The inside of a character class for the punctuation below `limit`."""
    return patterns.ranges(("P",), limit, False, _ASCII_PUNCTUATION, _PUNCTUATION_CHANGED)


def numeric(limit):
    """The same for numbers."""
    return patterns.ranges(("N",), limit, False, "\U00011de0-\U00011de9\U00016ff4-\U00016ff6")


def _byte_characters():
    """GPT-2's characters for bytes: printable bytes stand for themselves, the others are U+0100 and up."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


BYTE_CHARACTERS = _byte_characters()
CHARACTER_BYTES = {c: byte for byte, c in BYTE_CHARACTERS.items()}


def clusters(text):
    """Splits the text at grapheme boundaries (Unicode Standard Annex 29), as far as normalization needs it: marks and
    joiners stay with what they follow, Hangul syllables and flags stay together."""
    if text.isascii() and "\r" not in text:
        yield from text
        return
    start, flags = 0, 0
    for i in range(1, len(text)):
        before, c = text[i - 1], text[i]
        flags = flags + 1 if _is_flag(before) else 0
        if not (
            (before == "\r" and c == "\n")
            or (_extends(c) and not _separates(before))
            or (before == "\u200d" and _is_picture(c) and _joins_picture(text, i - 1))
            or (_is_flag(c) and flags % 2)
            or _joins_hangul(before, c)
        ):
            yield text[start:i]
            start = i
    if text:
        yield text[start:]


def _extends(c):
    return c > "\x7f" and (
        unicodedata.category(c) in ("Mn", "Me", "Mc")
        or c in "\u200c\u200d"
        or "\U0001f3fb" <= c <= "\U0001f3ff"
        or "\U000e0020" <= c <= "\U000e007f"
        or c in "\uff9e\uff9f"
    )


def _is_picture(c):
    return c >= "\u2190" and unicodedata.category(c) == "So"


def _joins_picture(text, position):
    """Whether the joiner at `position`, and the extending characters before it, follow a pictograph."""
    while position > 0 and _extends(text[position]):
        position -= 1
    return _is_picture(text[position])


def _separates(c):
    """Whether the cluster ends after it: the property Control."""
    return unicodedata.category(c) in ("Cc", "Zl", "Zp") or (
        unicodedata.category(c) == "Cf"
        and not _extends(c)
        and not "\u0600" <= c <= "\u08e2"
        and c not in "\U000110bd\U000110cd"
    )


def _is_flag(c):
    return "\U0001f1e6" <= c <= "\U0001f1ff"


def _joins_hangul(a, b):
    if not ("\u1100" <= a and "\u1100" <= b):
        return False
    a, b = _hangul(a), _hangul(b)
    return (
        (a == "L" and b in ("L", "V", "LV", "LVT"))
        or (a in ("LV", "V") and b in ("V", "T"))
        or (a in ("LVT", "T") and b == "T")
    )


def _hangul(c):
    if "\u1100" <= c <= "\u115f" or "\ua960" <= c <= "\ua97c":
        return "L"
    if "\u1160" <= c <= "\u11a7" or "\ud7b0" <= c <= "\ud7c6":
        return "V"
    if "\u11a8" <= c <= "\u11ff" or "\ud7cb" <= c <= "\ud7fb":
        return "T"
    if "\uac00" <= c <= "\ud7a3":
        return "LV" if (ord(c) - 0xAC00) % 28 == 0 else "LVT"
    return None
