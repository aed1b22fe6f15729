"""kill -9 of a platform while it sets owners, takes their signatures and signs: python -m tests.deployment.owner_kills
SEED KILLS. At every moment what devices are given is whole; they lack owners' signatures at most. In the end all is
listed."""

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.deployment.metadata_files import Repository
from tests.deployment.platforms import add_version, platform_in
from vmhost.bytecode.signing import generate_key
from vmhost.deployment.cloud.metadata import key_of
from vmhost.deployment.errors import RefusedError
from vmhost.deployment.trust import Metadata, TrustError, canonical

BUNDLE = "shop/rank/{}/3.14.vmb"


def sign(platform, keys):
    for key in keys:
        waiting = platform.metadata.signing("shop")["waiting"]
        if waiting is not None:
            try:
                platform.sign("shop", key_of(key)[0], key.sign(canonical(waiting["signed"]))[32:].hex(), "ann")
            except RefusedError as error:
                assert "is not one of the repository's owners" in str(error), error


def work(platform, what, keys, number):
    if what == "owners":
        platform.metadata.set_owners("shop", [key.public for key in keys[:2]], 1 + number % 2)
    elif what == "no owners":
        platform.metadata.set_owners("shop", [])
    elif what == "version":
        add_version(platform, "shop/rank", str(number))
    else:
        sign(platform, keys)
    platform.releases.announce()
    platform.sync_metadata()


def killed(folder, what, keys, number, wait_s):
    """A process that does the work, killed `wait_s` seconds after it began."""
    child = os.fork()
    if child == 0:
        try:
            with platform_in(folder) as platform:
                work(platform, what, keys, number)
        finally:
            os._exit(0)
    time.sleep(wait_s)  # the kill falls at random
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def run(folder, seed, kills):
    chance = random.Random(seed)
    keys = [generate_key() for _ in range(3)]
    cloud, device = folder / "cloud", folder / "device"
    with platform_in(cloud) as platform:
        work(platform, "version", keys, 0)
        repository = Repository(platform)
    device.mkdir()
    (device / "root.json").write_bytes((cloud / "metadata" / "1.root.json").read_bytes())
    for number in range(1, kills + 1):
        what = chance.choice(["owners", "no owners", "version", "signatures", "signatures"])
        killed(cloud, what, chance.sample(keys, 3), number, chance.uniform(0, 0.12))
        metadata = Metadata(device, repository)
        metadata.refresh()
        try:
            assert metadata.target(BUNDLE.format(0)) is not None
        except TrustError as error:
            assert "signatures that it needs" in str(error), error
    with platform_in(cloud) as platform:
        work(platform, "owners", keys, 0)
        sign(platform, keys)
        platform.sync_metadata()
        assert platform.metadata.signing("shop")["waiting"] is None
        metadata = Metadata(device, repository)
        metadata.refresh()
        for version in platform.releases.versions.values():
            assert metadata.target(BUNDLE.format(version.version)) is not None, version


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        run(Path(made), int(sys.argv[1]), int(sys.argv[2]))
