"""Models: turn a piece of text into tokens, made from tokenizer.json's `model`.

`pieces(text)` returns the tokens as three lists: ids, texts, and spans of characters. The loops over characters are in
engine/arrays/tokens.c."""

from vmhost.engine import _array
from vmhost.engine.tokenizers.document import NUMBER, TokenizerError, checked, shown, texts, vocabulary


def make(section):
    if "type" not in section.values:  # files of old versions
        kind = "BPE" if "merges" in section.values else "Unigram" if type(section.values.get("vocab")) is list else None
        section.values["type"] = kind or ("WordPiece" if "continuing_subword_prefix" in section.values else "WordLevel")
    return section.make({"BPE": Bpe, "WordPiece": WordPiece, "WordLevel": WordLevel, "Unigram": Unigram}, "model")


class _VocabularyModel:
    """A model whose tokens are a dict of texts to ids."""

    def __init__(self, section):
        self.ids = vocabulary(section.take("vocab", dict), f"{section.where}.vocab")
        self.where = section.where
        self._texts = None

    def token(self, number):
        """The text of an id, or None."""
        if self._texts is None:
            self._texts = {number: text for text, number in self.ids.items()}
        return self._texts.get(number)

    def unknown(self, text):
        try:
            return self.ids[text]
        except KeyError:
            raise TokenizerError(f"{self.where}: the unknown token {shown(text)} is not in the vocabulary") from None


class WordLevel(_VocabularyModel):
    def __init__(self, section):
        super().__init__(section)
        self.unk = section.take("unk_token", str, "<unk>")

    def pieces(self, text):
        number = self.ids.get(text)
        if number is None:
            return [self.unknown(self.unk)], [self.unk], [(0, len(text))]
        return [number], [text], [(0, len(text))]


class WordPiece(_VocabularyModel):
    """The longest token at the start of a word, then of the rest, and so on (Wu et al. 2016)."""

    def __init__(self, section):
        super().__init__(section)
        self.unk = section.take("unk_token", str, "[UNK]")
        self.prefix = section.take("continuing_subword_prefix", str, "##")
        self.longest_word = section.natural("max_input_chars_per_word", 100)
        self.longest = max(map(len, self.ids), default=0)

    def pieces(self, text):
        size = len(text)
        ids, prefix, start, numbers, texts, spans = self.ids, "", 0, [], [], []
        while start < size <= self.longest_word:
            for end in range(min(size, start + self.longest), start, -1):
                token = prefix + text[start:end]
                if token in ids:
                    break
            else:
                break
            numbers.append(ids[token])
            texts.append(token)
            spans.append((start, end))
            prefix, start = self.prefix, end
        if start < size:
            return [self.unknown(self.unk)], [self.unk], [(0, size)]
        return numbers, texts, spans


_NOT_IN_VOCABULARY = (1 << 31) - 2  # the number of an unknown token that is not in the vocabulary


class Bpe(_VocabularyModel):
    """Byte pair encoding: merges neighbouring characters in the order of the list of merges."""

    def __init__(self, section):
        super().__init__(section)
        self.unk = section.take("unk_token", str, None)
        self.prefix = section.take("continuing_subword_prefix", str, None) or ""
        self.suffix = section.take("end_of_word_suffix", str, None) or ""
        self.fuse = section.take("fuse_unk", bool, False)
        self.byte_fallback = section.take("byte_fallback", bool, False)
        self.whole_first = section.take("ignore_merges", bool, False)
        if section.take("dropout", NUMBER, 0):
            raise TokenizerError(f"{self.where}.dropout: is for training; set it to null")
        names = (f"<0x{byte:02X}>" for byte in range(256))
        self._byte_ids = tuple(map(self.ids.get, names)) if self.byte_fallback else None
        self._unknown = None if self.unk is None else self.ids.get(self.unk, _NOT_IN_VOCABULARY)
        try:
            self._table = _array._bpe_table(self._merges(section))
        except OverflowError as error:
            raise TokenizerError(f"{self.where}.vocab: {error}") from None

    def _merges(self, section):
        merges, ids, cut = {}, self.ids, len(self.prefix)
        for rank, pair in enumerate(section.take("merges", list)):
            where = f"{self.where}.merges[{rank}]"
            if type(pair) is str:
                first, blank, second = pair.partition(" ")
                if not blank or " " in second:
                    raise TokenizerError(f"{where}: expected two tokens with a blank between, got {shown(pair)}")
            elif type(pair) is list and len(pair) == 2:
                first, second = texts(pair, where)
            else:
                raise TokenizerError(f"{where}: expected two tokens, got {shown(pair)}")
            try:
                merges[ids[first], ids[second]] = rank, ids[first + second[cut:]]
            except KeyError as error:
                raise TokenizerError(f"{where}: {shown(error.args[0])} is not in the vocabulary") from None
        return merges

    def pieces(self, text):
        if self.whole_first and text in self.ids:
            return [self.ids[text]], [text], [(0, len(text))]
        given = self._symbols(text) if self.prefix or self.suffix else text
        numbers, spans = _array._bpe_pieces(
            self.ids, self._table, given, self._unknown, self.fuse, self._byte_ids
        )  # fmt: skip
        if self._texts is None:
            self.token(0)
        try:
            return numbers, [self._texts[number] for number in numbers], spans
        except KeyError:
            return self.unknown(self.unk)

    def _symbols(self, text):
        """(id, start, end) of each character, with the prefix and the suffix for its position."""
        ids, found, last, unknown = self.ids, [], len(text) - 1, False  # unknown: the last one is unknown
        for i, c in enumerate(text):
            if i and self.prefix:
                c = self.prefix + c
            if i == last and self.suffix:
                c += self.suffix
            number = ids.get(c)
            if number is not None:
                found.append((number, i, i + 1))
                unknown = False
                continue
            if self.byte_fallback:
                numbers = [self._byte_ids[byte] for byte in c.encode("utf-8", "surrogatepass")]
                if None not in numbers:
                    found += [(number, i, i + 1) for number in numbers]
                    continue
            if self.unk is not None:
                if unknown and self.fuse:
                    found[-1] = *found[-1][:2], i + 1
                else:
                    found.append((self._unknown, i, i + 1))
                unknown = True
        return found


class Unigram:
    """The segmentation of maximum probability (Kudo 2018)."""

    def __init__(self, section):
        where = self.where = section.where
        entries = section.take("vocab", list)
        self.ids, self._texts, self.scores = {}, [], []
        for i, entry in enumerate(entries):
            if type(entry) is not list or len(entry) != 2:
                raise TokenizerError(f"{where}.vocab[{i}]: expected a token and its score, got {shown(entry)}")
            self._texts.append(checked(entry[0], str, f"{where}.vocab[{i}][0]"))
            self.scores.append(float(checked(entry[1], NUMBER, f"{where}.vocab[{i}][1]")))
            self.ids[entry[0]] = i
        self.unk = section.natural("unk_id", None)
        if self.unk is not None and self.unk >= len(entries):
            raise TokenizerError(f"{where}.unk_id: {self.unk} is not in the vocabulary of {len(entries)}")
        self.byte_fallback = section.take("byte_fallback", bool, False)
        self.unk_score = min(self.scores, default=0.0) - 10.0
        self._table = _array._unigram_table(self.ids, self.scores)

    def token(self, number):
        return self._texts[number] if 0 <= number < len(self._texts) else None

    def pieces(self, text):
        found = _array._unigram_pieces(self._table, text, self.unk, self.unk_score)
        if found is None:
            raise TokenizerError(
                f"{self.where}: a text has characters that are not in the vocabulary, and unk_id is null"
            )
        numbers, texts, spans = [], [], []
        for number, start, end in found:
            part = text[start:end]
            if number < 0:
                number = self.ids.get(part)
                if number is None and self.byte_fallback and self._bytes(part, (start, end), numbers, texts, spans):
                    continue
                if number is None:
                    number = self.unk
            numbers.append(number)
            texts.append(part)
            spans.append((start, end))
        return numbers, texts, spans

    def _bytes(self, part, span, numbers, texts, spans):
        """Whether all bytes of a part are tokens; if so, they are added."""
        names = [f"<0x{byte:02X}>" for byte in part.encode("utf-8", "surrogatepass")]
        if not all(name in self.ids for name in names):
            return False
        numbers += [self.ids[name] for name in names]
        texts += names
        spans += [span] * len(names)
        return True
