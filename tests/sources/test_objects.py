"""Landing files on an object store: listing, binding by e-tags, and what happened to objects afterwards.

The store is one in memory; `tests/s3` does the same with a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from obstore.store import MemoryStore

from tests.support.memory.control import MemoryControl, MemoryWarehouse
from tidemark.core.binding import Binding, Configuration, Owner, decide_mint
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ledger import Put
from tidemark.sources.files.bound_files import BoundFile, Manifest
from tidemark.sources.files.listing import Objects, literal_folders
from tidemark.sources.files.source import BoundFileChanged, FileLimits, FileRules, FileSource

PLACE = "s3a://bucket/landing"
LATER = 4_000_000_000


class Bucket:
    """A store with a ledger; each run is a process of its own."""

    def __init__(self, **rules: Any) -> None:
        self.store: Any = MemoryStore()
        self.rules = FileRules("json", **rules)
        self.warehouse = MemoryWarehouse()
        self.now = LATER

    def put(self, *names: str, content: bytes = b"{}\n") -> None:
        for name in names:
            self.store.put(name, content)

    def source(self, limits: FileLimits | None = None) -> FileSource:
        bindings = MemoryControl(self.warehouse).bindings
        bindings.head()
        objects = Objects(PLACE, pattern=self.rules.pattern, store=self.store)
        return FileSource(
            PLACE, self.rules, bindings=bindings, limits=limits, objects=objects, now=lambda: self.now
        )

    def bindings(self) -> list[Binding]:
        return list(self.warehouse.bindings.records(self.warehouse.bindings.version))

    def last(self) -> Binding | None:
        return next(reversed(self.bindings()), None)

    def run(self) -> list[str]:
        """The names that one run binds."""
        view = MemoryControl(self.warehouse).bindings
        steps, head = self.source().offer(self.last()), view.head()
        decision = decide_mint(
            head=head, last=self.last(), found=[], steps=steps, owner=Owner(f"run {len(self.bindings())}"),
            configuration=Configuration.of("{}"),
        )  # fmt: skip
        if not isinstance(decision, Put):
            return []
        view.commit(head, decision)
        bound = [record for record in decision.records if isinstance(record, Binding)]
        return [file.name for binding in bound for file in files_of(binding)]


def files_of(binding: Binding) -> Sequence[BoundFile]:
    return Manifest.from_json(binding.manifest).files


def test_objects_are_bound_once_each_by_size_and_e_tag() -> None:
    bucket = Bucket()
    bucket.put("b.json", "2026/a.json")
    bucket.put("_temporary/c.json", "d.json.tmp", "notes.txt", "e.json.bz2", content=b"no")
    assert bucket.run() == ["2026/a.json", "b.json"]
    assert bucket.run() == []
    bucket.put("a-late-one.json")
    assert bucket.run() == ["a-late-one.json"]
    (one, two), (three,) = (files_of(binding) for binding in bucket.bindings())
    assert [file.seq for file in (one, two, three)] == [0, 1, 2]
    assert [file.hash for file in (one, two, three)] == [
        f"etag:{bucket.store.head(file.name)['e_tag'].strip(chr(34))}" for file in (one, two, three)
    ]


def test_s6_an_object_that_changed_stops_the_offer_and_one_that_is_gone_does_not() -> None:
    bucket = Bucket()
    bucket.put("a.json", "b.json", content=b'{"k": 1}\n')
    bucket.run()
    (binding,) = bucket.bindings()
    assert bucket.source().inspect(binding) == ""
    bucket.store.delete("b.json")
    assert bucket.run() == []
    assert bucket.source().inspect(binding) == "file 'b.json' (number 1) was removed"
    bucket.put("a.json", content=b'{"k": 2}\n')
    with pytest.raises(BoundFileChanged, match=r"file 'a.json' \(number 0\) was changed: its e-tag was"):
        bucket.run()
    bucket.put("a.json", content=b"{}")
    with pytest.raises(BoundFileChanged, match="was truncated from 9 to 2 bytes"):
        bucket.run()


class Versioned:
    """A bucket of S3 with versions: a listing has none, a delete removes none of them."""

    def __init__(self) -> None:
        self.newest, self.older = MemoryStore(), MemoryStore()
        self.versions: dict[str, str] = {}
        self._numbers = count()
        self.before_head: Callable[[], object] = lambda: None

    def put(self, name: str, content: bytes) -> None:
        self.versions[name] = f"v{next(self._numbers)}"
        for store, path in ((self.newest, name), (self.older, f"{name}/{self.versions[name]}")):
            store.put(path, content)

    def head(self, name: str) -> Any:
        self.before_head()
        found = self.newest.head(name)
        # An e-tag stands for the content, also in the other store.
        return {**found, "e_tag": self._tag(name), "version": self.versions[name]}

    def list(self, *args: Any, **more: Any) -> Any:
        return [[{**one, "e_tag": self._tag(one["path"])} for one in page] for page in self.newest.list()]

    def get(self, name: str, *, options: Any) -> Any:
        path = f"{name}/{options['version']}"
        found = {**self.older.head(path), "e_tag": str(hash(bytes(self.older.get(path).bytes())))}
        return SimpleNamespace(meta={**found, "version": options["version"]})

    def _tag(self, name: str) -> str:
        return str(hash(bytes(self.newest.get(name).bytes())))


def test_a_bound_version_is_named_where_its_object_was_lost() -> None:
    bucket = Bucket()
    store = bucket.store = Versioned()
    bucket.put("a.json", "b.json", content=b'{"k": 1}\n')
    assert bucket.run() == ["a.json", "b.json"]
    (binding,) = bucket.bindings()
    assert [file.version for file in files_of(binding)] == ["v0", "v1"]
    assert bucket.source().inspect(binding) == ""
    store.newest.delete("b.json")
    left = "(its version v1 is still there: delete the versions that are newer)"
    assert bucket.source().inspect(binding) == f"file 'b.json' (number 1) was removed {left}"
    store.older.delete("b.json/v1")
    assert bucket.source().inspect(binding).endswith("was removed (its version v1 is gone too)")
    bucket.put("a.json", content=b'{"k": 2}\n')
    with pytest.raises(BoundFileChanged, match=r"its version v0 is still there: delete the versions"):
        bucket.run()
    # The same content again is no change, whatever its version.
    bucket.put("a.json", content=b'{"k": 1}\n')
    assert bucket.run() == []
    assert store.versions["a.json"] == "v3"


@pytest.mark.parametrize("is_incremental", [False, True])
def test_an_object_that_is_written_between_listing_and_binding_is_bound_as_it_is(
    is_incremental: bool,
) -> None:
    """Left for the next run, it would sort before the last bound name."""
    bucket = Bucket(incremental_listing=is_incremental)
    store = bucket.store = Versioned()
    bucket.put("a.json", "b.json", "c.json")

    def meanwhile() -> None:
        store.before_head = lambda: None
        bucket.put("a.json", content=b'{"k": 22}\n')
        store.newest.delete("b.json")

    store.before_head = meanwhile
    assert bucket.run() == ["a.json", "c.json"]
    (binding,) = bucket.bindings()
    assert [(file.version, file.size) for file in files_of(binding)] == [("v3", 10), ("v2", 3)]
    assert bucket.source().inspect(binding) == ""
    assert bucket.run() == []


def test_a_bucket_without_versions_costs_one_request_a_run() -> None:
    bucket = Bucket()
    bucket.store = store = Counting(bucket.store)
    bucket.put("a.json", "b.json", "c.json")
    bucket.run()
    assert store.heads == 1
    bucket.run()
    assert store.heads == 1


def test_an_object_settles_by_the_time_that_the_store_gives_it() -> None:
    bucket = Bucket(settle_seconds=60)
    bucket.put("a.json")
    written = bucket.store.head("a.json")["last_modified"].timestamp()
    bucket.now = int(written) + 30
    assert bucket.run() == []
    assert bucket.source().waiting(bucket.last()).pieces == 1
    bucket.now = int(written) + 90
    assert bucket.run() == ["a.json"]


def test_a_marker_holds_an_object_back() -> None:
    bucket = Bucket(ready_marker="{name}.ready")
    bucket.put("a.json", "b.json", "b.json.ready")
    assert bucket.run() == ["b.json"]


class Counting:
    """A store that notes what it is asked for."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.listed: list[tuple[str | None, str | None]] = []
        self.heads = 0

    def list(self, prefix: str | None = None, *, offset: str | None = None, chunk_size: int = 50) -> Any:
        self.listed.append((prefix, offset))
        return self._store.list(prefix, offset=offset, chunk_size=chunk_size)

    def head(self, name: str) -> Any:
        self.heads += 1
        return self._store.head(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize(
    ("pattern", "folders"),
    [
        (None, ""),
        ("*.json", ""),
        ("**/*.json", ""),
        ("2026/11/*.json", "2026/11"),
        ("2026/1[12]/x/*.json", "2026"),
        ("a/b/c.json", "a/b"),
    ],
)
def test_only_the_folders_that_a_pattern_names_are_listed(pattern: str | None, folders: str) -> None:
    assert literal_folders(pattern) == folders
    bucket = Bucket(pattern=pattern)
    bucket.store = Counting(bucket.store)
    bucket.run()
    assert bucket.store.listed == [(folders or None, None)]


def test_an_incremental_listing_begins_at_the_last_bound_name() -> None:
    bucket = Bucket(incremental_listing=True)
    bucket.store = Counting(bucket.store)
    bucket.put("2026-11-01.json", "2026-11-02.json")
    assert bucket.run() == ["2026-11-01.json", "2026-11-02.json"]
    bucket.put("2026-11-03.json", "2026-10-31.json")
    assert bucket.run() == ["2026-11-03.json"]
    assert bucket.store.listed == [(None, None), (None, "2026-11-02.json")]


def test_lines_of_objects_bound_no_transaction() -> None:
    with pytest.raises(InvalidUsage, match="max_records can't limit"):
        Bucket().source(FileLimits(records_max=10))


def test_a_store_that_does_not_answer_is_tried_again_and_one_that_refuses_is_not() -> None:
    from obstore.exceptions import GenericError, PermissionDeniedError

    class Failing:
        def __init__(self, error: Exception) -> None:
            self._error = error

        def list(self, *args: Any, **more: Any) -> Any:
            raise self._error

    bucket = Bucket()
    bucket.store = Failing(GenericError("timeout"))
    with pytest.raises(Determinate, match="does not answer: timeout"):
        bucket.run()
    assert "does not answer" in bucket.source().waiting(None).trouble
    bucket.store = Failing(PermissionDeniedError("no"))
    with pytest.raises(InvalidUsage, match="can't be listed: no"):
        bucket.run()
