"""Tests of the way from the hot log's own files to the bucket and back, with the real log and its real indexes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.scenario import in_rig
from tests.sim.harness.clock import SimRng
from tests.sim.harness.disk import SimDisk
from tests.unit.cold.rig import PID, TOPIC, Rig, batch
from tests.unit.hot.cleaning import resources
from tiered.config.settings import TopicConfig
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_recovery import LogRecovery
from tiered.metrics import Metrics
from tiered.records.batch import encode_batch
from tiered.records.native import walk


async def open_log(rig: Rig, name: str, segment_bytes: int, config: TopicConfig | None = None) -> DiskLog:
    """Opens an empty log of small segments with an index entry for every few batches."""
    config = config or replace(TopicConfig(), segment_bytes=segment_bytes, index_interval_bytes=1000)
    return await DiskLog.open(
        SimDisk(SimRng(rig.loop.seed).stream(name)),
        rig.clock,
        "log/flights-3",
        config,
        LogRecovery(same_boot=True, clean=True),
        metrics=Metrics(),
        topic_id=PID.topic_id,
        name=TOPIC,
    )  # fmt: skip


def append(log: DiskLog, count: int, epoch: int) -> None:
    """Appends `count` batches of ten records, with the timestamps of the rig."""
    for _ in range(count):
        data = bytearray(batch(log.end_offset, 10, 40))
        log.append(data, leader_epoch=epoch, now_ms=10**9)


@pytest.mark.parametrize("second_bytes", [6000, 9000, 100_000])
@in_rig(Rig)
async def test_new_leader_uploads_from_the_cold_end_and_every_offset_is_read(rig: Rig, *, second_bytes: int) -> None:
    first, second = await open_log(rig, "first", 6000), await open_log(rig, "second", second_bytes)
    for log in (first, second):
        log.epochs.assign(1, 0)
        append(log, 50, 1)
    old, new = rig.broker("old"), rig.broker("new")
    manifest = await old.take_over(1)
    written = await old.uploader.upload_next(first, manifest, 1, first.segments.closed()[2].next_offset)
    assert written is not None and len(written.nodes) == 3
    cold_end = written.cold_end_offset
    second.epochs.assign(2, second.end_offset)
    append(second, 50, 2)
    second.roll()
    manifest = await new.take_over(2)
    while (written := await new.uploader.upload_next(second, manifest, 2, second.end_offset)) is not None:
        manifest = written
    assert manifest.cold_end_offset == 1000
    bases = [entry.base_offset for entry in manifest.entries]
    assert cold_end in bases
    reader = rig.broker("reader").reader
    whole = b"".join([bytes(piece.data) async for piece in reader.iterate(PID, 0)])
    found = walk(whole).batches
    assert [each.base_offset for each in found] == list(range(0, 1000, 10))
    assert [each.leader_epoch for each in found] == [1] * 50 + [2] * 50
    for offset in range(1000):
        data = await reader.read(PID, manifest, offset, 1)
        at = found[offset // 10]
        assert data == whole[at.position : at.position + at.size]
        assert await reader.offset_for_timestamp(PID, 1000 * offset, manifest=manifest) == (
            offset,
            1000 * offset,
            at.leader_epoch,
        )
    sections = await reader.read_sections(manifest.entries[-1])
    assert sections.lineage == ((1, 0), (2, 500))


@in_rig(Rig)
async def test_index_lets_a_point_read_begin_near_its_batch(rig: Rig) -> None:
    log = await open_log(rig, "log", 5_000_000)
    log.epochs.assign(1, 0)
    append(log, 8000, 1)
    log.roll()
    broker = rig.broker()
    written = await broker.uploader.upload_next(log, await broker.take_over(1), 1, log.end_offset)
    assert written is not None
    reader = rig.broker("reader")
    end = written.cold_end_offset
    data = await reader.reader.read(PID, written, end - 5, 1)
    assert walk(data).batches[0].base_offset == end - 10
    assert reader.store.calls["get"] == 2
    assert reader.cache.bytes_held < (2 << 20)


@in_rig(Rig)
async def test_object_from_inside_a_cleaned_segment_skips_no_record(rig: Rig) -> None:
    """A compacted topic is tiered, then not, so that its disk is cleaned, and then tiered again. A cleaned segment lies
    across the cold end, and its records there are gone."""
    tiered = replace(
        TopicConfig(), segment_bytes=6000, index_interval_bytes=100, cleanup_policy=("compact",),
        remote_storage_enable=True,
    )  # fmt: skip
    log = await open_log(rig, "log", 6000, tiered)
    for number in range(100):
        key = b"same" if 20 <= number < 75 else b"k%d" % number
        log.append(bytearray(encode_batch([(1000 * number, key, b"v" * 60, ())])), leader_epoch=1, now_ms=10**9)
    log.roll()
    await log.flush()
    broker, first = rig.broker(), log.segments.closed()[0].next_offset
    manifest = await broker.uploader.upload_next(log, await broker.take_over(1), 1, first)
    assert manifest is not None and manifest.cold_end_offset == first
    log.configure(replace(tiered, remote_storage_enable=False, segment_bytes=1 << 20))
    await log.compaction.clean(
        log.compaction.find_cleanable(log.start_offset, log.end_offset, 10**9), resources(), keeps_tombstones=True
    )
    assert log.segments.closed()[0].next_offset > first
    log.configure(tiered)
    manifest = await broker.uploader.upload_next(log, manifest, 1, log.end_offset)
    assert manifest is not None and manifest.entries[-1].base_offset == first
    reader = rig.broker("reader").reader
    kept = [
        each.base_offset for piece in [p async for p in reader.iterate(PID, 0)] for each in walk(piece.data).batches
    ]
    assert first not in kept
    for offset in range(manifest.cold_end_offset):
        at_or_after = next(each for each in kept if each >= offset)
        data = await rig.broker(f"reader of {offset}").reader.read(PID, manifest, offset, 1)
        assert walk(data).batches[0].base_offset == at_or_after
        by_time = await reader.offset_for_timestamp(PID, 1000 * offset, manifest=manifest)
        assert by_time == (at_or_after, 1000 * at_or_after, 1)
