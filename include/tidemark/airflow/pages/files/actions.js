// The actions of a person: a reason, then two clicks. The frame in which Airflow shows pages has no confirm().

import { el } from "./elements.js";
import { saidIn } from "./requests.js";

const SURE_MILLISECONDS = 10000;

async function post(dagId, verb, body) {
  const answer = await fetch(`api/pipelines/${encodeURIComponent(dagId)}/actions/${verb}`, {
    method: "POST",
    credentials: "same-origin",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const told = await answer.json().catch(() => ({}));
  if (answer.ok) return told.done;
  if (answer.status === 401) throw new Error("you are not logged in; reload Airflow's page");
  throw new Error(saidIn(told) || `the server answered ${answer.status}`);
}

// One action {key, verb, label, effect, body}: a button that opens a field for the reason.
function made(dagId, one, done) {
  const opener = el("button", { type: "button", "aria-expanded": "false" }, one.label);
  const reason = el("input", { type: "text", placeholder: "Why? The journal keeps it, with your name", "aria-label": `Reason: ${one.label}`, maxlength: "1000" });
  const doer = el("button", { type: "button", class: "danger", disabled: "disabled" }, one.label);
  const said = el("span", { role: "status" });
  const line = el("span", { class: "reason", hidden: "hidden" }, reason, doer, el("span", { class: "quiet" }, one.effect));
  const whole = el("div", { class: "action" }, opener, line, said);
  whole.dataset.key = one.key;
  let sure = 0;
  const unsure = () => {
    sure = 0;
    doer.textContent = one.label;
  };
  const open = (shown) => {
    line.hidden = !shown;
    opener.setAttribute("aria-expanded", String(shown));
    whole.dataset.open = shown ? "yes" : "";
    unsure();
  };
  opener.addEventListener("click", () => {
    open(line.hidden);
    said.textContent = "";
    if (!line.hidden) reason.focus();
  });
  reason.addEventListener("input", () => {
    doer.disabled = !reason.value.trim();
    unsure();
  });
  doer.addEventListener("click", async () => {
    if (Date.now() > sure) {
      sure = Date.now() + SURE_MILLISECONDS;
      doer.textContent = `Sure? ${one.label}`;
      setTimeout(() => Date.now() > sure && unsure(), SURE_MILLISECONDS + 100);
      return;
    }
    doer.disabled = true;
    said.className = "quiet";
    said.textContent = "…";
    try {
      said.textContent = await post(dagId, one.verb, { ...one.body, reason: reason.value.trim() });
      said.className = "good";
      reason.value = "";
      open(false);
      done();
    } catch (error) {
      said.className = "bad";
      said.textContent = error.message;
      doer.disabled = false;
      unsure();
    }
  });
  return whole;
}

// Show these actions; an action that is being filled in, or was just done, stays unchanged.
export function showActions(section, dagId, wanted, done) {
  const kept = new Map([...section.querySelectorAll(".action")].map((one) => [one.dataset.key, one]));
  const keys = new Set(wanted.map((one) => one.key));
  for (const [key, one] of kept) if (!keys.has(key) && !one.dataset.open && !one.querySelector("[role=status]").textContent) one.remove();
  if (wanted.length && !section.querySelector("h2")) section.append(el("h2", {}, "Actions"), el("div", { class: "actions" }));
  for (const one of wanted) if (!kept.has(one.key)) section.querySelector(".actions").append(made(dagId, one, done));
}

export function actionsOfPipeline(status) {
  if (!status.may_act) return [];
  const found = [];
  for (const stop of status.blocked) {
    if (stop.shard) found.push(releaseOf(stop.shard, stop.txn));
    else if (stop.txn !== null) found.push(...actionsOfOpen(stop.txn));
  }
  const behind = status.shards.some((one) => one.shard !== "quarantine" && !one.left_out && one.log_upper - 1 > one.published);
  if (behind) found.push({ key: "publish", verb: "publish", label: "Publish now", effect: "a run of this DAG brings the states up to their logs", body: {} });
  const one = status.candidate;
  if (one) {
    const first = one.behind ? `catches up with ${one.behind === 1 ? "1 transaction" : `${one.behind.toLocaleString("en")} transactions`}, then ` : "";
    const body = { candidate: one.identity };
    found.push(
      { key: `promote ${one.identity}`, verb: "promote", label: `Promote generation ${one.generation}`, effect: `a run of the DAG that replaces settings ${first}puts it in charge`, body },
      { key: `abort ${one.identity}`, verb: "abort", label: `Abort generation ${one.generation}`, effect: "ends the candidate and removes its tables; the pipeline's own stay as they are", body },
    );
  }
  return found;
}

function releaseOf(shard, txn) {
  return { key: `release ${shard} ${txn}`, verb: "release", label: `Release ${shard}`, effect: `its log continues past transaction ${txn}, which was held`, body: { shard } };
}

export function actionsOfOpen(txn) {
  return [
    { key: `accept ${txn}`, verb: "accept", label: `Accept transaction ${txn}`, effect: "seals it as staged, although the gate is red", body: { txn } },
    { key: `skip ${txn}`, verb: "skip", label: `Skip transaction ${txn}`, effect: "skips it permanently: its input is never applied", body: { txn } },
  ];
}

export function actionsOfTransaction(one) {
  if (!one.may_act) return [];
  if (!one.seal) return actionsOfOpen(one.txn);
  const body = { txn_from: one.txn, txn_to: one.txn };
  const found = Object.keys(one.waits).map((shard) => releaseOf(shard, one.txn));
  found.push({ key: "replay", verb: "replay", label: "Replay", effect: "reads its input again and proves it; writes nothing", body });
  const verdicts = one.journal.filter((entry) => entry.event === "verified").map((entry) => entry.detail.verdict);
  if (verdicts.length && verdicts[verdicts.length - 1] === "differs") found.push({ key: "repair", verb: "repair", label: "Repair", effect: "restores its parts from unchanged input", body });
  return found;
}
