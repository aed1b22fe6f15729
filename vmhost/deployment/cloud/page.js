// Releases with live progress, who is stuck and why, and a button for each thing that can be done to a release.
// Text from the platform goes into the page as text, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const CAN = {
  running: ["pause", "next", "halt", "roll_back"],
  paused: ["resume", "halt", "roll_back"],
  halted: ["resume", "roll_back"],
  done: ["pause", "halt", "roll_back"],
};
let token = sessionStorage.getItem("token") || "";

async function ask(method, path, body) {
  const response = await fetch("api/v1" + path, {
    method,
    headers: { authorization: "Bearer " + token, "content-type": "application/json" },
    body: body && JSON.stringify(body),
  });
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.error), { status: response.status });
  return answer;
}

function tell(text) {
  $("trouble").textContent = text || "";
  $("trouble").hidden = !text;
}

function signIn(needed) {
  $("login").hidden = !needed;
  document.querySelector("main").hidden = needed;
}

function rows(table, lines) {
  const body = $(table).tBodies[0];
  body.replaceChildren(...lines.map((cells) => {
    const row = document.createElement("tr");
    for (const cell of cells) row.insertCell().textContent = cell;
    return row;
  }));
}

const when = (ms) => new Date(ms).toISOString().slice(0, 19).replace("T", " ");

function show(release) {
  const id = "release-" + release.id;
  let article = $(id);
  if (!article) {
    article = $("release").content.cloneNode(true).firstElementChild;
    article.id = id;
    for (const button of article.querySelectorAll("button")) button.addEventListener("click", () => act(release.id, button));
  }
  const devices = release.devices;
  article.querySelector("h3").textContent =
    `${release.task} ${release.version}: ${release.state}, step ${release.step} of ${release.steps}`;
  const bar = article.querySelector("progress");
  bar.max = Math.max(1, devices.reached);
  bar.value = devices.proven;
  article.querySelector(".numbers").textContent =
    `${devices.proven} of ${devices.reached} reached devices proven, ${devices.failed} failed, ${devices.silent} silent`;
  for (const button of article.querySelectorAll("button")) {
    button.hidden = !(CAN[release.state] || []).includes(button.dataset.event);
  }
  return article;
}

async function act(id, button) {
  const why = prompt(`${button.textContent}: why? It stands in the history.`);
  if (why === null) return;
  button.disabled = true;
  try {
    await ask("POST", `/releases/${id}/${button.dataset.event}`, { why });
    tell();
  } catch (error) {
    tell(error.message);
  } finally {
    button.disabled = false;
  }
  await look();
}

async function look() {
  if (!token) return signIn(true);
  try {
    const [me, all, stuck, history] = await Promise.all([
      ask("GET", "/whoami"), ask("GET", "/overview"), ask("GET", "/stuck?limit=50"), ask("GET", "/history?limit=50"),
    ]);
    signIn(false);
    $("who").textContent = `${me.name}, ${me.role}`;
    $("fleet").textContent = `${all.devices} devices, ${all.tasks.length} tasks`;
    $("active").replaceChildren(...all.releases.map(show));
    if (!all.releases.length) $("active").textContent = "none";
    rows("stuck", stuck.devices.map((each) =>
      [each.device, each.release ? `${each.task} ${each.version}` : "", each.state, each.reason]));
    rows("history", history.history.map((each) =>
      [when(each.time_ms), `${each.task} ${each.version}`, `${each.event} → ${each.state}`, each.who, each.why]));
    if ($("trouble").dataset.lost) tell();
    delete $("trouble").dataset.lost;
  } catch (error) {
    if (error.status === 401) {
      token = "";
      sessionStorage.removeItem("token");
      signIn(true);
    }
    tell(error.message || "the platform does not answer");
    $("trouble").dataset.lost = "yes";
  }
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem("token", token);
  $("token").value = "";
  look();
});
look();
setInterval(look, 2000);
