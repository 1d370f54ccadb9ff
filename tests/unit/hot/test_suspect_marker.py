"""Tests of the file that marks a log as suspect."""

from __future__ import annotations

import pytest

from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import DiskFault
from tests.unit.hot.fixtures import DIRECTORY, disk
from tiered.errors import Unavailable
from tiered.hot.segment_files import OpenFiles, SegmentFiles
from tiered.hot.suspect_marker import SuspectMarker
from tiered.ports import Disk


def marker(on: Disk) -> SuspectMarker:
    on.make_dirs(DIRECTORY)
    return SuspectMarker(SegmentFiles(on, DIRECTORY, OpenFiles(on)))


@run_by(run_alone)
async def test_mark_and_its_end_survive_a_power_cut() -> None:
    on = disk()
    mark = marker(on)
    await on.sync_dir("log")
    await on.sync_dir(".")
    assert not mark.is_set
    await mark.set("records from offset 4 on are corrupt")
    assert mark.is_set and marker(on.clone().after_power_cut()).is_set
    await mark.clear()
    assert not mark.is_set and not marker(on.clone().after_power_cut()).is_set


@run_by(run_alone)
async def test_mark_that_does_not_fit_is_an_error() -> None:
    on = disk()
    mark = marker(on)
    on.faults.append(DiskFault("append", error="ENOSPC"))
    with pytest.raises(Unavailable):
        await mark.set("records are missing")
