"""Common to all commands: wrong input, exit codes, and which stream gets which output."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib

import click
import pytest

from tests.hosts import ROOT
from tests.vmhost.cli.command import COMMAND
from vmhost.cli import COMMANDS, failures, inspect, main, output, quantities, vmhost_command
from vmhost.cli.demo import duration_text
from vmhost.cli.examples import EXAMPLES
from vmhost.cli.inspect import size_text


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["compile", "nowhere"], failures.WRONG_INPUT, "nowhere: no such folder"),
        (["compile", "greet/words.txt"], failures.WRONG_INPUT, "words.txt: is a file; give the folder"),
        (["compile", "greet", "--sign", "nobody"], failures.WRONG_INPUT, "nobody"),
        (["compile", "greet", "--target", "3.9"], failures.REFUSED, "3.9"),
        (["compile", "greet", "-o", "greet/main.py/x.vmb"], failures.WRONG_INPUT, "cannot write the bundle"),
        (["inspect", "nothing.vmb"], failures.WRONG_INPUT, "nothing.vmb: no such bundle"),
        (["cloud", "fleet", "--last", "30 d"], failures.WRONG_INPUT, "expected at least 1 s, at most 14 d"),
        (
            ["inspect", "greet"],
            failures.WRONG_INPUT,
            "is a task's folder, not a bundle; compile it first: vmhost compile",
        ),
        (["run", "."], failures.WRONG_INPUT, "is a folder, not a bundle; give the .vmb file, or serve"),
        (["inspect", "greet/words.txt"], failures.REFUSED, "words.txt"),
        (["run", "nothing.vmb"], failures.WRONG_INPUT, "nothing.vmb: no such bundle"),
        (
            ["run", "greet.vmb", "--input", "missing.json"],
            failures.WRONG_INPUT,
            "missing.json: no such file, and not JSON",
        ),
        (["run", "greet.vmb", "--input", ""], failures.WRONG_INPUT, "error: --input: no such file, and not JSON"),
        (
            ["compile", "greet", "greet"],
            failures.WRONG_INPUT,
            "greet: greet.vmb was already written for greet; give each task a name",
        ),
        (
            ["compile", "greet", "greet", "-o", "x.vmb"],
            failures.WRONG_INPUT,
            "x.vmb: is a file; with several task folders",
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
        (["explain", "greet"], failures.WRONG_INPUT, "greet: is a folder; expected an ONNX model"),
        (["run", "greet.vmb", "--timeout", "soon"], failures.WRONG_INPUT, "expected a time such as"),
        (["run", "greet.vmb", "--timeout", "-1 s"], failures.WRONG_INPUT, "expected a time such as"),
        (
            ["run", "greet.vmb", "--settings", "no.yaml"],
            failures.WRONG_INPUT,
            "no.yaml: cannot be read: No such file or directory\n",
        ),
        (["lock", "nowhere"], failures.WRONG_INPUT, "nowhere: no such folder or script"),
        (["serve", ".", "--grace", "5 parsecs"], failures.WRONG_INPUT, "expected a time such as"),
        (["serve", ".", "--dashboard", "9464"], failures.WRONG_INPUT, "expected an address and a port such as"),
        (["dashboard", "--listen", ":0"], failures.WRONG_INPUT, "expected an address and a port such as"),
        (["dashboard", "--for", "soon"], failures.WRONG_INPUT, "expected a time such as"),
        (["dashboard", "--listen", "0.0.0.0:0", "--no-token"], failures.WRONG_INPUT, "pages without a token"),
        (["top", "localhost:1", "--every", "1 ms"], failures.WRONG_INPUT, "expected at least 0.2 s, at most 3600 s"),
        (["reach", "audit", ".", "--what", "lost"], failures.WRONG_INPUT, "is not one of 'sent', 'retry'"),
        (["run", "greet.vmb", "--trust", "no.pub"], failures.WRONG_INPUT, "no.pub"),
        (["demo", "--tasks", "greet"], failures.WRONG_INPUT, "greet: expected the folder of the shipped tasks"),
        (["keys", "trust", "greet/words.txt"], failures.WRONG_INPUT, "words.txt:1: expected `ed25519"),
        (["frobnicate"], failures.WRONG_INPUT, "No such command"),
        (["compile"], failures.WRONG_INPUT, "Missing argument"),
    ],
)
def test_wrong_input_gets_one_clear_error(vmhost, task_folder, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    vmhost("compile", task_folder, "-o", "greet.vmb")
    got, out, err = vmhost(*arguments)
    assert (got, out) == (code, "")
    assert message in err
    assert "Traceback" not in err and len(err) < 600


def test_errors_as_json_come_on_stdout(vmhost, tmp_path):
    code, out, err = vmhost("inspect", tmp_path / "nothing.vmb", "--json")
    error = json.loads(out)["error"]
    assert (error["type"], error["exit_code"], err) == ("InputError", code, "")
    (tmp_path / "junk.vmb").write_bytes(b"junk" * 100)
    code, out, _ = vmhost("inspect", tmp_path / "junk.vmb", "--json")
    assert json.loads(out)["error"]["type"] == "BundleError" and code == failures.REFUSED


def test_what_needs_the_checkout_says_so(tmp_path):
    """As in an installed package: no tasks/ and no bench/ beside it, nor in the current folder."""
    for package in ("vmhost", "bytecode"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("data", "__pycache__", "*.so", "*.c")
        )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    (tmp_path / "elsewhere").mkdir()
    for name, message in (
        ("demo", "the tasks that the demo runs were not installed with vmhost"),
        ("bench", "in bench/ of the project's checkout"),
    ):
        ended = subprocess.run(
            [*COMMAND, name], cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True, timeout=60
        )
        assert (ended.returncode, ended.stdout) == (failures.WRONG_INPUT, "") and message in ended.stderr


def test_bench_looks_at_its_folder_before_it_measures(tmp_path):
    (tmp_path / "file").touch()
    ended = subprocess.run(
        [*COMMAND, "bench", "--quick", "--only", "round_trip", "--out", tmp_path / "file" / "out"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (ended.returncode, ended.stdout) == (failures.WRONG_INPUT, "")
    assert "file/out: cannot create the folder: Not a directory" in ended.stderr and "measuring" not in ended.stderr


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


@pytest.mark.parametrize("style", [["--json"], []], ids=["json", "text"])
def test_a_result_that_cannot_be_printed_gets_one_clear_error(task_folder, tmp_path, style):
    main(["compile", str(task_folder), "-o", str(tmp_path / "big.vmb")])
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [*COMMAND, "inspect", str(tmp_path / "big.vmb"), *style],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            timeout=60,
        )
    assert (ended.returncode, ended.stderr) == (
        failures.HOST_FAILED,
        b"error: stdout: cannot be written: No space left on device\n",
    )


def test_ctrl_c_that_breaks_what_it_hits_is_still_ctrl_c(vmhost, monkeypatch):
    def interrupted(path):
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("cannot release un-acquired lock")

    monkeypatch.setattr(inspect, "existing", interrupted)
    code, out, err = vmhost("inspect", "x.vmb")
    assert (code, out, err.strip()) == (failures.INTERRUPTED, "", "vmhost: interrupted")


@pytest.mark.parametrize(("module", "arguments"), [("click", ["--help"]), ("rich", ["keys", "list"])])
def test_ctrl_c_while_the_command_is_imported_ends_it_as_quietly_as_later(tmp_path, module, arguments):
    """A package that the command needs is replaced by one that presses Ctrl-C when it is imported."""
    (tmp_path / f"{module}.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\nfor _ in range(100): time.sleep(0.1)\n"
    )
    module, _, function = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"][
        "vmhost"
    ].partition(":")
    start = f"import sys; from {module} import {function}; sys.exit({function}())"
    ended = subprocess.run(
        [sys.executable, "-c", start, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "VMHOST_KEYS": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    output = ended.stderr.removeprefix("\n")  # click ends the line that a terminal shows as ^C
    assert (ended.returncode, ended.stdout, output) == (failures.INTERRUPTED, "", "vmhost: interrupted\n")


def test_help_names_every_command(vmhost):
    code, out, _ = vmhost("--help")
    assert code == 0
    listed = out.partition("--help")[2].partition("Example:")[0]
    assert list(COMMANDS) == re.findall(r"^  (\w+)  ", listed, re.MULTILINE)
    for name, text in COMMANDS.items():
        command = vmhost_command.get_command(click.Context(vmhost_command), name)
        assert command.get_short_help_str(200) == text, name
        assert vmhost(name, "--help")[0] == 0 or name == "bench"


def loaded(*arguments):
    """The output of `vmhost ARGUMENTS`, and the names of the modules that it imported."""
    program = (
        "import sys\nfrom vmhost.command import main\ntry: code = main()\n"
        "finally: print(*sys.modules, file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout, set(done.stderr.split())


def test_only_what_is_called_is_imported():
    out, modules = loaded("--version")
    assert out.startswith("vmhost ") and ", Python 3." in out
    assert {name for name in modules if name.startswith("vmhost")} == {
        "vmhost",
        "vmhost.command",
        "vmhost.lines",
        "vmhost.lines.stdout",
        "vmhost.supported",
    }
    slow = {"rich", "psutil", "asyncio", "msgpack", "cffi", "numpy", "yaml", "vmhost.host", "vmhost.isolation"}
    assert not modules & (slow | {"click"})
    for arguments in (["--help"], ["run", "--help"]):
        _, modules = loaded(*arguments)
        assert not modules & slow
        commands = {name for name in COMMANDS if f"vmhost.cli.{name}" in modules}
        assert commands == ({"run", "inspect", "keys"} if "run" in arguments else set())  # run uses parts of these


def test_the_version_that_nobody_reads_or_that_has_no_room(tmp_path):
    start = [sys.executable, "-c", "import sys; from vmhost.command import main; sys.exit(main())", "--version"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(start, stdout=full, stderr=subprocess.PIPE, cwd=ROOT, timeout=60)
    assert ended.returncode == failures.HOST_FAILED
    assert ended.stderr == b"error: stdout: cannot be written: No space left on device\n"
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:
        ended = subprocess.run(start, stdout=closed, stderr=subprocess.PIPE, cwd=ROOT, timeout=60)
    assert (ended.returncode, ended.stderr) == (failures.PIPE_CLOSED, b"")


def test_closed_standard_streams_are_no_files_of_the_command(task_folder, tmp_path):
    bundle, opened = str(tmp_path / "a.vmb"), str(tmp_path / "opened")
    assert main(["compile", str(task_folder), "-o", bundle]) == failures.DONE
    program = f"""if True:
        import os, sys
        from vmhost.command import main
        status = main()
        os.close(os.open({opened!r}, os.O_RDWR | os.O_CREAT))
        for number in range(3):
            print(os.readlink(f"/proc/self/fd/{{number}}"), file=open({opened!r}, "a"))
        sys.exit(status)"""
    closing = ["sh", "-c", 'exec "$0" "$@" <&- 2>&-']
    arguments = ["run", bundle, "--allow-unsigned", "--input", '{"name": "Ada"}']
    ended = subprocess.run(
        [*closing, sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, cwd=ROOT, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (failures.DONE, b'"hello Ada"\n')
    stdin, _, stderr = (tmp_path / "opened").read_text().splitlines()
    assert (stdin, stderr) == (os.devnull, os.devnull)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspec"], "Did you mean 'inspect'?"),
        (["run", "--timout", "1 s", "x.vmb"], "'--timeout'"),
        (["run", "gret.vmb"], "gret.vmb: no such bundle; did you mean greet.vmb?"),
        (["inspect", "some/gret.vmb"], "no such bundle; make one with"),
        (["compile", "gret"], "gret: no such folder; did you mean greet?"),
        (["compile", "--check", "greet"], "greet: no such file; it is a folder; --check takes ONNX files"),
    ],
)
def test_what_is_nearly_right_is_named(vmhost, task_folder, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "greet.vmb").touch()
    code, _, err = vmhost(*arguments)
    assert code == failures.WRONG_INPUT
    assert message in err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_commands_and_imports_none_of_them(shell, vmhost):
    code, script, _ = vmhost("completion", shell)
    assert code == 0 and f"_VMHOST_COMPLETE={shell}_complete" in script
    words = {"COMP_WORDS": "vmhost in", "COMP_CWORD": "in" if shell == "fish" else "1"}
    program = "from vmhost.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\ntry:\n  {program}\nfinally: print(*sys.modules, file=sys.stderr)"],
        env=os.environ | words | {"_VMHOST_COMPLETE": f"{shell}_complete"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "init" in done.stdout and "inspect" in done.stdout and "demo" not in done.stdout
    assert not set(done.stderr.split()) & {"rich", "vmhost.cli.init", "vmhost.cli.inspect"}


@pytest.mark.parametrize("arguments", [["run", "--no-such", "--json"], ["nothing", "--json"], ["inspect", "--json"]])
def test_a_wrong_command_line_is_told_in_json_too(vmhost, arguments):
    code, out, err = vmhost(*arguments)
    error = json.loads(out)["error"]
    assert code == error["exit_code"] == failures.WRONG_INPUT and error["type"] == "UsageError" and error["message"]
    assert not err


def test_every_exit_code_is_documented():
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    codes = [value for name, value in vars(failures).items() if name.isupper() and isinstance(value, int)]
    assert len(codes) == 9
    for code in codes:
        assert f"\n| {code} |" in text


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


def subcommands(group, context, words=()):
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*words, name), command
        if isinstance(command, click.Group):
            yield from subcommands(command, context, (*words, name))


def test_each_list_of_commands_shows_them_whole(vmhost, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    groups = [
        words for words, one in subcommands(vmhost_command, click.Context(vmhost_command)) if hasattr(one, "commands")
    ]
    assert len(groups) > 4
    for words in groups:
        _, out, _ = vmhost(*words, "--help")
        assert "..." not in out.partition("Commands:")[2], words


def test_every_command_shows_an_example_that_it_accepts(vmhost, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VMHOST_PLATFORM", "http://127.0.0.1:8443")
    monkeypatch.setenv("VMHOST_TOKEN", "token")
    for path in ("hello", "keys", "shop", "state", "cloud"):
        (tmp_path / path).mkdir()
    files = ["calls.jsonl", "events.jsonl", "captured.bin", "cloud.sqlite", "changes.json", "monday.tar", "words.txt"]
    for path in (*files, "ann.pub", "ben.pub", "release.yaml", "audience.yaml", "alerts.yaml"):
        (tmp_path / path).touch()
    leaves = {
        " ".join(words)
        for words, command in subcommands(vmhost_command, click.Context(vmhost_command))
        if not isinstance(command, click.Group) and words[-1] != "bench"
    }
    assert EXAMPLES.keys() == leaves
    for words, lines in EXAMPLES.items():
        shown = vmhost(*words.split(), "--help")[1]
        for line in lines:
            assert line in shown, words
            arguments = shlex.split(line.partition(" < ")[0])[1:]
            command = vmhost_command
            for word in words.split():
                assert arguments.pop(0) == word
                command = command.get_command(click.Context(command), word)
            command.make_context(words, arguments).close()


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5), ("2.5", 2.5), ("500 ms", 0.5), ("1h", 3600), ("0.5 D", 43200), ("90 min", 5400)]
)
def test_times_have_one_syntax_and_are_seconds_without_a_unit(text, seconds):
    assert quantities.Time().convert(text, None, None) == seconds


@pytest.mark.parametrize(
    ("words", "arguments", "name", "value"),
    [
        ("cloud serve", ["cloud", "--poll", "500 ms"], "poll_s", 0.5),
        ("cloud serve", ["cloud", "--poll", "5"], "poll_s", 5),
        ("cloud serve", ["cloud"], "poll_s", 30),
        ("tunnel serve", ["store", "--spin", "50 us"], "spin_s", 5e-5),
        ("tunnel serve", ["store", "--spin-us", "50"], "spin_us", 50),
        ("pipeline features", ["--at", "2026-11-25T10:30+00:00"], "at_ms", 1_795_602_600_000),
        ("pipeline features", ["--at", "1795602600000"], "at_ms", 1_795_602_600_000),
        ("replay", ["a", "--bundle", "b"], "fail_on", ("different", "error")),
        ("replay", ["a", "--bundle", "b", "--fail-on", "slower, nothing"], "fail_on", ("slower",)),
    ],
)
def test_options_take_times_with_units(words, arguments, name, value):
    group, _, rest = words.partition(" ")
    command = vmhost_command.get_command(None, group)
    command = command.get_command(None, rest) if rest else command
    with command.make_context(words, arguments) as context:
        assert context.params[name] == value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cloud", "serve", "cloud", "--poll", "soon"], "'--poll': expected a time such as"),
        (["cloud", "serve", "cloud", "--poll", "50 ms"], "'--poll': expected at least 0.1 s"),
        (["cloud", "serve", "cloud", "--listen", "8470"], "'--listen': expected an address and a port"),
        (["tunnel", "serve", "store", "--spin", "1 s"], "'--spin': expected at least 0 s, at most 0.01 s"),
        (["pipeline", "features", "--at", "soon"], "'--at': expected a moment such as"),
        (["cloud", "account", "ann", "--role", "boss"], "'--role': 'boss' is not one of 'viewer', 'developer'"),
        (["cloud", "change", "ann", "--role", "boss"], "'--role': 'boss' is not one of 'viewer', 'developer'"),
        (["cloud", "show", "1", "--state", "broken"], "'--state': 'broken' is not one of 'offered', 'taken'"),
        (["replay", "a", "--bundle", "b", "--fail-on", "same"], "'--fail-on': expected any of different, error, slow"),
    ],
)
def test_a_wrong_time_or_choice_is_told_before_the_work(capsys, arguments, message):
    assert main(arguments) == failures.WRONG_INPUT
    assert message in capsys.readouterr().err


def test_every_command_and_option_is_explained():
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    unsaid, silent = [], []
    for words, command in subcommands(vmhost_command, click.Context(vmhost_command)):
        if not re.search(rf"\b{words[-1]}\b", page):
            unsaid.append(words)
        silent += [(*words, one.name) for one in command.params if isinstance(one, click.Option) and not one.help]
    assert (unsaid, silent) == ([], [])


@pytest.mark.parametrize("columns", ["0", "", "wide", "-3"])
def test_a_width_that_is_none_is_not_used(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", columns)
    output.Output().line("a line")
    output.Output().table("title", ["name", "size>"], [["digits", "5"]])
    output.Output().remark("a remark")
    printed = capsys.readouterr()
    assert "a line" in printed.out and "digits" in printed.out and "a remark" in printed.err
