"""Text that remembers which characters of the original each of its characters stands for."""


class Aligned:
    """`text`, whose character i stands for the original's characters `starts[i]` to `ends[i]`. Where both are None it
    stands for the one at `base + i`; with a `head` the first so many stand for the one at `base`, and i for the one at
    `base + i - head`. `origin` is where the piece began in the original when it was cut out."""

    __slots__ = ("text", "starts", "ends", "base", "head", "origin")

    def __init__(self, text, base=0, starts=None, ends=None, origin=0, head=0):
        self.text, self.base, self.starts, self.ends, self.origin, self.head = text, base, starts, ends, origin, head

    def part(self, start, end):
        """The characters from `start` to `end`, as a piece of their own."""
        if self.starts is None:
            base = self.base + max(start - self.head, 0)
            text = self.text[start:end]
            return Aligned(text, base, None, None, base, min(max(self.head - start, 0), len(text)))
        starts = self.starts[start:end]
        return Aligned(self.text[start:end], 0, starts, self.ends[start:end], starts[0] if starts else 0)

    def span(self, start, end):
        """What the characters from `start` to `end` stand for; (start, end) as they are where there are none."""
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

    def become(self, characters, sources):
        """Take other `characters`; `sources[i]` is the number of the present one that number i stands for."""
        starts, ends = self.alignments()
        self.text = "".join(characters)
        self.starts, self.ends = [starts[i] for i in sources], [ends[i] for i in sources]

    def become_changed(self, changes):
        """Take the characters of pairs (character, change), as Hugging Face's library counts: a change of 0 takes the
        place of one character, 1 is one more that stands for the one before, -n takes the place of 1 + n, and stands
        for their first."""
        characters, sources, place = [], [], 0
        for character, change in changes:
            characters.append(character)
            if change > 0:
                sources.append(max(place - 1, 0))
            else:
                sources.append(place)
                place += 1 - change
        self.become(characters, sources)

    def keep(self, wanted):
        """Only characters of which `wanted` is true stay."""
        kept = [i for i, character in enumerate(self.text) if wanted(character)]
        if len(kept) < len(self.text):
            text = self.text
            self.become([text[i] for i in kept], kept)

    def translate(self, table):
        """Each character becomes those of `table(character)`, which stand for what it stood for."""
        characters, sources, text = [], [], self.text
        for i, character in enumerate(text):
            made = table(character)
            characters.append(made)
            sources.extend([i] * len(made))
        made = "".join(characters)
        if made != text:
            self.become([made], sources)

    def prepend(self, prefix):
        """`prefix` comes before the text, unless there is none, and stands for its first character."""
        if self.text and self.starts is None and len(prefix) and self.head < len(self.text):
            self.text = prefix + self.text
            self.head += len(prefix)
        elif self.text:
            self.become([prefix, self.text], [0] * len(prefix) + list(range(len(self.text))))

    def replace(self, matches, content):
        """`content` takes the place of the spans `matches`, and stands for the last character of each."""
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
            self.become(characters, sources)
