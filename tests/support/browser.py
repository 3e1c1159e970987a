"""A Chromium that a test drives over its debugging protocol; skips the test where there is none.

Chromium is not among what the project sets up. `TIDEMARK_TEST_BROWSER` names one that is not on the path."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.support.waiting import SECONDS_MAX, wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome")

FRAMED = "document.querySelector('iframe').contentDocument"
"""The page that Airflow shows in a frame of its own."""


class Browser:
    """One page of a headless Chromium. `complaints` are what its console had to say of errors."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = count(1)
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Any:
        """What a command of the protocol comes to; it must succeed."""
        told = self._told(method, params)
        assert "error" not in told, told
        return told["result"]

    def _told(self, method: str, params: dict[str, Any]) -> Any:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            told = json.loads(self._socket.recv(timeout=SECONDS_MAX))
            if told.get("id") == number:
                return told
            self._listen(told)

    def _listen(self, event: dict[str, Any]) -> None:
        entry = event.get("params", {}).get("entry", {})
        if event.get("method") == "Log.entryAdded" and entry["level"] == "error":
            self.complaints.append(f"{entry.get('url', '')} {entry['text']}")
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(event["params"]["exceptionDetails"])[:500])

    def log_in(self, url: str, token: str) -> None:
        self.send("Network.setCookie", name="_token", value=token, url=url)

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def open(self, url: str) -> None:
        """Go to an address; the page that was there before is not asked anything any more."""
        self.value("window.left = true")
        self.send("Page.navigate", url=url)
        self.wait_for("window.left !== true", what="another page")

    def value(self, expression: str) -> Any:
        """What an expression comes to on the page; None while it can't be evaluated, as between two pages."""
        told = self._told("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        found = told.get("result", {})
        return None if "exceptionDetails" in found else found.get("result", {}).get("value")

    def wait_for(self, expression: str, what: str) -> None:
        wait_until(lambda: self.value(expression) is True, what=what, pause_seconds=0.1)

    def sees(self, *texts: str) -> None:
        """The framed page is drawn to its end, and shows these texts."""
        self.wait_for(f"{FRAMED}.querySelector('main').ariaBusy === 'false'", what="the drawn page")
        for text in texts:
            self.wait_for(
                f"{FRAMED}.body.innerText.includes({json.dumps(text)})", what=f"{text!r} on the page"
            )

    def press(self, key: str) -> None:
        """Press a key as a person does."""
        code, text = {"Tab": (9, ""), "Enter": (13, "\r")}[key]
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **typed)

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self.send("Input.insertText", text=text)

    def tab_to(self, expression: str, *, keys_max: int = 100) -> None:
        """Press Tab until an expression about the framed page's focus is true."""
        for _ in range(keys_max):
            if self.value(expression) is True:
                return
            self.press("Tab")
        raise AssertionError(f"{keys_max} times Tab, and never {expression}")

    def picture(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))


@contextmanager
def running_browser() -> Iterator[Browser]:
    """A browser with a profile of its own, gone with it."""
    named = os.environ.get("TIDEMARK_TEST_BROWSER")
    program = named or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("there is no Chromium on the path, and TIDEMARK_TEST_BROWSER names none")
    profile = Path(tempfile.mkdtemp(prefix="tidemark-browser-"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    process = subprocess.Popen(
        [program, *options, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with connect(_page_of(profile), max_size=None) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.wait(SECONDS_MAX)
        shutil.rmtree(profile, ignore_errors=True)


def _page_of(profile: Path) -> str:
    """The address that the browser's first page listens at, once it says so."""
    told = profile / "DevToolsActivePort"
    wait_until(lambda: told.is_file() and "\n" in told.read_text(), what="the browser", pause_seconds=0.1)
    port = told.read_text().splitlines()[0]
    found: list[str] = []

    def listed() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=SECONDS_MAX) as reply:
            found[:] = [one["webSocketDebuggerUrl"] for one in json.load(reply) if one["type"] == "page"]
        return bool(found)

    wait_until(listed, what="the browser's page", pause_seconds=0.1)
    return found[0]
