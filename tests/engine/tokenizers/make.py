"""Trains small tokenizers of every type and writes the answers of Hugging Face's library for random texts.

    python -m tests.engine.tokenizers.make        # in an environment with `tokenizers` (0.23) beside what tests need

It writes NAME.json and answers.json here; nothing of the library is needed to test with them."""

import json
import struct
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.engine.tokenizers.answers import answers_of
from tests.engine.tokenizers.texts import WORDS, texts

FOLDER = Path(__file__).parent
_KNOWN = set("".join(WORDS)) | set(" \n\t")
CORPUS = [text for text in texts(4000, seed=7) if set(text) <= _KNOWN]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CLIP = r"""'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PLAIN = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, normalized=False, special=True)]


def trained(model, trainer, normalizer=None, pre_tokenizer=None, special=(), **options):
    tokenizer = Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(
        CORPUS, trainer(vocab_size=500, special_tokens=list(special), show_progress=False, **options)
    )
    return tokenizer


def template(tokenizer, single, pair, names):
    return processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(name, tokenizer.token_to_id(name)) for name in names]
    )


def bytes_alphabet():
    return dict(initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def bert_uncased():
    made = trained(
        models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer, normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(), BERT,
    )  # fmt: skip
    made.post_processor = template(made, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ["[CLS]", "[SEP]"])
    made.decoder = decoders.WordPiece()
    return made


def bert_cased():
    made = trained(
        models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=30), trainers.WordPieceTrainer,
        normalizers.BertNormalizer(lowercase=False, strip_accents=True),
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("merged_with_previous")]),
        BERT,
    )  # fmt: skip
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.decoder = decoders.WordPiece(cleanup=False)
    made.enable_truncation(16, stride=3)
    made.enable_padding(length=16, pad_id=0, pad_token="[PAD]")
    return made


def gpt2():
    made = trained(
        models.BPE(), trainers.BpeTrainer, None, pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"],
        **bytes_alphabet(),
    )  # fmt: skip
    made.post_processor, made.decoder = processors.ByteLevel(trim_offsets=False), decoders.ByteLevel()
    made.add_tokens([AddedToken("long thing", single_word=True), AddedToken("  a", rstrip=True)])
    return made


def roberta():
    made = trained(
        models.BPE(), trainers.BpeTrainer, None, pre_tokenizers.ByteLevel(add_prefix_space=True), PLAIN,
        **bytes_alphabet(),
    )  # fmt: skip
    made.post_processor, made.decoder = processors.RobertaProcessing(("</s>", 2), ("<s>", 0)), decoders.ByteLevel()
    made.enable_truncation(14, stride=2, strategy="only_first", direction="left")
    made.enable_padding(direction="left", pad_id=1, pad_token="<pad>", pad_to_multiple_of=8)
    return made


def llama():
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    made = trained(
        models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True), trainers.BpeTrainer,
        normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]), None,
        ["<unk>", "<s>", "</s>", *pieces], limit_alphabet=60,
    )  # fmt: skip
    document = json.loads(made.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    made = Tokenizer.from_str(json.dumps(document))
    made.post_processor = template(made, "<s> $A", "<s> $A <s>:1 $B:1", ["<s>"])
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def by_pattern(pattern, normalizer=None, special=("<|endoftext|>",)):
    made = trained(
        models.BPE(ignore_merges=True), trainers.BpeTrainer, normalizer,
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        ),
        special, **bytes_alphabet(),
    )  # fmt: skip
    made.decoder = decoders.ByteLevel()
    return made


def llama3():
    made = by_pattern(LLAMA3)
    made.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            template(made, "<|endoftext|> $A", "<|endoftext|> $A $B:1", ["<|endoftext|>"]),
        ]
    )
    return made


def o200k():
    return by_pattern(O200K)


def qwen():
    made = by_pattern(LLAMA3.replace("{1,3}", ""), normalizers.NFC())
    made.post_processor = processors.ByteLevel(trim_offsets=True)
    return made


def clip():
    made = trained(
        models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>"), trainers.BpeTrainer,
        normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]),
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(CLIP), "removed", invert=True), pre_tokenizers.ByteLevel(False)]
        ),
        ["<s>", "</s>", "<|endoftext|>"], end_of_word_suffix="</w>", **bytes_alphabet(),
    )  # fmt: skip
    made.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), False, False)
    made.decoder = decoders.BPEDecoder()
    return made


def bpe_plain():
    made = trained(
        models.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=False), trainers.BpeTrainer,
        normalizers.Sequence([normalizers.NFKD(), normalizers.Strip()]),
        pre_tokenizers.Sequence(
            [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True), pre_tokenizers.Punctuation("contiguous")]
        ),
        ["<unk>"], continuing_subword_prefix="##", limit_alphabet=80,
    )  # fmt: skip
    made.decoder = decoders.WordPiece("##", True)
    return made


def unigram(normalizer, pre_tokenizer, **options):
    made = trained(
        models.Unigram(), trainers.UnigramTrainer, normalizer, pre_tokenizer, PLAIN, unk_token="<unk>", **options
    )
    made.post_processor = template(made, "$A </s>", "$A </s> $B </s>", ["</s>"])
    made.decoder = decoders.Metaspace()
    return made


def t5():
    steps = [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    return unigram(normalizers.Sequence(steps), pre_tokenizers.Metaspace(prepend_scheme="first"))


def unigram_bytes():
    made = unigram(None, pre_tokenizers.Metaspace(prepend_scheme="always", split=False))
    document = json.loads(made.to_str())
    vocabulary = document["model"]["vocab"]
    vocabulary += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    document["model"]["byte_fallback"] = True
    made = Tokenizer.from_str(json.dumps(document))
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never")])
    return made


def charsmap(pairs):
    """SentencePiece's map of these texts to others: a double array over the bytes of the keys."""
    texts_at, blob = {}, b""
    for text in sorted(set(pairs.values())):
        texts_at[text] = len(blob)
        blob += text.encode() + b"\0"
    trie = {}
    for key, text in pairs.items():
        node = trie
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[None] = texts_at[text]
    units, taken = {}, {0}

    def place(node, at, label):
        offset = 1
        while any((offset ^ (0 if byte is None else byte)) in taken for byte in node) or (at ^ offset) >= 1 << 21:
            offset += 1
        for byte in node:
            taken.add(offset ^ (0 if byte is None else byte))
        assert (at ^ offset) < 1 << 21
        units[at] = (at ^ offset) << 10 | label | (0x100 if None in node else 0)
        for byte, child in node.items():
            if byte is None:
                units[offset] = child | 1 << 31
            else:
                place(child, offset ^ byte, byte)

    place(trie, 0, 0)
    size = (max(units) | 255) + 1
    array = struct.pack(f"<{size}I", *(units.get(i, 0) for i in range(size)))
    return struct.pack("<I", len(array)) + array + blob


def precompiled():
    pairs = {
        "\u00e9": "e\u0301", "e\u0301": "\u00e9", "\u0300": "", "\ufb01": "fi", "\u2460": "1", "\u00bd": "1/2",
        "\u3000": " ", "\n": " ", "\t": " ", "\u200b": "", "\u00a0": " ", "\uac00": "ga", "\U0001d400": "A",
    }  # fmt: skip
    return unigram(normalizers.Precompiled(charsmap(pairs)), pre_tokenizers.Metaspace())


def word_level():
    made = trained(
        models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer,
        normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]),
        pre_tokenizers.Whitespace(), BERT,
    )  # fmt: skip
    made.add_special_tokens([AddedToken("don't", single_word=True, normalized=True)])
    return made


def ctc():
    made = trained(
        models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer, normalizers.Replace(" ", "|"),
        pre_tokenizers.Sequence([pre_tokenizers.CharDelimiterSplit("-"), pre_tokenizers.FixedLength(1)]),
        ["<unk>", "<pad>"],
    )  # fmt: skip
    made.decoder = decoders.CTC()
    return made


MADE = (
    bert_uncased, bert_cased, gpt2, roberta, llama, llama3, o200k, qwen, clip, bpe_plain, t5, unigram_bytes,
    precompiled, word_level, ctc,
)  # fmt: skip


def added_tokens():
    """{normalizer: a tokenizer with added tokens, the names of its ids, its decoded ids without and with special
    tokens}, for every normalizer."""
    made = {
        "BertNormalizer": normalizers.BertNormalizer(), "ByteLevel": normalizers.ByteLevel(),
        "Lowercase": normalizers.Lowercase(), "NFC": normalizers.NFC(), "NFD": normalizers.NFD(),
        "NFKC": normalizers.NFKC(), "NFKD": normalizers.NFKD(), "Nmt": normalizers.Nmt(),
        "Precompiled": precompiled().normalizer, "Prepend": normalizers.Prepend("_"),
        "Replace": normalizers.Replace("b", "cc"), "Strip": normalizers.Strip(),
        "StripAccents": normalizers.StripAccents(), "none": None,
        "Sequence": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]),
    }  # fmt: skip
    contents = (" É\u00a0Abc ", "<E\u0301 ﬁ>", "hello", "\u200bⅨ\ufeff가")
    answers = {}
    for name, normalizer in made.items():
        tokenizer = Tokenizer(models.WordLevel({"hello": 0, "[UNK]": 1, "<É A>": 2}, "[UNK]"))
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        for special, add in ((False, tokenizer.add_tokens), (True, tokenizer.add_special_tokens)):
            for normalized in (False, True):
                added = [f"{text}{special}{normalized}" if text != "hello" else text for text in contents]
                add([AddedToken(text, normalized=normalized, special=special) for text in added])
        ids = list(range(tokenizer.get_vocab_size() + 1))
        decoded = [tokenizer.decode(ids, skip_special_tokens=skips) for skips in (True, False)]
        answers[name] = [json.loads(tokenizer.to_str()), [tokenizer.id_to_token(number) for number in ids], decoded]
    return answers


def main():
    (FOLDER / "added-tokens.json").write_text(json.dumps(added_tokens(), separators=(",", ":")) + "\n")
    answers = {}
    for make in MADE:
        name = make.__name__.replace("_", "-")
        tokenizer = make()
        text = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
        (FOLDER / f"{name}.json").write_text(text + "\n", "utf-8")
        answers[name] = answers_of(Tokenizer.from_str(text))
    (FOLDER / "answers.json").write_text(json.dumps(answers, indent=0) + "\n")


if __name__ == "__main__":
    main()
