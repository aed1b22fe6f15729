"""A platform is backed up while it runs; devices go on with what is made of the backup, whatever they saw since."""

import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time

import pytest

from tests.deployment.metadata_files import Repository, sign_all
from tests.deployment.platforms import Clock, WorkingCopy, add_version, agent_for, nothing_left, platform_in
from vmhost.bytecode.signing import generate_key
from vmhost.cli import failures, main
from vmhost.deployment.cloud import backups
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.cloud.platform import Platform
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.errors import RefusedError
from vmhost.deployment.trust import Metadata, TrustError

BUNDLE = "shop/rank/1/3.14.vmb"
PLAN = "steps: [{percent: 100, min_reports: 9}]\nmax_error: 100 %\nproof: {calls: 0}\n"
DAY_S = 86400
LATER_S = time.time() + 100 * DAY_S


@pytest.fixture
def original(tmp_path):
    with platform_in(tmp_path / "cloud") as platform:
        add_version(platform, "shop/rank", "1")
        platform.releases.generation += 1
        sign_all(platform)
        yield platform


@pytest.fixture
def device(tmp_path, original):
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "root.json").write_bytes((original.metadata.folder / "1.root.json").read_bytes())
    return Metadata(tmp_path / "device", Repository(original), original.clock)


def more_versions(platform, device):
    """The platform goes on after the backup, and the device sees it."""
    for number in range(2, 6):
        add_version(platform, "shop/rank", str(number))
        platform.releases.generation += 1
        sign_all(platform)
        device.refresh()


def asking(device, platform):
    device._fetch = Repository(platform)
    device.refresh()
    return device


def test_a_device_takes_the_metadata_of_a_restored_platform(tmp_path, original, device):
    backups.back_up(original.folder, tmp_path / "backup.tar")
    more_versions(original, device)
    assert backups.restore(tmp_path / "backup.tar", tmp_path / "again" / "cloud") is False  # no offline keys there
    with Platform(tmp_path / "again" / "cloud") as restored:
        assert asking(device, restored).target(BUNDLE) is not None
        assert device.target("shop/rank/5/3.14.vmb") is None
        add_version(restored, "shop/rank", "5")
        restored.releases.generation += 1
        sign_all(restored)
        assert asking(device, restored).target("shop/rank/5/3.14.vmb") is not None


def test_files_that_were_put_back_by_other_means_go_on_too(tmp_path, original, device):
    original.close()
    shutil.copytree(original.folder, tmp_path / "copy")
    with Platform(original.folder) as running:
        more_versions(running, asking(device, running))
    with Platform(tmp_path / "copy") as stale, pytest.raises(TrustError, match="older than"):
        asking(device, stale)
    backups.go_on(tmp_path / "copy")
    with Platform(tmp_path / "copy") as restored:
        asking(device, restored)


@pytest.mark.parametrize("what", ["repository", "owners"])
def test_what_the_offline_key_signed_after_the_backup_needs_it_again(tmp_path, original, device, what):
    def signed_offline(platform):
        if what == "repository":
            platform.add_repository("later", "test")
        else:
            platform.metadata.set_owners("shop", [generate_key().public])
        sign_all(platform)

    backups.back_up(original.folder, tmp_path / "backup.tar")
    signed_offline(original)
    device.refresh()
    again = tmp_path / "again" / "cloud"
    backups.restore(tmp_path / "backup.tar", again)
    with Platform(again) as restored, pytest.raises(TrustError):
        asking(device, restored)
    shutil.copytree(original.metadata.offline, tmp_path / "again" / "cloud-offline-keys")
    assert backups.go_on(again) is True
    with Platform(again) as restored:
        if what == "repository":  # it is made again
            signed_offline(restored)
        assert asking(device, restored).target(BUNDLE) is not None


def test_a_second_restoration_goes_on_above_the_first(tmp_path, original, device):
    backups.back_up(original.folder, tmp_path / "backup.tar")
    for name, now_s in (("first", LATER_S), ("second", LATER_S + 600)):
        backups.restore(tmp_path / "backup.tar", tmp_path / name, Clock(now_s))
        with Platform(tmp_path / name) as restored:
            more_versions(restored, asking(device, restored))
            assert restored.metadata._version("snapshot") >= now_s
    with Platform(tmp_path / "first") as stale, pytest.raises(TrustError):
        asking(device, stale)


@pytest.mark.parametrize("ahead_s", [-2 * DAY_S, 700 * DAY_S])
def test_a_wrong_clock_restores_nothing(tmp_path, original, device, ahead_s):
    backups.back_up(original.folder, tmp_path / "backup.tar")
    more_versions(original, device)
    clock = Clock(time.time() + ahead_s)
    with pytest.raises(
        RefusedError, match="the last thing that the copy knows is of .*: set the clock; if it is right"
    ):
        backups.restore(tmp_path / "backup.tar", tmp_path / "again", clock)
    assert not (tmp_path / "again").exists()
    backups.restore(tmp_path / "backup.tar", tmp_path / "again", clock, trust_clock=True)
    with Platform(tmp_path / "again") as restored:
        assert asking(device, restored).target(BUNDLE) is not None


def test_numbers_of_releases_are_not_used_again(tmp_path, original):
    plan = Plan.read(PLAN)
    assert original.releases.start("shop/rank", "1", plan, "ann", "test").id == 1
    backups.back_up(original.folder, tmp_path / "backup.tar")
    backups.restore(tmp_path / "backup.tar", tmp_path / "again", Clock(LATER_S))
    with Platform(tmp_path / "again") as restored:
        restored.releases.act(1, "next", "ann")
        add_version(restored, "shop/rank", "2")
        assert restored.releases.start("shop/rank", "2", plan, "ann", "test").id == int(LATER_S - 1_767_225_600)


def test_two_restorations_within_a_minute_use_other_numbers(tmp_path, original):
    plan = Plan.read(PLAN)
    backups.back_up(original.folder, tmp_path / "backup.tar")
    numbers = set()
    for name, later_s in (("first", LATER_S), ("second", LATER_S + 1)):
        backups.restore(tmp_path / "backup.tar", tmp_path / name, Clock(later_s))
        with Platform(tmp_path / name) as restored:
            numbers.add(restored.releases.start("shop/rank", "1", plan, "ann", "test").id)
    assert len(numbers) == 2


def test_a_device_proves_what_a_restored_platform_releases_again(tmp_path):
    with nothing_left(), platform_in(tmp_path / "cloud") as platform, serving(platform) as address:
        copy = WorkingCopy(tmp_path / "work", f"{address}/git/shop", platform.access.add_token("ann", "test"))
        copy.release("1.0.0")
        first = platform.releases.start("shop/rank", "1.0.0", Plan.read(PLAN), "ann", "test")
        with agent_for(platform, address, tmp_path / "device") as agent:
            agent.step()
            platform.releases.act(first.id, "next", "ann")
            backups.back_up(platform.folder, tmp_path / "backup.tar")
            copy.release("1.1.0", main="def run(value):\n    return value * 3\n")
            platform.releases.start("shop/rank", "1.1.0", Plan.read(PLAN), "ann", "test")
            agent.step()
            assert agent.host.task("rank")(2) == 6
    backups.restore(tmp_path / "backup.tar", tmp_path / "again")
    with nothing_left(), Platform(tmp_path / "again") as restored, serving(restored) as address:
        with agent_for(restored, address, tmp_path / "device") as agent:
            agent.step()
            assert agent.host.task("rank")(2) == 4  # of what runs now, the platform knows nothing any more
            copy.push_to(f"{address}/git/shop", restored.access.add_token("ann", "test"))
            copy.push("rank", "1.1.0")
            second = restored.releases.start("shop/rank", "1.1.0", Plan.read(PLAN), "ann", "test")
            agent.step()
            assert agent.host.task("rank")(2) == 6
            [row] = restored.releases.devices_of(second.id)
            assert row["state"] == "proven"


def test_a_backup_of_a_busy_platform_names_nothing_that_it_lacks(tmp_path, original):
    ended = threading.Event()

    def work():
        number = 100
        while not ended.is_set():
            add_version(original, "shop/rank", str(number))
            number += 1

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for number in range(5):
            backups.back_up(original.folder, tmp_path / f"{number}.tar")
    finally:
        ended.set()
        worker.join()
    for number in range(5):
        backups.restore(tmp_path / f"{number}.tar", tmp_path / str(number))
        with Platform(tmp_path / str(number)) as restored:
            digests = {digest for each in restored.releases.versions.values() for digest, _ in each.bundles.values()}
            assert all(digest in restored.files for digest in digests)


def test_what_is_no_backup_leaves_nothing(tmp_path, original):
    backups.back_up(original.folder, tmp_path / "backup.tar")
    assert (tmp_path / "backup.tar").stat().st_mode & 0o777 == 0o600
    whole = (tmp_path / "backup.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.tar").write_text("no archive")
    before = sorted(os.listdir(tmp_path))
    for name in ("cut.tar", "text.tar"):
        with pytest.raises(RefusedError, match="is no backup of a platform"):
            backups.restore(tmp_path / name, tmp_path / "again")
    with pytest.raises(RefusedError, match="exists already"):
        backups.back_up(original.folder, tmp_path / "backup.tar")
    with pytest.raises(RefusedError, match="is not empty"):
        backups.restore(tmp_path / "backup.tar", original.folder)
    with pytest.raises(RefusedError, match="the clock says 1970"):
        backups.restore(tmp_path / "backup.tar", tmp_path / "again", Clock(0.0))
    assert sorted(os.listdir(tmp_path)) == before


def test_a_backup_that_lacks_its_end_is_not_restored(tmp_path, original):
    backups.back_up(original.folder, tmp_path / "backup.tar")
    whole = (tmp_path / "backup.tar").read_bytes()
    with tarfile.open(tmp_path / "backup.tar") as tar:
        starts = [member.offset for member in tar.getmembers()]
    before = sorted([*os.listdir(tmp_path), "cut.tar"])
    for start in starts[1:]:
        for end in (b"", bytes(len(whole) - start)):  # a copy that was cut off; one on a disk that lost its end
            (tmp_path / "cut.tar").write_bytes(whole[:start] + end)
            with pytest.raises(RefusedError, match="its end is missing"):
                backups.restore(tmp_path / "cut.tar", tmp_path / "again")
            assert sorted(os.listdir(tmp_path)) == before


def test_a_backup_whose_bytes_have_changed_is_not_restored(tmp_path, original):
    backups.back_up(original.folder, tmp_path / "backup.tar")
    whole = (tmp_path / "backup.tar").read_bytes()
    with tarfile.open(tmp_path / "backup.tar") as tar:
        middles = [member.offset_data + member.size // 2 for member in tar.getmembers()[:-1] if member.size]
    before = sorted([*os.listdir(tmp_path), "damaged.tar"])
    for at in middles:
        (tmp_path / "damaged.tar").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(RefusedError, match="its bytes have changed"):
            backups.restore(tmp_path / "damaged.tar", tmp_path / "again")
        assert sorted(os.listdir(tmp_path)) == before


def test_a_backup_of_an_earlier_version_has_no_digest(tmp_path, original):
    backups.back_up(original.folder, tmp_path / "backup.tar")
    with tarfile.open(tmp_path / "backup.tar") as tar, tarfile.open(tmp_path / "earlier.tar", "w") as earlier:
        *members, end = tar.getmembers()
        for member in members:
            earlier.addfile(member, tar.extractfile(member) if member.isfile() else None)
        count = str(len(members)).encode()
        end.size = len(count)
        earlier.addfile(end, io.BytesIO(count))
    backups.restore(tmp_path / "earlier.tar", tmp_path / "again")


@pytest.mark.parametrize(
    "name, kind",
    [
        ("keys", tarfile.SYMTYPE),
        ("keys/one", tarfile.LNKTYPE),
        ("files/pipe", tarfile.FIFOTYPE),
        ("files/sparse", tarfile.GNUTYPE_SPARSE),
        ("postgresql", tarfile.DIRTYPE),
        ("other", tarfile.REGTYPE),
        ("/keys/one", tarfile.REGTYPE),
        ("../keys/one", tarfile.REGTYPE),
        ("keys/../../one", tarfile.REGTYPE),
    ],
)
def test_a_backup_with_anything_else_in_it_is_refused(tmp_path, original, name, kind):
    backups.back_up(original.folder, tmp_path / "backup.tar")
    with tarfile.open(tmp_path / "backup.tar") as tar, tarfile.open(tmp_path / "other.tar", "w") as other:
        *members, end = tar.getmembers()
        for member in members:
            other.addfile(member, tar.extractfile(member) if member.isfile() else None)
        more = tarfile.TarInfo(name)
        more.type, more.linkname = kind, "metadata"
        other.addfile(more)
        count = str(len(members) + 1).encode()
        end.size = len(count)
        other.addfile(end, io.BytesIO(count))
    with pytest.raises(RefusedError, match="is no backup of a platform"):
        backups.restore(tmp_path / "other.tar", tmp_path / "again")
    assert sorted(os.listdir(tmp_path)) == sorted(["backup.tar", "cloud", "cloud-offline-keys", "other.tar"])


def test_files_that_are_linked_to_each_other_are_backed_up(tmp_path, original):
    keys = original.folder / "keys"
    (keys / "twin").hardlink_to(keys / "snapshot")
    backups.back_up(original.folder, tmp_path / "backup.tar")
    backups.restore(tmp_path / "backup.tar", tmp_path / "again")
    assert (tmp_path / "again" / "keys" / "twin").read_bytes() == (keys / "snapshot").read_bytes()


def test_offline_keys_are_in_no_backup(tmp_path, original):
    original.close()
    original.metadata.offline.rename(original.folder / "keys" / "offline")  # as older platforms have them
    secrets = [path.read_bytes() for path in (original.folder / "keys" / "offline").iterdir() if not path.suffix]
    backups.back_up(original.folder, tmp_path / "backup.tar")
    assert len(secrets) == 2 and not any(secret in (tmp_path / "backup.tar").read_bytes() for secret in secrets)


def test_a_disk_that_is_full_or_a_folder_that_came_meanwhile_is_one_line(tmp_path, original, monkeypatch, capsys):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    backups.back_up(original.folder, tmp_path / "backup.tar")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert main(["cloud", "backup", str(original.folder), str(tmp_path / "other.tar")]) == failures.HOST_FAILED
    assert "other.tar: cannot be written: No space left on device" in capsys.readouterr().err

    def meanwhile(folder):
        (tmp_path / "again" / "of-another").mkdir(parents=True)

    monkeypatch.setattr(backups, "sync_tree", meanwhile)
    restoring = ["cloud", "restore", str(tmp_path / "again"), "--archive", str(tmp_path / "backup.tar")]
    assert main(restoring) == failures.HOST_FAILED
    assert "again: cannot be written: Directory not empty" in capsys.readouterr().err
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".partial")]


def test_the_commands(tmp_path):
    def vmhost(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "vmhost", "cloud", *map(str, arguments)], capture_output=True, text=True, timeout=120
        )
        return done.returncode, done.stdout + done.stderr

    assert vmhost("init", tmp_path / "cloud")[0] == 0
    status, printed = vmhost("backup", tmp_path / "cloud", tmp_path / "backup.tar")
    assert status == 0 and "MiB" in printed
    status, printed = vmhost("restore", tmp_path / "again", "--archive", tmp_path / "backup.tar")
    assert status == 0 and "is restored; serve it" in printed and "again-offline-keys, and run" in printed
    shutil.copytree(tmp_path / "cloud-offline-keys", tmp_path / "again-offline-keys")
    status, printed = vmhost("restore", tmp_path / "again")
    assert status == 0 and "was not signed anew" not in printed
    status, printed = vmhost("backup", tmp_path / "cloud", tmp_path / "missing" / "backup.tar")
    assert status == 5 and printed.count("\n") == 1 and "backup.tar: cannot be written: No such file" in printed
    status, printed = vmhost("backup", tmp_path / "nothing", tmp_path / "other.tar")
    assert status == 3 and printed.count("\n") == 1 and "holds no platform" in printed


# A `vmhost` that says "here" before a backup gets its end, or a restored platform its name, and waits for a signal.
STANDS_STILL = """
import sys, time
from vmhost.cli import main
from vmhost.deployment.cloud import backups

def stand_still(*arguments):
    print("here", flush=True)
    while True:
        time.sleep(0.05)  # a signal just before signal.pause() would not end it

backups._add_end = backups.sync_tree = stand_still
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def standing_still(tmp_path, original):
    """(the command that stands still, its process), by name."""
    backups.back_up(original.folder, tmp_path / "backup.tar")
    commands = {
        "backup": ["cloud", "backup", str(original.folder), str(tmp_path / "other.tar")],
        "restore": ["cloud", "restore", str(tmp_path / "again"), "--archive", str(tmp_path / "backup.tar")],
    }
    running = []

    def start(name):
        process = subprocess.Popen(
            [sys.executable, "-c", STANDS_STILL, *commands[name]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout.readline() == "here\n"
        assert partials(tmp_path)
        return commands[name], process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def partials(folder):
    return [name for name in os.listdir(folder) if name.startswith(".partial")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("name", ["backup", "restore"])
def test_a_signal_ends_a_backup_and_leaves_nothing(tmp_path, standing_still, name, number):
    before = sorted(os.listdir(tmp_path))
    _, process = standing_still(name)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said.strip()) == (failures.INTERRUPTED, "vmhost: interrupted")
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("name", ["backup", "restore"])
def test_the_next_run_removes_what_a_killed_one_left_and_nothing_of_one_that_runs(
    tmp_path, standing_still, capsys, name
):
    command, killed = standing_still(name)
    [left] = partials(tmp_path)
    _, running = standing_still(name)
    killed.kill()
    killed.wait()
    assert main(command) == failures.DONE
    assert f"{left}: removed; a backup or restoration was killed" in capsys.readouterr().err
    [others] = partials(tmp_path)
    assert others != left
    running.terminate()
    assert running.wait(60) == failures.INTERRUPTED and not partials(tmp_path)


@pytest.mark.parametrize("below", ["in.tar", "keys/in.tar"])
def test_a_backup_does_not_lie_where_the_next_one_would_hold_it(tmp_path, original, below):
    (tmp_path / "link").symlink_to(original.folder)
    for archive in (original.folder / below, tmp_path / "link" / below):
        with pytest.raises(RefusedError, match="lies in the platform's folder"):
            backups.back_up(original.folder, archive)
        assert not archive.exists()


@pytest.mark.parametrize("name", ["keys", "metadata", "keys/snapshot", "metadata/1.root.json"])
def test_what_lacks_keys_or_metadata_is_no_platform(tmp_path, original, name):
    original.close()
    copy = tmp_path / "copy"
    shutil.copytree(original.folder, copy)
    shutil.rmtree(copy / name) if (copy / name).is_dir() else (copy / name).unlink()
    for doing in (lambda: backups.back_up(copy, tmp_path / "backup.tar"), lambda: backups.go_on(copy)):
        with pytest.raises(RefusedError, match=f"is no whole platform, {name}"):
            doing()
    assert not (tmp_path / "backup.tar").exists()


def test_a_damaged_floor_is_told(tmp_path, original):
    original.close()
    floor = original.metadata.folder / "floor"
    for text in ("", "x", "1" * 30):
        floor.write_text(text)
        with pytest.raises(RefusedError, match="floor: is damaged"):
            backups.go_on(original.folder)
