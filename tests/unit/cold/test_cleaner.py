"""Tests of cleans in the bucket: the last record of each key stays, readers go on, and a clean that fails or is fenced
leaves one whole history and no object that nobody names."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.scenario import run_by
from tests.sim.harness.disk import SimDisk
from tests.unit.cold.rig import PID, TOPIC, Broker, Rig
from tests.unit.hot.cleaning import clean as clean_disk
from tests.unit.hot.cleaning import facts, put, resources
from tests.unit.hot.fixtures import NOW, append, config, open_log
from tests.unit.hot.transactions import TransactionWriter
from tiered.cold import cold_cleaning
from tiered.cold.cleaner import ColdCleaner
from tiered.cold.cold_cleaning import ColdCleanResult
from tiered.cold.manifest import Manifest
from tiered.config.settings import TopicConfig
from tiered.errors import Corrupt, Fenced, Unavailable
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_cleaning import LogChanged
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.producers.limits import ProducerLimits
from tiered.records.batch import encode_batch
from tiered.records.model import CRC_AT, CRC_FROM, HEADER_BYTES, Codec
from tiered.records.native import crc32c, walk

KEYS = 5
COMPACTED = config(cleanup_policy=("compact",), segment_bytes=4096)
Facts = list[tuple[int, str, str | None]]


async def filled(records: int = 60) -> DiskLog:
    """Returns a local log with several closed segments in which each key has many values."""
    log = await open_log(SimDisk(random.Random(1)), config(segment_bytes=1024))
    for number in range(records):
        put(log, f"k{number % KEYS}", f"v{number}")
    log.roll()
    return log


async def upload(broker: Broker, log: DiskLog, epoch: int = 1) -> Manifest:
    return await broker.upload_all(log, epoch)  # type: ignore[arg-type]


async def clean(
    cleaner: ColdCleaner,
    manifest: Manifest,
    *,
    settings: TopicConfig = COMPACTED,
    memory: int = 1 << 16,
    now: int = NOW,
    on_step: Callable[[], Awaitable[None]] | None = None,
    local: DiskLog | None = None,
) -> ColdCleanResult:
    """Cleans; calls `on_step` before each read of a piece and each put of an object."""

    async def admit(_: int) -> None:
        if on_step is not None:
            await on_step()

    with_steps = replace(resources(map_bytes=memory), admit=admit)
    return await cleaner.clean(manifest, manifest.leader_epoch, settings, now, with_steps, local)


async def read(broker: Broker, start: int = 0) -> Facts:
    return facts(await broker.read_all(start))


def last_of_each(records: Facts) -> Facts:
    latest = {key: offset for offset, key, _ in records}
    return [each for each in records if latest[each[1]] == each[0]]


async def check_bucket(rig: Rig, broker: Broker, manifest: Manifest) -> None:
    """Checks that the bucket has exactly the segment objects that the manifest names, after the grace time and what
    tiering does then."""
    await asyncio.sleep(5)
    await broker.collector.delete_expired()
    if broker.manifests.take_orphan_mark(PID):
        if broker.cleaner is not None:
            await broker.cleaner.settle(manifest, manifest.leader_epoch)
        await broker.collector.sweep(PID, TOPIC, manifest.leader_epoch)
    named = {each.key async for each in broker.manifests.list_segments(manifest)}
    assert set(await rig.keys(".seg")) == named, "an object is named or there, and not the other"


def run(scenario: Callable[[Rig], Awaitable[None]], seed: int = 1) -> None:
    rig = Rig(seed)

    async def whole() -> None:
        await scenario(rig)

    rig.run(whole)


@run_by(run)
async def test_clean_keeps_each_keys_last_record_and_the_historys_offsets(rig: Rig) -> None:
    log, broker = await filled(), rig.broker()
    manifest = await upload(broker, log)
    before = await read(broker)
    assert len(before) == 60 and manifest.segment_count > 3
    cleaner = broker.make_cleaner()
    result = await clean(cleaner, manifest)
    after = result.manifest
    assert result.is_whole and result.records_read == 60 and result.records_kept == KEYS
    assert after.clean_to == after.cold_end_offset == manifest.cold_end_offset
    assert after.segment_count < manifest.segment_count and after.cold_bytes < manifest.cold_bytes
    fresh = rig.broker("reader")
    assert await read(fresh) == last_of_each(before)
    assert (await cleaner.find_cleanable(after, COMPACTED, NOW)).dirty_bytes == 0
    await check_bucket(rig, broker, after)


@run_by(run)
async def test_last_batches_of_more_producers_than_the_default_limit_stay(rig: Rig) -> None:
    """`tiered.producer.ids.max.per.partition` may be above 10,000. Once, the last batches of older producers went."""
    producers, settings = 10_001, config(segment_bytes=1 << 24)
    log = await open_log(SimDisk(random.Random(1)), settings, limits=ProducerLimits(20_000))
    for producer in range(producers):
        put(log, "k", "v", producer=producer)
    log.roll()
    broker = rig.broker()
    manifest = await upload(broker, log)
    assert (await clean(broker.make_cleaner(), manifest)).records_kept == 1
    kept = walk(await rig.broker("reader").read_all()).batches
    assert [each.producer_id for each in kept] == list(range(producers))


@run_by(run)
async def test_keys_that_do_not_fit_are_cleaned_in_several_cleans(rig: Rig) -> None:
    log, broker = await filled(80), rig.broker()
    manifest = await upload(broker, log)
    before, cleans = await read(broker), 0
    cleaner = broker.make_cleaner()
    while manifest.clean_to < manifest.cold_end_offset:
        result = await clean(cleaner, manifest, memory=3 * 24)
        assert result.manifest.clean_to > manifest.clean_to
        manifest, cleans = result.manifest, cleans + 1
        seen = await read(rig.broker(f"reader{cleans}"))
        assert set(last_of_each(before)) <= set(seen) <= set(before)
    assert cleans > 1 and seen == last_of_each(before)


@run_by(run)
async def test_tombstone_goes_after_its_horizon(rig: Rig) -> None:
    log, broker = await filled(), rig.broker()
    put(log, "k0", None)
    log.roll()
    cleaner = broker.make_cleaner()
    result = await clean(cleaner, await upload(broker, log))
    assert (60, "k0", None) in await read(rig.broker("r1"))
    put(log, "k1", "later")
    log.roll()
    manifest = await upload(broker, log)
    result = await clean(cleaner, manifest, now=NOW + COMPACTED.delete_retention_ms - 1)
    assert (60, "k0", None) in await read(rig.broker("r2"))
    put(log, "k1", "latest")
    log.roll()
    manifest = await upload(broker, log)
    result = await clean(cleaner, manifest, now=NOW + COMPACTED.delete_retention_ms)
    assert result.is_whole and not [each for each in await read(rig.broker("r3")) if each[1] == "k0"]


@run_by(run)
async def test_tombstone_that_another_clean_met_gets_its_time_in_the_bucket(rig: Rig) -> None:
    """Its older value is in the bucket until this clean, and readers of it need the tombstone from then on."""
    log, broker = await filled(), rig.broker()
    await upload(broker, log)
    put(log, "k0", None)
    log.roll()
    await log.flush()
    log.configure(replace(COMPACTED, segment_bytes=1024))
    await clean_disk(log)
    cleaner, retention_ms = broker.make_cleaner(), COMPACTED.delete_retention_ms
    for number, (at_ms, stays) in enumerate([(0, True), (retention_ms - 1, True), (retention_ms, False)]):
        put(log, "k1", str(number))
        log.roll()
        manifest = await upload(broker, log)
        assert (await clean(cleaner, manifest, now=NOW + 2 * retention_ms + at_ms)).is_whole
        seen = await read(rig.broker(f"reader{number}"))
        assert [each for each in seen if each[1] == "k0"] == [(60, "k0", None)] * stays, number


@run_by(run)
async def test_aborted_records_go_and_committed_ones_stay(rig: Rig) -> None:
    log, broker = await open_log(SimDisk(random.Random(1)), config(segment_bytes=1024)), rig.broker()
    writer = TransactionWriter(log)
    for number in range(12):
        writer.write(3, size=100)
        writer.end(3, commit=False)
        append(log, bytearray(encode_batch([(NOW, b"k", b"v%d" % number, ())])))
    log.roll()
    log.producers.txns.on_high_watermark(log.end_offset)
    manifest = await upload(broker, log)
    result = await clean(broker.make_cleaner(), manifest)
    assert result.is_whole and [each[2] for each in await read(rig.broker("reader"))] == ["v11"]
    data, aborted = await rig.broker("committed").reader.read_committed(PID, result.manifest, 0, 1 << 20)
    assert data and set(aborted) <= {(3, each.offsets[0]) for each in writer.ended}


@pytest.mark.parametrize("is_deleted", [False, True])
@run_by(run)
async def test_committed_records_stay_if_the_log_starts_behind_an_abort(rig: Rig, *, is_deleted: bool) -> None:
    """Once, the clean never saw the marker of the abort, and took the next transaction of the producer for aborted."""
    log, broker = await open_log(SimDisk(random.Random(1)), config(segment_bytes=4096)), rig.broker()
    writer = TransactionWriter(log)
    writer.write(3, key=b"k")
    start = writer.end(3, commit=False) + 1
    kept = writer.write(3, key=b"k")
    writer.end(3, commit=True)
    log.roll()
    log.producers.txns.on_high_watermark(log.end_offset)
    manifest = await upload(broker, log)
    assert manifest.segment_count == 1 and manifest.log_start_offset < start
    if is_deleted:
        manifest = await broker.collector.advance_start(manifest, 1, start)
    result = await clean(broker.make_cleaner(), manifest)
    assert result.is_whole and [each[0] for each in await read(rig.broker("reader"), start)] == [kept]
    await check_bucket(rig, broker, result.manifest)


@pytest.mark.parametrize("fan", [64, 2])
@run_by(run)
async def test_reader_with_an_older_manifest_goes_on_with_the_successors(rig: Rig, *, fan: int) -> None:
    """Also if a sub-manifest is gone: the clean has written it again under another key."""
    log, broker = await filled(), rig.broker(fan=fan)
    manifest = await upload(broker, log)
    before = await read(broker)
    old = rig.broker("old")
    pieces = old.reader.iterate(PID, 0, manifest=manifest)
    result = await clean(broker.make_cleaner(), manifest)
    await check_bucket(rig, broker, result.manifest)
    await asyncio.sleep(5)
    seen = facts(b"".join([bytes(piece.data) async for piece in pieces]))
    assert set(last_of_each(before)) <= set(seen) <= set(before)
    fetched = facts(await rig.broker("consumer").reader.read(PID, manifest, 0, 1 << 20))
    assert fetched and set(fetched) <= set(before)
    assert await rig.broker("lookup").reader.offset_for_timestamp(PID, 0, manifest=manifest) is not None
    assert bool(manifest.submanifests) == (fan == 2)


def test_each_change_of_a_clean_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_cleaning, "CHANGE_BYTES", 1)

    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        manifest = await upload(broker, await filled(200))
        cleaner, told = broker.make_cleaner(), list[Manifest]()
        result = await cleaner.clean(manifest, 1, COMPACTED, NOW, resources(map_bytes=1 << 16), on_change=told.append)
        sequences = [each.sequence for each in told]
        assert len(told) > 2 and told[-1] == result.manifest and sequences == sorted(set(sequences))

    run(scenario)


@pytest.mark.parametrize("skipped", range(0, 24, 3))
@pytest.mark.parametrize("applied", [False, True])
@run_by(run)
async def test_clean_that_fails_at_any_request_leaves_a_whole_history(rig: Rig, *, skipped: int, applied: bool) -> None:
    """Also if the request that seems to have failed was carried out."""
    log, broker = await filled(), rig.broker()
    manifest = await upload(broker, log)
    before = await read(broker)
    cleaner = broker.make_cleaner(object_bytes=600)
    calls, failed = 0, False

    def failing(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **given: Any) -> Any:
            nonlocal calls, failed
            calls += 1
            if failed or calls <= skipped:
                return await original(*args, **given)
            failed = True
            if applied:
                await original(*args, **given)
            raise Unavailable("the bucket is away")

        return call

    store: Any = broker.store
    store.put, store.upload, store.get = failing(store.put), failing(store.upload), failing(store.get)
    try:
        manifest = (await clean(cleaner, manifest)).manifest
    except Unavailable:
        seen = await read(rig.broker("between"))
        assert set(last_of_each(before)) <= set(seen) <= set(before) and seen == sorted(seen)
        failed = True
        await check_bucket(rig, broker, await broker.take_over(1))
        manifest = await broker.take_over(1)
    failed = True
    result = await clean(cleaner, manifest)
    assert result.is_whole and await read(rig.broker("after")) == last_of_each(before)
    await check_bucket(rig, broker, result.manifest)


@run_by(run)
async def test_clean_of_a_deposed_leader_changes_nothing(rig: Rig) -> None:
    log, broker = await filled(), rig.broker()
    manifest = await upload(broker, log)
    before = await read(broker)
    successor = rig.broker("next")
    await successor.take_over(2)
    with pytest.raises(Fenced):
        await clean(broker.make_cleaner(), manifest)
    assert await read(rig.broker("reader")) == before
    newest = await successor.take_over(2)
    result = await clean(successor.make_cleaner(), newest)
    assert result.is_whole and await read(rig.broker("after")) == last_of_each(before)
    successor.manifests.mark_orphans(PID)  # a leader sweeps once in its epoch
    await check_bucket(rig, successor, result.manifest)


@run_by(run)
async def test_sweep_and_upload_while_a_clean_runs_take_nothing_from_it(rig: Rig) -> None:
    log, broker = await filled(), rig.broker(fan=2)
    manifest = await upload(broker, log)
    before, uploads = await read(broker), 0

    async def sweep() -> None:
        nonlocal uploads
        if uploads < 3:
            uploads += 1
            put(log, "later", f"v{uploads}")
            log.roll()
            await upload(broker, log)
        await broker.collector.sweep(PID, TOPIC, 1)
        await asyncio.sleep(2)
        await broker.collector.delete_expired()

    result = await clean(broker.make_cleaner(object_bytes=600), manifest, on_step=sweep)
    after = result.manifest
    assert result.is_whole and uploads == 3
    assert (after.clean_to, after.cold_end_offset) == (60, 63)
    later = [(60 + number, "later", f"v{number + 1}") for number in range(3)]
    assert await read(rig.broker("reader")) == last_of_each(before) + later
    await check_bucket(rig, broker, after)


@run_by(run)
async def test_change_of_unknown_outcome_keeps_its_objects_until_it_is_settled(rig: Rig) -> None:
    log, broker = await filled(), rig.broker()
    manifest = await upload(broker, log)
    before = await read(broker)
    cleaner = broker.make_cleaner()
    broker.fail(
        FaultRule(FaultKind.LOST_REPLY, ("put",), key="manifest", times=1),
        FaultRule(FaultKind.ERROR, ("get",), key="manifest"),
    )
    with pytest.raises(Unavailable):
        await clean(cleaner, manifest)
    assert cleaner.keys_in_flight(PID)
    broker.fail()
    settled = await cleaner.settle(manifest, 1)
    assert not cleaner.keys_in_flight(PID) and settled.clean_to == 60
    assert await read(rig.broker("reader")) == last_of_each(before)
    await check_bucket(rig, broker, settled)


@run_by(run)
async def test_clean_of_a_resigned_leader_leaves_nothing_in_the_table_of_keys(rig: Rig) -> None:
    log, broker = await filled(), rig.broker()
    manifest = await upload(broker, log)
    cleaner = broker.make_cleaner()

    async def resign() -> None:
        cleaner.forget(PID)
        if steps.pop():
            raise LogChanged

    steps = [True, *[False] * 10]
    with pytest.raises(LogChanged):
        await clean(cleaner, manifest, on_step=resign)
    assert not cleaner.keys_in_flight(PID) and not broker.manifests.take_orphan_mark(PID)


@run_by(run)
async def test_end_of_an_earlier_clean_takes_no_object_of_the_next_one(rig: Rig) -> None:
    log, broker = await filled(), rig.broker()
    manifest = await upload(broker, log)
    before = await read(broker)
    cleaner = broker.make_cleaner(object_bytes=600)
    waits, goes_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        waits.set()
        await goes_on.wait()
        raise LogChanged

    earlier = asyncio.create_task(clean(cleaner, manifest, on_step=wait))
    await waits.wait()
    cleaner.forget(PID)  # its leader resigns, and leads again
    manifest = await broker.manifests.take_over(PID, TOPIC, 3)

    async def collect_garbage() -> None:
        if len(cleaner.keys_in_flight(PID)) >= 2 and not goes_on.is_set():
            goes_on.set()
            with pytest.raises(LogChanged):
                await earlier
        await cleaner.settle(manifest, 3)
        await broker.collector.sweep(PID, TOPIC, 3)
        await asyncio.sleep(2)
        await broker.collector.delete_expired()

    result = await clean(cleaner, manifest, on_step=collect_garbage)
    assert result.is_whole and earlier.done()
    await check_bucket(rig, broker, result.manifest)
    assert await read(rig.broker("reader")) == last_of_each(before)


@run_by(run)
async def test_log_start_that_moves_meanwhile_keeps_only_its_run_uncleaned(rig: Rig) -> None:
    log, broker = await filled(), rig.broker()
    manifest = await upload(broker, log)
    before = await read(broker)
    second = manifest.entries[1]
    settings = config(cleanup_policy=("compact", "delete"), segment_bytes=1)
    steps = 0

    async def delete() -> None:
        nonlocal steps
        steps += 1
        if steps == 20:
            await broker.collector.advance_start(manifest, 1, second.base_offset + 1)

    result = await clean(broker.make_cleaner(), manifest, settings=settings, on_step=delete)
    after = result.manifest
    assert result.is_whole and after.log_start_offset == second.base_offset + 1 and after.clean_to == 60
    seen = await read(rig.broker("reader"), after.log_start_offset)
    assert set(last_of_each(before)) <= set(seen) and seen == sorted(seen)
    await check_bucket(rig, broker, after)
    put(log, "k0", "later")
    log.roll()
    again = await clean(broker.make_cleaner(), await upload(broker, log), settings=settings)
    assert again.is_whole and again.manifest.log_start_offset == second.base_offset + 1
    assert (60, "k0", "later") in await read(rig.broker("again"), after.log_start_offset)
    await check_bucket(rig, broker, again.manifest)


@run_by(run)
async def test_log_start_that_moves_into_a_run_ends_the_clean_before_that_run(rig: Rig) -> None:
    """Once, the clean counted as whole. Superseded records stayed for ever, and came back once a tombstone went."""
    log, broker = await filled(), rig.broker()
    cleaner, manifest = broker.make_cleaner(), await upload(broker, log)
    start, is_moved = manifest.entries[1].base_offset, False
    before = await read(broker, start)

    async def delete() -> None:
        nonlocal is_moved
        if not is_moved:
            is_moved = True
            await broker.collector.advance_start(manifest, 1, start)

    result = await clean(cleaner, manifest, on_step=delete)
    assert not result.is_whole and result.manifest.log_start_offset == start and result.clean_to == -1
    assert await read(rig.broker("reader"), start) == before, "no later run is cleaned before an earlier one"
    again = await clean(cleaner, result.manifest)
    assert again.is_whole and await read(rig.broker("again"), start) == last_of_each(before)
    await check_bucket(rig, broker, again.manifest)


def test_log_start_that_passes_the_next_runs_ends_no_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_cleaning, "CHANGE_BYTES", 1)

    async def scenario(rig: Rig) -> None:
        log, broker = await filled(), rig.broker()
        cleaner, manifest = broker.make_cleaner(), await upload(broker, log)
        start, is_moved = manifest.entries[3].base_offset, False
        before = await read(broker, start)

        async def delete() -> None:
            nonlocal is_moved
            if not is_moved and cleaner.keys_in_flight(PID):  # the first object is to be put, and its change follows
                is_moved = True
                await broker.collector.advance_start(manifest, 1, start)

        result = await clean(
            cleaner, manifest, settings=config(cleanup_policy=("compact",), segment_bytes=1), on_step=delete
        )
        assert result.is_whole and is_moved and result.manifest.log_start_offset == start
        assert await read(rig.broker("reader"), start) == last_of_each(before)
        await check_bucket(rig, broker, result.manifest)

    run(scenario)


@run_by(run)
async def test_objects_that_expired_before_their_read_end_a_clean_undamaged(rig: Rig) -> None:
    log, broker = await filled(), rig.broker()
    manifest = await upload(broker, log)
    third = manifest.entries[2]
    await broker.collector.advance_start(manifest, 1, third.base_offset)
    await asyncio.sleep(5)
    await broker.collector.delete_expired()
    fresh = rig.broker("without a cache")
    cleaner = fresh.make_cleaner()
    result = await clean(cleaner, manifest)
    assert not result.is_whole and not cleaner.keys_in_flight(PID)
    again = await clean(cleaner, await fresh.take_over(1))
    assert again.is_whole


@run_by(run)
async def test_object_that_is_lost_stops_the_clean_and_nothing_is_dropped(rig: Rig) -> None:
    log, broker = await filled(), rig.broker()
    manifest = await upload(broker, log)
    lost = manifest.entries[2].key
    await broker.store.delete([lost])
    fresh = rig.broker("without a cache")
    with pytest.raises(Corrupt, match="missing") as raised:
        await clean(fresh.make_cleaner(), manifest)
    assert raised.value.where == lost
    there = await fresh.manifests.load(PID)
    assert there is not None and there.nodes == manifest.nodes


@run_by(run)
async def test_look_at_a_cleaned_log_reads_no_sub_manifest_of_the_clean_part(rig: Rig) -> None:
    log, broker = await filled(), rig.broker(fan=2)
    settings = config(cleanup_policy=("compact",), segment_bytes=1)
    await clean(broker.make_cleaner(), await upload(broker, log), settings=settings)
    put(log, "k0", "x" * 100)
    log.roll()
    manifest = await upload(broker, log)
    assert manifest.submanifests and manifest.clean_to == 60
    fresh = rig.broker("fresh", fan=2)
    fresh.fail(FaultRule(FaultKind.ERROR, ("get",)))
    found = await fresh.make_cleaner().find_cleanable(manifest, settings, NOW)
    assert (found.first_dirty, found.first_uncleanable) == (60, 61)
    assert found.clean_bytes + found.dirty_bytes == manifest.cold_bytes and found.dirty_bytes > 100


@run_by(run)
async def test_lookup_by_time_passes_any_number_of_batches_without_records(rig: Rig) -> None:
    log, broker = await open_log(SimDisk(random.Random(1)), config(segment_bytes=1024)), rig.broker()
    for producer in range(9):
        put(log, "k0", "superseded", producer=producer)
    put(log, "k1", "first that stays")
    put(log, "k0", "last")
    log.roll()
    result = await clean(broker.make_cleaner(), await upload(broker, log))
    assert result.records_kept == 2
    data = await broker.read_all()
    assert sum(not batch.count for batch in walk(data).batches) == 9, "they have the last sequences of producers"
    found = await rig.broker("reader").reader.offset_for_timestamp(PID, NOW)
    assert found is not None and found[0] == 9


@pytest.mark.parametrize("where", ["in the clean part", "in the dirty part"])
@run_by(run)
async def test_batch_that_cannot_be_read_stops_the_clean_there_and_is_named(rig: Rig, *, where: str) -> None:
    """Its CRC is right, and a topic that was not compacted took it without a look at the compressed part."""
    log, broker = await open_log(SimDisk(random.Random(1)), config(segment_bytes=1024)), rig.broker()
    for number in range(40):
        put(log, f"k{number % KEYS}", f"v{number}")
    broken = bytearray(encode_batch([(NOW, b"k1", b"broken", ())], codec=Codec.ZSTD))
    broken[HEADER_BYTES] ^= 0xFF
    broken[CRC_AT : CRC_AT + 4] = crc32c(broken[CRC_FROM:]).to_bytes(4, "big")
    append(log, broken)
    for number in range(20):
        put(log, f"k{number % KEYS}", f"w{number}")
    log.roll()
    manifest = await upload(broker, log)
    if where == "in the clean part":
        manifest = replace(manifest, clean_to=manifest.entries[-2].next_offset)
    named = next(each.key for each in manifest.entries if each.base_offset <= 40 < each.next_offset)
    cleaner = broker.make_cleaner()
    with pytest.raises(Corrupt, match="in the batches from offset") as raised:
        await clean(cleaner, manifest)
    assert raised.value.where == named
    there = await broker.manifests.load(PID)
    assert there is not None and there.nodes == manifest.nodes
    await check_bucket(rig, broker, there)


@run_by(run)
async def test_dirty_part_is_read_on_the_disk_as_far_as_the_disk_has_it(rig: Rig) -> None:
    log, broker = await filled(), rig.broker()
    cleaner = broker.make_cleaner()
    first = await clean(cleaner, await upload(broker, log), local=log)
    assert (first.bytes_read, first.bytes_local) == (0, 2 * first.bytes_before) and first.records_kept == KEYS
    for number in range(40):
        put(log, f"k{number % KEYS}", f"w{number}")
    log.roll()
    manifest = await upload(broker, log)
    before = await read(broker)
    found = await cleaner.find_cleanable(manifest, COMPACTED, NOW)
    dropped = log.segments.closed()[-2].base_offset
    assert 60 < dropped < 100
    steps = 0

    async def drop() -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            await log.drop_local_below(dropped)

    second = await clean(cleaner, manifest, local=log, on_step=drop)
    assert second.is_whole and await read(rig.broker("reader")) == last_of_each(before)
    assert 0 < second.bytes_local < 2 * found.dirty_bytes
    assert second.bytes_local + second.bytes_read == 2 * found.dirty_bytes + found.clean_bytes
    await check_bucket(rig, broker, second.manifest)


@run_by(run)
async def test_disk_that_lacks_records_of_the_bucket_is_not_believed(rig: Rig) -> None:
    """A log that was cleaned on disk, while tiering was off, may lack what the bucket has."""
    log, broker = await filled(), rig.broker()
    manifest = await upload(broker, log)
    before = await read(broker)
    put(log, "k0", "not in the bucket")
    log.roll()
    await log.flush()
    await clean_disk(log)
    assert log.segments.size_bytes < manifest.cold_bytes / 2
    result = await clean(broker.make_cleaner(), manifest, local=log)
    assert result.is_whole and result.bytes_read == 2 * manifest.cold_bytes
    assert await read(rig.broker("reader")) == last_of_each(before)


@pytest.mark.parametrize(("place", "byte"), [(None, 0), (50, 7), (55, 7), (58, 7), (59, 7), (54, 8)])
@run_by(run)
async def test_disk_whose_batches_differ_from_the_bucket_is_not_believed(
    rig: Rig, *, place: int | None, byte: int
) -> None:
    """Another leader wrote them, or a bit of a base offset or of a length flipped, which no CRC covers."""
    log, broker = await filled(), rig.broker()
    manifest = await upload(broker, log)
    before = await read(broker)
    on = SimDisk(random.Random(1))
    other = await open_log(on, config(segment_bytes=1024))
    for number in range(60):
        if number == 59:
            other.roll()
        value = f"v{number}" if place is not None else "another leader's"
        data = encode_batch([(NOW, b"k%d" % (number % KEYS), value.encode(), ())])
        other.append(bytearray(data), leader_epoch=0 if place is not None else 1, now_ms=NOW)
    other.roll()
    if place is not None:
        part = next(each.log for each in other.segments.closed() if place < each.next_offset)
        found = walk(part.file.pread(part.start, part.length)).batches
        batch = next(each for each in found if each.base_offset == place)
        on.flip_bit(part.file.name, 8 * (batch.position + byte))
    result = await clean(broker.make_cleaner(), manifest, local=other)
    assert result.is_whole and await read(rig.broker("reader")) == last_of_each(before)


@run_by(run)
async def test_tombstone_stays_while_the_disk_serves_the_value_that_it_deletes(rig: Rig) -> None:
    """A reader has the value from the disk of the leader. Later it goes on in the bucket: the disk has dropped the
    tombstone, or another leader never had it there."""
    log, broker = await open_log(SimDisk(random.Random(1)), config(segment_bytes=1024)), rig.broker()
    put(log, "gone", "value")
    for number in range(30):
        put(log, f"k{number}", "v")
    put(log, "gone", None)
    log.roll()
    cleaner, now, seen = broker.make_cleaner(), NOW, []
    for turn in range(5):
        manifest = await upload(broker, log)
        if turn == 3:
            await log.drop_local_below(manifest.cold_end_offset)
        assert (await clean(cleaner, manifest, local=log, now=now)).is_whole
        seen.append([each for each in await read(rig.broker(f"reader {turn}"), 1) if each[1] == "gone"])
        put(log, "k1", f"w{turn}")
        log.roll()
        now += COMPACTED.delete_retention_ms
    assert seen == [[(31, "gone", None)]] * 4 + [[]]
