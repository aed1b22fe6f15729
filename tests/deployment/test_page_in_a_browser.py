"""The platform's page in Debian's Chromium: signs in, each of its buttons, wrong input, two people at once."""

import asyncio
import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
import uvicorn

from tests.deployment.platforms import add_version, platform_in
from vmhost.bytecode.signing import generate_key
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.cloud.web import application
from vmhost.web_server import listening as listen

ROOT = Path(__file__).resolve().parents[2]
# Opens the page as a person would, types the token and clicks; sends the error, or "", to /done.
DRIVER = """<script>
(async () => {
  const wait = async (what, holds) => {
    for (let n = 0; n < 400; n++) { if (holds()) return; await new Promise((go) => setTimeout(go, 50)); }
    throw new Error("waited for " + what + ": " + document.body.innerText);
  };
  const page = await (await fetch("/")).text();
  window.prompt = () => "asked in the browser";
  let wrong = "";
  try {
    document.open(); document.write(page); document.close();
    const $ = (id) => document.getElementById(id);
    await wait("the form", () => $("login") && !$("login").hidden);
    const enter = (token) => { $("token").value = token; $("login").requestSubmit(); };
    enter("vmh_wrong");
    await wait("that the token is wrong", () => !$("trouble").hidden && $("trouble").innerText.includes("not known"));
    enter("VIEWER");
    await wait("the release", () => document.querySelector("article"));
    const buttons = () => [...document.querySelectorAll("article button")];
    await wait("no buttons for a viewer", () => buttons().every((each) => each.hidden) && $("joining").hidden);
    $("leave").click();
    await wait("the form again", () => !$("login").hidden && document.querySelector("main").hidden);
    enter("TOKEN");
    const title = () => document.querySelector("article h3")?.textContent || "";
    await wait("the release", () => title() === "shop/rank 1: running, step 1 of 1");
    const button = (event) => document.querySelector(`article button[data-event=${event}]`);
    for (const [event, state] of [["pause", "paused"], ["resume", "running"]]) {
      button(event).click();
      await wait(state, () => title().includes(state));
    }
    const decide = async (device, what) => {
      await wait(`that ${device} asks to join`, () => !$("joining").hidden && $("joins").innerText.includes(device));
      const row = [...$("joins").tBodies[0].rows].find((each) => each.innerText.includes(device));
      [...row.querySelectorAll("button")].find((each) => each.innerText === what).click();
      await wait(`that ${device} does not any more`, () => !$("joins").innerText.includes(device));
    };
    await decide("hall-8", "Approve");
    await decide("hall-9", "Refuse");
    await wait("that nobody asks", () => $("joining").hidden);
    await wait("what owners are to sign", () => $("waiting").innerText.includes("+ shop/rank/1/3.14.vmb"));
    await wait("who is stuck", () => $("stuck").innerText.includes("<b>no room</b>"));
    // somebody else pauses it: this page's button is of a moment before
    await fetch("api/v1/releases/1/pause", {method: "POST", headers: {authorization: "Bearer TOKEN"}});
    button("pause").click();
    await wait("that it is paused already", () => $("trouble").innerText.includes("is paused; it can"));
    button("resume").click();
    await wait("running", () => title().includes("running") && $("trouble").hidden);
    [...$("stuck").querySelectorAll("button")][0].click();
    await wait("a retry", () => $("history").innerText.includes("retry of hall-1"));
    [...$("devices").querySelectorAll("button")].find((each) => each.innerText === "hall-1").click();
    await wait("which device", () => $("about").innerText.startsWith("hall-1: seen"));
    await wait("why it lacks it", () => $("why").innerText.includes("shop/rank 1"));
    $("name").value = "nobody"; $("find").requestSubmit();
    await wait("that there is no such device", () => $("trouble").innerText.includes("nobody: no such device"));
    button("roll_back").click();
    await wait("the history", () => $("history").innerText.includes("rolled_back"));
    await wait("nothing under way", () => !document.querySelector("article"));
  } catch (error) { wrong = String(error.stack || error); }
  await fetch("/done", {method: "POST", body: wrong});
})();
</script>"""


@pytest.mark.stress  # the first time it fetches Chromium: 77 MB
def test_a_person_pauses_resumes_and_rolls_back_in_a_browser(tmp_path):
    browser = subprocess.run(["sh", ROOT / "tools" / "chromium.sh"], capture_output=True, text=True, check=True)
    browser = Path(browser.stdout.strip())
    dialogs, done = [], threading.Event()
    with platform_in(tmp_path / "cloud") as platform:
        add_version(platform, "shop/rank", "1")
        platform.releases.start("shop/rank", "1", Plan.of({"steps": [{"percent": 100, "min_reports": 9}]}), "ann", "")
        platform.metadata.set_owners("shop", [generate_key().public])
        platform.releases.announce()
        platform.sync_metadata()
        platform.devices.enrol("odd", "s" * 40)
        platform.check("odd", "s" * 40, {"facts": {"python": "3.14", "problem": "<b>no room</b>"}})
        platform.devices.enrol("hall-1", "s" * 40)
        platform.check("hall-1", "s" * 40, {"facts": {"python": "3.14"}, "epoch": "1"})
        platform.releases.report("hall-1", 1, "declined", "by hand")
        joining = platform.access.identify(platform.access.add_token("fleet", "test", scopes=["join"]))
        for device in ("hall-8", "hall-9"):
            platform.enrol(joining, device, device[-1] * 40, "10.0.0.1")
        platform.access.change_account("ann", "test", role="admin")
        platform.access.add_account("vic", "viewer", "test")
        driver = DRIVER.replace("TOKEN", platform.access.add_token("ann", "test"))
        driver = driver.replace("VIEWER", platform.access.add_token("vic", "test")).encode()
        inner = application(platform)

        async def app(scope, receive, send):
            if scope["path"] == "/drive":
                await answer(send, driver)
            elif scope["path"] == "/done":
                dialogs.append((await receive())["body"].decode())
                await answer(send, b"")
                done.set()
            else:
                await inner(scope, receive, send)

        listening = listen("127.0.0.1", 0)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            with tempfile.TemporaryDirectory() as profile, open(tmp_path / "log", "wb") as log:
                root = next(folder for folder in browser.parents if folder.name == "root")
                libraries = [
                    str(path) for found in root.glob("usr/lib/*-linux-gnu") for path in (found, found / "pulseaudio")
                ]
                command = [browser, "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
                command += [f"--user-data-dir={profile}/p", f"http://127.0.0.1:{listening.getsockname()[1]}/drive"]
                environment = os.environ | {"LD_LIBRARY_PATH": ":".join(libraries)}
                with subprocess.Popen(command, env=environment, stdout=log, stderr=log) as running:
                    try:
                        assert done.wait(120), (tmp_path / "log").read_text(errors="replace")[-2000:]
                    finally:
                        running.terminate()
        finally:
            server.should_exit = True
            thread.join()
            listening.close()
        assert dialogs == [""]
        assert platform.devices.get("hall-8") and [each["state"] for each in platform.joins.list()] == ["refused"]
        events = [(each["event"], each["who"], each["why"]) for each in platform.releases.history("shop/rank")][-3::-1]
        why = "asked in the browser"
        asked = [
            ("pause", why),
            ("resume", why),
            ("pause", ""),
            ("resume", why),
            ("retry of hall-1", ""),
            ("roll_back", why),
        ]
        assert events == [(event, "ann", why) for event, why in asked], json.dumps(events)


async def answer(send, body):
    headers = [(b"content-type", b"text/html; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
    await asyncio.sleep(0)
