"""Tests of a topic that is deleted and recreated under its name, while the leader knows of both and has acted on
neither.

The log of the leader is of the first topic then. The leader refuses requests for the second topic, by name or by id,
and requests for the first. A request that waited on the first topic gets an error that the topic is gone. The name
alone never leads to the log of another topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.e2e.kafka_site import values_of
from tests.scenario import run_by
from tests.sim.harness.machine import SimMachine
from tests.sim.rig.broker_rig import batch, read_values
from tests.sim.scenarios.recreated_topic import AT, OLD, SECONDS, RecreatedTopic, code_of, run_recreated
from tests.sim.scenarios.test_what_an_ack_survives import crash
from tests.sim.scenarios.three import SimBroker
from tiered.controller.requests import CreateTopic, DeleteTopic, FenceBroker
from tiered.errors import Code, Refused
from tiered.groups.requests import NO_OFFSET, CommitOffsets, FetchOffsets, PartitionOffset
from tiered.ids import TopicPartition, decode_uuid
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica
from tiered.security.principal import ANONYMOUS, Caller
from tiered_api.kafka.client.connection import BrokerConnection
from tiered_api.kafka.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tiered_api.kafka.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from tiered_api.kafka.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tiered_api.kafka.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tiered_api.kafka.server.fetch.frames import TOPIC_IDS_FROM, RequestedTopic

GONE = (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID)


# -- followers --------------------------------------------------------------------------------------------------------


def test_follower_of_the_second_topic_gets_none_of_the_first_ones_records() -> None:
    """The follower has acted on the second topic and fetches from a leader that has not. It gets all acknowledged
    records of the second topic."""

    async def scenario(again: RecreatedTopic) -> None:
        await again.recreate()
        quick = again.quick.node

        def waits() -> bool:
            copy = quick.hosted_replicas.find_follower(AT)
            return copy is not None and copy.topic_id == again.new_id and "NOT_LEADER" in copy.fetch_error

        await again.three.wait_until(waits, SECONDS)
        await asyncio.sleep(2)
        copy = quick.hosted_replicas.find_follower(AT)
        assert copy is not None and copy.log.end_offset == 0
        new = await again.release_slow()
        values = [b"new-%d" % number for number in range(OLD + 3)]
        for value in values:
            new.append_now(batch([value]), ACKS_ALL)
        await new.wait_committed(len(values), 5_000)
        assert await read_values(new, 0) == values
        await asyncio.sleep(1)
        await crash([again.slow], SimMachine.kill)
        await again.three.wait_until(lambda: quick.hosted_replicas.find_leader(AT) is not None, SECONDS)
        successor = quick.leader_replica(*AT)
        await again.three.wait_until(lambda: successor.log.end_offset >= len(values), SECONDS)
        data = successor.log.read(0, 1 << 20, end_offset=successor.log.end_offset)
        assert data is not None and values_of(data.file.pread(data.start, data.length)) == values

    run_recreated(scenario, 2)


def test_parked_fetch_of_a_follower_is_no_progress_in_another_topic() -> None:
    """The fetch was sent for the first topic, and waits for more of its records while the second topic begins."""

    async def scenario(again: RecreatedTopic) -> None:
        await asyncio.sleep(1)
        await again.recreate()
        new = await again.release_slow()
        assert new.state.high_watermark == 0
        new.append_now(batch([b"new"]), ACKS_ALL)
        await new.wait_committed(1, 5_000)
        copy = again.quick.node.hosted_replicas.find_follower(AT)
        assert copy is not None and copy.topic_id == again.new_id and copy.log.end_offset == 1

    run_recreated(scenario, 2)


# -- clients of Kafka's protocol --------------------------------------------------------------------------------------


def topic_id_for(again: RecreatedTopic, how: str) -> str:
    return {"old id": again.old_replica.topic_id, "new id": again.new_id, "name": ""}[how]


REFUSED = {
    "old id": Code.UNKNOWN_TOPIC_ID,
    "new id": Code.NOT_LEADER_OR_FOLLOWER,
    "name": Code.NOT_LEADER_OR_FOLLOWER,
}
EVERY_REFERENCE = pytest.mark.parametrize("how", REFUSED)


@EVERY_REFERENCE
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("acks", [1, ACKS_ALL])
def test_records_are_not_appended_to_the_log_of_another_topic(replicas: int, acks: int, how: str) -> None:
    """The connection has cached its earlier produce request up to the records."""

    async def scenario(again: RecreatedTopic) -> None:
        for topic_id in (again.old_replica.topic_id, ""):
            for _ in range(3):
                assert (await again.produce(topic_id, acks=acks))[0] is Code.NONE
        end = again.old_replica.log.end_offset
        await again.recreate()
        assert (await again.produce(topic_id_for(again, how), acks=acks))[0] is REFUSED[how]
        assert again.old_replica.log.end_offset == end
        new = await again.release_slow()
        assert new.log.end_offset == 0
        asked = topic_id_for(again, how)
        assert (await again.produce(asked, acks=acks)) == (
            (Code.NONE, 0) if how != "old id" else (Code.UNKNOWN_TOPIC_ID, -1)
        )

    run_recreated(scenario, replicas)


@EVERY_REFERENCE
@run_by(run_recreated)
async def test_records_of_another_topic_are_not_read(again: RecreatedTopic, *, how: str) -> None:
    for topic_id in (again.old_replica.topic_id, ""):
        for _ in range(3):
            assert len((await again.fetch(topic_id, 0))[1]) == OLD
    await again.recreate()
    assert await again.fetch(topic_id_for(again, how), 0) == (REFUSED[how], [])
    new = await again.release_slow()
    await new.append(batch([b"new"]), acks=ACKS_ALL)
    asked = topic_id_for(again, how)
    assert await again.fetch(asked, 0) == ((Code.NONE, [b"new"]) if how != "old id" else (Code.UNKNOWN_TOPIC_ID, []))


@EVERY_REFERENCE
def test_late_follower_serves_consumers_no_records_of_another_topic(how: str) -> None:
    async def scenario(again: RecreatedTopic) -> None:
        quick = again.quick
        await again.three.wait_until(lambda: again.quick.node.hosted_replicas.find_follower(AT) is not None, SECONDS)
        await asyncio.sleep(1)
        assert len((await again.fetch(again.old_replica.topic_id, 0, broker=quick))[1]) == OLD
        await quick.node.hosted_replicas._role_change_lock.acquire()
        await again.three.controller.node.submit(DeleteTopic("t", again.old_replica.topic_id))
        again.new_id = await again._create_topic()
        await again.three.wait_until(lambda: quick.node.image.topics["t"].topic_id == again.new_id, SECONDS)
        assert await again.fetch(topic_id_for(again, how), 0, broker=quick) == (REFUSED[how], [])
        quick.node.hosted_replicas._role_change_lock.release()

    run_recreated(scenario, 2)


async def list_offsets(link: BrokerConnection) -> int:
    request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, -1)])], 1_000)
    return (await link.send(request, ListOffsetsResponse, SECONDS, 8)).topics[0].partitions[0].error_code


async def delete_records(link: BrokerConnection) -> int:
    request = DeleteRecordsRequest([DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 0)])], 1_000)
    return (await link.send(request, DeleteRecordsResponse, SECONDS, 2)).topics[0].partitions[0].error_code


async def end_of_epoch(link: BrokerConnection) -> int:
    request = OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic("t", [OffsetForLeaderPartition(0, -1, 0)])])
    return (await link.send(request, OffsetForLeaderEpochResponse, SECONDS, 4)).topics[0].partitions[0].error_code


async def describe_producers(link: BrokerConnection) -> int:
    request = DescribeProducersRequest([TopicRequest("t", [0])])
    return (await link.send(request, DescribeProducersResponse, SECONDS, 0)).topics[0].partitions[0].error_code


@pytest.mark.parametrize("ask", [list_offsets, delete_records, end_of_epoch, describe_producers])
@run_by(run_recreated)
async def test_requests_by_name_do_not_reach_another_topic(
    again: RecreatedTopic, *, ask: Callable[[BrokerConnection], Awaitable[int]]
) -> None:
    link = await again.link(again.slow)
    assert code_of(await ask(link)) is Code.NONE
    await again.recreate()
    assert code_of(await ask(link)) is Code.NOT_LEADER_OR_FOLLOWER
    await again.release_slow()
    assert code_of(await ask(link)) is Code.NONE


# -- who waits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("by_id", [False, True])
@run_by(run_recreated)
async def test_parked_fetch_fails_when_its_topic_is_gone(again: RecreatedTopic, *, by_id: bool, late: bool) -> None:
    """It fails even if the second topic has a leader and records at that offset before the fetch checks again."""
    asked = again.old_replica.topic_id if by_id else ""
    waiting = asyncio.create_task(again.fetch(asked, OLD, wait_ms=20_000))
    await asyncio.sleep(1)
    assert not waiting.done()
    began = again.three.now
    if late:
        await again.recreate()
        code, values = await waiting
        await again.release_slow()
    else:
        await again.three.controller.node.submit(DeleteTopic("t", again.old_replica.topic_id))
        again.new_id = await again._create_topic()
        await again.three.wait_until(again.is_led, SECONDS)
        new = again.slow.node.leader_replica(*AT)
        for number in range(OLD + 2):
            new.append_now(batch([b"new-%d" % number]), ACKS_ALL)
        code, values = await waiting
    assert again.three.now - began < 10 and values == []
    assert code in (*GONE, Code.NOT_LEADER_OR_FOLLOWER)


def test_waiting_produce_fails_when_its_topic_is_gone() -> None:
    async def scenario(again: RecreatedTopic) -> None:
        for each in (again.three.controller, again.slow):
            again.three.network.cut(again.quick.name, each.name)
        waiting = asyncio.create_task(again.produce(again.old_replica.topic_id, timeout_ms=30_000))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await again.recreate()
        assert (await waiting)[0] in GONE
        again.three.network.heal()
        assert (await again.release_slow()).log.end_offset == 0

    run_recreated(scenario, 2)


# -- groups -----------------------------------------------------------------------------------------------------------


@run_by(run_recreated)
async def test_offset_committed_for_the_second_topic_stays(again: RecreatedTopic) -> None:
    """The offsets of the first topic are removed before any offset of the second can be committed."""
    node = again.slow.node
    await again.three.controller.node.submit(CreateTopic(OFFSETS_TOPIC, assignments=[[again.slow.node_id]]))
    await again.three.wait_until(
        lambda: node.hosted_replicas.find_leader(TopicPartition(OFFSETS_TOPIC, 0)) is not None, SECONDS
    )

    async def committed_offset() -> int:
        fetched = await node.group_coordinators.submit("g", FetchOffsets("g", (AT,)))
        return int(fetched.offsets[0].offset)

    await node.group_coordinators.submit("g", CommitOffsets("g", (PartitionOffset("t", 0, 3),)))
    assert await committed_offset() == 3
    await again.recreate()
    assert await committed_offset() == NO_OFFSET
    await node.group_coordinators.submit("g", CommitOffsets("g", (PartitionOffset("t", 0, 1),)))
    await again.release_slow()
    await asyncio.sleep(1)
    assert await committed_offset() == 1


# -- what has the name is not enough ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [12, 17])
@run_by(run_recreated)
async def test_fetch_continues_with_its_own_topic_only(again: RecreatedTopic, *, version: int) -> None:
    """The rule holds for fetches by name too: the second topic has a leader by the time the fetch checks again."""
    caller = Caller(ANONYMOUS, "far")
    fetches = again.slow.server.dispatch.fetch_handler.fetches.sources.find(caller)
    asked = RequestedTopic(decode_uuid(again.old_replica.topic_id) if version >= TOPIC_IDS_FROM else b"t", "t", [])
    before = fetches.find_source(version, asked, 0, "")
    assert before is again.old_replica.reads
    await again.recreate()
    new = await again.release_slow()
    if version < TOPIC_IDS_FROM:
        assert fetches.find_source(version, asked, 0, "") is new.reads
    with pytest.raises(Refused) as caught:
        fetches.find_same_topic(version, asked, 0, "", before)
    assert caught.value.code in GONE


@run_by(run_recreated)
async def test_log_opened_for_a_topic_deleted_meanwhile_is_not_led(
    again: RecreatedTopic, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker becomes leader again while the bucket delays the manifest of the partition."""
    three, slow = again.three, again.slow
    led = list[str]()

    def note(replica: LeaderReplica) -> None:
        led.append(replica.topic_id)
        on_lead(replica)

    stored_ends = slow.node.stored_ends
    on_lead = stored_ends.on_lead
    monkeypatch.setattr(stored_ends, "on_lead", note)
    slow.machine.faults.first_byte_seconds = 3.0
    await three.controller.node.submit(FenceBroker(slow.node_id, slow.node.incarnation))
    await three.wait_until(lambda: again.old_replica.is_stopped, SECONDS)
    await three.wait_until(lambda: is_leader(slow), SECONDS)
    await three.controller.node.submit(DeleteTopic("t", again.old_replica.topic_id))
    again.new_id = await again._create_topic()
    await three.wait_until(again.is_led, SECONDS)
    assert led == [again.new_id]


def is_leader(broker: SimBroker) -> bool:
    topic = broker.node.image.topics.get("t")
    return topic is not None and topic.partitions[0].leader == broker.node_id


@run_by(run_recreated)
async def test_log_end_of_the_first_topic_is_not_reported_for_the_second(again: RecreatedTopic) -> None:
    """A starting broker reports the ends of its logs, and the controller elects leaders by them. The broker opened
    these logs by an older image."""
    log_store = again.slow.node.hosted_replicas.log_store
    assert log_store.end_of(AT, again.old_replica.topic_id) == (0, OLD)
    await again.recreate()
    assert log_store.end_of(AT, again.new_id) == (-1, 0)
    new = await again.release_slow()
    await new.append(batch([b"new"]), acks=ACKS_ALL)
    assert log_store.end_of(AT, again.new_id) == (0, 1)
