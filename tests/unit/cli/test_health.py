"""Whether a cluster is well, judged by its metadata."""

from __future__ import annotations

import json

import pytest

from tiered_api.cli.cluster import judged, say_health
from tiered_api.cli.exits import Exit
from tiered_api.kafka.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def cluster(*partitions: tuple[int, list[int], list[int]], controller: int = 1) -> MetadataResponse:
    """Brokers 1 and 2, and a topic whose partitions have leader, replicas and those in sync."""
    made = [
        MetadataResponsePartition(partition_index=number, leader_id=leader, replica_nodes=replicas, isr_nodes=isr)
        for number, (leader, replicas, isr) in enumerate(partitions)
    ]
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=node) for node in (1, 2)],
        controller_id=controller,
        topics=[MetadataResponseTopic(name="t", partitions=made)],
    )


@pytest.mark.parametrize(
    ("metadata", "reasons"),
    [
        (cluster((1, [1, 2], [1, 2]), (2, [2], [2])), []),
        (cluster((-1, [1, 2], [1, 2])), ["leaderless partitions"]),
        (cluster((1, [1, 2], [1])), ["under-replicated partitions"]),
        (cluster((3, [3], [3])), ["nodes down", "leaderless partitions"]),
        (cluster((1, [1, 3], [1])), ["nodes down", "under-replicated partitions"]),
        (cluster(controller=-1), ["no controller"]),
    ],
)
def test_every_partition_has_its_leader_and_its_replicas(metadata: MetadataResponse, reasons: list[str]) -> None:
    found = judged(metadata)
    assert (found["healthy"], found["reasons"]) == (not reasons, reasons)


def test_what_is_not_well_is_named_and_has_an_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    found = judged(cluster((1, [1], [1]), (3, [3, 2], [2])))
    assert say_health(found, "text") is Exit.UNHEALTHY
    assert "Leaderless partitions (1):       [t/1]" in capfd.readouterr().out.splitlines()
    assert say_health(found, "json") is Exit.UNHEALTHY
    shown = json.loads(capfd.readouterr().out)
    assert (shown["nodes"], shown["nodes_down"], shown["under_replicated_partitions"]) == ([1, 2, 3], [3], ["t/1"])
    assert say_health(judged(cluster((1, [1], [1]))), "json") is Exit.OK
