"""The dashboard in Debian's Chromium, driven by Playwright: every page and link, a host that dies and comes back."""

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.browsers import chromium
from tests.operations.hosts_at_work import bundle

pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[2]
TOKEN = "token-of-this-test"


@contextmanager
def serving(path, port=0):
    """The process of a host with its dashboard, and its port; it is killed at the end."""
    command = [sys.executable, "-m", "tests.operations.dashboard_process", path, str(port), TOKEN]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@pytest.fixture(scope="module")
def browser():
    with chromium() as launched:
        yield launched


@pytest.fixture
def worker(tmp_path):
    path = tmp_path / "worker.vmb"
    path.write_bytes(bundle(tmp_path))
    return path


@contextmanager
def opened(browser, port, **options):
    """A page that has the token, and the complaints of its console."""
    context = browser.new_context(**options)
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}")
    try:
        yield page, complaints
    finally:
        context.close()


def text_of(page, selector, wanted):
    page.wait_for_function(
        "([selector, wanted]) => document.querySelector(selector)?.innerText.includes(wanted)", arg=[selector, wanted]
    )


def test_every_page_and_link(browser, worker):
    with serving(worker) as (_, port), opened(browser, port) as (page, complaints):
        assert "token" not in page.url
        text_of(page, "#part tbody", "worker 1.0.0")
        calls = "() => Number(document.querySelector('#part tbody tr td:nth-child(9)').innerText.replace(',', ''))"
        first = page.evaluate(calls)
        page.wait_for_function(f"() => ({calls})() > {first}")
        page.wait_for_function("() => document.querySelectorAll('.chart canvas').length === 4")
        for rank in ("memory", "errors", "p99", "calls", "waiting", "name", "CPU"):
            page.click(f".ranks a:text-is('{rank}')")
            text_of(page, ".ranks [aria-current]", rank)
        page.click("#part a:text-is('worker')")
        text_of(page, "#part", "ran, p99.99")
        page.click("a:text-is('All its lines')")
        text_of(page, ".log", "called with number")
        page.fill("input[name=text]", "no line has this")
        text_of(page, "#part", "No lines.")
        page.fill("input[name=text]", "CALLED")
        text_of(page, ".log", "called with number")
        page.select_option("select[name=level]", "error")
        text_of(page, "#part", "No lines.")
        page.click("button")
        assert "level=error" in page.url
        page.click("nav a:text-is('VMs')")
        text_of(page, "#part tbody", "serving")
        page.click("nav a:text-is('Profile')")
        page.fill("input[name=seconds]", "0.5")
        page.click("button")
        page.wait_for_selector("#part svg")
        page.click(".ranks a:text-is('time in calls')")
        text_of(page, "#part .ranks [aria-current]", "time in calls")
        page.click("nav a:text-is('Coverage')")
        text_of(page, "main", "100.0%")
        page.click("main table a")
        page.wait_for_selector("tr.ran")
        page.click("nav a:text-is('Crashes')")
        text_of(page, "h1", "Crashes")
        page.click("nav a:text-is('Debugging')")
        text_of(page, "h1", "Debugging")
        page.click("nav a:text-is('Settings')")
        text_of(page, "main", "quantum_s")
        text_of(page, "main", "program")
        page.click("nav a:text-is('Overview')")
        text_of(page, "#part tbody", "worker 1.0.0")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.innerText") == "Skip to content"
        page.keyboard.press("Enter")
        assert page.url.endswith("#main")
        assert complaints == []


def test_a_phone_has_no_sideways_scrolling_and_dark_is_dark(browser, worker):
    phone = {"viewport": {"width": 380, "height": 800}, "color_scheme": "dark"}
    with serving(worker) as (_, port), opened(browser, port, **phone) as (page, complaints):
        for path in ("/", "/tasks/worker", "/vms", "/log", "/settings", "/coverage", "/crashes", "/debugging"):
            page.goto(f"http://127.0.0.1:{port}{path}")
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, path
        page.goto(f"http://127.0.0.1:{port}/profile")
        page.fill("input[name=seconds]", "0.5")
        page.click("button")
        page.wait_for_selector("#part svg")
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert max(int(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(",")) < 60
        assert complaints == []


def test_the_page_goes_on_when_its_host_died_and_came_back(browser, worker):
    with serving(worker) as (process, port), opened(browser, port) as (page, _):
        text_of(page, "#part tbody", "worker 1.0.0")
        process.kill()
        page.wait_for_selector("#trouble", state="visible")
        text_of(page, "#part tbody", "worker 1.0.0")
        with serving(worker, port):
            page.wait_for_selector("#trouble", state="hidden")
            text_of(page, "#part tbody", "worker 1.0.0")
