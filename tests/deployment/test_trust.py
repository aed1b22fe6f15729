"""Signed metadata: rollback, freeze, rotation, stolen keys, thresholds; only listed bundles run."""

import itertools
import json

import pytest

from tests.deployment.metadata_files import Repository, sign_all, signed
from tests.deployment.platforms import Clock, add_version, platform_in
from vmhost.bytecode.signing import generate_key, load_key
from vmhost.deployment.cloud import metadata
from vmhost.deployment.cloud.metadata import key_of
from vmhost.deployment.errors import RefusedError
from vmhost.deployment.trust import Metadata, TrustError

BUNDLE = "shop/rank/1/3.14.vmb"
DAY = 86400


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def platform(tmp_path, clock):
    with platform_in(tmp_path / "cloud", clock=clock) as platform:
        platform.metadata._clock = clock
        platform.metadata._synced = None
        add_version(platform, "shop/rank", "1")
        platform.releases.generation += 1
        sign_all(platform)
        yield platform


@pytest.fixture
def repository(platform):
    return Repository(platform)


@pytest.fixture
def device(tmp_path, platform, repository, clock):
    folder = tmp_path / "device"
    folder.mkdir()
    (folder / "root.json").write_bytes((platform.metadata.folder / "1.root.json").read_bytes())
    return Metadata(folder, repository, clock)


def test_a_device_finds_what_may_run_and_nothing_else(platform, device):
    device.refresh()
    digest, size = platform.releases.version("shop/rank", "1").bundles["3.14"]
    assert device.target(BUNDLE) == {"length": size, "hashes": {"sha256": digest}}
    assert device.target("shop/rank/2/3.14.vmb") is None
    assert device.target("other/rank/1/3.14.vmb") is None
    assert device.target("shop/../rank/1/3.14.vmb") is None


def test_a_version_that_was_rolled_back_is_no_longer_listed(platform, device):
    from vmhost.deployment.cloud.plan import Plan

    release = platform.releases.start("shop/rank", "1", Plan.of({}), "ann", "")
    sign_all(platform)
    platform.releases.act(release.id, "roll_back", "ann")
    platform.sync_metadata()
    device.refresh()
    assert device.target(BUNDLE) is None
    platform.releases.forgive("shop/rank", "1", "ann", "")
    platform.sync_metadata()
    device.refresh()
    assert device.target(BUNDLE) is not None


@pytest.mark.parametrize("name", ["timestamp.json", "snapshot", "targets", "role-shop"])
def test_metadata_that_was_changed_is_refused(platform, repository, device, name):
    if "." not in name:
        name = platform.metadata._path(name).name
    plain = repository.plain(name)
    plain["signed"]["expires"] = "2099-01-01T00:00:00Z"
    repository.instead[name] = json.dumps(plain).encode()
    with pytest.raises(TrustError):
        device.refresh()
        device.target(BUNDLE)


def test_an_older_timestamp_is_refused_and_what_is_trusted_stays(platform, repository, device):
    old = repository("timestamp.json", 1 << 20)
    add_version(platform, "shop/rank", "2")
    platform.releases.generation += 1
    sign_all(platform)
    device.refresh()
    repository.instead["timestamp.json"] = old
    with pytest.raises(TrustError, match="timestamp: version 3 is older than 4"):
        device.refresh()
    del repository.instead["timestamp.json"]
    device.refresh()
    assert device.target(BUNDLE) is not None


def test_a_stolen_timestamp_key_can_bring_back_neither_old_lists_nor_other_bundles(platform, repository, device):
    old_snapshot = repository("1.snapshot.json", 1 << 20)
    add_version(platform, "shop/rank", "2")
    platform.releases.generation += 1
    sign_all(platform)
    device.refresh()
    stolen = load_key(platform.folder / "keys" / "timestamp")
    plain = repository.plain("timestamp.json")
    plain["signed"]["version"] += 1
    plain["signed"]["meta"]["snapshot.json"] = {"version": 1}
    repository.instead["timestamp.json"] = signed(plain, stolen)
    with pytest.raises(TrustError, match="names snapshot 1, which is older"):
        device.refresh()
    # a snapshot of a higher number has to be signed by a key that was not stolen
    plain["signed"]["meta"]["snapshot.json"] = {"version": 7}
    snapshot = json.loads(old_snapshot)
    snapshot["signed"]["version"] = 7
    repository.instead |= {"timestamp.json": signed(plain, stolen), "7.snapshot.json": signed(snapshot, stolen)}
    with pytest.raises(TrustError, match="0 of the 1 signatures"):
        device.refresh()


def test_a_timestamp_key_that_was_stolen_is_replaced_and_devices_follow(platform, repository, device):
    device.refresh()
    stolen = load_key(platform.folder / "keys" / "timestamp")
    plain = repository.plain("timestamp.json")
    plain["signed"]["version"] = 1000  # the thief's metadata on devices
    repository.instead["timestamp.json"] = signed(plain, stolen)
    device.refresh()
    repository.instead.clear()
    with pytest.raises(TrustError, match="older than 1000"):
        device.refresh()
    platform.metadata.rotate("timestamp")
    sign_all(platform)
    device.refresh()
    assert device.target(BUNDLE) is not None
    repository.instead["timestamp.json"] = signed(plain, stolen)
    with pytest.raises(TrustError, match="0 of the 1 signatures"):
        device.refresh()


def test_a_frozen_repository_is_noticed_and_a_platform_that_lives_signs_anew(platform, repository, device, clock):
    device.refresh()
    clock.now_s += 3 * DAY
    with pytest.raises(TrustError, match="timestamp: expired.*set the clock"):
        device.refresh()
    sign_all(platform)
    device.refresh()
    clock.now_s += 200 * DAY  # the device was offline for months, the platform was not
    for _ in range(2):
        sign_all(platform)
    device.refresh()
    assert device.target(BUNDLE) is not None


def test_roots_follow_each_other_and_none_is_skipped(platform, repository, device):
    device.refresh()
    platform.metadata.rotate("snapshot")
    platform.metadata.rotate("timestamp")
    sign_all(platform)
    plain = repository.plain("2.root.json")
    thief = generate_key()
    repository.instead["2.root.json"] = signed(plain, thief)
    with pytest.raises(TrustError, match="root: 0 of the 1 signatures"):
        device.refresh()
    repository.instead["2.root.json"] = repository.folder.joinpath("3.root.json").read_bytes()
    with pytest.raises(TrustError, match="expected version 2, got 3"):
        device.refresh()
    repository.instead.clear()
    device.refresh()
    assert json.loads((device._folder / "root.json").read_bytes())["signed"]["version"] == 3


@pytest.mark.parametrize("role", ["root", "targets", "snapshot", "timestamp", "role-shop"])
def test_each_key_is_replaced_and_devices_follow(platform, repository, device, role):
    device.refresh()
    old = platform.metadata._key(role)
    for _ in range(2):
        platform.metadata.rotate(role)
        device.refresh()
        assert device.target(BUNDLE) is not None
    assert platform.metadata._key(role).public != old.public
    platform.releases.announce()
    platform.sync_metadata()  # goes on with the new key
    device.refresh()
    assert device.target(BUNDLE) is not None
    with pytest.raises(RefusedError, match="nobody: expected one of root, targets, snapshot, timestamp, role-shop"):
        platform.metadata.rotate("nobody")


@pytest.mark.parametrize("role", ["root", "targets", "timestamp", "role-shop"])
def test_a_rotation_that_is_cut_anywhere_leaves_a_repository_that_devices_follow(
    platform, repository, device, role, monkeypatch
):
    device.refresh()
    write, steps = metadata.replace_durably, itertools.count()
    cut = None

    def cut_there(path, data):
        if cut is not None and next(steps) == cut:
            raise KeyboardInterrupt
        return write(path, data)

    monkeypatch.setattr(metadata, "replace_durably", cut_there)
    ended = False
    for cut in itertools.count():
        steps = itertools.count()
        try:
            platform.metadata.rotate(role)
            ended = True
        except KeyboardInterrupt:
            pass
        cut = None
        platform.releases.announce()
        platform.sync_metadata()
        device.refresh()
        assert device.target(BUNDLE) is not None
        if ended:
            break


def test_without_the_offline_key_nothing_is_replaced(platform, repository, device):
    device.refresh()
    (platform.metadata.offline / "root").unlink()
    public = platform.metadata._key("timestamp").public
    with pytest.raises(RefusedError, match="offline key of root is needed for this; put it there"):
        platform.metadata.rotate("timestamp")
    assert platform.metadata._key("timestamp").public == public


def test_a_repositorys_role_speaks_of_its_own_tasks_only(platform, repository, device):
    key = load_key(platform.folder / "keys" / "role-shop")
    name = platform.metadata._path("role-shop").name
    plain = repository.plain(name)
    plain["signed"]["targets"]["bank/pay/1/3.14.vmb"] = {"length": 1, "hashes": {"sha256": "0" * 64}}
    repository.instead[name] = signed(plain, key)
    device.refresh()
    assert device.target("bank/pay/1/3.14.vmb") is None


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"signed": 1, "signatures": []}', b"[" * 10000, b"\xff"])
def test_what_is_no_metadata_is_refused(repository, device, data):
    repository.instead["timestamp.json"] = data
    with pytest.raises(TrustError, match="not metadata"):
        device.refresh()


def test_thresholds_count_keys_not_signatures(platform, repository, device):
    one, two = generate_key(), generate_key()
    root = repository.plain("1.root.json")
    for key in (one, two):
        root["signed"]["keys"][key_of(key)[0]] = key_of(key)[1]
    root["signed"]["roles"]["timestamp"] = {"keyids": [key_of(one)[0], key_of(two)[0]], "threshold": 2}
    root["signed"]["version"] = 2
    offline = load_key(platform.metadata.offline / "root")
    repository.instead["2.root.json"] = signed(root, offline)
    timestamp = repository.plain("timestamp.json")
    repository.instead["timestamp.json"] = signed(timestamp, one)
    with pytest.raises(TrustError, match="1 of the 2 signatures"):
        device.refresh()
    repository.instead["timestamp.json"] = signed(timestamp, one, one)
    with pytest.raises(TrustError, match="two signatures by the key"):
        device.refresh()
    repository.instead["timestamp.json"] = signed(timestamp, one, two)
    device.refresh()


def test_offline_keys_are_needed_for_what_they_are_for_only(platform, device, tmp_path):
    offline = platform.metadata.offline
    away = tmp_path / "safe"
    offline.rename(away)
    add_version(platform, "shop/rank", "2")
    platform.releases.generation += 1
    sign_all(platform)
    device.refresh()
    assert device.target("shop/rank/2/3.14.vmb") is not None
    from vmhost.deployment.errors import RefusedError

    with pytest.raises(RefusedError, match="the offline key of targets is needed"):
        platform.add_repository("bank", "ann")
    away.rename(offline)
    platform.add_repository("bank", "ann")
    sign_all(platform)
    device.refresh()


def test_a_push_rewrites_its_repositorys_list_and_no_other(tmp_path):
    with platform_in(tmp_path / "cloud") as platform:
        platform.add_repository("bank", "test")
        add_version(platform, "shop/rank", "1")
        add_version(platform, "bank/score", "1")
        platform.releases.announce()
        platform.sync_metadata()
        before = {path.name for path in platform.metadata.folder.iterdir()}
        add_version(platform, "shop/rank", "2")
        platform.releases.announce()
        platform.sync_metadata()
        new = {path.name.split(".")[-2] for path in platform.metadata.folder.iterdir() if path.name not in before}
        assert new == {"role-shop", "snapshot"}
