"""Cold reads: any offset, any size, the same bytes as were written; fast from afar; loud about rot."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.unit.cold.rig import PID, Broker, Rig, batch
from tiered.cold.faulty import Fault, Kind
from tiered.cold.manifest import Manifest
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.records.batch import encode, records
from tiered.records.model import Codec
from tiered.records.native import walk

MIB = 1 << 20


def small(rig: Rig) -> None:
    """Four segments of four batches of ten records: offsets 0 to 159."""
    for i in range(4):
        rig.log.fill(40 * i, 4)


def large(rig: Rig, segments: int = 2, batches: int = 40) -> None:
    """Segments of 1 MiB batches of one record each."""
    for i in range(segments):
        rig.log.write([batch(batches * i + j, 1, MIB - 100) for j in range(batches)], batches * (i + 1))


async def cold(rig: Rig, name: str = "reader") -> tuple[Broker, Manifest]:
    """Everything uploaded; a broker that has cached nothing."""
    manifest = await rig.broker("writer").upload_all(rig.log, 1)
    return rig.broker(name), manifest


@pytest.mark.parametrize("codec", list(Codec))
def test_every_offset_reads_the_whole_batch_that_holds_it(codec: Codec) -> None:
    rig = Rig()
    rows = [[(1000 * (10 * i + j), None, b"value %d" % j, ()) for j in range(10)] for i in range(8)]
    data = [encode(rows[i], base_offset=10 * i, leader_epoch=1, codec=codec) for i in range(8)]
    rig.log.write(data[:5], 50)
    rig.log.write(data[5:], 80)

    async def story() -> None:
        reader, manifest = await cold(rig)
        for offset in range(80):
            assert await reader.reader.read(PID, manifest, offset, 1) == data[offset // 10]

    rig.run(story)


def test_reads_one_after_the_other_give_the_log_whatever_their_size() -> None:
    for seed in range(4):
        rig = Rig(seed)
        sizes = random.Random(seed)
        for i in range(3):
            base = 1000 * i
            rig.log.write([batch(base + 10 * j, 10, sizes.choice((20, 5000, 50_000))) for j in range(100)], base + 1000)

        async def story(rig: Rig = rig, sizes: random.Random = sizes) -> None:
            reader, manifest = await cold(rig)
            got: list[bytes] = []
            offset = 0
            while offset < 3000:
                limit = sizes.choice((1, 1000, 100_000, 5_000_000))
                data = await reader.reader.read(PID, manifest, offset, limit)
                found = walk(data)
                assert found.why == "" and found.batches[0].base_offset == offset
                assert len(data) <= limit or len(found.batches) == 1
                got.append(data)
                offset = found.batches[-1].last_offset + 1
            assert b"".join(got) == rig.log.all_bytes
            assert reader.store.calls["get"] < 60

        rig.run(story)


def test_a_range_is_given_in_whole_batches_and_no_more() -> None:
    rig = Rig()
    small(rig)

    async def story() -> None:
        reader, _ = await cold(rig)
        pieces = [piece async for piece in reader.reader.iterate(PID, 15, 95)]
        assert (pieces[0].base_offset, pieces[-1].next_offset) == (10, 100)
        found = [found for found in walk(rig.log.all_bytes).batches if 10 <= found.base_offset < 100]
        wanted = rig.log.all_bytes[found[0].at : found[-1].at + found[-1].size]
        assert b"".join(bytes(piece.data) for piece in pieces) == wanted
        assert [piece.entry.base_offset for piece in pieces] == [0, 40, 80]
        assert [piece async for piece in reader.reader.iterate(PID, 160)] == []

    rig.run(story)


def test_offsets_outside_the_cold_range_are_refused() -> None:
    rig = Rig()
    small(rig)

    async def story() -> None:
        reader, manifest = await cold(rig)
        await rig.broker("b").take_over(1)
        for offset in (-1, 160, 10**15):
            with pytest.raises(Refused) as refused:
                await reader.reader.read(PID, manifest, offset, 100)
            assert refused.value.code is Code.OFFSET_OUT_OF_RANGE
        with pytest.raises(Refused):
            _ = [piece async for piece in reader.reader.iterate(PID, 161)]

    rig.run(story)


def test_an_older_manifest_is_refreshed_when_it_does_not_name_the_offset() -> None:
    rig = Rig()
    small(rig)

    async def story() -> None:
        writer = rig.broker("writer")
        first = await writer.upload_all(rig.log, 1, stable=40)
        await writer.upload_all(rig.log, 1)
        reader = rig.broker("reader")
        assert walk(await reader.reader.read(PID, first, 99, 100)).batches[0].base_offset == 90
        assert walk(await reader.reader.read(PID, None, 5, 100)).batches[0].base_offset == 0

    rig.run(story)


def test_an_offset_of_another_history_is_not_served() -> None:
    rig = Rig()
    small(rig)
    rig.log.lineage = [(1, 0), (4, 60)]

    async def story() -> None:
        reader, manifest = await cold(rig)
        assert await reader.reader.read(PID, manifest, 59, 1, epoch=1)
        assert await reader.reader.read(PID, manifest, 60, 1, epoch=4)
        for offset, epoch in ((59, 4), (60, 1), (60, 3)):
            with pytest.raises(Refused):
                await reader.reader.read(PID, manifest, offset, 1, epoch=epoch)

    rig.run(story)


def test_a_record_larger_than_the_limit_is_given_whole() -> None:
    rig = Rig()
    rig.log.write([batch(0, 1, 100), batch(1, 1, 20 * MIB), batch(2, 1, 100)], 3)

    async def story() -> None:
        reader, manifest = await cold(rig)
        data = await reader.reader.read(PID, manifest, 1, 10)
        assert data == rig.log.all_bytes[len(batch(0, 1, 100)) : -len(batch(2, 1, 100))]

    rig.run(story)


# -- speed ------------------------------------------------------------------------------------------------------------


def test_a_replay_over_slow_connections_is_fast_because_many_are_used() -> None:
    rig = Rig()
    large(rig, segments=8, batches=64)

    async def story() -> None:
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

    rig.run(story)


def test_a_sequence_of_fetches_is_as_fast_as_one_long_read() -> None:
    rig = Rig()
    large(rig, segments=8, batches=64)

    async def story() -> None:
        reader, manifest = await cold(rig)
        reader.faults.first_byte_seconds, reader.faults.bytes_per_second = 0.03, 85e6
        began, offset, size = rig.clock.mono_ns(), 0, 0
        while offset < 512:
            data = await reader.reader.read(PID, manifest, offset, 3 * MIB)
            offset, size = walk(data).batches[-1].last_offset + 1, size + len(data)
        assert size / ((rig.clock.mono_ns() - began) / 1e9) >= 400e6

    rig.run(story)


def test_read_ahead_crosses_small_segments() -> None:
    rig = Rig()
    large(rig, segments=60, batches=1)

    async def story() -> None:
        reader, _ = await cold(rig)
        reader.faults.first_byte_seconds = 0.1
        began = rig.clock.mono_ns()
        assert await reader.read_all() == rig.log.all_bytes
        assert (rig.clock.mono_ns() - began) / 1e9 < 1.2

    rig.run(story)


def test_one_fetch_at_a_random_offset_reads_the_index_and_one_small_range() -> None:
    rig = Rig()
    rig.log.fill(0, 500, size=2000)

    async def story() -> None:
        reader, manifest = await cold(rig)
        await reader.reader.read(PID, manifest, 3333, 100)
        await rig.clock.sleep(1)
        assert reader.store.calls["get"] == 2
        assert reader.cache.bytes_held < MIB + 10_000
        await reader.reader.read(PID, manifest, 3333, 100)
        assert reader.store.calls["get"] == 2, "the same again comes from the cache"

    rig.run(story)


def test_a_reader_that_never_waits_does_not_read_further_ahead() -> None:
    rig = Rig()
    large(rig, batches=64)

    async def story() -> None:
        reader, _ = await cold(rig)
        reader.faults.first_byte_seconds = 0.03
        pieces = reader.reader.iterate(PID, 0)
        for _ in range(3):
            await anext(pieces)
            await rig.clock.sleep(5)
        assert reader.store.calls["get"] <= 3 + 1 + 4
        await pieces.aclose()  # type: ignore[attr-defined]

    rig.run(story)


def test_readers_of_one_partition_share_their_gets() -> None:
    rig = Rig()
    large(rig)

    async def story() -> None:
        reader, _ = await cold(rig)
        reader.faults.first_byte_seconds = 0.03
        alone = rig.broker("alone")
        await alone.read_all()
        found = await asyncio.gather(*(reader.read_all() for _ in range(10)))
        assert set(found) == {rig.log.all_bytes}
        assert reader.store.calls["get"] - 10 <= alone.store.calls["get"]

    rig.run(story)


def test_a_small_budget_reads_the_same_bytes_one_chunk_at_a_time() -> None:
    rig = Rig()
    large(rig)

    async def story() -> None:
        await rig.broker("writer").upload_all(rig.log, 1)
        reader = rig.broker("reader", window_bytes=1)
        assert await reader.read_all() == rig.log.all_bytes

    rig.run(story)


def test_idle_streams_give_their_chunks_back() -> None:
    rig = Rig()
    large(rig)

    async def story() -> None:
        reader, manifest = await cold(rig)
        for offset in (0, 1, 2):
            await reader.reader.read(PID, manifest, offset, 100)
        assert not reader.cache.has_room(256 * MIB)
        await rig.clock.sleep(30)
        assert reader.cache.has_room(256 * MIB)
        await reader.reader.read(PID, manifest, 3, 100)
        reader.reader.close()
        assert reader.cache.has_room(256 * MIB)

    rig.run(story)


# -- rot --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Kind.FLIPPED, Kind.TRUNCATED])
def test_a_bad_range_is_read_once_more(kind: Kind) -> None:
    for seed in range(40):
        rig = Rig(seed)
        large(rig, segments=2, batches=10)

        async def story(rig: Rig = rig) -> None:
            reader, _ = await cold(rig)
            reader.faults.random.seed(rig.loop.seed)
            reader.fail(Fault(kind, ("get",), key=".seg", skip=rig.loop.seed % 4, times=1))
            assert await reader.read_all() == rig.log.all_bytes
            assert reader.store.hits[kind] == 1

        rig.run(story)


@pytest.mark.parametrize("at", [0, 9, 10, 11, 16, 17, 30, 61, 70, MIB // 2])
def test_rot_in_the_bucket_is_corrupt_with_key_and_place_and_spares_what_is_before_it(at: int) -> None:
    rig = Rig()
    large(rig, segments=2, batches=10)

    async def story() -> None:
        reader, manifest = await cold(rig)
        key = manifest.entries[1].key
        body = bytearray((await rig.bucket.memory.get(key)).data)  # type: ignore[union-attr]
        place = walk(rig.log.content(rig.log.segments[1])).batches[4].at
        body[place + at] ^= 0x40
        await rig.bucket.memory.put(key, body)
        got = b""
        with pytest.raises(Corrupt) as corrupt:
            async for piece in reader.reader.iterate(PID, 0):
                got += bytes(piece.data)
        assert got == rig.log.all_bytes[: rig.log.segments[0].log.length + place]
        assert (corrupt.value.where, corrupt.value.position) == (key, place)

    rig.run(story)


def test_a_missing_object_is_corrupt_while_the_manifest_names_it_and_out_of_range_after() -> None:
    rig = Rig()
    small(rig)

    async def story() -> None:
        writer = rig.broker("writer")
        manifest = await writer.upload_all(rig.log, 1)
        await rig.bucket.memory.delete([manifest.entries[0].key])
        reader = rig.broker("reader")
        with pytest.raises(Corrupt, match="missing"):
            await reader.reader.read(PID, manifest, 5, 100)
        await writer.collector.advance_start(manifest, 1, 40)
        with pytest.raises(Refused) as refused:
            await reader.reader.read(PID, manifest, 0, 100)
        assert refused.value.code is Code.OFFSET_OUT_OF_RANGE

    rig.run(story)


def test_an_object_that_ends_early_is_corrupt() -> None:
    rig = Rig()
    small(rig)

    async def story() -> None:
        reader, manifest = await cold(rig)
        key = manifest.entries[0].key
        await rig.bucket.memory.put(key, (await rig.bucket.memory.get(key)).data[:300])  # type: ignore[union-attr]
        with pytest.raises(Corrupt, match="ends early"):
            await reader.reader.read(PID, manifest, 0, 100)

    rig.run(story)


def test_an_unreachable_bucket_is_unavailable_and_reading_goes_on_after() -> None:
    rig = Rig()
    small(rig)

    async def story() -> None:
        reader, manifest = await cold(rig)
        first = await reader.reader.read(PID, manifest, 0, 1)
        reader.faults.outage = True
        with pytest.raises(Unavailable):
            await reader.reader.read(PID, manifest, 50, 1)
        reader.faults.outage = False
        assert await reader.reader.read(PID, manifest, 0, 1) == first
        assert await reader.read_all() == rig.log.all_bytes

    rig.run(story)


def test_rotten_sections_are_read_once_more_then_corrupt() -> None:
    rig = Rig()
    small(rig)

    async def story() -> None:
        reader, manifest = await cold(rig)
        entry = manifest.entries[2]
        reader.fail(Fault(Kind.FLIPPED, ("get",), times=1))
        sections = await reader.reader.sections(entry)
        files = rig.log.sections(80)
        assert (sections.offset_index, sections.time_index) == (files.offset_index, files.time_index)
        assert (sections.producers, sections.lineage) == (files.producer_snapshot, ((1, 0),))
        reader = rig.broker("other")
        reader.fail(Fault(Kind.FLIPPED, ("get",)))
        with pytest.raises(Corrupt, match=entry.key):
            await reader.reader.sections(entry)

    rig.run(story)


# -- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_offsets_by_time_are_those_of_a_plain_scan_even_out_of_order(codec: Codec) -> None:
    for seed in range(5):
        rig = Rig(seed)
        draw = random.Random(seed)
        offset = 0
        for _ in range(4):
            batches: list[bytes] = []
            for _ in range(10):
                rows = [(draw.randrange(1000, 5000) + 10 * offset, None, b"v", ()) for _ in range(draw.randrange(1, 6))]
                batches.append(encode(rows, base_offset=offset, leader_epoch=3, codec=codec))
                offset += len(rows)
            rig.log.write(batches, offset)

        async def story(rig: Rig = rig) -> None:
            reader, manifest = await cold(rig)
            data = rig.log.all_bytes
            written = [record for found in walk(data).batches for record in records(data, found.at)]
            for start in (0, 77):
                cut = manifest.advance_start(start, {})
                for timestamp in range(0, 8000, 333):
                    wanted = next(
                        ((r.offset, r.timestamp, 3) for r in written if r.timestamp >= timestamp and r.offset >= start),
                        None,
                    )
                    assert await reader.reader.offset_for_timestamp(PID, timestamp, manifest=cut) == wanted

        rig.run(story)


def test_nothing_is_found_by_time_where_nothing_is_cold() -> None:
    rig = Rig()

    async def story() -> None:
        assert await rig.broker().reader.offset_for_timestamp(PID, 0) is None

    rig.run(story)
