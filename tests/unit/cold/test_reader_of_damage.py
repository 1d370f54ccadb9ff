"""Tests of bytes that were damaged in transfer or in the bucket: the reader reads them once more, then raises Corrupt
with object and position."""

from __future__ import annotations

import asyncio

import pytest

from tests.refusal import refuses
from tests.scenario import in_rig
from tests.seeds import chosen
from tests.unit.cold.rig import MIB, PID, Rig, batch, cold, large, small
from tiered.errors import Code, Corrupt, Unavailable
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.ports import GetResult, NotFound
from tiered.producers.aborted_txns import AbortedTxn, encode_aborted_txns
from tiered.records.native import walk


@pytest.mark.parametrize("seeds", chosen([range(10), range(10, 40)], [range(10)], "seeds"), ids=["first", "others"])
@pytest.mark.parametrize("kind", [FaultKind.FLIPPED, FaultKind.TRUNCATED])
def test_damaged_range_is_read_once_more(kind: FaultKind, seeds: range) -> None:
    for seed in seeds:
        rig = Rig(seed)
        large(rig, segments=2, batches=10)

        async def scenario(rig: Rig = rig) -> None:
            reader, _ = await cold(rig)
            reader.faults.random.seed(rig.loop.seed)
            reader.fail(FaultRule(kind, ("get",), key=".seg", skip=rig.loop.seed % 4, times=1))
            assert await reader.read_all() == rig.log.all_bytes
            assert reader.store.hits[kind] == 1

        rig.run(scenario)


@pytest.mark.parametrize("at", chosen([0, 9, 10, 11, 16, 17, 30, 61, 70, MIB // 2], [0, 16, 61, MIB // 2]))
@in_rig(Rig)
async def test_damage_in_the_bucket_is_corrupt_with_key_and_position(rig: Rig, *, at: int) -> None:
    large(rig, segments=2, batches=10)
    reader, manifest = await cold(rig)
    key = manifest.entries[1].key
    body = bytearray((await rig.bucket.memory.get(key)).data)  # type: ignore[union-attr]
    place = walk(rig.log.content(rig.log.files[1])).batches[4].position
    body[place + at] ^= 0x40
    await rig.bucket.memory.put(key, body)
    got = b""
    with pytest.raises(Corrupt) as corrupt:
        async for piece in reader.reader.iterate(PID, 0):
            got += bytes(piece.data)
    assert got == rig.log.all_bytes[: rig.log.files[0].log.length + place]
    assert (corrupt.value.where, corrupt.value.position) == (key, place)


@in_rig(Rig)
async def test_missing_object_is_corrupt_only_while_the_manifest_names_it(rig: Rig) -> None:
    small(rig)
    writer = rig.broker("writer")
    manifest = await writer.upload_all(rig.log, 1)
    await rig.bucket.memory.delete([manifest.entries[0].key])
    reader = rig.broker("reader")
    with pytest.raises(Corrupt, match="missing"):
        await reader.reader.read(PID, manifest, 5, 100)
    await writer.collector.advance_start(manifest, 1, 40)
    with refuses(Code.OFFSET_OUT_OF_RANGE):
        await reader.reader.read(PID, manifest, 0, 100)


@in_rig(Rig)
async def test_object_that_ends_early_is_corrupt(rig: Rig) -> None:
    small(rig)
    reader, manifest = await cold(rig)
    key = manifest.entries[0].key
    await rig.bucket.memory.put(key, (await rig.bucket.memory.get(key)).data[:300])  # type: ignore[union-attr]
    with pytest.raises(Corrupt, match="ends early"):
        await reader.reader.read(PID, manifest, 0, 100)


@in_rig(Rig)
async def test_reader_continues_after_the_bucket_was_unreachable(rig: Rig) -> None:
    small(rig)
    reader, manifest = await cold(rig)
    first = await reader.reader.read(PID, manifest, 0, 1)
    reader.faults.outage = True
    with pytest.raises(Unavailable):
        await reader.reader.read(PID, manifest, 50, 1)
    reader.faults.outage = False
    await asyncio.sleep(0.3)
    assert await reader.reader.read(PID, manifest, 0, 1) == first
    assert await reader.read_all() == rig.log.all_bytes


@in_rig(Rig)
async def test_damaged_sections_are_read_once_more_then_corrupt(rig: Rig) -> None:
    small(rig)
    reader, manifest = await cold(rig)
    entry = manifest.entries[2]
    reader.fail(FaultRule(FaultKind.FLIPPED, ("get",), times=1))
    sections = await reader.reader.read_sections(entry)
    files = rig.log.segments.data(80)
    assert (sections.offset_index, sections.time_index) == (files.offset_index, files.time_index)
    assert (sections.producers, sections.lineage) == (files.producer_snapshot, ((1, 0),))
    reader = rig.broker("other")
    reader.fail(FaultRule(FaultKind.FLIPPED, ("get",)))
    with pytest.raises(Corrupt, match=entry.key):
        await reader.reader.read_sections(entry)


@pytest.mark.parametrize(("at", "what"), [(7, "base offset"), (15, "leader epoch")])
@in_rig(Rig)
async def test_header_fields_without_a_crc_are_checked_against_their_neighbours(
    rig: Rig, *, at: int, what: str
) -> None:
    """One transfer flips a bit of a base offset or a leader epoch. The reader notices it and reads the batch again."""
    batches = [batch(base, 2) for base in range(0, 40, 2)]
    rig.log.write(batches, 40)
    reader, manifest = await cold(rig)
    whole = rig.log.all_bytes
    get = reader.store.inner.get
    damaged: list[str] = []

    async def flipping(key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        got = await get(key, start, length)
        place = sum(map(len, batches[:10])) + at - start
        if key.endswith(".seg") and not damaged and isinstance(got, GetResult) and 0 <= place < len(got.data):
            damaged.append(key)
            data = bytearray(got.data)
            data[place] ^= 2
            return GetResult(bytes(data), got.size, got.version)
        return got

    reader.store.inner.get = flipping  # type: ignore[method-assign]
    pieces = [bytes(piece.data) async for piece in reader.reader.iterate(PID, 0, manifest=manifest)]
    assert damaged, what
    assert b"".join(pieces) == whole


TRUE_INDEX = [AbortedTxn(7, 2, 9, 3), AbortedTxn(8, 3, 19, 20)]
NEXT_INDEX = [AbortedTxn(7, 22, 29, 23), AbortedTxn(8, 23, 39, 40)]


@pytest.mark.parametrize(
    "index",
    [
        encode_aborted_txns(NEXT_INDEX)[:-1],
        b"\0\1" + encode_aborted_txns(NEXT_INDEX)[2:],
        encode_aborted_txns(NEXT_INDEX[::-1]),
        encode_aborted_txns([NEXT_INDEX[0], NEXT_INDEX[0]]),
        encode_aborted_txns([AbortedTxn(7, 29, 22, 23)]),
        encode_aborted_txns([AbortedTxn(7, 22, 29, 1 << 62)]),
        encode_aborted_txns(TRUE_INDEX),
    ],
    ids=[
        "half an entry", "version 1", "out of order", "a marker twice", "end before begin", "stable beyond the marker",
        "the index of another segment",
    ],
)  # fmt: skip
@in_rig(Rig)
async def test_index_that_lies_refuses_committed_reads_of_its_segment(rig: Rig, *, index: bytes) -> None:
    """The CRC of the section is right: whoever wrote the object is wrong."""
    for base in (0, 20):
        rig.log.fill(base, 2)
    rig.log.txn_indexes = {0: encode_aborted_txns(TRUE_INDEX), 20: index}
    reader, manifest = await cold(rig)
    data, aborted = await reader.reader.read_committed(PID, manifest, 0, MIB)
    assert data and aborted == ((7, 2), (8, 3))
    with pytest.raises(Corrupt, match=manifest.entries[1].key):
        await reader.reader.read_committed(PID, manifest, 20, MIB)
    assert await reader.reader.read(PID, manifest, 20, MIB)
    assert (await reader.reader.read_committed(PID, manifest, 10, MIB))[1] == ((8, 3),)
