"""Tests of the checker of REST consumers."""

from __future__ import annotations

import pytest

from tests.sim.cluster.history import ReadRecord, Send, SendVerdict
from tests.sim.cluster.rest_checker import RestReads, Skip, check_commit, check_deliveries
from tiered.ids import TopicPartition

TP, OTHER = TopicPartition("t0", 0), TopicPartition("t0", 1)


def written(*offsets: int) -> list[Send]:
    """Returns acknowledged batches of one record each."""
    return [
        Send("s", each, TP, (b"%d" % each,), -1, 5, done_ns=6, verdict=SendVerdict.OK, base_offset=each)
        for each in offsets
    ]


def read(*offsets: int, start: int, begins_at_end: bool = False, commits_alone: bool = True) -> RestReads:
    """Returns what a group has read whose first read found nothing at `start`."""
    reads = RestReads(begins_at_end, commits_alone)
    reads.on_read({}, {TP: start})
    for each in offsets:
        reads.on_read({TP: [ReadRecord(each, b"%d" % each)]}, {TP: each})
    return reads


def missed(reads: RestReads, *, end: int = 5, log_start: int = 0, lost_from: int | None = None, gone: int = -1) -> int:
    """Returns how many of the records 0 to 9 the checker misses."""
    lost = {} if lost_from is None else {TP: lost_from}
    found = check_deliveries(
        reads, written(*range(10)), {TP: end}, {TP: log_start}, lost, lambda tp, offset, _: offset == gone
    )
    return sum(each.rule == "I34" for each in found)


def test_i34_record_after_the_first_read_that_nobody_got_is_reported() -> None:
    assert missed(read(2, 3, 4, start=2)) == 0
    assert missed(read(3, 4, start=2)) == 1
    assert missed(read(2, 3, 4, start=1)) == 1, "the first read was empty, and gave its position"
    assert missed(read(2, 3, start=2), end=4) == 0, "the end was not read"
    wrong = read(2, 3, 4, start=2)
    wrong.delivered[TP][3] = b"another"
    assert missed(wrong) == 1


def test_i34_record_that_may_be_gone_is_not_missed() -> None:
    assert missed(read(2, 4, start=2), gone=3) == 0
    assert missed(read(4, start=2), log_start=4) == 0
    assert missed(read(2, start=2), lost_from=3) == 0
    assert missed(read(2, start=2), lost_from=4) == 1
    skipping = read(2, start=2)
    skipping.skips += [Skip(TP, 3, 4), Skip(OTHER, 4, 5)]
    assert missed(skipping) == 1


@pytest.mark.parametrize("commits_alone", [True, False])
def test_i34_reset_to_the_end_counts_once_the_group_has_it(commits_alone: bool) -> None:
    reads = read(4, start=2, begins_at_end=True, commits_alone=commits_alone)
    assert missed(reads) == (2 if commits_alone else 0)
    reads.on_commit_failed(TP)
    assert missed(reads) == 0, "the next member begins at another end"
    reads.on_read({}, {TP: 3})
    assert missed(reads) == 0
    reads.on_committed(TP, 3)
    assert missed(reads) == 1
    reads.on_commit_failed(TP)
    assert missed(reads) == 1, "the next member begins at the position before"


def test_i34_reset_to_the_start_needs_no_commit() -> None:
    reads = read(4, start=2, commits_alone=False)
    reads.on_commit_failed(TP)
    assert missed(reads) == 2


def test_i34_commit_above_what_was_delivered_is_reported() -> None:
    assert not list(check_commit(TP, 4, 4, None))
    assert [each.rule for each in check_commit(TP, 5, 4, None)] == ["I34"]


def test_i34_commit_of_a_partition_of_another_member_is_reported() -> None:
    assert not list(check_commit(TP, 4, 4, [TP, OTHER]))
    assert [each.rule for each in check_commit(TP, 4, 4, [OTHER])] == ["I34"]
