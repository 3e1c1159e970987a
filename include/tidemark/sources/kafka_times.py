"""When records were written: the first one of each partition from an offset on is fetched."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from tidemark.config.kafka import partition_name, split_partition
from tidemark.core.errors import InvalidUsage

if TYPE_CHECKING:
    from confluent_kafka import Consumer

ONE_RECORD_EACH: Final = {
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    # An offset that is gone is an error; the default would go on at the end of the partition.
    "auto.offset.reset": "error",
    "queued.min.messages": 1,
}
"""The settings of a consumer that reads times."""
_POLL_SECONDS: Final = 0.1


def read_times(
    reader: Consumer,
    starts: Mapping[str, int],
    *,
    seconds_max: float,
    refusal: Callable[[], InvalidUsage | None],
) -> tuple[dict[str, float], list[str]]:
    """The times in seconds, and the partitions that have not answered. A partition that has no record from
    its offset on, only what compaction or aborted transactions left, is in neither. The client's own errors
    come out as they are; `refusal` is asked for what it was refused meanwhile."""
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
            raise InvalidUsage(fact, hint="let its producer, or its topic, give records their times")
        times[name] = written_ms / 1000
    return times, sorted(wanted)
