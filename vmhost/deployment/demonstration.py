"""`vmhost cloud demo`: platform, static files, git, and five device processes on this machine, without installing.

A first version goes to all devices. A second one works on some devices only: it passes the platform's simulation and
its beta devices, fails its proof on the others, and is rolled back.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from vmhost.deployment.cloud.platform import Platform
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.errors import DeploymentError

DEVICES = 5
MODELS = ("a", "a", "a", "b", "b")
TASK = "shop/rank"
_POLL_S = 0.5
_WAIT_S = 120.0
_SOURCE = '''"""Orders items by price and by how well the device's screen shows them."""

import os

{sizes}


def run(items):
    size = {size}
    return sorted(items, key=lambda item: (item["price"] // size, item["name"]))
'''
_FIRST = {"sizes": 'SIZES = {"a": 10, "b": 5}', "size": 'SIZES.get(os.environ.get("DEVICE_MODEL", "a"), 10)'}
_SECOND = {
    "sizes": 'SIZES = {"a": 20}  # whoever wrote this has no device of model b',
    "size": 'SIZES[os.environ.get("DEVICE_MODEL", "a")]',
}
_SPEC = """name: rank
version: {version}
entry: main:run
python: "{python}"
permissions: {{env: [DEVICE_MODEL]}}
"""
_PLAN = """# Two devices first; then all. A step that too many devices fail takes the release back everywhere.
steps:
  - {devices: [device-1, device-2], min_reports: 2}
  - {percent: 100, min_reports: 3}
on_failure: roll_back
max_error: 20 %
"""
_CASE = {"input": [{"name": "pear", "price": 31}, {"name": "fig", "price": 2}]}


class Demonstration:
    """Runs in the folder `folder`; `say(text)` gets each line of output. Close it."""

    def __init__(self, folder, say):
        self.folder, self.say = Path(folder), say
        self._agents = []

    def run(self):
        """Returns what happened, as plain data. DeploymentError if the outcome is not the expected one."""
        cloud = self.folder / "cloud"
        Platform.make(cloud)
        with Platform(cloud, poll_s=_POLL_S) as platform, serving(platform) as address:
            try:
                return self._run(platform, address)
            finally:
                self._stop_agents()

    def _run(self, platform, address):
        access = platform.access
        access.add_account("ann", "releaser", "demo")
        access.add_account("fleet", "fleet", "demo")
        platform.add_repository("shop", "demo")
        self.say(f"platform at {address}; repository shop; account ann may push and release")
        self._start_agents(address, access.add_token("fleet", "demo"), platform.folder / "keys" / "bundles.pub")
        self._wait(lambda: platform.devices.count() == DEVICES, "the devices to join")
        self.say(f"{DEVICES} device processes joined: models {', '.join(MODELS)}")
        work = WorkingCopy(self.folder / "shop", address, "ann", access.add_token("ann", "demo"))

        self.say("\nversion 1.0.0: git push origin rank 1.0.0")
        began = time.monotonic()
        self._say_push(work.push("1.0.0", _FIRST))
        self._wait(lambda: self._running(platform) == {"1.0.0": DEVICES}, "1.0.0 on all devices")
        first_s = time.monotonic() - began
        self.say(f"1.0.0 runs on {DEVICES} devices, proven, {first_s:.1f} s after the push began")
        self._wait(lambda: platform.releases.release(1).state == "done", "the release to be done")

        self.say("\nversion 1.1.0 (does not know model b): git push origin rank 1.1.0")
        self._say_push(work.push("1.1.0", _SECOND))

        def rolled_back():
            return [each for each in platform.releases.history(TASK) if each["event"] == "roll_back"]

        self._wait(rolled_back, "1.1.0 to be rolled back")
        [back] = rolled_back()
        self._wait(
            lambda: self._running(platform, since_ms=back["time_ms"] + 1) == {"1.0.0": DEVICES},
            "all devices to be back",
        )
        self.say(f"1.1.0 was rolled back; 1.0.0 runs on {DEVICES} devices again\n")
        history = platform.releases.history(TASK)[::-1]
        return {
            "address": address,
            "first_s": round(first_s, 2),
            "releases": [platform.releases.release(number).plain() for number in (1, 2)],
            "history": history,
            "devices": platform.releases.devices_of(2),
            "running": self._running(platform),
        }

    def _say_push(self, text):
        for line in text.splitlines():
            if line.startswith("remote:") or "->" in line or "rejected" in line:
                self.say(f"  {line.rstrip()}")

    def _running(self, platform, since_ms=0):
        """How many devices run which version, proven; only devices that asked since then."""
        found = {}
        for device in platform.devices.list():
            entry = device["tasks"].get(TASK)
            if entry and entry["state"] == "proven" and device["seen_ms"] >= since_ms:
                found[entry["version"]] = found.get(entry["version"], 0) + 1
        return found

    def _wait(self, holds, what):
        end = time.monotonic() + _WAIT_S
        while not holds():
            for number, agent in enumerate(self._agents, 1):
                if agent.poll() is not None:
                    log = (self.folder / f"device-{number}" / "log").read_text(errors="replace")
                    raise DeploymentError(f"device-{number} ended with status {agent.returncode}:\n{log[-2000:]}")
            if time.monotonic() > end:
                raise DeploymentError(
                    f"waited {_WAIT_S:g} s for {what}; the devices' logs are {self.folder}/device-*/log"
                )
            time.sleep(0.05)

    def _start_agents(self, address, token, keys):
        for number in range(1, DEVICES + 1):
            folder = self.folder / f"device-{number}"
            folder.mkdir()
            shutil.copy(keys, folder / "bundles.pub")
            shutil.copy(keys.parent.parent / "metadata" / "1.root.json", folder / "root.json")
            model = MODELS[number - 1]
            settings = {
                "device": f"device-{number}",
                "platform": address,
                "token": token,
                "folder": "state",
                "keys": "bundles.pub",
                "root": "root.json",
                "facts": {"model": model},
            }
            path = folder / "agent.yaml"
            path.touch(mode=0o600)
            path.write_text(json.dumps(settings))
            with open(folder / "log", "wb") as log:
                environment = os.environ | {
                    "DEVICE_MODEL": model,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                }
                self._agents.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "vmhost", "agent", "agent.yaml"],
                        cwd=folder,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,  # Ctrl-C goes to the demonstration, which ends them
                    )
                )

    def _stop_agents(self):
        for agent in self._agents:
            if agent.poll() is None:
                agent.send_signal(signal.SIGTERM)
        for agent in self._agents:
            try:
                agent.wait(10)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()


class WorkingCopy:
    """A clone of the demonstration's repository, with git's own program if there is one, else dulwich."""

    def __init__(self, folder, address, account, token):
        self.folder = folder
        self._url = f"{address}/git/shop"
        self._account, self._token = account, token
        self._git = shutil.which("git")
        if self._git:
            self._run("init", "-q", "-b", "rank", str(folder), cwd=folder.parent)
        else:
            from dulwich import porcelain

            porcelain.init(str(folder)).close()

    def _run(self, *arguments, cwd=None):
        """Runs git without the user's configuration; a helper passes the token, so that no process list shows it."""
        helper = '!f() { echo "username=$DEMO_ACCOUNT"; echo "password=$DEMO_TOKEN"; }; f'
        command = [
            self._git,
            "-c",
            "user.name=Ann",
            "-c",
            "user.email=ann@shop.example",
            "-c",
            f"credential.helper={helper}",
        ]
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self.folder.parent),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "DEMO_ACCOUNT": self._account,
            "DEMO_TOKEN": self._token,
        }
        done = subprocess.run(
            [*command, *arguments], cwd=cwd or self.folder, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise DeploymentError(f"git {arguments[0]} failed:\n{done.stderr}")
        return done.stderr

    def push(self, version, source, plan=_PLAN):
        """Commits the version, tags it, and pushes branch and tag; returns git's output."""
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        (self.folder / "simulation").mkdir(exist_ok=True)
        files = {
            "task.yaml": _SPEC.format(version=version, python=python),
            "main.py": _SOURCE.format(**source),
            "release.yaml": plan,
            "simulation/fruit.json": json.dumps(_CASE),
        }
        for name, text in files.items():
            (self.folder / name).write_text(text)
        if self._git:
            self._run("add", "-A")
            self._run("commit", "-q", "-m", f"rank {version}")
            self._run("tag", version)
            return self._run("push", self._url, "rank", version)
        return self._push_without_git(version, sorted(files))

    def _push_without_git(self, version, files):
        import io

        from dulwich import porcelain

        output = io.BytesIO()
        repo = porcelain.open_repo(str(self.folder))
        try:
            repo.refs.set_symbolic_ref(b"HEAD", b"refs/heads/rank")
            porcelain.add(repo, [str(self.folder / name) for name in files])
            person = b"Ann <ann@shop.example>"
            porcelain.commit(repo, message=f"rank {version}".encode(), author=person, committer=person)
            porcelain.tag_create(repo, version.encode())
            porcelain.push(
                repo,
                self._url,
                [b"refs/heads/rank", f"refs/tags/{version}".encode()],
                outstream=io.BytesIO(),
                errstream=output,
                username=self._account,
                password=self._token,
            )
        finally:
            repo.close()
        return "\n".join(f"remote: {line}" for line in output.getvalue().decode(errors="replace").splitlines())
