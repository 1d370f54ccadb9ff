"""A producer: one batch in flight for each partition, so that retries keep the order.

With acks=all the producer is idempotent: a batch that is sent again because its reply was lost is written once. A batch
that cannot be delivered ends the producer, and the records that were not written are reported. With a transaction, all
records of the producer are in it: the end of the producer commits it, or aborts it after an error.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple

from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.records.batch import encode_batch
from tiered.records.model import Codec, ProducerRecord
from tiered.records.partitioner import partition_of
from tiered_api.kafka.client.client import KafkaClient, NotConnected, code_from_number, to_refused
from tiered_api.kafka.client.transactions import PRODUCE_MAX, ProducerTransaction
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

PENDING_MAX = 16 << 20
"""Most bytes of records that wait to be sent: callers that add more wait."""
BATCH_BYTES = 1_000_000
"""Below the limit of a broker with the default of message.max.bytes."""
RECORD_OVERHEAD = 24
ABORT_SECONDS = 5.0
SEQUENCE_MODULUS = 1 << 31


class DeliveryReport(NamedTuple):
    """Records that were written to a partition. `timestamp` is that of the broker, or -1 if the records' own ones hold.
    The offset is -1 if the broker returned none (acks=0)."""

    tp: TopicPartition
    records: list[ProducerRecord]
    base_offset: int
    timestamp: int


@dataclass(slots=True)
class _Batch:
    """Records in flight to one partition."""

    records: list[ProducerRecord]
    created_ns: int
    data: bytes = b""


@dataclass(slots=True)
class _Queue:
    """The waiting records of one partition, and the sequence number of its next batch."""

    records: deque[tuple[ProducerRecord, int]] = field(default_factory=deque)
    size_bytes: int = 0
    batches: deque[_Batch] = field(default_factory=deque)
    sequence: int = 0


class KafkaProducer:
    """A producer as an async context: a normal exit flushes, an exit with an error drops unsent records."""

    def __init__(
        self,
        client: KafkaClient,
        on_delivery: Callable[[DeliveryReport], None],
        rng: random.Random,
        *,
        acks: int = -1,
        codec: Codec = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
        delivery_seconds: float = 120.0,
        create_topics: bool = False,
        transaction: ProducerTransaction | None = None,
    ) -> None:
        self.added = 0
        self.written = 0
        self._client = client
        self._on_delivery = on_delivery
        self._rng = rng
        self._acks = acks
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._delivery_ns = int(delivery_seconds * 1e9)
        self._create_topics = create_topics
        self._transaction = transaction
        self._partition_counts: dict[str, int] = {}
        self._sticky: dict[str, int] = {}
        self._queues: dict[TopicPartition, _Queue] = {}
        self._pending = 0
        self._producer_id_and_epoch = (-1, -1)
        self._has_work = asyncio.Event()
        self._changed = asyncio.Condition()
        self._sender_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> KafkaProducer:
        if self._transaction is not None:
            self._producer_id_and_epoch = await self._transaction.begin()
        elif self._acks == -1:
            self._producer_id_and_epoch = await self._init_producer_id()
        self._sender_task = asyncio.get_running_loop().create_task(self._send_all(), name="producer")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._sender_task is not None
        try:
            if error is None:
                await self.flush()
                if self._transaction is not None:
                    await self._transaction.end(commit=True)
        except BaseException:
            await self._abort()
            raise
        finally:
            await self._stop_sender()
        if error is not None:
            await self._abort()

    async def _stop_sender(self) -> None:
        assert self._sender_task is not None
        self._sender_task.cancel()
        await asyncio.gather(self._sender_task, return_exceptions=True)

    async def _abort(self) -> None:
        """Aborts the transaction if that is possible in a short time. Otherwise its timeout does."""
        await self._stop_sender()
        if self._transaction is not None:
            with suppress(Refused, Unavailable, TimeoutError):
                async with asyncio.timeout(ABORT_SECONDS):
                    await self._transaction.end(commit=False)

    async def add(self, topic: str, partition: int | None, record: ProducerRecord) -> None:
        """Adds a record; waits while too much is pending. A fault of the sender is raised here or by `flush`."""
        count = self._partition_counts.get(topic) or await self._fetch_partition_count(topic)
        if partition is None:
            partition = self._choose_partition(topic, record[1], count)
        elif partition >= count:
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has partitions 0 to {count - 1}, not {partition}")
        queue = self._queues.setdefault(TopicPartition(topic, partition), _Queue())
        size = RECORD_OVERHEAD + len(record[1] or b"") + len(record[2] or b"")
        for name, value in record[3]:
            size += RECORD_OVERHEAD + len(name) + len(value or b"")
        queue.records.append((record, size))
        batches = queue.size_bytes // self._batch_bytes
        queue.size_bytes += size
        self._pending += size
        self.added += 1
        if queue.size_bytes // self._batch_bytes > batches:
            self._sticky.pop(topic, None)
        self._has_work.set()
        if self._pending >= PENDING_MAX:
            async with self._changed:
                await self._changed.wait_for(lambda: self._pending < PENDING_MAX or self._has_ended())
        self._raise_fault()

    async def flush(self) -> None:
        """Returns when all that was added is written."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._pending or self._has_ended())
        self._raise_fault()

    async def wait_or_fail(self, coroutine: Coroutine[object, object, object]) -> None:
        """Waits for an event. Raises a fault of the sender that occurs meanwhile."""
        assert self._sender_task is not None
        waiting = asyncio.ensure_future(coroutine)
        try:
            await asyncio.wait((waiting, self._sender_task), return_when=asyncio.FIRST_COMPLETED)
            self._raise_fault()
        finally:
            waiting.cancel()

    # -- partitions ---------------------------------------------------------------------------------------------------

    async def _fetch_partition_count(self, topic: str) -> int:
        """Returns the number of partitions of a topic; waits for a topic that is being created."""
        deadline = self._client.new_deadline()
        for pause in self._client.backoffs():
            try:
                found = await self._client.fetch_topic(topic, create=self._create_topics)
            except Refused as no:
                waits = self._create_topics and no.code in (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LEADER_NOT_AVAILABLE)
                if not waits or self._client.has_passed(deadline):
                    raise
            else:
                self._partition_counts[topic] = len(found.partitions)
                return len(found.partitions)
            await pause()
        raise AssertionError("pauses never end")

    def _choose_partition(self, topic: str, key: bytes | bytearray | memoryview | None, count: int) -> int:
        """Returns the partition by the key, as all clients do; without a key, the same partition until its batch is
        full."""
        if key is not None:
            return partition_of(key, count)
        if topic not in self._sticky:
            self._sticky[topic] = self._rng.randrange(count)
        return self._sticky[topic]

    # -- sending ------------------------------------------------------------------------------------------------------

    def _has_ended(self) -> bool:
        return self._sender_task is not None and self._sender_task.done()

    def _raise_fault(self) -> None:
        if self._sender_task is not None and self._sender_task.done():
            fault = self._sender_task.exception()
            if fault is not None:
                raise fault

    async def _init_producer_id(self) -> tuple[int, int]:
        """Fetches producer id and epoch; none if the broker returns none."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        deadline = self._client.new_deadline()
        for pause in self._client.backoffs():
            try:
                got = await self._client.send(request, InitProducerIdResponse)
            except Refused:
                return -1, -1
            if not got.error_code:
                return got.producer_id, got.producer_epoch
            if not code_from_number(got.error_code).retriable or self._client.has_passed(deadline):
                return -1, -1
            await pause()
        raise AssertionError("pauses never end")

    async def _send_all(self) -> None:
        """Sends batches until the producer is closed or fails."""
        try:
            while True:
                await self._has_work.wait()
                self._has_work.clear()
                while self._pending:
                    await self._send_until_done()
        finally:
            async with self._changed:
                self._changed.notify_all()

    async def _send_until_done(self) -> None:
        """Sends rounds of batches until one completes without a new retry."""
        for pause in self._client.backoffs():
            batches = self._next_batches()
            again = await self._send_batches(batches)
            async with self._changed:
                self._changed.notify_all()
            if not again:
                return
            await pause()

    def _next_batches(self) -> dict[TopicPartition, _Batch]:
        """Returns one batch of each partition that has something to send."""
        now = self._client.clock.mono_ns()
        self._sticky.clear()
        for queue in self._queues.values():
            if queue.batches or not queue.records:
                continue
            taken: list[ProducerRecord] = []
            size = 0
            while queue.records and (not taken or size + queue.records[0][1] <= self._batch_bytes):
                record, bytes_of = queue.records.popleft()
                taken.append(record)
                size += bytes_of
            queue.size_bytes -= size
            self._pending -= size
            # Still pending, as one: a batch is freed when it is written.
            self._pending += len(taken)
            queue.batches.append(_Batch(taken, now))
        return {tp: queue.batches[0] for tp, queue in self._queues.items() if queue.batches}

    async def _send_batches(self, batches: dict[TopicPartition, _Batch]) -> bool:
        """Sends a batch to each partition. Returns True if one must be sent again."""
        try:
            shares, leaderless = await self._client.group_by_leader(batches)
        except Unavailable as fault:
            for tp, batch in batches.items():
                self._check_retry(tp, batch, fault)
            return True
        for tp, no in leaderless.items():
            self._check_retry(tp, batches[tp], no)
        again = bool(leaderless)
        sent = (self._send_to_leader(node, {tp: batches[tp] for tp in share}) for node, share in shares.items())
        results = await asyncio.gather(*sent, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
            again = result or again
        return again

    async def _send_to_leader(self, node_id: int, batches: dict[TopicPartition, _Batch]) -> bool:
        request = self._make_request(batches)
        try:
            if self._transaction is not None:
                await self._transaction.add_partitions(batches)
            if self._acks == 0:
                await self._client.send_without_reply(request, node_id=node_id)
                for tp, batch in batches.items():
                    self._complete_batch(tp, batch, -1, -1)
                return False
            version_max = None if self._transaction is None else PRODUCE_MAX
            got = await self._client.send(
                request, ProduceResponse, node_id=node_id, version_max=version_max, connects_once=True
            )
        except Unavailable as fault:
            if self._producer_id_and_epoch[0] < 0 and not isinstance(fault, NotConnected):
                # It was sent, so it may be written: without a producer id, a retry could write it twice.
                raise self._unknown_outcome(batches, fault) from None
            for tp, batch in batches.items():
                self._check_retry(tp, batch, fault)
            return True
        again = False
        for topic in got.responses:
            for each in topic.partition_responses:
                tp = TopicPartition(topic.name, each.index)
                again = self._handle_response(tp, batches[tp], each) or again
        return again

    def _make_request(self, batches: dict[TopicPartition, _Batch]) -> ProduceRequest:
        topics: dict[str, TopicProduceData] = {}
        for tp, batch in batches.items():
            if not batch.data:
                identity, epoch = self._producer_id_and_epoch
                sequence = self._queues[tp].sequence if identity >= 0 else -1
                batch.data = encode_batch(
                    batch.records,
                    codec=self._codec,
                    producer_id=identity,
                    producer_epoch=epoch,
                    base_sequence=sequence,
                    transactional=self._transaction is not None,
                )
            topic = topics.setdefault(tp.topic, TopicProduceData(name=tp.topic))
            topic.partition_data.append(PartitionProduceData(index=tp.partition, records=batch.data))
        name = None if self._transaction is None else self._transaction.transactional_id
        return ProduceRequest(name, self._acks, self._client.timeout_ms, list(topics.values()))

    def _handle_response(self, tp: TopicPartition, batch: _Batch, got: PartitionProduceResponse) -> bool:
        """Handles the reply for one partition. Returns True if its batch must be sent again."""
        code = code_from_number(got.error_code)
        if code in (Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER):
            self._complete_batch(tp, batch, got.base_offset, got.log_append_time_ms)
            return False
        if code is Code.MESSAGE_TOO_LARGE and len(batch.records) > 1:
            # The whole batch does not fit; its halves may. None of it was written, so the sequence goes on.
            middle = len(batch.records) // 2
            halves = [_Batch(part, batch.created_ns) for part in (batch.records[:middle], batch.records[middle:])]
            queue = self._queues[tp]
            queue.batches.popleft()
            queue.batches.extendleft(reversed(halves))
            return True
        no = to_refused(got.error_code, str(tp), _error_text(got))
        if not code.retriable:
            raise Refused(no.code, f"{self._describe_unwritten(batch)}: {no.why}")
        self._client.forget_leaders([tp])
        self._check_retry(tp, batch, no)
        return True

    def _check_retry(self, tp: TopicPartition, batch: _Batch, why: Refused | Unavailable) -> None:
        """Marks a batch for a retry, or gives up if its time is over."""
        self._client.forget_leaders([tp])
        unknown = isinstance(why, Refused) and why.code is Code.UNKNOWN_TOPIC_OR_PARTITION and not self._create_topics
        if unknown or self._client.clock.mono_ns() - batch.created_ns >= self._delivery_ns:
            if isinstance(why, Refused):
                raise Refused(why.code, f"{self._describe_unwritten(batch)}: {why.why}")
            raise self._unknown_outcome({tp: batch}, why)

    def _complete_batch(self, tp: TopicPartition, batch: _Batch, base_offset: int, timestamp: int) -> None:
        queue = self._queues[tp]
        queue.batches.popleft()
        queue.sequence = (queue.sequence + len(batch.records)) % SEQUENCE_MODULUS
        self._pending -= len(batch.records)
        self.written += len(batch.records)
        self._on_delivery(DeliveryReport(tp, batch.records, base_offset, timestamp))

    def _unknown_outcome(self, batches: dict[TopicPartition, _Batch], fault: Unavailable) -> Unavailable:
        count = sum(len(batch.records) for batch in batches.values())
        places = ", ".join(map(str, batches))
        return Unavailable(f"{count} records for {places} may be written or not: {fault}")

    def _describe_unwritten(self, batch: _Batch) -> str:
        left = self.added - self.written
        return f"{left} records were not written" if left != 1 else "a record was not written"


def _error_text(got: PartitionProduceResponse) -> str | None:
    words: Sequence[str | None] = [got.error_message, *(each.batch_index_error_message for each in got.record_errors)]
    return "; ".join(dict.fromkeys(word for word in words if word)) or None
