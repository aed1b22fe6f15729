"""Platform, agent and commands as processes of their own: a device that only its tunnel reaches is debugged."""

import json
import os
import re
import signal
import subprocess
import sys

import yaml

from tests import warm
from tests.operations.debugged_hosts import until
from vmhost.tunnel.tls import make_certificates


def test_a_device_behind_its_tunnel_is_debugged_by_commands(tmp_path):
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path / "xdg"), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "vmhost"]
    processes = []

    def begin(*arguments):
        with open(tmp_path / f"{len(processes)}.err", "wb") as errors:
            begun = subprocess.Popen(
                [*command, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True, cwd=tmp_path, env=environment
            )
        processes.append(begun)
        return begun

    def run(*arguments, status=0):
        ended = warm.run("-m", "vmhost", *arguments, cwd=tmp_path, env=environment, timeout=120)
        assert ended.returncode == status, ended.stderr + ended.stdout
        return ended.stdout + ended.stderr

    make_certificates(tmp_path / "keys", ["kitchen-1"])
    try:
        environment["VMHOST_TOKEN"] = json.loads(run("cloud", "init", "cloud", "--json"))["token"]
        served = begin(
            "cloud", "serve", "cloud", "--listen", "127.0.0.1:0", "--tunnel", "127.0.0.1:0", "--tunnel-keys", "keys"
        )
        [output] = [served.stdout.readline()]
        environment["VMHOST_PLATFORM"] = address = re.search(r"http://127\.0\.0\.1:\d+", output)[0]
        tunnel = re.search(r"tunnel at ([\d.]+:\d+)", output)[1].replace("127.0.0.1", "localhost")
        token = json.loads(run("cloud", "account", "phones", "--role", "fleet", "--json"))["token"]
        run("cloud", "join", "device", "--device", "kitchen-1", "--platform", address, "--token", token)
        path = tmp_path / "device" / "agent.yaml"
        plain = yaml.safe_load(path.read_text())
        assert "debugging" not in plain, "joining consents to nothing"
        plain |= {
            "tunnel": {"address": tunnel, "keys": "../keys"},
            "debugging": {"consent": "ask", "keys": "debug.pub"},
        }
        path.write_text(yaml.safe_dump(plain))
        begin("agent", "device/agent.yaml")
        until(lambda: "kitchen-1" in run("cloud", "devices"), 60)
        link = json.loads(run("cloud", "debug", "kitchen-1", "--note", "which tasks run", "--json"))["link"]
        opening = begin("debug", "open", link)
        state = "device/state/host"
        listed = until(lambda: json.loads(run("debug", "sessions", state, "--json"))["sessions"], 60)
        assert listed[0]["note"] == "which tasks run" and listed[0]["via"] == f"the tunnel from {address}"
        run("debug", "consent", state, listed[0]["id"], "--yes")
        assert "may config" in opening.communicate(timeout=60)[0]
        assert "max_vms" in run("debug", "config", link)
        assert "debugging:" in run("debug", "logs", link, "--no-follow")
        assert "metrics.txt" in run("debug", "reports", link)
        assert "used" in run("cloud", "debug-links") and "debug config" in run("cloud", "audit")
        run("cloud", "debug-links", "--revoke", listed[0]["link"])
        assert "revoked" in run("debug", "config", link, status=2)
        until(lambda: "ended" in run("debug", "audit", state))
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(30)
            process.stdout.close()
