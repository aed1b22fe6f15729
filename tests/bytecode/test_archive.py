"""The canonical zip: zip tools can read it, and we read the canonical form only."""

import io
import mmap
import struct
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmhost.bytecode.archive import MAX_BYTES, path_problem, read_archive, write_archive
from vmhost.bytecode.errors import BundleError

names = st.lists(
    st.text(
        st.characters(codec="utf-8", exclude_characters="\\:/\x7f", min_codepoint=32), min_size=1, max_size=8
    ).filter(lambda part: part not in (".", "..")),
    min_size=1,
    max_size=3,
).map("/".join)
entries = st.dictionaries(names, st.binary(max_size=64), max_size=6)


@given(entries)
def test_what_is_written_is_read_back_and_zipfile_agrees(content):
    data = write_archive(content)
    assert read_archive(data, "x") == content
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == content


@given(entries, st.randoms())
def test_order_of_entries_does_not_change_the_bytes(content, random):
    shuffled = list(content.items())
    random.shuffle(shuffled)
    assert write_archive(dict(shuffled)) == write_archive(content)


@given(entries, st.data())
def test_any_changed_byte_is_refused(content, data):
    original = write_archive(content)
    at = data.draw(st.integers(0, len(original) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda value: value != original[at]))
    with pytest.raises(BundleError):
        read_archive(original[:at] + bytes([value]) + original[at + 1 :], "x")


@given(entries, st.data())
def test_any_truncation_or_addition_is_refused(content, data):
    original = write_archive(content)
    at = data.draw(st.integers(0, len(original) - 1))
    with pytest.raises(BundleError):
        read_archive(original[:at], "x")
    extra = data.draw(st.binary(min_size=1, max_size=30))
    at = data.draw(st.integers(0, len(original)))
    with pytest.raises(BundleError):
        read_archive(original[:at] + extra + original[at:], "x")


@given(st.binary(max_size=200))
def test_noise_is_refused(noise):
    for data in (noise, b"PK\3\4" + noise, noise + write_archive({})):
        if data != write_archive({}):
            with pytest.raises(BundleError):
                read_archive(data, "x")


def repacked(**options):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **options) as archive:
        archive.writestr("a", bytes(100_000))
    return out.getvalue()


def test_compressed_entries_are_refused_so_nothing_can_unfold():
    with pytest.raises(BundleError, match="'a': expected an entry without compression, got method 8"):
        read_archive(repacked(compression=zipfile.ZIP_DEFLATED), "x.vmb")


def test_another_tools_zip_is_refused():
    with pytest.raises(BundleError, match="x.vmb: entry 'a': its directory record is not as the compiler writes it"):
        read_archive(repacked(), "x.vmb")


def forged(*members):
    """A zip with canonical records of (name, data), in the given order, whatever the names."""
    body, directory = b"", b""
    for name, data in members:
        whole = write_archive({"a": data})
        header, central = whole[:30], whole[31 + len(data) : -22]
        header = header[:26] + struct.pack("<H", len(name)) + header[28:] + name
        central = central[:28] + struct.pack("<H", len(name)) + central[30:42] + struct.pack("<I", len(body)) + name
        body += header + data
        directory += central
    count = len(members)
    return body + directory + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(directory), len(body), 0)


def test_forged_helper_makes_the_canonical_form():
    assert forged((b"a", b"1"), (b"b", b"2")) == write_archive({"a": b"1", "b": b"2"})


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([(b"a", b"1"), (b"a", b"2")], "entry 'a' is there twice"),
        ([(b"b", b"1"), (b"a", b"2")], "entry 'a' is out of order"),
        ([(b"../a", b"1")], "without empty, '.' and '..' parts"),
        ([(b"/a", b"1")], "without empty, '.' and '..' parts"),
        ([(b"a//b", b"1")], "without empty, '.' and '..' parts"),
        ([(b"a\\b", b"1")], "without backslashes"),
        ([(b"c:a", b"1")], "without backslashes, colons"),
        ([(b"a\0b", b"1")], "control characters"),
        ([(b"\xff", b"1")], "in UTF-8"),
        ([(b"", b"1")], "a path of 1 to 1024 bytes, got 0"),
        ([(b"x" * 1025, b"1")], "a path of 1 to 1024 bytes, got 1025"),
    ],
)
def test_bad_names_are_refused(members, message):
    with pytest.raises(BundleError, match=f"x.vmb: .*{message}"):
        read_archive(forged(*members), "x.vmb")
    if len(members) == 1 and members[0][0] != b"\xff":
        with pytest.raises(ValueError, match=message):
            write_archive({members[0][0].decode(): b"1"})


def test_what_is_too_large_to_write_is_refused():
    with (
        mmap.mmap(-1, MAX_BYTES + 1) as large,
        pytest.raises(ValueError, match="expected at most 1073741824 bytes in a bundle"),
    ):
        write_archive({"a": large})  # pages that nothing touches


def test_oversized_counts_are_refused_without_believing_them():
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 60_000, 60_000, 0, 0, 0)
    with pytest.raises(BundleError, match="says 60000 entries in 0 bytes"):
        read_archive(end, "x")


def test_entry_larger_than_the_file_is_refused():
    data = bytearray(write_archive({"a": b"123"}))
    size = struct.pack("<I", 3)
    lie = struct.pack("<I", 0x7FFFFFFF)
    with pytest.raises(BundleError, match="entry 'a': expected 2147483647 bytes, got 3"):
        read_archive(bytes(data.replace(size * 2, lie * 2)), "x")


def test_gap_between_entries_and_directory_is_refused():
    data = write_archive({"a": b"1"})
    body, directory, end = data[:32], data[32:-22], data[-22:]
    gap = body + b"hidden" + directory + end[:16] + struct.pack("<I", 38) + end[20:]
    with pytest.raises(BundleError, match="bytes that belong to no entry"):
        read_archive(gap, "x")


@given(st.binary(max_size=40))
def test_path_problem_never_raises(name):
    assert path_problem(name) is None or isinstance(path_problem(name), str)
