"""The file source against real files."""

from __future__ import annotations

import gzip
import logging
import os
import tempfile
import time
from fnmatch import fnmatchcase
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sources.harness import Landing, files_of
from tests.support.memory.control import MemoryControl
from tidemark.config import PipelineConfig
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import Frontier
from tidemark.sources.files.bound_files import Manifest
from tidemark.sources.files.content import packing_flaw, read_content
from tidemark.sources.files.listing import is_temporary, matcher
from tidemark.sources.files.source import BoundFileChanged, FileLimits, FileRules, FileSource

NOW = 1_700_000_000.0


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    folder = tmp_path / "landing"
    folder.mkdir()
    return Landing(folder)


def test_files_are_bound_once_in_order_of_names_with_dense_numbers(landing: Landing) -> None:
    """Invariant 1."""
    landing.put("b.json")
    landing.put("sub/a.json")
    landing.put("a.json", "x")
    assert landing.run() == ["a.json", "b.json", "sub/a.json"]
    assert landing.run() == []
    landing.put("c.json")
    [binding] = landing.bind(landing.source())
    assert (binding.lower, binding.upper) == (Frontier.of({"files": 3}), Frontier.of({"files": 4}))
    assert [(f.seq, f.name, f.size) for f in files_of(binding)] == [(3, "c.json", 3)]


def test_s6_a_file_whose_name_sorts_earlier_is_still_taken_once(landing: Landing) -> None:
    landing.put("m.json")
    assert landing.run() == ["m.json"]
    landing.put("a.json")
    assert landing.run() == ["a.json"]
    assert landing.run() == []


def test_names_that_say_not_yet_are_left_out(landing: Landing) -> None:
    for name in (
        ".a.json",
        "_b.json",
        "c.json.tmp",
        "d.json.part",
        "e.json.crdownload",
        "_x/f.json",
        ".y/g.json",
    ):
        landing.put(name)
    landing.put("h.txt")
    assert landing.run() == []
    (landing.folder / "c.json.tmp").rename(landing.folder / "c.json")
    assert landing.run() == ["c.json"]


def test_a_young_file_waits_and_a_time_in_the_future_does_not_hold_it_for_ever(landing: Landing) -> None:
    landing.now = time.time() + 100
    landing.rules = FileRules("json", settle_seconds=10)
    landing.put("young.json", age_seconds=3)
    landing.put("old.json", age_seconds=11)
    landing.put("future.json", age_seconds=-1_000_000)
    source = landing.source()
    assert [f.name for b in landing.bind(source) for f in files_of(b)] == ["future.json", "old.json"]
    assert [(s.name, s.reason) for s in source.skipped] == [("young.json", "it is younger than 10 s")]
    landing.now += 10
    assert landing.run() == ["young.json"]


def test_a_file_that_grows_while_it_is_hashed_waits(
    landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = landing.put("a.json")

    def grows(*args: object, **kwargs: object) -> object:
        with path.open("ab") as file:
            file.write(b"more")
        return read_content(*args, **kwargs)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr("tidemark.sources.files.source.read_content", grows)
        source = landing.source()
        assert source.offer(None) == []
    assert [s.reason for s in source.skipped] == ["it is still being written"]
    assert landing.run() == ["a.json"]


def test_a_half_written_parquet_file_waits_for_its_footer(landing: Landing) -> None:
    landing.rules = FileRules("parquet")
    whole = landing.folder / "whole.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3]}), whole)
    content = whole.read_bytes()
    os.utime(whole, (NOW - 100, NOW - 100))
    landing.put("half.parquet", content[:-5])
    source = landing.source()
    assert [f.name for b in landing.bind(source) for f in files_of(b)] == ["whole.parquet"]
    assert [s.reason for s in source.skipped] == ["it has no Parquet footer"]
    landing.put("half.parquet", content)
    assert landing.run() == ["half.parquet"]


@pytest.mark.parametrize("pattern", [None, "**/*"])
def test_a_ready_marker_beside_the_file_lets_it_in(landing: Landing, pattern: str | None) -> None:
    landing.rules = FileRules("json", pattern=pattern, ready_marker="{name}.ready")
    landing.put("sub/a.json")
    landing.put("b.json")
    assert landing.run() == []
    landing.put("sub/a.json.ready")
    assert landing.run() == ["sub/a.json"]
    landing.put("b.json.ready")
    assert landing.run() == ["b.json"]


@pytest.mark.parametrize("marker", ["_SUCCESS", "done.json"])
def test_a_marker_of_the_folder_lets_its_files_in_and_is_no_data_itself(
    landing: Landing, marker: str
) -> None:
    landing.rules = FileRules("json", ready_marker=marker)
    landing.put("day1/a.json")
    landing.put("day2/a.json")
    landing.put(f"day1/{marker}")
    assert landing.run() == ["day1/a.json"]


def test_symlinks_are_never_followed(landing: Landing, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.json").write_text("{}")
    (landing.folder / "link.json").symlink_to(tmp_path / "secret.json")
    (landing.folder / "folder").symlink_to(tmp_path / "other")
    (landing.folder / "loop").symlink_to(landing.folder)
    landing.put("a.json")
    os.mkfifo(landing.folder / "pipe.json")
    source = landing.source()
    assert [f.name for b in landing.bind(source) for f in files_of(b)] == ["a.json"]
    assert {s.name: s.reason for s in source.skipped} == {
        "link.json": "it is a symlink",
        "folder": "it is a symlink",
        "loop": "it is a symlink",
        "pipe.json": "it is not a regular file",
    }


def test_a_bound_file_swapped_for_a_link_is_not_read(landing: Landing, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b.json").write_text("{}\n")
    a = landing.put("a.json")
    landing.put("sub/b.json")
    [binding] = landing.bind(landing.source())
    a.unlink()
    a.symlink_to(tmp_path / "out" / "b.json")
    (landing.folder / "sub" / "b.json").unlink()
    (landing.folder / "sub").rmdir()
    (landing.folder / "sub").symlink_to(tmp_path / "out")
    found = landing.source().inspect(binding)
    assert "'a.json' (number 0) was replaced by a link" in found
    assert "'sub/b.json' (number 1) was replaced by a link" in found


def test_s6_what_happened_to_a_bound_file_is_named(landing: Landing) -> None:
    paths = {name: landing.put(name, "1234\n") for name in ("a.json", "b.json", "c.json", "d.json", "e.json")}
    [binding] = landing.bind(landing.source())
    assert landing.source().inspect(binding) == ""
    paths["a.json"].unlink()
    paths["b.json"].write_text("12")
    paths["c.json"].write_text("5678\n")
    paths["d.json"].write_text("1234\n5")
    os.utime(paths["e.json"])
    found = landing.source().inspect(binding)
    assert "'a.json' (number 0) was removed" in found
    assert "'b.json' (number 1) was truncated from 5 to 2 bytes" in found
    assert "'c.json' (number 2) was changed" in found
    assert "'d.json' (number 3) was changed" in found
    assert "e.json" not in found


def test_s6_new_content_under_a_bound_name_stops_the_offer_instead_of_being_lost(landing: Landing) -> None:
    path = landing.put("daily.json", "monday\n")
    landing.put("gone.json")
    assert landing.run() == ["daily.json", "gone.json"]
    (landing.folder / "gone.json").unlink()
    os.utime(path)
    assert landing.run() == []  # Removed, or touched without a change: nothing to stop for.
    path.write_text("tuesday\n")
    landing.put("new.json")
    with pytest.raises(BoundFileChanged, match=r"'daily.json' \(number 0\) was changed.*its own file name"):
        landing.run()
    path.rename(landing.folder / "daily-2.json")
    assert landing.run() == ["daily-2.json", "new.json"]


def test_many_changes_are_counted_not_all_listed(landing: Landing) -> None:
    paths = [landing.put(f"{i:03}.json") for i in range(50)]
    [binding] = landing.bind(landing.source())
    for path in paths:
        path.unlink()
    found = landing.source().inspect(binding)
    assert found.endswith("; and 45 more")
    assert found.count("was removed") == 5


NAMES = [
    "spa ce.json",
    "new\nline.json",
    "ünï/日本.json",
    "e\u0301.json",
    "\u00e9.json",
    "a'\"{}[]*?.json",
    "%20.json",
]


def test_any_utf8_name_is_bound_byte_for_byte(landing: Landing) -> None:
    for name in NAMES:
        landing.put(name)
    with (landing.folder / os.fsdecode(b"\xff.json")).open("w") as file:
        file.write("{}")
    source = landing.source()
    bound = landing.bind(source)
    assert [f.name for b in bound for f in files_of(b)] == sorted(NAMES)
    assert source.inspect(bound[0]) == ""
    assert [s.reason for s in source.skipped] == ["its name is not UTF-8"]
    assert landing.run() == []


def test_regression_a_name_that_spark_can_not_read_is_left_out_and_told(
    landing: Landing, caplog: pytest.LogCaptureFixture
) -> None:
    """Once bound, it would stop the pipeline: no retry reads it."""
    caplog.set_level(logging.WARNING)
    landing.put("2026-01-01T00:00:00.json")
    landing.put("10:30/a.json")
    assert landing.run() == ["10:30/a.json"]
    reason = "Spark can't read names with a colon: rename it"
    assert caplog.messages == [f"file '2026-01-01T00:00:00.json' is not taken: {reason}"]


@pytest.mark.parametrize("suffix", ["bz2", "BZ2", "lz4", "snappy", "deflate"])
def test_regression_what_spark_would_take_for_an_empty_file_is_left_out_and_told(
    landing: Landing, suffix: str
) -> None:
    """Under such a name Spark reads text, or half a file, as no records at all, without a word."""
    landing.rules = FileRules("json", pattern="**")
    landing.put(f"a.json.{suffix}")
    landing.put("b.json")
    source = landing.source()
    assert [file.name for binding in landing.bind(source) for file in files_of(binding)] == ["b.json"]
    (skipped,) = source.skipped
    assert (skipped.name, skipped.waits) == (f"a.json.{suffix}", False)
    assert "use .gz or .zst" in skipped.reason


PACKED = {
    "a.json.gz": gzip.compress(b"1\n2\n" * 1000),
    "a.json.zst": pa.compress(b"1\n2\n" * 1000, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize(("name", "content"), PACKED.items(), ids=PACKED)
def test_what_is_wrong_with_a_packed_file_is_found(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name

    def flaw(content: bytes) -> str:
        path.write_bytes(content)
        return packing_flaw(str(path))

    assert [flaw(good) for good in (content, content * 2, b"")] == ["", "", ""]
    assert all(flaw(bad) for bad in (content[:-6], content[:5], b"1\n2\n", content + b"1\n"))
    path.unlink()
    assert packing_flaw(str(path)) == "", "whoever reads it says that it is gone"
    assert packing_flaw(__file__) == ""


def test_what_a_later_run_takes_is_not_warned_of(landing: Landing, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    landing.rules = FileRules("json", ready_marker="{name}.done")
    landing.put("a.json")
    assert (landing.run(), caplog.messages) == ([], [])


def test_regression_a_broken_footer_stops_nobody_who_only_counts_its_rows(landing: Landing) -> None:
    """Its length says more than the file has. Whoever reads the file says what is wrong with it."""
    landing.rules, landing.limits = FileRules("parquet"), FileLimits(records_max=10)
    landing.put("a.parquet", b"PAR1" + bytes(10) + (10**6).to_bytes(4, "little") + b"PAR1")
    assert landing.run() == ["a.parquet"]


def test_transactions_are_cut_by_files_bytes_and_records(landing: Landing) -> None:
    def sizes(limits: FileLimits, rules: FileRules | None = None) -> list[list[str]]:
        landing.limits = limits
        landing.rules = rules or FileRules("json")
        return [
            [f.name for f in Manifest.from_json(step.manifest).files] for step in landing.source().offer(None)
        ]

    landing.put("a.json", "1\n2\n3")
    landing.put("b.json.gz", gzip.compress(b"1\n2\n") + gzip.compress(b"3\n4\n"))
    landing.put("c.json.zst", pa.compress(b"1\n", codec="zstd", asbytes=True))
    landing.put("d.json", "1\n" * 100)
    assert sizes(FileLimits(files_max=3)) == [["a.json", "b.json.gz", "c.json.zst"], ["d.json"]]
    assert sizes(FileLimits(records_max=7)) == [["a.json", "b.json.gz"], ["c.json.zst"], ["d.json"]]
    assert sizes(FileLimits(records_max=8)) == [["a.json", "b.json.gz", "c.json.zst"], ["d.json"]]
    assert sizes(FileLimits(bytes_max=1)) == [["a.json"], ["b.json.gz"], ["c.json.zst"], ["d.json"]]
    pq.write_table(pa.table({"a": list(range(6))}), landing.folder / "x.parquet")
    pq.write_table(pa.table({"a": [1]}), landing.folder / "y.parquet")
    assert sizes(FileLimits(records_max=6), FileRules("parquet")) == [["x.parquet"], ["y.parquet"]]
    landing.put("z.json.gz", b"not gzip")
    assert sizes(FileLimits(records_max=1000)) == [
        ["a.json", "b.json.gz", "c.json.zst", "d.json", "z.json.gz"]
    ]


def test_two_runs_that_offer_the_same_files_bind_them_once(landing: Landing) -> None:
    landing.put("a.json")
    first, second = landing.source(), landing.source()
    assert first.offer(None) == second.offer(None)
    landing.bind(first)
    landing.put("b.json")
    last = landing.bindings()[-1]
    [step] = second.offer(last)
    assert [f.name for f in Manifest.from_json(step.manifest).files] == ["b.json"]
    assert step.upper == Frontier.of({"files": 2})


def test_a_source_that_learnt_more_than_the_snapshot_forgets_it(landing: Landing) -> None:
    landing.put("a.json")
    source = landing.source()
    landing.bind(source)
    [first] = landing.bindings()
    landing.put("b.json")
    landing.bind(source)
    source.offer(landing.bindings()[-1])
    assert [f.name for f in Manifest.from_json(source.offer(first)[0].manifest).files] == ["b.json"]


def test_a_missing_folder_is_an_error_not_an_empty_source(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsage, match=r"source folder .* is not there"):
        Landing(tmp_path / "no").run()


def test_a_folder_that_can_not_be_listed_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidUsage, match=r"source folder .* can't be listed: Not a directory"):
        Landing(tmp_path / "file").run()


def test_an_unreadable_file_is_told_and_the_others_go_on(
    landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing.put("a.json")
    landing.put("b.json")

    def denied(path: str, **kwargs: object) -> object:
        if path.endswith("a.json"):
            raise PermissionError(13, "Permission denied")
        return read_content(path, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr("tidemark.sources.files.source.read_content", denied)
    source = landing.source()
    assert [f.name for b in landing.bind(source) for f in files_of(b)] == ["b.json"]
    assert [(s.name, s.reason) for s in source.skipped] == [("a.json", "it can't be read")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"kind": "kafka"}',
        '{"kind": "files", "format": "json", "files": [{"seq": 0}]}',
        '{"kind":"files","format":"json","files":[{"seq":0,"name":"../x","size":1,"hash":"","mtime_ns":0}]}',
        '{"kind":"files","format":"json","files":[{"seq":0,"name":"/etc/x","size":1,"hash":"","mtime_ns":0}]}',
    ],
)
def test_a_manifest_that_was_tampered_with_is_refused(text: str) -> None:
    with pytest.raises(InvariantViolation):
        Manifest.from_json(text)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.json", ["a.json", ".json"], ["b/a.json", "a.jsonx"]),
        ("**/*.json", ["a.json", "b/a.json", "b/c/a.json"], ["a.csv"]),
        ("b/**", ["b/a", "b/c/d"], ["a", "bb/a"]),
        ("a?.js[ox]n", ["ab.json", "ab.jsxn"], ["a.json", "a/.json", "ab.jsyn"]),
        ("[!a]*", ["b", "ba"], ["a", "ab", "/b"]),
        ("a.b+(c)", ["a.b+(c)"], ["aXb+(c)"]),
        ("a*b*c", ["abc", "axbxbxc", "abcbc"], ["ab", "ab/c", "abcb"]),
        ("**/in/**/x*.json", ["in/x.json", "a/in/in/b/xy.json"], ["x.json", "in/a.json", "ain/x.json"]),
        ("**/a/b/**", ["a/b/c", "a/a/b/c/d"], ["a/b", "a/c/b/d"]),
        ("*_*_*_*_*_*_*_*_*_*.json", ["_" * 240 + ".json"], ["_" * 240, "_" * 8 + ".json"]),
        ("**/_*/**/_*/**/_*/**/_*/x", ["_/" * 200 + "x"], ["_/" * 200 + "y", "_/_/_/x"]),
    ],
)
def test_patterns_mean_what_they_mean_in_a_shell(pattern: str, yes: list[str], no: list[str]) -> None:
    matches = matcher(pattern, "json")
    assert [name for name in yes if not matches(name)] == []
    assert [name for name in no if matches(name)] == []


@given(
    pattern=st.text("ab*?/", max_size=8).filter(lambda text: "**" not in text),
    name=st.text("ab/", max_size=10),
)
def test_a_pattern_without_folders_matches_what_the_standard_library_matches(pattern: str, name: str) -> None:
    parts, names = pattern.split("/"), name.split("/")
    expected = len(parts) == len(names) and all(map(fnmatchcase, names, parts))
    assert matcher(pattern, "json")(name) == expected


def test_every_temporary_suffix_is_known_in_any_case() -> None:
    assert all(is_temporary(name) for name in ("a.TMP", "a.json~", "a.json._COPYING_", "x.Part"))
    assert not is_temporary("a.json")


def test_a_pipeline_file_describes_the_source(tmp_path: Path) -> None:
    config = PipelineConfig.model_validate(
        {
            "name": "p",
            "source": {"type": "files", "path": "in", "format": "json", "settle_seconds": 0},
            "shards": [{"name": "t", "schema": "id INT", "keys": ["id"]}],
            "transaction": {"max_files": 1},
        }
    ).at(tmp_path)
    (tmp_path / "in").mkdir()
    for name in ("a.json", "b.json"):
        (tmp_path / "in" / name).write_text("{}")
    landing = Landing(tmp_path / "in")
    source = FileSource.of(config, bindings=MemoryControl(landing.warehouse).bindings)
    assert len(source.offer(None)) == 2
    source.acknowledge(Frontier())
    assert (tmp_path / "in" / "a.json").exists()


def test_ten_thousand_files_are_bound_once_each(landing: Landing) -> None:
    for index in range(10_000):
        path = landing.folder / f"{index % 7}"
        path.mkdir(exist_ok=True)
        (path / f"{index}.json").write_bytes(b'{"id": 1}\n')
    landing.limits = FileLimits(files_max=4_000)
    source = landing.source()
    bound = landing.bind(source)
    assert [len(files_of(binding)) for binding in bound] == [4_000, 4_000, 2_000]
    assert landing.source().offer(landing.bindings()[-1]) == []
    assert all(source.inspect(binding) == "" for binding in bound)


arrivals = st.lists(
    st.one_of(
        st.tuples(st.just("land"), st.sampled_from([f"{a}{b}.json" for a in "abc/" for b in "xyz"])),
        st.tuples(st.just("land"), st.from_regex(r"[a-d/ éñ]{1,4}\.json", fullmatch=True)),
        st.tuples(st.just("write"), st.sampled_from(["p.json.tmp", "q.json.part"])),
        st.tuples(st.just("rename"), st.sampled_from(["p.json.tmp", "q.json.part"])),
        st.tuples(st.just("remove"), st.integers(0, 5)),
        st.tuples(st.just("touch"), st.integers(0, 5)),
        st.tuples(st.just("offer"), st.integers(0, 2)),
        st.tuples(st.just("run"), st.integers(0, 2)),
    ),
    max_size=30,
)


@settings(max_examples=150)
@given(arrivals, st.integers(1, 4))
def test_any_sequence_of_arrivals_and_offers_binds_every_file_once(
    events: list[tuple[str, object]], files_max: int
) -> None:
    """Invariant 1."""
    with tempfile.TemporaryDirectory() as folder:
        landing = Landing(Path(folder), limits=FileLimits(files_max=files_max))
        sources = [landing.source() for _ in range(3)]
        landed: list[str] = []
        for what, detail in events:
            known = [name for name in landed if (landing.folder / name).exists()]
            match what, detail:
                case "land", str(name) if _is_free(landing.folder, name):
                    landing.put(name, f"{name}\n")
                    # A file that comes back under its name with its content is the same file.
                    landed += [name] if name not in landed else []
                case "write", str(name):
                    landing.put(name)
                case "rename", str(name) if (landing.folder / name).exists():
                    final = name.rpartition(".")[0]
                    if final not in landed:
                        (landing.folder / name).rename(landing.folder / final)
                        landed.append(final)
                case "remove", int(index) if index < len(known):
                    bound = {f.name for b in landing.bindings() for f in files_of(b)}
                    if known[index] in bound:
                        (landing.folder / known[index]).unlink()
                case "touch", int(index) if index < len(known):
                    os.utime(landing.folder / known[index], (NOW - 5, NOW - 5))
                case "offer", int(index):
                    bindings = landing.bindings()
                    sources[index].offer(bindings[-1] if bindings else None)
                case "run", int(index):
                    landing.bind(sources[index])
        landing.run()
        bound_files = [file for binding in landing.bindings() for file in files_of(binding)]
        assert sorted(file.name for file in bound_files) == sorted(landed)
        assert [file.seq for file in bound_files] == list(range(len(bound_files)))
        assert all(len(files_of(binding)) <= files_max for binding in landing.bindings())


def _is_free(folder: Path, name: str) -> bool:
    parts = Path(name.lstrip("/")).parts
    clean = name == str(Path(name)) and not name.startswith("/")
    blocked = any((folder / Path(*parts[:i])).is_file() for i in range(1, len(parts)))
    return clean and not (folder / name).exists() and not blocked and not is_temporary(parts[-1])
