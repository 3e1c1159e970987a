"""OpenLineage events and datasets of a run.

    inputs    the folder, topics or tables that its transactions read, with rows, bytes and files, and with
              the gate's verdicts
    outputs   each shard's log and state that they changed, with its Delta version, columns and rows

All of it comes from bindings, seals and the journal, so the steps of a run may have run as jobs elsewhere.
In Airflow the `checkpoint` task passes this to the OpenLineage provider, if that is installed. The command
emits it through OpenLineage's client, if the environment configures one (`OPENLINEAGE_URL`,
`OPENLINEAGE_CONFIG` or `OPENLINEAGE__…`). Without the package or such a setting, nothing is loaded.

Column lineage maps a column to the input column with its name, if the shard reads one dataset and copies the
values. It is left out if a row may come from one of several topics, or if a column has the text of a header.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tidemark import __version__
from tidemark.app.deployment import Deployment
from tidemark.config.kafka import KafkaSource, split_partition
from tidemark.config.source import PostgresSource
from tidemark.core.binding import Binding
from tidemark.core.errors import InvalidUsage, TidemarkError
from tidemark.core.ids import QUARANTINE, ShardId
from tidemark.core.ledger import Event
from tidemark.core.publish import published_txn
from tidemark.core.replay import Verdict
from tidemark.core.seal import Seal, Sealed
from tidemark.pipeline.context import binding_at
from tidemark.pipeline.publish import last_published
from tidemark.pipeline.run import RunReport
from tidemark.pipeline.validate import judged_in
from tidemark.sources.connections import find_connection

if TYPE_CHECKING:
    from openlineage.client.event_v2 import InputDataset, OutputDataset

PRODUCER: Final = f"urn:tidemark:{__version__}"
_NAMESPACE: Final = "OPENLINEAGE_NAMESPACE"
_DISABLED: Final = "OPENLINEAGE_DISABLED"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """A dataset's namespace and name, by OpenLineage's naming rules."""

    namespace: str
    name: str

    @classmethod
    def of(cls, uri: str) -> Place:
        """The place of a folder or of a URI in an object store."""
        found = urlsplit(uri)
        if not found.scheme or found.scheme == "file":
            return cls("file", found.path or uri)
        return cls(f"{found.scheme}://{found.netloc}", found.path.strip("/") or "/")


@dataclass(frozen=True, slots=True)
class Lineage:
    """The datasets of some transactions."""

    inputs: list[InputDataset]
    outputs: list[OutputDataset]


def lineage_of(deployment: Deployment, seals: Sequence[Seal]) -> Lineage:
    """The datasets that these sealed transactions read and wrote. Needs the package `openlineage-python`."""
    bindings = [binding_at(deployment.pipeline, seal.txn) for seal in seals]
    reads = _reads(deployment, bindings, seals)
    inputs = [_input(deployment, place, read, seals) for place, read in reads.items()]
    return Lineage(inputs, list(_outputs(deployment, seals, list(reads))))


@dataclass(slots=True)
class _Read:
    """How much was read of one dataset; None where the amount is not known per dataset."""

    rows: int | None = None
    bytes: int | None = None
    files: int | None = None


def _reads(deployment: Deployment, bindings: Sequence[Binding], seals: Sequence[Seal]) -> dict[Place, _Read]:
    source = deployment.config.source
    rows = sum(seal.source.count for seal in seals)
    if isinstance(source, PostgresSource):
        touched = sorted({shard for seal in seals for shard in seal.shards if shard != QUARANTINE})
        tables = [place for shard in touched if (place := _table(deployment, shard)) is not None]
        return {place: _Read(rows if len(tables) == 1 else None) for place in tables}
    if isinstance(source, KafkaSource):
        names = {
            split_partition(partition)[0]
            for binding in bindings
            for partition, offset in binding.upper.as_dict().items()
            if binding.lower.as_dict().get(partition, 0) != offset
        }
        namespace = _brokers(source)
        return {Place(namespace, name): _Read(rows if len(names) == 1 else None) for name in sorted(names)}
    files = [file for binding in bindings for file in _files(binding)]
    size = sum(int(file.get("size") or 0) for file in files)
    return {Place.of(deployment.config.source_location): _Read(rows, size, len(files))} if bindings else {}


def _files(binding: Binding) -> list[Mapping[str, Any]]:
    found = json.loads(binding.manifest) if binding.manifest else {}
    return list(found.get("files", ())) if isinstance(found, dict) else []


def _table(deployment: Deployment, shard: str) -> Place | None:
    """The database table that a shard follows; None if it follows none."""
    source = deployment.config.source
    route = getattr(_config_of(deployment, shard), "route", None)
    if not isinstance(source, PostgresSource) or route is None or route.table is None:
        return None
    try:
        found = find_connection(source.postgres_conn_id)
    except InvalidUsage:
        return Place(f"postgres://{source.postgres_conn_id}", route.table)
    server = f"{found.host or 'localhost'}:{found.port or '5432'}"
    return Place(f"postgres://{server}", f"{found.schema or 'postgres'}.{route.table}")


def _brokers(source: KafkaSource) -> str:
    """The namespace of topics by OpenLineage's rules: the first bootstrap server."""
    servers = source.bootstrap_servers or ""
    if source.kafka_config_id is not None:
        try:
            servers = str(find_connection(source.kafka_config_id).extra.get("bootstrap.servers") or "")
        except InvalidUsage:
            servers = ""
    return f"kafka://{servers.split(',')[0].strip() or source.kafka_config_id}"


def _config_of(deployment: Deployment, shard: str) -> Any:
    return next((one for one in deployment.config.shards if one.name == shard), None)


def _input(deployment: Deployment, place: Place, read: _Read, seals: Sequence[Seal]) -> InputDataset:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import data_quality_assertions_dataset as quality
    from openlineage.client.facet_v2 import input_statistics_input_dataset as statistics

    assertions = [quality.Assertion(**one) for seal in seals for one in assertions_of(deployment, seal)]
    facets: dict[str, Any] = {
        "inputStatistics": statistics.InputStatisticsInputDatasetFacet(
            rowCount=read.rows, size=read.bytes, fileCount=read.files, producer=PRODUCER
        )
    }
    if assertions:
        facets["dataQualityAssertions"] = quality.DataQualityAssertionsDatasetFacet(
            assertions=assertions, producer=PRODUCER
        )
    return InputDataset(namespace=place.namespace, name=place.name, inputFacets=facets)


def assertions_of(deployment: Deployment, seal: Seal) -> Iterator[dict[str, Any]]:
    """The gate's verdict on a transaction as assertions: the comparison of its digests, the user's
    expectations as a whole, and each expectation that was not met. Nothing if the journal has no verdict."""
    journal = deployment.control.journal
    journal.head()
    entries = [
        entry
        for entry in journal.find(str(seal.txn))
        if entry.event is Event.JUDGED and entry.token == seal.token
    ]
    if not entries:
        return
    gated = judged_in(entries[-1]).gated
    opinion, about = gated.opinion, f"transaction {seal.txn}"
    yield {
        "assertion": "digests_identical",
        "success": gated.finding.verdict is Verdict.IDENTICAL,
        "severity": "error",
        "name": about,
        "description": f"{gated.compared} digests of {gated.rows} rows, written and read back",
    }
    held = [f"{shard}: {why}" for shard, why in opinion.held.items()]
    broken = [(text, "error") for text in (*opinion.failed, *held)]
    broken += [(text, "warn") for text in opinion.warned]
    if opinion.checked:
        yield {
            "assertion": "expectations_met",
            "success": not broken,
            "severity": "error",
            "name": about,
            "expected": str(opinion.checked),
            "actual": str(opinion.checked - len(broken)),
        }
    for text, severity in broken:
        facet = {"success": False, "severity": severity, "name": about, "description": text}
        yield {"assertion": "expectation", **facet}


def _outputs(deployment: Deployment, seals: Sequence[Seal], read: Sequence[Place]) -> Iterator[OutputDataset]:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import dataset_version_dataset as version
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

    touched: dict[ShardId, list[Seal]] = {}
    for seal in seals:
        for shard in seal.shards:
            touched.setdefault(shard, []).append(seal)
    for shard, its in sorted(touched.items()):
        parts = [part for seal in its for part in seal.shards[shard].parts]
        written = statistics.OutputStatisticsOutputDatasetFacet(
            rowCount=sum(part.rows for part in parts),
            size=sum(part.bytes for part in parts),
            fileCount=len(parts),
            producer=PRODUCER,
        )
        facets = _columns(deployment, shard, read)
        place = Place.of(f"{deployment.shard_uri(shard)}/log")
        log_version = str(deployment.control.log(shard).head().version)
        known = {"version": version.DatasetVersionDatasetFacet(datasetVersion=log_version, producer=PRODUCER)}
        yield OutputDataset(
            namespace=place.namespace,
            name=place.name,
            facets={**known, **facets},
            outputFacets={"outputStatistics": written},
        )
        last = last_published(deployment.control, shard) if shard != QUARANTINE else None
        if last is not None and published_txn(last) >= its[0].txn:
            place = Place.of(f"{deployment.shard_uri(shard)}/state")
            of_state = version.DatasetVersionDatasetFacet(datasetVersion=str(last.version), producer=PRODUCER)
            yield OutputDataset(
                namespace=place.namespace, name=place.name, facets={"version": of_state, **facets}
            )


def _columns(deployment: Deployment, shard: ShardId, read: Sequence[Place]) -> dict[str, Any]:
    """The facets of a shard's columns: the schema and, if the origin is unambiguous, the column lineage."""
    from openlineage.client.facet_v2 import column_lineage_dataset as columns
    from openlineage.client.facet_v2 import schema_dataset as schema

    config = _config_of(deployment, shard)
    if config is None:
        return {}
    declared = [
        schema.SchemaDatasetFacetFields(name=column.name, type=str(column.type))
        for column in config.columns.columns
    ]
    facets: dict[str, Any] = {"schema": schema.SchemaDatasetFacet(fields=declared, producer=PRODUCER)}
    of_table = _table(deployment, shard)
    origin = of_table if of_table is not None else read[0] if len(read) == 1 else None
    source = deployment.config.source
    if origin is None or (isinstance(source, PostgresSource) and of_table is None):
        return facets
    others = {config.error_column, *(source.headers if isinstance(source, KafkaSource) else ())}
    same = columns.Transformation(type="DIRECT", subtype="IDENTITY")
    facets["columnLineage"] = columns.ColumnLineageDatasetFacet(
        fields={
            name: columns.Fields(
                inputFields=[columns.InputField(origin.namespace, origin.name, name, transformations=[same])]
            )
            for name in config.columns.names
            if name not in others
        },
        producer=PRODUCER,
    )
    return facets


def is_asked() -> bool:
    """Whether the environment configures OpenLineage's client."""
    if os.environ.get(_DISABLED, "").lower() == "true":
        return False
    ours = (_NAMESPACE, _DISABLED)
    return any(name.startswith("OPENLINEAGE_") and name not in ours for name in os.environ)


@contextmanager
def emitted(deployment: Deployment, run_id: str) -> Iterator[Callable[[RunReport], None]]:
    """Emit the run that happens inside the `with`: its report's transactions, or the error if it fails."""
    begun = datetime.now(UTC)
    seals: list[Seal] = []

    def described(report: RunReport) -> None:
        seals.extend(one.seal for one in report.decided if isinstance(one, Sealed))

    try:
        yield described
    except Exception as error:
        emit_run(deployment, run_id, seals, begun=begun, error=event_facts(error))
        raise
    emit_run(deployment, run_id, seals, begun=begun)


def emit_run(
    deployment: Deployment, run_id: str, seals: Sequence[Seal], *, begun: datetime, error: str = ""
) -> None:
    """Emit the start and the end of a run of this process through OpenLineage's client, if it is configured.

    A failure is only logged: lineage never stops a run."""
    if not is_asked() or not (seals or error):
        return
    try:
        from openlineage.client import OpenLineageClient

        client = OpenLineageClient()
        for event in events_of(deployment, run_id, seals, begun=begun, error=error):
            client.emit(event)
        client.close()
    except Exception as failed:
        log.warning("lineage events are not sent: %s", failed)


def events_of(
    deployment: Deployment, run_id: str, seals: Sequence[Seal], *, begun: datetime, error: str = ""
) -> list[Any]:
    """A run's events: START, then COMPLETE or FAIL."""
    from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import error_message_run, job_type_job, processing_engine_run
    from openlineage.client.uuid import generate_static_uuid

    found = lineage_of(deployment, seals)
    name = deployment.config.name
    identity = str(generate_static_uuid(begun, f"tidemark.{name}.{run_id}".encode()))
    engine = processing_engine_run.ProcessingEngineRunFacet(
        version=__version__, name="tidemark", producer=PRODUCER
    )
    kind = job_type_job.JobTypeJobFacet(
        processingType="BATCH", integration="TIDEMARK", jobType="RUN", producer=PRODUCER
    )
    job = Job(
        namespace=os.environ.get(_NAMESPACE) or "default",
        name=f"tidemark.{name}",
        facets={"jobType": kind},
    )
    facets: dict[str, Any] = {"processing_engine": engine}
    ended = dict(facets)
    if error:
        ended["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=error, programmingLanguage="PYTHON", producer=PRODUCER
        )
    return [
        RunEvent(
            eventTime=begun.isoformat(),
            run=Run(runId=identity, facets=facets),
            job=job,
            eventType=RunState.START,
            inputs=[],
            outputs=[],
            producer=PRODUCER,
        ),
        RunEvent(
            eventTime=max(begun, datetime.now(UTC)).isoformat(),
            run=Run(runId=identity, facets=ended),
            job=job,
            eventType=RunState.FAIL if error else RunState.COMPLETE,
            inputs=found.inputs,
            outputs=found.outputs,
            producer=PRODUCER,
        ),
    ]


def event_facts(error: BaseException) -> str:
    """An error as text without secrets: the message of a `TidemarkError`, only the type of any other."""
    return str(error) if isinstance(error, TidemarkError) else type(error).__name__
