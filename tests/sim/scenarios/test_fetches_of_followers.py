"""One leader, and two followers that are only their fetches: late ones, of earlier processes, of other histories.

The high watermark and the ISR go by what the fetches prove, and by nothing else (R2, R3, R6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, batch, run
from tests.sim.scenarios.test_requests_of_brokers import ONE, THREE, TWO, Members
from tiered.controller.requests import ElectLeaders, Move, Reassign
from tiered.errors import Code, Refused
from tiered.ids import NO_EPOCH, incarnation_number
from tiered.peers import DivergingEpoch, PartitionFetch
from tiered.ports import FileSlice
from tiered.records.native import walk
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.read_result import FollowerReadResult, RecordBytes

LAG = 2.0
SETTINGS = replace(QUICK, replica_lag_time_max_ms=int(LAG * 1000), broker_session_timeout_ms=600_000)


class Followers(Members):
    """The brokers 2 and 3 follow the partition that the real broker leads."""

    @property
    def leader(self) -> LeaderReplica:
        return self.rig.broker.leader_replica("t", 0)

    @property
    def high_watermark(self) -> int:
        return self.leader.high_watermark

    def fetch(
        self, node: int, offset: int, *, life: int | None = None, epoch: int | None = None, last: int | None = None,
        log_start: int = 0,
    ) -> FollowerReadResult:  # fmt: skip
        """Fetches from `offset` on. `epoch` is the leader epoch that the follower knows, `last` that of its last
        record."""
        known = self.leader.leader_epoch if epoch is None else epoch
        before = self.leader.log.epochs.epoch_at(offset - 1) if offset else NO_EPOCH
        request = PartitionFetch(
            self.topic_id, 0, known, offset, before if last is None else last, log_start, log_start
        )  # fmt: skip
        number = incarnation_number(self.incarnation(node, life))
        return self.leader.handle_follower_fetch(node, number, request, 1 << 20)

    def write(self, count: int) -> int:
        """Appends records that no producer waits for; returns the log end."""
        for _ in range(count):
            self.leader.append_now(batch([b"v"]), 1)
        return self.leader.log.end_offset

    def replicate(self, count: int) -> int:
        """Appends records, which both followers fetch; returns the log end."""
        end = self.write(count)
        for node in (TWO, THREE):
            self.fetch(node, end)
        return end

    async def lead_next(self, node: int) -> None:
        """Makes a broker the preferred leader, and has it elected."""
        others = [each for each in (ONE, TWO, THREE) if each != node]
        await self.rig.broker.submit(Reassign((Move(self.topic_id, 0, (node, *others)),)))
        await self.rig.broker.submit(ElectLeaders(True, ((self.topic_id, 0),)))
        assert self.now.leader == node

    async def leave(self, node: int, stays: int) -> None:
        """Writes, and lets `node` fall behind until it has left the ISR. `stays` fetches."""
        end = self.write(1)
        while node in self.now.isr:
            self.fetch(stays, end)
            await asyncio.sleep(0.2)


def count_batches(data: RecordBytes) -> int:
    found = data.file.pread(data.start, data.length) if isinstance(data, FileSlice) else data
    return len(walk(found).batches) if found else 0


def run_followers(scenario: Callable[[Followers], Awaitable[None]]) -> None:
    async def run_all(rig: SimBrokerRig) -> None:
        await rig.start(SETTINGS)
        followers = Followers(rig)
        for node in (TWO, THREE):
            await followers.register(node)
        await followers.create(ONE, TWO, THREE, retention_ms="-1")
        await scenario(followers)
        await rig.stop()

    run(run_all)


@run_by(run_followers)
async def test_record_is_committed_once_every_member_fetched_behind_it(of: Followers) -> None:
    of.write(5)
    of.fetch(TWO, 5)
    assert of.high_watermark == 0, "the third one has not fetched"
    of.fetch(THREE, 3)
    assert of.high_watermark == 3
    for offset, count in ((0, 3), (2, 1), (3, 0)):
        shown = of.leader.reads.read_now(offset, 1 << 20)
        assert shown is not None and count_batches(shown.data) == count, "readers see what is committed"
    of.fetch(THREE, 5)
    assert of.high_watermark == 5
    of.fetch(TWO, 2)
    assert of.high_watermark == 5, "it never goes back"
    end = of.write(1)
    of.fetch(TWO, end)
    number = incarnation_number(of.incarnation(THREE))
    assert not of.leader.handle_repeated_fetch(THREE, number, end, 1), "it has one record more than at its last one"
    of.fetch(THREE, end)
    assert of.high_watermark == end and of.leader.handle_repeated_fetch(THREE, number, end, 1)


@run_by(run_followers)
async def test_follower_joins_once_it_has_all_that_is_committed(of: Followers) -> None:
    of.replicate(5)
    await of.leave(THREE, TWO)
    end = of.write(3)
    of.fetch(TWO, end)
    assert of.high_watermark == end
    for offset in (5, end - 1):
        of.fetch(THREE, offset)
        await asyncio.sleep(1.5)
        assert THREE not in of.now.isr, f"it has everything below {offset}"
    of.fetch(THREE, end)  # it has everything, and more is committed before the leader looks
    end = of.write(3)
    of.fetch(TWO, end)
    await asyncio.sleep(1)
    assert of.high_watermark == end and THREE not in of.now.isr
    of.fetch(THREE, end)
    await asyncio.sleep(1)
    assert THREE in of.now.isr


@run_by(run_followers)
async def test_follower_joins_a_new_leader_with_all_that_it_began_with(of: Followers) -> None:
    """The leader does not know yet what of its log is committed (R2)."""
    of.replicate(5)
    await of.leave(THREE, TWO)
    end = of.write(3)
    await of.lead_next(TWO)
    await of.lead_next(ONE)
    await of.rig.wait_until(lambda: of.leader.leader_epoch == of.now.leader_epoch, 5)
    assert (of.high_watermark, of.leader.epoch_start) == (6, end)
    of.fetch(THREE, end - 1)
    await asyncio.sleep(1.5)
    assert THREE not in of.now.isr
    of.fetch(THREE, end)
    await asyncio.sleep(1.5)
    assert THREE in of.now.isr


@run_by(run_followers)
async def test_fetches_of_another_process_prove_nothing(of: Followers) -> None:
    of.replicate(5)
    of.write(1)
    for life in (0, 2):
        with refuses(Code.STALE_BROKER_EPOCH):
            of.fetch(THREE, 6, life=life)
    numbers = [incarnation_number(of.incarnation(THREE, life)) for life in (2, 1)]
    of.fetch(THREE, 6)
    found = [of.leader.handle_repeated_fetch(THREE, number, 6, 1) for number in numbers]
    assert found == [False, True] and not of.leader.handle_repeated_fetch(THREE, numbers[1], 5, 1)
    of.fetch(TWO, 6)
    await of.register(THREE)
    assert THREE not in of.now.isr
    await of.rig.wait_until(lambda: THREE not in of.leader.state.isr, 5)
    of.fetch(THREE, 6, life=1)
    await asyncio.sleep(3)
    assert THREE not in of.now.isr, "a dead process fetched"
    of.fetch(THREE, 6)
    await asyncio.sleep(2)
    assert THREE in of.now.isr


@run_by(run_followers)
async def test_fetches_of_brokers_without_a_replica_are_refused(of: Followers) -> None:
    end = of.replicate(5)
    await of.rig.broker.submit(Reassign((Move(of.topic_id, 0, (ONE, TWO)),)))
    await of.rig.wait_until(lambda: of.leader.state.replicas == (ONE, TWO), 5)
    for node in (THREE, ONE):
        with refuses(Code.STALE_BROKER_EPOCH):
            of.fetch(node, end)
    await of.rig.broker.submit(Reassign((Move(of.topic_id, 0, (ONE, TWO, THREE)),)))
    await asyncio.sleep(3)
    assert THREE not in of.now.isr, "it is back, and has not fetched since"


@run_by(run_followers)
async def test_logs_of_other_histories_are_sent_to_where_they_part(of: Followers) -> None:
    """The leader wrote under the epochs 0 and 2. Positions of followers that differ do not count."""
    of.replicate(5)
    await of.lead_next(TWO)
    await of.lead_next(ONE)
    await of.rig.wait_until(lambda: of.leader.leader_epoch == of.now.leader_epoch, 5)
    new = of.leader.leader_epoch
    end = of.write(4)
    assert new >= 2 and of.leader.log.epochs.lineage == ((0, 0), (new, 5))
    assert of.fetch(TWO, 7, last=new - 1).diverging == DivergingEpoch(0, 5), "no such epoch here"
    assert of.fetch(TWO, 7, last=0).diverging == DivergingEpoch(0, 5), "its epoch ends earlier here"
    of.fetch(THREE, end)
    assert of.high_watermark == 5, "what differs does not count"
    assert of.fetch(TWO, 5, last=0).diverging is None and of.fetch(TWO, end).diverging is None
    assert of.high_watermark == end
    for epoch, last, code in (
        (new - 1, None, Code.FENCED_LEADER_EPOCH),
        (new + 1, None, Code.UNKNOWN_LEADER_EPOCH),
        (new, new + 1, Code.UNKNOWN_LEADER_EPOCH),
    ):
        with refuses(code):
            of.fetch(TWO, 5, epoch=epoch, last=last)
    assert of.fetch(TWO, end + 3, last=NO_EPOCH).code is Code.OFFSET_OUT_OF_RANGE


@run_by(run_followers)
async def test_follower_is_not_sent_to_a_bucket_that_lacks_the_damaged_records(of: Followers) -> None:
    of.write(5)
    size = of.leader.log.segments.size_bytes // 5
    of.rig.machine.disk.flip_bit(f"log/t-0/{0:020d}.log", 8 * (3 * size + 8))  # the length of a batch
    with refuses(Code.KAFKA_STORAGE_ERROR):
        of.fetch(TWO, 4)
    of.rig.machine.disk.flip_bit(f"log/t-0/{0:020d}.log", 8 * (3 * size + 8))


@run_by(run_followers)
async def test_deletion_is_complete_once_every_member_knows_of_it(of: Followers) -> None:
    end = of.replicate(6)
    of.write(1)
    with pytest.raises(Refused) as refused:
        await of.leader.deletion.delete_records(end + 1)
    assert refused.value.code is Code.OFFSET_OUT_OF_RANGE, "it is not committed"
    end = of.leader.log.end_offset
    for node in (TWO, THREE):
        of.fetch(node, end)
    deleting = asyncio.ensure_future(of.leader.deletion.delete_records(4))
    await asyncio.sleep(1)
    of.fetch(TWO, end, log_start=4)
    await asyncio.sleep(1)
    assert not deleting.done()
    of.fetch(THREE, end, log_start=4)
    await asyncio.wait_for(deleting, 1)
    with refuses(Code.OFFSET_OUT_OF_RANGE):
        of.leader.reads.read_now(3, 1 << 20)
    await of.leave(THREE, TWO)
    end = of.leader.log.end_offset
    of.fetch(THREE, end)
    await asyncio.sleep(2)
    assert THREE not in of.now.isr, "it would serve what is deleted"
    of.fetch(THREE, end, log_start=4)
    await asyncio.sleep(1)
    assert THREE in of.now.isr


@run_by(run_followers)
async def test_deletion_that_waits_is_refused_once_another_broker_leads(of: Followers) -> None:
    of.replicate(6)
    deleting = asyncio.ensure_future(of.leader.deletion.delete_records(4))
    await asyncio.sleep(1)
    assert not deleting.done()
    await of.lead_next(TWO)
    with refuses(Code.NOT_LEADER_OR_FOLLOWER):
        await asyncio.wait_for(deleting, 5)


@run_by(run_followers)
async def test_isr_changes_that_nobody_decides_count_on_both_sides(of: Followers) -> None:
    """The bucket is away. A request of the leader may be granted later, and it requests more meanwhile."""
    end = of.replicate(5)
    await of.leave(THREE, TWO)
    end = of.leader.log.end_offset
    of.fetch(TWO, end)
    committed = of.high_watermark
    assert committed == end
    of.rig.machine.faults.outage = True
    of.fetch(THREE, end)
    await asyncio.sleep(0.5)
    end = of.write(3)
    for _ in range(8):  # longer than the leader waits, and longer than a follower may lag
        of.fetch(TWO, end)
        assert of.high_watermark == committed, "the third one may be in sync by now"
        await asyncio.sleep(2)
    of.rig.machine.faults.outage = False
    await of.rig.wait_until(lambda: of.leader.state.partition_epoch == of.now.partition_epoch, 30)
    for _ in range(3):
        for node in (TWO, THREE):
            of.fetch(node, end)
        await asyncio.sleep(2)
    assert {*of.now.isr} == {ONE, TWO, THREE} and of.high_watermark == end
    settled = of.now.partition_epoch
    await asyncio.sleep(5)
    assert of.now.partition_epoch == settled, "no change is due"


@run_by(run_followers)
async def test_member_that_is_to_leave_counts_until_it_has_left(of: Followers) -> None:
    end = of.replicate(5)
    of.rig.machine.faults.outage = True
    end = of.write(3)
    for _ in range(8):
        of.fetch(TWO, end)
        assert of.high_watermark == 5
        await asyncio.sleep(1)
    of.rig.machine.faults.outage = False
    await of.rig.wait_until(lambda: THREE not in of.leader.state.isr, 30)
    assert of.high_watermark == end
