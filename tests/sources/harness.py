"""A folder, a ledger, and a run that binds what a file source offers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.memory.control import MemoryControl, MemoryWarehouse
from tidemark.core.binding import Binding, Configuration, Owner, decide_mint
from tidemark.core.ledger import Put
from tidemark.sources.files.bound_files import BoundFile, Manifest
from tidemark.sources.files.source import FileLimits, FileRules, FileSource


@dataclass
class Landing:
    """One pipeline's landing folder. Each `run` is a new process: it knows only what the ledger says."""

    folder: Path
    rules: FileRules = field(default_factory=lambda: FileRules("json"))
    limits: FileLimits = field(default_factory=FileLimits)
    warehouse: MemoryWarehouse = field(default_factory=MemoryWarehouse)
    now: float | None = None
    runs: int = 0

    def put(self, name: str, content: bytes | str = "{}\n", *, age_seconds: float = 1000) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        now = self.now if self.now is not None else 1_700_000_000
        os.utime(path, (now - age_seconds, now - age_seconds))
        return path

    def source(self) -> FileSource:
        bindings = MemoryControl(self.warehouse).bindings
        bindings.head()
        now = self.now if self.now is not None else 1_700_000_000
        return FileSource(self.folder, self.rules, bindings=bindings, limits=self.limits, now=lambda: now)

    def bindings(self) -> list[Binding]:
        return list(self.warehouse.bindings.records(self.warehouse.bindings.version))

    def bind(self, source: FileSource) -> Sequence[Binding]:
        """Offer and mint, as a run does; returns what was minted."""
        view = MemoryControl(self.warehouse).bindings
        head = view.head()
        known = self.bindings()
        last = known[-1] if known else None
        self.runs += 1
        decision = decide_mint(
            head=head,
            last=last,
            found=[],
            steps=source.offer(last),
            owner=Owner(f"run {self.runs}"),
            configuration=Configuration.of("{}"),
        )
        assert isinstance(decision, Put)
        view.commit(head, decision)
        return [record for record in decision.records if isinstance(record, Binding)]

    def run(self) -> list[str]:
        """The names that one run binds, in order."""
        return [file.name for binding in self.bind(self.source()) for file in files_of(binding)]


def files_of(binding: Binding) -> tuple[BoundFile, ...]:
    return Manifest.from_json(binding.manifest).files
