"""Tests of read_committed readers of a cluster whose leaders, brokers and disks go away while transactions are open:
they get committed records only, and nothing beyond the last stable offset (I14)."""

from __future__ import annotations

import asyncio
import re

from tests.scenario import run_by
from tests.sim.scenarios.test_transactions import SETTINGS, begin, lose_all_disks, stop_markers
from tests.sim.scenarios.three import QUIET, ThreeBrokers, run_scenario
from tests.sim.scenarios.transactions import SimProducer, create_topic, find_coordinator, find_leader, running
from tiered.controller.requests import CreateTopic
from tiered.coordination.late_transactions import LATE_GRACE_MS
from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered.ports import FileSlice
from tiered.records.aborted import AbortedTransactions
from tiered.records.batch import decode_records
from tiered.records.model import CONTROL
from tiered.records.native import walk
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.read_result import ReadResult

TP = TopicPartition("t", 0)
WAIT_SECONDS = 60.0
TIERED = {"internal.segment.bytes": "2048", "segment.ms": "1000", "local.retention.ms": "1000", "retention.ms": "-1"}


async def wait_leader(three: ThreeBrokers, *, other_than: int = -1) -> LeaderReplica:
    """Returns the leader replica of the partition once another broker than the named one leads it."""

    def leads() -> bool:
        found = find_leader(three, TP)
        return found is not None and found.state.node_id != other_than and found.high_watermark == found.log.end_offset

    await three.wait_until(leads, WAIT_SECONDS)
    found = find_leader(three, TP)
    assert found is not None
    return found


def values_of(found: ReadResult, offset: int) -> tuple[list[bytes | None], int]:
    """Returns the values of committed records in a reply, as a client finds them, and the next fetch offset."""
    data = (
        found.data.file.pread(found.data.start, found.data.length) if isinstance(found.data, FileSlice) else found.data
    )
    batches = walk(data).batches
    aborted = AbortedTransactions(found.aborted_txns)
    kept = [one for one in batches if not aborted.has_batch(one) and not one.attributes & CONTROL]
    records = [each for one in kept for each in decode_records(data, one.position)]
    return [each.value for each in records if each.offset >= offset], batches[-1].last_offset + 1


async def read_committed(leader: LeaderReplica, max_bytes: int = 300) -> list[bytes | None]:
    """Returns all values that a read_committed consumer gets, from the log start on."""
    values, offset = list[bytes | None](), leader.log_start_offset
    while (found := await leader.reads.read(offset, max_bytes, read_committed=True)).size:
        assert offset < found.last_stable_offset <= found.high_watermark
        more, offset = values_of(found, offset)
        values += more
    return values


async def run_transaction(producer: SimProducer, *values: bytes, commit: bool) -> None:
    for value in values:
        await producer.write(0, value)
    assert await producer.end(commit) is Code.NONE


async def wait_decided(three: ThreeBrokers) -> LeaderReplica:
    """Returns the leader once no transaction is open or uncommitted there."""

    def is_decided() -> bool:
        found = find_leader(three, TP)
        return found is not None and found.last_stable_offset == found.log.end_offset

    await three.wait_until(is_decided, WAIT_SECONDS)
    return await wait_leader(three)


@run_by(run_scenario, **SETTINGS)
async def test_next_leader_shows_nothing_of_the_transaction_that_is_open(three: ThreeBrokers) -> None:
    await create_topic(three, (1, 2, 3))
    first, second = SimProducer(three, "first"), SimProducer(three, "second")
    await first.init()
    await second.init()
    await run_transaction(first, b"bad", commit=False)
    await first.write(0, b"open")
    await run_transaction(second, b"good", commit=True)
    leader = await wait_leader(three)
    stable = leader.last_stable_offset
    assert stable < leader.high_watermark and await read_committed(leader) == []
    await three.brokers[leader.state.node_id].kill()
    leader = await wait_leader(three, other_than=leader.state.node_id)
    assert leader.last_stable_offset == stable and await read_committed(leader) == []
    assert await first.end(False) is Code.NONE
    assert await read_committed(await wait_decided(three)) == [b"good"]


@run_by(run_scenario, **SETTINGS)
async def test_follower_shows_what_its_leader_shows(three: ThreeBrokers) -> None:
    await create_topic(three, (1, 2, 3))
    first, second = SimProducer(three, "first"), SimProducer(three, "second")
    await first.init()
    await second.init()
    await first.write(0, b"bad")
    await run_transaction(second, b"good", commit=True)
    assert await first.end(False) is Code.NONE
    await wait_decided(three)
    await second.write(0, b"open")
    leader = await wait_leader(three)
    stable = leader.last_stable_offset
    assert stable < leader.high_watermark
    for each in running(three):
        if each.node_id == leader.state.node_id:
            continue
        source = each.node.follower_reads("t", 0)
        assert source is not None
        await three.wait_until(lambda source=source: source.offset_snapshot()[:2] == (stable + 1, stable), 10)  # type: ignore[misc]
        found = source.read_now(0, 1 << 20, read_committed=True)
        assert values_of(found, 0) == ([b"good"], stable)


@run_by(run_scenario, **SETTINGS)
async def test_restarted_broker_keeps_the_transaction_open(three: ThreeBrokers) -> None:
    await create_topic(three, (1,))
    first, second = SimProducer(three, "first"), SimProducer(three, "second")
    await first.init(300_000)
    await second.init()
    await run_transaction(first, b"bad", commit=False)
    await first.write(0, b"open")
    await run_transaction(second, b"good", commit=True)
    leader = await wait_leader(three)
    stable = leader.last_stable_offset
    leader.roll()  # the next start takes the open transaction from a snapshot
    for power in (False, True):
        broker = three.brokers[1]
        if power:
            await leader.flush()
            broker.machine.power_cut()
            await broker.clear()
        else:
            await broker.kill()
        await broker.start()
        leader = await wait_leader(three)
        assert leader.last_stable_offset == stable and await read_committed(leader) == []
    assert await first.end(False) is Code.NONE
    assert await read_committed(await wait_decided(three)) == [b"good"]


@run_by(run_scenario, **SETTINGS)
async def test_partition_rebuilt_from_the_bucket_shows_its_committed_records(three: ThreeBrokers) -> None:
    await three.controller.node.submit(CreateTopic("t", assignments=[(1, 2, 3)], configs=TIERED))
    await three.wait_until(lambda: all("t" in each.node.image.topics for each in running(three)), 10)
    first, second = SimProducer(three, "first"), SimProducer(three, "second")
    await first.init()
    await second.init()
    wanted: list[bytes | None] = []
    for turn in range(12):
        bad, good = b"bad%d" % turn + b"x" * 200, b"good%d" % turn + b"x" * 200
        await first.write(0, bad)
        await run_transaction(second, good, commit=True)
        await run_transaction(first, bad, commit=False)
        wanted.append(good)
    leader = await wait_decided(three)
    end = leader.log.end_offset
    assert await read_committed(leader) == wanted
    await three.wait_until(lambda: leader.cold_end_offset == end, WAIT_SECONDS)
    await three.wait_until(lambda: leader.local_start_offset == end, WAIT_SECONDS)
    assert await read_committed(leader) == wanted, "all from the bucket"
    await first.write(0, b"open")
    await asyncio.sleep(5)
    assert leader.cold_end_offset == end, "nothing undecided becomes cold"
    await lose_all_disks(three)
    leader = await wait_decided(three)
    assert leader.log.end_offset >= end
    assert await read_committed(leader) == wanted
    await first.init()
    await run_transaction(first, b"later", commit=True)
    assert await read_committed(await wait_decided(three)) == [*wanted, b"later"]


@run_by(run_scenario, **SETTINGS, transaction_max_timeout_ms=60_000, **QUIET)
async def test_health_names_the_transaction_that_nobody_ends(three: ThreeBrokers) -> None:
    producer = await begin(three)
    keeper = find_coordinator(three, producer.name)
    assert keeper is not None
    began_ms = keeper.node.world.clock.wall_ms()
    stop_markers(keeper)
    assert await producer.end(True) is Code.NONE
    await asyncio.sleep((keeper.node.settings.transaction_max_timeout_ms + LATE_GRACE_MS) / 1000 - 60)
    assert all(each.node.late_transactions.find() == [] for each in three.brokers.values())
    await asyncio.sleep(61)
    for each in three.brokers.values():
        (late,) = each.node.late_transactions.find()
        assert late.tp == TopicPartition("t", each.node_id - 1) and late.first_offset == 0
        assert late.producer_id == producer.producer_id and abs(late.since_ms - began_ms) < 5_000
        assert late.transactional_id == (producer.name if each is keeper else "")
        health = each.node.health()
        (problem,) = [said for said in health.own_problems if f"partition {late.tp} has a transaction" in said]
        assert (f"transactional id {producer.name}" in problem) == (each is keeper)
        (behind,) = [said for said in health.own_problems if said.startswith("uploads are behind")]
        assert f"those of {late.tp} wait for the end of a transaction" in behind and "open from offset 0 on" in behind
        assert health.ok and health.details["late_transactions"][0]["producer_id"] == producer.producer_id
        shown = each.node.metrics.render()
        assert "partitionswithlatetransactionscount 1" in shown
        [age] = re.findall(r"^tiered_open_transaction_seconds (.*)$", shown, re.MULTILINE)
        assert abs(float(age) * 1000 - (each.node.world.clock.wall_ms() - began_ms)) < 5_000
