"""Regular expressions of tokenizer.json, which use Oniguruma's syntax, as Python's.

Properties (`\\p{L}`) become the characters that have them. A pattern is compiled for ASCII only, for the first 65,536
characters, and for all characters, each when a text first needs it: Python checks the ranges beyond these one by one.
"""

import functools
import re
import unicodedata

from vmhost.engine.tokenizers.document import TokenizerError, shown

WHITESPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_SPACE = ("Zs", "Zl", "Zp", *"\t\n\v\f\r\x85")
_CIRCLED = "\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189"
_WORD = ("L", "M", "Nd", "Nl", "Pc")
_NAMED = {
    "alpha": ("L", "M", "Nl"), "alnum": ("L", "M", "Nl", "Nd"), "digit": ("Nd",), "punct": ("P", "S"), "upper": ("Lu",),
    "lower": ("Ll",), "letter": ("L",), "number": ("N",), "punctuation": ("P",), "symbol": ("S",), "mark": ("M",),
    "separator": ("Z",), "other": ("C",),
}  # fmt: skip
_SCRIPTS = {
    "han": "\u2e80-\u2e99\u2e9b-\u2ef3\u2f00-\u2fd5\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufa6d\ufa70-\ufad9\U00016fe2\U00016fe3\U00016ff0\U00016ff1\U00020000-\U0002a6df\U0002a700-\U0002b739"
    "\U0002b740-\U0002b81d\U0002b820-\U0002cea1\U0002ceb0-\U0002ebe0\U0002ebf0-\U0002ee5d\U0002f800-\U0002fa1d"
    "\U00030000-\U0003134a\U00031350-\U000323af",
    "hiragana": "\u3041-\u3096\u309d-\u309f\U0001b001-\U0001b11f\U0001b132\U0001b150-\U0001b152\U0001f200",
    "katakana": "\u30a1-\u30fa\u30fd-\u30ff\u31f0-\u31ff\u32d0-\u32fe\u3300-\u3357\uff66-\uff6f\uff71-\uff9d"
    "\U0001aff0-\U0001aff3\U0001aff5-\U0001affb\U0001affd\U0001affe\U0001b000\U0001b120-\U0001b122\U0001b155"
    "\U0001b164-\U0001b167",
    "hangul": "\u1100-\u11ff\u302e\u302f\u3131-\u318e\u3200-\u321e\u3260-\u327e\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7c6"
    "\ud7cb-\ud7fb\uffa0-\uffbe\uffc2-\uffc7\uffca-\uffcf\uffd2-\uffd7\uffda-\uffdc",
}  # Unicode 16, Scripts.txt
_CATEGORIES = frozenset(
    "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Cs Co Cn".split()
)
_LIMITS = (0x80, 0x10000, 0x110000)


@functools.cache
def _runs(limit):
    """(first, last, category) of all runs of characters below `limit`."""
    category, runs, first, last = unicodedata.category, [], 0, None
    for code in range(limit):
        now = category(chr(code))
        if now != last:
            if last is not None:
                runs.append((first, code - 1, last))
            first, last = code, now
    runs.append((first, limit - 1, last))
    return runs


def _escaped(code):
    return f"\\U{code:08x}"


def _spans(pairs):
    merged = []
    for first, last in sorted(pairs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(last, merged[-1][1])
        else:
            merged.append([first, last])
    return merged


@functools.lru_cache(maxsize=256)
def ranges(categories, limit, negated=False, more="", changed=""):
    """The inside of a Python character class for the characters below `limit` in these categories or in the class
    `more`; membership is inverted for the characters of `changed` (ranges of hexadecimal numbers)."""
    wanted = [
        (first, last) for first, last, category in _runs(limit) if category in categories or category[0] in categories
    ]
    i = 0
    while i < len(more):
        last = i + 2 if more[i + 1 : i + 2] == "-" else i
        if ord(more[i]) < limit:
            wanted.append((ord(more[i]), min(ord(more[last]), limit - 1)))
        i = last + 1
    merged = _spans(wanted)
    if changed:
        inside = {code for first, last in merged for code in range(first, last + 1)}
        for each in changed.split():
            first, _, last = each.partition("-")
            inside ^= {code for code in range(int(first, 16), int(last or first, 16) + 1) if code < limit}
        merged = _spans((code, code) for code in inside)
    if negated:
        edges = [0, *(edge for pair in merged for edge in (pair[0] - 1, pair[1] + 1)), limit - 1]
        merged = [(edges[k], edges[k + 1]) for k in range(0, len(edges), 2) if edges[k] <= edges[k + 1]]
    return "".join(
        _escaped(first) if first == last else f"{_escaped(first)}-{_escaped(last)}" for first, last in merged
    )


def word_class(limit, of_rust=False):
    """`\\w` as Oniguruma or Rust defines it, as the inside of a character class."""
    return ranges(_WORD, limit, False, _CIRCLED + ("\u200c\u200d" if of_rust else "\xb2\xb3\xb9\xbc-\xbe"))


class Pattern:
    """A regular expression whose source is generated for a limit of characters; `spans(text)` are its matches."""

    __slots__ = ("_source", "_compiled")

    def __init__(self, source):
        """`source`: a function from a limit to Python's regular expression for characters below it."""
        self._source, self._compiled = source, [None, None, None]

    def at(self, text):
        size = 0 if text.isascii() else 1 if max(text) < "\U00010000" else 2
        found = self._compiled[size]
        if found is None:
            found = self._compiled[size] = re.compile(self._source(_LIMITS[size]), re.MULTILINE)
        return found

    def spans(self, text):
        return [match.span() for match in self.at(text).finditer(text)]


def literal(text):
    return Pattern(lambda limit: re.escape(text))


def any_of(inside):
    """One character of the class that the function `inside` returns for a limit."""
    return Pattern(lambda limit: f"[{inside(limit) or _NOTHING}]")


def of_section(section, name="pattern"):
    """The pattern in `{"String": ...}` or `{"Regex": ...}`."""
    value = section.section(name)
    if "String" in value.values:
        return literal(value.take("String", str))
    source = value.take("Regex", str)
    where = f"{value.where}.Regex"
    pattern = Pattern(lambda limit: _Translation(source, limit, where).translated())
    try:
        pattern.at("a")
    except (re.error, RecursionError, OverflowError) as error:
        raise TokenizerError(f"{where}: {shown(source)} is no regular expression that can be used: {error}") from None
    return pattern


_NOTHING = "^\\U00000000-\\U0010ffff"


class _Translation:
    """Translates Oniguruma's (Ruby's) syntax to Python's, for characters below a limit."""

    def __init__(self, source, limit, where):
        self.source, self.limit, self.where, self.position = source, limit, where, 0

    def refuse(self, what):
        raise TokenizerError(
            f"{self.where}: {what} at character {self.position} of {shown(self.source)} is not supported; write it in"
            " other words"
        )

    def translated(self):
        result, source = [], self.source
        while self.position < len(source):
            c = source[self.position]
            if c == "\\":
                result.append(self.escape(inside=False))
            elif c == "[":
                result.append(self.bracket())
            elif c == "(":
                result.append(self.group())
            else:
                result.append(r"(?=\n|\Z)" if c == "$" else c)
                self.position += 1
        return "".join(result)

    def group(self):
        rest = self.source[self.position :]
        if (name := re.match(r"\(\?<([A-Za-z_]\w*)>", rest)) is not None:
            self.position += name.end()
            return f"(?P<{name[1]}>"
        for start in ("(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?#"):
            if rest.startswith(start):
                self.position += len(start)
                return start
        if rest.startswith("(?i)"):  # valid until the group's end; Python needs a group for that
            self.position += 4
            end = self._end_of_group()
            inner = _Translation(self.source[self.position : end], self.limit, self.where).translated()
            self.position = end
            return f"(?i:{inner})"
        if rest.startswith("(?"):
            self.refuse(f"{rest[:4]!r}")
        self.position += 1
        return "("

    def _end_of_group(self):
        depth, i, source, bracket = 0, self.position, self.source, False
        while i < len(source):
            c = source[i]
            if c == "\\":
                i += 1
            elif bracket or c == "[":
                bracket = c != "]"
            elif c == "(":
                depth += 1
            elif c == ")":
                if not depth:
                    return i
                depth -= 1
            i += 1
        return i

    def bracket(self):
        """A character class, written out in full."""
        self.position += 1
        source, negated, parts, first = self.source, False, [], True
        if source[self.position : self.position + 1] == "^":
            negated = True
            self.position += 1
        while True:
            if self.position >= len(source):
                self.refuse("a class without an end")
            c = source[self.position]
            if c == "]" and not first:
                self.position += 1
                break
            first = False
            if c == "[":
                parts.append(self.inner_class())
            elif source.startswith("&&", self.position):
                self.refuse("an intersection of classes")
            elif c == "\\":
                parts.append(self.escape(inside=True))
            else:
                parts.append("-" if c == "-" else re.escape(c))
                self.position += 1
        inside = "".join(parts)
        if not inside:
            return f"[{_NOTHING}]" if not negated else r"[\s\S]"
        return f"[{'^' if negated else ''}{inside}]"

    def inner_class(self):
        posix = re.match(r"\[:(\^?)(\w+):\]", self.source[self.position :])
        if posix is None:
            if self.source.startswith("[^", self.position):
                self.refuse("a negated class in a class")
            return self.bracket()[1:-1]
        self.position += posix.end()
        if posix[2] == "space":
            return ranges((), self.limit, bool(posix[1]), WHITESPACE)
        if posix[2] not in _NAMED:
            self.refuse(f"{posix[0]!r}")
        return ranges(_NAMED[posix[2]], self.limit, bool(posix[1]))

    def escape(self, inside):
        source = self.source
        c = source[self.position + 1 : self.position + 2]
        if not c:
            self.refuse("a backslash at the end")
        if c in "pP":
            return self.property(inside)
        if c in "sSwWdDhH":
            self.position += 2
            negated = c.isupper()
            result = {
                "s": lambda: ranges((), self.limit, negated, WHITESPACE),
                "w": lambda: ranges(_WORD, self.limit, negated, _CIRCLED + "\xb2\xb3\xb9\xbc-\xbe"),
                "d": lambda: ranges(("Nd",), self.limit, negated),
                "h": lambda: ranges((), self.limit, negated, "0-9a-fA-F"),
            }[c.lower()]()
            return self._as_class(result, inside)
        if c in "xu":
            code = re.match(
                r"\\x\{([0-9A-Fa-f]{1,8})\}|\\x([0-9A-Fa-f]{1,2})|\\u([0-9A-Fa-f]{4})", source[self.position :]
            )
            if code is None or int(code[1] or code[2] or code[3], 16) > 0x10FFFF:
                self.refuse("an escape")
            self.position += code.end()
            return _escaped(int(code[1] or code[2] or code[3], 16))
        if c in "RX":
            if inside or c == "X":
                self.refuse(f"\\{c}")
            self.position += 2
            return "(?:\\r\\n|[\\n-\\r\\x85\\u2028\\u2029])"
        if c in "zZ":
            self.position += 2
            return r"\Z" if c == "z" else r"(?=\n?\Z)"
        if c in "bB" and not inside:
            self.position += 2
            word = f"[{word_class(self.limit)}]"
            boundary, no_boundary = (
                f"(?<={word})(?!{word})|(?<!{word})(?={word})",
                f"(?<={word})(?={word})|(?<!{word})(?!{word})",
            )
            return f"(?:{boundary if c == 'b' else no_boundary})"
        if c.isalnum() and c not in "tnrfvaA" and not (c.isdigit() and not inside):
            self.refuse(f"\\{c}")
        self.position += 2
        return f"\\{c}" if c.isalnum() else re.escape(c)

    def property(self, inside):
        found = re.match(r"\\([pP])(?:\{(\^?)([A-Za-z_ ]+)\}|([A-Z]))", self.source[self.position :])
        if found is None:
            self.refuse("a property")
        name = found[3] or found[4]
        negated = (found[1] == "P") != bool(found[2])
        self.position += found.end()
        if name in _CATEGORIES:
            result = ranges((name,), self.limit, negated)
        elif name.lower() in _NAMED:
            result = ranges(_NAMED[name.lower()], self.limit, negated)
        elif name.lower() in _SCRIPTS:
            result = ranges((), self.limit, negated, _SCRIPTS[name.lower()])
        elif name.lower() in ("space", "white_space"):
            result = ranges((), self.limit, negated, WHITESPACE)
        else:
            self.refuse(f"the property {name!r}")
        return self._as_class(result, inside)

    def _as_class(self, characters, inside):
        return characters if inside else f"[{characters or _NOTHING}]"
