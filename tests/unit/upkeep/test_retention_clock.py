"""The times by which records are deleted, and offsets and transactional ids expire, while the wall clock is wrong."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tiered.upkeep.retention_clock import CLOCK_SKEW_MS, JUMP_GRACE_MS, RetentionClock

DAY_MS = 86_400_000


class ClockRig:
    """A clock, and the times that a coordinator gets of it."""

    def __init__(self, loop: SimLoop) -> None:
        self.clock = SimClock(loop)
        self.retention = RetentionClock(self.clock)

    def behind_ms(self) -> int:
        """Returns by how much the time for expiry is behind the wall clock."""
        wall_ms = self.clock.wall_ms()
        return wall_ms - self.retention.find_expiry_ms(self.clock.mono_ns() // 1_000_000, wall_ms)


@pytest.mark.parametrize("jump_ms", [CLOCK_SKEW_MS, 8 * DAY_MS])
def test_jump_ahead_is_believed_after_an_hour(jump_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    loop = SimLoop(1)

    async def scenario() -> None:
        rig = ClockRig(loop)
        await asyncio.sleep(60)
        assert rig.behind_ms() == 0
        rig.clock.jump(jump_ms)
        for _ in range(2):
            assert rig.behind_ms() == jump_ms
            await asyncio.sleep(JUMP_GRACE_MS / 2000 - 1)
        assert rig.behind_ms() == jump_ms and len(caplog.records) == 1
        await asyncio.sleep(2)
        assert rig.behind_ms() == 0
        rig.clock.jump(jump_ms)
        assert rig.behind_ms() == jump_ms, "the next one is another"

    loop.run(scenario())


def test_clock_that_goes_back_or_drifts_is_believed_at_once() -> None:
    loop = SimLoop(1)

    async def scenario() -> None:
        rig = ClockRig(loop)
        for jump_ms in (-DAY_MS, CLOCK_SKEW_MS - 1, CLOCK_SKEW_MS - 1):
            rig.clock.jump(jump_ms)
            assert rig.behind_ms() == 0
        rig.clock.jump(DAY_MS)
        assert rig.behind_ms() == DAY_MS
        rig.clock.jump(-DAY_MS)
        assert rig.behind_ms() == 0

    loop.run(scenario())


def test_clock_that_started_fast_expires_nothing_until_it_is_set_right() -> None:
    loop = SimLoop(1)

    async def scenario() -> None:
        rig = ClockRig(loop)
        rig.retention.set_skew(8 * DAY_MS)
        await asyncio.sleep(2 * JUMP_GRACE_MS / 1000)
        assert rig.behind_ms() == 8 * DAY_MS
        rig.clock.jump(-8 * DAY_MS)
        assert rig.behind_ms() == 0

    loop.run(scenario())
