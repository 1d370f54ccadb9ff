"""Tests of the memory for large replies: it is reused, but never while a caller views it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import cast

from tests.scenario import run_alone, run_by
from tests.unit.kafka.scripted import answer_frame
from tiered.ports import Stream
from tiered_api.kafka.client.connection import BrokerConnection
from tiered_api.kafka.client.response_buffers import POOLED_MIN_BYTES, ResponseBuffers
from tiered_api.kafka.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData

MIB = 1 << 20


def test_memory_is_reused_once_no_view_is_left() -> None:
    memory = ResponseBuffers()
    first = memory.acquire(MIB)
    first[:5] = b"first"
    records = first[:5]
    del first
    second = memory.acquire(MIB)
    second[:5] = b"other"
    assert bytes(records) == b"first"
    assert memory.pooled_bytes == 2 * MIB
    del records, second
    third, fourth = memory.acquire(MIB - 7), memory.acquire(MIB)
    assert (len(third), len(fourth), memory.pooled_bytes) == (MIB - 7, MIB, 2 * MIB)
    assert bytes(third[:5]) != bytes(fourth[:5])


def test_kept_memory_is_bounded_and_freed_when_idle() -> None:
    memory = ResponseBuffers(4 * MIB)
    held = [memory.acquire(MIB) for _ in range(6)]
    assert memory.pooled_bytes == 4 * MIB and all(len(each) == MIB for each in held)
    del held
    assert len(memory.acquire(4 * MIB)) == 4 * MIB
    assert memory.pooled_bytes == 4 * MIB, "smaller pieces made room"
    memory.acquire(POOLED_MIN_BYTES - 1)
    assert memory.pooled_bytes == 4 * MIB
    memory.clear()
    assert memory.pooled_bytes == 0
    assert len(ResponseBuffers(0).acquire(MIB)) == MIB


class Fed:
    """A stream that returns the bytes that a test feeds, in pieces of any size."""

    def __init__(self, rng: random.Random) -> None:
        self._draw = rng
        self._read: Callable[[], None] = lambda: None
        self._rest = memoryview(b"")

    def on_readable(self, call: Callable[[], None]) -> None:
        self._read = call

    def on_writable(self, call: Callable[[], None] | None) -> None:
        assert call is None

    def sendmsg(self, parts: list[memoryview]) -> int:
        return sum(map(len, parts))

    def recv_into(self, room: memoryview) -> int | None:
        count = min(len(room), len(self._rest), self._draw.choice((1, 7, 4096, 70_000, MIB)))
        room[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count or None

    def feed(self, frame: bytes) -> None:
        self._rest = memoryview(frame)
        while self._rest:
            self._read()


def fetch_reply_frame(number: int, *records: bytes) -> bytes:
    """Returns the frame of a reply to a fetch."""
    parts = [PartitionData(partition_index=at, records=each) for at, each in enumerate(records)]
    body = FetchResponse(responses=[FetchableTopicResponse(partitions=parts)])
    return answer_frame(body, 17, number)


@run_by(run_alone)
async def test_later_replies_do_not_overwrite_viewed_ones() -> None:
    rng, memory = random.Random(1), ResponseBuffers()
    stream = Fed(rng)
    link = BrokerConnection(cast(Stream, stream), "there", "test", memory)
    held: list[tuple[bytes, FetchResponse]] = []
    for number in range(1, 40):
        records = rng.randbytes(rng.choice((10, 100_000, MIB, 3 * MIB)))
        asking = asyncio.create_task(link.send(FetchRequest(), FetchResponse, 10.0, 17))
        await asyncio.sleep(0)
        stream.feed(fetch_reply_frame(number, records, records[:5]))
        held.append((records, await asking))
        for said, answer in held:
            first, second = answer.responses[0].partitions
            assert (first.records, second.records) == (said, said[:5])
        if len(held) > rng.randrange(4):
            del held[rng.randrange(len(held))]
    assert memory.pooled_bytes <= 32 * MIB
