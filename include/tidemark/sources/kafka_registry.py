"""Asking a schema registry, over HTTP, for every schema that a topic's records were written with.

A producer registers a schema before it writes with it, under the subject `<topic>-value` or `<topic>-key`. So
who first looks where a topic ends, and then asks, has the schemas of all records up to there. They go into
the binding: a replay asks nobody.

The address and the credentials are those of the connection, under the names that Confluent's clients use:
`schema.registry.url` and `basic.auth.user.info`. They go to that address alone, and into no message.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from tidemark.config.avro import is_record, schema_text
from tidemark.core.errors import Determinate, InvalidUsage, TidemarkError

URL: Final = "schema.registry.url"
USER: Final = "basic.auth.user.info"
WAIT_SECONDS_MAX: Final = 20.0
_ANSWER_BYTES_MAX: Final = 16 * 1024**2
_NOT_FOUND: Final = 404
_REFUSED: Final = (401, 403)
_SAID_CHARACTERS_MAX: Final = 200
_TRIED_AGAIN: Final = (408, 429, 500, 502, 503, 504)


class _NoRedirect(HTTPRedirectHandler):
    """Credentials are for the registry, not for whom it names."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _is_usable(url: str) -> bool:
    """Whether an address has a host, perhaps a port, and nothing that could be a secret."""
    try:
        place = urlsplit(url)
        named = bool(place.hostname) and (place.port is None or place.port > 0)
    except ValueError:
        return False
    return place.scheme in ("http", "https") and named and "@" not in url and not place.query


class Registry:
    """A registry; `settings` are those of the connection."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        url = settings.get(URL, "")
        if not _is_usable(url):
            # What was written may hold a password, so it is not shown.
            hint = f"write https://host:port, with user:password in {USER}"
            raise InvalidUsage(f"the connection has no usable {URL}", hint=hint)
        self._base = url.rstrip("/")
        self._name = re.sub(r"[^\w.:\[\]-]", "?", urlsplit(url).netloc)
        self._user = settings.get(USER, "")
        self._open = build_opener(_NoRedirect).open

    def schemas(self, subject: str, *, records: bool) -> dict[int, str]:
        """Every schema of a subject by its id, deleted ones too, since records of them may be left. With
        `records`, one that is of a single value is refused."""
        path = f"/subjects/{quote(subject, safe='')}/versions"
        versions = self._get(f"{path}?deleted=true", subject)
        if not isinstance(versions, list) or not all(isinstance(version, int) for version in versions):
            raise self._strange()
        found: dict[int, str] = {}
        for version in versions:
            answer = self._get(f"{path}/{version}?deleted=true", subject)
            number, text = self._schema(answer, f"version {version} of subject {subject!r}")
            if records and not is_record(text):
                fact = f"version {version} of subject {subject!r} is of a single value, not of a row"
                raise InvalidUsage(fact, hint="only records can be read as values")
            found[number] = text
        return found

    def _schema(self, answer: Any, what: str) -> tuple[int, str]:
        try:
            kind, number, text = answer.get("schemaType", "AVRO"), int(answer["id"]), answer["schema"]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise self._strange() from None
        if kind != "AVRO":
            raise InvalidUsage(f"{what} is of type {str(kind)[:40]!r}", hint="only AVRO is read")
        if answer.get("references"):
            hint = "register it whole, or write it into the pipeline file"
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
            said = str(getattr(error, "reason", error))[:_SAID_CHARACTERS_MAX]
            fact = f"the schema registry at {self._name} can't be reached: {said}"
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
        fact = f"what answers at {self._name} is not a schema registry"
        return InvalidUsage(fact, hint=f"check {URL} of the connection")
