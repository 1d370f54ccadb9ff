"""Tests of cold reads: reads of any offset and size return the bytes that were written, and time look-ups the right
offset."""

from __future__ import annotations

import random

import pytest

from tests.refusal import refuses
from tests.scenario import in_rig
from tests.seeds import first_seeds
from tests.unit.cold.rig import MIB, PID, Rig, batch, cold, small
from tiered.errors import Code, Refused
from tiered.records.batch import decode_records, encode_batch
from tiered.records.model import Codec
from tiered.records.native import walk


@pytest.mark.parametrize("codec", list(Codec))
@in_rig(Rig)
async def test_read_at_any_offset_returns_its_whole_batch(rig: Rig, *, codec: Codec) -> None:
    rows = [[(1000 * (10 * i + j), None, b"value %d" % j, ()) for j in range(10)] for i in range(8)]
    data = [encode_batch(rows[i], base_offset=10 * i, leader_epoch=1, codec=codec) for i in range(8)]
    rig.log.write(data[:5], 50)
    rig.log.write(data[5:], 80)
    reader, manifest = await cold(rig)
    for offset in range(80):
        assert await reader.reader.read(PID, manifest, offset, 1) == data[offset // 10]


@pytest.mark.parametrize("seed", first_seeds(1, of=4))
def test_consecutive_reads_of_any_size_return_the_log(seed: int) -> None:
    rig = Rig(seed)
    sizes = random.Random(seed)
    for i in range(3):
        base = 1000 * i
        rig.log.write([batch(base + 10 * j, 10, sizes.choice((20, 5000, 50_000))) for j in range(100)], base + 1000)

    async def scenario(rig: Rig = rig, sizes: random.Random = sizes) -> None:
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

    rig.run(scenario)


@in_rig(Rig)
async def test_range_read_returns_whole_batches_and_no_more(rig: Rig) -> None:
    small(rig)
    reader, _ = await cold(rig)
    pieces = [piece async for piece in reader.reader.iterate(PID, 15, 95)]
    assert (pieces[0].base_offset, pieces[-1].next_offset) == (10, 100)
    found = [found for found in walk(rig.log.all_bytes).batches if 10 <= found.base_offset < 100]
    wanted = rig.log.all_bytes[found[0].position : found[-1].position + found[-1].size]
    assert b"".join(bytes(piece.data) for piece in pieces) == wanted
    assert [piece.entry.base_offset for piece in pieces] == [0, 40, 80]
    assert [piece async for piece in reader.reader.iterate(PID, 160)] == []


@in_rig(Rig)
async def test_read_outside_the_cold_range_is_refused(rig: Rig) -> None:
    small(rig)
    reader, manifest = await cold(rig)
    await rig.broker("b").take_over(1)
    for offset in (-1, 160, 10**15):
        with refuses(Code.OFFSET_OUT_OF_RANGE):
            await reader.reader.read(PID, manifest, offset, 100)
    with pytest.raises(Refused):
        _ = [piece async for piece in reader.reader.iterate(PID, 161)]


@in_rig(Rig)
async def test_read_in_a_gap_at_the_cold_end_returns_nothing(rig: Rig) -> None:
    """A segment of a log that Kafka cleaned may end in a gap."""
    rig.log.write([batch(0), batch(10)], 25)
    broker, manifest = await cold(rig)
    for known in (manifest, None):
        assert await broker.reader.read(PID, known, 20, 1000) == b""
        assert await broker.reader.read_committed(PID, known, 24, 1000) == (b"", ())
        assert await broker.read_all(20) == b""
        assert await broker.reader.read(PID, known, 10, 1000) == rig.log.all_bytes[len(batch(0)) :]
        assert await broker.reader.read(PID, known, 20, 1000) == b"", "by the stream of the read before it"
    rig.log.fill(25, 1)
    newer = await rig.broker("writer").upload_all(rig.log, 1)
    assert await broker.reader.read(PID, newer, 20, 1000) == rig.log.content(rig.log.files[1])


@in_rig(Rig)
async def test_old_manifest_without_the_offset_is_refreshed(rig: Rig) -> None:
    small(rig)
    writer = rig.broker("writer")
    first = await writer.upload_all(rig.log, 1, stable=40)
    await writer.upload_all(rig.log, 1)
    reader = rig.broker("reader")
    assert walk(await reader.reader.read(PID, first, 99, 100)).batches[0].base_offset == 90
    assert walk(await reader.reader.read(PID, None, 5, 100)).batches[0].base_offset == 0


@in_rig(Rig)
async def test_batch_above_the_read_limit_is_returned_whole(rig: Rig) -> None:
    rig.log.write([batch(0, 1, 100), batch(1, 1, 20 * MIB), batch(2, 1, 100)], 3)
    reader, manifest = await cold(rig)
    data = await reader.reader.read(PID, manifest, 1, 10)
    assert data == rig.log.all_bytes[len(batch(0, 1, 100)) : -len(batch(2, 1, 100))]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_time_lookup_equals_a_plain_scan_even_out_of_order(codec: Codec) -> None:
    for seed in range(5):
        rig = Rig(seed)
        rig.log.lineage = [(3, 0)]
        rng = random.Random(seed)
        offset = 0
        for _ in range(4):
            batches: list[bytes] = []
            for _ in range(10):
                rows = [(rng.randrange(1000, 5000) + 10 * offset, None, b"v", ()) for _ in range(rng.randrange(1, 6))]
                batches.append(encode_batch(rows, base_offset=offset, leader_epoch=3, codec=codec))
                offset += len(rows)
            rig.log.write(batches, offset)

        async def scenario(rig: Rig = rig) -> None:
            reader, manifest = await cold(rig)
            data = rig.log.all_bytes
            written = [record for found in walk(data).batches for record in decode_records(data, found.position)]
            for start in (0, 77):
                cut = manifest.advance_start(start, {})
                for timestamp in range(0, 8000, 333):
                    wanted = next(
                        ((r.offset, r.timestamp, 3) for r in written if r.timestamp >= timestamp and r.offset >= start),
                        None,
                    )
                    assert await reader.reader.offset_for_timestamp(PID, timestamp, manifest=cut) == wanted

        rig.run(scenario)


@in_rig(Rig)
async def test_time_lookup_without_cold_segments_finds_nothing(rig: Rig) -> None:
    assert await rig.broker().reader.offset_for_timestamp(PID, 0) is None


@in_rig(Rig)
async def test_reader_at_the_old_cold_end_reads_newly_cold_segments(rig: Rig) -> None:
    rig.log.fill(0, 2)
    writer, reader = rig.broker("writer"), rig.broker("reader")
    manifest = await writer.upload_all(rig.log, 1)
    assert await reader.reader.read(PID, manifest, 10, MIB) == batch(10)
    rig.log.fill(20, 2)
    await writer.upload_all(rig.log, 1)
    assert (await reader.reader.read(PID, manifest, 20, MIB)).startswith(batch(20))
