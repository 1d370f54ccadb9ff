"""The clients of a run: producers and readers that record all replies in the ledger.

Half of the producers are idempotent: they send a batch again until they know its outcome. Sometimes they send one again
although they know it, like a client that lost the reply.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from tests.sim.harness.clock import SimClock
from tests.sim.ledger import Ledger
from tests.sim.options import SingleOptions
from tiered.broker.broker import Broker
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import PartitionId, TopicPartition
from tiered.ports import FileSlice
from tiered.records.batch import Codec, decode_records, encode_batch
from tiered.records.native import walk
from tiered.replication.leader_replica import LeaderReplica

READ_BYTES = 8192
RESEND_CHANCE = 0.2
SENDS_MAX = 100


class Clients:
    """All clients of one run. They work until `working` is unset."""

    def __init__(
        self,
        options: SingleOptions,
        ledger: Ledger,
        clock: SimClock,
        node: Callable[[], Broker | None],
        log_event: Callable[[str], None],
    ) -> None:
        self.working = True
        self.counts = {"acked": 0, "read": 0, "cold_read": 0, "duplicates": 0}
        self._options = options
        self._ledger = ledger
        self._clock = clock
        self._node = node
        self._log_event = log_event
        self._values = 0
        self._producers = 1000
        self._batch_sizes: dict[PartitionId, dict[int, int]] = {}
        """Sizes of the batches that were read, by last offset."""

    def _replica(self, tp: TopicPartition) -> LeaderReplica | None:
        """Returns None while the broker is down or does not lead the partition yet."""
        try:
            return node.leader_replica(*tp) if (node := self._node()) is not None else None
        except Refused:
            return None

    def _pick_partition(self, rng: random.Random) -> TopicPartition:
        return TopicPartition(f"t{rng.randrange(self._options.topics)}", rng.randrange(self._options.partitions))

    def _pick_replica(self, rng: random.Random) -> LeaderReplica | None:
        if not self._options.admin:
            return self._replica(self._pick_partition(rng))
        node = self._node()
        replicas = node.leader_replicas() if node is not None else []
        return rng.choice(replicas) if replicas else None

    def make_batch(
        self, rng: random.Random, partition_id: PartitionId, producer: int, sequence: int
    ) -> tuple[bytes, list[bytes]]:
        values = []
        for _ in range(rng.randint(1, 5)):
            self._values += 1
            values.append(b"%d:" % self._values + b"x" * rng.choice((0, 10, 200)))
            self._ledger.record_sent(partition_id, values[-1])
        now = self._clock.wall_ms()
        codec = rng.choice((Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.LZ4))
        rows = [(now, None, value, ()) for value in values]
        epoch = 0 if producer >= 0 else -1
        return encode_batch(
            rows, codec=codec, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
        ), values

    async def produce(self, number: int) -> None:
        """Produces to one partition; an idempotent producer sends the same batch again until it knows the outcome."""
        rng = random.Random(f"{self._options.seed}/producer/{number}")
        tp, idempotent = self._pick_partition(rng), rng.random() < 0.5
        producer, sequence = self._new_producer() if idempotent else -1, 0 if idempotent else -1
        while self.working:
            await asyncio.sleep(rng.expovariate(4.0))
            replica = self._replica(tp)
            if replica is None:
                continue
            partition_id = PartitionId(replica.topic_id, replica.partition)
            body, values = self.make_batch(rng, partition_id, producer, sequence)
            acked = await self.send(tp, partition_id, body, values, retry=idempotent)
            if acked and idempotent and rng.random() < RESEND_CHANCE:
                await self.send(tp, partition_id, body, values, retry=True)
            if idempotent:
                sequence = sequence + len(values) if acked else 0
                producer = producer if acked else self._new_producer()

    def _new_producer(self) -> int:
        self._producers += 1
        return self._producers

    async def send(
        self, tp: TopicPartition, partition_id: PartitionId, body: bytes, values: list[bytes], *, retry: bool
    ) -> bool:
        """True if the send was acknowledged. An idempotent producer gives up only if the broker lost its sequence."""
        for _ in range(SENDS_MAX):
            replica = self._replica(tp)
            if replica is not None:
                try:
                    appended = await replica.append(bytearray(body), timeout_ms=5000)
                except (Refused, Unavailable) as error:
                    self._log_event(f"produce {tp} refused why={error}")
                    if isinstance(error, Refused) and error.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
                        return False
                else:
                    self.counts["acked"] += len(values)
                    self.counts["duplicates"] += appended.is_duplicate
                    for i, value in enumerate(values):
                        self._ledger.record_acked(partition_id, appended.base_offset + i, value)
                    return True
            if not retry:
                return False
            await asyncio.sleep(0.5)
        return False

    async def consume(self, number: int) -> None:
        rng = random.Random(f"{self._options.seed}/reader/{number}")
        while self.working:
            await asyncio.sleep(rng.expovariate(3.0))
            replica = self._pick_replica(rng)
            if replica is None:
                continue
            start, end = replica.log_start_offset, replica.high_watermark
            if start < end:
                await self._read(replica, rng.randint(start, end - 1))

    async def _read(self, replica: LeaderReplica, offset: int) -> None:
        """Fetches once. During faults the bucket may not reply, and a moved log start is no error."""
        partition_id = PartitionId(replica.topic_id, replica.partition)
        cold = offset < replica.local_start_offset
        try:
            rows = await self.fetch(replica, offset)
        except (Refused, Unavailable, Corrupt) as error:
            self._log_event(f"read {replica.tp} {offset} failed why={error}")
            return
        self.counts["read"] += len(rows)
        self.counts["cold_read"] += len(rows) if cold else 0
        node = self._node()
        if node is not None and replica in node.leader_replicas():
            for at, value in rows:
                self._ledger.record_read(partition_id, at, value)

    def held_bytes(self, partition_id: PartitionId, start: int) -> int:
        """Returns the size of the batches that were read above an offset."""
        return sum(size for last, size in self._batch_sizes.get(partition_id, {}).items() if last >= start)

    async def fetch(self, replica: LeaderReplica, offset: int) -> list[tuple[int, bytes]]:
        fetched = await replica.reads.read(offset, READ_BYTES)
        data = fetched.data
        body = data.file.pread(data.start, data.length) if isinstance(data, FileSlice) else data
        walked = walk(body)
        assert walked.why == "", f"{replica.tp} {offset}: {walked.why}"
        sizes = self._batch_sizes.setdefault(replica.partition_id, {})
        sizes.update((batch.last_offset, batch.size) for batch in walked.batches)
        rows = [record for batch in walked.batches for record in decode_records(body, batch.position)]
        assert not rows or rows[0].offset <= offset <= rows[-1].offset, f"{replica.tp} {offset}: {rows[0].offset}"
        assert not rows or rows[-1].offset < fetched.high_watermark
        return [(row.offset, row.value or b"") for row in rows if row.offset >= offset]
