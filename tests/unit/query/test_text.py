"""Tests of queries as text: quotes, the column `offset`, time travel, the end of a statement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tiered.query.text import Moment, is_complete, prepare, tokens
from tiered.errors import Refused


@pytest.mark.parametrize(
    "given, made",
    [
        ("SELECT offset FROM t", 'SELECT "offset" FROM t'),
        ("SELECT a, offset, max(offset)", 'SELECT a, "offset", max("offset")'),
        ("SELECT 1 WHERE offset < 5 AND -offset > 2", 'SELECT 1 WHERE "offset" < 5 AND -"offset" > 2'),
        ("SELECT f.offset /* x */ FROM f", 'SELECT f."offset" /* x */ FROM f'),
        ("SELECT a FROM t LIMIT 5 OFFSET 10", "SELECT a FROM t LIMIT 5 OFFSET 10"),
        ("SELECT a FROM t ORDER BY offset OFFSET 1", 'SELECT a FROM t ORDER BY "offset" OFFSET 1'),
        ("SELECT * FROM t OFFSET 3", "SELECT * FROM t OFFSET 3"),
        ("SELECT * FROM (SELECT 1) OFFSET 3", "SELECT * FROM (SELECT 1) OFFSET 3"),
        (
            "SELECT 'offset', 'it''s offset', $$offset$$ -- offset",
            "SELECT 'offset', 'it''s offset', $$offset$$ -- offset",
        ),
        ("SELECT `a``b`, `orders.eu`.x FROM `orders.eu`;  ", 'SELECT "a`b", "orders.eu".x FROM "orders.eu"'),
        ("SELECT e'\\'; offset'", "SELECT e'\\'; offset'"),
    ],
)
def test_query_gets_the_form_of_duckdb(given: str, made: str) -> None:
    assert prepare(given).text == made.removesuffix(" -- offset") or prepare(given).text == made
    assert "".join(token.text for token in tokens(given)) == given


@given(st.text(st.sampled_from("a1 '\"`$-/*;.\nVERSIONASOFoffset"), max_size=60))
def test_tokens_are_the_whole_text(text: str) -> None:
    assert "".join(token.text for token in tokens(text)) == text
    prepare(text)
    is_complete(text)


def test_points_in_time_become_schemas() -> None:
    made = prepare(
        "SELECT * FROM a VERSION AS OF 3 x, raw.a FOR version as of 3, b TIMESTAMP AS OF '2026-01-01 00:00' y"
    )
    assert made.text == 'SELECT * FROM "@1".a  x, "raw@1".a , "@2".b  y'
    assert made.moments == {"@1": Moment(version=3), "@2": Moment(timestamp="2026-01-01 00:00")}
    plain = "SELECT version, timestamp AS of FROM t"
    assert prepare(plain) == (plain, {})


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM (SELECT * FROM t) VERSION AS OF 0",
        "SELECT * FROM a JOIN b USING (x) FOR TIMESTAMP AS OF '2026-01-01'",
        "SELECT * FROM 't' VERSION AS OF 0",
        "VERSION AS OF 0",
    ],
)
def test_point_in_time_that_is_behind_no_name_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="right behind the name of a table"):
        prepare(text)


@pytest.mark.parametrize("text", ["SELECT 1;", "SELECT ';' ; -- end", "a\n;\n"])
def test_statement_is_complete_at_its_semicolon(text: str) -> None:
    assert is_complete(text)


@pytest.mark.parametrize("text", ["SELECT 1", "SELECT ';", 'SELECT ";', "/* ;", "SELECT 1 -- ;", "$$;", ""])
def test_semicolon_in_a_quote_or_comment_ends_nothing(text: str) -> None:
    assert not is_complete(text)
