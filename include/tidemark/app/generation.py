"""Generations of a deployment: plan, start, follow, compare, promote, abort and roll back.

`core.generation` says what a candidate and a promotion are. Here they get their tables: a candidate is a
deployment of its own, whose tables are in a shadow folder of the pipeline. A lease keeps the input and the
log of the pipeline while a candidate is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tidemark.app.correction import TableCorrector
from tidemark.app.deployment import Deployment, new_token
from tidemark.app.generation_plan import plan, settings_between
from tidemark.app.publish import publish_due
from tidemark.app.views import read
from tidemark.config import PipelineConfig
from tidemark.config.model import SHADOWS
from tidemark.core.binding import Configuration
from tidemark.core.errors import InvalidUsage, TidemarkError
from tidemark.core.generation import GRACE_SECONDS, Candidate, Followed, promoted
from tidemark.core.ids import QUARANTINE, TXN_FIRST, TXN_NONE, ShardId, Txn, WriterToken, next_txn
from tidemark.core.lease import HolderToken
from tidemark.core.reading import CANDIDATE
from tidemark.delta.store import Store
from tidemark.pipeline import candidates
from tidemark.pipeline import generation as steps
from tidemark.pipeline.candidates import configuration_in_charge
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.generation import Position, Recorded, Shadow
from tidemark.pipeline.ingest import Progress, no_progress
from tidemark.pipeline.leases import Leases
from tidemark.pipeline.promotion import Promotion, promote, replaced_shapes, unchanged
from tidemark.ports.planes import Freed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.spark.correction import Comparison

FOLLOWED_AT_ONCE: Final = 20
"""After so many transactions a candidate's states are published, as far as they are due."""


class Generations:
    """The generations of one open deployment."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment

    @property
    def candidate(self) -> Candidate | None:
        return candidates.candidate_of(self.deployment.control)

    def required(self, identity: str = "") -> Candidate:
        """The candidate; `InvalidUsage` if there is none, or not the one with this identity."""
        found = self.candidate
        if found is None:
            raise InvalidUsage(
                f"pipeline {self.deployment.config.name!r} has no candidate generation",
                hint="`tidemark generation start PIPELINE` begins one",
            )
        if identity and found.identity != identity:
            raise InvalidUsage(
                f"the candidate is {found.identity}, and the one that was looked at is {identity}",
                hint="it was aborted and started again since: look at the new one first",
            )
        return found

    def going_on(
        self, *, since: int, until: int, from_now: bool, replaces: Sequence[str] = ()
    ) -> Candidate | None:
        """The candidate that is there, to go on with; None if there is none. `InvalidUsage` where it was
        started otherwise than this, or from another file."""
        found = self.candidate
        if found is None or found.undoes:
            return found
        there = found.since, found.until, found.from_now, found.replaces
        asked = since, until, from_now, tuple(sorted(map(ShardId, replaces)))
        if there != asked:
            text = [
                f"from {first} to {last or 'the end'}{', from now on' if now else ''}"
                f"{', replacing ' + ', '.join(shards) if shards else ''}"
                for first, last, now, shards in (there, asked)
            ]
            raise InvalidUsage(
                f"generation {found.generation} was started {text[0]}, and is asked for {text[1]}",
                hint="ask for the same, or abort the candidate first",
            )
        self.pair(found).require_file()
        return found

    def is_promoted(self, identity: str) -> bool:
        """Whether a candidate is in charge: the one with this identity or, without one, the file's."""
        control = self.deployment.fresh_control()
        known = promoted(candidates.candidates(control), generation=control.candidates.head().generation)
        if identity:
            return any(one.identity == identity for one in known)
        return self.candidate is None and self.deployment.is_in_charge

    def start(
        self,
        *,
        reason: str,
        since: int = TXN_FIRST,
        until: int = 0,
        from_now: bool = False,
        file: PipelineConfig | None = None,
        undoes: int = 0,
        replaces: Sequence[str] = (),
    ) -> Candidate:
        """Begin a candidate with the configuration of the pipeline file. Its input is held from now on.
        `replaces` are the shards that may get another key, type or order: exactly those that the plan
        names."""
        deployment = self.deployment
        config = file if file is not None else deployment.file
        found = plan(deployment, file=config, from_now=from_now, is_range=since > TXN_FIRST or until > 0)
        if found.refused:
            raise InvalidUsage(
                f"generation {found.generation} can't be started: {'; '.join(found.refused)}",
                hint="nothing has changed; `tidemark generation plan PIPELINE` shows the whole plan",
            )
        found.require_agreed(replaces)
        if since < TXN_FIRST or (until and until < since):
            raise InvalidUsage(f"transactions {since} to {until} are not a range", hint="count from 1 up")
        token = new_token()
        # Before the candidate is on record: a lease too many harms nothing.
        self._hold(token)
        new = Candidate(
            1,
            1,
            token,
            Configuration.of(config.canonical_json()),
            Txn(since),
            Txn(until),
            reason,
            from_now=from_now,
            replaces=tuple(sorted(map(ShardId, replaces))),
            undoes=undoes,
        )
        return candidates.start(deployment.control, new)

    def _hold(self, token: WriterToken) -> None:
        """Keep the input from the first retained transaction on, if it is not kept already."""
        Leases(self.deployment.control.leases).keep(LEASE, HolderToken(token))

    def require_held(self, candidate: Candidate) -> None:
        """Keep the candidate's input, if its lease is gone: another process may have removed it, which saw no
        candidate shortly before this one was on record."""
        self._hold(candidate.token)

    def _let_go(self) -> None:
        with suppress(InvalidUsage):
            Leases(self.deployment.control.leases).forget(LEASE)

    def pair(self, candidate: Candidate) -> Pair:
        return Pair(self.deployment, candidate)

    def abort(self, *, reason: str, identity: str = "") -> Candidate:
        """End the candidate and remove all its tables. With an identity, only that one.

        If there is none, what is left of earlier ones is removed all the same: the process that has ended
        them may have died before it had removed their tables."""
        if self.candidate is None:
            self.clean()
        found = self.required(identity)
        ended = candidates.abort(self.deployment.control, found, token=new_token(), reason=reason)
        self.clean()
        return ended

    def leftovers(self) -> list[Store]:
        """The shadow folders of candidates that are no more."""
        options = self.deployment.storage_options or {}
        folder = Store(f"{self.deployment.root}/{SHADOWS}", options)
        # The folders first: one that is there has a candidate on record.
        names = folder.folders()
        candidate = self.candidate
        kept = candidate.folder if candidate is not None else ""
        return [Store(f"{folder.uri}/{name}", options) for name in names if name != kept]

    def clean(self) -> Freed:
        """Remove what is left of candidates that are no more: their shadow folders, and the lease of their
        input. Returns what was removed."""
        files = size = 0
        for folder in self.leftovers():
            sizes = folder.listed().values()
            files, size = files + len(sizes), size + sum(sizes)
            folder.delete_all()
        if self.candidate is None:
            self._let_go()
        return Freed(files, size)

    def rollback(self, *, reason: str, replaces: Sequence[str] = ()) -> Candidate:
        """Begin a candidate that takes back the last promotion, as a new generation: what came after it is
        read by the configuration before, everything else as it was read before. Refused where that had fewer
        columns than the tables have now."""
        control = self.deployment.fresh_control()
        head = control.seals.head()
        last = Txn(control.seals.mark("correction"))
        if last == TXN_NONE:
            raise InvalidUsage("no generation was promoted", hint="there is nothing to go back to")
        found = configuration_in_charge(control, below=last)
        if found is None:
            raise InvalidUsage("the configuration before is not on record", hint="start a generation by file")
        config = PipelineConfig.from_canonical_json(found.text, root=self.deployment.file.root)
        older = config.model_copy(
            update={"generation": head.generation + 1, "warehouse": self.deployment.file.warehouse}
        )
        return self.start(reason=reason, file=older, undoes=head.generation, replaces=replaces)


LEASE: Final = f"{CANDIDATE}/input"


class Pair:
    """A deployment and its candidate's, to follow, compare and promote."""

    def __init__(self, deployment: Deployment, candidate: Candidate) -> None:
        self.deployment, self.candidate = deployment, candidate

    @cached_property
    def config(self) -> PipelineConfig:
        """The candidate's configuration."""
        file = self.deployment.file
        made = PipelineConfig.from_canonical_json(self.candidate.configuration.text, root=file.root)
        here = {"warehouse": file.warehouse, "alarms": file.alarms, "on_red": file.on_red}
        return made.model_copy(update=here)

    @cached_property
    def shadow(self) -> Deployment:
        """The candidate's deployment, with tables of its own."""
        return self._opened(self.config.shadowed(self.candidate.folder))

    @cached_property
    def target(self) -> Deployment:
        """The pipeline as it will be after the promotion."""
        return self._opened(self.config, in_charge=True, replaced=self.candidate.replaces)

    @cached_property
    def _spark(self) -> SparkSession:
        """One session for both generations: rows of two sessions can't be compared."""
        return self.deployment.session()

    def _opened(
        self, config: PipelineConfig, *, in_charge: bool = False, replaced: Sequence[ShardId] = ()
    ) -> Deployment:
        opened = Deployment(
            config,
            lambda: self._spark,
            storage_options=self.deployment.storage_options,
            in_charge=in_charge,
            replaced=replaced,
        )
        recorded = Recorded(self.deployment.pipeline.source)
        source = self.deployment.pipeline.source if in_charge else recorded
        opened.pipeline = replace(opened.pipeline, source=source, configuration=self.candidate.configuration)
        return opened

    @property
    def both(self) -> Shadow:
        return Shadow(self.candidate, self.deployment.pipeline, self.shadow.pipeline, self.target.pipeline)

    @property
    def shards(self) -> tuple[ShardId, ...]:
        return (*self.target.shards, QUARANTINE)

    def require_file(self) -> None:
        """`InvalidUsage` where the pipeline file is not the one that the candidate was made from: later input
        would get other settings than the tables. A rollback is made from no file."""
        if self.candidate.undoes:
            return
        file = self.deployment.file
        differ = [one.name for one in settings_between(self.config, file)]
        if file.generation != self.candidate.generation:
            differ.insert(0, "generation")
        if differ:
            raise InvalidUsage(
                f"the pipeline file is not the one that generation {self.candidate.generation} was started"
                f" with: {', '.join(differ[:10])} differ",
                hint="restore the file; or abort the candidate, and start it with this file",
            )

    def position(self) -> Position:
        return steps.position(self.both)

    def follow(
        self, attempt: Attempt, *, transactions_max: int | None = None, progress: Progress = no_progress
    ) -> Iterator[Followed]:
        """Take the candidate through the sealed transactions, and publish its states as they are due."""
        self.require_file()
        Generations(self.deployment).require_held(self.candidate)
        if self.candidate.from_now:
            return
        try:
            yield from self._followed(attempt, transactions_max, progress)
        except (TidemarkError, OSError):
            # Where the candidate has been aborted meanwhile, this process may have written after its tables
            # were removed.
            with suppress(TidemarkError, OSError):
                Generations(self.deployment).clean()
            raise

    def _followed(
        self, attempt: Attempt, transactions_max: int | None, progress: Progress
    ) -> Iterator[Followed]:
        left = transactions_max
        while left is None or left > 0:
            chunk = FOLLOWED_AT_ONCE if left is None else min(left, FOLLOWED_AT_ONCE)
            done = list(steps.follow(self.both, attempt, transactions_max=chunk, progress=progress))
            yield from done
            publish_due(self.shadow, attempt, progress=progress)
            if len(done) < chunk:
                return
            left = None if left is None else left - len(done)

    @property
    def _corrector(self) -> TableCorrector:
        return TableCorrector(self.target, self.shadow, before=self.deployment.declared)

    def compare(self, *, keys_max: int = 5) -> dict[ShardId, Comparison]:
        """The rows that would change in each shard, as of the last transaction that both have, with a sample
        of keys; of a replaced shard, all rows. Needs Spark."""
        from tidemark.spark.correction import Comparison

        upper, corrector = next_txn(self.position().txn), self._corrector
        equal = unchanged(self.both, corrector, self.target.shards, upper=upper)
        replaced = replaced_shapes(self.both, self.target.shards)
        differ = [shard for shard in self.target.shards if shard not in equal and shard not in replaced]
        masked = {ShardId(shard.name): shard.masked for shard in self.deployment.config.shards}
        found = corrector.compare(differ, upper=upper, keys_max=keys_max, masked=masked)
        for shard in replaced:
            # Rows of two keys or types can't be compared: all of one go, and all of the other come.
            new, old = (read(one, shard, as_of=upper - 1).count() for one in (self.shadow, self.deployment))
            found[shard] = Comparison(inserted=new, deleted=old, changed=0)
        return {shard: found.get(shard, Comparison(0, 0, 0)) for shard in self.target.shards}

    def promote(
        self,
        attempt: Attempt,
        *,
        grace_seconds: float = GRACE_SECONDS,
        user: str = "",
        progress: Progress = no_progress,
    ) -> Promotion:
        """Promote the candidate, and remove its tables. The pipeline file must be the one that it was made
        from."""
        self.require_file()
        done = self.deployment.up_to_date(
            lambda: promote(
                self.both,
                attempt,
                self._corrector,
                self.shards,
                grace_seconds=grace_seconds,
                user=user,
                progress=progress,
            )
        )
        self.deployment.reopen()
        if not self.candidate.from_now:
            publish_due(self.deployment, attempt, every=True, progress=progress)
        Generations(self.deployment).clean()
        return done
