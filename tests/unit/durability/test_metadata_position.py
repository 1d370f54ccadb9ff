"""Tests of the note of what the metadata log had reached: it refuses less, and nothing else."""

from __future__ import annotations

import random

import pytest

from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import Op, SimDisk
from tiered.durability import metadata_position
from tiered.durability.data_directory import ROOT, DataDirectory
from tiered.durability.metadata_position import MetadataPosition
from tiered.errors import Refused
from tiered.hot import checkpoints

NOTED = MetadataPosition("c", 7, 3, 2000)


@pytest.mark.parametrize(
    ("found", "refused"),
    [
        (NOTED, False),
        (NOTED._replace(slot=8, controller_epoch=4, next_producer_id=3000), False),
        (NOTED._replace(slot=6), True),
        (NOTED._replace(slot=9, controller_epoch=2), True),
        (NOTED._replace(slot=9, next_producer_id=1000), True),
        (MetadataPosition("another", 0, 1, 0), False),
    ],
)
@run_by(run_alone)
async def test_start_is_refused_if_any_part_is_below_the_note(*, found: MetadataPosition, refused: bool) -> None:
    disk = SimDisk(random.Random(1))
    before = DataDirectory(disk)
    await before.open("c", 1, "d")
    await before.note_metadata(NOTED)
    after = DataDirectory(disk.after_kill())
    if refused:
        with pytest.raises(Refused, match="slot 7, controller epoch 3, next producer id 2000"):
            after.refuse_older_bucket(found)
    else:
        after.refuse_older_bucket(found)


@pytest.mark.parametrize("data", [b"", b"{}", bytes(60), metadata_position.encode(NOTED).replace(b"7", b"9")])
@run_by(run_alone)
async def test_damaged_note_refuses_no_start(*, data: bytes) -> None:
    disk = SimDisk(random.Random(1))
    disk.make_dirs(ROOT)
    await checkpoints.save(disk, ROOT, metadata_position.FILE, data)
    DataDirectory(disk).refuse_older_bucket(NOTED._replace(slot=0))


@run_by(run_alone)
async def test_position_that_did_not_move_is_not_written_again() -> None:
    disk = SimDisk(random.Random(1))
    disk.make_dirs(ROOT)
    directory = DataDirectory(disk)
    written: list[Op] = []
    await directory.note_metadata(NOTED)
    disk.on_op = written.append
    await directory.note_metadata(NOTED)
    assert not written
    await directory.note_metadata(NOTED._replace(slot=8))
    assert written
