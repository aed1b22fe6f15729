"""A task's own files through os, os.path, glob, pathlib, shutil and pkgutil, for code that was written for a
folder."""

import pytest

import vmhost
from vmhost.bytecode.compiler import compile_sources

SOURCE = """
import os
import pathlib

def run(asked):
    name, folder = asked
    try:
        return str(globals()[name](folder))
    except Exception as error:
        return f"{type(error).__name__}: {error}"

HERE = os.path.dirname(__file__)
FULL = os.path.dirname(os.path.abspath(__file__))

def exists(folder):
    paths = ["labels.json", "./data/../labels.json", HERE + "/labels.json", FULL + "/labels.json", "/labels.json",
             os.path.abspath("labels.json"), b"labels.json", pathlib.Path("labels.json"), pathlib.Path("data")]
    missing = ["none", "data/none", "labels.json/", "labels.json/x", "", FULL + "/none", "dat", "/none", "/etc/passwd"]
    return [path for path in paths if not os.path.exists(path)], [path for path in missing if os.path.exists(path)]

def kinds(folder):
    return [(os.path.isfile(path), os.path.isdir(path), os.path.islink(path))
            for path in ("labels.json", "data", ".", HERE)]

def status(folder):
    file, again, other = os.stat("labels.json"), os.lstat(HERE + "/labels.json"), os.stat("data/a.csv")
    return (file.st_size, file == again, os.path.samestat(file, other), oct(file.st_mode),
            file.st_mtime * 1e9 == file.st_mtime_ns)

def access(folder):
    return [os.access("labels.json", mode) for mode in (os.F_OK, os.R_OK, os.W_OK, os.X_OK)], os.access("none", os.F_OK)

def listings(folder):
    return (os.listdir("data"), os.listdir(b"data"), os.listdir(),
            os.listdir(HERE) == os.listdir("/") == os.listdir(None))

def scanned(folder):
    with os.scandir() as entries:
        return [(entry.name, entry.path, entry.is_dir(), entry.stat().st_size) for entry in entries]

def walked(folder):
    return list(os.walk("data"))

def matched(folder):
    import glob
    return (glob.glob("data/*.csv"), glob.glob("**/c.csv", recursive=True),
            [str(path) for path in pathlib.Path().rglob("c.csv")],
            [path.read_text() for path in sorted((pathlib.Path(__file__).resolve().parent / "data").glob("*.csv"))])

def copied(folder):
    import shutil, zipfile
    shutil.copytree("data", folder + "/copy")
    shutil.copy2("labels.json", folder)
    with zipfile.ZipFile(folder + "/packed.zip", "w") as packed:
        packed.write("labels.json")
    return (sorted(os.listdir(folder + "/copy")), open(folder + "/labels.json").read(),
            zipfile.Path(folder + "/packed.zip", "labels.json").read_text())

def granted_first(folder):
    return os.stat(folder + "/labels.json").st_size

def read_first(folder):
    return open(folder + "/labels.json").read()

def list_missing(folder):
    os.listdir("none")

def list_file(folder):
    os.listdir("labels.json")

def read_folder(folder):
    open("data")

def follow_file(folder):
    os.readlink("labels.json")

def make_folder(folder):
    os.mkdir("data/new")

def remove(folder):
    os.remove(FULL + "/labels.json")

def write(folder):
    open(FULL + "/labels.json", "w")

def plugins(folder):
    import pkgutil, email
    import pack.first, pack.sub.second
    return ([found.name for found in pkgutil.iter_modules(pack.__path__)],
            [found.name for found in pkgutil.walk_packages(pack.__path__, "pack.")],
            [found.name for found in pkgutil.iter_modules([FULL + "/pack/sub"])],
            "charset" in [found.name for found in pkgutil.iter_modules(email.__path__)],
            {"main", "pack", "json"} <= {found.name for found in pkgutil.iter_modules()},
            list(pkgutil.iter_modules(["/etc", "none@1/none"])), pkgutil.get_data("pack", "inside.txt"))
"""
FILES = {
    "labels.json": b"[]",
    "data/a.csv": b"1",
    "data/b.csv": b"2",
    "data/sub/c.csv": b"333",
    "pack/inside.txt": b"in",
}
SOURCES = {
    "main": (SOURCE, "filed@1.2/main.py", False),
    "pack": ("", "filed@1.2/pack/__init__.py", True),
    "pack.first": ("", "filed@1.2/pack/first.py", False),
    "pack.sub": ("", "filed@1.2/pack/sub/__init__.py", True),
    "pack.sub.second": ("", "filed@1.2/pack/sub/second.py", False),
}
ANSWERS = {
    "exists": "([], [])",
    "kinds": "[(True, False, False), (False, True, False), (False, True, False), (False, True, False)]",
    "status": "(2, True, False, '0o100644', True)",
    "access": "([True, True, False, False], False)",
    "listings": "(['a.csv', 'b.csv', 'sub'], [b'a.csv', b'b.csv', b'sub'], ['data', 'labels.json', 'pack'], True)",
    "scanned": "[('data', './data', True, 0), ('labels.json', './labels.json', False, 2), ('pack', './pack', True, 0)]",
    "walked": "[('data', ['sub'], ['a.csv', 'b.csv']), ('data/sub', [], ['c.csv'])]",
    "matched": "(['data/a.csv', 'data/b.csv'], ['data/sub/c.csv'], ['data/sub/c.csv'], ['1', '2'])",
    "copied": "(['a.csv', 'b.csv', 'sub'], '[]', '[]')",
    "list_missing": "FileNotFoundError: [Errno 2] No such file or directory: 'none'",
    "list_file": "NotADirectoryError: [Errno 20] Not a directory: 'labels.json'",
    "read_folder": "IsADirectoryError: [Errno 21] Is a directory: 'data'",
    "follow_file": "OSError: [Errno 22] Invalid argument: 'labels.json'",
    "plugins": "(['first', 'sub'], ['pack.first', 'pack.sub', 'pack.sub.second'], ['second'], True, True, [], b'in')",
}


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("granted"))
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(
            compile_sources(
                SOURCES,
                entry="main:run",
                name="filed",
                version="1.2",
                files=FILES,
                permissions={"read": [folder], "write": [folder]},
                limits={"concurrency": 1, "wall_time_s": 60.0},
            )
        )
        yield lambda name: task([name, folder])


@pytest.mark.parametrize("name", ANSWERS)
def test_they_are_found_as_in_a_folder(ask, name):
    assert ask(name) == ANSWERS[name]


@pytest.mark.parametrize("name", ["make_folder", "remove", "write"])
def test_they_cannot_be_changed(ask, name):
    assert ask(name).startswith("PermissionDenied: ")


@pytest.mark.parametrize("granted, size", [(True, "7"), (False, "15")])
def test_what_is_granted_goes_before_what_the_bundle_has_under_the_same_path(tmp_path, granted, size):
    path = tmp_path / "labels.json"
    path.write_text("granted")
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(
            compile_sources(
                {"main": (SOURCE, "filed@1.2/main.py", False)},
                entry="main:run",
                name="filed",
                version="1.2",
                files={str(path).lstrip("/"): b"bundled, longer"},
                permissions={"read": [str(tmp_path)] if granted else []},
                limits={"concurrency": 1, "wall_time_s": 60.0},
            )
        )
        assert task(["granted_first", str(tmp_path)]) == size
        assert task(["read_first", str(tmp_path)]) == ("granted" if granted else "bundled, longer")
