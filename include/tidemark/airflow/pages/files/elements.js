// Helpers that make elements. All content is set as text, never as markup.

const MARKS_MAX = 8;

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value) made.setAttribute(key, value);
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

export function link(page, parameters, text) {
  return el("a", { href: `${page}?${new URLSearchParams(parameters)}` }, String(text));
}

// A table of columns {name, title, cell, number}; cells are texts or elements. What `below` has about a row
// comes after it, over all columns.
export function table(label, columns, rows, empty, below = () => "") {
  if (!rows.length) return el("p", { class: "quiet" }, empty);
  const head = el("tr", {}, columns.map((one) => el("th", { scope: "col", title: one.title, class: one.number && "number" }, one.name)));
  const body = rows.flatMap((row) => {
    const more = below(row);
    const cells = columns.map((one) => el("td", { class: [one.number && "number", one.kind].filter(Boolean).join(" ") }, one.cell(row)));
    const line = el("tr", { class: more && "continued" }, cells);
    return more ? [line, el("tr", { class: "below" }, el("td", { colspan: columns.length }, more))] : [line];
  });
  const whole = el("table", {}, el("caption", { class: "quiet", hidden: "hidden" }, label), el("thead", {}, head), el("tbody", {}, body));
  return el("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" }, whole);
}

export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== "" && value !== null);
  return el("dl", { class: "facts" }, known.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

// Text with commands in backticks, which become code.
export const prose = (text) => String(text).split("`").map((part, index) => (index % 2 ? el("code", {}, part) : part));

export const marked = (text, kind) => el("span", { class: kind }, text);
export const count = (number) => (number === null || number === undefined ? "" : Number(number).toLocaleString("en"));
export function bytes(number) {
  if (number === null || number === undefined) return "";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let size = number, place = 0;
  while (size >= 1024 && place < units.length - 1) [size, place] = [size / 1024, place + 1];
  return place ? `${size.toFixed(1)} ${units[place]}` : `${count(size)} ${size === 1 ? "byte" : "bytes"}`;
}

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

// All verdicts of a transaction, the oldest first: a mark for each, a ring for a replay, and the last word.
export function verdicts(found) {
  if (!found.length) return "";
  const last = found[found.length - 1];
  const said = found.map((one) => `${one.verdict}${one.replayed ? " (replay)" : ""}`).join(", ");
  const marks = found.slice(-MARKS_MAX).map((one) => marked(one.verdict !== "identical" ? "✕" : one.replayed ? "○" : "●", one.verdict === "identical" ? "good" : "bad"));
  const row = el("span", { class: "marks", role: "img", "aria-label": said, title: said }, found.length > MARKS_MAX ? "…" : "", ...marks);
  return el("span", { class: "verdicts" }, row, verdict(last.verdict));
}
