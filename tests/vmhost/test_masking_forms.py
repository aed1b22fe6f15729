"""No form of a secret is readable: wherever it stands in a value, and however texts write it."""

import base64
import json
import re
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


# Lines in which a text tells the field's name. Where it has no quotes, it ends at a space, but in a header.
NAMED = {
    "JSON": json.dumps({"user": 1, "password": SECRET, "b": 2}),
    "JSON of any character": json.dumps({"user": 1, "password": SECRET}, ensure_ascii=False),
    "JSON, nested": json.dumps({"a": {"password": SECRET}}),
    "JSON, a list": json.dumps([{"password": [SECRET, {"a": SECRET}]}, 1]),
    "JSON, below": json.dumps({"password": {"a": SECRET, "b": ["]", SECRET]}}),
    "JSON in JSON": json.dumps(json.dumps({"password": SECRET})),
    "JSON in JSON, a list": json.dumps(json.dumps({"password": [SECRET]})),
    "JSON, indented": json.dumps({"password": SECRET}, indent=2),
    "cut JSON": json.dumps({"password": [SECRET, SECRET]})[:-5],
    "Python": repr({"password": SECRET}),
    "Python, ASCII": ascii({"password": SECRET}),
    "Python, bytes": repr({"password": DATA}),
    "Python, a tuple": repr(("password", SECRET)),
    "Python, tuples": repr({"password": (SECRET, DATA)}),
    "Python, a set": repr({"password": {SECRET}}),
    "Python, a call": f"login('ann', password={SECRET!r})",
    "Ruby": f"{{'password' => {SECRET!r}}}",
    "an arrow": f"password -> {SECRET!r}",
    "YAML": f"password: {json.dumps(SECRET)}",
    "a header": f"Password: {SECRET}",
    "in quotes": f"password={json.dumps(SECRET)}",
    "a URL": f"GET /?a=1&password={urllib.parse.quote(SECRET)}&b=2",
    "a form": urllib.parse.urlencode({"user": 1, "password": SECRET}),
    "Base64": f"password={base64.b64encode(DATA).decode()}",
    "Base64 of URLs": f"password={base64.urlsafe_b64encode(DATA).decode()}",
    "hex": f"password={DATA.hex()}",
    "HEX": f"PASSWORD: {DATA.hex().upper()}",
}


@pytest.mark.parametrize("line", NAMED)
def test_a_line_that_names_the_field(line):
    shown = Masking(("password",)).text(NAMED[line])
    must_be_hidden(shown)
    assert "masked-" in shown


def test_the_rest_of_a_line_is_as_it_was():
    shown = Masking(("password",)).text('{"password": {"a": 1}, "user": "ann"} password=x; host=y (password: z)\nnext')
    assert re.sub("masked-[0-9a-f]{12}", "*", shown) == (
        '{"password": "*", "user": "ann"} password=*; host=y (password: *\nnext'
    )


def test_json_in_a_value_stays_json():
    """A replay reads it, as the recorded call did."""
    given = {"user": 1, "password": SECRET, "more": [{"password": [1, SECRET, ""]}, {"password": 12}], "last": "b"}
    once = json.dumps(given)
    for body, read in ((once, json.loads), (json.dumps(once), lambda text: json.loads(json.loads(text)))):
        shown = Masking(("password",)).value({"body": body}, {})
        must_be_hidden(shown)
        kept = read(shown["body"])
        assert (kept["user"], kept["last"], len(kept["more"]), list(kept["more"][1])) == (1, "b", 2, ["password"])


def test_a_replay_that_passes_a_masked_value_on_gives_the_same():
    masking, secrets = Masking(("password",)), {}
    shown = masking.value({"said": SECRET, "password": SECRET}, secrets)
    assert shown["said"] == shown["password"] == masking.value(shown, {})["said"]
    assert len(secrets) == 1
