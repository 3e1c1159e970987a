"""A good pipeline file that tests break in one place."""

from __future__ import annotations

GOOD = """\
name: orders
source:
  type: files
  path: landing
  format: json
shards:
  - name: orders
    schema: id BIGINT NOT NULL, v STRING, seq BIGINT, at TIMESTAMP, f DOUBLE, tags ARRAY<STRING>
    keys: [id]
"""
