"""Tests of transactions request by request: what clients never send is answered as Kafka answers it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.compat.brokers import CompatBroker
from tests.compat.client import DriverClient
from tests.peer.group_wire import CODES
from tests.peer.wire import Wire
from tiered.errors import Code
from tiered.records.batch import encode_batch
from tiered_api.kafka.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tiered_api.kafka.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tiered_api.kafka.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from tiered_api.kafka.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from tiered_api.kafka.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tiered_api.kafka.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tiered_api.kafka.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tiered_api.kafka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
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

SECONDS = 120.0
GROUP, TRANSACTION = 0, 1
"""Key types of FindCoordinator."""
LATER = {Code.CONCURRENT_TRANSACTIONS, Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE}
LATER |= {Code.NOT_COORDINATOR}
"""Codes at which every client asks again."""
VERSIONS = pytest.mark.parametrize("version", [1, 2], ids=["old-requests", "new-requests"])
Known = tuple[int, int]


class TransactionalWire:
    """Requests of one transactional id over a connection. Version 2 of transactions has requests of its own: they add
    partitions by themselves, and each end of a transaction moves the epoch."""

    def __init__(self, wire: Wire, name: str, version: int) -> None:
        self.wire = wire
        self.name = name
        self.version = version
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[tuple[str, int, Known], int] = {}

    @property
    def known(self) -> Known:
        """Returns producer id and epoch."""
        return self.producer_id, self.epoch

    def _attempts(self, key_type: int, key: str) -> Iterator[None]:
        """Yields until the deadline, each time after a look for the coordinator, which creates its internal topic."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            find = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            self.wire.ask(find, FindCoordinatorResponse, 4)
            yield

    def init(self, timeout_ms: int = 60_000, known: Known = (-1, -1)) -> Code:
        request = InitProducerIdRequest(self.name, timeout_ms, *known)
        for _ in self._attempts(TRANSACTION, self.name):
            reply = self.wire.ask(request, InitProducerIdResponse, 5)
            if CODES[reply.error_code] not in LATER:
                break
        if not reply.error_code:
            self.producer_id, self.epoch = reply.producer_id, reply.producer_epoch
        return CODES[reply.error_code]

    def add(self, *partitions: tuple[str, int], known: Known | None = None) -> list[Code]:
        """Adds partitions as old clients do before they write."""
        topics = [AddPartitionsToTxnTopic(topic, [partition]) for topic, partition in partitions]
        producer_id, epoch = known or self.known
        request = AddPartitionsToTxnRequest([], self.name, producer_id, epoch, topics)
        for _ in self._attempts(TRANSACTION, self.name):
            reply = self.wire.ask(request, AddPartitionsToTxnResponse, 3)
            found = {
                (topic.name, each.partition_index): CODES[each.partition_error_code]
                for topic in reply.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            }
            if not set(found.values()) & LATER:
                break
        return [found[each] for each in partitions]

    def send(self, topic: str, partition: int = 0, known: Known | None = None) -> Code:
        """Writes one record; the request of an old client needs its partition added before."""
        known = known or self.known
        place = (topic, partition, known)
        sequence = self.sequences.get(place, 0)
        records = encode_batch(
            [(int(time.time() * 1000), None, b"v", ())],
            producer_id=known[0],
            producer_epoch=known[1],
            base_sequence=sequence,
            transactional=True,
        )
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(partition, records)])
        request = ProduceRequest(self.name, -1, 10_000, [data])
        for _ in self._attempts(TRANSACTION, self.name):
            reply = self.wire.ask(request, ProduceResponse, 12 if self.version == 2 else 11)
            code = CODES[reply.responses[0].partition_responses[0].error_code]
            if code is not Code.NOT_ENOUGH_REPLICAS:
                break
        if code is Code.NONE:
            self.sequences[place] = sequence + 1
        return code

    def write(self, topic: str, partition: int = 0) -> None:
        """Writes one record within the transaction, in the manner of the version."""
        if self.version < 2:
            assert self.add((topic, partition)) == [Code.NONE]
        assert self.send(topic, partition) is Code.NONE

    def end(self, commit: bool, known: Known | None = None) -> Code:
        """Ends the transaction, and takes over the producer id and epoch of a reply that has them."""
        producer_id, epoch = known or self.known
        request = EndTxnRequest(self.name, producer_id, epoch, commit)
        for _ in self._attempts(TRANSACTION, self.name):
            reply = self.wire.ask(request, EndTxnResponse, 5 if self.version == 2 else 4)
            if CODES[reply.error_code] not in LATER:
                break
        if reply.producer_id >= 0:
            self.producer_id, self.epoch = reply.producer_id, reply.producer_epoch
        return CODES[reply.error_code]

    def add_group(self, group: str, known: Known | None = None) -> Code:
        """Adds a group's offsets as old clients do before they send them."""
        producer_id, epoch = known or self.known
        request = AddOffsetsToTxnRequest(self.name, producer_id, epoch, group)
        for _ in self._attempts(TRANSACTION, self.name):
            code = CODES[self.wire.ask(request, AddOffsetsToTxnResponse, 4).error_code]
            if code not in LATER:
                break
        return code

    def send_offset(
        self,
        group: str,
        topic: str,
        offset: int,
        *,
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        known: Known | None = None,
    ) -> Code:
        """Sends an offset of partition 0 within the transaction."""
        partition = TxnOffsetCommitRequestPartition(0, offset, -1, "")
        topics = [TxnOffsetCommitRequestTopic(topic, [partition])]
        who = known or self.known
        request = TxnOffsetCommitRequest(self.name, group, *who, generation, member, instance, topics)
        for _ in self._attempts(GROUP, group):
            reply = self.wire.ask(request, TxnOffsetCommitResponse, 5 if self.version == 2 else 4)
            code = CODES[reply.topics[0].partitions[0].error_code]
            if code not in LATER:
                break
        return code

    def describe(self) -> TransactionState:
        (found,) = self.wire.ask(
            DescribeTransactionsRequest([self.name]), DescribeTransactionsResponse
        ).transaction_states
        return found

    def state_after(self, passing: str) -> str:
        """Returns the state once it is no longer `passing`: markers take a moment."""
        until = time.monotonic() + SECONDS
        while (state := self.describe().transaction_state) == passing:
            assert time.monotonic() < until, f"still {passing}"
        return state


@pytest.fixture
def wire(broker: CompatBroker) -> Iterator[Wire]:
    with Wire(broker.plain_address) as one:
        yield one


@pytest.fixture
def topic(admin: DriverClient, name: str) -> str:
    """Returns a topic of two partitions."""
    admin.ask("create", topic=name, partitions=2)
    return name


def fetch_offset(wire: Wire, group: str, topic: str, stable: bool) -> tuple[Code, int]:
    """Returns the code and the committed offset of partition 0."""
    asked = [OffsetFetchRequestGroup(group, topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[0])])]
    reply = wire.ask(OffsetFetchRequest(groups=asked, require_stable=stable), OffsetFetchResponse, 8)
    ((found,),) = [[each for t in group.topics for each in t.partitions] for group in reply.groups]
    return CODES[found.error_code], found.committed_offset


def producer_states(wire: Wire, topic: str) -> list[ProducerState]:
    """Returns the producers of partition 0 as the leader knows them."""
    reply = wire.ask(DescribeProducersRequest([TopicRequest(topic, [0])]), DescribeProducersResponse)
    return reply.topics[0].partitions[0].active_producers


@VERSIONS
def test_repeated_end_gets_the_same_answer_and_the_opposite_is_refused(version: int, wire: Wire, topic: str) -> None:
    txn = TransactionalWire(wire, topic, version)
    assert txn.init() is Code.NONE
    for commit in (True, False):
        txn.write(topic)
        before = txn.known
        assert txn.end(commit) is Code.NONE
        after = txn.known
        assert after == (before[0], before[1] + (version == 2))
        assert txn.end(commit, before) is Code.NONE
        assert txn.known == after
        assert txn.end(not commit, before) is Code.INVALID_TXN_STATE
    txn.write(topic)
    assert txn.end(True) is Code.NONE


@VERSIONS
def test_transaction_that_never_began_ends_by_an_abort_of_version_2(version: int, wire: Wire, topic: str) -> None:
    txn = TransactionalWire(wire, topic, version)
    assert txn.init() is Code.NONE
    assert txn.end(True) is Code.INVALID_TXN_STATE
    before = txn.known
    assert txn.end(False) is (Code.NONE if version == 2 else Code.INVALID_TXN_STATE)
    assert txn.known == (before[0], before[1] + (version == 2))
    txn.write(topic)
    assert txn.end(True) is Code.NONE


@VERSIONS
def test_old_epoch_is_refused_by_coordinator_and_leader(version: int, wire: Wire, topic: str) -> None:
    txn = TransactionalWire(wire, topic, version)
    assert txn.init() is Code.NONE
    txn.write(topic)
    old = txn.known
    assert txn.init() is Code.NONE
    assert txn.epoch > old[1]
    assert txn.add((topic, 0), known=old) == [Code.PRODUCER_FENCED]
    assert txn.add_group(topic, known=old) is Code.PRODUCER_FENCED
    assert txn.end(True, old) is Code.PRODUCER_FENCED
    assert txn.init(known=old) is Code.PRODUCER_FENCED
    assert txn.send(topic, known=old) is Code.INVALID_PRODUCER_EPOCH
    txn.write(topic)
    assert txn.end(True) is Code.NONE


@VERSIONS
def test_producer_id_of_another_is_refused(version: int, wire: Wire, topic: str) -> None:
    txn = TransactionalWire(wire, topic, version)
    assert txn.init() is Code.NONE
    other = (txn.producer_id + 100_000, 0)
    assert txn.end(True, other) is Code.INVALID_PRODUCER_ID_MAPPING
    assert txn.add((topic, 0), known=other) == [Code.INVALID_PRODUCER_ID_MAPPING]
    assert txn.add_group(topic, known=other) is Code.INVALID_PRODUCER_ID_MAPPING
    unknown = TransactionalWire(wire, f"{topic}-unknown", version)
    assert unknown.end(True, (1, 0)) is Code.INVALID_PRODUCER_ID_MAPPING
    assert unknown.describe().error_code == Code.TRANSACTIONAL_ID_NOT_FOUND.number


def test_bad_requests_of_a_producer_id_are_refused(wire: Wire, name: str) -> None:
    assert TransactionalWire(wire, "", 2).init() is Code.INVALID_REQUEST
    for timeout_ms in (0, -1, 900_001):
        assert TransactionalWire(wire, name, 2).init(timeout_ms) is Code.INVALID_TRANSACTION_TIMEOUT
    assert TransactionalWire(wire, name, 2).init(known=(5, -1)) is Code.INVALID_REQUEST
    assert TransactionalWire(wire, name, 2).init(900_000) is Code.NONE


def test_unknown_partition_keeps_the_others_out_of_the_transaction(wire: Wire, topic: str) -> None:
    txn = TransactionalWire(wire, topic, 1)
    assert txn.init() is Code.NONE
    codes = txn.add((topic, 0), (f"{topic}-nowhere", 0))
    assert codes == [Code.OPERATION_NOT_ATTEMPTED, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert txn.describe().transaction_state == "Empty"


def test_old_client_cannot_write_to_a_partition_that_it_did_not_add(wire: Wire, topic: str) -> None:
    txn = TransactionalWire(wire, topic, 1)
    assert txn.init() is Code.NONE
    txn.write(topic, 0)
    assert txn.send(topic, 1) is Code.TRANSACTION_ABORTABLE
    assert txn.end(False) is Code.NONE


@VERSIONS
def test_initialization_aborts_the_open_transaction(version: int, wire: Wire, topic: str) -> None:
    txn = TransactionalWire(wire, topic, version)
    assert txn.init() is Code.NONE
    txn.write(topic)
    assert txn.describe().transaction_state == "Ongoing"
    (open_one,) = producer_states(wire, topic)
    assert (open_one.producer_id, open_one.current_txn_start_offset) == (txn.producer_id, 0)
    assert txn.init() is Code.NONE
    (none_open,) = producer_states(wire, topic)
    assert none_open.current_txn_start_offset == -1
    assert txn.describe().transaction_state in ("Empty", "CompleteAbort")


@VERSIONS
def test_states_are_described_and_listed(version: int, wire: Wire, topic: str) -> None:
    txn = TransactionalWire(wire, topic, version)
    assert txn.init(45_000) is Code.NONE
    seen = [txn.describe().transaction_state]
    for commit in (True, False):
        txn.write(topic)
        txn.write(topic, 1)
        described = txn.describe()
        assert (described.transaction_timeout_ms, described.producer_id) == (45_000, txn.producer_id)
        assert described.transaction_start_time_ms > 0
        assert [(each.topic, sorted(each.partitions)) for each in described.topics] == [(topic, [0, 1])]
        assert topic in list_states(wire, ["Ongoing"])
        assert topic not in list_states(wire, ["CompleteCommit", "Empty"])
        seen.append(described.transaction_state)
        assert txn.end(commit) is Code.NONE
        seen.append(txn.state_after("PrepareCommit" if commit else "PrepareAbort"))
        assert txn.describe().topics == []
    assert seen == ["Empty", "Ongoing", "CompleteCommit", "Ongoing", "CompleteAbort"]


def list_states(wire: Wire, states: list[str]) -> list[str]:
    """Returns the transactional ids in these states."""
    reply = wire.ask(ListTransactionsRequest(states, []), ListTransactionsResponse)
    assert (reply.error_code, reply.unknown_state_filters) == (0, [])
    return [each.transactional_id for each in reply.transaction_states]


def test_transactions_are_listed_by_producer_duration_and_pattern(wire: Wire, broker: CompatBroker, topic: str) -> None:
    txn = TransactionalWire(wire, topic, 2)
    assert txn.init() is Code.NONE
    txn.write(topic)

    def listed(request: ListTransactionsRequest) -> list[str]:
        reply = wire.ask(request, ListTransactionsResponse)
        assert reply.error_code == 0
        return [each.transactional_id for each in reply.transaction_states]

    assert listed(ListTransactionsRequest([], [txn.producer_id])) == [topic]
    assert listed(ListTransactionsRequest([], [txn.producer_id + 100_000])) == []
    until = time.monotonic() + SECONDS
    while topic not in listed(ListTransactionsRequest([], [], 0)):
        assert time.monotonic() < until, "it is older than 0 ms after a millisecond"
    assert topic not in listed(ListTransactionsRequest([], [], 3_600_000))
    assert listed(ListTransactionsRequest([], [], -1, f"{topic[:20]}.*{topic[-6:]}")) == [topic]
    reply = wire.ask(ListTransactionsRequest([], [], -1, "["), ListTransactionsResponse)
    assert CODES[reply.error_code] is Code.INVALID_REGULAR_EXPRESSION
    unknown = wire.ask(ListTransactionsRequest(["Dreaming"], []), ListTransactionsResponse)
    assert (unknown.unknown_state_filters, unknown.transaction_states) == (["Dreaming"], [])
    assert txn.end(False) is Code.NONE


@VERSIONS
def test_offsets_are_unstable_until_the_transaction_ends(version: int, wire: Wire, topic: str) -> None:
    txn = TransactionalWire(wire, topic, version)
    assert txn.init() is Code.NONE
    committed = -1
    for offset, commit in ((3, True), (5, False), (7, True)):
        if version < 2:
            assert txn.add_group(topic) is Code.NONE
        assert txn.send_offset(topic, topic, offset) is Code.NONE
        assert fetch_offset(wire, topic, topic, stable=True) == (Code.UNSTABLE_OFFSET_COMMIT, -1)
        assert fetch_offset(wire, topic, topic, stable=False) == (Code.NONE, committed)
        assert [each.topic for each in txn.describe().topics] == ["__consumer_offsets"]
        assert txn.end(commit) is Code.NONE
        until = time.monotonic() + SECONDS
        while (found := fetch_offset(wire, topic, topic, stable=True))[0] is Code.UNSTABLE_OFFSET_COMMIT:
            assert time.monotonic() < until
        committed = offset if commit else committed
        assert found == (Code.NONE, committed)


@VERSIONS
def test_offsets_of_a_foreign_member_are_refused(version: int, wire: Wire, admin: DriverClient, topic: str) -> None:
    admin.ask("open", group=topic)
    admin.ask("subscribe", topics=[topic])
    admin.wait_until(lambda: admin.assigned == {(topic, 0), (topic, 1)})
    txn = TransactionalWire(wire, topic, version)
    assert txn.init() is Code.NONE
    if version < 2:
        assert txn.add_group(topic) is Code.NONE
        assert txn.add_group(f"{topic}-2") is Code.NONE
    assert txn.send_offset(f"{topic}-2", topic, 1, member="nobody", generation=4) is Code.ILLEGAL_GENERATION
    assert txn.send_offset(topic, topic, 1, member="nobody", generation=1) is Code.UNKNOWN_MEMBER_ID
    assert txn.send_offset(topic, topic, 1, member="nobody") is Code.UNKNOWN_MEMBER_ID
    assert txn.send_offset(topic, topic, 1, member="nobody", instance="nobody") is Code.UNKNOWN_MEMBER_ID
    assert txn.end(False) is Code.NONE
    assert fetch_offset(wire, topic, topic, stable=False) == (Code.NONE, -1)
    admin.ask("leave")


def test_epoch_of_the_log_moves_with_every_transaction_of_a_new_client(wire: Wire, topic: str) -> None:
    txn = TransactionalWire(wire, topic, 2)
    assert txn.init() is Code.NONE
    for _ in range(3):
        before = txn.known
        txn.write(topic)
        assert txn.end(True) is Code.NONE
        assert txn.state_after("PrepareCommit") == "CompleteCommit", "Kafka replies before the marker is in the log"
        assert txn.send(topic, known=before) is Code.INVALID_PRODUCER_EPOCH
    assert txn.epoch == 3
