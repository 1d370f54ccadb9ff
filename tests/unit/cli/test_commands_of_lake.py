"""Tests of the output of the commands around Spark; they do not need Spark itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_tiered.failures import first_line, translate_failure
from pyspark_tiered.load.load import LoadProgress
from pyspark_tiered.proof.erase import EraseProgress
from pyspark_tiered.proof.gaps import EXPIRED, Gap
from pyspark_tiered.proof.repair import RepairProgress
from pyspark_tiered.proof.verify import RowFault, VerifyResult
from pyspark_tiered.typed.replay import ReplayProgress
from tiered.errors import Corrupt, Unavailable
from tiered_api.cli.lake.commands import erased_line, progress_line, repaired_lines, replayed_line, verified_lines


def test_whole_table_is_reported_as_whole() -> None:
    found = VerifyResult("file:/w/t", 1234, {1: 5, 0: 7}, (), (Gap(0, 2, 4, "expired before it was loaded"),))
    assert verified_lines(found) == [
        "file:/w/t: 1,234 rows compared with the bucket; loaded up to 0: 7, 1: 5",
        "partition 0, offsets 2 to 3: expired before it was loaded",
        "every record is there once",
    ]


def test_faults_are_listed_and_the_rest_is_counted() -> None:
    faults = tuple(RowFault("missing", 0, offset) for offset in range(25))
    lines = verified_lines(VerifyResult("file:/w/t", 0, {}, faults, ()))
    assert lines[0].endswith("loaded up to nothing")
    assert lines[1] == "partition 0, offset 0: missing"
    assert lines[-2:] == ["... 25 faults in all", "the table does not hold every record once"]
    assert len(lines) == 1 + 20 + 2


def test_erased_rows_are_counted_and_named_if_they_are_back() -> None:
    again = RowFault("erased", 0, 7)
    lines = verified_lines(VerifyResult("file:/w/t", 5, {0: 8}, (again,), (), 1234))
    assert lines[1] == "partition 0, offset 7: erased, but in the table: `tiered load --repair` removes it"
    assert lines[2] == "1,234 rows were erased lawfully, and are counted as such"


def test_progress_of_an_erasure_is_one_line() -> None:
    lines = [erased_line(EraseProgress(step, "file:/w/t", 1234, 1000)) for step in ("recorded", "removed", "done")]
    assert lines[:2] == ["recorded: 1,234 rows", "removed: 1,000 rows are out of the table"]
    assert lines[2].startswith("done: 1,234 rows erased; older versions")
    line = erased_line(EraseProgress("done", "file:/w/t", 1234, 1000, 12))
    assert line.startswith("done: 1,234 rows erased, and 12 rows and dead letters of their values; older")


def test_result_of_a_typed_table_is_reported_after_that_of_the_table() -> None:
    faults = (RowFault("unfit", 0, 3, "x is a text"), RowFault("changed", 1, 4, is_dead=True))
    values = VerifyResult("file:/w/t_typed", 1234, {0: 9}, faults, (Gap(0, 1, 3, EXPIRED),), dead=5, fitting=2)
    found = VerifyResult("file:/w/t", 5, {0: 9}, (), (), values=values)
    assert not found.ok
    assert verified_lines(found)[1:] == [
        "every record is there once",
        "file:/w/t_typed: 1,234 rows and 5 dead letters compared with the values in the bucket",
        "partition 0, offsets 1 to 2: expired before it was loaded",
        "2 dead letters fit by now: `tiered table replay-dead` makes rows of them",
        "partition 0, offset 3: row unfit (x is a text)",
        "partition 1, offset 4: dead letter changed",
        "rows and dead letters are not the log",
    ]
    whole = verified_lines(replace(found, values=replace(values, faults=(), fitting=0)))
    assert whole[-1] == "every value is a row or a dead letter, once"


def test_progress_of_a_replay_is_one_line() -> None:
    assert replayed_line(ReplayProgress("done", "t", 1234, 5)) == "done: 1,234 dead letters became rows, 5 do not fit"


def test_progress_is_one_line() -> None:
    line = progress_line(LoadProgress("committed", "t", "file:/w/t", 1234, 2, 5_000_000, 1_000))
    assert line == "committed: 1,234 rows in 2 files, 5.0 MB of log loaded, 1.0 kB to go"
    nothing = progress_line(LoadProgress("done", "t", "file:/w/t"))
    assert nothing.startswith("done: the bucket holds no record that is not loaded")


def test_repair_reports_its_changes_and_unrecoverable_rows() -> None:
    gap = Gap(1, 50, 52, "expired before it was loaded")
    assert repaired_lines(RepairProgress("compared", "t")) == []
    assert repaired_lines(RepairProgress("mended", "t", 3)) == ["repairing: 3 rows put back"]
    assert repaired_lines(RepairProgress("done", "t", 1234, 2, (gap,))) == [
        "repaired: 1,234 rows put back, wrong rows of 2 offsets taken out",
        "partition 1, offsets 50 to 51: not in the table, gone from the log",
    ]
    assert repaired_lines(RepairProgress("done", "t")) == ["nothing to repair: the table is equal to the log"]


def test_stopped_load_is_reported() -> None:
    assert progress_line(LoadProgress("stopped", "t", "file:/w/t")) == "stopped: nothing more can be loaded"
    assert progress_line(LoadProgress("stopped", "t", "file:/w/t", 5, 1, 100)).startswith("stopped: 5 rows in 1 files")


def test_missing_row_names_the_commit_that_may_have_removed_it() -> None:
    fault = RowFault("missing", 0, 3, 'DELETE ["(offset = 3)"] (version 1, 2026-11-22 21:00:00 UTC)')
    lines = verified_lines(VerifyResult("file:/w/t", 5, {0: 6}, (fault,), ()))
    assert lines[1] == f"partition 0, offset 3: missing, perhaps by {fault.why}"


@pytest.mark.parametrize(
    ("said", "family", "words"),
    [
        (
            "x\n    tiered.errors.Corrupt: bad crc where=a.seg position=7\n",
            Corrupt,
            "t: bad crc where=a.seg position=7",
        ),
        ("x\nModuleNotFoundError: No module named 'tiered'\n", Unavailable, "t: ModuleNotFoundError: No module"),
        ("something else", Unavailable, "t: something else"),
    ],
)
def test_error_of_a_task_keeps_its_text(said: str, family: type[Exception], words: str) -> None:
    found = translate_failure("t", ValueError(said))
    assert isinstance(found, family)
    assert str(found).startswith(words)


def test_error_is_its_first_line_with_text() -> None:
    assert first_line(ValueError("\n[PARSE_SYNTAX_ERROR] Syntax error at '-'.\n\n== SQL ==")).startswith(
        "[PARSE_SYNTAX_ERROR]"
    )
    assert first_line(ValueError()) == "ValueError"
