"""The platform in one folder: database, repositories, files to be served, keys.

    platform.db      accounts, versions, releases, devices (SQLite, one writer: vmhost.stores); or
    postgresql       connection string of a PostgreSQL that has them; then several processes may serve the folder
    repositories/    bare git repositories
    files/           what devices pull, by digest; any static server can serve this folder
    exclusive/       files for few devices, served only with tickets
    keys/            the key that signs bundles (public: keys/bundles.pub), and those of metadata (metadata.py)
                     (those that are to be kept offline are beside the folder)
    metadata/        what may run, signed (The Update Framework); devices start with 1.root.json

It may be killed at any time. The version of a push is published once its tag is written; opening a `Platform` completes
what a crash left in between.
"""

import json
import logging
import threading
import time
from pathlib import Path

from vmhost.access import Access, AccessDeniedError
from vmhost.bytecode import signing
from vmhost.deployment import delta, identifiers, orders, pieces, stated_facts
from vmhost.deployment.artifacts import ArtifactFolder, remove_partials
from vmhost.deployment.cloud import key_files, schema
from vmhost.deployment.cloud.alerts import Alerts
from vmhost.deployment.cloud.builds import Builder
from vmhost.deployment.cloud.debugging import DebugRelay
from vmhost.deployment.cloud.devices import Devices
from vmhost.deployment.cloud.fleet import Fleet
from vmhost.deployment.cloud.git_http import Repositories
from vmhost.deployment.cloud.joins import Joins
from vmhost.deployment.cloud.metadata import SignedMetadata, targets_of
from vmhost.deployment.cloud.middleware import Profiles
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.cloud.postgresql import PostgreSQLDatabase
from vmhost.deployment.cloud.releases import Releases, Version
from vmhost.deployment.cloud.task_files import TaskFiles
from vmhost.deployment.errors import DeploymentError, RefusedError
from vmhost.deployment.profile import changed, header_value
from vmhost.stores import Database, StoreError

DELTAS_FROM = 5  # number of earlier versions that a new one has deltas from
MAX_REPORTS = 200  # in one request of a device
_TICK_S = 1.0
_UNFINISHED = "unfinished"  # is there while a platform is being made
_SLOW_DELTA_BYTES = 8 << 20
_log = logging.getLogger("vmhost.deployment")


class Platform:
    """Opens the platform in `folder`, made by `Platform.make`. Close it. `poll_s`: how often devices should ask.

    `files_urls`: where devices pull files, as (region or None, address). A device tries those of its own region (its
    fact `region`) first, then those without one, then the others. Empty: the platform itself, below /files/.
    `unconfined`: builds may run the code of packages where this machine cannot confine them.
    """

    def __init__(self, folder, *, clock=time.time, pythons=None, poll_s=30.0, files_urls=(), unconfined=False):
        self.folder = Path(folder)
        if not _is_platform(self.folder):
            raise RefusedError(f"{folder}: holds no platform; make one: vmhost cloud init {folder}")
        if (self.folder / _UNFINISHED).exists():
            raise RefusedError(f"{folder}: the platform is half made; make it again: vmhost cloud init {folder}")
        self.poll_s, self.clock = poll_s, clock
        self.files_urls = tuple(files_urls) or ((None, "/files/"),)
        self._stopped = threading.Event()
        self._ticker = None
        self._unpublished = False
        remove_partials(self.folder, (".", "keys", "metadata", "repositories", "files/*", "exclusive/*"))
        self.database = _open_database(self.folder)
        try:
            self.access = Access(self.database, clock, lambda: self.repositories.names())
            self.database.migrate(schema.NAME, schema.STEPS)
            self.files = ArtifactFolder(self.folder / "files")
            self.task_files = TaskFiles(self.database, self.files, self.folder, clock)
            self.repositories = Repositories(self.folder / "repositories")
            self.devices = Devices(self.database, clock)
            self.joins = Joins(self.database, self.devices, self.access.note, clock)
            self.releases = Releases(self.database, clock)
            self.fleet = Fleet(self.database, self.devices, self.releases, clock)
            self.alerts = Alerts(self.database, self.fleet, self.releases)
            self.debugging = DebugRelay(self.database, self.access, self.folder / "keys", clock)
            self.releases.when_reloaded = self.task_files.load
            self.profiles = Profiles(lambda: self.releases.generation)  # for TaskProfiles (middleware.py)
            key = signing.load_key(self.folder / "keys" / "bundles")
            self.metadata = SignedMetadata(self.folder / "metadata", self.folder / "keys", clock)
            hidden = [self.folder, self.metadata.offline]
            self.builder = Builder(key, pythons, hidden=hidden, unconfined=unconfined)
            self.releases.why_not_yet, self.task_files.is_listed = self._why_not_yet, self.metadata.is_listed
            self.sync_metadata()
            self._reconcile()
            self.sync_metadata()
        except BaseException:
            self.database.close()
            raise

    @classmethod
    def make(cls, folder, admin="admin", postgresql=None):
        """Makes a platform in `folder`, and its first account; returns that account's token. `postgresql`: the
        connection string of the database for the tables; None: a SQLite file in the folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if _is_platform(folder) and not (folder / _UNFINISHED).exists():
            raise RefusedError(f"{folder}: there is a platform already; serve it: vmhost cloud serve {folder}")
        (folder / _UNFINISHED).touch()
        (folder / "keys").mkdir(mode=0o700, exist_ok=True)
        key_files.make(folder / "keys" / "bundles", "platform")
        (folder / "metadata").mkdir(exist_ok=True)
        SignedMetadata(folder / "metadata", folder / "keys", time.time).make()
        with PostgreSQLDatabase(postgresql) if postgresql else Database(folder / "platform.db") as database:
            access = Access(database)
            if admin not in (each["name"] for each in access.accounts()):
                access.add_account(admin, "admin", "vmhost cloud init")
            token = access.add_token(admin, "vmhost cloud init", label="first")
        if postgresql:
            (folder / "postgresql").touch(mode=0o600)
            (folder / "postgresql").write_text(postgresql)
        (folder / _UNFINISHED).unlink()
        return token

    def close(self):
        self._stopped.set()
        if self._ticker is not None:
            self._ticker.join()
        self.alerts.close()
        try:
            self.devices.flush()
        except StoreError as error:  # losing the times when devices were seen is no failure
            _log.error("%s", error)
        finally:
            self.database.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def start_ticking(self):
        """Starts a thread that advances releases as time passes."""
        self._ticker = threading.Thread(target=self._run_ticks, name="deployment-tick", daemon=True)
        self._ticker.start()

    def _run_ticks(self):
        while not self._stopped.wait(_TICK_S):
            try:
                self.releases.tick()
                self.devices.flush()
                self.alerts.look()
                if self._unpublished:
                    self._reconcile()
                    self._unpublished = False
                self.sync_metadata()
            except (StoreError, OSError) as error:  # such as a full disk; it is tried again
                _log.error("releases are stalled: %s", error)
            except Exception:  # a fault of ours: without a tick no release would go on until the next start
                _log.exception("releases are stalled, and it is tried again")

    def sync_metadata(self):
        """Brings the signed metadata up to date with the releases, and begins plans that waited to be listed."""
        if self.metadata.sync(self.releases, self.repositories.names(), self.task_files.targets):
            self.releases.generation += 1  # owners have signed: files may be offered
        if self.releases.plans:
            self.releases.begin_plans()

    def _why_not_yet(self, version):
        if all(map(self.metadata.is_listed, targets_of(version))):
            return None
        repository = version.task.partition("/")[0]
        return f"waits for the signatures of the repository's owners: vmhost cloud sign {repository} --key KEY"

    def sign(self, repository, identity, signature, who):
        """Takes an owner's signature over the repository's waiting list. Once enough have signed, devices trust it, and
        the plans of versions that waited begin. Returns the newly listed versions, or None.

        The audit log is written first. If it is killed after that, the owner finds the list as before and signs it
        again, which is noted once, or the next `sync_metadata`, of any process, goes on from what is signed."""

        def note(digest):
            details = {"key": identity, "list": digest}
            with self.database.transaction() as connection:
                rows = connection.execute(
                    "SELECT details FROM access_audit WHERE action = 'list signed' AND subject = ?", (repository,)
                )
                if not any(json.loads(row[0]) == details for row in rows.fetchall()):
                    self.access.note(who, "list signed", repository, **details)

        added = self.metadata.sign(repository, identity, signature, note)
        if added is None:
            return None
        self.sync_metadata()
        return [version for version in self.releases.versions.values() if set(targets_of(version)) & set(added)]

    # ---- repositories and builds

    def add_repository(self, name, who):
        """Makes the repository of a business scenario."""
        identifiers.check("repository", name)
        with self.database.reader() as connection:
            known = connection.execute("SELECT 1 FROM deploy_repositories WHERE name = ?", (name,)).fetchone()
        if not known:  # its row is written last, so that what a kill left is completed
            self.metadata.add_role(name)
            self.repositories.make(name)
            with self.database.transaction() as connection:
                added = connection.execute(
                    "INSERT INTO deploy_repositories VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                    (name, int(self.clock() * 1000), who),
                )
                known = not added.rowcount
                if not known:
                    self.access.note(who, "repository added", name)
        if known:
            raise RefusedError(f"{name}: there is such a repository already")

    def open_repository(self, name):
        return self.repositories.open(name)

    def pushing(self, name):
        return self.repositories.pushing(name)

    def has_versions(self, task):
        with self.database.reader() as connection:
            return bool(connection.execute("SELECT 1 FROM deploy_versions WHERE task = ?", (task,)).fetchone())

    def build(self, folder, described, *, repository, commit, tag, who, progress):
        """Builds a pushed tag, of a folder for which the Builder's `describe` gave `described`; returns the id of the
        version, whose state is `built`. RefusedError with all problems."""
        branch, version = described["name"], described["version"]
        task = f"{repository}/{branch}"
        plan = None
        if "plan" in described:
            who.must("release", repository)
            plan = Plan.of(described["plan"])
        with self.database.reader() as connection:
            known = connection.execute(
                "SELECT \"commit\", tag FROM deploy_versions WHERE task = ? AND version = ? AND state = 'ready'",
                (task, version),
            ).fetchone()
            other = connection.execute(
                "SELECT task FROM deploy_versions WHERE task != ? AND task LIKE ?", (task, f"%/{branch}")
            ).fetchone()
        if known:
            raise RefusedError(f"{task} {version} is there already: tag {known[1]} of commit {known[0][:12]}")
        if other:
            raise RefusedError(f"{other[0]} has the name {branch} already, and a device knows tasks by their names")
        bundles, report = self.builder.build(folder, described, progress)
        self._compare_with_baseline(task, report, progress)
        cases = {name: case for name, case in report["cases"].items() if case.get("self_test", True)}
        data = json.dumps({"module": report["module"], "cases": cases}, sort_keys=True).encode()
        proof = json.dumps({"digest": self.files.put(data), "size": len(data)})
        stored = {target: (self.files.put_in_pieces(data), len(data)) for target, data in bundles.items()}
        self._make_deltas(task, bundles, stored, progress)
        kept = ("warnings", "took_s", "peak_bytes", "size", "recorded", "functions", "stream")
        stored_report = {name: report[name] for name in kept}
        with self.database.transaction() as connection:
            connection.execute(
                "DELETE FROM deploy_versions WHERE task = ? AND version = ? AND state = 'built'", (task, version)
            )
            identity = connection.execute(
                'INSERT INTO deploy_versions (task, version, "commit", tag, state, who, time_ms, plan, proof, report) '
                "VALUES (?, ?, ?, ?, 'built', ?, ?, ?, ?, ?) RETURNING id",
                (task, version, commit, tag, who.name, int(self.clock() * 1000))
                + (json.dumps(plan.plain) if plan is not None else None, proof, json.dumps(stored_report)),
            ).fetchall()[0][0]
            connection.executemany(
                "INSERT INTO deploy_bundles VALUES (?, ?, ?, ?)",
                [(identity, target, digest, size) for target, (digest, size) in stored.items()],
            )
        return identity

    def _compare_with_baseline(self, task, report, progress):
        """Reports cases whose results differ from the version before; RefusedError if they must not."""
        with self.database.reader() as connection:
            row = connection.execute(
                "SELECT version, report FROM deploy_versions WHERE task = ? AND state = 'ready' AND bad IS NULL "
                "ORDER BY id DESC LIMIT 1",
                (task,),
            ).fetchone()
        version, before = (row[0], json.loads(row[1]).get("recorded", {})) if row else (None, {})
        refused = []
        for name, now in report["recorded"].items():
            then = before.get(name)
            if then is not None and then["input"] == now["input"] and then["digest"] != now["digest"]:
                difference = f"simulation/{name}.json: gives {now['begins']}, with {version} it gave {then['begins']}"
                refused += [difference] if report["cases"][name].get("same") else []
                progress(difference)
        if refused:
            raise RefusedError("\n".join(["results are not those of the version before, as `same` asks:", *refused]))

    def _make_deltas(self, task, bundles, stored, progress):
        versions = [version for version in self.releases.versions.values() if version.task == task][-DELTAS_FROM:]
        rows = []
        for target, data in bundles.items():
            new = stored[target][0]
            recipe = self.files.recipe(new)
            bases = [("", b"")] if recipe is None else []
            for version in versions:
                if target in version.bundles and (old := version.bundles[target][0]) != new:
                    try:
                        bases.append((old, self.files.read(old)))
                    except (OSError, DeploymentError) as error:
                        progress(f"warning: no delta from {version.version}: {error}")
            for old, content in bases:
                level = 19 if len(data) + len(content) < _SLOW_DELTA_BYTES else 3
                patch = delta.make(content, data, level)
                if patch is not None and len(patch) < len(data):
                    rows.append((old, new, self.files.put(patch), len(patch)))
            if sizes := [f"{size:,}" for old, target_digest, _, size in rows if old and target_digest == new]:
                progress(f"deltas from the versions before: {', '.join(sizes)} bytes")
            if recipe is not None:
                rows += self._compressed_pieces(recipe)
        with self.database.transaction() as connection:
            connection.executemany(
                "INSERT INTO deploy_deltas VALUES (?, ?, ?, ?) "
                "ON CONFLICT (new, old) DO UPDATE SET digest = excluded.digest, size = excluded.size",
                rows,
            )

    def _compressed_pieces(self, recipe):
        """Rows of `deploy_deltas` with the compressed form of pieces, for those that have none yet."""
        rows = []
        for digest, size in pieces.needed(recipe).items():
            with self.database.reader() as connection:
                row = connection.execute("SELECT 1 FROM deploy_deltas WHERE new = ? AND old = ''", (digest,)).fetchone()
            if row is None:
                packed = delta.make(b"", self.files.read(digest), 19 if size < _SLOW_DELTA_BYTES else 3)
                if packed is not None and len(packed) < size:
                    rows.append(("", digest, self.files.put(packed), len(packed)))
        return rows

    def publish(self, identity, progress=lambda text: None):
        """Publishes a version once its tag is written, and begins its plan, if any, in the same transaction."""
        with self.releases.change() as connection:
            row = connection.execute(
                'SELECT id, task, version, "commit", who, time_ms, bad, proof, report, plan FROM deploy_versions '
                "WHERE id = ?",
                (identity,),
            ).fetchone()
            *fields, plan = row
            version = Version.of_row(fields)
            for target, digest, size in connection.execute(
                "SELECT target, digest, size FROM deploy_bundles WHERE version = ?", (identity,)
            ):
                version.bundles[target] = (digest, size)
            self.releases.add_version(version, plan)
            self.access.note(version.who, "version", f"{version.task} {version.version}", commit=version.commit)
            release, reason = self.releases.begin_plan(version)
        what = f"{version.task} {version.version}"
        if reason is not None:  # the version is published; it can be released by hand
            progress(f"not released: {what}: {reason}")
        if release is None:
            progress(f"{what} is ready; release it: vmhost cloud release {what} --plan release.yaml")
        else:
            progress(f"release {release.id} of {what} is {release.state}, {len(release.plan.steps)} steps")
        return version

    def publish_later(self):
        """Schedules a version whose tag is written but which could not be published yet."""
        self._unpublished = True

    def _reconcile(self):
        """Completes versions that a killed platform had built: publishes those whose tag is written, drops the others.
        Waits for pushes of other processes."""
        for name in self.repositories.names():
            with self.repositories.pushing(name):
                self.repositories.clean(name)
                self._reconcile_repository(name)

    def _reconcile_repository(self, name):
        with self.database.reader() as connection:
            built = connection.execute(
                "SELECT id, task, tag FROM deploy_versions WHERE state = 'built' AND task LIKE ?", (f"{name}/%",)
            ).fetchall()
        for identity, _, tag in built:
            repo = self.repositories.open(name)
            try:
                is_there = f"refs/tags/{tag}".encode() in repo.get_refs()
            finally:
                repo.close()
            if is_there:
                self.publish(identity)
            else:
                with self.database.transaction() as connection:
                    connection.execute("DELETE FROM deploy_bundles WHERE version = ?", (identity,))
                    connection.execute("DELETE FROM deploy_versions WHERE id = ?", (identity,))

    # ---- devices

    def check(self, device, secret, request):
        """Handles a device's request: it states what it is and has, reports, and gets what it should have.

        `request`: `facts`, `tasks` ({task: {version, digest, state}}), `epoch`, `reports` ([[number, {...}], ...]),
        `health` ({task: [release, calls, failures]}). A request with only `profile`, the value of its header, asks
        whether it is up to date: `unchanged`. With `base`, the last profile that the platform confirmed, `facts` and
        `tasks` are the changes since, and `gone` names what was removed; the answer `again` asks for a full statement,
        as the platform knows another profile. With `nonce` the answer has an `order` (orders.py). AccessDeniedError,
        RefusedError.
        """
        if isinstance(request, dict) and request.keys() == {"profile"}:
            self.devices.identify(device, secret)
            value = str(request["profile"]).encode("ascii", "replace")
            unchanged = value.startswith(f"{device} ".encode()) and self.profiles.is_current(value)
            return {"unchanged": unchanged, "poll_s": self.poll_s}
        facts, tasks = _mapping(request, "facts"), _mapping(request, "tasks")
        if "base" in request:
            self.devices.identify(device, secret)
            if (whole := self._whole_statement(device, request, facts, tasks)) is None:
                return {"again": True}
            facts, tasks = whole
        stated = header_value(device, facts, tasks)
        reports, epoch = request.get("reports", []), request.get("epoch", "")
        if not isinstance(reports, list) or len(reports) > MAX_REPORTS or not isinstance(epoch, str):
            raise RefusedError(f"reports: expected a list of at most {MAX_REPORTS}, and an epoch as text")
        known_epoch, reported = self.devices.identify(device, secret)
        if epoch != known_epoch:
            reported = 0  # the device is new, or lost its state
            # A device that repeats itself and is up to date needs no transaction.
        entries = [each for each in tasks.values() if isinstance(each, dict)]
        with self.releases.change() as connection:
            for each in reports:
                number, report = _report(each)
                if number > reported:
                    reported = number
                    identity = report["release"]
                    self.releases.report(
                        device,
                        identity,
                        report["state"],
                        report.get("reason", ""),
                        report.get("counted"),
                        {str(entry.get("digest")) for entry in entries if entry.get("release") == identity},
                    )
            for task, (release, calls, failures) in _health(request).items():
                self.releases.count_calls(device, task, release, calls, failures)
            self.devices.state(connection, device, facts, tasks, epoch[:64], reported)
            facts, _ = stated_facts.divided(facts)
            named = self.devices.named(connection, device)
            generation = self.releases.generation
            chosen = self.releases.choose(device, facts, named)
        self.sync_metadata()  # so that what is offered is listed
        self._remember_profile(request.get("profile"), device, facts, named, tasks, chosen, generation)
        files = self._files_for(facts.get("region"))
        has = {each.get("digest") for each in entries}
        answer = {
            "acknowledged": reported,
            "wanted": {
                task: self._wanted(release, facts["python"], has)
                | {"state": state, "files": self.task_files.choose(task, device, facts, named)}
                for task, (release, state) in chosen.items()
            },
            "files": files[0],
            "mirrors": files[1:],
            "poll_s": self.poll_s,
        }
        if (nonce := request.get("nonce")) is not None:
            answer["order"] = self.metadata.sign_order(orders.signed_part(device, nonce, stated, answer))
        return answer

    def take_report(self, device, secret, body):
        """Takes a device's counts, for the fleet views. AccessDeniedError, RefusedError."""
        self.devices.identify(device, secret)
        self.fleet.take_report(device, body)

    def take_crash(self, device, secret, body):
        """As `take_report`, for a crash."""
        self.devices.identify(device, secret)
        self.fleet.take_crash(device, body)

    def _whole_statement(self, device, request, facts, tasks):
        """Full (facts, tasks) from a request that has only changes; None if that is impossible."""
        old_facts, old_tasks = self.devices.stated(device)
        if header_value(device, old_facts, old_tasks) != request["base"]:
            return None
        gone = _mapping(request, "gone")
        facts = changed(old_facts, facts, _names(gone, "facts"))
        tasks = changed(old_tasks, tasks, _names(gone, "tasks"))
        return (facts, tasks) if header_value(device, facts, tasks) == request.get("profile") else None

    def _files_for(self, region):
        """Base addresses of files for a device of this region, the nearest first."""
        order = sorted(self.files_urls, key=lambda each: (each[0] != region, each[0] is not None))
        return [address for _, address in order]

    def _remember_profile(self, value, device, facts, named, tasks, chosen, generation):
        """Remembers a device that has and has proven what it should: it need not ask until something changes."""
        if not isinstance(value, str) or not value.isascii():
            return
        for task, (release, state) in chosen.items():
            has = tasks.get(task)
            if state != "proven" or has is None or has.get("digest") != release.version.bundles[facts["python"]][0]:
                return
            files = self.task_files.choose(task, device, facts, named)
            if has.get("files", {}) != {name: each["digest"] for name, each in files.items()}:
                return
        if {task for task in tasks if " " not in task} == chosen.keys():
            self.profiles.remember(value.encode(), generation)

    def _wanted(self, release, target, has):
        version = release.version
        digest, size = version.bundles[target]
        wanted = {
            "release": release.id,
            "name": version.task.partition("/")[2],
            "version": version.version,
            "digest": digest,
            "size": size,
            "proof": version.proof,
            "rules": release.plan.proof,
            "functions": version.functions,
            "stream": version.stream,
        }
        if digest not in has:
            with self.database.reader() as connection:
                wanted["deltas"] = [
                    {"from": old, "digest": delta_digest, "size": delta_size}
                    for old, delta_digest, delta_size in connection.execute(
                        "SELECT old, digest, size FROM deploy_deltas WHERE new = ?", (digest,)
                    )
                    if not old or old in has
                ]
                recipe = self.files.recipe(digest)
                if recipe is not None:
                    wanted["pieces"] = recipe | {"compressed": self._compressed(connection, recipe)}
        return wanted

    def _compressed(self, connection, recipe):
        """{digest of a piece: [digest, size] of its compressed form}."""
        found = {}
        for digest in pieces.needed(recipe):
            row = connection.execute(
                "SELECT digest, size FROM deploy_deltas WHERE new = ? AND old = ''", (digest,)
            ).fetchone()
            if row is not None:
                found[digest] = list(row)
        return found

    def add_file(self, task, name, kind, data, audience, who):
        """Adds a file for devices, besides the task's bundles; returns its id."""
        with self.releases.change():  # so that other processes learn of it
            identity = self.task_files.add(task, name, kind, data, audience, who)
            self.access.note(who, "file added", task, name=name, kind=kind, file=identity)
        self._files_changed()
        return identity

    def remove_file(self, identity, who):
        with self.releases.change():
            self.task_files.remove(identity)
            self.access.note(who, "file removed", str(identity))
        self._files_changed()

    def _files_changed(self):
        self.task_files.load()
        self.releases.generation += 1

    def stuck(self, limit=100, may=lambda task: True):
        """Devices that are not where they should be, and why: first those that state a problem, the latest first. Of
        tasks that the caller may see; a device's own problem belongs to none (`may("")`)."""
        names = ("device", "release", "state", "since_ms", "reason")
        with self.database.lock, self.database.reader() as connection:
            found = [
                {"device": device, "release": None, "state": "problem", "since_ms": seen_ms, "reason": problem}
                for device, seen_ms, problem in connection.execute(
                    "SELECT id, seen_ms, problem FROM deploy_devices WHERE problem IS NOT NULL "
                    "ORDER BY seen_ms DESC LIMIT ?",
                    (limit if may("") else 0,),
                )
            ]
            shown = {
                identity: release
                for identity, release in self.releases.releases.items()
                if release.state in ("running", "paused", "halted", "done") and may(release.task)
            }
            rows = connection.execute(
                "SELECT device, release, state, since_ms, reason FROM deploy_assignments "
                "WHERE state IN ('failed', 'silent', 'declined') ORDER BY since_ms DESC"
            )
            for row in rows:
                if len(found) >= limit:
                    break
                if (release := shown.get(row[1])) is not None:
                    found.append(dict(zip(names, row)) | {"task": release.task, "version": release.version.version})
        return found

    def enrol(self, identity, device, secret, network=""):
        """Registers a device, for an account with the scope `enrol`; with `join` an admin decides (joins.py). Returns
        whether it is registered. `network`: where the request came from."""
        identity.must("join")
        with self.database.transaction():
            if self.devices.is_enrolled(device, secret):
                return True  # a device that repeats itself uses nothing
            if joined := identity.may("enrol"):
                self.devices.enrol(device, secret)
                self.access.note(identity.name, "device enrolled", device)
            if joined or self.joins.ask(device, secret, identity, network):
                self.access.use(identity)
        return joined

    def revoke_token(self, token, by):
        """Revokes a token, and with it what devices asked with it."""
        with self.database.transaction():
            self.access.revoke_token(token, by)
            self.joins.drop(token)


def _is_platform(folder):
    return (folder / "platform.db").exists() or (folder / "postgresql").exists()


def _open_database(folder):
    dsn_file = folder / "postgresql"
    return PostgreSQLDatabase(dsn_file.read_text().strip()) if dsn_file.exists() else Database(folder / "platform.db")


def _mapping(request, key):
    value = request.get(key, {}) if isinstance(request, dict) else None
    if not isinstance(value, dict):
        raise RefusedError(f"{key}: expected an object")
    return value


def _names(gone, key):
    names = gone.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RefusedError(f"gone: {key}: expected a list of names")
    return frozenset(names)


def _health(request):
    """The device's counts; invalid entries are left out."""
    found = {}
    for task, each in _mapping(request, "health").items():
        if isinstance(each, list) and len(each) == 3 and all(type(number) is int for number in each):
            found[task] = each
    return found


def _report(each):
    try:
        number, report = each
        if isinstance(number, int) and isinstance(report["release"], int) and isinstance(report["state"], str):
            return number, report
    except TypeError, ValueError, KeyError:
        pass
    raise RefusedError('reports: expected [number, {"release": 1, "state": "proven"}]')


__all__ = ["AccessDeniedError", "Platform"]
