"""Tests of what an explanation of a table says: one for each cause."""

from __future__ import annotations

from typing import Any

from tiered_api.explanation.cause import Cause
from tiered_api.explanation.table import LOADER_MS, LoadedPartition, TableFacts, explain_table

NOW = 1_700_000_000_000
VERIFIED = {"ok": True, "at_ms": NOW, "rows": 5, "faults": 0}


def explained(
    *partitions: LoadedPartition, is_absent: bool = False, is_topic_there: bool = True, **table: Any
) -> dict[str, Cause]:
    usual = {"topic": "t", "topic_id": "id", "rows": 5, "version": 3, "loaded_ms": NOW - 1_000, "verified": VERIFIED}
    facts = TableFacts("t", "/w", None if is_absent else usual | table, partitions, is_topic_there, NOW)
    return {each.code: each for each in explain_table(facts)}


def test_table_that_has_everything_has_no_trouble() -> None:
    found = explained(LoadedPartition(0, 10, 10, 10))
    assert found.keys() == {"loaded"} and not found["loaded"].mend
    assert found["loaded"].sentence.startswith("table t has 5 rows, and was loaded last at 2023-11-14T22:13:19")


def test_topic_that_was_never_loaded_names_the_command() -> None:
    found = explained(is_absent=True)
    assert found.keys() == {"never-loaded"} and "`tiered load --topic t" in found["never-loaded"].mend


def test_unreadable_table_says_its_problem() -> None:
    found = explained(problem="its log has another form")
    assert found.keys() == {"unreadable"} and "its log has another form" in found["unreadable"].sentence


def test_table_of_a_deleted_topic_is_named() -> None:
    assert "with the id id, which is gone" in explained(is_topic_there=False)["topic-gone"].sentence


def test_table_behind_says_rows_and_partitions() -> None:
    found = explained(LoadedPartition(0, 10, 30, 25), LoadedPartition(1, 5, 5, 5))
    assert found["behind"].sentence.startswith("table t is behind by 20 offsets in 1 partition")
    assert "the bucket has 15 of them" in found["behind"].sentence and "tiered load" in found["behind"].mend
    assert found["partition-behind"].values["lag"] == 20


def test_table_whose_loader_stopped_is_named_after_a_while() -> None:
    partition = LoadedPartition(0, 10, 30, 25)
    assert "behind" in explained(partition, loaded_ms=NOW - LOADER_MS)
    found = explained(partition, loaded_ms=NOW - LOADER_MS - 1)["loader-stopped"]
    assert "no loader runs, and the bucket has 15 of them" in found.sentence and "--follow" in found.mend
    assert "loader-stopped" in explained(partition, loaded_ms=None, committed_ms=None)


def test_records_that_are_not_in_the_bucket_cannot_be_loaded() -> None:
    found = explained(LoadedPartition(0, 10, 30, 10), loaded_ms=NOW - LOADER_MS - 1)["not-in-bucket"]
    assert "the bucket has none of them yet" in found.sentence and "tiered.upload.max.lag.ms" in found.mend


def test_end_that_is_not_known_is_named() -> None:
    assert "partitions [1]" in explained(LoadedPartition(1, 5))["end-unknown"].sentence


def test_dead_letters_come_with_their_reasons() -> None:
    reasons = [{"why": "id is no number", "count": 3, "partition": 0, "offset": 7}]
    found = explained(dead_letters=3, reasons=reasons)["dead-letters"]
    assert found.sentence.endswith("are dead letters: 3 because id is no number")
    assert "`tiered table replay-dead t`" in found.mend


def test_verify_that_failed_or_never_ran_is_named() -> None:
    assert "never-verified" in explained(verified=None)
    failed = explained(verified=VERIFIED | {"ok": False, "faults": 2})["verify-failed"]
    assert failed.values["faults"] == 2 and "--repair" in failed.mend
