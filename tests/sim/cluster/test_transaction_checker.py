"""Tests of the checkers of transactions: each broken rule is reported, and a history that keeps them all is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.cluster import transaction_checker as checker
from tests.sim.cluster.committed_reader import CommittedPoll, LoggedBatch, keep_committed
from tests.sim.cluster.observer import Finding
from tests.sim.cluster.transaction_checker import ShownOffset, StableOffset, WholeLog
from tests.sim.cluster.transactional_client import NEVER_NS, Outcome, SimTransaction
from tiered.ids import TopicPartition

X, Y = TopicPartition("x0", 0), TopicPartition("y0", 0)
SECOND = 1_000_000_000


def written(base: int, producer: int, *values: bytes) -> LoggedBatch:
    return LoggedBatch(base, base + len(values) - 1, producer, 0, True, None, values)


def marker(base: int, producer: int, is_commit: bool) -> LoggedBatch:
    return LoggedBatch(base, base, producer, 0, True, is_commit, ())


BATCHES = [
    written(0, 7, b"a", b"b"),
    written(2, 8, b"no"),
    marker(3, 8, False),
    written(4, 7, b"c"),
    marker(5, 7, True),
    written(6, 9, b"open"),
]
LOG = WholeLog.of(BATCHES)
COPIES = WholeLog.of([written(0, 5, b"1:a", b"1:b", b"2:c"), marker(3, 5, True)])
LOGS = {X: LOG, Y: COPIES}
GOOD = SimTransaction("p", 1, 7, 0, 0, {X: [b"a", b"b", b"c"]}, {X: 5}, SECOND, 2 * SECOND, Outcome.COMMITTED)
POLL = CommittedPoll(
    "r", X, 2 * SECOND, 3 * SECOND, 0, 6, ((0, b"a"), (1, b"b"), (4, b"c")), ((8, 2),), 0, 6, 7, 6
)  # fmt: skip


def test_markers_decide_what_a_log_holds() -> None:
    assert (LOG.committed, LOG.aborted, LOG.open) == ({0: b"a", 1: b"b", 4: b"c"}, {2: b"no"}, {6: b"open"})
    assert LOG.end == 7 and [(each.producer_id, each.first, each.end) for each in LOG.transactions] == [
        (8, 2, 3), (7, 0, 5), (9, 6, -1)
    ]  # fmt: skip


def test_reader_leaves_out_what_the_list_names_up_to_its_marker() -> None:
    assert keep_committed(BATCHES[:5], ((8, 2),), 0) == [(0, b"a"), (1, b"b"), (4, b"c")]
    assert keep_committed(BATCHES[:5], (), 1) == [(1, b"b"), (2, b"no"), (4, b"c")]
    again = [*BATCHES[1:3], written(4, 8, b"yes")]
    assert keep_committed(again, ((8, 2),), 0) == [(4, b"yes")]


def test_history_that_keeps_all_rules_is_not_reported() -> None:
    assert list(checker.check_all_or_none([GOOD], LOGS)) == []
    assert list(checker.check_replies([POLL])) == list(checker.check_committed_reads([POLL], LOGS)) == []
    assert list(checker.check_nothing_early([GOOD], [POLL])) == list(checker.check_each_once(LOGS)) == []
    assert list(checker.check_offsets_shown([GOOD], [ShownOffset(X, 5, SECOND), ShownOffset(X, -1, 0)])) == []
    assert list(checker.check_copies(X, Y, 5, LOGS)) == []


def rules(findings: list[Finding]) -> set[str]:
    return {each.rule for each in findings}


@pytest.mark.parametrize(
    ("transaction", "rule"),
    [
        (replace(GOOD, values={X: [b"a", b"lost"]}), "I14"),
        (replace(GOOD, outcome=Outcome.ABORTED), "I14"),
        (replace(GOOD, outcome=Outcome.UNKNOWN, values={X: [b"a", b"no"]}), "I14"),
        (replace(GOOD, is_fenced=True), "I16"),
    ],
)
def test_half_of_a_transaction_and_a_record_of_a_fenced_one_are_reported(
    transaction: SimTransaction, rule: str
) -> None:
    assert rules(list(checker.check_all_or_none([transaction], LOGS))) == {rule}


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.ABORTED])
def test_transaction_of_which_nothing_is_committed_is_not_reported(outcome: Outcome) -> None:
    gone = replace(GOOD, outcome=outcome, values={X: [b"no"]})
    assert list(checker.check_all_or_none([gone], LOGS)) == []


@pytest.mark.parametrize(
    "poll",
    [
        POLL._replace(last_stable_offset=5),
        POLL._replace(last_stable_offset=8),
        POLL._replace(aborted=((8, 2), (7, 1))),
    ],
)
def test_reply_that_contradicts_itself_is_reported(poll: CommittedPoll) -> None:
    assert rules(list(checker.check_replies([poll]))) == {"I14"}


@pytest.mark.parametrize(
    "rows",
    [
        (*POLL.rows, (2, b"no")),
        (*POLL.rows, (6, b"open")),
        (*POLL.rows, (5, b"nothing")),
        POLL.rows[1:],
    ],
)
def test_read_of_other_records_than_the_committed_ones_is_reported(rows: tuple[tuple[int, bytes], ...]) -> None:
    assert rules(list(checker.check_committed_reads([POLL._replace(rows=rows)], LOGS))) == {"I14"}


def test_record_that_is_read_before_its_commit_is_reported() -> None:
    for early in (replace(GOOD, commit_ns=4 * SECOND), replace(GOOD, commit_ns=-1)):
        assert rules(list(checker.check_nothing_early([early], [POLL]))) == {"I14"}


def test_record_that_is_committed_twice_is_reported() -> None:
    twice = WholeLog.of([written(0, 7, b"a"), marker(1, 7, True), written(2, 7, b"a"), marker(3, 7, True)])
    assert rules(list(checker.check_each_once({X: twice}))) == {"I14"}


@pytest.mark.parametrize(
    "transaction",
    [replace(GOOD, outcome=Outcome.ABORTED), replace(GOOD, commit_ns=4 * SECOND), replace(GOOD, offsets={})],
)
def test_offset_that_no_commit_brought_about_is_reported(transaction: SimTransaction) -> None:
    assert rules(list(checker.check_offsets_shown([transaction], [ShownOffset(X, 5, 3 * SECOND)]))) == {"I15"}


def test_committed_offset_that_an_older_one_replaced_is_reported() -> None:
    older = replace(GOOD, offsets_sent_ns=0, offsets_written_ns=SECOND // 4)
    later = replace(older, offsets={X: 6}, offsets_sent_ns=SECOND // 2, offsets_written_ns=SECOND)
    asked_ns = later.done_ns

    def find(*transactions: SimTransaction, offset: int = 5, at_ns: int = asked_ns) -> set[str]:
        return rules(list(checker.check_last_offset_stays(transactions, [StableOffset(X, offset, at_ns)])))

    assert find(older, later) == find(older, later, offset=-1) == {"I15"}
    assert find(older, later, offset=6) == set()
    assert find(older, later, at_ns=asked_ns - 1) == set(), "the later commit was not acknowledged yet"
    assert find(older, replace(later, outcome=Outcome.ABORTED)) == set()
    assert find(replace(older, offsets_written_ns=NEVER_NS), later) == set(), "a copy of the request may come last"


@pytest.mark.parametrize("offset", [4, 7])
def test_copies_that_differ_from_the_offset_are_reported(offset: int) -> None:
    logs = {X: WholeLog.of([*BATCHES, marker(7, 9, True)]), Y: COPIES}
    assert rules(list(checker.check_copies(X, Y, offset, logs))) == {"I15"}


def test_copy_that_is_there_twice_is_reported() -> None:
    twice = WholeLog.of([written(0, 5, b"1:a", b"1:b", b"2:c", b"3:c"), marker(4, 5, True)])
    assert rules(list(checker.check_copies(X, Y, 5, {X: LOG, Y: twice}))) == {"I15"}
