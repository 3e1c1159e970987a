"""Recordings of what a real Debezium sent: written by `record`, read by tests.

A file is JSON lines: what was recorded with which settings, the texts that many records share (schemas), then
the records. A key or a value is a list of pieces, texts and numbers of shared ones, that make its bytes when
they are put together; null where the record has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.kafka import Broker

FOLDER = Path(__file__).with_name("recorded")
_BEFORE = '{"schema":'


@dataclass(frozen=True)
class Sent:
    """A record, and where it stood."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Recording:
    """The records of a connector. `made_by` has versions, `settings` is what of the connector was set."""

    made_by: dict[str, str]
    settings: dict[str, str]
    records: list[Sent]

    def send(self, broker: Broker, *tables: str) -> list[str]:
        """The tables' topics, made with these records in their places."""
        topics = sorted({one.topic for one in self.records if one.topic.split(".", 1)[1] in tables})
        producer, places = broker.producer(), []
        for topic in topics:
            mine = [one for one in self.records if one.topic == topic]
            broker.make(topic, 1 + max(one.partition for one in mine))
            for one in mine:
                producer.produce(
                    topic, one.value, key=one.key, partition=one.partition, headers=one.headers,
                    on_delivery=lambda _, sent, one=one: places.append((one.offset, sent.offset())),
                )  # fmt: skip
        assert producer.flush(30) == 0
        assert [place for place in places if place[0] != place[1]] == []
        return topics


def write(path: Path, recording: Recording) -> None:
    """Write a file, and see that it says the same."""
    shared: dict[str, int] = {}
    lines: list[Any] = [
        {
            "topic": one.topic, "partition": one.partition, "offset": one.offset,
            "key": _pieces(one.key, shared), "value": _pieces(one.value, shared),
            "headers": [[name, None if value is None else value.decode()] for name, value in one.headers],
        }
        for one in recording.records
    ]  # fmt: skip
    head = {"made_by": recording.made_by, "settings": recording.settings}
    written = [head, *({"shared": text} for text in shared), *lines]
    path.write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in written), encoding="utf-8"
    )
    if read(path) != recording:
        raise RuntimeError(f"{path.name} does not say what was sent")


def read(path: Path) -> Recording:
    """A recording as it was written."""
    with path.open(encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    head, *rest = lines
    shared = [line["shared"] for line in rest if "shared" in line]
    return Recording(head["made_by"], head["settings"], list(_records(rest[len(shared) :], shared)))


def _records(lines: list[Any], shared: list[str]) -> Iterator[Sent]:
    for line in lines:
        key, value = (_bytes(line[part], shared) for part in ("key", "value"))
        headers = [(name, None if text is None else text.encode()) for name, text in line["headers"]]
        yield Sent(line["topic"], line["partition"], line["offset"], key, value, headers)


def _pieces(found: bytes | None, shared: dict[str, int]) -> list[Any] | None:
    if found is None:
        return None
    text = found.decode()
    if not text.startswith(_BEFORE):
        return [text]
    _, end = json.JSONDecoder().raw_decode(text, len(_BEFORE))
    return [_BEFORE, shared.setdefault(text[len(_BEFORE) : end], len(shared)), text[end:]]


def _bytes(pieces: list[Any] | None, shared: list[str]) -> bytes | None:
    if pieces is None:
        return None
    return "".join(shared[piece] if isinstance(piece, int) else piece for piece in pieces).encode()
