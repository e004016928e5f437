// A campaign as a form and as text, both ways, with the errors to expect recomputed as one moves.

import { folders, get, items, post } from "/api.js";
import { intervals, line } from "/charts.js";
import { el, field, more, number, percent, problem, say, select, short, table, tiles } from "/dom.js";
import { start } from "/run.js";

export async function show(root) {
  const campaigns = [["demo", "the demo campaign (Thanksgiving shoes)"], ...(await items("campaign", true)).map((item) => [item.id, item.name])];
  const text = el("textarea", { "aria-label": "Campaign file (TOML)", spellcheck: "false" });
  const form = el("div", { class: "panel", role: "group", "aria-label": "Settings" });
  const figures = el("div", { "aria-live": "polite", id: "expected" });
  const live = el("div");
  const source = () => (choice.value === "demo" ? {} : { campaign: choice.value });
  let turn = 0, known = "";
  const expect = async () => {
    const mine = ++turn;
    try {
      const found = await post("tune", { toml: text.value, ...source() });
      if (mine !== turn) return;
      figures.replaceChildren(...expected(found));
      fill(found.controls);
    } catch (error) { if (mine === turn) figures.replaceChildren(problem(error)); }
  };
  const edit = async (path, value) => {
    try {
      const changed = await post("tune/edit", { toml: text.value, path, value, ...source() });
      text.value = changed.toml;
      await expect();
    } catch (error) { figures.replaceChildren(problem(error)); }
  };
  const fill = (controls) => {
    const shape = JSON.stringify(controls.map((control) => [control.path, control.label]));
    if (shape === known) { update(form, controls); return; }
    known = shape;
    form.replaceChildren(el("h2", {}, "Settings"), ...controls.map((control) => controlOf(control, edit)));
  };
  const load = async () => {
    const found = await get("campaign", { campaign: choice.value });
    text.value = found.toml;
    known = "";
    fill(found.controls);
    await expect();
  };
  const choice = select(campaigns, "demo", () => load().catch((error) => figures.replaceChildren(problem(error))));
  text.addEventListener("change", expect);
  const name = el("input", { value: "campaign.toml", size: 18 });
  const place = select((await folders()).map((one, index) => [String(index), one]), "0");
  const save = async () => {
    try {
      const saved = await post("tune/save", { toml: text.value, name: name.value, folder: Number(place.value), ...source() });
      await items("campaign", true);
      say(`Saved as ${saved.campaign}.`);
    } catch (error) { live.replaceChildren(problem(error)); }
  };
  const run = () => start(live, { toml: text.value, folder: Number(place.value), seed: "", ...source() }, async () => { location.hash = "#run"; }).catch((error) => live.replaceChildren(problem(error)));
  root.append(
    el("h1", {}, "Tune"),
    el("p", { class: "lead" }, "Move a setting and see what error to expect: from the exact law of the noise and a simulated population, before any run and without spending any budget."),
    el("div", { class: "row" }, field("Campaign", choice)),
    el("div", { class: "columns" }, form, el("div", { class: "panel" }, figures)),
    el("h2", {}, "The file"),
    text,
    el("div", { class: "row" }, field("Name", name), field("In", place), el("button", { type: "button", id: "tune-save", class: "plain", onclick: save }, "Save as a campaign file"), el("button", { type: "button", id: "tune-run", onclick: run }, "Run it")),
    live,
  );
  await load();
}

function controlOf(control, edit) {
  if (control.kind === "fields") {
    const boxes = Object.entries(control.value).map(([name, shown]) => {
      const box = el("input", { type: "checkbox", checked: shown, onchange: () => edit(control.path, JSON.stringify(boxes.filter(([, one]) => one.checked).map(([key]) => key))) });
      return [name, box];
    });
    return el("fieldset", { "data-path": control.path }, el("legend", {}, control.label), boxes.map(([name, box]) => field(name, box)));
  }
  const written = (value) => (control.kind === "amount" ? JSON.stringify(String(value)) : String(value));
  const log = control.least > 0 && control.most / control.least > 50;
  const to = (value) => (log ? Math.log(value) : value), from = (value) => (log ? Math.exp(value) : value);
  const exact = el("input", { type: "number", min: control.least, max: control.most, step: "any", value: control.value, onchange: () => { slider.value = to(Number(exact.value)); edit(control.path, written(exact.value)); } });
  const slider = el("input", { type: "range", min: to(control.least), max: to(control.most), step: (to(control.most) - to(control.least)) / 400, "aria-label": control.label });
  slider.value = to(Number(control.value));
  slider.addEventListener("input", () => {
    const value = from(Number(slider.value));
    const rounded = control.kind === "whole" ? Math.round(value) : Number(value.toPrecision(3));
    if (Number(exact.value) === rounded) return;
    exact.value = rounded;
    edit(control.path, written(rounded));
  });
  return el("div", { "data-path": control.path }, field(control.label, exact), slider);
}

function update(form, controls) {
  for (const control of controls) {
    if (control.kind === "fields") continue;
    const exact = form.querySelector(`[data-path="${CSS.escape(control.path)}"] input[type=number]`);
    if (exact && document.activeElement !== exact && Number(exact.value) !== Number(control.value)) exact.value = control.value;
  }
}

function expected(found) {
  const parts = [el("h2", {}, "What to expect")];
  const left = found.epsilon_left;
  parts.push(tiles([["ε left per report after all queries", short(left), left < 0 ? "bad" : "good"], ["ε per report in all", found.epsilon_limit]]));
  if (left < 0) parts.push(el("p", { class: "error" }, "Some jobs will be refused: their reports cannot pay. Lower ε, ask less often, or use longer batches."));
  for (const query of found.queries) {
    parts.push(el("h3", {}, `${query.name}: ε = ${query.epsilon}, ${query.jobs} ${query.jobs === 1 ? "job" : "jobs"}`));
    for (const one of query.measures) {
      parts.push(tiles([
        ...one.metrics.map((metric) => [metric.title, metric.text]),
        ["taken by caps", percent(one.capped)], ["taken by clipping", percent(one.clipped)], ["of the error is noise", percent(one.noise_share, 0)],
      ]));
      parts.push(more(`How ${one.measure} was computed`, ...explained(query, one)));
      const rows = one.rows.slice(0, 12).map((row) => ({ label: row.label, truth: row.truth, estimate: row.sent, low: row.sent - row.half_width, high: row.sent + row.half_width }));
      parts.push(intervals(`Expected 95 % interval around what is sent: ${one.measure}`, rows, "Crosses: what happened. Dots: what browsers send. Lines: where 95 of 100 released values fall."));
      parts.push(line(`Expected error of ${one.measure} against ε`, one.curve, { x: "epsilon", y: "rmsre", xLabel: "ε per query", yLabel: "RMSRE", log: true }, "The same slices and the same τ; bias does not fall with ε."));
      parts.push(more(`All ${number(one.rows.length)} slices`, table(one.measure, one.rows, [
        { name: "slice", text: true, get: (row) => row.label }, { name: "truth", get: (row) => row.truth, show: short }, { name: "sent", get: (row) => row.sent, show: short },
        { name: "keys", get: (row) => row.keys }, { name: "± standard deviation", get: (row) => row.deviation, show: short }, { name: "± 95 %", get: (row) => row.half_width, show: short },
      ])));
    }
  }
  return parts;
}

function explained(query, one) {
  const row = one.rows[0];
  const lines = [
    `Noise on each key: discrete Laplace with P[x] ∝ exp(−|x|·ε/Λ₁), ε = ${query.epsilon}, Λ₁ = ${number(query.l1)}: standard deviation ${short(query.deviation)} in contribution units.`,
    `One unit of ${one.measure} contributes scale = ${short(one.scale)}, so on ${one.measure} that is ${short(query.deviation)} / ${short(one.scale)} = ${short(query.deviation / one.scale)} per key.`,
    `RMSE = √ mean over slices of ((sent − truth)² + keys·σ²) = ${short(one.rmse)}. RMSRE = √ mean over ${number(one.slices)} slices of ((sent − truth)² + keys·σ²) / max(truth, τ)², σ = ${short(query.deviation / one.scale)}, τ = ${short(one.tau)}: ${percent(one.rmsre, 2)}.`,
    `Over single runs the mean square wanders by ${percent(one.tolerance)} (one standard deviation), because noise is random.`,
  ];
  if (row) lines.push(`Largest slice, ${row.label}: truth ${short(row.truth)}, sent ${short(row.sent)}, ${row.keys} ${row.keys === 1 ? "key" : "keys"}: √(${short(row.sent - row.truth)}² + ${row.keys}·${short(query.deviation / one.scale)}²) / max(${short(row.truth)}, ${short(one.tau)}) = ${percent(Math.sqrt((row.sent - row.truth) ** 2 + row.deviation ** 2) / Math.max(row.truth, one.tau), 2)}.`);
  return lines.map((text) => el("p", {}, text));
}
