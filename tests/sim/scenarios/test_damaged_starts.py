"""Starts that find less than the last process wrote: torn ends, flipped bits, directories of other topics.

A start believes what proves itself, and says no more to the cluster than that (R1, R4).
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from tests.refusal import refuses
from tests.scenario import GIVEN, run_by
from tests.seeds import first_seeds
from tests.sim.harness.disk import DiskFault
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, batch, fill, numbers, read_values, run
from tests.sim.scenarios.test_sim_rot import AT, RECORDS, create_filled_topic, log_file, partition_image, read_log_file
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tiered.broker.partition_report import explain
from tiered.controller.requests import CreateTopic, DeleteTopic, Move, Reassign
from tiered.errors import Code, Refused, Unavailable
from tiered.hot.checkpoints import EPOCHS_FILE, LOG_STARTS
from tiered.metadata.changes import NO_LEADER
from tiered.records.batch import encode_batch
from tiered.records.marker import TransactionMarker, encode_marker
from tiered.records.model import Codec
from tiered.replication.leader_replica import LeaderReplica

FIRST_MS = 1_700_000_000_000
BIG = {"segment_bytes": "1048576", "retention_ms": "-1"}


def log_path(rig: SimBrokerRig) -> str:
    (name,) = (name for name in rig.machine.disk.list("log/t-0") if name.endswith(".log"))
    return f"log/t-0/{name}"


@run_by(run)
async def test_damage_below_a_checkpoint_is_found_with_other_damage(rig: SimBrokerRig) -> None:
    """Once any record has rotted, nothing that was noted of the log is believed."""
    await rig.start(QUICK)
    replica = await rig.create("t", 1, **BIG)
    await fill(replica, 20)
    await replica.flush()
    await rig.broker.hosted_replicas.save_offsets()
    await fill(replica, 20, 20)
    size = replica.log.segments.size_bytes // 40
    await rig.crash(rig.machine.kill)
    for record in (5, 30):
        rig.machine.disk.flip_bit(log_path(rig), 8 * (record * size + size // 2))
    await rig.start(QUICK)
    replica = rig.broker.leader_replica("t", 0)
    assert await read_values(replica, 0) == numbers(0, replica.log.end_offset)
    assert replica.log.end_offset == explain(replica)["possible_loss"]["from_offset"] == 5


@run_by(run_scenario)
async def test_damaged_log_of_a_full_disk_claims_only_what_proves_itself(three: ThreeBrokers) -> None:
    """Neither replica can open its log. The one without its last segment but one has fewer records."""
    a, b = three.others()
    configs = {"min.insync.replicas": "2", "internal.segment.bytes": "1024", "remote.storage.enable": "false"}
    await three.controller.node.submit(CreateTopic(AT.topic, assignments=[[a.node_id, b.node_id]], configs=configs))
    await three.wait_until(lambda: a.node.hosted_replicas.find_leader(AT) is not None, 5)
    leader = a.node.leader_replica(*AT)
    for number in range(14):
        await leader.append(batch([b"%04d" % number * 60]))
    assert leader.log.segments.count > 2
    await b.kill()
    await three.wait_until(lambda: partition_image(three).isr == (a.node_id,), 30)
    await a.kill()
    await three.wait_until(lambda: partition_image(three).leader == NO_LEADER, 30)
    for each in (a, b):
        disk = each.machine.disk
        names = [name for name in disk.list(f"log/{AT}") if name.endswith(".log")]
        disk.flip_bit(f"log/{AT}/{names[-1]}", 8 * 400)
        if each is a:
            disk.remove(f"log/{AT}/{names[-2]}")
        disk.capacity = 1
    await a.start()
    await b.start()
    await asyncio.sleep(5)
    topic_id = three.controller.node.image.topics[AT.topic].topic_id
    ends = [each.node.hosted_replicas.log_store.end_of(AT, topic_id)[1] for each in (a, b)]
    for each in (a, b):
        each.machine.disk.capacity = None
    await three.wait_until(lambda: partition_image(three).leader != NO_LEADER, 120)
    assert ends == [9, 13]
    assert partition_image(three).leader == b.node_id
    await three.wait_until(lambda: partition_image(three).loss is not None, 60)


@run_by(run_scenario)
async def test_log_of_a_topic_that_was_deleted_meanwhile_leaves_the_disk(three: ThreeBrokers) -> None:
    a, _ = three.others()
    await create_filled_topic(three, [a], 1)
    await a.kill()
    await three.controller.node.submit(DeleteTopic(AT.topic))
    await a.start()
    assert [name for name in a.machine.disk.list("log") if name.startswith(str(AT))] == []
    await create_filled_topic(three, [a], 1)
    await three.controller.node.submit(DeleteTopic(AT.topic))
    await asyncio.sleep(90)
    assert [name for name in a.machine.disk.list("log") if name.startswith(str(AT))] == []


@pytest.mark.parametrize("stays", [True, False])
@run_by(run_scenario)
async def test_new_topic_begins_empty_in_the_directory_of_an_earlier_one(three: ThreeBrokers, *, stays: bool) -> None:
    """The earlier log `stays` if its deletion failed. Its notes in the data directory do not count."""
    a, _ = three.others()
    await create_filled_topic(three, [a], 1)
    await a.node.leader_replica(*AT).flush()
    await a.node.hosted_replicas.save_offsets()
    if stays:
        a.machine.disk.faults.append(DiskFault("rename", f"log/{AT}", "EMFILE", times=-1))
    await three.controller.node.submit(DeleteTopic(AT.topic))
    await three.wait_until(lambda: a.node.hosted_replicas.find_leader(AT) is None, 30)
    await asyncio.sleep(0.1)
    a.machine.disk.faults.clear()
    await three.controller.node.submit(CreateTopic(AT.topic, assignments=[[a.node_id]]))
    await three.wait_until(lambda: a.node.hosted_replicas.find_leader(AT) is not None, 30)
    replica = a.node.leader_replica(*AT)
    await replica.append(batch([b"%06d" % 0]))
    assert await read_values(replica, 0) == numbers(0, 1)
    await a.kill()
    await a.start()
    await three.wait_until(lambda: a.node.hosted_replicas.find_leader(AT) is not None, 30)
    assert await read_values(a.node.leader_replica(*AT), 0) == numbers(0, 1)


@run_by(run_scenario)
async def test_directory_of_an_earlier_topic_is_not_opened(three: ThreeBrokers) -> None:
    """Its deletion failed, and the replica of the next topic of that name comes by a move."""
    (a, b), c = three.others(), three.controller
    await create_filled_topic(three, [a], 1)
    a.machine.disk.faults.append(DiskFault("rename", f"log/{AT}", "EMFILE", times=-1))
    await c.node.submit(DeleteTopic(AT.topic))
    await c.node.submit(CreateTopic(AT.topic, assignments=[[b.node_id]]))
    await three.wait_until(lambda: b.node.hosted_replicas.find_leader(AT) is not None, 30)
    await b.node.leader_replica(*AT).append(batch([b"new"]))
    a.machine.disk.faults.clear()
    topic = c.node.image.topics[AT.topic]
    await c.node.submit(Reassign((Move(topic.topic_id, 0, (b.node_id, a.node_id)),)))
    await asyncio.sleep(10)
    follower = a.node.hosted_replicas.find_follower(AT)
    assert follower is None or follower.log.end_offset == 1
    await a.kill()
    await a.start()
    await three.wait_until(lambda: {*partition_image(three).isr} == {a.node_id, b.node_id}, 60)


@pytest.mark.parametrize("seed", range(2))
@run_by(run_scenario, seed=GIVEN)
async def test_log_that_a_start_cannot_open_is_checked_by_the_next_one(three: ThreeBrokers) -> None:
    """The power failed, and another broker leads meanwhile. Nothing of the log is believed before it was checked."""
    a, b = three.others()
    configs = {"internal.segment.bytes": "1024", "remote.storage.enable": "false"}
    nodes = [a.node_id, b.node_id]
    await three.controller.node.submit(CreateTopic(AT.topic, assignments=[nodes], configs=configs))
    await three.wait_until(lambda: a.node.hosted_replicas.find_leader(AT) is not None, 5)
    for number in range(20):
        await a.node.leader_replica(*AT).append(batch([b"%04d" % number * 60]))
        if number == 4:
            await a.node.leader_replica(*AT).flush()
    a.machine.power_cut()
    await a.clear()
    a.machine.disk.faults.append(DiskFault("open", f"log/{AT}/0", "EMFILE", times=-1))
    await three.wait_until(lambda: partition_image(three).leader == b.node_id, 60)
    await a.start()
    await asyncio.sleep(5)
    assert str(AT) in a.node.hosted_replicas.list_unserved()
    await a.kill()
    a.machine.disk.faults.clear()
    await a.start()
    await three.wait_until(lambda: {*partition_image(three).isr} == {*nodes}, 60)
    assert read_all_segments(a) == read_all_segments(b)


@run_by(run_scenario)
async def test_rotten_log_that_a_start_cannot_open_counts_no_more(three: ThreeBrokers) -> None:
    """A call of the disk fails, and a record has rotted. Nobody elects the broker for what the log had."""
    a, b = three.others()
    configs = {"min.insync.replicas": "2", "remote.storage.enable": "false"}
    await three.controller.node.submit(CreateTopic(AT.topic, assignments=[[a.node_id, b.node_id]], configs=configs))
    await three.wait_until(lambda: a.node.hosted_replicas.find_leader(AT) is not None, 5)
    for number in range(14):
        await a.node.leader_replica(*AT).append(batch([b"%04d" % number * 60]))
    await b.kill()
    await three.wait_until(lambda: partition_image(three).elr == (b.node_id,), 30)
    disk = b.machine.disk
    disk.flip_bit(f"log/{AT}/{0:020d}.log", 8 * 2000)
    disk.faults.append(DiskFault("open", f"log/{AT}/{0:020d}.log", "EMFILE"))
    await b.start()
    assert partition_image(three).elr == ()
    await three.wait_until(lambda: {*partition_image(three).isr} == {a.node_id, b.node_id}, 120)
    assert read_all_segments(a) == read_all_segments(b)


def read_all_segments(broker: SimBroker) -> bytes:
    disk = broker.machine.disk
    names = [name for name in disk.list(f"log/{AT}") if name.endswith(".log")]
    files = [disk.open(f"log/{AT}/{name}", write=False) for name in names]
    return b"".join(file.pread(0, file.size()) for file in files)


@run_by(run_scenario)
async def test_topic_recreated_while_its_broker_is_down_begins_anew(three: ThreeBrokers) -> None:
    """Neither the records of the earlier topic count on that broker, nor what was noted of them."""
    (a, b), c = three.others(), three.controller
    await create_filled_topic(three, [a, b], 1)
    await a.node.leader_replica(*AT).flush()
    await a.node.hosted_replicas.save_offsets()
    await a.kill()
    await c.node.submit(DeleteTopic(AT.topic))
    await c.node.submit(CreateTopic(AT.topic, assignments=[[b.node_id, a.node_id]]))
    await three.wait_until(lambda: b.node.hosted_replicas.find_leader(AT) is not None, 30)
    await b.node.leader_replica(*AT).append(batch([b"new"]))
    await a.start()
    await three.wait_until(lambda: {*partition_image(three).isr} == {a.node_id, b.node_id}, 60)
    follower = a.node.hosted_replicas.find_follower(AT)
    assert follower is not None and (follower.log.start_offset, follower.log.end_offset) == (0, 1)


@run_by(run)
async def test_damaged_indexes_hide_no_record(rig: SimBrokerRig) -> None:
    """After a power cut, a look-up by time would pass over records if the start believed the time index."""
    await rig.start(QUICK)
    replica = await rig.create("t", 1, index_interval_bytes="1024", **BIG)
    for number in range(20):
        await replica.append(batch([b"%06d" % number + b"x" * 1000], timestamp=FIRST_MS + 1000 * number))
    await replica.flush()
    await rig.broker.hosted_replicas.save_offsets()
    await rig.crash(rig.machine.power_cut)
    base = log_path(rig).removesuffix(".log")
    for entry in range(10):  # a lower timestamp, and another position
        rig.machine.disk.flip_bit(f"{base}.timeindex", 8 * (12 * entry + 2))
        rig.machine.disk.flip_bit(f"{base}.index", 8 * (8 * entry + 7) + 4)
    await rig.start(QUICK)
    replica = rig.broker.leader_replica("t", 0)
    assert await read_values(replica, 0) == numbers(0, 20)
    for number in range(20):
        found = await replica.reads.offset_for_timestamp(FIRST_MS + 1000 * number)
        assert found is not None and found[0] == number


class Producers:
    """Idempotent producers of one partition, and their last batches."""

    def __init__(self, rng: random.Random) -> None:
        self.sent: dict[int, list[tuple[int, bytes]]] = {}
        self.values: list[bytes] = []
        self._rng = rng

    async def write(self, replica: LeaderReplica, count: int) -> None:
        for _ in range(count):
            producer = self._rng.randint(1, 3)
            known = self.sent.setdefault(producer, [])
            value = b"%06d" % len(self.values) + b"x" * self._rng.randint(50, 400)
            data = encode_batch(
                [(1, b"k", value, ())], codec=Codec.NONE, producer_id=producer, producer_epoch=0,
                base_sequence=len(known),
            )  # fmt: skip
            appended = await replica.append(bytearray(data))
            assert appended.base_offset == len(self.values)
            known.append((appended.base_offset, bytes(data)))
            self.values.append(value[:6])

    def forget_from(self, end: int) -> None:
        """Drops what a power cut took."""
        del self.values[end:]
        for producer, known in self.sent.items():
            self.sent[producer] = [each for each in known if each[0] < end]

    async def retry_all(self, replica: LeaderReplica) -> None:
        """Sends the last five batches of each producer again: the offsets are those of the first try (I11)."""
        for known in self.sent.values():
            for offset, data in known[-5:]:
                assert (await replica.append(bytearray(data))).base_offset == offset


@run_by(run)
async def test_entries_of_a_clean_stop_count_for_the_next_start_only(rig: SimBrokerRig) -> None:
    await rig.start(QUICK)
    await fill(await rig.create("t", 1, **BIG), 3)
    await rig.stop()
    rig.machine.kill()
    for _ in range(2):
        await rig.start(QUICK)
        assert await read_values(rig.broker.leader_replica("t", 0), 0) == numbers(0, 3)
        await rig.crash(rig.machine.kill)


@run_by(run)
async def test_failed_disk_is_not_trusted_after_a_kill(rig: SimBrokerRig) -> None:
    """The boot is the same, but the page cache may lack what the failed write held."""
    await rig.start()
    replica = await rig.create(flush="none", retention_ms="-1")
    await fill(replica, 5)
    rig.machine.disk.faults.append(DiskFault("append", ".log"))
    with pytest.raises(Refused):
        await fill(replica, 1, start=5)
    await asyncio.wait_for(rig.broker.ended.wait(), 1)
    await rig.crash(rig.machine.kill)
    again = (await rig.start()).leader_replica("t", 0)
    assert (explain(again)["possible_loss"] or {}).get("from_offset") == again.high_watermark


@run_by(run)
async def test_retry_is_known_after_a_clean_stop_of_a_small_log(rig: SimBrokerRig) -> None:
    producers = Producers(random.Random("producers"))
    await rig.start(QUICK)
    await producers.write(await rig.create("t", 1, **BIG), 6)
    await rig.stop()
    rig.machine.kill()
    await rig.start(QUICK)
    replica = rig.broker.leader_replica("t", 0)
    await producers.retry_all(replica)
    assert replica.log.end_offset == 6


@run_by(run)
async def test_retry_is_known_after_a_kill_behind_a_marker(rig: SimBrokerRig) -> None:
    producers = Producers(random.Random("producers"))
    await rig.start(QUICK)
    replica = await rig.create("t", 1, **BIG)
    await producers.write(replica, 9)
    markers = [TransactionMarker(producer, 0, commit=True, coordinator_epoch=1) for producer in producers.sent]
    for marker in markers:
        replica.append_now(encode_marker(marker, FIRST_MS), 1, from_coordinator=True)
    end = replica.log.end_offset
    await rig.crash(rig.machine.kill)
    await rig.start(QUICK)
    replica = rig.broker.leader_replica("t", 0)
    await producers.retry_all(replica)
    for marker in markers:
        await replica.transactions.append_marker(marker)
    assert replica.log.end_offset == end == 9 + len(markers)


@run_by(run)
async def test_retry_is_known_after_a_lost_disk(rig: SimBrokerRig) -> None:
    """The last batches of each producer are in several segments of the bucket."""
    producers = Producers(random.Random("producers"))
    await rig.start(QUICK)
    replica = await rig.create("t", internal_segment_bytes="1500", retention_ms="-1")
    await producers.write(replica, 30)
    replica.roll()
    await rig.wait_until(lambda: replica.cold_end_offset == 30)
    await rig.crash(rig.machine.lose_disk)
    await rig.start(QUICK)
    replica = rig.broker.leader_replica("t", 0)
    await producers.retry_all(replica)
    assert replica.log.end_offset == 30 and replica.log.epochs.lineage[0] == (0, 0)
    assert await read_values(replica, 0) == producers.values


@pytest.mark.parametrize("size", [100, 40])
@run_by(run)
async def test_small_log_that_grew_after_a_clean_stop_is_read(rig: SimBrokerRig, *, size: int) -> None:
    """Another program wrote to its end, perhaps less than the header of a batch."""
    await rig.start(QUICK)
    await fill(await rig.create("t", 1, **BIG), 3)
    await rig.stop()
    rig.machine.kill()
    rig.machine.disk.open(log_path(rig)).append([b"x" * size])
    await rig.start(QUICK)
    replica = rig.broker.leader_replica("t", 0)
    assert (explain(replica)["possible_loss"] or {}).get("from_offset") == 3
    await fill(replica, 1, 3)
    assert await read_values(replica, 0) == numbers(0, 4)


@run_by(run)
async def test_damage_below_the_log_start_is_no_loss(rig: SimBrokerRig) -> None:
    """All records were deleted. A damaged index makes the start read them."""
    await rig.start(QUICK)
    replica = await rig.create("t", 1, flush="ack", index_interval_bytes="1", remote_storage_enable="false", **BIG)
    await fill(replica, 6)
    await replica.flush()
    assert await replica.deletion.delete_records(-1) == 6
    await rig.broker.hosted_replicas.save_offsets()
    await asyncio.sleep(5)
    await rig.crash(rig.machine.power_cut)
    rig.machine.disk.flip_bit(log_path(rig).replace(".log", ".index"), 8 * 7 + 4)
    rig.machine.disk.flip_bit(log_path(rig), 8 * 3000)
    await rig.start(QUICK)
    replica = rig.broker.leader_replica("t", 0)
    assert (replica.log_start_offset, replica.log.end_offset) == (6, 6)
    assert explain(replica)["possible_loss"] is None


@run_by(run)
async def test_closed_segment_that_is_shorter_than_noted_has_a_gap(rig: SimBrokerRig) -> None:
    await rig.start(QUICK)
    replica = await rig.create("t", 1, internal_segment_bytes="4096", retention_ms="-1", remote_storage_enable="false")
    await fill(replica, 12)
    first = replica.log.segments.closed()[0]
    await rig.stop()
    rig.machine.kill()
    rig.machine.disk.open(f"log/t-0/{0:020d}.log").truncate(first.size - 100)
    await rig.start(QUICK)
    replica = rig.broker.leader_replica("t", 0)
    assert replica.log.segments.gaps == [(first.next_offset - 1, first.next_offset)]


@run_by(run)
async def test_leader_epochs_after_a_power_cut_are_those_of_the_batches(rig: SimBrokerRig) -> None:
    await rig.start(QUICK)
    replica = await rig.create("t", 1, flush="ack", remote_storage_enable="false", **BIG)
    await fill(replica, 5)
    await replica.flush()
    await rig.broker.hosted_replicas.save_offsets()
    await rig.crash(rig.machine.power_cut)
    rig.machine.disk.flip_bit(f"log/t-0/{EPOCHS_FILE}", 8 * len("0 1 "))  # epoch 1 in place of epoch 0
    await rig.start(QUICK)
    assert rig.broker.leader_replica("t", 0).log.epochs.lineage == ((0, 0),)


@run_by(run)
async def test_empty_file_of_leader_epochs_is_written_anew(rig: SimBrokerRig) -> None:
    """A power cut empties a file that was not fsynced. The batches tell the epochs."""
    await rig.start(QUICK)
    replica = await rig.create("t", 1, remote_storage_enable="false", **BIG)
    await fill(replica, 5)
    await replica.flush()
    await rig.crash(rig.machine.kill)
    rig.machine.disk.open(f"log/t-0/{EPOCHS_FILE}").truncate(0)
    await rig.start(QUICK)
    assert rig.broker.leader_replica("t", 0).log.epochs.lineage == ((0, 0),)


@run_by(run)
async def test_epoch_of_a_record_that_is_gone_is_forgotten(rig: SimBrokerRig) -> None:
    await rig.start(QUICK)
    await fill(await rig.create("t", 1, **BIG), 5)
    await rig.crash(rig.machine.kill)
    await rig.start(QUICK)
    await fill(rig.broker.leader_replica("t", 0), 1, 5)
    await rig.stop()
    rig.machine.kill()
    file = rig.machine.disk.open(log_path(rig))
    file.truncate(file.size() - 100)
    await rig.start(QUICK)
    replica = rig.broker.leader_replica("t", 0)
    assert (replica.log.end_offset, replica.log.epochs.lineage) == (5, ((0, 0),))


@run_by(run)
async def test_records_below_a_lost_log_start_have_their_epochs(rig: SimBrokerRig) -> None:
    """All records were deleted, and the disk did not take a note of that. A stop writes the epochs that are left."""
    await rig.start(QUICK)
    replica = await rig.create("t", 1, remote_storage_enable="false", **BIG)
    await fill(replica, 5)
    rig.machine.disk.faults.append(DiskFault("rename", LOG_STARTS, "EMFILE", times=-1))
    with suppress(Refused, Unavailable, TimeoutError):
        await asyncio.wait_for(replica.deletion.delete_records(-1), 5)
    await rig.stop()
    rig.machine.kill()
    rig.machine.disk.faults.clear()
    await rig.start(QUICK)
    replica = rig.broker.leader_replica("t", 0)
    assert (replica.log_start_offset, replica.log.epochs.lineage) == (0, ((0, 0),))


@run_by(run_scenario)
async def test_unopened_log_does_not_claim_what_a_later_epoch_had_replaced(three: ThreeBrokers) -> None:
    """A batch of the first epoch stands behind those of a later one. The start cannot note that on a full disk."""
    a, _ = three.others()
    await create_filled_topic(three, [a], 1, tiered=False)
    await a.kill()
    old = read_log_file(a)
    await a.start()
    await three.wait_until(lambda: a.node.hosted_replicas.find_leader(AT) is not None, 30)
    await a.node.leader_replica(*AT).append(batch([b"new"]))
    await a.kill()
    left = bytearray(old[: len(old) // RECORDS])
    left[:8] = (RECORDS + 1).to_bytes(8, "big")
    a.machine.disk.open(log_file(a)).append([left])
    a.machine.disk.capacity = 1
    await a.start()
    await asyncio.sleep(5)
    topic_id = three.controller.node.image.topics[AT.topic].topic_id
    assert a.node.hosted_replicas.log_store.end_of(AT, topic_id)[1] == RECORDS + 1
    a.machine.disk.capacity = None


@run_by(run)
async def test_batch_of_an_earlier_epoch_behind_a_later_one_is_cut(rig: SimBrokerRig) -> None:
    """It belongs to a history that was truncated."""
    await rig.start(QUICK)
    replica = await rig.create("t", 1, **BIG)
    await replica.append(batch([b"%06d" % 0]))
    await rig.crash(rig.machine.kill)
    file = rig.machine.disk.open(log_path(rig))
    left = bytearray(file.pread(0, file.size()))
    await rig.start(QUICK)
    await rig.broker.leader_replica("t", 0).append(batch([b"%06d" % 1]))
    await rig.crash(rig.machine.kill)
    left[:8] = (2).to_bytes(8, "big")
    rig.machine.disk.open(log_path(rig)).append([left])
    await rig.start(QUICK)
    assert rig.broker.leader_replica("t", 0).log.end_offset == 2


@pytest.mark.parametrize("end", ["power cut", "clean stop"])
@run_by(run)
async def test_damage_that_no_crash_explains_is_reported(rig: SimBrokerRig, *, end: str) -> None:
    """The topic counts fsyncs only, and all its records were fsynced. After the power cut a damaged index makes the
    start read them."""
    producers = Producers(random.Random("producers"))
    await rig.start(QUICK)
    interval = "1" if end == "power cut" else "4096"
    replica = await rig.create("t", 1, flush="ack", index_interval_bytes=interval, **BIG)
    await producers.write(replica, 6)
    await replica.flush()  # with indexes: the segment checkpoint proves the log
    await rig.broker.hosted_replicas.save_offsets()
    await asyncio.sleep(5)
    if end == "clean stop":
        await rig.stop()
        rig.machine.kill()
    else:
        await rig.crash(rig.machine.power_cut)
        rig.machine.disk.flip_bit(log_path(rig).replace(".log", ".index"), 8 * 7 + 4)
    size = replica.log.segments.size_bytes
    rig.machine.disk.flip_bit(log_path(rig), 8 * (size - 20))
    await rig.start(QUICK)
    replica = rig.broker.leader_replica("t", 0)
    assert replica.log.end_offset == 5
    assert explain(replica)["possible_loss"]["from_offset"] == 5


@pytest.mark.parametrize("is_clean", [False, True])
@run_by(run)
async def test_damaged_length_that_no_torn_write_explains_is_reported(rig: SimBrokerRig, *, is_clean: bool) -> None:
    """The end of a process tears at most the last write, and a clean stop tears none."""
    producers = Producers(random.Random("producers"))
    await rig.start(QUICK)
    replica = await rig.create("t", 1, **BIG)
    await producers.write(replica, 5)
    size = replica.log.segments.size_bytes
    await producers.write(replica, 1)
    if is_clean:
        await rig.stop()
        rig.machine.kill()
        rig.machine.disk.flip_bit(log_path(rig), 8 * (size + 70))  # a batch with the right CRC is no torn one
    else:
        await producers.write(replica, 4)
        await rig.crash(rig.machine.kill)
    rig.machine.disk.flip_bit(log_path(rig), 8 * (size + 9))
    await rig.start(QUICK)
    replica = rig.broker.leader_replica("t", 0)
    assert replica.log.end_offset == 5
    assert (explain(replica)["possible_loss"] or {}).get("from_offset") == 5


@run_by(run)
async def test_batch_that_is_missing_ends_the_log(rig: SimBrokerRig) -> None:
    """Later batches do not close the hole."""
    await rig.start(QUICK)
    replica = await rig.create("t", 1, **BIG)
    for number in range(6):
        await replica.append(batch([b"%06d" % number]))
    size = replica.log.segments.size_bytes // 6
    await rig.crash(rig.machine.kill)
    file = rig.machine.disk.open(log_path(rig))
    data = file.pread(0, file.size())
    file.truncate(2 * size)
    file.append([data[3 * size :]])
    await rig.start(QUICK)
    replica = rig.broker.leader_replica("t", 0)
    assert replica.log.end_offset == explain(replica)["possible_loss"]["from_offset"] == 2


@pytest.mark.parametrize("verb", ["append", "sync"])
@run_by(run)
async def test_failed_disk_ends_the_broker_and_is_not_trusted_again(rig: SimBrokerRig, *, verb: str) -> None:
    await rig.start()
    replica = await rig.create(flush="ack", retention_ms="-1")
    await fill(replica, 5)
    rig.machine.disk.faults.append(DiskFault(verb, ".log"))
    with refuses(Code.KAFKA_STORAGE_ERROR):
        await fill(replica, 1, start=5)
    await asyncio.wait_for(rig.broker.ended.wait(), 1)
    health = rig.broker.health()
    assert not health.ok
    assert any("data directory" in each for each in health.problems)
    await rig.stop()
    rig.machine.kill()
    again = (await rig.start()).leader_replica("t", 0)
    assert (await read_values(again, 0))[:5] == numbers(0, 5)
    assert (explain(again)["possible_loss"] or {}).get("from_offset") == again.high_watermark


@run_by(run)
async def test_stop_that_could_not_close_all_logs_is_not_clean(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create(flush="none", retention_ms="-1")
    await fill(replica, 5)
    rig.machine.disk.faults.append(DiskFault("sync", ".log", "EMFILE"))
    await rig.stop()
    rig.machine.power_cut()
    again = (await rig.start()).leader_replica("t", 0)
    assert (explain(again)["possible_loss"] or {}).get("from_offset") == again.high_watermark


@pytest.mark.parametrize("seed", range(4))
@run_by(run, seed=GIVEN)
async def test_epoch_whose_records_a_power_cut_took_is_forgotten(rig: SimBrokerRig) -> None:
    """The file of epochs was fsynced, and the first record of the last epoch was not."""
    await rig.start(QUICK)
    replica = await rig.create("t", 1, **BIG)
    await fill(replica, 5)
    await replica.flush()
    await rig.broker.hosted_replicas.save_offsets()
    await rig.crash(rig.machine.kill)
    await rig.start(QUICK)
    await fill(rig.broker.leader_replica("t", 0), 1, 5)
    await rig.machine.disk.open(f"log/t-0/{EPOCHS_FILE}").sync()
    await rig.machine.disk.sync_dir("log/t-0")
    await rig.crash(rig.machine.power_cut)
    await rig.start(QUICK)
    replica = rig.broker.leader_replica("t", 0)
    assert all(start < replica.log.end_offset for _, start in replica.log.epochs.lineage)
    await fill(replica, 1, replica.log.end_offset)
    await rig.stop()


@run_by(run)
async def test_disk_that_failed_takes_no_record_of_any_topic(rig: SimBrokerRig) -> None:
    await rig.start(QUICK)
    failing = await rig.create("t", 1, flush="ack", **BIG)
    other = await rig.create("u", 1, **BIG)
    await fill(other, 1)
    rig.machine.disk.faults.append(DiskFault("sync", "log/t-0", "EIO"))
    with pytest.raises(Refused):
        await fill(failing, 1)
    for replica in (failing, other):
        with pytest.raises(Refused):
            replica.append_now(batch([b"late"]), 1)
    rig.machine.kill()


@run_by(run)
async def test_damaged_leader_epochs_cost_no_record(rig: SimBrokerRig) -> None:
    """They contradict the bucket. The records tell the true ones, and those above the cold end are only here."""
    await rig.start(QUICK)
    replica = await rig.create("t", internal_segment_bytes="4096", retention_ms="-1")
    await fill(replica, 20)
    await rig.wait_until(lambda: replica.cold_end_offset > 0)
    await fill(replica, 2, 20)
    await rig.crash(rig.machine.kill)
    assert replica.cold_end_offset < 22
    rig.machine.disk.flip_bit(f"log/t-0/{EPOCHS_FILE}", 8 * len("0 1 "))  # epoch 1 in place of epoch 0
    await rig.start(QUICK)
    replica = rig.broker.leader_replica("t", 0)
    assert await read_values(replica, 0) == numbers(0, 22)
    assert explain(replica)["possible_loss"] is None


@pytest.mark.parametrize("seed", first_seeds(3, of=12))
@run_by(run, seed=GIVEN)
async def test_any_end_of_the_process_keeps_what_was_fsynced(rig: SimBrokerRig, *, seed: int) -> None:
    """Kills, power cuts and clean stops follow each other, also in the middle of an fsync."""
    rng, producers = random.Random(f"{seed}/ends"), Producers(random.Random(f"{seed}/producers"))
    rig.machine.disk.sync_seconds = lambda: 0.002
    await rig.start(QUICK)
    replica = await rig.create("t", internal_segment_bytes="1500", retention_ms="-1", remote_storage_enable="false")
    for _ in range(5):
        await producers.write(replica, rng.randint(3, 9))
        if rng.random() < 0.7:
            await replica.flush()
        if rng.random() < 0.5:
            await rig.broker.hosted_replicas.save_offsets()
        await producers.write(replica, rng.randint(0, 9))
        flushing = asyncio.ensure_future(replica.flush())
        await asyncio.sleep(rng.choice((0.0, 0.001, 0.003, 0.01)))
        flushed, how = replica.log.flushed_offset, rng.choice(("kill", "power", "power", "stop"))
        if how == "stop":
            await rig.stop()
            rig.machine.kill()
        else:
            await rig.crash(rig.machine.kill if how == "kill" else rig.machine.power_cut)
        await asyncio.gather(flushing, return_exceptions=True)
        await rig.start(QUICK)
        replica = rig.broker.leader_replica("t", 0)
        end = replica.log.end_offset
        assert end == len(producers.values) if how != "power" else flushed <= end <= len(producers.values)
        producers.forget_from(end)
        assert await read_values(replica, 0) == producers.values
        await producers.retry_all(replica)
        assert replica.log.end_offset == end
    await rig.stop()
