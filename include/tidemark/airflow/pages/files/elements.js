// Helpers that make elements. All content is set as text, never as markup.

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value) made.setAttribute(key, value);
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

export function link(page, parameters, text) {
  return el("a", { href: `${page}?${new URLSearchParams(parameters)}` }, String(text));
}

// A table of columns {name, cell, number}; cells are texts or elements.
export function table(label, columns, rows, empty) {
  if (!rows.length) return el("p", { class: "quiet" }, empty);
  const head = el("tr", {}, columns.map((one) => el("th", { scope: "col", class: one.number && "number" }, one.name)));
  const body = rows.map((row) =>
    el("tr", {}, columns.map((one) => el("td", { class: [one.number && "number", one.kind].filter(Boolean).join(" ") }, one.cell(row)))));
  const whole = el("table", {}, el("caption", { class: "quiet", hidden: "hidden" }, label), el("thead", {}, head), el("tbody", {}, body));
  return el("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" }, whole);
}

export function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

export const marked = (text, kind) => el("span", { class: kind }, text);
export const count = (number) => (number === null || number === undefined ? "" : Number(number).toLocaleString("en"));
export const moment = (text) => (text ? text.replace("T", " ").replace(/(\.\d+)?Z$/, " UTC") : "");

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const units = [["d", 86400], ["h", 3600], ["m", 60]];
  const place = units.findIndex(([, size]) => seconds >= size);
  if (place < 0) return `${Math.max(seconds, 0).toFixed(1)} s`;
  const [unit, size] = units[place];
  const [lower, lowerSize] = units[place + 1] ?? ["s", 1];
  const rest = Math.floor((seconds % size) / lowerSize);
  return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${lower}` : ""}`;
}

export const age = (text) => (text ? span((Date.now() - Date.parse(text)) / 1000) : "");
export const verdict = (word) => (word ? marked(word, word === "identical" ? "good" : "bad") : "");
