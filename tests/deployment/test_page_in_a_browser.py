"""The platform's page in Debian's Chromium: signs in, shows a release, pauses it, resumes it, rolls it back."""

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
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.cloud.server import listen
from vmhost.deployment.cloud.web import application

ROOT = Path(__file__).resolve().parents[2]
# Becomes the page, as a person would open it, types the token and clicks; what went wrong, or "", goes to /done.
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
    $("token").value = "TOKEN"; $("login").requestSubmit();
    const title = () => document.querySelector("article h3")?.textContent || "";
    await wait("the release", () => title() === "shop/rank 1: running, step 1 of 1");
    const button = (event) => document.querySelector(`article button[data-event=${event}]`);
    for (const [event, state] of [["pause", "paused"], ["resume", "running"]]) {
      button(event).click();
      await wait(state, () => title().includes(state));
    }
    await wait("who is stuck", () => $("stuck").innerText.includes("<b>no room</b>"));
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
    said, done = [], threading.Event()
    with platform_in(tmp_path / "cloud") as platform:
        add_version(platform, "shop/rank", "1")
        platform.releases.start("shop/rank", "1", Plan.of({"steps": [{"percent": 100, "min_reports": 9}]}), "ann", "")
        platform.devices.enrol("odd", "s" * 40)
        platform.check("odd", "s" * 40, {"facts": {"python": "3.14", "problem": "<b>no room</b>"}})
        driver = DRIVER.replace("TOKEN", platform.access.add_token("ann", "test")).encode()
        inner = application(platform)

        async def app(scope, receive, send):
            if scope["path"] == "/drive":
                await answer(send, driver)
            elif scope["path"] == "/done":
                said.append((await receive())["body"].decode())
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
        assert said == [""]
        events = [(each["event"], each["who"], each["why"]) for each in platform.releases.history("shop/rank")][:3]
        why = "asked in the browser"
        assert events == [("roll_back", "ann", why), ("resume", "ann", why), ("pause", "ann", why)], json.dumps(events)


async def answer(send, body):
    headers = [(b"content-type", b"text/html; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
    await asyncio.sleep(0)
