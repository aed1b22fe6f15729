"""`task.yaml`: valid contents, and that every mistake is named with file, line and key."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.batches import each
from vmhost.bytecode.errors import TaskSpecError
from vmhost.bytecode.spec import read_task

GOOD = """\
name: sample
version: 1.2.0
entry: main:run
python: "3.14"
limits: {memory: 64 MiB, wall_time: 2 s, cpu_time: 500 ms, stack: 1 MiB, concurrency: 4}
permissions:
  read: [/var/data/**]
  net: ["example.org:443", "[::1]:*"]
  env: [LANG]
  host: [lookup]
files: [labels.json, data/*.csv]
models: {net: net.onnx, again: ./net.onnx}
priority: 5
fresh: true
"""
FILES = {"labels.json": "[]", "data/a.csv": "1", "data/b.csv": "2", "data/c.txt": "no", "net.onnx": b"\0"}


def problems(write_task, spec, files=None):
    folder = write_task({**FILES, **(files or {})}, spec=spec)
    with pytest.raises(TaskSpecError) as caught:
        read_task(folder)
    return [problem.removeprefix(f"{folder}/") for problem in caught.value.problems]


def test_everything_that_can_be_written(write_task):
    folder = write_task(FILES, spec=GOOD)
    spec = read_task(folder)
    assert (spec.folder, spec.name, spec.version, spec.entry, spec.python) == (
        folder,
        "sample",
        "1.2.0",
        "main:run",
        "3.14",
    )
    assert dict(spec.limits) == {
        "memory_bytes": 64 << 20,
        "wall_time_s": 2.0,
        "cpu_time_s": 0.5,
        "stack_bytes": 1 << 20,
        "concurrency": 4,
    }
    assert dict(spec.permissions) == {
        "read": ("/var/data/**",),
        "write": (),
        "net": ("example.org:443", "[::1]:*"),
        "listen": (),
        "env": ("LANG",),
        "host": ("lookup",),
        "tables": (),
    }
    assert spec.files == ("data/a.csv", "data/b.csv", "labels.json")
    assert list(spec.models.items()) == [("again", "net.onnx"), ("net", "net.onnx")]
    assert (spec.priority, spec.fresh) == (5, True)
    assert spec.lines["permissions.env"] == 9


def test_what_is_not_written_is_not_granted_and_not_limited(write_task):
    spec = read_task(write_task())
    assert dict(spec.limits) == {}
    assert set(spec.permissions.values()) == {()}
    assert (spec.files, dict(spec.models), spec.priority, spec.fresh) == ((), {}, 0, False)


@pytest.mark.parametrize(
    ("written", "memory", "time"),
    [
        ("1 GiB", 1 << 30, None),
        ("16MB", 16_000_000, None),
        ("4.5 MiB", 4_718_592, None),
        ("8388608", 8 << 20, None),
        (None, None, ("2", 2.0)),
        (None, None, ("0.25", 0.25)),
        (None, None, ("1.5 min", 90.0)),
        (None, None, ("250 us", 0.00025)),
    ],
)
def test_units(write_task, written, memory, time):
    limits = f"limits: {{memory: {written}}}" if written else f"limits: {{wall_time: {time[0]}}}"
    spec = read_task(write_task(spec=GOOD[: GOOD.index("limits")] + limits))
    assert dict(spec.limits) == ({"memory_bytes": memory} if written else {"wall_time_s": time[1]})


@each(
    ("old", "new", "expected"),
    [
        ("memory: 64 MiB", "memory: lots", 'task.yaml:5: limits.memory: expected a size such as "64 MiB", got "lots"'),
        ("memory: 64 MiB", "memory: 1 MiB", 'task.yaml:5: limits.memory: expected 4 MiB to 256 TiB, got "1 MiB"'),
        ("memory: 64 MiB", "memory: true", 'task.yaml:5: limits.memory: expected a size such as "64 MiB", got true'),
        ("memory: 64 MiB", "memory: -1", 'task.yaml:5: limits.memory: expected a size such as "64 MiB", got -1'),
        (
            "wall_time: 2 s",
            "wall_time: 2 days",
            'task.yaml:5: limits.wall_time: expected a time such as "2 s" or "500 ms", got "2 days"',
        ),
        (
            "wall_time: 2 s",
            "wall_time: .inf",
            "task.yaml:5: limits.wall_time: expected a time above 0 and below 1e9 s, got Infinity",
        ),
        (
            "wall_time: 2 s",
            "wall_time: 0 s",
            'task.yaml:5: limits.wall_time: expected a time above 0 and below 1e9 s, got "0 s"',
        ),
        ("wall_time: 2 s", "walltime: 2 s", "task.yaml:5: limits.walltime: unknown key; did you mean 'wall_time'?"),
        ("stack: 1 MiB", "stack: 64 KiB", 'task.yaml:5: limits.stack: expected 96 KiB to 256 MiB, got "64 KiB"'),
        (
            "concurrency: 4",
            "concurrency: 0",
            "task.yaml:5: limits.concurrency: expected a whole number from 1 to 1024, got 0",
        ),
        (
            "version: 1.2.0",
            "version: 1.2",
            (
                "task.yaml:2: version: expected a version in quotes or with two dots, such as 1.2.0, "
                "got 1.2; YAML reads it as a number: put it in quotes"
            ),
        ),
        (
            'python: "3.14"',
            "python: 3.14",
            (
                'task.yaml:4: python: expected a Python version in quotes, such as "3.14", got 3.14; '
                "YAML reads it as a number: put it in quotes"
            ),
        ),
        (
            "name: sample",
            "name: ../Sample",
            (
                "task.yaml:1: name: expected a name of lower-case letters, digits, '-' and '_' that begins "
                'with a letter, such as digits, got "../Sample"'
            ),
        ),
        (
            "entry: main:run",
            "entry: main",
            'task.yaml:3: entry: expected `module:function`, such as main:run, got "main"',
        ),
        ("entry: main:run\n", "", "task.yaml:1: entry: is missing; expected `module:function`, such as main:run"),
        ("  env: [LANG]", "  emv: [LANG]", "task.yaml:9: permissions.emv: unknown key; did you mean 'env'?"),
        (
            "[LANG]",
            "[A B]",
            'task.yaml:9: permissions.env[0]: expected the name of an environment variable, such as LANG, got "A B"',
        ),
        (
            "[LANG]",
            "LANG",
            'task.yaml:9: permissions.env: expected a list of names of environment variables, got "LANG"',
        ),
        ("[LANG]", "[LANG, LANG]", "task.yaml:9: permissions.env: expected each item once"),
        (
            "[LANG]",
            "[LANG, LANG, 3]",
            "task.yaml:9: permissions.env[2]: expected the name of an environment variable, such as LANG, got 3",
        ),
        (
            "[/var/data/**]",
            "[data]",
            'task.yaml:7: permissions.read[0]: expected an absolute path, such as /var/data/**, got "data"',
        ),
        (
            '"example.org:443"',
            '"https://example.org"',
            (
                "task.yaml:8: permissions.net[0]: expected an address such as "
                '"example.org:443" or "10.0.0.7:*", got "https://example.org"'
            ),
        ),
        (
            '"example.org:443"',
            '"example.org:65536"',
            (
                "task.yaml:8: permissions.net[0]: expected an address such as "
                '"example.org:443" or "10.0.0.7:*", got "example.org:65536"'
            ),
        ),
        (
            "priority: 5",
            "priority: high",
            'task.yaml:13: priority: expected a whole number from -100 to 100; higher goes first, got "high"',
        ),
        ("fresh: true", "fresh: 1", "task.yaml:14: fresh: expected true (a new VM for each call) or false, got 1"),
        ("fresh: true", "fresh: true\nname: again", "task.yaml:15: name: is there twice, first on line 1; remove one"),
        (
            "fresh: true",
            "colour: red",
            (
                "task.yaml:14: colour: unknown key; expected one of name, version, entry, python, "
                "limits, permissions, files, requirements, import, models, trainable, priority, fresh, "
                "trigger, table"
            ),
        ),
        ("fresh: true", "fresh: *x", "task.yaml:14: aliases (*name) are not allowed; write the value again"),
        (
            "fresh: true",
            "fresh: !!python/name:os.system x",
            (
                "task.yaml:14: fresh: can't be read as "
                "tag:yaml.org,2002:python/name:os.system: could not determine a constructor for the tag "
                "'tag:yaml.org,2002:python/name:os.system'"
            ),
        ),
        ("fresh: true", "fresh: 2020-99-99", "task.yaml:14: fresh: can't be read as tag:yaml.org,2002:timestamp: "),
        (
            "fresh: true",
            "fresh: !!python/object:os.x {}",
            "task.yaml:14: fresh: tags such as 'tag:yaml.org,2002:python/",
        ),
        ("fresh: true", "? [a]\n: b", "task.yaml:14: expected a plain key"),
        ("labels.json", "lables.json", "task.yaml:11: files[0]: expected a file in "),
        ("data/*.csv", "data", "task.yaml:11: files[1]: 'data' is a folder; name its files, or write data/**"),
        ("data/*.csv", "data/*.tsv", "task.yaml:11: files[1]: expected a file in "),
        (
            "data/*.csv",
            "../secret",
            "task.yaml:11: files[1]: expected a file inside the task's folder, got '../secret'",
        ),
        (
            "data/*.csv",
            "/etc/passwd",
            (
                "task.yaml:11: files[1]: expected a file in the task's folder, such as labels.json "
                "or "
                'data/*.csv, got "/etc/passwd"'
            ),
        ),
        ("net: net.onnx", "net: gone.onnx", "task.yaml:12: models.net: expected a file in "),
        (
            "net: net.onnx",
            "net: '*.onnx'",
            "task.yaml:12: models.net: expected an ONNX file in the task's folder, such as digits.onnx",
        ),
        (
            "{net: net.onnx, again: ./net.onnx}",
            "[net.onnx]",
            "task.yaml:12: models: expected a mapping of at most 1024 names to ONNX files",
        ),
    ],
)
def test_each_mistake_names_file_line_and_key(write_task, old, new, expected):
    assert GOOD.count(old) == 1
    found = problems(write_task, GOOD.replace(old, new))
    assert any(problem.startswith(expected) for problem in found), found


@pytest.mark.parametrize("value", ["!!bool x", "!!timestamp x", "!!int ''", "!!int '-'", "!!int '0x'", "!!float ''"])
def test_text_that_is_not_of_its_tags_type(write_task, value):
    (found,) = problems(write_task, GOOD.replace("priority: 5", f"priority: {value}"))
    assert found.startswith("task.yaml:13: priority: can't be read as tag:yaml.org,2002:")


def test_number_of_a_megabyte_is_refused_unread(write_task):
    (found,) = problems(write_task, GOOD.replace("priority: 5", "priority: 1" + ":01" * 300_000))
    assert found.endswith("expected a number of at most 1024 characters")


@pytest.mark.parametrize(
    ("key", "shown"),
    [(r'"a\nb"', r"'a\nb'"), (r'"\ud800"', r"'\ud800'"), ('? "' + "k" * 5000 + '"\n', "k" * 117 + "...")],
)
def test_any_key_is_shown_in_one_line_of_some_length(write_task, key, shown):
    (found,) = problems(write_task, GOOD + f"{key}: 1\n")
    assert found.startswith(f"task.yaml:15: {shown}: unknown key; ")


@pytest.mark.parametrize(("written", "within_ms"), [(0.0006, 1), (0.0016, 2), (316224000.0004, 316224000000)])
def test_seconds_are_rounded_to_milliseconds_before_their_range_is_checked(write_task, written, within_ms):
    spec = read_task(write_task(FILES, spec=GOOD + f"trigger: {{on: [a], within: {written}}}\n"))
    assert spec.trigger.within_ms == within_ms


def test_near_misses_are_suggested(write_task):
    assert "; did you mean 'labels.json'?" in problems(write_task, GOOD.replace("labels", "lables"))[0]
    assert "did you mean 'run'?" in problems(write_task, GOOD.replace("main:run", "main:runs"))[0]
    assert "did you mean 'main'?" in problems(write_task, GOOD.replace("main:run", "mian:run"))[0]


def test_all_mistakes_at_once_in_order_of_lines(write_task):
    spec = GOOD.replace("64 MiB", "lots").replace("name: sample", "name: 7").replace("fresh: true", "fresh: maybe")
    assert [problem.split(": ")[1] for problem in problems(write_task, spec)] == ["name", "limits.memory", "fresh"]


def test_link_that_leads_out_of_the_folder(write_task, tmp_path):
    (tmp_path / "secret").write_text("x")
    folder = write_task(FILES, spec=GOOD)
    (folder / "labels.json").unlink()
    (folder / "labels.json").symlink_to(tmp_path / "secret")
    with pytest.raises(TaskSpecError, match="expected a file inside the task's folder, got 'labels.json'"):
        read_task(folder)


def test_what_no_bundle_can_hold_is_said_before_it_is_read(write_task):
    folder = write_task({**FILES, "odd:name.json": ""}, spec=GOOD.replace("data/*.csv", "'*.bin', 'odd:name.json'"))
    with open(folder / "large.bin", "wb") as file:
        file.truncate(5 << 30)  # a hole: no disk is used, and reading it would take memory for all of it
    with pytest.raises(TaskSpecError) as caught:
        read_task(folder)
    large, odd = caught.value.problems
    assert (
        large
        == f"{folder}/task.yaml:11: files: 'large.bin' has 5,368,709,120 bytes, a bundle holds at most 1,073,741,824; "
        "leave them where they are, and grant their folder under permissions.read"
    )
    assert odd.startswith(f"{folder}/task.yaml:11: files: 'odd:name.json': expected a path without backslashes, colons")
    (folder / "odd:name.json").rename(folder / "name.bin")
    for name in ("large.bin", "name.bin"):
        with open(folder / name, "wb") as file:
            file.truncate(600 << 20)
    (folder / "task.yaml").write_text(GOOD.replace("data/*.csv", "'*.bin'"))
    with pytest.raises(TaskSpecError, match="task.yaml:11: files: 1,258,291,204 bytes in all, a bundle holds at most"):
        read_task(folder)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "task.yaml:1: the file is empty"),
        ("# nothing\n", "task.yaml:1: the file is empty"),
        ("- a\n", "task.yaml:1: expected a mapping of keys to values, got"),
        ("a: [1,\n", "task.yaml:2: not YAML: "),
        (
            "a: b: c\n",
            "task.yaml:1: not YAML: mapping values are not allowed here; indent the keys of one level alike, and put",
        ),
        (
            "a: 1\n\tb: 2\n",
            "task.yaml:2: not YAML: found character '\\t' that cannot start any token; indent with spaces",
        ),
        (
            "a: 1\nversion 1\nb: 2\n",
            "task.yaml:2: not YAML: could not find expected ':'; write each line as `key: value`",
        ),
        ("a: 1\n---\nb: 2\n", "task.yaml:2: not YAML: but found another document"),
        (b"a: \xff\n", "task.yaml:1: expected UTF-8, got byte 0xff"),
        ('a: "\\ud800"\n', "task.yaml"),
        ("a: 1\nb: \x01\n", "task.yaml:2: not YAML: unacceptable character 0x01; remove it"),
        ('a: 1\nb: "\\U00110000"\n', 'task.yaml:2: not YAML: expected an escape of a character, at most "\\U0010ffff"'),
        ("%YAML " + "9" * 5000 + ".1\n---\na: 1\n", "task.yaml:1: not YAML: Exceeds the limit"),
        ("\n" + "[" * 3000, "task.yaml:2: nested too deeply; expected 8 levels"),
        ("x" * (2 << 20), "task.yaml: expected at most 1048576 bytes, got 2097152"),
        (
            None,
            (
                "task.yaml: can't read the task's description: No such file or directory; a task's folder has one, with"
                " at least"
            ),
        ),
    ],
)
def test_files_that_are_no_description(write_task, content, expected):
    folder = write_task({"task.yaml": content})
    with pytest.raises(TaskSpecError) as caught:
        read_task(folder)
    assert caught.value.problems[0].startswith(f"{folder}/{expected}"), caught.value.problems


def test_no_such_folder(tmp_path):
    with pytest.raises(TaskSpecError, match="there is no such folder"):
        read_task(tmp_path / "gone")


@pytest.mark.parametrize(
    "source",
    [
        "def run(value): pass",
        "async def run(value): pass",
        "def run(value, /, *, fast=False): pass",
        "def run(*values): pass",
        "def run(value, more=1): pass",
        "run = lambda value: value",
        "from other import run",
        "from other import *",
        "from other import go as run",
        "if True:\n    def run(value): pass",
        "try:\n    from other import run\nexcept ImportError:\n    run = None",
        "import functools\n@functools.cache\ndef run(): pass",
        "def run(value):\n    def pairs():\n        yield value\n    return list(pairs())",
    ],
)
def test_entry_points_that_count(write_task, source):
    assert read_task(write_task({"main.py": source, "other.py": ""})).entry == "main:run"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def go(value): pass", "has no function 'run'"),
        ("class A:\n    def run(value): pass", "has no function 'run'"),
        ("def run(): pass", "got `def run():`"),
        ("\ndef run(a, b): pass", "main.py:2: expected a function that takes the caller's one value"),
        ("def run(a, *, b): pass", "got `def run(a, *, b):`"),
        ("class run: pass", "expected a function, got the class 'run'"),
        (
            "def run(value):\n    for x in value:\n        yield x",
            "main.py:1: expected a function that returns one value, got the generator 'run'; return a list",
        ),
        ("async def run(value):\n    yield value", "got the generator 'run'; return a list"),
        (None, "there is no module 'main'"),
    ],
)
def test_entry_points_that_do_not(write_task, source, expected):
    found = problems(write_task, GOOD, {"main.py": source})
    assert len(found) == 1
    assert found[0].startswith("task.yaml:3: entry: ")
    assert expected in found[0]


def test_entry_in_a_package(write_task):
    spec = GOOD.replace("main:run", "app.core:run")
    assert read_task(write_task({**FILES, "app/core.py": "def run(value): pass"}, spec=spec)).entry_module == "app.core"


@settings(max_examples=60)
@given(
    st.text(max_size=60)
    | st.lists(
        st.sampled_from(GOOD.split() + [":", "-", "{", "}", "[", "]", "\n", "  ", "*", "&a", "!!", "<<", "|"]),
        max_size=25,
    ).map(" ".join)
)
def test_any_text_gives_a_spec_or_a_task_spec_error(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("any")
    (folder / "task.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(TaskSpecError):
        read_task(folder)
