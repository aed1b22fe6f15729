"""No form of a secret is readable: wherever it stands in a value, and however texts write it."""

import base64
import json
import urllib.parse

import msgpack
import pytest

from vmhost import Packed
from vmhost.masking import Masking

SECRET = 'pä"ss wo\\rd/7+x'
DATA = SECRET.encode()
WRITTEN = {
    "as it is": SECRET,
    "in a sentence": f"it is {SECRET}, she said",
    "twice": SECRET * 2,
    "JSON": json.dumps(SECRET),
    "JSON of any character": json.dumps(SECRET, ensure_ascii=False),
    "JSON in JSON": json.dumps(json.dumps(SECRET)),
    "repr": repr(SECRET),
    "ascii": ascii(SECRET),
    "URL": urllib.parse.quote(SECRET),
    "URL, all": urllib.parse.quote(SECRET, safe=""),
    "form": urllib.parse.urlencode({"a": SECRET}),
    "Base64": base64.b64encode(DATA).decode(),
    "Base64 of URLs": base64.urlsafe_b64encode(DATA).decode(),
    "hex": DATA.hex(),
    "HEX": DATA.hex().upper(),
}
PLACES = {
    "behind": lambda text: {"password": SECRET, "said": text},
    "before": lambda text: {"said": text, "password": SECRET},
    "in a list before": lambda text: [text, {"password": SECRET}],
}
INSIDE = {
    "a key below": {"password": {SECRET: 1}},
    "a key of a key below": {"password": {"a": {SECRET: [1]}}},
    "a tuple as a key below": {"password": {(SECRET, 1): 2}},
    "a key elsewhere": {SECRET: 1, "password": SECRET},
    "a list below": {"password": [SECRET, (SECRET,), {SECRET}]},
    "bytes": {"raw": b"x" + DATA + b"y", "password": SECRET},
    "bytes below": {"password": DATA},
    "packed": {"body": Packed(msgpack.packb({"password": SECRET, "said": SECRET}))},
    "packed elsewhere": [Packed(msgpack.packb([SECRET])), {"password": SECRET}],
    "packed junk": [Packed(b"\xc1" + DATA), {"password": SECRET}],
    "packed below": {"password": Packed(msgpack.packb(SECRET))},
}
LINES = {
    "name=value": "password={}",
    "quoted": 'password="{}"',
    "JSON": '{{"user": 1, "password": "{}", "b": 2}}',
    "repr": "{{'password': '{}'}}",
    "in JSON in JSON": '"{{\\"password\\": \\"{}\\"}}"',
}


def parts_of(value):
    """Each text and bytes in a value."""
    if isinstance(value, Packed):
        return [value.data]
    if isinstance(value, dict):
        return [part for pair in value.items() for one in pair for part in parts_of(one)]
    if isinstance(value, list | tuple | set | frozenset):
        return [part for one in value for part in parts_of(one)]
    return [value]


def must_be_hidden(shown):
    text = "".join(
        part.decode(errors="backslashreplace") if isinstance(part, bytes) else str(part) for part in parts_of(shown)
    )
    forms = [*WRITTEN.values(), SECRET[:5], "wo\\rd/7", "ss wo", urllib.parse.quote(SECRET)[-8:], DATA.hex()[4:]]
    assert [form for form in forms if form.strip("\"'=") in text] == []


@pytest.mark.parametrize("place", PLACES)
def test_a_text_that_holds_the_secret_of_a_hidden_field(place):
    for name, text in WRITTEN.items():
        masking, secrets = Masking(("password",)), {}
        shown = masking.value(PLACES[place](text), secrets)
        must_be_hidden(shown)
        assert "masked-" in str(shown), name
        must_be_hidden(masking.text(f"failed with {text}", secrets))


@pytest.mark.parametrize("place", INSIDE)
def test_places_within_values(place):
    must_be_hidden(Masking(("password",)).value(INSIDE[place], {}))


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_names_the_field(line):
    secret = "two words of it" if line not in ("name=value", "in JSON in JSON") else "oneword"
    shown = Masking(("password",)).text(LINES[line].format(secret))
    assert not any(word in shown for word in secret.split()) and "masked-" in shown


def test_a_replay_that_passes_a_masked_value_on_gives_the_same():
    masking, secrets = Masking(("password",)), {}
    shown = masking.value({"said": SECRET, "password": SECRET}, secrets)
    assert shown["said"] == shown["password"] == masking.value(shown, {})["said"]
    assert len(secrets) == 1
