"""The device's side of debugging: answers a session's requests, and only after somebody at the device consented.

`Debugging.answer(request, via)` takes and returns plain data, over HTTP (`web.py`) or a channel of the tunnel. A
request is {"do": ACTION, "session": ID, "secret": TEXT, ...}; an answer that fails is {"error": {"kind", "message"}}.

open     link                              session, secret, host, asked, state
state    wait_s                            state, granted, why, expires_s
config                                     groups of settings, tasks
logs     after, wait_s, task, level, text  lines, next, missed
tasks                                      names of tasks that may be run
run      task, value, profile, trace       run      (`value` as vmhost.lines.json_values has it)
result   run, wait_s                       state, and the outcome
stop     run
reports                                    reports
fetch    name, offset                      data (base64), size, next
end

Before an action its line is written to the ledger's audit, in a transaction that checks the consent again. Sessions,
waits, sizes and rates are bounded. A thread ends sessions whose consent was withdrawn, whose time is over, or whose
client is gone.
"""

import base64
import contextlib
import getpass
import json
import logging
import platform
import threading
import time
from dataclasses import asdict, dataclass, is_dataclass

from vmhost import ConfigurationError, __version__
from vmhost.access import RateLimit
from vmhost.bytecode.errors import SigningError
from vmhost.bytecode.signing import TrustStore
from vmhost.debug_links import LinkError, checked_scopes, read
from vmhost.masking import CurrentMasking
from vmhost.operations.crash_reports import CrashFolder
from vmhost.operations.debugging import runs
from vmhost.operations.debugging.ledger import WAITING_S, DebugError, Ledger
from vmhost.operations.log_tail import LogTail
from vmhost.operations.metrics import exposition
from vmhost.operations.settings import settings

WAIT_S = 10.0  # longest wait of one request
IDLE_S = 900.0  # a session without requests for this long ends
MAX_WAITS = 16  # requests that wait at once
MAX_LINES = 500  # log lines in one answer
MAX_LOG_BYTES = 256 << 10
PIECE_BYTES = 192 << 10
MAX_FILE_BYTES = 8 << 20
_REQUESTS_PER_S, _BURST = 20, 60  # of one session
_OPENS_PER_S, _OPENS_AT_ONCE = 0.2, 20  # of refused opens, from all clients
_TICK_S = 0.2
_LEVELS = {"all": 0, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_log = logging.getLogger("vmhost")


@dataclass(frozen=True)
class ConsentRequest:
    """The question to the person at the device. `signer`: the name of the key that signed the link. `via`: how the
    client connected. `scopes`: the requested ones."""

    id: str
    signer: str
    via: str
    note: str
    scopes: tuple
    expires_s: float


class Debugging:
    """Debugging of `host`, whose policy allows `debugging`, and which has a state folder. A context manager.

    `consent(request)`: a function of the embedding program that asks its user about a ConsentRequest; it returns True,
    False, or the granted scopes. It runs on a thread of its own. Without it, consent is given on the dashboard, by
    `vmhost debug consent`, or by `decide`. `names`: names that links may use for the host besides `ledger.host()`.
    `logs`: a LogTail that is already attached. ConfigurationError; DebugError if the ledger cannot be opened.
    """

    def __init__(self, host, *, consent=None, names=(), logs=None, clock=time.time):
        policy = host.policy.debugging
        if policy.consent != "ask":
            raise ConfigurationError("debugging: this host does not allow it; set `debugging: ask` in host.yaml")
        if host.state is None:
            raise ConfigurationError(
                "debugging: the audit needs a state folder; name one: `state: FOLDER` in host.yaml"
            )
        self._host, self._policy, self._consent, self._clock = host, policy, consent, clock
        self.ledger = Ledger(host.state, clock)
        try:
            self._own = self.ledger.key()
            self._keys = TrustStore.load(policy.keys).keys if policy.keys is not None else {}
            self.ledger.end_all("the host", "the host restarted")
        except SigningError as error:
            self.ledger.close()
            raise ConfigurationError(f"debugging: keys: {error}") from error
        except BaseException:
            self.ledger.close()
            raise
        self._names = {self.ledger.host(), *names}
        self._logs, self._own_logs = logs, logs is None
        self._sessions = {}  # id -> _Session, of those that wait or are active
        self._lock = threading.Lock()
        self._waits = threading.BoundedSemaphore(MAX_WAITS)
        self._refused = RateLimit(_OPENS_PER_S, _OPENS_AT_ONCE)
        self._wanted, self._stopped = threading.Event(), threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="vmhost-debugging", daemon=True)

    def __enter__(self):
        if self._own_logs:
            self._logs = LogTail()
            self._logs.__enter__()
        self._watcher.start()
        return self

    def __exit__(self, *error):
        self._stopped.set()
        self._wanted.set()
        self._watcher.join()
        with contextlib.suppress(DebugError):
            self.ledger.end_all("the host", "the host ended")
        for session in list(self._sessions.values()):
            session.close()
        self._sessions.clear()
        if self._own_logs:
            self._logs.__exit__(*error)
        self.ledger.close()

    # ---- at the device

    def offer(self, scopes, valid_s, *, address=None, note="", who="program"):
        """A Link to this host, signed with its own key. DebugError."""
        allowed = [scope for scope in scopes if scope in self._policy.scopes]
        return self.ledger.offer(who, allowed or scopes, min(valid_s, self._policy.longest_s), address, note)

    def decide(self, session, yes, *, scopes=None, who="program"):
        """Consents, to `scopes` only if given, or refuses. DebugError."""
        self.ledger.decide(session, yes, who, scopes)
        self._wanted.set()

    def end(self, session, *, who="program"):
        """Ends a session, active or waiting."""
        self.ledger.end(session, who, "ended at the device")
        self._wanted.set()

    # ---- requests of the client

    def answer(self, request, via):
        """The answer to a request, as plain data. `via`: how it arrived, for the audit and for the person who
        consents."""
        try:
            if not isinstance(request, dict) or not isinstance(do := request.get("do"), str) or do not in _ACTIONS:
                raise DebugError("input", f"expected {{'do': ...}} with one of {', '.join(_ACTIONS)}")
            if do == "open":
                return self._open(request, via)
            kept = self.ledger.identify(request.get("session"), request.get("secret"))
            if do == "state" and kept["id"] not in self._sessions:
                return self._session_state(kept)  # says how it ended
            return _ACTIONS[do](self, self._session(kept), request)
        except DebugError as error:
            return {"error": {"kind": error.kind, "message": str(error)}}
        except Exception as error:  # a bug here must not stop the host
            _log.exception("debugging: %s failed", request.get("do") if isinstance(request, dict) else "a request")
            return {"error": {"kind": "host", "message": f"{type(error).__name__} in the host; its log has more"}}

    def _open(self, request, via):
        try:
            link = read(request.get("link"))
            if link.host not in self._names:
                raise LinkError(f"the link is for the host {link.host}; this one is {', '.join(sorted(self._names))}")
            keys = self._keys | ({self._own.public: "this host"} if link.host == self.ledger.host() else {})
            signer = link.signed_by(keys)
            asked = tuple(scope for scope in link.scopes if scope in self._policy.scopes)
            if not asked:
                raise LinkError(f"this host grants {', '.join(self._policy.scopes)} only; ask for another link")
            identity, secret = self.ledger.open(link, signer, via, asked, self._policy.longest_s)
        except (LinkError, DebugError) as error:
            kind = error.kind if isinstance(error, DebugError) else "link"
            if self._refused.wait_s("") > 0:
                raise DebugError("rate", "too many links were refused; try again in a minute") from error
            if kind != "audit":
                self.ledger.note(f"somebody by {via}", "refused", why=str(error)[:300])
            raise DebugError(kind, str(error)) from error
        kept = self.ledger.session(identity)
        session = _Session(kept, CurrentMasking(lambda: self._host.policy), f"{signer} by {via}", self._clock)
        with self._lock:
            self._sessions[identity] = session
        self._wanted.set()
        _log.warning(
            "debugging: %s asks for %s by %s (session %s); consent on the dashboard, or: vmhost debug consent %s",
            signer, ", ".join(asked), via, identity, self._host.state.absolute(),
        )  # fmt: skip
        if self._consent is not None:
            threading.Thread(target=self._ask_program, args=(kept,), name="vmhost-consent", daemon=True).start()
        return {
            "session": identity,
            "secret": secret,
            "host": self.ledger.host(),
            "state": "waiting",
            "asked": list(asked),
            "expires_s": (kept["expires_ms"] - self.ledger.now_ms()) / 1000,
        }

    def _ask_program(self, kept):
        expires_s = (kept["expires_ms"] - self.ledger.now_ms()) / 1000
        asked = ConsentRequest(kept["id"], kept["signer"], kept["via"], kept["note"], tuple(kept["asked"]), expires_s)
        try:
            said = self._consent(asked)
            scopes = None if isinstance(said, bool) else checked_scopes(list(said))
        except Exception:
            _log.exception("debugging: the program's consent function failed; the session is refused")
            said, scopes = False, None
        try:
            self.decide(kept["id"], said is True or scopes is not None, scopes=scopes)
        except DebugError as error:
            _log.warning("debugging: %s", error)

    def _session(self, kept):
        """The in-memory state of the session, which need not be active. DebugError."""
        session = self._sessions.get(kept["id"])
        if session is None:
            raise DebugError("ended", f"the session is over: {kept['why'] or kept['state']}")
        if (wait_s := session.limit.wait_s("")) > 0:
            raise DebugError("rate", f"too many requests; again in {wait_s:.1f} s")
        session.heard = time.monotonic()
        session.kept = kept
        return session

    def _act(self, session, scope, action, **details):
        if session.late():
            raise DebugError("ended", "the session is over: its time ran out")
        self.ledger.act(session.id, scope, session.who, action, **details)

    def _waited(self, request, until):
        """Calls `until()` repeatedly, until it returns something or the request's wait_s are over."""
        wait_s = request.get("wait_s", 0)
        if not isinstance(wait_s, (int, float)) or isinstance(wait_s, bool) or not 0 <= wait_s <= WAIT_S:
            raise DebugError("input", f"wait_s: expected 0 to {WAIT_S:g}, got {wait_s!r:.40}")
        end = time.monotonic() + wait_s
        found = until()
        if found or not wait_s:
            return found
        if not self._waits.acquire(blocking=False):
            raise DebugError("busy", "too many requests wait already; ask again later")
        try:
            while not found and time.monotonic() < end and not self._stopped.wait(_TICK_S):
                found = until()
            return found
        finally:
            self._waits.release()

    def _state(self, session, request):
        kept = self._waited(
            request, lambda: kept if (kept := self.ledger.session(session.id))["state"] != "waiting" else None
        ) or self.ledger.session(session.id)
        return self._session_state(kept)

    def _session_state(self, kept):
        left_s = (kept["expires_ms"] - self.ledger.now_ms()) / 1000
        return {"state": kept["state"], "granted": kept["granted"], "why": kept["why"], "expires_s": max(0.0, left_s)}

    def _config(self, session, request):
        self._act(session, "config", "read the configuration")
        hide, tasks = session.masking.text, []
        groups = [
            {
                "title": title,
                "rows": [{"name": row.name, "value": hide(row.value), "from": hide(row.origin)} for row in rows],
            }
            for title, rows in settings(self._host)
        ]
        for name in self._host.tasks:
            with contextlib.suppress(KeyError):  # unloaded just now
                task = self._host.task(name)
                tasks.append({"name": name, "version": task.version, "limits": _limits(task.limits)})
        machine = {"vmhost": __version__, "python": platform.python_version(), "system": platform.platform()}
        return {"machine": machine, "groups": groups, "tasks": tasks}

    def _log_lines(self, session, request):
        after, task = request.get("after", 0), request.get("task")
        level, text = request.get("level", "all"), request.get("text", "")
        if type(after) is not int or after < 0 or level not in _LEVELS or not isinstance(text, str):
            raise DebugError("input", f"logs: expected after (a number), level ({', '.join(_LEVELS)}), and a text")
        # Checked before waiting too: the length of a wait would reveal whether something is logged.
        if "logs" not in session.kept["granted"]:
            self._act(session, "logs", "read the log")
        self.ledger.must_be_active(session.kept)

        wanted, found, seen = text.casefold(), [], after

        def new():
            nonlocal seen
            lines = self._logs.lines(task=task, level=_LEVELS[level], limit=1 << 20)
            lines = [line for line in reversed(lines) if line.number > seen]
            for line in lines:
                shown = session.hidden(line.text)  # filters apply to the masked text only
                if wanted in shown.casefold():
                    found.append((line, shown))
                seen = line.number
            return found

        began = time.monotonic()
        self._waited(request, new)
        if "wait_s" in request and found and time.monotonic() - began < _TICK_S:
            self._stopped.wait(_TICK_S)  # collects a busy log into larger answers, each with one audit line
            new()
        shown, size = [], 0
        for line, what in found[:MAX_LINES]:
            size += len(what.encode("utf-8", "surrogatepass")) + 40
            if size > MAX_LOG_BYTES and shown:
                break
            shown.append([line.number, line.time_s, line.level, line.task, line.version, what])
        oldest = self._logs.oldest
        missed = max(0, oldest - after - 1) if after and oldest else 0
        last = seen if len(shown) == len(found) else shown[-1][0]
        if shown or not after:
            self._act(session, "logs", "read the log", after=after, lines=len(shown), last=last)
        return {"lines": shown, "next": last, "missed": missed}

    def _tasks(self, session, request):
        self._act(session, "run", "listed tasks")
        return {"tasks": list(self._host.tasks)[:1000]}

    def _run(self, session, request):
        asked = runs.Asked.read(request)
        with session.lock:
            if session.run is not None and not session.run.ended.is_set():
                raise DebugError("busy", f"run {session.run.number} goes on; one at a time: wait for it, or stop it")
            try:
                task = self._host.task(asked.task)
            except KeyError as error:
                raise DebugError("input", str(error.args[0])) from error
            # Also collects the masked parts of the value, which are then masked in the log and the result too.
            shown = session.masking.value(asked.value, session.secrets)
            self._act(
                session, "run", "runs a task", task=task.name, version=task.version, value=repr(shown)[:500],
                profile=asked.profile or None, trace=asked.trace or None,
            )  # fmt: skip
            session.runs += 1
            session.run = runs.Run(self._host, task, asked, session, session.runs)
            session.run.start()
            return {"run": session.run.number, "task": task.name, "version": task.version}

    def _result(self, session, request):
        run = session.run_of(request)
        self._waited(request, run.ended.is_set)
        run.asked_for()
        if not run.ended.is_set():
            self.ledger.must_be_active(session.kept)
            return {"run": run.number, "state": "running"}
        self._act(session, "run", "read a result", run=run.number, outcome=run.outcome)
        return run.answer

    def _stop(self, session, request):
        run = session.run_of(request)
        self._act(session, "run", "stops a run", run=run.number)
        run.stop("stopped by the client")
        return {"run": run.number}

    def _reports(self, session, request):
        self._act(session, None if session.files else "reports", "listed reports")
        found = [
            {"name": name, "bytes": len(data), "what": f"of run {name.partition('/')[0].removeprefix('run-')}"}
            for name, data in session.files.items()
        ]
        if "reports" in session.kept["granted"]:
            found.append({"name": "metrics.txt", "bytes": None, "what": "numbers of the host, as /metrics has them"})
            for report in self._crashes():
                found.append({"name": f"crash-{report.id}.json", "bytes": None, "what": report.title[:200]})
        return {"reports": found[:500]}

    def _crashes(self):
        return CrashFolder(self._host.state, masking=self._host.policy.masking()).reports()

    def _fetch(self, session, request):
        name, offset = request.get("name"), request.get("offset", 0)
        if not isinstance(name, str) or type(offset) is not int or offset < 0:
            raise DebugError("input", "fetch: expected a name and an offset")
        own = name in session.files
        self._act(session, None if own else "reports", "fetched", name=name[:100], offset=offset)
        if not own and offset and session.fetched[0] == name:
            data = session.fetched[1]  # all pieces come from one snapshot
        else:
            data = session.files[name] if own else self._report(session, name)
            session.fetched = (name, data)
        if data is None:
            raise DebugError("input", f"{name[:100]!r}: no such report; see what there is by `reports`")
        end = min(len(data), offset + PIECE_BYTES)
        piece = base64.b64encode(data[offset:end]).decode()
        return {"name": name, "data": piece, "size": len(data), "next": end if end < len(data) else None}

    def _report(self, session, name):
        if name == "metrics.txt":
            return session.hidden(exposition(self._host.statistics())).encode()[:MAX_FILE_BYTES]
        for report in self._crashes():
            if name == f"crash-{report.id}.json":
                plain = session.masking.value(asdict(report), session.secrets)
                return json.dumps(plain, indent=1).encode()[:MAX_FILE_BYTES]
        return None

    def _end(self, session, request):
        self.ledger.end(session.id, session.who, "ended by the other end")
        self._wanted.set()
        return {"state": "ended"}

    # ---- ended sessions

    def _watch(self):
        while not self._stopped.is_set():
            if not self._sessions:
                self._wanted.wait()  # idle while there is no session
            self._wanted.clear()
            for session in list(self._sessions.values()):
                try:
                    self._check_session(session)
                except DebugError as error:
                    session.close()  # without an audit the session must not continue
                    _log.error("debugging: %s", error)
            self._wanted.wait(_TICK_S)

    def _check_session(self, session):
        kept = self.ledger.session(session.id)
        if kept["state"] in ("waiting", "active"):
            why = None
            if session.late() or kept["expires_ms"] <= self.ledger.now_ms():
                why = "its time ran out"
            elif kept["state"] == "waiting" and time.monotonic() - session.began > WAITING_S:
                why = "nobody consented"
            elif time.monotonic() - session.heard > IDLE_S:
                why = "the other end is gone"
            if why is None:
                return
            self.ledger.end(session.id, "the host", why)
        session.close()
        with self._lock:
            self._sessions.pop(session.id, None)


class _Session:
    """The in-memory state of a session that waits or is active. `files`: made by its runs, by name. `fetched`: the
    report being sent in pieces."""

    def __init__(self, kept, masking, who, clock):
        self.id, self.kept, self.who, self.masking = kept["id"], kept, who, masking
        self.began = self.heard = time.monotonic()
        # on the monotonic clock, which nobody can set
        self._end = self.began + kept["expires_ms"] / 1000 - clock()
        self.limit = RateLimit(_REQUESTS_PER_S, _BURST)
        self.secrets, self.files, self.fetched = {}, {}, (None, None)
        self.lock, self.run, self.runs = threading.Lock(), None, 0

    def late(self):
        return time.monotonic() >= self._end

    def hidden(self, text):
        return self.masking.text(text, self.secrets)

    def run_of(self, request):
        if self.run is None or request.get("run") != self.run.number:
            raise DebugError("input", f"{request.get('run')!r:.20}: no such run of this session")
        return self.run

    def close(self):
        """Stops its run. The ledger has ended the session, or is about to."""
        self.files.clear()
        if self.run is not None:
            self.run.stop("the session is over")


def person():
    """The person at this terminal, for the audit."""
    try:
        return f"{getpass.getuser()} at the terminal"
    except OSError, KeyError:
        return "somebody at the terminal"


def _limits(limits):
    values = asdict(limits) if is_dataclass(limits) else dict(limits)
    return {name: value for name, value in values.items() if value is None or isinstance(value, (int, float, str))}


_ACTIONS = {
    "open": None,
    "state": Debugging._state,
    "config": Debugging._config,
    "logs": Debugging._log_lines,
    "tasks": Debugging._tasks,
    "run": Debugging._run,
    "result": Debugging._result,
    "stop": Debugging._stop,
    "reports": Debugging._reports,
    "fetch": Debugging._fetch,
    "end": Debugging._end,
}
