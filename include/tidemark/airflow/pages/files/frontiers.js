// Charts: the frontiers of a pipeline, to scale, in transactions; and small charts of its newest transactions.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 1200, LABEL = 190, VALUE = 70, ROW = 22, AXIS = 24, MORE = 130;

function drawn(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// The frontiers to draw: name, transaction and kind of each.
export function rowsOf(status) {
  const waits = status.waiting.known && status.waiting.pieces > 0;
  const rows = [
    ...(waits ? [{ name: "source", at: status.bound, kind: "bar", more: `${status.waiting.pieces.toLocaleString("en")} waiting` }] : []),
    { name: "bound", at: status.bound, kind: "bar" },
    { name: "sealed", at: status.sealed, kind: "bar" },
    { name: "checkpoint", at: status.checkpoint, kind: "bar" },
  ];
  for (const one of status.shards) {
    rows.push({ name: `${one.shard} log`, at: one.log_upper - 1, kind: one.paused ? "held" : "log" });
    if (one.shard !== "quarantine") rows.push({ name: `${one.shard} state`, at: one.published, kind: "state" });
    for (const reader of status.consumers) if (reader.shard === one.shard) rows.push({ name: `${one.shard} → ${reader.consumer}`, at: reader.frontier - 1, kind: reader.frozen ? "held" : "reader" });
  }
  for (const lease of status.leases) rows.push({ name: `lease ${lease.name}`, at: lease.txn - 1, kind: "reader" });
  return rows;
}

// The visible part of the axis. A small lag behind many transactions would be too thin to see, so the axis may
// start above 0, as its first number shows. The log of a shard that no transaction touches stays behind.
export function axisOf(rows, bound) {
  const lowest = Math.min(...rows.map((row) => row.at));
  const spread = bound - lowest;
  const from = spread * 4 < bound ? Math.max(0, lowest - Math.max(5, spread)) : 0;
  return { from, to: Math.max(bound, from + 1) };
}

export function frontiers(status) {
  const rows = rowsOf(status), axis = axisOf(rows, status.bound);
  const height = rows.length * ROW + AXIS, room = WIDTH - LABEL - VALUE;
  const scaled = rows.some((row) => row.more) ? room - MORE : room;
  const x = (at) => LABEL + (scaled * (Math.max(at, axis.from) - axis.from)) / (axis.to - axis.from);
  const said = rows.map((row) => `${row.name} ${row.at}${row.more ? ` and ${row.more}` : ""}`).join(", ");
  const picture = drawn("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `Frontiers: ${said}` });
  rows.forEach((row, index) => {
    const y = index * ROW;
    picture.append(
      drawn("rect", { class: "back", x: LABEL, y: y + 3, width: room, height: ROW - 6 }),
      drawn("rect", { class: row.kind, x: LABEL, y: y + 3, width: Math.max(0, x(row.at) - LABEL), height: ROW - 6 }),
      drawn("text", { x: 0, y: y + 15 }, row.name.length > 28 ? `${row.name.slice(0, 27)}…` : row.name),
      drawn("text", { x: LABEL + room + 8, y: y + 15 }, row.more ? "" : String(row.at)),
    );
    // Input that is not bound has no number yet: it is drawn after the axis, not to scale.
    if (row.more) picture.append(
      drawn("rect", { class: "more", x: x(row.at) + 2, y: y + 4, width: MORE - 4, height: ROW - 8 }),
      drawn("text", { class: "axis", x: x(row.at) + 8, y: y + 15 }, row.more),
    );
  });
  const ticks = [axis.from, Math.round((axis.from + axis.to) / 2), axis.to];
  for (const at of new Set(ticks)) {
    const end = at === axis.to ? "end" : at === axis.from ? "start" : "middle";
    picture.append(
      drawn("line", { class: "grid", x1: x(at), x2: x(at), y1: 0, y2: height - AXIS + 4 }),
      drawn("text", { class: "axis", x: x(at), y: height - 6, "text-anchor": end }, `transaction ${at}`),
    );
  }
  return picture;
}

// A bar for each value, the newest at the right. An unknown value leaves a gap; `marked` values are highlighted.
export function sparkline(label, values, marked = () => false) {
  const bar = 3, gap = 1, height = 20, width = Math.max(1, values.length) * (bar + gap);
  const most = Math.max(1e-9, ...values.map((one) => one ?? 0));
  const picture = drawn("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  picture.append(drawn("title", {}, label));
  values.forEach((value, index) => {
    if (value === null || value === undefined) return;
    const tall = Math.max(1, (value / most) * height);
    picture.append(drawn("rect", { class: marked(index) ? "held" : "bar", x: index * (bar + gap), y: height - tall, width: bar, height: tall }));
  });
  return picture;
}

export const STEPS = { ingest: "bar", validate: "state", upsert: "log" };

const MOMENTS = { staged: "bar", judged: "state", sealed: "log" };

// The colour of a step, before its name.
export function swatch(step) {
  const made = document.createElement("i");
  made.className = MOMENTS[step] ?? "none";
  return made;
}

// The steps of a transaction in a row of a table: a bar as long as its duration is of `most` seconds.
export function stepsMark(steps, most) {
  const timed = Object.keys(STEPS).filter((name) => steps[name] !== undefined);
  if (!timed.length || !most) return "";
  const label = timed.map((name) => `${name} ${steps[name].toFixed(1)} s`).join(", ");
  const picture = drawn("svg", { class: "mark", viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": label });
  picture.append(drawn("title", {}, label), drawn("rect", { class: "back", x: 0, y: 0, width: 100, height: 6 }));
  let x = 0;
  for (const name of timed) {
    const width = (100 * steps[name]) / most;
    picture.append(drawn("rect", { class: STEPS[name], x, y: 0, width, height: 6 }));
    x += width;
  }
  return picture;
}

// Consecutive steps, each as wide as its duration.
export function stepsBar(steps) {
  const timed = steps.filter((one) => one.seconds !== null && !one.step.startsWith("in the log"));
  const total = timed.reduce((sum, one) => sum + one.seconds, 0);
  if (!total) return "";
  const picture = drawn("svg", { class: "steps", viewBox: "0 0 1200 18", role: "img", "aria-label": timed.map((one) => `${one.step} ${one.seconds.toFixed(1)} s`).join(", ") });
  let x = 0;
  for (const one of timed) {
    const width = (1200 * one.seconds) / total;
    const part = drawn("rect", { class: MOMENTS[one.step] ?? "bar", x, y: 0, width, height: 18 });
    part.append(drawn("title", {}, `${one.step}: ${one.seconds.toFixed(1)} s`));
    picture.append(part);
    x += width;
  }
  return picture;
}
