"""Everything that tests share: where a Spark, a Kafka, a PostgreSQL, an Airflow or a worker comes from.

Fixtures, each started once per test process when a test first asks for it: `cluster` and `stack` in the
`conftest.py` of the folder that they end with, all others in `fixtures.py`.

| fixture | gives | made by |
| --- | --- | --- |
| `spark` | a classic session on two cores, with Delta | `spark.py` |
| `connect_server` | a Spark Connect server of one core, in a process of its own | `spark.py` |
| `cluster` | a standalone Spark cluster on loopback, whose executors have no Python | `cluster.py` |
| `broker` | a Kafka broker on loopback | `kafka.py` |
| `postgres` | a PostgreSQL server on loopback; `database` is a new database on it | `postgres.py` |
| `s3` | an object store on loopback | `s3.py` |
| `stack` | Airflow's scheduler, API server and triggerer, with pipelines and a warm Spark | `airflow.py` |

Pipelines to put under test:

| module | what it is |
| --- | --- |
| `memory.py` | any number of processes on one warehouse in memory, with scripted faults |
| `light.py` | a data plane without an engine, on real files; `shelf.py` is a log written with it |
| `ingest.py`, `state.py` | one shard's ingest, or its state, on a real Spark |
| `deployed.py` | a whole pipeline on a folder of files, on a real Spark |
| `kafka_pipeline.py`, `postgres_pipeline.py` | a whole pipeline on a topic, or on a database |

Processes: `workers.py` forks workers that may be killed, `steps.py` names their durable steps and kills them
at one, `jvm.py` is a JVM that outlives its clients. `tables.py` reads tables without the code that wrote
them, `waiting.py` waits for conditions, `scratch.py` says where files lie.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The project's folder."""
