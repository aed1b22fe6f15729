// Common parts of the platform's pages: sign-in, requests, tables. Each page has a function `refresh`.
// Text from the platform is inserted as text, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
let token = sessionStorage.getItem("token") || "";

async function ask(method, path, body) {
  const response = await fetch("api/v1" + path, {
    method,
    headers: { authorization: "Bearer " + token, "content-type": "application/json" },
    body: body && JSON.stringify(body),
    signal: AbortSignal.timeout(15000), // an unresponsive platform must not delay the next refresh
  });
  const answer = await response.json().catch(() => ({ error: `the platform answered with HTTP ${response.status}` }));
  if (!response.ok) throw Object.assign(new Error(answer.error), { status: response.status });
  return answer;
}

function showTrouble(text) {
  $("trouble").textContent = text || "";
  $("trouble").hidden = !text;
}

function signIn(needed) {
  $("login").hidden = !needed;
  $("leave").hidden = needed;
  document.querySelector("main").hidden = needed;
  if (needed) $("fleet").textContent = $("who").textContent = "";
}

function leave() {
  token = "";
  sessionStorage.removeItem("token");
  signIn(true);
}

// Fills a table; a cell is a text or an element. Unchanged rows are kept, so that a click in them is not lost.
function rows(table, lines, key = JSON.stringify(lines)) {
  if ($(table).dataset.shown === key) return;
  $(table).dataset.shown = key;
  const names = [...$(table).tHead.rows[0].cells].map((cell) => cell.textContent);
  $(table).tBodies[0].replaceChildren(...lines.map((cells) => {
    const row = document.createElement("tr");
    cells.forEach((cell, at) => {
      const made = row.insertCell();
      made.dataset.name = cell ? names[at] : "";
      made.append(cell);
    });
    return row;
  }));
}

const when = (ms) => new Date(ms).toISOString().slice(0, 19).replace("T", " ");

function button(text, act) {
  const made = document.createElement("button");
  made.textContent = text;
  made.addEventListener("click", () => act(made));
  return made;
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem("token", token);
  $("token").value = "";
  showTrouble();
  refresh();
});
$("leave").addEventListener("click", leave);
