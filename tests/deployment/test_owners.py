"""Repositories whose owners hold the keys: versions that they did not sign are neither offered nor run."""

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from tests.deployment.metadata_files import Repository, sign_all, signed
from tests.deployment.platforms import Clock, WorkingCopy, add_version, agent_for, nothing_left, platform_in
from vmhost.bytecode.signing import generate_key, load_key
from vmhost.cli import main
from vmhost.deployment import owner_lists
from vmhost.deployment.cloud.metadata import SignedMetadata, key_of
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.errors import MissingError, RefusedError
from vmhost.deployment.trust import Metadata, TrustError, canonical

BUNDLE = "shop/rank/{}/3.14.vmb"
DAY = 86400


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def platform(tmp_path, clock):
    with platform_in(tmp_path / "cloud", clock=clock) as platform:
        platform.metadata._clock = clock
        add_version(platform, "shop/rank", "1")
        platform.releases.announce()
        sign_all(platform)
        yield platform


@pytest.fixture
def device(tmp_path, platform, clock):
    folder = tmp_path / "device"
    folder.mkdir()
    (folder / "root.json").write_bytes((platform.metadata.folder / "1.root.json").read_bytes())
    return Metadata(folder, Repository(platform), clock)


@pytest.fixture
def ann():
    return generate_key()


@pytest.fixture
def ben():
    return generate_key()


def signature(key, waiting):
    return key.sign(canonical(waiting["signed"]))[32:].hex()


def sign(platform, *keys):
    """Each owner signs what waits for signatures; returns the answer to the last one."""
    for key in keys:
        waiting = platform.metadata.signing("shop")["waiting"]
        result = platform.sign("shop", key_of(key)[0], signature(key, waiting), "ann")
    return result


def own(platform, *keys, threshold=1):
    platform.metadata.set_owners("shop", [key.public for key in keys], threshold)
    platform.releases.announce()
    platform.sync_metadata()


def lists(device, version):
    device.refresh()
    return device.target(BUNDLE.format(version)) is not None


def add(platform, version):
    add_version(platform, "shop/rank", version)
    platform.releases.announce()
    platform.sync_metadata()


def test_what_owners_did_not_sign_is_neither_trusted_nor_offered(platform, device, ann):
    assert lists(device, "1")
    own(platform, ann)
    with pytest.raises(TrustError, match="role-shop: 0 of the 1 signatures"):
        lists(device, "1")
    sign(platform, ann)
    assert lists(device, "1")
    add(platform, "2")
    assert not lists(device, "2") and lists(device, "1")
    with pytest.raises(RefusedError, match="shop/rank 2: waits for the signatures .*vmhost cloud sign shop --key KEY"):
        platform.releases.start("shop/rank", "2", Plan.of({}), "ann", "")
    waiting = platform.metadata.signing("shop")["waiting"]
    assert (waiting["added"], waiting["removed"]) == ([BUNDLE.format("2")], [])
    assert [version.version for version in sign(platform, ann)] == ["2"]
    assert lists(device, "2") and platform.metadata.signing("shop")["waiting"] is None
    assert platform.releases.start("shop/rank", "2", Plan.of({}), "ann", "").state in ("running", "done")


def test_what_another_process_took_an_owners_signature_for_is_offered_here(platform, ann):
    own(platform, ann)
    sign(platform, ann)
    platform.add_file("shop/rank", "words", "shared", b"words", {}, "ann")
    platform.sync_metadata()
    waiting, before = platform.metadata.signing("shop")["waiting"], platform.releases.generation
    SignedMetadata(platform.metadata.folder, platform.folder / "keys", platform.clock).sign(
        "shop", key_of(ann)[0], signature(ann, waiting)
    )
    platform.sync_metadata()
    assert platform.releases.generation > before  # devices that were up to date are not any more
    assert list(platform.task_files.choose("shop/rank", "a", {}, frozenset())) == ["words"]


def test_a_threshold_takes_so_many_owners(platform, device, ann, ben):
    own(platform, ann, ben, threshold=2)
    assert sign(platform, ann) is None
    assert platform.metadata.signing("shop")["waiting"]["signed_by"] == [key_of(ann)[0]]
    assert sign(platform, ann) is None  # signing twice counts once
    sign(platform, ben)
    assert lists(device, "1")
    with pytest.raises(RefusedError, match="threshold: expected 1 to 2"):
        own(platform, ann, ben, threshold=3)


def test_a_list_that_changed_is_signed_anew(platform, device, ann, ben):
    own(platform, ann, ben, threshold=2)
    old = platform.metadata.signing("shop")["waiting"]
    sign(platform, ann)
    add(platform, "2")
    assert platform.metadata.signing("shop")["waiting"]["signed_by"] == []
    with pytest.raises(RefusedError, match="does not match the waiting list"):
        platform.sign("shop", key_of(ben)[0], signature(ben, old), "ben")
    sign(platform, ben, ann)
    assert lists(device, "2")


def test_a_revoked_owner_signs_nothing_that_devices_take(platform, device, ann, ben):
    own(platform, ann, ben)
    sign(platform, ann)
    assert lists(device, "1")
    own(platform, ben)  # ann's key was stolen
    with pytest.raises(RefusedError, match="not one of the repository's owners"):
        sign(platform, ann)
    with pytest.raises(TrustError, match="0 of the 1 signatures"):
        lists(device, "1")
    repository = device._fetch
    name = platform.metadata._path("role-shop").name
    plain = repository.plain(name)
    plain["signed"]["targets"][BUNDLE.format("9")] = {"length": 1, "hashes": {"sha256": "0" * 64}}
    repository.instead[name] = signed(plain, ann)
    with pytest.raises(TrustError, match="0 of the 1 signatures"):
        lists(device, "9")
    repository.instead.clear()
    sign(platform, ben)
    assert lists(device, "1") and not lists(device, "9")


def test_the_platform_signs_again_where_there_are_no_owners(platform, device, ann):
    own(platform, ann)
    own(platform)
    add(platform, "2")
    assert lists(device, "2")
    assert platform.metadata.owners("shop") == {"publics": {}, "threshold": 1}
    with pytest.raises(RefusedError, match="the platform signs for it"):
        platform.sign("shop", key_of(ann)[0], "0" * 128, "ann")


def planned(platform, version, took_s=0.0):
    """A version that is pushed with a release.yaml, whose case took so long in the simulation."""
    made = add_version(platform, "shop/rank", version)
    plan = Plan.of({"proof": {"max_time": "1 s"}})
    with platform.releases.change() as connection:
        connection.execute(
            "UPDATE deploy_versions SET state = 'built', plan = ?, report = ? WHERE id = ?",
            (json.dumps(plan.plain), json.dumps({"took_s": {"one": took_s}}), made.id),
        )
    platform.publish(made.id)
    platform.sync_metadata()


def begun(platform):
    """Versions whose releases began."""
    return [each.version.version for each in platform.releases.releases.values()]


def test_a_plan_begins_though_the_platform_died_once_its_list_was_signed(tmp_path, platform, clock, ann, monkeypatch):
    own(platform, ann)
    sign(platform, ann)
    planned(platform, "2")
    planned(platform, "3")

    class Killed(BaseException):
        pass

    take = platform.metadata.sign

    def dies(*signature):
        assert take(*signature)
        raise Killed

    monkeypatch.setattr(platform.metadata, "sign", dies)
    with pytest.raises(Killed):
        sign(platform, ann)
    assert begun(platform) == []
    platform.close()
    for _ in range(2):
        with platform_in(tmp_path / "cloud", clock=clock) as again:
            assert sorted(begun(again)) == ["2", "3"] and not again.releases.plans


def test_plans_that_waited_for_owners_begin_once_there_are_none(platform, ann):
    own(platform, ann)
    sign(platform, ann)
    planned(platform, "2")
    assert begun(platform) == []
    own(platform)
    assert begun(platform) == ["2"]


@pytest.mark.parametrize("why", ["too slow", "a later one has begun"])
def test_a_plan_that_is_refused_says_so_and_is_not_begun_later(tmp_path, platform, clock, ann, why):
    own(platform, ann)
    sign(platform, ann)
    planned(platform, "2", took_s=9.0 if why == "too slow" else 0.0)
    if why == "a later one has begun":  # as before platforms knew which plans wait
        waits, platform.releases.why_not_yet = platform.releases.why_not_yet, lambda version: None
        platform.releases.start("shop/rank", add_version(platform, "shop/rank", "3").version, Plan.of({}), "ann", "")
        platform.releases.why_not_yet = waits
        platform.releases.announce()
        platform.sync_metadata()
    sign(platform, ann)
    last = platform.releases.history("shop/rank")[0]
    assert (last["event"], last["version"], last["who"]) == ("not released", "2", "platform")
    assert ("in the platform's simulation" if why == "too slow" else "release 1 of 3, a later one") in last["why"]
    platform.close()
    with platform_in(tmp_path / "cloud", clock=clock) as again:
        assert "2" not in begun(again) and not again.releases.plans


def test_lists_of_owners_are_signed_again_within_their_year(platform, device, ann, clock):
    own(platform, ann)
    sign(platform, ann)
    clock.now_s += 100 * DAY
    sign_all(platform)
    assert lists(device, "1") and platform.metadata.signing("shop")["waiting"] is None
    clock.now_s += 100 * DAY
    sign_all(platform)
    assert lists(device, "1")
    waiting = platform.metadata.signing("shop")["waiting"]
    assert (waiting["added"], waiting["removed"]) == ([], [])
    before = platform.metadata._read("role-shop")["expires"]
    sign(platform, ann)
    assert platform.metadata._read("role-shop")["expires"] > before and lists(device, "1")


def test_what_was_signed_while_the_clock_was_ahead_is_signed_again_once_it_is_set(platform, ann, clock):
    def days_left():
        known = [platform.metadata._read(role)["expires"] for role in ("timestamp", "snapshot", "role-shop")]
        return [(datetime.fromisoformat(each).timestamp() - clock.now_s) / DAY for each in known]

    clock.now_s += 300 * DAY
    platform.sync_metadata()
    clock.now_s -= 300 * DAY
    assert min(days_left()) > 300
    platform.sync_metadata()
    assert days_left() == [2, 14, 60]
    clock.now_s += 300 * DAY
    own(platform, ann)
    sign(platform, ann)
    clock.now_s -= 300 * DAY
    platform.sync_metadata()
    sign(platform, ann)
    assert days_left() == [2, 14, 365]


def test_a_version_that_went_bad_leaves_the_list_with_the_next_signature(platform, device, ann):
    own(platform, ann)
    sign(platform, ann)
    release = platform.releases.start("shop/rank", "1", Plan.of({}), "ann", "")
    platform.releases.act(release.id, "roll_back", "ann")
    sign_all(platform)
    assert platform.metadata.signing("shop")["waiting"]["removed"] == [BUNDLE.format("1")]
    sign(platform, ann)
    assert not lists(device, "1")


def test_another_process_may_change_owners(platform, tmp_path, device, ann):
    """The commands work beside a running platform, which follows at its next look."""
    from vmhost.deployment.cloud.metadata import SignedMetadata

    other = SignedMetadata(platform.metadata.folder, platform.folder / "keys", platform.clock)
    other.set_owners("shop", [ann.public])
    platform.sync_metadata()
    add(platform, "2")
    assert platform.metadata.signing("shop")["waiting"]["added"] == [BUNDLE.format("2")]
    with pytest.raises(RefusedError, match="waits for the signatures"):
        platform.releases.start("shop/rank", "2", Plan.of({}), "ann", "")


@pytest.mark.parametrize("wrong", ["", "00", "z" * 128, "0" * 128, None, 5])
def test_signatures_that_are_none(platform, ann, wrong):
    own(platform, ann)
    with pytest.raises(RefusedError, match="does not match the waiting list"):
        platform.sign("shop", key_of(ann)[0], wrong, "ann")


def test_owners_have_their_keys_and_the_platform_does_not_rotate_them(platform, ann):
    own(platform, ann)
    with pytest.raises(RefusedError, match="its owners have its keys"):
        platform.metadata.rotate("role-shop")
    platform.metadata.rotate("targets")
    assert platform.metadata.owners("shop")["publics"] == {key_of(ann)[0]: ann.public}
    with pytest.raises(MissingError, match="nobody: there is no such repository"):
        platform.metadata.owners("nobody")
    with pytest.raises(RefusedError, match="nobody: there is no such repository"):
        platform.metadata.set_owners("nobody", [ann.public])


def test_the_platforms_own_key_is_no_owners(platform, ann):
    own_key = load_key(platform.folder / "keys" / "role-shop")
    with pytest.raises(RefusedError, match="the platform's own key"):
        own(platform, ann, own_key, threshold=2)


ENTRY = {"length": 1, "hashes": {"sha256": "0" * 64}}
LIST = {
    "_type": "targets",
    "spec_version": "1.0.31",
    "version": 3,
    "expires": "2027-06-01T00:00:00Z",
    "targets": {"shop/rank/1/3.14.vmb": ENTRY},
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"delegations": {"keys": {}, "roles": []}},  # which would let another key sign for the repository
        {"_type": "root"},
        {"version": 0},
        {"version": "3"},
        {"spec_version": "2.0"},
        {"expires": "2099-01-01T00:00:00Z"},
        {"expires": "soon"},
        {"targets": []},
        {"targets": {"other/rank/1/3.14.vmb": ENTRY}},
        {"targets": {"shop/../1/3.14.vmb": ENTRY, "shop/rank/3.14.vmb": ENTRY}},
        {"targets": {"shop/rank/1/3.14\x1b[2K.vmb": ENTRY}},
        {"targets": {"shop/rank/1/3.14.vmb": ENTRY | {"custom": {}}}},
        {"targets": {"shop/rank/1/3.14.vmb": ENTRY | {"hashes": {"sha256": "0"}}}},
    ],
)
def test_an_owner_signs_a_list_of_the_repository_and_nothing_else(wrong):
    owner_lists.check(LIST, "shop", 1_800_000_000)
    with pytest.raises(RefusedError, match="is no list of shop's .* do not sign it"):
        owner_lists.check(LIST | wrong, "shop", 1_800_000_000)


@pytest.fixture
def nothing_is_left_behind():
    yield


@pytest.fixture
def run(capfd, monkeypatch, tmp_path):
    """Runs `vmhost cloud ...`; returns its output, or stderr if it is to fail."""
    monkeypatch.setenv("VMHOST_KEYS", str(tmp_path / "config"))

    def run(*arguments, fails=False):
        status = main(["cloud", *map(str, arguments)])
        out, err = capfd.readouterr()
        assert (status != 0) == fails, err
        return err if fails else out

    return run


def test_an_owner_sees_what_a_platform_that_lies_would_have_signed(tmp_path, run, monkeypatch):
    generate_key().save(tmp_path / "ann", "ann")
    with nothing_left(), platform_in(tmp_path / "cloud") as platform, serving(platform) as address:
        monkeypatch.setenv("VMHOST_PLATFORM", address)
        monkeypatch.setenv("VMHOST_TOKEN", platform.access.add_token("ann", "test"))
        add(platform, "1")
        own(platform, load_key(tmp_path / "ann"))
        assert "+ shop/rank/1/3.14.vmb" in run("sign", "shop", "--key", tmp_path / "ann")
        for version in ("2", "3"):
            add(platform, version)
        signing = platform.metadata.signing

        def hides(repository):
            answer = signing(repository)
            answer["waiting"]["added"] = [BUNDLE.format("2")]
            return answer

        platform.metadata.signing = hides
        output = run("sign", "shop", "--key", tmp_path / "ann", "--yes")
        assert "+ shop/rank/3/3.14.vmb" in output and "+ shop/rank/1/3.14.vmb" not in output
        add(platform, "4")

        def delegates(repository):
            answer = signing(repository)
            answer["waiting"]["signed"]["delegations"] = {"keys": {}, "roles": []}
            return answer

        platform.metadata.signing = delegates
        assert "do not sign it" in run("sign", "shop", "--key", tmp_path / "ann", fails=True)


def test_a_list_is_signed_on_a_machine_without_a_network(tmp_path, run, monkeypatch):
    for name in ("ann", "ben"):
        generate_key().save(tmp_path / name, name)
    path = tmp_path / "waiting.json"
    with nothing_left(), platform_in(tmp_path / "cloud") as platform, serving(platform) as address:
        add(platform, "1")
        own(platform, load_key(tmp_path / "ann"), load_key(tmp_path / "ben"), threshold=2)
        where = {"VMHOST_PLATFORM": address, "VMHOST_TOKEN": platform.access.add_token("ann", "test")}
        for name, value in where.items():
            monkeypatch.setenv(name, value)
        assert "sign it: vmhost cloud sign-file" in run("sign", "shop", "--save", path)
        assert "holds no signature" in run("sign", "shop", "--send", path, fails=True)
        for name in where:
            monkeypatch.delenv(name)
        for name in ("ann", "ben", "ben"):
            assert "+ shop/rank/1/3.14.vmb" in run("sign-file", path, "--key", tmp_path / name) or name == "ben"
        for name, value in where.items():
            monkeypatch.setenv(name, value)
        assert "complete; listed now" in run("sign", "shop", "--send", path)
        assert platform.metadata.signing("shop")["waiting"] is None
        assert "nothing waits" in run("sign", "shop", "--send", path, fails=True)
        path.write_text("[]")
        assert "is no list" in run("sign-file", path, "--key", tmp_path / "ann", fails=True)


def test_by_the_commands_from_a_push_to_a_device(tmp_path, run, capfd, monkeypatch):
    for name in ("ann", "ben"):
        generate_key().save(tmp_path / name, name)
    with nothing_left(), platform_in(tmp_path / "cloud") as platform, serving(platform) as address:
        token = platform.access.add_token("ann", "test")
        monkeypatch.setenv("VMHOST_PLATFORM", address)
        monkeypatch.setenv("VMHOST_TOKEN", token)
        output = run("owners", tmp_path / "cloud", "shop", "--add", tmp_path / "ann.pub", "--add", tmp_path / "ben.pub")
        assert "1 of 2 owners sign" in output
        run("owners", tmp_path / "cloud", "shop", "--threshold", "2")
        assert "0 of 2 owners signed it" in run("sign", "shop")
        run("sign", "shop", "--key", tmp_path / "ann")
        assert "complete" in run("sign", "shop", "--key", tmp_path / "ben")
        copy = WorkingCopy(tmp_path / "work", f"{address}/git/shop", token)
        pushed = copy.release("1.0.0", plan="steps: [{percent: 100}]\n")
        assert "not released" in pushed and "vmhost cloud sign shop" in pushed
        with agent_for(platform, address, tmp_path / "device") as agent:
            agent.step()
            assert agent.host.tasks == () and not agent.failed
            output = run("sign", "shop", "--key", tmp_path / "ann")
            assert "+ shop/rank/1.0.0/3.14.vmb" in output and "more owners must sign it" in output
            assert "listed now: shop/rank 1.0.0" in run("sign", "shop", "--key", tmp_path / "ben")
            agent.step()  # release.yaml began by itself
            assert agent.host.task("rank")(21) == 42
            run("file", "shop/rank", tmp_path / "ann.pub", "--name", "words.txt")
            agent.step()
            assert not agent.failed and agent.store.current()["shop/rank"]["files"] == {}
            run("sign", "shop", "--key", tmp_path / "ann")
            run("sign", "shop", "--key", tmp_path / "ben")
            agent.step()
            assert list(agent.store.current()["shop/rank"]["files"]) == ["words.txt"]
        report = json.loads(run("sign", "shop", "--json"))
        assert report["waiting"] is None and len(report["owners"]) == 2
        assert main(["cloud", "sign", "shop", "--key", str(tmp_path / "ann")]) != 0
        assert "nothing waits" in capfd.readouterr().err
        output = run("owners", tmp_path / "cloud", "shop", "--remove", tmp_path / "ann.pub")
        assert "1 of 1 owners sign" in output
        identity = key_of(load_key(tmp_path / "ben"))[0]
        assert "the platform's own key signs" in run("owners", tmp_path / "cloud", "shop", "--remove", identity[:12])
        assert main(["cloud", "owners", str(tmp_path / "cloud"), "shop", "--remove", "abcdefgh"]) != 0
        assert "is no key of an owner" in capfd.readouterr().err


def killed_by_chance(seed, kills):
    command = [sys.executable, "-W", "ignore", "-m", "tests.deployment.owner_kills", str(seed), str(kills)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"


def test_a_platform_that_is_killed_while_owners_change_and_sign_leaves_what_devices_take():
    killed_by_chance(1, 8)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(300, 304))
def test_a_platform_that_is_killed_hundreds_of_times_meanwhile_does_so_too(seed):
    killed_by_chance(seed, 60)
