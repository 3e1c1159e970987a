"""A table with a column of every type, and a row of it that is hard to keep."""

from __future__ import annotations

TYPES = """
CREATE TABLE kinds (
    id uuid PRIMARY KEY, b bool, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, n numeric(38,10),
    free numeric, t text, v varchar(9), c char(3), d date, ts timestamp, tz timestamptz, j json, jb jsonb,
    raw bytea, ints int[], texts text[], grid int[][], times timestamptz[], sums numeric(5,2)[], flags bool[],
    span interval, clock time, address inet, mood mood, doubled int GENERATED ALWAYS AS (i2 * 2) STORED
)
"""
TYPES_SCHEMA = """
    id STRING NOT NULL, b BOOLEAN, i2 SMALLINT, i4 INT, i8 BIGINT, f4 FLOAT, f8 DOUBLE, n DECIMAL(38,10),
    free STRING, t STRING, v STRING, c STRING, d DATE, ts TIMESTAMP_NTZ, tz TIMESTAMP, j STRING, jb STRING,
    raw BINARY, ints ARRAY<INT>, texts ARRAY<STRING>, grid STRING, times ARRAY<TIMESTAMP>,
    sums ARRAY<DECIMAL(5,2)>, flags ARRAY<BOOLEAN>, span STRING, clock STRING, address STRING, mood STRING
"""
FULL_ROW = """
    true, -32768, -2147483648, -9223372036854775808, 0.1, 2.2250738585072014e-308,
    -1234567890123456789012345678.0123456789, 1e-300, E'tab\\t "quoted" \\\\ line\\nä€😀', '', 'ab',
    '0001-01-01', '1969-12-31 23:59:59.999999', '2024-03-31 02:30:00.000001+05:30',
    '{"a":  1.50, "a": 2}', '{"k": [1, null, "x"]}', '\\x00ff10', '{1,NULL,-3}',
    ARRAY['a,b', NULL, 'NULL', '', E'q"\\\\'], '{{1,2},{3,4}}',
    ARRAY['2024-01-01 00:00:00+00'::timestamptz], '{1.10,NULL}', '{t,f,NULL}',
    '1 year 2 mons 3 days 04:05:06.789', '23:59:59.999999', '10.0.0.1/8', 'wild'
"""
