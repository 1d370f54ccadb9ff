"""Tests of swaps that a crash has interrupted, and of the start that finishes them."""

from __future__ import annotations

import pytest

from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import DIRECTORY, NOW, batch, disk
from tiered.hot.checkpoints import SEGMENTS_FILE
from tiered.hot.interrupted_swaps import CLEANED, SWAP, finish_swaps
from tiered.hot.segment_files import OpenFiles, SegmentFiles
from tiered.hot.segments import Segment, encode_lines
from tiered.records.batch import stamp


def stored(*offsets: int) -> bytes:
    """Returns batches of one record each, at these offsets."""
    made = b""
    for offset in offsets:
        one = batch(offset)
        stamp(one, 0, offset, 0)
        made += bytes(one)
    return made


def write(on: SimDisk, name: str, data: bytes = b"") -> None:
    file = on.open(f"{DIRECTORY}/{name}", create=True)
    if data:
        file.append((data,))
    file.close()


def name_of(base: int, suffix: str) -> str:
    return f"{base:020d}{suffix}"


def directory() -> tuple[SimDisk, SegmentFiles]:
    """Returns a log with the segments `[0, 3)`, `[3, 6)` and `[6, ...)`, each with its index."""
    on = disk()
    on.make_dirs(DIRECTORY)
    for base in (0, 3, 6):
        write(on, name_of(base, ".log"), stored(*range(base, base + 3)))
        write(on, name_of(base, ".index"), b"old")
    return on, SegmentFiles(on, DIRECTORY, OpenFiles(on))


def finish(on: SimDisk, files: SegmentFiles) -> set[str]:
    finish_swaps(files)
    before = set(on.list(DIRECTORY))
    finish_swaps(files)
    assert set(on.list(DIRECTORY)) == before, "a second start changes nothing"
    return {name for name in before if name != SEGMENTS_FILE}


def test_log_without_a_swap_stays_as_it_is() -> None:
    on, files = directory()
    before = set(on.list(DIRECTORY))
    write(on, name_of(0, ".log") + CLEANED, stored(2))
    assert finish(on, files) == before | {name_of(0, ".log") + CLEANED}, "a load removes files of an unfinished clean"


def test_swap_replaces_all_segments_up_to_its_last_batch() -> None:
    on, files = directory()
    write(on, name_of(0, ".log") + SWAP, stored(1, 5))
    write(on, name_of(0, ".index") + SWAP, b"new")
    assert finish(on, files) == {name_of(0, ".log"), name_of(0, ".index"), name_of(6, ".log"), name_of(6, ".index")}
    assert files.read(files.path(0, ".log")) == stored(1, 5) and files.read(files.path(0, ".index")) == b"new"


def test_index_without_a_swap_file_may_be_old_and_goes() -> None:
    on, files = directory()
    write(on, name_of(0, ".log") + SWAP, stored(2))
    assert name_of(0, ".index") not in finish(on, files)


def test_swap_without_its_log_file_is_not_finished() -> None:
    on, files = directory()
    write(on, name_of(0, ".index") + SWAP, b"new")
    finish(on, files)
    assert files.read(files.path(0, ".log")) == stored(0, 1, 2) and files.read(files.path(0, ".index")) == b"old"


@pytest.mark.parametrize(("same_size", "left"), [(True, {0, 6}), (False, {0, 3, 6})])
def test_line_of_the_cleaned_segment_says_where_it_ends(same_size: bool, left: set[int]) -> None:
    """Compaction removed all that was in the second segment: the last batch says too little."""
    on, files = directory()
    data = stored(1, 2)
    write(on, name_of(0, ".log") + SWAP, data)
    line = Segment(0, 6, len(data) if same_size else 999, NOW)
    write(on, SEGMENTS_FILE, encode_lines([line]))
    assert {int(name[:20]) for name in finish(on, files)} == left


def test_swap_without_any_batch_replaces_its_own_segment_alone() -> None:
    on, files = directory()
    write(on, name_of(3, ".log") + SWAP)
    assert {name for name in finish(on, files) if name.endswith(".log")} == {
        name_of(each, ".log") for each in (0, 3, 6)
    }
    assert files.size(files.path(3, ".log")) == 0
