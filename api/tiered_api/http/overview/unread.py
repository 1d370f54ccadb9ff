"""The time of the oldest record that a group has not read, by a read of that one record.

A reader of a page asks again every few seconds, so times are remembered by the offset. An offset that a loss has taken
back and that another record has now keeps the time of the first one until it is forgotten.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress

from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import TopicId, TopicPartition
from tiered.ports import FileSlice
from tiered.records.batch import decode_header
from tiered.records.model import HEADER_BYTES
from tiered.replication.read_result import ReadResult
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.partitions.reads import decode_batches, decode_memory, load
from tiered_api.http.partitions.remote_partition import RemotePartition, fetch_bounds, open_partition

REMEMBERED_MAX = 20_000
READS_MAX = 500
"""Most records that one request reads."""
AT_ONCE = 4
BATCH_BYTES = 1 << 20
"""Memory that is reserved for each read. A larger batch is not opened: its newest time stands for the record."""
READ_SECONDS = 3.0
"""Time for all reads of a request. A record of the bucket that took longer is in the cache at the next request."""

Place = tuple[TopicId, int, int]
"""Topic id, partition and offset of a record."""
Position = tuple[TopicPartition, int]
"""A partition and the offset from which on a group has not read it."""


class UnreadTimes:
    """The times of records at committed offsets, those that were asked for last."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._known: OrderedDict[Place, int] = OrderedDict()

    async def find(self, request: HttpRequest, wanted: Iterable[Position]) -> dict[Position, int]:
        """Returns the time in ms of the first record at or behind each offset. Those that take too long, or cannot be
        read, are missing."""
        topics = self._context.broker.image.topics
        places = {
            (tp, offset): (topics[tp.topic].topic_id, tp.partition, offset)
            for tp, offset in wanted
            if tp.topic in topics
        }
        missing = [each for each, place in places.items() if place not in self._known][:READS_MAX]
        if missing:
            await request.reserve_memory(AT_ONCE * BATCH_BYTES)
            slots = asyncio.Semaphore(AT_ONCE)
            with suppress(TimeoutError):
                async with self._context.timeout(READ_SECONDS):
                    await asyncio.gather(*(self._read(request, slots, each[0], places[each]) for each in missing))
            request.recheck()
        found = {}
        for each, place in places.items():
            if place in self._known:
                self._known.move_to_end(place)
                found[each] = self._known[place]
        return found

    async def _read(self, request: HttpRequest, slots: asyncio.Semaphore, tp: TopicPartition, place: Place) -> None:
        topic_id, _, offset = place
        async with slots:
            with suppress(Refused, Unavailable, Corrupt):
                source = open_partition(self._context, tp, topic_id)
                start = max(offset, (await fetch_bounds(source))[0])
                if isinstance(source, RemotePartition):
                    fetched = await source.read(start, 1)
                else:
                    fetched = await source.reads.read(start, 1)
                if fetched.size:
                    self._remember(place, await _find_time(request, fetched, start))

    def _remember(self, place: Place, time_ms: int) -> None:
        if len(self._known) >= REMEMBERED_MAX:
            self._known.popitem(last=False)
        self._known[place] = time_ms


async def _find_time(request: HttpRequest, fetched: ReadResult, offset: int) -> int:
    """Returns the time of the first record at or behind an offset; of a large batch its newest time. The memory
    of an opened batch counts for the caller without a wait: a request that holds memory must not wait for more."""
    if fetched.size > BATCH_BYTES and isinstance(fetched.data, FileSlice):
        return decode_header(fetched.data.file.pread(fetched.data.start, HEADER_BYTES)).max_timestamp
    data = await load(request, fetched)
    if len(data) > BATCH_BYTES:
        return decode_header(data).max_timestamp
    took = decode_memory(data)
    request.set_held_memory(request.held_bytes + took)
    try:
        return await request.run_job(took, _first_time, data, offset)
    finally:
        request.set_held_memory(request.held_bytes - took)


def _first_time(data: bytes, offset: int) -> int:
    """Returns the time of the first record at or behind an offset. A batch of markers has one time. Pure."""
    for batch in decode_batches(data, offset, 1, 1):
        if batch.records:
            return batch.records[0].timestamp
        break
    return decode_header(data).max_timestamp
