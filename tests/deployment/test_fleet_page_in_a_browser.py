"""The fleet's page in Debian's Chromium, driven by Playwright: every choice and button, and the crash of an agent that
really crashed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browsers import chromium
from tests.deployment.platforms import add_version, platform_in
from tests.hosts import until
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.cloud.server import serving

pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[2]
SECRET = "s" * 40
RULES = "rules:\n  - {name: many fail, errors: {over: 0.05, within: 1 h}}\n"
SCREENSHOTS = os.environ.get("VMHOST_SCREENSHOTS")  # a folder to look at them in


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The server's threads grow with what it is asked."""
    yield


@pytest.fixture(scope="module")
def browser():
    with chromium() as launched:
        yield launched


@pytest.fixture
def served(tmp_path):
    """(platform, address) with two tasks, whose devices reported calls and crashes."""
    with platform_in(tmp_path / "cloud") as platform:
        for number, (task, version, failed) in enumerate((("shop/rank", "1", 1), ("shop/price", "2", 30))):
            add_version(platform, task, version)
            platform.releases.start(task, version, Plan.of({"steps": [{"percent": 100, "min_reports": 99}]}), "ann", "")
            device = f"hall-{number}"
            platform.devices.enrol(device, SECRET)
            stated = {"facts": {"python": "3.14"}, "tasks": {task: {"version": version}}, "epoch": "1"}
            platform.check(device, SECRET, {"facts": {"python": "3.14"}, "epoch": "1"})
            platform.check(device, SECRET, stated)
            counts = {"call:OK": 100, "call:TASK_ERROR": failed, "wall:10": 100 + failed, "denied": 2}
            report = {
                "task": task,
                "version": version,
                "counts": counts,
                "breaker": "closed" if failed == 1 else "open",
            }
            platform.take_report(device, SECRET, {"epoch": "e", "number": 1, "tasks": [report]})
            for crash in range(1 + 2 * number):
                platform.take_crash(
                    device,
                    SECRET,
                    {
                        "id": f"{crash}-1",
                        "fingerprint": "ab" * 16,
                        "title": f"SIGSEGV in {task} {version} <b>bold</b>",
                        "task": task,
                        "version": version,
                        "python": ["main.py:7 (run)"],
                        "log": ["the last line"],
                        "machine": {"system": "Linux"},
                    },
                )
        with serving(platform) as address:
            yield platform, address


class Opened:
    def __init__(self, browser, address, token, path="/fleet", **options):
        self.context = browser.new_context(**options)
        self.page, self.complaints = self.context.new_page(), []
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(address + path)
        self.page.fill("#token", token)
        self.page.click("#login button")
        self.page.wait_for_selector("main", state="visible")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.context.close()

    def has(self, selector, wanted):
        self.page.wait_for_function(
            "([selector, wanted]) => document.querySelector(selector)?.innerText.includes(wanted)",
            arg=[selector, wanted],
        )

    def text(self, selector):
        return self.page.inner_text(selector)


def picture(opened, name):
    if SCREENSHOTS:
        opened.page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=True)


def test_every_choice_and_button(browser, served):
    platform, address = served
    with Opened(browser, address, platform.access.add_token("admin", "test")) as opened:
        page = opened.page
        opened.has("#adoption", "1 open")
        opened.has("#sums", "task error 30")
        opened.has("#ranks", "75.0 %")
        opened.has("#crashes", "<b>bold</b>")  # as text
        assert page.query_selector("#crashes b") is None
        page.click("#crashes tr:has-text('price 2') button")
        opened.has("#crash pre", "the last line")
        assert "main.py:7 (run)" in opened.text("#crash pre") and '"system":"Linux"' in opened.text("#crash pre")
        for hours in ("1", "168", "336", "24"):
            with page.expect_response(lambda answer, hours=hours: f"/fleet?hours={hours}&" in answer.url) as got:
                page.select_option("#hours", hours)
            assert got.value.status == 200
        page.select_option("#only", "shop/price")
        opened.has("#sums", "task error 30")
        page.click("#rules summary")
        page.fill("#text", "rules: [")
        page.click("#save")
        opened.has("#trouble", "not YAML")
        page.fill("#text", RULES)
        page.click("#save")
        opened.has("#written", "by admin")
        assert page.is_hidden("#trouble")
        platform.alerts.evaluate()
        opened.has("#alerts", "many fail")
        opened.has("#fleet", "1 alerts")
        page.click("header a:text-is('Releases')")
        opened.has("h1", "Releases")
        page.click("header a:text-is('Fleet')")
        opened.has("h1", "Fleet")
        opened.has("#alerts", "ongoing")
        page.click("#leave")
        page.wait_for_selector("#login", state="visible")
        assert page.is_hidden("main")
        assert [each for each in opened.complaints if "409" not in each] == []  # the rules that were refused


def test_a_viewer_sees_no_rules_and_a_token_that_is_wrong_is_told(browser, served):
    platform, address = served
    platform.access.add_account("vic", "viewer", "test")
    with Opened(browser, address, platform.access.add_token("vic", "test")) as opened:
        opened.has("#sums", "task error 30")
        assert opened.page.is_hidden("#rules")
    context = browser.new_context()
    page = context.new_page()
    page.goto(address + "/fleet")
    page.fill("#token", "vmh_wrong")
    page.click("#login button")
    page.wait_for_selector("#trouble", state="visible")
    assert "not known" in page.inner_text("#trouble") and page.is_hidden("main")
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1200])
def test_it_fits_a_phone_in_both_schemes(browser, served, scheme, width):
    platform, address = served
    look = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    with Opened(browser, address, platform.access.add_token("admin", "test"), **look) as opened:
        opened.has("#sums", "task error 30")
        opened.page.click("#crashes button")
        opened.has("#crash pre", "the last line")
        opened.page.click("#rules summary")
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        picture(opened, f"fleet-{scheme}-{width}")
        assert opened.page.evaluate(wide) <= 0
        assert opened.complaints == []


def test_the_page_goes_on_when_the_platform_went_and_came_back(browser, tmp_path):
    with platform_in(tmp_path / "cloud") as platform:
        token = platform.access.add_token("admin", "test")
        with serving(platform) as address:
            opened = Opened(browser, address, token)
            opened.has("#fleet", "0 tasks report")
        with opened:
            opened.has("#trouble", "does not answer")
            with serving(platform, port=int(address.rpartition(":")[2])):
                opened.page.wait_for_selector("#trouble", state="hidden")
                assert "none" in opened.text("#adoption")


def test_the_crash_of_an_agent_arrives(browser, tmp_path):
    """An agent's process is killed by SIGSEGV; the next one sends what it left behind, and the page shows it."""
    with platform_in(tmp_path / "cloud") as platform, serving(platform) as address:
        settings = {
            "device": "kitchen-1",
            "platform": address,
            "folder": str(tmp_path / "device"),
            "keys": str(platform.folder / "keys" / "bundles.pub"),
            "root": str(platform.folder / "metadata" / "1.root.json"),
            "token": platform.access.add_token("fleet", "test"),
        }
        (tmp_path / "agent.yaml").write_text(json.dumps(settings))
        command = [sys.executable, "-m", "vmhost.deployment.device", tmp_path / "agent.yaml"]
        with Opened(browser, address, platform.access.add_token("admin", "test")) as opened:
            opened.has("#crashes", "none")
            with subprocess.Popen(command, cwd=ROOT) as agent:
                until(platform.devices.list)
                agent.send_signal(signal.SIGSEGV)
                assert agent.wait(60) == -signal.SIGSEGV
            with subprocess.Popen(command, cwd=ROOT) as agent:
                try:
                    opened.has("#crashes", "SIGSEGV")
                finally:
                    agent.send_signal(signal.SIGTERM)
                assert agent.wait(60) == 0
            opened.page.click("#crashes button")
            opened.has("#crash h3", "kitchen-1")
            opened.has("#crash pre", "native:")
