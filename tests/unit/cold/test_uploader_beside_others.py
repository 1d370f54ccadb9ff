"""Tests of uploads that run beside deletions of records and sweeps, and of uploads that must not start."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.scenario import in_rig
from tests.sim.harness.disk import SimDisk
from tests.unit.cold.rig import PID, TOPIC, Rig, batch
from tests.unit.hot.cleaning import clean, facts, put
from tests.unit.hot.fixtures import config, open_log
from tiered.cold import uploader
from tiered.cold.layout import SegmentFacts
from tiered.cold.manifest import Manifest
from tiered.cold.segment_check import ClosedSegment, check_segment
from tiered.errors import Corrupt, Fenced
from tiered.hot.leader_epochs import Lineage
from tiered.ids import PartitionId
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.ports import FileSlice


@in_rig(Rig)
async def test_nothing_is_uploaded_before_the_manifest_is_taken_over(rig: Rig) -> None:
    broker = rig.broker()
    rig.log.fill(0, 5)
    manifest = await broker.take_over(1)
    with pytest.raises(Fenced):
        await broker.uploader.upload_next(rig.log, manifest, 2, 1000)
    assert await rig.keys(".seg") == []


@in_rig(Rig)
async def test_segment_whose_batches_exceed_its_offsets_is_never_uploaded(rig: Rig) -> None:
    broker = rig.broker()
    rig.log.write([batch(0), batch(10)], 15)
    with pytest.raises(Corrupt, match="has other offsets"):
        await broker.upload_all(rig.log, 1)
    assert await rig.keys(".seg") == []


@in_rig(Rig)
async def test_records_deleted_during_their_upload_are_not_named(rig: Rig) -> None:
    broker = rig.broker()
    rig.log.fill(0, 5)
    manifest = await broker.take_over(1)
    broker.fail(FaultRule(FaultKind.DELAY, ("upload",), seconds=5.0))
    going = asyncio.ensure_future(broker.uploader.upload_next(rig.log, manifest, 1, 1000))
    await rig.clock.sleep(1)
    await broker.collector.advance_start(manifest, 1, 70)
    written = await going
    assert written is not None and (written.log_start_offset, written.cold_end_offset) == (70, 70)
    assert not written.nodes and broker.manifests.take_orphan_mark(PID), "a sweep deletes the object"
    await rig.clock.sleep(5)
    await broker.collector.sweep(PID, TOPIC, 1)
    assert await rig.keys(".seg") == []


@pytest.mark.parametrize("slow", ["list", "manifest"])
@in_rig(Rig)
async def test_object_that_is_named_during_a_sweep_is_kept(
    rig: Rig, *, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep lists objects, notes the uploads in flight, and reads the manifest, in this order. Each step may take
    long."""
    broker = rig.broker()
    rig.log.fill(0, 5)
    manifest, load = await broker.take_over(1), broker.manifests.load

    async def late(partition_id: PartitionId) -> Manifest | None:
        found = await load(partition_id)
        await rig.clock.sleep(5)
        return found

    monkeypatch.setattr(broker.manifests, "load", late if slow == "manifest" else load)
    seconds = 5.0 if slow == "list" else 1.0
    broker.fail(
        FaultRule(FaultKind.DELAY, ("list",), times=1, seconds=seconds),
        FaultRule(FaultKind.DELAY, ("put",), times=1, seconds=2.0),
    )
    sweeping = asyncio.ensure_future(broker.collector.sweep(PID, TOPIC, 1))
    await rig.clock.sleep(0.5)
    written = await broker.uploader.upload_next(rig.log, manifest, 1, 1000)
    assert written is not None and not sweeping.done()
    await sweeping
    await rig.clock.sleep(10)
    await broker.collector.delete_expired()
    assert await rig.keys(".seg") == [entry.key for entry in written.entries]


def test_object_has_one_file_if_a_clean_on_disk_replaces_the_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic becomes a tiered one while a clean ends: it replaces the segment in one of the turns of the check."""
    rig, is_cleaned = Rig(), False

    async def scenario() -> None:
        log = await open_log(SimDisk(random.Random(1)), config(segment_bytes=1024))
        for number in range(60):
            put(log, "again" if number % 10 == 0 else f"only{number}", f"v{number}")
        log.roll()
        await log.flush()
        log.configure(config(cleanup_policy=("compact",), segment_bytes=2048))

        async def check_beside_clean(
            segment: ClosedSegment, from_offset: int, *, may_begin_before: bool
        ) -> tuple[FileSlice, SegmentFacts, Lineage]:
            nonlocal is_cleaned
            found = await check_segment(segment, from_offset, may_begin_before=may_begin_before)
            if not is_cleaned:
                is_cleaned = (await clean(log)).bytes_after > 0
            return found

        monkeypatch.setattr(uploader, "check_segment", check_beside_clean)
        await rig.broker().upload_all(log, 1)  # type: ignore[arg-type]
        records = facts(await rig.broker("reader").read_all())
        assert is_cleaned and {key for _, key, _ in records} >= {f"only{n}" for n in range(60) if n % 10}

    rig.run(scenario)
