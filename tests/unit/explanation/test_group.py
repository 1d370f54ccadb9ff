"""Tests of what an explanation of a group says: one for each cause."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.explanation.partition_rig import leader
from tiered.groups.requests import GroupProgress
from tiered.ids import TopicPartition
from tiered_api.explanation.cause import LISTED_MAX, Cause
from tiered_api.explanation.group import (
    GroupFacts,
    GroupMember,
    GroupPosition,
    explain_coordinator,
    explain_group,
)
from tiered_api.explanation.transaction import HeldPartition, HoldingTransaction

NOW = 1_700_000_000_000
TP = TopicPartition("t", 0)
MEMBER = GroupMember("m-1", "app", "/10.0.0.1", 1)


def position(**changes: Any) -> GroupPosition:
    usual: dict[str, Any] = {"committed": 100, "log_start": 0, "local_start": 0, "end": 100, "owner": MEMBER}
    return GroupPosition(TP, **usual | changes)


def explained(**changes: Any) -> dict[str, Cause]:
    usual: dict[str, Any] = {
        "group": "g", "coordinator": 1, "state": "Stable", "progress": GroupProgress(NOW - 60_000, "", 300_000),
        "members": [MEMBER], "positions": [position()], "now_ms": NOW,
    }  # fmt: skip
    return {each.code: each for each in explain_group(GroupFacts(**usual | changes))}


def test_group_that_has_read_everything_has_no_trouble() -> None:
    found = explained()
    assert found["state"].sentence.startswith("group g is Stable since 2023-11-14T22:12:20+00:00 with 1 member,")
    assert found.keys() == {"state", "no-lag"} and not any(each.mend for each in found.values())


def test_empty_group_says_since_when() -> None:
    found = explained(state="Empty", members=[], positions=[position(committed=90)])
    assert found["empty"].sentence == "group g has no members since 2023-11-14T22:12:20+00:00"
    assert found["empty"].mend == "start its consumers" and found["lag"].mend == "start its consumers"


@pytest.mark.parametrize(
    ("state", "words"), [("PreparingRebalance", "max.poll.interval.ms"), ("CompletingRebalance", "SyncGroup")]
)
def test_rebalance_names_the_member_that_has_not_come(state: str, words: str) -> None:
    progress = GroupProgress(NOW - 60_000, "a new member", 300_000, ("m-1", "m-2"))
    found = explained(state=state, progress=progress)["rebalancing"]
    assert "group g rebalances since 2023-11-14T22:12:20+00:00 (a new member): member m-1 of /10.0.0.1, m-2 has" in (
        found.sentence
    )
    assert words in found.mend
    assert found.mend.endswith(
        "the rebalance ends at the session timeout if it sends no heartbeats, else at its timeout of 5 min"
    )
    assert found.values["awaited"] == ["m-1", "m-2"]


def test_rebalance_that_waits_for_nobody_is_no_trouble() -> None:
    progress = GroupProgress(NOW, "", 0, (), 2)
    found = explained(state="PreparingRebalance", progress=progress)["rebalancing"]
    assert found.sentence.endswith("and waits for 2 new members to join") and not found.mend
    assert not explained(state="PreparingRebalance", progress=None)["rebalancing"].mend


def test_members_without_partitions_are_named() -> None:
    members = [MEMBER, GroupMember("m-2", "app", "/10.0.0.2", 0), GroupMember("m-3", "x", "/h", None)]
    found = explained(members=members)["idle-members"]
    assert found.sentence == "1 of 3 members have no partitions: app of /10.0.0.2"
    assert "tiered topic add-partitions" in found.mend
    assert "idle-members" not in explained(members=members, state="PreparingRebalance")


def test_lag_is_named_by_partition_with_its_age_the_oldest_first() -> None:
    positions = [
        position(committed=90, oldest_ms=NOW - 10_000),
        position(committed=50, oldest_ms=NOW - 600_000)._replace(tp=TopicPartition("t", 1)),
    ]
    facts = GroupFacts("g", 1, "Stable", None, [MEMBER], positions, NOW)
    first, second = [each for each in explain_group(facts) if each.code == "lag"]
    held_by = " (member app of /10.0.0.1)"
    assert first.sentence == f"50 records of partition t/1 not read yet, the oldest for 10 min{held_by}"
    assert second.sentence == f"10 records of partition t/0 not read yet, the oldest for 10 s{held_by}"
    assert first.mend.startswith("if the committed offset 50 stays, look at member app of /10.0.0.1: ")
    assert first.mend.endswith("if the offset moves and the lag grows, add consumers up to the number of partitions")
    assert not second.mend, "a young lag is no trouble"
    assert "the oldest" not in explained(positions=[position(committed=90, oldest_ms=NOW - 999)])["lag"].sentence


def test_committed_offset_below_the_start_names_the_reset() -> None:
    found = explained(positions=[position(committed=10, log_start=40)])
    assert "committed offset 10 of partition t/0 is below the log start 40" in found["offset-below-start"].sentence
    assert "`tiered group seek g` --to start" in found["offset-below-start"].mend and found["lag"].values["lag"] == 60
    assert "offset-below-start" not in explained(positions=[position(committed=40, log_start=40)])


def test_committed_offset_above_the_end_names_the_seek() -> None:
    found = explained(positions=[position(committed=101)])["offset-beyond-end"]
    assert "above the log end 100" in found.sentence and "--to end" in found.mend
    assert "offset-beyond-end" not in explained(positions=[position(committed=100)])


def test_cold_read_names_where_the_disk_begins() -> None:
    found = explained(positions=[position(committed=10, local_start=50)])["cold-read"]
    assert "reads partition t/0 from the bucket: the leader's disk begins at 50" in found.sentence
    assert "local.retention.ms" in found.mend
    assert "cold-read" not in explained(positions=[position(committed=50, local_start=50)])
    assert "cold-read" not in explained(positions=[position(committed=10, log_start=20, local_start=50)])


def test_partition_without_leader_or_topic_is_named() -> None:
    unknown = explained(positions=[position(end=None, log_start=None, local_start=None)])["end-unknown"]
    assert unknown.mend == "see `tiered explain partition t 0`"
    gone = explained(positions=[position(end=None, log_start=None, local_start=None, is_topic_there=False)])
    assert "`tiered group offset-delete g -t t`" in gone["topic-gone"].mend and "end-unknown" not in gone


def test_group_without_offsets_says_how_many_are_hidden() -> None:
    assert explained(positions=[], hidden=2)["no-offsets"].values == {"hidden": 2}


def test_long_lists_are_cut() -> None:
    positions = [position(committed=90)._replace(tp=TopicPartition("t", n)) for n in range(LISTED_MAX + 5)]
    facts = GroupFacts("g", 1, "Stable", None, [MEMBER], positions, NOW)
    lags = [each for each in explain_group(facts) if each.code == "lag"]
    assert len(lags) == LISTED_MAX + 1 and lags[-1].sentence.startswith("and 5 more partitions")


def test_moving_coordinator_is_a_trouble_with_its_reason() -> None:
    found = explain_coordinator("g", "broker 2 does not reply")
    assert "broker 2 does not reply" in found.sentence and "__consumer_offsets" in found.mend


def held(**changes: Any) -> HeldPartition:
    state = leader(producer_id=7, transaction_start=90, transaction_since_ms=NOW - 600_000, last_stable=90)
    return HeldPartition(TP, state, HoldingTransaction("pay", "Ongoing", 840_000, **changes))


def test_group_at_the_last_stable_offset_names_the_open_transaction() -> None:
    stopped = position(committed=90, last_stable=90, oldest_ms=NOW - 600_000)
    found = explained(positions=[stopped], held=[held()])
    assert "(transactional id pay) is open since" in found["open-transaction"].sentence
    assert "stop at offset 90 of partition t/0" in found["open-transaction"].sentence
    assert "`tiered transaction abort pay` ends it now" in found["open-transaction"].mend
    assert "stop at 90, for a transaction that is open" in found["lag"].sentence and not found["lag"].mend
    hanging = explained(positions=[stopped], held=[held(is_hanging=True)])
    assert "-t t -p 0 --start-offset 90" in hanging["hanging-transaction"].mend
    assert "`tiered explain partition t 0`" in explained(positions=[stopped])["lag"].mend, "its leader did not reply"


def test_group_below_the_last_stable_offset_is_slow_too() -> None:
    slow = position(committed=10, last_stable=90, oldest_ms=NOW - 600_000)
    found = explained(positions=[slow], held=[held()])
    assert "get those below 90, where a transaction is open" in found["lag"].sentence and found["lag"].mend
    assert found["open-transaction"].mend


def test_group_above_the_last_stable_offset_is_not_held() -> None:
    assert not position(committed=91, last_stable=90).is_held, "it reads uncommitted records"
    assert not position(committed=90, last_stable=100).is_held
    assert not position(committed=90, last_stable=None).is_held
    found = explained(positions=[position(committed=95, last_stable=90, oldest_ms=NOW - 600_000)])
    assert found["lag"].mend and "transaction" not in found["lag"].sentence


def test_partitions_with_transactions_that_are_not_looked_up_are_counted() -> None:
    stopped = [position(committed=90, last_stable=90)._replace(tp=TopicPartition("t", n)) for n in range(3)]
    found = explained(positions=stopped, held=[held()])["open-transaction"]
    assert found.sentence == "and 2 more partitions with a transaction that is open" and "list" in found.mend


def test_partition_without_committed_offset_counts_from_the_log_start() -> None:
    never = position(committed=None, log_start=10, oldest_ms=NOW - 600_000)
    facts: dict[str, Any] = {"positions": [never], "progress": GroupProgress(NOW - 60_000, "", 300_000)}
    found = explained(**facts)
    assert found["lag"].sentence.startswith(
        "90 records of partition t/0 not read yet, the oldest for 10 min: no commit"
    )
    assert "the log start 10 counts (member app of /10.0.0.1)" in found["lag"].sentence
    assert "look at member app of /10.0.0.1, which commits nothing" in found["lag"].mend
    assert "auto.offset.reset" in found["lag"].mend and "add consumers" not in found["lag"].mend
    assert "no-offsets" in found and not {"offset-below-start", "cold-read"} & found.keys()
    young = explained(**facts | {"progress": GroupProgress(NOW - 59_000, "", 300_000)})
    assert not young["lag"].mend, "the member has had no time to commit"
    assert "no-offsets" not in explained(positions=[never, position()])


def test_group_without_commits_at_an_open_transaction_is_held() -> None:
    never = position(committed=None, log_start=90, last_stable=90, oldest_ms=NOW - 600_000)
    found = explained(positions=[never], held=[held()])
    assert found["open-transaction"].mend and not found["lag"].mend


def test_lag_of_a_partition_that_no_member_has_names_the_subscription() -> None:
    left = position(committed=50, owner=None, oldest_ms=NOW - 600_000)
    assert "no member has the partition" in explained(positions=[left])["lag"].mend
    assert not explained(positions=[left], state="PreparingRebalance")["lag"].mend, "the rebalance assigns it"
