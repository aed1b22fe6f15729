"""The agent of a device: asks the platform what should run, pulls what is missing, proves it, switches, and reports.

`step()` is one round; `run()` repeats it until stopped. Everything that must survive is in `Memory` and in the bundle
store before the next action, so the process may be killed at any point: the running version runs again, a download
continues, and an interrupted trial is repeated, but only MAX_ATTEMPTS times.

A task has two slots: the current version, and the one before. A version becomes current after a trial in a host of its
own; while it is watched its state is `running`, then `proven`. If it fails, the one before becomes current again.
"""

import contextlib
import itertools
import json
import logging
import os
import random
import secrets
import threading
import time

from vmhost import BundleError, Host, Policy, VMHostError
from vmhost.bytecode.signing import TrustStore
from vmhost.deployment import delta, identifiers, orders, pieces
from vmhost.deployment.artifacts import digest_of, is_digest, remove_partials, replace_durably
from vmhost.deployment.bounds import SELF_TEST_BOUNDS, Counted, why_outside
from vmhost.deployment.device import crash_upload, health, heap, state_folder
from vmhost.deployment.device.bundle_store import BundleStore
from vmhost.deployment.device.facts import facts
from vmhost.deployment.device.fleet_report import FleetReport
from vmhost.deployment.device.memory import Memory
from vmhost.deployment.device.proof import ProofError, prove
from vmhost.deployment.device.statements import Statements
from vmhost.deployment.device.transfers import AnswerError, Transfers, free_bytes
from vmhost.deployment.errors import DamagedError, DeploymentError, NotApprovedError, TransferError
from vmhost.deployment.profile import header_value
from vmhost.deployment.trust import Metadata, TrustError
from vmhost.stores import StoreError

MAX_ATTEMPTS = 3  # of a trial during which the process ends
MAX_CRASHES = 3  # of the process while a version's VM runs
MAX_BACK_OFF_S = 900.0
MAX_REPORTS = 100
MAX_UNSIGNED_S = 3600.0  # that a device goes by answers that nothing has changed, which are not signed
RESERVE_BYTES = 512 << 10
_WATCH_POLL_S = 0.5
_IDLE_POLL_S = 5.0
_log = logging.getLogger("vmhost.deployment")


class Agent:
    """The agent for `settings`. Close it. `host` runs the tasks; `hint()` makes it ask at once. `transfers`: its way to
    the platform; None: HTTP.

    ConfigurationError if another agent runs in the folder.
    """

    def __init__(self, settings, clock=time.time, transfers=None):
        self.settings, self._clock = settings, clock
        settings.folder.mkdir(parents=True, exist_ok=True)
        for damage in state_folder.put_damaged_aside(settings.folder):
            _log.error("%s", damage)
        remove_partials(settings.folder, (".", "artifacts/*", "metadata", "health", "fleet"))
        self._trust = TrustStore.load(settings.keys)
        self._policy = Policy(
            warm=0, limits=settings.limits, permissions=settings.permissions, debugging=settings.debugging
        )
        self.store = BundleStore(settings.folder)
        self._partial = settings.folder / "partial"
        self._partial.mkdir(exist_ok=True)
        self._transfers = transfers or Transfers(settings.platform, certificates=settings.certificates)
        self._metadata = None
        if settings.root is not None:
            folder = settings.folder / "metadata"
            folder.mkdir(exist_ok=True)
            if not (folder / "root.json").exists():
                replace_durably(folder / "root.json", settings.root.read_bytes())
            self._metadata = Metadata(folder, self._fetch_metadata, clock)
        self._stopped, self._hinted = threading.Event(), threading.Event()
        self._failures, self._problem = 0, None
        self._refreshed = False
        self._full_at = 0.0  # by time.monotonic: ask in full from then on
        self._ordered = None  # `wanted` of the last order, whose signature was checked with fresh metadata
        self._required = set()  # digests of all that the last answer requires
        self._statements = Statements()
        self._stated = self._settled = None  # the last statement to the platform; the last one that was up to date
        self._watched = {}  # task -> (release, when watching began, calls and failures then)
        self._reserve = settings.folder / "reserve"
        self.host = self.memory = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self):
        # The host first: SQLite memory of tasks is counted only if SQLite was not in use before.
        self.host = Host(trust=self._trust, policy=self._policy, state=self.settings.folder / "host")
        try:
            self.memory = Memory(self.settings.folder, self._clock)
            self._start()
        except (StoreError, OSError) as error:
            if not self._reserve.exists():
                raise
            _log.error("%s; using the space reserved for a full disk", error)
            self._reserve.unlink()
            if self.memory is not None:
                self.memory.close()
            self.memory = Memory(self.settings.folder, self._clock)
            self._start()
        self._keep_reserve()

    def _keep_reserve(self):
        """Reserves the disk space that an agent needs to start: SQLite writes even when it only reads."""
        if not self._reserve.exists() and free_bytes(self.settings.folder) > 8 * RESERVE_BYTES:
            with contextlib.suppress(OSError), open(self._reserve, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)

    def close(self):
        self._stopped.set()
        self._hinted.set()
        self._transfers.close()
        if self.host is not None:
            self.host.close()
        if self.memory is not None:
            self.memory.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    # ---- starting

    def _start(self):
        """Loads the current versions; goes back where one no longer runs."""
        if self.memory.damaged:
            _log.error("%s; the agent began anew", self.memory.damaged)
        if self.memory.value("secret") is None:
            self.memory.set_value("secret", self._kept_secret() or secrets.token_urlsafe(32))
        if self._kept_secret() != self.memory.value("secret"):
            self._keep_secret()
        if not self.memory.tasks() and (known := self.store.current()):
            self._remember(known)
        self._count_crashes()
        for task, slots in self.memory.tasks().items():
            current = slots["current"]
            if current is not None and current.get("crashes", 0) >= MAX_CRASHES:
                self._fail(task, current, f"the process crashed {current['crashes']} times: {current.get('crash')}")
            elif current is not None:
                self._load_or_go_back(task)
        self._write_list()
        self._fleet = FleetReport(self.memory, self.settings.folder)
        crash_upload.keep(self.memory, self.settings.folder / "host", self.host.crashes)

    def _remember(self, known):
        """Takes the list for the memory, which was lost: all of it or nothing. Whether it is proven was lost too."""
        with self.memory.change():
            for task, entry in known.items():
                files = {
                    name: {"digest": os.path.basename(path), "size": os.path.getsize(path)}
                    for name, path in entry["files"].items()
                    if os.path.exists(path)
                }
                entry |= {"files": files, "state": "running", "proof": None, "rules": None, "size": 0}
                entry.pop("path")
                self.memory.set_task(task, current=entry)

    # A second copy of the secret: a device that lost its store is still the one that the platform knows.

    def _kept_secret(self):
        try:
            text = (self.settings.folder / "secret").read_text(encoding="ascii")
        except OSError, ValueError:
            return None
        return text if 32 <= len(text) <= 128 and text.isprintable() else None

    def _keep_secret(self):
        new = self.settings.folder / "secret.new"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(self.memory.value("secret"))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.settings.folder / "secret")

    def _count_crashes(self):
        with self.memory.change():
            for crash in self.host.crashes:
                _log.error("%s", crash)
                for task, slots in self.memory.tasks().items():
                    current = slots["current"]
                    if current and (current["name"], current["version"]) == (crash.task, crash.version):
                        counted = {"crashes": current.get("crashes", 0) + 1, "crash": str(crash)}
                        self.memory.set_task(task, current=current | counted)

    def _load_or_go_back(self, task):
        """Loads the task's current version into the host, or the one before if that fails."""
        current = self.memory.tasks()[task]["current"]
        while current is not None:
            try:
                if current["digest"] not in self.store.artifacts:
                    raise DamagedError(f"{current['digest'][:12]}: the file is gone")
                self._load(current)
                self._watch(task, current)
                return
            except (BundleError, DamagedError, OSError) as error:
                _log.error("%s %s: %s", task, current["version"], error)
                if isinstance(error, DamagedError):
                    self.store.artifacts.remove_damaged(current["digest"])  # pulled again later
                    previous = self.memory.tasks()[task]["previous"]
                    self.memory.set_task(task, current=previous, previous=None)
                else:
                    self._fail(task, current, f"cannot be loaded: {error}")
                    return
            current = self.memory.tasks().get(task, {"current": None})["current"]

    def _load(self, entry):
        """Loads it into the agent's own host, unless it needs host functions, which other processes have."""
        data = self.store.artifacts.read(entry["digest"])
        if entry.get("functions"):
            self._unload(entry["name"])
        else:
            self.host.load(data)

    def _write_list(self):
        current = {task: slots["current"] for task, slots in self.memory.tasks().items() if slots["current"]}
        self.store.write(current)

    # ---- rounds

    @property
    def failed(self):
        """Whether the last round failed."""
        return self._failures > 0

    def hint(self):
        """Something may have changed: ask now. Callable on any thread."""
        self._hinted.set()

    def stop(self):
        self._stopped.set()
        self._hinted.set()

    def run(self):
        """Repeats rounds until `stop`, with jitter, and with longer pauses while the platform does not answer."""
        while not self._stopped.is_set():
            wait_s = self.step()
            heap.give_back()
            end = time.monotonic() + wait_s
            while not self._stopped.is_set() and not self._hinted.is_set() and (left := end - time.monotonic()) > 0:
                self._hinted.wait(min(left, _WATCH_POLL_S if self._watched else _IDLE_POLL_S))
                if self.look() or self.store.asked():
                    break
            self._hinted.clear()

    def step(self):
        """One round: asks, and acts on the answer. Returns the seconds until the next one."""
        try:
            if self._settled is not None and (poll_s := self._seconds_if_settled()) is not None:
                self._send_fleet_report()
                return poll_s * random.uniform(0.8, 1.2)
            answer = self._ask()
            settled = self._stated
            self._apply(answer["wanted"])
            self.look()
            if self.memory.outbox.take("report", limit=1):
                answer = self._ask()  # report the outcome at once
            self._settled = self._stated if self._stated == settled else None
            self._failures, self._problem = 0, None
            self._keep_reserve()
            self._send_fleet_report()
            return answer.get("poll_s", self.settings.poll_s) * random.uniform(0.8, 1.2)
        except (TransferError, TrustError, AnswerError, StoreError, OSError) as error:
            self._failures += 1
            self._problem, self._settled = str(error), None
            wait_s = min(MAX_BACK_OFF_S, 2.0 ** min(self._failures, 10)) * random.uniform(0.5, 1.0)
            wait_s = max(wait_s, getattr(error, "retry_after_s", None) or 0.0)
            if isinstance(error, NotApprovedError):  # the platform answers
                wait_s = self.settings.poll_s * random.uniform(0.8, 1.2)
            _log.warning("%s; again in %.0f s", error, wait_s)
            return wait_s

    def _send_fleet_report(self):
        """Sends news for the platform's fleet views. Releases do not depend on it: what cannot be sent is kept, and
        sent later."""
        if not self._fleet.due():
            return
        try:
            crash_upload.send(self.memory, lambda body: self._post_fleet("crash", body))
            report = self._fleet.next(self.host, self.store.current())
            if report is not None:
                self._post_fleet("report", report)
                self._fleet.confirm()
        except (TransferError, AnswerError) as error:
            _log.info("fleet report: %s", error)
            self._fleet.put_off()

    def _post_fleet(self, what, body):
        """Sends; a refusal counts as sent, since the platform would refuse it again."""
        try:
            self._transfers.post(f"/api/v1/device/{what}", body, self._headers())
        except AnswerError as error:
            if error.status not in (400, 404, 409, 413):
                raise
            _log.warning("fleet %s: the platform refused it: %s", what, error)

    def _ask(self):
        """States and reports; returns what should run. Enrols if the platform does not know this device."""
        try:
            return self._check()
        except AnswerError as error:
            if error.status != 401 or self.settings.token is None:
                raise
        device, secret = self.settings.device, self.memory.value("secret")
        answer = self._transfers.post(
            "/api/v1/device/enrol",
            {"device": device, "secret": secret},
            {"authorization": f"Bearer {self.settings.token}"},
        )
        if answer.get("waiting") is True:
            code = identifiers.join_code(secret)
            raise NotApprovedError(f"waits until an admin approves it: vmhost cloud approve {device} {code}")
        return self._check()

    def _seconds_if_settled(self):
        """Seconds until the next round, where nothing is new here, nor on the platform by the profile's digest. None: a
        full request is needed."""
        if time.monotonic() >= self._full_at:
            return None
        _, _, profile = self._statement()
        if (profile, self._health()) != self._settled or self.memory.outbox.take("report", limit=1):
            return None
        try:
            answer = self._transfers.post("/api/v1/device/check", {"profile": profile}, self._headers())
        except AnswerError as error:
            if error.status != 401:
                raise
            return None  # the platform has forgotten the device
        _check_poll(answer)
        return answer.get("poll_s", self.settings.poll_s) if answer.get("unchanged") is True else None

    def _headers(self):
        return {"x-vmhost-device": self.settings.device, "authorization": f"Bearer {self.memory.value('secret')}"}

    def _statement(self):
        """(facts, tasks, digest of both) for the platform."""
        tasks = {}
        for task, slots in self.memory.tasks().items():
            for slot in ("current", "previous"):
                if slots[slot]:
                    key = task if slot == "current" else f"{task} before"
                    tasks[key] = {name: slots[slot].get(name) for name in ("version", "digest", "release", "state")}
                    tasks[key]["files"] = {name: each["digest"] for name, each in slots[slot].get("files", {}).items()}
        stated = facts(self.settings.folder, self.settings.facts) | self._stated_problem()
        return stated, tasks, header_value(self.settings.device, stated, tasks)

    def _check(self):
        epoch, entries = self.memory.reports(MAX_REPORTS)
        stated, tasks, profile = self._statement()
        more = {
            "epoch": epoch,
            "health": self._health(),
            "reports": [[entry.number, json.loads(entry.body)] for entry in entries],
            "zstd": delta.can_apply(),
            "nonce": secrets.token_hex(16),
        }
        self._stated, self._refreshed = (profile, more["health"]), False

        def post(statement):
            return self._transfers.post("/api/v1/device/check", statement | more, self._headers())

        answer = self._statements.send(stated, tasks, profile, post)
        _check_answer(answer)
        self._must_be_ordered(orders.signed_part(self.settings.device, more["nonce"], profile, answer), answer)
        self._full_at = time.monotonic() + MAX_UNSIGNED_S
        self._statements.confirm(stated, tasks, profile)
        self.memory.outbox.acknowledge([entry.id for entry in entries if entry.number <= answer["acknowledged"]])
        self.memory.set_value("files", [answer["files"], *answer.get("mirrors", ())])
        self.store.write_profile(profile)
        return answer

    def _health(self):
        """{task: [release, calls, failures]} of the current versions, over all processes of the device."""
        if self.host is None:
            return {}
        current = self.store.current()
        counted = self._counted(current)
        return {
            task: [entry["release"], *counted[entry["name"]][:2]]
            for task, entry in current.items()
            if counted[entry["name"]].calls
        }

    def _counted(self, current):
        """{name: Counted} of the current versions, over all processes of the device."""
        own, others = health.counted(self.host, current), self.store.health()
        return {
            entry["name"]: others.get(entry["name"], Counted()).plus(own.get(entry["name"], (None, Counted()))[1])
            for entry in current.values()
        }

    def _stated_problem(self):
        """The device's problem, for its operator."""
        return {"problem": self._problem[:500]} if self._problem else {}

    # ---- what should run

    def _fetch_metadata(self, name, max_bytes):
        return self._transfers.fetch(f"/metadata/{name}", max_bytes)

    def _must_be_ordered(self, signed, answer):
        """TrustError unless the platform signed the answer for this request. A platform from before orders signs none,
        and its metadata says so."""
        if self._metadata is None:
            return
        known, self._ordered = self._ordered, None
        if signed["wanted"] != known or not self._is_ordered(signed, answer):
            # it would move something, or the key is another one
            self._refresh_metadata()
            if self._metadata.delegates(orders.ROLE):
                self._metadata.must_be_signed(orders.ROLE, signed, answer.get("order"))
        self._ordered = signed["wanted"]

    def _is_ordered(self, signed, answer):
        """Whether the order is good by the metadata of the last one."""
        try:
            self._metadata.must_be_signed(orders.ROLE, signed, answer.get("order"))
        except TrustError:
            return False
        return True

    def _refresh_metadata(self):
        """Once for each answer."""
        if not self._refreshed:
            self._metadata.refresh()
            self._refreshed = True

    def _must_be_listed(self, task, wanted):
        """TrustError unless the signed metadata lists the bundle and its self-test as offered."""
        python = facts(self.settings.folder, {})["python"]
        offered = {f"{task}/{wanted['version']}/{python}.vmb": (wanted["digest"], wanted["size"])}
        if wanted["proof"]:
            offered[f"{task}/{wanted['version']}/proof.json"] = (wanted["proof"]["digest"], wanted["proof"]["size"])
        for path, (digest, size) in offered.items():
            self._must_be_in_metadata(path, digest, size)
        if self._metadata is not None and not wanted["proof"]:
            proof = f"{task}/{wanted['version']}/proof.json"
            if self._metadata.target(proof) is not None:
                raise TrustError(f"{proof}: is listed, and the platform's answer leaves it out")

    def _must_be_in_metadata(self, path, digest, size):
        if self._metadata is not None:
            self._refresh_metadata()
            entry = self._metadata.target(path)
            if entry is None or entry["hashes"].get("sha256") != digest or entry["length"] != size:
                raise TrustError(f"{path}: the platform offers what its signed metadata does not list")

    def _apply(self, wanted):
        problem = None
        self._required = set().union(*map(_digests_of, wanted.values()))
        for task, slots in self.memory.tasks().items():
            if task not in wanted:
                self._remove(task, slots)
        for task, each in wanted.items():
            try:
                self._update_task(task, each)
            except (TransferError, TrustError, OSError) as error:
                problem = problem or error  # continue with the other tasks
                _log.warning("%s %s: %s", task, each["version"], error)
        self._clean()
        if problem is not None:
            raise problem

    def _remove(self, task, slots):
        _log.info("%s: the task is no longer assigned to this device", task)
        self.memory.set_task(task, current=None, previous=None, trial=None)
        self._write_list()
        if slots["current"]:
            self._watched.pop(task, None)
            self._unload(slots["current"]["name"])

    def _unload(self, name):
        if name in self.host.tasks:
            self.host.unload(name)

    def _update_task(self, task, wanted):
        """Brings the task's version, then its files, up to date."""
        self._update_version(task, wanted)
        current = self.memory.tasks().get(task, {}).get("current")
        if current is not None:
            self._update_files(task, current, wanted.get("files") or {})

    def _update_files(self, task, current, wanted):
        files = {name: {"digest": each["digest"], "size": each["size"]} for name, each in wanted.items()}
        if files == current.get("files", {}):
            return
        for each in wanted.values():
            if each["digest"] not in self.store.artifacts:
                self._must_be_in_metadata(f"{task}/files/{each['digest']}", each["digest"], each["size"])
                self._pull(each["digest"], each["size"], each["url"])
        self.memory.set_task(task, current=current | {"files": files})
        self._write_list()
        _log.info("%s: files %s", task, ", ".join(files) or "none")

    def _update_version(self, task, wanted):
        slots = self.memory.tasks().get(task, {"current": None, "previous": None, "trial": None})
        current = slots["current"]
        if current and current["digest"] == wanted["digest"]:
            known = current["release"] == wanted["release"] and current["rules"] is not None
            is_proven = wanted.get("state", "proven") == "proven"
            if known and (current["state"] != "proven" or is_proven or self.memory.outbox.take("report", limit=1)):
                return
            if is_proven or _has_passed(current, wanted):
                self._prove_again(task, current, wanted, is_proven)
                return
        if self.memory.has_given_up(task, wanted["release"]):
            if wanted.get("state") != "offered" or self.memory.outbox.take("report", limit=1):
                return
            self.memory.try_again(task, wanted["release"])  # the platform knows of the failure, and offers it again
        self._must_be_listed(task, wanted)
        previous = slots["previous"]
        if previous and previous["digest"] == wanted["digest"] and _has_passed(previous, wanted):
            self._switch(task, wanted, "went back")
            return
        trial = slots["trial"] or {}
        attempts = trial.get("attempts", 0) + 1 if trial.get("release") == wanted["release"] else 1
        if trial.get("release") != wanted["release"]:
            with self.memory.change():
                self.memory.set_task(task, trial={"release": wanted["release"], "attempts": 0})
                self.memory.report(wanted["release"], "taken")
        self._fetch(wanted)
        if attempts > MAX_ATTEMPTS:
            self._fail(task, wanted, f"the process ended {MAX_ATTEMPTS} times during its trial")
            return
        self.memory.set_task(task, trial={"release": wanted["release"], "attempts": attempts})
        _log.info("%s %s: trying it", task, wanted["version"])
        try:
            proof = self.store.artifacts.read(wanted["proof"]["digest"]) if wanted["proof"] else None
            rules = wanted.get("rules") or {}
            bundle = self.store.artifacts.read(wanted["digest"])
            prove(bundle, proof, self._trust, self._policy, rules, wanted.get("functions") or ())
        except (ProofError, DamagedError) as error:
            self._fail(task, wanted, str(error))
            return
        why = "its self-test passed" if wanted["proof"] else "it loads"
        if current and current["digest"] == wanted["digest"]:
            self._prove_again(task, current, wanted, False, why)
        else:
            self._switch(task, wanted, why)

    def _switch(self, task, wanted, why):
        """Makes the version current; its rules may require watching first."""
        current = self.memory.tasks().get(task, {}).get("current")
        try:
            self._load(wanted)
        except (VMHostError, DamagedError) as error:
            self._fail(task, wanted, f"cannot be loaded: {error}")
            return
        rules = wanted.get("rules") or {}
        state = "running" if rules.get("calls") else "proven"
        entry = {name: wanted[name] for name in ("name", "version", "digest", "size", "release", "proof")}
        entry |= {"rules": rules, "functions": wanted.get("functions") or [], "stream": bool(wanted.get("stream"))}
        entry |= {"state": state, "since": self._clock(), "files": (current or {}).get("files", {})}
        with self.memory.change():
            self.memory.set_task(task, current=entry, previous=current, trial=None)
            self.memory.report(wanted["release"], state, why)
        self._write_list()
        self._watch(task, entry)
        _log.info("%s %s: %s (%s)", task, wanted["version"], state, why)

    def _prove_again(self, task, current, wanted, is_proven, why="it runs here already"):
        """What runs here is of another release, or the platform or this memory lost that it is proven. It has passed
        the self-test within the release's bounds, or the platform knows that it is proven (`is_proven`); if not, calls
        have to prove it again where the release asks for calls."""
        rules = wanted.get("rules") or {}
        state = "running" if rules.get("calls") and not is_proven else "proven"
        entry = current | {name: wanted[name] for name in ("release", "size", "proof")}
        entry |= {"rules": rules, "state": state}
        with self.memory.change():
            self.memory.set_task(task, current=entry, trial=None)
            if not is_proven:
                self.memory.report(wanted["release"], state, why)
        self._write_list()
        self._watched.pop(task, None)
        self._watch(task, entry)

    def _fail(self, task, version, reason):
        """Gives the version up; if it was current, the one before becomes current again."""
        _log.error("%s %s: %s", task, version["version"], reason)
        self._back(task, version, "failed", reason)

    def _back(self, task, version, state, reason):
        slots = self.memory.tasks().get(task, {"current": None, "previous": None})
        was_current = bool(slots["current"]) and slots["current"]["digest"] == version["digest"]
        with self.memory.change():
            self.memory.give_up(task, version["release"], reason)
            if was_current:
                self.memory.set_task(task, current=slots["previous"], previous=None, trial=None)
            else:
                self.memory.set_task(task, trial=None)
            self.memory.report(version["release"], state, reason)
        if was_current:
            self._watched.pop(task, None)
            self._write_list()
            if slots["previous"] is not None:
                self._load_or_go_back(task)
            else:
                self._unload(version["name"])

    def go_back(self, task, why="its user went back"):
        """Makes the version before the current one current again, until another release. Called on the agent's thread.
        DeploymentError if there is none."""
        slots = self.memory.tasks().get(task)
        if not slots or not slots["previous"]:
            raise DeploymentError(f"{task}: there is no version to go back to")
        self._back(task, slots["current"], "declined", why)

    # ---- watching

    def _watch(self, task, entry):
        if entry["state"] == "running" and entry["rules"] is not None:
            counted = self._counted({task: entry})[entry["name"]]
            self._watched[task] = (entry["release"], time.monotonic(), counted)

    def look(self):
        """Checks watched versions; returns whether one was proven or failed just now."""
        decided = False
        for task, (release, began, before) in list(self._watched.items()):
            entry = self.memory.tasks()[task]["current"]
            rules = entry["rules"]
            counted = self._counted({task: entry})[entry["name"]].since(before)
            over = counted.calls >= rules["calls"] or time.monotonic() - began >= rules.get("within_s", 0)
            reason = why_outside(rules, counted, complete=over)
            if reason is not None:
                self._fail(task, entry, reason)
            elif over:
                del self._watched[task]
                why = str(counted)
                if counted.calls < rules["calls"]:
                    why = f"by time only: {why} in {rules.get('within_s', 0):g} s, where {rules['calls']} were to come"
                with self.memory.change():
                    self.memory.set_task(task, current=entry | {"state": "proven"})
                    self.memory.report(release, "proven", why, counted)
                _log.info("%s %s: proven (%s)", task, entry["version"], why)
            else:
                continue
            decided = True
        return decided

    # ---- files

    def _fetch(self, wanted):
        """Makes sure that bundle and self-test are in the artifacts."""
        if wanted["proof"] and wanted["proof"]["digest"] not in self.store.artifacts:
            self._pull(wanted["proof"]["digest"], wanted["proof"]["size"])
        if wanted["digest"] in self.store.artifacts:
            return
        recipe, zstd = wanted.get("pieces"), delta.can_apply()
        max_bytes = self._bytes_of_pieces(recipe, zstd) if recipe else wanted["size"]
        for each in sorted(wanted.get("deltas", ()), key=lambda each: each["size"]):
            if not zstd or each["size"] > max_bytes:
                continue
            try:
                old = self.store.artifacts.read(each["from"]) if each["from"] else b""
                patch = self._pull(each["digest"], each["size"]).read_bytes()
                self._keep_bundle(delta.apply(old, patch, wanted["size"]), wanted["digest"], recipe)
                return
            except (DamagedError, FileNotFoundError, TransferError) as error:
                _log.warning("a delta of %s cannot be used: %s", wanted["version"], error)
        if not recipe:
            self._pull(wanted["digest"], wanted["size"])
            return
        for digest, size in pieces.needed(recipe).items():
            self._pull_piece(digest, size, recipe["compressed"].get(digest) if zstd else None)
        try:
            self.store.artifacts.put_recipe(wanted["digest"], _plain_recipe(recipe))
        except DamagedError as error:
            raise TransferError(f"{wanted['version']}: {error}") from error

    def _bytes_of_pieces(self, recipe, zstd):
        """The bytes to be pulled for the pieces that are missing."""
        compressed = recipe["compressed"] if zstd else {}
        missing = {digest: size for digest, size in pieces.needed(recipe).items() if digest not in self.store.artifacts}
        return sum(compressed.get(digest, (None, size))[1] for digest, size in missing.items())

    def _keep_bundle(self, data, digest, recipe):
        """Stores the bundle, in pieces if there is a valid recipe. DamagedError if the digest differs."""
        if digest_of(data) != digest:
            raise DamagedError(f"the delta makes another file than {digest}")
        if recipe:
            with contextlib.suppress(DamagedError, FileNotFoundError):
                for part in pieces.cut(recipe, data).values():
                    self.store.artifacts.put(part)
                self.store.artifacts.put_recipe(digest, _plain_recipe(recipe))
                return
        partial = self._partial / digest
        partial.write_bytes(data)
        self.store.artifacts.take(partial, digest)

    def _pull_piece(self, digest, size, compressed):
        """Makes sure that the piece is in the artifacts; `compressed`: digest and size of its compressed form, or
        None."""
        if digest in self.store.artifacts:
            return
        if compressed is not None and compressed[1] < size:
            try:
                data = delta.apply(b"", self._pull(*compressed).read_bytes(), size)
                partial = self._partial / digest
                partial.write_bytes(data)
                self.store.artifacts.take(partial, digest)
                self.store.artifacts.remove(compressed[0])
                return
            except (DamagedError, TransferError) as error:
                _log.warning("the compressed form of %s cannot be used: %s", digest[:12], error)
        self._pull(digest, size)

    def _pull(self, digest, size, url=None):
        """The path of the artifact, which is pulled if it is missing."""
        path = self.store.artifacts.path(digest)
        if path.exists():
            return path
        self._make_room(size)
        partial = self._partial / digest
        urls = [url] if url else [f"{base}{digest[:2]}/{digest}" for base in self.memory.value("files", ["/files/"])]
        for each, following in itertools.zip_longest(urls, urls[1:]):
            try:
                return self._pull_from(each, partial, digest, size)
            except TransferError as error:
                if following is None:
                    raise
                _log.warning("%s; going on from %s", error, following)
        raise AssertionError

    def _pull_from(self, url, partial, digest, size):
        """The path of the artifact; TransferError. A wrong begin from another server is discarded and pulled again."""
        is_begun = partial.exists()
        self._transfers.download(url, partial, size)
        try:
            return self.store.artifacts.take(partial, digest)
        except DamagedError as error:
            if is_begun:
                return self._pull_from(url, partial, digest, size)
            raise TransferError(f"{url}: sent wrong bytes: {error}") from error

    def _make_room(self, size):
        used = self._used_bytes()
        if used + size > self.settings.disk_bytes:
            self._remove_artifacts(self._needed() | self._required)  # artifacts of an earlier answer
            used = self._used_bytes()
        if used + size > self.settings.disk_bytes:
            raise TransferError(
                f"{size:,} bytes are to be pulled, {used:,} of the {self.settings.disk_bytes:,} of `disk` are in use"
            )
        if free_bytes(self.settings.folder) < size + (1 << 20):
            raise TransferError(f"the disk has no room for {size:,} bytes")

    def _used_bytes(self):
        return sum(path.stat().st_size for path in self.store.artifacts.folder.glob("??/*"))

    def _needed(self):
        """Digests of the artifacts that the slots need."""
        needed = set()
        for slots in self.memory.tasks().values():
            for slot in ("current", "previous"):
                if slots[slot]:
                    needed |= self.store.artifacts.needed(slots[slot]["digest"])
                    needed.add((slots[slot].get("proof") or {}).get("digest"))
                    needed |= {each["digest"] for each in slots[slot].get("files", {}).values()}
        return needed

    def _remove_artifacts(self, but):
        for digest in self.store.artifacts.digests():
            if digest not in but:
                self.store.artifacts.remove(digest)

    def _clean(self):
        """Deletes what no slot needs, and parts of abandoned downloads."""
        if all(slots["trial"] is None for slots in self.memory.tasks().values()):
            self._remove_artifacts(self._needed())
            for path in self._partial.iterdir():
                path.unlink(missing_ok=True)


def _has_passed(slot, wanted):
    """Whether the slot's version has passed the self-test that is wanted, within the same bounds."""
    known, rules = slot.get("rules"), wanted.get("rules") or {}
    return (
        known is not None
        and slot.get("proof") == wanted["proof"]
        and all(known.get(name) == rules.get(name) for name in SELF_TEST_BOUNDS)
    )


def _digests_of(wanted):
    """Digests of the artifacts that one task of an answer may need."""
    found = {wanted["digest"], *(each["digest"] for each in wanted.get("deltas", ()))}
    found |= {file["digest"] for file in (wanted.get("files") or {}).values()}
    if wanted["proof"]:
        found.add(wanted["proof"]["digest"])
    if recipe := wanted.get("pieces"):
        found |= {*pieces.needed(recipe), *(digest for digest, _ in recipe["compressed"].values())}
    return found


def _plain_recipe(recipe):
    return {name: recipe[name] for name in ("size", "shell", "members")}


def _check_poll(answer):
    try:
        if not 0 < float(answer.get("poll_s", 1)) < 1e6:
            raise ValueError(answer["poll_s"])
    except (TypeError, ValueError) as error:
        raise TransferError(f"the platform's answer cannot be read: poll_s: {error}") from None


def _check_answer(answer):
    """TransferError if the platform's answer is invalid; nothing of it is applied then."""
    try:
        for each in answer["wanted"].values():
            strings, digests = [each["name"], each["version"]], [each["digest"]]
            strings += each.get("functions") or []
            if not all(isinstance(bound, (int, float)) for bound in (each.get("rules") or {}).values()):
                raise TypeError
            whole = [each["release"], each["size"]]
            digests += [each_delta["digest"] for each_delta in each.get("deltas", ())]
            digests += [each_delta["from"] for each_delta in each.get("deltas", ()) if each_delta["from"]]
            whole += [each_delta["size"] for each_delta in each.get("deltas", ())]
            if each.get("pieces"):
                pieces.check(each["pieces"])
                if each["pieces"]["size"] != each["size"]:
                    raise ValueError("pieces of another bundle")
                digests += [digest for digest, _ in each["pieces"]["compressed"].values()]
                whole += [size for _, size in each["pieces"]["compressed"].values()]
            if each["proof"]:
                digests.append(each["proof"]["digest"])
                whole.append(each["proof"]["size"])
            for name, file in (each.get("files") or {}).items():
                strings += [name] if file["url"] is None else [name, file["url"]]
                digests.append(file["digest"])
                whole.append(file["size"])
            if not all(isinstance(text, str) for text in strings) or not all(isinstance(n, int) for n in whole):
                raise TypeError
            if not all(map(is_digest, digests)):
                raise ValueError("an invalid digest")
        bases = [answer["files"], *answer.get("mirrors", ())]
        if not isinstance(answer["acknowledged"], int) or not all(isinstance(base, str) for base in bases):
            raise TypeError
        _check_poll(answer)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TransferError(f"the platform's answer cannot be read ({type(error).__name__}: {error})") from None
