"""The standard-library bundle: all code that VMs unmarshal was compiled here or verified, once per file."""

import marshal
import platform

import pytest

from vmhost.bytecode.acceptance import accept, is_accepted, note
from vmhost.bytecode.errors import BundleError
from vmhost.bytecode.format import Bundle, Manifest, Module, read_bundle, write_bundle

GOOD = compile("word = 'text'", "stdlib@3/word.py", "exec")
BAD = GOOD.replace(co_consts=())  # right digests around code that reads beyond its constants


def write(path, code=GOOD, text=GOOD, kind="stdlib"):
    manifest = Manifest(
        name="stdlib",
        version="1",
        kind=kind,
        entry=None if kind == "stdlib" else "word:run",
        exact_python=platform.python_version(),
    )
    path.write_bytes(
        write_bundle(manifest, {"word": Module(False, marshal.dumps(code))}, texts={bytes(32): marshal.dumps(text)})
    )
    return read_bundle(path, allow_unsigned=True)


@pytest.fixture
def verified(monkeypatch):
    """The bundles that were verified."""
    seen, verify = [], Bundle.verify
    monkeypatch.setattr(Bundle, "verify", lambda bundle: (seen.append(bundle.digest), verify(bundle)))
    return seen


def test_a_file_that_was_not_made_here_is_verified_once(tmp_path, verified):
    path = tmp_path / "stdlib.vmb"
    bundle = write(path)
    assert not is_accepted(bundle, path)
    accept(bundle, path)
    accept(read_bundle(path, allow_unsigned=True), path)
    assert verified == [bundle.digest] and is_accepted(bundle, path)


def test_the_note_is_for_one_file_and_its_contents(tmp_path, verified):
    path = tmp_path / "stdlib.vmb"
    note(write(path), path)
    other = write(path, GOOD.replace(co_name="other"))
    assert not is_accepted(other, path)
    accept(other, path)
    assert verified == [other.digest]


@pytest.mark.parametrize("damage", [{"code": BAD}, {"text": BAD}])
def test_bad_structure_under_right_digests_is_refused_and_not_noted(tmp_path, damage):
    path = tmp_path / "stdlib.vmb"
    bundle = write(path, **damage)
    for _ in range(2):
        with pytest.raises(BundleError, match=r"stdlib\.vmb: (module word|text 0000)"):
            accept(bundle, path)
    assert [file.name for file in tmp_path.iterdir()] == ["stdlib.vmb"]


def test_bytes_that_are_no_code_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "stdlib.vmb"
    manifest = Manifest(name="stdlib", version="1", kind="stdlib", exact_python=platform.python_version())
    path.write_bytes(write_bundle(manifest, {}, texts={bytes(32): b"[\xff\xff\xff\x7f"}))
    with pytest.raises(BundleError, match="not marshalled code"):
        accept(read_bundle(path, allow_unsigned=True), path)


def test_a_task_is_no_library(tmp_path):
    path = tmp_path / "task.vmb"
    with pytest.raises(BundleError, match="expected the standard-library bundle, got the bundle of a task"):
        accept(write(path, kind="task"), path)


def test_where_no_note_can_be_left_it_is_accepted_all_the_same(tmp_path, verified):
    path = tmp_path / "stdlib.vmb"
    bundle = write(path)
    accept(bundle, tmp_path / "gone" / "stdlib.vmb")
    assert verified == [bundle.digest]
