// Tidemark's pages in Airflow. All content is set as text, never as markup.

import { actionsOfPipeline, showActions } from "./actions.js";
import { age, bytes, count, el, facts, link, marked, moment, prose, span, table, verdict, verdicts } from "./elements.js";
import { frontiers, sparkline, STEPS, stepsMark } from "./frontiers.js";
import { asked, dagId, get, here } from "./requests.js";
import { showTransaction } from "./transaction.js";

const REFRESH_MILLISECONDS = 15000;
const AT_ONCE = 4;
const view = document.getElementById("view");
const fresh = document.getElementById("fresh");

// All pipelines.

const URGENCY = { blocked: 90, stalled: 70, behind: 60, wal: 50, replayable: 40, quarantine: 30 };

function trouble(one) {
  if (one.error) return 1000;
  const status = one.status;
  const wrong = status.last_verdict && status.last_verdict.verdict !== "identical";
  const ringing = status.alarms.map((alarm) => URGENCY[alarm.kind] ?? 20);
  if (!status.bound && !ringing.length && !status.waiting.pieces) return -1;
  return Math.max(0, ...ringing) + ringing.length + (wrong ? 25 : 0) + (status.open.length ? 10 : 0) + (status.waiting.pieces ? 1 : 0);
}

function published(status) {
  const states = status.shards.filter((one) => one.shard !== "quarantine" && !one.left_out);
  if (!states.length) return "";
  const least = Math.min(...states.map((one) => one.published));
  const behind = Math.max(...states.map((one) => one.log_upper - 1 - one.published));
  return behind > 0 ? `${least}, ${behind} behind` : quietZero(least);
}

// How long something lasts, on a line of its own.
const since = (before, at, after = "") => (at ? el("div", { class: "quiet age" }, `${before} ${age(at)} ${after}`.trim()) : "");

function waiting(status) {
  const found = status.waiting;
  if (found.trouble) return marked(found.trouble, "bad");
  if (!found.known) return marked("not asked here", "quiet");
  const unit = found.pieces === 1 && !found.unit.includes(" ") ? found.unit.replace(/s$/, "") : found.unit;
  return found.pieces ? [`${count(found.pieces)} ${unit}`, since("for", found.oldest)] : quietNone();
}

function quarantined(status) {
  const { records, last } = status.quarantined;
  return records ? [count(records), last ? since("last", last, "ago") : ""] : quietZero(0);
}

function candidate(status) {
  const one = status.candidate;
  if (!one) return "";
  return `generation ${one.generation}, ${one.from_now ? "reads nothing again" : one.behind ? `${count(one.behind)} behind` : "caught up"}`;
}

const paused = (status) => status.shards.filter((one) => one.paused).length;

function replayable(status) {
  const gone = status.replayable.filter((one) => one.gone);
  if (gone.length) {
    const first = gone[0].first, last = gone[gone.length - 1].last;
    return marked(`${first === last ? first : `${first} to ${last}`} no more`, "warn");
  }
  if (!status.replayable.length) return status.bound ? marked("not asked here", "quiet") : "";
  const ends = status.replayable.map((one) => one.until).filter(Boolean).sort();
  return ends.length ? `until ${moment(ends[0])}` : "while its input stays";
}

const ALARMS_SHOWN = 3;

// What is wrong with a pipeline: the line below its row.
function alarms(one) {
  if (one.error) return marked(one.error, "bad");
  const all = one.status?.alarms ?? [];
  if (!all.length) return "";
  const shown = all.slice(0, ALARMS_SHOWN).map((alarm) => el("div", { class: "bad short", title: alarm.remedy }, `${alarm.kind}: ${alarm.fact}`));
  const more = all.length - shown.length;
  return more > 0 ? [...shown, el("div", { class: "quiet" }, `and ${more} more`)] : shown;
}

// The newest transactions of a pipeline as a small chart; those with quarantined records are marked.
function recent(status, what, value) {
  const rows = status.recent;
  if (!rows.length) return "";
  const values = rows.map(value), known = values.filter((one) => one !== null);
  const label = `${what} of transactions ${rows[0].txn} to ${rows[rows.length - 1].txn}: ${Math.min(...known).toLocaleString("en")} to ${Math.max(...known).toLocaleString("en")}`;
  return sparkline(label, values, (index) => rows[index].quarantined > 0);
}

const ofStatus = (cell) => (one) => (one.status ? cell(one.status) : "");
const quietZero = (number) => (number ? count(number) : marked("0", "quiet"));
const quietNone = () => marked("none", "quiet");
const QUARANTINED = "All records in quarantine, resolved ones too; `tidemark quarantine PIPELINE --open` lists those that are not resolved";
const PIPELINES = [
  { name: "Pipeline", kind: "whole", cell: (one) => link("pipeline", { dag_id: one.id }, one.id) },
  { name: "Bound", title: "The last transaction whose input is decided", number: true, cell: (one) => (one.status ? quietZero(one.status.bound) : one.error ? "" : marked("loading …", "quiet")) },
  { name: "Sealed", title: "The last transaction that is committed", number: true, cell: ofStatus((s) => quietZero(s.sealed)) },
  { name: "Checkpoint", title: "All transactions up to this one are in the logs, skipped, or wait in a paused shard", number: true, cell: ofStatus((s) => quietZero(s.checkpoint)) },
  { name: "Published", title: "The last transaction that all states have", number: true, cell: ofStatus(published) },
  { name: "Open", title: "Transactions that are bound and not sealed", cell: ofStatus((s) => (s.open.length ? [marked(count(s.open.length), "warn"), since("for", s.open_since)] : quietNone())) },
  { name: "Paused", title: "Shards whose log waits for a release", number: true, cell: ofStatus((s) => (paused(s) ? marked(count(paused(s)), "warn") : quietZero(0))) },
  { name: "Waiting", title: "Input that is not bound yet", cell: ofStatus(waiting) },
  { name: "Quarantined", title: QUARANTINED, number: true, cell: ofStatus(quarantined) },
  { name: "Verdict", title: "The last answer of the gate or of a replay", kind: "whole", cell: ofStatus((s) => (s.last_verdict ? verdict(s.last_verdict.verdict) : "")) },
  { name: "Replayable", title: "How long the input of the transactions can be read again", cell: ofStatus(replayable) },
  { name: "Candidate", title: "A generation that is to replace the settings", cell: ofStatus(candidate), shownIf: (one) => one.status?.candidate },
  { name: "Recent", cell: ofStatus((s) => [recent(s, "records read", (row) => row.read), recent(s, "seconds open", (row) => row.seconds)]) },
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
    const columns = PIPELINES.filter((column) => !column.shownIf || rows.some(column.shownIf));
    part("rows").replaceChildren(table("Pipelines, those with trouble first", columns, rows, empty, alarms));
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
  { name: "Log version", number: true, cell: (one) => (one.log_version < 0 ? "" : count(one.log_version)) },
  { name: "State has", number: true, cell: (one) => (one.shard === "quarantine" ? "" : count(one.published)) },
  { name: "Rows", number: true, cell: (one) => count(one.rows) },
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

// A race for the seal: the run that won it, if it is not the run that bound the transaction, and those that lost.
function race(row) {
  const run = (one) => (one.run ? link("run", { dag_id: dagId, run_id: one.run }, one.run) : one.token);
  const won = row.won && row.won.run && row.won.run !== row.run ? el("div", {}, "won by ", run(row.won)) : "";
  return [won, ...row.lost.map((one) => el("div", { class: "quiet" }, "lost: ", run(one)))];
}

// Of the rows that are shown, so that bars can be compared.
let longest = 0;

const TRANSACTIONS = [
  { name: "Transaction", number: true, cell: (row) => link("transaction", { dag_id: dagId, txn: row.txn }, row.txn) },
  { name: "Decision", cell: (row) => (row.decision === "committed" ? row.decision : marked(row.decision, "warn")) },
  { name: "Read", number: true, cell: (row) => count(row.read) },
  { name: "Applied", title: "Read and not quarantined; a promotion reads nothing", number: true, cell: (row) => count(row.applied) },
  { name: "Quarantined", number: true, cell: (row) => count(row.quarantined) },
  { name: "Rows", cell: (row) => Object.entries(row.rows).map(([shard, rows]) => `${shard} ${count(rows)}`).join(", ") },
  { name: "Bound", kind: "time", cell: (row) => moment(row.bound_at) },
  { name: "Took", kind: "took", cell: (row) => [el("span", { class: "number" }, span(row.seconds)), stepsMark(row.steps, longest)] },
  { name: "Run", cell: (row) => link("run", { dag_id: dagId, run_id: row.run }, row.run) },
  { name: "Race", cell: race },
  { name: "Verdicts", kind: "whole", cell: (row) => verdicts(row.verdicts) },
];

function transactionsTable(label, rows, empty) {
  longest = Math.max(0, ...rows.map((row) => row.steps.transaction ?? 0));
  return table(label, TRANSACTIONS, rows, empty);
}

const legend = () => el("p", { class: "legend quiet" }, "Took: ", ...Object.entries(STEPS).flatMap(([name, kind]) => [el("i", { class: kind }), ` ${name} `]), " · Verdicts: ● gate ○ replay ✕ not identical");

const list = { search: "", pages: 1 };

async function showTransactions(part) {
  const box = part("search", () => {
    const input = el("input", { type: "search", placeholder: "Number, run, decision, verdict, shard", "aria-label": "Search transactions", maxlength: "200" });
    input.addEventListener("change", () => {
      Object.assign(list, { search: input.value, pages: 1 });
      refresh();
    });
    return [el("h2", {}, "Transactions"), el("div", { class: "tools" }, input, legend())];
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
  part("rows").replaceChildren(transactionsTable("Transactions, newest first", rows, empty), next ? more : "");
  box.querySelector("input").setAttribute("title", total === 1 ? "1 transaction" : `${total} transactions`);
}

async function showPipeline(part) {
  const status = await here();
  const run = status.last_run;
  part("head").replaceChildren(
    el("h1", {}, status.pipeline),
    ...status.alarms.map((one) => el("div", { class: "alarm" }, el("p", {}, `${one.kind}: ${one.fact}${one.since ? ` (since ${moment(one.since)})` : ""}`), el("p", { class: "quiet" }, prose(one.remedy)))),
    facts([
      ["bound", count(status.bound)], ["sealed", count(status.sealed)], ["checkpoint", count(status.checkpoint)],
      ["open", status.open.length ? marked(`${status.open.join(", ")}, for ${age(status.open_since)}`, "warn") : "none"],
      ["waiting input", waiting(status)], ["quarantined, resolved or not", quarantined(status)],
      ["last verdict", status.last_verdict ? el("span", {}, verdict(status.last_verdict.verdict), ` of ${status.last_verdict.txn}`) : "none"],
      ["replayable", replayable(status)], ["generation", count(status.generation)],
      ["candidate", status.candidate ? `${candidate(status)}: ${status.candidate.reason}` : ""],
      ["last run", run ? link("run", { dag_id: dagId, run_id: run.run_id }, run.run_id) : "none"],
    ]),
  );
  showActions(part("actions"), dagId, actionsOfPipeline(status), refresh);
  part("picture").replaceChildren(
    el("h2", {}, "Frontiers"),
    status.bound ? frontiers(status) : el("p", { class: "quiet" }, `Nothing is bound yet in ${status.tables}, as this server sees it. The first run of the DAG that finds input binds it.`),
    el("h2", {}, "Shards"),
    table("Shards", SHARDS, status.shards, "No shard yet."),
    el("h2", {}, "Readers"),
    table("Readers", READERS, status.consumers, "No consumer is known here."),
    ...status.leases.map((one) => el("p", { class: "quiet" }, `lease ${one.name}, held by ${one.holder}: needs every transaction from ${one.txn} on`)),
  );
  await showTransactions(part);
  showMaintenance(part);
}

const CHORES = [
  { name: "Work", cell: (one) => one.what },
  { name: "Shard", cell: (one) => one.shard },
  { name: "Files", number: true, cell: (one) => count(one.files) },
  { name: "Size", number: true, cell: (one) => bytes(one.bytes) },
  { name: "Held back by", cell: (one) => (one.held_by ? marked(one.held_by, "warn") : marked("nothing: the next run of maintain does it", "quiet")) },
  { name: "Until", cell: (one) => one.until },
];

// What maintenance would do lists the files of every table, so it is asked only when somebody opens it.
function showMaintenance(part) {
  part("maintenance", () => {
    const found = el("div", {}, el("p", { class: "quiet" }, "Loading …"));
    const box = el("details", {}, el("summary", {}, "What maintenance would do now"), found);
    box.addEventListener("toggle", async () => {
      if (!box.open) return;
      try {
        const plan = await here("/maintenance");
        found.replaceChildren(
          el("p", {}, `Every transaction from ${plan.since} on stays readable.`),
          ...plan.warnings.map((text) => el("p", { class: "warn" }, text)),
          table("What maintenance would do", CHORES, plan.left, "Nothing."),
        );
      } catch (error) {
        found.replaceChildren(el("p", { class: "bad", role: "alert" }, error.message));
      }
    });
    return [el("h2", {}, "Maintenance"), box];
  });
}

// One run.

async function showRun(part) {
  const run = await here("/run", { run_id: asked.get("run_id") ?? "" });
  part("whole").replaceChildren(
    el("h1", {}, run.run_id),
    el("p", { class: "sentence" }, run.sentence),
    facts([["task", asked.get("task_id") ?? ""], ["state of the run", run.state], ["pipeline", link("pipeline", { dag_id: dagId }, dagId)]]),
    el("h2", {}, "Transactions"),
    run.transactions.length ? legend() : "",
    transactionsTable("Transactions of this run", run.transactions, "This run has no transaction."),
  );
}

// The frame: a page's parts are made once and refilled, so that focus and typed text stay.

// What an address has to name. A page without it would ask for something else.
const NAMES = { dag_id: "pipeline", txn: "transaction", run_id: "run" };
const NEEDS = { pipelines: [], pipeline: ["dag_id"], transaction: ["dag_id", "txn"], run: ["dag_id", "run_id"] };

function requireNamed() {
  const lacks = (NEEDS[name] ?? []).find((one) => !asked.get(one));
  if (lacks) throw Object.assign(new Error(`This address names no ${NAMES[lacks]}.`), { absent: true });
}

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

// The page is drawn anew: what had the focus gets it back, by its address or name.
function keepingFocus() {
  const held = document.activeElement;
  const name = held?.getAttribute("href") ? "href" : "aria-label";
  const value = view.contains(held) ? held.getAttribute(name) : null;
  return () => {
    if (value === null || document.activeElement !== document.body) return;
    [...view.querySelectorAll(`[${name}]`)].find((one) => one.getAttribute(name) === value)?.focus({ preventScroll: true });
  };
}

async function refresh() {
  if (running) {
    again = true;
    return;
  }
  running = true;
  const giveFocusBack = keepingFocus();
  try {
    requireNamed();
    await (PAGES[name] ?? showPipelines)(part, refresh);
    fresh.className = "quiet";
    fresh.textContent = `as of ${new Date().toISOString().slice(11, 19)} UTC`;
  } catch (error) {
    fresh.className = "bad";
    fresh.textContent = parts.size ? `not refreshed: ${error.message}` : "";
    // Airflow offers these pages at every DAG: one that runs no pipeline is nothing to be alarmed about.
    if (!parts.size) view.replaceChildren(el("p", { class: error.absent ? "quiet" : "alarm", role: error.absent ? "" : "alert" }, error.message));
  }
  giveFocusBack();
  view.setAttribute("aria-busy", "false");
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
// A text that somebody has selected to copy stays.
const reading = () => document.visibilityState !== "visible" || !getSelection().isCollapsed;
setInterval(() => reading() || refresh(), REFRESH_MILLISECONDS);
refresh();
