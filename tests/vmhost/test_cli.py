"""The command line without a VM: keys, compile, inspect, wrong input, exit codes, what is printed where."""

import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from vmhost.cli import failures, inspect, main, output, tracebacks
from vmhost.cli.demo import duration_text
from vmhost.cli.inspect import size_text

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "import sys; from vmhost.cli import main; sys.exit(main())"]


@pytest.fixture(autouse=True)
def key_folder(tmp_path, monkeypatch):
    """Keys of the tests' own, and lines that are not folded at 80 columns."""
    monkeypatch.setenv("VMHOST_KEYS", str(tmp_path / "own keys"))
    monkeypatch.delenv("COLUMNS", raising=False)
    return tmp_path / "own keys"


@pytest.fixture
def vmhost(capsys):
    """Runs a command line: gives (exit code, stdout, stderr)."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def task_folder(tmp_path):
    folder = tmp_path / "greet"
    folder.mkdir()
    (folder / "task.yaml").write_text(
        'name: greet\nversion: 1.0.0\nentry: main:run\npython: "3.%d"\n'
        "limits: {memory: 32 MiB, wall_time: 2 s}\nfiles: [words.txt]\n" % sys.version_info[1]
    )
    (folder / "words.txt").write_text("hello")
    (folder / "main.py").write_text("import other\n\ndef run(value):\n    return other.greet(value)\n")
    (folder / "other.py").write_text("def greet(value):\n    return 'hello ' + value['name']\n")
    return folder


def test_a_key_is_made_private_and_listed_and_trusted_once(vmhost, key_folder):
    code, out, _ = vmhost("keys", "new", "me", "--trust")
    assert code == 0
    assert stat.S_IMODE((key_folder / "keys" / "me").stat().st_mode) == 0o600
    code, out, _ = vmhost("keys", "list", "--json")
    (listed,) = json.loads(out)["keys"]
    assert listed["name"] == "me" and listed["private"] and listed["trusted"]
    code, out, err = vmhost("keys", "new", "me")
    assert (code, out) == (failures.WRONG_INPUT, "") and "is there already" in err


def test_another_key_of_a_trusted_name_is_not_taken_for_it(vmhost, tmp_path):
    vmhost("keys", "new", "me", "--trust")
    assert vmhost("keys", "new", "me", "-o", tmp_path / "me")[0] == 0
    code, _, err = vmhost("keys", "trust", tmp_path / "me.pub")
    assert code == failures.WRONG_INPUT and "trusts another key called me already" in err


@pytest.mark.parametrize("name", ["../me", ".me", "", "a b", "a/b"])
def test_a_key_name_stays_in_its_folder(vmhost, name):
    code, _, err = vmhost("keys", "new", name)
    assert code == failures.WRONG_INPUT and "expected a name" in err


def test_compile_and_inspect_agree(vmhost, task_folder, tmp_path):
    vmhost("keys", "new", "me", "--trust")
    path = tmp_path / "made here" / "greet.vmb"
    code, out, _ = vmhost("compile", task_folder, "-o", path, "--sign", "me", "--json")
    (made,) = json.loads(out)["bundles"]
    assert code == 0 and made["path"] == str(path) and made["bytes"] == path.stat().st_size

    code, out, _ = vmhost("inspect", path, "--verify", "--json")
    seen = json.loads(out)
    assert code == 0
    assert seen["digest"] == made["digest"]
    assert [module["name"] for module in seen["modules"]] == ["main", "other"]
    assert [file["name"] for file in seen["files"]] == ["words.txt"]
    assert seen["limits"] == {"memory_bytes": 32 << 20, "wall_time_s": 2.0}
    assert seen["signature"]["trusted_as"] == "me"

    code, out, _ = vmhost("inspect", path)
    for word in (
        "greet 1.0.0",
        "main:run",
        "memory 32.0 MiB, wall time 2 s",
        "trusted as me",
        "words.txt",
        seen["digest"],
    ):
        assert word in out


def test_inspect_says_who_signed_what_nobody_trusts(vmhost, task_folder, tmp_path):
    path = tmp_path / "greet.vmb"
    vmhost("keys", "new", "stranger")
    vmhost("compile", task_folder, "-o", path, "--sign", "stranger")
    signature = json.loads(vmhost("inspect", path, "--json")[1])["signature"]
    assert signature["trusted_as"] is None and signature["fingerprint"].startswith("SHA256:")
    vmhost("compile", task_folder, "-o", path)
    assert json.loads(vmhost("inspect", path, "--json")[1])["signature"] is None


def test_several_folders_go_into_one(vmhost, task_folder, tmp_path):
    code, out, _ = vmhost("compile", task_folder, ROOT / "tasks" / "runaway", "-o", tmp_path / "out")
    assert code == 0 and len(out.splitlines()) == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["greet.vmb", "runaway.vmb"]
    assert vmhost("compile", task_folder, task_folder, "-o", task_folder / "main.py")[0] == failures.WRONG_INPUT


def test_a_failed_compile_leaves_the_old_bundle(vmhost, task_folder, tmp_path):
    path = tmp_path / "greet.vmb"
    vmhost("compile", task_folder, "-o", path)
    before = path.read_bytes()
    (task_folder / "other.py").write_text("def greet(value)\n")
    code, out, err = vmhost("compile", task_folder, "-o", path)
    assert code == failures.REFUSED and "other.py:1" in err and "SyntaxError" in err
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.glob("*greet.vmb*")] == ["greet.vmb"]


def test_a_bundle_that_cannot_be_put_in_place_leaves_nothing_half_written(vmhost, task_folder, tmp_path):
    (tmp_path / "out" / "greet.vmb").mkdir(parents=True)
    code, _, err = vmhost("compile", task_folder, "-o", tmp_path / "out")
    assert code == failures.WRONG_INPUT and "cannot write the bundle: Is a directory" in err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["greet.vmb"]


def test_what_needs_the_checkout_says_so(tmp_path):
    """As an installed package sees it: no tasks/ and no bench/ beside it, nor in the current folder."""
    for package in ("vmhost", "bytecode"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("data", "__pycache__", "*.so", "*.c")
        )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    (tmp_path / "elsewhere").mkdir()
    for name, says in (
        ("demo", "the demo runs the tasks of the project's checkout"),
        ("bench", "in bench/ of the project's checkout"),
    ):
        ended = subprocess.run(
            [*COMMAND, name], cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True, timeout=60
        )
        assert (ended.returncode, ended.stdout) == (failures.WRONG_INPUT, "") and says in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["compile", "nowhere"], failures.WRONG_INPUT, "nowhere: no such folder"),
        (["compile", "greet", "--sign", "nobody"], failures.WRONG_INPUT, "nobody"),
        (["compile", "greet", "--target", "3.9"], failures.REFUSED, "3.9"),
        (["compile", "greet", "-o", "greet/main.py/x.vmb"], failures.WRONG_INPUT, "cannot write the bundle"),
        (["inspect", "nothing.vmb"], failures.WRONG_INPUT, "nothing.vmb: no such bundle"),
        (["inspect", "greet"], failures.WRONG_INPUT, "is a folder; compile it first"),
        (["inspect", "greet/words.txt"], failures.REFUSED, "words.txt"),
        (["run", "nothing.vmb"], failures.WRONG_INPUT, "nothing.vmb: no such bundle"),
        (
            ["run", "greet.vmb", "--input", "missing.json"],
            failures.WRONG_INPUT,
            "missing.json: no such file, and not JSON",
        ),
        (["run", "greet.vmb", "--input", "greet"], failures.WRONG_INPUT, "cannot read the input: Is a directory"),
        (["run", "greet.vmb", "--input", "greet.vmb"], failures.WRONG_INPUT, "greet.vmb: expected JSON in UTF-8"),
        (
            ["run", "greet.vmb", "--input", "greet/words.txt"],
            failures.WRONG_INPUT,
            "words.txt: not JSON: Expecting value: line 1",
        ),
        (
            ["run", "greet.vmb", "--input", '{"name": '],
            failures.WRONG_INPUT,
            "--input: not JSON: Expecting value: line 1 column 10",
        ),
        (["run", "greet.vmb", "--input", "[" * 100_000], failures.WRONG_INPUT, "--input: not JSON"),
        (
            ["run", "greet.vmb", "--input", "{}", "--each"],
            failures.WRONG_INPUT,
            "--each: expected a list of values as input, got dict",
        ),
        (["run", "greet.vmb", "--timeout", "soon"], failures.WRONG_INPUT, "--timeout: expected a quantity"),
        (["run", "greet.vmb", "--trust", "no.pub"], failures.WRONG_INPUT, "no.pub"),
        (["demo", "--tasks", "greet"], failures.WRONG_INPUT, "greet: expected the folder of the shipped tasks"),
        (["keys", "trust", "greet/words.txt"], failures.WRONG_INPUT, "words.txt:1: expected `ed25519"),
        (["frobnicate"], failures.WRONG_INPUT, "No such command"),
        (["compile"], failures.WRONG_INPUT, "Missing argument"),
    ],
)
def test_wrong_input_gets_one_clear_error(vmhost, task_folder, tmp_path, monkeypatch, arguments, code, says):
    monkeypatch.chdir(tmp_path)
    vmhost("compile", task_folder, "-o", "greet.vmb")
    got, out, err = vmhost(*arguments)
    assert (got, out) == (code, "")
    assert says in err
    assert "Traceback" not in err and len(err) < 600


def test_errors_as_json_come_on_stdout(vmhost, tmp_path):
    code, out, err = vmhost("inspect", tmp_path / "nothing.vmb", "--json")
    error = json.loads(out)["error"]
    assert (error["type"], error["exit_code"], err) == ("InputError", code, "")
    (tmp_path / "junk.vmb").write_bytes(b"junk" * 100)
    code, out, _ = vmhost("inspect", tmp_path / "junk.vmb", "--json")
    assert json.loads(out)["error"]["type"] == "BundleError" and code == failures.REFUSED


def test_an_altered_bundle_is_refused(vmhost, task_folder, tmp_path):
    path = tmp_path / "greet.vmb"
    vmhost("compile", task_folder, "-o", path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"hello", b"jello", 1))
    code, _, err = vmhost("inspect", path)
    assert code == failures.REFUSED and err.startswith(f"error: {path}")


def test_a_reader_who_goes_away_ends_the_command_quietly(task_folder, tmp_path):
    """Like `vmhost inspect big.vmb | true`: no complaint about the pipe, and an exit code that says so."""
    for number in range(600):
        (task_folder / f"words{number}.txt").write_text("x")
    text = (task_folder / "task.yaml").read_text().replace("[words.txt]", '["*.txt"]')
    (task_folder / "task.yaml").write_text(text)
    main(["compile", str(task_folder), "-o", str(tmp_path / "big.vmb")])
    for style in ([], ["--json"]):
        reader, writer = os.pipe()
        os.close(reader)
        ended = subprocess.run(
            [*COMMAND, "inspect", str(tmp_path / "big.vmb"), *style],
            stdout=writer,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            timeout=60,
        )
        os.close(writer)
        assert (ended.returncode, ended.stderr) == (failures.PIPE_CLOSED, b"")


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_nothing_is_cut_off_on_a_narrow_terminal(vmhost, task_folder, tmp_path, monkeypatch, columns):
    path = tmp_path / "greet.vmb"
    vmhost("compile", task_folder, "-o", path)
    digest = json.loads(vmhost("inspect", path, "--json")[1])["digest"]
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = vmhost("inspect", path)
    assert digest in out and "words.txt" in out and "…" not in out


def test_ctrl_c_that_breaks_what_it_hits_is_still_ctrl_c(vmhost, monkeypatch):
    def interrupted(path):
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("cannot release un-acquired lock")

    monkeypatch.setattr(inspect, "existing", interrupted)
    code, out, err = vmhost("inspect", "x.vmb")
    assert (code, out, err.strip()) == (failures.INTERRUPTED, "", "vmhost: interrupted")


def test_help_names_every_command(vmhost):
    code, out, _ = vmhost("--help")
    assert code == 0
    for name in ("compile", "run", "inspect", "bench", "doctor", "keys", "demo"):
        assert f"\n  {name} " in out
        assert vmhost(name, "--help")[0] == 0 or name == "bench"


def test_every_exit_code_is_documented():
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    codes = [value for name, value in vars(failures).items() if name.isupper() and isinstance(value, int)]
    assert len(codes) == 9
    for code in codes:
        assert f"\n| {code} |" in text


def test_source_lines_come_only_from_the_folder_that_was_compiled(vmhost, task_folder, tmp_path):
    from bytecode.format import read_bundle

    path = tmp_path / "greet.vmb"
    vmhost("compile", task_folder, "-o", path)
    bundle = read_bundle(path, allow_unsigned=True)
    traceback = (
        'Traceback (most recent call last):\n  File "greet@1.0.0/main.py", line 4, in run\n'
        '  File "greet@1.0.0/gone.py", line 1, in gone\n  File "json/decoder.py", line 1, in decode\nKeyError: \'name\''
    )
    assert tracebacks.source_folder(bundle, task_folder) == task_folder
    shown = tracebacks.with_source(traceback, task_folder)
    assert 'line 4, in run\n    return other.greet(value)\n  File "greet@1.0.0/gone.py"' in shown
    assert len(shown.splitlines()) == len(traceback.splitlines()) + 1
    assert tracebacks.with_source(shown, task_folder) == shown, "lines that are there already are not shown twice"
    (task_folder / "other.py").write_text("def greet(value):\n    return 'goodbye ' + value['name']\n")
    assert tracebacks.source_folder(bundle, task_folder) is None
    assert tracebacks.source_folder(bundle, tmp_path) is None


def test_bundle_contents_can_be_listed_by_any_zip_tool(vmhost, task_folder, tmp_path):
    vmhost("compile", task_folder, "-o", tmp_path / "greet.vmb")
    with zipfile.ZipFile(tmp_path / "greet.vmb") as archive:
        assert archive.testzip() is None and "manifest.msgpack" in archive.namelist()


def test_quantities_for_people():
    assert [duration_text(s) for s in (2.5e-5, 0.00312, 1.06, float("nan"))] == ["25 us", "3.12 ms", "1.06 s", "-"]
    assert [size_text(n) for n in (0, 999, 1024, 300 << 20, 5 << 30)] == [
        "0 B",
        "999 B",
        "1.0 KiB",
        "300 MiB",
        "5.0 GiB",
    ]


def test_output_is_plain_where_there_is_no_terminal(capsys):
    output.Output().table("title", ["a", "b>"], [["one", "2"]])
    text = capsys.readouterr().out
    assert "\x1b" not in text and "one" in text
