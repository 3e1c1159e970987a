"""What a pipeline file may say, and what is said about one that is wrong."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.config.harness import GOOD
from tidemark.config import ConfigInvalid, PipelineConfig, Problem, ShardConfig, load_pipeline, load_pipelines
from tidemark.config.expectations import KNOWN
from tidemark.config.model import Retention
from tidemark.config.shard import ShardSettings
from tidemark.core.binding import Configuration
from tidemark.core.errors import InvalidUsage

ROOT = Path(__file__).resolve().parents[2]
Load = Callable[..., PipelineConfig]
Problems = Callable[..., list[Problem]]


def test_a_good_file_gives_its_effective_configuration(load: Load, project: Path) -> None:
    config = load(("    keys: [id]", "    keys: [id]\n    sequence_by: at\n    lateness: 60"))
    shard = config.shards[0]
    assert (config.name, config.envelope, config.schedule) == ("orders", "upsert", None)
    assert (shard.keys, shard.sequence_by, shard.lateness_unit) == (("id",), "at", "seconds")
    assert config.source_location == str(project / "landing")
    assert config.warehouse_location == str(project / ".tidemark/warehouse")


def test_who_names_no_shard_means_the_only_one(load: Load) -> None:
    assert load().only_shard.name == "orders"
    other = "  - name: other\n    schema: id INT\n    keys: [id]\n    route: {column: kind, equals: other}\n"
    two = load(("    keys: [id]\n", "    keys: [id]\n    route: {column: kind, equals: order}\n"), add=other)
    with pytest.raises(InvalidUsage) as refused:
        _ = two.only_shard
    assert "choose one: orders, other" in str(refused.value)


def test_several_mistakes_are_all_listed_each_with_its_line_and_path(problems: Problems) -> None:
    found = problems(
        ("name: orders\nsource", "name: Orders!\nschedul: '@daily'\nsource"),
        ("format: json", "format: jsn\n  settle_seconds: '5'"),
        ("    keys: [id]", "    keys: id\n    on_eror: fail\n    lateness: -1"),
    )
    assert [(p.line, p.column, p.path) for p in found] == [
        (1, 7, "name"),
        (2, 1, "schedul"),
        (6, 11, "source.format"),
        (7, 19, "source.settle_seconds"),
        (11, 11, "shards[0].keys"),
        (12, 5, "shards[0].on_eror"),
        (13, 15, "shards[0].lateness"),
    ]
    hints = {p.path: p.hint for p in found}
    assert hints["schedul"] == "did you mean 'schedule'?"
    assert hints["source.format"] == "did you mean 'json'?"
    assert hints["shards[0].on_eror"] == "did you mean 'on_error'?"
    assert all(Path(p.file).name == "p.yaml" for p in found)


def test_a_mistake_in_the_schema_is_shown_at_its_own_line_and_column(problems: Problems) -> None:
    block = "schema: |\n      id BIGINT NOT NULL,\n      v STRIN\n"
    [problem] = problems((GOOD[GOOD.index("schema:") : GOOD.index("    keys")], block))
    assert (problem.line, problem.column) == (10, 9)
    assert problem.hint == "did you mean 'STRING'?"
    [problem] = problems(("id BIGINT", "id BIGGINT"))
    assert (problem.line, problem.column) == (8, 16)


def test_a_mistake_in_the_defaults_is_reported_there_and_once(problems: Problems) -> None:
    two = "  - name: other\n    schema: id INT\n    keys: [id]\n"
    found = problems(add=two + "defaults:\n  on_error: never\n  publsh: manual\n")
    assert [(p.path, p.line) for p in found if p.path.startswith("defaults")] == [
        ("defaults.on_error", 14),
        ("defaults.publsh", 15),
    ]


RULES = [
    (("[id]", "[id, idd]"), "shards[0].keys[1]", "'idd' is not a column", "did you mean 'id'?"),
    (("[id]", "[id, id]"), "shards[0].keys[1]", "listed twice", ""),
    (("[id]", "[f]"), "shards[0].keys[0]", "of type DOUBLE", "NaN"),
    (("[id]", "[tags]"), "shards[0].keys[0]", "of type ARRAY", ""),
    (("[id]", "[]"), "shards[0].keys", "envelope upsert needs keys", ""),
    (("[id]", "[id]\n    lateness: 5"), "shards[0].lateness", "needs sequence_by", ""),
    (("[id]", "[id]\n    sequence_by: f"), "shards[0].sequence_by", "no usable order", ""),
    (("[id]", "[id]\n    sequence_by: id"), "shards[0].sequence_by", "also a key", ""),
    (("[id]", "[id]\n    sequence_by: sq"), "shards[0].sequence_by", "not a column", "'seq'"),
    (("[id]", "[id]\n    sequence_by: v\n    lateness: 5"), "shards[0].lateness", "in STRING", ""),
    (("[id]", "[id]\n    apply_as_deletes: v = 1"), "shards[0].apply_as_deletes", "is STRING", ""),
    (("[id]", "[id]\n    apply_as_deletes: v > 1"), "shards[0].apply_as_deletes", "not a condition", ""),
    (("[id]", "[id]\n    error_column: e"), "shards[0].error_column", "needs on_error: inline", ""),
    (("[id]", "[id]\n    masked: [vv]"), "shards[0].masked[0]", "not a column", ""),
    (("[id]", "[id]\n    publish: often"), "shards[0].publish", "not a publish policy", "manual"),
    (("[id]", "[id]\n    publish: {every_transactions: 0}"), "shards[0].publish.every_transactions", "1", ""),
    (("[id]", "[id]\n    route: {table: t}"), "shards[0].route.table", "name no table", ""),
    (("[id]", "[id]\n    route: {column: v}"), "shards[0].route", "needs one column", ""),
    (("name: orders\n    s", "name: quarantine\n    s"), "shards[0].name", "taken", ""),
    (("name: orders\n    s", "name: a/../b\n    s"), "shards[0].name", "not a name", ""),
    (("format: json", "format: csv"), "shards[0].schema", "nested columns: 'tags'", ""),
    (("format: json", "format: json\n  csv: {header: true}"), "source.csv", "csv options", ""),
    (("format: json", "format: json\n  pattern: ../*"), "source.pattern", "not a file pattern", ""),
    (("format: json", "format: json\n  ready_marker: a/b"), "source.ready_marker", "marker", ""),
    (("type: files", "type: kafak"), "source.type", "'kafak' is not 'files', 'kafka' or 'postgres'", ""),
    (("source:", "envelope: append\nsource:"), None, "", ""),
    (("source:", "schedule: '61 * * * *'\nsource:"), "schedule", "not a cron minute", ""),
    (("source:", "schedule: daily\nsource:"), "schedule", "not a schedule", "@daily"),
    (("source:", "generation: -1\nsource:"), "generation", "greater than or equal to 0", ""),
    (("source:", "generation: yes\nsource:"), "generation", "expected an integer, found 'yes'", ""),
    (
        ("source:", "transaction: {max_files: 100001}\nsource:"),
        "transaction.max_files",
        "less than or equal to 100000",
        "",
    ),
    (
        ("source:", "transaction: {max_file: 3}\nsource:"),
        "transaction.max_file",
        "unknown key",
        "'max_files'",
    ),
]


@pytest.mark.parametrize(("pair", "path", "fact", "hint"), RULES, ids=[str(r[0][1])[:40] for r in RULES])
def test_a_setting_that_cannot_work_is_refused_at_definition(
    pair: tuple[str, str], path: str | None, fact: str, hint: str, load: Load, problems: Problems
) -> None:
    """Invariant 14."""
    if path is None:
        assert load(pair)
        return
    [problem] = problems(pair)
    assert problem.path == path
    assert fact in problem.fact
    assert hint in problem.hint
    assert problem.line > 0


def test_e3_an_error_column_that_collides_with_a_data_column_is_refused(
    load: Load, problems: Problems
) -> None:
    [problem] = problems(("[id]", "[id]\n    on_error: inline\n    error_column: V"))
    assert (problem.path, problem.fact) == (
        "shards[0].error_column",
        "error column 'V' is also a data column",
    )
    [problem] = problems(("[id]", "[id]\n    on_error: inline"), ("v STRING", "v STRING NOT NULL"))
    assert "leave NULL in NOT NULL columns: 'v'" in problem.fact
    assert load(("[id]", "[id]\n    on_error: inline")).shards[0].error_column == "_error"


@pytest.mark.parametrize(
    ("envelope", "setting", "fact"),
    [
        ("append", "sequence_by: seq", "keeps every record"),
        ("append", "apply_as_deletes: v = 'x'", "needs envelope upsert"),
        ("debezium", "apply_as_deletes: v = 'x'", "debezium marks its own deletions"),
        ("debezium", "route: {column: v, equals: x}", "routed by their table"),
    ],
)
def test_settings_that_an_envelope_has_no_use_for_are_refused(
    envelope: str, setting: str, fact: str, problems: Problems
) -> None:
    [problem] = problems(("source:", f"envelope: {envelope}\nsource:"), ("[id]", f"[id]\n    {setting}"))
    assert fact in problem.fact


def test_routes_must_send_each_record_to_one_shard(load: Load, problems: Problems) -> None:
    def shard(name: str, route: str) -> str:
        return f"  - name: {name}\n    schema: id INT, v STRING\n    keys: [id]\n{route}"

    assert load(
        ("[id]", "[id]\n    route: {column: kind, equals: 1}"),
        add=shard("b", "    route: {column: kind, equals: true}\n"),
    )
    missing = problems(add=shard("b", ""))
    assert [p.path for p in missing] == ["shards[0].route", "shards[1].route"]
    [same] = problems(
        ("[id]", "[id]\n    route: {column: kind, equals: a}"),
        add=shard("b", "    route: {column: kind, equals: a}\n"),
    )
    assert "takes the same records" in same.fact
    [other] = problems(
        ("[id]", "[id]\n    route: {column: kind, equals: a}"),
        add=shard("b", "    route: {column: sort, equals: b}\n"),
    )
    assert "different columns" in other.fact
    [overlap] = problems(
        ("source:", "envelope: debezium\nsource:"),
        ("[id]", "[id]\n    route: {table: public.orders}"),
        add=shard("b", "    route: {table: orders}\n"),
    )
    assert "takes the same records" in overlap.fact


def test_expectations_are_known_and_name_known_columns(load: Load, problems: Problems) -> None:
    check = "[id]\n    expectations:\n    - type: {}\n      kwargs: {{column: {}, value_set: [a, b]}}"
    good = load(("[id]", check.format("expect_column_values_to_be_in_set", "v")))
    assert good.shards[0].expectations[0].kwargs == {"column": "v", "value_set": ["a", "b"]}
    [problem] = problems(("[id]", check.format("expect_column_values_to_be_in_sets", "v")))
    assert problem.hint == "did you mean 'expect_column_values_to_be_in_set'?"
    [problem] = problems(("[id]", check.format("expect_column_values_to_be_in_set", "w")))
    assert problem.path == "shards[0].expectations[0].kwargs"
    [problem] = problems(("[id]", check.format("unexpected_rows_expectation", "v")))
    assert "not a known expectation" in problem.fact


def test_every_known_expectation_exists_in_great_expectations() -> None:
    import importlib.util

    found = importlib.util.find_spec("great_expectations")
    assert found is not None
    assert found.submodule_search_locations
    core = Path(found.submodule_search_locations[0]) / "expectations" / "core"
    assert {path.stem for path in core.glob("expect_*.py")} >= KNOWN


TABLES = """\
name: shop
source: {type: files, path: landing, format: json}
envelope: debezium
defaults:
  keys: [id]
  publish: {every_transactions: 5}
  schema: id BIGINT NOT NULL, v STRING
tables:
  include: [public.a, public.b, public.tmp_c]
  exclude: ["*.tmp_*"]
  overrides:
    - match: "public.*"
      on_error: fail
    - match: public.b
      name: bees
      publish: manual
"""


def test_many_tables_take_few_lines(write: Callable[..., Path], problems: Problems) -> None:
    config = load_pipeline(write(TABLES))
    assert [shard.name for shard in config.shards] == ["public__a", "bees"]
    assert [shard.publish.every_transactions for shard in config.shards] == [5, None]
    assert [shard.on_error for shard in config.shards] == ["fail", "fail"]
    assert config.shard_for_table("public.b") is config.shards[1]
    assert config.shard_for_table("public.tmp_c") is None
    assert config.tables is not None
    assert config.tables.ignores("public.tmp_c")
    with pytest.raises(ConfigInvalid, match="can't list its tables"):
        load_pipeline(write(TABLES.replace("public.tmp_c]", '"public.x*"]')))
    with pytest.raises(ConfigInvalid, match=r"p\.yaml:8:13: tables\.include\[0\]\.schema: a required key"):
        load_pipeline(write(TABLES.replace("  schema: id BIGINT NOT NULL, v STRING\n", "")))


def test_settings_of_tables_are_the_settings_of_shards() -> None:
    assert set(ShardSettings.model_fields) == set(ShardConfig.model_fields) - {"name", "route"}


def test_the_recorded_copy_gives_the_same_configuration_again(
    write: Callable[..., Path], project: Path
) -> None:
    for text in (GOOD, TABLES, (ROOT / "include/pipelines/orders.yaml").read_text()):
        config = load_pipeline(write(text))
        copy = config.canonical_json()
        again = PipelineConfig.from_canonical_json(copy, root=project)
        assert again == config
        assert again.canonical_json() == copy
        assert str(project) not in copy
    with pytest.raises(InvalidUsage, match="recorded configuration can't be used"):
        PipelineConfig.from_canonical_json('{"name": "x"}')


def test_the_fingerprint_ignores_spelling_and_notices_meaning(load: Load) -> None:
    def fingerprint(*pairs: tuple[str, str]) -> str:
        return Configuration.of(load(*pairs).canonical_json()).fingerprint

    assert fingerprint() == fingerprint(
        ("schema: id BIGINT NOT NULL, v STRING", "schema: id  long not null,`v` string")
    )
    assert fingerprint() == fingerprint(("keys: [id]", "keys:\n      - id\n    on_error: quarantine"))
    assert fingerprint() != fingerprint(("v STRING", "v INT"))


ENVIRONMENTS = """\
environments:
  dev: {warehouse: build/dev}
  prod:
    warehouse: s3://lake/x/
    source: {path: /mnt/landing, settle_seconds: 60}
"""


def test_an_environment_overrides_warehouse_and_source(load: Load, problems: Problems, project: Path) -> None:
    prod = load(add=ENVIRONMENTS, environment="prod")
    assert (prod.source_location, prod.warehouse_location) == ("/mnt/landing", "s3a://lake/x")
    assert (prod.source.format, prod.source.settle_seconds) == ("json", 60)
    dev = load(add=ENVIRONMENTS, environment="dev")
    assert dev.warehouse_location == str(project / "build/dev")
    [problem] = problems(add=ENVIRONMENTS, environment="prd")
    assert (problem.path, problem.hint) == ("environments", "did you mean 'prod'?")
    [problem] = problems(add=ENVIRONMENTS + "    generation: 3\n", environment="dev")
    assert (problem.path, problem.line) == ("environments.prod.generation", 15)


def test_the_environment_can_come_from_outside(write: Callable[..., Path]) -> None:
    file = write(add=ENVIRONMENTS)
    assert load_pipeline(file, environ={"TIDEMARK_ENVIRONMENT": "prod"}).warehouse == "s3://lake/x/"
    chosen = load_pipeline(file, "prod", environ={"TIDEMARK_WAREHOUSE": "/lake"})
    assert chosen.warehouse_location == "/lake"
    with pytest.raises(ConfigInvalid, match=r"contains '\.\.'"):
        load_pipeline(file, environ={"TIDEMARK_WAREHOUSE": "/lake/../etc"})


@pytest.mark.parametrize(
    ("path", "fact"),
    [
        ("/etc", "is not relative"),
        ("../up", "contains '..'"),
        ("a/../../b", "contains '..'"),
        ("~/x", "home folder"),
        ("link/x", "is outside the root"),
        ("s3://bucket/x", "not"),
        ('"a\\0b"', "not a path"),
        ('"a\\nb"', "not a path"),
        ("x" * 5_000, "not a path"),
        ("''", "not a path"),
    ],
)
def test_paths_stay_inside_the_root(path: str, fact: str, problems: Problems, project: Path) -> None:
    (project / "link").symlink_to("/tmp")
    found = problems(("path: landing", f"path: {path}"))
    assert {p.path for p in found} == {"source.path"}
    assert any(fact in p.fact for p in found)
    assert all(len(str(p)) < 400 for p in found)


@pytest.mark.parametrize(
    "place", ["s3://key:secret@b/x", "s3://b/x?sig=abc", "http://b/x", "file:///etc", "abfss://c:p@a/x"]
)
def test_a_location_with_a_secret_or_an_unknown_store_is_refused(place: str, problems: Problems) -> None:
    in_block = problems(add=f"environments:\n  prod: {{warehouse: '{place}'}}\n", environment="prod")
    in_file = problems(add=f"warehouse: '{place}'\n")
    for found in (in_block, in_file):
        assert found
        assert not any("key:" in p.fact or "sig=" in p.fact or ":p@" in p.fact for p in found)


def test_a_symlink_made_after_loading_is_noticed_when_the_place_is_used(load: Load, project: Path) -> None:
    config = load()
    (project / "landing").symlink_to("/tmp")
    with pytest.raises(InvalidUsage, match="is outside the root"):
        _ = config.source_location


@pytest.mark.parametrize(
    ("schedule", "field"),
    [
        ("JAN * * * *", "minute"),
        ("0 MON * * *", "hour"),
        ("0 0 JAN * *", "day"),
        ("0 0 * MON *", "month"),
        ("* * * * MON-JAN", "weekday"),
        ("* * * * JAN", "weekday"),
    ],
)
def test_regression_names_in_a_field_of_another_kind_are_no_schedule(
    schedule: str, field: str, problems: Problems
) -> None:
    [problem] = problems(("source:", f"schedule: '{schedule}'\nsource:"))
    assert (problem.path, f"is not a cron {field}" in problem.fact) == ("schedule", True)


@pytest.mark.parametrize("schedule", ["0 0 * JAN,jul *", "0 0 * NOV-FEB MON-FRI", "*/5 * * 1-MAR/2 sun"])
def test_months_and_weekdays_may_be_named(schedule: str, load: Load) -> None:
    assert load(("source:", f"schedule: '{schedule}'\nsource:")).schedule == schedule


@pytest.mark.parametrize("python_tells", [True, False])
def test_regression_symlinks_in_a_circle_are_a_problem_and_no_traceback(
    python_tells: bool, problems: Problems, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "landing").symlink_to("other")
    (project / "other").symlink_to("landing")
    if not python_tells:
        monkeypatch.setattr(Path, "resolve", Path.absolute)
    [problem] = problems()
    assert (problem.path, problem.line) == ("source.path", 4)
    assert problem.fact == "the symlinks of 'landing' form a loop"


def test_a_broken_file_leaves_the_others_alive(write: Callable[..., Path], project: Path) -> None:
    write(name="good.yaml")
    write(name="broken.yml", text="name: [")
    write(name="worse.yaml", text="- 1\n")
    write(name="twin_a.yaml", text=GOOD.replace("name: orders\nsource", "name: twin\nsource"))
    write(name="twin_b.yaml", text=GOOD.replace("name: orders\nsource", "name: twin\nsource"))
    write(name="notes.txt", text="x")
    loaded = load_pipelines(project / "include" / "pipelines")
    assert set(loaded.pipelines) == {"good.yaml"}
    assert set(loaded.errors) == {"broken.yml", "worse.yaml", "twin_a.yaml", "twin_b.yaml"}
    assert "also defined by twin_b.yaml" in str(loaded.errors["twin_a.yaml"])


def test_a_missing_file_is_one_clear_problem(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="can't be read, no such file") as caught:
        load_pipeline(tmp_path / "no.yaml")
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - Airflow pickles what a task raises
    assert copied.problems == caught.value.problems


def test_the_examples_are_valid_in_every_environment() -> None:
    from tidemark.config import environments_of

    files = sorted((ROOT / "include" / "pipelines").glob("*.yaml"))
    assert files
    for file in files:
        for environment in (None, *environments_of(file)):
            assert load_pipeline(file, environment)


def test_importing_and_loading_loads_no_engine(write: Callable[..., Path]) -> None:
    """What DAG parsing pays for; `python -m bench.start` measures it."""
    code = (
        f"import sys\nfrom tidemark.config import load_pipeline\nload_pipeline({str(write())!r})\n"
        "print(*{'pyspark', 'deltalake', 'pyarrow', 'airflow', 'great_expectations'} & set(sys.modules))\n"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.split() == []


def test_every_setting_of_retention_is_asked_by_somebody() -> None:
    code = "".join(
        file.read_text(encoding="utf-8")
        for file in (Path(__file__).parents[2] / "include" / "tidemark").rglob("*.py")
    )
    assert [name for name in Retention.model_fields if f"retention.{name}" not in code] == []
