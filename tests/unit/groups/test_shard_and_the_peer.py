"""Our coordinator and Kafka's: the same scripts get the same replies, and each reads the records of the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peer.group_scripts import SCRIPTS, ask, assign, join, pair, sync
from tests.peer.group_worlds import InMemory, OverWire, Recorded, World
from tests.peer.kafka import Peer, tool
from tests.peer.wire import Wire
from tests.unit.groups.rig import BOTH, Rig
from tiered.errors import Code
from tiered.groups.limits import GroupSettings
from tiered.groups.requests import (
    CommitOffsets,
    DeleteOffsets,
    DescribeGroup,
    FetchOffsets,
    JoinGroupReply,
    PartitionOffset,
    Reply,
    Request,
)
from tiered.records.batch import decode_header, decode_records, encode_batch
from tiered.shard import CoordinatorRecord
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tiered_api.kafka.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tiered_api.kafka.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.also("kafka")]

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
    """Finds the coordinator until it is ready. The first request creates the offsets topic."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        wire.ask(FindCoordinatorRequest(coordinator_keys=["g"]), FindCoordinatorResponse)
        answer = wire.ask(HeartbeatRequest(group_id="g", member_id="m"), HeartbeatResponse)
        if answer.error_code == Code.UNKNOWN_MEMBER_ID.number:
            return
        time.sleep(0.05)
    raise AssertionError("no coordinator")


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_gets_the_same_replies_from_both(peer: Peer, name: str) -> None:
    ours, theirs = Recorded(InMemory(Rig(SETTINGS))), Recorded(over := OverWire(peer.address))
    try:
        SCRIPTS[name](theirs)
    finally:
        over.close()
    SCRIPTS[name](ours)
    assert len(ours.lines) == len(theirs.lines) > 4
    for mine, expected in zip(ours.lines, theirs.lines, strict=True):
        assert mine == expected


# -- what is written --------------------------------------------------------------------------------------------------

KEPT = ("kept", "kept-static", "kept-simple", "kept-connect")


def _written(log: Path) -> list[CoordinatorRecord]:
    """Returns all records of a log file."""
    raw, at, found = log.read_bytes(), 0, list[CoordinatorRecord]()
    while at + 61 <= len(raw):
        found += [CoordinatorRecord(bytes(each.key or b""), _bytes(each.value)) for each in decode_records(raw, at)]
        at += decode_header(raw, at).size
    return found


def _bytes(value: object) -> bytes | None:
    return None if value is None else bytes(memoryview(value))  # type: ignore[arg-type]


def _keep(world: World) -> None:
    """Makes groups of each kind that end in a settled state."""
    a, b = pair(world, "kept")
    assign(world, "kept", a, b)
    ask(world, CommitOffsets("kept", (PartitionOffset("t", 0, 7, 2, "note"), PartitionOffset("u", 1, 8)), 1, b))
    for group, instance, kind in (("kept-static", "i", "consumer"), ("kept-connect", "j", "connect")):
        joined = ask(world, join(group, instance=instance, protocols=BOTH, kind=kind), instance)
        assert isinstance(joined, JoinGroupReply)
        given = ((joined.member_id, b"all"),)
        ask(world, sync(group, 1, joined.member_id, instance, kind, given=given), instance)
    ask(
        world,
        CommitOffsets(
            "kept-simple", (PartitionOffset("t", 0, 5), PartitionOffset("t", 1, -1), PartitionOffset("t", 2, 2**62))
        ),
    )
    ask(world, CommitOffsets("kept-simple", (PartitionOffset("u", 0, 1),), retention_ms=3_600_000_000))
    ask(world, CommitOffsets("kept-simple", (PartitionOffset("u", 1, 1),)))
    ask(world, DeleteOffsets("kept-simple", (("u", 1),)))


def _settled(world: World) -> list[Reply]:
    """Returns the groups as administrators and consumers see them."""
    asked: list[Request] = [*map(DescribeGroup, KEPT), *(FetchOffsets(group, None) for group in KEPT)]
    return [ask(world, request) for request in asked]


def test_our_coordinator_reads_kafkas_records_as_the_same_groups(peer: Peer) -> None:
    over = OverWire(peer.address)
    _keep(over)
    theirs = _settled(over)
    over.close()
    rig = Rig(SETTINGS)
    rig.log = _written(peer.logs / LOG)
    rig.reload()
    assert len(rig.log) > 10
    assert rig.shard.log_state.skipped_records == 0
    assert _settled(InMemory(rig, over.names)) == theirs


def test_kafka_reads_our_records_as_the_same_groups() -> None:
    rig = Rig(SETTINGS)
    ours = InMemory(rig)
    _keep(ours)
    rig.ask(CommitOffsets("kept-simple", (PartitionOffset("v", 0, 9, topic_id="AAAAAAAAAAAAAAAAAAAAEA"),)))
    expected = _settled(ours)
    batch = encode_batch(
        [(rig.now.wall_ms, key, value, ()) for key, value, _ in rig.log], base_offset=0, leader_epoch=0
    )
    with Peer(OPTIONS) as peer:
        with Wire(peer.address) as wire:
            _until_coordinating(wire)
        peer.stop()
        folder = (peer.logs / LOG).parent
        for file in folder.glob("0000*"):
            file.unlink()
        (peer.logs / LOG).write_bytes(batch)
        (peer.logs / ".kafka_cleanshutdown").unlink(missing_ok=True)
        text = tool("dump-log", "--files", str(peer.logs / LOG), "--offsets-decoder")
        assert text.count("key: {") == len(rig.log)
        assert '"type":"2","data":{"group":"kept"}' in text
        assert '"topicId":"AAAAAAAAAAAAAAAAAAAAEA"' in text
        peer.start()
        with Wire(peer.address) as wire:
            _until_coordinating(wire)
        over = OverWire(peer.address, ours.names)
        assert _settled(over) == expected
        over.close()
