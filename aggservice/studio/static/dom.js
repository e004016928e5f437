// Elements without markup: text from files and requests is always a text node.

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked" || key === "disabled") made[key] = value;
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

let fields = 0;

// A labelled field: [element to show, the input itself].
export function field(label, input) {
  input.id = input.id || `field-${++fields}`;
  return el("div", {}, el("label", { for: input.id }, label), input);
}

export function select(options, value, onchange) {
  const made = el("select", { onchange }, options.map(([key, text]) => el("option", { value: key }, text)));
  if (value !== undefined) made.value = value;
  return made;
}

export function number(value, digits = 0) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export const percent = (value, digits = 1) => (value === null || value === undefined ? "–" : `${number(value * 100, digits)} %`);

// A number with about three significant digits.
export function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 100 || value === 0) return number(value);
  if (size < 0.001) return value.toExponential(2);
  return number(value, Math.max(0, 2 - Math.floor(Math.log10(size))));
}

export function tiles(pairs) {
  return el("ul", { class: "tiles" }, pairs.map(([name, value, kind]) => el("li", {}, el("b", { class: kind }, value), el("span", {}, name))));
}

// A table that sorts by its heads. Columns: {name, get, show, text}.
export function table(caption, rows, columns, { sortable = true } = {}) {
  const body = el("tbody");
  let by = null, down = true;
  const fill = () => {
    const order = by === null ? rows : [...rows].sort((a, b) => {
      const [x, y] = [by.get(a), by.get(b)];
      const sign = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return down ? -sign : sign;
    });
    body.replaceChildren(...order.map((row) => el("tr", {}, columns.map((column) => {
      const shown = (column.show ?? ((value) => value))(column.get(row), row);
      return el("td", { class: column.text ? "text" : null }, shown ?? "–");
    }))));
  };
  const heads = columns.map((column) => {
    const head = el("th", { scope: "col", class: column.text ? "text" : null });
    if (!sortable) { head.append(column.name); return head; }
    head.append(el("button", { type: "button", onclick: () => {
      down = by === column ? !down : true;
      by = column;
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      fill();
    } }, column.name));
    return head;
  });
  fill();
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, heads)), body));
}

export function plain(value) {
  return el("pre", { tabindex: 0 }, typeof value === "string" ? value : JSON.stringify(value, null, 1));
}

export function more(summary, ...children) {
  return el("details", {}, el("summary", {}, summary), ...children);
}

export function problem(error) {
  return el("p", { class: "error", role: "alert" }, error.message ?? String(error));
}

export function say(text) {
  document.getElementById("status").textContent = text;
  if (text) setTimeout(() => { const status = document.getElementById("status"); if (status.textContent === text) status.textContent = ""; }, 4000);
}

export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

export function csv(rows, columns) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns.map((column) => cell(column.name)).join(","), ...rows.map((row) => columns.map((column) => cell(column.get(row))).join(","))].join("\n") + "\n";
}
