"""What the commands around Spark say; Spark itself is not needed for it."""

from __future__ import annotations

from pyspark_tiered.delta_commit import first_line
from pyspark_tiered.load import Progress
from pyspark_tiered.verify import Fault, Gap, Verified
from tiered_api.cli.lake import progress_line, verified_lines


def test_a_whole_table_is_said_to_be_whole() -> None:
    found = Verified("file:/w/t", 1234, {1: 5, 0: 7}, (), (Gap(0, 2, 4, "expired before it was loaded"),))
    assert verified_lines(found) == [
        "file:/w/t: 1,234 rows compared with the bucket; loaded up to 0: 7, 1: 5",
        "partition 0, offsets 2 to 3: expired before it was loaded",
        "every record is there once",
    ]


def test_faults_are_listed_and_the_rest_is_counted() -> None:
    faults = tuple(Fault("missing", 0, offset) for offset in range(25))
    lines = verified_lines(Verified("file:/w/t", 0, {}, faults, ()))
    assert lines[0].endswith("loaded up to nothing")
    assert lines[1] == "partition 0, offset 0: missing"
    assert lines[-2:] == ["... 25 faults in all", "the table does not hold every record once"]
    assert len(lines) == 1 + 20 + 2


def test_progress_is_one_line() -> None:
    line = progress_line(Progress("committed", "t", "file:/w/t", 1234, 2, 5_000_000, 1_000))
    assert line == "committed: 1,234 rows in 2 files, 5.0 MB of log loaded, 1.0 kB to go"
    nothing = progress_line(Progress("done", "t", "file:/w/t"))
    assert nothing.startswith("done: the bucket holds no record that is not loaded")


def test_an_error_is_its_first_line_that_says_anything() -> None:
    assert first_line(ValueError("\n[PARSE_SYNTAX_ERROR] Syntax error at '-'.\n\n== SQL ==")).startswith(
        "[PARSE_SYNTAX_ERROR]"
    )
    assert first_line(ValueError()) == "ValueError"
