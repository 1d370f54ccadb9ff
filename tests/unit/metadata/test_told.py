"""What the broker's log says of changes: enough to know afterwards who did what, and never a thousand lines."""

from __future__ import annotations

from tiered.ids import TopicId
from tiered.metadata import changes as kinds
from tiered.metadata.changes import CLUSTER, Change
from tiered.metadata.image import Image
from tiered.metadata.told import NAMES_MAX, told

FLIGHTS = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")


def lines(before: Image, *changes: Change) -> list[str]:
    return list(told(changes, before, before.apply(changes, 1)))


def test_topics_and_settings_are_told_with_their_names() -> None:
    created = kinds.TopicCreated("flights", FLIGHTS, ((1,), (1,)), {"retention.ms": "-1"}, 0)
    there = Image().apply([created], 0)
    assert lines(Image(), created) == ["topic created name=flights partitions=2 retention.ms=-1"]
    assert lines(there, kinds.PartitionsAdded(FLIGHTS, ((1,),))) == ["topic grew name=flights partitions=3"]
    altered = kinds.TopicConfigChanged(FLIGHTS, {"retention.ms": None, "flush": "ack"})
    assert lines(there, altered) == ["settings changed topic=flights retention.ms=(default) flush=ack"]
    assert lines(there, kinds.BrokerConfigChanged(CLUSTER, {"log.flush": "ack"})) == [
        "settings changed broker=all log.flush=ack"
    ]
    assert lines(there, kinds.TopicDeleted(FLIGHTS, 1)) == ["topic deleted name=flights"]
    assert lines(there, kinds.PartitionChanged(FLIGHTS, 0, 1, 1, (1,), ())) == []


def test_many_at_once_are_one_line() -> None:
    many = [kinds.TopicCreated(f"t{n}", TopicId(f"{n:022d}"), ((1,),), {}, 0) for n in range(1000)]
    assert lines(Image(), *many) == ["topics created count=1000 first=t0, t1, t2, t3, t4"]
    assert len(lines(Image(), *many[:NAMES_MAX])) == NAMES_MAX
