"""Tests of `tiered topic consume -g` while brokers are unreachable, in virtual time."""

from __future__ import annotations

import asyncio
import random
from argparse import Namespace
from collections.abc import Callable

import pytest
from _pytest.capture import CaptureResult

from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.network import SimNetwork
from tests.unit.kafka.scripted import Answer, Delayed, Scripted
from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered.ports import Net
from tiered.records.batch import encode_batch
from tiered_api.cli.reach import new_consumer
from tiered_api.cli.text.offset_range import parse_range
from tiered_api.cli.topic.consume import read_range
from tiered_api.cli.topic.consume_group import GroupReader
from tiered_api.cli.topic.outages import Outages
from tiered_api.cli.topic.record_printer import Printer, make_writer
from tiered_api.kafka.client.client import Address, KafkaClient
from tiered_api.kafka.client.group_member import ConsumerGroupMember, write_assignment
from tiered_api.kafka.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tiered_api.kafka.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tiered_api.kafka.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tiered_api.kafka.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tiered_api.kafka.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tiered_api.kafka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tiered_api.kafka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from tiered_api.kafka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

HOST, TOPIC, GROUP = "127.0.0.1", "t", "g"
AWAY_SECONDS = 60.0
TOLD_SECONDS = 6.0
BEFORE, DURING = 3, 5
"""Records that the leader has before its coordinator ends, and those that it has meanwhile."""
ARGS = Namespace(
    group=GROUP, offset="0", partitions=None, read_committed=False, print_control_records=False, fetch_max_wait=500,
    fetch_max_bytes=1 << 20, rack="", format=r"%v\n", pretty_print=False,
)  # fmt: skip


class GroupRig:
    """Broker 1 leads the topic, and replies with one record at a time. Broker 2 coordinates the group."""

    def __init__(self) -> None:
        self.leader, self.coordinator = Scripted(1), Scripted(2)
        self.log_end = 0
        self.code = 0
        """Error code of all replies to Fetch."""
        self.fetch_seconds = 0.0
        """Time until a reply to Fetch without records, if it is not 0."""
        self.joins = 0
        self.committed: dict[int, int] = {}

    async def start(self, net: Net) -> None:
        for each in (self.leader, self.coordinator):
            await each.start(net, HOST)
            each.set_leaders(TOPIC, self.leader)
            each.script |= {
                FindCoordinatorRequest: self.find_coordinator,
                JoinGroupRequest: self.join,
                SyncGroupRequest: lambda *_: SyncGroupResponse(assignment=write_assignment([TopicPartition(TOPIC, 0)])),
                HeartbeatRequest: lambda *_: HeartbeatResponse(),
                LeaveGroupRequest: lambda *_: LeaveGroupResponse(),
                OffsetFetchRequest: lambda *_: OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id=GROUP)]),
                OffsetCommitRequest: self.commit,
                FetchRequest: self.fetch,
            }

    def find_coordinator(self, request: FindCoordinatorRequest, version: int) -> FindCoordinatorResponse:
        found = Coordinator(GROUP, 2, HOST, self.coordinator.port)
        return FindCoordinatorResponse(coordinators=[found])

    def join(self, request: JoinGroupRequest, version: int) -> JoinGroupResponse:
        self.joins += 1
        return JoinGroupResponse(
            generation_id=1, protocol_type="consumer", protocol_name="range", leader="other", member_id="me"
        )

    def commit(self, request: OffsetCommitRequest, version: int) -> OffsetCommitResponse:
        [each] = request.topics[0].partitions
        self.committed[each.partition_index] = each.committed_offset
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(name=TOPIC, partitions=[OffsetCommitResponsePartition(partition_index=0)])
            ]
        )

    def fetch(self, request: FetchRequest, version: int) -> Answer:
        at = request.topics[0].partitions[0].fetch_offset
        if self.code or self.fetch_seconds:
            failed = FetchableTopicResponse(
                topic=TOPIC, partitions=[PartitionData(partition_index=0, error_code=self.code)]
            )
            return Delayed(FetchResponse(responses=[failed]), self.fetch_seconds)
        data = encode_batch([(0, None, b"%d" % at, [])], base_offset=at) if at < self.log_end else b""
        each = PartitionData(partition_index=0, high_watermark=self.log_end, records=data)
        reply = FetchResponse(responses=[FetchableTopicResponse(topic=TOPIC, partitions=[each])])
        return reply if data else Delayed(reply, request.max_wait_ms / 1000)


async def consume_with_outage(net: Net, clock: SimClock, rig: GroupRig, *, leader_too: bool) -> None:
    """Runs a member until it has printed all records. The coordinator is away for a minute, the leader too if so said.
    The leader gets records meanwhile, and later one more."""
    await rig.start(net)
    client = KafkaClient(net, clock, [Address(HOST, rig.leader.port)], retry_seconds=15.0)
    await client.fetch_metadata([])
    printer = Printer(make_writer(ARGS), BEFORE + DURING + 1)
    reader = GroupReader(client, ARGS, parse_range("0", 0), ConsumerGroupMember(client, GROUP, [TOPIC]), printer)
    rig.log_end = BEFORE
    running = asyncio.ensure_future(reader.run())
    while rig.committed != {0: BEFORE}:
        await clock.sleep(0.1)
    away = [rig.coordinator, rig.leader] if leader_too else [rig.coordinator]
    for each in away:
        each.stop()
    rig.log_end += DURING
    await clock.sleep(AWAY_SECONDS)
    assert not running.done(), running
    assert leader_too or (printer.count, rig.committed) == (BEFORE + DURING, {0: BEFORE})
    for each in away:
        await each.start(net, HOST, each.port)
    while rig.committed != {0: BEFORE + DURING}:
        await clock.sleep(0.1)
    beats = rig.coordinator.count(HeartbeatRequest)
    while rig.coordinator.count(HeartbeatRequest) == beats:
        await clock.sleep(0.1)
    rig.log_end += 1
    await running
    await client.close()
    for each in (rig.leader, rig.coordinator):
        each.stop()


async def consume_with_fault(
    net: Net, clock: SimClock, rig: GroupRig, fail: Callable[[], None], take_output: Callable[[], None]
) -> None:
    """Reads without a group until all records before a fault are printed. Takes the output after six seconds. The fault
    ends later, and the reader prints the rest."""
    await rig.start(net)
    client = KafkaClient(net, clock, [Address(HOST, rig.leader.port)], retry_seconds=15.0)
    consumer = new_consumer(client, Namespace(**{**vars(ARGS), "group": None}))
    consumer.assign({TopicPartition(TOPIC, 0): 0})
    printer = Printer(make_writer(ARGS), BEFORE + DURING)
    rig.log_end = BEFORE
    outages = Outages(clock, "this command", client.describe_wait)
    running = asyncio.ensure_future(read_range(consumer, {}, printer, outages))
    while printer.count < BEFORE:
        await clock.sleep(0.1)
    fail()
    await clock.sleep(TOLD_SECONDS)
    take_output()
    rig.log_end += DURING
    await clock.sleep(AWAY_SECONDS)
    assert not running.done(), running
    rig.code, rig.fetch_seconds = 0, 0.0
    for each in (rig.leader, rig.coordinator):
        each.stop()
        await each.start(net, HOST, each.port)
    await running
    await consumer.close()
    await client.close()
    for each in (rig.leader, rig.coordinator):
        each.stop()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("away", b"no broker replies"),
        ("silent", b"there is no reply yet"),
        ("another leader", b"t-0: "),
        ("no leader", b"t-0: "),
    ],
)
def test_reader_without_a_group_is_told_of_a_fault_after_five_seconds(
    fault: str, words: bytes, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    loop, rig = SimLoop(1), GroupRig()
    net, clock = SimNetwork(loop, random.Random(1)).host("a"), SimClock(loop)

    def fail() -> None:
        match fault:
            case "away":
                for each in (rig.leader, rig.coordinator):
                    each.stop()
            case "silent":
                rig.fetch_seconds = 600
            case "another leader":
                rig.code = Code.NOT_LEADER_OR_FOLLOWER.number
            case "no leader":
                rig.code = Code.OFFSET_NOT_AVAILABLE.number

    outputs: list[CaptureResult[bytes]] = []

    async def test() -> None:
        async with asyncio.timeout(600):
            await consume_with_fault(net, clock, rig, fail, lambda: outputs.append(capfdbinary.readouterr()))

    loop.run(test())
    first, second = *outputs, capfdbinary.readouterr()
    assert first.out + second.out == b"".join(b"%d\n" % number for number in range(BEFORE + DURING))
    assert first.err.startswith(b"tiered: this command cannot read now, and tries again: "), first.err
    assert words in first.err and (first.err + second.err).count(b"\n") == 1, (first.err, second.err)


@pytest.mark.parametrize("leader_too", [False, True])
def test_member_goes_on_after_its_coordinator_was_away_for_a_minute(
    leader_too: bool, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    loop, rig = SimLoop(1), GroupRig()
    net, clock = SimNetwork(loop, random.Random(1)).host("a"), SimClock(loop)

    async def test() -> None:
        async with asyncio.timeout(600):
            await consume_with_outage(net, clock, rig, leader_too=leader_too)

    loop.run(test())
    assert rig.committed == {0: BEFORE + DURING + 1} and rig.joins == 1
    out, err = capfdbinary.readouterr()
    assert out == b"".join(b"%d\n" % number for number in range(BEFORE + DURING + 1))
    doing = b"read now, and tries again: no broker replies" if leader_too else b"commit now, and tries again: broker 2"
    assert b"group g cannot " + doing in err and err.count(b"\n") == 1, err
