"""Tests of transactions in the replicas of a partition: markers, and what a read_committed reader gets from leader and
follower, disk and bucket, after a change of leader, a restart and the loss of a disk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.refusal import refuses
from tests.scenario import in_rig
from tests.unit.hot.fixtures import batch
from tests.unit.hot.transactions import TransactionWriter, transactional_batch
from tests.unit.replication.rig import (
    INCARNATIONS,
    TOPIC_ID,
    DirectPeers,
    ReplicationRig,
    RunningFetchers,
    follow_leader,
    read_bytes,
    read_log,
)
from tests.unit.replication.test_leader_replica_roles import wait_until
from tiered.cold.layout import SectionKind, SectionRef
from tiered.cold.manifest import SegmentEntry
from tiered.compaction.batch_filter import marker_kind
from tiered.compaction.transactions import CleanedTransactions, merge_indexes
from tiered.config.settings import TopicConfig
from tiered.errors import Code, Corrupt, Refused
from tiered.hot.disk_log import DiskLog
from tiered.offline.committed import read_committed_batches
from tiered.peers import PartitionFetch
from tiered.ports import NotFound
from tiered.producers.aborted_txns import MAX_OFFSET, decode_aborted_txns
from tiered.records.aborted import AbortedTransactions
from tiered.records.batch import decode_header
from tiered.records.marker import TransactionMarker
from tiered.records.model import CONTROL
from tiered.records.native import walk
from tiered.replication.become_leader import PreviousLeader
from tiered.replication.follower_reads import FollowerReads
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica
from tiered.replication.read_result import ReadResult

SMALL_SEGMENTS = TopicConfig(segment_bytes=1500, index_interval_bytes=200)
PRODUCER = 7


def write_to_leader(leader: LeaderReplica, seed: int, steps: int = 150) -> TransactionWriter:
    """Writes random transactions as the leader of the partition does; all of it becomes committed."""
    writer = TransactionWriter(leader.log)
    writer.write_at_random(random.Random(seed), steps)
    leader.on_config_changed()  # the high watermark moves to the log end
    return writer


def committed_offsets(writer: TransactionWriter) -> list[int]:
    """Returns the offsets of the committed records below the last stable offset."""
    found = [offset for txn in writer.ended if txn.commit for offset in txn.offsets]
    return sorted(offset for offset in found if offset < writer.stable_offset)


def take_committed(found: ReadResult, offset: int) -> tuple[list[int], int]:
    """Returns the committed offsets of a reply from `offset` on, as a client does, and the next fetch offset."""
    batches = walk(read_bytes(found.data)).batches
    starts = [first for _, first in found.aborted_txns]
    assert starts == sorted(starts)
    aborted = AbortedTransactions(found.aborted_txns)
    records = [each for each in batches if not aborted.has_batch(each) and not each.attributes & CONTROL]
    offsets = [number for each in records for number in range(each.base_offset, each.last_offset + 1)]
    return [number for number in offsets if number >= offset], batches[-1].last_offset + 1


async def read_all_committed(leader: LeaderReplica, start: int = 0, max_bytes: int = 700) -> list[int]:
    """Reads the partition from `start` on as a read_committed consumer does."""
    offset, offsets = start, list[int]()
    while True:
        found = await leader.reads.read(offset, max_bytes, read_committed=True)
        if not found.size:
            assert offset >= found.last_stable_offset
            return offsets
        more, offset = take_committed(found, offset)
        offsets += more


async def upload_stable(leader: LeaderReplica) -> int:
    """Uploads all closed segments below the last stable offset. Returns the cold end offset."""
    manifest = await leader.cold.manifests.take_over(leader.partition_id, leader.topic, leader.leader_epoch)
    while True:
        written = await leader.cold.uploader.upload_next(
            leader.log, manifest, leader.leader_epoch, leader.last_stable_offset
        )
        if written is None:
            return manifest.cold_end_offset
        manifest = written
        leader.unified_log.update_manifest(manifest)


# -- markers ----------------------------------------------------------------------------------------------------------


@in_rig(ReplicationRig)
async def test_marker_is_written_once_and_returns_when_it_is_committed(rig: ReplicationRig) -> None:
    leader = await rig.brokers[1].lead(0, [1, 2])
    begin_transaction(leader)
    marker = TransactionMarker(PRODUCER, 1, True, 3, version=2)
    waiting = asyncio.create_task(leader.transactions.append_marker(marker))
    await asyncio.sleep(0.1)
    assert not waiting.done() and leader.log.end_offset == 2
    again = asyncio.create_task(leader.transactions.append_marker(marker))
    await asyncio.sleep(0.1)
    assert not again.done(), "the marker is in the log, and not committed"
    leader.handle_follower_fetch(2, INCARNATIONS[2], PartitionFetch(TOPIC_ID, 0, 0, 2, 0, 0, 0), 0)
    await asyncio.gather(waiting, again)
    await leader.transactions.append_marker(marker)
    assert leader.log.end_offset == 2


@in_rig(ReplicationRig)
async def test_marker_that_is_sent_again_waits_for_no_later_records(rig: ReplicationRig) -> None:
    """Once, each retry waited for the log end of its time: never reached where records come and a follower is late."""
    leader = await rig.brokers[1].lead(0, [1, 2])
    begin_transaction(leader)
    marker = TransactionMarker(PRODUCER, 1, True, 3, version=2)
    for number in range(2):
        with refuses(Code.REQUEST_TIMED_OUT):
            await leader.transactions.append_marker(marker, timeout_ms=1000)
        leader.append_now(batch(number), 1)
    leader.handle_follower_fetch(2, INCARNATIONS[2], PartitionFetch(TOPIC_ID, 0, 0, 2, 0, 0, 0), 0)
    assert (leader.high_watermark, leader.log.end_offset) == (2, 4)
    await leader.transactions.append_marker(marker, timeout_ms=1000)
    assert leader.transactions.find_marker_end(PRODUCER) == 2


@in_rig(ReplicationRig, config=TopicConfig(flush="ack"))
async def test_marker_is_confirmed_where_an_fsync_takes_longer_than_a_try(rig: ReplicationRig) -> None:
    leader = await rig.brokers[1].lead(0, [1])
    begin_transaction(leader)
    rig.brokers[1].disk.sync_seconds = lambda: 1.2
    marker = TransactionMarker(PRODUCER, 1, True, 3, version=2)
    for _ in range(10):
        with suppress(Refused):
            await leader.transactions.append_marker(marker, timeout_ms=1000)
            break
    assert leader.is_committed(2) and leader.log.end_offset == 2


@in_rig(ReplicationRig)
async def test_marker_that_only_a_snapshot_knows_is_committed_with_its_epoch(rig: ReplicationRig) -> None:
    broker = rig.brokers[1]
    first = await broker.lead(0, [1])
    begin_transaction(first)
    marker = TransactionMarker(PRODUCER, 1, True, 3, version=2)
    await first.transactions.append_marker(marker)
    first.append_now(batch(0), 1)
    first.roll()
    first.log.close()
    broker.logs.clear()
    again = await broker.lead(1, [1, 2])
    again.append_now(batch(1), 1)
    for end in (2, 3):
        again.handle_follower_fetch(2, INCARNATIONS[2], PartitionFetch(TOPIC_ID, 0, 1, end, 0, 0, 0), 0)
        assert (again.high_watermark, again.transactions.append_marker_now(marker)) == (end, 3)
    assert again.log.end_offset == 4


def begin_transaction(leader: LeaderReplica, sequence: int = 0, epoch: int = 0) -> None:
    guard = leader.transactions.begin_verification(PRODUCER, epoch, sequence)
    leader.append_now(transactional_batch(PRODUCER, sequence, epoch=epoch), 1, guard=guard)
    leader.transactions.end_verification(guard)


@in_rig(ReplicationRig, config=TopicConfig(min_insync_replicas=2))
async def test_marker_needs_what_acks_all_needs(rig: ReplicationRig) -> None:
    leader = await rig.brokers[1].lead(0, [1], [1, 2])
    begin_transaction(leader)
    with refuses(Code.NOT_ENOUGH_REPLICAS):
        await leader.transactions.append_marker(TransactionMarker(PRODUCER, 0, True, 3))
    leader.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "over"))
    with refuses(Code.NOT_LEADER_OR_FOLLOWER):
        await leader.transactions.append_marker(TransactionMarker(PRODUCER, 0, True, 3))
    assert leader.log.end_offset == 1


@in_rig(ReplicationRig)
async def test_only_first_records_of_a_transaction_need_verification(rig: ReplicationRig) -> None:
    leader = await rig.brokers[1].lead(0, [1])
    assert leader.transactions.needs_verification(batch(0)) is None
    assert leader.transactions.needs_verification(batch(0, producer=PRODUCER, sequence=0)) is None
    assert (
        leader.transactions.needs_verification(bytes(100)) is None
        and leader.transactions.needs_verification(b"") is None
    )
    assert leader.transactions.needs_verification(transactional_batch(PRODUCER, 0, epoch=4)) == (PRODUCER, 4, 0)
    begin_transaction(leader, epoch=4)
    assert leader.transactions.needs_verification(transactional_batch(PRODUCER, 1, epoch=4)) is None
    await leader.transactions.append_marker(TransactionMarker(PRODUCER, 5, True, 0, version=2))
    assert leader.transactions.needs_verification(transactional_batch(PRODUCER, 0, epoch=5)) == (PRODUCER, 5, 0)


@in_rig(ReplicationRig)
async def test_clients_cannot_write_markers(rig: ReplicationRig) -> None:
    leader = await rig.brokers[1].lead(0, [1])
    begin_transaction(leader)
    forged = bytearray(transactional_batch(PRODUCER, 1))
    forged[22] |= CONTROL
    for deep in (False, True):
        with pytest.raises(Refused):
            leader.append_now(forged, ACKS_ALL, deep)
    assert leader.last_stable_offset == 0


# -- reads ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@in_rig(ReplicationRig, config=SMALL_SEGMENTS)
async def test_committed_records_are_the_same_on_disk_in_the_bucket_and_in_both(
    rig: ReplicationRig, *, seed: int
) -> None:
    leader = await rig.brokers[1].lead(0, [1])
    writer = write_to_leader(leader, seed)
    wanted = committed_offsets(writer)
    assert await read_all_committed(leader) == wanted
    cold_end = await upload_stable(leader)
    segments = leader.log.segments.closed()
    for below in (segments[1].next_offset, cold_end):
        await leader.log.drop_local_below(min(below, cold_end))
        for start in (0, 1, leader.log.local_start_offset - 1, leader.log.local_start_offset):
            assert await read_all_committed(leader, start) == [each for each in wanted if each >= start]
    assert leader.log.local_start_offset == cold_end > 0


@pytest.mark.parametrize("seed", range(3))
@in_rig(ReplicationRig, config=SMALL_SEGMENTS)
async def test_follower_serves_the_same_committed_records(rig: ReplicationRig, *, seed: int) -> None:
    leader = await rig.brokers[1].lead(0, [1, 2])
    _, copy = await follow_leader(rig, leader)
    writer = write_to_leader(leader, seed)
    leader.append_now(batch(0), 1)
    await wait_until(lambda: copy.high_watermark == leader.log.end_offset)
    source, offset, offsets = FollowerReads(copy, lambda: True), 0, list[int]()
    assert source.offset_snapshot() == leader.reads.offset_snapshot()
    while (found := source.read_now(offset, 700, True)).size:
        assert found.aborted_txns == read_now(leader, offset).aborted_txns
        more, offset = take_committed(found, offset)
        offsets += more
    assert offsets == committed_offsets(writer)


def read_now(leader: LeaderReplica, offset: int) -> ReadResult:
    found = leader.reads.read_now(offset, 700, True)
    assert found is not None
    return found


@in_rig(ReplicationRig)
async def test_long_read_wakes_when_the_last_stable_offset_moves(rig: ReplicationRig) -> None:
    leader = await rig.brokers[1].lead(0, [1])
    begin_transaction(leader)
    waiting = asyncio.create_task(leader.reads.read(0, 1000, max_wait_ms=60_000, read_committed=True))
    await asyncio.sleep(1)
    assert not waiting.done()
    await leader.transactions.append_marker(TransactionMarker(PRODUCER, 0, True, 0))
    found = await asyncio.wait_for(waiting, 1)
    assert found.last_stable_offset == 2 and found.size


@in_rig(ReplicationRig)
async def test_uncommitted_reader_gets_no_list_of_aborted_transactions(rig: ReplicationRig) -> None:
    leader = await rig.brokers[1].lead(0, [1])
    begin_transaction(leader)
    await leader.transactions.append_marker(TransactionMarker(PRODUCER, 0, False, 0))
    found = leader.reads.read_now(0, 1000)
    assert found is not None and found.aborted_txns == ()
    assert read_now(leader, 0).aborted_txns == ((PRODUCER, 0),)


@in_rig(ReplicationRig)
async def test_last_stable_offset_is_never_below_the_log_start(rig: ReplicationRig) -> None:
    leader = await rig.brokers[1].lead(0, [1])
    begin_transaction(leader)
    for number in range(5):
        leader.append_now(batch(number), 1)
    assert leader.last_stable_offset == 0
    await leader.deletion.delete_records(4)
    assert leader.last_stable_offset == leader.reads.offset_snapshot()[1] == leader.log_start_offset == 4
    assert read_now(leader, 4).size == 0, "the transaction may have records there"


# -- the open transaction after a failure -----------------------------------------------------------------------------


@in_rig(ReplicationRig)
async def test_guard_of_an_earlier_leadership_begins_no_transaction(rig: ReplicationRig) -> None:
    first = await rig.brokers[1].lead(0, [1])
    guard = first.transactions.begin_verification(PRODUCER, 0)
    first.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "another broker leads, and writes the marker"))
    second = await rig.brokers[1].lead(1, [1], previous_leader=PreviousLeader.STOPPED_CLEANLY)
    assert second.log is first.log
    with refuses(Code.INVALID_TXN_STATE):
        second.append_now(transactional_batch(PRODUCER, 0), 1, guard=guard)


@in_rig(ReplicationRig)
async def test_next_leader_keeps_the_transaction_open(rig: ReplicationRig) -> None:
    first = await rig.brokers[1].lead(0, [1, 2])
    peers = DirectPeers(rig)
    peers.add_leader(first)
    following = RunningFetchers(rig, rig.brokers[2], peers)
    copy = await following.follow(1, 0)
    first.append_now(batch(0), 1)
    begin_transaction(first)
    first.append_now(batch(1), 1)
    await wait_until(lambda: copy.high_watermark == 3)
    copy.stop()
    await following.stop()
    second = await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.STOPPED_CLEANLY)
    assert (second.high_watermark, second.last_stable_offset) == (3, 1)
    second.append_now(transactional_batch(PRODUCER, 1), 1)
    await second.transactions.append_marker(TransactionMarker(PRODUCER, 1, False, 2, version=2))
    assert second.last_stable_offset == 5
    assert read_now(second, 1).aborted_txns == ((PRODUCER, 1),)


@pytest.mark.parametrize("rolled", [False, True])
@in_rig(ReplicationRig)
async def test_restart_keeps_the_transaction_open(rig: ReplicationRig, *, rolled: bool) -> None:
    broker = rig.brokers[1]
    leader = await broker.lead(0, [1])
    begin_transaction(leader)
    await leader.transactions.append_marker(TransactionMarker(PRODUCER, 0, False, 2))
    begin_transaction(leader, 1)
    leader.append_now(batch(1), 1)
    if rolled:
        leader.roll()
    broker.logs.clear()
    broker.restart(broker.disk.after_kill())
    again = await broker.lead(1, [1], previous_leader=PreviousLeader.STOPPED_CLEANLY)
    assert (again.high_watermark, again.last_stable_offset) == (4, 2)
    assert read_now(again, 0).aborted_txns == ((PRODUCER, 0),)
    with refuses(Code.TRANSACTION_COORDINATOR_FENCED):
        await again.transactions.append_marker(TransactionMarker(PRODUCER, 0, True, 1))
    await again.transactions.append_marker(TransactionMarker(PRODUCER, 0, True, 2))
    assert again.last_stable_offset == 5


@in_rig(ReplicationRig, config=SMALL_SEGMENTS)
async def test_log_restarted_at_the_cold_end_ends_the_transactions_below_it(rig: ReplicationRig) -> None:
    first = await rig.brokers[1].lead(0, [1])
    begin_transaction(first)
    first.roll()
    begin_offset = first.log.end_offset
    first.append_now(transactional_batch(PRODUCER, 1), 1)
    await first.transactions.append_marker(TransactionMarker(PRODUCER, 1, False, 0, version=2))
    first.append_now(batch(0), 1)
    assert await upload_stable(first) == begin_offset == 1
    # The disk is lost: the records from offset 1 on, the marker included, are gone.
    second = await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE)
    assert second.log.local_start_offset == 1
    assert second.epoch_start == 1
    assert second.last_stable_offset == second.high_watermark == 2, "every cold transaction is decided"
    assert await read_all_committed(second) == [], "and this one was aborted"
    await second.transactions.append_marker(TransactionMarker(PRODUCER, 1, False, 1, version=2))
    assert second.last_stable_offset == 3


@pytest.mark.parametrize("further_records", [0, 1], ids=["log ends at the cold end", "records after the cold end"])
@in_rig(ReplicationRig, config=SMALL_SEGMENTS)
async def test_cold_transaction_without_its_marker_is_decided(rig: ReplicationRig, *, further_records: int) -> None:
    """The local log has the records of the transaction, not its marker, and agrees with the bucket. Its coordinator
    would not write the marker again."""
    broker = rig.brokers[1]
    first = await broker.lead(0, [1])
    first.append_now(batch(0), 1)
    begin_transaction(first)
    first.roll()
    for number in range(further_records):
        first.append_now(batch(number), 1)
    kept = first.log.end_offset
    await first.transactions.append_marker(TransactionMarker(PRODUCER, 0, False, 0))
    assert await upload_stable(first) == 2
    first.log.truncate_to(kept)
    await first.log.flush()
    assert first.log.first_unstable_offset == 1, "as after a loss of power"
    again = await broker.lead(1, [1], high_watermark=kept, previous_leader=PreviousLeader.MAY_STILL_WRITE)
    assert again.last_stable_offset == again.high_watermark == again.log.end_offset == kept + 1
    found = await again.reads.read(0, 700, read_committed=True)
    assert take_committed(found, 0) == ([0], 2), "the bucket knows that it was aborted"
    assert await read_all_committed(again) == [0, *range(2, kept)]
    await again.transactions.append_marker(TransactionMarker(PRODUCER, 0, False, 0))
    assert again.log.end_offset == kept + 1, "the marker is not written twice"


async def lose_cold_marker(rig: ReplicationRig, *, commits: bool = False, has_follower: bool = False) -> None:
    """Makes the record at 1 cold, with its transaction, and takes the marker from all disks. These end at 2."""
    first = await rig.brokers[1].lead(0, [1])
    first.append_now(batch(0), 1)
    begin_transaction(first)
    first.roll()
    if has_follower:
        copied = await rig.brokers[2].open_log()
        copied.append_as_follower(bytearray(read_log(first.log)), now_ms=0)
        await copied.flush()
    for number in range(8):
        first.append_now(batch(number), 1)
    await first.transactions.append_marker(TransactionMarker(PRODUCER, 1, commits, 0, version=2))
    assert await upload_stable(first) == 2
    first.log.truncate_to(2)
    await first.log.flush()


async def lead_after_loss(
    rig: ReplicationRig, node: int = 1, replicas: Sequence[int] = (1,), *, is_loss_unreported: bool = False
) -> LeaderReplica:
    return await rig.brokers[node].lead(
        1, list(replicas), high_watermark=2, previous_leader=PreviousLeader.MAY_STILL_WRITE,
        is_loss_unreported=is_loss_unreported,
    )  # fmt: skip


@in_rig(ReplicationRig, config=SMALL_SEGMENTS)
async def test_follower_too_knows_a_cold_transaction_as_decided(rig: ReplicationRig) -> None:
    """Once, only the leader knew. Readers of committed records waited at a follower for ever."""
    await lose_cold_marker(rig, has_follower=True)
    again = await lead_after_loss(rig, replicas=(1, 2))
    assert again.last_stable_offset == 1, "the new marker is not committed yet"
    found = await again.reads.read(0, 700, read_committed=True)
    assert take_committed(found, 0) == ([0], 2)
    peers = DirectPeers(rig)
    peers.add_leader(again)
    copy = await RunningFetchers(rig, rig.brokers[2], peers).follow(1, 1)
    for number in range(5):
        again.append_now(batch(number), 1)
    await wait_until(lambda: copy.high_watermark == again.log.end_offset == 8)
    assert again.last_stable_offset == FollowerReads(copy, lambda: True).offset_snapshot()[1] == 8


@in_rig(ReplicationRig, config=SMALL_SEGMENTS)
async def test_restored_follower_ends_cold_transactions_with_its_leader(rig: ReplicationRig) -> None:
    await lose_cold_marker(rig)
    again = await lead_after_loss(rig, replicas=(1, 2))
    peers = DirectPeers(rig)
    peers.add_leader(again)
    copy = await RunningFetchers(rig, rig.brokers[2], peers).follow(1, 1)
    await wait_until(lambda: copy.high_watermark == 3)
    assert copy.log.local_start_offset == 2
    assert FollowerReads(copy, lambda: True).offset_snapshot()[1] == 3
    assert copy.log.producers.encode_snapshot() == again.log.producers.encode_snapshot()
    copy.log.roll()
    [entry] = decode_aborted_txns(copy.log.segments.data(2).txn_index, begin=0, end=MAX_OFFSET, where="")
    assert (entry.first_offset, entry.last_offset) == (1, 2)


@pytest.mark.parametrize("commits", [True, False], ids=["commit, then abort", "abort, then commit"])
@in_rig(ReplicationRig, config=SMALL_SEGMENTS)
async def test_later_transaction_does_not_decide_a_cold_one_anew(rig: ReplicationRig, *, commits: bool) -> None:
    """The producer's next transaction ends the other way, and the follower leads then."""
    await lose_cold_marker(rig, commits=commits, has_follower=True)
    wanted = [0, 1, 5] if commits else [0, 3, 5]
    again = await lead_after_loss(rig, replicas=(1, 2))
    peers = DirectPeers(rig)
    peers.add_leader(again)
    following = RunningFetchers(rig, rig.brokers[2], peers)
    copy = await following.follow(1, 1)
    begin_transaction(again, 0, 1)
    marker = asyncio.create_task(
        again.transactions.append_marker(TransactionMarker(PRODUCER, 2, not commits, 0, version=2))
    )
    await wait_until(lambda: copy.log.end_offset == 5)
    await marker
    again.append_now(batch(9), 1)
    await wait_until(lambda: copy.high_watermark == 6)
    assert await read_all_committed(again) == wanted
    copy.stop()
    await following.stop()
    second = await rig.brokers[2].lead(2, [2], previous_leader=PreviousLeader.STOPPED_CLEANLY)
    assert await read_all_committed(second) == wanted


@pytest.mark.parametrize("commits", [True, False], ids=["commit, then abort", "abort, then commit"])
@in_rig(ReplicationRig, config=SMALL_SEGMENTS)
async def test_kill_does_not_bring_back_a_cold_transaction(rig: ReplicationRig, *, commits: bool) -> None:
    """The last snapshot of producers on the disk has it as open."""
    broker = rig.brokers[1]
    await lose_cold_marker(rig, commits=commits)
    again = await lead_after_loss(rig)
    begin_transaction(again, 0, 1)
    await again.transactions.append_marker(TransactionMarker(PRODUCER, 2, not commits, 0, version=2))
    broker.logs.clear()
    broker.restart(broker.disk.after_kill())
    third = await broker.lead(2, [1], high_watermark=5, previous_leader=PreviousLeader.STOPPED_CLEANLY)
    third.roll()
    assert await read_all_committed(third) == ([0, 1] if commits else [0, 3])
    assert await upload_stable(third) == 5
    assert await read_in_bucket(third) == ([0, 1] if commits else [0, 3])


@pytest.mark.parametrize("is_disk_lost", [False, True], ids=["power cut", "disk lost"])
@in_rig(ReplicationRig, config=SMALL_SEGMENTS)
async def test_cold_abort_without_its_marker_takes_no_later_commit_with_it(
    rig: ReplicationRig, *, is_disk_lost: bool
) -> None:
    """The index of the first object says that the transaction goes up to offset 10. Other records are there now."""
    await lose_cold_marker(rig)
    node = 2 if is_disk_lost else 1
    again = await lead_after_loss(rig, node, [node])
    begin_transaction(again, 0, 1)
    await again.transactions.append_marker(TransactionMarker(PRODUCER, 2, True, 0, version=2))
    again.roll()
    assert await read_all_committed(again) == [0, 3]
    assert await upload_stable(again) == 5
    assert await read_in_bucket(again) == [0, 3]
    assert await find_removed_by_a_clean(again) == [1]


async def read_in_bucket(leader: LeaderReplica) -> list[int]:
    """Returns the offsets of the committed batches in the bucket, as Spark and the command line read them."""
    manifest = leader.manifest
    assert manifest is not None
    bucket = cast(Any, SimpleNamespace(manifests=leader.cold.manifests, reader=leader.cold.reader))
    end = manifest.cold_end_offset
    pieces = read_committed_batches(bucket, leader.partition_id, 0, end, manifest=manifest)
    return [each.base_offset async for piece in pieces for each in piece.batches if not each.attributes & CONTROL]


async def find_removed_by_a_clean(leader: LeaderReplica) -> list[int]:
    """Returns the offsets of the batches in the bucket that a clean takes for aborted ones."""
    manifest = leader.manifest
    assert manifest is not None
    indexes, found = [], list[int]()
    for entry in manifest.entries:
        index = (await leader.cold.reader.read_sections(entry)).txn_index
        indexes.append((entry.next_offset, decode_aborted_txns(index, begin=0, end=MAX_OFFSET, where=entry.key)))
    transactions = CleanedTransactions(merge_indexes(indexes))
    async for piece in leader.cold.reader.iterate(leader.partition_id, 0):
        at = -piece.batches[0].position
        for each in piece.batches:
            if each.attributes & CONTROL:
                head = decode_header(piece.data, at + each.position)
                transactions.is_marker_needless(head, marker_kind(piece.data, at + each.position, head))
            elif transactions.is_aborted(each):
                found.append(each.base_offset)
    assert all(each.last_offset < manifest.cold_end_offset for each in transactions.kept)
    return found


@in_rig(ReplicationRig, config=SMALL_SEGMENTS)
async def test_lost_marker_is_the_first_record_once_the_loss_is_reported(rig: ReplicationRig) -> None:
    """After a restart, the loss would be reported from an offset above the marker."""
    await lose_cold_marker(rig)
    again = await lead_after_loss(rig, is_loss_unreported=True)
    assert (again.log.end_offset, again.last_stable_offset) == (2, 1)
    again.admission.on_loss_reported()
    disk = rig.brokers[1].disk
    disk.capacity = disk.space().total - disk.space().free
    with refuses(Code.KAFKA_STORAGE_ERROR):
        await again.transactions.write_lost_markers()
    with pytest.raises(Refused):
        again.append_now(batch(0), 1)
    disk.capacity = None
    assert again.append_now(batch(0), 1).base_offset == 3
    assert again.last_stable_offset == 4
    assert await read_all_committed(again) == [0, 3]


@in_rig(ReplicationRig, config=SMALL_SEGMENTS)
async def test_leader_that_resigns_before_the_report_writes_no_lost_marker(rig: ReplicationRig) -> None:
    await lose_cold_marker(rig)
    again = await lead_after_loss(rig, is_loss_unreported=True)
    again.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "another broker leads"))
    await again.transactions.write_lost_markers()
    assert again.log.end_offset == 2


@in_rig(ReplicationRig, config=replace(SMALL_SEGMENTS, flush="ack"))
async def test_lost_marker_is_fsynced_where_only_that_commits(rig: ReplicationRig) -> None:
    await lose_cold_marker(rig)
    again = await lead_after_loss(rig)
    assert again.last_stable_offset == again.log.flushed_offset == 3


@in_rig(ReplicationRig, config=SMALL_SEGMENTS)
async def test_transaction_beyond_the_cold_end_stays_open_without_marker(rig: ReplicationRig) -> None:
    broker = rig.brokers[1]
    first = await broker.lead(0, [1])
    first.append_now(batch(0), 1)
    begin_transaction(first)
    first.roll()
    first.append_now(transactional_batch(PRODUCER, 1), 1)
    await first.transactions.append_marker(TransactionMarker(PRODUCER, 0, False, 0))
    assert await upload_stable(first) == 2
    first.log.truncate_to(3)
    await first.log.flush()
    again = await broker.lead(1, [1], high_watermark=3, previous_leader=PreviousLeader.MAY_STILL_WRITE)
    assert (again.log.first_unstable_offset, again.log.end_offset) == (1, 3), "nobody knows if the record counts"


@pytest.mark.parametrize("further_records", [0, 1], ids=["log ends at the deletion", "records after it"])
@in_rig(ReplicationRig, config=SMALL_SEGMENTS)
async def test_transaction_whose_records_are_deleted_may_live_and_stays_open(
    rig: ReplicationRig, *, further_records: int
) -> None:
    """A deletion raises the last stable offset, so records of a transaction without outcome become cold."""
    first = await rig.brokers[1].lead(0, [1])
    first.append_now(batch(0), 1)
    begin_transaction(first)
    first.roll()
    for number in range(further_records):
        first.append_now(batch(number), 1)
    assert await first.deletion.delete_records(2) == first.last_stable_offset == 2
    assert await upload_stable(first) == 2
    end = first.log.end_offset
    again = await rig.brokers[1].lead(1, [1], high_watermark=end, previous_leader=PreviousLeader.MAY_STILL_WRITE)
    assert again.log.end_offset == end and again.log.producers.has_ongoing_txn(PRODUCER, 0)
    again.append_now(transactional_batch(PRODUCER, 1), 1)
    await again.transactions.append_marker(TransactionMarker(PRODUCER, 0, False, 0))
    assert again.last_stable_offset == end + 2
    assert end not in await read_all_committed(again, 2)


@in_rig(ReplicationRig, config=SMALL_SEGMENTS)
async def test_cold_read_is_stable_to_its_end_before_the_marker_commits_again(rig: ReplicationRig) -> None:
    broker = rig.brokers[1]
    first = await broker.lead(0, [1])
    first.append_now(batch(0), 1)
    begin_transaction(first)
    first.roll()
    await first.transactions.append_marker(TransactionMarker(PRODUCER, 0, False, 0))
    assert await upload_stable(first) == 2
    await first.log.drop_local_below(2)
    broker.logs.clear()
    broker.restart(broker.disk.after_kill())
    # The next leader knows less of the high watermark: the marker is in its log and may not be committed.
    again = await broker.lead(1, [1, 2], high_watermark=2, previous_leader=PreviousLeader.MAY_STILL_WRITE)
    assert (again.high_watermark, again.cold_end_offset, again.log.end_offset) == (2, 2, 3)
    found = await again.reads.read(0, 700, read_committed=True)
    assert take_committed(found, 0) == ([0], 2)
    assert (found.last_stable_offset, found.aborted_txns) == (2, ((PRODUCER, 1),))


@in_rig(ReplicationRig, config=SMALL_SEGMENTS)
async def test_rebuilt_log_does_not_pass_a_transaction_that_is_open(rig: ReplicationRig) -> None:
    first = await rig.brokers[1].lead(0, [1, 2], [1, 2])
    first.append_now(batch(0), 1)
    first.roll()
    begin_transaction(first)
    first.append_now(batch(1), 1)
    first.handle_follower_fetch(2, INCARNATIONS[2], PartitionFetch(TOPIC_ID, 0, 0, 3, 0, 0, 0), 0)
    assert await upload_stable(first) == 1
    await first.log.drop_local_below(1)
    peers = DirectPeers(rig)
    peers.add_leader(first)
    copy = await RunningFetchers(rig, rig.brokers[2], peers).follow(1, 0)
    await wait_until(lambda: copy.log.end_offset == 3)
    assert copy.log.local_start_offset == 1
    await wait_until(lambda: copy.high_watermark == 3)
    assert FollowerReads(copy, lambda: True).offset_snapshot()[1] == 1
    first.append_now(transactional_batch(PRODUCER, 1), 1)
    marker = asyncio.create_task(first.transactions.append_marker(TransactionMarker(PRODUCER, 0, False, 0)))
    await wait_until(lambda: copy.log.end_offset == 5)
    await marker
    first.append_now(batch(2), 1)
    await wait_until(lambda: copy.high_watermark == 6)
    assert FollowerReads(copy, lambda: True).read_now(1, 1000, True).aborted_txns == ((PRODUCER, 1),)


@in_rig(ReplicationRig)
async def test_truncated_follower_has_the_transaction_open_again(rig: ReplicationRig) -> None:
    log: DiskLog = await rig.brokers[2].open_log()
    writer = TransactionWriter(log)
    writer.write(PRODUCER)
    writer.end(PRODUCER, commit=False)
    leader = await rig.brokers[1].lead(1, [1, 2])
    begin_transaction(leader)
    leader.append_now(batch(0), 1)
    _, copy = await follow_leader(rig, leader)
    await wait_until(lambda: copy.high_watermark == 2)
    assert FollowerReads(copy, lambda: True).offset_snapshot() == (2, 0, 0)


@pytest.mark.parametrize("damage", ["a bit", "cut short"])
@in_rig(ReplicationRig, config=SMALL_SEGMENTS)
async def test_damaged_index_in_the_bucket_refuses_committed_reads_only(rig: ReplicationRig, *, damage: str) -> None:
    leader = await rig.brokers[1].lead(0, [1])
    write_to_leader(leader, 1)
    await leader.log.drop_local_below(await upload_stable(leader))
    manifest = leader.manifest
    assert manifest is not None
    entry = next(each for each in manifest.entries if find_section(each, SectionKind.TXN_INDEX))
    ref = find_section(entry, SectionKind.TXN_INDEX)
    assert ref is not None
    found = await rig.bucket.memory.get(entry.key)
    assert not isinstance(found, NotFound)
    content = bytearray(found.data)
    if damage == "a bit":
        content[ref.position + 5] ^= 1
        await rig.bucket.memory.put(entry.key, bytes(content))
    else:
        await rig.bucket.memory.put(entry.key, bytes(content[: ref.position + 3]))
    with pytest.raises(Corrupt):
        await leader.reads.read(entry.base_offset, 300, read_committed=True)
    assert (await leader.reads.read(entry.base_offset, 300)).size
    await rig.bucket.memory.put(entry.key, bytes(found.data))
    await asyncio.sleep(60)  # the pause after a failure
    assert (await leader.reads.read(entry.base_offset, 300, read_committed=True)).size


def find_section(entry: SegmentEntry, kind: SectionKind) -> SectionRef | None:
    return next((ref for ref in entry.sections if ref.kind == kind), None)
