"""Tests of docs/PERFORMANCE.md and its charts: both are made from the files of results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.figures import Figure
from bench.page import (
    MEASURED,
    PAGE,
    PEER,
    PICTURES,
    RunLabels,
    judge,
    peer_lines,
    process_lines,
    verdict_of,
    write_page,
)
from bench.peer.report import ReportRow
from bench.peer.workload import Metric
from bench.results import Compared, Machine, Measured, Run, read_results

MACHINE = Machine(2, "EPYC", 24, "6.18", "3.11.2")
RUN = Run("2026-12-01T10:00:00Z", "0123abcd", MACHINE)
RATE = ReportRow("closed-64", "rate", "requests/s", 70.0, 50.0, 1.4, 1.3, 1.5, 5, 0, 1.0, False, False, True)


def test_page_and_charts_are_those_of_the_results() -> None:
    made = write_page(read_results())
    assert {MEASURED, PEER} == set(PICTURES.glob("*.svg")), "a chart that is not made from results"
    for path, text in made.items():
        assert path.read_text() == text, "run: python -m bench.page"
        assert path == PAGE or f"(pictures/{path.name})" in made[PAGE]


def test_last_result_of_a_figure_is_on_the_page() -> None:
    results = [
        Measured(RUN, "start", Figure("idle RSS", 46, "MB", 45, at_most=True)),
        Measured(replace(RUN, commit="4567cdef"), "start", Figure("idle RSS", 40, "MB", 45, at_most=True)),
    ]
    page = write_page(results)[PAGE]
    assert "| idle RSS | 40 MB | <= 45 | met |  | 1201a |" in page and "46 MB" not in page
    assert "| 1201a | 2026-12-01 | 4567cdef | 2 cores of EPYC, 24 GB, Linux 6.18, Python 3.11.2 |  |" in page
    assert "0123abcd" not in page


def test_goal_that_was_never_measured_is_on_the_page() -> None:
    lines = peer_lines([Compared(RUN, RATE)], RunLabels())
    title = "64 connections, one record of 100 B a request"
    assert f"| {title} | rate (requests/s) | 70 | 50 | 1.40 (1.30-1.50, 5 pairs) | >= 1.3 | met | 1201a |" in lines
    assert "|  | cpu (us/request) |  |  |  | <= 0.5 | not measured |  |" in lines


@pytest.mark.parametrize(("goal", "verdict"), [(1.3, "met"), (1.35, "not proved"), (1.6, "**missed**"), (None, "")])
def test_result_is_judged_by_the_goal_of_today(goal: float | None, verdict: str) -> None:
    assert verdict_of(judge(RATE, Metric("rate", "requests/s", goal, at_most=False))) == verdict


def test_own_goal_of_today_is_judged_by_our_figure() -> None:
    row = replace(RATE, is_own=True, goal=60.0)
    assert verdict_of(judge(row, Metric("rate", "requests/s", 71.0, at_most=False, is_own=True))) == "**missed**"
    assert verdict_of(judge(row, Metric("rate", "requests/s", 69.0, at_most=False, is_own=True))) == "met"


def test_processes_are_columns_beside_kafka() -> None:
    rows = [Compared(RUN, replace(RATE, ours=ours, processes=count)) for count, ours in ((1, 70.0), (2, 130.0))]
    one = Compared(RUN, replace(RATE, workload="closed-1"))
    lines = process_lines([*rows, one], RunLabels())
    assert lines[0] == "| Workload | Figure | 1 | 2 | Kafka | Run |"
    assert lines[2:] == [
        "| 64 connections, one record of 100 B a request | rate (requests/s) | 70 | 130 | 50 | 1201a |"
    ]


def test_runs_of_a_day_have_labels_of_their_own() -> None:
    labels = RunLabels()
    found = [labels.find(run) for run in (RUN, replace(RUN, how="quick legs"), replace(RUN, at="2026-12-01T11:00:00Z"))]
    assert found == ["1201a", "1201b", "1201a"]
