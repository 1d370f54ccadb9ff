"""Tests of what a fetch gets at an offset: from which tier, and what bounds it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.explanation.partition_rig import follower, partition
from tiered.quotas.precedence import Limit
from tiered_api.explanation.cause import Cause
from tiered_api.explanation.fetch import FetchFacts, explain_fetch
from tiered_api.kafka.protocol.messages.describe_log_dirs import DescribeLogDirsPartition


def explained(
    offset: int, *, committed: bool = True, limits: tuple[Limit, ...] = (), selects: bool = False, **changes: Any
) -> dict[str, Cause]:
    facts = FetchFacts(partition(**changes), offset, committed, limits, selects)
    return {each.code: each for each in explain_fetch(facts)}


@pytest.mark.parametrize(
    ("offset", "code", "words"),
    [
        (5, "below-start", "below the log start 10"),
        (15, "from-bucket", "broker 1 answers from the bucket: its disk begins at offset 20"),
        (20, "from-disk", "broker 1 answers from its disk, up to the last stable offset 100"),
        (99, "from-disk", "broker 1 answers from its disk"),
        (100, "waits", "a fetch at 100 waits for records: the last stable offset is 100"),
        (101, "above-end", "above the log end 100"),
    ],
)
def test_offset_decides_which_tier_answers(offset: int, code: str, words: str) -> None:
    found = explained(offset, log_start=10)
    assert words in found[code].sentence
    assert bool(found[code].mend) == (code in ("below-start", "above-end"))


def test_fetch_of_cold_records_fails_while_the_bucket_is_away() -> None:
    found = explained(15, outage="store unreachable since T", outage_why="x")
    assert "broker 1 cannot answer now: store unreachable since T (x)" in found["bucket-away"].sentence
    assert found["bucket-away"].mend and "from-bucket" not in found
    assert "from-disk" in explained(50, outage="store unreachable since T")


def test_fetch_of_cold_records_names_an_outage_that_other_brokers_see() -> None:
    """The leader has made no request to the bucket yet."""
    seen = "requests to the bucket fail since T, says broker 2"
    found = explained(15, bucket_away=seen)
    assert found["bucket-away"].sentence == seen and found["bucket-away"].mend
    assert "bucket-away" not in explained(50, bucket_away=seen), "the disk has these records"


def test_fetch_at_the_bound_says_what_holds_the_bound() -> None:
    held = explained(60, high_watermark=60, followers=[follower(2, 60), follower(3, 100)])
    assert held.keys() == {"waits", "high-watermark-held"}
    open_txn: dict[str, Any] = {"last_stable": 70, "producer_id": 7, "transaction_start": 70, "transaction_since_ms": 1}
    assert "open-transaction" in explained(80, **open_txn)
    assert explained(80, committed=False, **open_txn).keys() == {"from-disk"}


def test_fetch_below_a_clean_passes_over_removed_offsets() -> None:
    facts = partition()
    place = facts.places[1]
    assert isinstance(place, DescribeLogDirsPartition)
    place.cleaned_to = 50
    found = {each.code: each for each in explain_fetch(FetchFacts(facts, 40, True))}
    assert found["cleaned-log"].values == {"cleaned_to_offset": 50}
    assert "cleaned-log" not in {each.code for each in explain_fetch(FetchFacts(facts, 50, True))}


def test_quota_of_the_client_is_named() -> None:
    found = explained(50, limits=(Limit(1000.0, "alice", "", "consumer_byte_rate"),))["quota"]
    assert found.sentence == "fetches of user alice wait above 1000 bytes a second (consumer_byte_rate)"
    both = explained(50, limits=(Limit(1e6, "alice", "app", "consumer_byte_rate"),))["quota"]
    assert "user alice and client id app wait above 1e+06" in both.sentence
    store = explained(50, limits=(Limit(5.0, "", "", "store_request_rate"),))["quota"]
    assert store.sentence == "fetches of each client wait above 5 requests to the bucket a second (store_request_rate)"


def test_fetch_from_the_bucket_names_damaged_objects() -> None:
    assert "damaged" in explained(15, damaged=["T: object x is missing"])
    assert "damaged" not in explained(50, damaged=["T: object x is missing"])


def test_consumer_with_a_rack_may_read_from_a_follower() -> None:
    assert "nearest-replica" not in explained(50)
    found = explained(50, selects=True)["nearest-replica"]
    assert "a consumer with client.rack may be sent to a follower: brokers 2 or 3" in found.sentence
    assert "nearest-replica" not in explained(50, selects=True, isr=(1,), followers=[])


def test_fetch_without_leader_says_why_there_is_none() -> None:
    found = explained(50, leader=-1, problems=("leaderless",), why="waits for 1", live=frozenset({3}))
    assert "leaderless" in found and "from-disk" not in found
