"""Connection settings for both Kafka clients, and a client for the schema registry.

A connection has the form of Airflow's Kafka provider: its `extra` holds librdkafka's settings, including
`bootstrap.servers`. Tidemark binds with librdkafka and reads with Spark's Java client, which has other names
for some settings; `java_settings` translates them. A setting that can't be given to both clients is refused:
if the two saw different offsets, the binding would be wrong.

The registry's address and credentials come from the same connection, under the names that Confluent's clients
use: `schema.registry.url` and `basic.auth.user.info`. A producer registers a schema, under the subject
`<topic>-value` or `<topic>-key`, before it writes with it. A caller that first reads a topic's end offsets
and then the registry therefore has the schemas of all records below these offsets. The binding records them,
so a replay does not need the registry.

Settings stay in memory: no message, record or command line contains a value of them. The registry's
credentials are sent to its own address only.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from tidemark.config.kafka import KafkaSource, is_record, schema_text
from tidemark.core.errors import Determinate, InvalidUsage, TidemarkError
from tidemark.sources.connections import find_connection

# The schema registry.

URL: Final = "schema.registry.url"
USER: Final = "basic.auth.user.info"
WAIT_SECONDS_MAX: Final = 20.0
_ANSWER_BYTES_MAX: Final = 16 * 1024**2
_NOT_FOUND: Final = 404
_REFUSED: Final = (401, 403)
_ERROR_CHARACTERS_MAX: Final = 200
_TRIED_AGAIN: Final = (408, 429, 500, 502, 503, 504)


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect, so that the credentials reach the registry only."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _is_usable(url: str) -> bool:
    """Whether an address has a host, a valid port if any, and no user or query, which could hold a secret."""
    try:
        place = urlsplit(url)
        named = bool(place.hostname) and (place.port is None or place.port > 0)
    except ValueError:
        return False
    return place.scheme in ("http", "https") and named and "@" not in url and not place.query


class Registry:
    """A schema registry. `settings` are those of the connection; raises `InvalidUsage` without a usable
    address."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        url = settings.get(URL, "")
        if not _is_usable(url):
            # The address may hold a password, so the message omits it.
            hint = f"write https://host:port, with user:password in {USER}"
            raise InvalidUsage(f"the connection has no valid {URL}", hint=hint)
        self._base = url.rstrip("/")
        self._name = re.sub(r"[^\w.:\[\]-]", "?", urlsplit(url).netloc)
        self._user = settings.get(USER, "")
        self._open = build_opener(_NoRedirect).open

    def schemas(self, subject: str, *, records: bool) -> dict[int, str]:
        """Every schema of a subject by its id. Deleted schemas are included, because the topic may still have
        records of them. With `records`, a schema that is not a record is refused."""
        path = f"/subjects/{quote(subject, safe='')}/versions"
        versions = self._get(f"{path}?deleted=true", subject)
        if not isinstance(versions, list) or not all(isinstance(version, int) for version in versions):
            raise self._strange()
        found: dict[int, str] = {}
        for version in versions:
            answer = self._get(f"{path}/{version}?deleted=true", subject)
            number, text = self._schema(answer, f"version {version} of subject {subject!r}")
            if records and not is_record(text):
                fact = f"version {version} of subject {subject!r} is a single value, not a record"
                raise InvalidUsage(fact, hint="register a schema of a record")
            found[number] = text
        return found

    def _schema(self, answer: Any, what: str) -> tuple[int, str]:
        try:
            kind, number, text = answer.get("schemaType", "AVRO"), int(answer["id"]), answer["schema"]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise self._strange() from None
        if kind != "AVRO":
            raise InvalidUsage(f"{what} has type {str(kind)[:40]!r}", hint="use a schema of type AVRO")
        if answer.get("references"):
            hint = "register it without references, or write it into the pipeline file"
            raise InvalidUsage(f"{what} refers to other subjects", hint=hint)
        try:
            return number, schema_text(text)
        except InvalidUsage as error:
            raise InvalidUsage(f"{what} can't be used: {error.fact}", hint=error.hint) from None

    def _get(self, path: str, subject: str) -> Any:
        request = Request(self._base + path, headers={"Accept": "application/json"})
        if self._user:
            token = base64.b64encode(self._user.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {token}")
        try:
            with self._open(request, timeout=WAIT_SECONDS_MAX) as answer:
                return json.loads(answer.read(_ANSWER_BYTES_MAX))
        except HTTPError as error:
            raise self._failure(error.code, subject) from None
        except (URLError, OSError, http.client.HTTPException) as error:
            message = str(getattr(error, "reason", error))[:_ERROR_CHARACTERS_MAX]
            fact = f"the schema registry at {self._name} can't be reached: {message}"
            raise Determinate(fact, hint="check its address and that it runs, then retry") from None
        except ValueError:
            raise self._strange() from None

    def _failure(self, code: int, subject: str) -> TidemarkError:
        if code == _NOT_FOUND:
            hint = "register the schema, or write it into the pipeline file"
            return InvalidUsage(f"the schema registry at {self._name} has no subject {subject!r}", hint=hint)
        if code in _REFUSED:
            fact = f"the schema registry at {self._name} refuses the credentials (HTTP {code})"
            return InvalidUsage(fact, hint=f"check {USER} of the connection")
        fact = f"the schema registry at {self._name} answers HTTP {code}"
        if code in _TRIED_AGAIN:
            return Determinate(fact, hint="retry")
        return InvalidUsage(fact, hint=f"check {URL} of the connection")

    def _strange(self) -> InvalidUsage:
        fact = f"the server at {self._name} is not a schema registry"
        return InvalidUsage(fact, hint=f"check {URL} of the connection")


# The cluster.

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
"""Settings that connections for consumers often have. They are ignored, because Tidemark sets them itself."""


def settings_of(source: KafkaSource, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """librdkafka's settings for a source. Raises `InvalidUsage` if its connection can't be used."""
    if source.kafka_config_id is None:
        return {SERVERS: source.bootstrap_servers or ""}
    name = source.kafka_config_id
    settings = _settings(name, environ)
    settings = {key: value for key, value in settings.items() if key not in (*_IGNORED, *_REGISTRY)}
    known = {*_SAME, *_FILES, *_SASL, _HOST_CHECK}
    unknown = sorted(settings.keys() - known)
    if _KEY_PASSWORD in unknown:
        # Java's client can't decrypt keys that OpenSSL has encrypted.
        fact = f"connection {name!r} has the setting {_KEY_PASSWORD!r}, which Kafka's Java client can't use"
        hint = "remove it, and use a key without a password, in a file that only this user may read"
        raise InvalidUsage(fact, hint=hint)
    if unknown:
        hint = f"remove it; supported are {', '.join(sorted(known))}"
        raise InvalidUsage(
            f"connection {name!r} has the setting {unknown[0][:80]!r}, which is not supported", hint=hint
        )
    if not settings.get(SERVERS):
        raise InvalidUsage(f"connection {name!r} has no {SERVERS}", hint="set it in the connection's extra")
    return settings


def registry_settings(source: KafkaSource) -> dict[str, str]:
    """The schema registry settings of a source's connection; empty if it has no connection."""
    settings = _settings(source.kafka_config_id, os.environ) if source.kafka_config_id is not None else {}
    return {key: value for key, value in settings.items() if key in _REGISTRY}


def _settings(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """All settings in a connection's `extra`."""
    example = '{"conn_type": "kafka", "extra": {"bootstrap.servers": "…"}}'
    found = find_connection(name, environ, example=example)
    return {str(key): _text(value) for key, value in found.extra.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def java_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The same settings for the Java client. Certificates and keys are read here, so that Spark's executors
    don't need the files."""
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
                f"the SASL mechanism {mechanism[:40]!r} is not supported", hint=f"use {', '.join(_LOGINS)}"
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
    """A value, quoted for a JAAS configuration."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
