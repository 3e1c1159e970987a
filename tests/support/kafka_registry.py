"""A schema registry for tests: the few answers of its HTTP interface that are asked for, on loopback."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

USER_INFO = "reader:s3cret-of-the-registry"


@dataclass
class GivenRegistry:
    """What the registry answers: each subject's versions, in order, as it would tell them."""

    url: str = ""
    subjects: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    status: int = 0
    """Answered instead of anything else, where it is not 0."""
    body: bytes = b""

    def put(self, subject: str, number: int, schema: Any, **more: Any) -> None:
        """Register a schema, which gets the next version of its subject."""
        versions = self.subjects.setdefault(subject, [])
        text = schema if isinstance(schema, str) else json.dumps(schema)
        versions.append(
            {"subject": subject, "version": len(versions) + 1, "id": number, "schema": text, **more}
        )

    def answer(self, path: str) -> tuple[int, Any]:
        match [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]:
            case ["subjects", subject, "versions"] if subject in self.subjects:
                return 200, [one["version"] for one in self.subjects[subject]]
            case ["subjects", subject, "versions", version] if subject in self.subjects:
                return 200, self.subjects[subject][int(version) - 1]
        return 404, {"error_code": 40401}


@contextmanager
def running_registry() -> Iterator[GivenRegistry]:
    given = GivenRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given.asked.append(self.path)
            sent = self.headers.get("Authorization", "").removeprefix("Basic ")
            known = base64.b64encode(USER_INFO.encode()).decode() == sent
            code, found = given.answer(self.path) if known else (401, {})
            self.send_response(given.status or code)
            self.send_header("Location", f"{given.url}/elsewhere")
            self.end_headers()
            self.wfile.write(given.body or json.dumps(found).encode())

        def log_message(self, *_: Any) -> None:
            """Nothing: the tests' output is not for it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    given.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield given
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
