"""Tests of the state of a data directory: when a full disk has room again, and which failed writes mark it."""

from __future__ import annotations

import random

import pytest

from tests.sim.harness.clock import SimClock
from tests.sim.harness.disk import DiskFault, SimDisk
from tests.sim.harness.loop import SimLoop
from tiered.errors import Unavailable
from tiered.metrics import Metrics
from tiered.ports import Space
from tiered.replication.disk_state import (
    RECOVERY_SECONDS,
    ROOM_BYTES,
    ROOM_SECONDS,
    STALL_LOOK_MS,
    STALL_MS,
    TAKEN_BYTES,
    DiskState,
    FullDisk,
    has_room,
    is_stalled,
)

LATER_NS = int(ROOM_SECONDS * 1e9)
LARGE = 1 << 40


@pytest.mark.parametrize(
    ("taken", "now_ns", "space", "expected"),
    [
        (0, LATER_NS, Space(LARGE, ROOM_BYTES), True),
        (0, LATER_NS - 1, Space(LARGE, ROOM_BYTES), False),
        (0, LATER_NS, Space(LARGE, ROOM_BYTES - 1), False),
        (TAKEN_BYTES, LATER_NS, Space(LARGE, 0), True),
        (TAKEN_BYTES, LATER_NS - 1, Space(LARGE, 0), False),
        (TAKEN_BYTES - 1, LATER_NS, Space(LARGE, 0), False),
        (0, LATER_NS, Space(100_000_000, 5_000_000), True),
        (0, LATER_NS, Space(100_000_000, 4_999_999), False),
    ],
)
def test_full_disk_has_room_after_a_quiet_time_with_proof(
    taken: int, now_ns: int, space: Space, expected: bool
) -> None:
    assert has_room(FullDisk(0, taken), now_ns, space) is expected


def test_disk_is_stalled_after_looks_without_progress() -> None:
    looks = -(-STALL_MS // STALL_LOOK_MS)
    assert is_stalled(looks) and not is_stalled(looks - 1)
    assert is_stalled(1, 1) and not is_stalled(1 << 30, 0)


def test_write_of_any_file_marks_the_disk_at_the_next_check() -> None:
    disk = SimDisk(random.Random(1))
    state = DiskState(disk, SimClock(SimLoop(1)), Metrics(), lambda _: None)
    disk.faults.append(DiskFault("append", "note", "ENOSPC"))
    with pytest.raises(Unavailable):
        disk.open("note", create=True).append([b"x"])
    state.check()
    assert state.full is not None and "path=note" in state.full.why and state.dead is None


def test_disk_that_had_no_room_recovers_before_it_is_usable() -> None:
    loop = SimLoop(1)

    async def scenario() -> None:
        disk, clock = SimDisk(random.Random(1)), SimClock(loop)
        state = DiskState(disk, clock, Metrics(), lambda _: None)
        assert not state.is_recovering
        state.mark_full("no room")
        await clock.sleep(ROOM_SECONDS - 1)
        state.check()
        assert state.full is not None and not state.is_recovering
        await clock.sleep(1)
        state.check()
        assert state.full is None and state.is_recovering
        await clock.sleep(RECOVERY_SECONDS)
        assert not state.is_recovering

    loop.run(scenario())


def test_failed_write_of_any_file_ends_the_use_at_the_next_check() -> None:
    disk, dead = SimDisk(random.Random(1)), list[str]()
    state = DiskState(disk, SimClock(SimLoop(1)), Metrics(), dead.append)
    disk.faults.append(DiskFault("append", "note", "EIO"))
    with pytest.raises(Unavailable):
        disk.open("note", create=True).append([b"x"])
    state.check()
    state.check()
    assert state.dead is not None and len(dead) == 1 and "path=note" in dead[0]


def test_failures_of_an_earlier_process_do_not_mark_the_disk() -> None:
    disk = SimDisk(random.Random(1))
    disk.faults.append(DiskFault("append", "note", "ENOSPC"))
    with pytest.raises(Unavailable):
        disk.open("note", create=True).append([b"x"])
    state = DiskState(disk, SimClock(SimLoop(1)), Metrics(), lambda _: None)
    state.check()
    assert state.full is None
