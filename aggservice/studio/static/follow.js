// Walk one simulated report from its registration to its place in a summary.

import { get, items, post } from "/api.js";
import { el, field, more, plain, problem, select, short, table } from "/dom.js";

const SENT = "on the way";

export async function show(root) {
  const campaigns = [["demo", "the demo campaign"], ...(await items("campaign")).map((item) => [item.id, item.name])];
  const campaign = select(campaigns, "demo");
  const seed = el("input", { value: "studio", size: 10 });
  const conversion = el("input", { type: "number", min: 0, value: 0, size: 8 });
  const fate = select([["", "any"], [SENT, SENT]], SENT);
  const walk = el("div", { "aria-live": "polite" });
  const go = async (from) => {
    walk.replaceChildren(el("p", {}, "Following…"));
    try {
      const { toml } = await get("campaign", { campaign: campaign.value });
      const found = await post("follow", { toml, seed: seed.value, conversion: from, fate: fate.value });
      conversion.value = found.conversion;
      const kept = fate.value;
      fate.replaceChildren(el("option", { value: "" }, "any"), ...Object.entries(found.fates).map(([name, count]) => el("option", { value: name }, `${name} (${count})`)));
      fate.value = kept;
      walk.replaceChildren(
        el("h2", {}, `Conversion ${found.conversion} of ${found.conversions}: ${found.fate}`),
        el("ol", { class: "steps" }, found.steps.map((step) => el("li", { class: "panel" }, el("h3", {}, step.name), el("p", {}, step.text), ...values(step.values), el("p", {}, el("span", { class: "mono" }, `Explained in docs/${step.docs}`))))),
      );
    } catch (error) { walk.replaceChildren(problem(error)); }
  };
  root.append(
    el("h1", {}, "Follow a report"),
    el("p", { class: "lead" }, "One simulated conversion, step by step, through the real browser, wire format, collector, engine and ledger. A service's own reports can never be followed like this."),
    el("div", { class: "row" }, field("Campaign", campaign), field("Seed", seed), field("Conversion", conversion), field("That ended as", fate),
      el("button", { type: "button", id: "follow-go", onclick: () => go(Number(conversion.value)) }, "Follow"),
      el("button", { type: "button", class: "plain", id: "follow-next", onclick: () => go(Number(conversion.value) + 1) }, "Next")),
    walk,
  );
  await go(0);
}

function values(given) {
  return Object.entries(given).map(([name, value]) => {
    if (Array.isArray(value) && value.length && typeof value[0] === "object") {
      const columns = [...new Set(value.flatMap((row) => Object.keys(row)))].map((key) => ({ name: key, text: typeof value[0][key] !== "number", get: (row) => row[key], show: (one) => (one !== null && typeof one === "object" ? plain(one) : String(one ?? "–")) }));
      return table(name, value, columns, { sortable: false });
    }
    if (value !== null && typeof value === "object") return more(name, plain(value));
    const text = typeof value === "number" ? short(value) : String(value);
    return text.length > 120 ? more(`${name} (${text.length} characters)`, plain(text)) : el("p", {}, `${name}: `, el("span", { class: "mono" }, text));
  });
}
