// Charts by Observable Plot (SVG, so that they print and follow the page's colours), each with a name for readers.

import { el } from "/dom.js";

const base = { style: { background: "transparent", fontSize: "12px" }, marginLeft: 60 };

const LONGEST = 26;
const cut = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text);
const wide = (labels) => 16 + 7 * Math.min(LONGEST, Math.max(4, ...labels.map((label) => label.length)));

export function chart(name, options, caption = name) {
  const room = (document.getElementById("part").clientWidth || 800) - 70;
  const width = Math.max(280, Math.min(room, room > 900 ? 540 : 640));
  const drawn = Plot.plot({ ...base, width, ...options });
  // To a screen reader a chart is one picture with a name; the numbers stand in a table beside it.
  for (const part of [drawn, ...drawn.querySelectorAll("[aria-label]")]) part.removeAttribute("aria-label");
  drawn.setAttribute("aria-hidden", "true");
  return el("figure", {}, el("div", { role: "img", "aria-label": name }, drawn), el("figcaption", {}, caption));
}

// Truth, estimate and interval per slice.
export function intervals(name, rows, caption) {
  const shown = rows.slice(0, 24);
  return chart(name, {
    marginLeft: wide(shown.map((row) => row.label)), height: 50 + 22 * shown.length,
    x: { grid: true, label: "value", zero: true, ticks: 5 }, y: { label: null, domain: shown.map((row) => row.label), tickFormat: cut },
    color: { legend: true, domain: ["truth", "estimate"], range: ["var(--warn)", "var(--accent)"] },
    marks: [
      Plot.ruleX([0]),
      Plot.ruleY(shown, { y: "label", x1: "low", x2: "high", stroke: "var(--accent)", strokeWidth: 2 }),
      Plot.dot(shown, { y: "label", x: "truth", stroke: () => "truth", symbol: "times", r: 5 }),
      Plot.dot(shown, { y: "label", x: "estimate", fill: () => "estimate", r: 4 }),
    ],
  }, caption);
}

// Losses between what happened and what was counted.
export function waterfall(name, steps, caption) {
  let left = steps[0].count;
  const bars = steps.map((step, index) => {
    if (index === 0) return { ...step, from: 0, to: left, kind: "total" };
    if (step.total) return { ...step, from: 0, to: step.count, kind: "total" };
    const from = left;
    left -= step.count;
    return { ...step, from, to: left, kind: "lost" };
  });
  return chart(name, {
    marginLeft: wide(bars.map((bar) => bar.name)), height: 50 + 24 * bars.length,
    x: { grid: true, label: "conversions", ticks: 5 }, y: { label: null, domain: bars.map((bar) => bar.name), tickFormat: cut },
    color: { domain: ["total", "lost"], range: ["var(--accent)", "var(--bad)"], legend: true },
    marks: [Plot.barX(bars, { y: "name", x1: "from", x2: "to", fill: "kind" }), Plot.ruleX([0])],
  }, caption);
}

export function line(name, rows, { x, y, series, xLabel, yLabel, log = false, yLog = false, limit = null, whole = false }, caption) {
  return chart(name, {
    x: { label: xLabel ?? x, type: log ? "log" : "linear", ...(whole ? { ticks: rows.length > 12 ? 8 : [...new Set(rows.map((row) => row[x]))], tickFormat: "d" } : {}) },
    y: { label: yLabel ?? y, grid: true, type: yLog ? "log" : "linear", zero: !yLog },
    color: series ? { legend: true } : undefined,
    marks: [
      limit === null ? null : Plot.ruleY([limit], { stroke: "var(--bad)", strokeDasharray: "4 3" }),
      Plot.lineY(rows, { x, y, stroke: series ?? "var(--accent)" }),
      Plot.dot(rows, { x, y, fill: series ?? "var(--accent)", r: 3 }),
    ],
  }, caption);
}

export function bars(name, rows, { x, y, xLabel, yLabel }, caption) {
  return chart(name, {
    x: { label: xLabel ?? x }, y: { label: yLabel ?? y, grid: true, zero: true },
    marks: [Plot.barY(rows, { x, y, fill: "var(--accent)" }), Plot.ruleY([0])],
  }, caption);
}
