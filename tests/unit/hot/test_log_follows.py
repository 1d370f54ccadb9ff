"""A log that takes batches as its leader wrote them."""

from __future__ import annotations

from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import NOW, config, disk, open_log, read_all
from tests.unit.hot.test_disk_log import filled, refusal, scenario
from tiered.errors import Code


def test_a_follower_takes_only_what_goes_on_from_its_end() -> None:
    async def told(on: SimDisk) -> None:
        leader = await filled(on, 4)
        data = read_all(leader)
        follower = await open_log(disk(1))
        follower.append_as_follower(data, now_ms=NOW)
        assert read_all(follower) == data
        assert follower.epochs.lineage == ((0, 0),)
        assert refusal(lambda: follower.append_as_follower(data, now_ms=NOW)) is Code.CORRUPT_MESSAGE
        assert refusal(lambda: follower.append_as_follower(data[:-1], now_ms=NOW)) is Code.CORRUPT_MESSAGE

    scenario(told)


def test_a_follower_takes_more_at_once_than_a_segment_of_its_own_holds() -> None:
    async def told(on: SimDisk) -> None:
        data = read_all(await filled(on, 12))
        follower = await open_log(disk(1), config(segment_bytes=len(data) // 3))
        follower.append_as_follower(data, now_ms=NOW)
        assert read_all(follower) == data
        assert follower.segment_count > 2
        smallest = await open_log(disk(2), config(segment_bytes=20))
        smallest.append_as_follower(data, now_ms=NOW)
        assert read_all(smallest) == data

    scenario(told)
