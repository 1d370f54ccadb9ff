"""Scenarios of compacted logs with three replicas, which each cleans for itself: a replica whose disk was lost copies
the gaps, and leads with the last record of each key."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.scenario import run_by
from tests.sim.harness.machine import SimMachine
from tests.sim.scenarios.test_what_an_ack_survives import SECONDS, crash, isr_brokers, leader_of, wait_leader
from tests.sim.scenarios.three import QUIET, SimBroker, ThreeBrokers, run_scenario
from tiered.broker.partition_report import explain
from tiered.controller.requests import AlterTopicConfigs, CreateTopic
from tiered.hot.disk_log import DiskLog
from tiered.ids import TopicPartition
from tiered.ports import FileSlice
from tiered.records.batch import decode_header, decode_records, encode_batch
from tiered.records.marker import TransactionMarker
from tiered.replication.follower_replica import FollowerPorts, FollowerReplica
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica

KEYS = 5
CONFIGS = {
    "cleanup.policy": "compact",
    "remote.storage.enable": "false",
    "retention.ms": "-1",
    "internal.segment.bytes": "1024",
    "min.cleanable.dirty.ratio": "0.1",
}
Facts = list[tuple[int, bytes, bytes]]


def log_of(broker: SimBroker) -> DiskLog:
    replicas = broker.node.hosted_replicas.list_replicas()
    return next(each.log for each in replicas if each.tp == TopicPartition("t", 0))


async def write(leader: LeaderReplica, start: int, count: int) -> Facts:
    """Appends records that all in-sync replicas acknowledge."""
    written: Facts = []
    for number in range(start, start + count):
        key, value = b"k%d" % (number % KEYS), b"%06d" % number + b"." * 60
        data = bytearray(encode_batch([(1_000, key, value, ())]))
        written.append(((await leader.append(data, acks=ACKS_ALL)).base_offset, key, value))
    return written


async def read(leader: LeaderReplica) -> Facts:
    found: Facts = []
    offset = 0
    while offset < leader.high_watermark:
        data = (await leader.reads.read(offset, 3000)).data
        if isinstance(data, FileSlice):
            data = data.file.pread(data.start, data.length)
        at = 0
        while at < len(data):
            head = decode_header(data, at)
            found += [(each.offset, each.key or b"", each.value or b"") for each in decode_records(data, at)]
            offset, at = head.next_offset, at + head.size
    return found


def last_of_each(written: Facts) -> set[tuple[int, bytes, bytes]]:
    latest = {key: offset for offset, key, _ in written}
    return {each for each in written if latest[each[1]] == each[0]}


@pytest.mark.parametrize("policy", ["compact", "delete"])
@pytest.mark.parametrize("how", [SimMachine.lose_disk, SimMachine.power_cut])
@run_by(run_scenario, log_cleaner_backoff_ms=200, log_flush_offset_checkpoint_interval_ms=200)
async def test_replica_that_copied_gaps_leads_with_each_keys_last_record(
    three: ThreeBrokers, *, policy: str, how: object
) -> None:
    """Also if the topic is compacted no more by then."""
    await three.controller.node.submit(CreateTopic("t", 1, 3, configs=CONFIGS))
    leader = await wait_leader(three)
    written = await write(leader, 0, 100)
    brokers = three.brokers.values()
    await three.wait_until(lambda: all((log_of(each).compaction.state or (-1,))[0] >= 80 for each in brokers), SECONDS)
    await three.controller.node.submit(AlterTopicConfigs("t", {"cleanup.policy": policy}))
    hit = next(each for each in brokers if each is not leader_of(three) and each is not three.controller)
    await crash([hit], how)  # type: ignore[arg-type]
    await three.wait_until(lambda: hit not in isr_brokers(three), SECONDS)
    written += await write(leader, 100, 10)
    await hit.start()
    await three.wait_until(lambda: hit in isr_brokers(three), SECONDS)
    assert len(await read(leader)) < 60
    others = [each for each in brokers if each is not hit]
    await crash(others, SimMachine.kill)
    await others[0].start()
    await asyncio.sleep(10)
    await others[1].start()
    again = await wait_leader(three)
    await three.wait_until(lambda: again.high_watermark >= 110, SECONDS)
    seen = await read(again)
    assert last_of_each(written) <= set(seen) <= set(written) and seen == sorted(seen)
    logs = [log_of(each) for each in brokers]
    await three.wait_until(lambda: all(each.end_offset == 110 for each in logs), SECONDS)
    assert explain(again)["possible_loss"] is None
    assert not any(each.suspect or each.segments.gaps for each in logs)


@pytest.mark.parametrize("seed", range(2))
def test_leaders_that_crash_during_a_tiered_clean_lose_no_last_record(seed: int) -> None:
    """The bucket has the cleaned history, and a replica whose disk was lost begins at the cold end."""
    rng = random.Random(seed)
    tiered = {**CONFIGS, "remote.storage.enable": "true", "local.retention.bytes": "1"}

    async def scenario(three: ThreeBrokers) -> None:
        await three.controller.node.submit(CreateTopic("t", 1, 3, configs=tiered))
        written: Facts = []
        for number in range(6):
            leader = await wait_leader(three)
            written += await write(leader, len(written), 40)
            await asyncio.sleep(rng.uniform(0, 3))
            hit = leader_of(three)
            if hit is three.controller:  # the other brokers would have to become the controller first
                hit = next(each for each in three.brokers.values() if each is not hit)
            await crash([hit], rng.choice([SimMachine.kill, SimMachine.power_cut, SimMachine.lose_disk]))

            def is_out_of_sync(hit: SimBroker = hit) -> bool:
                return hit not in isr_brokers(three)

            await three.wait_until(is_out_of_sync, SECONDS)
            await hit.start()
            await three.wait_until(lambda: len(isr_brokers(three)) == 3, SECONDS)
            seen = await read(await wait_leader(three))
            assert last_of_each(written) <= set(seen) <= set(written) and seen == sorted(seen), number
        thorough = {**tiered, "max.compaction.lag.ms": "1000"}
        await three.controller.node.submit(AlterTopicConfigs("t", thorough))
        leader = await wait_leader(three)
        closed = leader.log.segments.active.base_offset
        await three.wait_until(lambda: leader.manifest is not None and leader.manifest.clean_to >= closed, SECONDS)
        seen = await read(leader)
        assert last_of_each(written) <= set(seen) <= set(written) and len(seen) < len(written) // 3

    settings = {
        "log_cleaner_backoff_ms": 200,
        "remote_log_manager_task_interval_ms": 500,
    }
    run_scenario(scenario, seed, **settings, log_cleaner_io_max_bytes_per_second=20_000.0)


@run_by(run_scenario, log_cleaner_backoff_ms=200, remote_log_manager_task_interval_ms=500)
async def test_disks_keep_nothing_that_the_bucket_has_cleaned(three: ThreeBrokers) -> None:
    """I32: local retention would keep everything, and readers of the leader and of followers get the disk's records."""
    tiered = {**CONFIGS, "remote.storage.enable": "true", "max.compaction.lag.ms": "1000"}
    await three.controller.node.submit(CreateTopic("t", 1, 3, configs=tiered))
    leader = await wait_leader(three)
    written = await write(leader, 0, 100)
    logs = [log_of(each) for each in three.brokers.values()]
    await three.wait_until(lambda: all(each.local_start_offset == 100 for each in logs), SECONDS)
    assert leader.manifest is not None and leader.manifest.clean_to == 100
    assert set(await read(leader)) == last_of_each(written)


@run_by(run_scenario, log_cleaner_backoff_ms=200, remote_log_manager_task_interval_ms=500)
async def test_partition_uncleanable_in_the_bucket_is_named_by_its_leader_only(three: ThreeBrokers) -> None:
    tiered = {**CONFIGS, "remote.storage.enable": "true", "min.cleanable.dirty.ratio": "1"}
    await three.controller.node.submit(CreateTopic("t", 1, 3, configs=tiered))
    leader = await wait_leader(three)
    await write(leader, 0, 60)
    await three.wait_until(lambda: leader.cold_end_offset > 40, SECONDS)
    assert leader.manifest is not None
    await three.bucket.memory.delete([leader.manifest.entries[-1].key])
    await leader.log.drop_local_below(leader.cold_end_offset)
    await three.controller.node.submit(AlterTopicConfigs("t", {"min.cleanable.dirty.ratio": "0"}))
    first = leader_of(three)
    await three.wait_until(lambda: bool(first.node.log_cleaner.uncleanable), SECONDS)
    await first.node.hand_over()
    await three.wait_until(lambda: not first.node.log_cleaner.uncleanable, SECONDS)


@run_by(run_scenario, log_cleaner_backoff_ms=3_600_000, remote_log_manager_task_interval_ms=500)
async def test_leader_that_resigns_before_its_clean_begins_cleans_nothing(three: ThreeBrokers) -> None:
    """The clean that was picked would work on objects, and the log on the disk is not cleaned in its place."""
    tiered = {**CONFIGS, "remote.storage.enable": "true", "min.cleanable.dirty.ratio": "0"}
    await three.controller.node.submit(CreateTopic("t", 1, 3, configs=tiered))
    leader = await wait_leader(three)
    await write(leader, 0, 60)
    await three.wait_until(lambda: leader.cold_end_offset > 40, SECONDS)
    cleaner = leader_of(three).node.log_cleaner
    await cleaner._look()
    assert cleaner._pick() is leader
    before = leader.log.segments.size_bytes
    await leader_of(three).node.hand_over()
    assert leader.is_stopped
    await cleaner._clean(leader)
    assert leader.log.segments.size_bytes == before and leader.log.compaction.state is None


@pytest.mark.parametrize("tiered", ["true", "false"])
@run_by(run_scenario, log_cleaner_backoff_ms=3_600_000, remote_log_manager_task_interval_ms=500)
async def test_follower_without_a_reply_of_its_leader_keeps_tombstones(three: ThreeBrokers, *, tiered: str) -> None:
    """The older records of their keys may lie in the bucket: the topic was tiered once. A leader says if they do."""
    own = {"remote.storage.enable": tiered, "local.retention.bytes": "1", "delete.retention.ms": "1000"}
    await three.controller.node.submit(CreateTopic("t", 1, 3, configs=CONFIGS | own))
    leader = await wait_leader(three)
    await write(leader, 0, 60)
    hit = next(each for each in three.brokers.values() if each is not leader_of(three))
    log, hosted = log_of(hit), hit.node.hosted_replicas
    await three.wait_until(lambda: tiered == "false" or log.local_start_offset >= KEYS, SECONDS)
    await three.controller.node.submit(AlterTopicConfigs("t", {"remote.storage.enable": "false"}))
    tombstone = (await leader.append(bytearray(encode_batch([(1_000, b"k0", None, ())])), acks=ACKS_ALL)).base_offset
    follower = hosted.find_follower(leader.tp)
    assert follower is not None

    async def clean_twice(*, is_new: bool) -> bool:
        """Cleans the follower's log, before and after the delete horizon. Returns True if the tombstone stays."""
        for _ in range(2):
            for number in range(1, KEYS):
                await write(leader, number, 1)
            await three.wait_until(lambda: follower.high_watermark == leader.log.end_offset, SECONDS)
            log.roll()
            await log.flush()
            await hit.node.log_cleaner._clean(follower_of_next_epoch(follower) if is_new else follower)
            await asyncio.sleep(2)
        found = log.read(tombstone, 1000, end_offset=log.end_offset)
        assert found is not None
        return decode_header(found.file.pread(found.start, found.length)).base_offset == tombstone

    assert await clean_twice(is_new=True)
    assert await clean_twice(is_new=False) == (tiered == "true")


@run_by(run_scenario, log_cleaner_backoff_ms=3_600_000, **QUIET)
async def test_tombstone_keeps_its_time_on_a_broker_with_a_fast_clock(three: ThreeBrokers) -> None:
    """Its horizon is of the time before."""
    day_ms, retention_seconds = 86_400_000, 600
    own = {"delete.retention.ms": str(retention_seconds * 1000)}
    await three.controller.node.submit(CreateTopic("t", 1, 3, configs=CONFIGS | own))
    leader = await wait_leader(three)
    await write(leader, 0, KEYS)
    tombstone = bytearray(encode_batch([(1_000, b"k0", None, ())]))
    offset = (await leader.append(tombstone, acks=ACKS_ALL)).base_offset
    broker = leader_of(three)

    async def clean() -> bool:
        """Returns True if the tombstone stays."""
        for number in range(1, KEYS):
            await write(leader, number, 1)
        leader.log.roll()
        await leader.log.flush()
        await broker.node.log_cleaner._clean(leader)
        return offset in [each for each, *_ in await read(leader)]

    assert await clean()
    broker.machine.clock.jump(day_ms)
    broker.node.retention_clock.set_skew(day_ms)
    await asyncio.sleep(retention_seconds - 30)
    assert await clean()
    await asyncio.sleep(60)
    assert not await clean()


@pytest.mark.parametrize("segment_bytes", ["1024", "1048576"])
@run_by(run_scenario, log_cleaner_backoff_ms=3_600_000)
async def test_follower_copies_a_transaction_again_whose_marker_is_gone(
    three: ThreeBrokers, *, segment_bytes: str
) -> None:
    """The abort was cleaned away while the follower was down. The producer's next marker, a commit, is not its own."""
    own = {"delete.retention.ms": "0", "internal.segment.bytes": segment_bytes, "min.insync.replicas": "2"}
    await three.controller.node.submit(CreateTopic("t", 1, 3, configs=CONFIGS | own))
    leader = await wait_leader(three)
    hit = next(each for each in three.others() if each is not leader_of(three))
    written = await write(leader, 0, 10 * KEYS)
    lost = await write_in_transaction(leader, b"k1", None)
    written += await write(leader, 10 * KEYS, 1)
    await three.wait_until(lambda: log_of(hit).end_offset == leader.log.end_offset, SECONDS)
    await hit.kill()
    await three.wait_until(lambda: len(leader.state.isr) == 2, SECONDS)
    await leader.transactions.append_marker(TransactionMarker(7, 0, commit=False, coordinator_epoch=1))
    marker = leader.log.end_offset - 1
    await write_in_transaction(leader, b"other", b"1")
    await leader.transactions.append_marker(TransactionMarker(7, 0, commit=True, coordinator_epoch=1))
    cleaner = leader_of(three).node.log_cleaner
    for _ in range(4):
        written += await write(leader, 10 * KEYS, 1)  # of k0 only
        leader.log.roll()
        await leader.log.flush()
        await cleaner._clean(leader)
        await asyncio.sleep(1)
    assert not offsets_in(leader.log) & {lost, marker}
    await hit.start()
    await three.wait_until(lambda: hit.node_id in leader.state.isr, SECONDS)
    copy = log_of(hit)
    assert lost not in offsets_in(copy)
    copy.roll()
    await copy.flush()
    follower = hit.node.hosted_replicas.find_follower(leader.tp)
    assert follower is not None
    await hit.node.log_cleaner._clean(follower)
    assert {offset for offset, _, _ in last_of_each(written)} <= offsets_in(copy)


async def write_in_transaction(leader: LeaderReplica, key: bytes, value: bytes | None) -> int:
    """Appends one record of producer 7, whose transaction stays open. Returns its offset."""
    data = encode_batch([(1_000, key, value, ())], producer_id=7, producer_epoch=0, transactional=True)
    producers = leader.log.producers
    producer = producers.find_unverified(decode_header(data))
    guard = producers.guards.begin(producer, moves_epoch=False) if producer is not None else None
    appended = leader.append_now(bytearray(data), ACKS_ALL, guard=guard, from_coordinator=True)
    await leader.confirm_committed(appended.last_offset + 1, 30_000)
    return appended.base_offset


def offsets_in(log: DiskLog) -> set[int]:
    """Returns the offsets of all records on disk, control records too."""
    found: set[int] = set()
    offset = log.local_start_offset
    while offset < log.end_offset and (piece := log.read(offset, 1 << 20, end_offset=log.end_offset)) is not None:
        data, at = piece.file.pread(piece.start, piece.length), 0
        while at < len(data):
            head = decode_header(data, at)
            found |= {each.offset for each in decode_records(data, at)}
            offset, at = head.next_offset, at + head.size
    return found


def follower_of_next_epoch(known: FollowerReplica) -> FollowerReplica:
    """Returns a replica of the same log that has no reply of its leader yet."""
    ports = FollowerPorts(known._clock, known._disk, known._save_offsets)
    return FollowerReplica(
        known.tp, known.topic_id, known.log, known.leader, known.leader_epoch + 1, ports,
        high_watermark=known.high_watermark,
    )  # fmt: skip
