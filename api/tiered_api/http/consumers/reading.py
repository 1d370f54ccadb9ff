"""One read of a REST consumer: every partition that it has, in turn, until there is enough or the time is over."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicId, TopicPartition
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.read_result import ReadResult
from tiered_api.http.consumers.instance import Instance, Spot
from tiered_api.http.partitions.reads import DECODED_PER_BYTE, OBJECTS_MAX, bytes_of, effort, memory, read_away
from tiered_api.http.partitions.record_json import rows_v2
from tiered_api.http.partitions.remote_brokers import Leader
from tiered_api.http.partitions.remote_partition import Away, Source
from tiered_api.http.server.errors import HttpError
from tiered_api.http.server.request import Request

LOOK_SECONDS = 1.0
"""A place in the group may change while nothing is written."""

Row = dict[str, Any]


async def read(request: Request, instance: Instance, max_bytes: int, timeout_ms: int) -> Reading:
    """Returns rows of REST v2, which count as read once they are `given`; a consumer that commits by itself does so
    with the next read."""
    clock = request.site.clock
    ends_ns = clock.mono_ns() + timeout_ms * 1_000_000
    if instance.choices.auto_commit:
        await instance.commit_if_it_may()
    while True:
        partitions = await instance.partitions((ends_ns - clock.mono_ns()) / 1e9)
        reading = Reading(request, instance, max_bytes)
        while await reading.turn_about(partitions):
            left = (ends_ns - clock.mono_ns()) / 1e9
            if reading.is_enough or left <= 0 or request.site.closing:
                return reading
            await reading.until_more(left)


class Reading:
    """What one request has gathered. It counts as read, all of it at once, only when it is given out: a partition that
    cannot be read, or a client that goes away before the answer is written, loses nothing."""

    def __init__(self, request: Request, instance: Instance, max_bytes: int) -> None:
        self.rows: list[Row] = []
        self._ahead: dict[TopicPartition, Spot] = {}
        self._last: TopicPartition | None = None
        self._request = request
        self._instance = instance
        self._place = instance.place
        self._room = max_bytes
        self._size = 0
        self._is_cut = False
        self._moved = False
        self._seen: list[tuple[LeaderReplica, int]] = []
        self._seen_away: list[tuple[Away, int]] = []

    @property
    def is_enough(self) -> bool:
        return self._is_cut or self._room <= 0 or self._size >= max(self._instance.choices.min_bytes, 1)

    def given(self) -> None:
        """The rows are out. Where another place in the group came while they were written they count for nothing:
        whoever has these partitions next reads them again."""
        if self._instance.place == self._place:
            self._instance.has_read(self._ahead, self._last)
        self._request.site.read.inc(len(self.rows))

    async def turn_about(self, partitions: list[TopicPartition]) -> bool:
        """What each partition has now, beginning behind the one that gave last. False when another place in the group
        came meanwhile: then nothing of it counts.

        A partition that cannot be read is told of by the read in which it comes first; the next one goes on behind it.
        """
        self._moved = False
        self._seen.clear()
        self._seen_away.clear()
        for at in self._instance.in_turn(partitions):
            if self._room <= 0:
                break
            try:
                await self._read(at)
            except (Refused, HttpError, Unavailable, Corrupt) as error:
                if self._instance.place == self._place and not _will_pass(error):
                    if not self.rows:
                        self._instance.pass_over(at)
                        raise
                    self._is_cut = True
                    break
            if self._instance.place != self._place:
                return False
        return self._instance.place == self._place

    async def _read(self, at: TopicPartition) -> None:
        request, instance = self._request, self._instance
        source = instance.source(at, patience=0)  # one that nobody leads must not hold up the others
        if isinstance(source, LeaderReplica):
            self._seen.append((source, source.high_watermark))
        spot = self._ahead.get(at)
        if spot is not None and spot.topic_id == source.topic_id:
            position: int | None = spot.offset
        else:  # nothing is given yet of the topic that has the name now
            position = await instance.position(at, source)
        if position is None:
            return
        try:
            fetched = await self._fetch(source, position)
        except Refused as refused:
            if refused.code is not Code.OFFSET_OUT_OF_RANGE:
                raise
            if instance.place == self._place:
                await instance.out_of_range(at, source)
                self._moved = True
            return
        if not fetched.size:
            return
        data = bytes_of(fetched)
        if isinstance(source, LeaderReplica):
            await request.hold(memory(data))
        form = instance.choices.format
        objects = OBJECTS_MAX - len(self.rows)
        rows, following = await request.site.work(effort(data), rows_v2, data, position, self._room, form, *at, objects)
        self.rows += rows
        self._ahead[at] = Spot(source.topic_id, following)
        self._last, self._moved = at, True
        self._size += len(data)
        self._room = self._room - len(data) if len(self.rows) < OBJECTS_MAX else 0

    async def _fetch(self, source: Source, position: int) -> ReadResult:
        if isinstance(source, LeaderReplica):
            return await source.read(position, self._room)
        fetched = await read_away(self._request, source, position, self._room, DECODED_PER_BYTE)
        self._seen_away.append((source, fetched.high_watermark))
        return fetched

    # -- between turns ------------------------------------------------------------------------------------------------

    async def until_more(self, seconds: float) -> None:
        """Returns when a partition has more than was seen, it may be time for another place, or no time is left."""
        if self._moved:
            return
        more = asyncio.Event()
        parked: list[tuple[LeaderReplica, int]] = []
        seconds = min(seconds, LOOK_SECONDS)
        asking = [asyncio.create_task(self._ask(each, seconds, more)) for each in self._by_leader().items()]
        try:
            with contextlib.suppress(TimeoutError):
                async with self._request.site.patience(seconds):
                    for replica, high_watermark in self._seen:
                        with contextlib.suppress(Refused):
                            parked.append((replica, replica.park(more.set, high_watermark + 1)))
                    await more.wait()
        finally:
            for replica, number in parked:
                replica.unpark(number)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    def _by_leader(self) -> dict[Leader, list[tuple[TopicPartition, TopicId, int]]]:
        """The partitions of other brokers, with where they ended."""
        shares: dict[Leader, list[tuple[TopicPartition, TopicId, int]]] = {}
        for source, end in self._seen_away:
            with contextlib.suppress(Refused):
                leader = source.leader()._replace(epoch=-1)
                shares.setdefault(leader, []).append((source.at, source.topic_id, end))
        return shares

    async def _ask(
        self, share: tuple[Leader, list[tuple[TopicPartition, TopicId, int]]], seconds: float, more: asyncio.Event
    ) -> None:
        """Sets `more` when a leader has more; a little before the time is over it has answered."""
        leader, ends = share
        wait_ms = int(seconds * 900)
        with contextlib.suppress(Refused, Unavailable):
            if await self._request.site.elsewhere.until_more(leader, ends, wait_ms):
                more.set()


def _will_pass(error: Exception) -> bool:
    """Of a topic that was deleted, or is led elsewhere: the place in the group, or what the user chose, will change."""
    return isinstance(error, Refused) and (error.code is Code.UNKNOWN_TOPIC_OR_PARTITION or error.code.retriable)
