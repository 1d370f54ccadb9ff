"""Tests of the memory for large requests: it grows with the received bytes and is pooled. A connection over the budget
waits, but not for ever."""

from __future__ import annotations

import random
from functools import partial

import pytest

from tests.seeds import first_seeds
from tiered_api.kafka.server.request_buffers import (
    FIRST_BUFFER_BYTES,
    POOL_BYTES,
    POOLED_MIN_BYTES,
    Frame,
    RequestBuffers,
)

MIB = 1 << 20


def receive(frame: Frame, size: int, content: bytes = b"x") -> int:
    """Fills in up to `size` bytes as a socket would; returns how many had room."""
    done = 0
    while done < size and (room := frame.next_space()) is not None:
        part = min(len(room), size - done)
        room[:part] = content * part
        frame.filled += part
        done += part
    return done


@pytest.mark.parametrize("size", [33_000, 65_536, 65_537, 300_000, 1 << 20, 5_000_000])
def test_frame_is_complete_when_all_its_bytes_arrived(size: int) -> None:
    buffers = RequestBuffers(16 * MIB)
    frame = buffers.new_frame(size, memoryview(b"begun"))
    assert receive(frame, size - 5) == size - 5
    assert (frame.filled, len(frame.view)) == (size, size)
    assert bytes(frame.view[:7]) == b"begunxx" and bytes(frame.view[-2:]) == b"xx"
    frame.release()
    assert buffers.free_bytes == 16 * MIB


def test_memory_of_a_frame_grows_with_its_received_bytes() -> None:
    buffers = RequestBuffers(1000 * MIB)
    frame = buffers.new_frame(100 * MIB, memoryview(b""))
    receive(frame, 1)
    assert 1000 * MIB - buffers.free_bytes == FIRST_BUFFER_BYTES
    receive(frame, MIB)
    assert 1000 * MIB - buffers.free_bytes == 4 * MIB


def test_pooled_buffer_is_taken_whole() -> None:
    buffers = RequestBuffers(16 * MIB)
    first = buffers.new_frame(MIB, memoryview(b""))
    receive(first, MIB)
    first.release()
    again = buffers.new_frame(MIB, memoryview(b""))
    assert again.next_space() is not None and len(again.view) == MIB
    assert buffers.pooled_bytes == POOLED_MIN_BYTES * 4  # of the first step


def test_waiting_frame_gets_room_and_one_may_exceed_the_budget() -> None:
    buffers = RequestBuffers(4 * MIB)
    called: list[str] = []
    over, other = (buffers.new_frame(4 * MIB, memoryview(b""), host) for host in "ab")
    assert receive(other, 10) == 10
    assert receive(over, 4 * MIB) == 4 * MIB, "so that frames never block each other for good"
    assert buffers.free_bytes < 0
    assert receive(other, MIB) < MIB
    buffers.park(lambda: called.append("other"), "b")
    over.release()
    assert called == ["other"] and not buffers.has_waiting
    left = 4 * MIB - other.filled
    assert receive(other, left) == left
    other.release()
    assert buffers.free_bytes == 4 * MIB


def test_one_address_cannot_take_the_reserve_of_others() -> None:
    """Once, 1,500 announced frames of one address took all memory for half a minute."""
    buffers = RequestBuffers(16 * MIB)
    flood = [buffers.new_frame(100 * MIB, memoryview(b""), "flood") for _ in range(1500)]
    for frame in flood:
        receive(frame, 41_000)
    held = 16 * MIB - buffers.free_bytes
    assert held <= 8 * MIB + FIRST_BUFFER_BYTES
    more = [buffers.new_frame(100 * MIB, memoryview(b""), f"flood-{n % 3}") for n in range(1500)]
    for frame in more:
        receive(frame, 41_000)
    honest = buffers.new_frame(200_000, memoryview(b""), "honest")
    assert receive(honest, 200_000) == 200_000
    for frame in [*flood, *more, honest]:
        frame.release()
    assert buffers.free_bytes == 16 * MIB


def test_room_goes_first_to_the_address_with_the_least_memory() -> None:
    buffers = RequestBuffers(4 * MIB)
    called: list[str] = []
    held = {host: buffers.new_frame(size, memoryview(b""), host) for host, size in (("a", MIB), ("b", MIB // 2))}
    for frame in held.values():
        receive(frame, frame.size)
    large = buffers.new_frame(2 * MIB, memoryview(b""), "large")
    receive(large, 2 * MIB)
    for host in ("a", "b", "none"):
        buffers.park(partial(called.append, host), host)
    large.release()
    assert called[0] == "none" and called == ["none", "b", "a"]


@pytest.mark.parametrize("seed", first_seeds(3, of=20))
def test_frames_of_any_sizes_and_addresses_all_complete(seed: int) -> None:
    """Each frame waits while it gets no room, and no frame waits for ever."""
    chance = random.Random(seed)
    buffers = RequestBuffers(8 * MIB)
    frames = [
        buffers.new_frame(chance.choice((40_000, 300_000, 3 * MIB, 9 * MIB)), memoryview(b""), chance.choice("aaabc"))
        for _ in range(40)
    ]
    waiting: set[int] = set()
    left = set(range(len(frames)))
    while left:
        ready = sorted(left - waiting)
        assert ready, f"all of {len(left)} frames wait for each other"
        number = chance.choice(ready)
        frame = frames[number]
        wanted = min(chance.choice((10_000, 200_000, 2 * MIB)), frame.size - frame.filled)
        if receive(frame, wanted) < wanted:
            waiting.add(number)
            buffers.park(partial(waiting.discard, number), frame.host)
        elif frame.filled == frame.size or chance.random() < 0.02:
            frame.release()
            left.remove(number)
    assert buffers.free_bytes == 8 * MIB and not buffers.has_waiting


def test_pooled_buffers_are_bounded_and_freed() -> None:
    buffers = RequestBuffers(1000 * MIB)
    frames = [buffers.new_frame(4 * MIB, memoryview(b"")) for _ in range(20)]
    for frame in frames:
        receive(frame, 4 * MIB)
    for frame in frames:
        frame.release()
    assert 0 < buffers.pooled_bytes <= POOL_BYTES
    for _ in range(10):
        buffers.trim()
    assert buffers.pooled_bytes == 0
