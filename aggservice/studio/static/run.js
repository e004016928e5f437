// Run a campaign with progress, cancel it, and read what a run found; two runs side by side.

import { follow, folders, get, items, post } from "/api.js";
import { intervals, chart, waterfall } from "/charts.js";
import { csv, download, el, field, more, number, percent, plain, problem, say, select, short, table, tiles } from "/dom.js";

export async function show(root) {
  const campaigns = [["demo", "the demo campaign (Thanksgiving shoes)"], ...(await items("campaign", true)).map((item) => [item.id, item.name])];
  const results = el("div", { class: "columns" });
  const [picker, second, compared] = [el("span"), el("span"), el("span")];
  const refresh = async (chosen) => {
    const runs = (await items("run", true)).map((item) => [item.id, item.name]);
    const open = (slot) => async (event) => { await result(slot, event.target.value); };
    const panels = [el("section", { class: "panel", "aria-label": "First run" }), el("section", { class: "panel", "aria-label": "Second run" })];
    const pick = select([["", "choose a run"], ...runs], chosen ?? "", open(panels[0]));
    const other = select([["", "none"], ...runs], "", open(panels[1]));
    picker.replaceChildren(field("Show the run", pick));
    second.replaceChildren(field("Beside it", other));
    results.replaceChildren(...panels);
    const sets = (await items("comparison")).map((item) => [item.id, item.name]);
    compared.replaceChildren(sets.length ? field("Or one campaign on several APIs", select([["", "choose a comparison"], ...sets], "", async (event) => {
      if (!event.target.value) { results.replaceChildren(...panels); return; }
      const found = await get("comparison", { comparison: event.target.value });
      const slots = Object.entries(found.runs).map(([api, run]) => [el("section", { class: "panel", "aria-label": api }), api, run]);
      results.replaceChildren(...slots.map(([slot]) => slot));
      for (const [slot, api, run] of slots) { await result(slot, run); slot.prepend(el("h2", {}, `On ${api.toUpperCase()}`)); }
    })) : "");
    if (chosen && runs.some(([id]) => id === chosen)) await result(panels[0], chosen);
  };
  const wanted = location.hash.split("/").slice(1).join("/");
  const choice = select(campaigns, campaigns.some(([id]) => id === wanted) ? wanted : "demo");
  const seed = el("input", { placeholder: "none: private noise", size: 18 });
  const places = (await folders()).map((name, index) => [String(index), name]);
  const folder = select(places, "0");
  const three = el("input", { type: "checkbox" });
  const live = el("div", { "aria-live": "polite" });
  const button = el("button", { type: "button", id: "run-start", onclick: async () => {
    try {
      const campaign = await get("campaign", { campaign: choice.value });
      await start(live, { toml: campaign.toml, folder: Number(folder.value), seed: seed.value, compare: three.checked, ...(choice.value === "demo" ? {} : { campaign: choice.value }) }, refresh);
    } catch (error) { live.replaceChildren(problem(error)); }
  } }, "Run");
  root.append(
    el("h1", {}, "Run"),
    el("p", { class: "lead" }, "A campaign runs through browsers, encryption, service and ledger; the truth stands beside what the service released, because everything is simulated."),
    el("div", { class: "row" }, field("Campaign", choice), field("Seed (makes it repeatable, and not private)", seed), field("Write to", folder), field("On ARA, PAA and W3C", three), button),
    live,
    el("div", { class: "row" }, picker, second, compared),
    results,
  );
  await refresh();
}

const STAGES = ["simulate", "attribute", "collect", "seal", "query", "losses", "assess", "draw"];

export async function start(live, request, done) {
  const started = await post("runs", request);
  const lines = new Map();
  const list = el("div");
  const cancel = el("button", { type: "button", class: "plain", id: "run-cancel", onclick: () => post("runs/cancel", { feed: started.feed }).catch(() => {}) }, "Cancel");
  live.replaceChildren(list, cancel);
  const line = (stage) => {
    if (!lines.has(stage)) {
      const bar = el("progress", { max: 1, value: 0, "aria-label": stage });
      const text = el("span", {});
      lines.set(stage, { bar, text });
      list.append(el("div", { class: "bar" }, el("span", {}, stage), bar, text));
    }
    return lines.get(stage);
  };
  STAGES.forEach(line);
  const end = await follow(started.feed, (event) => {
    const { bar, text } = line(event.stage);
    bar.max = Math.max(1, event.total);
    bar.value = event.total ? event.done : 0;
    if (!event.total) bar.removeAttribute("value");
    text.textContent = event.total > 1 ? `${number(event.done)} of ${number(event.total)}` : "";
  });
  cancel.remove();
  if (end.state === "finished") { say("The run is finished."); live.replaceChildren(); await done(started.run); }
  else live.replaceChildren(el("p", { class: end.state === "failed" ? "error" : "note", role: "alert", id: "run-end" }, end.state === "failed" ? end.error : "The run was cancelled; nothing of it was kept."));
}

async function result(slot, run) {
  slot.replaceChildren();
  if (!run) return;
  try {
    const { metrics, shown, transcript, ledger } = await get("result", { run });
    slot.append(el("h2", {}, metrics.campaign), el("p", { class: "lead" }, metrics.description));
    slot.append(tiles([
      ["people", number(metrics.events.people)], ["ads shown", number(metrics.events.impressions)],
      ["conversions", number(metrics.events.conversions)], ["reports in batches", number(metrics.reports.in_batches)],
    ]));
    if (!metrics.private) slot.append(el("p", { class: "note" }, "Not private: this run came from a seed, and whoever knows it can remove the noise."));
    for (const query of metrics.queries) slot.append(...queryParts(metrics, query, shown));
    const left = metrics.ledger.left.at(-1);
    if (left) slot.append(el("p", {}, `After ${left.job}, the poorest ${metrics.ledger.unit} has ε = ${left.epsilon} left of ${metrics.ledger.epsilon}.`));
    if (metrics.ledger.refused.length) slot.append(el("p", { class: "note" }, `Refused, because units could not pay: ${metrics.ledger.refused.join(", ")}.`));
    if (ledger) slot.append(el("p", {}, el("a", { href: `#ledger/${ledger}` }, "Open this run's ledger: entries, receipts, audit")));
    if (transcript) slot.append(more("True loss of each unit beside what was charged", plain(transcript)));
    slot.append(more("metrics.json", plain(metrics)));
  } catch (error) { slot.append(problem(error)); }
}

const COLUMNS = [
  { name: "slice", get: (row) => row.label, text: true }, { name: "measure", get: (row) => row.measure, text: true },
  { name: "truth", get: (row) => row.truth, show: short }, { name: "sent", get: (row) => row.sentNatural, show: short },
  { name: "estimate", get: (row) => row.estimate, show: short },
  { name: "95 % from", get: (row) => row.low, show: short }, { name: "to", get: (row) => row.high, show: short },
  { name: "error", get: (row) => row.relative_error ?? 0, show: (value, row) => percent(row.relative_error) },
];

function queryParts(metrics, query, shown) {
  const parts = [el("h3", {}, `Query: ${query.name}`)];
  parts.push(tiles(query.measures.flatMap((one) => [
    ...shown.filter((metric) => metric.key in one).map((metric) => [`${one.measure}: ${metric.title}`, metric.share ? percent(one[metric.key]) : short(one[metric.key])]),
  ])));
  const jobs = metrics.jobs.filter((job) => job.query === query.name && job.paid);
  const job = jobs.at(-1);
  if (!job) return [...parts, el("p", { class: "note" }, "No job of this query could be paid.")];
  const scales = Object.fromEntries(query.measures.map((one) => [one.measure, fraction(one.scale)]));
  const rows = job.slices.map((slice) => ({ ...slice, label: Object.values(slice.names).filter((name) => name !== slice.measure).join(" · "), sentNatural: slice.sent / (scales[slice.measure] || 1) }));
  const holder = el("div");
  const fill = (text) => {
    const found = rows.filter((row) => row.label.toLowerCase().includes(text.toLowerCase()));
    holder.replaceChildren(table(`${job.job}: ${number(found.length)} of ${number(job.slice_count)} slices, largest truth first`, found, COLUMNS));
  };
  fill("");
  const search = el("input", { type: "search", oninput: (event) => fill(event.target.value) });
  for (const one of query.measures) {
    parts.push(intervals(`${one.measure} of ${job.job}: truth, estimate and 95 % interval`, rows.filter((row) => row.measure === one.measure), `${one.measure}: the interval is for what browsers sent (column sent); what was capped, clipped, lost or late before is bias, which no interval covers.`));
  }
  parts.push(el("div", { class: "row" }, field("Search slices", search), el("button", { type: "button", class: "plain", onclick: () => download(`${job.job}.csv`, "text/csv", csv(rows, COLUMNS)) }, "Download CSV")));
  parts.push(holder);
  const sized = rows.filter((row) => row.truth > 0 && row.relative_error !== null);
  if (sized.length > 1) parts.push(chart("Relative error against the size of the slice", {
    x: { type: "log", label: "truth" }, y: { label: "relative error", grid: true },
    marks: [Plot.dot(sized, { x: "truth", y: "relative_error", fill: "var(--accent)", r: 3 })],
  }, "Small slices drown in noise of one scale; large ones do not notice it."));
  for (const one of query.measures) {
    const fall = one.waterfall;
    if (!fall) continue;
    const steps = [{ name: "happened", count: fall.happened.conversions }, ...fall.steps.filter((step) => step.conversions).map((step) => ({ name: step.step, count: step.conversions })), { name: "counted", count: fall.counted.conversions, total: true }];
    parts.push(waterfall(`Where conversions went (${one.measure})`, steps));
  }
  parts.push(more("What this summary guarantees", el("p", { class: "ok" }, query.statement)));
  return parts;
}

function fraction(text) {
  const [up, down = "1"] = text.split("/");
  return Number(up) / Number(down);
}
