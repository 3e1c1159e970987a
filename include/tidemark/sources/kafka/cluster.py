"""A client for a Kafka cluster: topics and their ids, read-committed offsets, record times, group offsets.

Every call has a deadline. A cluster that can't be reached raises `Determinate`, which may be retried. Refused
credentials raise `InvalidUsage`. The client library's own log lines are discarded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidemark.config.kafka import partition_name, split_partition
from tidemark.core.errors import Determinate, InvalidUsage, TidemarkError, require
from tidemark.sources.kafka.connection import SERVERS

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaException
    from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec


ONE_RECORD_EACH: Final = {
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    # An expired offset is an error; by default the consumer would continue at the end of the partition.
    "auto.offset.reset": "error",
    "queued.min.messages": 1,
}
"""The settings of a consumer that reads one record of each partition, for its time."""
_POLL_SECONDS: Final = 0.1


def read_times(
    reader: Consumer,
    starts: Mapping[str, int],
    *,
    seconds_max: float,
    refusal: Callable[[], InvalidUsage | None],
) -> tuple[dict[str, float], list[str]]:
    """The time in seconds of each partition's first record at or after its offset, and the partitions that
    did not answer in time. A partition without such a record (only gaps from compaction or aborted
    transactions) is in neither. Raises the client's `KafkaException`, or the error that `refusal` returns
    while waiting."""
    from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException, TopicPartition

    wanted = {name: TopicPartition(*split_partition(name), offset) for name, offset in starts.items()}
    times: dict[str, float] = {}
    deadline = time.monotonic() + seconds_max
    reader.assign(list(wanted.values()))
    while wanted and time.monotonic() < deadline:
        message = reader.poll(_POLL_SECONDS)
        if message is None:
            if (refused := refusal()) is not None:
                raise refused
            continue
        error, topic, number = message.error(), message.topic(), message.partition()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        name = partition_name(str(topic), int(number or 0))
        asked = wanted.pop(name, None)
        if error is not None or asked is None:
            continue
        reader.pause([asked])
        kind, written_ms = message.timestamp()
        if kind == TIMESTAMP_NOT_AVAILABLE:
            fact = f"the record of {name} at offset {message.offset()} has no time"
            raise InvalidUsage(
                fact, hint="set message.timestamp.type of the topic, or timestamps in the producer"
            )
        times[name] = written_ms / 1000
    return times, sorted(wanted)


require("kafka")

WAIT_SECONDS_MAX: Final = 20.0
_NO_OFFSET: Final = -1
_REFUSED: Final = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL")
_OF_TLS: Final = "SSL"
_FORBIDDEN: Final = (
    "TOPIC_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the cluster, with the names of its partitions."""

    name: str
    id: str
    partitions: tuple[str, ...]


class Cluster:
    """A Kafka cluster. The first call looks its settings up and connects."""

    def __init__(
        self, settings: Callable[[], Mapping[str, str]], *, wait_seconds_max: float = WAIT_SECONDS_MAX
    ) -> None:
        self._settings = settings
        self._wait_seconds_max = wait_seconds_max
        self._client: AdminClient | None = None
        self._complaints: list[tuple[str, str]] = []

    @property
    def servers(self) -> str:
        return self._settings()[SERVERS]

    def describe(self, names: Iterable[str]) -> dict[str, Topic]:
        """The topics that exist, by name."""
        from confluent_kafka import KafkaException, TopicCollection

        asked = self._admin().describe_topics(TopicCollection(list(names)), **self._deadline())
        found: dict[str, Topic] = {}
        for name, future in asked.items():
            try:
                topic = self._result(future)
            except KafkaException as error:
                if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                    raise self._failure(error) from None
                continue
            numbers = sorted(partition.id for partition in topic.partitions)
            parts = tuple(partition_name(name, number) for number in numbers)
            found[name] = Topic(name, str(topic.topic_id), parts)
        return found

    def earliest(self, partitions: Iterable[str]) -> dict[str, int]:
        """The earliest offset of each partition."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(dict.fromkeys(partitions, OffsetSpec.earliest()))

    def stable(self, partitions: Iterable[str]) -> dict[str, int]:
        """The last stable offset of each partition: all transactions below it are committed or aborted."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(dict.fromkeys(partitions, OffsetSpec.latest()))

    def first_since(self, times: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Offset and time of each partition's first record at or after the given time, in milliseconds.
        Partitions without such a record are left out."""
        from confluent_kafka.admin import OffsetSpec

        found = self._listed({name: OffsetSpec.for_timestamp(time) for name, time in times.items()})
        return {name: (one.offset, one.timestamp) for name, one in found.items() if one.offset != _NO_OFFSET}

    def first_times(self, group: str, starts: Mapping[str, int]) -> dict[str, float]:
        """The time, in seconds, of each partition's first record at or after its offset. Partitions without
        such a record are left out. Fetches one record of each, and commits nothing for the group."""
        from confluent_kafka import KafkaException

        if not starts:
            return {}
        with self._member(group, ONE_RECORD_EACH) as reader:
            try:
                times, silent = read_times(
                    reader, starts, seconds_max=self._wait_seconds_max, refusal=self._refusal
                )
            except KafkaException as error:
                raise self._failure(error) from None
        if silent:
            fact = f"kafka at {self.servers} has not sent a record of {', '.join(silent)}"
            fact += f" in {self._wait_seconds_max:g} s"
            raise Determinate(fact, hint="check the brokers that lead these partitions, then retry")
        return times

    def settings(self, topic: str) -> dict[str, str] | None:
        """A topic's settings, with the broker's defaults; None if this user may not read them."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource

        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        (asked,) = self._admin().describe_configs([resource], **self._deadline()).values()
        try:
            found = self._result(asked)
        except KafkaException as error:
            if error.args[0].name() in _FORBIDDEN:
                return None
            raise self._failure(error) from None
        return {name: entry.value for name, entry in found.items() if entry.value is not None}

    def committed(self, group: str, partitions: Iterable[str]) -> dict[str, int]:
        """The offsets that a consumer group has committed for these partitions."""
        from confluent_kafka import KafkaException, TopicPartition

        asked = [TopicPartition(*split_partition(name)) for name in partitions]
        with self._member(group) as member:
            try:
                listed = member.committed(asked, timeout=self._wait_seconds_max)
            except KafkaException as error:
                member.poll(0)
                raise self._failure(error) from None
        return {partition_name(one.topic, one.partition): one.offset for one in listed if one.offset >= 0}

    def commit(self, group: str, offsets: Mapping[str, int]) -> None:
        """Commit these offsets for a consumer group."""
        from confluent_kafka import KafkaException, TopicPartition

        given = [TopicPartition(*split_partition(name), offset) for name, offset in offsets.items()]
        with self._member(group) as member:
            try:
                member.commit(offsets=given, asynchronous=False)
            except KafkaException as error:
                member.poll(0)
                raise self._failure(error) from None

    @contextmanager
    def _member(self, group: str, more: Mapping[str, Any] | None = None) -> Iterator[Consumer]:
        """A consumer that never joins its group. The admin client also has calls for a group's offsets, but
        they crash the process if the broker that it asks is not, or not yet, the group's coordinator."""
        from confluent_kafka import Consumer, KafkaException

        self._complaints.clear()
        settings: dict[str, Any] = {**self._settings(), "error_cb": self._complain}
        settings |= {"group.id": group, "enable.auto.commit": False}
        # This bounds how long a commit waits for a broker; the default is 45 s.
        settings |= {"session.timeout.ms": int(self._wait_seconds_max * 1000), "heartbeat.interval.ms": 500}
        settings |= more or {}
        try:
            member = Consumer(settings, logger=_quiet())
        except KafkaException as error:
            raise _unusable(error) from None
        try:
            yield member
        finally:
            member.close()

    def _offsets(self, wanted: Mapping[str, OffsetSpec]) -> dict[str, int]:
        return {name: one.offset for name, one in self._listed(wanted).items()}

    def _listed(self, wanted: Mapping[str, OffsetSpec]) -> dict[str, ListOffsetsResultInfo]:
        from confluent_kafka import IsolationLevel, TopicPartition

        if not wanted:
            return {}
        asked = self._admin().list_offsets(
            {TopicPartition(*split_partition(name)): spec for name, spec in wanted.items()},
            isolation_level=IsolationLevel.READ_COMMITTED,
            **self._deadline(),
        )
        return {
            partition_name(one.topic, one.partition): self._translated(future)
            for one, future in asked.items()
        }

    def _admin(self) -> AdminClient:
        if self._client is None:
            from confluent_kafka import KafkaException
            from confluent_kafka.admin import AdminClient

            settings: dict[str, Any] = {**self._settings(), "error_cb": self._complain}
            try:
                self._client = AdminClient(settings, logger=_quiet())
            except KafkaException as error:
                raise _unusable(error) from None
        return self._client

    def _deadline(self) -> dict[str, float]:
        """The timeout option of a new request. Clears the client's errors from earlier requests."""
        self._complaints.clear()
        return {"request_timeout": self._wait_seconds_max}

    def _complain(self, error: Any) -> None:
        self._complaints.append((error.name(), error.str()))

    def _translated(self, future: Future[Any]) -> Any:
        from confluent_kafka import KafkaException

        try:
            return self._result(future)
        except KafkaException as error:
            raise self._failure(error) from None

    def _result(self, future: Future[Any]) -> Any:
        """The result. Refused credentials end the wait at once, because the client would keep retrying."""
        deadline = time.monotonic() + self._wait_seconds_max + 1
        while True:
            try:
                return future.result(timeout=_POLL_SECONDS)
            except NotYet:
                self._admin().poll(0)
                refused = self._refusal()
                if refused is not None:
                    raise refused from None
                if time.monotonic() > deadline:
                    raise self._unreachable() from None

    def _failure(self, error: Any) -> TidemarkError:
        found = error.args[0]
        self._admin().poll(0)
        refused = self._refusal() or (self._denied(found.str()) if found.name() in _REFUSED else None)
        if refused is not None:
            return refused
        if found.name() in _FORBIDDEN:
            return InvalidUsage(
                f"kafka at {self.servers} refuses access: {found.str()}", hint="grant the right, then retry"
            )
        if found.name() in ("_TIMED_OUT", "_TRANSPORT", "_RESOLVE", "_ALL_BROKERS_DOWN"):
            return self._unreachable()
        return Determinate(f"kafka at {self.servers} does not answer: {found.str()}", hint="retry")

    def _unreachable(self) -> Determinate:
        message = next((text for name, text in self._complaints if name != "_ALL_BROKERS_DOWN"), "no answer")
        fact = f"kafka at {self.servers} can't be reached in {self._wait_seconds_max:g} s: {message}"
        hint = "check the servers' address, that they run, and the connection's security.protocol, then retry"
        return Determinate(fact, hint=hint)

    def _refusal(self) -> InvalidUsage | None:
        """The client's first error that no retry fixes, such as a TLS alert; None if there is none."""
        refused = (text for name, text in self._complaints if name in _REFUSED or "SSL alert" in text)
        return next((self._denied(text) for text in refused), None)

    def _denied(self, message: str) -> InvalidUsage:
        if _OF_TLS not in message:
            fact = f"kafka at {self.servers} refuses the credentials: {message}"
            return InvalidUsage(fact, hint="check user, password and security settings of the connection")
        fact = f"kafka at {self.servers} and this client do not trust each other: {message}"
        hint = "check that ssl.ca.location of the connection has the CA of the servers' certificates,"
        hint += (
            " that the certificates name the servers' address, and that the servers accept"
            " ssl.certificate.location, if set"
        )
        return InvalidUsage(fact, hint=hint)


def _unusable(error: KafkaException) -> InvalidUsage:
    """The error for settings that the client refuses."""
    fact = f"the kafka client can't be set up: {error.args[0].str()}"
    return InvalidUsage(fact, hint="check the connection's settings")


def _quiet() -> logging.Logger:
    """A logger that discards the client's log lines."""
    quiet = logging.getLogger(f"{__name__}.client")
    quiet.propagate = False
    if not quiet.handlers:
        quiet.addHandler(logging.NullHandler())
    return quiet
