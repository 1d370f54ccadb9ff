"""One transactional id: its transactions one after the other, by Kafka's own requests to any broker.

The requests are those of a Kafka client with transactions of version 2 (KIP-890): partitions and groups join a
transaction by the first write, and each end gives the producer a new epoch. So a write or an end whose reply was lost
may be sent again: it happens once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.topic_names import TRANSACTIONS_TOPIC
from tiered.security.principal import BROKER, Caller, Principal
from tiered_api.http.consumers.coordinator_calls import find_coordinator
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.errors import EXPECTED_ERRORS
from tiered_api.http.transactions.body import GroupOffsets
from tiered_api.kafka.client.client import code_from_number
from tiered_api.kafka.client.error_sentences import explain_error
from tiered_api.kafka.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
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

INIT_VERSION, PRODUCE_VERSION, OFFSETS_VERSION, END_VERSION = 5, 13, 5, 5
ACKS_ALL = -1
TRANSACTION_MS = 60_000
"""Timeout of a transaction: longer than a request, so that the coordinator ends only those of lost requests."""
PAUSE_SECONDS = 0.02
ABORT_SECONDS = 5.0
STALE_IDENTITY = (
    Code.PRODUCER_FENCED,
    Code.INVALID_PRODUCER_EPOCH,
    Code.INVALID_PRODUCER_ID_MAPPING,
    Code.INVALID_TXN_STATE,
    Code.UNKNOWN_PRODUCER_ID,
)
"""Refusals of a producer whose id has expired, or whose transaction was ended by others."""

NOT_REPEATED = (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.THROTTLING_QUOTA_EXCEEDED)
"""Retriable refusals that the caller gets at once."""

T = TypeVar("T")

EncodeBatch = Callable[[int, int, int], Awaitable[bytes | bytearray]]
"""Returns a transactional batch of this producer id, epoch and base sequence."""


class PartitionWrite(NamedTuple):
    """The batches for one partition: each with its number of records."""

    tp: TopicPartition
    topic_id: TopicId
    batches: Sequence[tuple[int, EncodeBatch]]


class Placed(NamedTuple):
    """The place of a batch in the log. `append_time_ms` is -1 if the records keep their own timestamps."""

    base_offset: int
    append_time_ms: int


Places = list[list[Placed]]
"""The places of the batches of each `PartitionWrite`."""


class ProducerIdentity(NamedTuple):
    """Producer id and epoch of the next transaction."""

    producer_id: int
    producer_epoch: int


def _make_caller(context: HttpContext, holder: str) -> Caller | None:
    """Returns this broker as the caller that works for a holder; None if it works for nobody."""
    if not holder:
        return None
    return Caller(Principal(BROKER, str(context.broker.settings.node_id)), "", shares_of=holder)


class TransactionalProducer:
    """The producer of one transactional id. The caller runs one transaction at a time."""

    def __init__(
        self, context: HttpContext, transactional_id: str, request_hash: bytes = b"", holder: str = ""
    ) -> None:
        """The id and its producer count for `holder`; those that requests share count for nobody."""
        self.transactional_id = transactional_id
        self._caller = _make_caller(context, holder)
        self._request_hash = request_hash
        self._context = context
        self._identity: ProducerIdentity | None = None
        """None if it is not known: then the next transaction takes a new one, which ends an open transaction."""

    async def begin_once(self, seconds: float) -> bytes:
        """Begins the one transaction of an idempotency key. Returns the kept reply if it is committed, else nothing.

        Raises `Refused`: INVALID_TXN_STATE while the transaction is open, DUPLICATE_RESOURCE if it was that of another
        request. The coordinator aborts a transaction whose broker is gone after `seconds`.
        """
        deadline = self._context.clock.mono_ns() + int(seconds * 1e9)
        self._identity, kept = await self._init_identity(deadline, int(seconds * 1000))
        return kept

    async def commit(
        self,
        writes: Sequence[PartitionWrite],
        group: GroupOffsets | None,
        seconds: float,
        make_reply: Callable[[Places], bytes] = lambda _: b"",
        require_rights: Callable[[], None] = lambda: None,
        holder: str = "",
    ) -> Places:
        """Writes all batches and offsets in one transaction, and commits it. Returns the place of each batch. The
        result of `make_reply` is kept for the idempotency key. `require_rights` raises an error if the client lost its
        rights: before the first write, or before the commit, which then becomes an abort. The group counts for
        `holder`.

        Raises the first error if nothing was written. Raises `Refused` with REQUEST_TIMED_OUT if the outcome is not
        known.
        """
        deadline = self._context.clock.mono_ns() + int(seconds * 1e9)
        known, self._identity = self._identity, None
        if known is not None:
            try:
                return await self._run(known, writes, group, deadline, make_reply, require_rights, holder)
            except Refused as refused:
                if refused.code not in STALE_IDENTITY or self._request_hash:
                    raise
        identity, _ = await self._init_identity(deadline, TRANSACTION_MS)
        return await self._run(identity, writes, group, deadline, make_reply, require_rights, holder)

    async def _run(
        self,
        identity: ProducerIdentity,
        writes: Sequence[PartitionWrite],
        group: GroupOffsets | None,
        deadline: int,
        make_reply: Callable[[Places], bytes],
        require_rights: Callable[[], None],
        holder: str,
    ) -> Places:
        require_rights()
        steps = [self._write(identity, write, deadline) for write in writes]
        if group is not None and group.offsets:
            steps.append(self._commit_offsets(identity, group, deadline, holder))
        outcomes = await asyncio.gather(*steps, return_exceptions=True)
        faults = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if not faults:
            try:
                require_rights()
            except EXPECTED_ERRORS as error:
                faults = [error]
        if faults:
            await self._abort(identity)
            raise next((fault for fault in faults if not isinstance(fault, EXPECTED_ERRORS)), faults[0])
        placed = [outcome for outcome in outcomes[: len(writes)] if isinstance(outcome, list)]
        self._identity = await self._end(identity, commit=True, deadline=deadline, kept=make_reply(placed))
        return placed

    # -- steps --------------------------------------------------------------------------------------------------------

    async def _init_identity(self, deadline: int, timeout_ms: int) -> tuple[ProducerIdentity, bytes]:
        """Returns the identity, and the kept reply of an idempotency key whose transaction is committed."""
        timeout_ms = min(timeout_ms, self._context.broker.settings.transaction_max_timeout_ms)
        request = InitProducerIdRequest(self.transactional_id, timeout_ms, request_hash=self._request_hash)

        async def init() -> tuple[ProducerIdentity, bytes]:
            remote_brokers, node = self._context.remote_brokers, await self._find_coordinator()
            reply = await remote_brokers.send_request(
                node, request, InitProducerIdResponse, INIT_VERSION, caller=self._caller
            )
            self._check(reply.error_code, "the transactional id")
            return ProducerIdentity(reply.producer_id, reply.producer_epoch), reply.reply

        return await self._retry(init, deadline)

    async def _write(self, identity: ProducerIdentity, write: PartitionWrite, deadline: int) -> list[Placed]:
        placed, sequence = [], 0
        for count, encode in write.batches:
            data = await encode(*identity, sequence)
            placed.append(await self._retry(lambda data=data: self._produce(write, data, deadline), deadline))  # type: ignore[misc]
            sequence += count
        return placed

    async def _produce(self, write: PartitionWrite, data: bytes | bytearray, deadline: int) -> Placed:
        remote_brokers = self._context.remote_brokers
        partition = remote_brokers.topic(write.tp, write.topic_id).partitions[write.tp.partition]
        if partition.leader < 0:
            raise Refused(Code.LEADER_NOT_AVAILABLE, f"no broker leads {write.tp} now")
        timeout_ms = max((deadline - self._context.clock.mono_ns()) // 1_000_000, 1)
        rows = [PartitionProduceData(write.tp.partition, data)]
        topics = [TopicProduceData(topic_id=write.topic_id, partition_data=rows)]
        request = ProduceRequest(self.transactional_id, ACKS_ALL, timeout_ms, topics)
        reply = await remote_brokers.send_request(
            partition.leader, request, ProduceResponse, PRODUCE_VERSION, timeout_ms / 1000, self._caller
        )
        [[row]] = [topic.partition_responses for topic in reply.responses]
        self._check(row.error_code, f"records of {write.tp}", row.error_message or "")
        return Placed(row.base_offset, row.log_append_time_ms)

    async def _commit_offsets(
        self, identity: ProducerIdentity, group: GroupOffsets, deadline: int, holder: str
    ) -> list[Placed]:
        topics: dict[str, TxnOffsetCommitRequestTopic] = {}
        for tp, offset, metadata in group.offsets:
            topic = topics.setdefault(tp.topic, TxnOffsetCommitRequestTopic(tp.topic))
            topic.partitions.append(TxnOffsetCommitRequestPartition(tp.partition, offset, -1, metadata))
        request = TxnOffsetCommitRequest(
            self.transactional_id, group.group, *identity, group.generation, group.member_id, group.instance_id,
            list(topics.values()),
        )  # fmt: skip

        async def commit() -> list[Placed]:
            node = await find_coordinator(self._context, group.group)
            remote_brokers = self._context.remote_brokers
            caller = _make_caller(self._context, holder)
            reply = await remote_brokers.send_request(
                node, request, TxnOffsetCommitResponse, OFFSETS_VERSION, caller=caller
            )
            for topic in reply.topics:
                for row in topic.partitions:
                    self._check(row.error_code, f"the offset of {topic.name}-{row.partition_index}")
            return []

        return await self._retry(commit, deadline)

    async def _end(
        self, identity: ProducerIdentity, *, commit: bool, deadline: int, kept: bytes = b""
    ) -> ProducerIdentity:
        """Ends the transaction. Raises `Refused` with REQUEST_TIMED_OUT if the outcome is not known."""
        request = EndTxnRequest(self.transactional_id, *identity, commit, kept)
        tries = 0

        async def end() -> ProducerIdentity:
            nonlocal tries
            node = await self._find_coordinator()
            tries += 1
            reply = await self._context.remote_brokers.send_request(node, request, EndTxnResponse, END_VERSION)
            self._check(reply.error_code, "the end of the transaction")
            return ProducerIdentity(reply.producer_id, reply.producer_epoch)

        try:
            return await self._retry(end, deadline)
        except Refused as refused:
            # Its timeout, or an operator, aborted it. Or else an earlier try has ended it, and its reply was lost: the
            # coordinator says INVALID_TXN_STATE then only if the outcome is another one.
            if refused.code in STALE_IDENTITY and (tries == 1 or refused.code is Code.INVALID_TXN_STATE):
                raise Refused(Code.TRANSACTION_ABORTABLE, f"the transaction was aborted: {refused.why}") from None
            if refused.code is Code.INVALID_REQUEST and tries == 1 and commit:  # no earlier try can have ended it
                await self._abort(identity)
                raise Refused(Code.TRANSACTION_ABORTABLE, f"the transaction is aborted: {refused.why}") from None
            why = "the coordinator did not confirm the end of the transaction, it may yet be committed"
            raise Refused(Code.REQUEST_TIMED_OUT, f"{why}: {refused.why}") from None

    async def _abort(self, identity: ProducerIdentity) -> None:
        """Aborts the transaction if that is possible at once. Otherwise its timeout does."""
        deadline = self._context.clock.mono_ns() + int(ABORT_SECONDS * 1e9)
        try:
            self._identity = await self._end(identity, commit=False, deadline=deadline)
        except EXPECTED_ERRORS:
            self._identity = None

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _find_coordinator(self) -> int:
        broker = self._context.broker
        number = await broker.transaction_coordinators.host.partition_for(self.transactional_id)
        leader = broker.image.topics[TRANSACTIONS_TOPIC].partitions[number].leader
        if leader < 0:
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, "no broker coordinates the transaction now")
        return leader

    @staticmethod
    def _check(error_code: int, what: str, why: str = "") -> None:
        """Raises `Refused` for an error in a reply."""
        code = code_from_number(error_code)
        if code is not Code.NONE:
            raise Refused(code, f"{what}: {explain_error(error_code, why)}")

    async def _retry(self, step: Callable[[], Awaitable[T]], deadline: int) -> T:
        """Repeats a step that may be repeated until it succeeds, is refused for good, or the time is over."""
        clock = self._context.clock
        while True:
            try:
                return await step()
            except Refused as fault:
                if not fault.code.retriable or fault.code in NOT_REPEATED:
                    raise
                refusal = fault
            except Unavailable as fault:
                refusal = Refused(Code.REQUEST_TIMED_OUT, str(fault))
            if clock.mono_ns() >= deadline or self._context.closing:
                raise refusal
            await clock.sleep(PAUSE_SECONDS)
