"""What a build may reach: the platform's keys, files, network and processes are out of reach of whoever pushes."""

import contextlib
import hashlib
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile

import pytest
import yaml

from tests.deployment.platforms import DOUBLE, SPEC, WorkingCopy, nothing_left, platform_in
from tests.wheels import folder_of_wheels, write_wheel
from vmhost.bytecode import packages, signing
from vmhost.bytecode.errors import BytecodeError
from vmhost.bytecode.packages import Requirements, lock
from vmhost.bytecode.spec import read_task
from vmhost.deployment.cloud import build_worker, builds, confinement
from vmhost.deployment.cloud.platform import Platform
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.errors import RefusedError


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The server's threads grow with what it is asked; they are looked at when it ends."""
    yield


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    with nothing_left(), platform_in(tmp_path_factory.mktemp("cloud")) as platform, serving(platform) as address:
        yield platform, address, platform.access.add_token("ann", "test")


@pytest.fixture
def work(cloud, tmp_path):
    """A working copy of a repository of the test's own."""
    platform, address, token = cloud
    name = f"shop-{os.urandom(4).hex()}"
    platform.add_repository(name, "test")
    copy = WorkingCopy(tmp_path / "work", f"{address}/git/{name}", token, f"task-{os.urandom(4).hex()}")
    copy.task = f"{name}/{copy.branch}"
    return copy


def keys_of(folder):
    return {path.name: path for path in folder.iterdir() if path.name in ("root", "targets", "bundles", "role-shop")}


def secrets_of(platform):
    """Paths of private keys of the platform."""
    found = keys_of(platform.folder / "keys") | keys_of(platform.metadata.offline)
    assert found.keys() == {"root", "targets", "bundles", "role-shop"}
    return list(map(str, found.values()))


def test_the_offline_keys_are_not_below_the_served_folder(tmp_path):
    Platform.make(tmp_path / "cloud")
    with Platform(tmp_path / "cloud") as platform:
        platform.add_repository("shop", "test")
        assert not list(platform.folder.rglob("root")) and not list(platform.folder.rglob("targets"))
    assert keys_of(tmp_path / "cloud-offline-keys").keys() == {"root", "targets"}
    assert (tmp_path / "cloud-offline-keys").stat().st_mode & 0o077 == 0


READS = """
def run(value):
    found = []
    for path in value:
        try:
            found.append(open(path).read())
        except Exception as error:
            found.append(type(error).__name__)
    return found
"""


def test_a_simulation_grants_nothing_whatever_task_yaml_says(cloud, work, monkeypatch):
    """Neither confined nor, where the VM is all that holds it, not confined."""
    paths = secrets_of(cloud[0])
    spec = SPEC.format(name=work.branch, version="1.0.0") + "permissions: {read: [/**], write: [/**], net: ['*:*']}\n"
    work.commit("1.0.0", main=READS, cases={"keys": {"input": paths, "expect": None}}, **{"task.yaml": spec})
    for reason in (cloud[0].builder.why_not_confined, "no namespaces"):
        monkeypatch.setattr(cloud[0].builder, "why_not_confined", reason)
        status, output = work.push(work.branch, "1.0.0", check=False)
        refused = ", ".join(['"PermissionDenied"'] * len(paths))
        assert status and f"keys.json: expected null, got [{refused}]" in output, output


SPIES = """
import os, socket, sys
found = []
def attempt(what, work):
    try:
        work()
        found.append(what)
    except OSError:
        pass
for path in {paths!r}:
    attempt("read " + path, lambda: open(path, "rb").read())
for path in {folders!r}:
    attempt("write " + path, lambda: open(path + "/written-by-a-build", "w"))
attempt("network", lambda: socket.create_connection({address!r}, 5))
attempt("process", lambda: os.kill({pid}, 0))
if "SECRET_OF_THE_PLATFORM" in os.environ:
    found.append("variable")
if sys.argv[0].endswith("recorder.py"):  # in plain Python, not in the VM of the simulation
    raise RuntimeError("reached: %r, user %d" % (found, os.getuid()))
"""


@pytest.fixture
def spied(cloud, work, tmp_path, monkeypatch):
    """A commit of a task with a package that tries to reach the platform."""
    monkeypatch.setenv("SECRET_OF_THE_PLATFORM", "x")
    wheels = folder_of_wheels(tmp_path, monkeypatch)
    (tmp_path / "secret").write_text("content-of-a-secret")
    platform = cloud[0]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        text = SPIES.format(
            paths=[*secrets_of(platform), str(platform.folder / "platform.db"), str(tmp_path / "secret")],
            folders=[str(platform.folder), str(tmp_path), os.getcwd(), str(tmp_path / "cache" / "vmhost")],
            address=listening.getsockname(),
            pid=os.getpid(),
        )
        write_wheel(wheels, "spy", "1.0", {"spy.py": text})
        spec = SPEC.format(name=work.branch, version="1.0.0") + "requirements: [spy]\n"
        work.write("1.0.0", main="import spy\n" + DOUBLE, **{"task.yaml": spec})
        lock(Requirements.of_task(read_task(work.folder)))
        commit(work)
        yield work


def commit(work):
    work.git("add", "-A")
    work.git("commit", "-q", "-m", "version 1.0.0")
    work.git("tag", "-f", "1.0.0")


def test_code_of_packages_reaches_nothing_of_the_platform(cloud, spied):
    status, output = spied.push(spied.branch, "1.0.0", check=False)
    if cloud[0].builder.why_not_confined is None:
        assert f"RuntimeError: reached: [], user {confinement.NOBODY}" in output and "is ready" in output, output
    else:
        assert status and "cannot confine them" in output, output


def test_where_builds_cannot_be_confined_packages_are_refused_and_other_tasks_are_built(cloud, spied, monkeypatch):
    monkeypatch.setattr(cloud[0].builder, "why_not_confined", "no namespaces")
    status, output = spied.push(spied.branch, "1.0.0", check=False)
    assert status and "cannot confine them: no namespaces" in output and "reached" not in output, output
    assert "is ready" in spied.release("1.0.1", main=DOUBLE)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-r {secret}", "expected NAME==VERSION --hash"),
        ("spy @ file://{secret}", "expected a file below the task's folder"),
        (None, "there is no requirements.lock"),
    ],
)
def test_a_lock_file_has_only_versions_with_hashes(cloud, spied, tmp_path, monkeypatch, line, message):
    monkeypatch.setattr(cloud[0].builder, "_unconfined", True)
    path = spied.folder / "requirements.lock"
    if line is None:
        path.unlink()
    else:
        path.write_text(path.read_text() + line.format(secret=tmp_path / "secret") + "\n")
    commit(spied)
    status, output = spied.push(spied.branch, "1.0.0", check=False)
    assert status and message in output, output
    assert "content-of-a-secret" not in output and "reached" not in output


def test_a_lock_file_of_a_stranger_names_nothing_else(spied, tmp_path):
    """What the process that fetches packages says of it, without a push for each."""
    requirements = Requirements.of_task(read_task(spied.folder))
    text = requirements.lock.read_text()
    for line, message in (
        ("--find-links file:///", "expected NAME==VERSION --hash"),
        ("spy @ file:../../{secret}", "expected a file below the task's folder"),
        ("spy @ file:main.py", "expected a wheel or an archive"),
        ("spy @ file:nowhere.whl", "is not there"),
        ("spy @ https://example.org/spy.whl", "expected NAME==VERSION --hash"),
        ("other==1.0", "expected NAME==VERSION --hash"),
    ):
        requirements.lock.write_text(text + line.format(secret=tmp_path / "secret") + "\n")
        with pytest.raises(BytecodeError) as refused:
            packages.installed(requirements, is_trusted=False)
        assert message in str(refused.value) and "content-of-a-secret" not in str(refused.value), line


def test_the_text_that_was_checked_is_the_one_that_is_installed(cloud, work, tmp_path, monkeypatch):
    """An installer may read blanks, continued lines and variables in another way."""
    wheels = folder_of_wheels(tmp_path, monkeypatch)
    write_wheel(wheels, "own", "1.0", {"own.py": ""})
    digest = hashlib.sha256(next(wheels.iterdir()).read_bytes()).hexdigest()
    work.write(
        "1.0.0", main=DOUBLE, **{"task.yaml": SPEC.format(name=work.branch, version="1.0.0") + "requirements: [own]\n"}
    )
    requirements = Requirements.of_task(read_task(work.folder))
    head = lock(requirements).read_text().partition("\n")[0]
    requirements.lock.write_text(f"{head}\n# ${{HOME}}\nown==1.0 \t \\\n\t--hash=sha256:{digest}\n")
    got = []
    monkeypatch.setattr(packages._Uv, "install", lambda self, lock, *_: got.append(lock.read_text()))
    monkeypatch.setattr(packages._Pip, "install", lambda self, lock, *_: got.append(lock.read_text()))
    with contextlib.suppress(FileNotFoundError):  # nothing was installed
        packages.installed(requirements, is_trusted=False)
    assert got == [f"own==1.0 --hash=sha256:{digest}\n"]


def test_a_wheel_in_the_task_s_folder_is_installed(cloud, work, tmp_path, monkeypatch):
    wheels = folder_of_wheels(tmp_path, monkeypatch)
    monkeypatch.setattr(cloud[0].builder, "_unconfined", True)
    (work.folder / "wheels").mkdir()
    write_wheel(work.folder / "wheels", "own", "1.0", {"own.py": "def double(x):\n    return 2 * x\n"})
    spec = SPEC.format(name=work.branch, version="1.0.0")
    spec += 'requirements: ["own @ file:wheels/own-1.0-py3-none-any.whl"]\n'
    work.write("1.0.0", main="import own\n" + DOUBLE, **{"task.yaml": spec})
    lock(Requirements.of_task(read_task(work.folder)))
    commit(work)
    status, output = work.push(work.branch, "1.0.0", check=False)
    assert not status and "is ready" in output and not any(wheels.iterdir()), output


def test_the_build_of_a_source_distribution_does_not_run(cloud, work, tmp_path, monkeypatch):
    """It would run outside of the confinement, where packages are fetched."""
    sources = folder_of_wheels(tmp_path, monkeypatch)
    monkeypatch.setattr(cloud[0].builder, "_unconfined", True)
    ran = tmp_path / "ran"
    backend = f"open({str(ran)!r}, 'w')\n"
    texts = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "spy"\nbackend-path = ["."]\n',
        "spy.py": f"def build_wheel(*a, **k):\n    {backend}\nget_requires_for_build_wheel = build_wheel\n",
        "PKG-INFO": "Metadata-Version: 2.1\nName: spy\nVersion: 1.0\n",
    }
    with tarfile.open(sources / "spy-1.0.tar.gz", "w:gz") as archive:
        for name, text in texts.items():
            info = tarfile.TarInfo(f"spy-1.0/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    digest = hashlib.sha256((sources / "spy-1.0.tar.gz").read_bytes()).hexdigest()
    spec = SPEC.format(name=work.branch, version="1.0.0") + "requirements: [spy]\n"
    head = f'# The packages of this task. Made by `vmhost lock` for: ["spy"], Python {builds.THIS_PYTHON}'
    pins = f"{head}\nspy==1.0 \\\n    --hash=sha256:{digest}\n"
    work.commit("1.0.0", **{"task.yaml": spec, "requirements.lock": pins})
    status, output = work.push(work.branch, "1.0.0", check=False)
    assert status and not ran.exists() and "wheel" in output, output


ALIASES = "name: {name}\nversion:\n" + "".join(
    f"  - &l{level} [{', '.join([f'*l{level - 1}' if level else 'x'] * 9)}]\n" for level in range(8)
)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("task.yaml", ALIASES, "aliases (*name) are not allowed"),
        ("task.yaml", "#" * (1 << 20) + "\n{{}}", "expected at most 1048576 bytes"),
        ("release.yaml", "steps: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("simulation/deep.json", '{{"input": ' + "[" * 100_000 + "]" * 100_000 + "}}", "deep"),
    ],
    ids=lambda each: each[:24].replace("\n", " "),
)
def test_a_file_that_is_hard_to_read_is_one_refusal(cloud, work, file, text, message):
    work.commit("1.0.0", **{file: text.format(name=work.branch)})
    status, output = work.push(work.branch, "1.0.0", check=False)
    assert status and "[remote rejected] 1.0.0" in output and message in output, output
    assert not cloud[0].has_versions(work.task)


def test_what_is_hard_to_read_is_an_error_of_the_process_that_reads_it(tmp_path):
    """In this process, which takes a tenth of the time of a push."""
    for number, (file, text, message) in enumerate(
        (
            ("task.yaml", "name: x\nversion: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
            ("task.yaml", "name: x\nversion: 0x" + "f" * 1000, "at most 64 bits"),
            ("task.yaml", "name: x\nversion: 2024-05-03", "put it in quotes"),
            ("task.yaml", "name: x\nversion: 1.10", "put it in quotes"),
            ("task.yaml", "[1, 2]", "expected a name and a version"),
            ("release.yaml", "audience: &a {os: linux}\nsteps: [*a]", "aliases (*name) are not allowed"),
            ("release.yaml", "audience: {app: 2024-05-03}", "put it in quotes"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "task.yaml").write_text(SPEC.format(name="x", version="1.0.0"))
        (folder / file).write_text(text)
        found = build_worker.describe(folder)
        assert found.keys() == {"errors"} and message in found["errors"][0], (file, text[:40], found)


def test_yaml_of_a_push_is_read_in_processes_of_their_own(cloud, work, monkeypatch):
    """A text that takes long to read keeps nobody else waiting."""

    def never(*arguments, **more):
        raise AssertionError("YAML of a push is read in the platform's process")

    for name in ("safe_load", "load", "compose", "parse", "scan"):
        monkeypatch.setattr(yaml, name, never)
    assert f"of {work.task} 1.0.0 is running" in work.release("1.0.0", plan="steps: [{percent: 100}]")


def test_a_bundle_is_signed_under_the_name_and_version_that_were_pushed_only(work):
    key = signing.generate_key()
    work.write("1.0.0")
    report, data = builds.Builder(key)._run_build(sys.executable, work.folder, None)
    name, here = work.branch, builds.THIS_PYTHON
    assert builds.sign(data, key, name, "1.0.0", here)
    for wrong in (("other", "1.0.0", here), (name, "2.0.0", here), (name, "1.0.0", "3.15")):
        with pytest.raises(RefusedError, match="the build gave another bundle"):
            builds.sign(data, key, *wrong)
    builds._check_report(dict(report), name, "1.0.0")
    for field, value in (
        ("name", "other"),
        ("took_s", {"x": 1.0}),
        ("peak_bytes", -1),
        ("peak_bytes", "1"),
        ("cases", []),
        ("recorded", {"x": {}}),
        ("functions", [1]),
        ("warnings", None),
    ):
        with pytest.raises(RefusedError, match="report is damaged"):
            builds._check_report(report | {field: value}, name, "1.0.0")


def test_what_a_confined_process_leaves_behind_ends_with_it(tmp_path):
    text = "import os, sys, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nsys.exit(3)\n"
    line = confinement.command(tmp_path, [sys.executable, "-c", text], confinement.python_paths())
    reading, writing = os.pipe()
    started = subprocess.Popen(line, pass_fds=[writing], stderr=subprocess.PIPE, text=True)
    os.close(writing)
    _, error = started.communicate(timeout=60)
    if confinement.why_not() is not None:
        assert started.returncode == 125 and "cannot make namespaces" in error
    else:
        assert started.returncode == 3
        killed = subprocess.run([*line[:-1], line[-1].replace("sys.exit(3)", "os.kill(os.getpid(), 9)")])
        assert killed.returncode == 128 + signal.SIGKILL
    assert os.read(reading, 1) == b""  # closed by all that had it
    os.close(reading)
