"""Tests of read-ahead: fast over slow connections, shared, bounded, and no more than a reader needs."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import in_rig
from tests.unit.cold.rig import MIB, PID, Rig, batch, cold, entry, large, manifest
from tiered.cold.stream import PIECE_BATCHES, PIECE_BYTES
from tiered.errors import Corrupt
from tiered.records.native import walk


@in_rig(Rig)
async def test_sequential_read_uses_many_slow_connections(rig: Rig) -> None:
    large(rig, segments=4, batches=64)
    reader, _ = await cold(rig)
    reader.faults.first_byte_seconds, reader.faults.bytes_per_second = 0.03, 85e6
    began, first = rig.clock.mono_ns(), 0
    size = 0
    async for piece in reader.reader.iterate(PID, 0):
        first = first or rig.clock.mono_ns()
        size += len(piece.data)
    seconds = (rig.clock.mono_ns() - began) / 1e9
    assert size == len(rig.log.all_bytes)
    assert size / seconds >= 400e6
    assert (first - began) / 1e9 < 0.1
    assert reader.cache.bytes_held <= 256 * MIB


@in_rig(Rig)
async def test_sequence_of_fetches_is_as_fast_as_one_long_read(rig: Rig) -> None:
    large(rig, segments=4, batches=64)
    reader, manifest = await cold(rig)
    reader.faults.first_byte_seconds, reader.faults.bytes_per_second = 0.03, 85e6
    began, offset, size = rig.clock.mono_ns(), 0, 0
    while offset < 256:
        data = await reader.reader.read(PID, manifest, offset, 3 * MIB)
        offset, size = walk(data).batches[-1].last_offset + 1, size + len(data)
    assert size / ((rig.clock.mono_ns() - began) / 1e9) >= 400e6


@in_rig(Rig)
async def test_read_ahead_crosses_small_segments(rig: Rig) -> None:
    large(rig, segments=60, batches=1)
    reader, _ = await cold(rig)
    reader.faults.first_byte_seconds = 0.1
    began = rig.clock.mono_ns()
    assert await reader.read_all() == rig.log.all_bytes
    assert (rig.clock.mono_ns() - began) / 1e9 < 1.2


@in_rig(Rig)
async def test_one_fetch_at_a_random_offset_reads_the_index_and_one_small_range(rig: Rig) -> None:
    rig.log.fill(0, 500, size=2000)
    reader, manifest = await cold(rig)
    await reader.reader.read(PID, manifest, 3333, 100)
    await rig.clock.sleep(1)
    assert reader.store.calls["get"] == 2
    assert reader.cache.bytes_held < MIB + 10_000
    await reader.reader.read(PID, manifest, 3333, 100)
    assert reader.store.calls["get"] == 2, "the same again comes from the cache"


@in_rig(Rig)
async def test_reader_that_never_waits_does_not_extend_read_ahead(rig: Rig) -> None:
    large(rig, batches=64)
    reader, _ = await cold(rig)
    reader.faults.first_byte_seconds = 0.03
    pieces = reader.reader.iterate(PID, 0)
    for _ in range(3):
        await anext(pieces)
        await rig.clock.sleep(5)
    assert reader.store.calls["get"] <= 3 + 1 + 4
    await pieces.aclose()


@in_rig(Rig)
async def test_range_read_gets_nothing_beyond_its_end_and_chunks_as_asked(rig: Rig) -> None:
    large(rig, batches=14)
    _, manifest = await cold(rig)
    assert 8 * MIB < manifest.entries[0].log_bytes < 16 * MIB
    for with_few_gets, expected in ((False, 1 + 4), (True, 1 + 1)):
        reader = rig.broker(f"few gets {with_few_gets}")
        pieces = reader.reader.iterate(PID, 0, 14, with_few_gets=with_few_gets)
        assert sum([len(piece.batches) async for piece in pieces]) == 14
        await rig.clock.sleep(5)
        assert reader.store.calls["get"] == expected, "the manifest, and chunks of the first segment"


@in_rig(Rig)
async def test_readers_of_one_partition_share_their_gets(rig: Rig) -> None:
    large(rig)
    reader, _ = await cold(rig)
    reader.faults.first_byte_seconds = 0.03
    alone = rig.broker("alone")
    await alone.read_all()
    found = await asyncio.gather(*(reader.read_all() for _ in range(4)))
    assert set(found) == {rig.log.all_bytes}
    assert reader.store.calls["get"] - 4 <= alone.store.calls["get"]
    assert reader.cache.readers == 0


@in_rig(Rig)
async def test_many_readers_have_small_chunks_each(rig: Rig) -> None:
    """Sixteen readers at as many places, in a cache of 8 MiB: each holds the chunk that it reads, and the next one."""
    large(rig)
    reader, _ = await cold(rig)
    reader.faults.first_byte_seconds = 0.03
    reader.cache._bytes_max = 8 * MIB
    reading = asyncio.gather(*(reader.read_all(5 * each) for each in range(16)))
    most = 0
    while not reading.done():
        most = max(most, reader.cache.bytes_held)
        await rig.clock.sleep(0.01)
    assert await reading
    assert most <= 16 * 2 * MIB
    assert reader.cache.bytes_held <= 8 * MIB and reader.cache.readers == 0


@in_rig(Rig)
async def test_small_memory_budget_reads_one_chunk_at_a_time(rig: Rig) -> None:
    large(rig)
    await rig.broker("writer").upload_all(rig.log, 1)
    reader = rig.broker("reader", window_bytes=1)
    assert await reader.read_all() == rig.log.all_bytes


@in_rig(Rig)
async def test_idle_streams_release_their_chunks(rig: Rig) -> None:
    large(rig)
    reader, manifest = await cold(rig)
    for offset in (0, 1, 2):
        await reader.reader.read(PID, manifest, offset, 100)
    assert not reader.cache.has_room(256 * MIB)
    await rig.clock.sleep(30)
    assert reader.cache.has_room(256 * MIB)
    await reader.reader.read(PID, manifest, 3, 100)
    reader.reader.close()
    assert reader.cache.has_room(256 * MIB)


@in_rig(Rig)
async def test_large_read_leaves_the_loop_to_others_between_its_pieces(rig: Rig) -> None:
    rig.log.write([batch(i, 1, 20) for i in range(14_000)], 14_000)
    reader, manifest = await cold(rig)
    await reader.reader.read(PID, manifest, 0, 1)
    await rig.clock.sleep(1)
    turns, reading = 0, asyncio.ensure_future(reader.reader.read(PID, manifest, 1, 8 * MIB))
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    found = walk(await reading).batches
    assert len(found) == len(walk(rig.log.all_bytes[:MIB]).batches) - 1, "all of the chunk"
    assert turns >= MIB // PIECE_BYTES and turns >= len(found) // PIECE_BATCHES


@in_rig(Rig)
async def test_read_ends_before_a_batch_that_is_out_of_place(rig: Rig) -> None:
    """The pieces of a read after its first one are checked as the first one is."""
    count = 2 * PIECE_BATCHES + 20
    batches = [batch(10 * i, 10, 100) for i in range(count)]
    batches[-10] = batch(10 * count, 10, 100)
    rig.log.write(batches, 10 * count + 10)
    broker = rig.broker()
    entry_of_all = entry(0, 10 * count + 10, size=sum(map(len, batches)))
    await broker.store.put(entry_of_all.key, b"".join(batches))
    data = await broker.reader.read(PID, manifest(entry_of_all), 0, MIB)
    assert len(walk(data).batches) == count - 10
    with pytest.raises(Corrupt, match="out of place"):
        await broker.reader.read(PID, manifest(entry_of_all), 10 * (count - 10), MIB)
