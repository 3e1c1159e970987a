"""A data plane in memory: the core's own fold and digests over records, with parts as lists."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from tests.support.memory.fold import Change, Position, fold
from tests.support.memory.ledger import Calm, Chaos, Crash, Fault
from tests.support.memory.source import MemorySource, SourceRecord
from tidemark.core.binding import Binding
from tidemark.core.checksum import SOURCE, Digest, Digests, shard_endpoint
from tidemark.core.errors import Determinate
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.seal import Part, ShardParts, Staged

ENGINE = "memory"
Files = dict[str, tuple[Change, ...]]


def hash_of(*values: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=8).digest(), "big")


def digest_of(changes: Sequence[Change]) -> Digest:
    """What was written: key, value and sequence; not where the records stood."""
    return Digest.of(hash_of(change.key, change.value, change.sequence) for change in changes)


def change_of(binding: Binding, position: Position, record: SourceRecord) -> Change:
    return Change(record.key, record.value, binding.txn, position, record.sequence)


class MemoryPlane:
    """Stages parts into a dictionary of files, `parts_max` per shard, each a call of its own."""

    def __init__(
        self, source: MemorySource, files: Files, chaos: Chaos | None = None, *, parts_max: int = 2
    ) -> None:
        self._source = source
        self._files = files
        self._chaos = chaos or Calm()
        self._parts_max = parts_max

    def _fold(self, binding: Binding) -> tuple[Digest, dict[ShardId, list[Change]]]:
        read: list[int] = []
        tables: dict[ShardId, list[Change]] = {}
        for position, record in self._source.records(binding):
            read.append(hash_of(record.table, record.key, record.value, record.sequence))
            taken = self.decode(binding, record)
            if taken is not None:
                tables.setdefault(taken.table, []).append(change_of(binding, position, taken))
        folded = {
            shard: sorted(fold(changes).values(), key=lambda c: repr(c.key))
            for shard, changes in tables.items()
        }
        return Digest.of(read), folded

    def decode(self, binding: Binding, record: SourceRecord) -> SourceRecord | None:
        """The record as its binding's configuration reads it; here as it is."""
        return record

    def stage(self, binding: Binding, token: WriterToken) -> Staged:
        source, folded = self._fold(binding)
        shards: dict[ShardId, ShardParts] = {}
        for shard, changes in folded.items():
            parts: list[Part] = []
            for index in range(min(self._parts_max, len(changes))):
                rows = tuple(changes[index :: self._parts_max])
                parts.append(self._write(f"{shard}/{binding.txn}/{token}/{index}", rows))
            shards[shard] = ShardParts(tuple(parts), digest_of(changes))
        return Staged(binding.txn, token, source, shards, ENGINE)

    def _write(self, path: str, rows: tuple[Change, ...]) -> Part:
        fault = self._chaos.meet("plane.write")
        if fault is Fault.CRASH_BEFORE:
            raise Crash
        if fault is Fault.FAIL:
            raise Determinate(f"no room to write {path}")
        self._files[path] = rows
        if fault is Fault.CRASH_AFTER:
            raise Crash
        return Part(path, len(rows), len(rows))

    def read_back(self, staged: Staged, *, moved: Mapping[ShardId, Sequence[Part]] | None = None) -> Digests:
        found: dict[str, Digest] = {SOURCE: staged.source}
        for shard, shard_parts in staged.shards.items():
            parts = (moved or {}).get(shard, shard_parts.parts)
            kept = [row for part in parts for row in self._files.get(part.path, ())]
            rows = [row for row in kept if row.txn == staged.txn]
            found[shard_endpoint(shard)] = digest_of(rows)
        return found

    def replay(self, binding: Binding) -> Staged:
        if self._chaos.meet("plane.replay") in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            raise Crash
        source, folded = self._fold(binding)
        shards = {
            shard: ShardParts((Part("", len(changes), 0),), digest_of(changes))
            for shard, changes in folded.items()
        }
        return Staged(binding.txn, WriterToken(""), source, shards, ENGINE)

    def discard(self, txn: Txn, token: WriterToken) -> None:
        for path in [path for path in self._files if path.split("/")[1:3] == [str(txn), token]]:
            if self._chaos.meet("plane.discard") in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
                raise Crash
            self._files.pop(path, None)

    def damaged(self, shard: ShardId, parts: Sequence[Part]) -> Sequence[Part]:
        return [part for part in parts if len(self._files.get(part.path, ())) != part.rows]

    def restore(self, shard: ShardId, *, lost: Part, copy: Part) -> None:
        self._files[lost.path] = self._files.pop(copy.path)

    def attempts(self) -> Sequence[tuple[Txn, WriterToken]]:
        found = {tuple(path.split("/")[1:3]) for path in self._files}
        # Merged files have a range in the place of the transaction.
        return sorted((Txn(int(txn)), WriterToken(token)) for txn, token in found if txn.isdigit())
