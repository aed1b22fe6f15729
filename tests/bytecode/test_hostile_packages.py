"""Malicious wheels, and lock files that change while they are used: a bundle gets the package's own files only,
and nothing is written or read elsewhere."""

import zipfile

import pytest

from tests.wheels import folder_of_wheels, write_wheel
from vmhost.bytecode import packages
from vmhost.bytecode.compiler import compile_task
from vmhost.bytecode.errors import TaskSpecError
from vmhost.bytecode.packages import Requirements, lock
from vmhost.bytecode.spec import read_task

LINK = 0o120777


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder of wheels, the only place where packages are found; a cache of its own."""
    return folder_of_wheels(tmp_path, monkeypatch)


@pytest.fixture
def task(tmp_path):
    """The folder of a task that requires `words`."""
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "task.yaml").write_text(
        'name: sample\nversion: "1.0"\nentry: main:run\npython: "3.14"\nrequirements: [words]\n'
    )
    (folder / "main.py").write_text("import words\n\n\ndef run(value):\n    return words.FIRST\n")
    return folder


def words(wheels, version="1.0", change=None, more=()):
    """Writes the wheel `words`. `change`: part of a name -> function of that member's bytes; `more`: further members,
    (name, bytes, mode)."""
    write_wheel(wheels, "words", version, {"words/__init__.py": f"FIRST = {version!r}\n"})
    path = wheels / f"words-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    for part, function in dict(change or {}).items():
        members = [(info, function(data) if part in info.filename else data) for info, data in members]
    for name, data, mode in more:
        info = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
        info.create_system, info.external_attr = 3, mode << 16
        members.append((info, data))
    with zipfile.ZipFile(path, "w") as archive:
        for info, data in members:
            archive.writestr(info, data)


def test_members_outside_the_package_are_left_out(wheels, task, tmp_path):
    outside = tmp_path / "outside"
    paths = ["../../outside", str(outside), "words/../../../outside"]
    record = "".join(f"{path},,\n" for path in [*paths, "../../../../../../../../etc/hostname", "/etc/hostname"])
    words(wheels, change={"RECORD": lambda data: record.encode() + data}, more=[(path, b"x", 0) for path in paths])
    compiled = compile_task(task)
    assert set(compiled.files) == {"words-1.0.dist-info/METADATA", "words-1.0.dist-info/RECORD"}
    assert not list(tmp_path.rglob("outside"))


def test_links_in_a_package_bring_nothing_of_this_machine(wheels, task, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    links = {"words/link.txt": secret, "words/folder": tmp_path, "words/stolen.py": secret}
    record = "".join(f"{path},,\n" for path in [*links, "words/folder/secret.txt"])
    words(
        wheels,
        change={"RECORD": lambda data: record.encode() + data},
        more=[(path, str(target).encode(), LINK) for path, target in links.items()],
    )
    compiled = compile_task(task)
    assert not any(b"the secret" in data for data in compiled.files.values())
    assert set(compiled.modules) == {"main", "words"}
    assert "words/folder/secret.txt" not in compiled.files


def test_files_that_a_package_says_it_has_and_has_not_are_left_out(wheels, task):
    words(wheels, change={"RECORD": lambda data: b"words/gone.txt,,\nwords,,\nwords/gone.py,,\n" + data})
    files = compile_task(task).files
    assert set(files) == {"words-1.0.dist-info/METADATA", "words-1.0.dist-info/RECORD"}


def test_startup_files_and_modules_under_names_of_the_standard_library_have_no_effect(wheels, task, tmp_path):
    evil = tmp_path / "evil"
    write = f"open({str(evil)!r}, 'w')\n".encode()
    names = ["sitecustomize.py", "usercustomize.py", "json/__init__.py", "vmhost/__init__.py", "main.py"]
    words(wheels, more=[(name, write, 0) for name in names] + [("evil.pth", b"import os; " + write, 0)])
    (task / "main.py").write_text("import json, words, vmhost.guest\n\n\ndef run(value):\n    return json.dumps(1)\n")
    compiled = compile_task(task)
    assert {name for name in compiled.modules if "." not in name} == {"main", "words"}
    assert not evil.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"METADATA": lambda data: data.replace(b"Name: words", b"Name: other")},
        {"METADATA": lambda data: data.replace(b"Version: 1.0", b"Version: 9")},
        {"METADATA": lambda data: b"\xff\xfe\0" + data},
        {"RECORD": lambda data: b"\xff\xfe\0"},
    ],
)
def test_a_package_that_lies_of_itself_is_one_line_about_the_requirement(wheels, task, change):
    words(wheels, change=change)
    with pytest.raises(TaskSpecError, match=r"^.*task\.yaml:5: requirements: .+$"):
        compile_task(task)


def test_what_a_package_says_of_its_licence_is_a_line_for_a_terminal(wheels, task):
    words(wheels, change={"METADATA": lambda data: data.replace(b"MIT", b"\x1b[31mMIT\x07")})
    assert [each.package.licence for each in compile_task(task).included] == ["?[31mMIT?"]


def test_a_lock_file_that_changes_while_it_is_used_is_used_as_it_was_read(wheels, task, monkeypatch):
    words(wheels, "1.0")
    required = Requirements.of_task(read_task(task))
    path = lock(required)
    old = path.read_text()
    words(wheels, "2.0")
    lock(required, upgrade=True)
    new = path.read_text()
    path.write_text(old)
    find = packages._resolver

    def change_it(requirements):
        path.write_text(new)
        return find(requirements)

    monkeypatch.setattr(packages, "_resolver", change_it)
    assert [each.package.version for each in compile_task(task).included] == ["1.0"]
    path.write_text(old)
    monkeypatch.setattr(packages, "_resolver", find)
    assert [each.package.version for each in compile_task(task).included] == ["1.0"]
