"""The agent's persistent memory: its secret, current and previous versions, what it gave up, reports to be sent.

It is SQLite by vmhost.stores: each change and its report are one transaction, so an interruption leaves both or
neither. A damaged store is set aside and replaced; what ran continues from the bundle store's list.
"""

import contextlib
import json
import secrets
import time

from vmhost.stores import Database, Outbox, StoreDamagedError

_STEPS = (
    """
    CREATE TABLE agent_values (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE agent_tasks (
        task TEXT PRIMARY KEY, current TEXT, previous TEXT, trial TEXT
    ) WITHOUT ROWID;
    CREATE TABLE agent_given_up (
        task TEXT NOT NULL, release INTEGER NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (task, release)
    ) WITHOUT ROWID
    """,
)
_SLOTS = ("current", "previous", "trial")
_MAX_GIVEN_UP = 1000


class Memory:
    """The memory in `folder`. StoreInUseError if another agent has it open."""

    def __init__(self, folder, clock=time.time):
        path = folder / "agent.db"
        try:
            self._database = Database(path)
        except StoreDamagedError as error:
            aside = f"{path}.damaged-{int(clock())}"
            for end in ("", "-wal", "-shm", "-lock"):
                with contextlib.suppress(FileNotFoundError):
                    path.with_name(path.name + end).rename(aside + end)
            self._database = Database(path)
            self.damaged = str(error)
        else:
            self.damaged = None
        try:
            self._database.migrate("agent", _STEPS)
            self.outbox = Outbox(self._database, max_bytes=4 << 20, clock=clock)
        except BaseException:
            self._database.close()
            raise

    def close(self):
        self._database.close()

    def change(self):
        """A transaction; nested blocks join it."""
        return self._database.transaction()

    def value(self, name, otherwise=None):
        with self._database.transaction() as connection:
            row = connection.execute("SELECT value FROM agent_values WHERE name = ?", (name,)).fetchone()
        return json.loads(row[0]) if row else otherwise

    def set_value(self, name, value):
        with self._database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO agent_values VALUES (?, ?)", (name, json.dumps(value)))

    def tasks(self):
        """{task: {"current", "previous", "trial"}}, each a mapping or None."""
        with self._database.transaction() as connection:
            rows = connection.execute("SELECT * FROM agent_tasks ORDER BY task").fetchall()
        return {task: dict(zip(_SLOTS, (each and json.loads(each) for each in slots))) for task, *slots in rows}

    def set_task(self, task, **slots):
        """Changes some slots of a task; deletes the task when no slot is left."""
        with self._database.transaction() as connection:
            now = self.tasks().get(task, dict.fromkeys(_SLOTS)) | slots
            if any(each is not None for each in now.values()):
                values = [None if now[slot] is None else json.dumps(now[slot]) for slot in _SLOTS]
                connection.execute("INSERT OR REPLACE INTO agent_tasks VALUES (?, ?, ?, ?)", (task, *values))
            else:
                connection.execute("DELETE FROM agent_tasks WHERE task = ?", (task,))

    def give_up(self, task, release, reason):
        with self._database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO agent_given_up VALUES (?, ?, ?)", (task, release, reason))
            connection.execute(
                "DELETE FROM agent_given_up WHERE release <= (SELECT max(release) FROM agent_given_up) - ?",
                (_MAX_GIVEN_UP,),
            )

    def has_given_up(self, task, release):
        with self._database.transaction() as connection:
            row = connection.execute(
                "SELECT reason FROM agent_given_up WHERE task = ? AND release = ?", (task, release)
            ).fetchone()
        return row is not None

    def try_again(self, task, release):
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM agent_given_up WHERE task = ? AND release = ?", (task, release))

    @property
    def epoch(self):
        """The name of this opening of the memory: numbers that it gives out are its own, whatever copies there are."""
        return self._database.opening.hex()

    def reports(self, limit):
        """(epoch, entries): the oldest reports to be sent, all of the same epoch. Their numbers count only in it."""
        epochs, entries = self.outbox.epochs(), self.outbox.take("report", limit=limit)
        if not entries:
            return epochs[-1][1].hex(), []
        at = max(at for at, (first, _) in enumerate(epochs) if first <= entries[0].number)
        end = epochs[at + 1][0] if at + 1 < len(epochs) else None
        return epochs[at][1].hex(), [entry for entry in entries if end is None or entry.number < end]

    def report(self, release, state, reason="", counted=None):
        """Keeps the report until the platform has it. `counted`: the calls that it is based on (Counted)."""
        plain = {"release": release, "state": state, "reason": reason[:2000]}
        if counted is not None:
            plain["counted"] = counted._asdict()
        body = json.dumps(plain).encode()
        self.outbox.put(secrets.token_hex(12), "report", body)
