"""One call of a task for a debugging session: with its limits, optionally a profile and a trace, everything masked."""

import concurrent.futures
import hashlib
import json
import logging
import threading
import time
from dataclasses import dataclass

from vmhost import VMHostError
from vmhost.lines import json_values
from vmhost.operations import flames
from vmhost.operations.debugging.ledger import DebugError
from vmhost.operations.otlp import TracedTask
from vmhost.profile import Profile

MAX_RUN_S = 60.0
MAX_VALUE_CHARACTERS = 1 << 20  # of the value, as JSON
MAX_ANSWER_CHARACTERS = 128 << 10  # of a result within an answer; a larger one becomes a file
MAX_FILE_BYTES = 8 << 20  # of one file
MAX_FILES_BYTES = 24 << 20  # of all files of a session
UNASKED_S = 60.0  # a run is stopped if nobody asks for its result for this long
PROFILE_HZ = 1000
_LOOK_S = 0.2
_SPANS_S = 2.0
_log = logging.getLogger("vmhost")


@dataclass(frozen=True)
class Asked:
    """A request to run a task."""

    task: str
    value: object
    profile: bool
    trace: bool
    timeout_s: float

    @classmethod
    def read(cls, request):
        """Read from a request's plain data. DebugError."""
        task, timeout_s = request.get("task"), request.get("timeout_s", MAX_RUN_S)
        if not isinstance(task, str) or len(task) > 200:
            raise DebugError("input", "run: expected the name of a task")
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0 < timeout_s <= MAX_RUN_S:
            raise DebugError(
                "input", f"timeout_s: expected a number above 0, up to {MAX_RUN_S:g}, got {timeout_s!r:.40}"
            )
        plain = request.get("value")
        try:
            if len(json.dumps(plain)) > MAX_VALUE_CHARACTERS:
                raise DebugError("input", f"value: expected at most {MAX_VALUE_CHARACTERS:,} characters of JSON")
            value = json_values.from_plain(plain)
        except (ValueError, TypeError, RecursionError) as error:
            raise DebugError("input", f"value: {error}"[:300]) from error
        return cls(task, value, request.get("profile") is True, request.get("trace") is True, float(timeout_s))


class Run:
    """The call, on a thread of its own. `ended`: an Event; afterwards `answer` is the session's answer."""

    def __init__(self, host, task, asked, session, number):
        self.number, self.ended = number, threading.Event()
        self.answer, self.outcome = None, "none"
        self._host, self._task, self._asked, self._session = host, task, asked, session
        self._why = None  # the reason to stop it
        self._heard = time.monotonic()
        self._thread = threading.Thread(target=self._work, name=f"vmhost-debug-run-{number}", daemon=True)

    def start(self):
        self._thread.start()

    def asked_for(self):
        self._heard = time.monotonic()

    def stop(self, why):
        self._why = self._why or why

    def _work(self):
        try:
            answer = self._called()
        except Exception as error:  # a bug here, reported as one
            _log.exception("debugging: run %s failed", self.number)
            answer = {"outcome": "host", "failure": f"{type(error).__name__} in the host; its log has more"}
            answer |= {"took_s": 0.0, "task": self._task.name, "version": self._task.version}
            answer |= {"remarks": [], "files": []}
        self.outcome = answer["outcome"]
        self.answer = {"run": self.number, "state": "ended", **answer}
        self.ended.set()

    def _called(self):
        asked, task, session = self._asked, self._task, self._session
        name, spans, remarks = f"{task.name}@{task.version}", _Spans(), []
        profiling = self._profiling(remarks) if asked.profile else None
        try:
            began = time.perf_counter()
            try:
                called = TracedTask(task, spans, set()) if asked.trace else task
                future = called.submit(asked.value, timeout_s=asked.timeout_s)
                error = self._wait(future)
                outcome = future.outcome().lower()
            except VMHostError as caught:  # could not be queued
                future, error, outcome = None, caught, type(caught).__name__
            took_s = time.perf_counter() - began
        finally:
            profile = self._profile(profiling, remarks) if profiling is not None else None
        answer = {"outcome": outcome, "took_s": took_s, "task": task.name, "version": task.version}
        if self._why is not None:
            remarks.append(self._why)
        if error is None:
            self._result(future.result(), answer, remarks)
        else:
            answer["failure"] = session.hidden(f"{type(error).__name__}: {error}")[:10_000]
            if getattr(error, "guest_traceback", None):
                answer["traceback"] = session.hidden(error.guest_traceback)[-20_000:]
        if profile is not None:
            self._keep_profile(only(profile, name), answer, remarks)
        if asked.trace and future is not None:
            answer["spans"] = spans.wait(_SPANS_S)
            document = {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "vmhost"}, "spans": answer["spans"]}]}]}
            self._keep("trace.json", json.dumps(document, indent=1).encode(), remarks)
        return answer | {"remarks": remarks, "files": [each for each in session.files if each.startswith(self._folder)]}

    def _wait(self, future):
        """The call's error, or None. Stops the call on request, or if nobody asks for it."""
        stopped = False
        while True:
            try:
                return future.exception(_LOOK_S)
            except concurrent.futures.CancelledError as error:
                return error
            except TimeoutError:
                if time.monotonic() - self._heard > UNASKED_S:
                    self.stop(f"nobody asked for its result for {UNASKED_S:g} s")
                if self._why is not None and not stopped:
                    stopped = True
                    future.stop()

    def _result(self, result, answer, remarks):
        session = self._session
        try:
            plain = json_values.to_plain(session.masking.value(result, session.secrets))
            text = json.dumps(session.masking.value(plain, session.secrets))  # also in values of other classes
        except (TypeError, ValueError, RecursionError) as error:
            answer["failure"] = f"the task's result cannot be expressed in JSON: {error}"[:300]
            return
        answer["digest"] = hashlib.sha256(text.encode()).hexdigest()
        if len(text) <= MAX_ANSWER_CHARACTERS:
            answer["result"] = json.loads(text)
        else:
            remarks.append(f"the result has {len(text):,} characters: fetch {self._folder}result.json")
            self._keep("result.json", text.encode(), remarks)

    def _profiling(self, remarks):
        try:
            return self._host.profile(PROFILE_HZ)
        except RuntimeError as error:  # somebody else takes one
            remarks.append(f"no profile: {error}")
            return None

    def _profile(self, profiling, remarks):
        try:
            return profiling.stop()
        except OSError as error:
            remarks.append(f"no profile: {error}")
            return None

    def _keep_profile(self, profile, answer, remarks):
        samples = sum(node.samples for node in profile.nodes)
        answer["samples"] = samples
        if not samples:
            remarks.append(
                f"the profile has no sample: the call was shorter than the interval, {1000 / PROFILE_HZ:g} ms"
            )
            return
        self._keep("profile.svg", flames.flame_graph(profile, "wall", profile.tasks[0]).encode(), remarks)
        self._keep("profile.speedscope.json", flames.speedscope(profile).encode(), remarks)

    @property
    def _folder(self):
        return f"run-{self.number}/"

    def _keep(self, name, data, remarks):
        """Stores a file for the session; files of its oldest runs make room."""
        if len(data) > MAX_FILE_BYTES:
            remarks.append(f"{name} has {len(data):,} bytes, and is not kept: {MAX_FILE_BYTES:,} at most")
            return
        files = self._session.files
        files[self._folder + name] = data
        while sum(map(len, files.values())) > MAX_FILES_BYTES:
            files.pop(next(iter(files)))


class _Spans(list):
    """The list in which a TracedTask puts a call's spans, all at once, shortly after the call has ended."""

    def __init__(self):
        super().__init__()
        self._came = threading.Event()

    def extend(self, spans):
        super().extend(spans)
        self._came.set()

    def wait(self, timeout_s):
        self._came.wait(timeout_s)
        return list(self)


def only(profile, task):
    """The Profile with only the stacks of one "task@version"; a session must not see other tasks."""
    numbers, nodes = {}, []
    for number, node in enumerate(profile.nodes):
        if node.frame.name == task if node.parent is None else node.parent in numbers:
            numbers[number] = len(nodes)
            nodes.append(node._replace(parent=None if node.parent is None else numbers[node.parent]))
    part = Profile.__new__(Profile)
    part.__dict__.update(profile.__dict__ | {"nodes": tuple(nodes)})
    return part
