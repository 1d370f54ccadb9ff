"""Tests of the log lines about metadata changes: they are enough to reconstruct every change, and never a thousand
lines."""

from __future__ import annotations

from tiered.ids import TopicId
from tiered.metadata import changes as kinds
from tiered.metadata.change_summary import (
    LOSSES_SHOWN_MAX,
    NAMES_MAX,
    summarize,
    summarize_losses,
    summarize_smaller_losses,
)
from tiered.metadata.changes import ALL_BROKERS, NO_LEADER, Change
from tiered.metadata.image import Image

FLIGHTS = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")


def lines(before: Image, *changes: Change) -> list[str]:
    return list(summarize(changes, before, before.apply(changes, 1)))


def test_lines_name_topics_and_settings() -> None:
    created = kinds.TopicCreated("flights", FLIGHTS, ((1,), (1,)), {"retention.ms": "-1"}, 0)
    there = Image().apply([created], 0)
    assert lines(Image(), created) == ["topic created name=flights partitions=2 retention.ms=-1"]
    assert lines(there, kinds.PartitionsAdded(FLIGHTS, ((1,),))) == ["partitions added name=flights partitions=3"]
    altered = kinds.TopicConfigChanged(FLIGHTS, {"retention.ms": None, "flush": "ack"})
    assert lines(there, altered) == ["settings changed topic=flights retention.ms=(default) flush=ack"]
    assert lines(there, kinds.BrokerConfigChanged(ALL_BROKERS, {"log.flush": "ack"})) == [
        "settings changed broker=all log.flush=ack"
    ]
    secret = kinds.BrokerConfigChanged(1, {"ssl.key.password": "eightyeight"})
    assert lines(there, secret) == ["settings changed broker=1 ssl.key.password=[hidden]"]
    assert lines(there, kinds.TopicDeleted(FLIGHTS, 1)) == ["topic deleted name=flights"]
    assert lines(there, kinds.PartitionChanged(FLIGHTS, 0, 1, 1, (1,), ())) == []


def test_lines_name_replicas_on_full_disks() -> None:
    brokers = [kinds.BrokerRegistered(node, f"i{node}", "d", "", "", 0) for node in (1, 2)]
    full = Image().apply([*brokers, kinds.BrokerDiskReported(2, "i2", kinds.DISK_FULL, 0, 0)], 0)
    topic = kinds.TopicCreated("flights", FLIGHTS, ((1, 2), (1,)), {}, 0)
    line = "replicas on full disks name=flights brokers=2"
    assert lines(full, topic)[-1] == line
    there = full.apply([topic, kinds.PartitionChanged(FLIGHTS, 1, 1, 0, (1,), ())], 1)
    assert lines(there, kinds.PartitionsAdded(FLIGHTS, ((2,),)))[-1] == line
    assert len(lines(there, kinds.PartitionsAdded(FLIGHTS, ((1,),)))) == 1
    moved = kinds.PartitionChanged(FLIGHTS, 1, 1, 1, (1,), (), replicas=(1, 2), adding=(2,))
    assert lines(there, moved) == ["replicas on full disks name=flights-1 brokers=2"]


def test_lines_name_fenced_brokers_and_leaderless_partitions() -> None:
    brokers = [kinds.BrokerRegistered(node, f"i{node}", "d", "", "", 0) for node in (1, 2)]
    topic = kinds.TopicCreated("flights", FLIGHTS, ((1, 2),), {}, 0)
    led = Image().apply([*brokers, topic, kinds.PartitionChanged(FLIGHTS, 0, 1, 0, (1,), ())], 0)
    assert lines(led, kinds.BrokerUnregistered(2, "i2")) == ["broker is unregistered node_id=2"]
    fenced, nobody = kinds.BrokerFenced(1, "i1"), kinds.PartitionChanged(FLIGHTS, 0, NO_LEADER, 0, (), (1,))
    away = led.apply([fenced, nobody], 1)
    assert lines(led, fenced, nobody) == [
        "broker fenced node_id=1",
        "partition has no leader name=flights-0 waits_for=1",
    ]
    again = (kinds.BrokerUnfenced(1, "i1"), kinds.PartitionChanged(FLIGHTS, 0, 1, 1, (1,), ()))
    assert lines(away, *again) == [
        "broker unfenced node_id=1",
        "partition has a leader again name=flights-0 leader=1",
    ]
    forced = (kinds.PartitionChanged(FLIGHTS, 0, 2, 1, (2,), ()), kinds.LossReported(FLIGHTS, 0, 1, 7, 0))
    assert lines(away, *forced) == ["partition has a leader again name=flights-0 leader=2 possible_loss_from=7"]
    assert lines(led, kinds.PartitionChanged(FLIGHTS, 0, 2, 1, (2,), ())) == []
    assert lines(led, nobody, kinds.PartitionChanged(FLIGHTS, 0, 2, 1, (2,), ())) == []
    assert lines(led, nobody, kinds.TopicDeleted(FLIGHTS, 1)) == ["topic deleted name=flights"]


def test_start_and_stop_of_a_lone_broker_are_not_logged() -> None:
    here = kinds.BrokerRegistered(1, "i1", "d", "", "", 0)
    topic = kinds.TopicCreated("flights", FLIGHTS, ((1,),), {}, 0)
    led = Image().apply([here, topic, kinds.PartitionChanged(FLIGHTS, 0, 1, 0, (1,), ())], 0)
    stop = (kinds.BrokerStopped(1, "i1"), kinds.PartitionChanged(FLIGHTS, 0, NO_LEADER, 0, (), (1,)))
    assert lines(led, *stop) == []
    again = (kinds.BrokerRegistered(1, "i2", "d", "", "", 0), kinds.PartitionChanged(FLIGHTS, 0, 1, 1, (1,), ()))
    assert lines(led.apply(stop, 1), *again) == []


def test_many_changes_at_once_are_one_line() -> None:
    many = [kinds.TopicCreated(f"t{n}", TopicId(f"{n:022d}"), ((1,),), {}, 0) for n in range(1000)]
    assert lines(Image(), *many) == ["topics created count=1000 first=t0, t1, t2, t3, t4"]
    assert len(lines(Image(), *many[:NAMES_MAX])) == NAMES_MAX


def test_losses_are_one_line_with_the_new_offsets() -> None:
    there = Image().apply([kinds.TopicCreated("flights", FLIGHTS, ((1,),) * 200, {}, 0)], 0)
    assert summarize_losses(there, there) == ""
    two = there.apply([kinds.LossReported(FLIGHTS, p, 1, 40 + p, 0) for p in (0, 1)], 1)
    assert summarize_losses(there, two) == (
        "acknowledged records may be gone from an offset on partitions=2 partition@offset=flights-0@40,flights-1@41:"
        " see `tiered cluster losses`"
    )
    assert summarize_losses(two, two.apply([kinds.LossReported(FLIGHTS, 0, 1, 50, 0)], 2)) == "", "less than was said"
    assert "flights-0@30:" in summarize_losses(two, two.apply([kinds.LossReported(FLIGHTS, 0, 1, 30, 0)], 2))
    assert "flights-0@99:" in summarize_losses(two, two.apply([kinds.LossReported(FLIGHTS, 0, 2, 99, 0)], 2)), (
        "another one"
    )
    assert summarize_losses(two, two.apply([kinds.LossesAcknowledged(((FLIGHTS, 0, 1),), 0)], 2)) == ""
    many = there.apply([kinds.LossReported(FLIGHTS, p, 1, 0, 0) for p in range(200)], 1)
    assert summarize_losses(there, many).count("flights-") == LOSSES_SHOWN_MAX and "partitions=200" in summarize_losses(
        there, many
    )


def test_loss_that_begins_later_than_first_said_is_a_line_of_its_own() -> None:
    there = Image().apply([kinds.TopicCreated("flights", FLIGHTS, ((1,),) * 2, {}, 0)], 0)
    two = there.apply([kinds.LossReported(FLIGHTS, p, 1, 0, 0) for p in (0, 1)], 1)
    assert summarize_smaller_losses(there, two) == ""
    corrected = two.apply([kinds.LossReported(FLIGHTS, 0, 1, 50, 0)], 2)
    assert summarize_smaller_losses(two, corrected) == (
        "fewer records may be gone than an earlier line says partitions=1 partition@offset=flights-0@50:"
        " see `tiered cluster losses`"
    )
    assert summarize_smaller_losses(corrected, two) == "", "it begins earlier"
    assert summarize_smaller_losses(two, two.apply([kinds.LossReported(FLIGHTS, 0, 2, 99, 0)], 2)) == "", "another one"
    assert summarize_smaller_losses(two, two.apply([kinds.LossesAcknowledged(((FLIGHTS, 0, 1),), 0)], 2)) == ""
