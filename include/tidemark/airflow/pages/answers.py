"""The API's responses as plain values, from the same functions as the command's `--json`.

A response contains no value of a row: it leaves out a part's statistics, which have minimum and maximum
values, and the text of a configuration. Only a user who may edit the DAG gets the keys that a red replay has
sampled, and even then no masked one. The source is queried only if it is a local folder of files; for any
other source this process would need its credentials.

Pipelines stay open between requests, so that a request reads only what is new and not the whole history. An
open handle follows a table only forward: after a warehouse was restored or recreated it would show the old
contents. So every request compares the head of the bindings in the open handle with that of a new handle. It
reopens the pipeline if they differ, if the pipeline file has changed, and once an hour.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tidemark.airflow.pages.registry import PipelineDag, environment_of
from tidemark.app.bad_records import MASK
from tidemark.app.consume import consumers_of, held_leases
from tidemark.app.deployment import Deployment
from tidemark.app.reports import listed, recent, run_facts, steps_of, whole
from tidemark.app.status import status_of
from tidemark.app.tasks import maintenance_plan, open_pipeline
from tidemark.config.storage import is_uri
from tidemark.core.binding import Binding
from tidemark.core.checksum import SOURCE, Digests
from tidemark.core.errors import InvalidUsage
from tidemark.core.ledger import Event
from tidemark.core.reading import consumer_of
from tidemark.core.status import alarms_of
from tidemark.core.text import plain, run_sentence
from tidemark.pipeline.checkpoint import paused_shards
from tidemark.pipeline.context import Attempt, attempts_at
from tidemark.pipeline.ingest import found_by

OPEN_MAX: Final = 64
OPEN_SECONDS_MAX: Final = 3_600.0


@dataclass
class OpenPipeline:
    """An open pipeline. A ledger is not thread-safe, so the lock admits one request at a time."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    deployment: Deployment | None = None
    file: tuple[int, int] = (0, 0)
    opened_seconds: float = 0.0


_open: OrderedDict[tuple[str, str | None], OpenPipeline] = OrderedDict()
_open_lock = threading.Lock()


@contextmanager
def open_for_reading(one: PipelineDag) -> Iterator[Deployment]:
    """The pipeline's control plane for reading, kept open between requests; it can't start Spark."""
    environment = environment_of(one)
    with _open_lock:
        kept = _open.setdefault((one.pipeline_file, environment), OpenPipeline())
        _open.move_to_end((one.pipeline_file, environment))
        while len(_open) > OPEN_MAX:
            _open.popitem(last=False)
    with kept.lock:
        file = _as_of(one)
        if kept.deployment is None or kept.file != file or not _is_current(kept):
            kept.deployment = None
            kept.deployment = open_pipeline(one.pipeline_file, environment)
            kept.file, kept.opened_seconds = file, time.monotonic()
        try:
            yield kept.deployment
        except BaseException:
            kept.deployment = None  # After any error, the next request reopens the pipeline.
            raise


def _as_of(one: PipelineDag) -> tuple[int, int]:
    """The time and size of the pipeline file; `InvalidUsage` if this server does not see it."""
    try:
        found = Path(one.pipeline_file).stat()
    except OSError as error:
        raise InvalidUsage(
            f"this API server can't read the pipeline file {one.pipeline_file} ({error.strerror})",
            hint="give it the pipeline files and the warehouse under the same paths as the workers",
        ) from None
    return found.st_mtime_ns, found.st_size


def _is_current(kept: OpenPipeline) -> bool:
    """Whether the open handles still follow the same history and are not too old."""
    deployment = kept.deployment
    if deployment is None or time.monotonic() - kept.opened_seconds > OPEN_SECONDS_MAX:
        return False
    before = deployment.unchecked.control.bindings.head()
    now = deployment.fresh_control().bindings.head()
    return now == before or deployment.unchecked.control.bindings.head() == now


Body = dict[str, Any]
FILES_MAX: Final = 500
PAGE_MAX: Final = 200
SEARCHED_MAX: Final = 500
RECENT: Final = 40
PROOFS_AT_ENDS: Final = 50
"""The number of oldest and of newest transactions whose rows include whether they are replayable."""
_WINDOW: Final = 250
_DIGEST: Final = re.compile(re.escape(MASK) + "[0-9a-f]{8}")
"""A masked key in a recorded sample."""


def opened(one: PipelineDag) -> Deployment:
    """The pipeline's control plane, newly opened, for decisions; it can't start Spark."""
    return open_pipeline(one.pipeline_file, environment_of(one))


def is_asked(deployment: Deployment) -> bool:
    return deployment.config.source.type == "files" and not is_uri(deployment.config.source_location)


def pipeline_body(one: PipelineDag) -> Body:
    """A pipeline's status, with its alarms, newest transactions and readers."""
    with open_for_reading(one) as deployment:
        found = status_of(
            deployment,
            now_seconds=time.time(),
            asks_source=is_asked(deployment),
            proofs_at_ends=PROOFS_AT_ENDS,
        )
        alarms = alarms_of(found, deployment.config.alarms.limits)
        more = {"alarms": alarms, "dag_id": one.dag_id, "source_type": deployment.config.source.type}
        more |= {"recent": recent(deployment, limit=RECENT), **readers_of(deployment)}
        more["tables"] = deployment.root
        return dict(plain({**plain(found), **more}))


def readers_of(deployment: Deployment) -> Body:
    """The consumers and their frontiers, and the other leases that hold transactions back."""
    others = [one for one in held_leases(deployment) if consumer_of(one) is None]
    leases = [{"name": one.name, "txn": one.txn, "holder": one.holder} for one in others]
    return {"consumers": consumers_of(deployment), "leases": leases}


def transactions_body(one: PipelineDag, *, before: int | None, limit: int, search: str) -> Body:
    """Transactions below `before`, newest first. `next` is the `before` of the next page, None at the end. A
    search examines a bounded number of transactions per request, so a page may have few rows or none."""
    with open_for_reading(one) as deployment:
        return _transactions(deployment, before, limit, search.lower().split())


def _transactions(deployment: Deployment, before: int | None, limit: int, words: list[str]) -> Body:
    upper = deployment.control.bindings.head().upper
    at = min(before or upper, upper)
    rows: list[Body] = []
    looked = 0

    def wanted(row: Mapping[str, Any]) -> bool:
        return not words or all(word in _searched(row) for word in words)

    while at > 1 and len(rows) < limit and looked < SEARCHED_MAX:
        lower = max(1, at - (_WINDOW if words else limit - len(rows)))
        found = listed(deployment, lower=lower, upper=at, wanted=wanted)[0][: limit - len(rows)]
        looked += at - lower
        rows += map(plain, found)
        at = found[-1]["txn"] if len(rows) == limit else lower
    return {"transactions": rows, "next": at if at > 1 else None, "total": upper - 1}


def _searched(row: Mapping[str, Any]) -> str:
    words = " ".join([*row["rows"], *(one["verdict"] for one in row["verdicts"])])
    return f"{row['txn']} {row['decision']} {row['run']} {words}".lower()


def transaction_body(one: PipelineDag, txn: int, *, shows_keys: bool = False) -> Body:
    """Everything on record about one transaction; with `shows_keys`, also the sample of a red replay."""
    with open_for_reading(one) as deployment:
        return _transaction(deployment, txn, shows_keys=shows_keys)


def _transaction(deployment: Deployment, txn: int, *, shows_keys: bool) -> Body:
    binding, seal, noted, times = whole(deployment, txn)
    journal, sample = _sampled(noted, {shard.name: shard.masked for shard in deployment.config.shards})
    settings = (seal.configuration if seal is not None else None) or binding.configuration
    gone = deployment.pipeline.source.inspect(binding) if is_asked(deployment) else None
    attempts = [
        {
            "token": attempt.token,
            "run": attempt.owner.run_id,
            "round": attempt.round,
            "replayed": attempt.replayed,
            "gone": attempt.gone,
            "digests": _digests(attempt.staged.digests) if attempt.staged is not None else {},
            "on_disk": _digests({name: one for name, one in attempt.found.items() if name != SOURCE}),
            "won": seal is not None and attempt.token == seal.token,
        }
        for attempt in attempts_at(deployment.pipeline, binding)
    ]
    body = {**times, "txn": txn, "run": binding.owner.run_id, "configuration": settings.fingerprint}
    body |= {"input": _input(binding), "gone": gone, "journal": journal, "attempts": attempts}
    body["sample"] = sample if shows_keys else []
    body["sampled"] = len(sample)
    body |= {"pipeline": deployment.config.name, "bound": deployment.control.bindings.head().upper - 1}
    body["steps"] = steps_of(deployment, binding, seal)
    held = paused_shards(deployment.pipeline) if seal is not None else {}
    body["waits"] = {shard: one.reason for shard, one in held.items() if one.txn == txn}
    if seal is not None:
        body["seal"] = {
            "decision": str(seal.decision),
            "reason": seal.reason,
            "token": seal.token,
            "generation": seal.generation,
            "engine": seal.engine,
            "digests": _digests(seal.digests),
            "parts": [
                {
                    "shard": shard,
                    "path": part.path,
                    "rows": part.rows,
                    "bytes": part.bytes,
                    "held": added.held,
                }
                for shard, added in seal.shards.items()
                for part in added.parts
            ],
        }
    return dict(plain(body))


def _sampled(
    noted: Sequence[Mapping[str, Any]], masked: Mapping[str, Sequence[str]]
) -> tuple[list[Body], list[Body]]:
    """The journal with the number of sampled keys in their place, and the sample of the last replay. A column
    that is `masked` by now is not shown, even if it was recorded before."""
    journal: list[Body] = []
    sample: list[Body] = []
    for entry in noted:
        if entry["event"] == Event.SAMPLED:
            sample = json.loads(entry["detail"]["keys"])
            entry = {**entry, "detail": {**entry["detail"], "keys": str(len(sample))}}  # noqa: PLW2901
        elif entry["event"] == Event.VERIFIED:
            sample = []
        journal.append(dict(entry))
    for one in sample:
        for name in set(one["key"]) & set(masked.get(one["shard"], ())):
            if not _DIGEST.fullmatch(one["key"][name] or ""):
                one["key"][name] = MASK
    return journal, sample


def maintenance_body(one: PipelineDag) -> Body:
    """The work that maintenance would do now, and what holds it back.

    It lists the files of every table, and asks about bound input: the source of files only."""
    with open_for_reading(one) as deployment:
        return dict(plain(maintenance_plan(deployment, asks_source=is_asked(deployment))))


def _digests(digests: Digests) -> Body:
    return {endpoint: {"rows": digest.count, "digest": str(digest)} for endpoint, digest in digests.items()}


def _input(binding: Binding) -> Body:
    """The bound offset ranges, and at most `FILES_MAX` of the bound files."""
    below, above = binding.lower.as_dict(), binding.upper.as_dict()
    ranges = [
        {"partition": name, "from": below.get(name, 0), "to": upper}
        for name, upper in above.items()
        if below.get(name, 0) != upper
    ]
    found = json.loads(binding.manifest) if binding.manifest else {}
    files = found.get("files", []) if isinstance(found, dict) else []
    shown = [{name: file.get(name) for name in ("name", "seq", "size", "hash")} for file in files[:FILES_MAX]]
    return {"ranges": ranges, "files": shown, "files_total": len(files)}


def run_body(one: PipelineDag, attempt: Attempt) -> Body:
    """One run: its summary, and its transactions."""
    with open_for_reading(one) as deployment:
        return _run(deployment, attempt)


def _run(deployment: Deployment, attempt: Attempt) -> Body:
    facts = run_facts(deployment.pipeline, attempt)
    tried = {entry.txn for entry in found_by(deployment.pipeline, attempt)}
    owned = {*(seal.txn for seal in facts.sealed), *(proof.txn for proof in facts.proofs), *facts.open}
    txns = sorted({*owned, *tried})
    rows = [row for txn in txns for row in listed(deployment, lower=txn, upper=txn + 1)[0]]
    return dict(plain({"sentence": run_sentence(facts), "transactions": rows}))
