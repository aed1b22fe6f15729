"""From a task folder to signed bundles: processes for each Python target compile, verify and try it; then it is signed.

These processes read and run what somebody pushed (packages required by the task run at compile time). They are
confined (confinement.py) where the machine allows it, with limits on time, memory and file sizes, an environment
without secrets, and never the key. What they report is checked as what a stranger says.
"""

import contextlib
import functools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from vmhost.bytecode.archive import MAX_BYTES, read_archive, write_archive
from vmhost.bytecode.errors import BytecodeError
from vmhost.bytecode.format import read_bundle, read_manifest
from vmhost.bytecode.signing import TrustStore
from vmhost.deployment.cloud import confinement
from vmhost.deployment.errors import RefusedError

THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
MAX_REPORT_BYTES = 64 << 20
_WORKER = "vmhost.deployment.cloud.build_worker"
_DESCRIBE_S = 60.0
_DESCRIBE_BYTES = 4 << 30
_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "TMPDIR", "VMHOST_CACHE", "XDG_CACHE_HOME", "HOME")
_PATHS = "import json, sys, vmhost.deployment.cloud.builds as b; json.dump(b.shown_paths(), sys.stdout)"
_MAX_TAIL = 4096  # bytes of the output of a process that failed
_MAX_LINES = 200


class Builder:
    """Makes bundles signed with `key` (a SigningKey). `pythons` maps targets ("3.14") to interpreters with vmhost;
    None: this process's own. For each target a build has `timeout_s` seconds and `memory_bytes` of address space.
    `hidden`: folders that a build must not see. `unconfined`: packages may run where this machine cannot confine
    builds."""

    def __init__(self, key, pythons=None, *, timeout_s=120.0, memory_bytes=16 << 30, hidden=(), unconfined=False):
        self._key = key
        self._pythons = pythons or {THIS_PYTHON: sys.executable}
        self._timeout_s, self._memory_bytes = timeout_s, memory_bytes
        self._hidden, self._unconfined = [Path(path).resolve() for path in hidden], unconfined
        self._shown = {}  # interpreter -> paths that it needs

    @property
    def targets(self):
        return tuple(self._pythons)

    @functools.cached_property
    def why_not_confined(self):
        """None if builds are confined, else the reason why this machine cannot do it."""
        return confinement.why_not()

    def describe(self, folder):
        """{"name", "version", "requires", "plan"} of the task folder: what its task.yaml and release.yaml say, as plain
        data. RefusedError."""
        python = next(iter(self._pythons.values()))
        found = self._run(python, "describe", folder, timeout_s=_DESCRIBE_S, memory_bytes=_DESCRIBE_BYTES)
        _must(type(found.get("name")) is str and type(found.get("version")) is str)
        return found

    def build(self, folder, described, progress):
        """({target: the signed bundle's bytes}, report of the first target) of a folder for which `describe` gave
        `described`. `progress(text)` is called for each step.

        RefusedError with all findings of the compiler, the verifier and the simulation.
        """
        name, version = described["name"], described["version"]
        bundles, first = {}, None
        for target, python in self._pythons.items():
            with _refusals_of(target):
                packages = self._packages(python, folder) if described.get("requires") else None
                report, data = self._run_build(python, folder, packages)
                _check_report(report, name, version)
                bundles[target] = sign(data, self._key, name, version, target)
            for warning in report["warnings"]:
                progress(f"warning: {warning}")
            cases = len(report["took_s"])
            progress(
                f"{name} {version} for Python {target}: {len(bundles[target]):,} bytes, verified, "
                + (
                    f"{cases} simulation cases passed"
                    if cases
                    else "no simulation cases (simulation/NAME.json): loaded"
                )
            )
            first = first or report
        return bundles, first

    def _packages(self, python, folder):
        """The folder with the task's packages, whose code runs in builds."""
        if self.why_not_confined is not None and not self._unconfined:
            raise RefusedError(
                "requirements: the code of packages runs in builds, and this platform cannot confine them: "
                f"{self.why_not_confined}; its admin can allow that, or serve without it: see `vmhost cloud serve "
                "--unconfined`"
            )
        found = self._run(python, "fetch", folder, confined=False, environment=dict(os.environ))
        return found["packages"]

    def _run_build(self, python, folder, packages):
        with tempfile.TemporaryFile() as bundle:
            more = (bundle.fileno(),) if packages is None else (bundle.fileno(), packages)
            report = self._run(python, "build", folder, *more, files=(bundle.fileno(),), shown=more[1:])
            data = _read(bundle, MAX_BYTES, "the bundle")
            if packages is not None:
                with tempfile.TemporaryFile() as copy:  # the other file may still be written to
                    copy.write(data)
                    copy.seek(0)
                    self._run(python, "verify", folder, copy.fileno(), files=(copy.fileno(),))
            return report, data

    def _run(
        self, python, step, folder, *more, files=(), shown=(), confined=True, environment=None, timeout_s=None,
        memory_bytes=None,
    ):  # fmt: skip
        """The report of a step of build_worker.py. RefusedError with its errors."""
        timeout_s, memory_bytes = timeout_s or self._timeout_s, memory_bytes or self._memory_bytes
        confined = confined and self.why_not_confined is None
        folder = Path(folder).absolute()
        with (
            tempfile.TemporaryDirectory(prefix="vmhost-build-") as scratch,
            tempfile.TemporaryFile() as report,
            tempfile.TemporaryFile() as output,
        ):
            line = [python, "-m", _WORKER, step, report.fileno(), int(timeout_s) + 1, memory_bytes, folder, *more]
            line = [str(each) for each in line]
            if confined:
                root = Path(scratch) / "root"
                root.mkdir()
                line = confinement.command(root, line, [*self._shown_to(python), folder, *shown], self._hidden)
            environment = environment or self._environment(scratch, confined)
            status = self._wait(line, scratch, self._with_path(python, environment), (report, output), files, timeout_s)
            if status != 0 or not os.fstat(report.fileno()).st_size:
                raise RefusedError(_how_it_ended(status, _tail(output)))
            try:
                found = json.loads(_read(report, MAX_REPORT_BYTES, "the build's report"))
            except ValueError, RecursionError:
                found = None
        _must(isinstance(found, dict))
        if "errors" in found:
            _must(isinstance(found["errors"], list) and found["errors"] != [])
            raise RefusedError("\n".join(str(each) for each in found["errors"][:_MAX_LINES]))
        return found

    def _wait(self, line, scratch, environment, outputs, files, timeout_s):
        report, output = outputs
        process = subprocess.Popen(
            line,
            env=environment,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(report.fileno(), *files),
        )
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise RefusedError(f"the build took more than {timeout_s:g} s") from None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # children that it may have left
            except ProcessLookupError:
                pass
            process.wait()
        return status if status < 128 else 128 - status

    def _environment(self, scratch, confined):
        found = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        if confined:
            found |= {"HOME": "/tmp", "TMPDIR": "/tmp", "VMHOST_CACHE": "/tmp/cache"}
        return found

    def _with_path(self, python, environment):
        """The vmhost of this checkout or installation, for its own Python."""
        if python == sys.executable:
            environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        return environment

    def _shown_to(self, python):
        if python not in self._shown:
            if python == sys.executable:
                self._shown[python] = shown_paths()
            else:
                done = subprocess.run([python, "-c", _PATHS], capture_output=True, stdin=subprocess.DEVNULL)
                if done.returncode:
                    raise RefusedError(f"{python}: expected a Python with vmhost[cloud]: {_tail_of(done.stderr)}")
                self._shown[python] = json.loads(done.stdout)
        return self._shown[python]


def shown_paths():
    """What a build with this Python needs: where Python, its packages and vmhost are."""
    package = str(Path(__file__).parents[2])
    found = {package, os.path.realpath(package)}
    found |= {os.path.realpath(each) for each in os.scandir(package) if each.is_symlink()}
    return sorted({*confinement.python_paths(), *found})


@contextlib.contextmanager
def _refusals_of(target):
    try:
        yield
    except RefusedError as error:
        raise RefusedError(f"Python {target}: {error}") from None


def _must(holds):
    if not holds:
        raise RefusedError("the build's report is damaged: did the task's packages write into it?")


def _check_report(report, name, version):
    """RefusedError unless the report is of this task and has the fields that the platform uses."""
    _must(report.get("name") == name and report.get("version") == version)
    kinds = {"warnings": list, "module": str, "cases": dict, "took_s": dict, "recorded": dict, "functions": list}
    kinds |= {"stream": bool, "size": int, "peak_bytes": int}
    _must(all(type(report.get(key)) is kind for key, kind in kinds.items()))
    _must(all(isinstance(each, str) for key in ("warnings", "functions") for each in report[key]))
    _must(0 <= report["peak_bytes"] < 1 << 60 and 0 <= report["size"] < 1 << 60)
    _must(all(isinstance(case, dict) for case in report["cases"].values()))
    _must(report["took_s"].keys() | report["recorded"].keys() <= report["cases"].keys())
    _must(all(type(each) in (int, float) and math.isfinite(each) for each in report["took_s"].values()))
    for each in report["recorded"].values():
        _must(isinstance(each, dict) and each.keys() == {"input", "digest", "begins"})
        _must(all(isinstance(text, str) and len(text) <= 200 for text in each.values()))
    report["warnings"] = report["warnings"][:_MAX_LINES]


def _read(file, max_bytes, what):
    if os.fstat(file.fileno()).st_size > max_bytes:
        raise RefusedError(f"{what} has more than {max_bytes:,} bytes")
    file.seek(0)
    return file.read()


def _tail(file):
    file.seek(max(0, os.fstat(file.fileno()).st_size - _MAX_TAIL))
    return _tail_of(file.read())


def _tail_of(data):
    return "\n".join(data.decode(errors="replace").strip().splitlines()[-20:])


def _how_it_ended(status, tail):
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return "\n".join([f"the build process ended with {how}", *filter(None, [tail])])


def sign(data, key, name, version, target=THIS_PYTHON):
    """The unsigned bundle `data` of this task, signed. A result for this Python is read and verified again."""
    try:
        entries = {path: bytes(view) for path, view in read_archive(data, name).items()}
        entries["signature"] = key.sign(entries["manifest.msgpack"])
        signed = write_archive(entries)
        if target == THIS_PYTHON:
            read_bundle(signed, TrustStore.of(platform=key.public))
        manifest = read_manifest(entries["manifest.msgpack"], name)
    except (BytecodeError, KeyError) as error:
        raise RefusedError(str(error)) from error
    if (manifest.kind, manifest.name, manifest.version) != ("task", name, version) or manifest.target != target:
        raise RefusedError(f"the build gave another bundle than {name} {version} for Python {target}")
    return signed
