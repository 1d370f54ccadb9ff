"""A transactional producer over the wire, of both kinds of clients: those that add partitions to a transaction before
they write (transaction version 1), and those whose first write adds the partition (version 2, KIP-890).

It repeats each request until the outcome is known, or until it gives up. After any unknown outcome it begins anew with
InitProducerId, which fences what it was before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from tests.sim.cluster.world import ObservedClient
from tests.sim.harness.clock import EPOCH_MS
from tests.sim.harness.loop import SimLoop
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.records.batch import encode_batch
from tiered_api.kafka.client.client import code_from_number
from tiered_api.kafka.client.leader_routing import STALE_COORDINATOR_CODES
from tiered_api.kafka.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tiered_api.kafka.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tiered_api.kafka.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tiered_api.kafka.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
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
from tiered_api.kafka.protocol.schema import Message

A = TypeVar("A", bound=Message)

REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
GROUP_KEY, TRANSACTION_KEY = 0, 1
TIMEOUT_MS = 3_000
GIVE_UP_SECONDS = 12.0
NEVER_NS = 1 << 62
RETRY_SECONDS = 0.1
FIRST_VERSIONS: dict[type[Message], int] = {
    AddPartitionsToTxnRequest: 3, EndTxnRequest: 4, ProduceRequest: 11, TxnOffsetCommitRequest: 4,
}  # fmt: skip
"""Highest versions of a client that knows transaction version 1 at most."""
SECOND_VERSIONS: dict[type[Message], int] = {AddPartitionsToTxnRequest: 3}
RETRIED_CODES = STALE_COORDINATOR_CODES | {Code.CONCURRENT_TRANSACTIONS, Code.REQUEST_TIMED_OUT}
"""Codes of coordinators after which a client sends the same request again."""


class Outcome(Enum):
    """A transaction as its client knows it."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    """The client ended it so, or was told that it cannot commit it."""
    UNKNOWN = "unknown"


@dataclass
class SimTransaction:
    """One transaction of a client. `commit_ns` is the time of its first request to commit, -1 for none."""

    producer: str
    number: int
    producer_id: int
    epoch: int
    begun_ns: int
    values: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """Offsets of a group that it commits."""
    commit_ns: int = -1
    done_ns: int = -1
    outcome: Outcome = Outcome.OPEN
    is_fenced: bool = False
    """True if another client had taken the transactional id before this one wrote its values."""
    offsets_sent_ns: int = -1
    """Time of the first request with `offsets`."""
    offsets_written_ns: int = NEVER_NS
    """Time since when no request with `offsets` can be in progress, while the transaction is open."""


class TransactionalWireClient(ObservedClient):
    """A client that sends versions of its age."""

    highest: dict[type[Message], int] = SECOND_VERSIONS

    async def send(
        self,
        request: Message,
        response_type: type[A],
        *,
        node_id: int | None = None,
        timeout: float | None = None,
        version_max: int | None = None,
        connects_once: bool = False,
    ) -> A:
        connection = await (self._connect_any() if node_id is None else self._connect_to(node_id, once=connects_once))
        version = connection.choose_version(request)
        version = min(
            version, self.highest.get(type(request), version), version if version_max is None else version_max
        )
        return await connection.send(request, response_type, self.timeout if timeout is None else timeout, version)


class TransactionalSession:
    """A transactional id in use by one client. `transaction` is the one in progress, None between two."""

    def __init__(
        self, name: str, transactional_id: str, client: TransactionalWireClient, loop: SimLoop, timeout_ms: int,
        history: list[SimTransaction], count_code: Callable[[Code], None], *, is_first: bool,
    ) -> None:  # fmt: skip
        self.name = name
        self.transactional_id = transactional_id
        self.producer_id = self.epoch = -1
        self.transaction: SimTransaction | None = None
        self.last_code = Code.NONE
        self.attempts = 0
        """Requests that the last call of a coordinator sent."""
        self.pair_of: Callable[[bytes], tuple[bytes | None, bytes | None]] = lambda value: (None, value)
        """Key and value of the record that is named by a value."""
        self._client = client
        self._loop = loop
        self._timeout_ms = timeout_ms
        self._history = history
        self._count_code = count_code
        self._is_first = is_first
        """True for a client that knows transaction version 1 at most."""
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[object] = set()
        self._number = 0
        client.highest = FIRST_VERSIONS if is_first else SECOND_VERSIONS

    @property
    def moves_epoch(self) -> bool:
        """True if each end of a transaction gives the client a new epoch."""
        return not self._is_first

    @property
    def is_ready(self) -> bool:
        """True if the client has a producer id that it may use."""
        return self.producer_id >= 0

    def fork(self, name: str) -> TransactionalSession:
        """Returns another client that goes on with the same producer id, as a process that does not know that it was
        replaced."""
        other = TransactionalSession(
            name, self.transactional_id, self._client, self._loop, self._timeout_ms, self._history, self._count_code,
            is_first=self._is_first,
        )  # fmt: skip
        other.pair_of = self.pair_of
        other.producer_id, other.epoch = self.producer_id, self.epoch
        other._sequences, other._added = dict(self._sequences), set(self._added)
        other.transaction, other._number = self.transaction, self._number
        return other

    def renew(self, transactional_id: str) -> TransactionalSession:
        """Returns a client with another transactional id, which fences nobody."""
        other = TransactionalSession(
            self.name, transactional_id, self._client, self._loop, self._timeout_ms, self._history, self._count_code,
            is_first=self._is_first,
        )  # fmt: skip
        other._number = self._number
        return other

    # -- the steps of a transaction -----------------------------------------------------------------------------------

    async def init(self, *, goes_on: bool = False) -> bool:
        """Gets a producer id, and fences all others. False if it got none. A client that `goes_on` gets the next epoch
        of its own id, unless it was fenced itself (KIP-360)."""
        known = (self.producer_id, self.epoch) if goes_on else (-1, -1)
        self._forget()
        request = InitProducerIdRequest(self.transactional_id, self._timeout_ms, *known)
        got = await self._call_coordinator(request, InitProducerIdResponse, lambda each: each.error_code)
        if got is None or got.error_code:
            return False
        self.producer_id, self.epoch = got.producer_id, got.producer_epoch
        return True

    def begin(self) -> SimTransaction:
        """Begins a transaction. Nothing is sent."""
        self._number += 1
        self._added.clear()
        self.transaction = SimTransaction(self.name, self._number, self.producer_id, self.epoch, self._loop.now_ns)
        self._history.append(self.transaction)
        return self.transaction

    async def write(self, tp: TopicPartition, values: Sequence[bytes], *, seconds: float = GIVE_UP_SECONDS) -> bool:
        """Writes one batch. True once it is acknowledged; False if it is refused or no reply came in time."""
        assert self.transaction is not None
        self.transaction.values.setdefault(tp, []).extend(values)
        if self._is_first and tp not in self._added and not self.transaction.is_fenced:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id, v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(tp.topic, [tp.partition])],
            )  # fmt: skip
            got = await self._call_coordinator(
                request, AddPartitionsToTxnResponse,
                lambda each: each.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
            )  # fmt: skip
            if got is None or self.last_code is not Code.NONE:
                return False
            self._added.add(tp)
        return await self._produce(tp, values, seconds)

    async def _produce(self, tp: TopicPartition, values: Sequence[bytes], seconds: float) -> bool:
        sequence = self._sequences.get(tp, 0)
        now_ms = EPOCH_MS + self._loop.now_ns // 1_000_000
        data = encode_batch(
            [(now_ms, *self.pair_of(value), ()) for value in values], producer_id=self.producer_id,
            producer_epoch=self.epoch, base_sequence=sequence, transactional=True,
        )  # fmt: skip
        request = ProduceRequest(
            transactional_id=self.transactional_id, acks=-1, timeout_ms=TIMEOUT_MS,
            topic_data=[TopicProduceData(name=tp.topic, partition_data=[PartitionProduceData(tp.partition, data)])],
        )  # fmt: skip
        until_ns = self._loop.now_ns + round(seconds * 1e9)
        while self._loop.now_ns < until_ns:
            code = Code.LEADER_NOT_AVAILABLE
            try:
                shares, _ = await self._client.group_by_leader([tp])
                for node in shares:
                    got = await self._client.send(request, ProduceResponse, node_id=node)
                    code = self._note(got.responses[0].partition_responses[0].error_code)
            except REQUEST_ERRORS:
                pass
            if code in (Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER):
                self._sequences[tp] = sequence + len(values)
                return True
            if not code.retriable and code is not Code.CONCURRENT_TRANSACTIONS:
                return False
            self._client.forget_leaders([tp])
            await asyncio.sleep(RETRY_SECONDS)
        return False

    async def commit_offsets(self, group: str, offsets: dict[TopicPartition, int]) -> bool:
        """Writes offsets of a group. True once they are acknowledged."""
        assert self.transaction is not None
        self.transaction.offsets_sent_ns = self._loop.now_ns
        self.transaction.offsets |= offsets
        if self._is_first and group not in self._added:
            request = AddOffsetsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, group)
            added = await self._call_coordinator(request, AddOffsetsToTxnResponse, lambda each: each.error_code)
            if added is None or added.error_code:
                return False
            self._added.add(group)
        topics = [
            TxnOffsetCommitRequestTopic(tp.topic, [TxnOffsetCommitRequestPartition(tp.partition, offset, -1, "")])
            for tp, offset in offsets.items()
        ]
        commit = TxnOffsetCommitRequest(self.transactional_id, group, self.producer_id, self.epoch, topics=topics)
        got = await self._call_coordinator(
            commit, TxnOffsetCommitResponse,
            lambda each: next((p.error_code for topic in each.topics for p in topic.partitions if p.error_code), 0),
            group=group,
        )  # fmt: skip
        if self.attempts == 1:
            self.transaction.offsets_written_ns = self._loop.now_ns
        return got is not None and self.last_code is Code.NONE

    async def end(self, is_commit: bool) -> Outcome:
        """Ends the transaction. After an unknown outcome the client has to begin anew with `init`."""
        transaction = self.transaction
        assert transaction is not None
        if is_commit:
            transaction.commit_ns = self._loop.now_ns
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, is_commit)
        got = await self._call_coordinator(request, EndTxnResponse, lambda each: each.error_code)
        if got is not None and not got.error_code:
            transaction.outcome = Outcome.COMMITTED if is_commit else Outcome.ABORTED
            if got.producer_id >= 0 and (got.producer_id, got.producer_epoch) != (self.producer_id, self.epoch):
                self.producer_id, self.epoch = got.producer_id, got.producer_epoch
                self._sequences.clear()
        elif not is_commit:
            transaction.outcome = Outcome.ABORTED  # nobody asked for a commit
        else:
            transaction.outcome = Outcome.UNKNOWN
        transaction.done_ns = self._loop.now_ns
        if got is None or got.error_code:
            self._forget()
        self.transaction = None
        return transaction.outcome

    def abandon(self) -> None:
        """Leaves the transaction to its timeout, or to the next `init`."""
        if self.transaction is not None:
            self.transaction.outcome = Outcome.ABORTED  # nobody asked for a commit
            self.transaction.done_ns = self._loop.now_ns
        self.transaction = None
        self._forget()

    def _forget(self) -> None:
        self.producer_id = self.epoch = -1
        self._sequences.clear()
        self._added.clear()

    # -- coordinators -------------------------------------------------------------------------------------------------

    async def _call_coordinator(
        self, request: Message, response_type: type[A], code_of: Callable[[A], int], *, group: str | None = None
    ) -> A | None:
        """Sends a request until it gets a final reply; None if it got none in time."""
        self.attempts = 0
        until_ns = self._loop.now_ns + round(GIVE_UP_SECONDS * 1e9)
        while self._loop.now_ns < until_ns:
            try:
                node = await self._find_coordinator(group)
                self.attempts += 1
                got = await self._client.send(request, response_type, node_id=node)
            except REQUEST_ERRORS:
                pass
            else:
                code = self._note(code_of(got))
                if code not in RETRIED_CODES:
                    return got
            await asyncio.sleep(RETRY_SECONDS)
        self.last_code = Code.REQUEST_TIMED_OUT
        return None

    async def _find_coordinator(self, group: str | None) -> int:
        key, kind = (self.transactional_id, TRANSACTION_KEY) if group is None else (group, GROUP_KEY)
        got = await self._client.send(
            FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key]), FindCoordinatorResponse
        )
        found = got.coordinators[0]
        if found.error_code:
            raise Refused(code_from_number(found.error_code), f"no coordinator for {key}")
        self._client.add_broker(found.node_id, found.host, found.port)
        return found.node_id

    def _note(self, number: int) -> Code:
        self.last_code = code_from_number(number)
        self._count_code(self.last_code)
        return self.last_code
