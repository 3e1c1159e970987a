"""SCRAM over TLS against a real broker: both clients get in by it, or one error says why not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.support.certificates import Authority
from tests.support.kafka import PASSWORD, USER, Broker
from tests.support.kafka_pipeline import Rig, kv
from tidemark.app.deployment import new_token
from tidemark.core.errors import InvalidUsage
from tidemark.sources.kafka.cluster import Cluster
from tidemark.spark.inputs import input_of

pytestmark = [pytest.mark.spark, pytest.mark.server]

WRONG = "not-the-word-4711"
SECONDS_MAX = 180


def scrammed(broker: Broker, **more: str) -> dict[str, str]:
    """A connection's settings, with those of `more`, whose names have `_` for `.`."""
    return {
        "bootstrap.servers": broker.scrammed,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": broker.authority.file,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Writes the connection as Airflow gives it to a task."""

    def written(settings: dict[str, str]) -> None:
        text = json.dumps({"conn_type": "kafka", "extra": settings})
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SCRAMMED", text)

    return written


def command_lines() -> str:
    return "\n".join(" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_topic_is_read_and_its_group_is_set_and_no_secret_is_written(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    connect: Callable[[dict[str, str]], None],
    capfd: pytest.CaptureFixture[str],
    mechanism: str,
) -> None:
    """The second one shows a certificate of its own too."""
    settings = scrammed(broker, sasl_mechanism=mechanism)
    secrets = [PASSWORD]
    if mechanism == "SCRAM-SHA-512":
        certificate, key = broker.authority.sign("client")
        settings |= {"ssl.certificate.location": certificate, "ssl.key.location": key}
        secrets.append(Path(key).read_text().splitlines()[1])
    connect(settings)
    topic = broker.make(f"orders-{mechanism.lower()}")
    broker.send(topic, [kv("a", "1"), kv("b", "2"), kv("a", "3")])
    rig = Rig(spark, tmp_path, broker, topic, source={"kafka_config_id": "kafka_scrammed"})
    rig.run()
    assert rig.table() == {"a": "3", "b": "2"}
    assert rig.committed() == {f"{topic}-0": 3}
    bound = input_of(rig.config, rig.bindings()[0], today=rig.config)
    bound.read(spark, rig.config, bound.form(rig.config), cores=1).explain(extended=True)
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    said = "".join(capfd.readouterr()) + command_lines()
    assert files
    for secret in secrets:
        assert secret not in said
        assert not any(secret.encode() in content for content in files)


def test_a_wrong_password_and_an_unknown_authority_are_one_clear_error_each(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    connect: Callable[[dict[str, str]], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Of the client that binds and of the one that reads: nothing is written, and nothing secret is said."""
    rig = Rig(spark, tmp_path, broker, broker.make("refused"), source={"kafka_config_id": "kafka_scrammed"})
    broker.send("refused", [kv("a", "1")])
    other = Authority.make(tmp_path / "other")
    password, authority = scrammed(broker, sasl_password=WRONG), scrammed(broker, ssl_ca_location=other.file)
    for settings, fact in (
        (password, r"refuses the credentials: .*SCRAM-SHA-512.*: check user, password"),
        (authority, r"do not trust each other.*certificate verify failed.*: check that ssl\.ca\.location"),
    ):
        connect(settings)
        refused(rig.run, fact)
        assert (rig.bindings(), rig.seals()) == ([], [])
    connect(scrammed(broker))
    rig.run()
    (binding,), parts = rig.bindings(), sorted(tmp_path.rglob("*.parquet"))
    for settings, fact in (
        (password, r"refuses the credentials of Spark's reader .*SCRAM-SHA-512: check user, password"),
        (
            authority,
            r"Spark's reader and kafka do not trust each other.*handshake failed .*: set ssl.ca.location",
        ),
    ):
        connect(settings)
        refused(lambda: rig.opened().plane().stage(binding, new_token()), fact)
        assert sorted(tmp_path.rglob("*.parquet")) == parts
    said = "".join(capfd.readouterr())
    assert WRONG not in said
    assert PASSWORD not in said


def refused(work: Callable[[], object], fact: str) -> None:
    """One error that no retry mends, in time, without the password."""
    begun = time.monotonic()
    with pytest.raises(InvalidUsage, match=fact) as error:
        work()
    assert time.monotonic() - begun < SECONDS_MAX
    assert WRONG not in str(error.value)


@pytest.mark.parametrize("foreign", ["certificate", "name"])
def test_tls_that_fails_is_told_apart_from_credentials(broker: Broker, tmp_path: Path, foreign: str) -> None:
    """A certificate of the client's that the broker does not take; an address that its own does not name."""
    settings = scrammed(broker)
    if foreign == "certificate":
        certificate, key = Authority.make(tmp_path).sign("client")
        settings |= {"ssl.certificate.location": certificate, "ssl.key.location": key}
    else:
        settings["bootstrap.servers"] = broker.scrammed.replace("127.0.0.1", "localhost")
    with pytest.raises(
        InvalidUsage, match=r"and this client do not trust each other: .*: check that ssl\.ca\.location"
    ):
        Cluster(lambda: settings).describe(["t"])


def test_regression_setting_a_groups_offsets_ends_in_time(broker: Broker) -> None:
    """It waited for 45 s, whatever time the other calls are given; they need some, to be refused."""
    cluster = Cluster(lambda: scrammed(broker, sasl_password=WRONG), wait_seconds_max=5)
    begun = time.monotonic()
    with pytest.raises(InvalidUsage, match="refuses the credentials"):
        cluster.commit("g", {"t-0": 1})
    assert time.monotonic() - begun < 40
