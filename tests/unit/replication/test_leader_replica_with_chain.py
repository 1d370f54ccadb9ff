"""Tests of leader replicas whose topic has `flush=bucket`: when records are committed, and what a new leader has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import pytest

from tests.scenario import in_rig
from tests.unit.hot.fixtures import batch
from tests.unit.replication.rig import TOPIC_ID, TP, BrokerRig, ReplicationRig, append_batch, read_log
from tests.unit.replication.test_become_leader import upload
from tiered.config.settings import TopicConfig
from tiered.errors import Code, Refused
from tiered.ids import PartitionId
from tiered.metrics import Metrics
from tiered.replication.become_leader import PreviousLeader
from tiered.replication.chain_history import ChainHistory
from tiered.replication.leader_replica import LeaderReplica
from tiered.wal.chain_writer import ChainWriter
from tiered.wal.layout import ChainId
from tiered.wal.takeover import ChainTakeover
from tiered.wal.window import WindowSettings

PARTITION = PartitionId(TOPIC_ID, TP.partition)


class ChainRig(ReplicationRig):
    """Brokers with a chain each."""

    def __init__(self) -> None:
        super().__init__(config=TopicConfig(segment_bytes=2000, index_interval_bytes=200, flush="bucket"))
        self.tasks: list[asyncio.Task[None]] = []
        self.chains: dict[int, ChainWriter] = {}

    def spawn(self, name: str, job: Awaitable[None]) -> None:
        async def whole() -> None:
            await job

        self.tasks.append(self.loop.create_task(whole(), name=name))

    async def lead(
        self,
        node: int,
        epoch: int,
        *earlier: int,
        isr: tuple[int, ...] = (),
        replicas: tuple[int, ...] = (1, 2),
    ) -> LeaderReplica:
        """Begins a leadership. The broker was not in sync with those `earlier`, and reads their chains."""
        broker, incarnation = self.brokers[node], f"i{node}"
        if node not in self.chains:
            self.chains[node] = ChainWriter(
                broker.store, self.clock, broker.rng, Metrics(),
                chain=ChainId(node, incarnation), cluster_id=lambda: "c", settings=WindowSettings(50_000_000, 1 << 20),
            )  # fmt: skip
            self.spawn("chain", self.chains[node].run())
        history = None
        if earlier:
            takeover = ChainTakeover(broker.store, self.clock, broker.rng, lambda: "c")
            fenced = [await takeover.fence(self.chains[each].chain, {PARTITION: epoch}) for each in earlier]
            places = [place for each in fenced for place in each.extents_of(PARTITION)]
            history = ChainHistory(takeover, places, self.clock)
        previous = PreviousLeader.MAY_STILL_WRITE if earlier else PreviousLeader.NONE
        return await broker.lead(
            epoch, list(isr or (node,)), list(replicas), previous_leader=previous, chain=self.chains[node],
            chains=history,
        )  # fmt: skip

    def wipe(self, node: int) -> None:
        """Takes the disk of a broker away."""
        rig = self.brokers[node]
        self.brokers[node] = BrokerRig(self, node, rig.config)


async def append(leader: LeaderReplica, first: int, count: int = 1) -> None:
    await leader.append(batch(first, count))


@in_rig(ChainRig)
async def test_acks_all_waits_for_the_bucket_and_acks_1_does_not(rig: ChainRig) -> None:
    leader = await rig.lead(1, 0)
    rig.brokers[1].faults.outage = True
    assert append_batch(leader, 0) == 1
    with pytest.raises(Refused) as refused:
        await leader.append(batch(1), timeout_ms=500)
    assert refused.value.code is Code.REQUEST_TIMED_OUT and leader.high_watermark == 0
    assert not leader.commits_on_append
    rig.brokers[1].faults.outage = False
    await leader.wait_committed(2, 30_000)
    assert leader.high_watermark == leader.chain_stored_end == 2


@in_rig(ChainRig)
async def test_broker_with_an_empty_disk_takes_over_every_acknowledged_record(rig: ChainRig) -> None:
    first = await rig.lead(1, 0)
    for number in range(30):
        await append(first, number)
    whole = read_log(first.log)
    new = await rig.lead(2, 1, 1)
    assert read_log(new.log) == whole and new.high_watermark == 30
    append_batch(first, 30)
    await rig.clock.sleep(1.0)
    assert rig.brokers[1].events.fenced == [first] and first.high_watermark == 30
    await append(new, 30)
    assert new.high_watermark == 31


@in_rig(ChainRig)
async def test_records_come_from_segments_and_chains(rig: ChainRig) -> None:
    first = await rig.lead(1, 0)
    for number in range(10):
        await append(first, number)
    await upload(first)
    for number in range(10, 20):
        await append(first, number)
    whole = read_log(first.log)
    new = await rig.lead(2, 1, 1)
    assert new.cold_end_offset == new.log.local_start_offset == 10
    assert whole.endswith(read_log(new.log)) and new.high_watermark == 20


@in_rig(ChainRig)
async def test_log_that_disagrees_with_the_chains_restarts(rig: ChainRig) -> None:
    """Broker 1 wrote records that never were in the bucket, and broker 2 wrote others at the same offsets."""
    first = await rig.lead(1, 0)
    for number in range(5):
        await append(first, number)
    rig.brokers[1].faults.outage = True
    append_batch(first, 5, count=3)
    second = await rig.lead(2, 1, 1)
    first.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "another leads"))
    rig.brokers[1].faults.outage = False
    for number in range(5, 9):
        await append(second, number)
    again = await rig.lead(1, 2, 1, 2)
    assert read_log(again.log) == read_log(second.log) and again.high_watermark == 9
    assert again.log.epochs.lineage == ((0, 0), (1, 5))


@in_rig(ChainRig)
async def test_log_that_restarts_hides_no_records_of_the_bucket(rig: ChainRig) -> None:
    """Records below the restart are in segments. A power cut brings nothing of the dropped log back: the recovery point
    is lowered before the first append."""
    first = await rig.lead(1, 0)
    for number in range(10):
        await append(first, number)
    await upload(first)
    for number in range(10, 13):
        await append(first, number)
    rig.brokers[1].faults.outage = True
    append_batch(first, 13, count=3)
    second = await rig.lead(2, 1, 1)
    first.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "another leads"))
    rig.brokers[1].faults.outage = False
    for number in range(13, 17):
        await append(second, number)
    broker, ends = rig.brokers[1], list[int]()
    save_offsets = broker.save_offsets

    async def note_end() -> None:
        ends.append(first.log.end_offset)
        await save_offsets()

    broker.save_offsets = note_end  # type: ignore[method-assign]
    again = await rig.lead(1, 2, 1, 2)
    assert (again.log_start_offset, again.log.local_start_offset, again.log.end_offset) == (0, 10, 17)
    assert ends == [10]


@in_rig(ChainRig)
async def test_log_of_a_later_leader_than_those_of_the_chains_stays(rig: ChainRig) -> None:
    """The topic had another `flush` meanwhile: that leader had all that the chains have, and wrote to disks alone."""
    first = await rig.lead(1, 0)
    for number in range(4):
        await append(first, number)
    first.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "killed"))
    rig.brokers[2] = BrokerRig(rig, 2, replace(rig.brokers[2].config, flush="none"))
    second = await rig.lead(2, 1)
    for number in range(10, 13):
        await append(second, number)
    second.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "killed"))
    again = await rig.lead(2, 2, 1)
    assert again.log.epochs.lineage == ((1, 0),) and again.log.end_offset == 3


@in_rig(ChainRig)
async def test_log_restarts_within_a_batch_of_a_chain(rig: ChainRig) -> None:
    """Records below the log start are deleted, and the log starts within a batch."""
    first = await rig.lead(1, 0)
    await append(first, 0, count=4)
    await append(first, 4, count=3)
    whole = read_log(first.log)
    first.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "killed"))
    log_of = await rig.lead(2, 1, 1)
    log_of.log.advance_start(2)
    log_of.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "killed"))
    again = await rig.lead(2, 2, 1)
    assert (again.log_start_offset, again.log.end_offset) == (2, 7) and read_log(again.log) == whole


@in_rig(ChainRig)
async def test_log_keeps_what_is_behind_the_chains_of_its_own_leader(rig: ChainRig) -> None:
    first = await rig.lead(1, 0)
    for number in range(5):
        await append(first, number)
    rig.brokers[1].faults.outage = True
    append_batch(first, 5)
    first.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "a restart"))
    rig.brokers[1].faults.outage = False
    again = await rig.lead(1, 1, 1)
    assert again.log.end_offset == 6 and again.chain_stored_end == 5
    await again.wait_committed(6, 30_000)
    third = await rig.lead(3, 2, 1, replicas=(1, 3))
    assert third.log.end_offset == 6, "what was found in the log is in the chain too"


@in_rig(ChainRig)
async def test_loss_of_all_disks_loses_no_acknowledged_record(rig: ChainRig) -> None:
    leader = await rig.lead(1, 0)
    acknowledged, chain = 0, [1]
    for epoch, node in enumerate((2, 3, 1, 2, 1), 1):
        for _ in range(epoch):
            await append(leader, acknowledged)
            acknowledged += 1
        if epoch == 3:
            await upload(leader)
        whole = read_log(leader.log)
        leader.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "killed"))
        rig.wipe(node)
        leader = await rig.lead(node, epoch, *dict.fromkeys(chain), replicas=(node,))
        chain.append(node)
        assert leader.high_watermark == acknowledged
        assert whole.endswith(read_log(leader.log))


@in_rig(ChainRig)
async def test_high_watermark_waits_for_followers_and_the_bucket(rig: ChainRig) -> None:
    leader = await rig.lead(1, 0, isr=(1, 2))
    append_batch(leader, 0, acks=1)
    await rig.clock.sleep(1.0)
    assert leader.chain_stored_end == 1 and leader.high_watermark == 0, "the follower has nothing"


@in_rig(ChainRig)
async def test_chain_says_what_is_committed(rig: ChainRig) -> None:
    """Records that a follower lacks are in the bucket, and a later leader may never have seen them."""
    leader = await rig.lead(1, 0, isr=(1, 2))
    for number in range(3):
        append_batch(leader, number, acks=1)
        await rig.clock.sleep(1.0)
    assert leader.chain_stored_end == 3
    fenced = await ChainTakeover(rig.brokers[1].store, rig.clock, rig.brokers[2].rng, lambda: "c").fence(
        rig.chains[1].chain, {PARTITION: 1}
    )
    assert [each.extent.committed for each in fenced.extents_of(PARTITION)] == [0, 0, 0]


@in_rig(ChainRig)
async def test_closed_log_gets_no_records_of_chains(rig: ChainRig) -> None:
    """A broker that stops has marked its logs as clean."""
    first = await rig.lead(1, 0)
    await append(first, 0)
    first.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "killed"))
    (await rig.brokers[2].open_log()).close()
    with pytest.raises(Refused, match="is closed"):
        await rig.lead(2, 1, 1)


@in_rig(ChainRig)
async def test_fsync_confirms_nothing_that_the_bucket_lacks(rig: ChainRig) -> None:
    leader = await rig.lead(1, 0)
    rig.brokers[1].faults.outage = True
    append_batch(leader, 0)
    await leader.flush()
    assert (leader.log.flushed_offset, leader.high_watermark) == (1, 0)


@in_rig(ChainRig)
async def test_change_of_the_setting_begins_and_ends_the_wait(rig: ChainRig) -> None:
    leader = await rig.lead(1, 0)
    await append(leader, 0)
    leader.log.configure(replace(leader.config, flush="none"))
    leader.on_config_changed()
    rig.brokers[1].faults.outage = True
    await append(leader, 1)
    assert leader.chain_stored_end is None and leader.high_watermark == 2
    leader.log.configure(replace(leader.config, flush="bucket"))
    leader.on_config_changed()
    append_batch(leader, 2)
    await rig.clock.sleep(1.0)
    assert leader.high_watermark == 2, "it never goes back"
    rig.brokers[1].faults.outage = False
    await leader.wait_committed(3, 30_000)
    assert leader.chain_stored_end == 3
    new = await rig.lead(2, 1, 1)
    assert read_log(new.log) == read_log(leader.log), "the records from before the change are in the chain too"
