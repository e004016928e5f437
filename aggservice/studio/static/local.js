// Local DP: what a device memoizes and reports, how an estimate sharpens, how trackable a device becomes.

import { post } from "/api.js";
import { line, chart } from "/charts.js";
import { el, field, more, number, plain, problem, select, short, tiles } from "/dom.js";

export async function show(root) {
  const method = select([["RAPPOR", "RAPPOR"]], "RAPPOR"); // the first answer names the others
  const k = el("input", { type: "number", value: 16, min: 2, max: 256 }), value = el("input", { type: "number", value: 3, min: 0 });
  const epsilon = el("input", { type: "number", value: 2, min: 0.1, step: 0.1 }), first = el("input", { type: "number", value: 1, min: 0.05, step: 0.05 });
  const reports = el("input", { type: "number", value: 5, min: 1, max: 30 });
  const device = el("section", { class: "panel", "aria-label": "One device" }), fleet = el("section", { class: "panel", "aria-label": "Many devices" }), track = el("section", { class: "panel", "aria-label": "Tracking" });
  const members = () => ({ method: method.value, k: Number(k.value), value: Number(value.value), epsilon: String(epsilon.value), first: String(first.value), reports: Number(reports.value) });
  const go = async () => {
    for (const [part, work] of [[device, one], [fleet, many], [track, tracked]]) part.replaceChildren(el("p", {}, "Working…"));
    try {
      const found = await post("local-dp", members());
      if (method.options.length === 1) method.append(...Object.entries(found.methods).filter(([name]) => name !== "RAPPOR").map(([name, words]) => el("option", { value: name, title: words }, name)));
      device.replaceChildren(...one(found));
      fleet.replaceChildren(...many(found));
    } catch (error) { device.replaceChildren(problem(error)); fleet.replaceChildren(); track.replaceChildren(); return; }
    try { track.replaceChildren(...tracked(await post("local-dp/tracking", { ...members(), reports: 12 }))); }
    catch (error) { track.replaceChildren(el("h2", {}, "Tracking"), problem(error)); }
  };
  root.append(
    el("h1", {}, "Local DP"),
    el("p", { class: "lead" }, "Each device randomizes its own value. It keeps its first random answer, so that asking again does not wear the protection down to nothing."),
    el("div", { class: "row" }, field("Method", method), field("Values k", k), field("The device's value", value), field("ε∞, of all reports of a value", epsilon), field("ε₁, of the first report", first), field("Reports", reports), el("button", { type: "button", id: "local-go", onclick: go }, "Report")),
    el("div", { class: "columns" }, device, fleet, track),
  );
  await go();
}

function one(found) {
  return [
    el("h2", {}, "One device"),
    tiles([["exact ε of one report", short(found.privacy.first)], ["ε of all reports of one value", short(found.privacy.permanent)], ["ε over all values, at worst", short(found.privacy.worst_case)]]),
    el("h3", {}, "What it memoized (never sent as it is, if there is a second step)"), plain(found.memo),
    el("h3", {}, "What it sent"), ...found.reports.map((report, index) => el("p", { class: "mono" }, `${index + 1}: ${JSON.stringify(report)}`)),
    more("Parameters", plain(found.method)),
  ];
}

function many(found) {
  const rows = found.fleets.flatMap((fleet) => [{ users: fleet.users, error: Math.sqrt(fleet.mse), kind: "this draw" }, { users: fleet.users, error: Math.sqrt(fleet.expected), kind: "expected, from V*" }]);
  const last = found.fleets.at(-1);
  const cells = last.truth.flatMap((truth, index) => [{ value: index, share: truth, kind: "truth" }, { value: index, share: last.estimate[index], kind: "estimate" }]);
  return [
    el("h2", {}, "Many devices"),
    line("Root mean square error of a frequency, by number of users", rows, { x: "users", y: "error", series: "kind", log: true, yLog: true, yLabel: "error of a frequency" }, "Ten times the users, a third of the error: noise falls with the square root."),
    chart(`Frequencies of ${number(last.users)} users`, { x: { label: "value" }, y: { label: "share", grid: true }, color: { legend: true }, marks: [Plot.ruleY([0]), Plot.dot(cells, { x: "value", y: "share", stroke: "kind", symbol: "kind" })] }),
  ];
}

function tracked(found) {
  const rows = found.rows.flatMap((row) => [{ reports: row.reports, tau: row.median, kind: "median" }, { reports: row.reports, tau: row.high, kind: "90th percentile" }]).filter((row) => typeof row.tau === "number");
  if (!rows.length) return [el("h2", {}, "Tracking"), el("p", { class: "note" }, "Every report of this method names its device (its hash function or its sampled bits): two reports show at once whether they come from one device.")];
  return [el("h2", {}, "Tracking"), line("How well an observer tells one device from two, by number of reports", rows, { x: "reports", y: "tau", series: "kind", yLabel: "trackability τ" }, "After that many reports, the odds that two series come from one device change by a factor of up to e^τ (Naor and Vexler).")];
}
