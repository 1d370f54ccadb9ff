"""Tests of the plan of a micro-batch: its limits, its end, and what becomes of data that was lost."""

from __future__ import annotations

import pytest

from pyspark_tiered.stream_plan import (
    BatchLimits,
    ReadablePartition,
    ReadableTopic,
    StreamOffset,
    batch_ranges,
    next_offset,
    parse_offset,
)
from tiered.errors import Refused

NOW = ReadableTopic("t", "id", {0: ReadablePartition(10, 110, 1000), 1: ReadablePartition(0, 5, 50)})
NO_LIMITS = BatchLimits()


def at(*offsets: int, topic_id: str = "id") -> StreamOffset:
    return StreamOffset("t", topic_id, dict(enumerate(offsets)))


def follow(start: StreamOffset, limits: BatchLimits = NO_LIMITS, target: StreamOffset | None = None) -> StreamOffset:
    return next_offset(start, NOW, limits, target, fail_on_data_loss=True)


def test_offset_survives_the_checkpoint() -> None:
    assert parse_offset(at(3, 4).to_json(), "t") == at(3, 4)


@pytest.mark.parametrize("found", [None, [], {}, {"topic": "t"}, {"topic": "t", "topic_id": "i", "offsets": {"a": 1}}])
def test_checkpoint_of_another_source_is_refused(found: object) -> None:
    with pytest.raises(Refused, match="no offset of this source"):
        parse_offset(found, "t")


def test_checkpoint_of_another_topic_is_refused() -> None:
    with pytest.raises(Refused, match="belongs to topic t, not other"):
        parse_offset(at(3).to_json(), "other")


def test_batch_without_limits_reaches_the_end() -> None:
    assert follow(at(10, 0)) == at(110, 5)
    assert follow(at(110, 5)) == at(110, 5)


def test_limits_are_spread_by_what_each_partition_has() -> None:
    assert follow(at(10, 0), BatchLimits(rows=21)) == at(30, 1)
    assert follow(at(10, 0), BatchLimits(log_bytes=105)) == at(20, 1)
    assert follow(at(10, 0), BatchLimits(rows=21, log_bytes=105)) == at(20, 1)
    assert follow(at(10, 0), BatchLimits(rows=1)) == at(11, 1), "each partition moves on"


def test_batches_with_limits_reach_the_end_without_a_gap() -> None:
    place, seen = at(10, 0), 0
    while (after := follow(place, BatchLimits(rows=7))) != place:
        ranges, lost = batch_ranges(place, after, NOW, fail_on_data_loss=True)
        assert not lost
        seen += sum(high - low for low, high in ranges.values())
        place = after
    assert (place, seen) == (at(110, 5), 105)


def test_stream_with_a_target_ends_there_and_takes_no_new_partition() -> None:
    assert follow(at(10), target=at(50)) == at(50)
    assert follow(at(50), target=at(50)) == at(50)
    assert follow(at(60), target=at(50)) == at(60)


def test_new_partition_is_read_from_its_log_start() -> None:
    assert follow(at(110)) == at(110, 5)
    assert batch_ranges(at(110), at(110, 5), NOW, fail_on_data_loss=True) == ({1: (0, 5)}, [])


def test_offsets_that_retention_removed_fail_the_stream_or_are_left_out() -> None:
    with pytest.raises(Refused, match=r"offsets 3 to 9 of t-0.*failOnDataLoss=false"):
        follow(at(3, 0))
    assert next_offset(at(3, 0), NOW, NO_LIMITS, fail_on_data_loss=False) == at(110, 5)
    ranges, lost = batch_ranges(at(3, 0), at(110, 5), NOW, fail_on_data_loss=False)
    assert ranges == {0: (10, 110), 1: (0, 5)} and "offsets 3 to 9" in lost[0]
    assert batch_ranges(at(3, 0), at(7, 5), NOW, fail_on_data_loss=False)[0] == {1: (0, 5)}


def test_new_partition_whose_first_records_expired_is_a_loss() -> None:
    only_second = StreamOffset("t", "id", {1: 5})
    with pytest.raises(Refused, match=r"retention removed offsets 0 to 9 of t-0"):
        follow(only_second)
    ranges, lost = batch_ranges(only_second, at(110, 5), NOW, fail_on_data_loss=False)
    assert ranges == {0: (10, 110)} and "offsets 0 to 9" in lost[0]


def test_log_that_ends_below_the_stream_is_a_loss() -> None:
    ahead = at(1000, 5)
    with pytest.raises(Refused, match=r"the log of t-0 ends at 110, below 1000.*failOnDataLoss=false"):
        follow(ahead)
    back = next_offset(ahead, NOW, NO_LIMITS, fail_on_data_loss=False)
    assert back == at(110, 5)
    assert batch_ranges(ahead, back, NOW, fail_on_data_loss=False)[0] == {}
    grown = NOW._replace(partitions={0: ReadablePartition(10, 1005, 1), 1: NOW.partitions[1]})
    after = next_offset(back, grown, NO_LIMITS, fail_on_data_loss=True)
    assert batch_ranges(back, after, grown, fail_on_data_loss=True) == ({0: (110, 1005)}, [])


def test_batch_beyond_the_end_of_the_log_is_a_loss_or_is_cut() -> None:
    with pytest.raises(Refused, match="the log of t-0 ends at 110, below 500"):
        batch_ranges(at(50, 5), at(500, 5), NOW, fail_on_data_loss=True)
    ranges, lost = batch_ranges(at(50, 5), at(500, 5), NOW, fail_on_data_loss=False)
    assert ranges == {0: (50, 110)} and len(lost) == 1


def test_place_above_an_open_transaction_is_no_loss() -> None:
    """A stream of all records continues as one of committed records."""
    now = NOW._replace(partitions={0: ReadablePartition(10, 40, 1, 110), 1: NOW.partitions[1]})
    assert not now.is_behind(at(110, 5))
    assert next_offset(at(110, 5), now, NO_LIMITS, fail_on_data_loss=True) == at(110, 5)
    assert now.is_behind(at(111, 5)) and not now.is_behind(at(111, 5, topic_id="older"))


def test_topic_made_anew_fails_the_stream_or_is_read_from_its_log_start() -> None:
    older = at(400, 3, topic_id="older")
    with pytest.raises(Refused, match="deleted and created again: id older is now id"):
        follow(older)
    assert next_offset(older, NOW, NO_LIMITS, fail_on_data_loss=False) == at(110, 5)
    assert batch_ranges(older, at(110, 5), NOW, fail_on_data_loss=False)[0] == {0: (10, 110), 1: (0, 5)}


def test_batch_of_a_topic_that_is_gone_reads_nothing() -> None:
    older = at(400, 3, topic_id="older"), at(500, 4, topic_id="older")
    with pytest.raises(Refused, match="id older is gone: id id has its name"):
        batch_ranges(*older, NOW, fail_on_data_loss=True)
    assert batch_ranges(*older, NOW, fail_on_data_loss=False)[0] == {}
    stopped = next_offset(older[0], NOW, NO_LIMITS, older[1], fail_on_data_loss=False)
    assert stopped == older[0], "a stream that ends at its target ends"
