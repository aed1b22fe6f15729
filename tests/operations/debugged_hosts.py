"""A host that may be debugged, sessions on it, and tampered links."""

import contextlib
import time

import vmhost
from tests.operations.hosts_at_work import bundle
from vmhost import debug_links
from vmhost.bytecode import signing
from vmhost.operations import Dashboard
from vmhost.operations.debugging import Debugging

ALL = ("config", "logs", "run", "reports")
SOURCE = """
import time
from vmhost.guest import log

def run(value):
    if value == "hang":
        while True:
            pass
    if value == "sleep":
        time.sleep(3600)
    if value == "large":
        return "x" * 300_000
    if isinstance(value, dict) and value.get("raise"):
        raise ValueError(f"no order for {value['email']}")
    if value == "work":
        return spin(time.thread_time() + 0.3)
    log.warning("called with %s", value)
    return value

def spin(end):
    turns = 0
    while time.thread_time() < end:
        turns += 1
    return "spun"
"""


class Clock:
    """Seconds since 1970, set by hand."""

    def __init__(self):
        self.ahead_s = 0.0

    def __call__(self):
        return time.time() + self.ahead_s


@contextlib.contextmanager
def debugged(folder, *, keys=None, consent=None, clock=time.time, scopes=ALL, longest_s=3600.0, fields=("email",)):
    """(host, its Debugging) with the task `worker`; `folder` is prepared if it is not yet."""
    record = vmhost.RecordPolicy(str(folder / "base"), share=1e-9, mask_fields=fields, mask_patterns=("card",))
    policy = vmhost.Policy(
        debugging=vmhost.DebugPolicy("ask", scopes, keys, longest_s), task=vmhost.TaskPolicy(record=record)
    )
    with vmhost.Host(allow_unsigned=True, policy=policy, state=folder / "state") as host:
        if not (folder / "worker-1.0.0").exists():
            (folder / "worker.vmb").write_bytes(bundle(folder, source=SOURCE))
        host.load(folder / "worker.vmb")
        with Debugging(host, consent=consent, clock=clock) as debugging:
            yield host, debugging


@contextlib.contextmanager
def debugged_dashboard(folder):
    """The Dashboard of a host that may be debugged, with the task `worker`."""
    policy = vmhost.Policy(debugging=vmhost.DebugPolicy("ask"))
    with vmhost.Host(allow_unsigned=True, policy=policy, state=folder / "state") as host:
        host.load(bundle(folder, source=SOURCE))
        with Dashboard(host, "127.0.0.1:0") as dashboard:
            yield dashboard


class Session:
    """The other end's actions, without a network between."""

    def __init__(self, debugging, link, via="a test"):
        self.debugging, self.via = debugging, via
        self.opened = debugging.answer({"do": "open", "link": getattr(link, "text", link)}, via)
        self.who = {name: self.opened[name] for name in ("session", "secret") if name in self.opened}

    @property
    def id(self):
        return self.who["session"]

    def ask(self, do, **what):
        return self.debugging.answer({"do": do, **what, **self.who}, self.via)

    def refused(self, do, **what):
        """(kind, message) of the refusal."""
        error = self.ask(do, **what)["error"]
        return error["kind"], error["message"]

    def result(self, run, timeout_s=60):
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            answer = self.ask("result", run=run, wait_s=5)
            if answer.get("state") != "running":
                return answer
        raise AssertionError("the run goes on")


def offered(debugging, scopes=ALL, valid_s=600):
    return debugging.offer(scopes, valid_s, address="http://127.0.0.1:9464")


def session(debugging, scopes=ALL, valid_s=600):
    """An active one."""
    made = Session(debugging, offered(debugging, scopes, valid_s))
    debugging.decide(made.id, True)
    return made


def link_of(key, host, scopes=ALL, valid_s=600, now_s=None):
    return debug_links.signed(key, "http://127.0.0.1:9464", host, scopes, valid_s, now_s or time.time())


def new_key(folder, name):
    """A SigningKey, with NAME.pub in `folder`."""
    folder.mkdir(exist_ok=True)
    key = signing.generate_key()
    (folder / f"{name}.pub").write_text(signing.format_public_key(name, key.public))
    return key


def until(condition, timeout_s=60):
    """Waits until `condition()` is true; returns its result."""
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return found
