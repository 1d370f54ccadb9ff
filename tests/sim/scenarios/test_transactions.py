"""Tests of transactions whose coordinator, leaders or disks go away in each state: markers are written, nothing hangs
(I14)."""

from __future__ import annotations

import asyncio

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.harness.durable_bytes import Inode
from tests.sim.harness.machine import SimMachine
from tests.sim.scenarios.test_cut_off import isolate
from tests.sim.scenarios.three import QUIET, SESSION, SimBroker, ThreeBrokers, run_scenario
from tests.sim.scenarios.transactions import (
    SimProducer,
    create_topic,
    find_coordinator,
    find_leader,
    find_transaction,
    read_markers,
)
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.controller.requests import CreateTopic, DeleteTopic, ElectLeaders, Move, Reassign, ReportLoss
from tiered.coordination.late_transactions import LATE_GRACE_MS
from tiered.coordination.orphaned_transactions import CHECK_SECONDS
from tiered.coordination.snapshot_stores import TRANSACTION_SNAPSHOTS
from tiered.coordinator.host import SNAPSHOT_SECONDS
from tiered.coordinator.routing import partition_of
from tiered.coordinator.snapshot import SnapshotName
from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.metadata.parts.topics import PartitionImage
from tiered.metadata.topic_names import TRANSACTIONS_TOPIC
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.records.marker import TransactionMarker
from tiered.transactions.decision import TIMEOUT
from tiered.transactions.metadata import TransactionMetadata, TransactionState
from tiered.transactions.requests import EndTransaction, MarkersDue

SETTINGS = {"transaction_state_log_num_partitions": 2}
COMMITTED, ABORTED = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
DONE_SECONDS = 40.0
T0 = TopicPartition("t", 0)


async def begin(three: ThreeBrokers, *, timeout_ms: int = 60_000, version: int = 2) -> SimProducer:
    """Returns a producer with a record in each of three partitions, which three brokers lead."""
    await create_topic(three, (1, 2, 3), (2, 3, 1), (3, 1, 2))
    producer = SimProducer(three, version=version)
    await producer.init(timeout_ms)
    for partition in range(3):
        await producer.write(partition, b"%d" % partition)
    return producer


async def wait_complete(three: ThreeBrokers, producer: SimProducer, state: TransactionState) -> None:
    def is_complete() -> bool:
        found = find_transaction(three, producer.name)
        return found is not None and found.state is state

    await three.wait_until(is_complete, DONE_SECONDS)


def outcomes(three: ThreeBrokers, partition: int) -> list[bool]:
    """Returns for each marker of a partition if it commits."""
    return [each.commit for each in read_markers(three, partition)]


async def wait_outcomes(three: ThreeBrokers, partition: int, expected: list[bool]) -> None:
    await three.wait_until(lambda: outcomes(three, partition) == expected, DONE_SECONDS)


def stop_markers(broker: SimBroker) -> list[tuple[MarkersDue, int, int]]:
    """Makes the markers of a broker wait, as if no leader took them. Returns the list that gets them."""
    waiting: list[tuple[MarkersDue, int, int]] = []
    broker.node.transaction_coordinators.markers.send = lambda *each: waiting.append(each)  # type: ignore[method-assign]
    return waiting


def lose_unsynced(machine: SimMachine, path: str) -> None:
    """Makes the next power cut take all of a file that is not fsynced. Otherwise chance decides."""
    node = machine.disk._find(path)
    assert isinstance(node, Inode) and node.pending
    node.pending.clear()


def assert_nothing_is_open(three: ThreeBrokers, *partitions: int) -> None:
    for partition in partitions:
        replica = find_leader(three, TopicPartition("t", partition))
        assert replica is not None and replica.log.first_unstable_offset >= replica.log.end_offset


@pytest.mark.parametrize("commit", [True, False])
@run_by(run_scenario, **SETTINGS)
async def test_markers_reach_the_leaders_on_all_brokers(three: ThreeBrokers, *, commit: bool) -> None:
    producer = await begin(three)
    before = producer.epoch
    assert await producer.end(commit) is Code.NONE
    await wait_complete(three, producer, COMMITTED if commit else ABORTED)
    for partition in range(3):
        (marker,) = read_markers(three, partition)
        assert marker == TransactionMarker(producer.producer_id, before + 1, commit, marker.coordinator_epoch)
    assert_nothing_is_open(three, 0, 1, 2)


@run_by(run_scenario, **SETTINGS)
async def test_coordinator_that_is_gone_during_a_transaction_loses_nothing_of_it(three: ThreeBrokers) -> None:
    producer = await begin(three)
    keeper = find_coordinator(three, producer.name)
    assert keeper is not None
    await keeper.kill()
    assert await producer.end(True) is Code.NONE
    await wait_complete(three, producer, COMMITTED)
    for partition in range(3):
        await wait_outcomes(three, partition, [True])
    assert_nothing_is_open(three, 0, 1, 2)


@pytest.mark.parametrize("commit", [True, False])
@run_by(run_scenario, **SETTINGS)
async def test_markers_of_a_decided_transaction_are_sent_by_the_next_coordinator(
    three: ThreeBrokers, *, commit: bool
) -> None:
    producer = await begin(three)
    keeper = find_coordinator(three, producer.name)
    assert keeper is not None
    stop_markers(keeper)
    assert await producer.end(commit) is Code.NONE
    assert all(outcomes(three, partition) == [] for partition in range(3))
    await keeper.kill()
    await wait_complete(three, producer, COMMITTED if commit else ABORTED)
    for partition in range(3):
        await wait_outcomes(three, partition, [commit])
    assert_nothing_is_open(three, 0, 1, 2)


@run_by(run_scenario, **SETTINGS, tiered_broker_suspect_timeout_ms=6_000)
async def test_no_marker_is_written_before_the_outcome_is_committed(three: ThreeBrokers) -> None:
    producer = await begin(three)
    keeper = find_coordinator(three, producer.name)
    assert keeper is not None
    isolate(three, keeper)
    request = EndTransaction(producer.name, producer.producer_id, producer.epoch, True, 2)
    with pytest.raises(Refused):
        await keeper.node.transaction_coordinators.submit(producer.name, request)
    (own,) = [each for each in keeper.node.leader_replicas() if each.topic == "t"]
    assert own.log.end_offset == 1, "its own partition has the record, and no marker"
    three.network.heal()


@pytest.mark.parametrize("version", [0, 2])
@run_by(run_scenario, **SETTINGS)
async def test_marker_of_an_earlier_coordinator_ends_no_later_transaction(three: ThreeBrokers, *, version: int) -> None:
    producer = await begin(three, version=version)
    keeper = find_coordinator(three, producer.name)
    assert keeper is not None
    late = stop_markers(keeper)
    assert await producer.end(False) is Code.NONE
    due, _, coordinator_epoch = late[0]
    await keeper.kill()
    await wait_complete(three, producer, ABORTED)
    await producer.write(0, b"next")
    replica = find_leader(three, TopicPartition("t", 0))
    assert replica is not None
    marker = TransactionMarker(due.producer_id, due.producer_epoch, due.commit, coordinator_epoch, due.version)
    with pytest.raises(Refused) as refused:
        await replica.transactions.append_marker(marker)
    expected = Code.INVALID_PRODUCER_EPOCH if version else Code.TRANSACTION_COORDINATOR_FENCED
    assert refused.value.code is expected
    assert replica.log.first_unstable_offset < replica.log.end_offset, "the next transaction is open"
    assert await producer.end(True) is Code.NONE
    await wait_outcomes(three, 0, [False, True])


@run_by(run_scenario, **SETTINGS)
async def test_marker_follows_a_partition_to_its_next_leader(three: ThreeBrokers) -> None:
    producer = await begin(three)
    keeper = find_coordinator(three, producer.name)
    leader = next(each for each in three.brokers.values() if each is not keeper)
    await leader.kill()
    assert await producer.end(True) is Code.NONE
    await wait_complete(three, producer, COMMITTED)
    for partition in range(3):
        assert outcomes(three, partition) == [True]
    assert_nothing_is_open(three, 0, 1, 2)


@run_by(run_scenario, **SETTINGS)
async def test_transaction_completes_although_a_topic_is_gone(three: ThreeBrokers) -> None:
    producer = await begin(three)
    await three.controller.node.submit(DeleteTopic("t"))
    assert await producer.end(True) is Code.NONE
    await wait_complete(three, producer, COMMITTED)


@run_by(run_scenario, **SETTINGS)
async def test_transaction_is_aborted_at_its_timeout_and_its_producer_fenced(three: ThreeBrokers) -> None:
    producer = await begin(three, timeout_ms=2_000)
    await wait_complete(three, producer, ABORTED)
    for partition in range(3):
        assert outcomes(three, partition) == [False]
    assert_nothing_is_open(three, 0, 1, 2)
    assert await producer.end(True) is Code.INVALID_TXN_STATE, "it was aborted"
    with refuses(Code.PRODUCER_FENCED):
        await producer.try_write(0, b"late")


@run_by(run_scenario, **SETTINGS)
async def test_timeout_goes_on_at_the_next_coordinator(three: ThreeBrokers) -> None:
    producer = await begin(three, timeout_ms=5_000)
    keeper = find_coordinator(three, producer.name)
    assert keeper is not None
    await keeper.kill()
    await wait_complete(three, producer, ABORTED)
    for partition in range(3):
        await wait_outcomes(three, partition, [False])


@run_by(run_scenario, **SETTINGS)
async def test_coordinator_that_is_cut_off_decides_nothing(three: ThreeBrokers) -> None:
    producer = await begin(three)
    keeper = find_coordinator(three, producer.name)
    assert keeper is not None
    isolate(three, keeper)
    await asyncio.sleep(SESSION + 1)
    assert await producer.end(True) is Code.NONE, "at the next coordinator"
    await asyncio.sleep(SESSION)
    three.network.heal()
    await wait_complete(three, producer, COMMITTED)
    for partition in range(3):
        await wait_outcomes(three, partition, [True])


@run_by(run_scenario, **SETTINGS)
async def test_fence_holds_at_the_next_coordinator(three: ThreeBrokers) -> None:
    await create_topic(three, (1, 2, 3), (2, 3, 1), (3, 1, 2))
    old, new = SimProducer(three), SimProducer(three)
    await old.init()
    await new.init()
    keeper = find_coordinator(three, old.name)
    assert keeper is not None
    await keeper.kill()
    code = Code.NOT_COORDINATOR
    while code.retriable:
        code = Code.NONE
        try:
            await old.try_write(0, b"old")
        except Refused as refused:
            code = refused.code
            await asyncio.sleep(0.05)
    assert code is Code.PRODUCER_FENCED
    await new.write(1, b"new")
    assert await new.end(True) is Code.NONE


async def lose_all_disks(three: ThreeBrokers) -> None:
    """Takes every disk, and starts the brokers again on empty ones."""
    for each in three.brokers.values():
        each.machine.lose_disk()
    for each in three.brokers.values():
        await each.clear()
    await asyncio.gather(*(each.start() for each in three.brokers.values()))


@run_by(run_scenario, **SETTINGS, **QUIET)
async def test_open_transaction_does_not_hang_after_a_rebuild_from_the_bucket(three: ThreeBrokers) -> None:
    producer = await begin(three, timeout_ms=300_000)
    await asyncio.sleep(SNAPSHOT_SECONDS + 5)
    found = find_transaction(three, producer.name)
    assert found is not None and found.state is TransactionState.ONGOING
    await lose_all_disks(three)
    await three.wait_until(lambda: find_transaction(three, producer.name) is not None, DONE_SECONDS)
    found = find_transaction(three, producer.name)
    assert found is not None and found.state is TransactionState.ONGOING, "the image in the bucket has it"
    await asyncio.sleep(300)
    await wait_complete(three, producer, ABORTED)
    assert_nothing_is_open(three, 0, 1, 2)
    await producer.init()
    await producer.write(0, b"again")
    assert await producer.end(True) is Code.NONE
    await wait_complete(three, producer, COMMITTED)


def forget_everything(three: ThreeBrokers, producer: SimProducer) -> None:
    """Makes the coordinator lose the id, as after a loss of its log since the last image."""
    coordinator = find_coordinator(three, producer.name)
    assert coordinator is not None
    shard = coordinator.node.transaction_coordinators.host.find_shard(producer.name)
    assert shard is not None
    shard.state.put(producer.name, None)
    shard.state.last_epochs.pop(producer.name, None)
    shard.state.deadlines.cancel((TIMEOUT, producer.name, ""))


@run_by(run_scenario, **SETTINGS, transaction_max_timeout_ms=1_000, **QUIET)
async def test_transaction_that_no_coordinator_knows_ends_and_no_commit_is_lost(three: ThreeBrokers) -> None:
    await create_topic(three, (1, 2, 3), (2, 3, 1), (3, 1, 2))
    orphan, slow = SimProducer(three, "orphan"), SimProducer(three, "slow")
    for producer, partitions in ((orphan, (0, 1)), (slow, (2,))):
        await producer.init(1_000)
        for partition in partitions:
            await producer.write(partition, b"%d" % partition)
    forget_everything(three, orphan)
    coordinator = find_coordinator(three, slow.name)
    assert coordinator is not None
    waiting = stop_markers(coordinator)
    assert await slow.end(True) is Code.NONE
    await asyncio.sleep(LATE_GRACE_MS / 1000)
    assert [outcomes(three, partition) for partition in range(3)] == [[], [], []], "its coordinator may be slow"
    await asyncio.sleep(2 * CHECK_SECONDS + 5)
    assert [outcomes(three, partition) for partition in range(3)] == [[False], [False], []]
    assert_nothing_is_open(three, 0, 1)
    del coordinator.node.transaction_coordinators.markers.send
    coordinator.node.transaction_coordinators.markers.send(*waiting[0])
    await wait_complete(three, slow, COMMITTED)
    await wait_outcomes(three, 2, [True])
    await orphan.init(1_000)
    await orphan.write(0, b"again")
    assert await orphan.end(True) is Code.NONE
    await wait_outcomes(three, 0, [False, True])


@pytest.mark.parametrize(("version", "commit"), [(2, True), (2, False), (0, True)])
@run_by(run_scenario, **SETTINGS, transaction_max_timeout_ms=1_000, **QUIET)
async def test_commit_whose_marker_is_lost_in_one_partition_is_written_again(
    three: ThreeBrokers, *, version: int, commit: bool
) -> None:
    """Version 0 keeps the epoch: the coordinator cannot tell its last transaction from the one before."""
    await create_topic(three, (1,), (2,))
    producer = SimProducer(three, version=version)
    await producer.init(1_000)
    for partition in range(2):
        await producer.write(partition, b"v")
    replica = find_leader(three, TopicPartition("t", 1))
    assert replica is not None
    await replica.log.flush()  # the record is fsynced, and the marker is not
    assert await producer.end(commit) is Code.NONE
    await wait_complete(three, producer, COMMITTED if commit else ABORTED)
    assert outcomes(three, 0) == outcomes(three, 1) == [commit]
    lose_unsynced(three.brokers[2].machine, "log/t-1/00000000000000000000.log")
    three.brokers[2].machine.power_cut()
    await three.brokers[2].clear()
    await three.brokers[2].start()
    await three.wait_until(lambda: find_leader(three, TopicPartition("t", 1)) is not None, DONE_SECONDS)
    assert outcomes(three, 1) == []
    await asyncio.sleep(LATE_GRACE_MS / 1000 + 4 * CHECK_SECONDS)
    assert outcomes(three, 1) == [commit and version == 2]
    assert_nothing_is_open(three, 0, 1)
    for partition in range(2):
        await producer.write(partition, b"next")
    assert await producer.end(True) is Code.NONE
    await wait_outcomes(three, 1, [commit and version == 2, True])


@run_by(run_scenario, transaction_state_log_num_partitions=1, transaction_max_timeout_ms=1_000, **QUIET)
async def test_commit_stays_whole_while_the_next_coordinator_cannot_be_opened(three: ThreeBrokers) -> None:
    producer = SimProducer(three)
    await producer.init(1_000)
    keeper = find_coordinator(three, producer.name)
    assert keeper is not None
    [state] = keeper.node.image.topics[TRANSACTIONS_TOPIC].partitions
    successor = three.brokers[next(each for each in state.replicas if each != keeper.node_id)]
    other_id = next(each for each in state.replicas if each not in (keeper.node_id, successor.node_id))
    await create_topic(three, (other_id, successor.node_id), (other_id, successor.node_id))
    for partition in range(2):
        await producer.write(partition, b"%d" % partition)
    waiting = stop_markers(keeper)
    assert await producer.end(True) is Code.NONE
    due, *coordinator = waiting[0]
    del keeper.node.transaction_coordinators.markers.send
    first = due._replace(partitions=frozenset({TopicPartition("t", 0)}))
    keeper.node.transaction_coordinators.markers.send(first, *coordinator)
    await wait_outcomes(three, 0, [True])
    successor.machine.faults.outage = True
    await keeper.kill()
    await asyncio.sleep(LATE_GRACE_MS / 1000 + 3 * CHECK_SECONDS + 60)
    tp = TopicPartition(TRANSACTIONS_TOPIC, 0)
    assert tp in successor.node.hosted_replicas.unopened_leaders
    assert outcomes(three, 1) == [], "the producer has its answer, and partition 0 its marker"
    successor.machine.faults.outage = False
    await wait_complete(three, producer, COMMITTED)
    await wait_outcomes(three, 1, [True])


@run_by(
    run_scenario,
    transaction_state_log_num_partitions=1,
    transaction_max_timeout_ms=1_000,
    authorizer_class_name=STANDARD_AUTHORIZER,
    **QUIET,
)
async def test_commit_is_known_to_brokers_that_have_no_right_to_list_it(three: ThreeBrokers) -> None:
    """An authorizer counts, and brokers do not log in."""
    producer = SimProducer(three)
    await producer.init(1_000)
    coordinator = find_coordinator(three, producer.name)
    assert coordinator is not None
    await create_topic(three, (next(each for each in three.brokers if each != coordinator.node_id),))
    await producer.write(0, b"0")
    waiting = stop_markers(coordinator)
    assert await producer.end(True) is Code.NONE
    await asyncio.sleep(LATE_GRACE_MS / 1000 + 3 * CHECK_SECONDS)
    assert outcomes(three, 0) == [], "its coordinator knows it"
    del coordinator.node.transaction_coordinators.markers.send
    coordinator.node.transaction_coordinators.markers.send(*waiting[0])
    await wait_complete(three, producer, COMMITTED)
    await wait_outcomes(three, 0, [True])


@run_by(run_scenario, **SETTINGS, **QUIET)
async def test_decided_transaction_in_an_image_completes_without_any_disk(three: ThreeBrokers) -> None:
    producer = await begin(three)
    keeper = find_coordinator(three, producer.name)
    assert keeper is not None
    stop_markers(keeper)
    assert await producer.end(True) is Code.NONE
    await asyncio.sleep(SNAPSHOT_SECONDS + 5)
    found = find_transaction(three, producer.name)
    assert found is not None and found.state is TransactionState.PREPARE_COMMIT
    await lose_all_disks(three)
    await wait_complete(three, producer, COMMITTED)
    assert_nothing_is_open(three, 0, 1, 2)


@run_by(run_scenario, **SETTINGS, **QUIET)
async def test_producer_goes_on_if_a_rebuilt_coordinator_knows_an_earlier_epoch(three: ThreeBrokers) -> None:
    """Records go to the bucket after seconds, and transactional ids once a minute."""
    await create_topic(three, (1, 2, 3), configs={"internal.segment.bytes": "1024"})
    producer = SimProducer(three)
    await producer.init()
    await producer.write(0, b"first")
    assert await producer.end(True) is Code.NONE
    await asyncio.sleep(SNAPSHOT_SECONDS + 5)
    for _ in range(20):
        await producer.write(0, b"v" * 500)
        assert await producer.end(True) is Code.NONE
    replica = find_leader(three, TopicPartition("t", 0))
    assert replica is not None
    await three.wait_until(lambda: replica.cold_end_offset >= 30, 30)
    await lose_all_disks(three)
    await producer.init()
    assert producer.epoch == 0, "an id that no partition knows"
    await producer.write(0, b"again")
    assert await producer.end(True) is Code.NONE
    await wait_complete(three, producer, COMMITTED)
    assert_nothing_is_open(three, 0)


@run_by(run_scenario, **SETTINGS, **QUIET)
async def test_commit_is_not_acknowledged_by_an_older_state_of_its_id(three: ThreeBrokers) -> None:
    """The newest snapshot is damaged, and the log begins at it. The snapshot before has the transaction before as
    committed."""
    await create_topic(three, (1, 2, 3))
    producer = SimProducer(three, version=0)
    await producer.init(900_000)
    partition = partition_of(producer.name, SETTINGS["transaction_state_log_num_partitions"])

    def snapshots() -> list[SnapshotName]:
        found = (TRANSACTION_SNAPSHOTS.parse_key(key) for key in three.bucket.objects)
        return sorted(each for each in found if each is not None and each.partition_id.partition == partition)

    await producer.write(0, b"first")
    assert await producer.end(True) is Code.NONE
    await asyncio.sleep(2 * SNAPSHOT_SECONDS + 5)
    older = snapshots()[-1]
    await producer.write(0, b"second")
    await three.wait_until(lambda: snapshots()[-1] > older, 2 * SNAPSHOT_SECONDS)
    await asyncio.sleep(10)
    objects, key = three.bucket.memory._objects, snapshots()[-1].key
    objects[key] = objects[key]._replace(data=objects[key].data[:-1])
    keeper = find_coordinator(three, producer.name)
    assert keeper is not None
    await keeper.kill()
    assert await producer.end(True) is Code.PRODUCER_FENCED
    assert outcomes(three, 0) == [True], "of the first transaction"
    await producer.init()
    assert producer.epoch == 0, "an id that no partition knows"
    await producer.write(0, b"third")
    assert await producer.end(True) is Code.NONE
    await wait_complete(three, producer, COMMITTED)


@pytest.mark.parametrize("verb", ["get", "put"])
@run_by(run_scenario)
async def test_late_load_of_an_earlier_leadership_writes_nothing(three: ThreeBrokers, *, verb: str) -> None:
    """A loads slowly, B leads and begins a transaction, and A leads again before its first load is over."""
    (a, b), submit = three.others(), three.controller.node.submit
    await submit(CreateTopic("t", assignments=[[three.controller.node_id]]))
    configs = {"min.insync.replicas": "1"}
    await submit(CreateTopic(TRANSACTIONS_TOPIC, assignments=[[b.node_id, a.node_id]], configs=configs))
    topic_id = three.controller.node.image.topics[TRANSACTIONS_TOPIC].topic_id

    def partition() -> PartitionImage:
        return three.controller.node.image.topics[TRANSACTIONS_TOPIC].partitions[0]

    def find(broker: SimBroker) -> TransactionMetadata | None:
        shard = broker.node.transaction_coordinators.host.find_shard("tx")
        return shard.state.transactions.get("tx") if shard is not None else None

    async def lead(first: SimBroker, second: SimBroker) -> None:
        await three.wait_until(lambda: len(partition().isr) == 2, 60)
        await submit(Reassign((Move(topic_id, 0, (first.node_id, second.node_id)),)))
        await submit(ElectLeaders(True, ((topic_id, 0),)))
        await three.wait_until(lambda: partition().leader == first.node_id, 30)

    await three.wait_until(lambda: len(partition().isr) == 2, 60)
    producer = SimProducer(three, "tx")
    await producer.init()
    await submit(ReportLoss(topic_id, 0, partition().leader_epoch, 1))
    await three.wait_until(lambda: any(map(TRANSACTION_SNAPSHOTS.parse_key, three.bucket.objects)), 120)
    await asyncio.sleep(5)
    slow = FaultRule(FaultKind.DELAY, (verb,), key=TRANSACTION_SNAPSHOTS.prefix, times=1, seconds=15)
    a.machine.faults.rules.append(slow)
    for each in (a, b):
        each.machine.faults.rules.append(FaultRule(FaultKind.ERROR, ("delete",), key=TRANSACTION_SNAPSHOTS.prefix))
    await lead(a, b)
    await three.wait_until(lambda: slow.times == 0, 30)
    await lead(b, a)
    await producer.init()
    await producer.write(0, b"of the transaction that is open")
    await asyncio.sleep(1)
    await lead(a, b)
    await three.wait_until(lambda: find(a) is not None, 10)
    found, replica = find(a), find_leader(three, TopicPartition(TRANSACTIONS_TOPIC, 0))
    assert replica is not None
    end = replica.log.end_offset
    await asyncio.sleep(20)
    assert replica.log.end_offset == end and not replica.is_stopped and find(a) == found


@pytest.mark.parametrize("commit", [True, False])
@run_by(run_scenario, **SETTINGS)
async def test_lost_marker_of_a_cold_transaction_is_written_again(three: ThreeBrokers, *, commit: bool) -> None:
    """The record is in the bucket. Its marker was in the open segment, and all disks are lost."""
    await create_topic(three, (1, 2, 3), configs={"retention.ms": "-1"})
    producer = SimProducer(three)
    await producer.init()
    await asyncio.sleep(SNAPSHOT_SECONDS + 5)
    await producer.write(0, b"first")
    replica = find_leader(three, T0)
    assert replica is not None
    replica.roll()
    assert await producer.end(commit) is Code.NONE
    await wait_complete(three, producer, COMMITTED if commit else ABORTED)
    await three.wait_until(lambda: replica.cold_end_offset == 1, DONE_SECONDS)
    assert replica.log.end_offset == 2
    await lose_all_disks(three)
    await wait_outcomes(three, 0, [commit])
    again = find_leader(three, T0)
    assert again is not None and again.log.local_start_offset == 1
    await three.wait_until(lambda: again.last_stable_offset == again.log.end_offset == 2, DONE_SECONDS)
    assert (await again.reads.read(0, 1000, read_committed=True)).aborted_txns == (
        () if commit else ((producer.producer_id, 0),)
    )
    await producer.init()
    await producer.write(0, b"again")
    assert await producer.end(not commit) is Code.NONE
    await wait_outcomes(three, 0, [commit, not commit])
    assert_nothing_is_open(three, 0)
