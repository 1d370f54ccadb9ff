"""Tests of the audit of a run: each finding is shown once."""

from __future__ import annotations

from tests.chaos.audit import (
    ProducerEpoch,
    TransactionOutcome,
    check_compacted,
    check_copies,
    check_records,
    check_transactions,
)
from tests.chaos.run import longest_gap

PLACE = ("t", 0)
LOG = [(0, b"a.0.0 x"), (1, b"b.0.0 x"), (2, b"a.0.1 x"), (3, b"b.0.1 x")]
ACKED = {"a": {PLACE: [(0, 0), (1, 2)]}, "b": {PLACE: [(0, -1), (1, 3)]}}


def test_records_that_are_there_once_and_in_order_have_no_finding() -> None:
    found = check_records(ACKED, {PLACE: LOG})
    assert found.is_ok, found


def test_compacted_log_needs_each_keys_last_acknowledged_record_or_later() -> None:
    acked = {PLACE: [(number, number) for number in range(8)]}
    whole = [(5, b"k.0.5 x"), (6, b"k.0.6 x"), (7, b"k.0.7 x")]
    assert check_compacted(acked, {PLACE: whole}, 3) == []
    assert check_compacted(acked, {PLACE: [*whole[1:], (8, b"k.0.8 x")]}, 3) == []
    assert check_compacted(acked, {PLACE: [(2, b"k.0.2 x"), *whole[1:]]}, 3) == [
        f"{PLACE}: key 2 ends with 2, and 5 was acknowledged"
    ]
    assert check_compacted(acked, {PLACE: [whole[0], whole[2], (8, b"k.0.6 x")]}, 3) == [
        f"{PLACE}: records are there twice or out of order",
        f"{PLACE}: 6, acknowledged at 6, is at 8",
    ]


def test_missing_record_is_lost() -> None:
    assert check_records(ACKED, {PLACE: LOG[:3]}).lost == [f"{PLACE}: b 1, acknowledged at 3"]


def test_record_at_another_offset_is_found() -> None:
    moved = [*LOG[:3], (4, b"b.0.1 x")]
    assert check_records(ACKED, {PLACE: moved}).lost == [f"{PLACE}: b 1, acknowledged at 3, is at 4"]


def test_record_in_another_partition_does_not_count() -> None:
    found = check_records({"a": {("t", 1): [(0, 0)]}}, {PLACE: [(0, b"a.0.0 x")], ("t", 1): []})
    assert len(found.lost) == 1


def test_record_in_two_places_is_a_duplicate() -> None:
    found = check_records(ACKED, {PLACE: [*LOG, (4, b"a.0.1 x")], ("t", 1): [(9, b"b.0.0 x")]})
    assert len(found.duplicates) == 2 and not found.lost


def test_record_resent_under_a_new_epoch_needs_a_reason() -> None:
    senders = {1: ProducerEpoch(7, 0), 4: ProducerEpoch(7, 1)}
    found = check_records(ACKED, {PLACE: [*LOG, (4, b"b.0.0 x")]}, lambda place, offset: senders.get(offset))
    assert len(found.resent) == 1 and not found.duplicates and not found.is_ok
    found.resent_allowed = "the client is known for it"
    assert found.is_ok and "allowed: the client is known for it" in str(found)


def test_record_acknowledged_at_the_offset_of_its_copy_is_not_lost() -> None:
    acked = {"b": {PLACE: [(0, 4)]}}
    found = check_records(acked, {PLACE: [*LOG, (4, b"b.0.0 x")]})
    assert not found.lost and len(found.duplicates) == 1


def test_record_repeated_without_a_later_epoch_is_a_duplicate() -> None:
    log = [*LOG, (4, b"a.0.1 x"), (5, b"b.0.1 x"), (6, b"b.0.0 x")]
    senders = {
        2: ProducerEpoch(7, 0),
        4: ProducerEpoch(7, 1),
        3: ProducerEpoch(8, 1),
        5: ProducerEpoch(8, 0),
        1: ProducerEpoch(8, 1),
        6: ProducerEpoch(9, 2),
    }
    found = check_records(ACKED, {PLACE: log}, lambda place, offset: senders.get(offset))
    assert len(found.resent) == 1 and found.resent[0].startswith("a.0.1 ")
    assert len(found.duplicates) == 2 and not found.is_ok


def test_record_behind_a_later_one_is_out_of_order() -> None:
    found = check_records({}, {PLACE: [(0, b"7.2"), (1, b"8.0"), (2, b"7.1"), (3, b"7.3")]})
    assert found.disorder == [f"{PLACE}: 7.1 at 2 after 2"]


def test_longest_gap_counts_gaps_that_reach_into_the_fault() -> None:
    assert longest_gap([1.0, 2.0, 9.0, 9.5], began=4.0, ended=10.0) == 7.0
    assert longest_gap([1.0, 2.0], began=4.0, ended=10.0) == 8.0
    assert longest_gap([5.0, 6.0, 30.0], began=4.0, ended=7.0) == 1.0


COMMITTED, ABORTED, UNKNOWN = TransactionOutcome.COMMITTED, TransactionOutcome.ABORTED, TransactionOutcome.UNKNOWN


def test_transactions_that_are_there_whole_or_not_at_all_have_no_finding() -> None:
    logs = [[(0, b"t.0.0 1 x"), (2, b"t.0.1 3 x")], [(0, b"t.1.0 1 x"), (2, b"t.1.1 3 x")]]
    assert check_transactions({"t": {1: COMMITTED, 2: ABORTED, 3: UNKNOWN, 4: UNKNOWN}}, 2, logs) == []


def test_transactions_in_part_or_against_their_outcome_are_found() -> None:
    logs = [[(0, b"t.0.0 1 x"), (2, b"t.0.1 2 x"), (4, b"t.0.2 3 x")], [(2, b"t.1.1 2 x")]]
    outcomes = {"t": {1: UNKNOWN, 2: ABORTED, 3: COMMITTED, 4: COMMITTED}}
    assert check_transactions(outcomes, 2, logs) == [
        "t 1, unknown: 1 of 2 records",
        "t 2, aborted: 2 of 2 records",
        "t 3, committed: 1 of 2 records",
        "t 4, committed: 0 of 2 records",
    ]


def test_copies_have_to_be_all_records_once_and_in_order() -> None:
    sources = [(0, b"t.0.0 1 x"), (1, b"t.0.1 1 x"), (3, b"t.0.2 2 x")]
    copies = [(at + 5, value) for at, value in sources]
    assert check_copies({0: sources}, {0: copies}) == []
    lost = "0: 3 records, 2 copies; number 2 is b'nothing', not b't.0.2'"
    assert check_copies({0: sources}, {0: copies[:2]}) == [lost]
    doubled = "0: 3 records, 4 copies; number 1 is b't.0.0', not b't.0.1'"
    assert check_copies({0: sources}, {0: [copies[0], *copies]}) == [doubled]
