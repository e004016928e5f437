// Shows one part at a time; the address after # names it, so that a part can be linked to.

import { el, problem } from "/dom.js";

const PARTS = { tune: "Tune", run: "Run", follow: "Follow a report", ledger: "Ledger", device: "Device budgets", local: "Local DP" };

async function show() {
  const name = location.hash.slice(1).split("/")[0] || "tune";
  const part = Object.hasOwn(PARTS, name) ? name : "tune";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${part}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${PARTS[part]} · aggservice studio`;
  const main = document.getElementById("part");
  main.replaceChildren(el("h1", {}, PARTS[part]), el("p", {}, "Loading…"));
  try {
    const module = await import(`/${part}.js`);
    const made = el("div");
    await module.show(made);
    main.replaceChildren(made);
  } catch (error) {
    main.replaceChildren(el("h1", {}, PARTS[part]), problem(error));
  }
  document.body.dataset.part = part;
}

window.addEventListener("hashchange", () => { show().then(() => document.getElementById("part").focus()); });
show();
