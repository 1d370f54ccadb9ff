"""Facts of one partition with three replicas, healthy but for what a test changes."""

from __future__ import annotations

from typing import Any

from tiered.ids import TopicPartition
from tiered.metadata.parts.topics import PartitionImage
from tiered_api.explanation.cause import Cause
from tiered_api.explanation.partition import PartitionFacts, explain_partition
from tiered_api.explanation.transaction import HoldingTransaction
from tiered_api.health.verdict import EligibleReplicas, UnhealthyPartition
from tiered_api.kafka.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    ReportedFollower,
    ReportedLeader,
)

NOW = 1_700_000_000_000
IMAGE = ("leader", "isr", "elr", "last_known", "adding", "removing")
FACTS = (
    "min_isr",
    "copies_to_bucket",
    "transaction",
    "loss",
    "live",
    "stopped",
    "full_disks",
    "machines",
    "bucket_away",
    "since_ms",
)


def follower(node: int, offset: int, caught_up_ms: int = -1, fetched_ms: int = -1) -> ReportedFollower:
    return ReportedFollower(node, offset, caught_up_ms, max(fetched_ms, caught_up_ms))


def leader(**changes: Any) -> ReportedLeader:
    """Returns the state of a leader whose followers have all of its 100 records."""
    usual: dict[str, Any] = {
        "log_start": 0, "cold_end": 30, "last_stable": 100, "high_watermark": 100, "position": 100,
        "led_since_ms": NOW - 3_600_000, "producer_id": -1, "followers": [follower(2, 100, NOW), follower(3, 100, NOW)],
    }  # fmt: skip
    if "high_watermark" in changes:
        usual["last_stable"] = changes["high_watermark"]
    return ReportedLeader(**usual | changes)


def partition(
    places: dict[int, Any] | None = None, problems: tuple[str, ...] = (), why: str = "", **changes: Any
) -> PartitionFacts:
    image: dict[str, Any] = {"leader": 1, "isr": (1, 2, 3)} | {
        name: changes.pop(name) for name in IMAGE if name in changes
    }
    facts: dict[str, Any] = {"min_isr": 1, "copies_to_bucket": True, "live": frozenset({1, 2, 3})}
    facts |= {name: changes.pop(name) for name in FACTS if name in changes}
    part = PartitionImage((1, 2, 3), **image)
    found: dict[int, DescribeLogDirsPartition | str] = {
        node: DescribeLogDirsPartition(0, 1_000, local_start=0, log_end=100) for node in facts["live"]
    }
    if part.leader in found:
        place = found[part.leader]
        assert isinstance(place, DescribeLogDirsPartition)
        place.leader = [leader(**changes)]
        place.local_start, place.cleaned_to = 20, 0
    unhealthy = None
    if problems:
        unhealthy = UnhealthyPartition(
            "t", 0, problems, part.leader, part.replicas, part.isr, EligibleReplicas(part.elr), facts["min_isr"], why
        )
    return PartitionFacts(
        TopicPartition("t", 0), part, found | (places or {}), lag_max_ms=30_000, upload_max_lag_ms=10_000, now_ms=NOW,
        unhealthy=unhealthy, **facts,
    )  # fmt: skip


def explained(**changes: Any) -> dict[str, Cause]:
    """Returns the causes by their codes; of several with one code, the last."""
    return {each.code: each for each in explain_partition(partition(**changes))}


def transaction(last_stable: int, **found: Any) -> dict[str, Cause]:
    """Returns the causes while a transaction of producer id 7 is open for ten seconds."""
    return explained(
        last_stable=last_stable, producer_id=7, transaction_start=last_stable, transaction_since_ms=NOW - 10_000,
        transaction=HoldingTransaction(**found),
    )  # fmt: skip
