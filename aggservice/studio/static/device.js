// One device's budgets over epochs: save, convert, clear by clicking; step through a scenario.

import { get, post } from "/api.js";
import { chart } from "/charts.js";
import { el, field, more, number, plain, problem, select, table } from "/dom.js";

const DESIGNS = [["w3c", "W3C Level 1: site, global, impression-site quota"], ["big-bird", "Big Bird: quotas and a cap per action"], ["cookie-monster", "Cookie Monster: site budgets alone"], ["global-only", "One global budget"]];

export async function show(root) {
  const view = el("div"), journal = el("div", { "aria-live": "polite" });
  let device = null;
  const draw = (state) => { view.replaceChildren(...budgets(state)); journal.replaceChildren(events(state)); };
  const act = (members) => async () => {
    try { draw(await post("device/do", { device, ...members() })); } catch (error) { journal.prepend(problem(error)); }
  };
  const fresh = async () => { const state = await post("device", { design: design.value }); device = state.device; draw(state); };
  const design = select(DESIGNS, "w3c", () => fresh().catch((error) => view.replaceChildren(problem(error))));
  const publisher = el("input", { value: "news.example", size: 16 }), index = el("input", { type: "number", value: 0, min: 0, max: 4095 });
  const shop = el("input", { value: "shop.example", size: 16 }), epsilon = el("input", { type: "number", value: 0.5, min: 0.001, step: 0.1 }), value = el("input", { type: "number", value: 10, min: 1 }), lookback = el("input", { type: "number", value: 7, min: 1, max: 30 });
  const site = el("input", { value: "shop.example", size: 16 }), days = el("input", { type: "number", value: 1, min: 1, max: 60 });
  const button = (id, text, members, kind) => el("button", { type: "button", id, class: kind, onclick: act(members) }, text);
  const live = el("div", {},
    el("div", { class: "row" }, field("Design", design), el("button", { type: "button", class: "plain", onclick: () => fresh() }, "New device")),
    el("div", { class: "row" }, field("Impression on", publisher), field("Histogram index", index), button("device-save", "Save impression", () => ({ what: "save", site: publisher.value, options: { histogramIndex: Number(index.value) } }))),
    el("div", { class: "row" }, field("Conversion on", shop), field("ε", epsilon), field("Value (of at most 10)", value), field("Lookback, days", lookback), button("device-convert", "Measure conversion", () => ({ what: "convert", site: shop.value, options: { aggregationService: "https://aggregation-service.example", histogramSize: 8, epsilon: Number(epsilon.value), value: Number(value.value), maxValue: 10, lookbackDays: Number(lookback.value) } }))),
    el("div", { class: "row" }, field("Days", days), button("device-wait", "Let time pass", () => ({ what: "wait", hours: 24 * Number(days.value) }), "plain"),
      field("Site", site), button("device-clear", "Site clears its impressions", () => ({ what: "clear", site: site.value }), "plain"),
      button("device-clear-data", "Clear site data, keep history", () => ({ what: "clear-data", sites: [site.value] }), "plain"),
      button("device-forget", "Forget visits to the site", () => ({ what: "forget", sites: [site.value] }), "plain"),
      button("device-forget-all", "Forget all visits", () => ({ what: "forget", sites: [] }), "plain"),
      button("device-disable", "Turn the API off", () => ({ what: "disable" }), "plain"), button("device-enable", "Turn it on", () => ({ what: "enable" }), "plain")));
  const scenarios = (await get("device/scenarios")).map((item) => [item.id, item.name]);
  const pick = select([["", "click through it yourself"], ...scenarios], "", () => stepTo(0));
  let total = 0, steps = 0;
  const stepper = el("div", { class: "row" });
  const stepTo = async (wanted) => {
    if (!pick.value) { live.hidden = false; stepper.replaceChildren(); await fresh(); return; }
    live.hidden = true;
    try {
      const state = await post("device/scenario", { scenario: pick.value, steps: wanted });
      ({ total, steps } = state);
      stepper.replaceChildren(
        el("button", { type: "button", class: "plain", disabled: steps === 0, onclick: () => stepTo(steps - 1) }, "Back"),
        el("button", { type: "button", id: "device-step", disabled: steps === total, onclick: () => stepTo(steps + 1) }, "Step"),
        el("button", { type: "button", class: "plain", onclick: () => stepTo(total) }, "To the end"), el("span", {}, `${steps} of ${total} events`));
      draw(state);
    } catch (error) { view.replaceChildren(problem(error)); }
  };
  root.append(
    el("h1", {}, "Device budgets"),
    el("p", { class: "lead" }, "In W3C Attribution budgets live on the device: per conversion site and epoch, beside a global budget and quotas. A page never learns what is shown here."),
    el("div", { class: "row" }, field("Scenario", pick)), stepper, live,
    el("div", { class: "columns" }, el("section", { class: "panel", "aria-label": "Budgets" }, view), el("section", { class: "panel", "aria-label": "What happened" }, journal)),
  );
  await fresh();
}

function budgets(state) {
  const rows = state.budgets.map((one) => ({ name: `${state.titles[one.filter]} ${one.site}`, epoch: one.epoch, left: one.left / 1e6, limit: state.limits[one.filter] / 1e6 }));
  const parts = [el("h2", {}, `Budgets after ${number(state.time_days, 1)} days`), state.enabled ? "" : el("p", { class: "note" }, "The API is off: reports are all zeros, and no page can tell.")];
  if (!rows.length) parts.push(el("p", {}, "Nothing was charged yet: every budget of every epoch is whole."));
  else parts.push(chart("What is left of each budget, by epoch", {
    marginLeft: 220, height: 70 + 36 * new Set(rows.map((row) => row.name)).size,
    x: { label: "ε left", zero: true }, fx: { label: "epoch" }, y: { label: null },
    marks: [Plot.barX(rows, { fx: "epoch", y: "name", x: "limit", fill: "var(--line)" }), Plot.barX(rows, { fx: "epoch", y: "name", x: "left", fill: "var(--accent)" })],
  }, `An epoch has ${state.epoch_days} days; a device draws where the first begins.`));
  parts.push(table("The same as numbers", rows, [{ name: "filter", text: true, get: (row) => row.name }, { name: "epoch", get: (row) => row.epoch }, { name: "ε left", get: (row) => row.left }, { name: "of", get: (row) => row.limit }]));
  parts.push(table(`${state.impressions.length} stored impressions`, state.impressions, [{ name: "site", text: true, get: (row) => row.site }, { name: "index", get: (row) => row.index }, { name: "day", get: (row) => row.days, show: (value) => number(value, 1) }, { name: "priority", get: (row) => row.priority }]));
  return parts;
}

function events(state) {
  const lines = state.journal.map((event) => {
    const what = [el("b", {}, event.what), ` on day ${number(event.days, 1)}`];
    if (event.site ?? event.fields?.site) what.push(` at ${event.site ?? event.fields.site}`);
    if (event.error) what.push(el("span", { class: "bad" }, ` refused: ${typeof event.error === "string" ? event.error : event.error.name}${event.text ? `: ${event.text}` : ""}`));
    if (event.result !== undefined && event.result !== null) what.push(" → ", el("code", {}, JSON.stringify(event.result)));
    if (event.refused_by?.length) what.push(el("span", { class: "bad" }, ` refused by the ${event.refused_by.map((name) => state.titles[name]).join(" and the ")}`));
    if (event.agrees === false) what.push(el("span", { class: "bad" }, ` expected ${JSON.stringify(event.expected)}`));
    if (event.agrees === true) what.push(el("span", { class: "good" }, " as expected"));
    if (event.epochs?.length) what.push(more("what each epoch paid", plain(event.epochs)));
    return el("li", {}, ...what);
  });
  return el("div", {}, el("h2", {}, "What happened"), el("ul", { class: "steps" }, lines.reverse()));
}
