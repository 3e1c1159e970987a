"""A Kafka connection: read from Airflow's variable, given to both clients, and shown to nobody."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from tidemark.config import KafkaSource
from tidemark.core.errors import InvalidUsage
from tidemark.sources.kafka.connection import java_settings, settings_of

SECRET = 'p"a\\ss'
EXTRA = {
    "bootstrap.servers": "b1:9094",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "u",
    "sasl.password": SECRET,
    "group.id": "of-a-consumer",
}
SOURCE = KafkaSource.model_validate({"type": "kafka", "topics": ["t"], "kafka_config_id": "kafka_prod"})
VARIABLE = "AIRFLOW_CONN_KAFKA_PROD"


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"conn_type": "kafka", "extra": EXTRA}),
        json.dumps({"conn_type": "kafka", "extra": json.dumps(EXTRA)}),
        f"kafka://?__extra__={quote(json.dumps(EXTRA))}",
        "kafka://?" + "&".join(f"{name}={quote(value)}" for name, value in EXTRA.items()),
    ],
    ids=["json", "json-in-json", "uri-extra", "uri"],
)
def test_a_connection_is_read_as_airflow_writes_it(text: str) -> None:
    found = settings_of(SOURCE, {VARIABLE: text})
    assert found == {name: value for name, value in EXTRA.items() if name != "group.id"}


def test_open_servers_need_no_connection() -> None:
    source = KafkaSource.model_validate({"type": "kafka", "topics": ["t"], "bootstrap_servers": "a:1, b:2"})
    assert settings_of(source, {}) == {"bootstrap.servers": "a:1,b:2"}


@pytest.mark.parametrize(
    ("environ", "fact"),
    [
        ({}, "there is no connection 'kafka_prod': create it in Airflow, or set AIRFLOW_CONN_KAFKA_PROD"),
        ({VARIABLE: "{" + SECRET}, "connection 'kafka_prod' can't be read"),
        ({VARIABLE: json.dumps({"extra": ["x", SECRET]})}, "connection 'kafka_prod' can't be read"),
        ({VARIABLE: json.dumps({"extra": {"sasl.password": SECRET}})}, "has no bootstrap.servers"),
        (
            {VARIABLE: json.dumps({"extra": {**EXTRA, "sasl.oauthbearer.config": SECRET}})},
            "the setting 'sasl.oauthbearer.config', which is not supported",
        ),
        (
            {VARIABLE: json.dumps({"extra": {**EXTRA, "ssl.key.password": SECRET}})},
            "the setting 'ssl.key.password', which Kafka's Java client can't use: remove it",
        ),
    ],
)
def test_a_connection_that_cannot_be_used_is_named_without_its_content(
    environ: dict[str, str], fact: str
) -> None:
    with pytest.raises(InvalidUsage) as refused:
        settings_of(SOURCE, environ)
    assert fact in str(refused.value)
    assert SECRET not in str(refused.value)


def test_the_java_client_gets_the_same_in_its_own_words(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(f"PEM of {name}")
    files = {
        "ssl.ca.location": str(tmp_path / "ca"),
        "ssl.certificate.location": str(tmp_path / "cert"),
        "ssl.key.location": str(tmp_path / "key"),
        "ssl.endpoint.identification.algorithm": "none",
    }
    given = {name: value for name, value in EXTRA.items() if name != "group.id"}
    assert java_settings({**given, **files}) == {
        "bootstrap.servers": "b1:9094",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="u" password="p\\"a\\\\ss";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "PEM of ca",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "PEM of cert",
        "ssl.keystore.key": "PEM of key",
        "ssl.endpoint.identification.algorithm": "",
    }
    with pytest.raises(InvalidUsage, match=r"the file that ssl\.ca\.location names can't be read"):
        java_settings({"bootstrap.servers": "a:1", "ssl.ca.location": str(tmp_path / "none")})
    with pytest.raises(InvalidUsage, match="the SASL mechanism 'GSSAPI' is not supported"):
        java_settings({"bootstrap.servers": "a:1", "sasl.mechanism": "GSSAPI"})
