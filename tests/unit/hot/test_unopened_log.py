"""How far a log reaches is known also where a full disk does not let it be opened."""

from __future__ import annotations

import random

import pytest

from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import DIRECTORY, NOW, append, batch, config, disk, open_log, scenario
from tiered.hot.unopened_log import find_proved_end
from tiered.records.batch import encode_batch


async def filled(on: SimDisk, count: int) -> None:
    log = await open_log(on, config(segment_bytes=600))
    for number in range(count):
        append(log, batch(number), epoch=number // 5)
    await log.flush(count // 2)


def test_of_a_log_that_is_not_there_nothing_is_said() -> None:
    assert find_proved_end(disk(), DIRECTORY, 0) == (-1, 0)


@pytest.mark.parametrize("point", [0, 3, 10, 19, 20, 99])
def test_a_whole_log_reaches_to_its_end_from_wherever_it_is_read(point: int) -> None:
    async def told(on: SimDisk) -> None:
        await filled(on, 20)
        assert find_proved_end(on, DIRECTORY, point) == (3, 20)

    scenario(told)


@pytest.mark.parametrize("seed", range(200))
def test_after_a_power_cut_it_reaches_as_far_as_an_opening_finds_and_writes_nothing(seed: int) -> None:
    async def told(on: SimDisk) -> None:
        await filled(on, 20)
        after = on.crash_image(random.Random(seed))
        writes: list[str] = []
        after.on_op = lambda op: writes.append(op.verb)
        found = find_proved_end(after, DIRECTORY, 10)
        assert not [verb for verb in writes if verb not in ("pread", "list", "exists", "open")]
        after.on_op = None
        log = await open_log(after, config(segment_bytes=600), same_boot=False, recovery_point=10)
        assert found == (log.epochs.latest, log.end_offset)

    scenario(told)


@pytest.mark.parametrize("torn", [False, True])
def test_a_log_reaches_to_a_hole_and_to_what_is_torn_and_no_further(torn: bool) -> None:
    async def told(on: SimDisk) -> None:
        await filled(on, 20)
        bases = sorted(int(name[:20]) for name in on.list(DIRECTORY) if name.endswith(".log"))
        before, middle, after = bases[1:4]
        path = f"{DIRECTORY}/{middle:020d}.log"
        if torn:
            on.open(path).append([b"torn"])
        else:
            on.remove(path)
        end = after if torn else middle
        assert before < end < 20
        assert find_proved_end(on, DIRECTORY, 0) == ((end - 1) // 5, end)

    scenario(told)


def test_a_log_reaches_to_a_batch_of_an_earlier_epoch_than_the_one_before_it() -> None:
    """That batch is of a history that was cut."""

    async def told(on: SimDisk) -> None:
        log = await open_log(on)
        log.close()
        history = [
            encode_batch([(NOW, None, b"v", ())], base_offset=n, leader_epoch=epoch)
            for n, epoch in enumerate((3, 5, 3))
        ]
        on.open(f"{DIRECTORY}/{0:020d}.log").append(history)
        assert find_proved_end(on, DIRECTORY, 0) == (5, 2)

    scenario(told)
