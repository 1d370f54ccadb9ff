"""Directed scenarios of cleans of one log: each holds without its bug, and breaks with it."""

from __future__ import annotations

import random

from tests.sim.cluster.expiry import Retention
from tests.sim.cluster.model_of_copies import ModelOfCopies
from tests.sim.cluster.observer import BrokenRules, Finding
from tests.sim.harness.disk import SimDisk
from tests.sim.mutants.watched_bucket import WatchedBucket, run_in_bucket
from tests.sim.mutants.watched_log import LATER_MS, NOW, WatchedLog, compacted_config, run_watched
from tests.unit.hot.fixtures import open_log
from tiered.errors import Corrupt
from tiered.hot import retention
from tiered.records.pure_compact import SLOT_BYTES


def tombstones_are_cleaned_twice() -> None:
    async def scenario(watched: WatchedLog) -> None:
        watched.put_some(20)
        watched.put("k1", None)
        await watched.close_segment()
        for at_ms in (NOW, NOW + 1, NOW + LATER_MS):
            await watched.clean(at_ms=at_ms)
            watched.put_some(2)
            await watched.close_segment()

    run_watched(scenario)


def keys_take_several_cleans() -> None:
    async def scenario(watched: WatchedLog) -> None:
        watched.put_some(30)
        await watched.close_segment()
        for _ in range(6):
            await watched.clean(map_bytes=4 * SLOT_BYTES)

    run_watched(scenario)


def producer_writes_no_more() -> None:
    async def scenario(watched: WatchedLog) -> None:
        for number in range(3):
            watched.put("k1", f"p{number}", producer=9)
        watched.put_some(20)
        await watched.close_segment()
        await watched.clean()

    run_watched(scenario)


def transactions_are_cleaned() -> None:
    """The aborted one leaves its last sequence only, and the committed one the record of its own key."""

    async def scenario(watched: WatchedLog) -> None:
        for producer, commit in ((3, True), (4, False)):
            watched.write(producer, f"own{producer}", "1")
            watched.write(producer, "k1", "t")
            watched.end(producer, commit=commit)
        watched.put_some(10)
        watched.write(4, "own3", "aborted")
        watched.end(4, commit=False)
        await watched.close_segment()
        for at_ms in (NOW, NOW + LATER_MS, NOW + 2 * LATER_MS):
            await watched.clean(at_ms=at_ms)
            watched.put_some(2)
            await watched.close_segment()

    run_watched(scenario)


def transaction_stays_open() -> None:
    async def scenario(watched: WatchedLog) -> None:
        watched.put_some(10)
        watched.write(3, "k1", "open")
        watched.put_some(20)
        await watched.close_segment()
        await watched.clean()

    run_watched(scenario)


def followers_are_behind() -> None:
    async def scenario(watched: WatchedLog) -> None:
        watched.put_some(40)
        await watched.close_segment()
        watched.committed_end = 20
        await watched.clean()

    run_watched(scenario)


def records_are_young() -> None:
    async def scenario(watched: WatchedLog) -> None:
        watched.put_some(40)
        await watched.close_segment()
        await watched.clean(at_ms=NOW + 500)
        await watched.clean(at_ms=NOW + 1500)

    run_watched(scenario, min_compaction_lag_ms=1000)


def times_are_looked_up() -> None:
    async def scenario(watched: WatchedLog) -> None:
        watched.put_some(60)
        await watched.close_segment()
        await watched.clean()

    run_watched(scenario, segment_bytes=4096, index_interval_bytes=100)


def power_goes_at_every_step() -> None:
    """After each change of the disk a power cut leaves a log that lacks nothing that must stay."""

    async def scenario(watched: WatchedLog) -> None:
        watched.put_some(30)
        await watched.close_segment()
        watched.log.configure(compacted_config(segment_bytes=1 << 20))
        images: list[tuple[str, SimDisk]] = []
        watched.disk.on_op = lambda op: images.append((str(op), watched.disk.crash_image(random.Random(str(op)))))
        await watched.clean()
        watched.disk.on_op = None
        for what, image in images:
            end = watched.log.end_offset
            try:
                reopened = await open_log(image, compacted_config(), same_boot=False, recovery_point=end)
            except Corrupt as error:
                watched.findings.append(Finding("I26", f"{what}: a start fails: {error}"))
                continue
            if reopened.end_offset != end or reopened.segments.gaps:
                watched.findings.append(Finding("I26", f"{what}: a start finds up to {reopened.end_offset} of {end}"))
            watched.check_disk(image, what)

    run_watched(scenario)


def objects_are_cleaned() -> None:
    """In the bucket, with sub-manifests: in several cleans, with a tombstone that goes, and with deletions after the
    grace time."""

    async def scenario(watched: WatchedBucket) -> None:
        watched.put_some(40, "k1")
        await watched.upload()
        while watched.manifest.clean_to < watched.manifest.cold_end_offset:
            await watched.clean(memory=4 * SLOT_BYTES)
        for at_ms in (NOW + 1, NOW + LATER_MS):
            watched.put_some(20)
            await watched.upload()
            await watched.clean(at_ms=at_ms)
            for _ in range(12):
                await watched.rig.clock.sleep(0.1)
                await watched.broker.collector.delete_expired()

    run_in_bucket(scenario)


def compact_only_topic_keeps_everything() -> None:
    """I22: without `delete` in its policy nothing expires."""

    async def scenario(watched: WatchedLog) -> None:
        watched.put_some(30)
        await watched.close_segment()
        copies = ModelOfCopies("t-0", lambda rule, what: watched.findings.append(Finding(rule, what)), lambda: 0)
        for batch in watched.batches:
            copies.on_append(1, batch)
        copies.on_leader(1, "a", 1, watched.log.end_offset)
        copies.on_high_watermark(1, 1, watched.log.end_offset, (1,), 1)
        await watched.clean()
        closed, active = watched.log.segments.closed(), watched.log.segments.active
        plan = retention.plan_retention(
            closed, active, watched.log.config, NOW + LATER_MS, log_start=0,
            deletable_below=watched.log.end_offset, cold_end=None, cold_bytes_known=True,
        )  # fmt: skip
        copies.on_log_start(plan.log_start, [Retention()], NOW + LATER_MS, 0)
        if watched.findings:
            raise BrokenRules(watched.findings)

    run_watched(scenario, retention_ms=1000)
