"""The compared parts of a tokenizer's answers, Hugging Face's and ours: a digest for each text, and some whole ones."""

import hashlib
import json

from tests.engine.tokenizers.texts import texts

COUNT, PAIRS = 1500, 300


def shown(encoding):
    """All fields of an encoding, with its windows."""
    return [
        list(encoding.ids), list(encoding.type_ids), list(encoding.tokens), [list(pair) for pair in encoding.offsets],
        list(encoding.word_ids), list(encoding.special_tokens_mask), list(encoding.attention_mask),
        list(encoding.sequence_ids), [shown(window) for window in encoding.overflowing],
    ]  # fmt: skip


def tried(function, *arguments):
    """The result; "refused" if it raises."""
    try:
        return function(*arguments)
    except BaseException as error:  # a panic of Rust's is no Exception
        if isinstance(error, Exception) and not isinstance(error, ValueError) and type(error) is not Exception:
            raise
        if isinstance(error, KeyboardInterrupt):
            raise
        return "refused"


def all_of(tokenizer):
    """An answer for each text, each pair, and a batch of lists of words."""

    def one(text):
        encoding = tokenizer.encode(text)
        ids = list(encoding.ids)
        return [shown(encoding), tokenizer.decode(ids), tokenizer.decode(ids, skip_special_tokens=False)]

    drawn = texts(COUNT)
    for text in drawn:
        yield tried(one, text)
    pairs = texts(2 * PAIRS, seed=1)
    for a, b in zip(pairs[::2], pairs[1::2]):
        yield tried(lambda a, b: shown(tokenizer.encode(a, b)), a, b)
    for batch in range(0, 60, 6):
        some = drawn[100 + batch : 106 + batch]
        yield tried(lambda some: [shown(each) for each in tokenizer.encode_batch(some)], some)
        words = [text.split(" ") for text in some]
        yield tried(lambda words: [shown(each) for each in tokenizer.encode_batch(words, is_pretokenized=True)], words)
        yield tried(lambda text: shown(tokenizer.encode(text, add_special_tokens=False)), some[0])


def digest(answer):
    text = json.dumps(answer, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=3).hexdigest()


def answers_of(tokenizer):
    return "".join(map(digest, all_of(tokenizer)))
