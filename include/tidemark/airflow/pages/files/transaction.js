// The page of one transaction. All content is set as text, never as markup.

import { actionsOfTransaction, showActions } from "./actions.js";
import { bytes, count, el, facts, link, marked, moment, prose, span, table } from "./elements.js";
import { stepsBar, swatch } from "./frontiers.js";
import { asked, dagId, here } from "./requests.js";

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
      "correct the cause, then clear the run from ingest on: the same input is staged and checked again",
      ...(failed.length ? ["quarantine the rows that don't meet the expectation: write `action: quarantine` for it in the pipeline file, and clear the run from ingest on"] : []),
      `accept it as staged, or skip it permanently: below, or \`tidemark accept ${file} ${one.txn} --reason "..."\`, \`tidemark skip ${file} ${one.txn} --reason "..."\``,
    ]);
  }
  const words = last?.event === "verified" ? last.detail.verdict : "identical";
  if (words === "differs") return told(`the last replay differs: ${last.detail.finding}`, [
    one.sampled ? (one.may_act ? `see some of the keys below` : `${one.sampled === 1 ? "1 key is" : `${count(one.sampled)} keys are`} on record; only users who may edit the DAG see them`) : "replay it: the replay records some of the keys that differ",
    `see both values of each: \`tidemark replay ${file} --from ${one.txn} --to ${one.txn}\` on a terminal; no other value of a row is shown here`,
    "if a part was lost or damaged and the input is unchanged: repair restores the sealed parts",
    "if the input was changed: restore the input that was read; the sealed rows stay as they are",
  ]);
  const waits = Object.entries(one.waits);
  if (words === "identical" && waits.length) return told(`sealed, but held: ${waits.map(([shard, why]) => `shard ${shard}: ${why}`).join("; ")}`, [
    `check its rows, then release the shard: below, or ${waits.map(([shard]) => `\`tidemark release ${file} ${shard} --reason "..."\``).join(", ")}`,
    "until then its log takes no later transaction either; other shards go on",
  ]);
  if (words !== "identical") return told(`the last replay: ${last.detail.finding}`, ["the tables are as they were sealed; this replay could not prove it", "restore the input, or keep it longer at its source, and replay"]);
  return "";
}

// The keys that the last replay has found to differ; a masked one is a digest.
const SAMPLE = [
  { name: "Shard", cell: (of) => of.shard },
  { name: "Key", cell: (of) => Object.entries(of.key).map(([name, text]) => `${name} = ${text === null ? "NULL" : text}`).join(", ") || marked("no key: its rows are only appended", "quiet") },
  { name: "Differs in", cell: (of) => of.what },
];

export async function showTransaction(part, refresh) {
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
    ...(one.sample.length ? [el("h2", {}, "Some of the keys that differ"), table("Keys that differ", SAMPLE, one.sample, "")] : []),
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
