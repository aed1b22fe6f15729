"""Debugging in Debian's Chromium: the person at the device in one browser, the one who opened the link in another."""

import io
import json
import os
import re
from contextlib import contextmanager
from pathlib import Path

import pytest
import zxingcpp

from tests.operations.debugged_hosts import debugged_dashboard
from tests.operations.test_dashboard_in_a_browser import browser  # noqa: F401  (a fixture)

pytestmark = pytest.mark.browser
PICTURES = os.environ.get("VMHOST_PICTURES")  # a folder for screenshots


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """Playwright starts threads as needed, such as for downloads. Other tests of debugging check for leftovers."""
    yield


@pytest.fixture
def dashboard(tmp_path):
    with debugged_dashboard(tmp_path) as made:
        yield made


@contextmanager
def pages(browser, complaints, **options):  # noqa: F811
    """(the device's page, the other end's) in separate browsers."""
    contexts = [browser.new_context(**options), browser.new_context(accept_downloads=True, **options)]
    made = []
    for context in contexts:
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        made.append(page)
    try:
        yield made
    finally:
        for context in contexts:
            context.close()


def picture(page, name):
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"{name}.png", full_page=True)


def offer(page, dashboard):
    page.goto(f"{dashboard.url.partition('?')[0]}debugging?token={dashboard.token}")
    page.get_by_label("for", exact=True).fill("slow on Tuesdays")
    page.get_by_role("button", name="Make a link").click()
    return page.locator("#link").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_session_from_its_link_to_its_end(browser, dashboard, scheme, tmp_path):  # noqa: F811
    complaints = []
    with pages(browser, complaints, color_scheme=scheme) as (device, other):
        link = offer(device, dashboard)
        shown = device.locator(".code svg").screenshot()
        picture(device, f"offer-{scheme}")
        from PIL import Image

        [code] = zxingcpp.read_barcodes(Image.open(io.BytesIO(shown)))
        assert code.text == link, "the code on the page is the link"
        other.goto(link)
        other.get_by_text("Waiting for consent at the device").wait_for()
        assert "#" not in other.url, "the link does not stay in the address"
        assert other.locator("#tabs").is_hidden()
        picture(other, f"waiting-{scheme}")
        ask = device.get_by_role("region", name=re.compile("Session"))
        ask.wait_for()
        assert "slow on Tuesdays" in ask.inner_text()
        picture(device, f"asked-{scheme}")
        ask.get_by_label("reports").uncheck()
        device.wait_for_timeout(2500)
        assert not ask.get_by_label("reports").is_checked(), "what was chosen stays while the page is asked for again"
        device.get_by_role("button", name="Yes, allow this").click()
        other.get_by_role("button", name="Configuration").wait_for()
        other.get_by_role("cell", name="max_vms").wait_for()
        picture(other, f"config-{scheme}")
        other.get_by_role("button", name="Log").click()
        other.locator("#lines li").filter(has_text="asks for config").first.wait_for()
        dashboard.debugging._host.task("worker")("<img src=x onerror=alert(1)>")
        other.locator("#lines li").filter(has_text="onerror=alert(1)").wait_for()
        assert other.locator("#lines img").count() == 0
        picture(other, f"log-{scheme}")
        other.get_by_role("button", name="Run a task").click()
        other.get_by_label("value, as JSON").fill('"work"')
        other.get_by_role("button", name="Run it once").click()
        other.get_by_role("heading", name=re.compile("Ended: ok")).wait_for()
        other.get_by_role("img", name="Flame graph").wait_for()
        assert "spin" in other.get_by_role("img", name="Flame graph").text_content()
        assert "queue" in other.get_by_role("img", name="Trace of the call").text_content()
        assert other.locator("#outcome pre").first.inner_text() == '"spun"'
        picture(other, f"run-{scheme}")
        with other.expect_download() as download:
            other.get_by_role("button", name="Save run-1/trace.json").click()
        assert json.loads(Path(download.value.path()).read_text())["resourceSpans"]
        other.reload()
        other.get_by_role("button", name="Configuration").wait_for()
        device.get_by_role("button", name="End it").click()
        other.get_by_text("The session is over").wait_for()
        picture(other, f"ended-{scheme}")
        picture(device, f"audit-{scheme}")
        assert "runs a task" in device.locator("main").inner_text()
        other.goto(link)
        other.get_by_text("the link was used already").wait_for()
        other.reload()
        other.get_by_text("Open this page by a link").wait_for()
    assert [each for each in complaints if "403" not in each and "410" not in each] == []


def test_a_person_says_no_and_a_phone_shows_it(browser, dashboard):  # noqa: F811
    complaints = []
    with pages(browser, complaints, viewport={"width": 360, "height": 740}) as (device, other):
        link = offer(device, dashboard)
        assert device.evaluate("document.documentElement.scrollWidth") <= 360, "the link breaks into lines"
        other.goto(link)
        device.get_by_role("button", name="No", exact=True).click()
        other.get_by_text("Consent was refused at the device").wait_for()
        picture(device, "phone-device")
        for page in (device, other):
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, "no sideways scrolling"
    assert complaints == []


def test_a_task_that_hangs_is_stopped_on_the_page_by_keyboard(browser, dashboard):  # noqa: F811
    complaints = []
    with pages(browser, complaints) as (device, other):
        other.goto(offer(device, dashboard))
        device.get_by_role("button", name="Yes, allow this").click()
        other.get_by_role("button", name="Run a task").press("Enter")
        other.get_by_label("value, as JSON").fill('"hang"')
        other.get_by_role("button", name="Run it once").press("Enter")
        other.get_by_text("runs", exact=False).first.wait_for()
        other.get_by_role("button", name="Stop").press("Enter")
        other.get_by_role("heading", name=re.compile("Ended: cancelled")).wait_for()
        other.get_by_label("value, as JSON").fill("{nonsense")
        other.get_by_role("button", name="Run it once").press("Enter")
        other.get_by_text("The value is not JSON").wait_for()
        other.get_by_role("button", name="End the session").press("Enter")
        other.get_by_text("you ended it").wait_for()
    assert complaints == []


def test_a_device_that_lies_runs_nothing_on_the_page(browser, dashboard, monkeypatch):  # noqa: F811
    evil = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><script>alert(1)</script>'
    evil += b'<a href="javascript:alert(1)">'
    evil += b'<text>x</text></a><foreignObject><iframe xmlns="http://www.w3.org/1999/xhtml"/></foreignObject>'
    evil += b'<rect width="5" height="5" onclick="alert(1)" style="x"/><text onclick="alert(1)">seen</text></svg>'
    from vmhost.operations.debugging import runs

    monkeypatch.setattr(runs.flames, "flame_graph", lambda *given: evil.decode())
    complaints, dialogs = [], []
    with pages(browser, complaints) as (device, other):
        other.on("dialog", lambda dialog: (dialogs.append(dialog), dialog.dismiss()))
        other.goto(offer(device, dashboard))
        device.get_by_role("button", name="Yes, allow this").click()
        other.get_by_role("button", name="Run a task").click()
        other.get_by_label("value, as JSON").fill('"work"')
        other.get_by_role("button", name="Run it once").click()
        other.locator(".flames svg").wait_for()
        inner = other.locator(".flames").inner_html()
        assert "seen" in inner and not re.search("script|iframe|on[a-z]+=|href|style|foreign", inner)
    assert dialogs == [] and all("Content Security Policy" in each for each in complaints)
