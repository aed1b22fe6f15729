"""Post-processors, which add special tokens, made from tokenizer.json's `post_processor`.

Each has `added(is_pair)`, the number of special tokens that it adds, and `process(encodings, add_special)`, which
changes a list of one or two Encodings and returns those to be joined."""

from vmhost.engine.tokenizers import characters
from vmhost.engine.tokenizers.document import Section, TokenizerError, checked, shown, texts
from vmhost.engine.tokenizers.encoding import Encoding


def make(section):
    return section.make(_MAKERS, "post-processor")


def _special(ids, tokens, type_id):
    count = len(ids)
    return Encoding(ids, [type_id] * count, tokens, [None] * count, [(0, 0)] * count, [1] * count, [1] * count)


def _with_windows(encoding, change):
    result = change(encoding)
    result.overflowing = [change(window) for window in encoding.overflowing]
    return result


class _Wrapped:
    """[CLS] A [SEP], and B [SEP] or [SEP] B [SEP]."""

    def __init__(self, section):
        self.ends = [self._token(section, "cls"), self._token(section, "sep")]

    def _token(self, section, name):
        pair = section.take(name, list)
        if len(pair) != 2:
            raise TokenizerError(f"{section.where}.{name}: expected a token and its id, got {shown(pair)}")
        where = f"{section.where}.{name}"
        return checked(pair[0], str, f"{where}[0]"), checked(pair[1], int, f"{where}[1]")

    def _wrap(self, encoding, number, before, type_id):
        before = [] if before is None else [self.ends[before]]

        def change(each):
            size = len(each)
            result = _special([token[1] for token in before], [token[0] for token in before], type_id)
            plain = each.part(0, size)
            plain.set_sequence(number)
            if plain.special_tokens_mask:
                plain.special_tokens_mask = [0] * size
                plain.attention_mask = [1] * size
            return result.extend(plain).extend(_special([self.ends[1][1]], [self.ends[1][0]], type_id))

        return _with_windows(encoding, change)


class _Bert(_Wrapped):
    def added(self, is_pair):
        return 3 if is_pair else 2

    def process(self, encodings, add_special):
        if not add_special:
            return encodings
        return [self._wrap(each, i, None if i else 0, i) for i, each in enumerate(encodings)]


class _Roberta(_Wrapped):
    def __init__(self, section):
        super().__init__(section)
        self.trim = section.take("trim_offsets", bool, True)
        self.prefix = section.take("add_prefix_space", bool, True)

    def added(self, is_pair):
        return 4 if is_pair else 2

    def process(self, encodings, add_special):
        for each in encodings:
            if self.trim:
                _trim(each, self.prefix)
            each.set_type(0)
        if not add_special:
            return encodings
        return [self._wrap(each, i, 1 if i else 0, 0) for i, each in enumerate(encodings)]


_BLANKS = f"\u0120{characters.WHITESPACE}"


def _trim(encoding, prefixed):
    """Excludes blanks at the ends of tokens from their offsets."""
    for window in encoding.overflowing:
        _trim(window, prefixed)
    offsets = encoding.offsets
    for i, token in enumerate(encoding.tokens):
        leading = len(token) - len(token.lstrip(_BLANKS))
        trailing = len(token) - len(token.rstrip(_BLANKS))
        if not leading and not trailing:
            continue
        start, end = offsets[i]
        if leading:
            if prefixed and leading == 1 and (i == 0 or start == 0):  # the blank that was put before the text
                leading = 0
            start = min(start + leading, end)
        if trailing and end >= trailing:
            end = max(end - trailing, start)
        offsets[i] = start, end


class _ByteLevel:
    def __init__(self, section):
        self.trim = section.take("trim_offsets", bool, True)
        self.prefix = section.take("add_prefix_space", bool, True)

    def added(self, is_pair):
        return 0

    def process(self, encodings, add_special):
        for i, each in enumerate(encodings):
            if self.trim:
                _trim(each, self.prefix)
            each.set_sequence(i)
        return encodings


class _Template:
    """Pieces in the order given by the file: A, B and special tokens, each with a type id."""

    def __init__(self, section):
        self.tokens = {}
        for name, value in section.take("special_tokens", dict, {}).items():
            each = Section(value, f"{section.where}.special_tokens[{name!r}]")
            ids = each.take("ids", list)
            for number in ids:
                checked(number, int, f"{each.where}.ids")
            self.tokens[name] = ids, texts(each.take("tokens", list), f"{each.where}.tokens")
            if len(ids) != len(self.tokens[name][1]):
                raise TokenizerError(f"{each.where}: has {len(ids)} ids and {len(self.tokens[name][1])} tokens")
        self.single = self._template(section, "single", "A")
        self.pair = self._template(section, "pair", "AB") if section.values.get("pair") else None

    def _template(self, section, name, wanted):
        result, where = [], f"{section.where}.{name}"
        for i, value in enumerate(section.take(name, list)):
            piece = Section(value, f"{where}[{i}]")
            if "Sequence" in piece.values:
                each = piece.section("Sequence")
                result.append((None, "AB".index(each.choice("id", ("A", "B"))), each.natural("type_id", 0)))
            else:
                each = piece.section("SpecialToken")
                token = each.take("id", str)
                if token not in self.tokens:
                    raise TokenizerError(f"{each.where}: the special token {shown(token)} is not in special_tokens")
                result.append((token, None, each.natural("type_id", 0)))
        used = {"AB"[number] for token, number, _ in result if token is None}
        if used - set(wanted):
            raise TokenizerError(f"{where}: uses text B, which only the template of pairs has")
        return result

    def _template_for(self, is_pair):
        if is_pair and self.pair is None:
            raise TokenizerError("the post-processor has no template for pairs of texts; encode one text")
        return self.pair if is_pair else self.single

    def added(self, is_pair):
        return sum(len(self.tokens[token][0]) for token, _, _ in self._template_for(is_pair) if token is not None)

    def process(self, encodings, add_special):
        results = []
        for token, number, type_id in self._template_for(len(encodings) == 2):
            if token is None:
                each = encodings[number].copy()
                each.set_type(type_id)
                each.set_sequence(number)
                results.append(each)
            elif add_special:
                results.append(_special(*self.tokens[token], type_id))
        return results


class _Sequence:
    def __init__(self, section):
        self.parts = [make(each) for each in section.sections("processors")]

    def added(self, is_pair):
        return sum(part.added(is_pair) for part in self.parts)

    def process(self, encodings, add_special):
        for part in self.parts:
            encodings = part.process(encodings, add_special)
        return encodings


_MAKERS = {
    "Sequence": _Sequence,
    "BertProcessing": _Bert,
    "RobertaProcessing": _Roberta,
    "ByteLevel": _ByteLevel,
    "TemplateProcessing": _Template,
}
