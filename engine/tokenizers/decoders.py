"""Decoders: functions from the texts of tokens to texts to be joined, made from tokenizer.json's `decoder`."""

from itertools import groupby

from vmhost.engine.tokenizers import characters, patterns


def make(section):
    return section.make(_MAKERS, "decoder")


def _sequence(section):
    steps = [make(each) for each in section.sections("decoders")]

    def decode(tokens):
        for each in steps:
            tokens = each(tokens)
        return tokens

    return decode


def _byte_level(tokens):
    result = bytearray()
    for token in tokens:
        try:
            result += bytes([characters.CHARACTER_BYTES[c] for c in token])
        except KeyError:
            result += token.encode("utf-8", "surrogatepass")
    return [result.decode("utf-8", "replace")]


_TIDY = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
    (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


def _tidied(text):
    for before, after in _TIDY:
        text = text.replace(before, after)
    return text


def _wordpiece(section):
    prefix, tidy = section.take("prefix", str, "##"), section.take("cleanup", bool, True)

    def decode(tokens):
        results = []
        for i, token in enumerate(tokens):
            if i:
                token = token.removeprefix(prefix) if token.startswith(prefix) else f" {token}"
            results.append(_tidied(token) if tidy else token)
        return results

    return decode


def _metaspace(section):
    mark = section.character("replacement", "\u2581")
    old = "always" if section.take("add_prefix_space", bool, True) else "never"
    first = section.choice("prepend_scheme", ("always", "never", "first"), old) != "never"
    return lambda tokens: [token.replace(mark, "" if first and not i else " ") for i, token in enumerate(tokens)]


def _bpe(section):
    suffix = section.take("suffix", str, "</w>")
    return lambda tokens: [token.replace(suffix, " " if i < len(tokens) - 1 else "") for i, token in enumerate(tokens)]


def _byte(token):
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return int(token[3:5], 16)
        except ValueError:
            pass
    return None


def _byte_fallback(tokens):
    results = []
    for is_byte, group in groupby(tokens, lambda token: _byte(token) is not None):
        group = list(group)
        if is_byte:
            data = bytes(map(_byte, group))
            try:
                group = [data.decode()]
            except UnicodeDecodeError:
                group = ["\ufffd"] * len(data)
        results += group
    return results


def _strip(section):
    content, start, stop = section.character("content", " "), section.natural("start", 0), section.natural("stop", 0)

    def decode(tokens):
        results = []
        for token in tokens:
            left = min(len(token) - len(token.lstrip(content)), start)
            right = min(len(token) - len(token.rstrip(content)), stop)
            results.append(token[left : max(left, len(token) - right)])
        return results

    return decode


def _replace(section):
    pattern, content = patterns.of_section(section), section.take("content", str)
    return lambda tokens: [pattern.at(token).sub(lambda _: content, token) for token in tokens]


def _ctc(section):
    pad, word = section.take("pad_token", str, "<pad>"), section.take("word_delimiter_token", str, "|")
    tidy = section.take("cleanup", bool, True)

    def decode(tokens):
        results = []
        for token, _ in groupby(tokens):
            token = token.replace(pad, "")
            if tidy:
                token = _tidied(token).replace(word, " ")
            if token:
                results.append(token)
        return results

    return decode


_MAKERS = {
    "Sequence": _sequence,
    "BPEDecoder": _bpe,
    "ByteFallback": lambda section: _byte_fallback,
    "ByteLevel": lambda section: _byte_level,
    "CTC": _ctc,
    "Fuse": lambda section: lambda tokens: ["".join(tokens)],
    "Metaspace": _metaspace,
    "Replace": _replace,
    "Strip": _strip,
    "WordPiece": _wordpiece,
}
