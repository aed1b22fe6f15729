"""The tokenizer of a tokenizer.json, with the steps of Hugging Face's library: added tokens are split off, the rest is
normalized and split into words, each word becomes tokens of the model, special tokens are added, and the result is
truncated and padded."""

import json
import re

from vmhost.engine.tokenizers import characters, decoders, models, normalizers, pretokenizers, processors
from vmhost.engine.tokenizers.aligned import Aligned
from vmhost.engine.tokenizers.document import Section, TokenizerError, shown
from vmhost.engine.tokenizers.encoding import Encoding

_WORDS_KEPT, _LONGEST_KEPT = 20_000, 64  # cached words, and characters of the longest one
_STRATEGIES = ("longest_first", "only_first", "only_second")


class Tokenizer:
    """A tokenizer, with the names of Hugging Face's `tokenizers.Tokenizer`.

    Tokenizer.from_file("tokenizer.json") reads a file of the task's folder or bundle. Not thread-safe."""

    def __init__(self, document):
        """`document`: a tokenizer.json after json.loads. TokenizerError says what is wrong with it, and where."""
        try:
            self._set_up(Section(document, "$"))
        except RecursionError:
            raise TokenizerError("$: is nested too deeply") from None

    @classmethod
    def from_file(cls, path):
        """Reads a tokenizer.json. OSError; TokenizerError names the file."""
        with open(path, "rb") as file:
            data = file.read()
        try:
            return cls.from_str(data)
        except TokenizerError as error:
            raise TokenizerError(f"{path}: {error}") from None

    @classmethod
    def from_str(cls, text):
        """From the text of a tokenizer.json, str or UTF-8 bytes."""
        try:
            document = json.loads(text)
        except RecursionError:
            raise TokenizerError("$: is nested too deeply") from None
        except ValueError as error:
            raise TokenizerError(f"is not JSON: {error}") from None
        return cls(document)

    from_buffer = from_str

    def _set_up(self, section):
        def part(name, make):
            return make(section.section(name)) if section.values.get(name) is not None else None

        self.model = models.make(section.section("model"))
        self._normalizer = part("normalizer", normalizers.make)
        pretokenizer = part("pre_tokenizer", pretokenizers.make)
        self._pretokenize, self._bytes_at_end = pretokenizer or (None, False)
        self._processor = part("post_processor", processors.make)
        self._decoder = part("decoder", decoders.make)
        self._added, self._added_texts, self._special = {}, {}, set()
        if section.values.get("added_tokens") is not None:
            self._add([_Added(each) for each in section.sections("added_tokens")])
        else:
            self._add([])
        self._words = {}
        self.encode_special_tokens = False
        self._truncation = self._padding = None
        if section.values.get("truncation") is not None:
            given = section.section("truncation")
            self.enable_truncation(
                given.natural("max_length"),
                given.natural("stride", 0),
                _snake(given.choice("strategy", ("LongestFirst", "OnlyFirst", "OnlySecond"), "LongestFirst")),
                given.choice("direction", ("Left", "Right"), "Right").lower(),
            )
        if section.values.get("padding") is not None:
            given = section.section("padding")
            strategy = given.values.get("strategy")
            self.enable_padding(
                given.choice("direction", ("Left", "Right"), "Right").lower(),
                given.natural("pad_id", 0),
                given.natural("pad_type_id", 0),
                given.take("pad_token", str, "[PAD]"),
                given.section("strategy").natural("Fixed") if type(strategy) is dict else None,
                given.natural("pad_to_multiple_of", None),
            )

    # --- added tokens

    def _add(self, tokens):
        for token in tokens:
            if not token.content or token in self._added.values():
                continue
            number = self.token_to_id(token.content)
            if number is None:
                size = len(self.model.ids)
                number = max(max(self._added, default=-1) + 1, size) if size else max(self._added, default=-1) + 1
            self._added[number] = token
            self._added_texts[token.content] = number
            if token.special:
                self._special.add(token.content)
        raw, normalized = {}, {}
        for number, token in self._added.items():
            if token.normalized and self._normalizer is not None:
                text = Aligned(token.content)
                self._normalizer(text)
                token.text = text.text
            (normalized if token.normalized else raw)[token.text] = number
        self._raw, self._normalized = _finder(raw), _finder(normalized)

    def add_tokens(self, tokens):
        """Adds tokens, which are matched verbatim in texts; returns the number of new ones."""
        return self._add_texts(tokens, False)

    def add_special_tokens(self, tokens):
        """The same; `decode` skips them."""
        return self._add_texts(tokens, True)

    def _add_texts(self, tokens, special):
        before = len(self._added)
        self._add(
            [_Added(Section({"content": text, "special": special, "normalized": not special}, "$")) for text in tokens]
        )
        return len(self._added) - before

    def _split(self, piece, finder):
        """Splits the piece at added tokens: pairs of a piece and an id, or None."""
        expression, numbers = finder
        text = piece.text
        if not text:
            return []
        found, done = [], 0
        for match in expression.finditer(text) if expression is not None else ():
            start, end = match.span()
            number = numbers[match.group()]
            token = self._added[number]
            if self.encode_special_tokens and token.content in self._special:
                continue
            if token.single_word and (
                start and characters.is_word(text[start - 1]) or end < len(text) and characters.is_word(text[end])
            ):
                continue
            if token.lstrip:
                start = max(len(text[:start].rstrip(characters.WHITESPACE)), done)
            if token.rstrip:
                end = len(text) - len(text[end:].lstrip(characters.WHITESPACE))
            if done < start:
                found.append((piece.part(done, start), None))
            found.append((piece.part(start, end), number))
            done = end
        if not found:
            return [(piece.part(0, len(text)), None)]
        if done < len(text):
            found.append((piece.part(done, len(text)), None))
        return found

    # --- encoding

    def encode(self, sequence, pair=None, is_pretokenized=False, add_special_tokens=True):
        """The Encoding of a text, or of a pair of texts. With `is_pretokenized` each is a list of words."""
        encoding = self._encoded(sequence, pair, is_pretokenized, add_special_tokens)
        self._pad([encoding])
        return encoding

    def encode_batch(self, input, is_pretokenized=False, add_special_tokens=True):
        """The Encodings of many texts, or of pairs (tuples of two texts), padded together."""
        encodings = []
        for each in input:
            has_pair = type(each) is tuple and len(each) == 2 and (not is_pretokenized or type(each[0]) is not str)
            sequence, pair = each if has_pair else (each, None)
            encodings.append(self._encoded(sequence, pair, is_pretokenized, add_special_tokens))
        self._pad(encodings)
        return encodings

    encode_batch_fast = encode_batch

    def _encoded(self, sequence, pair, is_pretokenized, add_special):
        encodings = [self._sequence(sequence, is_pretokenized, 0)]
        if pair is not None:
            encodings.append(self._sequence(pair, is_pretokenized, 1))
        if self._truncation is not None:
            self._truncate(encodings, add_special)
        if self._processor is None:
            for i, each in enumerate(encodings):
                each.set_sequence(i)
                each.set_type(i)
        else:
            for i, each in enumerate(encodings):
                for one in (each, *each.overflowing):
                    one.set_sequence(i)
                each.set_type(i)
            encodings = self._processor.process(encodings, add_special)
        if len(encodings) == 1:
            return encodings[0]
        joined = Encoding()
        for each in encodings:
            joined.extend(each)
        return joined

    def _sequence(self, text, is_pretokenized, type_id):
        if not is_pretokenized:
            if not isinstance(text, str):
                raise TypeError(
                    f"encode: expected a str, got a {type(text).__name__}; lists of words go with is_pretokenized=True"
                )
            return self._tokens(text, type_id, None)
        if isinstance(text, str) or not all(isinstance(word, str) for word in text):
            raise TypeError("encode: with is_pretokenized=True each text is a list of words, each a str")
        joined = Encoding()
        for i, word in enumerate(text):
            joined.extend(self._tokens(word, type_id, i))
        return joined

    def _tokens(self, text, type_id, word):
        ids, tokens, offsets, words = [], [], [], []
        pieces = []
        for piece, number in self._split(Aligned(text), self._raw):
            if number is not None:
                pieces.append((piece, number))
                continue
            if self._normalizer is not None:
                self._normalizer(piece)
            pieces += self._split(piece, self._normalized)
        known, word_index = self._words, 0
        for piece, number in pieces:
            if number is not None:
                ids.append(number)
                tokens.append(piece.text)
                offsets.append(piece.span(0, len(piece.text)))
                words.append(word_index if word is None else word)
                word_index += 1
                continue
            for part in self._pretokenize([piece]) if self._pretokenize is not None else (piece,):
                text = part.text
                if not text:
                    continue
                found = known.get(text) or self._word(text)
                count = len(found[0])
                ids += found[0]
                tokens += found[1]
                words += (word_index if word is None else word,) * count
                word_index += 1
                if part.starts is None:
                    base = part.base
                    if part.head:
                        offsets += [part.span(start, end) for start, end in found[2]]
                    elif count == 1:
                        start, end = found[2][0]
                        offsets.append((base + start, base + end))
                    else:
                        offsets += [(base + start, base + end) for start, end in found[2]]
                else:
                    starts, ends = part.starts, part.ends
                    offsets += [(starts[start], ends[end - 1]) for start, end in found[2]]
        count = len(ids)
        return Encoding(ids, (type_id,) * count, tokens, words, offsets, (0,) * count, (1,) * count)

    def _word(self, text):
        """(ids, texts, spans of characters) of a word's tokens, cached."""
        origins = None  # origins of the characters that the model sees, if they differ
        if self._bytes_at_end:
            piece = Aligned(text)
            normalizers.bytes_as_characters(piece)
            ids, tokens, spans = self.model.pieces(piece.text)
            origins = piece.starts
        else:
            ids, tokens, spans = self.model.pieces(text)
        if origins is not None:
            spans = [(origins[start], origins[end - 1] + 1) for start, end in spans]
        result = tuple(ids), tuple(tokens), tuple(spans)
        if len(text) <= _LONGEST_KEPT:
            if len(self._words) >= _WORDS_KEPT:
                self._words.clear()
            self._words[text] = result
        return result

    # --- truncation and padding

    def enable_truncation(self, max_length, stride=0, strategy="longest_first", direction="right"):
        """Limits Encodings to `max_length` tokens, including special ones; the rest is in `overflowing`, in windows
        that share `stride` tokens."""
        _among("strategy", strategy, _STRATEGIES)
        _among("direction", direction, ("left", "right"))
        added = 0 if self._processor is None else self._processor.added(False)
        if max_length > added and stride >= max_length - added or max_length <= added and stride:
            raise TokenizerError(
                f"truncation: a stride of {stride} is too large for {max_length} tokens, of which {added} are special"
            )
        self._truncation = {
            "max_length": max_length, "stride": stride, "strategy": strategy, "direction": direction,
        }  # fmt: skip

    def no_truncation(self):
        self._truncation = None

    def enable_padding(
        self, direction="right", pad_id=0, pad_type_id=0, pad_token="[PAD]", length=None, pad_to_multiple_of=None
    ):
        """Pads Encodings of a batch to the longest, or to `length`, rounded up to a multiple."""
        _among("direction", direction, ("left", "right"))
        self._padding = {
            "length": length, "pad_to_multiple_of": pad_to_multiple_of, "pad_id": pad_id, "pad_token": pad_token,
            "pad_type_id": pad_type_id, "direction": direction,
        }  # fmt: skip

    def no_padding(self):
        self._padding = None

    truncation = property(lambda self: self._truncation)
    padding = property(lambda self: self._padding)

    def _truncate(self, encodings, add_special):
        settings = self._truncation
        limit, window = settings["max_length"], (settings["stride"], settings["direction"])
        if add_special and self._processor is not None:
            limit -= self._processor.added(len(encodings) == 2)
            if limit < 0:
                raise TokenizerError(
                    f"truncation: {settings['max_length']} tokens have no room for the"
                    f" {settings['max_length'] - limit} special ones; make max_length larger"
                )
        if limit == 0:
            for each in encodings:
                each.truncate(0, *window)
            return
        total = sum(map(len, encodings))
        if total <= limit:
            return
        if settings["strategy"] == "longest_first":
            if len(encodings) == 1:
                encodings[0].truncate(limit, *window)
                return
            short, long = sorted(map(len, encodings))
            swapped = len(encodings[0]) > len(encodings[1])
            long = short if short > limit else max(short, limit - short)
            if short + long > limit:
                short = limit // 2
                long = short + limit % 2
            for each, size in zip(encodings, (long, short) if swapped else (short, long)):
                each.truncate(size, *window)
            return
        if settings["strategy"] == "only_second" and len(encodings) == 1:
            raise TokenizerError("truncation: the strategy only_second wants a second text; give one, or change it")
        shortened = encodings[settings["strategy"] == "only_second"]
        if len(shortened) <= total - limit:
            raise TokenizerError(
                f"truncation: {total - limit} tokens are too many and the {settings['strategy'].removeprefix('only_')}"
                f" text has {len(shortened)}; make max_length larger, or the strategy longest_first"
            )
        shortened.truncate(len(shortened) - (total - limit), *window)

    def _pad(self, encodings):
        settings = self._padding
        if settings is None or not encodings:
            return
        length = max(map(len, encodings)) if settings["length"] is None else settings["length"]
        if multiple := settings["pad_to_multiple_of"]:
            length += -length % multiple
        for each in encodings:
            each.pad(length, *(settings[name] for name in ("direction", "pad_id", "pad_type_id", "pad_token")))

    # --- decoding, and the vocabulary

    def decode(self, ids, skip_special_tokens=True):
        """The text of ids; unknown ids are skipped. Added tokens with "normalized" have their normalized text; where
        that is another one, a special token is not skipped."""
        tokens = []
        for number in ids:
            token = self.id_to_token(number)
            if token is not None and not (skip_special_tokens and token in self._special):
                tokens.append(token)
        return " ".join(tokens) if self._decoder is None else "".join(self._decoder(tokens))

    def decode_batch(self, sequences, skip_special_tokens=True):
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def token_to_id(self, token):
        """The id of a token's text, or None."""
        return self._added_texts.get(token, self.model.ids.get(token))

    def id_to_token(self, id):
        token = self._added.get(id)
        return token.text if token is not None else self.model.token(id)

    def get_vocab(self, with_added_tokens=True):
        """A dict of texts to ids."""
        return {**self.model.ids, **(self._added_texts if with_added_tokens else {})}

    def get_vocab_size(self, with_added_tokens=True):
        return len(self.get_vocab(with_added_tokens))

    def num_special_tokens_to_add(self, is_pair):
        return 0 if self._processor is None else self._processor.added(is_pair)

    def __repr__(self):
        return f"<Tokenizer: {type(self.model).__name__}, {self.get_vocab_size()} tokens>"


class _Added:
    """A token that is matched in the text before the model: its `text`, which is the content or that normalized."""

    __slots__ = ("content", "text", "single_word", "lstrip", "rstrip", "normalized", "special")

    def __init__(self, section):
        self.content = self.text = section.take("content", str)
        for name in self.__slots__[2:]:
            setattr(self, name, section.take(name, bool, False))

    def __eq__(self, other):
        return self.content == other.content

    __hash__ = None


def _finder(numbers):
    """A regular expression that finds the longest of these texts, and their ids; (None, ...) if there are none."""
    wanted = sorted(filter(None, numbers), key=lambda text: (-len(text), text))
    return (re.compile("|".join(map(re.escape, wanted))) if wanted else None), numbers


def _among(name, value, among):
    if value not in among:
        raise ValueError(f"{name}: expected {' or '.join(map(repr, among))}, got {shown(value)}")


def _snake(name):
    return {"LongestFirst": "longest_first", "OnlyFirst": "only_first", "OnlySecond": "only_second"}[name]
