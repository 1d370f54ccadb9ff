"""Tests of manifest changes by compare-and-swap: races, lost replies, late puts, fencing, spills."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.scenario import in_rig
from tests.unit.cold.rig import PID, TOPIC, Broker, Rig, entry
from tiered.cold.layout import manifest_key
from tiered.cold.manifest import Manifest, Submanifests
from tiered.cold.manifest_codec import decode, encode_submanifest
from tiered.cold.manifest_store import ManifestChange
from tiered.errors import Corrupt, Fenced, Unavailable
from tiered.ids import PartitionId
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.ports import GetResult


def add_segment_at(base: int, epoch: int = 1) -> ManifestChange:
    """Returns a change that adds the segment [base, base + 10) behind any others."""

    def change(current: Manifest, _: Submanifests) -> Manifest:
        return current.add(entry(base, base + 10, epoch=epoch))

    return change


def append_segment(current: Manifest, _: Submanifests) -> Manifest:
    """Returns a change that adds ten offsets at the cold end."""
    end = current.cold_end_offset
    return current.add(entry(end, end + 10))


async def add(broker: Broker, base: int, epoch: int = 1) -> Manifest:
    return await broker.manifests.change(PID, TOPIC, epoch, add_segment_at(base, epoch))


@in_rig(Rig)
async def test_change_is_in_the_bucket_when_it_returns(rig: Rig) -> None:
    broker = rig.broker()
    assert await broker.manifests.load(PID) is None
    written = await add(broker, 0)
    assert (written.leader_epoch, written.sequence, written.cold_end_offset) == (1, 1, 10)
    assert await rig.broker("b").manifests.load(PID) == written


@in_rig(Rig)
async def test_change_of_what_was_written_needs_one_request_unless_another_wrote(rig: Rig) -> None:
    broker, other = rig.broker(), rig.broker("b")

    async def add_next() -> Manifest:
        return await broker.manifests.change(PID, TOPIC, 1, append_segment, from_written=True)

    await add(broker, 0)
    gets, puts = broker.store.calls["get"], broker.store.calls["put"]
    assert (await add_next()).cold_end_offset == 20
    assert (broker.store.calls["get"], broker.store.calls["put"]) == (gets, puts + 1)
    await add(other, 20)
    written = await add_next()
    assert (written.cold_end_offset, written.sequence) == (40, 4), "it is made on the manifest of the other writer"
    assert await rig.broker("c").manifests.load(PID) == written
    stale = await broker.manifests.change(PID, TOPIC, 1, lambda current, _: current, from_written=True)
    assert stale == written
    newest = await other.take_over(2)
    with pytest.raises(Fenced):
        await add_next()
    assert await rig.broker("d").manifests.load(PID) == newest


@in_rig(Rig)
async def test_change_is_made_on_a_manifest_that_was_written_again(rig: Rig) -> None:
    """A backup that is put back, or encryption anew, gives the same manifest another version."""
    broker = rig.broker()
    await add(broker, 0)
    stored = await broker.store.get(manifest_key(PID))
    assert isinstance(stored, GetResult)
    await broker.store.put(manifest_key(PID), stored.data)
    written = await broker.manifests.change(PID, TOPIC, 1, append_segment, from_written=True)
    assert (written.sequence, written.cold_end_offset) == (2, 20)
    assert await rig.broker("b").manifests.load(PID) == written


@in_rig(Rig)
async def test_change_of_what_was_written_returns_what_the_bucket_has(rig: Rig) -> None:
    broker, other = rig.broker(), rig.broker("b")
    await add(broker, 0)
    written = await add(other, 10)
    assert await broker.manifests.change(PID, TOPIC, 1, lambda current, _: current, from_written=True) == written


@in_rig(Rig)
async def test_change_without_effect_writes_nothing(rig: Rig) -> None:
    broker = rig.broker()
    await add(broker, 0)
    puts = broker.store.calls["put"]
    await add(broker, 0)
    await broker.take_over(1)
    assert broker.store.calls["put"] == puts


@pytest.mark.parametrize("kind", [FaultKind.LOST_REPLY, FaultKind.ERROR, FaultKind.CONFLICT])
@pytest.mark.parametrize("times", [1, 3])
@in_rig(Rig)
async def test_change_after_an_unknown_outcome_is_made_exactly_once(rig: Rig, *, kind: FaultKind, times: int) -> None:
    broker = rig.broker()
    await add(broker, 0)
    broker.fail(FaultRule(kind, ("put",), times=times))
    written = await add(broker, 10)
    assert (written.sequence, written.cold_end_offset, written.segment_count) == (2, 20, 2)
    bodies = [decode(data, "x") for key, data in rig.bucket.written if key == manifest_key(PID)]
    assert [(m.sequence, m.nonce) for m in bodies if m.sequence == 2] == [(2, written.nonce)]


@in_rig(Rig)
async def test_put_that_lands_after_its_retry_changes_nothing(rig: Rig) -> None:
    broker = rig.broker()
    await add(broker, 0)
    broker.fail(FaultRule(FaultKind.LATE_APPLY, ("put",), times=1, seconds=5.0))
    await add(broker, 10)
    after = await add(broker, 20)
    await rig.clock.sleep(10)
    assert await broker.manifests.load(PID) == after


def test_concurrent_writers_make_every_change_exactly_once() -> None:
    for seed in range(20):
        rig = Rig(seed)

        async def scenario(rig: Rig = rig) -> None:
            brokers = [rig.broker(str(i)) for i in range(4)]
            for broker in brokers:
                broker.faults.first_byte_seconds = 0.01
                broker.fail(
                    FaultRule(FaultKind.LOST_REPLY, ("put",), probability=0.2),
                    FaultRule(FaultKind.LATE_APPLY, ("put",), probability=0.1, seconds=1.0),
                    FaultRule(FaultKind.ERROR, ("get", "put"), probability=0.1),
                )

            async def work(broker: Broker) -> int:
                done = 0
                for _ in range(5):
                    try:
                        await broker.manifests.change(PID, TOPIC, 1, append_segment)
                        done += 1
                    except Unavailable:
                        pass
                return done

            done = await asyncio.gather(*(work(broker) for broker in brokers))
            await rig.clock.sleep(60)
            for broker in brokers:
                broker.fail()
            final = await brokers[0].take_over(2)
            assert final.segment_count >= sum(done)
            assert final.find_fault() == ""
            sequences = [decode(data, "x").sequence for key, data in rig.bucket.written if key == manifest_key(PID)]
            assert sequences == list(range(1, len(sequences) + 1))

        rig.run(scenario)


@in_rig(Rig)
async def test_higher_epoch_fences_the_lower_one_for_good(rig: Rig) -> None:
    old, new = rig.broker("old"), rig.broker("new")
    await add(old, 0)
    await new.take_over(2)
    with pytest.raises(Fenced):
        await add(old, 10)
    with pytest.raises(Fenced):
        await old.take_over(1)
    assert (await add(new, 10, epoch=2)).cold_end_offset == 20


@in_rig(Rig)
async def test_late_put_of_a_fenced_writer_never_lands(rig: Rig) -> None:
    old, new = rig.broker("old"), rig.broker("new")
    await add(old, 0)
    old.fail(FaultRule(FaultKind.LATE_APPLY, ("put",), seconds=3.0))
    undecided = asyncio.ensure_future(add(old, 10))
    await rig.clock.sleep(1)
    taken = await new.take_over(2)
    with pytest.raises(Fenced):
        await undecided
    await rig.clock.sleep(10)
    assert await new.manifests.load(PID) == taken


@in_rig(Rig)
async def test_next_change_after_an_outage_decides_the_pending_one(rig: Rig) -> None:
    broker = rig.broker()
    await add(broker, 0)
    broker.fail(
        FaultRule(FaultKind.LATE_APPLY, ("put",), times=1, seconds=100.0),
        FaultRule(FaultKind.ERROR, ("get",), skip=1),
    )
    with pytest.raises(Unavailable):
        await add(broker, 10)
    broker.fail()
    settled = await broker.take_over(1)
    assert settled.sequence == 2, "a change of nothing must write: the late put may not win any more"
    await rig.clock.sleep(200)
    assert await broker.manifests.load(PID) == settled


@in_rig(Rig)
async def test_cancelled_change_is_decided_by_the_next_one(rig: Rig) -> None:
    broker = rig.broker()
    await add(broker, 0)
    broker.fail(FaultRule(FaultKind.LATE_APPLY, ("put",), times=1, seconds=2.0))
    change = asyncio.ensure_future(add(broker, 10))
    await rig.clock.sleep(0.1)
    change.cancel()
    with pytest.raises(asyncio.CancelledError):
        await change
    settled = await broker.take_over(1)
    await rig.clock.sleep(10)
    assert await broker.manifests.load(PID) == settled


@in_rig(Rig)
async def test_changes_of_one_partition_are_queued(rig: Rig) -> None:
    broker = rig.broker()
    broker.faults.first_byte_seconds = 0.1
    await asyncio.gather(*(broker.manifests.change(PID, TOPIC, 1, append_segment) for _ in range(5)))
    manifest = await broker.manifests.load(PID)
    assert manifest is not None and (manifest.sequence, manifest.segment_count) == (5, 5)


@in_rig(Rig)
async def test_old_segments_move_to_sub_manifests_and_are_found_there(rig: Rig) -> None:
    broker = rig.broker(fan=3)
    for i in range(50):
        await add(broker, 10 * i)
    bodies = [len(data) for key, data in rig.bucket.written if key == manifest_key(PID)]
    assert max(bodies[25:]) <= max(bodies[:25]) * 1.25
    other = rig.broker("reader", fan=3)
    manifest = await other.manifests.load(PID)
    assert manifest is not None and manifest.segment_count == 50
    bases = [one.base_offset async for one in other.manifests.list_segments(manifest)]
    assert bases == list(range(0, 500, 10))
    assert [one.base_offset async for one in other.manifests.list_segments(manifest, 485)] == [480, 490]
    newest = [one.base_offset async for one in other.manifests.list_newest_first(manifest, 490)]
    assert newest == list(range(480, -1, -10))
    for offset in (0, 123, 499):
        found = await other.manifests.find_segment(manifest, offset)
        assert found is not None and found.base_offset == offset // 10 * 10
    by_time = [one.base_offset async for one in other.manifests.list_segments_by_time(manifest, 250)]
    assert by_time == list(range(250, 500, 10))
    names = {key async for key in other.manifests.list_keys(manifest)}
    assert names >= set(await rig.keys(".sub"))


@in_rig(Rig)
async def test_time_look_ups_skip_deleted_segments_of_a_sub_manifest(rig: Rig) -> None:
    broker = rig.broker(fan=2)
    for i in range(8):
        await add(broker, 10 * i)
    cut = await broker.manifests.change(PID, TOPIC, 1, lambda now, opened: now.advance_start(15, opened))
    found = [one.base_offset async for one in broker.manifests.list_segments_by_time(cut, 0)]
    assert found == list(range(10, 80, 10))
    assert await broker.manifests.find_segment(cut, 14) is None
    alive = [one.base_offset async for one in broker.manifests.list_newest_first(cut, 1000)]
    assert alive == list(range(70, 0, -10))


@in_rig(Rig)
async def test_damaged_manifests_are_read_once_more_then_corrupt(rig: Rig) -> None:
    broker = rig.broker()
    written = await add(broker, 0)
    for kind in (FaultKind.FLIPPED, FaultKind.TRUNCATED):
        broker.fail(FaultRule(kind, ("get",), times=1))
        assert await broker.manifests.load(PID) == written
        broker.fail(FaultRule(kind, ("get",), times=2))
        with pytest.raises(Corrupt, match="manifest"):
            await broker.manifests.load(PID)


@in_rig(Rig)
async def test_error_of_a_missing_sub_manifest_names_its_key(rig: Rig) -> None:
    broker = rig.broker(fan=2)
    for i in range(6):
        await add(broker, 10 * i)
    lost = (await rig.keys(".sub"))[0]
    await rig.bucket.memory.delete([lost])
    manifest = await broker.manifests.load(PID)
    assert manifest is not None
    with pytest.raises(Corrupt, match=lost):
        await rig.broker("b").manifests.find_segment(manifest, 0)


@in_rig(Rig)
async def test_pending_write_does_not_recreate_the_manifest_of_a_deleted_topic(rig: Rig) -> None:
    broker = rig.broker()
    await add(broker, 0)
    broker.fail(FaultRule(FaultKind.ERROR, ("put",), times=1))
    change = asyncio.ensure_future(add(broker, 10))
    await rig.clock.sleep(0.1)
    await rig.bucket.memory.delete([manifest_key(PID)])
    with pytest.raises(Fenced, match="deleted"):
        await change


@in_rig(Rig)
async def test_lost_manifest_is_corrupt_and_its_objects_are_no_garbage(rig: Rig) -> None:
    rig.log.fill(0, 5)
    await rig.broker("a").upload_all(rig.log, 1)
    segments = await rig.keys(".seg")
    await rig.bucket.memory.delete([manifest_key(PID)])
    broker = rig.broker("b")
    for call in (broker.take_over(2), broker.collector.sweep(PID, TOPIC, 2)):
        with pytest.raises(Corrupt, match="missing") as lost:
            await call
        assert lost.value.where == manifest_key(PID)
    await rig.clock.sleep(100)
    assert await rig.keys(".seg") == segments


@in_rig(Rig)
async def test_undecided_change_is_decided_after_a_newer_leader_took_over(rig: Rig) -> None:
    broker = rig.broker("a")
    await broker.take_over(1)
    broker.fail(FaultRule(FaultKind.ERROR, ("put",)))
    with pytest.raises(Unavailable):
        await broker.take_over(2)
    assert broker.manifests.has_undecided_change
    await rig.broker("b").take_over(3)
    with pytest.raises(Fenced):
        await broker.take_over(2)
    assert not broker.manifests.has_undecided_change


@in_rig(Rig)
async def test_sub_manifest_replaced_by_another_valid_one_is_corrupt(rig: Rig) -> None:
    """The replacement is well-formed and passes its CRC, but has other offsets, another level, or another partition."""
    broker = rig.broker(fan=4)
    for base in range(0, 160, 10):
        await add(broker, base)
    manifest = await broker.manifests.load(PID)
    assert manifest is not None
    first, second = manifest.submanifests[:2]
    nodes = await broker.manifests.read_submanifest(first)
    other = PartitionId(PID.topic_id, PID.partition + 1)
    for body in (
        rig.bucket.objects[second.key].data,
        encode_submanifest(PID, 1, [replace(first, level=first.level)]),
        encode_submanifest(other, 1, nodes),
    ):
        await rig.bucket.memory.put(first.key, body)
        with pytest.raises(Corrupt) as corrupt:
            await rig.broker("reader").manifests.find_segment(manifest, 5)
        assert corrupt.value.where == first.key
