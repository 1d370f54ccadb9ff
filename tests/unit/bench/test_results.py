"""Tests of the files of results: what is written is read, and nothing in them names a machine."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields
from pathlib import Path

from bench.figures import Figure
from bench.peer.report import ReportRow
from bench.results import (
    NOT_RECORDED,
    RESULTS,
    Compared,
    Machine,
    Measured,
    Run,
    newest_figures,
    newest_rows,
    read_machine,
    read_results,
    write_results,
)

MACHINE = Machine(2, "AMD EPYC 9B14", 24, "6.18", "3.11.2")
OLD = Run("2026-11-21", NOT_RECORDED, MACHINE)
FIRST = Run("2026-12-01T10:00:00Z", "0123abcd", MACHINE)
LAST = Run("2026-12-01T11:00:00Z", "0123abcd", MACHINE, "quick legs")
RSS = Figure("idle RSS", 46.5, "MB", 45.0, at_most=True, note="median")
CPU = Figure("idle CPU", 0.1, "%")
ROW = ReportRow("closed-64", "rate", "requests/s", 70.0, 50.0, 1.4, 1.3, 1.5, 5, 0, 1.3, False, False, True, 2)


def test_written_results_are_read_in_the_order_of_their_runs(tmp_path: Path) -> None:
    assert (
        write_results(tmp_path, LAST, [("start", CPU)], [ROW]).name == "2026-12-01-0123abcd-2-cores-amd-epyc-9b14.jsonl"
    )
    write_results(tmp_path, FIRST, [("start", RSS)], ())
    write_results(tmp_path, OLD, [("start", CPU)], ())
    assert len([*tmp_path.iterdir()]) == 2
    assert read_results(tmp_path) == [
        Measured(OLD, "start", CPU), Measured(FIRST, "start", RSS), Measured(LAST, "start", CPU), Compared(LAST, ROW),
    ]  # fmt: skip


def test_run_of_a_bench_replaces_all_its_figures_of_before() -> None:
    found = newest_figures([Measured(OLD, "start", RSS), Measured(OLD, "cold", CPU), Measured(FIRST, "start", CPU)])
    assert found == {
        ("cold", "idle CPU"): Measured(OLD, "cold", CPU),
        ("start", "idle CPU"): Measured(FIRST, "start", CPU),
    }


def test_results_of_an_old_page_add_to_each_other() -> None:
    found = newest_figures(
        [Measured(OLD, "start", RSS), Measured(Run("2026-11-22", NOT_RECORDED, MACHINE), "start", CPU)]
    )
    assert [name for _, name in found] == ["idle RSS", "idle CPU"]


def test_last_row_counts_for_each_number_of_processes() -> None:
    other = ReportRow(**{**asdict(ROW), "processes": 1})
    rows = [Compared(FIRST, ROW), Compared(FIRST, other), Compared(LAST, ROW)]
    assert [(key[2], each.run) for key, each in newest_rows(rows).items()] == [(2, LAST), (1, FIRST)]


def test_machine_is_what_changes_figures_and_no_name() -> None:
    machine = read_machine()
    assert machine.cores is not None and machine.cores >= 1 and machine.memory_gb
    assert re.fullmatch(r"\d+\.\d+", machine.kernel) and re.fullmatch(r"3\.\d+\.\d+\S*", machine.python)


def test_files_of_results_are_named_for_their_runs() -> None:
    known = {each.name for each in fields(Machine)}
    for path in RESULTS.glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert lines[0]["kind"] == "run", path.name
        for line in lines:
            if line["kind"] == "run":
                assert set(line) == {"kind", "at", "commit", "machine", "how"} and set(line["machine"]) == known
    assert {each.run.file_name for each in read_results()} == {path.name for path in RESULTS.glob("*.jsonl")}
