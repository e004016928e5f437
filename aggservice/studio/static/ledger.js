// A ledger: what was charged, what is left, proofs, audits with progress, and tampering with a copy.

import { follow, get, items, post } from "/api.js";
import { bars, line } from "/charts.js";
import { el, field, more, number, plain, problem, select, table, tiles } from "/dom.js";

const time = (ms) => (typeof ms === "number" ? new Date(ms).toISOString().replace("T", " ").slice(0, 19) : String(ms ?? "–"));

export async function show(root) {
  const ledgers = (await items("ledger", true)).map((item) => [item.id, item.name]);
  const wanted = location.hash.split("/").slice(1).join("/");
  const view = el("div");
  const open = (id) => openLedger(view, { ledger: id }).catch((error) => view.replaceChildren(problem(error)));
  const pick = select([["", "choose a ledger"], ...ledgers], wanted, (event) => event.target.value && open(event.target.value));
  const address = el("input", { placeholder: "127.0.0.1:50051", size: 20 });
  const token = el("input", { type: "password", placeholder: "token", size: 20, autocomplete: "off" });
  root.append(
    el("h1", {}, "Ledger"),
    el("p", { class: "lead" }, "Every charge is an entry of a hash-chained log that anyone can replay. Nothing here changes a ledger."),
    el("div", { class: "row" }, field("Ledger or exported log", pick)),
    more("A running service", el("div", { class: "row" }, field("Address", address), field("Token", token),
      el("button", { type: "button", onclick: () => openLedger(view, { service: address.value, ...(token.value ? { token: token.value } : {}) }).catch((error) => view.replaceChildren(problem(error))) }, "Open"))),
    view,
  );
  if (wanted && ledgers.some(([id]) => id === wanted)) await open(wanted);
}

async function openLedger(view, source) {
  view.replaceChildren(el("p", {}, "Reading…"));
  const found = source.service ? await post("ledger/service", source) : await get("ledger", source);
  const parts = [];
  if (found.limit) {
    parts.push(tiles([
      ["privacy unit", found.unit], [`limit per unit, ${found.loss}`, found.limit[found.loss]], ["units charged", number(found.units)],
      ["units with nothing left", number(found.spent_out)], ["most spent by a unit", found.most[found.loss]],
    ]));
    if (found.balances.length) parts.push(bars("Units by what they have spent", found.balances, { x: "spent", y: "units", xLabel: `${found.loss} spent` }));
  }
  if (found.timeline) parts.push(...timeline(source, found));
  if (found.entries) parts.push(table("Entries", found.entries, Object.keys(found.entries[0] ?? {}).slice(0, 6).map((name) => ({ name, text: true, get: (row) => row[name], show: (value) => (typeof value === "object" ? JSON.stringify(value) : String(value)) }))));
  parts.push(...audit(source, found));
  if (found.limit) parts.push(unitPart(source));
  view.replaceChildren(...parts);
}

function timeline(source, found) {
  const limit = found.limit ? Number(found.limit[found.loss]) : null;
  const rows = found.timeline.filter((entry) => entry.type !== "genesis").map((entry) => ({ ...entry, at: entry.seq, who: entry.job_id ?? entry.reason }));
  const detail = el("div");
  const parts = [el("h2", {}, "Requests against the budget")];
  if (rows.length) parts.push(line("What the poorest unit of each entry had spent afterwards", rows, { x: "at", y: "most_spent", xLabel: "entry", yLabel: "spent", limit, whole: true }, limit === null ? "The log alone" : `The dashed line is the limit, ${limit}; a request past it is refused and leaves no entry.`));
  parts.push(table(`${number(rows.length)} entries that charged`, rows, [
    { name: "entry", get: (row) => row.seq }, { name: "time", text: true, get: (row) => row.time_ms, show: time },
    { name: "job", text: true, get: (row) => row.who, show: (value, row) => el("button", { type: "button", class: "plain", onclick: () => detail.replaceChildren(el("h3", {}, `Entry ${row.seq}`), plain(row)) }, value) },
    { name: "units", get: (row) => row.units?.count ?? 0, show: (value) => number(value) },
    { name: "cost", text: true, get: (row) => Object.entries(row.cost ?? {}).map(([name, value]) => `${name} ${value}`).join(", ") },
    { name: "poorest unit has spent", get: (row) => row.most_spent },
    ...(found.limit ? [{ name: "proof", text: true, get: (row) => row.seq, show: (_, row) => (row.caller ? el("button", { type: "button", class: "plain", onclick: async () => { try { detail.replaceChildren(...merkle(await get("ledger/receipt", { ...source, caller: row.caller, job: row.job_id }))); } catch (error) { detail.replaceChildren(problem(error)); } } }, "receipt") : "–") }] : []),
  ]), detail);
  if (found.refused?.length) parts.push(table("Refused: these jobs charged nothing and left no entry", found.refused, [{ name: "job", text: true, get: (row) => row.job }, { name: "why", text: true, get: (row) => row.refusal }]));
  return parts;
}

function audit(source, found) {
  const report = el("div", { "aria-live": "polite", id: "audit" });
  const run = async (start) => {
    report.replaceChildren(el("progress", { "aria-label": "verifying" }), el("span", {}, " replaying the log…"));
    try {
      const { feed } = await start();
      const end = await follow(feed, (event) => { report.lastChild.textContent = ` ${number(event.done)} units compared`; });
      if (end.state === "failed") { report.replaceChildren(el("p", { class: "error", role: "alert" }, end.error)); return; }
      const { ok, disagreement, changed } = end.report;
      report.replaceChildren(
        changed ? el("p", {}, `In the copy, ${changed}.`) : "",
        el("p", { class: ok ? "ok" : "error", role: "alert" }, ok ? "Everything agrees: log, receipts, jobs, results and balances." : `Disagreement${disagreement?.seq === null || disagreement?.seq === undefined ? "" : ` at entry ${disagreement.seq}`}: ${disagreement?.what ?? ""}: ${disagreement?.text ?? end.report.text ?? ""}`),
        more("The whole report", plain(end.report)),
      );
    } catch (error) { report.replaceChildren(problem(error)); }
  };
  const how = select(Object.entries(found.tamperings), "balance");
  const parts = [el("h2", {}, "Audit"), el("div", { class: "row" }, el("button", { type: "button", id: "ledger-verify", onclick: () => run(() => post("ledger/verify", source)) }, "Verify"))];
  if (Object.keys(found.tamperings).length) parts[1].append(field("Or tamper with a copy", how), el("button", { type: "button", class: "plain", id: "ledger-tamper", onclick: () => run(() => post("ledger/tamper", { ...source, how: how.value, seed: Math.floor(Math.random() * 2 ** 31) })) }, "Tamper and verify the copy"));
  return [...parts, report];
}

function unitPart(source) {
  const unit = el("input", { size: 42, placeholder: "40 hex digits", class: "mono" });
  const shown = el("div", { "aria-live": "polite" });
  const ask = (work) => async () => { try { shown.replaceChildren(...await work()); } catch (error) { shown.replaceChildren(problem(error)); } };
  return el("div", {}, el("h2", {}, "One unit"),
    el("div", { class: "row" }, field("Unit", unit), el("button", { type: "button", onclick: ask(async () => {
      const found = await get("ledger/unit", { ...source, unit: unit.value });
      return [el("p", {}, "Spent: ", el("b", {}, JSON.stringify(found.spent)), " of ", JSON.stringify(found.limit)), table("Entries that charged it", found.entries, [{ name: "entry", get: (row) => row.seq }, { name: "time", text: true, get: (row) => row.time_ms, show: time }, { name: "job", text: true, get: (row) => row.job_id ?? row.reason }])];
    }) }, "History of the unit")),
    shown);
}

// The Merkle path as nested boxes in text: each step joins a sibling until the signed root.
function merkle(receipt) {
  const cut = (hex) => `${hex.slice(0, 12)}…`;
  return [
    el("h3", {}, `Proof that entry ${receipt.entry.seq} is among ${number(receipt.entries)} signed entries`),
    el("ol", { class: "steps" },
      el("li", {}, "the entry's hash ", el("code", {}, cut(receipt.leaf))),
      receipt.nodes.map((node) => el("li", {}, "joined with ", el("code", {}, cut(node.sibling)), node.left ? " on the left" : " on the right", " gives ", el("code", {}, cut(node.node)))),
      el("li", {}, "which must be the signed root ", el("code", {}, cut(receipt.root)))),
    more("Receipt", plain(receipt)),
  ];
}
