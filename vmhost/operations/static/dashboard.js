// Draws the charts, and shows when the host does not answer.
"use strict";
(() => {
  const EVERY_MS = 2000;
  const TITLES = { queued: "waiting", running: "running", calls: "calls/s", failures: "failed/s", cpu_s: "cores", memory_bytes: "MiB" };
  const SCALES = { memory_bytes: 1 / (1 << 20) };
  const trouble = (is) => { document.getElementById("trouble").hidden = !is; };

  // htmx keeps the old content while requests fail; it retries, and so do the charts.
  document.addEventListener("htmx:sendError", () => trouble(true));
  document.addEventListener("htmx:responseError", (event) => {
    const gone = event.detail.xhr.status === 404;
    if (gone) event.detail.target.textContent = "This task is not loaded any more.";
    else trouble(true);
  });
  document.addEventListener("htmx:afterOnLoad", () => trouble(false));

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  function chart(element, fields) {
    const axis = { stroke: color("--faint"), grid: { stroke: color("--line") }, ticks: { stroke: color("--line") } };
    const strokes = [color(fields[0] === "queued" ? "--warn" : "--accent"), color(fields[1] === "running" ? "--accent" : "--bad")];
    const options = {
      width: element.clientWidth, height: 150, cursor: { drag: { setScale: false } }, legend: { show: false },
      axes: [axis, { ...axis, size: 55 }],
      scales: { y: { range: (plot, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      series: [{}, ...fields.map((field, at) => ({ label: TITLES[field], stroke: strokes[at], width: 2, points: { show: false } }))],
    };
    return new uPlot(options, [[], ...fields.map(() => [])], element);
  }

  const groups = new Map();  // data URL -> its charts
  function begin() {
    for (const element of document.querySelectorAll(".chart")) {
      const task = element.dataset.task;
      const address = "/series" + (task === undefined ? "" : "?task=" + encodeURIComponent(task));
      const fields = element.dataset.fields.split(" ");
      if (!groups.has(address)) groups.set(address, []);
      groups.get(address).push({ element, fields, plot: chart(element, fields) });
    }
  }
  async function refresh() {
    if (document.hidden) return;
    for (const [address, charts] of groups) {
      try {
        const columns = await (await fetch(address)).json();
        for (const { fields, plot } of charts) {
          const scaled = (field) => columns[field].map((value) => value * (SCALES[field] || 1));
          plot.setData([columns.time_s, ...fields.map(scaled)]);
        }
      } catch { /* htmx's requests fail too and report it */ }
    }
  }
  begin();
  refresh();
  setInterval(refresh, EVERY_MS);
  addEventListener("resize", () => {
    for (const charts of groups.values())
      for (const { element, plot } of charts) plot.setSize({ width: element.clientWidth, height: 150 });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const charts of groups.values())
      for (const one of charts) { one.plot.destroy(); one.plot = chart(one.element, one.fields); }
    refresh();
  });
})();
