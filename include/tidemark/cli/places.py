"""What a transaction read, wrote and was warned of, and where a record of it stood, for people."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tidemark.cli.shared import print_table, say

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tidemark.assemble import Deployment
    from tidemark.core.binding import Binding
    from tidemark.core.ids import Txn
    from tidemark.core.seal import Seal, SealOutcome
    from tidemark.sources.manifest import Manifest

_FILES_SHOWN_MAX: Final = 20


def show_input(binding: Binding) -> None:
    """The files of a binding by name, or the offsets that it reads."""
    manifest = _manifest_of(binding)
    if manifest is None:
        below = binding.lower.as_dict()
        rows = [(name, below.get(name, 0), upper) for name, upper in binding.upper.as_dict().items()]
        changed = [row for row in rows if row[1] != row[2]]
        if changed:
            print_table("", ("input", "from", "up to"), changed)
        return
    files = manifest.files
    if files:
        shown = [(file.name, file.seq, file.size) for file in files[:_FILES_SHOWN_MAX]]
        print_table("", ("input file", "number", "bytes"), shown)
    if len(files) > _FILES_SHOWN_MAX:
        say(f"and {len(files) - _FILES_SHOWN_MAX:,} files more; --json has them all")


def show_seal(seal: Seal) -> None:
    """Who decided, what was counted, and which parts hold it."""
    why = f" ({seal.reason})" if seal.reason else ""
    say(f"{seal.decision}{why} by {seal.token}, generation {seal.generation}, {seal.engine}")
    rows = [(endpoint, digest.count, digest) for endpoint, digest in seal.digests.items()]
    print_table("", ("endpoint", "rows", "digest"), rows)
    parts = [
        (shard, part.path, part.rows, part.bytes, added.held)
        for shard, added in seal.shards.items()
        for part in added.parts
    ]
    print_table("", ("shard", "part", "rows", "bytes", "held"), parts)


def passed_over(deployment: Deployment) -> dict[str, str]:
    """What the source has seen and did not take, by name, with the reason."""
    from tidemark.ports.source import PassesOver

    source = deployment.pipeline.source
    return {one.name: one.reason for one in source.skipped} if isinstance(source, PassesOver) else {}


def show_passed_over(deployment: Deployment) -> None:
    found = list(passed_over(deployment).items())
    for name, reason in found[:_FILES_SHOWN_MAX]:
        say(f"not taken: {name}, {reason}", style="yellow")
    if len(found) > _FILES_SHOWN_MAX:
        say(f"and {len(found) - _FILES_SHOWN_MAX:,} files more; --json has them all", style="yellow")


def with_places(deployment: Deployment, records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Quarantined records with `place`: the file and the line, where the source is one of files."""
    from tidemark.core.ids import Txn
    from tidemark.pipeline.context import binding_at
    from tidemark.sources.places import record_place

    manifests: dict[int, Manifest | None] = {}
    placed: list[dict[str, Any]] = []
    for record in records:
        txn, partition, offset = record["_txn"], record["_partition"], record["_offset"]
        if txn not in manifests:
            manifests[txn] = _manifest_of(binding_at(deployment.pipeline, Txn(txn)))
        manifest = manifests[txn]
        place = f"{partition}, offset {offset}"
        if manifest is not None:
            place = record_place(manifest, offset, record["_ordinal"])
        placed.append({**record, "place": place})
    return placed


def warnings_of(deployment: Deployment, decided: tuple[SealOutcome, ...]) -> dict[Txn, tuple[str, ...]]:
    """What expectations with `action: warn` said of the transactions that this run sealed."""
    from tidemark.core.journal import Event
    from tidemark.core.seal import Sealed
    from tidemark.pipeline.verdicts import judged_in

    if not any(shard.expectations for shard in deployment.config.shards):
        return {}
    journal = deployment.control.journal
    journal.head()
    found = {
        entry.txn: judged_in(entry).gated.opinion.warned
        for outcome in decided
        if isinstance(outcome, Sealed)
        for entry in journal.find(str(outcome.seal.txn))
        if entry.event is Event.JUDGED and entry.token == outcome.seal.token
    }
    return {txn: said for txn, said in found.items() if said}


def _manifest_of(binding: Binding) -> Manifest | None:
    """The files that were bound; None for a source of another kind."""
    from tidemark.sources.manifest import PARTITION, Manifest

    if not binding.manifest or json.loads(binding.manifest).get("kind") != PARTITION:
        return None
    return Manifest.from_json(binding.manifest)
