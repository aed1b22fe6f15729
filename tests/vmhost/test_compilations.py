"""What is compiled for functions that are sent, kept on disk for other processes."""

import errno
import json
import os
import resource
import subprocess
import sys
import textwrap

import pytest

from vmhost.bytecode import caches, compilations
from vmhost.bytecode.closure import closure_of_module
from vmhost.bytecode.compilations import Compilations
from vmhost.bytecode.errors import CompileError
from vmhost.runtime import luggage, packing, program_packages

PACKAGES = {
    "heavy/__init__.py": """
        import multiprocessing
        from dataclasses import dataclass
        from . import part
        try:
            import optional
        except ImportError:
            optional = None
        try:
            from . import fast
        except ImportError:
            fast = None
        import importlib
        def plugin(name):
            return importlib.import_module(f"heavy.plugins.{name}")
        @dataclass
        class Point:
            x: int = 3
    """,
    "heavy/part.py": "VALUE = 7\n",
    "heavy/plugins/__init__.py": "",
    "heavy/plugins/one.py": "X = 1\n",
    "broken.py": "import numpy\n",
}
PROGRAM = """
    import json, sys
    compiled = []
    import vmhost
    from vmhost.bytecode import source
    from heavy import Point, part, plugin

    def used(x):
        return x + part.VALUE + Point().x + plugin("one").X

    if __name__ == "__main__":
        compile_corrected = source.compile_corrected
        def counted(*arguments):
            compiled.append(arguments[1])
            return compile_corrected(*arguments)
        source.compile_corrected = counted
        def watch(event, arguments):
            if event == "compile" and "heavy" in str(arguments[1]):
                compiled.append(arguments[1])
            if event == "subprocess.Popen":
                compiled.append("a process")
        sys.addaudithook(watch)
        with vmhost.VMExecutor(1) as pool:
            print(json.dumps([pool.submit(used, 1).result(), len(compiled)]))
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache folder of the test's own, a program, and the packages that it imports."""
    monkeypatch.setenv("VMHOST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site-packages"))
    for name, text in PACKAGES.items():
        path = tmp_path / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    return tmp_path


def started(home):
    command = [sys.executable, "-W", "error", str(home / "program.py")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process):
    """The result of its call, and how much it compiled."""
    out, problems = process.communicate(timeout=300)
    assert process.returncode == 0 and not problems, problems
    return json.loads(out)


def entries(home):
    return sorted((home / "cache" / "compiled").iterdir())


def test_a_second_process_compiles_nothing(home):
    result, count = ended(started(home))
    assert result == 12 and count > 4
    assert (home / "cache" / "compiled").stat().st_mode & 0o777 == 0o700
    assert ended(started(home)) == [12, 0]
    (home / "program.py").write_text((home / "program.py").read_text().replace("return x", "return 1 + x"))
    assert ended(started(home)) == [13, 1], "of an edited program only itself"
    (home / "site-packages" / "heavy" / "part.py").write_text("VALUE = 8\n")
    result, count = ended(started(home))
    assert result == 14 and count > 1


def test_damaged_entries_are_made_again(home):
    ended(started(home))
    for number, path in enumerate(entries(home)):
        data = path.read_bytes()
        path.write_bytes([b"", data[:40], data[:-1], data[:-1] + bytes([data[-1] ^ 1])][number % 4])
    result, count = ended(started(home))
    assert result == 12 and count > 4
    assert ended(started(home)) == [12, 0]


def test_whatever_file_of_the_cache_is_damaged_is_made_again(home):
    text = 'exec(compile("def generated(): return 7", "<made>", "exec"))\nVALUE = generated()\n'
    (home / "site-packages" / "heavy" / "part.py").write_text(text)
    result, count = ended(started(home))
    assert result == 12 and count > 4 and ended(started(home)) == [12, 0]
    for path in (home / "cache").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:50])
    result, count = ended(started(home))
    assert result == 12 and count > 4 and ended(started(home)) == [12, 0]


def test_an_old_entry_in_a_folder_that_can_only_be_read(home, monkeypatch):
    kept = Compilations.usual()
    key = kept.key("kind")
    kept.put(key, "value")
    os.utime(home / "cache" / "compiled" / key, (0, 0))

    def refused(path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refused)
    assert kept.get(key) == "value"


def test_paths_that_are_not_utf_8(home):
    kept, path = Compilations.usual(), os.fsdecode(b"\xff.py")
    kept.put(kept.key(path), (path, {path: None}))
    assert kept.get(kept.key(path)) == (path, {path: None})
    odd = home / os.fsdecode(b"odd\xff")
    odd.mkdir()
    source = luggage.ModuleSource("m", b"", str(odd / "m.py"), False, str(odd))
    with pytest.raises(CompileError, match=r"odd\\udcff/m.py: its path is not UTF-8.*rename it"):
        luggage.luggage_of(source, (str(odd),), None)
    (odd / "other.py").touch()
    source = luggage.ModuleSource("m", b"import other", str(home / "m.py"), False, str(home))
    with pytest.raises(CompileError, match=r"odd\\udcff/other.py: its path is not UTF-8"):
        luggage.luggage_of(source, (str(home), str(odd)), None)


def test_processes_that_begin_at_once(home):
    assert [result for result, _ in map(ended, [started(home) for _ in range(3)])] == [12] * 3
    assert ended(started(home)) == [12, 0]
    assert all(len(path.name) == 64 for path in entries(home)), "nothing half made is left"


@pytest.mark.parametrize("place, mode", [("", 0o777), ("compiled", 0o770)])
def test_a_folder_that_others_could_have_written_is_not_used(home, place, mode):
    ended(started(home))
    before = entries(home)
    (home / "cache" / place).chmod(mode)
    assert Compilations.usual() is None
    result, count = ended(started(home))
    assert result == 12 and count > 4 and entries(home) == before


def test_entries_that_others_could_have_written_are_not_used(home, monkeypatch):
    kept = Compilations.usual()
    key = kept.key("kind", "part")
    kept.put(key, ("value", {b"key": None}))
    [path] = entries(home)
    assert path.name == key and kept.get(key) == ("value", {b"key": None})
    path.chmod(0o620)
    assert kept.get(key) is None
    path.chmod(0o600)
    elsewhere = home / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert kept.get(key) is None
    kept.put(key, 1)
    assert kept.get(key) == 1 and not path.is_symlink() and elsewhere.exists()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert kept.get(key) is None and Compilations.usual() is None


def test_what_cannot_be_written_is_not_kept(home):
    kept, limit = Compilations.usual(), resource.getrlimit(resource.RLIMIT_FSIZE)
    key = kept.key("kind")
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limit[1]))  # as on a full disk, a write fails half way
    try:
        kept.put(key, b"data" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert kept.get(key) is None and entries(home) == []


@pytest.mark.parametrize("cache", ["file/below", "missing"])
def test_without_a_folder_a_call_works(home, cache, monkeypatch):
    (home / "file").touch()
    if cache == "missing":
        monkeypatch.delenv("VMHOST_CACHE")
        monkeypatch.setenv("HOME", "relative")
        monkeypatch.setenv("XDG_CACHE_HOME", "")
    else:
        monkeypatch.setenv("VMHOST_CACHE", str(home / cache))
    assert Compilations.usual() is None
    if cache != "missing":  # without a home, other caches tell that they last for the process
        result, count = ended(started(home))
        assert result == 12 and count > 4


def test_the_oldest_entries_go_when_there_are_too_many(home, monkeypatch):
    monkeypatch.setattr(compilations, "_MAX_BYTES", 4000)
    kept = Compilations.usual()
    keys = [kept.key("kind", number) for number in range(12)]
    for number, key in enumerate(keys):
        kept.put(key, b"x" * 400)
        os.utime(home / "cache" / "compiled" / key, (number, number))
    assert kept.get(keys[0]) is not None, "which renews it"
    (home / "cache" / "compiled" / "unfinished").write_bytes(b"of a process that was killed")
    os.utime(home / "cache" / "compiled" / "unfinished", (0, 0))
    kept.bound()
    assert sum(path.stat().st_size for path in entries(home)) <= 4000
    assert [key for key in keys if kept.get(key) is None] == keys[1:7]
    assert "unfinished" not in {path.name for path in entries(home)}
    again = Compilations.usual()
    monkeypatch.setattr(compilations, "_MAX_BYTES", 0)
    again.bound()
    assert len(entries(home)) == 6, "a process that wrote nothing removes nothing"


CHANGES = [
    ("optional.py", ""),
    ("heavy/plugins/two.py", ""),
    ("heavy/plugins/one.py", "X = 100\n"),
    ("heavy/fast.abi3.so", ""),
    ("heavy/part.py", "import subprocess\n"),
    ("heavy/part.py", "(\n"),
    ("heavy/part/__init__.py", "from . import below\n"),
    ("broken.py", "VALUE = 1\n"),
    ("../numpy.py", ""),
]


@pytest.mark.parametrize("path, text", CHANGES)
def test_what_was_kept_of_an_import_is_used_only_while_the_folders_are_the_same(home, path, text):
    roots = (str(home), str(home / "site-packages"))
    program = "import heavy.part\ntry:\n    import broken\nexcept ImportError:\n    pass\nimport heavy.plugins.one\n"

    def found(kept):
        try:
            return closure_of_module("m", program, roots, gap="G", kept=kept)
        except Exception as error:
            return str(error)

    first = found(Compilations.usual())
    assert first == found(None) == found(Compilations.usual())
    (home / "site-packages" / path).parent.mkdir(exist_ok=True)
    (home / "site-packages" / path).write_text(text)
    assert found(Compilations.usual()) == found(None) != first
    assert found(Compilations.usual()) == found(None)


@pytest.mark.parametrize(
    "path, text",
    [
        *CHANGES,
        ("heavy/data.txt", "other"),
        ("heavy-1.dist-info/RECORD", "heavy/__init__.py,,\nheavy-1.dist-info/METADATA,,\n"),
        ("heavy-1.dist-info/METADATA", "Name: heavy\nVersion: 2\n"),
        ("program.recorded.json", "{}"),
    ],
)
def test_a_kept_luggage_is_used_only_while_all_that_it_holds_is_the_same(home, monkeypatch, path, text):
    site = home / "site-packages"
    (site / "heavy-1.dist-info").mkdir()
    (site / "heavy" / "data.txt").write_text("data")
    (site / "heavy-1.dist-info" / "METADATA").write_text("Name: heavy\nVersion: 1\n")
    names = "heavy/__init__.py", "heavy/data.txt", "heavy-1.dist-info/METADATA", "heavy-1.dist-info/RECORD"
    (site / "heavy-1.dist-info" / "RECORD").write_text("".join(f"{name},,\n" for name in names))
    monkeypatch.setattr(program_packages, "script", lambda: home / "program.py")
    program = (
        b"import heavy.part, heavy.plugins.one\ntry:\n    import broken\nexcept ImportError:\n    pass\nheavy.X = 1\n"
    )
    source = luggage.ModuleSource("m", program, str(home / "m.py"), False, str(home))
    roots, packs, pack = (str(home), str(site)), [], packing.pack

    def counted(*arguments):
        packs.append(arguments)
        return pack(*arguments)

    def found():
        luggage._compiled.clear()
        try:
            return luggage.luggage_of(source, roots, None)
        except Exception as error:
            return str(error)

    monkeypatch.setattr(packing, "pack", counted)
    first = found()
    assert found() == first and len(packs) == 1 and first.files["heavy/data.txt"] == b"data"
    changed = (home if path.startswith("program") else site) / path
    changed.parent.mkdir(exist_ok=True)
    changed.write_text(text)
    second = found()
    assert len(packs) == 2
    monkeypatch.setattr(luggage.Compilations, "usual", lambda *_: None)
    assert second == found()


def test_another_state_of_what_makes_the_luggage_has_entries_of_its_own(home, monkeypatch):
    source = luggage.ModuleSource("m", b"import heavy.part", str(home / "m.py"), False, str(home))
    maker, packs, pack = home / "maker.py", [], packing.pack
    monkeypatch.setattr(luggage, "_MAKERS", (maker,))
    monkeypatch.setattr(packing, "pack", lambda *arguments: packs.append(arguments) or pack(*arguments))
    for text, expected in (("", 1), ("", 1), ("other", 2), ("", 2)):
        maker.write_text(text)
        luggage._compiled.clear()
        compilations._now.cache_clear()  # as in another process
        luggage.luggage_of(source, (str(home), str(home / "site-packages")), None)
        assert len(packs) == expected
    maker.unlink()
    compilations._now.cache_clear()
    assert Compilations.usual(maker) is None, "an installation without sources"


def test_what_is_kept_of_real_packages_is_what_reading_them_gives(home):
    site = os.path.dirname(os.path.dirname(pytest.__file__))
    program = "import click, dateutil.parser, yaml\nfrom attr import define\n"
    expected = closure_of_module("m", program, (site,), gap="G")
    for _ in range(2):
        assert closure_of_module("m", program, (site,), gap="G", kept=Compilations.usual()) == expected


def test_the_caches_home_says_what_is_only_ours(tmp_path):
    path = tmp_path / "file"
    path.touch(mode=0o644)
    assert caches.is_only_ours(path.stat())
    for mode in (0o664, 0o646):
        path.chmod(mode)
        assert not caches.is_only_ours(path.stat())
