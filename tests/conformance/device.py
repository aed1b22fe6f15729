"""The test modules run by a device image's `vmrun` in place of the full host: `python -m tests.conformance --vmrun
IMAGE/vmrun`.

The same bundles, asked for the same tests; one process of `vmrun serve` for each module.
"""

import json
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import vmhost
from vmhost.bytecode.format import read_bundle

from . import sealed


class Process:
    """The same as sealed.Process, for the executable `vmrun`."""

    def __init__(self, vmrun):
        self._vmrun = vmrun
        self._lock = threading.Lock()
        self.crashes = 0

    def run(self, request):
        """{id: [outcome, text]} of the request. Crashed; RuntimeError with what a VM could not be made to do."""
        host = _Host(self._vmrun)
        try:
            return sealed.serve(host, request)
        except sealed.Crashed:
            with self._lock:
                self.crashes += 1
            raise
        except vmhost.VMHostError as error:
            raise RuntimeError(f"in a VM of {self._vmrun}: {error}") from error

    def close(self):
        """There is no process between modules."""


class _Host:
    """One `vmrun serve` with one bundle, with the parts of a vmhost.Host that sealed.serve() uses."""

    def __init__(self, vmrun):
        self._vmrun = vmrun

    def load(self, path):
        name = read_bundle(path, allow_unsigned=True).manifest.name
        self._folder = tempfile.mkdtemp()
        shutil.copy(path, self._folder)
        self._told = tempfile.TemporaryFile("w+", errors="replace")  # what the tests print
        self._child = subprocess.Popen(
            [self._vmrun, "serve", self._folder, "--allow-unsigned"],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._told,
        )

        def task(value, timeout_s):
            try:
                self._child.stdin.write(json.dumps({"task": name, "input": value, "timeout_s": timeout_s}) + "\n")
                self._child.stdin.flush()
            except BrokenPipeError:
                pass
            answer = self._child.stdout.readline()
            if not answer:
                self._told.seek(0)
                raise sealed.Crashed(
                    f"{Path(self._vmrun).name} ended with {self._child.wait()}: {self._told.read()[-1500:]}"
                )
            answer = json.loads(answer)
            if "error" in answer:
                error = vmhost.VMHostError(f"{answer['error']['type']}: {answer['error']['message']}")
                error.guest_traceback = answer["error"].get("traceback", "")
                raise error
            return answer["result"]

        task.name = name
        return task

    def unload(self, name):
        self._child.communicate()
        self._told.close()
        shutil.rmtree(self._folder)
