"""How a Kafka cluster is reached: the settings of a connection, for both clients.

A connection is written the way Airflow's Kafka provider has it: its `extra` holds librdkafka's settings,
`bootstrap.servers` among them. Tidemark binds with librdkafka and reads with Spark's Java client, which names
some things differently; `java_settings` translates. A setting that can't be given to both is refused by name,
because offsets that one client sees and the other doesn't would be a wrong binding.

Settings are kept in memory only; no message, record or command line has a value of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tidemark.config.kafka import KafkaSource
from tidemark.core.errors import InvalidUsage
from tidemark.sources.connections import find_connection
from tidemark.sources.kafka_registry import URL, USER

SERVERS: Final = "bootstrap.servers"
_REGISTRY: Final = (URL, USER)
_SAME: Final = (SERVERS, "security.protocol", "client.id")
_FILES: Final = {
    "ssl.ca.location": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
}
_STORES: Final = {
    "ssl.truststore.certificates": "ssl.truststore.type",
    "ssl.keystore.key": "ssl.keystore.type",
}
_LOGINS: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SASL: Final = ("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password")
_HOST_CHECK: Final = "ssl.endpoint.identification.algorithm"
_KEY_PASSWORD: Final = "ssl.key.password"
_IGNORED: Final = (
    "group.id",
    "auto.offset.reset",
    "enable.auto.commit",
    "isolation.level",
    "socket.timeout.ms",
)
"""What a connection made for consumers often has, and what is decided here."""


def settings_of(source: KafkaSource, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """librdkafka's settings for a source; `InvalidUsage` when its connection can't be used."""
    if source.kafka_config_id is None:
        return {SERVERS: source.bootstrap_servers or ""}
    name = source.kafka_config_id
    settings = _settings(name, environ)
    settings = {key: value for key, value in settings.items() if key not in (*_IGNORED, *_REGISTRY)}
    known = {*_SAME, *_FILES, *_SASL, _HOST_CHECK}
    unknown = sorted(settings.keys() - known)
    if _KEY_PASSWORD in unknown:
        # OpenSSL closes keys in a way that Java's client has no means to open.
        fact = f"connection {name!r} has the setting {_KEY_PASSWORD!r}, and Java's client can't use it"
        hint = "remove it, and name a key without a password, in a file that nobody else may read"
        raise InvalidUsage(fact, hint=hint)
    if unknown:
        hint = f"remove it; used are {', '.join(sorted(known))}"
        raise InvalidUsage(
            f"connection {name!r} has the setting {unknown[0][:80]!r}, which is not used", hint=hint
        )
    if not settings.get(SERVERS):
        raise InvalidUsage(f"connection {name!r} has no {SERVERS}", hint="put it into the connection's extra")
    return settings


def registry_settings(source: KafkaSource, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a source's connection says of a schema registry; none where it has no connection."""
    settings = _settings(source.kafka_config_id, environ) if source.kafka_config_id is not None else {}
    return {key: value for key, value in settings.items() if key in _REGISTRY}


def _settings(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """All that a connection has in its extra."""
    example = '{"conn_type": "kafka", "extra": {"bootstrap.servers": "…"}}'
    found = find_connection(name, environ, example=example)
    return {str(key): _text(value) for key, value in found.extra.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def java_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The same settings for the Java client. Certificates and keys are read now, so that the machines that
    run Spark's tasks need no files."""
    made = {key: settings[key] for key in _SAME if key in settings}
    for key, target in _FILES.items():
        if key in settings:
            made[target] = _content(settings[key], key)
            if target in _STORES:
                made[_STORES[target]] = "PEM"
    if _HOST_CHECK in settings:
        made[_HOST_CHECK] = settings[_HOST_CHECK].replace("none", "")
    mechanism = settings.get("sasl.mechanism") or settings.get("sasl.mechanisms")
    if mechanism:
        if mechanism not in _LOGINS:
            raise InvalidUsage(
                f"the SASL mechanism {mechanism[:40]!r} is not known", hint=f"use {', '.join(_LOGINS)}"
            )
        made["sasl.mechanism"] = mechanism
        user, password = (_quoted(settings.get(f"sasl.{part}", "")) for part in ("username", "password"))
        made["sasl.jaas.config"] = f"{_LOGINS[mechanism]} required username={user} password={password};"
    return made


def _content(path: str, key: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError):
        raise InvalidUsage(f"the file that {key} names can't be read", hint="check the connection") from None


def _quoted(text: str) -> str:
    """A value as a JAAS configuration writes it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
