"""`make packages`: what it counts, and how it judges the tests that it runs."""

import hashlib

import pytest

from tests.packages import __main__ as command
from tests.packages import archives, suite_folder


def test_only_what_passes_in_plain_python_counts_and_reasons_are_told_apart():
    [suite, *_] = command.suites().values()
    plain = {f"t.py::{name}": ["passed", ""] for name in "abcd"} | {
        "t.py::e": ["failed", ""],
        "lost.py::f": ["passed", ""],
    }
    in_vms = {
        "t.py::a": ["passed", ""],
        "t.py::b": ["failed", "E   PermissionDenied: [Errno 13] subprocess: ['x'] cannot be started: a task has none"],
        "t.py::c": ["failed", "E   PermissionDenied: compile: nobody has recorded this text: 'x = 1'"],
        "t.py::e": ["passed", ""],
        "lost.py": ["failed", "VMLostError: gone"],
    }
    row = command.Row.of(suite, plain, in_vms)
    assert (row.run, row.plain, row.passed) == (6, 5, 1)
    assert row.reasons == {"it starts a process": 1}
    assert sorted(row.unexplained) == ["lost.py::f", "t.py::c", "t.py::d"]
    assert row.share() == 1 / 4
    assert "differs: 1 VMLostError: gone (lost.py::f)" in row.text()


def test_files_of_tests_are_where_the_archive_lies(tmp_path):
    text = "from x import y\nhere = (__file__, y.__file__)  # __file__\nprint(__file__)\n"
    path = tmp_path / "test_x.py"
    expected = f"from x import y\nhere = ({str(path)!r}, y.__file__)  # __file__\nprint({str(path)!r})\n"
    assert suite_folder._addressed(text, path) == expected


def test_an_archive_with_another_hash_is_not_kept(tmp_path):
    path = tmp_path / "x-1.0.tar.gz"
    path.write_bytes(b"right")
    assert archives.fetch(path.name, hashlib.sha256(b"right").hexdigest(), tmp_path) == path
    with pytest.raises(ValueError, match="SHA-256 is .*, expected 00"):
        archives.fetch(path.name, "00", tmp_path)
    assert not path.exists()


def test_the_page_is_read_as_it_is_written(tmp_path, monkeypatch):
    page = tmp_path / "packages.md"
    page.write_text(f"# Head\n\n{command.MARK}")
    monkeypatch.setattr(command, "PAGE", page)
    rows = {"click": ["8.5.1", "4", "3", "2", "66.67 %", "100.00 %", "0", "it starts a process (1)"]}
    command.write_page(rows)
    assert command.read_page() == rows
    assert page.read_text().startswith(f"# Head\n\n{command.MARK}\n| package | version |")
