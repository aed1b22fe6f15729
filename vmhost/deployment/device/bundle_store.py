"""The bundle store of a device: artifacts by digest, and one list of current versions, replaced atomically.

    current.json     {"tasks": {"shop/rank": {"name", "version", "digest", "path", "release", "files", "functions",
                     "stream"}}}
    artifacts/       by SHA-256
    profile          the value of the header VMHost-Tasks in this device's requests
    health/          the outcome of calls, by process (health.py)
    fleet/           the same for the platform's fleet views (fleet_report.py)
    ask              exists where a response told the device to ask; the agent removes it

The agent writes it. Any process may read it; `follow` keeps the tasks of a Host or a Pipeline in step with the list.
"""

import json
import logging
import threading
from pathlib import Path

from vmhost import VMHostError
from vmhost.deployment.artifacts import ArtifactFolder, replace_durably
from vmhost.deployment.device import fleet_report, health
from vmhost.deployment.errors import DeploymentError
from vmhost.deployment.profile import ANSWER_HEADER, ASK_NOW, REQUEST_HEADER
from vmhost.stores import StoreError

_log = logging.getLogger("vmhost.deployment")
_POLL_S = 1.0
RULE_PACKS = (".rules.yaml", ".rules.json")


class BundleStore:
    """The store in `folder`, made if missing."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.artifacts = ArtifactFolder(self.folder / "artifacts")
        self.list_path = self.folder / "current.json"
        self._health = health.HealthFile(self.folder)
        self._fleet = fleet_report.FleetFile(self.folder)

    def current(self):
        """{task: its name, version, digest, path, release, functions, stream, and files (name to path)}; {} before the
        first. A bundle stored in pieces has the path None; `bundle` returns the bytes of any."""
        try:
            plain = json.loads(self.list_path.read_bytes())
        except FileNotFoundError:
            return {}
        for entry in plain["tasks"].values():
            entry["path"] = str(self.folder / entry["path"]) if entry["path"] else None
            entry["files"] = {name: str(self.folder / path) for name, path in entry.get("files", {}).items()}
        return plain["tasks"]

    def bundle(self, entry):
        """The bundle's bytes for an entry of `current`."""
        return self.artifacts.read(entry["digest"])

    def write(self, tasks):
        """Replaces the list, if it differs."""
        plain = {
            task: {
                "name": each["name"],
                "version": each["version"],
                "digest": each["digest"],
                "path": None if self.artifacts.recipe(each["digest"]) else self._relative(each["digest"]),
                "release": each["release"],
                "functions": each.get("functions") or [],
                "stream": each.get("stream", False),
                "files": {name: self._relative(file["digest"]) for name, file in each.get("files", {}).items()},
            }
            for task, each in sorted(tasks.items())
        }
        data = json.dumps({"tasks": plain}, indent=1).encode()
        if not self.list_path.exists() or self.list_path.read_bytes() != data:
            replace_durably(self.list_path, data)

    def _relative(self, digest):
        return str(self.artifacts.path(digest).relative_to(self.folder))

    def write_profile(self, value):
        path = self.folder / "profile"
        if not path.exists() or path.read_bytes() != value.encode():
            replace_durably(path, value.encode())

    def headers(self):
        """Headers for any request of this device to a service of its owner."""
        try:
            return {REQUEST_HEADER: (self.folder / "profile").read_text(encoding="ascii")}
        except FileNotFoundError, ValueError:  # the agent writes it again
            return {}

    def answered(self, headers):
        """Takes a response's headers (a mapping with lower-case names): if they say so, the agent asks soon."""
        if headers.get(ANSWER_HEADER) == ASK_NOW:
            (self.folder / "ask").touch()

    def asked(self):
        """Whether a response told the device to ask, since the last call."""
        try:
            (self.folder / "ask").unlink()
        except FileNotFoundError:
            return False
        return True

    def report_health(self, host):
        """Reports the outcome of calls of the Host's tasks, by version, to the agent. `follow` does it."""
        current = self.current()
        self._health.write(health.counted(host, current))
        self._fleet.write(fleet_report.counted(host, current))

    def health(self):
        """{name of a task: Counted} of current versions, over all processes but the agent."""
        return health.total(self.folder, self.current())

    def rules(self):
        """Paths of the current rule packs: files besides bundles whose names end in RULE_PACKS."""
        return [
            path
            for _, entry in sorted(self.current().items())
            for name, path in sorted(entry["files"].items())
            if name.endswith(RULE_PACKS)
        ]

    def follow(self, runner, rules=()):
        """Keeps a Host's tasks, or a Pipeline's stream tasks and rule packs, in step with the list, now and whenever it
        changes, and reports their health. Close the result before the runner. A Host ignores stream tasks. `rules`: a
        Pipeline's own, which stay; open it with these and those of `rules()`, so that their matches under way
        continue."""
        return _Follower(self, runner, rules)


class _Follower:
    def __init__(self, store, runner, rules=()):
        self._store, self._runner = store, runner
        self._own_rules, self._packs = list(rules), []  # paths contain digests, so a changed file has another path
        self._is_pipeline = hasattr(runner, "withdraw")
        self._host = runner.host if self._is_pipeline else runner
        self._loaded = {}  # name -> digest
        self._stopped = threading.Event()
        self.look()
        self._thread = threading.Thread(target=self._run, name="bundle-store", daemon=True)
        self._thread.start()

    def look(self):
        """Loads and unloads what changed since the last call."""
        current = self._store.current().values()
        wanted = {entry["name"]: entry for entry in current if entry.get("stream", False) == self._is_pipeline}
        for name, entry in wanted.items():
            if self._loaded.get(name) != entry["digest"]:
                try:
                    change = self._is_pipeline and name in self._runner.tasks
                    bundle = entry["path"] or self._store.bundle(entry)
                    (self._runner.change if change else self._runner.load)(bundle)
                    self._loaded[name] = entry["digest"]
                except (VMHostError, StoreError, DeploymentError, OSError) as error:
                    _log.error("%s: %s", name, error)
        for name in self._loaded.keys() - wanted.keys():
            (self._runner.withdraw if self._is_pipeline else self._runner.unload)(name)
            del self._loaded[name]
        if self._is_pipeline and (packs := self._store.rules()) != self._packs:
            self._packs = packs
            try:
                self._runner.change_rules([*self._own_rules, *packs])
            except VMHostError as error:  # tried again when the packs change
                _log.error("rules: %s; the previous ones stay", error)

    def report(self):
        """Reports the Host's health now; otherwise it is reported every second."""
        self._store.report_health(self._host)

    def _run(self):
        while not self._stopped.wait(_POLL_S):
            try:
                self.look()
                self.report()
            except (OSError, ValueError, VMHostError, StoreError) as error:
                _log.error("%s: %s", self._store.list_path, error)

    def close(self):
        self._stopped.set()
        self._thread.join()
        self.report()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()
