"""sqlite3 in a device image: included on request, and then the same as in a VM of the full host;
other images have none of its code."""

import json
import shutil
import subprocess

import pytest

import vmhost
from tests.crashers import test_sql_stack
from vmhost.cli import failures, main
from vmhost.image import ImageError, link, shared_object

WORK = """
import dataclasses, datetime, sqlite3, threading

@dataclasses.dataclass
class Point:
    x: float
    y: float
    def __conform__(self, protocol):
        return f"{self.x};{self.y}"

class Mean:
    def __init__(self):
        self.seen = []
    def step(self, value):
        self.seen.append(value)
    def finalize(self):
        return sum(self.seen) / len(self.seen)

def refused(db, statement):
    try:
        return db.execute(statement).fetchall()
    except sqlite3.Error as error:
        return f"{type(error).__name__}: {error}"

def run(value):
    db = sqlite3.connect(":memory:", check_same_thread=False)
    db.row_factory = sqlite3.Row
    db.executescript("create table t (name text primary key, n integer, at text); create index by_n on t (n);")
    with db:
        db.executemany("insert into t values (?, ?, ?)",
                       ((f"{n:x}", n * n % 97, datetime.date(2026, 1, 1 + n % 28).isoformat()) for n in range(500)))
    db.create_function("twice", 1, lambda x: x * 2, deterministic=True)
    db.create_aggregate("mean", 1, Mean)
    db.create_collation("backwards", lambda a, b: (a < b) - (a > b))
    found = {
        "version": sqlite3.sqlite_version,
        "options": sorted(row[0] for row in db.execute("pragma compile_options")),
        "functions": [dict(row) for row in db.execute("select mean(n) as mean, twice(max(n)) as twice,"
                                                      " sin(1.0) as sin, mod(7.5, 2) as mod from t")],
        "window": [list(row)
                   for row in db.execute("select name, sum(n) over (order by name rows 2 preceding) from t limit 5")],
        "collated": [row[0] for row in db.execute("select name from t order by name collate backwards limit 3")],
        "json": db.execute("select json_extract(?, '$.a[1]')", ('{"a": [1, 2.5]}',)).fetchone()[0],
        "date": db.execute("select date('2026-11-22', '+1 month')").fetchone()[0],
        "point": db.execute("select ?", (Point(1, 2.5),)).fetchone()[0],
        "plan": [row["detail"] for row in db.execute("explain query plan select * from t where n = 3")],
    }
    db.executescript("create virtual table words using fts5(text);"
                     " insert into words values ('a sealed machine'), ('an open one')")
    matches = db.execute("select highlight(words, 0, '<', '>') from words where words match 'sealed'")
    found["found"] = [row[0] for row in matches]
    db.execute("drop table words")
    db.execute("create table blobs (data blob)")
    db.execute("insert into blobs values (zeroblob(64))")
    with db.blobopen("blobs", "data", 1) as blob:
        blob.write(b"written")
        blob[10] = 65
    db.commit()
    copy = sqlite3.connect(":memory:")
    db.backup(copy)
    found["copied"] = [copy.execute("select data from blobs").fetchone()[0][:12].hex(), len(list(copy.iterdump())),
                       len(copy.serialize())]
    again = sqlite3.connect(":memory:")
    sums, lock = [], threading.Lock()
    def add():
        for _ in range(50):
            with lock:
                sums.append(db.execute("select sum(n) from t").fetchone()[0])
    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found["threads"] = [len(sums), sorted(set(sums))]
    for name, act in {"constraint": lambda: db.execute("insert into t values ('0', 0, '')"),
                      "closed": lambda: again.close() or again.execute("select 1"),
                      "inside": lambda: db.create_function("close", 0, db.close) or db.execute("select close()"),
                      "file": lambda: sqlite3.connect("/tmp/made-by-a-guest"),
                      "uri": lambda: sqlite3.connect("file:x?mode=memory", uri=True),
                      "extension": lambda: db.enable_load_extension(True),
                      "attached": lambda: db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 5),
                      "settings": lambda: db.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, False)}.items():
        try:
            found[name] = repr(act())
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    for statement in ("attach ':memory:' as other", "vacuum into 'other'", "pragma temp_store=file",
                      "pragma mmap_size=1000000", "pragma writable_schema=1", "pragma hard_heap_limit=1",
                      "select load_extension('x')", "select fts3_tokenizer('simple')", "pragma temp_store"):
        found[statement] = repr(refused(copy, statement))
    found["sum"] = value
    return found
"""


def run_full(bundle, value=None):
    with vmhost.Host(allow_unsigned=True) as host:
        return host.load(bundle)(value, timeout_s=300)


def test_a_bundle_that_imports_it_gets_it_and_gives_the_answers_of_the_full_host(vmrun, task, tmp_path):
    bundle, out = task(WORK), tmp_path / "out"
    assert main(["image", str(out), "--bundle", str(bundle)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["_sqlite3.so", "host.vmb", "manifest", "stdlib.vmb", "vmrun"]
    done = vmrun("run", bundle, "--allow-unsigned", "--input", "7", folder=out)
    assert (done.returncode, done.stderr) == (0, "")
    found, expected = json.loads(done.stdout), run_full(bundle, 7)
    assert found == expected
    assert "not authorized" in found["attach ':memory:' as other"] and found["file"].startswith("PermissionDenied")


def test_it_needs_nothing_of_the_machine_but_its_libc_and_may_lie_anywhere(sqlite_image, vmrun, task, tmp_path, tools):
    needs = subprocess.run(
        [tools.readelf, "-dW", sqlite_image / "_sqlite3.so", sqlite_image / "vmrun"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "libc.so.6" in needs and "libsqlite" not in needs
    moved = tmp_path / "a new place"
    shutil.copytree(sqlite_image, moved)
    bundle = task(
        "import sqlite3\ndef run(value):\n    return sqlite3.connect(':memory:').execute('select"
        " sqlite_version()').fetchone()[0]\n"
    )
    done = vmrun("run", bundle, "--allow-unsigned", folder=moved)
    assert (done.returncode, done.stderr, json.loads(done.stdout)) == (0, "", run_full(bundle))
    asked = dict(line.split(" ", 1) for line in (moved / "manifest").read_text().splitlines())
    assert "_sqlite3" in asked["native"].split() and asked["glibc"] == link.needed_glibc(
        tools, moved / "vmrun", moved / "_sqlite3.so"
    )


GREEDY = """
import sqlite3
def run(value):
    db = sqlite3.connect(":memory:")
    db.execute("create table t(x)")
    for _ in range(400):
        db.execute("insert into t values (zeroblob(500000))")
    return "all"
"""
ENDLESS = """
import sqlite3
def run(value):
    db = sqlite3.connect(":memory:")
    db.set_progress_handler(None, 0)
    db.execute("with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n")
"""


def test_what_a_task_allocates_in_it_counts_and_its_queries_can_be_stopped(sqlite_image, vmrun, task):
    done = vmrun("run", task(GREEDY), "--allow-unsigned", folder=sqlite_image)
    assert done.returncode == failures.LIMIT and "memory" in done.stderr
    assert "SQLite was in use" not in done.stderr
    done = vmrun("run", task(ENDLESS, "endless"), "--allow-unsigned", "--timeout", "0.3", folder=sqlite_image)
    assert done.returncode == failures.LIMIT and "did not end within its time" in done.stderr


def test_vms_side_by_side_have_each_their_own_and_a_host_that_outlives_greedy_ones_goes_on(
    sqlite_image, task, tmp_path
):
    served = tmp_path / "served"
    served.mkdir()
    for name, source in (("good", WORK), ("greedy", GREEDY)):
        shutil.copy(task(source, name), served / f"{name}.vmb")
    with subprocess.Popen(
        [sqlite_image / "vmrun", "serve", served, "--allow-unsigned"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={},
    ) as process:
        calls = "".join(
            json.dumps({"id": n, "task": "greedy" if n % 3 == 2 else "good", "input": n}) + "\n" for n in range(12)
        )
        answers = {
            answer["id"]: answer for answer in map(json.loads, process.communicate(calls, timeout=120)[0].splitlines())
        }
    expected = run_full(served / "good.vmb", 0)
    assert sorted(answers) == list(range(12)) and process.returncode == failures.DONE
    assert all(answers[n]["result"] == expected | {"sum": n} for n in answers if n % 3 != 2)
    assert {answers[n]["error"]["type"] for n in answers if n % 3 == 2} <= {"MemoryLimitError", "BreakerOpenError"}


def test_an_image_without_it_names_it_with_the_command_that_adds_it(image, vmrun, task, tools):
    done = vmrun("run", task("import sqlite3\ndef run(value):\n    pass\n"), "--allow-unsigned")
    assert done.returncode == failures.TASK_FAILED
    assert "sqlite3 is not in this image" in done.stderr and "--module sqlite3" in done.stderr
    assert not (image / "_sqlite3.so").exists()
    data = (image / "vmrun").read_bytes()
    assert b"SQLite format 3" not in data
    exported = subprocess.run(
        [tools.nm, "-D", "--defined-only", image / "vmrun"], capture_output=True, text=True, check=True
    ).stdout
    assert "Py" not in exported


def test_a_damaged_or_missing_module_says_so(sqlite_image, vmrun, task, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(sqlite_image, copy)
    assert vmrun("check", folder=copy).returncode == 0
    data = bytearray((copy / "_sqlite3.so").read_bytes())
    data[len(data) // 2] ^= 1
    (copy / "_sqlite3.so").write_bytes(data)
    done = vmrun("check", folder=copy)
    assert (
        done.returncode == failures.HOST_FAILED and "_sqlite3.so: altered or damaged: expected SHA-256" in done.stderr
    )
    (copy / "_sqlite3.so").unlink()
    missing = vmrun("check", folder=copy)
    assert (
        missing.returncode == failures.HOST_FAILED
        and "No such file" in missing.stderr
        and "vmhost image" in missing.stderr
    )


def test_the_same_inputs_give_the_same_bytes_with_it_too(sqlite_image, tmp_path, monkeypatch):
    (tmp_path / "build").mkdir()
    for kept in ("objects", "notes"):  # what was compiled
        (tmp_path / "build" / kept).symlink_to(link.OBJECTS / kept)
    monkeypatch.setattr(link, "OBJECTS", tmp_path / "build")  # linked again, at another place
    assert main(["image", str(tmp_path / "again"), "--module", "sqlite3"]) == 0
    for path in sqlite_image.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def test_a_python_without_sqlites_static_library_is_told(tmp_path, monkeypatch, capsys, tools):
    monkeypatch.setattr(
        "vmhost.image.toolchain._beside",
        lambda python, name, advice, beside=vmhost.image.toolchain._beside: (
            beside(tmp_path / "lib" / "python", name, advice)
            if name == "libsqlite3.a"
            else beside(python, name, advice)
        ),
    )
    assert main(["image", str(tmp_path / "out"), "--module", "sqlite3"]) == failures.REFUSED
    output = capsys.readouterr().err
    assert "has no libsqlite3.a" in output and "make device-libraries" in output and not (tmp_path / "out").exists()


def test_what_is_no_shared_object_or_needs_other_libraries_is_refused(tools):
    module = tools.shared_modules["_sqlite3"].read_bytes()
    with pytest.raises(ImageError, match="needs libother.so.1, got one that does not"):
        shared_object.without_need(module, "libother.so.1")
    with pytest.raises(ImageError, match="expected a shared object of 64 bits"):
        shared_object.without_need(b"!<arch>\n" + module, "libsqlite3.so.0")


@pytest.mark.parametrize("where", ["top", "end", "thread"])
def test_sql_that_nests_deep_gets_the_full_hosts_answers(vmrun, task, sqlite_image, where):
    bundle = task(test_sql_stack.GUEST)
    for kind, count in (("nested", 30), ("nested", 990), ("chains", 900)):
        done = vmrun(
            "run",
            bundle,
            "--allow-unsigned",
            "--timeout",
            "110",
            "--input",
            json.dumps([kind, count, where]),
            folder=sqlite_image,
        )
        assert (done.returncode, done.stderr) == (0, "")
        counts, asked = run_full(bundle, [kind, count, where])
        assert json.loads(done.stdout) == {"$tuple": [list(counts), asked]}
