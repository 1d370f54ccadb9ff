"""Tests of cleans in the bucket: the last record of each key stays, readers go on, and a clean that fails or is fenced
leaves one whole history and no object that nobody names."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.sim.harness.clock import SimRng
from tests.sim.harness.disk import SimDisk
from tests.unit.cold.rig import PID, TOPIC, Broker, Rig
from tests.unit.hot.cleaning import facts, put
from tests.unit.hot.fixtures import NOW, append, config, open_log
from tests.unit.hot.transactions import TransactionWriter
from tiered.cold.cleaner import CleanResult, ColdCleaner
from tiered.cold.manifest import Manifest
from tiered.config.settings import TopicConfig
from tiered.errors import Fenced, Unavailable
from tiered.hot.disk_log import DiskLog
from tiered.records.batch import encode_batch

KEYS = 5
COMPACTED = config(cleanup_policy=("compact",), segment_bytes=4096)
Facts = list[tuple[int, str, str | None]]


async def no_pace(_: int) -> None:
    return None


async def filled(records: int = 60) -> DiskLog:
    """Returns a local log with several closed segments in which each key has many values."""
    log = await open_log(SimDisk(random.Random(1)), config(segment_bytes=1024))
    for number in range(records):
        put(log, f"k{number % KEYS}", f"v{number}")
    log.roll()
    return log


def cleaner_of(rig: Rig, broker: Broker, *, object_bytes: int = 1 << 20) -> ColdCleaner:
    rng = SimRng(f"{rig.loop.seed}/cleaner")
    return ColdCleaner(
        broker.store, broker.manifests, broker.reader, broker.collector, rig.clock, rng, broker.metrics,
        object_bytes=object_bytes,
    )  # fmt: skip


async def upload(broker: Broker, log: DiskLog, epoch: int = 1) -> Manifest:
    return await broker.upload_all(log, epoch)  # type: ignore[arg-type]


async def clean(
    cleaner: ColdCleaner,
    manifest: Manifest,
    *,
    settings: TopicConfig = COMPACTED,
    memory: int = 1 << 16,
    now: int = NOW,
) -> CleanResult:
    return await cleaner.clean(manifest, manifest.leader_epoch, settings, now, memory, no_pace)


async def read(broker: Broker) -> Facts:
    return facts(await broker.read_all())


def last_of_each(records: Facts) -> Facts:
    latest = {key: offset for offset, key, _ in records}
    return [each for each in records if latest[each[1]] == each[0]]


async def check_bucket(rig: Rig, broker: Broker, manifest: Manifest) -> None:
    """Checks that the bucket has exactly the segment objects that the manifest names, after the grace time."""
    await asyncio.sleep(5)
    await broker.collector.sweep(PID, TOPIC, manifest.leader_epoch)
    named = {each.key async for each in broker.manifests.list_segments(manifest)}
    assert set(await rig.keys(".seg")) == named, "an object is named or there, and not the other"


def run(scenario: Callable[[Rig], Awaitable[None]], seed: int = 1) -> None:
    rig = Rig(seed)

    async def whole() -> None:
        await scenario(rig)

    rig.run(whole)


def test_clean_keeps_the_last_record_of_each_key_and_the_offsets_of_the_history() -> None:
    async def scenario(rig: Rig) -> None:
        log, broker = await filled(), rig.broker()
        manifest = await upload(broker, log)
        before = await read(broker)
        assert len(before) == 60 and manifest.segment_count > 3
        cleaner = cleaner_of(rig, broker)
        result = await clean(cleaner, manifest)
        after = result.manifest
        assert result.is_whole and result.records_read == 60 and result.records_kept == KEYS
        assert after.clean_to == after.cold_end_offset == manifest.cold_end_offset
        assert after.segment_count < manifest.segment_count and after.cold_bytes < manifest.cold_bytes
        fresh = rig.broker("reader")
        assert await read(fresh) == last_of_each(before)
        assert (await cleaner.find_cleanable(after, COMPACTED, NOW)).dirty_bytes == 0
        await check_bucket(rig, broker, after)

    run(scenario)


def test_keys_that_do_not_fit_are_cleaned_in_several_cleans() -> None:
    async def scenario(rig: Rig) -> None:
        log, broker = await filled(80), rig.broker()
        manifest = await upload(broker, log)
        before, cleans = await read(broker), 0
        cleaner = cleaner_of(rig, broker)
        while manifest.clean_to < manifest.cold_end_offset:
            result = await clean(cleaner, manifest, memory=3 * 24)
            assert result.manifest.clean_to > manifest.clean_to
            manifest, cleans = result.manifest, cleans + 1
            seen = await read(rig.broker(f"reader{cleans}"))
            assert set(last_of_each(before)) <= set(seen) <= set(before)
        assert cleans > 1 and seen == last_of_each(before)

    run(scenario)


def test_tombstone_goes_after_its_horizon() -> None:
    async def scenario(rig: Rig) -> None:
        log, broker = await filled(), rig.broker()
        put(log, "k0", None)
        log.roll()
        cleaner = cleaner_of(rig, broker)
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

    run(scenario)


def test_aborted_records_go_and_committed_ones_stay() -> None:
    async def scenario(rig: Rig) -> None:
        log, broker = await open_log(SimDisk(random.Random(1)), config(segment_bytes=1024)), rig.broker()
        writer = TransactionWriter(log)
        for number in range(12):
            writer.write(3, size=100)
            writer.end(3, commit=False)
            append(log, bytearray(encode_batch([(NOW, b"k", b"v%d" % number, ())])))
        log.roll()
        log.producers.on_high_watermark(log.end_offset)
        manifest = await upload(broker, log)
        result = await clean(cleaner_of(rig, broker), manifest)
        assert result.is_whole and [each[2] for each in await read(rig.broker("reader"))] == ["v11"]
        data, aborted = await rig.broker("committed").reader.read_committed(PID, result.manifest, 0, 1 << 20)
        assert data and set(aborted) <= {(3, each.offsets[0]) for each in writer.ended}

    run(scenario)


def test_reader_with_an_older_manifest_goes_on_with_the_successors() -> None:
    async def scenario(rig: Rig) -> None:
        log, broker = await filled(), rig.broker()
        manifest = await upload(broker, log)
        before = await read(broker)
        old = rig.broker("old")
        pieces = old.reader.iterate(PID, 0, manifest=manifest)
        result = await clean(cleaner_of(rig, broker), manifest)
        await check_bucket(rig, broker, result.manifest)
        await asyncio.sleep(5)
        seen = facts(b"".join([bytes(piece.data) async for piece in pieces]))
        assert set(last_of_each(before)) <= set(seen) <= set(before)

    run(scenario)


@pytest.mark.parametrize("skipped", range(0, 24, 3))
@pytest.mark.parametrize("applied", [False, True])
def test_clean_that_fails_at_any_request_leaves_a_whole_history(skipped: int, applied: bool) -> None:
    """Also if the request that seems to have failed was carried out."""

    async def scenario(rig: Rig) -> None:
        log, broker = await filled(), rig.broker()
        manifest = await upload(broker, log)
        before = await read(broker)
        cleaner = cleaner_of(rig, broker, object_bytes=600)
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
            manifest = await broker.take_over(1)
        failed = True
        result = await clean(cleaner, manifest)
        assert result.is_whole and await read(rig.broker("after")) == last_of_each(before)
        await check_bucket(rig, broker, result.manifest)

    run(scenario)


def test_clean_of_a_deposed_leader_changes_nothing() -> None:
    async def scenario(rig: Rig) -> None:
        log, broker = await filled(), rig.broker()
        manifest = await upload(broker, log)
        before = await read(broker)
        successor = rig.broker("next")
        await successor.take_over(2)
        with pytest.raises(Fenced):
            await clean(cleaner_of(rig, broker), manifest)
        assert await read(rig.broker("reader")) == before
        newest = await successor.take_over(2)
        result = await clean(cleaner_of(rig, successor), newest)
        assert result.is_whole and await read(rig.broker("after")) == last_of_each(before)
        await check_bucket(rig, successor, result.manifest)

    run(scenario)
