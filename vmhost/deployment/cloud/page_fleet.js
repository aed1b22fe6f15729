// Device reports: running versions, errors by cohort, crashes, alerts and their rules.
"use strict";

let latestRefresh = 0; // number of the latest refresh; answers of earlier ones are ignored
let underWay = 0; // refreshes without an answer yet
let shownRules = null; // the platform's text when last loaded; keeps what is being typed

const percent = (share) => (share * 100).toFixed(share > 0 && share < 0.01 ? 2 : 1) + " %";
const number = (n) => n.toLocaleString("en");

function time(seconds) {
  if (seconds === null) return "";
  if (seconds < 0.001) return (seconds * 1e6).toPrecision(3) + " µs";
  return seconds < 1 ? (seconds * 1000).toPrecision(3) + " ms" : seconds.toPrecision(3) + " s";
}

function bar(share, kind) {
  const cell = document.createElement("span"), made = document.createElement("meter");
  made.value = share;
  made.setAttribute("aria-label", kind);
  cell.append(made, " " + percent(share));
  return cell;
}

// Shows "none" for an empty table: no reports is information too.
function listed(table, lines, key) {
  rows(table, lines.length ? lines : [["none"]], key);
}

function choose(tasks) {
  const now = $("only").value;
  const wanted = ["", ...tasks].join("\n");
  if ($("only").dataset.shown === wanted) return;
  $("only").dataset.shown = wanted;
  $("only").replaceChildren(...["", ...tasks].map((task) => new Option(task || "all", task, false, task === now)));
}

async function open(each) {
  try {
    const report = await ask("GET", `/fleet/crashes/${encodeURIComponent(each.device)}/${encodeURIComponent(each.id)}`);
    const lines = (name) => (Array.isArray(report[name]) && report[name].length ? `\n${name}:\n  ${report[name].join("\n  ")}\n` : "");
    $("crash").querySelector("h3").textContent = `${each.device}, ${when(each.last_ms)}`;
    $("crash").querySelector("pre").textContent =
      `${report.title}\nfingerprint ${report.fingerprint}, report ${report.id}\n` + lines("python") + lines("native") + lines("log")
      + (report.machine ? `\nmachine: ${JSON.stringify(report.machine)}\n` : "");
    $("crash").hidden = false;
    $("crash").scrollIntoView({ block: "nearest" });
    showTrouble();
  } catch (error) {
    showTrouble(error.message);
  }
}

function show(fleet, alerts) {
  const tasks = [...new Set([...fleet.adoption, ...fleet.sums, ...fleet.crashes].map((each) => each.task))].filter(Boolean).sort();
  choose(tasks);
  const only = $("only").value, mine = (each) => !only || each.task === only;
  const going = alerts.alerts.filter((each) => each.until_ms === null).length;
  $("fleet").textContent = `${tasks.length} tasks report, ${going} alerts`;
  listed("alerts", alerts.alerts.filter(mine).map((each) => [
    each.rule, `${each.task || "the host"} ${each.version}`, each.cohort || "all", when(each.since_ms),
    each.until_ms === null ? "ongoing" : when(each.until_ms), each.why, each.told || ""]));
  listed("adoption", fleet.adoption.filter(mine).flatMap((each) => each.versions.map((of) => [
    each.task, of.version, number(of.devices), bar(of.share, "share of devices"), of.breakers ? `${of.breakers} open` : ""])),
    JSON.stringify([only, fleet.adoption]));
  const sums = fleet.sums.filter(mine);
  listed("sums", sums.filter((each) => each.calls || each.denied).map((each) => [
    `${each.task} ${each.version}`, each.cohort || "all", number(each.calls), percent(each.share),
    Object.entries(each.errors).map(([kind, n]) => `${kind.toLowerCase().replaceAll("_", " ")} ${number(n)}`).join(", "),
    each.denied ? number(each.denied) : "", time(each.p50_s), time(each.p99_s)]));
  const ranks = sums.filter((each) => each.crashes && !each.cohort).sort((one, other) => other.crashes - one.crashes);
  const all = ranks.reduce((sum, each) => sum + each.crashes, 0);
  listed("ranks", ranks.map((each) => [
    `${each.task || "the host"} ${each.version}`, number(each.crashes), bar(each.crashes / all, "share of crashes")]),
    JSON.stringify(ranks));
  const crashes = fleet.crashes.filter(mine);
  listed("crashes", crashes.map((each) => [
    `${each.task || "the host"} ${each.version}`, number(each.count), number(each.devices), when(each.last_ms), each.title,
    button("Latest report", () => open(each))]), JSON.stringify(crashes));
  $("rules").hidden = !alerts.rules;
  if (alerts.rules && alerts.rules.text !== shownRules) {
    if (shownRules === null || $("text").value === shownRules) $("text").value = alerts.rules.text;
    shownRules = alerts.rules.text;
    $("written").textContent = alerts.rules.who ? `by ${alerts.rules.who}, ${when(alerts.rules.time_ms)}` : "none yet";
  }
}

async function refresh() {
  if (!token) return signIn(true);
  const mine = ++latestRefresh;
  ++underWay;
  try {
    const [me, fleet, alerts] = await Promise.all([
      ask("GET", "/whoami"), ask("GET", `/fleet?hours=${$("hours").value}&limit=1000`), ask("GET", "/fleet/alerts?limit=100")]);
    if (mine !== latestRefresh || !token) return;
    signIn(false);
    $("who").textContent = `${me.name}, ${me.role}`;
    show(fleet, alerts);
    if ($("trouble").dataset.lost) showTrouble();
    delete $("trouble").dataset.lost;
  } catch (error) {
    if (mine !== latestRefresh) return;
    if (error.status === 401) leave();
    showTrouble(error.status ? error.message : `the platform does not answer (${error.message}); retrying`);
    $("trouble").dataset.lost = "yes";
  } finally {
    --underWay;
  }
}

$("hours").addEventListener("change", refresh);
$("only").addEventListener("change", refresh);
$("scope").addEventListener("submit", (event) => event.preventDefault());
$("save").addEventListener("click", async () => {
  $("save").disabled = true;
  try {
    await ask("PUT", "/fleet/rules", { text: $("text").value });
    shownRules = null;
    showTrouble();
    await refresh();
  } catch (error) {
    showTrouble(error.message);
  } finally {
    $("save").disabled = false;
  }
});
refresh();
setInterval(() => document.hidden || underWay || refresh(), 5000);
