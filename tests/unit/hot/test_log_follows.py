"""Tests of a follower's log, which takes batches as its leader wrote them."""

from __future__ import annotations

from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import NOW, config, disk, open_log, read_all
from tests.unit.hot.test_disk_log import fill_log, refusal, run_scenario
from tiered.errors import Code


def test_follower_refuses_batches_that_do_not_continue_its_log() -> None:
    async def scenario(on: SimDisk) -> None:
        leader = await fill_log(on, 4)
        data = read_all(leader)
        follower = await open_log(disk(1))
        follower.append_as_follower(data, now_ms=NOW)
        assert read_all(follower) == data
        assert follower.epochs.lineage == ((0, 0),)
        assert refusal(lambda: follower.append_as_follower(data, now_ms=NOW)) is Code.CORRUPT_MESSAGE
        assert refusal(lambda: follower.append_as_follower(data[:-1], now_ms=NOW)) is Code.CORRUPT_MESSAGE

    run_scenario(scenario)


def test_follower_takes_batches_larger_than_its_own_segments() -> None:
    async def scenario(on: SimDisk) -> None:
        data = read_all(await fill_log(on, 12))
        follower = await open_log(disk(1), config(segment_bytes=len(data) // 3))
        follower.append_as_follower(data, now_ms=NOW)
        assert read_all(follower) == data
        assert follower.segment_count > 2
        smallest = await open_log(disk(2), config(segment_bytes=20))
        smallest.append_as_follower(data, now_ms=NOW)
        assert read_all(smallest) == data

    run_scenario(scenario)
