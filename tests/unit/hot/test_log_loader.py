"""Tests of a load of a partition's directory, and of the lineage that it rebuilds from batches."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import DiskFault, SimDisk
from tests.unit.hot.fixtures import DIRECTORY, NOW, append, batch, config, disk, open_log
from tiered.config.settings import TopicConfig
from tiered.hot.checkpoints import EPOCHS_FILE, SEGMENTS_FILE
from tiered.hot.leader_epochs import LeaderEpochs, Lineage
from tiered.hot.log_loader import CorruptLog, LoadedLog, LogLoader, find_first_epochs, rebuild_epochs
from tiered.hot.log_recovery import LogRecovery
from tiered.hot.segment_files import OpenFiles, SegmentFiles

SETTINGS = config(segment_bytes=1 << 20)
EPOCHS: Lineage = ((0, 0), (2, 3), (5, 7))
SAME_BOOT = LogRecovery(same_boot=True, clean=False)
POWER_CUT = LogRecovery(same_boot=False, clean=False)


async def write_log(on: SimDisk) -> None:
    """Writes the segments `[0, 5)` and `[5, 10)` of batches of one record, with the epochs of `EPOCHS`."""
    log = await open_log(on, SETTINGS)
    for number in range(10):
        if number == 5:
            log.roll()
        epoch = max(epoch for epoch, start in EPOCHS if start <= number)
        append(log, batch(number, producer=7, sequence=number), epoch)
    await log.flush()
    log.close()


def files_of(on: SimDisk) -> SegmentFiles:
    return SegmentFiles(on, DIRECTORY, OpenFiles(on))


def load(on: SimDisk, left: LogRecovery, settings: TopicConfig = SETTINGS) -> tuple[LoadedLog, LogLoader]:
    loader = LogLoader(files_of(on), settings, NOW, left, producers_max=100)
    return asyncio.run(loader.open()), loader


def whole_log() -> SimDisk:
    on = disk()
    asyncio.run(write_log(on))
    return on


def facts(loaded: LoadedLog) -> tuple[list[tuple[int, int]], Lineage, int]:
    ranges = [(each.base_offset, each.next_offset) for each in loaded.segments]
    return ranges, loaded.epochs.lineage, loaded.truncated_bytes


def test_new_log_begins_at_its_start_offset_and_reads_nothing() -> None:
    on = disk()
    loaded, _ = load(on, LogRecovery(same_boot=False, clean=False, start_offset=40, is_new=True))
    assert facts(loaded) == ([(40, 40)], (), 0) and loaded.is_resumed
    assert on.list(DIRECTORY) == [f"{40:020d}.log"]


@pytest.mark.parametrize("left", [SAME_BOOT, POWER_CUT])
def test_load_finds_segments_epochs_and_producers(left: LogRecovery) -> None:
    loaded, loader = load(whole_log(), left)
    assert facts(loaded) == ([(0, 5), (5, 10)], EPOCHS, 0)
    assert loaded.end_offset == loaded.producers.end_offset == 10 and not loader.suspect and not loaded.is_resumed
    known = loaded.producers.get(7)
    assert known is not None and known.batches[-1].last_offset == 9


@pytest.mark.parametrize("left", [SAME_BOOT, POWER_CUT])
def test_second_load_after_the_first_finds_the_same(left: LogRecovery) -> None:
    on = whole_log()
    on.open(f"{DIRECTORY}/{5:020d}.log").append((b"torn",))
    first, _ = load(on, left)
    again, _ = load(on.after_kill(), left)
    assert facts(first) == ([(0, 5), (5, 10)], EPOCHS, 4)
    assert facts(again) == ([(0, 5), (5, 10)], EPOCHS, 0)


@pytest.mark.parametrize("damage", ["absent", "rotten", "behind"])
def test_lineage_is_rebuilt_if_its_checkpoint_does_not_match(damage: str) -> None:
    on = whole_log()
    path = f"{DIRECTORY}/{EPOCHS_FILE}"
    if damage == "rotten":
        on.flip_bit(path, 0)
    else:
        on.remove(path)
    if damage == "behind":
        on.open(path, create=True).append((b"0\n1\n0 0\n",))
    loaded, _ = load(on, POWER_CUT)
    assert loaded.epochs.lineage == EPOCHS
    assert (files_of(on).read(path) or b"").startswith(b"0\n3\n"), "the file is right again"


def test_segment_after_a_torn_one_is_deleted() -> None:
    on = whole_log()
    on.remove(f"{DIRECTORY}/{SEGMENTS_FILE}")
    first = on.open(f"{DIRECTORY}/{0:020d}.log")
    size = first.size()
    first.truncate(size - 1)
    loaded, _ = load(on, POWER_CUT)
    assert facts(loaded)[:2] == ([(0, 4)], ((0, 0), (2, 3)))
    assert loaded.truncated_bytes >= size and not on.exists(f"{DIRECTORY}/{5:020d}.log")


def test_corrupt_records_are_noted_before_they_are_truncated() -> None:
    on = whole_log()
    path = f"{DIRECTORY}/{5:020d}.log"
    left = LogRecovery(same_boot=False, clean=False, recovery_point=10)
    on.remove(f"{DIRECTORY}/{SEGMENTS_FILE}")
    on.flip_bit(path, 8 * 40)
    size = on.open(path).size()
    full = on.clone()
    full.faults.append(DiskFault("append", path="rotten", error="ENOSPC", times=-1))
    with pytest.raises(CorruptLog):
        load(full, left)
    assert full.open(path).size() == size, "no room for the note, so nothing is truncated"
    loaded, loader = load(on, left)
    assert loader.suspect and on.exists(f"{DIRECTORY}/rotten") and loaded.end_offset == 5


@run_by(run_alone)
async def test_rebuilt_epochs_are_those_of_the_batches() -> None:
    on = disk()
    await write_log(on)
    log = await open_log(on, SETTINGS)
    epochs = LeaderEpochs(((1, 2), (4, 6), (9, 9)))
    rebuild_epochs(files_of(on), log._writer.segments, epochs)
    assert epochs.lineage == EPOCHS
    later = LeaderEpochs(((0, 0), (1, 2), (9, 9)))
    rebuild_epochs(files_of(on), log._writer.segments[1:], later)
    assert later.lineage == ((0, 0), (1, 2), (2, 5), (5, 7)), "entries from before the first segment stay"


@pytest.mark.parametrize(
    ("known", "start", "lineage"),
    [
        (EPOCHS[1:], 0, EPOCHS),
        (EPOCHS[2:], 0, EPOCHS),
        (EPOCHS[2:], 2, ((0, 2), (2, 3), (5, 7))),
        (EPOCHS[2:], 4, ((2, 4), (5, 7))),
        (EPOCHS[2:], 7, EPOCHS[2:]),
        (EPOCHS, 0, EPOCHS),
        ((), 0, ()),
    ],
)
@run_by(run_alone)
async def test_epochs_below_the_first_known_one_are_found_in_the_log(
    *, known: Lineage, start: int, lineage: Lineage
) -> None:
    on = disk()
    await write_log(on)
    log = await open_log(on, SETTINGS)
    found = find_first_epochs(files_of(on), log._writer.segments, LeaderEpochs(known), start)
    assert found.lineage == lineage
