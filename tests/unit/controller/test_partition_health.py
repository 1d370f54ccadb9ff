"""The health of partitions as Kafka counts it, with the counts and sentences about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from tests.unit.member_view import make_view
from tiered.broker.cluster_metrics import ClusterMetrics
from tiered.config.settings import Settings
from tiered.controller.partition_health import (
    assess_partitions,
    count_isr_changes,
    describe_leaderless,
    describe_out_of_sync,
)
from tiered.ids import TopicId, TopicPartition
from tiered.metadata import changes as kinds
from tiered.metadata.changes import ALL_BROKERS, NO_LEADER, Change
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import PartitionImage
from tiered.metrics import Metrics
from tiered.peers import ClockComparison

T = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")


def cluster(*partitions: PartitionImage, configs: Mapping[str, str] | None = None) -> Image:
    """Brokers 1 and 2 are live, 3 is fenced, 4 has stopped; one topic."""
    brokers = [kinds.BrokerRegistered(node, f"i{node}", "d", "", "", 0) for node in (1, 2, 3, 4)]
    created = kinds.TopicCreated("t", T, tuple(each.replicas for each in partitions), configs or {}, 0)
    told = [
        kinds.PartitionChanged(
            T, number, each.leader, each.leader_epoch, each.isr, each.elr, each.last_known, adding=each.adding
        )
        for number, each in enumerate(partitions)
    ]
    away: list[Change] = [kinds.BrokerFenced(3, "i3"), kinds.BrokerStopped(4, "i4")]
    return Image().apply([*brokers, created, *told, *away], 0)


def made(leader: int, replicas: tuple[int, ...], isr: tuple[int, ...], **more: tuple[int, ...]) -> PartitionImage:
    return dataclasses.replace(PartitionImage(replicas, leader, 0, isr), **more)  # type: ignore[arg-type]


WHOLE, LACKS, ALONE = made(1, (1, 2, 3), (1, 2, 3)), made(1, (1, 2, 3), (1, 2)), made(1, (2, 1, 3), (1,))
ELSEWHERE, NOBODY, DEAD = made(2, (2, 3), (2,)), made(NO_LEADER, (3,), (), elr=(3,)), made(3, (3, 1), (3,))


def test_problems_count_at_the_leader_and_leaderless_partitions_at_all() -> None:
    image = cluster(WHOLE, LACKS, ALONE, ELSEWHERE, NOBODY, DEAD, configs={"min.insync.replicas": "2"})
    one = assess_partitions(image, 1)
    assert (
        one.partition_count,
        one.leader_count,
        one.replica_count,
        one.not_preferred_count,
        one.at_min_isr_count,
    ) == (6, 3, 4, 3, 1)
    assert [tp.partition for tp in one.under_replicated] == [1, 2]
    assert [tp.partition for tp in one.under_min_isr] == [2]
    assert [tp.partition for tp in one.leaderless] == [4, 5]
    two = assess_partitions(image, 2)
    assert (two.leader_count, two.replica_count) == (1, 4) and list(two.under_replicated) == [TopicPartition("t", 3)]
    assert two.leaderless == one.leaderless


def test_replica_that_a_move_adds_is_not_missed_yet() -> None:
    moved, lacks = made(1, (1, 4, 2), (1, 2), adding=(4,)), made(1, (1, 4, 2), (1,), adding=(4,))
    assert [tp.partition for tp in assess_partitions(cluster(moved, lacks), 1).under_replicated] == [1]


@pytest.mark.parametrize(("asked", "under"), [("1", 0), ("2", 1), ("3", 2), ("9", 2)])
def test_min_isr_is_the_topics_or_the_default_up_to_all_replicas(asked: str, under: int) -> None:
    by_topic = cluster(WHOLE, LACKS, ALONE, configs={"min.insync.replicas": asked})
    by_all = cluster(WHOLE, LACKS, ALONE).apply(
        [kinds.BrokerConfigChanged(ALL_BROKERS, {"min.insync.replicas": asked})], 1
    )
    assert [len(assess_partitions(image, 1).under_min_isr) for image in (by_topic, by_all)] == [under, under]


@pytest.mark.parametrize(
    ("partition", "why"),
    [
        (NOBODY, "waits for broker 3 (fenced)"),
        (made(NO_LEADER, (4, 3, 1), (), elr=(3, 4)), "waits for brokers 4 (stopped) or 3 (fenced)"),
        (DEAD, "its leader 3 is fenced"),
        (
            made(NO_LEADER, (1, 3, 9), (), last_known=(1, 9)),
            "waits until brokers 1 and 9 (unknown) have said what is left of their logs",
        ),
        (made(NO_LEADER, (1,), ()), "no broker is known that has its records"),
    ],
)
def test_awaited_replicas_of_an_election_are_named(partition: PartitionImage, why: str) -> None:
    assert describe_leaderless(cluster(partition), partition) == why


def test_replicas_out_of_sync_are_named() -> None:
    assert describe_out_of_sync(cluster(ALONE), ALONE) == "brokers 2 and 3 (fenced)"


def test_isr_shrinks_and_expands_count_on_the_leader() -> None:
    before = cluster(WHOLE, LACKS, ELSEWHERE, NOBODY)
    changes: list[Change] = [
        kinds.PartitionChanged(T, 0, 1, 0, (1, 2), ()),
        kinds.PartitionChanged(T, 0, 1, 0, (1,), (2,)),
        kinds.PartitionChanged(T, 1, 1, 0, (1, 2, 3), ()),
        kinds.PartitionChanged(T, 2, 2, 0, (2, 3), ()),
        kinds.PartitionChanged(T, 3, 1, 1, (1,), ()),
    ]
    after = before.apply(changes, 1)
    assert count_isr_changes(changes, before, after, 1) == (1, 2)
    assert count_isr_changes(changes, before, after, 2) == (0, 1)
    lost: list[Change] = [kinds.PartitionChanged(T, 0, NO_LEADER, 0, (), (1,))]
    assert count_isr_changes(lost, before, before.apply(lost, 1), 1) == (1, 0)
    gone: list[Change] = [*changes, kinds.TopicDeleted(T, 1)]
    assert count_isr_changes(gone, before, before.apply(gone, 1), 1) == (0, 0)


def test_metrics_have_kafkas_names_and_follow_the_image() -> None:
    metrics = Metrics()
    view = make_view(cluster(WHOLE, LACKS, NOBODY, configs={"min.insync.replicas": "2"}), Settings(node_id=1))
    figures = ClusterMetrics(metrics, view, lambda: True, lambda: {2: ClockComparison(-1_500, 3)})
    assert figures.partition_health is figures.partition_health
    lines = metrics.render().splitlines()
    for line in (
        'tiered_clock_ahead_seconds{broker="2"} -1.5',
        "kafka_server_replicamanager_underreplicatedpartitions 1",
        "kafka_server_replicamanager_underminisrpartitioncount 0",
        "kafka_server_replicamanager_atminisrpartitioncount 1",
        "kafka_server_replicamanager_leadercount 2",
        "kafka_controller_kafkacontroller_offlinepartitionscount 1",
        "kafka_controller_kafkacontroller_activecontrollercount 1",
        "kafka_controller_kafkacontroller_activebrokercount 2",
        "kafka_controller_kafkacontroller_fencedbrokercount 1",
        "kafka_controller_kafkacontroller_globaltopiccount 1",
        "kafka_server_replicamanager_isrshrinks_total 0",
    ):
        assert line in lines
    shrunk: list[Change] = [kinds.PartitionChanged(T, 0, 1, 0, (1,), ())]
    before = view.image
    view.loader.image = before.apply(shrunk, 1)
    figures.count_isr_changes(shrunk, before, view.image)
    lines = metrics.render().splitlines()
    assert "kafka_server_replicamanager_isrshrinks_total 1" in lines
    assert "kafka_server_replicamanager_underreplicatedpartitions 2" in lines
    assert "kafka_server_replicamanager_underminisrpartitioncount 1" in lines
    assert "kafka_server_replicamanager_atminisrpartitioncount 1" in lines
