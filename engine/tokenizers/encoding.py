"""The result of encoding a text: ids, and everything that belongs to them."""

from vmhost.engine.tokenizers.document import TokenizerError

_LISTS = ("ids", "type_ids", "tokens", "word_ids", "offsets", "special_tokens_mask", "attention_mask")


class Encoding:
    """Lists with one item for each token: `ids`, `type_ids` (0 for a first, 1 for a second text), `tokens` (their
    texts), `word_ids` (the index of the word, or None), `offsets` (pairs: the range of characters that it stands for),
    `special_tokens_mask` and `attention_mask`. `overflowing` has an Encoding for each window that truncation cut off.
    """

    __slots__ = (*_LISTS, "overflowing", "_ranges")

    def __init__(self, ids=(), type_ids=(), tokens=(), word_ids=(), offsets=(), special=(), attention=()):
        self.ids, self.type_ids, self.tokens, self.word_ids = list(ids), list(type_ids), list(tokens), list(word_ids)
        self.offsets, self.special_tokens_mask, self.attention_mask = list(offsets), list(special), list(attention)
        self.overflowing, self._ranges = [], {}

    def __len__(self):
        return len(self.ids)

    def __repr__(self):
        return f"Encoding(num_tokens={len(self.ids)}, attributes=[{', '.join(_LISTS)}, overflowing])"

    words = property(lambda self: self.word_ids)

    @property
    def n_sequences(self):
        return max(1, len(self._ranges))

    @property
    def sequence_ids(self):
        """0 for tokens of the first text, 1 for those of the second, None for special tokens."""
        found = [None] * len(self)
        for number in range(self.n_sequences):
            for i in self._range(number):
                found[i] = number
        return found

    def _range(self, number):
        return self._ranges.get(number, range(len(self)))

    def token_to_chars(self, token):
        """The offsets of a token of a text, or None."""
        return self.offsets[token] if self.token_to_sequence(token) is not None else None

    def token_to_sequence(self, token):
        if not 0 <= token < len(self):
            return None
        return next((number for number in range(self.n_sequences) if token in self._range(number)), None)

    def token_to_word(self, token):
        return None if self.token_to_sequence(token) is None else self.word_ids[token]

    def char_to_token(self, char, sequence_index=0):
        """The index of the token that stands for this character, or None."""
        return next((i for i in self._range(sequence_index) if self.offsets[i][0] <= char < self.offsets[i][1]), None)

    def char_to_word(self, char, sequence_index=0):
        token = self.char_to_token(char, sequence_index)
        return None if token is None else self.word_ids[token]

    def word_to_tokens(self, word, sequence_index=0):
        """The index of the first token of a word and of the one after its last, or None."""
        found = [i for i in self._range(sequence_index) if self.word_ids[i] == word]
        return (found[0], found[-1] + 1) if found else None

    def word_to_chars(self, word, sequence_index=0):
        found = self.word_to_tokens(word, sequence_index)
        return None if found is None else (self.offsets[found[0]][0], self.offsets[found[1] - 1][1])

    # --- used by processors and tokenizers

    def set_sequence(self, number):
        self._ranges[number] = range(len(self))

    def set_type(self, number):
        self.type_ids = [number] * len(self)

    def part(self, start, end):
        result = Encoding()
        for name in _LISTS:
            setattr(result, name, getattr(self, name)[start:end])
        return result

    def copy(self):
        result = self.part(0, len(self))
        result.overflowing, result._ranges = list(self.overflowing), dict(self._ranges)
        return result

    def extend(self, other):
        """Appends the other encoding's tokens; each overflowing window of one is joined with the other."""
        windows = []
        for mine in self.overflowing:
            for theirs in (other, *other.overflowing):
                windows.append(mine.copy().extend(theirs))
        for theirs in other.overflowing:
            windows.append(self.copy().extend(theirs))
        size = len(self)
        for number, tokens in other._ranges.items():
            self._ranges[number] = range(size + tokens.start, size + tokens.stop)
        for name in _LISTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.overflowing = windows
        return self

    def truncate(self, max_length, stride=0, direction="right"):
        """Keeps `max_length` tokens, at the start, or with direction "left" at the end; `overflowing` gets windows of
        the rest, which share `stride` tokens with the previous window."""
        size = len(self)
        if max_length >= size:
            return
        if max_length == 0:
            whole = self.copy()
            self.__init__()
            self.overflowing = [whole]
            return
        if stride >= max_length:
            raise TokenizerError(
                f"truncation: windows of {max_length} tokens (special ones are not counted) cannot share {stride};"
                " make the stride smaller or the length larger"
            )
        windows, step = [], max_length - stride
        if direction == "right":
            for start in range(0, size, step):
                windows.append((start, min(start + max_length, size)))
                if start + max_length >= size:
                    break
        else:
            for end in range(size, 0, -step):
                windows.append((max(0, end - max_length), end))
                if end <= max_length:
                    break
        kept, *rest = (self.part(*window) for window in windows)
        for name in _LISTS:
            setattr(self, name, getattr(kept, name))
        self.overflowing, self._ranges = rest, {}

    def pad(self, length, direction="right", pad_id=0, pad_type_id=0, pad_token="[PAD]"):
        """Pads it, and its windows, to `length` tokens, unless it is longer."""
        for window in self.overflowing:
            window.pad(length, direction, pad_id, pad_type_id, pad_token)
        count = length - len(self)
        if count <= 0:
            return
        for name, value in zip(_LISTS, (pad_id, pad_type_id, pad_token, None, (0, 0), 1, 0)):
            values = getattr(self, name)
            setattr(self, name, values + [value] * count if direction == "right" else [value] * count + values)
        if direction == "left":
            self._ranges = {
                number: range(tokens.start + count, tokens.stop + count) for number, tokens in self._ranges.items()
            }
