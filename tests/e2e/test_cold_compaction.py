"""Tests of compacted topics in the bucket, on one broker with simulated ports: cleans go on by themselves, no last
record is lost over crashes and lost disks, and the bucket keeps what the manifest names."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from dataclasses import replace
from typing import Any

import pytest

from tests.metric_samples import samples
from tests.refusal import refuses
from tests.scenario import GIVEN, run_by
from tests.seeds import first_seeds
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, run
from tiered.broker.partition_report import explain, find_cleaned_to
from tiered.cold import cold_cleaning
from tiered.cold.layout import parse_key
from tiered.controller.requests import AlterBrokerConfigs, AlterTopicConfigs
from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered.ports import FileSlice
from tiered.records.batch import decode_records, encode_batch
from tiered.records.native import walk
from tiered.replication.leader_replica import LeaderReplica
from tiered.system import turns
from tiered.upkeep import log_cleaner

COMPACTED: dict[str, Any] = {
    "cleanup_policy": "compact",
    "internal_segment_bytes": "4096",
    "local_retention_bytes": "1",
    "min_cleanable_dirty_ratio": "0.1",
}
CLEANING = replace(QUICK, log_cleaner_backoff_ms=500)
KEYS = 7

Row = tuple[int, bytes, bytes | None]


async def write(replica: LeaderReplica, count: int, written: list[Row], *, keys: int = KEYS) -> None:
    """Appends keyed records of about 1 KiB, one a batch. Adds them to `written`."""
    for _ in range(count):
        number = len(written)
        key, value = b"k%d" % (number % keys), b"%06d" % number + b"x" * 1000
        info = await replica.append(bytearray(encode_batch([(1_700_000_000_000 + number, key, value, ())])))
        written.append((info.base_offset, key, value[:6]))


def cleaned_to(replica: LeaderReplica) -> int:
    """Returns the offset up to which the log was cleaned on the disk, -1 before that."""
    return -1 if replica.log.compaction.state is None else replica.log.compaction.state.clean_to


async def read(replica: LeaderReplica, start: int = 0) -> list[Row]:
    """Returns the records from `start` on, read as a consumer does."""
    found: list[Row] = []
    offset = start
    while offset < replica.high_watermark:
        data = (await replica.reads.read(offset, 3000)).data
        data = data.file.pread(data.start, data.length) if isinstance(data, FileSlice) else data
        batches = walk(data).batches
        assert batches, offset
        for each in batches:
            records = decode_records(data, each.position)
            found += [(one.offset, one.key or b"", (one.value or b"")[:6]) for one in records if one.offset >= offset]
        offset = batches[-1].last_offset + 1
    return found


def last_of_each(written: list[Row]) -> set[Row]:
    latest = {key: offset for offset, key, _ in written}
    return {each for each in written if latest[each[1]] == each[0]}


async def check_state(replica: LeaderReplica, written: list[Row]) -> list[Row]:
    """Checks what a reader from offset 0 gets, and returns it."""
    seen = await read(replica)
    assert seen == sorted(seen) and last_of_each(written) <= set(seen) <= set(written)
    return seen


def is_clean(replica: LeaderReplica) -> bool:
    """True if all segments that are in the bucket are cleaned, and all closed ones are there."""
    manifest, closed = replica.manifest, replica.log.segments.active.base_offset
    return manifest is not None and manifest.clean_to == manifest.cold_end_offset == closed


def figure(rig: SimBrokerRig, name: str) -> float:
    """Returns a figure of the cleaner as `/metrics` has it."""
    return samples(rig.broker.metrics.render(), f"tiered_log_cleaner_{name}")[()]


async def check_bucket(rig: SimBrokerRig, replica: LeaderReplica) -> None:
    """Checks that the bucket comes to have the objects that the manifest names, and no others."""

    async def list_unnamed() -> set[str]:
        assert replica.manifest is not None
        named = {key async for key in replica.cold.manifests.list_keys(replica.manifest)}
        listed = {each.key for each in await rig.bucket.memory.list("data/") if parse_key(each.key)}
        assert named <= listed
        return listed - named

    deadline = rig.loop.now_ns + 600 * 10**9
    while unnamed := await list_unnamed():
        assert rig.loop.now_ns < deadline, unnamed
        await rig.broker.world.clock.sleep(5)


@run_by(run)
async def test_topic_cleaned_in_the_bucket_comes_back_after_a_lost_disk(rig: SimBrokerRig) -> None:
    written: list[Row] = []
    await rig.start(CLEANING, fan=2)
    replica = await rig.create(**COMPACTED, retention_ms="1000", retention_bytes="1")
    await write(replica, 60, written)
    await rig.wait_until(lambda: is_clean(replica) and replica.local_start_offset > 50)
    assert len(await check_state(replica, written)) < 20
    shown = explain(replica)["compaction"]
    assert shown["where"] == "bucket" and shown["clean_to"] == replica.cold_end_offset
    assert find_cleaned_to(replica) == replica.cold_end_offset > 0
    assert shown["bytes_after"] < shown["bytes_before"] // 2 and shown["dirty_bytes"] == 0
    await rig.broker.world.clock.sleep(300)
    assert replica.log_start_offset == 0, "retention deletes nothing of a topic without delete in its policy"
    with refuses(Code.POLICY_VIOLATION):
        await replica.deletion.delete_records(10)
    await check_bucket(rig, replica)
    await rig.crash(rig.machine.lose_disk)
    again = (await rig.start(CLEANING)).leader_replica("t", 0)
    kept = [row for row in written if row[0] < again.high_watermark]
    await check_state(again, kept)
    await write(again, 30, kept)
    await rig.wait_until(lambda: is_clean(again))
    await check_state(again, kept)
    await check_bucket(rig, again)
    assert not rig.broker.log_cleaner.uncleanable


@pytest.mark.parametrize("seed", first_seeds(1, of=3))
@run_by(run, seed=GIVEN)
async def test_broker_that_crashes_loses_no_last_record_and_leaves_no_object(rig: SimBrokerRig, *, seed: int) -> None:
    rng = random.Random(seed)
    written: list[Row] = []
    await rig.start(CLEANING, fan=2)
    replica = await rig.create(**COMPACTED)
    for _ in range(8):
        await write(replica, 24, written)
        await rig.broker.world.clock.sleep(rng.uniform(0, 3))
        await rig.crash(rig.machine.kill)
        replica = (await rig.start(CLEANING, fan=2)).leader_replica("t", 0)
        await check_state(replica, written)
    await rig.wait_until(lambda: is_clean(replica))
    await check_state(replica, written)
    await check_bucket(rig, replica)
    await rig.stop()


@run_by(run)
async def test_policy_changes_at_any_time_and_deletion_goes_on_beside_cleans(rig: SimBrokerRig) -> None:
    written: list[Row] = []
    await rig.start(CLEANING)
    replica = await rig.create(**COMPACTED)
    await write(replica, 30, written)
    await rig.broker.submit(AlterTopicConfigs("t", {"cleanup.policy": "delete", "retention.bytes": "-1"}))
    await write(replica, 30, written)
    await rig.wait_until(lambda: replica.cold_end_offset > 50)
    await check_state(replica, written)
    await rig.broker.submit(AlterTopicConfigs("t", {"cleanup.policy": "compact,delete"}))
    await rig.wait_until(lambda: is_clean(replica))
    await check_state(replica, written)
    await rig.broker.submit(AlterTopicConfigs("t", {"retention.ms": "1000"}))
    await rig.wait_until(lambda: replica.log_start_offset > 50)
    await write(replica, 30, written)
    await rig.broker.submit(AlterTopicConfigs("t", {"cleanup.policy": "compact"}))
    await rig.wait_until(lambda: is_clean(replica))
    start = replica.log_start_offset
    assert await read(replica, start)
    await check_bucket(rig, replica)


@run_by(run)
async def test_policy_that_changes_ends_a_clean_that_runs(rig: SimBrokerRig) -> None:
    written: list[Row] = []
    await rig.start(replace(CLEANING, log_cleaner_io_max_bytes_per_second=100.0))
    replica = await rig.create(**COMPACTED)
    await write(replica, 60, written)
    cleans = replica.cold.cleaner
    await rig.wait_until(lambda: bool(cleans.keys_in_flight(replica.partition_id)), seconds=2000)
    await rig.broker.submit(AlterTopicConfigs("t", {"cleanup.policy": "delete", "retention.ms": "-1"}))
    await rig.wait_until(lambda: not cleans.keys_in_flight(replica.partition_id), seconds=200)
    assert replica.manifest is not None and replica.manifest.clean_to == -1
    assert set(await read(replica)) == set(written)
    await check_bucket(rig, replica)


@run_by(run)
async def test_policy_that_changes_ends_a_clean_on_the_disk(rig: SimBrokerRig) -> None:
    written: list[Row] = []
    await rig.start(replace(CLEANING, log_cleaner_io_max_bytes_per_second=1000.0))
    replica = await rig.create(**COMPACTED, remote_storage_enable="false")
    await write(replica, 60, written)
    cleaner = rig.broker.log_cleaner
    await rig.wait_until(lambda: cleaner.find_cleanable(replica) is None, seconds=100)
    await rig.broker.submit(AlterTopicConfigs("t", {"cleanup.policy": "delete", "retention.ms": "-1"}))
    await asyncio.sleep(300)
    assert await read(replica) == written
    await rig.broker.submit(AlterTopicConfigs("t", {"cleanup.policy": "compact"}))
    await rig.wait_until(lambda: cleaned_to(replica) > 0, seconds=5000)
    assert len(await read(replica)) < len(written) / 2


@run_by(run)
async def test_settings_of_the_cleaner_change_while_it_runs(rig: SimBrokerRig) -> None:
    written: list[Row] = []
    await rig.start(replace(CLEANING, log_cleaner_enable=False))
    replica = await rig.create(**COMPACTED, remote_storage_enable="false")
    await write(replica, 60, written)
    await asyncio.sleep(120)
    assert cleaned_to(replica) == -1 and find_cleaned_to(replica) is None and await read(replica) == written
    slow = {"log.cleaner.io.max.bytes.per.second": "1000", "log.cleaner.enable": "true"}
    began = rig.loop.now_ns
    await rig.broker.submit(AlterBrokerConfigs(-1, slow | {"log.cleaner.dedupe.buffer.size": "1048576"}))
    await rig.wait_until(lambda: cleaned_to(replica) > 0, seconds=5000)
    assert find_cleaned_to(replica) == cleaned_to(replica)
    assert rig.loop.now_ns - began > 60 * 1e9
    fast = {"log.cleaner.io.max.bytes.per.second": "1e9", "log.cleaner.threads": "2"}
    await rig.broker.submit(AlterBrokerConfigs(-1, fast | {"log.cleaner.backoff.ms": "100"}))
    await write(replica, 60, written)
    end = replica.log.segments.active.base_offset
    await rig.wait_until(lambda: cleaned_to(replica) >= end, seconds=100)
    await check_state(replica, written)


@run_by(run)
async def test_partition_with_a_lost_object_is_named_and_the_others_are_cleaned(rig: SimBrokerRig) -> None:
    written: list[Row] = []
    await rig.start(CLEANING)
    bad = await rig.create("bad", **COMPACTED | {"min_cleanable_dirty_ratio": "1"})
    await write(bad, 40, [])
    await rig.wait_until(lambda: bad.cold_end_offset > 30 and bad.local_start_offset > 30)
    assert bad.manifest is not None
    await rig.bucket.memory.delete([bad.manifest.entries[2].key])
    await rig.broker.submit(AlterTopicConfigs("bad", {"min.cleanable.dirty.ratio": "0"}))
    good = await rig.create("good", **COMPACTED)
    await write(good, 40, written)
    await rig.wait_until(lambda: is_clean(good) and bool(rig.broker.log_cleaner.uncleanable))
    await check_state(good, written)
    before = bad.manifest.nodes
    [problem] = [each for each in rig.broker.health().problems if "compaction" in each]
    assert problem.startswith("compaction of bad-0 stopped: object is missing where=data/")
    assert set(rig.broker.log_cleaner.uncleanable) == {TopicPartition("bad", 0)}
    assert figure(rig, "uncleanable_partitions") == 1 and 0 <= figure(rig, "last_run_seconds") < 60
    assert figure(rig, "max_dirty_ratio") == 0 and figure(rig, "freed_bytes_total") > 0
    assert figure(rig, "read_records_total") > figure(rig, "removed_records_total") > 0
    assert bad.manifest.nodes == before and bad.manifest.clean_to == -1


@run_by(run)
async def test_bug_in_a_clean_in_the_bucket_stops_no_other_log(
    rig: SimBrokerRig, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, it ended the broker, and then each next leader that planned the same clean."""
    written: list[Row] = []

    def fail_once(*args: Any, **given: Any) -> Any:
        monkeypatch.undo()
        raise struct.error("unpack_from requires a buffer")

    monkeypatch.setattr(cold_cleaning, "clean_batches", fail_once)
    await rig.start(CLEANING)
    bad = await rig.create("bad", **COMPACTED)
    await write(bad, 40, [])
    await rig.wait_until(lambda: bool(rig.broker.log_cleaner.uncleanable))
    good = await rig.create("good", **COMPACTED)
    await write(good, 40, written)
    await rig.wait_until(lambda: is_clean(good))
    await check_state(good, written)
    named = {TopicPartition("bad", 0): "an internal error, see the broker's log"}
    assert rig.broker.log_cleaner.uncleanable == named
    rig.broker.log_cleaner.request_clean(bad)
    await rig.wait_until(lambda: is_clean(bad) and not rig.broker.log_cleaner.uncleanable)


def test_leader_reads_by_each_change_of_a_clean_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that an older manifest names are deleted while the clean goes on."""
    monkeypatch.setattr(cold_cleaning, "CHANGE_BYTES", 1)

    async def scenario(rig: SimBrokerRig) -> None:
        await rig.start(replace(CLEANING, log_cleaner_io_max_bytes_per_second=10_000.0))
        replica = await rig.create("t", **COMPACTED | {"min_cleanable_dirty_ratio": "1"})
        await write(replica, 40, [])
        await rig.wait_until(lambda: replica.cold_end_offset > 30)
        await rig.broker.submit(AlterTopicConfigs("t", {"min.cleanable.dirty.ratio": "0"}))

        def knows_a_part() -> bool:
            assert replica.manifest is not None
            return replica.manifest.clean_to < 0 and any(each.is_cleaned for each in replica.manifest.entries)

        await rig.wait_until(knows_a_part)
        await rig.stop()

    run(scenario)


def test_look_at_many_logs_lets_the_event_loop_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most urgent logs are cleaned first, also if a look notes only some of them."""
    monkeypatch.setattr(turns, "PIECE_SECONDS", 0.0)
    monkeypatch.setattr(log_cleaner, "DUE_MAX", 4)
    untiered = {"remote_storage_enable": "false", "flush_messages": "1"}

    async def scenario(rig: SimBrokerRig) -> None:
        await rig.start(replace(CLEANING, log_cleaner_enable=False, log_cleaner_backoff_ms=3_600_000))
        await rig.create(partitions=12, **COMPACTED | untiered)
        cleaner = rig.broker.log_cleaner
        replicas = [rig.broker.leader_replica("t", number) for number in range(12)]
        for replica in replicas:
            await write(replica, 8, [])
            await replica.log.flush()
        cleaner.request_clean(replicas[7])
        await replicas[7].log.flush()
        look, pieces = cleaner._look(), 0
        with contextlib.suppress(StopIteration):
            while True:
                look.send(None)
                pieces += 1
        assert pieces == len(rig.broker.hosted_replicas.list_replicas()) >= 12
        assert len(cleaner._due) == 4
        assert cleaner._pick() is replicas[7], "an operator asked for it"
        kinds = ((False, 0.9), (True, 0.1), (True, 0.2))
        order = [log_cleaner._Due(False, is_overdue, ratio, 1, replicas[0]) for is_overdue, ratio in kinds]
        assert sorted(order) == order, "an overdue log goes before the dirtiest one"
        await rig.stop()

    run(scenario)
