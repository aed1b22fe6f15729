"""Pre-tokenizers: functions that split a list of Aligned pieces further, made from tokenizer.json's `pre_tokenizer`."""

from vmhost.engine.tokenizers import characters, normalizers, patterns

_REMOVED, _ISOLATED, _CONTIGUOUS, _PREVIOUS, _NEXT = BEHAVIORS = (
    "Removed",
    "Isolated",
    "Contiguous",
    "MergedWithPrevious",
    "MergedWithNext",
)


def make(section):
    """(the splitting function, whether the last step maps the bytes of each piece to characters, which is left to the
    model)."""
    steps = _steps(section)
    bytes_at_end = bool(steps) and steps[-1] is _as_bytes
    if bytes_at_end:
        steps.pop()

    def split(pieces):
        for step in steps:
            pieces = step(pieces)
        return pieces

    return split, bytes_at_end


def _steps(section):
    return section.make(_MAKERS, "pre-tokenizer")


def _splitter(pattern, behavior=_REMOVED, invert=False):
    """A step that splits each piece at the matches of a pattern."""

    def step(pieces):
        results = []
        for piece in pieces:
            text = piece.text
            if text:
                for start, end in _split_spans(pattern.spans(text), len(text), behavior, invert):
                    if start < end:
                        results.append(piece.part(start, end))
        return results

    return [step]


def _split_spans(matches, size, behavior, invert):
    if behavior == _REMOVED and invert:
        return matches
    spans, done = [], 0  # (start, end, is a match)
    for start, end in matches:
        if done < start:
            spans.append((done, start, invert))
        spans.append((start, end, not invert))
        done = end
    if done < size:
        spans.append((done, size, invert))
    if behavior == _REMOVED:
        return [(start, end) for start, end, match in spans if not match]
    if behavior == _ISOLATED:
        return [(start, end) for start, end, _ in spans]
    found, before = [], False
    for start, end, match in reversed(spans) if behavior == _NEXT else spans:
        joins = match == before if behavior == _CONTIGUOUS else match and not before
        if not joins or not found:
            found.append((start, end))
        elif behavior == _NEXT:
            found[-1] = (start, found[-1][1])
        else:
            found[-1] = (found[-1][0], end)
        before = match
    return found[::-1] if behavior == _NEXT else found


def _as_bytes(pieces):
    for piece in pieces:
        normalizers.bytes_as_characters(piece)
    return pieces


def _prefixing(prefix, wanted):
    def step(pieces):
        for piece in pieces:
            if piece.text[:1] != prefix and wanted(piece):
                piece.prepend(prefix)
        return pieces

    return step


def gpt2(limit):
    letters, numbers = patterns.ranges(("L",), limit), patterns.ranges(("N",), limit)
    space = patterns.ranges((), limit, False, patterns.WHITESPACE)
    return (
        f"'s|'t|'re|'ve|'m|'ll|'d| ?[{letters}]+| ?[{numbers}]+| ?[^{space}{letters}{numbers}]+"
        f"|[{space}]+(?![^{space}])|[{space}]+"
    )


def _byte_level(section):
    steps = []
    if section.take("add_prefix_space", bool, True):
        steps.append(_prefixing(" ", lambda piece: True))
    if section.take("use_regex", bool, True):
        steps += _splitter(patterns.Pattern(gpt2), _ISOLATED)
    return [*steps, _as_bytes]


def _metaspace(section):
    replacement = section.character("replacement", "\u2581")
    scheme = section.choice(
        "prepend_scheme",
        ("always", "never", "first"),
        "always" if section.take("add_prefix_space", bool, True) else "never",
    )
    mark = patterns.literal(replacement)

    def step(pieces):
        for piece in pieces:
            piece.text = piece.text.replace(" ", replacement)
        return pieces

    steps = [step]
    if scheme != "never":
        steps.append(_prefixing(replacement, lambda piece: scheme == "always" or piece.origin == 0))
    return steps + (_splitter(mark, _NEXT) if section.take("split", bool, True) else [])


def _punctuation(section):
    inside = patterns.any_of(characters.punctuation)
    return _splitter(inside, section.choice("behavior", BEHAVIORS, _ISOLATED))


def _digits(section):
    inside = patterns.any_of(characters.numeric)
    return _splitter(inside, _ISOLATED if section.take("individual_digits", bool, False) else _CONTIGUOUS)


def _fixed_length(section):
    size = max(1, section.natural("length", 5))
    return _splitter(patterns.Pattern(lambda limit: f"(?s:.{{1,{size}}})"), _ISOLATED)


def _whitespace(section):
    def source(limit):
        word = patterns.word_class(limit, of_rust=True)
        return f"[{word}]+|[^{word}{patterns.ranges((), limit, False, patterns.WHITESPACE)}]+"

    return _splitter(patterns.Pattern(source), _REMOVED, invert=True)


def _split(section):
    return _splitter(
        patterns.of_section(section), section.choice("behavior", BEHAVIORS), section.take("invert", bool, False)
    )


def _delimiter(section):
    return _splitter(patterns.literal(section.character("delimiter")))


_SPACES = patterns.any_of(lambda limit: patterns.ranges((), limit, False, patterns.WHITESPACE))
_MAKERS = {
    "Sequence": lambda section: [step for each in section.sections("pretokenizers") for step in _steps(each)],
    "BertPreTokenizer": lambda section: (
        _splitter(_SPACES) + _splitter(patterns.any_of(characters.punctuation), _ISOLATED)
    ),
    "ByteLevel": _byte_level,
    "CharDelimiterSplit": _delimiter,
    "Digits": _digits,
    "FixedLength": _fixed_length,
    "Metaspace": _metaspace,
    "Punctuation": _punctuation,
    "Split": _split,
    "Whitespace": _whitespace,
    "WhitespaceSplit": lambda section: _splitter(_SPACES),
}
