"""The deployment platform's agent in a device image: pulls, proves and runs as on a full host; by TLS, deltas and YAML
if the image has these, else with an error that names what is missing."""

import json
import subprocess

import pytest

from tests.deployment.platforms import WorkingCopy, platform_in
from tests.images import make_once
from vmhost.bytecode.format import read_bundle
from vmhost.cli import failures, main
from vmhost.deployment.cloud.plan import WHOLE_FLEET, Plan
from vmhost.deployment.cloud.server import serving
from vmhost.tunnel.tls import make_certificates

PLAN = Plan.of(WHOLE_FLEET)
CASE = {"one": {"input": 1}}


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The server's threads grow with what it is asked."""
    yield


@pytest.fixture(scope="module")
def whole_image(tools, tmp_path_factory):
    return make_once(tmp_path_factory, "--with-agent", "--with-tls", "--with-zstd", "--with-yaml")


@pytest.fixture(scope="module")
def bare_image(tools, tmp_path_factory):
    return make_once(tmp_path_factory, "--with-agent")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A platform behind TLS, with two versions that were pushed, the first of them released; its address, a token that
    devices join with, and who signed its certificate."""
    folder = tmp_path_factory.mktemp("built")
    make_certificates(folder / "tls", [])
    with platform_in(folder / "cloud") as platform, serving(platform) as address:
        copy = WorkingCopy(folder / "work", f"{address}/git/shop", platform.access.add_token("ann", "test"))
        more = {f"part{number}.py": f"VALUES = {list(range(number, number + 400))}\n" for number in range(5)}
        copy.release("1.0.0", cases=CASE, **more)
        copy.release("1.1.0", main="def run(value):\n    return value * 3\n", cases=CASE)
        platform.releases.start("shop/rank", "1.0.0", PLAN, "ann", "")
        token = platform.access.add_token("fleet", "test")
        with serving(platform, tls=(folder / "tls" / "server.pem", folder / "tls" / "server.key")) as safe:
            yield platform, address, safe, token, folder / "tls" / "ca.pem"


def agent(image, folder, text):
    """The result of one round of the image's agent, with nothing of this machine in its environment."""
    folder.mkdir(exist_ok=True)
    (folder / "agent.yaml").write_text(text)
    return subprocess.run(
        [image / "vmrun", "agent", folder / "agent.yaml", "--once"], capture_output=True, text=True, timeout=120, env={}
    )


def settings(platform, address, token, device, **more):
    keys = {"keys": str(platform.folder / "keys/bundles.pub"), "root": str(platform.folder / "metadata/1.root.json")}
    return {"device": device, "platform": address, "token": token, "folder": "state"} | keys | more


def known(platform, device):
    return platform.devices.get(device)["tasks"].get("shop/rank", {})


def test_it_pulls_proves_and_goes_on_by_tls_with_deltas_and_settings_in_yaml(whole_image, built, tmp_path):
    platform, _, safe, token, authority = built
    plain = settings(platform, safe, token, "kitchen-1")
    lines = "".join(f"{name}: {value}\n" for name, value in plain.items())
    done = agent(whole_image, tmp_path / "device", lines)
    assert done.returncode == failures.HOST_FAILED and "certificate verify failed" in done.stderr
    lines += f"certificates: {authority}\n"
    done = agent(whole_image, tmp_path / "device", lines)
    assert done.returncode == 0, done.stderr
    assert (known(platform, "kitchen-1")["version"], known(platform, "kitchen-1")["state"]) == ("1.0.0", "proven")
    version = platform.releases.version("shop/rank", "1.1.0")
    digest = version.bundles["3.14"][0]
    bundle = platform.files.path(digest)
    kept = bundle.read_bytes()
    bundle.unlink()  # so it must come by the delta
    try:
        release = platform.releases.start("shop/rank", "1.1.0", PLAN, "ann", "")
        done = agent(whole_image, tmp_path / "device", lines)
    finally:
        bundle.write_bytes(kept)
    assert done.returncode == 0, done.stderr
    assert known(platform, "kitchen-1")["version"] == "1.1.0"
    [current] = json.loads((tmp_path / "device/state/current.json").read_text())["tasks"].values()
    assert read_bundle(tmp_path / "device/state" / current["path"], allow_unsigned=True).manifest.version == "1.1.0"
    platform.releases.act(release.id, "roll_back", "ann", "for the next test")
    assert agent(whole_image, tmp_path / "device", lines).returncode == 0
    assert known(platform, "kitchen-1")["version"] == "1.0.0"


def test_one_without_these_pulls_whole_bundles_and_says_what_it_lacks(bare_image, image, built, tmp_path):
    platform, address, safe, token, _ = built
    plain = settings(platform, address, token, "hall-1")
    done = agent(bare_image, tmp_path / "device", json.dumps(plain))
    assert done.returncode == 0, done.stderr
    assert known(platform, "hall-1")["state"] == "proven" and "zstd" not in done.stderr
    done = agent(bare_image, tmp_path / "device", "device: hall-1\n")
    assert done.returncode == failures.WRONG_INPUT and "--with-yaml" in done.stderr
    done = agent(bare_image, tmp_path / "device", json.dumps(plain | {"platform": safe}))
    assert done.returncode == failures.HOST_FAILED and "--with-tls" in done.stderr
    done = agent(image, tmp_path / "device", json.dumps(plain))
    assert done.returncode == failures.WRONG_INPUT and "--with-agent" in done.stderr


def test_an_option_of_the_agent_alone_is_refused(capsys, tmp_path):
    assert main(["image", str(tmp_path / "out"), "--with-tls"]) == failures.WRONG_INPUT
    assert "--with-agent" in capsys.readouterr().err and not (tmp_path / "out").exists()
