"""Tests of a producer state that is completed from a snapshot of the bucket."""

from __future__ import annotations

import pytest

from tests.scenario import run_alone, run_by
from tests.unit.hot.fixtures import append, batch, disk, open_log
from tiered.errors import Corrupt
from tiered.hot.disk_log import DiskLog
from tiered.hot.producer_restore import decode_producers, restore_producers
from tiered.producers.states import ProducerStates


async def log_from_offset_4() -> tuple[DiskLog, bytes]:
    """Returns a log that begins at offset 4 and lacks producer 7, whose batches lie below, and the snapshot at 4.
    Producer 8 has written since."""
    earlier = await open_log(disk(1))
    for sequence in range(4):
        append(earlier, batch(sequence, producer=7, sequence=sequence))
    log = await open_log(disk(2))
    log.truncate_fully_and_start_at(4, ((0, 0),), None)
    append(log, batch(4, producer=8, sequence=0))
    log.producers.is_incomplete = True
    return log, earlier.producers.encode_snapshot()


@run_by(run_alone)
async def test_restored_log_knows_producers_below_and_above_its_start() -> None:
    log, snapshot = await log_from_offset_4()
    restore_producers(log._writer, 4, snapshot, (), "t-0")
    assert sorted(each.producer_id for each in log.producers.list_producers()) == [7, 8]
    assert append(log, batch(3, producer=7, sequence=3)).base_offset == 3, "a retry gets its first offset"
    assert append(log, batch(4, producer=8, sequence=0)).base_offset == 4


@run_by(run_alone)
async def test_restored_producers_survive_a_kill() -> None:
    log, snapshot = await log_from_offset_4()
    restore_producers(log._writer, 4, snapshot, (), "t-0")
    again = await open_log(log._writer.files.disk, start_offset=4)
    assert sorted(each.producer_id for each in again.producers.list_producers()) == [7, 8]


@run_by(run_alone)
async def test_log_without_a_snapshot_keeps_what_it_knows() -> None:
    log, _ = await log_from_offset_4()
    known = log.producers
    restore_producers(log._writer, 4, None, (), "t-0")
    assert log.producers is known and not known.is_incomplete
    assert [each.producer_id for each in known.list_producers()] == [8]


@run_by(run_alone)
async def test_damaged_snapshot_changes_nothing() -> None:
    log, snapshot = await log_from_offset_4()
    known = log.producers
    with pytest.raises(Corrupt, match="t-0"):
        restore_producers(log._writer, 4, snapshot[:-1], (), "t-0")
    assert log.producers is known


@run_by(run_alone)
async def test_decoded_producers_count_only_once_the_log_takes_them() -> None:
    log, snapshot = await log_from_offset_4()
    limits = log._writer.producer_limits
    before = limits.producer_count
    states = decode_producers(log._writer, 4, snapshot, "t-0")
    assert isinstance(states, ProducerStates) and states.end_offset == 4 and limits.producer_count == before
    log._writer.replace_producers(states)
    assert limits.producer_count == 1, "producer 7 replaces producer 8"
