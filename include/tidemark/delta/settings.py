"""The configurations that records name: each lies once, in a file beside the history.

A file is named by the fingerprint of its text and never changes. It is written and synced before a record
that names it is committed, and it is never deleted. Its text is compared with its name whenever it is read,
and before it is named again. The history's links cover the fingerprint, so they cover the text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final

from tidemark.core.binding import Configuration, fingerprint_of
from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.delta.store import Store

CACHED_MAX: Final = 8


class Settings(Mapping[str, str]):
    """The texts of configurations by fingerprint, read when they are asked for."""

    def __init__(self, uri: str, storage_options: Mapping[str, str]) -> None:
        self._store = Store(uri, storage_options)
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._kept: set[str] = set()

    def __getitem__(self, fingerprint: str) -> str:
        """The text; `InvariantViolation` if it is gone or damaged."""
        text = self._texts.get(fingerprint)
        if text is None:
            text = self._read(fingerprint)
            if text is None:
                raise InvariantViolation(
                    f"the settings {self._place(fingerprint)} are gone, and the history names them",
                    hint="restore this file from a backup or a copy; it never changes. The next run with the"
                    " same pipeline file writes it, too",
                )
            self._texts[fingerprint] = text
            while len(self._texts) > CACHED_MAX:
                self._texts.popitem(last=False)
        return text

    def keep(self, configuration: Configuration) -> None:
        """Make the text durable, unless it is there: before a record names it. `InvariantViolation` if
        another text has its name; `Determinate` if it can't be written."""
        name = configuration.fingerprint
        if name in self._kept:
            return
        # A text at hand has been compared with its name; comparing bytes takes less than hashing megabytes.
        known = None if configuration.texts is self else configuration.text
        there = self._read(name, known) is not None
        text = "" if there else configuration.text
        if text and fingerprint_of(text) != name:
            raise InvariantViolation(f"configuration {name} has a text with another fingerprint")
        try:
            if there or not self._store.put_if_absent(_file(name), text.encode()):
                # The process that created the file may not have synced its name.
                self._store.sync_folders([_file(name)])
        except OSError as error:
            raise Determinate(
                f"the settings {self._place(name)} can't be written: {error}",
                hint="check the free space and the permissions, then retry",
            ) from error
        self._kept.add(name)

    def _read(self, fingerprint: str, known: str | None = None) -> str | None:
        """The checked text, which `known` is where it is given; None if there is no file."""
        try:
            data = self._store.get(_file(fingerprint))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Determinate(
                f"the settings {self._place(fingerprint)} can't be read: {error}",
                hint="check the store, then retry",
            ) from error
        if known is not None and data == known.encode():
            return known
        text = data.decode(errors="replace")
        if fingerprint_of(text) != fingerprint:
            raise InvariantViolation(
                f"the settings {self._place(fingerprint)} are damaged: their text has another fingerprint",
                hint="restore this file from a backup or a copy. Or delete it: the next run with the same"
                " pipeline file writes it again",
            )
        return text

    def _place(self, fingerprint: str) -> str:
        return f"{self._store.uri}/{_file(fingerprint)}"

    def __iter__(self) -> Iterator[str]:
        return (name.removesuffix(".json") for name in self._store.names_after("", ""))

    def __len__(self) -> int:
        return len(self._store.names_after("", ""))


def _file(fingerprint: str) -> str:
    return f"{fingerprint}.json"
