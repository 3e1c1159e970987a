// Tidemark's pages in Airflow. All content is set as text, never as markup.

import { actionsOfPipeline, actionsOfTransaction, showActions } from "./actions.js";
import { age, count, el, facts, link, marked, moment, span, table, verdict } from "./elements.js";
import { frontiers, sparkline, stepsBar } from "./frontiers.js";

const REFRESH_MILLISECONDS = 15000;
const AT_ONCE = 4;
const asked = new URLSearchParams(location.search);
const dagId = asked.get("dag_id") ?? "";
const view = document.getElementById("view");
const fresh = document.getElementById("fresh");

// Requests.

async function get(path, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  const answer = await fetch(`api/pipelines${path}${query ? `?${query}` : ""}`, { credentials: "same-origin" });
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  const said = typeof body.detail === "string" ? body.detail : answer.statusText;
  if (answer.status === 401) throw new Error("you are not logged in; reload Airflow's page");
  if (answer.status === 403) throw new Error("you may not view this pipeline's DAG");
  throw new Error(said || `the server answered ${answer.status}`);
}

const here = (path = "", parameters = {}) => get(`/${encodeURIComponent(dagId)}${path}`, parameters);

// All pipelines.

const URGENCY = { blocked: 90, stalled: 70, behind: 60, wal: 50, replayable: 40, quarantine: 30 };

function trouble(one) {
  if (one.error) return 1000;
  const status = one.status;
  const wrong = status.last_verdict && status.last_verdict.verdict !== "identical";
  const ringing = status.alarms.map((alarm) => URGENCY[alarm.kind] ?? 20);
  return Math.max(0, ...ringing) + ringing.length + (wrong ? 25 : 0) + (status.open.length ? 10 : 0) + (status.waiting.pieces ? 1 : 0);
}

function published(status) {
  const states = status.shards.filter((one) => one.shard !== "quarantine" && !one.left_out);
  if (!states.length) return "";
  const least = Math.min(...states.map((one) => one.published));
  const behind = Math.max(...states.map((one) => one.log_upper - 1 - one.published));
  return behind > 0 ? `${least}, ${behind} behind` : String(least);
}

function waiting(status) {
  const found = status.waiting;
  if (found.trouble) return marked(found.trouble, "bad");
  if (!found.known) return marked("not asked here", "quiet");
  const unit = found.pieces === 1 && !found.unit.includes(" ") ? found.unit.replace(/s$/, "") : found.unit;
  return found.pieces ? `${count(found.pieces)} ${unit}, ${age(found.oldest)}` : "none";
}

function replayable(status) {
  const gone = status.replayable.filter((one) => one.gone);
  if (gone.length) return marked(`${gone[0].first} to ${gone[gone.length - 1].last} no more`, "warn");
  if (!status.replayable.length) return marked(status.bound ? "not asked here" : "", "quiet");
  const ends = status.replayable.map((one) => one.until).filter(Boolean).sort();
  return ends.length ? `until ${moment(ends[0])}` : "while its input stays";
}

const alarms = (status) => status.alarms.map((one) => el("div", { class: "bad", title: one.remedy }, `${one.kind}: ${one.fact}`));

// The newest transactions of a pipeline as a small chart; those with quarantined records are marked.
function recent(status, what, value) {
  const rows = status.recent;
  if (!rows.length) return "";
  const values = rows.map(value), known = values.filter((one) => one !== null);
  const label = `${what} of transactions ${rows[0].txn} to ${rows[rows.length - 1].txn}: ${Math.min(...known).toLocaleString("en")} to ${Math.max(...known).toLocaleString("en")}`;
  return sparkline(label, values, (index) => rows[index].quarantined > 0);
}

const ofStatus = (cell) => (one) => (one.status ? cell(one.status) : "");
const PIPELINES = [
  { name: "Pipeline", kind: "whole", cell: (one) => link("pipeline", { dag_id: one.id }, one.id) },
  { name: "Bound", number: true, cell: ofStatus((s) => count(s.bound)) },
  { name: "Sealed", number: true, cell: ofStatus((s) => count(s.sealed)) },
  { name: "Checkpoint", number: true, cell: ofStatus((s) => count(s.checkpoint)) },
  { name: "Published", number: true, cell: ofStatus(published) },
  { name: "Open", cell: ofStatus((s) => (s.open.length ? marked(`${s.open.length}, for ${age(s.open_since)}`, "warn") : "none")) },
  { name: "Waiting", cell: ofStatus(waiting) },
  { name: "Quarantined", number: true, cell: ofStatus((s) => count(s.quarantined.records)) },
  { name: "Verdict", kind: "whole", cell: ofStatus((s) => (s.last_verdict ? verdict(s.last_verdict.verdict) : "")) },
  { name: "Replayable", cell: ofStatus(replayable) },
  { name: "Recent", cell: ofStatus((s) => [recent(s, "records read", (row) => row.read), recent(s, "seconds open", (row) => row.seconds)]) },
  { name: "Trouble", kind: "wide", cell: (one) => (one.error ? marked(one.error, "bad") : one.status ? alarms(one.status) : marked("loading …", "quiet")) },
];

const known = new Map();

async function showPipelines(part) {
  const { pipelines } = await get("");
  for (const id of known.keys()) if (!pipelines.includes(id)) known.delete(id);
  for (const id of pipelines) if (!known.has(id)) known.set(id, { id });
  const filter = part("tools", () => {
    const input = el("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter by name" });
    input.addEventListener("input", draw);
    return [el("h1", {}, "Pipelines"), el("div", { class: "tools" }, input)];
  }).querySelector("input");
  function draw() {
    const rows = [...known.values()].filter((one) => one.id.toLowerCase().includes(filter.value.toLowerCase()));
    rows.sort((a, b) => (b.rank ?? 0) - (a.rank ?? 0) || a.id.localeCompare(b.id));
    const empty = known.size ? "No pipeline has this in its name." : "There is no pipeline whose DAG you may view.";
    part("rows").replaceChildren(table("Pipelines, those with trouble first", PIPELINES, rows, empty));
  }
  draw();
  const left = [...pipelines];
  const take = async () => {
    for (let id = left.shift(); id !== undefined; id = left.shift()) {
      const one = { id };
      try {
        one.status = await get(`/${encodeURIComponent(id)}`);
      } catch (error) {
        one.error = error.message;
      }
      one.rank = trouble(one);
      known.set(id, one);
      draw();
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, take));
}

// One pipeline.

const SHARDS = [
  { name: "Shard", cell: (one) => one.shard },
  { name: "Log has", number: true, cell: (one) => count(one.log_upper - 1) },
  { name: "Log version", number: true, cell: (one) => count(one.log_version) },
  { name: "State has", number: true, cell: (one) => (one.shard === "quarantine" ? "" : count(one.published)) },
  { name: "Behind", number: true, cell: (one) => (one.shard === "quarantine" ? "" : count(one.log_upper - 1 - one.published)) },
  { name: "Waits", cell: (one) => (one.left_out ? "not in the pipeline file" : one.paused ? marked(one.paused, "bad") : "") },
];
const READERS = [
  { name: "Shard", cell: (one) => one.shard },
  { name: "Consumer", cell: (one) => one.consumer },
  { name: "Next transaction", number: true, cell: (one) => count(one.frontier) },
  { name: "Behind", number: true, cell: (one) => (one.lag === null ? "?" : count(one.lag)) },
  { name: "Read by", cell: (one) => one.reading },
  { name: "Stands still", cell: (one) => (one.frozen ? marked(one.frozen, "bad") : "") },
];
const TRANSACTIONS = [
  { name: "Transaction", number: true, cell: (row) => link("transaction", { dag_id: dagId, txn: row.txn }, row.txn) },
  { name: "Decision", cell: (row) => (row.decision === "committed" ? row.decision : marked(row.decision, "warn")) },
  { name: "Read", number: true, cell: (row) => count(row.read) },
  { name: "Applied", number: true, cell: (row) => (row.read === null ? "" : count(row.read - row.quarantined)) },
  { name: "Quarantined", number: true, cell: (row) => count(row.quarantined) },
  { name: "Rows", cell: (row) => Object.entries(row.rows).map(([shard, rows]) => `${shard} ${count(rows)}`).join(", ") },
  { name: "Bound", cell: (row) => moment(row.bound_at) },
  { name: "Took", number: true, cell: (row) => span(row.seconds) },
  { name: "Run", cell: (row) => link("run", { dag_id: dagId, run_id: row.run }, row.run) },
  { name: "Last replay", cell: (row) => verdict(row.verdict) },
];

const list = { search: "", pages: 1 };

async function showTransactions(part) {
  const box = part("search", () => {
    const input = el("input", { type: "search", placeholder: "Number, run, decision, verdict, shard", "aria-label": "Search transactions", maxlength: "200" });
    input.addEventListener("change", () => {
      Object.assign(list, { search: input.value, pages: 1 });
      refresh();
    });
    return [el("h2", {}, "Transactions"), el("div", { class: "tools" }, input)];
  });
  const rows = [];
  let next;
  let total = 0;
  for (let page = 0; page < list.pages && next !== null; page += 1) {
    const found = await here("/transactions", { limit: 50, search: list.search, ...(next ? { before: next } : {}) });
    rows.push(...found.transactions);
    ({ next, total } = found);
  }
  const empty = !total ? "Nothing is bound yet." : next ? `Nothing found down to transaction ${next}.` : "Nothing found.";
  const more = el("button", { type: "button" }, "Older");
  more.addEventListener("click", () => {
    list.pages += 1;
    refresh();
  });
  part("rows").replaceChildren(table("Transactions, newest first", TRANSACTIONS, rows, empty), next ? more : "");
  box.querySelector("input").setAttribute("title", `${total} transactions`);
}

async function showPipeline(part) {
  const status = await here();
  const run = status.last_run;
  part("head").replaceChildren(
    el("h1", {}, status.pipeline),
    ...status.alarms.map((one) => el("div", { class: "alarm" }, el("p", {}, `${one.kind}: ${one.fact}${one.since ? ` (since ${moment(one.since)})` : ""}`), el("p", { class: "quiet" }, one.remedy))),
    facts([
      ["bound", count(status.bound)], ["sealed", count(status.sealed)], ["checkpoint", count(status.checkpoint)],
      ["open", status.open.length ? marked(`${status.open.join(", ")}, for ${age(status.open_since)}`, "warn") : "none"],
      ["waiting input", waiting(status)], ["quarantined", count(status.quarantined.records)],
      ["last verdict", status.last_verdict ? el("span", {}, verdict(status.last_verdict.verdict), ` of ${status.last_verdict.txn}`) : "none"],
      ["replayable", replayable(status)], ["generation", count(status.generation)],
      ["last run", run ? link("run", { dag_id: dagId, run_id: run.run_id }, run.run_id) : "none"],
    ]),
  );
  showActions(part("actions"), dagId, actionsOfPipeline(status), refresh);
  part("picture").replaceChildren(
    el("h2", {}, "Frontiers"),
    status.bound ? frontiers(status) : el("p", { class: "quiet" }, "Nothing is bound yet."),
    el("h2", {}, "Shards"),
    table("Shards", SHARDS, status.shards, "No shard yet."),
    el("h2", {}, "Readers"),
    table("Readers", READERS, status.consumers, "No consumer is known here."),
    ...status.leases.map((one) => el("p", { class: "quiet" }, `lease ${one.name}, held by ${one.holder}: needs every transaction from ${one.txn} on`)),
  );
  await showTransactions(part);
}

// One transaction.

async function showTransaction(part) {
  const txn = asked.get("txn") ?? "";
  const one = await here(`/transactions/${encodeURIComponent(txn)}`);
  const seal = one.seal;
  const sides = one.attempts.slice(-5).map((attempt) => ({ name: `${attempt.replayed ? "replay" : "try"} ${attempt.token}`, of: attempt.digests }));
  const endpoints = [...new Set([seal ? Object.keys(seal.digests) : [], ...sides.map((side) => Object.keys(side.of))].flat())].sort();
  const digest = (found, against) => (found ? marked(`${count(found.rows)} rows, ${found.digest}`, against && against.digest !== found.digest ? "bad" : "") : "");
  const gone = one.gone === null ? "the source is not asked here" : one.gone ? marked(`no more: ${one.gone}`, "bad") : "still there";
  part("head").replaceChildren(
    el("h1", {}, `Transaction ${one.txn}`),
    seal ? "" : el("p", { class: "warn" }, "open: not sealed yet"),
    facts([
      ["bound", moment(one.bound_at)], ["sealed", moment(one.sealed_at)], ["took", span(one.seconds)],
      ["run", link("run", { dag_id: dagId, run_id: one.run }, one.run)],
      ["decision", seal ? `${seal.decision}${seal.reason ? `: ${seal.reason}` : ""}` : "open"],
      ["by", seal ? seal.token : ""], ["generation", seal ? count(seal.generation) : ""], ["engine", seal ? seal.engine : ""],
      ["configuration", one.configuration],
    ]),
  );
  showActions(part("actions"), dagId, actionsOfTransaction(one), refresh);
  part("whole").replaceChildren(
    el("h2", {}, "Steps"),
    stepsBar(one.steps),
    table("Steps", [
      { name: "Step", cell: (of) => of.step }, { name: "At", cell: (of) => moment(of.at) }, { name: "Took", number: true, cell: (of) => span(of.seconds) },
    ], one.steps, "No step is on record."),
    el("h2", {}, "Input"),
    el("p", { class: "quiet" }, gone),
    one.input.files_total
      ? table("Input files", [
          { name: "File", cell: (file) => file.name }, { name: "Number", number: true, cell: (file) => count(file.seq) },
          { name: "Bytes", number: true, cell: (file) => count(file.size) }, { name: "Hash", kind: "digest", cell: (file) => file.hash ?? "" },
        ], one.input.files, "")
      : table("Input", [
          { name: "Partition", cell: (range) => range.partition }, { name: "From", number: true, cell: (range) => count(range.from) },
          { name: "Up to", number: true, cell: (range) => count(range.to) },
        ], one.input.ranges, "It reads nothing."),
    one.input.files_total > one.input.files.length ? el("p", { class: "quiet" }, `and ${count(one.input.files_total - one.input.files.length)} files more`) : "",
    el("h2", {}, "Digests"),
    table("Digests by endpoint", [
      { name: "Endpoint", cell: (name) => name },
      { name: "Sealed", kind: "digest", cell: (name) => digest(seal && seal.digests[name]) },
      ...sides.map((side) => ({ name: side.name, kind: "digest", cell: (name) => digest(side.of[name], seal && seal.digests[name]) })),
    ], endpoints, "Nothing was counted yet."),
    el("h2", {}, "Parts"),
    table("Parts", [
      { name: "Shard", cell: (of) => of.shard }, { name: "Part", kind: "digest", cell: (of) => of.path }, { name: "Rows", number: true, cell: (of) => count(of.rows) },
      { name: "Bytes", number: true, cell: (of) => count(of.bytes) }, { name: "Held", cell: (of) => (of.held ? marked(of.held, "bad") : "") },
    ], seal ? seal.parts : [], "No parts."),
    el("h2", {}, "Attempts"),
    table("Attempts", [
      { name: "By", cell: (of) => of.token }, { name: "Run", cell: (of) => link("run", { dag_id: dagId, run_id: of.run }, of.run) }, { name: "Round", number: true, cell: (of) => count(of.round) },
      { name: "What", cell: (of) => (of.replayed ? "replay" : "staged") },
      { name: "Came to", cell: (of) => (of.gone ? marked(`input gone: ${of.gone}`, "bad") : of.won ? "decided it" : of.replayed ? "" : seal ? "dropped" : "open") },
    ], one.attempts, "No attempt is on record here."),
    el("h2", {}, "Journal"),
    table("Journal", [
      { name: "At", cell: (of) => moment(of.at) }, { name: "Event", cell: (of) => of.event }, { name: "By", cell: (of) => of.token },
      { name: "Detail", cell: (of) => Object.entries(of.detail).filter(([, text]) => !["", "[]", "{}"].includes(text)).map(([name, text]) => `${name}: ${text}`).join(", ") },
    ], one.journal, "Nothing."),
  );
}

// One run.

async function showRun(part) {
  const run = await here("/run", { run_id: asked.get("run_id") ?? "" });
  part("whole").replaceChildren(
    el("h1", {}, run.run_id),
    el("p", { class: "sentence" }, run.sentence),
    facts([["state", run.state], ["pipeline", link("pipeline", { dag_id: dagId }, dagId)]]),
    el("h2", {}, "Transactions"),
    table("Transactions of this run", TRANSACTIONS, run.transactions, "This run has no transaction."),
  );
}

// The frame: a page's parts are made once and refilled, so that focus and typed text stay.

const PAGES = { pipelines: showPipelines, pipeline: showPipeline, transaction: showTransaction, run: showRun };
const name = location.pathname.split("/").pop();
const parts = new Map();

function part(id, made = () => []) {
  if (!parts.has(id)) {
    if (!parts.size) view.replaceChildren();
    parts.set(id, el("section", {}, made()));
    view.append(parts.get(id));
  }
  return parts.get(id);
}

let running = false;
let again = false;

async function refresh() {
  if (running) {
    again = true;
    return;
  }
  running = true;
  try {
    await (PAGES[name] ?? showPipelines)(part);
    fresh.className = "quiet";
    fresh.textContent = `as of ${new Date().toISOString().slice(11, 19)} UTC`;
  } catch (error) {
    fresh.className = "bad";
    fresh.textContent = parts.size ? `not refreshed: ${error.message}` : "";
    if (!parts.size) view.replaceChildren(el("p", { class: "alarm", role: "alert" }, error.message));
  }
  running = false;
  if (again) {
    again = false;
    await refresh();
  }
}

function takeTheme() {
  let chosen = null;
  try {
    chosen = localStorage.getItem("theme");
  } catch {
    // Without storage, follow the system's setting.
  }
  const dark = chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

const path = document.getElementById("path");
path.append(el("a", { href: "pipelines" }, "Tidemark"));
if (dagId) path.append(" / ", link("pipeline", { dag_id: dagId }, dagId));
if (name === "transaction") path.append(` / transaction ${asked.get("txn") ?? ""}`);
if (name === "run") path.append(" / run");
takeTheme();
addEventListener("storage", takeTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", takeTheme);
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && refresh());
setInterval(() => document.visibilityState === "visible" && refresh(), REFRESH_MILLISECONDS);
refresh();
