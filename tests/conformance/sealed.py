"""The process whose VMs run test modules: `python -m tests.conformance.sealed --vms N`.

Reads one request a line on standard input, {"module", "bundle", "names", "folder", "home", "seconds"}, serves N of them
side by side, and answers with a line each on standard output: {"module", "outcomes": {id: [outcome, text]}} or
{"module", "error"}. Ends when its input ends. It is a process of its own so that a crash is a result like any other:
`Process` is the parent's side, and `Crashed` is what it raises for the modules that were running."""

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

_CLASS_SECONDS, _TEST_SECONDS = 90, 20
_CLOSING_SECONDS = 120
_STDERR = 1500  # characters of a crashed process's standard error that are kept


class Crashed(Exception):
    """The process ended while the module ran, or could not be ended."""


def serve(host, request):
    """{id: [outcome, text]} of the tests of one request, run class by class in VMs of the host."""
    import vmhost

    end = time.monotonic() + request["seconds"]
    classes, outcomes = {}, {}
    for name in request["names"]:
        classes.setdefault(name.rpartition(".")[0], []).append(name)
    task = host.load(request["bundle"])

    def call(names, seconds):
        left = end - time.monotonic()
        if left <= 0:
            return {name: ["failed", f"not run: the module's {request['seconds']} s were over"] for name in names}
        return task(
            {"folder": request["folder"], "home": request["home"], "names": names}, timeout_s=min(seconds, left)
        )

    try:
        for names in classes.values():
            try:
                outcomes |= call(names, _CLASS_SECONDS)
            except vmhost.VMHostError:  # the class lost its VM: test by test, to know which
                for name in names:
                    try:
                        outcomes |= call([name], _TEST_SECONDS)
                    except vmhost.VMHostError as error:
                        outcomes[name] = [
                            "failed",
                            f"{getattr(error, 'guest_traceback', '') or ''}\n{type(error).__name__}: {error}",
                        ]
    finally:
        host.unload(task.name)
    return outcomes


def main(arguments=None):
    """Serves the requests of standard input until it ends."""
    import vmhost
    from vmhost.limits import BreakerPolicy, Policy, TaskPolicy

    parser = argparse.ArgumentParser(prog="python -m tests.conformance.sealed", description=__doc__.partition("\n")[0])
    parser.add_argument("--vms", type=int, default=1)
    vms = parser.parse_args(arguments).vms
    out, lock = sys.stdout, threading.Lock()

    def answer(host, request):
        try:
            found = {"outcomes": serve(host, request)}
        except Exception as error:
            found = {"error": f"in a VM: {type(error).__name__}: {error}"}
        with lock:
            print(json.dumps({"module": request["module"], **found}), file=out, flush=True)

    policy = Policy(task=TaskPolicy(breaker=BreakerPolicy(enabled=False)))
    with vmhost.Host(allow_unsigned=True, policy=policy) as host, ThreadPoolExecutor(vms) as threads:
        for line in sys.stdin:
            threads.submit(answer, host, json.loads(line))
    return 0


class Process:
    """A process of `vms` VMs, started when it is first asked and again after a crash. Safe for several threads."""

    def __init__(self, vms, command=(sys.executable, "-m", "tests.conformance.sealed")):
        self._command = [*command, "--vms", str(vms)]
        self._lock = threading.Lock()
        self._child = None
        self._asked = {}
        self.crashes = 0

    def run(self, request):
        """{id: [outcome, text]} of the request. Crashed; RuntimeError with what a VM could not be made to do."""
        future = Future()
        with self._lock:
            if self._child is None:
                self._start()
            self._asked[request["module"]] = future
            try:
                self._child.stdin.write(json.dumps(request) + "\n")
                self._child.stdin.flush()
            except BrokenPipeError:
                pass  # it just crashed: the reader will say so
        found = future.result()
        if "error" in found:
            raise RuntimeError(found["error"])
        return found["outcomes"]

    def close(self):
        """Ends the process; returns None, or what it did instead of ending well."""
        with self._lock:
            child = self._child
            if child is None:
                return None
            child.stdin.close()
        try:
            child.wait(_CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            return f"the process of the VMs did not end within {_CLOSING_SECONDS} s"
        self._reader.join()
        return None if child.returncode == 0 else self._last

    def _start(self):
        child = self._child = subprocess.Popen(
            self._command,
            text=True,
            errors="replace",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        lines = []
        errors = threading.Thread(target=lambda: lines.append(child.stderr.read()[-_STDERR:]), daemon=True)
        errors.start()
        self._reader = threading.Thread(target=self._read, args=(child, errors, lines), daemon=True)
        self._reader.start()

    def _read(self, child, errors, lines):
        for line in child.stdout:
            found = json.loads(line)
            with self._lock:
                future = self._asked.pop(found["module"])
            future.set_result(found)
        status = child.wait()
        errors.join()
        for pipe in (child.stdout, child.stderr):
            pipe.close()
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        name = signal.Signals(-status).name if status < 0 else f"status {status}"
        with self._lock:
            lost, self._asked = self._asked, {}
            self._child = None
            self.crashes += status != 0
            self._last = (
                f"the process of the VMs ended with {name} while it ran {', '.join(lost) or 'nothing'}: {lines[0]}"
            )
        for future in lost.values():
            future.set_exception(Crashed(self._last))


if __name__ == "__main__":
    raise SystemExit(main())
