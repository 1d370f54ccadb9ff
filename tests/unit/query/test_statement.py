"""Tests of the check of a query, on DuckDB's own syntax trees: it reads tables, and nothing else."""

from __future__ import annotations

import duckdb
import pytest

from pyspark_tiered.query.statement import TableRef, apply_edits, check_query, find_edits, restore_names
from tiered.errors import Refused

COLUMNS = {"offset": False, "value": True, "key": True}


def serialize(text: str) -> str:
    found = duckdb.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone()
    assert found is not None
    return str(found[0])


def rewrite(text: str) -> str:
    parsed = check_query(serialize(text), ())
    return apply_edits(text, find_edits(parsed, dict.fromkeys(parsed.tables, COLUMNS)))


@pytest.mark.parametrize(
    "query",
    [
        "COPY t TO '/tmp/x'",
        "COPY t FROM '/tmp/x'",
        "EXPORT DATABASE '/tmp/x'",
        "ATTACH '/tmp/x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '1TB'",
        "PRAGMA database_list",
        "CREATE TABLE x AS SELECT 1",
        "CREATE SECRET (TYPE s3)",
        "INSERT INTO t VALUES (1)",
        "DELETE FROM t",
        "DROP VIEW t",
        "CALL pragma_version()",
        "EXPLAIN ANALYZE COPY t TO '/tmp/x'",
        "SELECT 1; SELECT 2",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_parquet('/etc/passwd')",
        "SELECT * FROM t, (SELECT * FROM read_text('/etc/passwd'))",
        "SELECT (SELECT content FROM read_blob('/etc/passwd'))",
        "WITH x AS (SELECT * FROM glob('/*')) SELECT * FROM x",
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM query_table('t')",
        "SELECT * FROM json_execute_serialized_sql('{}')",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM parquet_metadata('/x')",
        "SELECT current_setting('home_directory')",
        "SELECT write_log('x')",
        "SELECT finalize('x'::BLOB)",
        "SELECT __internal_decompress_string(1)",
        "SELECT sum(1) EXPORT_STATE",
        "SELECT 1 FROM t WHERE (SELECT max(current_setting('x'))) = 1",
        "SHOW TABLES",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM memory.main.t",
        "SELECT * FROM orders.eu",
        "SELECT * FROM t AT (VERSION => 3)",
        "SELECT * FROM T, t",
        "SELEC 1",
        "",
    ],
)
def test_query_that_does_more_than_read_tables_is_refused(query: str) -> None:
    with pytest.raises(Refused):
        check_query(serialize(query), ())


def test_query_names_its_tables() -> None:
    query = "WITH a AS (SELECT * FROM b), c AS (SELECT 1) SELECT * FROM a JOIN raw.d x USING (k) WHERE 1 IN (FROM e)"
    parsed = check_query(serialize(query), ())
    assert set(parsed.tables) == {TableRef("", "b"), TableRef("raw", "d"), TableRef("", "e")}
    assert parsed.perhaps == (TableRef("", "a"),)
    assert parsed.aliases["x"] == TableRef("raw", "d")
    shown = check_query(serialize("SUMMARIZE t"), ())
    assert shown.tables == (TableRef("", "t"),)


def field(column: str, pointer: str) -> str:
    return f"try(json_extract_string({column}, '{pointer}'))"


def test_field_of_json_is_text() -> None:
    assert rewrite("SELECT value.city FROM t") == f"""SELECT {field('"value"', "/city")} AS "city" FROM t"""
    assert rewrite("SELECT 'é', f.value.a.b[2].c x FROM t f") == (
        f"""SELECT 'é', {field('"f"."value"', "/a/b/1/c")} x FROM t f"""
    )
    assert rewrite("SELECT 1 FROM t WHERE value['x/y'] = 'z' GROUP BY value.\"a b\"") == (
        f"""SELECT 1 FROM t WHERE {field('"value"', "/x~1y")} = 'z' GROUP BY {field('"value"', "/a b")}"""
    )


def test_field_behind_the_name_of_a_subquery_is_read_too() -> None:
    text = field('"s"."value"', "/n")
    assert rewrite("SELECT s.value.n x FROM (SELECT * FROM t) s") == f"SELECT {text} x FROM (SELECT * FROM t) s"
    assert rewrite("WITH s AS (FROM t) SELECT s.value.n x FROM s") == f"WITH s AS (FROM t) SELECT {text} x FROM s"


@pytest.mark.parametrize(
    "condition",
    [
        "value.n > 3",
        "-1.5 < value.n",
        "value.n IN (1, 2)",
        "value.n BETWEEN 1 AND 2",
        "value.n + 1",
        "sum(value.n)",
        "avg(value.n) OVER ()",
    ],
)
def test_field_beside_a_number_is_a_double(condition: str) -> None:
    double = f"try_cast({field(chr(34) + 'value' + chr(34), '/n')} AS DOUBLE)"
    assert rewrite(f"SELECT {condition} AS x FROM t") == f"SELECT {condition.replace('value.n', double)} AS x FROM t"


@pytest.mark.parametrize(
    "condition", ["value.n > '3'", "value.n = 9007199254740993", "max(value.n)", "value.n::BIGINT", "value.n = f.key"]
)
def test_field_that_a_double_would_falsify_stays_text(condition: str) -> None:
    text = field('"value"', "/n")
    assert rewrite(f"SELECT {condition} AS x FROM t f") == f"SELECT {condition.replace('value.n', text)} AS x FROM t f"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT t.offset, value, key FROM t",
        "SELECT value.offset FROM t AS value",
        "SELECT x.other.a FROM (SELECT 1 AS other) x, t",
        "SELECT value[1] FROM t",
        "SELECT other.city FROM t",
    ],
)
def test_other_names_stay(query: str) -> None:
    assert rewrite(query) == query


def test_names_of_columns_show_the_field() -> None:
    query = "SELECT sum(f.value.n), upper(max(key.x)) FROM t f"
    parsed = check_query(serialize(query), ())
    edits = find_edits(parsed, dict.fromkeys(parsed.tables, COLUMNS))
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT '' AS value, '' AS key")
        connection.execute(apply_edits(query, edits))
        names = [str(each[0]) for each in connection.description or ()]
    assert restore_names(names, query, edits) == ["sum(f.value.n)", "upper(max(key.x))"]
