"""Tests of the proved end of a log that a full disk does not let a broker open."""

from __future__ import annotations

import random

import pytest

from tests.scenario import run_by
from tests.seeds import first_seeds
from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import DIRECTORY, NOW, append, batch, config, disk, open_log, run_scenario
from tiered.hot.unopened_log import ProvedEnd, find_proved_end
from tiered.records.batch import encode_batch


async def fill_log(on: SimDisk, count: int) -> None:
    log = await open_log(on, config(segment_bytes=600))
    for number in range(count):
        append(log, batch(number), epoch=number // 5)
    await log.flush(count // 2)


def test_missing_log_has_no_proved_end() -> None:
    assert find_proved_end(disk(), DIRECTORY, 0) == ProvedEnd(-1, 0, is_whole=True)


@pytest.mark.parametrize("point", [0, 3, 10, 19, 20, 99])
@run_by(run_scenario)
async def test_whole_log_is_proved_to_its_end_from_any_recovery_point(on: SimDisk, *, point: int) -> None:
    await fill_log(on, 20)
    assert find_proved_end(on, DIRECTORY, point) == ProvedEnd(3, 20, is_whole=True)


@pytest.mark.parametrize("seed", first_seeds(50, 200))
@run_by(run_scenario)
async def test_proved_end_after_a_power_cut_equals_the_end_of_the_opened_log(on: SimDisk, *, seed: int) -> None:
    await fill_log(on, 20)
    after = on.crash_image(random.Random(seed))
    writes: list[str] = []
    after.on_op = lambda op: writes.append(op.verb)
    found = find_proved_end(after, DIRECTORY, 10)
    assert not [verb for verb in writes if verb not in ("pread", "list", "exists", "open")]
    after.on_op = None
    log = await open_log(after, config(segment_bytes=600), same_boot=False, recovery_point=10)
    assert found[:2] == (log.epochs.latest, log.end_offset)


@pytest.mark.parametrize("torn", [False, True])
@run_by(run_scenario)
async def test_proved_end_is_before_a_hole_or_a_torn_batch(on: SimDisk, *, torn: bool) -> None:
    await fill_log(on, 20)
    bases = sorted(int(name[:20]) for name in on.list(DIRECTORY) if name.endswith(".log"))
    before, middle, after = bases[1:4]
    path = f"{DIRECTORY}/{middle:020d}.log"
    if torn:
        on.open(path).append([b"torn"])
    else:
        on.remove(path)
    end = after if torn else middle
    assert before < end < 20
    assert find_proved_end(on, DIRECTORY, 0) == ProvedEnd((end - 1) // 5, end, is_whole=False)


@run_by(run_scenario)
async def test_proved_end_is_before_a_batch_of_an_earlier_epoch(on: SimDisk) -> None:
    """Such a batch belongs to a history that was cut."""
    log = await open_log(on)
    log.close()
    history = [
        encode_batch([(NOW, None, b"v", ())], base_offset=n, leader_epoch=epoch) for n, epoch in enumerate((3, 5, 3))
    ]
    on.open(f"{DIRECTORY}/{0:020d}.log").append(history)
    assert find_proved_end(on, DIRECTORY, 0) == ProvedEnd(5, 2, is_whole=False)
