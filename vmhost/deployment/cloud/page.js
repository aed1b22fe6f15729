// Releases with live progress, devices that ask to join, stuck devices and why, all devices, and a button for each action.
"use strict";

const CAN = {
  queued: ["cancel"],
  running: ["pause", "next", "halt", "roll_back"],
  paused: ["resume", "halt", "roll_back"],
  halted: ["resume", "roll_back"],
  done: ["pause", "halt", "roll_back"],
};
const PAGE = 50;
let mayRelease = () => false; // (task) => boolean
let underWay = 0; // refreshes without an answer yet
let latestRefresh = 0; // number of the latest refresh; answers of earlier ones are ignored

function show(release) {
  const id = "release-" + release.id;
  let article = $(id);
  if (!article) {
    article = $("release").content.cloneNode(true).firstElementChild;
    article.id = id;
    for (const each of article.querySelectorAll("button")) each.addEventListener("click", () => act(release.id, each));
  }
  const devices = release.devices, step = release.this_step;
  article.querySelector("h3").textContent =
    `${release.task} ${release.version}: ${release.state}, step ${release.step} of ${release.steps}`;
  const bar = article.querySelector("progress");
  bar.max = Math.max(1, devices.reached);
  bar.value = devices.proven;
  article.querySelector(".numbers").textContent =
    `${devices.proven} of ${devices.reached} reached devices proven, ${devices.failed} failed, ${devices.silent} silent`;
  article.querySelector(".plan").textContent = release.state === "running"
    ? `this step: ${step.proven} of ${step.min_reports} reports that it waits for, since ${when(release.since_ms)}` : "";
  for (const each of article.querySelectorAll("button")) {
    each.hidden = !mayRelease(release.task) || !(CAN[release.state] || []).includes(each.dataset.event);
  }
  return article;
}

// Runs the action of a button and shows its failure.
async function runAction(pressed, work) {
  pressed.disabled = true;
  try {
    await work();
    showTrouble();
  } catch (error) {
    showTrouble(error.message);
  } finally {
    pressed.disabled = false;
  }
  await refresh();
}

function act(id, pressed) {
  const why = prompt(`${pressed.textContent}: why? The history will show it.`);
  if (why !== null) runAction(pressed, () => ask("POST", `/releases/${id}/${pressed.dataset.event}`, { why }));
}

const versions = (tasks) => Object.entries(tasks).filter(([task]) => !task.includes(" "))
  .map(([task, has]) => `${task} ${has.version} ${has.state}`).join(", ");
let listed = []; // devices loaded so far

async function list(more) {
  const after = more && listed.length ? listed.at(-1).device : "";
  const found = (await ask("GET", `/devices?limit=${PAGE}&after=${encodeURIComponent(after)}`)).devices;
  listed = more ? [...listed, ...found] : found;
  $("more").hidden = found.length < PAGE;
  rows("devices", listed.map((each) =>
    [button(each.device, () => explain(each.device)), when(each.seen_ms), versions(each.tasks)]), JSON.stringify(listed));
}

async function explain(name) {
  try {
    const found = await ask("GET", "/devices/" + encodeURIComponent(name));
    const facts = Object.entries(found.facts).map(([key, value]) => `${key} ${value}`)
      .concat(Object.entries(found.bad_facts).map(([key, why]) => `${key} BAD (${why})`)).join(", ");
    $("about").textContent = `${found.device}: seen ${when(found.seen_ms)}; cohorts ${found.cohorts.join(", ") || "none"}; ${facts}`;
    rows("why", found.releases.map((each) => [String(each.release), `${each.task} ${each.version}`, each.state || "",
      each.why_not || each.reason || "it should have it"]));
    $("device").hidden = false;
    showTrouble();
  } catch (error) {
    $("device").hidden = true;
    showTrouble(error.message);
  }
}

// Devices that wait for an admin's approval, with buttons.
function showJoins(waiting) {
  const decide = (each, event) => button(event === "approve" ? "Approve" : "Refuse", (pressed) => runAction(pressed,
    () => ask("POST", `/joins/${encodeURIComponent(each.device)}/${event}`, { code: each.code })));
  $("joining").hidden = !waiting.length;
  rows("joins", waiting.map((each) => {
    const buttons = document.createElement("span");
    buttons.append(decide(each, "approve"), " ", decide(each, "refuse"));
    return [each.device, each.code, when(each.time_ms), each.network, buttons];
  }), JSON.stringify(waiting));
}

async function refresh() {
  if (!token) return signIn(true);
  const number = ++latestRefresh;
  ++underWay;
  try {
    const [me, all, stuck, history] = await Promise.all([
      ask("GET", "/whoami"), ask("GET", "/overview"), ask("GET", "/stuck?limit=50"), ask("GET", "/history?limit=50"),
    ]);
    const { joins } = me.scopes.includes("admin") ? await ask("GET", "/joins") : { joins: [] };
    if (number !== latestRefresh || !token) return;
    const mayList = all.devices !== null; // it needs the scope for all repositories
    if (mayList && ($("login").hidden === false || !listed.length)) list(false).catch((error) => showTrouble(error.message));
    signIn(false);
    mayRelease = (task) => me.scopes.some((scope) => scope === "release" || scope === "release:" + task.split("/")[0]);
    $("who").textContent = `${me.name}, ${me.role}`;
    $("fleet").textContent = (all.devices === null ? "" : `${all.devices} devices, `) + `${all.tasks.length} tasks`;
    const articles = all.releases.map(show);
    const there = [...$("active").children];
    if (articles.length !== there.length || articles.some((each, at) => each !== there[at]) || !articles.length) {
      $("active").replaceChildren(...(articles.length ? articles : ["none"]));
    }
    $("signing").hidden = !all.waiting.length;
    rows("waiting", all.waiting.map((each) => [each.repository, `${each.signed} of ${each.threshold}`,
      [...each.added.map((path) => "+ " + path), ...each.removed.map((path) => "- " + path)].join("\n") || "the same list, again",
      `vmhost cloud sign ${each.repository} --key KEY`]));
    showJoins(joins.filter((each) => each.state === "waiting"));
    rows("stuck", stuck.devices.map((each) => [each.device, each.release ? `${each.task} ${each.version}` : "", each.state,
      each.reason, each.release && mayRelease(each.task)
        ? button("Retry", (pressed) => runAction(pressed, () => ask("POST", `/releases/${each.release}/retry`, { device: each.device })))
        : ""]), JSON.stringify([stuck, me.scopes]));
    rows("history", history.history.map((each) =>
      [when(each.time_ms), `${each.task} ${each.version}`, `${each.event} → ${each.state}`, each.who, each.why]));
    if ($("trouble").dataset.lost) showTrouble();
    delete $("trouble").dataset.lost;
  } catch (error) {
    if (number !== latestRefresh) return;
    if (error.status === 401) leave();
    showTrouble(error.status ? error.message : `the platform does not answer (${error.message}); retrying`);
    $("trouble").dataset.lost = "yes";
  } finally {
    --underWay;
  }
}

$("find").addEventListener("submit", (event) => {
  event.preventDefault();
  explain($("name").value.trim());
});
$("more").addEventListener("click", (event) => runAction(event.target, () => list(true)));
refresh();
setInterval(() => document.hidden || underWay || refresh(), 2000);
