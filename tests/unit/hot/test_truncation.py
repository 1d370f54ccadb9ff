"""Tests of truncations: where a log ends after one, and the order of its steps."""

from __future__ import annotations

import pytest

from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import Op, SimDisk
from tests.unit.hot.cleaning import clean, put
from tests.unit.hot.fixtures import append, batch, config, disk, offsets, open_log, read_all
from tiered.errors import Corrupt
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_reader import find_segment
from tiered.hot.truncation import find_end, truncate, truncate_fully
from tiered.producers.states import ProducerStates

INTERVAL = 200


async def two_segments(on: SimDisk) -> DiskLog:
    """Returns a log of batches of two records in the segments `[0, 10)` and `[10, 20)`, fsynced."""
    log = await open_log(on, config(segment_bytes=1 << 20))
    for first in range(0, 20, 2):
        if first == 10:
            log.roll()
        append(log, batch(first, 2, producer=7, sequence=first))
    await log.flush()
    return log


@run_by(run_alone)
async def test_end_after_a_truncation_is_that_of_the_batch_before() -> None:
    writer = (await two_segments(disk()))._writer
    ends = {offset: find_end(writer, offset) for offset in (0, 1, 2, 3, 10, 11, 13, 20, 99)}
    assert ends == {0: 0, 1: 0, 2: 2, 3: 2, 10: 10, 11: 10, 13: 12, 20: 20, 99: 99}


@run_by(run_alone)
async def test_end_in_a_log_with_gaps_is_not_above_the_real_one() -> None:
    log = await open_log(disk(), config(cleanup_policy=("compact",), segment_bytes=1 << 20))
    for key in ("a", "b", "a", "c", "a", "d"):
        put(log, key, "v")
    log.roll()
    await log.flush()
    await clean(log)
    for offset in (3, 5):
        assert find_end(log._writer, offset) == 0, "the offsets before may be in no batch"


@run_by(run_alone)
async def test_end_in_a_damaged_log_is_an_error() -> None:
    on = disk()
    log = await two_segments(on)
    log._writer.segments[0].next_offset = 8
    with pytest.raises(Corrupt, match="offset 9 is missing"):
        find_end(log._writer, 9)


@pytest.mark.parametrize(("offset", "end"), [(1, 0), (4, 4), (9, 8), (12, 12), (19, 18)])
@run_by(run_alone)
async def test_truncated_log_ends_before_the_batch_of_the_offset(*, offset: int, end: int) -> None:
    on = disk()
    log = await two_segments(on)
    writer = log._writer
    while writer.end_offset > end:  # later segments go first, and alone
        truncate(writer, find_segment(writer, offset), offset, INTERVAL)
    assert writer.end_offset == writer.segments[-1].next_offset == end
    assert offsets(read_all(log)) == list(range(end))
    known = log.producers.get(7)
    assert (known is None) if end == 0 else (known is not None and known.batches[-1].last_offset == end - 1)
    again = await open_log(on.after_kill(), config(segment_bytes=1 << 20))
    assert again.end_offset == end and not again.suspect


@run_by(run_alone)
async def test_segments_after_that_of_the_offset_go_first_and_alone() -> None:
    on = disk()
    log = await two_segments(on)
    changed: list[str] = []
    on.on_op = lambda op: changed.append(op.path) if op.verb in ("truncate", "remove") else None
    truncate(log._writer, find_segment(log._writer, 4), 4, INTERVAL)
    on.on_op = None
    assert log._writer.end_offset == 10
    assert changed and not any(path.endswith(f"{0:020d}.log") for path in changed)


@run_by(run_alone)
async def test_restarted_log_is_empty_with_the_state_from_elsewhere() -> None:
    on = disk()
    log = await two_segments(on)
    producers = ProducerStates(50)
    order: list[str] = []

    def note(op: Op) -> None:
        if op.verb == "remove":
            order.append(op.path.rsplit(".", 1)[1])

    on.on_op = note
    truncate_fully(log._writer, 50, ((3, 0), (5, 40), (6, 50)), producers, INTERVAL)
    on.on_op = None
    assert order.index("index") < order.index("log")
    assert [(each.base_offset, each.size) for each in log._writer.segments] == [(50, 0)]
    assert log.epochs.lineage == ((3, 0), (5, 40)) and log.producers is producers
    assert log._writer.unsynced.flushed_offset <= 20
    again = await open_log(on.after_kill(), start_offset=50)
    assert (again.end_offset, again.epochs.lineage) == (50, ((3, 0), (5, 40)))
