"""Asking a schema registry: what it has, and how each thing that goes wrong is told, without a secret."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.kafka_registry import USER_INFO, GivenRegistry, running_registry
from tidemark.core.errors import Determinate, InvalidUsage, TidemarkError
from tidemark.sources.kafka.connection import URL, USER, Registry

RECORD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


@pytest.fixture
def given() -> Iterator[GivenRegistry]:
    with running_registry() as registry:
        yield registry


def asked(given: GivenRegistry, *, user: str = USER_INFO, records: bool = True) -> dict[int, str]:
    return Registry({URL: f"{given.url}/", USER: user}).schemas("a/b-value", records=records)


def test_all_versions_of_a_subject_are_taken_deleted_ones_too(given: GivenRegistry) -> None:
    given.put("a/b-value", 12, RECORD)
    given.put("a/b-value", 7, {**RECORD, "name": "S"}, schemaType="AVRO", references=[])
    found = asked(given)
    assert {number: json.loads(text)["name"] for number, text in found.items()} == {12: "R", 7: "S"}
    assert all(path.endswith("?deleted=true") for path in given.asked)


@pytest.mark.parametrize(
    ("schema", "more", "fact"),
    [
        (RECORD, {"schemaType": "PROTOBUF"}, "version 1 of subject 'a/b-value' has type 'PROTOBUF'"),
        (
            RECORD,
            {"references": [{"name": "x"}]},
            "version 1 of subject 'a/b-value' refers to other subjects",
        ),
        ("{", {}, "version 1 of subject 'a/b-value' can't be used: the schema is not JSON"),
        ('"long"', {}, "version 1 of subject 'a/b-value' is a single value, not a record"),
    ],
)
def test_a_schema_that_cant_be_used_is_named(
    given: GivenRegistry, schema: object, more: dict[str, object], fact: str
) -> None:
    given.put("a/b-value", 1, schema, **more)
    with pytest.raises(InvalidUsage) as refused:
        asked(given)
    assert refused.value.fact == fact


def test_a_key_may_be_a_single_value(given: GivenRegistry) -> None:
    given.put("a/b-value", 1, '"long"')
    assert asked(given, records=False) == {1: '"long"'}


@pytest.mark.parametrize(
    ("status", "kind", "fact"),
    [
        (0, InvalidUsage, "has no subject 'a/b-value'"),
        (403, InvalidUsage, r"refuses the credentials \(HTTP 403\)"),
        (302, InvalidUsage, "answers HTTP 302"),
        (503, Determinate, "answers HTTP 503"),
    ],
)
def test_what_a_registry_refuses_is_one_message(
    given: GivenRegistry, status: int, kind: type[TidemarkError], fact: str
) -> None:
    given.status = status
    with pytest.raises(kind, match=fact) as refused:
        asked(given)
    assert USER_INFO.partition(":")[2] not in str(refused.value)
    assert len(given.asked) == 1, "nobody follows it elsewhere"


def test_wrong_credentials_strangers_and_silence(given: GivenRegistry) -> None:
    with pytest.raises(InvalidUsage, match="refuses the credentials") as refused:
        asked(given, user="reader:hidden-word")
    assert "hidden-word" not in str(refused.value)
    given.status = 200
    for strange in (b"<html>", b"{}", b'["../x"]', b"[1]"):
        given.body = strange
        with pytest.raises(InvalidUsage, match="is not a schema registry"):
            asked(given)
    given.url = "http://127.0.0.1:1"
    with pytest.raises(Determinate, match=r"the schema registry at 127\.0\.0\.1:1 can't be reached: "):
        asked(given)


@pytest.mark.parametrize(
    "url",
    [
        "", "registry:8081", "https://u:hidden-word@registry", "ftp://registry", "http://[::1",
        "https://u:hidden-word/x@registry:8081", "https://u:hidden-word#x@registry", "https://registry:hidden-word",
    ],
)  # fmt: skip
def test_an_address_that_cant_be_used_is_not_shown(url: str) -> None:
    with pytest.raises(InvalidUsage, match=r"the connection has no valid schema\.registry\.url") as refused:
        Registry({URL: url})
    assert "hidden-word" not in str(refused.value)
