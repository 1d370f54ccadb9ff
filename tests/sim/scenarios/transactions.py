"""A transactional producer and a reader of markers, over three simulated brokers and without the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tests.sim.scenarios.three import SimBroker, ThreeBrokers
from tiered.controller.requests import CreateTopic
from tiered.coordinator.routing import partition_of
from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.metadata.topic_names import TRANSACTIONS_TOPIC
from tiered.peers import TransactionPartitions
from tiered.ports import FileSlice
from tiered.producers.verification import VerificationGuard
from tiered.records.batch import encode_batch
from tiered.records.marker import TransactionMarker, decode_marker
from tiered.records.model import CONTROL
from tiered.records.native import walk
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica
from tiered.transactions.metadata import TransactionMetadata
from tiered.transactions.requests import AddPartitions, EndTransaction, InitProducerId, ProducerIdReply, Request

WAIT_SECONDS = 30.0
RETRIED = frozenset((Code.CONCURRENT_TRANSACTIONS, Code.COORDINATOR_LOAD_IN_PROGRESS))


async def create_topic(
    three: ThreeBrokers, *assignments: Sequence[int], configs: Mapping[str, str] | None = None
) -> None:
    """Creates the topic `t` with its partitions on these brokers; the first of each list leads."""
    await three.controller.node.submit(CreateTopic("t", assignments=assignments, configs=configs or {}))
    await three.wait_until(lambda: all("t" in each.node.image.topics for each in running(three)), 10)


def running(three: ThreeBrokers) -> list[SimBroker]:
    """Returns the brokers whose processes run."""
    return [each for each in three.brokers.values() if three.loop.tasks_of(each.process)]


def find_leader(three: ThreeBrokers, tp: TopicPartition) -> LeaderReplica | None:
    """Returns the leader replica of a partition, at the broker that leads it by its own image."""
    found = [each.node.hosted_replicas.find_leader(tp) for each in running(three)]
    live = [each for each in found if each is not None and not each.is_stopped]
    return max(live, key=lambda each: each.leader_epoch, default=None)


def find_coordinator(three: ThreeBrokers, name: str) -> SimBroker | None:
    """Returns the broker that coordinates a transactional id."""
    for each in running(three):
        topic = each.node.image.topics.get(TRANSACTIONS_TOPIC)
        if topic is not None:
            tp = TopicPartition(TRANSACTIONS_TOPIC, partition_of(name, len(topic.partitions)))
            leader = find_leader(three, tp)
            return three.brokers[leader.state.node_id] if leader is not None else None
    return None


def find_transaction(three: ThreeBrokers, name: str) -> TransactionMetadata | None:
    """Returns the state of a transactional id at its coordinator, None while none is loaded."""
    broker = find_coordinator(three, name)
    shard = broker.node.transaction_coordinators.host.find_shard(name) if broker is not None else None
    return shard.state.transactions.get(name) if shard is not None else None


async def ask(three: ThreeBrokers, name: str, request: Request) -> Any:
    """Returns the coordinator's reply, wherever it is; retries as a client does."""
    start = three.now
    while True:
        assert three.now - start < WAIT_SECONDS, request
        broker = find_coordinator(three, name) or next(iter(running(three)), None)
        if broker is None:
            await asyncio.sleep(0.05)
            continue
        try:
            reply: Any = await broker.node.transaction_coordinators.submit(name, request)
        except Refused as refused:
            assert refused.code.retriable, refused
        else:
            if reply.code not in RETRIED:
                return reply
        await asyncio.sleep(0.05)


class SimProducer:
    """A producer of transaction version 0 or 2. Each transaction has one record in a partition."""

    def __init__(self, three: ThreeBrokers, name: str = "producer", *, version: int = 2) -> None:
        self.three = three
        self.name = name
        self.version = version
        self._sequences: dict[int, int] = {}
        self.producer_id, self.epoch = -1, -1

    async def init(self, timeout_ms: int = 60_000) -> None:
        reply = await ask(self.three, self.name, InitProducerId(self.name, timeout_ms))
        assert reply.code is Code.NONE, reply
        self.producer_id, self.epoch = reply.producer_id, reply.producer_epoch
        self._sequences.clear()

    async def write(self, partition: int, value: bytes) -> None:
        """Writes the first record of the transaction to a partition of `t`. Retries until it is written."""
        start = self.three.now
        while True:
            assert self.three.now - start < WAIT_SECONDS, partition
            try:
                await self.try_write(partition, value)
            except Refused as refused:
                assert refused.code.retriable, refused
            else:
                return
            await asyncio.sleep(0.05)

    async def try_write(self, partition: int, value: bytes) -> None:
        """Does the same once. Raises `Refused`."""
        tp = TopicPartition("t", partition)
        replica = find_leader(self.three, tp)
        if replica is None:
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, str(tp))
        if self.version < 2:
            added = AddPartitions(self.name, self.producer_id, self.epoch, frozenset((tp,)))
            reply = await ask(self.three, self.name, added)
            if reply.code is not Code.NONE:
                raise Refused(reply.code, "not added")
        sequence = self._sequences.get(partition, 0)
        data = bytearray(
            encode_batch(
                [(0, b"k", value, ())], producer_id=self.producer_id, producer_epoch=self.epoch,
                base_sequence=sequence, transactional=True,
            )
        )  # fmt: skip
        unverified = replica.transactions.needs_verification(data)
        guard: VerificationGuard | None = None
        if unverified is not None:
            guard = replica.transactions.begin_verification(*unverified, moves_epoch=self.version >= 2)
            node = self.three.brokers[replica.state.node_id].node
            asked = TransactionPartitions(self.name, self.producer_id, self.epoch, self.version < 2, [replica.tp])
            code = (await node.transaction_verification.query(asked))[replica.tp]
            if code is not Code.NONE:
                raise Refused(Code.NETWORK_EXCEPTION if code in RETRIED else code, "not added")
        await replica.append(data, acks=ACKS_ALL, timeout_ms=3_000, guard=guard)
        self._sequences[partition] = sequence + 1

    async def end(self, commit: bool) -> Code:
        request = EndTransaction(self.name, self.producer_id, self.epoch, commit, self.version)
        reply = await ask(self.three, self.name, request)
        assert isinstance(reply, ProducerIdReply)
        if reply.code is Code.NONE and self.version >= 2:
            self.producer_id, self.epoch = reply.producer_id, reply.producer_epoch
            self._sequences.clear()
        return reply.code


def read_markers(three: ThreeBrokers, partition: int) -> list[TransactionMarker]:
    """Returns the committed markers of a partition of `t` that its leader has on disk; none while there is no
    leader."""
    replica = find_leader(three, TopicPartition("t", partition))
    if replica is None:
        return []
    found, offset = list[TransactionMarker](), replica.local_start_offset
    while offset < replica.high_watermark:
        fetched = replica.reads.read_now(offset, 1 << 20)
        data = fetched.data if fetched is not None else b""
        if isinstance(data, FileSlice):
            data = data.file.pread(data.start, data.length)
        walked = walk(data)
        assert walked.batches and not walked.why
        found += [
            decode_marker(data[each.position : each.position + each.size])
            for each in walked.batches
            if each.attributes & CONTROL
        ]
        offset = walked.batches[-1].last_offset + 1
    return found
