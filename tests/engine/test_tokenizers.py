"""Tokenizers give what Hugging Face's library gives (tokenizers/answers.json, made by tokenizers/make.py), in VMs too,
and a tokenizer.json that cannot be used is refused in one sentence."""

import json
import random
from pathlib import Path

import pytest

import vmhost
from tests.engine.tokenizers.answers import all_of, digest
from vmhost.compiler import compile_folder
from vmhost.engine.tokenizers import Tokenizer, TokenizerError, normalizers

FOLDER = Path(__file__).parent / "tokenizers"
ANSWERS = json.loads((FOLDER / "answers.json").read_text())
ADDED = json.loads((FOLDER / "added-tokens.json").read_text())
MAIN = """
from vmhost.engine.tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")

def run(texts):
    made = tokenizer.encode_batch(texts)
    return [(each.ids, each.offsets, tokenizer.decode(each.ids)) for each in made]
"""


def document(name):
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def bert():
    return Tokenizer.from_file(FOLDER / "bert-uncased.json")


@pytest.mark.parametrize("name", ANSWERS)
def test_every_text_gives_what_hugging_faces_library_gives(name):
    expected = ANSWERS[name]
    answers = [digest(answer) for answer in all_of(Tokenizer.from_file(FOLDER / f"{name}.json"))]
    different = [i for i, answer in enumerate(answers) if answer != expected[6 * i : 6 * i + 6]]
    assert len(expected) == 6 * len(answers)
    assert not different, f"{len(different)} of {len(answers)} answers differ, the first is number {different[0]}"


@pytest.mark.parametrize("name", ADDED)
def test_added_tokens_are_decoded_as_the_normalizer_leaves_them(name):
    document, tokens, decoded = ADDED[name]
    tokenizer, ids = Tokenizer(document), range(len(tokens))
    assert [tokenizer.id_to_token(number) for number in ids] == tokens
    assert [tokenizer.decode(ids, skip_special_tokens=skips) for skips in (True, False)] == decoded


def test_the_added_tokens_have_every_normalizer():
    assert ADDED.keys() == {*normalizers._MAKERS, "none"}


def test_a_task_reads_the_tokenizer_of_its_bundle(tmp_path):
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "tokenizer.json").write_bytes((FOLDER / "llama3.json").read_bytes())
    (tmp_path / "task.yaml").write_text(
        'name: words\nversion: "1"\nentry: main:run\npython: "3.14"\nfiles: [tokenizer.json]\n'
    )
    (tmp_path / "words.vmb").write_bytes(compile_folder(tmp_path).to_bytes(None))
    texts = ["What is this?", "naïve 東京 😀"]
    with vmhost.Host(allow_unsigned=True) as host:
        answers = host.load(tmp_path / "words.vmb")(texts)
    tokenizer = Tokenizer.from_file(FOLDER / "llama3.json")
    for text, (ids, offsets, decoded) in zip(texts, answers, strict=True):
        here = tokenizer.encode(text)
        assert (ids, offsets, decoded) == (here.ids, here.offsets, text)


def test_words_tokens_and_characters_find_each_other():
    text = "would something find me"
    encoding = bert().encode(text, "thing")
    word = encoding.char_to_word(text.index("find"))
    first, end = encoding.word_to_tokens(word)
    assert encoding.word_to_chars(word) == (text.index("find"), text.index("find") + 4)
    assert encoding.char_to_token(text.index("find")) == first
    assert {encoding.token_to_word(token) for token in range(first, end)} == {word}
    assert encoding.token_to_chars(0) is None and encoding.sequence_ids[0] is None
    assert encoding.token_to_sequence(len(encoding) - 2) == 1 and encoding.char_to_token(0, 1) == len(
        encoding
    ) - 1 - len([number for number in encoding.sequence_ids if number == 1])


def test_truncation_and_padding_are_set_and_taken_back():
    tokenizer = bert()
    plain = tokenizer.encode("the of and to in is that").ids
    tokenizer.enable_truncation(6, stride=1)
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]", pad_to_multiple_of=4)
    first, second = tokenizer.encode_batch(["the of and to in is that", ("the", "of")])
    assert first.ids == [*plain[:5], plain[-1], 0, 0] and second.attention_mask == [1, 1, 1, 1, 1, 0, 0, 0]
    assert [window.ids[1:5] for window in first.overflowing] == [plain[4:8]]
    tokenizer.no_truncation()
    tokenizer.no_padding()
    assert tokenizer.encode("the of and to in is that").ids == plain
    with pytest.raises(TokenizerError, match="stride of 9 is too large for 8"):
        tokenizer.enable_truncation(8, stride=9)
    with pytest.raises(TypeError, match="is_pretokenized"):
        tokenizer.encode(["the", "of"])


def test_added_tokens_are_found_whole():
    tokenizer = bert()
    size = tokenizer.get_vocab_size()
    assert tokenizer.add_tokens(["qqq zzz", "the"]) == 2 and tokenizer.add_special_tokens(["<end>"]) == 1
    encoding = tokenizer.encode("see QQQ ZZZ<end>", add_special_tokens=False)
    assert encoding.ids[-2:] == [size, size + 1] and tokenizer.id_to_token(size) == "qqq zzz"
    assert tokenizer.decode(encoding.ids) == "see qqq zzz"
    assert tokenizer.decode(encoding.ids, skip_special_tokens=False) == "see qqq zzz <end>"


WRONG = [
    ("[]", r"json: \$: expected an object, got \[\]$"),
    ("{", "json: is not JSON"),
    ("[" * 100_000, "nested too deeply"),
    ('{"model": ' * 3000 + "1" + "}" * 3000, r"\$.model"),
    ("{}", r"json: \$: 'model' is missing"),
    (b"\xff\xfe\xff", "json: is not JSON"),
    ({"model": {"type": "GPT", "vocab": {}}}, "there is no model 'GPT' here; there are BPE, Unigram"),
    ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}}, r"merges\[0\]: 'ab' is not in"),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}}, "expected two tokens with a blank between"),
    ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "expected an id from 0"),
    ({"model": {"type": "BPE", "vocab": {"a": True}, "merges": []}}, "expected an id from 0"),
    ({"model": {"type": "Unigram", "vocab": [["a", "b"]]}}, r"vocab\[0\]\[1\]: expected a number, got 'b'"),
    ({"model": {"type": "Unigram", "vocab": [["a", 0]], "unk_id": 1}}, "unk_id: 1 is not in the vocabulary of 1"),
    ({"pre_tokenizer": {"type": "UnicodeScripts"}}, "there is no pre-tokenizer 'UnicodeScripts' here"),
    ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"}}, "no regular expression"),
    ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"\p{Foo}"}, "behavior": "Removed"}}, "property 'Foo'"),
    ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[a&&b]"}, "behavior": "Removed"}}, "an intersection"),
    ({"pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}, "behavior": "Cut"}}, "'Removed' or 'Isolated'"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "no map of SentencePiece's"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAA\ud800"}}, "no map of SentencePiece's"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="}}, None),
    ({"post_processor": {"type": "BertProcessing", "cls": ["a", "b"], "sep": ["c", 1]}}, r"cls\[1\]: expected a whole"),
    ({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
                         "pair": [], "special_tokens": {}}}, "'x' is not in special_tokens"),
    ({"truncation": {"max_length": 4, "stride": 4}}, "stride of 4 is too large"),
    ({"truncation": {"max_length": "4"}}, r"\$.truncation.max_length: expected a whole number, got '4'"),
    ({"added_tokens": [{"id": 0}]}, r"\$.added_tokens\[0\]: 'content' is missing"),
]  # fmt: skip


@pytest.mark.parametrize("given, message", WRONG, ids=lambda value: None)
def test_what_cannot_be_used_is_refused_in_a_sentence(given, message, tmp_path):
    text = json.dumps({**document("word-level"), **given}) if isinstance(given, dict) else given
    path = tmp_path / "tokenizer.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.from_file(path).encode("any text of some words, and é")
    assert "\n" not in str(caught.value)


def changed(value, drawn):
    """The document with one value somewhere replaced."""
    places = []

    def walk(value, depth):
        some = list(value.items() if isinstance(value, dict) else enumerate(value))
        for key, each in some if len(some) < 40 else drawn.sample(some, 4):
            places.append((value, key))
            if isinstance(each, (dict, list)):
                walk(each, depth + 1)

    walk(value, 0)
    holder, key = drawn.choice(places)
    junk = (None, True, -1, 1 << 40, 0.5, "", "x", "\ud800", [], {}, [None], {"type": "Sequence"}, [["a"]])
    if drawn.random() < 0.2 and isinstance(holder, dict):
        del holder[key]
    else:
        holder[key] = drawn.choice(junk)
    return value


@pytest.mark.parametrize("name", ANSWERS)
def test_damaged_files_work_or_are_refused(name):
    drawn = random.Random(name)
    refused = 0
    for _ in range(60):
        try:
            tokenizer = Tokenizer(changed(document(name), drawn))
            encoding = tokenizer.encode("naïve  東京 don't 12 <mask>", "b")
            tokenizer.decode(encoding.ids)
        except TokenizerError:
            refused += 1
    assert refused


def test_clusters_end_behind_control_characters_and_joiners_want_a_picture():
    """As Hugging Face's library cuts them (Unicode Standard Annex 29)."""
    from vmhost.engine.tokenizers.characters import clusters

    for text, expected in (
        ("`\u200b\u0301b", ["`", "\u200b", "\u0301", "b"]),
        ("a\xad\u0308", ["a", "\xad", "\u0308"]),
        ("D\xe0\u200d\u2764", ["D", "\xe0\u200d", "\u2764"]),
        ("\U0001f469\U0001f3fd\u200d\u2764", ["\U0001f469\U0001f3fd\u200d\u2764"]),
        ("\U0001f3f4\U000e0067\U000e007f!", ["\U0001f3f4\U000e0067\U000e007f", "!"]),
    ):
        assert list(clusters(text)) == expected, ascii(text)


def test_tables_in_c_hold_what_they_are_given():
    from vmhost.engine import _array

    merges = _array._bpe_table({(0, 1): (0, 2), (2, 0): (1, 3)})
    ids = {"a": 0, "b": 1, "ab": 2, "aba": 3}
    assert _array._bpe_pieces(ids, merges, "ababa", None, False, None) == ([2, 3], [(0, 2), (2, 5)])
    assert _array._bpe_pieces(ids, merges, "x\u00fcya", 1, True, None) == ([1, 0], [(0, 3), (3, 4)])
    assert _array._bpe_pieces(ids, merges, "", None, False, None) == ([], [])
    tree = _array._unigram_table({"a": 1, "b": 2, "ab": 3}, [0.0, -1.0, -2.0, -1.5])
    assert _array._unigram_pieces(tree, "abxyb", 0, -12.0) == [(3, 0, 2), (-1, 2, 4), (2, 4, 5)]
    assert _array._unigram_pieces(tree, "x", None, -12.0) is None
    for wrong in (
        lambda: _array._bpe_table({(0, 1): 2}),
        lambda: _array._bpe_table([]),
        lambda: _array._bpe_pieces(ids, b"", "a", None, False, None),
        lambda: _array._bpe_pieces(ids, merges, [("a", 0, 1)], None, False, None),
        lambda: _array._bpe_pieces(ids, merges, "a", None, False, (1, 2)),
        lambda: _array._unigram_table({"a": 4}, [0.0]),
        lambda: _array._unigram_table({1: 0}, [0.0]),
        lambda: _array._unigram_pieces(b"x" * 64, "a", 0, -1.0),
        lambda: _array._unigram_pieces(tree[:-1], "a", 0, -1.0),
    ):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(OverflowError, match="expected numbers of tokens from 0 to 2147483646"):
        _array._bpe_table({(0, 1 << 31): (0, 2)})
