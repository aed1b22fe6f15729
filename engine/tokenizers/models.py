"""Models: what turns a piece of text into tokens, made of tokenizer.json's `model`.

`pieces(text)` gives tokens (id, text, first byte, byte after the last), counted in the UTF-8 of the piece."""

import heapq

from vmhost.engine.tokenizers.document import NUMBER, TokenizerError, checked, shown, texts, vocabulary


def make(section):
    if "type" not in section.values:  # files of old versions
        kind = "BPE" if "merges" in section.values else "Unigram" if type(section.values.get("vocab")) is list else None
        section.values["type"] = kind or ("WordPiece" if "continuing_subword_prefix" in section.values else "WordLevel")
    return section.made({"BPE": Bpe, "WordPiece": WordPiece, "WordLevel": WordLevel, "Unigram": Unigram}, "model")


class _OfVocabulary:
    """What has its tokens in a dict of texts to ids."""

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


class WordLevel(_OfVocabulary):
    def __init__(self, section):
        super().__init__(section)
        self.unk = section.take("unk_token", str, "<unk>")

    def pieces(self, text):
        number, size = self.ids.get(text), _size(text)
        if number is None:
            return [(self.unknown(self.unk), self.unk, 0, size)]
        return [(number, text, 0, size)]


class WordPiece(_OfVocabulary):
    """The longest token that a word begins with, and so on (Wu et al. 2016)."""

    def __init__(self, section):
        super().__init__(section)
        self.unk = section.take("unk_token", str, "[UNK]")
        self.prefix = section.take("continuing_subword_prefix", str, "##")
        self.longest_word = section.natural("max_input_chars_per_word", 100)
        self.longest = max(map(len, self.ids), default=0)

    def pieces(self, text):
        size = len(text)
        if size > self.longest_word:
            return [(self.unknown(self.unk), self.unk, 0, _size(text))]
        ids, prefix, start, at, found = self.ids, "", 0, 0, []
        while start < size:
            for end in range(min(size, start + self.longest), start, -1):
                token = prefix + text[start:end]
                if token in ids:
                    break
            else:
                return [(self.unknown(self.unk), self.unk, 0, _size(text))]
            after = at + _size(text[start:end])
            found.append((ids[token], token, at, after))
            prefix, start, at = self.prefix, end, after
        return found


class Bpe(_OfVocabulary):
    """Byte pair encoding: characters, of which neighbours are merged in the order of the list of merges."""

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
        self.merges = self._merges(section)

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
            return [(self.ids[text], text, 0, _size(text))]
        numbers, sizes = self._characters(text)
        if len(numbers) > 1:
            self._merge(numbers, sizes)
        found, at = [], 0
        for number, size in zip(numbers, sizes):
            if size:
                found.append((number, self.token(number), at, at + size))
                at += size
        return found

    def _characters(self, text):
        ids, numbers, sizes = self.ids, [], []
        unknown, last = None, len(text) - 1  # an id and a size that wait for what comes next
        for i, c in enumerate(text):
            size = 1 if c < "\x80" else _size(c)
            if i and self.prefix:
                c = self.prefix + c
            if i == last and self.suffix:
                c += self.suffix
            number = ids.get(c)
            if number is not None:
                if unknown is not None:
                    numbers.append(unknown[0])
                    sizes.append(unknown[1])
                    unknown = None
                numbers.append(number)
                sizes.append(size)
                continue
            if self.byte_fallback:
                of_bytes = [ids.get(f"<0x{byte:02X}>") for byte in c.encode("utf-8", "surrogatepass")]
                if None not in of_bytes:
                    numbers += of_bytes
                    sizes += [1] * len(of_bytes)
                    continue
            if self.unk is not None:
                if unknown is not None and self.fuse:
                    unknown = unknown[0], unknown[1] + size
                else:
                    if unknown is not None:
                        numbers.append(unknown[0])
                        sizes.append(unknown[1])
                    unknown = self.unknown(self.unk), size
        if unknown is not None:
            numbers.append(unknown[0])
            sizes.append(unknown[1])
        return numbers, sizes

    def _merge(self, numbers, sizes):
        """Merge in place: what went into its left neighbour has size 0."""
        merges, count = self.merges, len(numbers)
        waiting = []
        for i in range(count - 1):
            if (merge := merges.get((numbers[i], numbers[i + 1]))) is not None:
                waiting.append((merge[0], i, merge[1]))
        if not waiting:
            return
        heapq.heapify(waiting)
        after, before = list(range(1, count + 1)), list(range(-1, count - 1))
        while waiting:
            _, i, made = heapq.heappop(waiting)
            j = after[i]
            if not sizes[i] or j >= count:
                continue
            if (merge := merges.get((numbers[i], numbers[j]))) is None or merge[1] != made:
                continue
            numbers[i] = made
            sizes[i] += sizes[j]
            sizes[j] = 0
            after[i] = k = after[j]
            if k < count:
                before[k] = i
                if (merge := merges.get((made, numbers[k]))) is not None:
                    heapq.heappush(waiting, (merge[0], i, merge[1]))
            if (h := before[i]) >= 0 and (merge := merges.get((numbers[h], made))) is not None:
                heapq.heappush(waiting, (merge[0], h, merge[1]))


class Unigram:
    """The segmentation of the largest probability (Kudo 2018)."""

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
        # beginnings of tokens, so that a search ends early: None where one is no token itself
        self.known = {text: (self.scores[number], number) for text, number in self.ids.items()}
        for text in self.ids:
            for end in range(len(text) - 1, 0, -1):
                if text[:end] in self.known:
                    break
                self.known[text[:end]] = None

    def token(self, number):
        return self._texts[number] if 0 <= number < len(self._texts) else None

    def pieces(self, text):
        found, at, ids = [], 0, self.ids
        for part in self._best(text):
            size = _size(part)
            number = ids.get(part)
            if number is None:
                if self.byte_fallback:
                    names = [f"<0x{byte:02X}>" for byte in part.encode("utf-8", "surrogatepass")]
                    if all(name in ids for name in names):
                        found += [(ids[name], name, at, at + size) for name in names]
                        at += size
                        continue
                number = self._unknown()
            found.append((number, part, at, at + size))
            at += size
        return found

    def _unknown(self):
        if self.unk is None:
            raise TokenizerError(
                f"{self.where}: a text has characters that are not in the vocabulary, and unk_id is null"
            )
        return self.unk

    def _best(self, text):
        known, size = self.known, len(text)
        scores, starts, numbers = [0.0] * (size + 1), [-1] * (size + 1), [-1] * (size + 1)
        for start in range(size):
            before, single = scores[start], False
            for end in range(start + 1, size + 1):
                entry = known.get(text[start:end], False)
                if not entry:
                    if entry is None:
                        continue
                    break
                score = entry[0] + before
                if starts[end] < 0 or score > scores[end]:
                    scores[end], starts[end], numbers[end] = score, start, entry[1]
                if end == start + 1:
                    single = True
            if not single:
                score, end = self.unk_score + before, start + 1
                if starts[end] < 0 or score > scores[end]:
                    scores[end], starts[end], numbers[end] = score, start, self._unknown()
        parts, unknown, end = [], "", size
        while end > 0:
            start = starts[end]
            if numbers[end] == self.unk and self.unk is not None:
                unknown = text[start:end] + unknown
            else:
                if unknown:
                    parts.append(unknown)
                    unknown = ""
                parts.append(text[start:end])
            end = start
        if unknown:
            parts.append(unknown)
        return parts[::-1]


def _size(text):
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
