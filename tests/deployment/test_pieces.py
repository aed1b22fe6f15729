"""Bundles in pieces: a large file shared by several tasks and versions is kept and pulled once."""

import itertools
import json
import random

import pytest

from tests.deployment.platforms import WorkingCopy, agent_for, nothing_left, platform_in
from vmhost import Host
from vmhost.bytecode.archive import write_archive
from vmhost.bytecode.signing import TrustStore
from vmhost.deployment import delta, pieces
from vmhost.deployment.artifacts import ArtifactFolder, digest_of
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.device.bundle_store import BundleStore
from vmhost.deployment.errors import DamagedError

MODEL = random.Random(7).randbytes(1 << 20)
MAIN = "from vmhost.guest import files\ndef run(value):\n    return [{}, len(files.read_bytes('model.bin'))]\n"
SPEC = 'name: {}\nversion: {}\nentry: main:run\npython: "3.14"\nfiles: [model.bin]\n'
NUMBERS = itertools.count()
PLAN = "steps: [{percent: 100}]\n"


def pushed(platform, address, task, version, number, model=MODEL):
    """Pushes a version of a task that holds the model."""
    copy = WorkingCopy(
        platform.folder.parent / task, f"{address}/git/shop", platform.access.add_token("ann", "test"), task
    )
    (copy.folder / "model.bin").write_bytes(model)
    files = {"task.yaml": SPEC.format(task, version)}
    return copy.release(version, main=MAIN.format(number), plan=PLAN, **files)


def bytes_in(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Counting:
    """The bytes that an agent's downloads bring."""

    def __init__(self, agent):
        self.bytes = 0
        self._download, agent._transfers.download = agent._transfers.download, self

    def __call__(self, url, partial, size):
        before = partial.stat().st_size if partial.exists() else 0
        self._download(url, partial, size)
        self.bytes += partial.stat().st_size - before


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The server's threads grow with what it is asked; they are looked at when it ends."""
    yield


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pieces")
    with nothing_left(), platform_in(folder / "cloud") as platform, serving(platform) as address:
        pushed(platform, address, "rank", "1.0.0", 1)
        yield platform, address


@pytest.fixture
def device(cloud):
    """A function that makes an agent of the test's own device, in a folder."""
    name = f"device-{next(NUMBERS)}"
    return lambda folder: agent_for(*cloud, folder, name)


def runs(agent):
    return "rank" in agent.host.tasks and agent.host.task("rank")(None)[1] == len(MODEL)


def test_two_tasks_with_one_model_cost_it_once(cloud, device, tmp_path):
    platform, address = cloud
    with device(tmp_path / "device") as agent:
        pulled = Counting(agent)
        agent.step()
        assert agent.host.task("rank")(None) == [1, len(MODEL)]
        assert pulled.bytes > len(MODEL)
        pushed(platform, address, "sort", "2.0.0", 2)
        assert bytes_in(platform.folder / "files") < len(MODEL) + 100_000
        pulled.bytes = 0
        agent.step()
        assert agent.host.task("sort")(None) == [2, len(MODEL)]
        assert pulled.bytes < 10_000
        assert bytes_in(agent.store.artifacts.folder) < len(MODEL) + 50_000
        entry = agent.store.current()["shop/sort"]
        assert entry["path"] is None and digest_of(agent.store.bundle(entry)) == entry["digest"]
        keys = TrustStore.load(platform.folder / "keys" / "bundles.pub")
        with Host(trust=keys) as host, BundleStore(tmp_path / "device").follow(host):
            assert host.task("sort")(None) == [2, len(MODEL)]
        # a new version of the code alone: a delta, and the model stays where it is
        pulled.bytes = 0
        pushed(platform, address, "rank", "1.1.0", 3)
        agent.step()
        assert agent.host.task("rank")(None) == [3, len(MODEL)] and pulled.bytes < 10_000
        assert bytes_in(agent.store.artifacts.folder) < len(MODEL) + 50_000


def test_a_damaged_piece_is_pulled_again_and_nothing_else(device, tmp_path):
    with device(tmp_path / "device") as agent:
        agent.step()
        piece = agent.store.artifacts.path(digest_of(MODEL))
        piece.write_bytes(bytes(len(MODEL)))
    with device(tmp_path / "device") as agent:
        assert agent.host.tasks == ()
        agent.step()
        assert runs(agent) and piece.read_bytes() == MODEL


def test_a_piece_that_is_gone_is_pulled_again(device, tmp_path):
    with device(tmp_path / "device") as agent:
        agent.step()
        agent.store.artifacts.path(digest_of(MODEL)).unlink()
    with device(tmp_path / "device") as agent:
        agent.step()
        assert runs(agent)


@pytest.mark.parametrize("wrong", ["order", "another piece", "no recipe", "another size"])
def test_a_recipe_that_makes_another_bundle_changes_nothing(cloud, device, tmp_path, wrong):
    platform, _ = cloud
    wanted = platform._wanted

    def lying(*arguments):
        answer = wanted(*arguments)
        recipe, other = answer["pieces"], digest_of(b"other")
        if wrong == "order":
            recipe["members"] = [[0, *recipe["members"][0][1:]]]
        elif wrong == "another piece":
            recipe["shell"] = [platform.files.put(bytes(recipe["shell"][1])), recipe["shell"][1]]
        elif wrong == "another size":  # the pieces are not joined, which would take 3 GB of memory
            recipe["members"] *= 1000
            recipe["size"] = recipe["shell"][1] + 1000 * len(MODEL)
        else:
            recipe["members"] = [[0, other, -1]]
        return answer

    platform._wanted = lying
    with device(tmp_path / "device") as agent:
        agent.step()
        assert agent.failed and agent.host.tasks == () and agent.store.current() == {}
        assert wrong != "another size" or "pieces of another bundle" in agent._problem
        platform._wanted = wanted
        agent.step()
        assert not agent.failed and runs(agent)


def test_pieces_of_wrong_recipes_go_where_the_disk_has_no_room_for_the_right_ones(cloud, tmp_path):
    platform, address = cloud
    wanted, chance, kept = platform._wanted, random.Random(1), []

    def lying(*arguments):
        answer = wanted(*arguments)
        other = chance.randbytes(len(MODEL))
        kept.append(platform.files.put(other))
        answer["pieces"]["members"][0][1] = kept[-1]
        return answer

    with agent_for(platform, address, tmp_path / "device", f"device-{next(NUMBERS)}", disk_bytes=7 << 20) as agent:
        platform._wanted = lying
        for _ in range(4):
            agent.step()
            assert agent.failed
        platform._wanted = wanted
        agent.step()
        assert not agent.failed and runs(agent), agent._problem
        assert bytes_in(agent.store.artifacts.folder) < len(MODEL) + 50_000
    for digest in kept:
        platform.files.remove(digest)


def test_without_zstd_pieces_come_as_they_are(device, tmp_path, monkeypatch):
    monkeypatch.setattr(delta, "can_apply", lambda: False)
    with device(tmp_path / "device") as agent:
        agent.step()
        assert runs(agent)


# ---- pieces


def bundles(random_):
    """An archive of files of all sizes around LEAST_BYTES, some of which are equal."""
    entries = {}
    for number in range(random_.randrange(1, 12)):
        size = random_.choice((0, 1, 100, pieces.LEAST_BYTES - 1, pieces.LEAST_BYTES, pieces.LEAST_BYTES + 5, 200_000))
        entries[f"files/{number}"] = (
            random_.choice(list(entries.values())) if entries and random_.random() < 0.3 else random_.randbytes(size)
        )
    return write_archive(entries), entries


@pytest.mark.parametrize("seed", range(30))
def test_pieces_make_the_bundle_again(seed, tmp_path):
    data, entries = bundles(random.Random(seed))
    large = {digest_of(content) for content in entries.values() if len(content) >= pieces.LEAST_BYTES}
    folder = ArtifactFolder(tmp_path)
    digest = folder.put_in_pieces(data)
    assert digest == digest_of(data) and folder.read(digest) == data and digest in folder
    if not large:
        assert pieces.split(data) is None and folder.recipe(digest) is None
        return
    recipe, parts = pieces.split(data)
    pieces.check(json.loads(json.dumps(recipe)))
    assert parts.keys() == pieces.needed(recipe).keys() == large | {recipe["shell"][0]}
    assert {each: len(part) for each, part in parts.items()} == pieces.needed(recipe)
    assert pieces.cut(recipe, data) == parts and folder.needed(digest) == {digest, *parts}
    folder.path(min(large)).unlink()
    assert digest not in folder
    with pytest.raises(FileNotFoundError):
        folder.read(digest)


def test_a_recipe_that_is_none_is_told():
    data, _ = bundles(random.Random(3))
    good, _ = pieces.split(data)
    at, digest, size = good["members"][0]
    wrong = [
        None,
        [],
        {},
        {**good, "size": good["size"] + 1},
        {**good, "size": True},
        {**good, "shell": [digest[:-1], good["shell"][1]]},
        {**good, "shell": [digest, -1]},
        {**good, "members": [[-1, digest, size], *good["members"][1:]]},
        {**good, "members": [[good["shell"][1] + 1, digest, size], *good["members"][1:]]},
        {**good, "members": [[at, digest, size, 1]]},
        {**good, "members": good["members"][::-1] if len(good["members"]) > 1 else None},
        {**good, "members": [[0, digest, 0]] * (pieces.MAX_MEMBERS + 1)},
        {**good, "members": "text"},
    ]
    for recipe in wrong:
        with pytest.raises(ValueError, match="not a recipe of pieces"):
            pieces.check(recipe)


def test_pieces_of_another_file_are_no_recipe_of_this_one(tmp_path):
    folder = ArtifactFolder(tmp_path)
    data, _ = bundles(random.Random(3))
    folder.put_in_pieces(data)
    recipe, _ = pieces.split(data)
    with pytest.raises(DamagedError, match="make another file"):
        folder.put_recipe(digest_of(b"other"), recipe)
    assert digest_of(b"other") not in folder


def test_a_new_folder_is_on_the_disk_with_its_file(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("vmhost.deployment.artifacts.sync_folder", synced.append)
    folder = ArtifactFolder(tmp_path / "files")
    digest = folder.put(b"a file")
    assert set(synced) == {tmp_path / "files", tmp_path / "files" / digest[:2]}
