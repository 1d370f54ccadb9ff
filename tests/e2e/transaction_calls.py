"""A transactional producer that writes its own frames, in any version of each API."""

from __future__ import annotations

from typing import NamedTuple

from tests.e2e.kafka_site import RawClient, fetch
from tiered.errors import Code
from tiered.records.batch import decode_records, encode_batch
from tiered.records.marker import decode_marker
from tiered.records.model import CONTROL
from tiered.records.native import walk
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.client.client import code_from_number
from tiered_api.kafka.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tiered_api.kafka.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tiered_api.kafka.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from tiered_api.kafka.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tiered_api.kafka.protocol.messages.fetch import FetchResponse
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tiered_api.kafka.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

WALL_MS = 1_700_000_000_000


class Versions(NamedTuple):
    """The versions that one client sends."""

    init: int
    add: int
    """-1: partitions join with their first record."""
    produce: int
    end: int
    offsets: int
    """TxnOffsetCommit."""


OLDEST = Versions(0, 0, 3, 0, 0)
LIBRDKAFKA = Versions(4, 0, 7, 1, 3)
JAVA_2_8 = Versions(4, 2, 9, 2, 3)
JAVA_3_9 = Versions(5, 3, 11, 4, 4)
JAVA_4_2 = Versions(5, -1, 13, 5, 5)
CLIENTS = {
    "oldest": OLDEST,
    "librdkafka": LIBRDKAFKA,
    "java 2.8": JAVA_2_8,
    "java 3.9": JAVA_3_9,
    "java 4.2": JAVA_4_2,
}


def transactional_batch(producer_id: int, epoch: int, sequence: int, *values: bytes) -> bytearray:
    """Returns a batch of a transaction."""
    return bytearray(
        encode_batch(
            [(WALL_MS, b"k", value, ()) for value in values],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
    )


class TransactionalClient:
    """One producer with a transactional id, over one connection to a broker that coordinates and leads everything.

    It repeats a request that gets CONCURRENT_TRANSACTIONS, as clients do.
    """

    def __init__(self, client: RawClient, name: str = "t", versions: Versions = JAVA_4_2) -> None:
        self.client = client
        self.name = name
        self.versions = versions
        self.producer_id, self.epoch = -1, -1
        self._sequences: dict[tuple[str, int], int] = {}

    async def init(self, producer_id: int = -1, epoch: int = -1, timeout_ms: int = 60_000) -> Code:
        request = InitProducerIdRequest(self.name, timeout_ms, producer_id, epoch)
        code = Code.CONCURRENT_TRANSACTIONS
        while code is Code.CONCURRENT_TRANSACTIONS:
            got = await self.client.ask(request, self.versions.init, InitProducerIdResponse)
            code = code_from_number(got.error_code)
        if code is Code.NONE:
            self.producer_id, self.epoch = got.producer_id, got.producer_epoch
            self._sequences.clear()
        return code

    async def add(self, *replicas: LeaderReplica) -> Code:
        """Adds partitions, and returns the code that all of them get."""
        code = Code.CONCURRENT_TRANSACTIONS
        while code is Code.CONCURRENT_TRANSACTIONS:
            got = await self.client.ask(
                AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id=self.name,
                    v3_and_below_producer_id=self.producer_id,
                    v3_and_below_producer_epoch=self.epoch,
                    v3_and_below_topics=[AddPartitionsToTxnTopic(each.topic, [each.partition]) for each in replicas],
                ),
                max(self.versions.add, 0),
                AddPartitionsToTxnResponse,
            )
            (number,) = {
                each.partition_error_code
                for topic in got.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            }
            code = code_from_number(number)
        return code

    async def send(self, replica: LeaderReplica, *values: bytes, sequence: int = -1) -> Code:
        """Writes one batch. Its partition has to be added before, if the client is of an old version."""
        place = replica.topic, replica.partition
        first = sequence if sequence >= 0 else self._sequences.get(place, 0)
        data = transactional_batch(self.producer_id, self.epoch, first, *values)
        part = PartitionProduceData(index=replica.partition, records=data)
        topic = TopicProduceData(name=replica.topic, topic_id=replica.topic_id, partition_data=[part])
        request = ProduceRequest(transactional_id=self.name, acks=-1, timeout_ms=10_000, topic_data=[topic])
        code = Code.CONCURRENT_TRANSACTIONS
        while code is Code.CONCURRENT_TRANSACTIONS:
            got = await self.client.ask(request, self.versions.produce, ProduceResponse)
            [reply] = got.responses[0].partition_responses
            assert "Code." not in (reply.error_message or ""), reply
            code = code_from_number(reply.error_code)
        if code is Code.NONE:
            self._sequences[place] = first + len(values)
        return code

    async def write(self, replica: LeaderReplica, *values: bytes) -> Code:
        """Adds the partition if the client has to, and writes one batch."""
        if self.versions.add >= 0:
            code = await self.add(replica)
            if code is not Code.NONE:
                return code
        return await self.send(replica, *values)

    async def commit_offsets(
        self, group: str, offset: int, *, topic: str = "a", generation: int = -1, member_id: str = "",
        instance_id: str | None = None,
    ) -> Code:  # fmt: skip
        """Commits one offset of a group, as clients of this version do."""
        if self.versions.add >= 0:
            code = Code.CONCURRENT_TRANSACTIONS
            while code is Code.CONCURRENT_TRANSACTIONS:
                added = await self.client.ask(
                    AddOffsetsToTxnRequest(self.name, self.producer_id, self.epoch, group), self.versions.add,
                    AddOffsetsToTxnResponse,
                )  # fmt: skip
                code = code_from_number(added.error_code)
            if code is not Code.NONE:
                return code
        return await self.commit_offsets_only(
            group, offset, topic=topic, generation=generation, member_id=member_id, instance_id=instance_id
        )

    async def commit_offsets_only(
        self, group: str, offset: int, *, topic: str = "a", generation: int = -1, member_id: str = "",
        instance_id: str | None = None,
    ) -> Code:  # fmt: skip
        """Sends TxnOffsetCommit."""
        topics = [TxnOffsetCommitRequestTopic(topic, [TxnOffsetCommitRequestPartition(0, offset, -1, "note")])]
        request = TxnOffsetCommitRequest(
            self.name, group, self.producer_id, self.epoch, generation, member_id, instance_id, topics
        )
        code = Code.CONCURRENT_TRANSACTIONS
        while code in (Code.CONCURRENT_TRANSACTIONS, Code.COORDINATOR_LOAD_IN_PROGRESS):
            got = await self.client.ask(request, self.versions.offsets, TxnOffsetCommitResponse)
            code = code_from_number(got.topics[0].partitions[0].error_code)
        return code

    async def end(self, commit: bool) -> Code:
        code = Code.CONCURRENT_TRANSACTIONS
        while code is Code.CONCURRENT_TRANSACTIONS:
            got = await self.client.ask(
                EndTxnRequest(self.name, self.producer_id, self.epoch, commit), self.versions.end, EndTxnResponse
            )
            code = code_from_number(got.error_code)
        if code is Code.NONE and self.versions.end >= 5:
            self.producer_id, self.epoch = got.producer_id, got.producer_epoch
            self._sequences.clear()
        return code

    async def describe(self) -> TransactionState:
        got = await self.client.ask(DescribeTransactionsRequest([self.name]), 0, DescribeTransactionsResponse)
        (state,) = got.transaction_states
        return state


async def read_decided(client: RawClient, replica: LeaderReplica) -> tuple[list[bytes], int]:
    """Returns the values of committed transactions of a partition, and its last stable offset.

    The markers in the log say what was committed.
    """
    got = await client.ask(fetch((replica, replica.log_start_offset)), 12, FetchResponse)
    part = got.responses[0].partitions[0]
    assert part.error_code == 0
    data = part.records or b""
    walked = walk(data)
    assert walked.why == ""
    undecided: dict[int, list[bytes]] = {}
    found: list[bytes] = []
    for each in walked.batches:
        if each.attributes & CONTROL:
            values = undecided.pop(each.producer_id, [])
            found += values if decode_marker(data[each.position : each.position + each.size]).commit else []
        else:
            values = undecided.setdefault(each.producer_id, [])
            values += [record.value or b"" for record in decode_records(data, each.position)]
    return found, part.last_stable_offset
