"""`schema: from_source`: the database says what its tables are, once, and from then on it is on record."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tests.support.postgres_pipeline import CONN_ID, Rig, attempt
from tidemark.app.deployment import Deployment, discovered
from tidemark.app.generation import Generations
from tidemark.app.tasks import no_session, open_pipeline
from tidemark.app.views import View, read
from tidemark.cli.app import app
from tidemark.config import ConfigInvalid, PipelineConfig, load_pipeline
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import Txn
from tidemark.pipeline.context import binding_at
from tidemark.pipeline.decide import skip
from tidemark.pipeline.reclock import mint
from tidemark.pipeline.run import run

pytestmark = pytest.mark.server
MakeRig = Callable[..., Rig]
ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, total numeric(8,2), at timestamptz)"
LINES = 'CREATE TABLE lines ("of" int, number int2, what text, PRIMARY KEY ("of", number))'


class Described:
    """A pipeline on every table of a publication, in a file of a few lines."""

    def __init__(self, works: Rig, spark: SparkSession | None = None, **tables: Any) -> None:
        self.works, self.spark = works, spark
        self.file = works.root / "p.yaml"
        self.write(**tables)

    def write(self, more: dict[str, Any] | None = None, **tables: Any) -> None:
        source = {"type": "postgres", "postgres_conn_id": CONN_ID, "slot": self.works.database}
        settings = {
            "name": "p", "envelope": "debezium", "source": {**source, "publication": "p"}, "warehouse": "wh",
            "defaults": {"schema": "from_source"}, "tables": {"include": ["public.*"], **tables},
            **(more or {}),
        }  # fmt: skip
        self.file.write_text(yaml.safe_dump(settings))

    def ready(self, *tables: str) -> None:
        self.works.sql(*tables, "CREATE PUBLICATION p FOR ALL TABLES")
        self.works.sql(
            *[f"ALTER TABLE {name} REPLICA IDENTITY FULL" for (name,) in self.works.sql(
                "SELECT format('%I', relname) FROM pg_class WHERE relkind = 'r'"
                " AND relnamespace = 'public'::regnamespace"
            )],
            f"SELECT pg_create_logical_replication_slot('{self.works.database}', 'pgoutput')",
        )  # fmt: skip

    def config(self) -> PipelineConfig:
        """As every step but the binding one has it: the database is not asked."""
        return load_pipeline(self.file, root=self.works.root)

    def begun(self) -> Deployment:
        return Deployment(discovered(self.config()), lambda: self.spark or no_session())

    def bind(self) -> list[tuple[Any, ...]]:
        deployment = self.begun()
        owned = mint(deployment.pipeline, attempt())
        return self.works.changes(*[binding_at(deployment.pipeline, txn) for txn in owned.txns])


@pytest.fixture
def described(rig: MakeRig) -> Described:
    works = Described(rig())
    works.ready(ORDERS, LINES)
    return works


def test_the_tables_of_a_publication_become_shards_with_the_databases_own_columns_and_keys(
    described: Described,
) -> None:
    assert described.config().shards == ()
    described.works.sql("INSERT INTO orders VALUES (1, 2.5, '2024-01-01Z')")
    assert described.bind() == [("orders", "c", (1, "2.50", "2024-01-01T00:00:00Z"))]
    found = {shard.name: (shard.columns.ddl, shard.keys) for shard in described.config().shards}
    assert found == {
        "public__lines": ("`of` INT NOT NULL, `number` SMALLINT NOT NULL, `what` STRING", ("of", "number")),
        "public__orders": ("`id` INT NOT NULL, `total` DECIMAL(8,2), `at` TIMESTAMP", ("id",)),
    }


def test_p10_the_binding_has_the_whole_configuration_so_a_replay_needs_no_database(
    described: Described,
) -> None:
    described.works.sql("INSERT INTO orders VALUES (1, 2.5, NULL)")
    described.bind()
    recorded = binding_at(described.begun().pipeline, 1).configuration.text  # type: ignore[arg-type]
    assert PipelineConfig.from_canonical_json(recorded, root=described.works.root) == described.config()
    assert len(json.loads(recorded)["shards"]) == 2


def test_settings_by_pattern_go_over_what_the_source_tells(described: Described) -> None:
    described.write(
        exclude=["*.lines"], overrides=[{"match": "public.orders", "name": "sales", "masked": ["total"]}]
    )
    described.bind()
    [shard] = described.config().shards
    assert (shard.name, shard.masked, shard.keys) == ("sales", ("total",), ("id",))
    described.write(overrides=[{"match": "*", "masked": ["total"]}])
    with pytest.raises(InvalidUsage, match=r"table public\.lines: 'total' is not a column"):
        described.bind()


def test_a_table_that_is_made_later_is_taken_in_by_the_next_run(described: Described) -> None:
    described.bind()
    works = described.works
    works.sql("CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1)")
    works.sql("INSERT INTO orders VALUES (5, NULL, NULL)")
    assert sorted(described.bind()) == [("late", "c", (1,)), ("orders", "c", (5, None, None))]
    assert [shard.name for shard in described.config().shards] == [
        "public__late", "public__lines", "public__orders",
    ]  # fmt: skip


def test_only_who_binds_asks_the_database(described: Described, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_pipeline(described.file, None).shards == ()
    assert open_pipeline(described.file, None, binds=True).shards == ("public__lines", "public__orders")
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", "postgres://nobody:x@127.0.0.1:1/none")
    assert open_pipeline(described.file, None).shards == ("public__lines", "public__orders")
    with pytest.raises(Determinate, match="connection"):
        open_pipeline(described.file, None, binds=True)


def test_a_run_that_opened_before_another_took_a_table_in_is_told_to_run_again(described: Described) -> None:
    described.bind()
    early = described.begun()
    described.works.sql("CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1)")
    described.bind()
    with pytest.raises(Determinate, match=r"added tables meanwhile: public\.late"):
        mint(early.pipeline, attempt())


def test_e4_a_column_that_is_added_is_refused_by_name_and_taken_into_another_shard(
    described: Described,
) -> None:
    works = described.works
    described.bind()
    works.sql("INSERT INTO orders VALUES (1, 1, NULL)", "ALTER TABLE orders ADD note text")
    works.sql("INSERT INTO orders VALUES (2, 2, NULL, 'n')")
    assert described.bind() == [("orders", "c", (1, "1.00", None))]
    with pytest.raises(InvalidUsage, match=r"table public\.orders: column 'note' is not declared") as refused:
        described.bind()
    assert "set on_schema_change: add_columns" in refused.value.hint
    described.write(overrides=[{"match": "public.orders", "name": "orders_2"}])
    with pytest.raises(InvalidUsage, match="this is generation 0 with another shard for it"):
        described.bind()
    described.write({"generation": 1}, overrides=[{"match": "public.orders", "name": "orders_2"}])
    assert sorted(described.bind()) == [
        ("orders", "c", (1, "1.00", None, None)), ("orders", "c", (2, "2.00", None, "n")),
    ]  # fmt: skip
    works.sql("UPDATE orders SET note = 'm' WHERE id = 1")
    assert described.bind() == [("orders", "c", (1, "1.00", None, "m"))]
    assert [shard.name for shard in described.config().shards] == ["orders_2", "public__lines"]


def test_e4_a_column_that_is_added_is_taken_in_where_columns_may_be(described: Described) -> None:
    described.write(overrides=[{"match": "*", "on_schema_change": "add_columns"}])
    described.bind()
    added = "ALTER TABLE orders ADD note text NOT NULL DEFAULT ''"
    described.works.sql("INSERT INTO orders VALUES (1, 1, NULL)", added)
    described.works.sql("INSERT INTO orders VALUES (2, 2, NULL, 'n')")
    (first, second) = [*described.bind(), *described.bind()]
    assert first[2][:3] == (1, "1.00", None)
    assert second == ("orders", "c", (2, "2.00", None, "n"))
    (orders,) = [shard for shard in described.config().shards if shard.name == "public__orders"]
    assert orders.columns.ddl == "`id` INT NOT NULL, `total` DECIMAL(8,2), `at` TIMESTAMP, `note` STRING"
    assert described.bind() == []


def test_what_the_tables_get_while_a_generation_is_proposed_is_taken_in_by_the_one_in_charge(
    described: Described,
) -> None:
    """The pipeline never has to wait for a candidate; the candidate lacks the column, and says so."""
    wider = {"match": "*", "on_schema_change": "add_columns"}
    described.write(overrides=[wider])
    described.works.sql("INSERT INTO orders VALUES (1, 1, NULL)")
    described.bind()
    skip(described.begun().pipeline, attempt(), Txn(1), reason="a seal without rows")
    described.write({"generation": 1}, overrides=[{**wider, "publish": {"every_transactions": 2}}])
    generations = Generations(described.begun())
    begun = generations.start(reason="fewer publishes", from_now=True)
    described.works.sql("ALTER TABLE orders ADD note text", "CREATE TABLE late (id int PRIMARY KEY)")
    described.works.sql("INSERT INTO orders VALUES (2, 2, NULL, 'n')", "INSERT INTO late VALUES (7)")
    changes = [*described.bind(), *described.bind()]
    assert sorted(changes) == [("late", "c", (7,)), ("orders", "c", (2, "2.00", None, "n"))]
    works = described.begun()
    upper = works.control.bindings.head().upper
    assert {one.configuration.generation for one in works.control.bindings.read(1, upper)} == {0}
    assert {shard.publish.every_transactions for shard in works.config.shards} == {1}
    with pytest.raises(InvalidUsage, match="the pipeline file is not the one that generation 1 was started"):
        Generations(works).pair(begun).promote(attempt())


def test_e4_a_column_of_another_type_and_another_key_are_refused_by_name(described: Described) -> None:
    described.bind()
    described.works.sql("ALTER TABLE orders ALTER total TYPE numeric(12,4)")
    with pytest.raises(InvalidUsage, match=r"'total' can't be read as DECIMAL\(8,2\) without loss"):
        described.bind()
    described.works.sql(
        "ALTER TABLE orders ALTER total TYPE numeric(8,2)", "ALTER TABLE lines DROP CONSTRAINT lines_pkey",
        'ALTER TABLE lines ADD PRIMARY KEY ("of")',
    )  # fmt: skip
    with pytest.raises(InvalidUsage, match=r"table public\.lines: the key is \(of, number\)"):
        described.bind()


def test_two_tables_that_would_go_to_one_shard_are_refused(described: Described) -> None:
    described.works.sql('CREATE TABLE "Orders" (id int PRIMARY KEY)')
    with pytest.raises(InvalidUsage, match="both map to shard public__orders"):
        described.bind()


def test_a_table_that_was_dropped_is_refused_by_name_until_it_is_excluded(described: Described) -> None:
    described.bind()
    described.works.sql("DROP TABLE lines")
    with pytest.raises(InvalidUsage, match=r"table public\.lines is not in publication"):
        described.bind()


@pytest.mark.parametrize(
    ("table", "fact"),
    [
        ("CREATE TABLE keyless (n int)", "table public.keyless has no primary key"),
        ('CREATE TABLE odd (id int PRIMARY KEY, "a b" int, a_b int)', "table public.odd: "),
        ("CREATE TABLE taken (id int PRIMARY KEY, _txn int)", "column name '_txn' is reserved"),
    ],
)
def test_a_table_that_no_shard_can_have_is_refused_by_name(
    described: Described, table: str, fact: str
) -> None:
    described.works.sql(table)
    with pytest.raises(InvalidUsage, match=r"tables\.exclude") as refused:
        described.bind()
    assert fact in refused.value.fact
    assert described.config().shards == ()


def test_source_check_looks_at_the_tables_and_records_nothing(described: Described) -> None:
    result = CliRunner().invoke(app, ["source", "check", str(described.file)], env={"COLUMNS": "200"})
    assert (result.exit_code, "all 2 can be captured" in result.output) == (0, True), result.output
    assert described.config().shards == ()


def test_what_only_a_database_can_tell_is_refused_for_others_and_for_declared_shards(tmp_path: Path) -> None:
    """Invariant 14."""
    file = tmp_path / "p.yaml"
    plain: dict[str, Any] = {
        "name": "p", "envelope": "debezium", "source": {"type": "files", "path": "in", "format": "json"},
        "defaults": {"schema": "from_source"}, "tables": {"include": ["public.a"]},
    }  # fmt: skip
    source = {"type": "postgres", "postgres_conn_id": "db", "slot": "p", "publication": "p"}
    shard = {"name": "a", "keys": ["id"], "route": {"table": "public.a"}}
    declared = {**shard, "schema": "id INT NOT NULL"}
    for settings, fact in [
        (plain, "a files source can't describe the columns of its tables"),
        ({**plain, "source": source, "defaults": {}, "tables": {"include": ["public.*"]}}, "have no schema"),
        ({**plain, "source": source, "shards": [shard]}, "from_source is for the tables of `tables`"),
        ({**plain, "source": source, "shards": [declared]}, "table public.a is taken by `tables` too"),
        ({**plain, "source": source, "tables": {"include": ["a"]}}, "has no schema before its name"),
    ]:
        file.write_text(yaml.safe_dump(settings))
        with pytest.raises(ConfigInvalid) as refused:
            load_pipeline(file, root=tmp_path)
        assert fact in str(refused.value)


def test_commands_work_before_the_first_run_and_a_damaged_record_is_named(described: Described) -> None:
    for command in ("check", "status"):
        result = CliRunner().invoke(app, [command, str(described.file)], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
    described.bind()
    result = CliRunner().invoke(app, ["check", str(described.file)], env={"COLUMNS": "200"})
    assert "public.*, as their source describes them; 2 on record" in result.output
    record = described.works.root / "wh" / "p" / "_captured" / "tables.json"
    record.write_text(record.read_text().replace("INT", "INTO"))
    with pytest.raises(ConfigInvalid, match=r"tables\.json can't be read"):
        described.config()


@pytest.mark.spark
@pytest.mark.slow
def test_m11_e4_rows_of_described_tables_arrive_and_those_of_changed_ones_in_a_wider_or_another_shard(
    rig: MakeRig, spark: SparkSession
) -> None:
    described = Described(rig(), spark)
    described.ready(ORDERS, LINES)
    works = described.works
    works.transaction("INSERT INTO orders VALUES (1, 9.5, NULL)", "INSERT INTO lines VALUES (1, 1, 'pen')")
    run(described.begun().pipeline, attempt())
    works.sql("ALTER TABLE lines ADD price numeric(6,2)", "INSERT INTO lines VALUES (1, 2, 'ink', 3.25)")
    works.sql("ALTER TABLE orders ADD note text", "INSERT INTO orders VALUES (2, 1.5, NULL, 'n')")
    wider = {"match": "public.orders", "on_schema_change": "add_columns"}
    described.write({"generation": 1}, overrides=[{"match": "public.lines", "name": "lines_2"}, wider])
    generations = Generations(described.begun())
    begun = generations.start(reason="another shard for lines", from_now=True)
    generations.pair(begun).promote(attempt())
    run(described.begun().pipeline, attempt())

    def rows(shard: str) -> list[tuple[Any, ...]]:
        deployment = Deployment(described.config(), lambda: spark)
        return sorted(tuple(row) for row in read(deployment, shard, view=View.FRESH).collect())

    assert rows("public__orders") == [(1, Decimal("9.50"), None, None), (2, Decimal("1.50"), None, "n")]
    assert rows("lines_2") == [(1, 1, "pen", None), (1, 2, "ink", Decimal("3.25"))]
