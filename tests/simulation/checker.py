"""The independent checker: it recomputes everything from the source's own records.

It shares no decision with the product: its fold is a loop over records in the order of their
transaction, and what it expects comes from the source and the bindings' boundaries alone.
"""

from __future__ import annotations

from itertools import pairwise

from tests.simulation.world import SHARDS, World
from tests.support.memory.fold import Change
from tests.support.memory.source import SourceRecord
from tidemark.core.binding import Binding
from tidemark.core.ledger import Event
from tidemark.core.replay import Verdict
from tidemark.core.seal import Decision, Seal


class Broken(AssertionError):
    """An invariant does not hold."""


def ensure(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


class Checker:
    """Looks at a world after its end."""

    def __init__(self, world: World) -> None:
        self.world = world
        truth = world.warehouse
        records = truth.bindings.records(truth.bindings.version)
        self.bindings = list(records)
        self.seals: list[Seal] = list(truth.seals.records(truth.seals.version))
        self.evidence = world.evidence

    def check(self) -> None:
        self.check_bindings()
        self.check_seals()
        self.check_logs()
        self.check_contents()
        self.check_files()
        self.check_races()
        self.check_replays()
        self.check_acknowledgements()

    def check_bindings(self) -> None:
        """Dense numbers, joined ends: each record belongs to exactly one transaction."""
        ensure(
            [b.txn for b in self.bindings] == list(range(1, len(self.bindings) + 1)), "bindings are not dense"
        )
        for before, after in pairwise(self.bindings):
            ensure(before.upper == after.lower, f"binding {after.txn} does not start where the last ended")
        size = {name: len(records) for name, records in self.world.source.partitions.items()}
        ensure(not size or self.bindings[-1].upper.as_dict() == size, "not everything is bound at the end")

    def check_seals(self) -> None:
        numbers = [seal.txn for seal in self.seals]
        ensure(numbers == list(range(1, len(self.bindings) + 1)), f"seals are {numbers}")
        checkpoints = self.world.warehouse.checkpoints
        upper = checkpoints.head(checkpoints.version).upper
        ensure(upper == len(self.seals) + 1, f"checkpoint is at {upper - 1} of {len(self.seals)}")

    def check_logs(self) -> None:
        """Each log has each sealed transaction exactly once, with the sealed parts and no others."""
        for shard in SHARDS:
            log = self.world.warehouse.log(shard)
            entries = [(e.txn, e.token, e.parts) for e in log.records(log.version)]
            wanted = [(s.txn, s.token, s.shards[shard].parts) for s in self.seals if shard in s.shards]
            ensure(entries == wanted, f"log {shard} has {entries}, the seals say {wanted}")

    def _records(self, binding: Binding, *, original: bool) -> list[SourceRecord]:
        tampered = self.evidence.tampered
        return [
            tampered.get((position.partition, position.offset), record) if original else record
            for position, record in self.world.source.records(binding)
        ]

    def check_contents(self) -> None:
        """The rows of each transaction are the last ones per key of its records, all of one version."""
        for binding, seal in zip(self.bindings, self.seals, strict=True):
            if seal.decision is Decision.SKIPPED:
                continue
            found = {shard: self._rows(seal, shard) for shard in SHARDS}
            versions = [self._expected(binding, original=flag) for flag in (True, False)]
            ensure(found in versions, f"transaction {binding.txn} has {found}, expected {versions[0]}")

    def _rows(self, seal: Seal, shard: str) -> dict[object, object]:
        parts = seal.shards[shard].parts if shard in seal.shards else ()  # type: ignore[index]
        rows: dict[object, object] = {}
        for part in parts:
            ensure(part.path in self.world.files, f"sealed part {part.path} is gone")
            changes: tuple[Change, ...] = self.world.files[part.path]
            for change in changes:
                ensure(change.key not in rows, f"key {change.key} is twice in transaction {seal.txn}")
                rows[change.key] = change.value
        return rows

    def _expected(self, binding: Binding, *, original: bool) -> dict[str, dict[object, object]]:
        rows: dict[str, dict[object, object]] = {shard: {} for shard in SHARDS}
        # Positions go partition by partition, offset by offset: the last one stands.
        for record in self._records(binding, original=original):
            rows[record.table][record.key] = record.value
        return rows

    def check_files(self) -> None:
        """After a sweep, no file is left that no seal names."""
        sealed = {p.path for seal in self.seals for parts in seal.shards.values() for p in parts.parts}
        orphans = sorted(set(self.world.files) - sealed)
        ensure(not orphans, f"orphan parts {orphans}")

    def check_races(self) -> None:
        """Every lost race names its winner, and other data under one number was an error."""
        journal = self.world.warehouse.journal
        winners = {seal.txn: seal for seal in self.seals}
        for entry in journal.records(journal.version):
            if entry.event is not Event.LOST:
                continue
            winner = winners[entry.txn]
            ensure(
                entry.detail["winner"] == winner.token != entry.token, f"lost race {entry} names no winner"
            )
            if winner.decision is Decision.SKIPPED:
                continue
            for staged in self.evidence.staged.get(entry.token, ()):
                if staged.txn == entry.txn and staged.digests != winner.digests:
                    ensure(entry.detail["verdict"] == Verdict.DIFFERS, f"{entry} did not compare")

    def check_replays(self) -> None:
        """A replay says `identical` exactly when the input is what the seal was made from."""
        decisions = {seal.txn: seal.decision for seal in self.seals}
        for finding, after_tampering in self.evidence.findings:
            if decisions[finding.txn] is Decision.SKIPPED or after_tampering:
                continue
            ensure(finding.verdict is Verdict.IDENTICAL, f"replay of unchanged input says {finding}")
        if not self.evidence.tampered:
            ensure(not self.evidence.differing, f"alarm without a cause: {self.evidence.differing}")

    def check_acknowledgements(self) -> None:
        """Never past what was durable at that moment, and at a transaction's boundary."""
        uppers = {binding.upper: binding.txn for binding in self.bindings}
        for frontier, sealed_upper, logs_upper in self.evidence.acknowledged_at:
            ensure(frontier in uppers, f"acknowledged {frontier}, which is no boundary")
            txn = uppers[frontier]  # type: ignore[index]
            ensure(txn < sealed_upper, f"transaction {txn} was acknowledged before its seal")
            ensure(txn < logs_upper, f"transaction {txn} was acknowledged before it was in every log")
