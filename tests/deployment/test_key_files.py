"""Two platforms that start together on one folder have the same keys."""

import contextlib
import threading
import time

from vmhost.access import Access
from vmhost.bytecode import signing
from vmhost.deployment.cloud import debugging, task_files
from vmhost.deployment.cloud.debugging import DebugRelay
from vmhost.stores import Database


def _together(*functions):
    found = [None] * len(functions)

    def run(number):
        try:
            found[number] = functions[number]()
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _met(barrier):
    """Waits for the other one to arrive here, as both did before they took turns; it may not come."""
    with contextlib.suppress(threading.BrokenBarrierError):
        barrier.wait(1.0)


def test_the_key_of_links_is_made_once(tmp_path, monkeypatch):
    barrier, generate_key = threading.Barrier(2), signing.generate_key

    def generated():
        _met(barrier)
        return generate_key()

    monkeypatch.setattr(debugging.signing, "generate_key", generated)
    with Database(tmp_path / "one.db") as one, Database(tmp_path / "two.db") as two:

        def relay(database):
            return DebugRelay(database, Access(database), tmp_path, time.time).public

        first, second = _together(lambda: relay(one), lambda: relay(two))
        assert first == second == relay(one)


def test_the_key_of_tickets_is_made_once(tmp_path, monkeypatch):
    barrier, token_bytes = threading.Barrier(2), task_files.secrets.token_bytes
    (tmp_path / "keys").mkdir()

    class Secrets:
        @staticmethod
        def token_bytes(size):
            _met(barrier)
            return token_bytes(size)

    monkeypatch.setattr(task_files, "secrets", Secrets)

    class NoRows:
        @contextlib.contextmanager
        def reader(self):
            yield self

        def execute(self, statement):
            return self

        def fetchall(self):
            return []

    def ticket():
        return task_files.TaskFiles(NoRows(), None, tmp_path, lambda: 1.0).ticket("ab", "kitchen-1")

    first, second = _together(ticket, ticket)
    assert first == second == ticket()
