"""Tests of what an explanation of a segment says: where it is, why, and what would change that."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.explanation.partition_rig import leader
from tiered.broker import stored_segments
from tiered.broker.stored_segments import REASON_CODES
from tiered.ids import TopicPartition
from tiered_api.explanation.cause import Cause
from tiered_api.explanation.segment import (
    MENDS,
    SegmentFacts,
    describe_waiting,
    explain_no_segment,
    explain_segment,
)
from tiered_api.explanation.transaction import HeldPartition, HoldingTransaction
from tiered_api.kafka.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    ReportedLeader,
    ReportedSegment,
)

NOW = 1_700_000_000_000
ENDS_BY_ITSELF = {"open", "upload-waits", "cleaned", "retention-due", "retention-keeps"}


def explained(
    code: str = "", *, key: str = "", disks: tuple[int, ...] = (1,), bucket_away: str = "", **leader: Any
) -> dict[str, Cause]:
    segment = ReportedSegment(10, 20, 100, NOW, NOW, "its reason" if code else "", key, NOW if key else -1)
    segment.why_code = code
    facts = SegmentFacts("t/0", segment, disks, ReportedLeader(**leader), 10_000, bucket_away=bucket_away)
    return {each.code: each for each in explain_segment(facts)}


def test_segment_says_object_and_disks_that_have_it() -> None:
    found = explained("retention-keeps", key="data/x.seg", disks=(1, 2))
    assert "offsets 10 to 19 is in the bucket since 2023-11-14T22:13:20+00:00" in found["in-bucket"].sentence
    assert found["in-bucket"].values["key"] == "data/x.seg"
    assert found["on-disk"].sentence == "the disks of brokers 1 and 2 have it"
    assert found["retention-keeps"].sentence == "the leader's disk has it because its reason"
    cold = explained(key="data/x.seg", disks=())
    assert list(cold) == ["in-bucket"]


@pytest.mark.parametrize("code", REASON_CODES)
def test_each_reason_ends_by_itself_or_names_what_mends_it(code: str) -> None:
    assert bool(explained(code)[code].mend) == (code not in ENDS_BY_ITSELF)
    assert (code in MENDS) == (code not in ENDS_BY_ITSELF)


def test_segment_that_needs_the_bucket_names_an_outage_whoever_sees_it() -> None:
    seen = "requests to the bucket fail since T, says broker 2"
    needing: list[dict[str, Any]] = [{"code": "upload-waits"}, {"key": "data/x.seg", "disks": ()}]
    for needs in needing:
        assert explained(bucket_away=seen, **needs)["bucket-away"].sentence == seen
        own = explained(bucket_away=seen, outage="store unreachable since T", **needs)
        assert own["bucket-away"].sentence == "store unreachable since T"
    assert "bucket-away" not in explained("retention-keeps", key="data/x.seg", bucket_away=seen)


def test_waiting_segment_says_its_queue_and_the_outage_with_its_text() -> None:
    found = explained("upload-waits", waiting_segments=3, waiting_on_broker=9)
    assert found["upload-queue"].sentence.startswith(
        "3 closed segments wait for upload in this partition, and 9 on its"
    )
    assert "bucket-away" not in found and not found["upload-waits"].mend
    away = explained("upload-waits", outage="store unreachable since T", outage_why="no route")["bucket-away"]
    assert away.sentence == "store unreachable since T (no route)" and "bucket" in away.mend
    assert explained("upload-fails", outage="store unreachable since T")["bucket-away"].sentence.endswith("since T")
    assert [describe_waiting(count) for count in (0, 1, 2)] == [
        "no closed segment waits for upload", "1 closed segment waits for upload", "2 closed segments wait for upload",
    ]  # fmt: skip


def test_late_upload_is_a_trouble_only_after_its_grace() -> None:
    limit = 10_000 + stored_segments.UPLOAD_GRACE_MS
    assert not explained("upload-waits", upload_lag_ms=limit)["upload-waits"].mend
    late = explained("upload-waits", upload_lag_ms=limit + 1)["upload-waits"]
    assert "remote.log.manager.copier.thread.pool.size" in late.mend


def test_offset_outside_of_the_log_is_in_no_segment() -> None:
    place = DescribeLogDirsPartition(0, 0, local_start=20, log_end=100)
    assert explain_no_segment("t/0", 5, place).sentence.endswith("is in no segment: its log goes from 20 to 100")
    place.leader = [ReportedLeader(log_start=10)]
    assert explain_no_segment("t/0", 5, place).values == {"log_start_offset": 10, "log_end_offset": 100}


def test_cleaned_segment_says_so() -> None:
    segment = ReportedSegment(0, 5, 100, NOW, NOW, "", "k", NOW, True)
    found = [each.code for each in explain_segment(SegmentFacts("t/0", segment, (), None, 0))]
    assert found == ["in-bucket", "cleaned-segment"]


def test_segment_that_waits_for_a_transaction_names_it() -> None:
    state = leader(producer_id=7, transaction_start=15, transaction_since_ms=NOW, last_stable=15)
    held = HeldPartition(TopicPartition("t", 0), state, HoldingTransaction("pay", "Ongoing", 60_000))
    segment = ReportedSegment(10, 20, 100, NOW, NOW, "a transaction is open", "", -1)
    segment.why_code = stored_segments.OPEN_TRANSACTION
    waits, named = list(explain_segment(SegmentFacts("t/0", segment, (1,), state, 10_000, held)))[-2:]
    assert "a transaction is open" in waits.sentence and not waits.mend
    assert "(transactional id pay)" in named.sentence and "`tiered transaction abort pay`" in named.mend
