"""Tests of since when partitions lack a leader or replicas, as one broker has seen it."""

from __future__ import annotations

from tests.unit.controller.test_partition_health import T, cluster, made
from tests.unit.hot.fixtures import FixedClock
from tiered.broker.partition_troubles import UNKNOWN_MS, PartitionTroubles
from tiered.metadata.changes import NO_LEADER, Change, PartitionChanged, TopicDeleted
from tiered.metadata.image import Image
from tiered_api.health.verdict import UNDER_MIN_ISR, TroubleTimes

WHOLE = made(1, (1, 2, 3), (1, 2, 3))


class Seen:
    """One broker that sees the changes of a topic, one minute after the other."""

    def __init__(self, image: Image) -> None:
        self.clock, self.image = FixedClock(), image
        self.troubles = PartitionTroubles(self.clock)
        self.troubles.on_image(Image(), image)

    def see(self, change: Change) -> int:
        """Returns the time at which the broker sees the change."""
        self.clock.wall += 60_000
        before, self.image = self.image, self.image.apply([change], self.image.slot + 1)
        self.troubles.on_image(before, self.image)
        return self.clock.wall

    def change(self, *isr: int, leader: int = 1, partition: int = 0, adding: tuple[int, ...] = ()) -> int:
        return self.see(PartitionChanged(T, partition, leader, 1, isr, (), adding=adding))

    def missing(self, count: int = 1, partition: int = 0) -> int:
        return TroubleTimes(missing_ms=self.troubles.missing_since_ms(T, partition)).since_ms(UNDER_MIN_ISR, count - 1)


def test_each_missing_replica_has_the_time_of_its_leave() -> None:
    seen = Seen(cluster(WHOLE, WHOLE))
    assert seen.missing() == UNKNOWN_MS
    first = seen.change(1, 2)
    second = seen.change(1)
    assert (seen.missing(1), seen.missing(2), seen.missing(3)) == (first, second, UNKNOWN_MS)
    assert seen.missing(partition=1) == UNKNOWN_MS
    seen.change(1, leader=1, partition=1)
    assert (seen.missing(1), seen.missing(2)) == (first, second), "another partition of the topic has changed"
    seen.change(1, 2)
    assert (seen.missing(1), seen.missing(2)) == (first, UNKNOWN_MS)
    seen.change(1, 2, 3)
    assert seen.missing() == UNKNOWN_MS


def test_partition_is_without_leader_since_it_lost_the_first() -> None:
    seen = Seen(cluster(WHOLE))
    lost = seen.change(leader=NO_LEADER)
    seen.change(leader=NO_LEADER)
    assert seen.troubles.leaderless_since_ms(T, 0) == lost
    seen.change(1)
    assert seen.troubles.leaderless_since_ms(T, 0) == UNKNOWN_MS


def test_trouble_from_before_the_start_has_no_time() -> None:
    seen = Seen(cluster(made(NO_LEADER, (1, 2, 3), (1,))))
    assert (seen.missing(2), seen.troubles.leaderless_since_ms(T, 0)) == (UNKNOWN_MS, UNKNOWN_MS)
    later = seen.change(leader=NO_LEADER)
    assert (seen.missing(2), seen.missing(3)) == (UNKNOWN_MS, later)


def test_replica_that_a_move_adds_is_not_missed() -> None:
    seen = Seen(cluster(WHOLE))
    seen.change(1, 2, adding=(3,))
    assert seen.missing() == UNKNOWN_MS


def test_deleted_topic_is_forgotten() -> None:
    seen = Seen(cluster(WHOLE))
    seen.change(1)
    seen.see(TopicDeleted(T, 0, "t"))
    assert not seen.troubles._troubles
