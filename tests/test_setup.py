"""tools/setup.sh, run in copies of the checkout with fake tools: what it chooses, what it refuses, what it makes
again.

The fake Pythons and tools are shell scripts, so that nothing is downloaded and nothing is compiled here.
"""

import ast
import fcntl
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GOOD = """#!/bin/sh
# A Python that is fit, makes environments of itself, and does nothing else.
case "$*" in
    *python_probe.py) printf '3.14.8\\t%s\\n' "$(realpath "$0")" ;;
    *"-m venv"*) mkdir -p .venv/bin && ln -s "$(realpath "$0")" .venv/bin/python ;;
    *"-m pip"*|*setup.py*) echo "$*" >> calls ;;
    *vmhost.stdlib*) mkdir -p vmhost/data; echo bundle > vmhost/data/stdlib.vmb; echo "$*" >> calls ;;
    *"native_build.py outputs") echo vmhost/isolation/_core.so ;;
    *"native_build.py inputs")
        find setup.py tools/native_build.py vmhost/isolation engine -name '*.[ch]' -o -name '*.py' ;;
    *sys.version*) echo "3.14.8 $(realpath "$0")" ;;
    *python_version*) echo 3.14.8 ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
    """A copy of the files that set-up reads, in a folder whose name has a space."""
    copy = tmp_path / "a checkout"
    for name in ("tools", "bytecode", "engine", "vmhost/guest", "vmhost/stdlib", "vmhost/isolation"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("setup.py", "pyproject.toml", "requirements.lock", "Makefile", "vmhost/supported.py"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture
def machine(tmp_path):
    """A PATH with the system's plain tools and the fakes of one test; no Python, no pip, no uv, no apt."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in (
        "sh",
        "flock",
        "sha256sum",
        "sed",
        "awk",
        "cut",
        "cat",
        "mkdir",
        "mv",
        "rm",
        "ln",
        "realpath",
        "dirname",
        "head",
        "tr",
        "find",
        "sort",
        "xargs",
        "uname",
        "env",
        "ls",
        "id",
        "tail",
        "grep",
        "make",
        "printf",
        "date",
        "du",
        "sleep",
    ):
        found = shutil.which(tool)
        assert found, tool
        (folder / tool).symlink_to(found)

    def add(name, text):
        path = folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    add("python3", "#!/bin/sh\nexit 1\n")
    add.folder = folder
    return add


def set_up(checkout, machine, *arguments, before="", **environment):
    """Runs set-up, after the shell commands `before`; (exit status, what it said)."""
    done = subprocess.run(
        ["sh", "-c", f'{before} exec sh tools/setup.sh "$@"', "sh", *arguments],
        cwd=checkout,
        env={"PATH": str(machine.folder), **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
    )
    return done.returncode, re.sub(r"ready, after (\d+ min )?\d+ s$", "ready", done.stdout, flags=re.MULTILINE)


def calls(checkout):
    log = checkout / "calls"
    return log.read_text().splitlines() if log.exists() else []


def test_a_python_on_path_is_taken_and_the_second_run_is_silent(checkout, machine):
    machine("python3.14", GOOD)
    status, output = set_up(checkout, machine)
    assert status == 0, output
    assert output.startswith("set-up: the first time takes two to five minutes\n") and output.endswith(
        "set-up: ready\n"
    )
    assert "making .venv with" in output
    first = calls(checkout)
    assert [line for line in first if "--require-hashes -r requirements.lock" in line]
    assert set_up(checkout, machine) == (0, "")
    assert calls(checkout) == first


def test_a_terminal_shows_that_a_long_step_goes_on(checkout, machine):
    waiting = '*"-m pip"*"requirements.lock"*) while [ ! -e seen ]; do sleep 0.05; done ;;'
    machine("python3.14", GOOD.replace('*"-m pip"*|', f'{waiting}\n    *"-m pip"*|'))
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        started = subprocess.Popen(
            ["sh", "tools/setup.sh"], cwd=checkout, env={"PATH": str(machine.folder)}, stderr=theirs
        )
        os.close(theirs)
        output = b""
        while b" MB so far" not in output:
            output += terminal.read(1000)
        assert re.search(rb"\r\x1b\[Kset-up:   \d+ s, \d+ MB so far$", output), output
        (checkout / "seen").touch()
        try:
            while more := terminal.read(1000):
                output += more
        except OSError:  # a terminal reports its end like this
            pass
    assert started.wait(30) == 0
    assert output.rstrip().rpartition(b"\n")[2].startswith(b"set-up: ready, after ")


def test_peers_are_installed_when_they_are_asked_for_and_once(checkout, machine):
    machine("python3.14", GOOD)
    assert set_up(checkout, machine)[0] == 0
    assert not [line for line in calls(checkout) if "bench.lock" in line]
    assert set_up(checkout, machine, "bench") == (
        0,
        "set-up: installing the benchmark peers (tools/bench.lock)\nset-up: ready\n",
    )
    assert "--no-deps --require-hashes -r tools/bench.lock" in calls(checkout)[-1]
    assert set_up(checkout, machine, "bench") == (0, "")


def test_a_shim_that_answers_with_an_error_is_passed_over(checkout, machine):
    machine("python3.14", "#!/bin/sh\necho 'pyenv: python3.14: command not found' >&2\nexit 127\n")
    good = machine("python3.15", GOOD)
    status, output = set_up(checkout, machine)
    assert status == 0, output
    assert f"making .venv with {good}" in output


def test_a_checkout_that_cannot_be_written_says_so_and_what_to_do(checkout, machine):
    (checkout / ".python").write_text("")  # permissions would not keep root from writing
    status, output = set_up(checkout, machine)
    assert (status, output) == (
        1,
        f"set-up: you may not write here: {checkout}; clone it into a folder of your own. If it is set up "
        "already, .venv/bin/vmhost there does without\n",
    )


def test_without_any_python_the_reasons_are_all_given(checkout, machine):
    machine("python3.14", "#!/bin/sh\necho 'it is a debug build, and vmhost needs a release build'\nexit 1\n")
    machine("uv", "#!/bin/sh\necho 'error: no network' >&2\nexit 2\n")
    status, output = set_up(checkout, machine)
    assert status == 1
    assert "python3.14: it is a debug build" in output
    assert "uv: no network" in output
    assert "Debian packages: no apt-get here" in output
    assert "point VMHOST_PYTHON at one" in output
    assert not (checkout / ".venv").exists()


def test_one_that_uv_has_is_taken_and_uv_is_told_not_to_retry(checkout, machine, tmp_path):
    python = tmp_path / "from uv"
    python.write_text(GOOD)
    python.chmod(0o755)
    machine(
        "uv",
        f"""#!/bin/sh
echo "retries=$UV_HTTP_RETRIES $*" >> uv-calls
case "$*" in
    "python install"*) : > installed ;;
    "python find"*) [ -e installed ] && echo "{python}" ;;
    "pip install"*) exit 1 ;;
esac
""",
    )
    status, output = set_up(checkout, machine)
    assert status == 0, output
    assert f"making .venv with {python}" in output
    assert [
        line for line in (checkout / "uv-calls").read_text().splitlines() if line.startswith("retries=0 python install")
    ]


def test_what_tells_how_far_it_is_ends_with_its_step_though_it_does_not_hear_sigterm(checkout, machine, tmp_path):
    machine("python3.14", GOOD)
    status, output = set_up(checkout, machine, before="trap '' TERM;")
    assert status == 0, output


def test_a_chosen_python_that_is_unfit_is_refused_and_no_other_is_taken(checkout, machine, tmp_path):
    machine("python3.14", GOOD)
    status, output = set_up(checkout, machine, VMHOST_PYTHON=str(tmp_path / "missing"))
    assert status == 1
    assert "$VMHOST_PYTHON cannot be used" in output and "missing: there is no such program" in output
    assert not (checkout / ".venv").exists()
    other = machine("chosen", GOOD)
    status, output = set_up(checkout, machine, VMHOST_PYTHON=str(other))
    assert status == 0 and f"making .venv with {other}" in output
    assert set_up(checkout, machine, VMHOST_PYTHON=str(other)) == (0, "")
    assert set_up(checkout, machine) == (0, ""), "what was made with a chosen Python stays good"
    assert set_up(checkout, machine, VMHOST_PYTHON=str(tmp_path / "missing"))[0] == 1
    assert (checkout / ".venv").exists(), "a refusal costs nothing"


def test_only_what_changed_is_made_again(checkout, machine):
    machine("python3.14", GOOD)
    assert set_up(checkout, machine)[0] == 0
    steps = {
        "vmhost/isolation/new.c": "building the native core",
        "engine/src/new.c": "building the native core and the engine",
        "vmhost/guest/new.py": "compiling the standard library",
        "pyproject.toml": "installing the vmhost command",
        "requirements.lock": "installing the dependencies",
    }
    for name, step in steps.items():
        with open(checkout / name, "a") as file:
            file.write("\n")
        status, output = set_up(checkout, machine)
        assert status == 0 and step in output, name
        assert name == "requirements.lock" or len(output.splitlines()) == 2, output


def test_a_moved_checkout_gets_a_new_environment(checkout, machine):
    machine("python3.14", GOOD)
    assert set_up(checkout, machine)[0] == 0
    moved = checkout.rename(checkout.parent / "moved")
    status, output = set_up(moved, machine)
    assert status == 0 and "making .venv with" in output
    assert set_up(moved, machine) == (0, "")


def test_an_interrupted_set_up_is_taken_up_again(checkout, machine):
    machine(
        "python3.14", GOOD.replace('*"-m pip"*|', '*"-m pip"*) echo there > "$HOME/waits"; cat "$HOME/never" ;;\n    ')
    )
    os.mkfifo(checkout / "waits")
    os.mkfifo(checkout / "never")
    running = subprocess.Popen(
        ["sh", "tools/setup.sh"],
        cwd=checkout,
        env={"PATH": str(machine.folder), "HOME": str(checkout)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert (checkout / "waits").read_text() == "there\n"  # it is in the middle of the installation
    for _ in range(60):  # as Ctrl-C does, again while a shell lets it pass between two commands
        os.killpg(running.pid, signal.SIGINT)
        try:
            output, _ = running.communicate(timeout=1)
            break
        except subprocess.TimeoutExpired:
            pass
    assert running.returncode == 130 and "interrupted; run it again to go on" in output
    machine("python3.14", GOOD)
    status, output = set_up(checkout, machine)
    assert status == 0 and "making .venv with" in output, "the half-made environment is made anew"


def test_a_second_set_up_waits_for_the_first(checkout, machine):
    machine("python3.14", GOOD)
    (checkout / ".python").mkdir()
    with open(checkout / ".python" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = subprocess.Popen(
            ["sh", "tools/setup.sh"], cwd=checkout, env={"PATH": str(machine.folder)}, text=True, stderr=subprocess.PIPE
        )
        assert "another set-up runs in this checkout; waiting" in waiting.stderr.readline()
        assert not (checkout / ".venv").exists()
    assert waiting.wait(60) == 0, waiting.stderr.read()
    waiting.stderr.close()


@pytest.mark.parametrize(
    ("fake", "reason"),
    [
        ("import platform; platform.python_implementation = lambda: 'PyPy'", "it is PyPy, and vmhost needs CPython"),
        ("import sys; sys.version_info = (3, 13, 0)", "vmhost needs 3.14"),
        ("import sys; sys.version_info = (3, 15, 0)", "vmhost needs 3.14"),
        ("import sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1", "it is a free-threaded build"),
        ("import sysconfig; sysconfig.get_config_vars()['Py_DEBUG'] = 1", "it is a debug build"),
        (
            "import sysconfig; sysconfig.get_path = lambda name: '/nowhere'",
            "it has no C headers (/nowhere/Python.h is missing)",
        ),
    ],
)
def test_the_probe_says_what_is_wrong_with_a_python(fake, reason):
    run = f"{fake}; import runpy; runpy.run_path({str(ROOT / 'tools' / 'python_probe.py')!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-I", "-c", run], capture_output=True, text=True)
    assert done.returncode == 1 and reason in done.stdout


@pytest.mark.parametrize("name", ["tools/python_probe.py", "vmhost/supported.py"])
def test_pythons_of_any_age_read_what_refuses_them(name):
    newer = ast.JoinedStr | ast.NamedExpr | ast.AnnAssign | ast.Match  # from 3.6 on
    assert not [ast.unparse(node) for node in ast.walk(ast.parse((ROOT / name).read_text())) if isinstance(node, newer)]


def test_the_probe_accepts_this_python_and_sees_through_its_environment():
    done = subprocess.run(
        [sys.executable, "-I", "-S", ROOT / "tools" / "python_probe.py"], capture_output=True, text=True
    )
    version, _, executable = done.stdout.rstrip("\n").partition("\t")
    assert done.returncode == 0
    assert version == ".".join(map(str, sys.version_info[:3]))
    assert Path(executable).resolve() == Path(sys.executable).resolve()


@pytest.mark.parametrize("name", ["requirements.lock", "tools/bench.lock", "tools/bootstrap.lock", "tools/ray.lock"])
def test_pins_have_hashes_and_name_no_index(name):
    lines = (ROOT / name).read_text().splitlines()
    assert not [line for line in lines if "://" in line or "index-url" in line or "find-links" in line]
    pins = [number for number, line in enumerate(lines) if line and not line.startswith((" ", "#"))]
    assert len(pins) >= 3
    for number in pins:
        assert "==" in lines[number] and "--hash=sha256:" in lines[number + 1], lines[number]


def test_every_declared_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = (
        project["project"]["dependencies"]
        + project["dependency-groups"]["dev"]
        + sum(project["project"]["optional-dependencies"].values(), [])
    )
    pinned = {
        line.partition("==")[0]
        for name in ("requirements.lock", "tools/bench.lock", "tools/ray.lock")
        for line in (ROOT / name).read_text().splitlines()
        if "==" in line
    }
    assert {re.split(r"[\[>]", line)[0] for line in declared} - pinned == set()


def test_make_help_lists_the_targets():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = [line.split()[1] for line in done.stdout.splitlines()]
    assert {"demo", "test", "build", "bench", "stress", "sanitize", "sanitize-thread", "clean"} <= set(listed)


def test_no_committed_file_says_where_packages_come_from():
    hosts = ["pypi" + ".org", "python" + "hosted.org", "registry.npm" + "js", "deb." + "debian.org"]
    command = ["git", "grep", "-lF", *(part for host in hosts for part in ("-e", host))]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (1, ""), found.stderr
