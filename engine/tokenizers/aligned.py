"""Text that keeps, for each character, the range of original characters that it comes from."""


class Aligned:
    """`text`, whose character i comes from the original's characters `starts[i]` to `ends[i]`. If both are None, it
    comes from the one at `base + i`; with a `head`, the first `head` characters come from the one at `base`, and
    character i from the one at `base + i - head`. `origin` is the piece's start in the original when it was cut out."""

    __slots__ = ("text", "starts", "ends", "base", "head", "origin")

    def __init__(self, text, base=0, starts=None, ends=None, origin=0, head=0):
        self.text, self.base, self.starts, self.ends, self.origin, self.head = text, base, starts, ends, origin, head

    def part(self, start, end):
        """The characters from `start` to `end`, as a new piece."""
        if self.starts is None:
            base = self.base + max(start - self.head, 0)
            text = self.text[start:end]
            return Aligned(text, base, None, None, base, min(max(self.head - start, 0), len(text)))
        starts = self.starts[start:end]
        return Aligned(self.text[start:end], 0, starts, self.ends[start:end], starts[0] if starts else 0)

    def span(self, start, end):
        """The original range of the characters from `start` to `end`; (start, end) itself if there are none."""
        if self.starts is None:
            if not self.head:
                return self.base + start, self.base + end
            return (
                self.base + max(start - self.head, 0),
                self.base + (max(end - self.head, 1) if start < end else max(start - self.head, 0)),
            )
        if start >= end or not self.starts:
            return start, end
        return self.starts[start], self.ends[min(end, len(self.ends)) - 1]

    def alignments(self):
        if self.starts is None:
            starts = [self.base] * self.head + list(range(self.base, self.base + len(self.text) - self.head))
            return starts, [start + 1 for start in starts]
        return self.starts, self.ends

    def replace_all(self, characters, sources):
        """Replaces the characters; `sources[i]` is the index of the old character that new character i comes from."""
        starts, ends = self.alignments()
        self.text = "".join(characters)
        self.starts, self.ends = [starts[i] for i in sources], [ends[i] for i in sources]

    def apply_changes(self, changes):
        """Replaces the characters by pairs (character, change), counted as in Hugging Face's library: a change of 0
        replaces one character, 1 inserts one that comes from the previous character, -n replaces 1 + n characters and
        comes from the first of them."""
        characters, sources, position = [], [], 0
        for character, change in changes:
            characters.append(character)
            if change > 0:
                sources.append(max(position - 1, 0))
            else:
                sources.append(position)
                position += 1 - change
        self.replace_all(characters, sources)

    def keep(self, wanted):
        """Keeps only the characters for which `wanted` is true."""
        kept = [i for i, character in enumerate(self.text) if wanted(character)]
        if len(kept) < len(self.text):
            text = self.text
            self.replace_all([text[i] for i in kept], kept)

    def translate(self, table):
        """Replaces each character by the characters of `table(character)`, which have the same origin."""
        characters, sources, text = [], [], self.text
        for i, character in enumerate(text):
            result = table(character)
            characters.append(result)
            sources.extend([i] * len(result))
        result = "".join(characters)
        if result != text:
            self.replace_all([result], sources)

    def prepend(self, prefix):
        """Puts `prefix` before a non-empty text; it has the origin of the first character."""
        if self.text and self.starts is None and len(prefix) and self.head < len(self.text):
            self.text = prefix + self.text
            self.head += len(prefix)
        elif self.text:
            self.replace_all([prefix, self.text], [0] * len(prefix) + list(range(len(self.text))))

    def replace(self, matches, content):
        """Replaces the spans `matches` by `content`, which has the origin of each span's last character."""
        text, characters, sources, done = self.text, [], [], 0
        if len(content) == 1 and all(end - start == 1 for start, end in matches):
            for start, end in matches:
                characters += (text[done:start], content)
                done = end
            self.text = "".join(characters) + text[done:]
            return
        for start, end in matches:
            characters += (text[done:start], content)
            sources.extend(range(done, start))
            sources.extend([max(end - 1, 0)] * len(content))
            done = end
        if characters:
            characters.append(text[done:])
            sources.extend(range(done, len(text)))
            self.replace_all(characters, sources)
