// The shop's page: shows PAGE, reports every event to its server, and, driven by the pilot, clicks through the shop.
// Scrolling, exposures and leaving are the browser's events; times are those of its clock.
"use strict";

const SCROLL_MS = 50; // between reported scroll events
const SEND_MS = 200;
const AREAS = ["recommended", "bought_together", "same_shop"];

const session = JSON.parse(sessionStorage.session || "null") || {
  name: `${PAGE.seed}-${Date.now()}`, sequence: 0, visits: 0, items: 0, random: PAGE.seed, before: "message",
};
const visit = `${session.name}.${++session.visits}`;
const waiting = [];
let left = false;

function random() { // mulberry32
  session.random = (session.random + 0x6d2b79f5) | 0;
  let t = Math.imul(session.random ^ (session.random >>> 15), 1 | session.random);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
}

function report(name, contents = {}) {
  const number = session.sequence++;
  const item = PAGE.item ? { item: PAGE.item } : {};
  const context = {
    trace: { session: session.name, sequence: number, since_load_ms: Math.round(performance.now()), address: location.href },
    app: { name: "shop page", agent: navigator.userAgent, languages: navigator.languages, cores: navigator.hardwareConcurrency },
    device: {
      screen_px: [screen.width, screen.height], window_px: [innerWidth, innerHeight], depth: screen.colorDepth,
      ratio: devicePixelRatio, time_zone: Intl.DateTimeFormat().resolvedOptions().timeZone, touch: navigator.maxTouchPoints,
    },
    document: { title: document.title, referrer: document.referrer, visible: document.visibilityState, nodes: document.all.length },
    network: { online: navigator.onLine, kind: navigator.connection?.effectiveType, round_trip_ms: navigator.connection?.rtt },
    memory: { used: performance.memory?.usedJSHeapSize, limit: performance.memory?.jsHeapSizeLimit },
  };
  waiting.push({
    name, time_ms: Date.now(), page: PAGE.page, visit, contents: { ...contents, ...item, ...context },
    id: `${session.name}/${number}`, key: `pilot-${PAGE.seed}`,
  });
}

function send() {
  if (waiting.length) {
    const lines = waiting.splice(0).map((event) => JSON.stringify(event)).join("\n") + "\n";
    fetch("/events", { method: "POST", body: lines, keepalive: true });
  }
}

function element(parent, kind, text, data = {}) {
  const made = parent.appendChild(document.createElement(kind));
  made.textContent = text;
  Object.assign(made.dataset, data);
  return made;
}

function show() {
  document.getElementById("title").textContent = document.title = PAGE.item ? PAGE.item.title : PAGE.page;
  const about = document.getElementById("about");
  if (PAGE.item) {
    element(about, "div", "", { target: "gallery" }).className = "gallery";
    for (const target of ["favourite", "cart", "buy", "share", "variant"]) element(about, "button", target, { target });
    element(about, "p", "What there is to say about it. ".repeat(60), { target: "reviews" }).className = "text";
    element(about, "p", `From ${PAGE.item.shop}`, { target: "shop" });
  }
  PAGE.shown.forEach((shown, slot) => {
    const link = element(document.getElementById("shown"), "a", `${shown.title}, ${shown.price_cents / 100}`, {
      target: "item", shown: shown.id, slot, area: PAGE.item ? AREAS[slot % 3] : "list",
    });
    link.className = "shown";
    link.href = `/item/${shown.id}`;
  });
}

function about(link) {
  return { area: link.dataset.area, slot: Number(link.dataset.slot), shown: link.dataset.shown };
}

function watch() {
  const since = new Map(); // visible links to the time they became visible
  const gone = (link) => {
    report("exposure", { ...about(link), visible_ms: Math.round(performance.now() - since.get(link)) });
    since.delete(link);
  };
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (left) return;
      if (isIntersecting && !since.has(target)) {
        since.set(target, performance.now());
        report("exposure", { ...about(target), visible_ms: 0 });
      } else if (!isIntersecting && since.has(target)) gone(target);
    }
  }, { threshold: 0.5 });
  document.querySelectorAll(".shown").forEach((link) => observer.observe(link));

  let scrolled = 0;
  addEventListener("scroll", () => {
    if (performance.now() - scrolled < SCROLL_MS) return;
    scrolled = performance.now();
    report("page_scroll", {
      offset_px: Math.round(scrollY), height_px: document.documentElement.scrollHeight, viewport_px: innerHeight,
    });
  });

  let favourite = false;
  addEventListener("click", (event) => {
    const hit = event.target.closest("[data-target]");
    if (!hit) return;
    const target = hit.dataset.target;
    report("click", { target, x_px: event.clientX, y_px: event.clientY, ...(target === "item" ? about(hit) : {}) });
    if (target === "favourite") report("favourite", { on: (favourite = !favourite) });
    const sold = { pieces: 1, amount_cents: PAGE.item?.price_cents, variant: "M" };
    if (target === "cart") report("cart", sold);
    if (target === "buy") report("order", sold);
  });

  addEventListener("pagehide", () => {
    [...since.keys()].forEach(gone);
    left = true;
    report("page_exit");
    session.before = PAGE.page;
    sessionStorage.session = JSON.stringify(session);
    send();
  });
  setInterval(send, SEND_MS);
}

// ---- the pilot

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function pilot() {
  session.items += PAGE.page === "item";
  for (let steps = 3 + Math.floor(random() * 9); steps > 0; steps--) {
    await pause(20 + random() * 160);
    const what = random();
    if (what < 0.65) scrollBy(0, (random() < 0.2 ? -1 : 1) * (100 + random() * 600));
    else {
      const others = [...document.querySelectorAll("[data-target]:not(a)")];
      if (others.length) others[Math.floor(random() * others.length)].click();
    }
  }
  await pause(100);
  if (session.items >= PAGE.visits) {
    addEventListener("pagehide", () => navigator.sendBeacon("/done", String(session.sequence)));
    location.href = "about:blank";
  } else if (random() < 0.15) location.href = random() < 0.5 ? "/home" : "/search";
  else {
    const links = document.querySelectorAll("a.shown");
    links[Math.floor(random() * links.length)].click();
  }
}

show();
report("page_enter", { from: session.before });
if (PAGE.page === "home") report("recommendations", { wanted: 10 });
watch();
pilot();
