"""A platform or a device, for test_deployment_faults.py: it may die at any write, and is started again.

    platform FOLDER WORK    all that people and devices ask a platform for
    device SETTINGS         an agent, until what it should have is proven
    sign FOLDER KEY         an owner who signs what waits there for a signature, and asks again until nothing does

python -m tests.deployment.deployment_workload DESCRIPTOR runs them in children, as fault_tries.py asks for on that
socket. What a build makes is remembered in $BUILDS: it writes nothing in the platform's folder.

Whoever asks the platform repeats what may not have happened, as people and devices do. What the platform then holds is
printed as JSON.
"""

import contextlib
import hashlib
import json
import os
import pickle
import shutil
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests import warm
from tests.deployment.platforms import WorkingCopy
from tests.stores.power_cuts import end_if_hung
from vmhost.bytecode.errors import SigningError
from vmhost.bytecode.signing import load_key
from vmhost.deployment.cloud import platform as platform_module
from vmhost.deployment.cloud.builds import Builder
from vmhost.deployment.cloud.metadata import key_of
from vmhost.deployment.cloud.platform import Platform
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.device import settings
from vmhost.deployment.device.agent import Agent
from vmhost.deployment.device.transfers import Transfers
from vmhost.deployment.errors import DeploymentError, RefusedError
from vmhost.deployment.identifiers import join_code
from vmhost.deployment.trust import Metadata, canonical
from vmhost.stores import StoreError

TASK = "shop/rank"
WAIT_S = 60.0
TICK_S = 0.05  # a try is shorter than the platform's own second
PLAN = "steps: [{percent: 100, min_reports: 2}]\nmax_error: 100 %\nproof: {calls: 0}\n"
SECRETS = {"a": "a" * 40, "b": "b" * 40, "c": "c" * 40}


def patience_s():
    """How long what fails is tried again."""
    return float(os.environ.get("PATIENCE_S", WAIT_S))


def persistently(act, *failures):
    """Goes on once the disk has room."""
    end = time.monotonic() + patience_s()
    while True:
        try:
            return act()
        except (StoreError, OSError, *failures):
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


class RememberedBuilds(Builder):
    """Each step of a build runs once for the same files."""

    def _remembered(self, step, folder, run):
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        text = repr([step, *((str(path.relative_to(folder)), path.read_bytes()) for path in files)])
        kept = Path(os.environ["BUILDS"]) / hashlib.sha256(text.encode()).hexdigest()
        if not kept.exists():
            new = kept.with_suffix(f".{os.getpid()}")
            new.write_bytes(pickle.dumps(run()))
            new.replace(kept)
        return pickle.loads(kept.read_bytes())

    def describe(self, folder):
        return self._remembered("describe", folder, lambda: super(RememberedBuilds, self).describe(folder))

    def _run_build(self, python, folder, packages):
        return self._remembered(
            "build", folder, lambda: super(RememberedBuilds, self)._run_build(python, folder, packages)
        )


# ---- the platform


def platform(folder, work):
    with contextlib.suppress(RefusedError):  # it is there
        persistently(lambda: Platform.make(folder), SigningError)
    with persistently(lambda: Platform(folder), SigningError) as there, serving(there) as address:
        people(there, Path(work), address)
        devices(there)
    with persistently(lambda: Platform(folder)) as there:  # what it holds is on the disk
        there.database.check()
        print(json.dumps(held(there), sort_keys=True))


def people(there, work, address):
    tokens = {}

    def ask(method, path, body=None, who="admin"):
        if who not in tokens:
            tokens[who] = persistently(lambda: there.access.add_token(who, "test"))
        transfers = Transfers(address)
        try:
            return transfers.ask(method, f"/api/v1{path}", body, {"authorization": f"Bearer {tokens[who]}"})
        finally:
            transfers.close()

    def until_there(path, is_there, *request, who="admin"):
        """Repeats the request until what it is to do is done; whoever asks looks first."""
        persistently(lambda: is_there(ask("GET", path, who=who)) or ask(*request, who=who), DeploymentError)

    until_there("/audit", lambda found: _is_noted(found, "repository added"), "POST", "/repositories", {"name": "shop"})
    for name, role in (("ann", "releaser"), ("fleet", "fleet")):
        body = {"name": name, "role": role}
        until_there(
            "/accounts",
            lambda found: any(each["name"] == name for each in found["accounts"]),
            "POST",
            "/accounts",
            body,
        )
    until_there("/cohorts", lambda found: found["cohorts"], "PUT", "/cohorts/canary", {"devices": ["a"]})
    until_there("/blocked", lambda found: found["blocked"], "PUT", "/devices/stolen/block", {"why": "it was stolen"})
    rules = {"text": "rules: [{name: c, crashes: {over: 0, within: 1 h}}]"}
    until_there("/fleet/alerts", lambda found: found["rules"], "PUT", "/fleet/rules", rules)
    copy = WorkingCopy(work, f"{address}/git/shop", persistently(lambda: there.access.add_token("ann", "test")))

    def push():
        status, said = copy.push("rank", "1.0.0", check=False)
        if status:
            raise DeploymentError(said)

    persistently(
        lambda: any(each.version == "1.0.0" for each in there.releases.versions.values()) or push(), DeploymentError
    )
    file = ("POST", f"/files?task={TASK}&name=words", b"words")
    until_there("/files", lambda found: found["files"], *file, who="ann")


def _is_noted(found, action):
    return any(each["action"] == action for each in found["audit"])


def devices(there):
    joining = persistently(lambda: there.access.add_token("fleet", "test", uses=2))
    asking = persistently(lambda: there.access.add_token("fleet", "test", scopes=["join"]))
    for device in "ab":
        persistently(lambda: there.enrol(there.access.identify(joining), device, SECRETS[device]))
    if "c" not in {each["device"] for each in there.devices.list()}:
        persistently(lambda: there.enrol(there.access.identify(asking), "c", SECRETS["c"]))
        persistently(lambda: there.joins.approve("c", join_code(SECRETS["c"]), "admin"))
    for device in "ab":
        release = persistently(lambda: check(there, device))["wanted"].get(TASK)
        identity = release["release"] if release else 1
        for number, state in enumerate(("taken", "proven" if device == "a" else "failed"), 1):
            persistently(lambda: check(there, device, [[number, {"release": identity, "state": state, "reason": "r"}]]))
        counts = {"task": TASK, "version": "1.0.0", "counts": {"call:OK": 10}, "breaker": "closed"}
        persistently(lambda: there.take_report(device, SECRETS[device], {"epoch": "e", "number": 1, "tasks": [counts]}))
        crash = {"id": "1", "fingerprint": "ab" * 16, "task": TASK, "version": "1.0.0", "title": "SIGSEGV"}
        persistently(lambda: there.take_crash(device, SECRETS[device], crash))
    persistently(  # what failed is read again, as another Release
        lambda: there.releases.release(1).state == "rolled_back" or there.releases.act(1, "roll_back", "ann", "wrong")
    )
    persistently(there.sync_metadata)


def check(there, device, reports=()):
    request = {"facts": {"python": "3.14"}, "tasks": {}, "epoch": "1", "reports": list(reports)}
    return there.check(device, SECRETS[device], request)


def sign(folder, key):
    key = load_key(Path(key))
    with persistently(lambda: Platform(folder)) as there:

        def waiting():
            return there.metadata.signing("shop")["waiting"]

        def sign():
            if (found := waiting()) is not None:
                there.sign("shop", key_of(key)[0], key.sign(canonical(found["signed"]))[32:].hex(), "ann")

        persistently(sign)
        persistently(there.sync_metadata)  # as the platform does each second
        releases = there.releases
        about = {
            "waiting": waiting(),
            "releases": [(each.version.version, each.state) for each in releases.releases.values()],
            "noted": sum(each["action"] == "list signed" for each in there.access.audit(subject="shop")),
            "offered": sorted(there.task_files.choose(TASK, "a", {}, frozenset())),
            "listed": is_listed(there, "1"),
        }
    print(json.dumps(about))


def is_listed(there, version):
    """Whether devices find the version in the platform's metadata."""

    def fetch(name, max_bytes):
        path = there.metadata.folder / name
        return path.read_bytes() if path.exists() else None

    with tempfile.TemporaryDirectory() as device:
        shutil.copy(there.metadata.folder / "1.root.json", Path(device) / "root.json")
        metadata = Metadata(Path(device), fetch, time.time)
        metadata.refresh()
        return metadata.target(f"{TASK}/{version}/3.14.vmb") is not None


def held(there):
    """All that came of it, without times, numbers of rows and tokens."""
    with contextlib.closing(there.open_repository("shop")) as repo:
        refs = sorted(name.decode() for name in repo.get_refs() if name != b"HEAD")
    releases = there.releases
    uses = [token["uses"] for each in there.access.accounts() for token in each["tokens"] if token["uses"] is not None]
    left = [path.name for path in there.folder.parent.rglob("tmp*")]
    return {
        "versions": [(each.task, each.version, each.bad) for each in releases.versions.values()],
        "releases": [(each.id, each.state, vars(each.counts)) for each in releases.releases.values()],
        "assigned": [(each["device"], each["state"]) for each in releases.devices_of(1)],
        "history": [
            (each["event"], each["state"], each["who"]) for each in releases.history(None, 100, lambda task: True)
        ],
        "refs": refs,
        "files": [(each["name"], each["digest"] in there.files) for each in there.task_files.list(TASK)],
        "bundles": all(
            digest in there.files for each in releases.versions.values() for digest, _ in each.bundles.values()
        ),
        "devices": [each["device"] for each in there.devices.list()],
        "joins": there.joins.list(),
        "blocked": [each["device"] for each in there.devices.blocked()],
        "cohorts": there.devices.cohorts(),
        "sums": [(each["cohort"], each["calls"], each["crashes"]) for each in there.fleet.sums(1)],
        "listed": is_listed(there, "1.0.0"),  # it is rolled back, so it must not be
        "used": 2 * len(uses) - sum(uses),
        "left": left,
        "noted": sorted(
            (each["who"], each["action"], each["subject"])
            for each in there.access.audit(limit=1000)
            if each["action"] != "token added"
        ),
    }


# ---- the device


def device(path):
    agent = persistently(lambda: Agent(settings.read(path)))
    with agent:
        last = end = time.monotonic() + float(os.environ.get("LAST_S", WAIT_S))
        while True:
            agent.step()
            if not agent.failed:
                end = min(last, time.monotonic() + patience_s())
            current = (agent.memory.tasks().get(TASK) or {}).get("current") or {}
            is_there = (current.get("version"), current.get("state")) == ("1.1.0", "proven")
            if is_there and not agent.failed and not len(agent.memory.outbox):
                assert agent.host.task("rank")(1) == 3
                agent.step()  # the platform hears that a failure is over
                return
            if time.monotonic() > end:
                raise SystemExit(f"it has {current}, {len(agent.memory.outbox)} reports wait: {agent._problem}")
            time.sleep(0.02)


if __name__ == "__main__":
    platform_module.Builder, platform_module._TICK_S = RememberedBuilds, TICK_S
    assert threading.active_count() == 1  # what is forked has one thread
    (what, *arguments), variables = warm.serve(socket.socket(fileno=int(sys.argv[1])))
    os.environ |= variables
    end_if_hung()
    {"platform": platform, "device": device, "sign": sign}[what](*arguments)
