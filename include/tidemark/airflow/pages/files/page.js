// Tidemark's pages in Airflow. All content is set as text, never as markup.

import { actionsOfPipeline, actionsOfTransaction, showActions } from "./actions.js";
import { age, bytes, count, el, facts, link, marked, moment, prose, span, table, verdict, verdicts } from "./elements.js";
import { frontiers, sparkline, STEPS, stepsBar, stepsMark, swatch } from "./frontiers.js";

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

function waiting(status) {
  const found = status.waiting;
  if (found.trouble) return marked(found.trouble, "bad");
  if (!found.known) return marked("not asked here", "quiet");
  const unit = found.pieces === 1 && !found.unit.includes(" ") ? found.unit.replace(/s$/, "") : found.unit;
  return found.pieces ? `${count(found.pieces)} ${unit}, ${age(found.oldest)}` : quietNone();
}

function replayable(status) {
  const gone = status.replayable.filter((one) => one.gone);
  if (gone.length) return marked(`${gone[0].first} to ${gone[gone.length - 1].last} no more`, "warn");
  if (!status.replayable.length) return marked(status.bound ? "not asked here" : "", "quiet");
  const ends = status.replayable.map((one) => one.until).filter(Boolean).sort();
  return ends.length ? `until ${moment(ends[0])}` : "while its input stays";
}

const ALARMS_SHOWN = 3;

function alarms(status) {
  const shown = status.alarms.slice(0, ALARMS_SHOWN).map((one) => el("div", { class: "bad short", title: `${one.fact}; ${one.remedy}` }, `${one.kind}: ${one.fact}`));
  const more = status.alarms.length - shown.length;
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
const PIPELINES = [
  { name: "Pipeline", kind: "whole", cell: (one) => link("pipeline", { dag_id: one.id }, one.id) },
  { name: "Bound", number: true, cell: ofStatus((s) => quietZero(s.bound)) },
  { name: "Sealed", number: true, cell: ofStatus((s) => quietZero(s.sealed)) },
  { name: "Checkpoint", number: true, cell: ofStatus((s) => quietZero(s.checkpoint)) },
  { name: "Published", number: true, cell: ofStatus(published) },
  { name: "Open", cell: ofStatus((s) => (s.open.length ? marked(`${s.open.length}, for ${age(s.open_since)}`, "warn") : quietNone())) },
  { name: "Waiting", cell: ofStatus(waiting) },
  { name: "Quarantined", number: true, cell: ofStatus((s) => quietZero(s.quarantined.records)) },
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
  { name: "Applied", number: true, cell: (row) => (row.read === null ? "" : count(row.read - row.quarantined)) },
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
  box.querySelector("input").setAttribute("title", `${total} transactions`);
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

// One transaction.

// Details of the journal that only the next step needs.
const UNTOLD = ["begun", "round", "by"];

const judgements = (one) => one.journal.filter((entry) => entry.event === "judged" || entry.event === "verified");

// The results of the expectations at the gate's last look at staged rows. A replay compares digests instead.
function expectations(one) {
  const judged = judgements(one).filter((entry) => entry.event === "judged");
  const last = judged[judged.length - 1];
  const checked = Number(last?.detail.expectations ?? 0);
  const parsed = (name, none) => JSON.parse(last?.detail[name] || none);
  const rows = [
    ...parsed("failed", "[]").map((text) => ({ result: "failed", kind: "bad", text })),
    ...Object.entries(parsed("held", "{}")).map(([shard, text]) => ({ result: `paused ${shard}`, kind: "bad", text })),
    ...parsed("warned", "[]").map((text) => ({ result: "warned", kind: "warn", text })),
  ];
  if (!checked && !rows.length) return el("p", { class: "quiet" }, last ? "The pipeline file has none for these shards." : "Not checked yet.");
  const said = el("p", { class: "quiet" }, `${count(checked)} checked, ${count(Math.max(0, checked - rows.length))} met; by ${last.token}, ${moment(last.at)}`);
  if (!rows.length) return said;
  return el("div", {}, said, table("Expectations that are not met", [{ name: "Result", kind: "whole", cell: (of) => marked(of.result, of.kind) }, { name: "Expectation", cell: (of) => of.text }], rows, ""));
}

// Why a transaction stands, and what can be done about it; nothing for one that is in order.
function waysOut(one) {
  const judged = judgements(one);
  const last = judged[judged.length - 1];
  const file = one.pipeline;
  const told = (fact, ways) => el("div", { class: "alarm" }, el("p", {}, fact), el("p", { class: "quiet" }, "Ways out:"), el("ul", {}, ways.map((text) => el("li", {}, prose(text)))));
  if (!one.seal) {
    const refused = one.journal.filter((entry) => entry.event === "refused" || entry.event === "judged").pop();
    const failed = JSON.parse(refused?.detail.failed || "[]");
    const identical = refused?.event === "judged" && refused.detail.verdict === "identical";
    const why = refused?.event === "refused" ? refused.detail.why : failed.join("; ") || (identical ? "" : refused?.detail.finding);
    if (!why) return el("p", { class: "warn" }, "open: not sealed yet");
    return told(`not sealed: ${why}`, [
      "mend the cause and clear the run from ingest on: the same input is staged and checked again",
      ...(failed.length ? ["set the rows aside that don't meet the expectation: write `action: quarantine` for it in the pipeline file, and clear the run from ingest on"] : []),
      `accept it as it is staged, or skip it for good: below, or \`tidemark accept ${file} ${one.txn}\`, \`tidemark skip ${file} ${one.txn}\``,
    ]);
  }
  const words = last?.event === "verified" ? last.detail.verdict : "identical";
  if (words === "differs") return told(`the last replay differs: ${last.detail.finding}`, [
    `see a sample of the keys that differ: \`tidemark replay ${file} --from ${one.txn} --to ${one.txn}\` on a terminal; no value of a row is shown here`,
    "if a part was lost or damaged and the input is as it was: repair restores the sealed parts",
    "if the input was changed: bring back what was read; what is sealed stays as it is",
  ]);
  if (words !== "identical") return told(`the last replay: ${last.detail.finding}`, ["the tables are as they were sealed; this replay could not prove it", "bring the input back, or keep it longer at its source, and replay"]);
  return "";
}

async function showTransaction(part) {
  const txn = asked.get("txn") ?? "";
  const one = await here(`/transactions/${encodeURIComponent(txn)}`);
  const seal = one.seal;
  const sides = one.attempts.slice(-3).flatMap((attempt) => [
    { name: `${attempt.replayed ? "input now, replay" : "written, try"} ${attempt.token}`, of: attempt.digests },
    { name: `on disk, ${attempt.replayed ? "replay" : "try"} ${attempt.token}`, of: attempt.on_disk },
  ]).filter((side) => Object.keys(side.of).length);
  const endpoints = [...new Set([seal ? Object.keys(seal.digests) : [], ...sides.map((side) => Object.keys(side.of))].flat())].sort();
  const digest = (found, against) => (found ? marked(`${count(found.rows)} ${found.rows === 1 ? "row" : "rows"}, ${found.digest}`, against && against.digest !== found.digest ? "bad" : "") : "");
  const gone = one.gone === null ? "the source is not asked here" : one.gone ? marked(`no more: ${one.gone}`, "bad") : "still there";
  const beside = (number, text) => (number >= 1 && number <= one.bound ? link("transaction", { dag_id: dagId, txn: number }, text) : "");
  part("head").replaceChildren(
    el("h1", {}, `Transaction ${one.txn}`, el("small", {}, beside(one.txn - 1, `← ${one.txn - 1}`), beside(one.txn + 1, `${one.txn + 1} →`))),
    waysOut(one),
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
    el("h2", {}, "Expectations"),
    expectations(one),
    el("h2", {}, "Steps"),
    stepsBar(one.steps),
    table("Steps", [
      { name: "Step", cell: (of) => [swatch(of.step), of.step] }, { name: "At", kind: "time", cell: (of) => moment(of.at) }, { name: "Took", number: true, cell: (of) => span(of.seconds) },
    ], one.steps, "No step is on record."),
    el("h2", {}, "Input"),
    el("p", { class: "quiet" }, gone),
    one.input.files_total
      ? table("Input files", [
          { name: "File", cell: (file) => file.name }, { name: "Number", number: true, cell: (file) => count(file.seq) },
          { name: "Size", number: true, cell: (file) => bytes(file.size) }, { name: "Hash", kind: "digest", cell: (file) => file.hash ?? "" },
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
      { name: "Size", number: true, cell: (of) => bytes(of.bytes) }, { name: "Held", cell: (of) => (of.held ? marked(of.held, "bad") : "") },
    ], seal ? seal.parts : [], "No parts."),
    el("h2", {}, "Attempts"),
    table("Attempts", [
      { name: "By", cell: (of) => of.token }, { name: "Run", cell: (of) => link("run", { dag_id: dagId, run_id: of.run }, of.run) }, { name: "Round", number: true, cell: (of) => count(of.round) },
      { name: "What", cell: (of) => (of.replayed ? "replay" : "staged") },
      { name: "Came to", cell: (of) => (of.gone ? marked(`input gone: ${of.gone}`, "bad") : of.won ? "decided it" : of.replayed ? "" : seal ? "dropped" : "open") },
    ], one.attempts, "No attempt is on record here."),
    el("h2", {}, "Journal"),
    table("Journal", [
      { name: "At", kind: "time", cell: (of) => moment(of.at) }, { name: "Event", kind: "time", cell: (of) => of.event }, { name: "By", cell: (of) => of.token },
      { name: "Detail", cell: (of) => Object.entries(of.detail).filter(([name, text]) => !UNTOLD.includes(name) && !["", "[]", "{}"].includes(text)).map(([name, text]) => `${name}: ${text}`).join(", ") },
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
    run.transactions.length ? legend() : "",
    transactionsTable("Transactions of this run", run.transactions, "This run has no transaction."),
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
    await (PAGES[name] ?? showPipelines)(part);
    fresh.className = "quiet";
    fresh.textContent = `as of ${new Date().toISOString().slice(11, 19)} UTC`;
  } catch (error) {
    fresh.className = "bad";
    fresh.textContent = parts.size ? `not refreshed: ${error.message}` : "";
    if (!parts.size) view.replaceChildren(el("p", { class: "alarm", role: "alert" }, error.message));
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
