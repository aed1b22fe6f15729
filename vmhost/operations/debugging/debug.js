// The page behind a debugging link: requests a session, waits for consent, and shows what the session permits.
// Data from the device is inserted as text or redrawn from numbers, so that a hostile device runs no code here.
"use strict";
(() => {
  const by = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const VIEWS = ["config", "logs", "run", "reports"];
  const LEVELS = { 10: "debug", 20: "info", 30: "warning", 40: "error", 50: "critical" };
  let session = null;  // {session, secret, device}
  let over = false, running = null, logs = { after: 0, wanted: {}, turn: 0 };

  class Refused extends Error {
    constructor(error) { super(error.message); this.kind = error.kind; }
  }
  async function ask(what) {
    const response = await fetch("/debug/api", {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ ...what, ...session }),
    });
    const answer = await response.json();
    if (answer.error) throw new Refused(answer.error);
    return answer;
  }
  function element(name, text, attributes = {}) {
    const made = document.createElement(name);
    if (text !== undefined && text !== null) made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }
  function table(columns, rows) {
    const wide = element("div", null, { class: "wide" }), made = element("table");
    const head = element("thead"), row = element("tr");
    for (const column of columns) row.append(element("th", column));
    head.append(row);
    const body = element("tbody");
    for (const cells of rows) {
      const line = element("tr");
      for (const cell of cells) {
        const td = element("td");
        td.append(cell instanceof Node ? cell : String(cell ?? "–"));
        line.append(td);
      }
      body.append(line);
    }
    made.append(head, body);
    wide.append(made);
    return wide;
  }
  function showStatus(text) { by("said").textContent = text; by("said").hidden = !text; }
  function trouble(text) { by("trouble").textContent = text || ""; by("trouble").hidden = !text; }
  function ended(why) {
    over = true;
    sessionStorage.removeItem("vmhost-debug");
    by("tabs").hidden = true;
    for (const view of VIEWS) by(view).hidden = true;
    by("left").textContent = "";
    trouble("");
    showStatus(why);
  }
  // Runs the action of a button and shows a refusal; the end of the session ends the page.
  async function attempt(work) {
    trouble("");
    try {
      await work();
      return true;
    } catch (error) {
      if (error.kind === "ended" || error.kind === "link") ended(error.message);
      else trouble(error instanceof Refused ? error.message : "The host does not answer: " + error.message);
      return false;
    }
  }
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));

  async function begin() {
    const link = location.href, opened = location.hash.length > 1;
    if (opened) {
      history.replaceState(null, "", location.pathname);  // the link is a secret: remove it from the address
      await attempt(async () => {
        session = null;
        const answer = await ask({ do: "open", link });
        session = { session: answer.session, secret: answer.secret };
        if (answer.device) session.device = answer.device;
        sessionStorage.setItem("vmhost-debug", JSON.stringify({ ...session, host: answer.host }));
        by("host").textContent = answer.device || answer.host;
        showStatus("Waiting for consent at the device. It was asked for: " + answer.asked.join(", ") + ".");
      });
    } else {
      const kept = sessionStorage.getItem("vmhost-debug");
      if (kept === null) return showStatus("Open this page by a link; a link opens one session.");
      const { host, ...rest } = JSON.parse(kept);
      session = rest;
      by("host").textContent = rest.device || host;
    }
    if (session !== null) follow();
  }
  // Waits for consent, then checks every few seconds whether the session is still active.
  async function follow() {
    let shown = false;
    while (!over) {
      const went = await attempt(async () => {
        const state = await ask({ do: "state", wait_s: shown ? 0 : 8 });
        if (state.state === "denied") return ended("Consent was refused at the device.");
        if (state.state === "ended") return ended("The session is over: " + state.why + ".");
        by("left").textContent = Math.ceil(state.expires_s / 60) + " min left";
        if (state.state === "active" && !shown) { shown = true; show(state.granted); }
      });
      if (!went || shown) await pause(2500);
    }
  }
  function show(granted) {
    showStatus("");
    by("tabs").hidden = false;
    for (const button of document.querySelectorAll("#tabs [data-view]")) {
      const view = button.dataset.view;
      button.hidden = !granted.includes(view) && !(view === "reports" && granted.includes("run"));
      button.addEventListener("click", () => turn(view));
    }
    turn(granted[0]);
  }
  function turn(view) {
    for (const each of VIEWS) by(each).hidden = each !== view;
    for (const button of document.querySelectorAll("#tabs [data-view]"))
      button.setAttribute("aria-pressed", String(button.dataset.view === view));
    logs.turn += 1;
    if (view === "config") attempt(config);
    if (view === "logs") tail(logs.turn);
    if (view === "run" && by("call").elements.task.options.length === 0) attempt(tasks);
    if (view === "reports") attempt(reports);
  }

  async function config() {
    const answer = await ask({ do: "config" });
    const parts = [table(["machine", ""], Object.entries(answer.machine))];
    parts.push(table(["task", "version", "limits"], answer.tasks.map((task) => [
      task.name, task.version, Object.entries(task.limits).map(([name, value]) => name + " " + value).join(", "),
    ])));
    for (const group of answer.groups) {
      parts.push(element("h2", group.title));
      const bold = (row) => row.from === "default" ? row.value : element("b", row.value);
      parts.push(table(["setting", "value", "from"], group.rows.map((row) => [row.name, bold(row), row.from])));
    }
    by("settings").replaceChildren(...parts);
  }
  async function tail(turn) {
    logs.after = 0;
    by("lines").replaceChildren();
    while (!over && turn === logs.turn) {
      const went = await attempt(async () => {
        const answer = await ask({ do: "logs", after: logs.after, wait_s: 8, ...logs.wanted });
        if (turn !== logs.turn) return;
        logs.after = answer.next;
        if (answer.missed) by("lines").prepend(element("li", answer.missed + " lines came too fast and are not shown"));
        for (const [number, time, level, task, version, text] of answer.lines) {
          const line = element("li");
          line.append(element("span", new Date(time * 1000).toLocaleTimeString() + " "));
          line.append(element("b", LEVELS[level] || level), " ", element("span", task ? task + " " + (version || "") : "host"), " ", text);
          by("lines").prepend(line);
        }
        while (by("lines").childElementCount > 2000) by("lines").lastChild.remove();
      });
      if (!went) await pause(2500);
    }
  }
  async function tasks() {
    const answer = await ask({ do: "tasks" });
    by("call").elements.task.replaceChildren(...answer.tasks.map((task) => element("option", task)));
  }
  async function run() {
    const form = by("call").elements;
    let value;
    try { value = JSON.parse(form.value.value); } catch (error) { return trouble("The value is not JSON: " + error.message); }
    const begun = await ask({ do: "run", task: form.task.value, value, profile: form.profile.checked, trace: form.trace.checked });
    running = begun.run;
    by("stop").disabled = false;
    by("outcome").replaceChildren(element("p", begun.task + " " + begun.version + " runs"));
    try {
      let answer;
      do answer = await ask({ do: "result", run: begun.run, wait_s: 8 }); while (answer.state === "running" && !over);
      await outcome(answer);
    } finally { by("stop").disabled = true; }
  }
  async function outcome(answer) {
    const parts = [element("h2", "Ended: " + answer.outcome + ", " + (answer.took_s * 1000).toFixed(1) + " ms")];
    for (const remark of answer.remarks) parts.push(element("p", remark));
    if ("result" in answer) parts.push(element("pre", JSON.stringify(answer.result, null, 1)));
    if (answer.failure) parts.push(element("pre", answer.failure, { class: "bad" }));
    if (answer.traceback) parts.push(element("pre", answer.traceback));
    if (answer.spans && answer.spans.length) parts.push(element("h2", "Trace"), traceChart(answer.spans));
    const flames = answer.files.find((name) => name.endsWith("profile.svg"));
    if (flames) parts.push(element("h2", "Profile"), safeSvg(new TextDecoder().decode(await fetchFile(flames))));
    if (answer.files.length) parts.push(element("h2", "Files"), files(answer.files.map((name) => ({ name }))));
    by("outcome").replaceChildren(...parts);
  }
  // Spans as bars, children below their parents.
  function traceChart(spans) {
    const times = spans.map((span) => [Number(BigInt(span.startTimeUnixNano) - BigInt(spans[0].startTimeUnixNano)), Number(BigInt(span.endTimeUnixNano) - BigInt(spans[0].startTimeUnixNano))]);
    const whole = Math.max(1, ...times.map(([, end]) => end));
    const made = document.createElementNS(SVG, "svg");
    made.setAttribute("viewBox", `0 0 1000 ${spans.length * 24}`);
    made.setAttribute("class", "spans");
    made.setAttribute("role", "img");
    made.setAttribute("aria-label", "Trace of the call");
    spans.forEach((span, at) => {
      const [start, end] = times[at], bar = document.createElementNS(SVG, "rect"), text = document.createElementNS(SVG, "text");
      for (const [key, value] of Object.entries({ x: 300 + 700 * start / whole, y: at * 24 + 4, width: Math.max(1, 700 * (end - start) / whole), height: 16 })) bar.setAttribute(key, value);
      text.setAttribute("x", 0);
      text.setAttribute("y", at * 24 + 16);
      text.textContent = `${span.name}: ${((end - start) / 1e6).toFixed(2)} ms`;
      made.append(bar, text);
    });
    return made;
  }
  // Redraws the device's SVG with the elements and attributes of a flame graph only.
  function safeSvg(text) {
    const KNOWN = { svg: ["viewBox", "width", "height", "font-family", "font-size"], g: [], title: [], rect: ["x", "y", "width", "height", "rx", "fill"], text: ["x", "y", "fill"] };
    const read = new DOMParser().parseFromString(text, "image/svg+xml");
    const copy = (from) => {
      if (!(from.localName in KNOWN)) return null;
      const made = document.createElementNS(SVG, from.localName);
      for (const name of KNOWN[from.localName]) if (from.hasAttribute(name)) made.setAttribute(name, from.getAttribute(name));
      if (from.childElementCount === 0) made.textContent = from.textContent;
      else for (const child of from.children) { const inner = copy(child); if (inner) made.append(inner); }
      return made;
    };
    const made = element("div", null, { class: "flames" }), svg = copy(read.documentElement);
    if (svg && svg.localName === "svg") { svg.setAttribute("role", "img"); svg.setAttribute("aria-label", "Flame graph"); made.append(svg); }
    return made;
  }
  async function fetchFile(name) {
    const pieces = [];
    for (let offset = 0; offset !== null;) {
      const piece = await ask({ do: "fetch", name, offset });
      pieces.push(Uint8Array.from(atob(piece.data), (letter) => letter.charCodeAt(0)));
      offset = piece.next;
    }
    return new Uint8Array(await new Blob(pieces).arrayBuffer());
  }
  function files(found) {
    return table(["report", "what", "bytes", ""], found.map(({ name, what, bytes }) => {
      const button = element("button", "Save " + name);
      button.addEventListener("click", () => attempt(async () => {
        const where = URL.createObjectURL(new Blob([await fetchFile(name)], { type: "application/octet-stream" }));
        const link = element("a", null, { href: where, download: name.replace("/", "-") });
        link.click();
        URL.revokeObjectURL(where);
      }));
      return [name, what || "", bytes ?? "", button];
    }));
  }
  async function reports() {
    const answer = await ask({ do: "reports" });
    by("listed").replaceChildren(files(answer.reports));
  }

  by("filter").addEventListener("submit", (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(event.target));
    logs.wanted = { level: given.level, text: given.text };
    if (given.task) logs.wanted.task = given.task;
    logs.turn += 1;
    tail(logs.turn);
  });
  by("call").addEventListener("submit", (event) => { event.preventDefault(); attempt(run); });
  by("stop").addEventListener("click", () => attempt(() => ask({ do: "stop", run: running })));
  by("end").addEventListener("click", () => attempt(async () => { await ask({ do: "end" }); ended("The session is over: you ended it."); }));
  addEventListener("hashchange", () => { if (location.hash.length > 1) location.reload(); });  // another link
  begin();
})();
