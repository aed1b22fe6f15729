"""`vmhost cloud` and `vmhost agent` as a new user meets them: set-up, a release by hand, a device, wrong input."""

import json
import os
import subprocess
import sys
import urllib.request

import pytest

from tests.deployment.platforms import DOUBLE, WorkingCopy, nothing_left
from vmhost.cli import main
from vmhost.deployment.cloud import confinement
from vmhost.deployment.cloud.platform import Platform
from vmhost.deployment.cloud.server import serving

ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The server's threads grow with what it is asked; they are looked at when it ends."""
    yield


@pytest.fixture
def run(capfd):
    def run(*arguments, code=0):
        capfd.readouterr()
        assert main([str(each) for each in arguments]) == code, capfd.readouterr().err
        output = capfd.readouterr()
        return output.out if code == 0 else output.err

    return run


def test_from_an_empty_folder_to_a_device_that_runs_a_release(tmp_path, run, monkeypatch):
    cloud, device = tmp_path / "cloud", tmp_path / "device"
    token = json.loads(run("cloud", "init", cloud, "--json"))["token"]
    assert "there is a platform already" in run("cloud", "init", cloud, code=_refused())
    with nothing_left(), Platform(cloud) as platform, serving(platform) as address:
        assert "name the platform" in run("cloud", "releases", code=2)
        monkeypatch.setenv("VMHOST_PLATFORM", address)
        monkeypatch.setenv("VMHOST_TOKEN", token)
        run("cloud", "repository", "shop")
        assert "such a repository already" in run("cloud", "repository", "shop", code=_refused())
        ann = json.loads(run("cloud", "account", "ann", "--role", "releaser", "--json"))["token"]
        fleet = json.loads(run("cloud", "account", "phones", "--role", "fleet", "--json"))["token"]
        WorkingCopy(tmp_path / "work", f"{address}/git/shop", ann).release("1.0.0", main=DOUBLE)
        assert "1.0.0" in run("cloud", "versions")

        run("cloud", "join", device, "--device", "kitchen-1", "--platform", address, "--token", fleet)
        assert oct((device / "agent.yaml").stat().st_mode & 0o777) == "0o600"
        assert "is there already" in run(
            "cloud", "join", device, "--device", "x", "--platform", address, "--token", "t", code=2
        )
        plan = tmp_path / "plan.yaml"
        plan.write_text("steps: [{devices: [kitchen-1]}]\n")
        assert "is running, step 1 of 1" in run(
            "cloud", "release", "shop/rank", "1.0.0", "--plan", plan, "--why", "first"
        )
        (tmp_path / "words.txt").write_text("words")
        run("cloud", "file", "shop/rank", tmp_path / "words.txt")
        (tmp_path / "wrong.rules.yaml").write_text("name: wrong\n")
        output = run("cloud", "file", "shop/rank", tmp_path / "wrong.rules.yaml", code=2)
        assert "rule wrong: pattern: expected a list of steps" in output
        current = json.loads(run("agent", device / "agent.yaml", "--once", "--json"))["current"]
        assert current["shop/rank"]["version"] == "1.0.0" and list(current["shop/rank"]["files"]) == ["words.txt"]
        assert "proven" in run("cloud", "show", "1")
        assert "kitchen-1" in run("cloud", "devices")
        assert "by ann" not in run("cloud", "history", "shop/rank").splitlines()[-1]

        assert "is done; it can halt, pause, roll_back, not resume" in run("cloud", "resume", "1", code=_refused())
        run("cloud", "rollback", "1", "--why", "wrong words")
        assert json.loads(run("agent", device / "agent.yaml", "--once", "--json"))["current"] == {}
        assert "wrong words" in run("cloud", "release", "shop/rank", "1.0.0", "--all-at-once", code=_refused())
        run("cloud", "forgive", "shop/rank", "1.0.0", "--why", "right words")
        assert "--all-at-once" in run("cloud", "release", "shop/rank", "1.0.0", code=2)
        run("cloud", "release", "shop/rank", "1.0.0", "--all-at-once")
        assert json.loads(run("agent", device / "agent.yaml", "--once", "--json"))["current"]
        audience = tmp_path / "audience.yaml"
        audience.write_text("os: linux\ncores: '>=1'\n")
        assert "1 of 1 known devices: kitchen-1" in run("cloud", "ask", audience)
        run("cloud", "repository", "other")
        made = json.loads(
            run("cloud", "token", "ann", "--scope", "release:other", "--for", "2 d", "--label", "ci", "--json")
        )
        assert "needs release (of shop)" in run("cloud", "rollback", "2", "--token", made["token"], code=_refused())
        listed = run("cloud", "accounts")
        assert "release:other" in listed and made["token"] not in listed
        run("cloud", "revoke", made["token"])
        assert "was revoked" in run("cloud", "releases", "--token", made["token"], code=_refused())
        run("cloud", "change", "phones", "--disable")
        assert "fleet (disabled)" in run("cloud", "accounts") and "say what" in run("cloud", "change", "ann", code=2)
        assert "account changed phones (disabled True)" in run("cloud", "audit", "phones")
        run("cloud", "cohort", "staff", "kitchen-1")
        assert "kitchen-1" in run("cloud", "cohorts") and run("cloud", "repositories") == "other\nshop\n"
        run("cloud", "stuck")
        run("cloud", "rotate", cloud, "timestamp")
        assert "expected one of root" in run("cloud", "rotate", cloud, "nobody", code=_refused())
        run("agent", device / "agent.yaml", "--once")
    # the platform is down: the device's tasks go on, and the command says why it failed
    run("agent", device / "agent.yaml", "--once", code=_host_failed())


def _refused():
    from vmhost.cli.failures import REFUSED

    return REFUSED


def _host_failed():
    from vmhost.cli.failures import HOST_FAILED

    return HOST_FAILED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("device: [", "not YAML"),
        ("device: a b\nplatform: http://x\nfolder: s\nkeys: k\n", "agent.yaml:1: device: expected a name"),
        ("device: a\nplatform: ftp://x\nfolder: s\nkeys: k\n", "platform: expected an address"),
        ("device: a\nplatform: http://x\nfolder: s\n", "keys is missing; expected the path"),
        ("device: a\nplatform: http://x\nfolder: s\nkeys: k\npoll: soon\n", "poll: expected a time such as"),
        (
            "device: a\nplatform: http://x\nfolder: s\nkeys: k\ncolour: red\n",
            "colour: unknown key; expected one of device",
        ),
    ],
)
def test_a_wrong_agent_yaml_is_said_in_one_line(tmp_path, run, text, message):
    (tmp_path / "agent.yaml").write_text(text)
    output = run("agent", tmp_path / "agent.yaml", code=2)
    assert message in output and len(output.splitlines()) == 1


def test_a_program_that_serves_the_platform_is_told_where(tmp_path):
    Platform.make(tmp_path / "cloud")
    command = [
        sys.executable,
        "-m",
        "vmhost",
        "cloud",
        "serve",
        str(tmp_path / "cloud"),
        "--listen",
        "127.0.0.1:0",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | ENVIRONMENT) as process:
        try:
            text = ""
            while not text.endswith("\n}\n"):
                assert (line := process.stdout.readline()), text
                text += line
            report = json.loads(text)
            assert report.keys() == {"folder", "url", "git", "tunnel", "builds_confined"} and report["tunnel"] is None
            assert report["builds_confined"] is (confinement.why_not() is None)
            with urllib.request.urlopen(f"{report['url']}/api/v1/openapi.json", timeout=60) as answer:
                assert json.load(answer)["openapi"] == "3.1.0"
        finally:
            process.terminate()
