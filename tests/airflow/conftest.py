"""What the Airflow tests share."""

from __future__ import annotations

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PIPELINE = """\
name: {name}
source: {{type: files, path: landing, format: json, settle_seconds: 0}}
warehouse: warehouse
schedule: null

shards:
  - name: orders
    schema: id BIGINT NOT NULL, status STRING, amount DOUBLE
    keys: [id]
    apply_as_deletes: op = 'D'
"""
