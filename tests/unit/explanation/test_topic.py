"""Tests of what an explanation of a topic says: its settings with their sources, its tiers, its health."""

from __future__ import annotations

from typing import Any

from tests.unit.explanation.partition_rig import leader
from tiered.config.settings import TopicConfig
from tiered.ids import TopicPartition
from tiered_api.explanation.cause import LISTED_MAX, Cause
from tiered_api.explanation.topic import PartitionTiers, TopicFacts, TopicSetting, explain_topic
from tiered_api.explanation.transaction import HeldPartition, HoldingTransaction
from tiered_api.health.verdict import EligibleReplicas, UnhealthyPartition

SETTINGS = {
    "cleanup.policy": TopicSetting("delete", "DEFAULT_CONFIG"),
    "retention.ms": TopicSetting("1000", "DYNAMIC_TOPIC_CONFIG"),
    "retention.bytes": TopicSetting("-1", "DEFAULT_CONFIG"),
    "remote.storage.enable": TopicSetting("false", "DYNAMIC_TOPIC_CONFIG"),
}


def explained(
    tiers: list[PartitionTiers] | None = None,
    unhealthy: tuple[UnhealthyPartition, ...] = (),
    held: tuple[HeldPartition, ...] = (),
    bucket_away: str = "",
    **config: Any,
) -> dict[str, Cause]:
    found = [PartitionTiers(0, 100, 100, 0, 5, 5)] if tiers is None else tiers
    facts = TopicFacts("t", TopicConfig(**config), SETTINGS, found, unhealthy, held, bucket_away)
    return {each.code: each for each in explain_topic(facts)}


def test_topic_says_the_settings_that_delete_records_and_their_sources() -> None:
    found = explained()
    assert found["retention"].sentence == (
        "records are deleted by retention.ms=1000 (dynamic_topic): cleanup.policy=delete (default)"
    )
    assert found["all-in-bucket"].values["cold_bytes"] == 5 and "local-retention" in found
    assert not any(each.mend for each in found.values())


def test_compacted_topic_says_when_it_is_cleaned() -> None:
    found = explained(cleanup_policy=("compact",))
    assert "keeps the last record of each key" in found["compaction"].sentence and "retention" not in found
    assert "no record is deleted or cleaned" in explained(cleanup_policy=())["kept"].sentence


def test_topic_names_what_is_not_in_the_bucket() -> None:
    tiers = [PartitionTiers(0, 40, 100, 0), PartitionTiers(1, None, 10, 5), PartitionTiers(2, 7, 7, 0)]
    found = explained(tiers)["not-in-bucket"]
    assert found.sentence.startswith("65 committed records in 2 partitions are not in the bucket")
    assert found.values["partitions"] == {"0": 60, "1": 5} and not found.mend


def test_topic_without_tier_names_the_setting_that_copies() -> None:
    off = explained(remote_storage_enable=False)["tier-off"]
    assert "remote.storage.enable=false (dynamic_topic)" in off.sentence
    assert "`tiered topic alter t -s remote.storage.enable=true`" in off.mend
    assert "-s remote.log.copy.disable=false" in explained(remote_log_copy_disable=True)["tier-off"].mend


def test_unhealthy_partitions_and_silent_leaders_are_named() -> None:
    lacking = [
        UnhealthyPartition("t", n, ("leaderless",), -1, (1,), (), EligibleReplicas(), 1, "waits")
        for n in range(LISTED_MAX + 2)
    ]
    found = explained([PartitionTiers(0, error="no broker leads it")], tuple(lacking))
    assert found["unhealthy"].sentence == "and 2 more partitions lack a leader or replicas"
    assert "no broker leads it" in found["leader-silent"].sentence and "healthy" not in found
    assert found["leader-silent"].mend == "see `tiered explain partition t 0`"
    assert explained()["healthy"].sentence == "topic t has 1 partition, each with its leader and replicas"


def test_topic_that_goes_to_the_bucket_names_an_outage() -> None:
    assert explained(bucket_away="fail since T")["bucket-away"].mend.startswith("mend the bucket")
    assert "bucket-away" not in explained(bucket_away="fail since T", remote_storage_enable=False)


def test_topic_names_the_open_transaction_that_holds_a_partition() -> None:
    state = leader(producer_id=7, transaction_start=90, transaction_since_ms=0, last_stable=90)
    held = HeldPartition(TopicPartition("t", 0), state, HoldingTransaction("pay", "Ongoing", 840_000))
    tiers = [PartitionTiers(number, 100, 100, 0, last_stable=90) for number in range(2)]
    found = explained(tiers[:1], held=(held,))["open-transaction"]
    assert "stop at offset 90 of partition t/0" in found.sentence and "transaction abort pay" in found.mend
    assert "and 1 more partition with" in explained(tiers, held=(held,))["open-transaction"].sentence
    assert "open-transaction" not in explained([PartitionTiers(0, 100, 100, 0, last_stable=101)]), "two moments"
