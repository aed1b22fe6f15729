"""What functions of an executor print is seen, once: on stderr, or by the program's own handlers. Each in a process of
its own, as pytest has handlers and a stderr too."""

import json
import subprocess
import sys
import textwrap

import pytest

from tests.hosts import ROOT

PROGRAM = """
import io, json, logging, sys
import vmhost


def says(text):
    print(text, "printed")
    print(text, "on stderr", file=sys.stderr)
    logging.warning("%s logged", text)
    logging.debug("%s: not for all", text)


class Collected(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())


if __name__ == "__main__":
    lines = []
    given = sys.stderr
    exec(sys.argv[1])
    with vmhost.VMExecutor(1, "jobs") as pool:
        pool.submit(says, "\\x1b").result()
    shown = sys.stderr.getvalue().splitlines() if isinstance(sys.stderr, io.StringIO) else None
    json.dump([lines, shown], sys.stdout)
"""
ALL = [r"\x1b printed", r"\x1b on stderr", r"\x1b logged"]


def run(folder, setting):
    """(lines that the program's handler got, lines on the sys.stderr that it has put in place or None, real stderr)"""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, program, textwrap.dedent(setting)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, timeout=60
    )
    return *json.loads(done.stdout), done.stderr.splitlines()


def marked(lines):
    return [f"jobs: {line}" for line in lines]


def test_lines_are_shown_on_the_stderr_of_the_moment_with_the_name_of_the_executor(tmp_path):
    assert run(tmp_path, "") == ([], None, marked(ALL))
    assert run(tmp_path, "sys.stderr = io.StringIO()") == ([], marked(ALL), [])


@pytest.mark.parametrize("name", ["vmhost.task.jobs", "vmhost.task", "vmhost", ""])
def test_what_the_program_logs_is_not_shown_again(tmp_path, name):
    setting = f"logging.getLogger({name!r}).addHandler(Collected()); logging.getLogger({name!r}).setLevel('INFO')"
    assert run(tmp_path, setting) == (ALL, None, [])


@pytest.mark.parametrize(
    "setting",
    [
        "logging.getLogger('vmhost').addHandler(Collected('WARNING'))",
        "logging.getLogger().addHandler(Collected())",  # the root's level is WARNING
    ],
)
def test_what_a_handler_leaves_is_shown(tmp_path, setting):
    assert run(tmp_path, setting) == (ALL[1:], None, marked(ALL[:1]))


def test_a_level_silences_them(tmp_path):
    assert run(tmp_path, "logging.getLogger('vmhost.task').setLevel('CRITICAL')") == ([], None, [])
    assert run(tmp_path, "logging.getLogger('vmhost.task').setLevel('WARNING')") == ([], None, marked(ALL[1:]))


@pytest.mark.parametrize("setting", ["sys.stderr = None", "sys.stderr = open('/dev/null', 'w'); sys.stderr.close()"])
def test_without_a_stderr_nothing_is_shown_and_calls_work(tmp_path, setting):
    assert run(tmp_path, setting) == ([], None, [])


def test_a_host_s_tasks_stay_with_its_loggers(capfd):
    import vmhost
    from tests.hosts import bundle

    with vmhost.Host(allow_unsigned=True) as host:
        host.load(bundle("def run(value): print(value)"))("x")
    assert capfd.readouterr() == ("", "")


def test_a_program_without_stderr_has_its_results(tmp_path):
    assert run(tmp_path, "del sys.stderr") == ([], None, [])
