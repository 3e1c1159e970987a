"""What the recorded connectors saw: tables of many types, their first rows, and changes of every kind.

The rows that are left at the end are written out by hand in the test that reads the recordings.
"""

from __future__ import annotations

TABLES = """
CREATE SCHEMA shop;
CREATE TABLE shop.items (
    id int PRIMARY KEY, title text NOT NULL, price numeric(12,2), big numeric(38,10), free numeric,
    at timestamp, at_ms timestamp(3), zoned timestamptz, day date, clock time, doc jsonb, ref uuid, raw bytea,
    tags text[], counts int[], sums numeric(5,2)[], days date[], stamps timestamp[], moments timestamptz[],
    flag bool DEFAULT true, amount float8, long bigint, small smallint
);
ALTER TABLE shop.items REPLICA IDENTITY FULL;
CREATE TABLE shop.parts (
    item int, code uuid, day date, name text NOT NULL, weight numeric(12,2), PRIMARY KEY (item, code, day)
);
-- Big values of this table lie outside of its rows, and an update that leaves them alone does not send them.
CREATE TABLE shop.notes (
    id int PRIMARY KEY, title text, body text, doc jsonb, raw bytea, tags text[], refs uuid[], flags bool[],
    shorts smallint[], counts int[], longs bigint[], floats real[], doubles float8[], sums numeric(5,2)[],
    days date[], stamps timestamp[], moments timestamptz[]
) WITH (toast_tuple_target = 128);
DO $$
DECLARE name text;
BEGIN
    FOR name IN SELECT attname FROM pg_attribute
        WHERE attrelid = 'shop.notes'::regclass AND attnum > 2 AND attstorage = 'x'
    LOOP EXECUTE format('ALTER TABLE shop.notes ALTER %I SET STORAGE EXTERNAL', name); END LOOP;
END $$;
CREATE TABLE shop.odds (id int PRIMARY KEY, at timestamp, zoned timestamptz, day date);
ALTER TABLE shop.odds REPLICA IDENTITY FULL;
CREATE TABLE shop.scraps (id int PRIMARY KEY, name text);
CREATE TABLE shop.ends (id int PRIMARY KEY);
"""

FULL = r"""
    '%s', 1234.56, 1234567890123456789012345678.0123456789, 0.000001, '2018-06-20 15:13:16.945104',
    '2018-06-20 15:13:16.945', '2020-02-29 10:00:00.123456+05:30', '2024-02-29', '23:59:59.999999',
    '{"k": [1, null, "x"], "n": 1.50}', '0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9', '\x00ff10',
    ARRAY['a,b', NULL, '', 'q"\'], '{1,NULL,-3}', '{1.10,NULL,-999.99}', '{2024-02-29,NULL,1969-12-31}',
    ARRAY['2018-06-20 15:13:16.945104'::timestamp], ARRAY['2020-02-29 10:00:00.123456+05:30'::timestamptz],
    false, 0.1, 9223372036854775807, -32768
"""
NEGATIVE = r"""
    E'tab\t "quoted" \\ line\nä€😀', -0.01, -9999999999999999999999999999.9999999999, -1e20,
    '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999', '1900-01-01 00:00:00+00', '1582-10-04', '00:00',
    '"text"', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '', '{}', '{}', '{0.00}', '{}', '{}', '{}',
    true, -2.2250738585072014e-308, -9223372036854775808, 32767
"""
NULLS = ", ".join(["NULL"] * 21)
BIG = """
    repeat('b', 300), jsonb_build_object('k', repeat('j', 300)), decode(repeat('ab', 300), 'hex'),
    array_fill('t'::text, ARRAY[40]), array_fill('0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9'::uuid, ARRAY[15]),
    array_fill(true, ARRAY[250]), array_fill(5::smallint, ARRAY[80]), array_fill(7, ARRAY[50]),
    array_fill(8::bigint, ARRAY[30]), array_fill(0.5::real, ARRAY[50]), array_fill(0.1::float8, ARRAY[30]),
    array_fill(1.25, ARRAY[20]), array_fill('2024-02-29'::date, ARRAY[50]),
    array_fill('2018-06-20 15:13:16.945'::timestamp, ARRAY[30]),
    array_fill('2020-02-29 04:30:00.123456+00'::timestamptz, ARRAY[30])
"""
CODE = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"

FIRST_ROWS = f"""
INSERT INTO shop.items VALUES (1, {FULL % "first"}), (2, 'second', {NULLS}), (3, {FULL % "third"});
INSERT INTO shop.parts VALUES (1, '{CODE}', '2024-02-29', 'lid', 0.50), (1, '{CODE}', '2024-03-01', 'cap', 1);
INSERT INTO shop.notes VALUES (1, 'one', {BIG});
INSERT INTO shop.scraps VALUES (1, 'gone soon');
"""

CHANGES = f"""
INSERT INTO shop.items VALUES (4, {NEGATIVE});
UPDATE shop.items SET price = 99.90, at = '2024-12-31 23:59:59.5', doc = '[]', tags = NULL WHERE id = 1;
UPDATE shop.items SET (price, big, free, at, at_ms, zoned, day, clock, doc, ref, raw, tags, counts, sums,
    days, stamps, moments, flag, amount, long, small) = ROW ({NULLS}) WHERE id = 3;
DELETE FROM shop.items WHERE id = 2;
INSERT INTO shop.items VALUES (5, {FULL % "fifth"});
UPDATE shop.items SET id = 50, title = 'fiftieth' WHERE id = 5;
BEGIN;
INSERT INTO shop.items VALUES (6, {FULL % "sixth"});
INSERT INTO shop.parts VALUES (6, '{CODE}', '0001-01-01', 'rim', -0.01);
UPDATE shop.parts SET weight = 12.34 WHERE item = 1 AND day = '2024-02-29';
UPDATE shop.items SET price = 0 WHERE id = 6;
COMMIT;
BEGIN;
INSERT INTO shop.items VALUES (7, {FULL % "rolled back"});
DELETE FROM shop.parts;
ROLLBACK;
DELETE FROM shop.parts WHERE day = '2024-03-01';
UPDATE shop.parts SET day = '9999-12-31' WHERE day = '0001-01-01';
INSERT INTO shop.items VALUES (2, {FULL % "second again"});
INSERT INTO shop.notes VALUES (2, 'two', {BIG}), (3, 'three', {BIG}), (4, 'four', {BIG});
UPDATE shop.notes SET id = 40, body = 'short', doc = '{{}}', raw = 'r', tags = '{{t}}', refs = '{{}}',
    counts = '{{1}}', longs = '{{2}}', days = '{{}}' WHERE id = 4;
UPDATE shop.notes SET title = 'uno' WHERE id = 1;
UPDATE shop.notes SET (body, doc, raw, tags, refs, flags, shorts, counts, longs, floats, doubles, sums,
    days, stamps, moments) = ROW (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL) WHERE id = 3;
UPDATE shop.notes SET body = 'short', doc = '{{}}', raw = 'r', tags = '{{t}}', refs = '{{}}', flags = '{{t}}',
    shorts = '{{1}}', longs = '{{2}}', floats = '{{0.5}}', doubles = '{{0.1}}', sums = '{{1}}', days = '{{}}',
    stamps = '{{}}', moments = '{{}}' WHERE id = 2;
INSERT INTO shop.odds VALUES (1, '2024-02-29', '2024-02-29 00:00+00', '2024-02-29');
INSERT INTO shop.odds VALUES (2, 'infinity', NULL, NULL), (3, NULL, '-infinity', NULL);
INSERT INTO shop.odds VALUES (4, NULL, NULL, 'infinity');
INSERT INTO shop.odds VALUES (5, '0044-03-15 12:00 BC', NULL, NULL), (6, NULL, NULL, '0044-03-15 BC');
INSERT INTO shop.odds VALUES (7, '0001-01-01', '0001-01-01 00:00+00', '0001-01-01');
INSERT INTO shop.odds VALUES (8, '9999-12-31 23:59:59.999999', '9999-12-31 23:59:59.999999+00', '9999-12-31');
INSERT INTO shop.odds VALUES (9, '2024-02-29', NULL, NULL);
UPDATE shop.odds SET at = 'infinity' WHERE id = 9;
DELETE FROM shop.odds WHERE id = 9;
TRUNCATE shop.scraps;
INSERT INTO shop.scraps VALUES (2, 'after');
"""
