"""Tests of uploads: the object comes before the manifest, segments are checked before they leave, and a failed upload
leaves only garbage."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.scenario import in_rig
from tests.unit.cold.rig import PID, TOPIC, Rig, batch
from tiered.cold import uploader
from tiered.cold.layout import FOOTER_BYTES_MAX, parse_footer
from tiered.errors import Corrupt, Fenced, Unavailable
from tiered.ids import PartitionId
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.ports import FileSlice, NotFound


@in_rig(Rig)
async def test_uploaded_segment_has_the_same_bytes_and_a_valid_footer(rig: Rig) -> None:
    broker = rig.broker()
    first, second = rig.log.fill(0, 30), rig.log.fill(300, 5)
    manifest = await broker.upload_all(rig.log, 4)
    assert (manifest.cold_end_offset, manifest.leader_epoch) == (350, 4)
    assert manifest.cold_bytes == first.log.length + second.log.length
    for segment, entry in zip((first, second), manifest.entries, strict=True):
        got = await rig.bucket.memory.get(entry.key)
        assert not isinstance(got, NotFound)
        assert got.data[: entry.log_bytes] == rig.log.content(segment)
        assert got.size == entry.object_bytes
        footer = parse_footer(PID, got.data[-FOOTER_BYTES_MAX:], got.size, where=entry.key)
        assert (footer.leader_epoch, footer.sections, footer.facts.crc) == (4, entry.sections, entry.log_crc)
        assert (entry.record_count, entry.max_timestamp) == (
            entry.next_offset - entry.base_offset,
            1000 * (entry.next_offset - 1),
        )
        assert entry.lineage == ((1, entry.base_offset),)


@in_rig(Rig)
async def test_each_object_has_the_lineage_of_the_whole_log(rig: Rig) -> None:
    broker = rig.broker()
    rig.log.write([batch(0, epoch=1), batch(10, epoch=1), batch(20, epoch=3)], 30)
    rig.log.write([batch(30, epoch=3), batch(40, epoch=4), batch(50, epoch=4)], 60)
    rig.log.lineage = [(1, 0), (3, 20), (4, 40), (6, 60)]
    manifest = await broker.upload_all(rig.log, 4)
    first, second = manifest.entries
    assert (first.lineage, second.lineage) == (((1, 0), (3, 20)), ((3, 30), (4, 40)))
    assert (await broker.reader.read_sections(first)).lineage == ((1, 0), (3, 20))
    assert (await broker.reader.read_sections(second)).lineage == ((1, 0), (3, 20), (4, 40))


@in_rig(Rig)
async def test_upload_from_inside_a_batch_has_the_lineage_of_the_whole_batch(rig: Rig) -> None:
    """DeleteRecords may cut inside a batch. The lineage of the log then begins there, and the segment before it."""
    broker = rig.broker()
    rig.log.write([batch(0, epoch=1), batch(10, epoch=3)], 20)
    rig.log.lineage = [(3, 15)]
    manifest = await broker.take_over(4)
    manifest = await broker.collector.advance_start(manifest, 4, 15)
    written = await broker.uploader.upload_next(rig.log, manifest, 4, 1000)
    assert written is not None and written.log_start_offset == 15
    assert written.entries[0].lineage == ((3, 10),)
    assert await broker.read_all(15) == rig.log.all_bytes[-len(batch(10, epoch=3)) :]


@in_rig(Rig)
async def test_only_segments_below_the_stable_offset_are_uploaded(rig: Rig) -> None:
    broker = rig.broker()
    rig.log.fill(0, 3)
    rig.log.fill(30, 3)
    assert (await broker.upload_all(rig.log, 1, stable=59)).cold_end_offset == 30
    assert (await broker.upload_all(rig.log, 1, stable=60)).cold_end_offset == 60


def test_first_upload_of_a_new_leader_begins_at_the_cold_end() -> None:
    rig, other = Rig(), Rig(2)

    async def scenario() -> None:
        rig.log.fill(0, 4)
        await rig.broker("old").upload_all(rig.log, 1)
        other.log.fill(0, 10)
        new = rig.broker("new")
        manifest = await new.upload_all(other.log, 2)
        cut = manifest.entries[-1]
        assert (cut.base_offset, cut.next_offset, manifest.entries[0].next_offset) == (40, 100, 40)
        assert await new.read_all() == other.log.all_bytes
        for offset, base in ((40, 40), (67, 60), (99, 90)):
            data = await new.reader.read(PID, manifest, offset, 1)
            assert int.from_bytes(data[:8], "big") == base

    rig.run(scenario)


@in_rig(Rig)
async def test_cold_end_inside_a_batch_is_corrupt_if_any_segment_is_cold(rig: Rig) -> None:
    broker = rig.broker()
    rig.log.fill(0, 4)
    manifest = await broker.take_over(1)
    started = await broker.collector.advance_start(manifest, 1, 15)
    assert started.cold_end_offset == 15
    written = await broker.uploader.upload_next(rig.log, started, 1, 1000)
    assert written is not None
    assert (written.entries[0].base_offset, written.log_start_offset, written.cold_end_offset) == (10, 15, 40)
    rig.log.fill(40, 4)
    log_inside_a_batch = replace(written, cold_end_offset=45)
    with pytest.raises(Corrupt, match="inside a batch"):
        await broker.uploader.upload_next(rig.log, log_inside_a_batch, 1, 1000)


@pytest.mark.parametrize("bit", [8 * 3, 8 * 9, 8 * 16, 8 * 30, 8 * 200, -8])
@in_rig(Rig)
async def test_damaged_local_segment_is_never_uploaded(rig: Rig, *, bit: int) -> None:
    broker = rig.broker()
    segment = rig.log.fill(0, 5)
    rig.log.disk.flip_bit(segment.log.file.name, bit % (8 * segment.log.length))
    manifest = await broker.take_over(1)
    with pytest.raises(Corrupt, match=segment.log.file.name):
        await broker.uploader.upload_next(rig.log, manifest, 1, 1000)
    assert await rig.keys(".seg") == []


@in_rig(Rig)
async def test_local_segment_that_ends_inside_a_batch_is_never_uploaded(rig: Rig) -> None:
    broker = rig.broker()
    segment = rig.log.fill(0, 5)
    rig.log.files[0] = replace(segment, log=FileSlice(segment.log.file, 0, segment.log.length - 1))
    with pytest.raises(Corrupt, match="ends"):
        await broker.uploader.upload_next(rig.log, await broker.take_over(1), 1, 1000)


@in_rig(Rig)
async def test_batches_across_pieces_are_checked_before_upload(rig: Rig) -> None:
    broker = rig.broker()
    rig.log.write([batch(0), batch(10, 1, 20 << 20), batch(11, 1, 3 << 20), batch(12, 1, 3 << 20)], 13)
    manifest = await broker.upload_all(rig.log, 1)
    assert manifest.cold_end_offset == 13
    assert await broker.read_all() == rig.log.all_bytes


@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.LOST_REPLY, FaultKind.LATE_APPLY])
@in_rig(Rig)
async def test_failed_upload_leaves_the_manifest_and_can_be_retried(rig: Rig, *, kind: FaultKind) -> None:
    broker = rig.broker()
    rig.log.fill(0, 5)
    manifest = await broker.take_over(1)
    broker.fail(FaultRule(kind, ("upload",), times=1, seconds=1.0))
    with pytest.raises(Unavailable):
        await broker.uploader.upload_next(rig.log, manifest, 1, 1000)
    assert broker.uploader.keys_in_flight(PID) == frozenset()
    assert await broker.manifests.load(PID) == manifest
    written = await broker.upload_all(rig.log, 1)
    await rig.clock.sleep(10)
    assert await broker.read_all() == rig.log.all_bytes
    await rig.clock.sleep(60)
    await broker.collector.sweep(PID, TOPIC, 1)
    assert await rig.keys(".seg") == [written.entries[0].key]


@pytest.mark.parametrize("limit", ["bytes", "segments"])
@in_rig(Rig)
async def test_segments_closed_meanwhile_share_one_manifest_change(
    rig: Rig, *, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest change costs a request. Segments that close faster than they are uploaded share one, up to a number of
    bytes or segments: other partitions wait meanwhile."""
    broker = rig.broker()
    for number in range(5):
        rig.log.fill(50 * number, 5)
    manifest = await broker.take_over(1)
    changes = broker.store.calls["put"]
    if limit == "bytes":
        monkeypatch.setattr(uploader, "TOGETHER_BYTES", 2 * rig.log.files[0].log.length + 1)
    else:
        monkeypatch.setattr(uploader, "TOGETHER_SEGMENTS", 2)
    ends = []
    while (written := await broker.uploader.upload_next(rig.log, manifest, 1, 1000)) is not None:
        manifest = written
        ends.append(manifest.cold_end_offset)
    assert ends == [100, 200, 250]
    assert broker.store.calls["put"] - changes == 3
    assert await broker.read_all() == rig.log.all_bytes


@in_rig(Rig)
async def test_objects_before_a_failed_upload_are_named_and_the_next_call_raises(rig: Rig) -> None:
    broker = rig.broker()
    rig.log.fill(0, 5)
    rig.log.fill(50, 5)
    manifest = await broker.take_over(1)
    broker.fail(FaultRule(FaultKind.ERROR, ("upload",), skip=1))
    written = await broker.uploader.upload_next(rig.log, manifest, 1, 1000)
    assert written is not None and written.cold_end_offset == 50
    with pytest.raises(Unavailable):
        await broker.uploader.upload_next(rig.log, written, 1, 1000)
    assert broker.uploader.keys_in_flight(PID) == frozenset()


@in_rig(Rig)
async def test_puts_of_all_partitions_run_side_by_side_up_to_the_limit(rig: Rig) -> None:
    """Two partitions of six segments each, with puts of a second: four at a time are done after three."""
    broker, other = rig.broker(), PartitionId(PID.topic_id, PID.partition + 1)
    for number in range(6):
        rig.log.fill(10 * number, 1)
    broker.fail(FaultRule(FaultKind.DELAY, ("upload",), seconds=1.0))
    manifests = [await broker.manifests.take_over(each, TOPIC, 4) for each in (PID, other)]
    began_ns = rig.clock.mono_ns()
    written = await asyncio.gather(*(broker.uploader.upload_next(rig.log, each, 4, 60) for each in manifests))
    seconds = (rig.clock.mono_ns() - began_ns) / 1e9
    assert [each and each.cold_end_offset for each in written] == [60, 60]
    assert 3.0 <= seconds < 4.0


@in_rig(Rig)
async def test_objects_behind_a_failed_put_are_garbage_and_put_again(rig: Rig) -> None:
    broker = rig.broker()
    for number in range(4):
        rig.log.fill(10 * number, 1)
    broker.fail(FaultRule(FaultKind.ERROR, ("upload",), skip=1, times=1))
    manifest = await broker.take_over(4)
    first = await broker.uploader.upload_next(rig.log, manifest, 4, 40)
    assert first is not None and first.cold_end_offset == 10
    assert not broker.uploader.keys_in_flight(PID)
    whole = await broker.uploader.upload_next(rig.log, first, 4, 40)
    assert whole is not None and whole.cold_end_offset == 40
    assert [entry.base_offset for entry in whole.entries] == [0, 10, 20, 30]


@in_rig(Rig)
async def test_object_that_cannot_be_read_back_is_not_named(rig: Rig) -> None:
    broker = rig.broker()
    rig.log.fill(0, 5)
    manifest = await broker.take_over(1)
    broker.fail(FaultRule(FaultKind.FLIPPED, ("get",), key=".seg"))
    with pytest.raises(Unavailable, match="reads back"):
        await broker.uploader.upload_next(rig.log, manifest, 1, 1000)
    assert await broker.manifests.load(PID) == manifest


@in_rig(Rig)
async def test_next_leader_sweeps_an_object_that_no_manifest_names(rig: Rig) -> None:
    old = rig.broker("old")
    rig.log.fill(0, 5)
    manifest = await old.take_over(1)
    old.fail(FaultRule(FaultKind.DELAY, ("put",), seconds=1000.0))
    upload = asyncio.ensure_future(old.uploader.upload_next(rig.log, manifest, 1, 1000))
    await rig.clock.sleep(5)
    old.store.revoke()
    upload.cancel()
    unnamed_keys = await rig.keys(".seg")
    assert len(unnamed_keys) == 1
    new = rig.broker("new")
    written = await new.upload_all(rig.log, 2)
    await rig.clock.sleep(10)
    assert await new.collector.sweep(PID, TOPIC, 2) == unnamed_keys
    assert await rig.keys(".seg") == [entry.key for entry in written.entries]
    assert await new.read_all() == rig.log.all_bytes


@in_rig(Rig)
async def test_upload_of_a_fenced_leader_is_not_named(rig: Rig) -> None:
    old, new = rig.broker("old"), rig.broker("new")
    rig.log.fill(0, 5)
    manifest = await old.take_over(1)
    taken = await new.take_over(2)
    with pytest.raises(Fenced):
        await old.uploader.upload_next(rig.log, manifest, 1, 1000)
    assert await new.manifests.load(PID) == taken
    with pytest.raises(Fenced):
        await old.uploader.upload_next(rig.log, taken, 1, 1000)
    await rig.clock.sleep(10)
    await new.collector.sweep(PID, TOPIC, 2)
    assert await rig.keys(".seg") == []


def test_manifest_names_one_of_two_objects_of_the_same_range() -> None:
    for seed in range(30):
        rig = Rig(seed)

        async def scenario(rig: Rig = rig) -> None:
            brokers = [rig.broker(str(i)) for i in range(2)]
            for i in range(6):
                rig.log.fill(50 * i, 5)
            for broker in brokers:
                broker.faults.random.seed(rig.loop.seed)
                broker.faults.first_byte_seconds = 0.01
                broker.fail(
                    FaultRule(FaultKind.LOST_REPLY, ("put", "upload"), probability=0.2),
                    FaultRule(FaultKind.LATE_APPLY, ("put", "upload"), probability=0.2, seconds=2.0),
                    FaultRule(FaultKind.DELAY, probability=0.2, seconds=0.3),
                )

            async def lead(number: int) -> None:
                await rig.clock.sleep(0.5 * number)
                while True:
                    try:
                        await brokers[number].upload_all(rig.log, 1 + number)
                    except Unavailable:
                        continue
                    except Fenced:
                        assert number == 0
                    return

            await asyncio.gather(lead(0), lead(1))
            await rig.clock.sleep(100)
            brokers[1].fail()
            assert await brokers[1].read_all() == rig.log.all_bytes
            await rig.clock.sleep(10)
            await brokers[1].collector.sweep(PID, TOPIC, 2)
            manifest = await brokers[1].manifests.load(PID)
            assert manifest is not None
            assert await rig.keys(".seg") == sorted(entry.key for entry in manifest.entries)
            assert await brokers[1].read_all() == rig.log.all_bytes

        rig.run(scenario)


@in_rig(Rig)
async def test_sweep_spares_the_object_of_an_undecided_change(rig: Rig) -> None:
    broker = rig.broker()
    rig.log.fill(0, 5)
    manifest = await broker.take_over(1)
    broker.fail(
        FaultRule(FaultKind.LATE_APPLY, ("put",), times=1, seconds=50.0),
        FaultRule(FaultKind.ERROR, ("get",), key="manifest", skip=1),
    )
    with pytest.raises(Unavailable):
        await broker.uploader.upload_next(rig.log, manifest, 1, 1000)
    assert list(broker.uploader.keys_in_flight(PID)) == await rig.keys(".seg")
    broker.fail()
    assert await broker.collector.sweep(PID, TOPIC, 1) == []
    written = await broker.upload_all(rig.log, 1)
    assert broker.uploader.keys_in_flight(PID) == frozenset()
    await rig.clock.sleep(100)
    await broker.collector.sweep(PID, TOPIC, 1)
    assert await rig.keys(".seg") == [entry.key for entry in written.entries]
    assert await broker.read_all() == rig.log.all_bytes


@in_rig(Rig)
async def test_change_that_landed_late_is_found_before_the_next_upload(rig: Rig) -> None:
    broker = rig.broker()
    rig.log.fill(0, 5)
    rig.log.fill(50, 5)
    manifest = await broker.take_over(1)
    broker.fail(
        FaultRule(FaultKind.LATE_APPLY, ("put",), times=1, seconds=40.0),
        FaultRule(FaultKind.ERROR, ("get",), key="manifest", skip=1),
    )
    with pytest.raises(Unavailable):
        await broker.uploader.upload_next(rig.log, manifest, 1, 1000)
    broker.fail()
    await rig.clock.sleep(60)
    written = await broker.uploader.upload_next(rig.log, manifest, 1, 1000)
    assert written is not None and written.cold_end_offset == 100
    assert len(await rig.keys(".seg")) == 2
    assert await broker.read_all() == rig.log.all_bytes
    await rig.clock.sleep(61)
    await broker.collector.sweep(PID, TOPIC, 1)
    assert await rig.keys(".seg") == [entry.key for entry in written.entries]
