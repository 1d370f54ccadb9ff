"""Tests of the swap of closed segments for a cleaned one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import DiskFault, SimDisk
from tests.unit.hot.fixtures import DIRECTORY, NOW, append, batch, config, disk, offsets, open_log, read_all
from tiered.errors import Unavailable
from tiered.hot.disk_log import DiskLog
from tiered.hot.index import IndexBuilder
from tiered.hot.interrupted_swaps import CLEANED, SWAP
from tiered.hot.segment_deletion import SegmentDeletion
from tiered.hot.segment_swap import SegmentSwap
from tiered.hot.segments import IndexChecksums, Segment
from tiered.records.native import walk


class SwapRig:
    """A log with the closed segments `[0, 4)` and `[4, 8)`, and the files of a cleaned one: offsets 3 and 7 of both."""

    def __init__(self, on: SimDisk, log: DiskLog) -> None:
        self.on, self.log, self.forgotten = on, log, 0
        writer = log._writer
        self.swap = SegmentSwap(writer, log.status, SegmentDeletion(writer), self._forget)
        self.group = writer.segments[:2]
        data = b""
        for segment in self.group:
            whole = writer.files.read(writer.files.path(segment.base_offset, ".log")) or b""
            last = walk(whole).batches[-1]
            data += whole[last.position : last.position + last.size]
        builder = IndexBuilder(0, 200)
        for each in walk(data).batches:
            builder.add_batch(each.position, each.size, each.last_offset, each.max_timestamp)
        builder.finish()
        for suffix, content in ((".log", data), (".index", builder.offsets), (".timeindex", builder.times)):
            on.open(writer.files.path(0, suffix) + CLEANED, create=True).append((bytes(content),))
        self.cleaned = Segment(
            0, 8, len(data), NOW, builder.max_timestamp, builder.max_timestamp_offset,
            IndexChecksums.of(builder.offsets, builder.times),
        )  # fmt: skip

    @classmethod
    async def make(cls) -> SwapRig:
        on = disk()
        log = await open_log(on, config(segment_bytes=1 << 20))
        for number in range(10):
            if number in (4, 8):
                log.roll()
            append(log, batch(number))
        log.compaction.mark()
        await log.flush()
        rig = cls(on, log)
        for name in rig.left:
            await on.open(f"{DIRECTORY}/{name}").sync()
        return rig

    def _forget(self) -> None:
        self.forgotten += 1
        self.log._reader.clear_hints()

    async def replace(self) -> bool:
        return await self.swap.replace(self.group, self.cleaned, NOW)

    @property
    def left(self) -> list[str]:
        return [name for name in self.on.list(DIRECTORY) if name.endswith((SWAP, CLEANED))]

    def on_rename(self, action: Callable[[], None]) -> None:
        """Runs `action` once, when the log file of the cleaned segment is `.swap`."""

        def look(op: object) -> None:
            if f"{0:020d}.log{SWAP}" in self.on.list(DIRECTORY):
                self.on.on_op = None
                action()

        self.on.on_op = look


@run_by(run_alone)
async def test_cleaned_segment_takes_the_place_of_the_group() -> None:
    rig = await SwapRig.make()
    assert await rig.replace()
    assert rig.log._writer.segments[0] is rig.cleaned and rig.log.segments.count == 2
    assert offsets(read_all(rig.log)) == [3, 7, 8, 9] and rig.forgotten == 1 and not rig.left
    again = await open_log(rig.on.after_power_cut(), config(segment_bytes=1 << 20), same_boot=False, recovery_point=10)
    assert offsets(read_all(again)) == [3, 7, 8, 9] and not again.suspect


@run_by(run_alone)
async def test_reader_in_an_old_segment_can_finish() -> None:
    rig = await SwapRig.make()
    found = rig.log.read(0, 1 << 20, end_offset=10)
    assert found is not None
    before = found.file.pread(found.start, found.length)
    await rig.replace()
    assert found.file.pread(found.start, found.length) == before


@pytest.mark.parametrize("how", ["truncation", "drop", "close"])
@run_by(run_alone)
async def test_log_that_changed_before_keeps_its_segments(*, how: str) -> None:
    rig = await SwapRig.make()
    if how == "truncation":
        rig.swap.on_truncation()
    elif how == "drop":
        await rig.log.drop_local_below(4)
    else:
        rig.log.status.is_closed = True
    assert not rig.swap.has_all(rig.group)
    assert not await rig.replace()
    assert bool(rig.left) is (how == "close"), "the directory of a closed log may be of another one"


@run_by(run_alone)
async def test_truncation_during_a_swap_wins() -> None:
    rig = await SwapRig.make()
    rig.on_rename(rig.swap.on_truncation)
    assert not await rig.replace()
    assert offsets(read_all(rig.log)) == list(range(10)) and not rig.left
    again = await open_log(rig.on.after_kill(), config(segment_bytes=1 << 20))
    assert offsets(read_all(again)) == list(range(10))


@run_by(run_alone)
async def test_given_up_swap_does_not_come_back_with_a_start() -> None:
    rig = await SwapRig.make()
    rig.on_rename(rig.swap.cancel)
    assert not await rig.replace()
    assert not rig.left and rig.log._writer.segments[:2] == rig.group


@pytest.mark.parametrize("renames", range(3))
@run_by(run_alone)
async def test_disk_that_fails_before_the_exchange_leaves_the_group(*, renames: int) -> None:
    rig = await SwapRig.make()
    rig.on.faults.append(DiskFault("rename", path=CLEANED, error="EMFILE", skip=renames))
    with pytest.raises(Unavailable):
        await rig.replace()
    assert not rig.swap.is_half_done and not rig.left
    assert offsets(read_all(rig.log)) == list(range(10))


@run_by(run_alone)
async def test_disk_that_fails_in_the_exchange_leaves_it_half_done() -> None:
    rig = await SwapRig.make()
    rig.on.faults.append(DiskFault("rename", path=f"{4:020d}.log", error="EMFILE"))
    with pytest.raises(Unavailable):
        await rig.replace()
    assert rig.swap.is_half_done
    again = await open_log(rig.on.after_kill(), config(segment_bytes=1 << 20))
    assert offsets(read_all(again)) == [3, 7, 8, 9], "a start finishes it"
