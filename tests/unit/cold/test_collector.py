"""Tests of expiry, DeleteRecords, sweeps and deleted topics. The manifest changes first. Objects go after a grace time,
and only those of this partition."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from tests.scenario import in_rig
from tests.unit.cold.rig import PID, TOPIC, Rig
from tiered.cold.layout import manifest_key, segment_key
from tiered.errors import Fenced, Unavailable
from tiered.object_store.faulty import FaultKind, FaultRule


@dataclass(frozen=True)
class Limits:
    retention_ms: int = -1
    retention_bytes: int = -1


def fill(rig: Rig, segments: int = 10) -> None:
    """Fills the log with segments of ten records in one batch each."""
    for i in range(segments):
        rig.log.fill(10 * i, 1)


@pytest.mark.parametrize("fan", [64, 2])
@in_rig(Rig)
async def test_expired_segments_stay_in_the_bucket_for_the_grace_time(rig: Rig, *, fan: int) -> None:
    fill(rig)
    broker = rig.broker(fan=fan)
    manifest = await broker.upload_all(rig.log, 1)
    before = await rig.keys(".seg")
    limits = Limits(retention_ms=10_000)
    cut = await broker.collector.expire(manifest, 1, limits, local_bytes_above_cold=0, now_ms=59_001)
    assert cut is not None and cut.log_start_offset == 50
    assert await broker.manifests.load(PID) == cut
    assert await broker.collector.delete_expired() == 0
    assert await rig.keys(".seg") == before
    await rig.clock.sleep(2)
    await broker.collector.delete_expired()
    assert await rig.keys(".seg") == before[5:]
    assert await broker.read_all(50) == b"".join(rig.log.content(segment) for segment in rig.log.files[5:])
    assert cut.segment_count == 5
    again = await broker.collector.expire(cut, 1, limits, local_bytes_above_cold=0, now_ms=59_001)
    assert again is None


@in_rig(Rig)
async def test_new_leader_expires_nothing_before_it_knows_the_remote_size(rig: Rig) -> None:
    fill(rig)
    manifest = await rig.broker("old").upload_all(rig.log, 1)
    fresh = rig.broker("fresh")
    nothing = Limits(retention_ms=0, retention_bytes=0)
    for known in (None, manifest):
        assert await fresh.collector.expire(known, 2, nothing, local_bytes_above_cold=10**9, now_ms=10**12) is None
    assert await fresh.manifests.load(PID) == manifest


@in_rig(Rig)
async def test_failed_deletes_are_retried(rig: Rig) -> None:
    fill(rig)
    broker = rig.broker()
    manifest = await broker.upload_all(rig.log, 1)
    await broker.collector.advance_start(manifest, 1, 35)
    await rig.clock.sleep(2)
    broker.fail(FaultRule(FaultKind.ERROR, ("delete",), times=1))
    with pytest.raises(Unavailable):
        await broker.collector.delete_expired()
    assert await broker.collector.delete_expired() == 3
    assert len(await rig.keys(".seg")) == 7


@in_rig(Rig)
async def test_unreadable_sub_manifests_stop_no_log_start_and_cause_a_sweep(rig: Rig) -> None:
    fill(rig)
    await rig.broker("old", fan=2).upload_all(rig.log, 1)
    broker = rig.broker(fan=2)
    manifest = await broker.take_over(1)
    assert not broker.manifests.take_orphan_mark(PID)
    broker.fail(FaultRule(FaultKind.ERROR, ("get",), key=".sub"))
    cut = await broker.collector.advance_start(manifest, 1, manifest.cold_end_offset)
    assert cut.log_start_offset == manifest.cold_end_offset
    assert broker.manifests.take_orphan_mark(PID) and not broker.manifests.take_orphan_mark(PID)


@in_rig(Rig)
async def test_change_of_unknown_outcome_makes_a_sweep_due(rig: Rig) -> None:
    """The change may be in the manifest. Then no list of garbage names the objects that it dropped."""
    fill(rig)
    broker = rig.broker()
    manifest = await broker.upload_all(rig.log, 1)
    late = FaultRule(FaultKind.LATE_APPLY, ("put",), key="manifest", times=1, seconds=3)
    broker.fail(late, FaultRule(FaultKind.ERROR, ("get",), skip=1))
    with pytest.raises(Unavailable):
        await broker.collector.advance_start(manifest, 1, 35)
    assert broker.manifests.take_orphan_mark(PID)
    broker.fail()
    await broker.collector.advance_start(manifest, 1, 35)
    await rig.clock.sleep(2)
    assert await broker.collector.delete_expired() == 0, "so only the sweep knows them"


@pytest.mark.parametrize("fan", [64, 2])
@in_rig(Rig)
async def test_sweep_finds_garbage_from_before_a_restart(rig: Rig, *, fan: int) -> None:
    fill(rig)
    old = rig.broker("old", fan=fan)
    manifest = await old.upload_all(rig.log, 1)
    await old.collector.advance_start(manifest, 1, 42)
    new = rig.broker("new", fan=fan)
    await rig.clock.sleep(10)
    swept = await new.collector.sweep(PID, TOPIC, 2)
    assert [key for key in swept if key.endswith(".seg")] == [segment for segment in swept if "seg" in segment]
    assert len(await rig.keys(".seg")) == 6
    assert await new.read_all(42) == await old.read_all(42)
    assert await new.collector.sweep(PID, TOPIC, 2) == []


@in_rig(Rig)
async def test_sweep_spares_newer_and_unknown_objects_and_delays_young_ones(rig: Rig) -> None:
    fill(rig)
    broker = rig.broker()
    await broker.upload_all(rig.log, 5)
    newer, foreign = segment_key(PID, 500, 6, "a" * 32), f"data/{PID.topic_id}/3/notes.txt"
    orphan, young = segment_key(PID, 500, 5, "b" * 32), segment_key(PID, 500, 4, "c" * 32)
    for key in (newer, foreign, orphan):
        await rig.bucket.memory.put(key, b"x")
    await rig.clock.sleep(10)
    await rig.bucket.memory.put(young, b"x")
    assert await broker.collector.sweep(PID, TOPIC, 5) == [orphan]
    left = await rig.keys()
    assert {newer, foreign, young, manifest_key(PID)} <= set(left) and len(await rig.keys(".seg")) == 12
    await rig.clock.sleep(2)
    assert await broker.collector.delete_expired() == 1
    assert set(await rig.keys()) == set(left) - {young}


@in_rig(Rig)
async def test_deposed_leader_sweeps_nothing(rig: Rig) -> None:
    fill(rig)
    old, new = rig.broker("old"), rig.broker("new")
    await old.upload_all(rig.log, 1)
    await new.take_over(2)
    orphan = segment_key(PID, 500, 1, "b" * 32)
    await rig.bucket.memory.put(orphan, b"x")
    await rig.clock.sleep(10)
    with pytest.raises(Fenced):
        await old.collector.sweep(PID, TOPIC, 1)
    assert orphan in await rig.keys()


@in_rig(Rig)
async def test_topic_deletion_removes_manifests_first_and_no_other_topic(rig: Rig) -> None:
    fill(rig)
    broker = rig.broker(fan=2)
    await broker.upload_all(rig.log, 1)
    await rig.bucket.memory.put("data/BBBBBBBBQACAAAAAAAAAAQ/0/manifest", b"x")
    there = len(await rig.keys())
    assert await broker.collector.delete_topic(PID.topic_id) == there - 1
    assert await rig.keys() == ["data/BBBBBBBBQACAAAAAAAAAAQ/0/manifest"]
    assert await broker.collector.delete_topic(PID.topic_id) == 0


@in_rig(Rig)
async def test_deleted_records_are_not_read_and_not_counted(rig: Rig) -> None:
    fill(rig)
    broker = rig.broker()
    manifest = await broker.upload_all(rig.log, 1)
    cut = await broker.collector.advance_start(manifest, 1, 25)
    assert (cut.log_start_offset, cut.segment_count) == (25, 8)
    beyond = await broker.collector.advance_start(cut, 1, 1000)
    assert (beyond.log_start_offset, beyond.cold_end_offset, beyond.cold_bytes) == (1000, 1000, 0)


@in_rig(Rig)
async def test_sweep_is_due_after_a_deletion_whose_caller_gave_up(rig: Rig) -> None:
    """The manifest has the new log start. The caller gave up while the objects below it were looked for."""
    fill(rig)
    broker = rig.broker(fan=2)
    manifest = await broker.upload_all(rig.log, 1)
    broker.manifests._submanifests.clear()
    broker.fail(FaultRule(FaultKind.DELAY, ("get",), key=".sub", seconds=60.0))
    deletion = asyncio.create_task(broker.collector.advance_start(manifest, 1, 42))
    while (current := await broker.manifests.load(PID)) is None or current.log_start_offset != 42:
        await rig.clock.sleep(1.0)
    assert not deletion.done() and not broker.manifests.take_orphan_mark(PID)
    deletion.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deletion
    assert broker.manifests.take_orphan_mark(PID)
    broker.fail()
    assert await broker.collector.delete_expired() == 0, "only a sweep finds them"


@in_rig(Rig)
async def test_no_manifest_of_a_deleted_topic_names_a_missing_object(rig: Rig) -> None:
    fill(rig)
    broker = rig.broker()
    await broker.upload_all(rig.log, 1)
    broker.fail(FaultRule(FaultKind.ERROR, ("delete",), skip=1))
    with pytest.raises(Unavailable):
        await broker.collector.delete_topic(PID.topic_id)
    assert await rig.keys("/manifest") == [] and await rig.keys(".seg")
    broker.fail()
    assert await broker.collector.delete_topic(PID.topic_id) and await rig.keys() == []


@in_rig(Rig)
async def test_collector_reads_all_pages_of_a_list(rig: Rig) -> None:
    fill(rig)
    broker = rig.broker()
    await broker.upload_all(rig.log, 1)
    orphan = segment_key(PID, 500, 1, "b" * 32)
    await rig.bucket.memory.put(orphan, b"x")
    await rig.clock.sleep(10)
    broker.faults.list_keys = 2
    assert await broker.collector.sweep(PID, TOPIC, 1) == [orphan]
    there = len(await rig.keys())
    assert await broker.collector.delete_topic(PID.topic_id) == there > 2
