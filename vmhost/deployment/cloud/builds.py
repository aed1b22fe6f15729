"""From a task folder to signed bundles: a process for each Python target compiles, verifies and tries it; then it is
signed.

The process runs code that somebody pushed (packages required by the task run at compile time), so it gets limits on
time, memory and file sizes, an environment without secrets, and never the key.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from vmhost.bytecode.archive import read_archive, write_archive
from vmhost.bytecode.errors import BytecodeError
from vmhost.bytecode.format import read_bundle
from vmhost.bytecode.signing import TrustStore
from vmhost.deployment.errors import RefusedError

THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_WORKER = "vmhost.deployment.cloud.build_worker"
_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "TMPDIR", "XDG_CACHE_HOME", "HOME", "UV_CACHE_DIR", "PIP_INDEX_URL")


class Builder:
    """Makes bundles signed with `key` (a SigningKey). `pythons` maps targets ("3.14") to interpreters with vmhost;
    None: this process's own. For each target a build has `timeout_s` seconds and `memory_bytes` of address space."""

    def __init__(self, key, pythons=None, *, timeout_s=120.0, memory_bytes=16 << 30):
        self._key = key
        self._pythons = pythons or {THIS_PYTHON: sys.executable}
        self._timeout_s, self._memory_bytes = timeout_s, memory_bytes

    @property
    def targets(self):
        return tuple(self._pythons)

    def build(self, folder, progress):
        """({target: the signed bundle's bytes}, report of the first target). `progress(text)` is called for each step.

        RefusedError with all findings of the compiler, the verifier and the simulation.
        """
        bundles, first = {}, None
        for target, python in self._pythons.items():
            with tempfile.TemporaryDirectory(prefix="vmhost-build-") as scratch:
                out = Path(scratch) / "unsigned.vmb"
                report = self._run(python, folder, out)
                if "errors" in report:
                    raise RefusedError("\n".join([f"Python {target}: {report['errors'][0]}", *report["errors"][1:]]))
                bundles[target] = sign(out.read_bytes(), self._key, report["name"], target)
            for warning in report["warnings"]:
                progress(f"warning: {warning}")
            cases = len(report["took_s"])
            progress(
                f"{report['name']} {report['version']} for Python {target}: {len(bundles[target]):,} bytes, verified, "
                + (
                    f"{cases} simulation cases passed"
                    if cases
                    else "no simulation cases (simulation/NAME.json): loaded"
                )
            )
            first = first or report
        return bundles, first

    def _run(self, python, folder, out):
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        # the vmhost of this checkout or installation, for its own Python
        if python == sys.executable:
            environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        process = subprocess.Popen(
            [
                python,
                "-m",
                _WORKER,
                Path(folder).absolute(),
                out,
                str(int(self._timeout_s) + 1),
                str(self._memory_bytes),
            ],
            env=environment,
            cwd=out.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            raise RefusedError(f"the build took more than {self._timeout_s:g} s") from None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # children that it may have left
            except ProcessLookupError:
                pass
            process.wait()
            process.stdout.close()
            process.stderr.close()
        try:
            return json.loads(stdout.splitlines()[-1])
        except IndexError, ValueError:
            last = stderr.decode(errors="replace").strip().splitlines()[-20:]
            how = f"signal {-process.returncode}" if process.returncode < 0 else f"status {process.returncode}"
            raise RefusedError("\n".join([f"the build process ended with {how}", *last])) from None


def sign(data, key, name, target=THIS_PYTHON):
    """The unsigned bundle `data`, signed. A result for this Python is read and verified again."""
    try:
        entries = {path: bytes(view) for path, view in read_archive(data, name).items()}
        entries["signature"] = key.sign(entries["manifest.msgpack"])
        signed = write_archive(entries)
        if target == THIS_PYTHON:
            read_bundle(signed, TrustStore.of(platform=key.public))
    except BytecodeError as error:
        raise RefusedError(str(error)) from error
    return signed
