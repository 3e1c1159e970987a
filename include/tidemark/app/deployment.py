"""A deployment: a pipeline file connected to its adapters and steps. No other module connects them.

Opening a deployment takes milliseconds. The first step that needs rows starts Spark; a run without work never
does.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tidemark.config import PipelineConfig
from tidemark.config.load import (
    Columns,
    new_columns,
    uses_source_schemas,
    with_discovered_shards,
    with_new_columns,
)
from tidemark.config.load import recorded_shapes as recorded_tables
from tidemark.core.binding import Binding, Configuration, Owner
from tidemark.core.checksum import Digests
from tidemark.core.errors import InvariantViolation, MissingExtra
from tidemark.core.generation import Candidate, PromotionOpen, Superseded, is_from_file
from tidemark.core.ids import QUARANTINE, TXN_FIRST, ShardId, Txn, WriterToken
from tidemark.core.log import begins_at
from tidemark.core.publish import Policy, published_txn
from tidemark.core.seal import Fenced, Opinion, Part, Staged
from tidemark.core.shape import NewColumns, Outgrown, Shapes
from tidemark.delta.control import DeltaControl
from tidemark.delta.schema import log_schema, properties_of, quarantine_schema
from tidemark.pipeline.candidates import await_promotion, candidates, configuration_in_charge
from tidemark.pipeline.checkpoint import is_paused, is_settled
from tidemark.pipeline.context import Attempt, Pipeline, untouched, watermark_below
from tidemark.pipeline.publish import last_published
from tidemark.pipeline.schema_change import not_taken, recorded_columns
from tidemark.pipeline.validate import Pair
from tidemark.ports.control import Control
from tidemark.ports.planes import Merger, StateKeeper
from tidemark.ports.source import ShardKeysPort, Source
from tidemark.runtime.machine import home
from tidemark.sources.files.source import FileSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.spark.parts import PartStore
    from tidemark.spark.plane import SparkPlane
    from tidemark.spark.state import SparkStatePlane

T = TypeVar("T")
SessionMaker = Callable[[], "SparkSession"]


def new_token() -> WriterToken:
    """A unique name for an attempt, with the host and the process that it runs in."""
    host = "".join(c for c in socket.gethostname() if c.isalnum() or c == "-")[:32] or "host"
    return WriterToken(f"{host}-{os.getpid()}-{secrets.token_hex(6)}")


def source_of(config: PipelineConfig, control: Control, shard_keys: ShardKeysPort) -> Source:
    """The pipeline's source. It connects when it is first used.

    Readers need no source, so a missing library raises `MissingExtra` at the first use, not here."""
    try:
        return _source_of(config, control, shard_keys)
    except MissingExtra as error:
        return cast("Source", AbsentSource(error))


def _source_of(config: PipelineConfig, control: Control, shard_keys: ShardKeysPort) -> Source:
    match config.source.type:
        case "kafka":
            from tidemark.sources.kafka.source import TopicSource

            return TopicSource.of(config, config.source, bindings=control.bindings, owned=control.owned)
        case "postgres":
            from tidemark.sources.postgres.source import SlotSource

            return SlotSource(config, bindings=control.bindings, shard_keys=shard_keys)
        case _:
            return FileSource.of(config, bindings=control.bindings)


class AbsentSource:
    """The `Source` port if the source's library is not installed: every use raises `MissingExtra`."""

    def __init__(self, error: MissingExtra) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


def discovered(config: PipelineConfig) -> PipelineConfig:
    """The configuration with the source's present tables, if the file leaves the tables to the source.

    Only the step that binds needs this; all others work with the tables on record."""
    if not uses_source_schemas(config):
        return config
    from tidemark.sources.postgres import tables

    return tables.discovered(config)


@lru_cache(maxsize=64)
def recorded_shapes(configuration: Configuration) -> Shapes:
    """The shapes of a configuration that a binding has recorded."""
    return PipelineConfig.from_canonical_json(configuration.text).shapes


class Deployment:
    """One pipeline, open for work. The control plane is open; Spark starts when a step needs it."""

    def __init__(
        self,
        config: PipelineConfig,
        session: SessionMaker,
        *,
        storage_options: dict[str, str] | None = None,
        in_charge: bool = False,
        replaced: Collection[ShardId] = (),
    ) -> None:
        """`in_charge` takes the given configuration for the one in charge, whatever the history says. The
        logs of `replaced` shards may have any shape: a promotion is about to replace them."""
        self.file = config
        """The configuration in the pipeline file. `declared` is the one in charge: the same, unless the file
        has another generation. `config` also has the columns that records have added."""
        self.declared = config
        self.session = session
        self.root = f"{config.tables_warehouse}/{config.name}"
        self.storage_options = storage_options
        self._is_forced = in_charge or config.is_shadow
        self._replaced = frozenset(replaced)
        self._shadow: tuple[str, DeltaControl] | None = None
        self.is_in_charge = True
        """Whether the pipeline file's settings are in charge."""
        self.declared = self._in_charge()
        self._open(self._grown())

    def _open(self, config: PipelineConfig) -> None:
        self.config = config
        self.__dict__.pop("unchecked", None)
        self._shapes = shapes = config.shapes
        self._names = tuple(shapes)
        schemas = {shard: log_schema(shape) for shard, shape in shapes.items() if shard not in self._replaced}
        schemas[QUARANTINE] = quarantine_schema()
        self.control = DeltaControl(
            config.tables_warehouse,
            config.name,
            schemas,
            self.storage_options,
            properties={shard: properties_of(shape) for shard, shape in shapes.items()},
            growing=[shard for shard, shape in shapes.items() if shape.grows],
            generation=config.generation,
        )
        self.pipeline = Pipeline(
            control=self.control,
            source=source_of(config, self.control, ShardKeys(self)),
            plane=LazyPlane(self),
            configuration=Configuration.of(config.canonical_json(), generation=config.generation),
            generation=config.generation,
            gate=Expectations(self),
            shapes_of=self.shapes_of,
        )
        self._plane: SparkPlane | None = None
        self._state: SparkStatePlane | None = None

    def setting_aside(self) -> Deployment | None:
        """The same pipeline, with `quarantine` in place of `fail` for each expectation that single rows
        break; None if there is none. What it stages records these settings, so a replay uses them too."""
        changed = self.declared.setting_aside()
        if changed is self.declared:
            return None
        return Deployment(changed, self.session, storage_options=self.storage_options)

    def reopen(self) -> bool:
        """Take over what has changed since: columns that records have brought, or another generation in
        charge. Returns whether anything has."""
        before, self.declared = self.declared, self._in_charge()
        config = self._grown()
        if config == self.config and before == self.declared:
            return False
        self.close()
        self._open(config)
        return True

    def up_to_date(self, work: Callable[[], T]) -> T:
        """Do the work. Repeat it with the pipeline opened again where it meets new columns or another
        generation in charge, and after a promotion that it met is decided."""
        undecided: Binding | None = None
        while True:
            try:
                if undecided is not None:
                    token = new_token()
                    await_promotion(self.pipeline, Attempt(Owner(f"waits-{token}"), token), undecided)
                    undecided = None
                return work()
            except PromotionOpen as found:
                undecided = found.binding
            except (Superseded, Fenced):
                if not self.reopen():
                    raise
            except (NewColumns, Outgrown) as new:
                if not self.reopen():
                    raise new if isinstance(new, Outgrown) else not_taken(new) from None

    @property
    def added(self) -> Columns:
        """The columns of each shard that records have added and that are not in the pipeline file."""
        return new_columns(self.declared, self.config)

    def _in_charge(self) -> PipelineConfig:
        """The configuration in charge. A file of another generation is not: it waits for its promotion, or it
        is out of date. Nor is any file where the generation in charge took back a promotion."""
        config = self.file
        if self._is_forced:
            return config
        control = self.fresh_control()
        try:
            head = control.seals.head()
        except InvariantViolation:
            return config  # Nothing is decided beside such a history; what needs it names what is wrong.
        self.is_in_charge = head.upper == TXN_FIRST
        if self.is_in_charge:
            return config
        self.is_in_charge = config.generation == head.generation and (
            not head.generation or is_from_file(candidates(control), generation=head.generation)
        )
        found = None if self.is_in_charge else configuration_in_charge(control)
        if found is None:
            return config
        recorded = PipelineConfig.from_canonical_json(found.text, root=config.root)
        here = {"warehouse": config.warehouse, "alarms": config.alarms, "on_red": config.on_red}
        known = recorded.model_copy(update=here)
        # Tables and columns that the source has got since are taken in, as they are beside its own file.
        return with_discovered_shards(known, recorded_tables(known))

    @property
    def proposal(self) -> str:
        """The fact that the pipeline file is not in charge, with the remedy; empty if it is."""
        if self.is_in_charge:
            return ""
        now = self.declared.generation
        if self.file.generation == now:
            return (
                f"generation {now} took back a promotion, and its settings are on record, not in the file:"
                f" set `generation: {now + 1}` to propose the file"
            )
        if self.file.generation < now:
            return (
                f"generation {now} is in charge, and the file has {self.file.generation}: it is out of date"
            )
        return (
            f"generation {now} is in charge, and the file proposes {self.file.generation}:"
            " see `tidemark generation plan`"
        )

    def _grown(self) -> PipelineConfig:
        config = self.declared
        if not any(map(config.grows, config.shards)):
            return config
        return with_new_columns(config, recorded_columns(self.fresh_control(), config.shapes))

    def fresh_control(self) -> DeltaControl:
        """A control plane with new ledger handles, without the pipeline file's schemas.

        A ledger handle is for one thread."""
        config = self.file
        return DeltaControl(config.tables_warehouse, config.name, storage_options=self.storage_options)

    def shadow_control(self, candidate: Candidate) -> DeltaControl:
        """The control plane of a candidate, for reports. Its handles stay open for the next report."""
        if self._shadow is None or self._shadow[0] != candidate.folder:
            config = self.file.shadowed(candidate.folder)
            opened = DeltaControl(config.tables_warehouse, config.name, storage_options=self.storage_options)
            self._shadow = candidate.folder, opened
        return self._shadow[1]

    @cached_property
    def unchecked(self) -> Pipeline:
        """The pipeline for reports: its logs open even if the pipeline file does not fit them."""
        return replace(self.pipeline, control=self.fresh_control())

    def shapes_of(self, configuration: Configuration) -> Shapes:
        """The shapes of the shards of a configuration: this deployment's or a recorded one."""
        own = configuration == self.pipeline.configuration
        return self._shapes if own else recorded_shapes(configuration)

    @property
    def shards(self) -> tuple[ShardId, ...]:
        return self._names

    def policy(self, shard: ShardId) -> Policy:
        """The shard's publish policy."""
        return Policy(self.config.shard(shard).publish.every_transactions)

    def shard_uri(self, shard: ShardId) -> str:
        return f"{self.root}/{shard}"

    @property
    def data_docs(self) -> Path:
        """The folder of the Data Docs, the site that Great Expectations writes."""
        return home() / "data-docs" / self.config.name

    def confirm(self, pairs: Sequence[Pair]) -> None:
        """Check the gate's comparisons again with Great Expectations and document them in the Data Docs.

        Loads the library."""
        if pairs:
            from tidemark.quality.checks import check_digests

            check_digests(pairs, site=self.data_docs)

    @property
    def has_expectations(self) -> bool:
        """Whether a shard declares expectations, so that Great Expectations is loaded anyway."""
        return any(shard.expectations for shard in self.config.shards)

    def plane(self) -> SparkPlane:
        """The data plane; the first call starts Spark."""
        if self._plane is None:
            from tidemark.spark.plane import SparkPlane

            control = self.fresh_control()  # A transaction may be staged in another thread.
            self._plane = SparkPlane(
                self.session(), self.config, watermark_before=lambda txn: watermark_below(control, txn)
            )
        return self._plane

    def close(self) -> None:
        """Close the data plane's own sessions. The deployment's session stays open: its creator ends it."""
        if self._plane is not None:
            self._plane.close()

    def state(self) -> SparkStatePlane:
        """The state plane; it starts Spark when it first needs it."""
        if self._state is None:
            from tidemark.spark.state import SparkStatePlane

            self._state = SparkStatePlane(self.session, self.config)
        return self._state

    def keeper(self) -> StateKeeper:
        """The maintenance of the states' tables; needs no Spark."""
        from tidemark.delta.state_maintenance import DeltaStateKeeper, MaintainedState

        days = self.config.retention.state_history_days
        shards = {shard: self.config.shard(shard) for shard in self.shards}
        kept = {
            name: MaintainedState(self.shard_uri(name), days, shard.sequence_by, shard.lateness_number)
            for name, shard in shards.items()
        }
        return DeltaStateKeeper(self.config.name, kept)


class ShardKeys:
    """The `ShardKeysPort` of a deployment."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    def untouched(self, shards: Sequence[ShardId]) -> Set[ShardId]:
        return untouched(self._deployment.pipeline, shards)

    def is_settled(self, shard: ShardId) -> bool:
        return is_settled(self._deployment.pipeline, shard)

    def is_paused(self, shard: ShardId) -> bool:
        return is_paused(self._deployment.pipeline, shard)

    def files(self, shard: ShardId) -> Sequence[Path]:
        from tidemark.delta.parts import files_of_shard

        control, uri = self._deployment.control, self._deployment.shard_uri(shard)
        published = published_txn(last_published(control, shard))
        if begins_at(control.log(shard).head()) > published:
            return files_of_shard(uri, ["log"])  # The state has other keys or types until it is published.
        return files_of_shard(uri)


class Expectations:
    """The `Gate` port: checks staged shards with the user's suites by Great Expectations."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    def opinion(self, staged: Staged) -> Opinion:
        config = self._deployment.config
        asked = [
            shard for shard in config.shards if shard.expectations and ShardId(shard.name) in staged.shards
        ]
        if not asked:
            return Opinion()
        from tidemark.quality.checks import check_rows, opinion_of

        plane = self._deployment.plane()
        checked = check_rows(
            lambda shard: plane.rows(shard, staged.shards[shard].parts),
            asked,
            txn=staged.txn,
            site=self._deployment.data_docs,
        )
        return opinion_of(checked)


class LazyPlane:
    """The `MaintainedPlane` port of a deployment. Only the calls that need rows start Spark."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    @cached_property
    def _store(self) -> PartStore:
        from tidemark.spark.parts import PartStore

        return PartStore(self._deployment.root)

    @property
    def log_rows(self) -> Merger:
        return self._deployment.plane().log_rows

    def stage(self, binding: Binding, token: WriterToken) -> Staged:
        return self._deployment.plane().stage(binding, token)

    def read_back(self, staged: Staged, *, moved: Mapping[ShardId, Sequence[Part]] | None = None) -> Digests:
        return self._deployment.plane().read_back(staged, moved=moved)

    def replay(self, binding: Binding) -> Staged:
        return self._deployment.plane().replay(binding)

    def discard(self, txn: Txn, token: WriterToken) -> None:
        self._store.discard(txn, token)

    def damaged(self, shard: ShardId, parts: Sequence[Part]) -> Sequence[Part]:
        return self._store.damaged(shard, parts)

    def restore(self, shard: ShardId, *, lost: Part, copy: Part) -> None:
        self._store.restore(shard, lost=lost, copy=copy)

    def attempts(self) -> Sequence[tuple[Txn, WriterToken]]:
        return self._store.attempts()
