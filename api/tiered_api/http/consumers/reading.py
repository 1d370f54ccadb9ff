"""One read of a REST consumer: every partition that it has, in turn, until there is enough or the time is over."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered_api.http.consumers.instance import Instance
from tiered_api.http.reads import bytes_of, effort, memory
from tiered_api.http.render import rows_v2
from tiered_api.http.request import Request

Row = dict[str, Any]


async def read(request: Request, instance: Instance, max_bytes: int, timeout_ms: int) -> list[Row]:
    """Rows of REST v2. What they hold counts as read; who commits by itself does so with the next read."""
    clock = request.site.clock
    ends_ns = clock.mono_ns() + timeout_ms * 1_000_000
    if instance.choices.auto_commit:
        await instance.commit_read(instance.membership)
    rows: list[Row] = []
    size = 0
    while True:
        partitions = await instance.partitions((ends_ns - clock.mono_ns()) / 1e9)
        seen: dict[TopicPartition, int] = {}
        for at in partitions:
            if size < max_bytes:
                seen[at] = instance.replica(at).high_watermark
                some, count = await _read_one(request, instance, at, max_bytes - size)
                rows += some
                size += count
        left = (ends_ns - clock.mono_ns()) / 1e9
        if size >= max(instance.choices.min_bytes, 1) or left <= 0 or request.site.closing:
            return rows
        await _until_more(request, instance, seen, left)


async def _read_one(request: Request, instance: Instance, at: TopicPartition, room: int) -> tuple[list[Row], int]:
    """What one partition has now, and how many bytes of it were taken."""
    position = await instance.position(at)
    if position is None:
        return [], 0
    try:
        fetched = await instance.replica(at).read(position, room)
    except Refused as refused:
        if refused.code is not Code.OFFSET_OUT_OF_RANGE:
            raise
        instance.out_of_range(at)
        return [], 0
    if not fetched.size:
        return [], 0
    data = bytes_of(fetched)
    await request.hold(memory(data))
    form = instance.choices.format
    rows, following = await request.site.work(effort(data), rows_v2, data, position, room, form, *at)
    instance.has_read(at, following)
    request.site.read.inc(len(rows))
    return rows, len(data)


async def _until_more(request: Request, instance: Instance, seen: dict[TopicPartition, int], seconds: float) -> None:
    """Returns when one of these partitions has more than was seen, another place in the group, or no time is left."""
    more = asyncio.Event()
    replicas = [(instance.replica(at), high_watermark) for at, high_watermark in seen.items()]
    parked = [(replica, replica.park(more.set, high_watermark + 1)) for replica, high_watermark in replicas]
    try:
        with contextlib.suppress(TimeoutError):
            async with request.site.patience(min(seconds, LOOK_SECONDS)):
                await more.wait()
    finally:
        for replica, number in parked:
            replica.leave(number)


LOOK_SECONDS = 1.0
"""A place in the group may change while nothing is written."""
