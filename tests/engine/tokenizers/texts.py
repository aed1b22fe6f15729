"""Texts that tokenizers are compared on: the same for the same seed, in every Python."""

import random
import unicodedata

WORDS = (
    "the of and to in is that for it was on are as with his they be at one have this from or had by hot "
    "but some what there "
    "we can out other were all your when up use word how said an each she which do their time if will "
    "way about many then "
    "them would write like so these her long make thing see him two has look more day could go come did "
    "my sound no most "
    "number who over know water than call first people may down side been now find any new work part "
    "take get place made "
    "I'm don't we've they're it's you'll he'd WON'T naïve café façade résumé Straße İstanbul ΣΊΣΥΦΟΣ 東京 "
    "日本語 カタカナ ひらがな "
    "한국어 العربية עברית हिन्दी ภาษาไทย Привет мир 😀 👩‍👩‍👧 🇩🇪 e\u0301 a\u0315\u0300 ﬁne ① ½ 1234567 3.14 "
    "0x1F "
    "foo_bar __init__ a-b x+=1 ... !!! ?! (see) [UNK] [MASK] <s> </s> <mask> <|endoftext|> \u200b \ufeff "
    "\u00a0 \u3000 ▁"
).split(" ")
_BLANKS = (" ", " ", " ", " ", " ", "  ", "\n", "\t", "   ", "\r\n", "\u00a0", "")
_RANGES = (
    (32, 126), (32, 126), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F),
    (0x1100, 0x11FF), (0x2000, 0x206F), (0x20A0, 0x20BF), (0x2100, 0x22FF), (0x2460, 0x24FF), (0x3000, 0x30FF),
    (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFF00, 0xFFEF), (0x1D400, 0x1D7FF), (0x1F300, 0x1F64F),
)  # fmt: skip


def texts(count, seed=0):
    """Sentences, sentences with rare characters, and strings of these alone."""
    drawn = random.Random(seed)

    def word():
        return drawn.choice(WORDS)

    def rare():
        first, last = drawn.choice(_RANGES)
        while unicodedata.category(c := chr(drawn.randint(first, last))) == "Cn":
            pass
        return c

    made = ["", " ", "  a", "a ", "\n", "\u0301", "a" * 120, "\0a\ufffdb"]
    while len(made) < count:
        kind = drawn.random()
        if kind < 0.6:
            parts = [part for _ in range(drawn.randint(1, 12)) for part in (word(), drawn.choice(_BLANKS))]
        elif kind < 0.85:
            parts = [
                part
                for _ in range(drawn.randint(1, 8))
                for part in ((rare() if drawn.random() < 0.3 else word()), drawn.choice(_BLANKS))
            ]
        else:
            parts = [rare() for _ in range(drawn.randint(1, 12))]
        made.append("".join(parts))
    return made[:count]
