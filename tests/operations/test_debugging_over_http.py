"""Debugging over HTTP: the dashboard's page, the page that a link opens, the client, and the commands of both sides."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from urllib.parse import urlencode

import pytest

import vmhost
from tests import warm
from tests.operations.debugged_hosts import SOURCE, debugged_dashboard, until
from tests.operations.hosts_at_work import ask, bundle
from vmhost.operations import Dashboard
from vmhost.operations.debugging import DebugError
from vmhost.operations.debugging.client import Client

ALL = ("config", "logs", "run", "reports")


@pytest.fixture
def dashboard(tmp_path):
    with debugged_dashboard(tmp_path) as made:
        yield made


def post(dashboard, path, form, **headers):
    """(status, text) of a form that the dashboard's own page sends."""
    headers = {"Authorization": f"Bearer {dashboard.token}", "Sec-Fetch-Site": "same-origin"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    request = urllib.request.Request(
        f"http://{dashboard.address}:{dashboard.port}{path}",
        urlencode(form).encode(),
        {name: value for name, value in headers.items() if value is not None},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def offered(dashboard, scopes=ALL):
    """The link that the dashboard's page shows once."""
    status, text = post(dashboard, "/debugging/offer", dict.fromkeys(scopes, "on") | {"minutes": "5"})
    assert status == 200 and "<svg" in text
    return re.search(r"http://[^ <]*/debug#[\w.-]+", text)[0]


def consented(dashboard, client, scopes=ALL):
    form = {"session": client.session, "answer": "yes"} | dict.fromkeys(scopes, "on")
    assert post(dashboard, "/debugging/decide", form)[0] == 200


def test_a_session_from_the_offer_to_its_end(dashboard):
    client = Client.open(offered(dashboard))
    page = ask(dashboard, "/debugging", dashboard.token)[2]
    assert "Waiting for your consent" in page and client.session in page
    with pytest.raises(DebugError, match="nobody at the device has consented"):
        client.config()
    consented(dashboard, client)
    assert client.wait_for_consent(10) == ALL
    assert client.config()["tasks"][0]["name"] == "worker"
    answer = client.run("worker", "work", profile=True, trace=True)
    assert answer["result"] == "spun" and client.fetch("run-1/profile.svg").startswith(b"<svg")
    assert any("debugging:" in line[5] for line in client.log(follow=False))
    assert b"vmhost_calls_total" in client.fetch("metrics.txt")
    with client:
        assert {report["name"] for report in client.reports()} >= {"metrics.txt", "run-1/trace.json"}
    with pytest.raises(DebugError, match="ended by the other end"):
        client.config()
    page = ask(dashboard, "/debugging", dashboard.token)[2]
    assert "ended by the other end" in page and "runs a task" in page


def test_the_dashboard_refuses_and_ends(dashboard):
    client = Client.open(offered(dashboard))
    assert post(dashboard, "/debugging/decide", {"session": client.session, "answer": "no"})[0] == 200
    with pytest.raises(DebugError, match="consent was refused"):
        client.wait_for_consent(10)
    client = Client.open(offered(dashboard))
    consented(dashboard, client, ("logs",))
    assert client.wait_for_consent(10) == ("logs",)
    assert post(dashboard, "/debugging/end", {"session": client.session})[0] == 200
    with pytest.raises(DebugError, match="ended at the device"):
        list(client.log())
    link = offered(dashboard)
    identity = re.search(r'name="link" value="(\w+)"', post(dashboard, "/debugging/offer", {"config": "on"})[1])[1]
    assert post(dashboard, "/debugging/revoke", {"link": identity})[0] == 200
    assert Client.open(link).session, "another link is as it was"


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({}, "choose what the session may do"),
        ({"config": "on", "minutes": "ten"}, "could not convert"),
        ({"config": "on", "minutes": "nan"}, "valid for up to"),
        ({"config": "on", "minutes": "-1"}, "valid for up to"),
    ],
)
def test_offers_that_cannot_be(dashboard, form, message):
    status, text = post(dashboard, "/debugging/offer", form)
    assert status == 400 and message in text


def test_only_who_has_the_token_consents_and_only_from_this_site(dashboard, tmp_path):
    client = Client.open(offered(dashboard))
    form = {"session": client.session, "answer": "yes", "config": "on"}
    assert post(dashboard, "/debugging/decide", form, Authorization=None)[0] == 401
    cookie = f"vmhost_dashboard_{dashboard.port}={dashboard.token}"
    for site in ("cross-site", "same-site", "none", None):
        status, _ = post(dashboard, "/debugging/decide", form, Authorization=None, Cookie=cookie, Sec_Fetch_Site=site)
        assert status == 403, site
    assert client.state()["state"] == "waiting"
    assert post(dashboard, "/debugging/decide", form, Authorization=None, Cookie=cookie)[0] == 200
    assert ask(dashboard, "/debugging/decide", dashboard.token)[0] == 405


def test_without_a_token_nobody_consents_on_the_page(tmp_path):
    policy = vmhost.Policy(debugging=vmhost.DebugPolicy("ask"))
    with vmhost.Host(allow_unsigned=True, policy=policy, state=tmp_path / "state") as host:
        with Dashboard(host, "127.0.0.1:0", token=False) as dashboard:
            link = dashboard.debugging.offer(ALL, 60)
            client = Client.open(link.text)
            page = ask(dashboard, "/debugging")[2]
            assert "<form" not in page and "vmhost debug consent" in page and client.session in page
            assert post(dashboard, "/debugging/decide", {"session": client.session, "answer": "yes"})[0] == 403
            assert post(dashboard, "/debugging/offer", {"config": "on"})[0] == 403


def test_a_host_that_allows_none_has_the_page_and_nothing_behind_it(tmp_path):
    with vmhost.Host(allow_unsigned=True, state=tmp_path / "state") as host, Dashboard(host, "127.0.0.1:0") as shown:
        assert "debugging: ask" in ask(shown, "/debugging", shown.token)[2]
        assert ask(shown, "/debug", shown.token)[0] == 404
        assert ask(shown, "/debug/api", shown.token, "POST")[0] == 404
        assert post(shown, "/debugging/offer", {"config": "on"})[0] == 404
    assert not (tmp_path / "state" / "debugging.sqlite").exists()


def test_the_page_of_a_link_needs_no_token_and_has_no_secret(dashboard):
    status, headers, text = ask(dashboard, "/debug", sec_fetch_site="cross-site")
    assert status == 200 and "script-src 'self'" in headers["content-security-policy"] and "<script>" not in text
    for name, kind in (("debug.js", "text/javascript"), ("debug.css", "text/css"), ("dashboard.css", "text/css")):
        status, headers, _ = ask(dashboard, f"/debug/{name}")
        assert status == 200 and headers["content-type"].startswith(kind)
    for path in ("/debug/desk.py", "/debug/..%2Fledger.py", "/debug/"):
        assert ask(dashboard, path)[0] in (404, 307), path


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "application/json"),
        (b"[1", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b"{}", "text/plain"),
    ],
)
def test_bodies_that_are_no_requests(dashboard, body, kind):
    request = urllib.request.Request(
        f"http://127.0.0.1:{dashboard.port}/debug/api", body, {"Content-Type": kind}, method="POST"
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=30)
    with caught.value as error:
        assert error.code == 400 and json.loads(error.read())["error"]["kind"] == "input"


def test_a_body_that_never_ends_is_refused(dashboard):
    request = urllib.request.Request(
        f"http://127.0.0.1:{dashboard.port}/debug/api", b" " * (2 << 20), {"Content-Type": "application/json"}
    )
    try:
        urllib.request.urlopen(request, timeout=30)
        raise AssertionError("it was taken")
    except urllib.error.HTTPError as error:
        with error:
            assert error.code == 400
    except ConnectionError, urllib.error.URLError:
        pass  # it was cut off while it was sent


def test_pages_of_other_sites_do_not_reach_it(dashboard):
    assert ask(dashboard, "/debug/api", method="POST", sec_fetch_site="cross-site")[0] == 403
    assert ask(dashboard, "/debug/api", method="POST", host="evil.example")[0] == 421


def test_a_client_that_is_told_nonsense_says_so(tmp_path):
    with vmhost.Host(allow_unsigned=True) as host, Dashboard(host, "127.0.0.1:0") as plain:
        with pytest.raises(DebugError, match="not as a host that may be debugged does"):
            Client(f"http://127.0.0.1:{plain.port}", {}).ask("state")


def test_the_commands_of_both_sides(tmp_path, monkeypatch):
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "worker.vmb").write_bytes(bundle(tmp_path, source=SOURCE))
    (tmp_path / "host.yaml").write_text("allow_unsigned: true\nstate: state\ndebugging: ask\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    vmhost_command = [sys.executable, "-m", "vmhost"]

    def run(*arguments, status=0):
        ended = warm.run("-m", "vmhost", "debug", *arguments, cwd=tmp_path, env=environment, timeout=120)
        assert ended.returncode == status, ended.stderr + ended.stdout
        return ended.stdout + ended.stderr

    served = subprocess.Popen(
        [*vmhost_command, "serve", "bundles", "--settings", "host.yaml", "--dashboard", "127.0.0.1:0"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment,
    )  # fmt: skip
    try:
        for line in served.stderr:
            if "Dashboard:" in line:
                break
        drained = threading.Thread(target=served.stderr.read, daemon=True)
        drained.start()
        text = run("offer", "state", "--note", "slow on Tuesdays", "--for", "10 min")
        link = re.search(r"^http://\S+", text, re.MULTILINE)[0]
        assert text.count("█") > 500
        opening = subprocess.Popen(
            [*vmhost_command, "debug", "open", link], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=tmp_path, env=environment,
        )  # fmt: skip
        listed = until(lambda: json.loads(run("sessions", "state", "--json"))["sessions"])
        assert listed[0]["note"] == "slow on Tuesdays" and listed[0]["state"] == "waiting"
        assert "no terminal to ask at" in run("consent", "state", status=2)
        run("consent", "state", listed[0]["id"], "--yes", "--scope", "run", "--scope", "config", "--scope", "reports")
        assert "may config, run, reports" in opening.communicate(timeout=60)[0]
        assert "digits" not in run("config", link) and "worker" in run("config", link)
        output = run("run", link, "worker", '"work"', "--profile", "--trace", "--to", "out")
        assert '"spun"' in output and "queue" in output
        assert (tmp_path / "out" / "run-1-profile.svg").read_text().startswith("<svg")
        assert "no order for" in run("run", link, "worker", '{"raise": true, "email": "x"}', status=1)
        assert "logs was not granted" in run("logs", link, status=2)
        assert "metrics.txt" in run("reports", link)
        run("fetch", link, "metrics.txt", "--to", "out")
        assert "vmhost_calls_total" in (tmp_path / "out" / "metrics.txt").read_text()
        run("end", "state", listed[0]["id"])
        assert "consent was withdrawn" in run("config", link, status=2)
        assert "used already" in run("config", link, status=2)
        audit = json.loads(run("audit", "state", "--json"))
        assert audit["damage"] is None and [line["action"] for line in audit["lines"]][:3] == [
            "offered", "asked for a session", "consented",
        ]  # fmt: skip
        other = re.search(r"^http://\S+", run("offer", "state", "--no-qr"), re.MULTILINE)[0]
        run("revoke", "state", other)
        assert "revoked" in run("open", other, status=2)
        monkeypatch.setitem(environment, "VMHOST_KEYS", str(tmp_path / "own"))
        assert (
            subprocess.run([*vmhost_command, "keys", "new", "ann"], env=environment, capture_output=True).returncode
            == 0
        )
        name = json.loads(run("host", "state", "--json"))["host"]
        signed = json.loads(run("sign", name, "--key", "ann", "--address", link.partition("/debug")[0], "--json"))[
            "link"
        ]
        assert "does not trust" in run("open", signed, status=2)
        served.send_signal(signal.SIGKILL)
        served.wait()
        dead = re.search(r"^http://\S+", run("offer", "state", "--no-qr"), re.MULTILINE)[0]
        assert "nobody answers there" in run("open", dead, status=2)
    finally:
        served.kill()
        served.wait()
        for pipe in (served.stdin, served.stdout):
            pipe.close()
        drained.join(30)
        served.stderr.close()
