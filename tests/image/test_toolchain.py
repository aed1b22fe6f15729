"""Error messages if an image cannot be made."""

import os
from types import SimpleNamespace

import pytest

from vmhost.image import ImageError, link, toolchain


def test_a_python_without_a_static_library_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(toolchain.sysconfig, "get_config_var", lambda name: str(tmp_path))
    monkeypatch.setattr(toolchain.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ImageError, match=r"came without a static library \(libpython3\.\d+\.a\).*libpython3.14-dev"):
        toolchain.python_library()


def test_a_machine_without_gcc_is_told(monkeypatch):
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    with pytest.raises(ImageError, match="gcc.*not on PATH; install gcc and binutils"):
        toolchain.find()


def test_libraries_that_are_missing_or_others_than_the_lock_names_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(toolchain, "LIBRARIES", tmp_path)
    with pytest.raises(ImageError, match="has no libsodium.a; run `make device-libraries`"):
        toolchain._locked("libsodium.a")
    (tmp_path / "lib" / "here").mkdir(parents=True)
    (tmp_path / "lib" / "here" / "libsodium.a").write_bytes(b"another")
    with pytest.raises(ImageError, match="expected SHA-256 .*, got .*--lock"):
        toolchain._locked("libsodium.a")


def test_an_engine_older_than_one_of_its_headers_is_not_linked_in(tmp_path):
    newer_than = toolchain.native_build().newer_than
    source, header, object_file = tmp_path / "add.c", tmp_path / "kernels and more.h", tmp_path / "add.o"
    for path in (source, header, object_file):
        path.touch()
        os.utime(path, (1000, 1000))
    object_file.with_suffix(".d").write_text("add.o: add.c \\\n kernels\\ and\\ more.h\n")
    assert newer_than(object_file, source, tmp_path) is None
    os.utime(header, (2000, 2000))
    assert newer_than(object_file, source, tmp_path) == header
    object_file.with_suffix(".d").unlink()
    assert newer_than(object_file, source, tmp_path) == source


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "mkdir -p lib/here; echo another > lib/here/libsodium.a; echo another > lib/here/libtomcrypt.a",
            "expected SHA-256 .*, got",
        ),
        (
            "echo unpacking; echo 'no such server' >&2; exit 3",
            "could not be fetched: no such server; look at what `make device-libraries` says",
        ),
    ],
)
def test_libraries_are_fetched_where_they_were_not_yet(monkeypatch, tmp_path, script, message):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "device_libraries.sh").write_text(script)
    (tmp_path / "setup.py").touch()
    monkeypatch.setattr(toolchain, "CHECKOUT", tmp_path)
    monkeypatch.setattr(toolchain, "LIBRARIES", tmp_path)
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: name)
    monkeypatch.setattr(toolchain, "python_library", lambda: tmp_path / "lib" / "libpython.a")
    with pytest.raises(ImageError, match=message):
        toolchain.find()


def test_what_the_preprocessor_reads_decides_whether_it_is_asked_again(monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(link, "OBJECTS", tmp_path / "build")
    monkeypatch.setattr(link, "_run", lambda command, run=link._run: ran.append(command) or run(command))
    tools, table = SimpleNamespace(compiler="gcc"), tmp_path / "table"
    table.mkdir()
    (table / "native_modules.h").write_text("#define TABLE 1\n")
    header, source, reader = tmp_path / "number.h", tmp_path / "add.c", tmp_path / "reader.c"
    header.write_text("#define NUMBER 1\n")
    source.write_text('#include "number.h"\nint number(void) { return NUMBER; }\n')
    reader.write_text('#include "native_modules.h"\nint table(void) { return TABLE; }\n')
    for path in (header, source):
        os.utime(path, (1000, 1000))

    def made(path, includes=table):
        ran.clear()
        return link._compile(tools, path, ["-O0"], [includes, tmp_path]), sum("-E" in command for command in ran)

    first, asked = made(source)
    assert asked == 1 and made(source) == (first, 0)
    header.write_text("#define NUMBER 2\n")
    os.utime(header, (2000, 2000))
    second, asked = made(source)
    assert asked == 1 and second != first and made(source) == (second, 0)
    second.unlink()
    assert made(source) == (second, 1) and second.exists()
    header.unlink()
    with pytest.raises(ImageError, match="number.h"):
        made(source)
    one, asked = made(reader)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/native_modules.h").write_text("#define TABLE 2\n")
    other, asked_again = made(reader, tmp_path / "other")
    assert one != other and (asked, asked_again, made(reader)) == (1, 1, (one, 1)), "each image has a table of its own"


def test_a_file_that_changes_while_it_is_read_is_read_again(monkeypatch, tmp_path):
    monkeypatch.setattr(link, "OBJECTS", tmp_path / "build")
    source = tmp_path / "add.c"

    def changing(command, run=link._run):
        done = run(command)
        if "-E" in command:
            source.write_text("int two;\n")
        return done

    source.write_text("int one;\n")
    os.utime(source, (1000, 1000))
    monkeypatch.setattr(link, "_run", changing)
    tools = SimpleNamespace(compiler="gcc")
    first = link._compile(tools, source, ["-O0"], [tmp_path / "table"])
    assert link._compile(tools, source, ["-O0"], [tmp_path / "table"]) != first
