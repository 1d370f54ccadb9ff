"""The coordinator against Kafka's own: the same scripts, the same answers; each reads what the other wrote."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.peer.group_stories import STORIES
from tests.peer.group_worlds import InMemory, OverWire, Recorded
from tests.peer.kafka import Peer
from tests.peer.wire import Wire
from tests.unit.groups.rig import Rig
from tiered.errors import Code
from tiered.metadata.groups.settings import GroupSettings
from tiered_api.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tiered_api.kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tiered_api.kafka.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

pytestmark = [pytest.mark.java, pytest.mark.slow]

OPTIONS = {
    "group.initial.rebalance.delay.ms": "300",
    "group.max.size": "3",
    "offsets.topic.num.partitions": "1",
}
SETTINGS = GroupSettings(initial_rebalance_delay_ms=300, size_max=3)
LOG = "__consumer_offsets-0/00000000000000000000.log"


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with Peer(OPTIONS) as running:
        with Wire(running.address) as wire:
            topics = [CreatableTopic(name=name, num_partitions=8, replication_factor=1) for name in "tuv"]
            made = wire.ask(CreateTopicsRequest(topics=topics, timeout_ms=10_000), CreateTopicsResponse)
            assert [topic.error_code for topic in made.topics] == [0, 0, 0]
            _until_coordinating(wire)
        yield running


def _until_coordinating(wire: Wire) -> None:
    """Asking for a coordinator makes the offsets topic; until it is there the coordinator says so."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        wire.ask(FindCoordinatorRequest(coordinator_keys=["g"]), FindCoordinatorResponse)
        answer = wire.ask(HeartbeatRequest(group_id="g", member_id="m"), HeartbeatResponse)
        if answer.error_code == Code.UNKNOWN_MEMBER_ID.number:
            return
        time.sleep(0.05)
    raise AssertionError("no coordinator")


@pytest.mark.parametrize("name", STORIES)
def test_the_same_script_gets_the_same_answers(peer: Peer, name: str) -> None:
    ours, theirs = Recorded(InMemory(Rig(SETTINGS))), Recorded(over := OverWire(peer.address))
    try:
        STORIES[name](theirs)
    finally:
        over.close()
    STORIES[name](ours)
    assert len(ours.lines) == len(theirs.lines) > 4
    for mine, expected in zip(ours.lines, theirs.lines, strict=True):
        assert mine == expected
