"""Memory of large frames: it follows what came, is pooled, and who is over the budget waits, but not for good."""

from __future__ import annotations

import pytest

from tiered_api.kafka.buffers import FIRST_STEP, KEPT_BYTES, SMALLEST, Buffers, Frame

MIB = 1 << 20


def receive(frame: Frame, size: int, content: bytes = b"x") -> int:
    """Fills in up to `size` bytes as a socket would; how many found room."""
    done = 0
    while done < size and (room := frame.room()) is not None:
        part = min(len(room), size - done)
        room[:part] = content * part
        frame.filled += part
        done += part
    return done


@pytest.mark.parametrize("size", [33_000, 65_536, 65_537, 300_000, 1 << 20, 5_000_000])
def test_a_frame_is_whole_when_all_of_it_came(size: int) -> None:
    buffers = Buffers(16 * MIB)
    frame = buffers.frame(size, memoryview(b"begun"))
    assert receive(frame, size - 5) == size - 5
    assert (frame.filled, len(frame.view)) == (size, size)
    assert bytes(frame.view[:7]) == b"begunxx" and bytes(frame.view[-2:]) == b"xx"
    frame.release()
    assert buffers.free == 16 * MIB


def test_what_is_announced_holds_little_and_grows_with_what_came() -> None:
    buffers = Buffers(1000 * MIB)
    frame = buffers.frame(100 * MIB, memoryview(b""))
    receive(frame, 1)
    assert 1000 * MIB - buffers.free == FIRST_STEP
    receive(frame, MIB)
    assert 1000 * MIB - buffers.free == 4 * MIB


def test_a_buffer_that_lies_ready_is_taken_whole() -> None:
    buffers = Buffers(16 * MIB)
    first = buffers.frame(MIB, memoryview(b""))
    receive(first, MIB)
    first.release()
    again = buffers.frame(MIB, memoryview(b""))
    assert again.room() is not None and len(again.view) == MIB
    assert buffers.kept == SMALLEST * 4  # of the first step


def test_who_finds_no_room_is_called_when_there_is_some_and_one_may_go_over() -> None:
    buffers = Buffers(MIB)
    called: list[str] = []
    holder, over, third = (buffers.frame(MIB, memoryview(b"")) for _ in range(3))
    assert receive(holder, MIB // 2) > 0
    assert receive(over, MIB) == MIB, "so that frames never block each other for good"
    assert buffers.free < 0
    assert third.room() is None
    buffers.park(lambda: called.append("third"))
    over.release()
    assert called == ["third"] and buffers.free >= 0
    assert third.room() is not None
    for frame in (holder, third):
        frame.release()
    assert buffers.free == MIB


def test_ready_buffers_are_bounded_and_forgotten() -> None:
    buffers = Buffers(1000 * MIB)
    frames = [buffers.frame(4 * MIB, memoryview(b"")) for _ in range(20)]
    for frame in frames:
        receive(frame, 4 * MIB)
    for frame in frames:
        frame.release()
    assert 0 < buffers.kept <= KEPT_BYTES
    for _ in range(10):
        buffers.trim()
    assert buffers.kept == 0
