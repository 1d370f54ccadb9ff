"""Senders over the wire: unique values, in batches, with every kind of acks; idempotent senders retry until they know
the outcome.

An idempotent sender has one batch in flight, or up to `in_flight` of one partition after each other. It sends batches
with unknown outcome again (the same bytes, in the same order). When it gives up, it takes a new producer id: the
outcome stays unknown, and its sequence cannot go on. If a callback for resends is set, it sometimes sends the last
acknowledged batches of a partition again.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.sim.cluster.history import ClientHistory, Send, SendVerdict, verdict_of
from tests.sim.harness.clock import EPOCH_MS
from tests.sim.harness.loop import SimLoop
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.producers.entry import BATCHES_RETAINED
from tiered.records.batch import encode_batch
from tiered.records.model import Codec
from tiered_api.kafka.client.client import KafkaClient, code_from_number
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

TIMEOUT_MS = 3_000
GIVE_UP_SECONDS = 12.0
RETRY_SECONDS = 0.1
BATCH_RECORDS, CODECS = 3, (Codec.NONE, Codec.NONE, Codec.LZ4)
"""Most records in a batch, and the codecs of which it has one."""
RESEND_CHANCE = 0.2
RESEND_TRIES = 4
REQUEST_ERRORS = (Refused, Unavailable, Corrupt)


class AckedBatch(NamedTuple):
    """An acknowledged batch, as it was sent."""

    send: Send
    data: bytes


OnResend = Callable[[AckedBatch, int, Code, int], None]
"""Callback for a batch that was sent again: the batch, the node that replied, its code and its offset."""


@dataclass
class ProducerIdentity:
    """An idempotent producer as the cluster knows it, with the next sequence of each partition."""

    producer_id: int
    epoch: int
    sequences: dict[TopicPartition, int]


def is_refused(send: Send) -> bool:
    """True if the batch is certainly not in the log and no request with it is in flight."""
    return send.verdict is SendVerdict.FAILED and send.attempts == 1


def can_continue(sends: Sequence[Send]) -> bool:
    """True if a producer id can go on after these consecutive batches: some were written, and all later ones
    refused."""
    written = next((number for number, send in enumerate(sends) if send.verdict is not SendVerdict.OK), len(sends))
    return all(map(is_refused, sends[written:]))


class SimProducer:
    """One client that sends batch after batch until `working` is unset."""

    def __init__(
        self,
        name: str,
        client: KafkaClient,
        loop: SimLoop,
        history: ClientHistory,
        partitions: Callable[[], list[TopicPartition]],
        *,
        rate: float,
        acks: int,
        idempotent: bool,
        in_flight: int = 1,
        on_resend: OnResend | None = None,
        batch_records: int = BATCH_RECORDS,
        codecs: Sequence[Codec] = CODECS,
    ) -> None:
        self.name = name
        self.working = True
        self._client = client
        self._loop = loop
        self._history = history
        self._partitions = partitions
        self._rate = rate
        self._acks = acks
        self._idempotent = idempotent
        self._in_flight = in_flight if idempotent else 1
        self._batch_records, self._codecs = batch_records, codecs
        self._rng = random.Random(f"{loop.seed}/{name}")
        self._identity: ProducerIdentity | None = None
        self._count = 0
        self._resend_rng = random.Random(f"{loop.seed}/{name}/again")
        self._on_resend = on_resend if idempotent else None
        self._acked_batches: dict[TopicPartition, deque[AckedBatch]] = {}
        """The last batches of this producer id, by partition."""

    async def work(self) -> None:
        while self.working:
            await asyncio.sleep(self._rng.expovariate(self._rate))
            partitions = self._partitions()
            if partitions and self.working:
                tp = self._rng.choice(partitions)
                await self._send_some(tp, self._rng.randint(1, self._in_flight) if self._in_flight > 1 else 1)
                if self._acked_batches and self._resend_rng.random() < RESEND_CHANCE:
                    await self.resend(self._resend_rng.choice(list(self._acked_batches)))
        await self._client.close()

    async def send(self, tp: TopicPartition) -> Send | None:
        """Sends one batch until its outcome is final; returns None if no producer id could be had."""
        sends = await self._send_some(tp, 1)
        return sends[0] if sends else None

    def count_acked(self, tp: TopicPartition) -> int:
        """Returns how many batches of a partition it could send again."""
        return len(self._acked_batches.get(tp, ()))

    async def close(self) -> None:
        """Ends its connections."""
        await self._client.close()

    async def _send_some(self, tp: TopicPartition, count: int) -> list[Send]:
        """Sends several batches without waiting for the replies in between."""
        if self._idempotent and self._identity is None:
            self._identity = await self._init_producer_id()
            if self._identity is None:
                return []
        identity, batches = self._identity, []
        sequence = identity.sequences.get(tp, 0) if identity is not None else -1
        for _ in range(count):
            batches.append(self._make_batch(tp, sequence))
            sequence += len(batches[-1][0].values)
        sends = [send for send, _ in batches]
        if self._acks == 0:
            await self._send_without_ack(*batches[0])
        else:
            await self._send_until_known(batches)
        for send in sends:
            send.done_ns = self._loop.now_ns
        if identity is not None:
            self._identity = identity if can_continue(sends) else None
            identity.sequences[tp] = max(
                [identity.sequences.get(tp, 0)]
                + [send.sequence + len(send.values) for send in sends if send.verdict is SendVerdict.OK]
            )
            self._remember(tp, batches)
        return sends

    def _remember(self, tp: TopicPartition, batches: list[tuple[Send, bytes]]) -> None:
        if self._identity is None:  # what is under way may yet push the others out of what is kept of it
            self._acked_batches.clear()
            return
        written = [
            AckedBatch(send, data) for send, data in batches if send.verdict is SendVerdict.OK and send.base_offset >= 0
        ]
        if written and self._on_resend is not None:
            self._acked_batches.setdefault(tp, deque(maxlen=BATCHES_RETAINED)).extend(written)

    async def resend(self, tp: TopicPartition) -> int:
        """Sends the last batches of a partition again until a reply identifies them; returns how many it identified."""
        known = self._acked_batches.get(tp, ())
        left = list(known)
        for _ in range(RESEND_TRIES):
            try:
                shares, _ = await self._client.group_by_leader([tp])
            except REQUEST_ERRORS:
                shares = {}
            for node in shares:
                answers = await asyncio.gather(*(self._resend_one(each, node) for each in left))
                for again, (code, offset) in zip(left, answers, strict=True):
                    if not code.retriable and self._on_resend is not None:
                        self._on_resend(again, node, code, offset)
                left = [again for again, (code, _) in zip(left, answers, strict=True) if code.retriable]
            if not left:
                break
            self._client.forget_leaders([tp])
            await asyncio.sleep(RETRY_SECONDS)
        return len(known) - len(left)

    async def _resend_one(self, written: AckedBatch, node: int) -> tuple[Code, int]:
        try:
            got = await self._client.send(self._make_request(*written), ProduceResponse, node_id=node)
        except REQUEST_ERRORS:
            return Code.REQUEST_TIMED_OUT, -1
        answer = got.responses[0].partition_responses[0]
        return code_from_number(answer.error_code), answer.base_offset

    async def _init_producer_id(self) -> ProducerIdentity | None:
        try:
            got = await self._client.send(
                InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), InitProducerIdResponse
            )
        except REQUEST_ERRORS:
            return None
        self._history.count_code(code_from_number(got.error_code))
        return None if got.error_code else ProducerIdentity(got.producer_id, got.producer_epoch, {})

    def _draw_pairs(self) -> list[tuple[bytes | None, bytes | None]]:
        """Draws key and value of each record of the next batch: unique values without keys."""
        values = list[bytes]()
        for _ in range(self._rng.randint(1, self._batch_records)):
            self._count += 1
            values.append(b"%s.%d:" % (self.name.encode(), self._count) + b"x" * self._rng.choice((0, 10, 150)))
        return [(None, value) for value in values]

    def _make_batch(self, tp: TopicPartition, sequence: int) -> tuple[Send, bytes]:
        pairs = self._draw_pairs()
        values = tuple(value or b"" for _, value in pairs)
        send = Send(self.name, self._count, tp, values, self._acks, self._loop.now_ns)
        producer, epoch = -1, -1
        if self._identity is not None:
            producer, epoch = self._identity.producer_id, self._identity.epoch
            send.producer_id, send.sequence = producer, sequence
        now_ms = EPOCH_MS + self._loop.now_ns // 1_000_000
        data = encode_batch(
            [(now_ms, key, value, ()) for key, value in pairs],
            codec=self._rng.choice(self._codecs),
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=send.sequence,
        )
        self._history.sends.append(send)
        return send, data

    async def _send_without_ack(self, send: Send, data: bytes) -> None:
        try:
            shares, _ = await self._client.group_by_leader([send.tp])
            for node in shares:
                send.attempts += 1
                await self._client.send_without_reply(self._make_request(send, data), node_id=node)
        except REQUEST_ERRORS:
            self._client.forget_leaders([send.tp])

    async def _send_until_known(self, batches: list[tuple[Send, bytes]]) -> None:
        give_up_ns = self._loop.now_ns + round(GIVE_UP_SECONDS * 1e9)
        while True:
            await self._send_once([each for each in batches if each[0].verdict is not SendVerdict.OK])
            left = [send for send, _ in batches if send.verdict is not SendVerdict.OK]
            if not left or not self._idempotent or all(map(is_refused, left)):
                return
            if self._loop.now_ns >= give_up_ns:
                return
            for send in left:  # what was refused, because of the one before it, is sent again with it
                send.verdict = SendVerdict.UNKNOWN
            await asyncio.sleep(RETRY_SECONDS)

    async def _send_once(self, batches: list[tuple[Send, bytes]]) -> None:
        """Sends one request per batch and records the replies. A batch without a reply keeps its verdict."""
        tp = batches[0][0].tp
        try:
            shares, _ = await self._client.group_by_leader([tp])
        except REQUEST_ERRORS:
            return
        for node in shares:
            if len(batches) == 1:
                await self._produce(*batches[0], node)
            else:
                await asyncio.gather(*(self._produce(send, data, node) for send, data in batches))

    async def _produce(self, send: Send, data: bytes, node: int) -> None:
        send.attempts += 1
        try:
            got = await self._client.send(self._make_request(send, data), ProduceResponse, node_id=node)
        except REQUEST_ERRORS:
            self._client.forget_leaders([send.tp])
        else:
            self._apply_reply(send, got.responses[0].partition_responses[0])

    def _apply_reply(self, send: Send, got: PartitionProduceResponse) -> None:
        code = code_from_number(got.error_code)
        self._history.count_code(code)
        verdict = verdict_of(code, acks=send.acks, attempts=send.attempts)
        if verdict is not SendVerdict.UNKNOWN:
            send.verdict = verdict
        if verdict is SendVerdict.OK and code is Code.NONE:
            send.base_offset = got.base_offset
        if code.retriable:
            self._client.forget_leaders([send.tp])

    def _make_request(self, send: Send, data: bytes) -> ProduceRequest:
        part = PartitionProduceData(index=send.tp.partition, records=data)
        topic = TopicProduceData(name=send.tp.topic, partition_data=[part])
        return ProduceRequest(acks=send.acks, timeout_ms=TIMEOUT_MS, topic_data=[topic])
