"""A state plane in memory: the core's own fold over the rows of the log, with versions and crashes."""

from __future__ import annotations

from tests.support.memory.control import MemoryWarehouse
from tests.support.memory.fold import Change, fold
from tests.support.memory.ledger import Calm, Chaos, Crash, Fault
from tests.support.memory.plane import Files, digest_of
from tests.support.memory.versions import MemoryStates, MemoryVersion
from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate, Indeterminate
from tidemark.core.ids import TXN_NONE, ShardId, WriterToken
from tidemark.core.ledger import Conflict
from tidemark.core.publish import Published, StateCommit, StateStatus
from tidemark.ports.planes import Tail


class MemoryStatePlane:
    """One process's way to the states."""

    def __init__(
        self, warehouse: MemoryWarehouse, files: Files, states: MemoryStates, chaos: Chaos | None = None
    ) -> None:
        self._warehouse = warehouse
        self._files = files
        self._states = warehouse.states = states
        self._chaos = chaos or Calm()

    def state_status(self, shard: ShardId, since: Published | None) -> StateStatus:
        versions = self._states.of(shard)
        known = [(at, version.commit) for at, version in enumerate(versions) if version.commit is not None]
        after = since.version if since is not None else -1
        foreign_writes = [
            f"{at} write" for at in range(after + 1, len(versions)) if versions[at].commit is None
        ]
        newest_version, newest = known[-1] if known else (-1, None)
        at_record = ""
        if since is not None and since.version < len(versions):
            commit = versions[since.version].commit
            at_record = commit.token if commit is not None else "a stranger"
        return StateStatus(
            version=len(versions) - 1,
            txn=max((commit.txn for _, commit in known), default=TXN_NONE),
            newest=newest,
            newest_version=newest_version,
            at_record=at_record,
            foreign_writes=tuple(foreign_writes),
        )

    def _rows(self, shard: ShardId, tail: Tail) -> list[Change]:
        files = self._warehouse.log(shard).files(tail.log_version)
        paths = [one.part.path for one in files if one.txn_last >= tail.lower and one.txn_first < tail.upper]
        gone = [path for path in paths if path not in self._files]
        if gone:
            raise Determinate(f"{gone[0]} is not there", hint="retry, at a newer version of the log")
        rows = (row for path in paths for row in self._files[path])
        return [row for row in rows if tail.lower <= row.txn < tail.upper]

    def publish(
        self, shard: ShardId, tail: Tail, *, base: Published | None, token: WriterToken
    ) -> tuple[int, StateCommit] | Conflict:
        versions = self._states.of(shard)
        newest = [at for at, one in enumerate(versions) if one.commit is not None]
        if newest[-1:] != ([base.version] if base is not None else []):
            return Conflict()  # Another publisher was first.
        return self.rebuild(shard, tail, base=base, token=token)

    def rebuild(
        self, shard: ShardId, tail: Tail, *, base: Published | None, token: WriterToken
    ) -> tuple[int, StateCommit] | Conflict:
        there = len(self._states.of(shard))
        before = self._states.of(shard)[base.version].rows.values() if base and not tail.afresh else ()
        rows = fold([*before, *self._rows(shard, tail)])
        visible = [change for change in rows.values() if not change.deletes]
        commit = StateCommit(tail.txn, token, digest_of(visible), link=tail.link)
        version = self._commit(shard, MemoryVersion(rows, commit), there)
        return version if isinstance(version, Conflict) else (version, commit)

    def tidy(self, shard: ShardId) -> None:
        """There is nothing to tidy in memory."""

    def _commit(self, shard: ShardId, version: MemoryVersion, there: int) -> int | Conflict:
        fault = self._chaos.meet("state.commit")
        if fault is Fault.CRASH_BEFORE:
            raise Crash
        if fault is Fault.FAIL:
            raise Determinate("the state did not take the commit")
        if len(self._states.of(shard)) != there:
            return Conflict()
        self._states.of(shard).append(version)
        if fault is Fault.CRASH_AFTER:
            raise Crash
        if fault is Fault.LOSE_REPLY:
            raise Indeterminate("the state did not answer")
        return len(self._states.of(shard)) - 1

    def digest(self, shard: ShardId, version: int) -> Digest:
        return digest_of(list(self._states.of(shard)[version].visible.values()))

    def repeated(self, shard: ShardId, version: int) -> int:
        return 0  # A mapping has each key once.
