"""Links that open debugging sessions: what they grant, and that they cannot be forged, changed, cut or reused."""

import io

import pytest
import zxingcpp
from hypothesis import given
from hypothesis import strategies as st

from tests.operations.debugged_hosts import link_of
from vmhost import debug_links
from vmhost.bytecode import signing
from vmhost.debug_links import LinkError
from vmhost.operations.debugging import qr

KEY = signing.generate_key()
KEYS = {KEY.public: "ann"}
LINK = link_of(KEY, "kitchen-1")


def test_a_link_says_what_was_signed():
    read = debug_links.read(LINK.text)
    assert read == LINK and read.text == LINK.text and read.signed_by(KEYS) == "ann"
    assert (read.host, read.scopes, read.address) == ("kitchen-1", debug_links.SCOPES, "http://127.0.0.1:9464")
    assert read.expires_s - read.issued_s == 600 and len(LINK.text) < 400


@pytest.mark.parametrize("length", range(0, len(LINK.text), 7))
def test_a_link_that_is_cut_off_opens_nothing(length):
    with pytest.raises(LinkError):
        debug_links.read(LINK.text[:length]).signed_by(KEYS)


@given(st.integers(LINK.text.index("#") + 1, len(LINK.text) - 1), st.characters(codec="utf-8"))
def test_a_link_that_was_altered_anywhere_opens_nothing(at, letter):
    text = LINK.text[:at] + letter + LINK.text[at + 1 :]
    if text.strip() != LINK.text:
        with pytest.raises(LinkError):
            debug_links.read(text).signed_by(KEYS)


@given(st.one_of(st.text(), st.binary(), st.none(), st.integers(), st.text().map("http://x/debug#{}".format)))
def test_anything_else_is_no_link(given):
    with pytest.raises(LinkError):
        debug_links.read(given).signed_by(KEYS)


def test_another_key_and_another_kind_of_signature_are_refused():
    with pytest.raises(LinkError, match="does not trust"):
        LINK.signed_by({signing.generate_key().public: "ben"})
    forged = debug_links.Link(**{**LINK.__dict__, "signature": KEY.sign_file(LINK.payload)})
    with pytest.raises(LinkError, match="altered"):  # a signature of a file does not make a link
        debug_links.read(forged.text).signed_by(KEYS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scopes": ("shell",)}, "expected some of the scopes"),
        ({"scopes": ()}, "expected some of the scopes"),
        ({"valid_s": 0}, "valid for up to 7 days"),
        ({"valid_s": 8 * 86400}, "valid for up to 7 days"),
        ({"host": "x" * 81}, "at most 80 characters"),
        ({"host": "a\nb"}, "can be printed"),
    ],
)
def test_what_cannot_be_signed(change, message):
    with pytest.raises(ValueError, match=message):
        link_of(KEY, **{"host": "kitchen-1", **change})


def read_code(picture):
    [found] = zxingcpp.read_barcodes(picture, formats=zxingcpp.BarcodeFormat.QRCode)
    return found.text


def test_an_independent_reader_reads_the_code():
    from PIL import Image

    data = io.BytesIO()
    qr.code(LINK.text).save(data, kind="png", scale=4, border=4)
    assert read_code(Image.open(data)) == LINK.text


def test_an_independent_reader_reads_the_code_of_the_terminal():
    import numpy

    rows = []
    for line in qr.terminal(LINK.text):
        rows.append([255 if letter in "█▀" else 0 for letter in line])
        rows.append([255 if letter in "█▄" else 0 for letter in line])
    picture = numpy.array(rows, numpy.uint8).repeat(4, 0).repeat(4, 1)
    assert len({len(row) for row in rows}) == 1 and len(rows[0]) <= 80, "it fits a terminal"
    assert read_code(picture) == LINK.text


def test_each_link_has_one_text():
    """Unused bits of the last letter must be zero: a link with other bits is refused."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    tried = 0
    for host in ("k", "ki", "kit"):
        link = link_of(KEY, host)
        before, _, signature = link.text.partition(".0.0.1:9464")[2].partition(".")
        payload = before.partition("#")[2]
        if len(payload) % 4:
            other = letters[letters.index(payload[-1]) ^ 1]
            text = link.text.replace(payload + ".", payload[:-1] + other + ".")
            assert text != link.text
            with pytest.raises(LinkError, match="altered"):
                debug_links.read(text)
            tried += 1
    assert tried == 2
