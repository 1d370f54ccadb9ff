"""Tests of the lines of a report on a warehouse: whole, cut off, too large."""

from __future__ import annotations

import json
from typing import Any

from tiered_api.http.overview import warehouse
from tiered_api.http.overview.tables import topics_by_name
from tiered_api.http.overview.warehouse import ReportLines


def take(*lines: Any) -> ReportLines:
    found = ReportLines()
    for line in lines:
        assert found.add(json.dumps(line).encode())
    return found


def test_table_that_is_begun_and_not_read_has_the_reason() -> None:
    lines = take({"begun": "b"}, {"begun": "a"}, {"table": "a", "kind": "raw"})
    found = lines.finish(is_late=True)
    assert list(found) == ["a", "b"] and "problem" not in found["a"]
    assert found["b"]["problem"] == f"not read within {warehouse.READ_SECONDS:g} s"
    assert lines.problem is not None and "tables may be missing" in lines.problem
    crashed = take({"begun": "b"})
    assert crashed.finish(is_late=False)["b"]["problem"] == warehouse.ENDED == crashed.problem


def test_whole_report_has_no_problem() -> None:
    lines = take({"begun": "a"}, {"table": "a", "kind": "raw"}, {"done": True, "has_more": False})
    assert lines.finish(is_late=False) == {"a": {"table": "a", "kind": "raw"}} and lines.problem is None
    absent = take({"begun": "a"}, {"table": "a", "is_absent": True}, {"done": True, "has_more": False})
    assert absent.finish(is_late=False) == {} and absent.problem is None
    more = take({"begun": "a"}, {"table": "a"}, {"done": True, "has_more": True})
    assert more.finish(is_late=False) and "more than 1 tables" in (more.problem or "")
    failed = take({"problem": "no permission"})
    assert (failed.finish(is_late=False), failed.problem) == ({}, "no permission")


def test_report_that_is_too_large_is_cut() -> None:
    lines = ReportLines()
    line = json.dumps({"table": "a", "topic": "x" * 500_000}).encode()
    taken = sum(lines.add(line) for _ in range(20))
    assert taken == warehouse.REPORT_BYTES // len(line)
    assert "some are left out" in (lines.problem or "") and list(lines.finish(is_late=False)) == ["a"]


def test_names_of_tables_name_their_topics() -> None:
    assert topics_by_name("t") == ["t"]
    assert topics_by_name("t_typed") == ["t_typed", "t"]
    assert topics_by_name("t__dead") == ["t__dead", "t"]
