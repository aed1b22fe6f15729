"""Two platforms that start together on one folder have the same keys, and what a kill left half made is completed."""

import contextlib
import errno
import os
import threading
import time

import pytest
from dulwich.repo import Repo

from vmhost.access import Access
from vmhost.bytecode import signing
from vmhost.bytecode.errors import SigningError
from vmhost.deployment.cloud import debugging, key_files, task_files
from vmhost.deployment.cloud.debugging import DebugRelay
from vmhost.deployment.cloud.metadata import SignedMetadata
from vmhost.deployment.cloud.platform import Platform
from vmhost.deployment.errors import RefusedError
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


@pytest.mark.parametrize("left", ["nothing", "the private key", "a public key"])
def test_a_key_of_which_a_kill_left_a_part_is_completed(tmp_path, left):
    path, public = tmp_path / "key", tmp_path / "key.pub"
    if left == "the private key":
        signing.generate_key().save(path, "old")
        before = path.read_bytes()
        public.unlink()
    elif left == "a public key":
        public.write_text("the key of a platform that was killed\n")
    for _ in range(2):
        key_files.make(path, "new")
        key = signing.load_key(path)
        assert public.read_text() == signing.format_public_key("new", key.public)
    assert left != "the private key" or path.read_bytes() == before
    assert (path.stat().st_mode & 0o777, public.stat().st_mode & 0o777) == (0o600, 0o644)


def test_a_key_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(SigningError, match="No space left"):
            signing.generate_key().save(tmp_path / "key")
    assert not list(tmp_path.iterdir())
    signing.generate_key().save(tmp_path / "key")
    signing.load_key(tmp_path / "key")


def test_a_platform_that_is_half_made_is_made_again(tmp_path, monkeypatch):
    class KilledError(BaseException):
        pass

    def killed(*arguments, **options):
        raise KilledError

    for where, what in ((SignedMetadata, "make"), (Access, "add_account"), (Access, "add_token")):
        with monkeypatch.context() as context, pytest.raises(KilledError):
            context.setattr(where, what, killed)
            Platform.make(tmp_path / "cloud")
        with pytest.raises(RefusedError, match="is half made|holds no platform"):
            Platform(tmp_path / "cloud")
    token = Platform.make(tmp_path / "cloud")
    with pytest.raises(RefusedError, match="there is a platform already"):
        Platform.make(tmp_path / "cloud")
    with Platform(tmp_path / "cloud") as platform:
        assert platform.access.identify(token).name == "admin"
        for where, what in ((platform.metadata, "add_role"), (Repo, "init_bare"), (platform.access, "note")):
            with monkeypatch.context() as context, pytest.raises(KilledError):
                context.setattr(where, what, killed)
                platform.add_repository("shop", "ann")
        platform.add_repository("shop", "ann")
        platform.open_repository("shop").close()
        with pytest.raises(RefusedError, match="such a repository already"):
            platform.add_repository("shop", "ann")
        assert [each["who"] for each in platform.access.audit(subject="shop")] == ["ann"]
