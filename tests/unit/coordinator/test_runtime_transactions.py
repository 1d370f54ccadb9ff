"""Records of transactions in a coordinator's log: in batches of their producer, undecided until the marker there."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.unit.coordinator.counters import LEADER, Add, CounterRig, Read
from tiered.coordinator.runtime import COMMIT_MS
from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.ports import FileSlice
from tiered.records.marker import TransactionMarker
from tiered.records.model import CONTROL, TRANSACTIONAL, WalkedBatch
from tiered.records.native import walk
from tiered.replication.leader_replica import LeaderReplica
from tiered.shard import ProducerIdAndEpoch

SECONDS = 10.0
ONE, TWO = ProducerIdAndEpoch(11, 3), ProducerIdAndEpoch(12, 0)


@pytest.fixture
def rig() -> CounterRig:
    return CounterRig()


def commit(producer: ProducerIdAndEpoch = ONE, *, epoch: int | None = None, version: int = 1) -> TransactionMarker:
    return TransactionMarker(producer.producer_id, producer.epoch if epoch is None else epoch, True, 5, version)


def abort(producer: ProducerIdAndEpoch = ONE) -> TransactionMarker:
    return commit(producer)._replace(commit=False)


def batches(replica: LeaderReplica) -> Sequence[WalkedBatch]:
    data = replica.log.read(replica.log.start_offset, 1 << 20, end_offset=replica.log.end_offset) or b""
    if isinstance(data, FileSlice):
        data = data.file.pread(data.start, data.length)
    return walk(data).batches


async def confirm(tp: TopicPartition) -> Code:
    return Code.NONE


def add_to(rig: CounterRig, name: str, amount: int, producer: ProducerIdAndEpoch = ONE) -> asyncio.Future[int]:
    """Adds to a counter in a transaction which its coordinator confirms."""
    adding = rig.host.submit_in_transaction("key", Add(name, amount, producer), producer, confirm, moves_epoch=False)
    return asyncio.ensure_future(adding)


async def committed(rig: CounterRig, task: asyncio.Future[int]) -> int:
    await rig.settle()
    rig.replicate()
    return await task


def mark(rig: CounterRig, marker: TransactionMarker) -> asyncio.Future[None]:
    return asyncio.ensure_future(rig.coordinator.write_marker(marker))


async def lead_next(rig: CounterRig) -> None:
    """Moves the coordinator to its next leader, which loads it."""
    rig.resign()
    await rig.lead()
    await rig.settle()
    rig.replicate()
    await rig.settle()


@run_by(CounterRig.run, "rig")
async def test_records_of_a_transaction_are_in_batches_of_their_producer(*, rig: CounterRig) -> None:
    replica = await rig.lead()
    replies = [rig.submit(Add("plain", 1)), add_to(rig, "a", 2), add_to(rig, "b", 3, TWO), add_to(rig, "a", 4)]
    await rig.settle()
    rig.replicate()
    assert await asyncio.gather(*replies) == [1, 2, 3, 4]
    found = batches(replica)
    assert [(each.producer_id, each.producer_epoch, each.base_sequence) for each in found] == [
        (-1, -1, -1), (11, 3, 0), (12, 0, 0), (11, 3, 0)
    ]  # fmt: skip
    assert [bool(each.attributes & TRANSACTIONAL) for each in found] == [False, True, True, True]


@pytest.mark.parametrize(("marker", "after"), [(commit(), 2), (abort(), 0)])
@pytest.mark.parametrize("moves", [False, True])
@run_by(CounterRig.run, "rig")
async def test_change_of_a_transaction_takes_effect_with_its_marker(
    *, rig: CounterRig, marker: TransactionMarker, after: int, moves: bool
) -> None:
    await rig.lead()
    assert await committed(rig, add_to(rig, "a", 2)) == 2
    if moves:
        await lead_next(rig)
    assert await rig.submit(Read("a")) == 0
    marking = mark(rig, marker)
    reading = rig.submit(Read("a"))
    await asyncio.sleep(1)
    assert not marking.done() and not reading.done(), "a failover may undo the marker"
    rig.replicate()
    await marking
    assert await reading == after
    assert rig.replica.last_stable_offset == rig.replica.log.end_offset == 2
    if moves:
        await lead_next(rig)
        assert await rig.submit(Read("a")) == after


@run_by(CounterRig.run, "rig")
async def test_marker_is_written_once(*, rig: CounterRig) -> None:
    replica = await rig.lead()
    await committed(rig, add_to(rig, "a", 2))
    markings = [mark(rig, commit()), mark(rig, commit())]
    await rig.settle()
    rig.replicate()
    await asyncio.gather(*markings)
    await mark(rig, commit())
    assert [bool(each.attributes & CONTROL) for each in batches(replica)] == [False, True]


@run_by(CounterRig.run, "rig")
async def test_marker_of_an_unknown_producer_is_written_and_changes_nothing(*, rig: CounterRig) -> None:
    await rig.lead()
    await committed(rig, add_to(rig, "a", 2))
    marking = mark(rig, commit(TWO))
    await rig.settle()
    rig.replicate()
    await marking
    assert await rig.submit(Read("a")) == 0 and rig.replica.last_stable_offset == 0


@pytest.mark.parametrize("late", [commit(epoch=2), commit(version=2)])
@run_by(CounterRig.run, "rig")
async def test_marker_that_is_too_old_is_refused_and_the_coordinator_goes_on(
    *, rig: CounterRig, late: TransactionMarker
) -> None:
    await rig.lead()
    await committed(rig, add_to(rig, "a", 2))
    with refuses(Code.INVALID_PRODUCER_EPOCH):
        await mark(rig, late)
    marking = mark(rig, commit(epoch=4, version=2))
    await rig.settle()
    rig.replicate()
    await marking
    assert await rig.submit(Read("a")) == 2


@run_by(CounterRig.run, "rig")
async def test_marker_that_is_not_replicated_in_time_ends_the_coordinator(*, rig: CounterRig) -> None:
    await rig.lead()
    await committed(rig, add_to(rig, "a", 2))
    ended = rig.coordinator
    marking = mark(rig, commit())
    await asyncio.sleep(COMMIT_MS / 1000 + 1)
    with pytest.raises(Refused):
        await marking
    with pytest.raises(Refused):
        ended.submit(Read("a"))
    rig.replicate()
    await asyncio.sleep(SECONDS)
    await mark(rig, commit())
    assert await rig.submit(Read("a")) == 2


# -- verification -----------------------------------------------------------------------------------------------------


@run_by(CounterRig.run, "rig")
async def test_transaction_that_its_coordinator_does_not_know_is_refused(*, rig: CounterRig) -> None:
    replica = await rig.lead()

    async def refuse(tp: TopicPartition) -> Code:
        assert tp == replica.tp
        return Code.TRANSACTION_ABORTABLE

    with refuses(Code.TRANSACTION_ABORTABLE):
        await rig.host.submit_in_transaction("key", Add("a", 2, ONE), ONE, refuse, moves_epoch=False)
    assert replica.log.end_offset == 0 and not rig.coordinator.shard.pending


@run_by(CounterRig.run, "rig")
async def test_leadership_that_began_during_the_verification_takes_no_records(*, rig: CounterRig) -> None:
    await rig.lead()

    async def verify(tp: TopicPartition) -> Code:
        await lead_next(rig)
        return Code.NONE

    with pytest.raises(Refused) as refused:
        await rig.host.submit_in_transaction("key", Add("a", 2, ONE), ONE, verify, moves_epoch=False)
    assert refused.value.code is Code.NOT_COORDINATOR, "the client asks again"
    assert await committed(rig, add_to(rig, "a", 2)) == 2


@run_by(CounterRig.run, "rig")
async def test_open_transaction_is_not_verified_again(*, rig: CounterRig) -> None:
    await rig.lead()
    await committed(rig, add_to(rig, "a", 2))

    async def ask(tp: TopicPartition) -> Code:
        raise AssertionError("asked")

    again = rig.host.submit_in_transaction("key", Add("a", 7, ONE), ONE, ask, moves_epoch=False)
    assert await committed(rig, asyncio.ensure_future(again)) == 7


def test_coordinator_refuses_records_that_a_marker_overtook_and_goes_on(rig: CounterRig) -> None:
    async def scenario() -> None:
        replica = await rig.lead()
        asked, answer = asyncio.Event(), asyncio.Event()

        async def verify(tp: TopicPartition) -> Code:
            asked.set()
            await answer.wait()
            return Code.NONE

        adding = asyncio.ensure_future(
            rig.host.submit_in_transaction("key", Add("a", 2, ONE), ONE, verify, moves_epoch=False)
        )
        await asked.wait()
        marking = mark(rig, abort())
        await rig.settle()
        rig.replicate()
        await marking
        answer.set()
        with refuses(Code.INVALID_TXN_STATE):
            await adding
        assert replica.log.end_offset == 1 and not rig.coordinator.shard.pending
        assert await committed(rig, rig.submit(Add("a", 1))) == 1

    rig.run(scenario)


@run_by(CounterRig.run, "rig")
async def test_fenced_epoch_is_refused_and_the_coordinator_goes_on(*, rig: CounterRig) -> None:
    await rig.lead()
    await committed(rig, add_to(rig, "a", 2))
    marking = mark(rig, commit(epoch=4, version=2))
    await rig.settle()
    rig.replicate()
    await marking
    with refuses(Code.INVALID_PRODUCER_EPOCH):
        await add_to(rig, "a", 5)
    assert await rig.submit(Read("a")) == 2


# -- snapshots --------------------------------------------------------------------------------------------------------


@run_by(CounterRig.run, "rig")
async def test_refused_append_of_a_transaction_is_told_to_its_caller_alone(*, rig: CounterRig) -> None:
    """Asyncio would log a failure that nobody reads, once the coordinator is dropped."""
    await rig.lead([LEADER])
    await add_to(rig, "a", 1)
    rig.rig.brokers[LEADER].disk.capacity = 1
    with pytest.raises(Refused) as refused:
        await add_to(rig, "a", 2)
    futures = [each for each in gc.get_objects() if isinstance(each, asyncio.Future)]
    assert not any(each._log_traceback for each in futures if each._exception is refused.value)


@run_by(CounterRig.run, "rig")
async def test_snapshot_keeps_an_open_transaction_for_a_log_that_is_lost(*, rig: CounterRig) -> None:
    replica = await rig.lead()
    await committed(rig, rig.submit(Add("plain", 1)))
    await committed(rig, add_to(rig, "a", 2))
    await rig.host.snapshotter.save_changed(rig.host.led_partitions.values())
    assert replica.log_start_offset == 2
    rig.resign()
    replica.log.truncate_fully_and_start_at(0, (), None)
    await rig.store.reconcile(replica.log, replica.partition_id, None, rig.rig.brokers[LEADER].save_offsets)
    await rig.lead([LEADER])
    await asyncio.sleep(1)
    assert rig.coordinator.shard.pending and await rig.submit(Read("a")) == 0
    await mark(rig, commit())
    assert await rig.submit(Read("a")) == 2
