"""Granted paths in a VM mean the same as in plain CPython, and no others can be reached, even if files are moved
meanwhile: a call acts on the file that was checked."""

import os
import sqlite3
import stat
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

import vmhost
from tests.hosts import bundle

# Both Pythons do this: every operation with every path, each in a tree of its own.
TABLE = '''
import io, os, posix

PATHS = ["file", "file/", "file//", "file/.", "file/..", "file/x", "dir", "dir/", "dir/.", "dir/..", "dir/../file",
         "dir//inner",
         "dir/inner", "dir/../missing", "empty", "empty/", "empty/.", "missing", "missing/", "missing/.", "missing/x",
         "missing/../file", "missing/../../file", "to_file", "to_file/", "to_dir", "to_dir/", "to_dir/inner",
         "to_dir/new", "to_dir/../file", "to_link", "to_absolute", "to_folder_absolute/inner", "loop", "loop/",
         "loop/x", "dangling", "dangling/", "dangling/x", "into_dangling", "n" * 255, "n" * 256, "n" * 256 + "/x",
         "dir" + "/" * 4200 + "inner", ".", ""]

def mode_and_size(status):
    return status.st_mode, status.st_size if status.st_mode & 0o100000 else 0, status.st_nlink

def by_os(path, flags, mode=0o777):
    number = os.open(path, flags, mode)
    try:
        if flags & os.O_PATH:
            return mode_and_size(os.fstat(number))
        if flags & os.O_ACCMODE != os.O_RDONLY:
            return os.write(number, b"by os")
        return os.read(number, 9) if os.fstat(number).st_mode & 0o100000 else os.listdir(number)
    finally:
        os.close(number)

def by_open(path, mode):
    with open(path, mode) as file:
        assert file.name == path
        return file.read() if mode == "r" else file.write("by open")

def by_file_io(path, mode, **more):
    with io.FileIO(path, mode, **more) as file:
        return file.name == path, file.mode

def by_open_code(path):
    with io.open_code(path) as file:
        return file.read()

def entries(path):
    with os.scandir(path) as scan:
        return sorted((entry.name, entry.path, os.fspath(entry), repr(entry), entry.is_symlink(),
                       entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False), ask(entry.is_dir),
                       ask(entry.is_file), ask(entry.stat), ask(entry.stat),
                       mode_and_size(entry.stat(follow_symlinks=False)), entry.inode() == os.lstat(entry.path).st_ino)
                      for entry in scan)

def ask(question):
    try:
        answer = question()
    except OSError as error:
        return type(error).__name__, error.errno, error.filename
    return answer if answer in (True, False) else mode_and_size(answer)

def in_bytes(path):
    return os.listdir(os.fsencode(path)), sorted((entry.name, entry.path) for entry in os.scandir(os.fsencode(path)))

OPERATIONS = dict(
    stat=lambda path: mode_and_size(os.stat(path)),
    lstat=lambda path: mode_and_size(os.lstat(path)),
    stat_itself=lambda path: mode_and_size(os.stat(path, follow_symlinks=False)),
    access=lambda path: (os.access(path, os.F_OK), os.access(path, os.X_OK),
                         os.access(path, os.F_OK, follow_symlinks=False)),
    listdir=lambda path: sorted(os.listdir(path)),
    entries=entries,
    in_bytes=in_bytes,
    readlink=os.readlink,
    statvfs=lambda path: os.statvfs(path).f_namemax,
    realpath=lambda path: os.path.realpath(path, strict=True),
    chmod=lambda path: os.chmod(path, 0o700),
    mkdir=os.mkdir,
    makedirs=lambda path: os.makedirs(path, exist_ok=True),
    rmdir=os.rmdir,
    unlink=os.unlink,
    remove=os.remove,
    utime=lambda path: os.utime(path, (1, 2)),
    utime_itself=lambda path: os.utime(path, (1, 2), follow_symlinks=False),
    truncate=lambda path: os.truncate(path, 3),
    read=lambda path: by_open(path, "r"),
    write=lambda path: by_open(path, "w"),
    append=lambda path: by_open(path, "a"),
    exclusive=lambda path: by_open(path, "x"),
    update=lambda path: by_open(path, "r+"),
    file_io=lambda path: by_file_io(path, "rb+"),
    file_io_mode=lambda path: by_file_io(path, "rw"),
    file_io_keeps=lambda path: by_file_io(path, "w", closefd=False),
    open_code=by_open_code,
    os_read=lambda path: by_os(path, os.O_RDONLY),
    os_create=lambda path: by_os(path, os.O_WRONLY | os.O_CREAT, 0o600),
    os_exclusive=lambda path: by_os(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    os_no_link=lambda path: by_os(path, os.O_RDONLY | os.O_NOFOLLOW),
    os_create_no_link=lambda path: by_os(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW),
    os_folder=lambda path: by_os(path, os.O_RDONLY | os.O_DIRECTORY),
    os_path=lambda path: by_os(path, os.O_PATH),
    os_path_no_link=lambda path: by_os(path, os.O_PATH | os.O_NOFOLLOW),
    os_truncate=lambda path: by_os(path, os.O_RDWR | os.O_TRUNC),
    os_temporary=lambda path: by_os(path, os.O_RDWR | os.O_TMPFILE, 0o600),
    rename=lambda path: os.rename(path, TREE + "moved"),
    rename_slash=lambda path: os.rename(path, TREE + "moved/"),
    rename_over_file=lambda path: os.rename(path, TREE + "file"),
    rename_over_empty=lambda path: os.rename(path, TREE + "empty/"),
    renamed_to=lambda path: os.rename(TREE + "file", path),
    folder_renamed_to=lambda path: os.replace(TREE + "dir", path),
)

def answer(root, name, path, number):
    """What comes of an operation with a path of tree `number`, without the path of that tree."""
    global TREE
    TREE = f"{root}/{number}/"
    def plain(value):
        if isinstance(value, (tuple, list)):
            return [plain(item) for item in value]
        if isinstance(value, bytes):
            return value.replace(TREE.encode(), b"")
        return value.replace(TREE, "").replace(TREE[:-1], "") if isinstance(value, str) else value
    try:
        return plain(["did", OPERATIONS[name](TREE + path)])
    except (OSError, ValueError) as error:
        return plain([type(error).__name__] + [getattr(error, about, None)
                                               for about in ("errno", "filename", "filename2")])

def answers(root, cases):
    return [answer(root, *case) for case in cases]
'''

GUEST = (
    TABLE
    + '''
import sqlite3, time, vmhost.guest

def run(asked):
    name, *args = asked
    return globals()[name](*args)

class Changes:
    """A path that is another one when it is asked again."""
    def __init__(self, *paths):
        self.paths = list(paths)
    def __fspath__(self):
        return self.paths.pop(0) if len(self.paths) > 1 else self.paths[0]

def tried(function, *args):
    try:
        return function(*args)
    except vmhost.guest.PermissionDenied as error:
        return "denied"
    except (OSError, sqlite3.DatabaseError) as error:
        return getattr(error, "errno", None) or type(error).__name__

def outward(tree):
    """What each operation says of links out of what is granted, and of what lies behind them."""
    global TREE
    TREE = tree
    return {f"{name} {path}": tried(OPERATIONS[name], tree + path) for name in OPERATIONS
            for path in ("out_file", "out_file/", "out_dir/", "out_dir/secret", "out_dir/new", "out_dangling",
                         "dir/../../../outside/secret",
                         "out_missing/../file")
            if not name.startswith("file_io_") and ("/" in path or name not in ITSELF)}

# These are about a link itself, which lies in what is granted.
ITSELF = set("""lstat stat_itself readlink utime_itself unlink remove rename renamed_to rename_over_file rename_slash
                rename_over_empty folder_renamed_to os_path_no_link os_exclusive os_no_link os_create_no_link mkdir
                makedirs rmdir exclusive""".split())

def entry(folder, name):
    found = {entry.name: entry for entry in os.scandir(folder)}[name]
    return [tried(found.is_dir), tried(found.is_file), tried(found.stat), found.is_symlink(),
            found.stat(follow_symlinks=False).st_size]

def changing(inside, outside):
    names = "stat lstat access listdir scandir chmod utime truncate unlink mkdir rmdir".split()
    more = {"access": [0], "chmod": [0o600], "truncate": [0]}
    calls = {name: lambda path, name=name: getattr(os, name)(path, *more.get(name, [])) for name in names}
    calls |= {"open": lambda path: open(path).read(), "os.open": lambda path: os.close(os.open(path, os.O_RDWR)),
              "sqlite3": lambda path: journal(path, "create table if not exists t (x)"),
              "rename": lambda path: os.rename(path, Changes(inside + ".moved", outside + ".moved"))}
    for call in calls.values():
        for first in (inside, outside):
            for times in range(3):
                tried(call, Changes(*[first] * times, inside, outside))
                tried(call, Changes(*[first] * times, outside, inside))
                if not os.path.exists(inside):
                    with open(inside, "w") as file:
                        file.write("inside")

# Each looks at what somebody else changes, until `end`; gives what it should not have seen.

def race(root, end, needed):
    x, folder, seen = root + "/x", root + "/folder", set()
    def reads():
        with open(x) as file:
            seen.add(file.read())
        number = os.open(x, os.O_RDONLY)
        seen.add(os.read(number, 100).decode())
        os.close(number)
    def reads_below():
        with open(folder + "/name") as file:
            seen.add(file.read())
    def asks():
        seen.add(os.stat(x).st_size)
        seen.add(os.stat(folder + "/name").st_size)
        seen.add(os.lstat(folder + "/name").st_size)
    def lists():
        seen.update(os.listdir(folder))
    def scans():
        for entry in os.scandir(folder):
            seen.add(entry.name)
            seen.add(entry.stat(follow_symlinks=False).st_size)
        for entry in os.scandir(root):
            if entry.name == "x":
                seen.add(entry.stat().st_size)
    def writes():
        with open(x, "r+") as file:
            file.write("inside")
    def makes():
        os.mkdir(folder + "/made")
    def removes_folder():
        os.rmdir(folder + "/made")
    def removes():
        os.unlink(folder + "/victim")
    def moves():
        os.rename(folder + "/victim", folder + "/moved")
    def changes():
        os.chmod(x, 0o600)
        os.utime(folder + "/name", (5, 5))
        os.truncate(x, 6)
    def opens_database():
        connection = sqlite3.connect(folder + "/database", timeout=0)
        try:
            connection.execute("create table if not exists mine (x)")
            seen.update(name for name, in connection.execute("select name from sqlite_master"))
            connection.execute("insert into mine values (1)")
            connection.commit()
        except sqlite3.Error:
            pass
        finally:
            connection.close()
    ways = [reads, reads_below, asks, lists, scans, writes, makes, removes_folder, removes, moves, changes,
            opens_database]
    done = dict.fromkeys((way.__name__ for way in ways), 0)
    # a busy machine may take longer until each of the needed ways has succeeded once
    while time.time() < end or (time.time() < end + 30 and not all(done[name] for name in needed)):
        for way in ways:
            try:
                way()
                done[way.__name__] += 1
            except (OSError, sqlite3.Error):
                pass
    return sorted(map(str, seen)), done

def race_within(root, end):
    """One thread renames an outward link over `x`, as another opens it: the task alone."""
    import threading
    x, seen = root + "/x", set()
    def renames():
        while time.time() < end:
            for a, b in ((x, "/kept"), (root + "/link", "/x"), (x, "/link"), (root + "/kept", "/x")):
                try:
                    os.rename(a, root + b)
                except OSError:
                    pass
    thread = threading.Thread(target=renames)
    thread.start()
    opened = 0
    while time.time() < end:
        try:
            with open(x) as file:
                seen.add(file.read())
            opened += 1
        except OSError:
            pass
    thread.join()
    return sorted(seen), opened > 0

def journal(path, *statements):
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        return [tried(lambda: connection.execute(statement).fetchall()) for statement in statements]
    finally:
        connection.close()
'''
)


# Operations that leave everything as it is.
LOOKS = set(
    """stat lstat stat_itself access listdir entries in_bytes readlink statvfs realpath read file_io open_code os_read
               os_no_link os_folder os_path os_path_no_link os_temporary""".split()
)


def make_tree(tree):
    (tree / "dir").mkdir(parents=True)
    (tree / "empty").mkdir()
    (tree / "file").write_text("in a file")
    (tree / "dir" / "inner").write_text("inner")
    for name, target in dict(
        to_file="file",
        to_dir="dir",
        to_link="to_file",
        to_absolute=tree / "file",
        loop="loop",
        to_folder_absolute=tree / "dir",
        dangling="not_there",
        into_dangling="dangling",
    ).items():
        (tree / name).symlink_to(target)


def state(root):
    """The files below `root`, by name: kind, contents or target."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            found[os.path.relpath(path, root)] = (
                status.st_mode,
                (
                    os.readlink(path).replace(str(root), "")
                    if stat.S_ISLNK(status.st_mode)
                    else Path(path).read_bytes()
                    if stat.S_ISREG(status.st_mode)
                    else None
                ),
                status.st_mtime if status.st_mtime < 10 else None,
            )
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("paths")


@pytest.fixture(scope="module")
def task(folder):
    granted = [str(folder / "in"), str(folder / "races"), str(folder / "exact")]
    (folder / "in").mkdir()
    with vmhost.Host(allow_unsigned=True) as host:
        yield host.load(
            bundle(
                GUEST, permissions={"read": granted, "write": granted}, limits={"concurrency": 2, "wall_time_s": 100.0}
            )
        )
        assert held(folder) == []


def held(folder):
    """The open files of this process below `folder`."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            pass
    return [path for path in found if path.startswith(str(folder))]


def _table():
    names = {}
    exec(TABLE, names)
    return names


def test_a_path_means_what_it_means_to_cpython(task, folder):
    table, cases, expected, number = _table(), [], [], 0
    plain, sealed = folder / "as" / "table", folder / "in" / "table"  # names of one length: links have sizes
    make_tree(plain / "0")
    for name in table["OPERATIONS"]:
        for path in table["PATHS"]:
            cases.append((name, path, number))
            expected.append(table["answer"](str(plain), *cases[-1]))
            if expected[-1][0] == "did" and name not in LOOKS:  # what has been changed is nobody else's
                number += 1
                make_tree(plain / str(number))
    for tree in range(number + 1):
        make_tree(sealed / str(tree))
    got = task(("answers", str(sealed), cases))
    assert held(folder) == []  # of what gates hold, nothing is left
    rows = zip(cases, expected, got, strict=True)
    assert [(case, wanted, given) for case, wanted, given in rows if wanted != given] == []
    assert number > 200
    left = [state(root) for root in (plain, sealed)]
    assert {
        name: (left[0].get(name), left[1].get(name))
        for name in left[0].keys() | left[1].keys()
        if left[0].get(name) != left[1].get(name)
    } == {}


def make_outside(folder):
    (folder / "outside" / "empty").mkdir(parents=True)
    (folder / "outside" / "secret").write_text("the secret")


def test_links_out_of_what_is_granted_lead_nowhere(task, folder):
    make_outside(folder)
    tree = folder / "in" / "outward"
    make_tree(tree)
    (tree / "out_file").symlink_to(folder / "outside" / "secret")
    (tree / "out_dir").symlink_to(folder / "outside")
    (tree / "out_dangling").symlink_to(folder / "outside" / "made")
    (tree / "out_missing").symlink_to(folder / "outside" / "missing")
    before = state(folder / "outside")
    answers = task(("outward", f"{tree}/"))
    assert state(folder / "outside") == before
    for case, answer in answers.items():
        name, path = case.split(" ")
        if name == "access":
            assert answer[:2] == (False, False), case
        elif name == "makedirs":
            assert answer in ("denied", 17), case  # 17: the name is taken
        elif path in ("out_file/", "out_dir/") and not isinstance(answer, str):
            assert isinstance(answer, int), case  # about the name of the link: is it a folder?
        else:
            assert answer == "denied", (case, answer)


def test_an_entry_of_a_folder_does_not_follow_links_out_of_what_is_granted(task, folder):
    tree = folder / "in" / "entries"
    (tree / "dir").mkdir(parents=True)
    (tree / "file").write_text("in a file")
    (folder / "elsewhere").write_text("the secret")
    (tree / "out").symlink_to(folder / "elsewhere")
    size = len(str(folder / "elsewhere"))
    assert task(("entry", str(tree), "out")) == ["denied", "denied", "denied", True, size]


def test_a_path_is_asked_once(task, folder):
    tree = folder / "in" / "changing"
    tree.mkdir()
    (tree / "x").write_text("inside")
    (folder / "beyond").mkdir()
    (folder / "beyond" / "x").write_text("the secret")
    before = state(folder / "beyond")
    times = os.stat(folder / "beyond" / "x").st_mtime_ns
    task(("changing", str(tree / "x"), str(folder / "beyond" / "x")))
    assert state(folder / "beyond") == before and os.stat(folder / "beyond" / "x").st_mtime_ns == times


def test_a_granted_database_alone_has_its_journal(task, folder):
    """No folder is granted here: the journal is made beside the database all the same."""
    (folder / "exact").unlink(missing_ok=True)
    assert task(
        ("journal", str(folder / "exact"), "create table t (x)", "insert into t values (1)", "select * from t")
    )[2] == [(1,)]
    with closing(sqlite3.connect(folder / "exact")) as own:
        assert own.execute("select * from t").fetchall() == [(1,)]


def test_write_ahead_logs_are_exclusive(task, folder):
    path = folder / "in" / "log"
    assert task(("journal", str(path), "pragma journal_mode=wal", "create table t (x)")) == [[("delete",)], []]
    assert task(
        ("journal", str(path), "pragma locking_mode=exclusive", "pragma journal_mode=wal", "insert into t values (1)")
    ) == [[("exclusive",)], [("wal",)], []]
    assert not (folder / "in" / "log-shm").exists()
    # the host's own connections are as they were
    with closing(sqlite3.connect(path)) as own:
        assert own.execute("pragma journal_mode").fetchall() == [("wal",)]
        assert own.execute("select * from t").fetchall() == [(1,)] and (folder / "in" / "log-shm").exists()


class Swaps(threading.Thread):
    """Another process with write access: moves `root`/x and `root`/folder into and out of the granted folder."""

    def __init__(self, root, outside):
        super().__init__()
        self.root, self.outside, self.stopped = root, outside, threading.Event()

    def run(self):
        root, rounds = self.root, 0
        while not self.stopped.is_set():
            rounds += 1
            os.symlink(self.outside / "name", root / "x.new")
            os.replace(root / "x.new", root / "x")
            os.rename(root / "folder", root / "aside")
            os.symlink(self.outside, root / "folder")
            if rounds % 8 == 0:
                (root / "aside" / "victim").write_text("inside")
            (root / "x.new").write_text("inside")
            os.replace(root / "x.new", root / "x")
            os.unlink(root / "folder")
            os.rename(root / "aside", root / "folder")


def make_race(folder, name):
    root, outside = folder / "races" / name, folder / f"outside of {name}"
    (root / "folder").mkdir(parents=True)
    outside.mkdir()
    (root / "x").write_text("inside")
    (root / "folder" / "name").write_text("inside")
    for file in ("name", "victim", "secret"):
        (outside / file).write_text("the secret of seventeen")
    connection = sqlite3.connect(outside / "database")
    connection.execute("create table secret (x)")
    connection.commit()
    connection.close()
    return root, outside


def test_nothing_outside_is_reached_while_paths_change(task, folder):
    root, outside = make_race(folder, "many")
    before = state(outside)
    swaps = Swaps(root, outside)
    swaps.start()
    try:
        needed = ("reads", "reads_below", "asks", "lists", "writes", "changes")
        seen, done = task(("race", str(root), time.time() + 1.5, needed))
    finally:
        swaps.stopped.set()
        swaps.join()
    assert state(outside) == before
    assert not {"secret", "the secret of seventeen", "23"} & set(seen), seen
    for work in needed:
        assert done[work] > 0, done  # or nothing was tried


def test_a_task_cannot_win_a_race_against_itself(task, folder):
    root, outside = make_race(folder, "alone")
    (root / "link").symlink_to(outside / "secret")
    assert task(("race_within", str(root), time.time() + 1)) == (["inside"], True)


ALONG = """
import os
import stat

def outcome(act, *arguments, **options):
    try:
        return act(*arguments, **options)
    except OSError as error:
        return type(error).__name__

def vars_of(status):
    return {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}

def run(value):
    above, granted, beside = value
    return {
        "made": [outcome(os.makedirs, granted + path, exist_ok=True) for path in ("", "/deep/er", "/deep/er")],
        "is a folder": [stat.S_IMODE(os.stat(above).st_mode),
                        *(os.path.isdir(path) for path in (above, os.path.dirname(above), granted))],
        "all of it": [value for name, value in vars_of(os.stat(above)).items() if value and name != "st_mode"],
        "mkdir": (outcome(os.mkdir, above), outcome(os.mkdir, above + "/new"), outcome(os.mkdir, beside)),
        "others": [outcome(act, above) for act in (os.listdir, os.scandir, os.rmdir, os.statvfs)],
        "beside": (outcome(os.stat, beside), outcome(os.lstat, beside), outcome(os.stat, above + "/file")),
    }
"""


@pytest.mark.parametrize("kinds", [("read", "write"), ("write",)])
@pytest.mark.parametrize("there", [True, False])
def test_the_folders_above_a_granted_one_are_folders_and_no_more(tmp_path, kinds, there):
    above, beside = tmp_path / "above", tmp_path / "beside"
    granted = above / "granted"
    above.mkdir()
    beside.mkdir()
    (above / "file").touch()
    if there:
        granted.mkdir()
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(bundle(ALONG, permissions={kind: [str(granted)] for kind in kinds}))
        answer = task((str(above), str(granted), str(beside)))
    assert answer == {
        "made": [None, None, None],
        "is a folder": [0, True, True, True],
        "all of it": [],
        "mkdir": ("FileExistsError", "PermissionDenied", "PermissionDenied"),
        "others": ["PermissionDenied"] * 4,
        "beside": ("PermissionDenied",) * 3,
    }
    assert (granted / "deep" / "er").is_dir()
