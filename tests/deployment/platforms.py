"""Platforms, devices and working copies for the tests: real ones, on loopback, in the test's own process."""

import contextlib
import ctypes  # noqa: F401  the agent loads it once (heap.py), which is nothing that a test leaves behind
import gc
import json
import os
import subprocess
import time
from pathlib import Path

from tests.conftest import Belongings
from vmhost.deployment.cloud.platform import Platform
from vmhost.deployment.cloud.releases import Version
from vmhost.deployment.device.agent import Agent
from vmhost.deployment.device.settings import Settings

SPEC = 'name: {name}\nversion: {version}\nentry: main:run\npython: "3.14"\n'
DOUBLE = "def run(value):\n    return value * 2\n"


@contextlib.contextmanager
def nothing_left():
    """Threads, files and VMs that a block starts have ended at its end."""
    before = Belongings()
    yield
    end = time.monotonic() + 30
    while left := Belongings().left_since(before):
        assert time.monotonic() < end, "left behind: " + "; ".join(left)
        gc.collect()
        time.sleep(0.01)


class Clock:
    """Seconds since 1970, set by the test."""

    def __init__(self, now_s=1_800_000_000.0):
        self.now_s = now_s

    def __call__(self):
        return self.now_s


def platform_in(folder, postgresql=None, **options):
    """An open Platform with the repository `shop`; both are made if missing."""
    if not any((folder / name).exists() for name in ("platform.db", "postgresql")):
        Platform.make(folder, postgresql=postgresql)
        with Platform(folder) as platform:
            platform.add_repository("shop", "test")
            platform.access.add_account("ann", "releaser", "test")
            platform.access.add_account("fleet", "fleet", "test")
    return Platform(folder, **options)


def add_version(platform, task, version, content=None):
    """A version without a build: for tests of releases, which look at no bundle."""
    data = content if content is not None else f"{task} {version}".encode()
    digest = platform.files.put(data)
    with platform.releases.change() as connection:
        identity = connection.execute(
            'INSERT INTO deploy_versions (task, version, "commit", tag, state, who, time_ms, report) '
            "VALUES (?, ?, 'c0ffee', ?, 'ready', 'ann', 0, '{}') RETURNING id",
            (task, version, version),
        ).fetchall()[0][0]
        connection.execute("INSERT INTO deploy_bundles VALUES (?, '3.14', ?, ?)", (identity, digest, len(data)))
        made = Version(identity, task, version, "c0ffee", "ann", 0, None, None, {"3.14": (digest, len(data))})
        platform.releases.versions[identity] = made
    return made


class WorkingCopy:
    """A folder that git's own program pushes from, as the account `ann`."""

    def __init__(self, folder, url, token, branch="rank"):
        self.folder, self.branch = Path(folder), branch
        self.push_to(url, token)
        self.folder.mkdir(exist_ok=True)
        self.git("init", "-q", "-b", branch)

    def push_to(self, url, token):
        self._url = url.replace("://", f"://ann:{token}@")

    def git(self, *arguments, check=True):
        """git's stderr; with `check=False`, (status, stderr)."""
        done = subprocess.run(
            ["git", "-c", "user.name=Ann", "-c", "user.email=ann@shop.example", *arguments],
            cwd=self.folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder),
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_TERMINAL_PROMPT": "0",
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
        if not check:
            return done.returncode, done.stderr
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def write(self, version, main=DOUBLE, cases=None, plan=None, **more):
        files = {"task.yaml": SPEC.format(name=self.branch, version=version), "main.py": main} | more
        files |= {f"simulation/{name}.json": json.dumps(case) for name, case in (cases or {}).items()}
        if plan is not None:
            files["release.yaml"] = plan
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def commit(self, version, **what):
        """Writes, commits and tags a version."""
        self.write(version, **what)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", f"version {version}")
        self.git("tag", version)

    def push(self, *refs, check=True):
        return self.git("push", self._url, *refs, check=check)

    def release(self, version, **what):
        self.commit(version, **what)
        return self.push(self.branch, version)


def agent_for(platform, address, folder, device="kitchen-1", clock=None, **more):
    """An Agent of this process, which asks the platform at `address`."""
    settings = Settings(
        device=device,
        platform=address,
        folder=Path(folder),
        keys=platform.folder / "keys" / "bundles.pub",
        root=platform.folder / "metadata" / "1.root.json",
        token=more.pop("token", None) or platform.access.add_token("fleet", "test"),
        **more,
    )
    return Agent(settings, clock) if clock is not None else Agent(settings)
