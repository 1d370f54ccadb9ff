"""Cold reads of fetches: each loads batches from the bucket once, for the next fetch of that offset.

A fetch does not wait for a cold read if hot partitions have enough. So a cold read can outlive the fetch that started
it, and its batches wait a while for the next fetch. The number of cold reads and their bytes are bounded, and holders
have shares of both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.quotas.shares import COLD_READ_BYTES, COLD_READS, Holdings
from tiered.replication.leader_reads import LeaderReads
from tiered.replication.read_result import AbortedTxns
from tiered_api.kafka.server.context.context import KafkaContext

READS_MAX = 256
LOADED_BYTES_MAX = 64 << 20
"""Most bytes of cold reads. Where a holder has no room, the reply leaves out cold partitions, and the client fetches
again."""
LEAST_BYTES = 64 << 10
"""Fewer bytes are not worth a read of their own."""
KEPT_SECONDS = 30.0
SPARE_SECONDS = 5.0
"""Batches that nobody took for this long make room for another cold read of their holder."""
NOTHING_WAIT_MS = 500
"""Longest wait of a read for which no batch is left in the log: its client would fetch again at once."""

Key = tuple[str, int, int, bool]


class ColdRead:
    """One read of the bucket. It is done once it has `data` or `refused`."""

    __slots__ = (
        "aborted_txns", "callbacks", "data", "holder", "key", "last_stable_offset", "refused", "reserved_bytes",
        "spare_from", "task", "timer",
    )  # fmt: skip

    def __init__(self, key: Key, reserved_bytes: int, holder: str) -> None:
        self.key = key
        self.reserved_bytes = reserved_bytes
        self.holder = holder
        self.spare_from = inf
        """Time of the loop from which on it may make room; infinite while it runs."""
        self.callbacks: list[Callable[[], None]] = []
        self.data: bytes | None = None
        self.aborted_txns: AbortedTxns = ()
        self.last_stable_offset = -1
        self.refused: Refused | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    @property
    def done(self) -> bool:
        return self.data is not None or self.refused is not None


class ColdReads:
    """All cold reads of one server, by topic id, partition, offset and isolation."""

    def __init__(self, context: KafkaContext) -> None:
        self._context = context
        self._reads: dict[Key, ColdRead] = {}
        self._reserved_bytes = 0
        pots = context.broker.pots
        self._holdings = pots.watch(Holdings(COLD_READS, lambda: READS_MAX, lambda: len(self._reads)))
        self._byte_holdings = pots.watch(
            Holdings(COLD_READ_BYTES, lambda: LOADED_BYTES_MAX, lambda: self._reserved_bytes)
        )

    def get_or_start(
        self, reads: LeaderReads, offset: int, max_bytes: int, read_committed: bool, holder: str
    ) -> ColdRead | None:
        """Returns the cold read at that offset, and starts it if there is none. It counts for the holder that started
        it, and gets fewer bytes if there is not room for all. None if the holder has too many."""
        key = (reads.topic_id, reads.partition, offset, read_committed)
        load = self._reads.get(key)
        if load is None:
            room = self._make_room(holder, min(max_bytes, reads.unified_log.config.segment_size))
            if room is None:
                return None
            max_bytes = room
            load = self._reads[key] = ColdRead(key, max_bytes, holder)
            self._reserved_bytes += max_bytes
            self._holdings.add(holder, 1)
            self._byte_holdings.add(holder, max_bytes)
            load.task = asyncio.ensure_future(self._run(load, reads, offset, max_bytes, read_committed))
        return load

    def _make_room(self, holder: str, wanted: int) -> int | None:
        """Returns the bytes that another cold read of a holder may have, at most `wanted`. Forgets batches of the
        holder that nobody took. Returns None if the holder has too much."""
        while True:
            room, has_read = self._byte_holdings.find_room(holder), self._holdings.has_room(holder)
            if has_read and room >= min(wanted, LEAST_BYTES):
                return min(wanted, room)
            now = asyncio.get_running_loop().time()
            spare = next(
                (each for each in self._reads.values() if each.holder == holder and each.spare_from <= now), None
            )
            if spare is None:
                (self._byte_holdings if has_read else self._holdings).refuse(holder, wanted if has_read else 1)
                return None
            self._forget(spare)

    def release(self, load: ColdRead) -> None:
        """Forgets a cold read whose batches or error are in a reply."""
        self._forget(load)

    def all(self) -> list[ColdRead]:
        """Returns the cold reads that run, or whose batches no fetch has taken yet."""
        return list(self._reads.values())

    async def close(self) -> None:
        """Cancels all cold reads."""
        tasks = [load.task for load in self._reads.values() if load.task is not None]
        for load in list(self._reads.values()):
            self._forget(load)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, load: ColdRead, reads: LeaderReads, offset: int, max_bytes: int, read_committed: bool) -> None:
        try:
            fetched = await reads.read(offset, max_bytes, max_wait_ms=NOTHING_WAIT_MS, read_committed=read_committed)
            assert isinstance(fetched.data, bytes), "what is cold is loaded"
            load.data, load.aborted_txns = fetched.data, fetched.aborted_txns
            load.last_stable_offset = fetched.last_stable_offset
        except Refused as refused:
            load.refused = refused
        except Unavailable as error:
            load.refused = Refused(Code.KAFKA_STORAGE_ERROR, str(error))
        except Corrupt as error:
            load.refused = Refused(Code.CORRUPT_MESSAGE, str(error))
        loop = asyncio.get_running_loop()
        load.spare_from = loop.time() + SPARE_SECONDS
        load.timer = loop.call_later(KEPT_SECONDS, self._forget, load)
        calls, load.callbacks = load.callbacks, []
        for call in calls:
            call()

    def _forget(self, load: ColdRead) -> None:
        if self._reads.get(load.key) is load:
            del self._reads[load.key]
            self._reserved_bytes -= load.reserved_bytes
            self._holdings.add(load.holder, -1)
            self._byte_holdings.add(load.holder, -load.reserved_bytes)
        if load.timer is not None:
            load.timer.cancel()
