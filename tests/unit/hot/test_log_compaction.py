"""Tests of the compaction of one log: its state, its mark on the disk, and the range to clean."""

from __future__ import annotations

import pytest

from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import DiskFault, SimDisk
from tests.unit.hot.cleaning import clean, put
from tests.unit.hot.fixtures import DIRECTORY, NOW, append, batch, config, disk, open_log
from tests.unit.hot.transactions import TransactionWriter
from tiered.config.settings import TopicConfig
from tiered.errors import Unavailable
from tiered.hot.checkpoints import COMPACTION_FILE, CompactionState, encode_compaction
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_compaction import load_state

FILE = f"{DIRECTORY}/{COMPACTION_FILE}"


def compacted(**changes: object) -> TopicConfig:
    return config(cleanup_policy=("compact",), **changes)


async def closed_log(on: SimDisk, settings: TopicConfig | None = None) -> DiskLog:
    """Returns a log with two closed, flushed segments of ten records each, all of the same few keys."""
    log = await open_log(on, settings or compacted(segment_bytes=1 << 20))
    for _ in range(2):
        for number in range(10):
            put(log, f"k{number % 3}", f"{number}")
        log.roll()
    await log.flush()
    return log


@run_by(run_alone)
async def test_log_is_marked_on_the_disk_before_its_first_gap() -> None:
    on = disk()
    log = await closed_log(on)
    marked: list[bool] = []
    on.on_op = lambda op: marked.append(on.exists(FILE)) if op.path.endswith(".log.swap") else None
    assert log.compaction.state is None and not on.exists(FILE)
    result = await clean(log)
    assert marked and all(marked) and log.compaction.state is not None
    assert log.compaction.state.clean_to == result.clean_to == 20


@run_by(run_alone)
async def test_mark_makes_gaps_lawful_under_any_policy() -> None:
    on = disk()
    log = await open_log(on, config())
    append(log, batch(0))
    assert not log.compaction.may_have_gaps
    log.compaction.mark()
    await log.flush()
    assert log.compaction.may_have_gaps
    again = await open_log(on.after_power_cut(), config(), same_boot=False)
    assert again.compaction.may_have_gaps and again.compaction.state == CompactionState()
    again.configure(config())
    assert again.compaction.may_have_gaps, "the gaps stay when the policy goes"


@run_by(run_alone)
async def test_log_that_becomes_compacted_may_have_gaps_at_once() -> None:
    log = await open_log(disk(), config())
    log.configure(compacted())
    assert log.compaction.may_have_gaps and log.compaction.state is None
    log.configure(config())
    assert not log.compaction.may_have_gaps


@run_by(run_alone)
async def test_compacted_log_of_another_program_is_marked_by_its_load() -> None:
    on = disk()
    log = await open_log(on, config())
    append(log, batch(0))
    await log.flush()
    again = await open_log(on, compacted())
    assert again.compaction.state == CompactionState() and on.exists(FILE)
    empty = await open_log(disk(1), compacted())
    assert empty.compaction.state is None


@run_by(run_alone)
async def test_nothing_above_the_log_end_is_clean() -> None:
    on = disk()
    log = await closed_log(on)
    await clean(log)
    for _ in range(2):  # the active segment goes first
        log.truncate_to(12)
    assert log.compaction.state is not None and log.compaction.state.clean_to == log.end_offset < 20
    saved = load_state(log._writer.files)
    assert saved == log.compaction.state
    on.open(FILE).truncate(0)
    on.open(FILE).append((encode_compaction(CompactionState(clean_to=99)),))
    again = await open_log(on, compacted())
    assert again.compaction.state is not None and again.compaction.state.clean_to == again.end_offset


@run_by(run_alone)
async def test_damaged_state_cleans_from_the_start_and_keeps_the_mark() -> None:
    on = disk()
    log = await closed_log(on)
    await clean(log)
    on.flip_bit(FILE, 8)
    assert load_state(log._writer.files) == CompactionState()
    on.remove(FILE)
    assert load_state(log._writer.files) is None


@run_by(run_alone)
async def test_range_ends_at_the_first_offset_that_may_change() -> None:
    on = disk()
    log = await closed_log(on)
    found = log.compaction.find_cleanable
    assert (found(0, 20, NOW).first_dirty, found(0, 20, NOW).first_uncleanable) == (0, 20)
    assert found(0, 15, NOW).first_uncleanable == 10, "a segment is below the high watermark or stays"
    assert found(10, 20, NOW).first_dirty == 10, "records below the log start are gone"
    TransactionWriter(log).write(7, key=b"k")
    assert found(0, 99, NOW).first_uncleanable == 20
    log.roll()
    await log.flush()
    assert found(0, log.end_offset, NOW).first_uncleanable == 20, "an open transaction"
    late = await open_log(disk(1), compacted(segment_bytes=1 << 20))
    put(late, "k", "v")
    late.roll()
    assert late.compaction.find_cleanable(0, 1, NOW).first_uncleanable == 0, "a power cut could take it"


@run_by(run_alone)
async def test_disk_that_fails_in_an_exchange_fails_the_log() -> None:
    on = disk()
    log = await closed_log(on)
    on.faults.append(DiskFault("rename", path=f"{0:020d}.log", skip=2))  # the first two make the .swap file
    with pytest.raises(Unavailable):
        await clean(log)
    assert log.status.write_failure.startswith("a clean of the log failed")


@run_by(run_alone)
async def test_truncation_or_drop_without_a_clean_has_nothing_to_end() -> None:
    log = await closed_log(disk())
    log.compaction.end_clean()
    log.compaction.cancel_swap()
    assert await log.drop_local_below(10) == 1
    for _ in range(2):  # the active segment goes first
        log.truncate_to(15)
    assert (log.local_start_offset, log.end_offset) == (10, 15)
