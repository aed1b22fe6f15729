"""Fleet views: calls and crashes reported by devices, summed over five minutes each, and what the pages show.

A device may report only about versions that it was assigned. Sums are by task, version and named cohort; "" is all
devices. They are kept for `KEPT_MS`; crash reports up to `MAX_CRASHES` in total and `MAX_CRASHES_OF_DEVICE` of one
device. Reports that arrive together share a transaction; a device gets its answer after the commit.
"""

import json
import re

from vmhost.deployment.errors import MissingError, RefusedError
from vmhost.errors import Kind
from vmhost.statistics import bucket_end_s
from vmhost.stores.group_commit import GroupCommit

BUCKET_MS = 300_000
KEPT_MS = 14 * 86_400_000
MAX_CRASHES = 20_000
MAX_CRASHES_OF_DEVICE = 50
MAX_CRASH_BYTES = 64 << 10
MAX_EPOCHS = 8  # of a device, whose last numbers are known
_MAX_TASKS = 200
_MAX_COUNT = 10**9  # of one counter in one report
_MAX_BY_COUNTER = {"wall_us": 10**13}
_MAX_SUM = 10**15  # of one counter over five minutes, so that sums over all time are below 2^63
_BUCKETS = 33
_COUNTERS = frozenset(
    (*(f"call:{kind.name}" for kind in Kind), *(f"wall:{n}" for n in range(_BUCKETS)), "denied", "wall_us")
)
_BREAKERS = ("closed", "open", "half-open")
_FINGERPRINT = re.compile(r"[0-9a-f]{8,64}")
_NAME = re.compile(r"[\x21-\x7e]{1,128}")
_ADD = (
    "INSERT INTO fleet_counts VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (time_ms, task, version, cohort, what) "
    f"DO UPDATE SET number = CASE WHEN fleet_counts.number + excluded.number > {_MAX_SUM} THEN {_MAX_SUM} "
    "ELSE fleet_counts.number + excluded.number END"
)


class Fleet:
    """The views over the platform's `database`. `devices`: its registry; `releases`: its engine."""

    def __init__(self, database, devices, releases, clock):
        self._database, self._devices, self._releases, self._clock = database, devices, releases, clock
        self._writing = GroupCommit(database, self._write, releases.refresh)

    def now_ms(self):
        return int(self._clock() * 1000)

    # ---- reports of devices

    def take_report(self, device, body):
        """Adds a device's report to the sums, once. RefusedError if it is invalid, or about a version not
        assigned."""
        epoch, number, tasks = body.get("epoch"), body.get("number"), body.get("tasks")
        if not _is_name(epoch) or not _is_count(number) or not isinstance(tasks, list) or len(tasks) > _MAX_TASKS:
            raise RefusedError(f"report: expected epoch, number and a list of at most {_MAX_TASKS} tasks")
        self._writing.run((self._add_report, device, epoch, number, [_checked_counts(each) for each in tasks]))

    def _write(self, connection, items):
        """Writes reports and crashes in one transaction. Returns for each None, or its RefusedError."""
        results, sums = [], {}
        for add, *arguments in items:
            try:
                add(connection, sums, *arguments)
                results.append(None)
            except RefusedError as error:
                results.append(error)
        connection.executemany(_ADD, [(*key, min(count, _MAX_SUM)) for key, count in sorted(sums.items())])
        return results

    def _add_report(self, connection, sums, device, epoch, number, tasks):
        now_ms = self.now_ms()
        self._must_have(connection, device, {(task, version) for task, version, *_ in tasks})
        row = connection.execute(
            "SELECT number FROM fleet_epochs WHERE device = ? AND epoch = ?", (device, epoch)
        ).fetchone()
        if row is not None and number <= row[0]:
            return
        connection.execute(
            "INSERT INTO fleet_epochs VALUES (?, ?, ?, ?) ON CONFLICT (device, epoch) DO UPDATE SET "
            "number = excluded.number, time_ms = excluded.time_ms",
            (device, epoch, number, now_ms),
        )
        if row is None:
            connection.execute(
                "DELETE FROM fleet_epochs WHERE device = ? AND epoch IN (SELECT epoch FROM fleet_epochs "
                "WHERE device = ? ORDER BY time_ms DESC, epoch LIMIT 1000 OFFSET ?)",
                (device, device, MAX_EPOCHS),
            )
        cohorts = ("", *self._devices.named(connection, device))
        at_ms = now_ms - now_ms % BUCKET_MS
        for task, version, counts, _ in tasks:
            for what, count in counts.items():
                for cohort in cohorts:
                    key = (at_ms, task, version, cohort, what)
                    sums[key] = sums.get(key, 0) + count
        connection.executemany(
            "INSERT INTO fleet_versions VALUES (?, ?, ?, ?, ?) ON CONFLICT (device, task) DO UPDATE SET "
            "version = excluded.version, seen_ms = excluded.seen_ms, breaker = excluded.breaker",
            [(device, task, version, now_ms, breaker) for task, version, _, breaker in tasks],
        )

    def take_crash(self, device, body):
        """Stores a device's report of a crash, once. RefusedError."""
        identity, fingerprint = body.get("id"), body.get("fingerprint")
        task, version, title = body.get("task") or "", body.get("version") or "", body.get("title")
        if not _is_name(identity) or not isinstance(fingerprint, str) or not _FINGERPRINT.fullmatch(fingerprint):
            raise RefusedError("crash: expected an id, and a fingerprint of 8 to 64 hexadecimal digits")
        if not isinstance(title, str) or (task and not (_is_name(task) and _is_name(version))):
            raise RefusedError("crash: expected a title, and a task with a version, or none")
        if not task:
            version = ""
        try:
            report = json.dumps(body, ensure_ascii=False, allow_nan=False)
            size = len(report.encode())
        except (ValueError, RecursionError) as error:
            raise RefusedError(f"crash: {type(error).__name__}: expected finite numbers, and text in Unicode") from None
        if size > MAX_CRASH_BYTES:
            raise RefusedError(f"crash: has more than {MAX_CRASH_BYTES:,} bytes")
        self._writing.run((self._add_crash, device, identity, task, version, fingerprint, title[:300], report))

    def _add_crash(self, connection, sums, device, identity, task, version, fingerprint, title, report):
        now_ms = self.now_ms()  # a device's own clock cannot be trusted
        if task:
            self._must_have(connection, device, {(task, version)})
        known = connection.execute(
            "SELECT 1 FROM fleet_crashes WHERE device = ? AND id = ?", (device, identity)
        ).fetchone()
        if known:
            return
        connection.execute(
            "DELETE FROM fleet_crashes WHERE device = ? AND id IN (SELECT id FROM fleet_crashes WHERE device = ? "
            "ORDER BY time_ms DESC, id DESC LIMIT 1000 OFFSET ?)",
            (device, device, MAX_CRASHES_OF_DEVICE - 1),
        )
        connection.execute(
            "INSERT INTO fleet_crashes VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (device, identity, now_ms, task, version, fingerprint, title, report),
        )
        for cohort in ("", *self._devices.named(connection, device)):
            key = (now_ms - now_ms % BUCKET_MS, task, version, cohort, "crash")
            sums[key] = sums.get(key, 0) + 1

    def _must_have(self, connection, device, reported):
        rows = connection.execute("SELECT release FROM deploy_assignments WHERE device = ?", (device,)).fetchall()
        releases = [self._releases.releases[row[0]] for row in rows if row[0] in self._releases.releases]
        assigned = {(release.task, release.version.version) for release in releases}
        if foreign := sorted(reported - assigned):
            raise RefusedError(f"{device}: was never assigned {' '.join(foreign[0])}")

    def clean(self):
        """Deletes what is too old, and crash reports beyond their bound."""
        old_ms = self.now_ms() - KEPT_MS
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM fleet_counts WHERE time_ms < ?", (old_ms,))
            connection.execute("DELETE FROM fleet_versions WHERE seen_ms < ?", (old_ms,))
            connection.execute("DELETE FROM fleet_crashes WHERE time_ms < ?", (old_ms,))
            row = connection.execute(
                "SELECT time_ms FROM fleet_crashes ORDER BY time_ms DESC LIMIT 1 OFFSET ?", (MAX_CRASHES,)
            ).fetchone()
            if row is not None:
                connection.execute("DELETE FROM fleet_crashes WHERE time_ms <= ?", (row[0],))

    # ---- pages. `may(task)`: whether the viewer may see it; "" stands for crashes of no task

    def sums(self, hours=None, *, since_ms=None, may=lambda task: True):
        """[{task, version, cohort, calls, failures, share, errors, denied, crashes, p50_s, p99_s}] over a time."""
        since_ms = since_ms if since_ms is not None else self.now_ms() - int(hours * 3_600_000)
        found = {}
        with self._database.reader() as connection:
            for *key, what, number in connection.execute(
                "SELECT task, version, cohort, what, CAST(sum(number) AS INTEGER) FROM fleet_counts "
                "WHERE time_ms > ? GROUP BY task, version, cohort, what",
                (since_ms - BUCKET_MS,),
            ):
                if may(key[0]):
                    found.setdefault(tuple(key), {})[what] = int(number)
        return [_shown(key, counts) for key, counts in sorted(found.items())]

    def adoption(self, may=lambda task: True):
        """[{task, devices, versions: [{version, devices, share, open}]}]: what devices run, as they stated."""
        found, breakers = {}, {}
        with self._database.reader() as connection:
            for task, version, number in connection.execute(
                "SELECT task, version, count(*) FROM fleet_versions WHERE breaker != 'closed' GROUP BY task, version"
            ):
                breakers[task, version] = number
        after = ""
        while page := self._devices.list(after=after, limit=1000):
            for each in page:
                for task, has in each["tasks"].items():
                    if " " not in task and isinstance(has, dict) and may(task):
                        version = str(has.get("version"))
                        of = found.setdefault(task, {})
                        of[version] = of.get(version, 0) + 1
            after = page[-1]["device"]
        shown = []
        for task, versions in sorted(found.items()):
            total = sum(versions.values())
            rows = [
                {
                    "version": version,
                    "devices": number,
                    "share": number / total,
                    "breakers": breakers.get((task, version), 0),
                }
                for version, number in sorted(versions.items(), key=lambda each: (-each[1], each[0]))
            ]
            shown.append({"task": task, "devices": total, "versions": rows})
        return shown

    def crashes(self, hours, may=lambda task: True, limit=100):
        """[{fingerprint, title, task, version, count, devices, last_ms, device, id}] by cause and version, most crashes
        first; `device` and `id` name the latest report."""
        with self._database.reader() as connection:
            rows = connection.execute(
                "SELECT fingerprint, task, version, count(*), count(DISTINCT device), max(time_ms) FROM fleet_crashes "
                "WHERE time_ms >= ? GROUP BY fingerprint, task, version ORDER BY count(*) DESC, fingerprint",
                (self.now_ms() - int(hours * 3_600_000),),
            ).fetchall()
            found = []
            for fingerprint, task, version, count, devices, last_ms in rows:
                if len(found) == limit:
                    break
                if not may(task):
                    continue
                latest = connection.execute(
                    "SELECT title, device, id FROM fleet_crashes WHERE fingerprint = ? AND task = ? AND version = ? "
                    "ORDER BY time_ms DESC, id DESC LIMIT 1",
                    (fingerprint, task, version),
                ).fetchone()
                if latest is not None:
                    names = ("fingerprint", "task", "version", "count", "devices", "last_ms", "title", "device", "id")
                    found.append(
                        dict(zip(names, (fingerprint, task, version, count, devices, last_ms, *latest), strict=True))
                    )
        return found

    def crash(self, device, identity):
        """One report, as the device sent it. MissingError."""
        return json.loads(self._crash(device, identity)[1])

    def task_of_crash(self, device, identity):
        """The task of a report; "" if it is of none. MissingError."""
        return self._crash(device, identity)[0]

    def _crash(self, device, identity):
        with self._database.reader() as connection:
            row = connection.execute(
                "SELECT task, report FROM fleet_crashes WHERE device = ? AND id = ?", (device, identity)
            ).fetchone()
        if row is None:
            raise MissingError(f"{device}: {identity}: no such report")
        return row


def _shown(key, counts):
    ended = {what.removeprefix("call:"): number for what, number in counts.items() if what.startswith("call:")}
    calls = sum(ended.values())
    errors = {name: number for name, number in ended.items() if name != "OK"}
    failures = sum(errors.values())
    walls = [counts.get(f"wall:{bucket}", 0) for bucket in range(_BUCKETS)]
    return {
        **dict(zip(("task", "version", "cohort"), key, strict=True)),
        "calls": calls,
        "failures": failures,
        "share": failures / calls if calls else 0.0,
        "errors": errors,
        "denied": counts.get("denied", 0),
        "crashes": counts.get("crash", 0),
        "p50_s": _quantile(walls, 0.5),
        "p99_s": _quantile(walls, 0.99),
    }


def _quantile(walls, share):
    """A bound of seconds that `share` of the calls do not exceed, at most twice too high; None without calls."""
    total, reached = sum(walls), 0
    for bucket, number in enumerate(walls):
        reached += number
        if total and reached >= total * share:
            return bucket_end_s(8 * bucket + 6)
    return None


def _is_name(text):
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def _is_count(number, maximum=_MAX_COUNT):
    return type(number) is int and 0 <= number <= maximum


def _checked_counts(each):
    """(task, version, counts, breaker) of one task of a report."""
    try:
        task, version, counts, breaker = each["task"], each["version"], each["counts"], each["breaker"]
        right = _is_name(task) and _is_name(version) and breaker in _BREAKERS and counts.keys() <= _COUNTERS
        if right and all(_is_count(number, _MAX_BY_COUNTER.get(what, _MAX_COUNT)) for what, number in counts.items()):
            return task, version, counts, breaker
    except TypeError, KeyError, AttributeError:
        pass
    raise RefusedError(
        "tasks: expected task, version, counts of calls (call:OK, wall:0, denied, wall_us; at most "
        f"{_MAX_COUNT:,} each) and the breaker's state"
    )
