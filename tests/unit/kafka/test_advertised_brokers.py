"""Tests of the brokers, leaders and controller that clients are told of."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.controller.test_partition_health import T, cluster, made
from tests.unit.hot.fixtures import NOW, FixedClock
from tiered.broker.partition_troubles import PartitionTroubles
from tiered.ids import TopicId
from tiered.metadata.changes import NO_LEADER, PartitionChanged
from tiered.metadata.image import Image
from tiered.metadata.parts.brokers import BrokerImage, BrokersImage
from tiered.metadata.parts.controllers import ControllersImage
from tiered.metadata.parts.topics import PartitionImage, TopicImage, TopicsImage
from tiered_api.kafka.server.context.advertised_brokers import advertised_brokers, advertised_controller, live_brokers
from tiered_api.kafka.server.handlers.describe_topic_partitions import make_page

OUTSIDE, INSIDE = "OUTSIDE", "INSIDE"


def broker(number: int, **state: bool) -> BrokerImage:
    listeners = {OUTSIDE: f"host{number}:9092", INSIDE: f"10.0.0.{number}:9093"}
    return replace(BrokerImage(number, "i", "d", "h:1", "", True, 0, listeners), **state)  # type: ignore[arg-type]


def image() -> Image:
    """Returns an image of four brokers: 1 serves, 2 is silent, 3 has stopped, 4 serves an internal listener only."""
    brokers = [broker(1), broker(2, fenced=True), broker(3, alive=False), broker(4)]
    brokers[3] = replace(brokers[3], listeners={INSIDE: "[fd00::4]:9093"})
    # The others are gone, or have said so: nobody was elected since.
    partition = PartitionImage((2, 1, 3), 2, 7, (2,), elr=(1,), last_known=(3,))
    topic = TopicImage("t", TopicId("t" * 22), (partition, replace(partition, leader=1)), {}, 0)
    return Image(
        controllers_image=ControllersImage(node_id=1),
        brokers_image=BrokersImage({each.node_id: each for each in brokers}),
        topics_image=TopicsImage({"t": topic}),
    )


def test_clients_get_live_brokers_of_their_own_listener() -> None:
    told = [(each.node_id, host, port) for each, host, port in advertised_brokers(image(), OUTSIDE)]
    assert told == [(1, "host1", 9092)]
    told = [(each.node_id, host, port) for each, host, port in advertised_brokers(image(), INSIDE)]
    assert told == [(1, "10.0.0.1", 9093), (4, "fd00::4", 9093)]
    assert [each.node_id for each, _, _ in advertised_brokers(image(), OUTSIDE, {2})] == [1, 2]
    assert live_brokers(image()) == {1, 4}


def test_unreachable_controller_is_reported_as_none() -> None:
    assert [
        advertised_controller(replace(image(), controllers_image=ControllersImage(node_id=number)))
        for number in (1, 2, 3, 4, 9, -1)
    ] == [
        1,
        -1,
        -1,
        4,
        -1,
        -1,
    ]


def test_partition_has_leader_eligible_and_offline_replicas() -> None:
    unled, led = make_page(image(), ["t"], "", 0, 10, PartitionTroubles(FixedClock())).topics[0].partitions
    assert (unled.error_code, unled.leader_id, unled.leader_epoch) == (5, -1, 7)
    assert (led.error_code, led.leader_id) == (0, 1)
    assert (led.replica_nodes, led.isr_nodes, led.offline_replicas) == ([2, 1, 3], [2], [2, 3])
    assert (led.eligible_leader_replicas, led.last_known_elr) == ([1], [3])


def test_partition_has_the_times_of_its_troubles() -> None:
    """The first partition lost its leader before this broker saw the topic, the second one later."""
    before, troubles = cluster(made(NO_LEADER, (1, 2), ()), made(1, (1, 2), (1,))), PartitionTroubles(FixedClock())
    troubles.on_image(Image(), before)
    after = before.apply([PartitionChanged(T, 1, NO_LEADER, 8, (), (1,))], before.slot + 1)
    troubles.on_image(before, after)
    unknown, known = make_page(after, list(after.topics), "", 0, 10, troubles).topics[0].partitions
    assert (unknown.leaderless_since_ms, unknown.missing_since_ms) == (-1, [-1, -1])
    assert (known.leaderless_since_ms, known.missing_since_ms) == (NOW, [-1, NOW])
