"""What an answered DeleteRecords promises: nobody who leads later serves what was deleted."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.site import numbers, read_values
from tests.sim.harness.machine import SimMachine
from tests.sim.scenarios.test_what_an_ack_survives import COUNT, SECONDS, crash, insiders, leader_of, led, written
from tests.sim.scenarios.three import SimBroker, Three, told
from tiered.errors import Unavailable
from tiered.ids import TopicPartition
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica

DELETED = COUNT // 2
AT = TopicPartition("t", 0)
TIERED = pytest.mark.parametrize("tiered", ["true", "false"], ids=["tiered", "untiered"])


def copies(three: Three) -> list[FollowerReplica]:
    found = [each.node.hosted_replicas.find_follower(AT) for each in three.brokers.values()]
    return [copy for copy in found if copy is not None]


async def next_leader(three: Three, gone: SimBroker) -> LeaderReplica:
    await three.until(lambda: bool(three.controllers()) and leader_of(three) is not gone, SECONDS)
    return await led(three)


@TIERED
def test_deletion_outlives_the_leaders_process(tiered: str) -> None:
    async def story(three: Three) -> None:
        await written(three, 3, min_insync_replicas="2", remote_storage_enable=tiered)
        leader, hit = await led(three), leader_of(three)
        assert await leader.delete_records(DELETED) == DELETED
        assert {copy.log.start_offset for copy in copies(three)} == {DELETED}
        await crash([hit], SimMachine.kill)
        again = await next_leader(three, hit)
        assert again.log_start_offset == DELETED
        assert await read_values(again, DELETED) == numbers(DELETED, COUNT)

    told(story)


@TIERED
def test_deletion_outlives_all_processes(tiered: str) -> None:
    async def story(three: Three) -> None:
        await written(three, 3, min_insync_replicas="2", remote_storage_enable=tiered)
        assert await (await led(three)).delete_records(DELETED) == DELETED
        await crash(list(three.brokers.values()), SimMachine.kill)
        await asyncio.gather(*(each.start() for each in three.brokers.values()))
        again = await led(three)
        assert again.log_start_offset == DELETED
        await three.until(lambda: again.high_watermark == COUNT, SECONDS)
        assert await read_values(again, DELETED) == numbers(DELETED, COUNT)

    told(story)


def test_deletion_with_flush_ack_outlives_the_power_of_all() -> None:
    async def story(three: Three) -> None:
        await written(three, 3, min_insync_replicas="2", remote_storage_enable="false", flush="ack")
        assert await (await led(three)).delete_records(DELETED) == DELETED
        await crash(list(three.brokers.values()), SimMachine.power_cut)
        await asyncio.gather(*(each.start() for each in three.brokers.values()))
        again = await led(three)
        assert again.log_start_offset == DELETED
        await three.until(lambda: again.high_watermark == COUNT, SECONDS)

    told(story)


def test_deletion_of_the_only_replica_outlives_its_process() -> None:
    async def story(three: Three) -> None:
        await written(three, 1, remote_storage_enable="false")
        hit = leader_of(three)
        assert await (await led(three)).delete_records(DELETED) == DELETED
        await crash([hit], SimMachine.kill)
        await hit.start()
        assert (await led(three)).log_start_offset == DELETED

    told(story)


def test_deletion_is_answered_before_a_followers_fetch_would_end() -> None:
    """The leader's answer to a fetch that waits carries the new log start at once."""

    async def story(three: Three) -> None:
        await written(three, 3, remote_storage_enable="false")
        leader = await led(three)
        await asyncio.sleep(2)  # all fetches wait at the leader
        began = three.now
        await leader.delete_records(DELETED)
        wait = leader_of(three).node.settings.replica_fetch_wait_max_ms / 1000
        assert three.now - began < wait / 4

    told(story)


@TIERED
def test_deletion_waits_for_an_in_sync_follower_that_is_cut_off_until_it_left_the_in_sync_set(tiered: str) -> None:
    async def story(three: Three) -> None:
        await written(three, 3, min_insync_replicas="2", remote_storage_enable=tiered)
        leader, leads = await led(three), leader_of(three)
        cut = next(each for each in three.others() if each is not leads)
        copy = cut.node.hosted_replicas.find_follower(AT)
        cut.machine.kill()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await leader.delete_records(DELETED)
        assert copy is not None and copy.log.start_offset == 0
        await leader.delete_records(DELETED)
        assert cut not in insiders(three)
        await cut.clear()
        await cut.start()
        await three.until(lambda: cut in insiders(three), SECONDS)
        back = cut.node.hosted_replicas.find_follower(AT)
        assert back is not None and back.log.start_offset == DELETED

    told(story)


def test_follower_that_joins_the_isr_later_cannot_bring_deleted_records_back() -> None:
    """The follower was away while records were deleted; then it alone is left."""

    async def story(three: Three) -> None:
        await written(three, 3, remote_storage_enable="false")
        leads = leader_of(three)
        away, other = [each for each in three.brokers.values() if each is not leads]
        await crash([away], SimMachine.kill)
        await three.until(lambda: away not in insiders(three), SECONDS)
        assert await (await led(three)).delete_records(DELETED) == DELETED
        await away.start()
        await three.until(lambda: away in insiders(three), SECONDS)
        await crash([other], SimMachine.kill)
        await three.until(lambda: other not in insiders(three), SECONDS)
        await crash([leads], SimMachine.kill)
        again = await next_leader(three, leads)
        assert leader_of(three) is away and again.log_start_offset == DELETED

    told(story)


@TIERED
def test_deletion_below_min_insync_replicas_is_not_answered(tiered: str) -> None:
    """A replica that left the in-sync set below that number may lead, and was not told. It may have read the manifest
    before the deletion: then it shows what lies below until it takes the manifest over."""

    async def story(three: Three) -> None:
        await written(three, 3, in_sync=2, min_insync_replicas="2", remote_storage_enable=tiered)
        leader, leads = await led(three), leader_of(three)
        (other,) = [each for each in insiders(three) if each is not leads]
        await crash([other], SimMachine.kill)
        await three.until(lambda: insiders(three) == [leads], SECONDS)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await leader.delete_records(DELETED)
        await crash([leads], SimMachine.kill)
        await other.start()
        await three.until(lambda: bool(three.controllers()) and leader_of(three) is other, SECONDS)
        start = (await led(three)).log_start_offset
        assert start == (DELETED if tiered == "true" else 0), "so nobody may have been told where no manifest has it"

    told(story)


def test_a_deletion_that_the_bucket_did_not_take_keeps_nobody_out_of_the_in_sync_set() -> None:
    async def story(three: Three) -> None:
        await written(three, 3, min_insync_replicas="2", remote_storage_enable="true")
        leader, hit = await led(three), leader_of(three)
        hit.machine.faults.outage = True
        with pytest.raises(Unavailable):
            await leader.delete_records(DELETED)
        assert leader.log_start_offset == 0
        hit.machine.faults.outage = False
        back = next(each for each in three.others() if each is not hit)
        await crash([back], SimMachine.kill)
        await three.until(lambda: back not in insiders(three), SECONDS)
        await back.start()
        await three.until(lambda: back in insiders(three), SECONDS)
        assert await leader.delete_records(DELETED) == DELETED == leader.log_start_offset

    told(story)
