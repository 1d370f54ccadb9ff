"""Tests of what an explanation of a partition says: one for each cause."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.explanation.partition_rig import NOW, explained, follower, leader, partition, transaction
from tiered.broker.stored_segments import UPLOAD_GRACE_MS
from tiered.metadata.parts.topics import Loss, PartitionImage
from tiered_api.explanation.partition import HELD_MS, explain_partition

LEADERLESS: dict[str, Any] = {"leader": -1, "live": frozenset({3})}


def test_healthy_partition_says_its_leader_and_nothing_is_a_trouble() -> None:
    found = explained()
    assert found["leader"].sentence == "broker 1 leads partition t/0, and 3 of 3 replicas are in sync"
    assert found["high-watermark"].sentence == "all records below 100 are committed"
    assert found.keys() == {"leader", "high-watermark", "in-bucket"}
    assert not any(each.mend for each in found.values())
    assert (
        found["in-bucket"].sentence
        == "the bucket has the records below offset 30, and no closed segment waits for upload"
    )


def test_partition_without_leader_says_who_may_lead_and_who_has_copies() -> None:
    found = explained(leader=-1, isr=(1,), elr=(2,), live=frozenset({3}), problems=("leaderless",), why="waits for 1")
    cause = found["leaderless"]
    assert cause.sentence == "partition t/0 has no leader: waits for 1" and cause.values["eligible"] == [2]
    assert cause.mend.startswith("see if brokers 1 or 2 run: start them again, and kill a process that hangs first. If")
    assert "UNCLEAN" in cause.mend
    assert found["copy"].values == {"broker": 3, "local_start_offset": 0, "log_end_offset": 100}
    assert "high-watermark" not in found


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("leaderless", "has no leader since 2023-11-14T22:13:20+00:00: x"),
        ("under-min-ISR", "refuses acks=all since 2023-11-14T22:13:20+00:00: x"),
        ("under-replicated", "has replicas that are not in sync since 2023-11-14T22:13:20+00:00, and writes go on: x"),
    ],
)
def test_problem_of_a_partition_says_since_when(problem: str, words: str) -> None:
    cause = explained(problems=(problem,), why="x", since_ms=NOW)[problem.lower()]
    assert cause.sentence == f"partition t/0 {words}" and cause.values["since_ms"] == NOW
    twice = explained(problems=(problem,), why="acks=all is refused: x", since_ms=NOW)[problem.lower()]
    assert twice.sentence == cause.sentence
    assert explained(problems=(problem,), why="x")[problem.lower()].values["since_ms"] is None


def test_election_among_live_brokers_needs_no_act() -> None:
    found = explained(leader=-1, isr=(1, 2), problems=("leaderless",), why="an election is due")["leaderless"]
    assert found.mend.startswith("the controller elects a leader by itself")


def test_partition_whose_last_members_are_gone_waits_for_all_of_them() -> None:
    found = explained(leader=-1, isr=(), last_known=(1, 2), live=frozenset({3}), problems=("leaderless",), why="waits")
    assert found["leaderless"].mend.startswith("see if brokers 1 and 2 run: ")


def test_copy_of_a_process_names_its_machine() -> None:
    found = explained(leader=-1, problems=("leaderless",), live=frozenset({3}), machines={3: 1}, why="waits")
    assert found["copy"].sentence == "the disk of broker 3 of machine 1 has offsets from 0 to 100"


def test_copy_of_a_silent_broker_is_not_known() -> None:
    found = explained(
        leader=-1, problems=("leaderless",), places={2: "broker 2 is not live"}, live=frozenset(), why="waits"
    )
    assert "the disk of broker 2 has is not known: broker 2 is not live" in found["copy-unknown"].sentence


def test_partition_under_min_isr_says_who_is_missing_and_since_when() -> None:
    behind = follower(2, 40, caught_up_ms=NOW - 60_000, fetched_ms=NOW - 1_000)
    found = explained(
        isr=(1,), min_isr=2, live=frozenset({1, 2}), problems=("under-min-ISR", "under-replicated"), why="1 in sync",
        followers=[behind, follower(3, 0)], high_watermark=40,
    )  # fmt: skip
    assert found["under-min-isr"].sentence == "partition t/0 refuses acks=all: 1 in sync"
    assert found["under-min-isr"].mend.startswith(
        "see if broker 3 runs: start it again, and kill a process that hangs first; wait for broker 2; or move the"
    )
    assert "lower min.insync.replicas" in found["under-min-isr"].mend
    held = found["high-watermark-held"]
    assert held.sentence.endswith("it moves only with 2 replicas in sync (min.insync.replicas), and 1 are")
    assert held.values["missing"] == [2, 3] and "see if broker 3 runs" in held.mend
    facts = partition(isr=(1,), followers=[behind, follower(3, 0)])
    first, second = [each for each in explain_partition(facts) if each.code == "follower-behind"]
    assert "lacks 60 records, and fetched last at 2023-11-14T22:13:19+00:00" in first.sentence
    assert first.sentence.endswith("it had all records at 2023-11-14T22:12:20+00:00")
    assert "broker 3 has not fetched since broker 1 leads (2023-11-14T21:13:20+00:00)" in second.sentence


def test_partition_with_too_few_replicas_names_the_broker_to_start() -> None:
    found = explained(isr=(1, 2), live=frozenset({1, 2}), problems=("under-replicated",), why="broker 3 is fenced")
    assert found["under-replicated"].sentence.startswith(
        "partition t/0 has replicas that are not in sync, and writes go on: broker 3"
    )
    assert found["under-replicated"].mend.startswith("see if broker 3 runs: start it again, and kill a process that")
    clean = explained(isr=(1, 2), live=frozenset({1, 2}), stopped=frozenset({3}), problems=("under-replicated",))
    assert clean["under-replicated"].mend == "start broker 3 again; or move the replicas (`tiered cluster reassign`)"
    waits = explained(isr=(1, 2), problems=("under-replicated",), why="3 is not in sync yet")["under-replicated"]
    assert waits.mend.startswith("wait for broker 3")


def test_follower_on_a_full_disk_needs_room() -> None:
    late = follower(3, 60, caught_up_ms=NOW - HELD_MS)
    facts: dict[str, Any] = {"full_disks": frozenset({3}), "followers": [follower(2, 100, NOW), late]}
    out = explained(isr=(1, 2), problems=("under-replicated",), why="the disk of broker 3 is full", **facts)
    assert out["under-replicated"].mend.startswith("give the disk of broker 3 room; or move")
    assert out["follower-behind"].mend == "give the disk of broker 3 room"
    held = explained(high_watermark=60, **facts)["high-watermark-held"]
    assert held.mend.startswith("give the disk of broker 3 room; replica.lag.time.max.ms"), "while it is in the ISR"


def test_follower_that_lacks_no_record_and_fetches_needs_nothing() -> None:
    def mend(fetched_ms: int, offset: int = 100) -> str:
        late = follower(3, offset, fetched_ms=fetched_ms)
        return explained(isr=(1, 2), followers=[follower(2, 100, NOW), late])["follower-behind"].mend

    assert not mend(NOW - 30_000)
    equal = explained(isr=(1, 2), followers=[follower(3, 100, caught_up_ms=NOW)])["follower-behind"]
    assert equal.sentence == "broker 3 has all records, and fetched last at 2023-11-14T22:13:20+00:00"
    assert "look at the log, the disk" in mend(NOW - 30_001) and "look at the log" in mend(NOW, 99)


def test_silent_leader_is_a_trouble() -> None:
    found = explained(places={1: "broker 1 does not reply: no route"})
    assert "no route" in found["leader-silent"].sentence and "tiered cluster brokers" in found["leader-silent"].mend


def test_high_watermark_names_the_follower_that_it_waits_for() -> None:
    slow = [follower(2, 100), follower(3, 60, caught_up_ms=NOW - HELD_MS - 1)]
    held = explained(high_watermark=60, followers=slow)["high-watermark-held"]
    assert held.sentence.endswith("40 records above it are not committed: broker 3 has not fetched them for 2 s")
    assert "replica.lag.time.max.ms=30000" in held.mend and held.values["followers"] == [3]
    quick = [follower(2, 100), follower(3, 60, caught_up_ms=NOW - HELD_MS)]
    short = explained(high_watermark=60, followers=quick)["high-watermark-held"]
    assert short.sentence.endswith(": broker 3 has to fetch them") and not short.mend


def test_follower_outside_of_the_isr_holds_no_high_watermark() -> None:
    followers = [follower(2, 10, caught_up_ms=NOW - 60_000), follower(3, 60, caught_up_ms=NOW - 60_000)]
    held = explained(isr=(1, 3), high_watermark=60, followers=followers)["high-watermark-held"]
    assert held.values["followers"] == [3] and "broker 3 has not fetched them for 60 s" in held.sentence


def test_damaged_objects_name_the_proof_of_the_bucket() -> None:
    found = explained(damaged=["T: object x is missing"])["damaged"]
    assert found.sentence == "cold reads of t/0 fail, last at T: object x is missing"
    assert "tiered cold verify" in found.mend


def test_high_watermark_waits_for_an_fsync_or_a_change_of_the_isr() -> None:
    found = explained(high_watermark=60, position=60, followers=[follower(2, 100), follower(3, 100)])
    assert found["high-watermark-fsync"].sentence.endswith("they wait for an fsync of the leader (flush=ack)")
    other = explained(high_watermark=60, followers=[follower(2, 100), follower(3, 100)])
    assert "a change of the ISR is under way" in other["high-watermark-isr"].sentence


def test_open_transaction_says_its_producer_its_start_and_its_timeout() -> None:
    held = transaction(last_stable=70, transactional_id="orders", timeout_ms=60_000)["open-transaction"]
    assert "producer id 7 (transactional id orders) is open since 2023-11-14T22:13:10+00:00" in held.sentence
    assert held.sentence.endswith("with a timeout of 60 s") and "`tiered transaction abort orders`" in held.mend
    assert held.values["since_ms"] == NOW - 10_000 and held.values["timeout_ms"] == 60_000
    unknown = transaction(last_stable=70)["open-transaction"]
    assert "transactional id" not in unknown.sentence and "`tiered transaction list`" in unknown.mend


def test_hanging_transaction_names_the_command_that_aborts_it() -> None:
    held = transaction(last_stable=70, is_hanging=True)["hanging-transaction"]
    assert "no coordinator will end it" in held.sentence
    assert "`tiered transaction abort -t t -p 0 --start-offset 70`" in held.mend


def test_marker_that_is_not_committed_holds_the_last_stable_offset() -> None:
    assert "the marker of the last transaction" in explained(last_stable=70)["marker-uncommitted"].sentence


def test_uploads_that_fail_or_are_late_are_troubles() -> None:
    assert explained(upload_problem="403")["upload-fails"].sentence == "tiering of t/0 fails: 403"
    away = explained(upload_problem="403", outage="store unreachable since T", outage_why="x", upload_lag_ms=10**6)
    assert "bucket-away" in away and not {"upload-fails", "uploads-behind"} & away.keys()
    late = explained(upload_lag_ms=10_000 + UPLOAD_GRACE_MS + 1)["uploads-behind"]
    assert "tiered.upload.max.lag.ms is 10000" in late.sentence and "thread.pool.size" in late.mend
    held = explained(upload_lag_ms=10**6, last_stable=70)["uploads-behind"]
    assert "tiered transaction" in held.mend


def test_topic_without_tier_says_its_settings() -> None:
    assert "remote.storage.enable" in explained(copies_to_bucket=False)["tier-off"].sentence


def test_disk_of_the_leader_is_named() -> None:
    found = explained(disk_problem="disk full since T")["disk"]
    assert found.sentence == "broker 1: disk full since T" and "tiered cluster decommission" in found.mend


def test_possible_loss_and_move_are_named() -> None:
    found = explained(loss=Loss(3, 50, NOW), adding=(4,), removing=(3,))
    assert "may be gone from offset 50 on" in found["possible-loss"].sentence
    assert "tiered cluster losses" in found["possible-loss"].mend
    assert found["move"].values == {"adding": [4], "removing": [3]}


def test_facts_without_a_reply_have_no_leader() -> None:
    facts = partition(places={1: "x"})
    assert facts.leader is None and facts.leader_place is None and isinstance(facts.image, PartitionImage)
    assert partition().leader == leader()


def test_outage_that_another_broker_sees_is_named_once() -> None:
    found = explained(bucket_away="requests to the bucket fail since T, says broker 2")
    assert found["bucket-away"].sentence.endswith("says broker 2") and "mend the bucket" in found["bucket-away"].mend
    own = explained(bucket_away="fail since T", outage="store unreachable since T", outage_why="x")
    assert own["bucket-away"].sentence == "store unreachable since T (x)"
