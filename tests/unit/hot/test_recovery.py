"""Tests of the rules for how much of a directory a start trusts."""

from __future__ import annotations

from tests.scenario import run_alone, run_by
from tests.unit.hot.fixtures import DIRECTORY, NOW, append, batch, disk, open_log
from tiered.hot.index import IndexBuilder
from tiered.hot.recovery import (
    DirectoryListing,
    classify_files,
    find_gaps,
    last_indexed_batch,
    start_from_checkpoint,
    usable_snapshots,
)
from tiered.hot.segments import IndexChecksums, Segment


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


def build_index(batches: int = 20) -> IndexBuilder:
    builder = IndexBuilder(100, 250)
    for number in range(batches):
        builder.add_batch(number * 100, 100, 100 + number, NOW + number)
    return builder


def test_file_names_are_sorted_by_kind() -> None:
    names = [
        file_name(0, ".log"), file_name(0, ".index"), file_name(7, ".log"), file_name(7, ".snapshot"),
        file_name(3, ".index"), file_name(5, ".log.deleted"), "leader-epoch-checkpoint",
        "leader-epoch-checkpoint.tmp", "partition.metadata",
    ]  # fmt: skip
    assert classify_files(names) == DirectoryListing(
        (0, 7), (7,), (file_name(5, ".log.deleted"), "leader-epoch-checkpoint.tmp", file_name(3, ".index"))
    )


def test_log_after_a_kill_is_checked_from_its_last_index_entry() -> None:
    builder = build_index()
    position, resumed = last_indexed_batch(100, 250, 2000, bytes(builder.offsets), bytes(builder.times))
    assert position == 1800
    assert (resumed.offsets, resumed.times) == (builder.offsets, builder.times)
    assert resumed.max_timestamp == NOW + 18


def test_final_time_entry_counts_only_as_far_as_the_offset_index() -> None:
    builder = build_index()
    finished = build_index()
    finished.finish()
    assert len(finished.times) > len(builder.times)
    _, resumed = last_indexed_batch(100, 250, 2000, bytes(finished.offsets), bytes(finished.times))
    assert resumed.times == builder.times


def test_preallocated_zeros_are_no_index_entries() -> None:
    builder = build_index()
    position, resumed = last_indexed_batch(
        100, 250, 2000, bytes(builder.offsets) + bytes(80), bytes(builder.times) + bytes(96)
    )
    assert (position, resumed.offsets) == (1800, builder.offsets)


def test_empty_index_proves_nothing() -> None:
    assert last_indexed_batch(100, 250, 2000, b"", b"")[0] == -1


def checkpoint_line(builder: IndexBuilder, following: int = 120, size: int = 2000) -> Segment:
    return Segment(100, following, size, NOW, NOW + 19, 119, IndexChecksums.of(builder.offsets, builder.times))


def test_suspect_log_is_checked_from_where_its_checkpoint_proves_indexes() -> None:
    builder = build_index()
    longer = bytes(builder.offsets) + b"torn entries", bytes(builder.times) + b"more"
    resume = start_from_checkpoint(checkpoint_line(builder), 250, 2500, *longer, trusted_to=120)
    assert resume is not None
    assert (resume.position, resume.next_offset) == (2000, 120)
    assert (resume.builder.unindexed_bytes, resume.builder.max_timestamp) == (builder.unindexed_bytes, NOW + 19)


def test_suspect_log_without_proof_is_checked_from_its_beginning() -> None:
    builder = build_index()
    whole = bytes(builder.offsets), bytes(builder.times)
    assert start_from_checkpoint(None, 250, 2500, *whole, trusted_to=120) is None
    assert start_from_checkpoint(checkpoint_line(builder), 250, 2500, *whole, trusted_to=119) is None
    assert start_from_checkpoint(checkpoint_line(builder), 250, 1999, *whole, trusted_to=120) is None
    assert (
        start_from_checkpoint(checkpoint_line(builder), 250, 2500, whole[0][:-1] + b"\xff", whole[1], trusted_to=120)
        is None
    )


def test_gaps_between_segments_are_reported() -> None:
    segments = [Segment(0, 5, 1, NOW), Segment(5, 8, 1, NOW), Segment(10, 12, 1, NOW)]
    assert find_gaps(segments) == [(8, 10)]


def test_snapshots_behind_a_cut_are_not_used() -> None:
    assert usable_snapshots((3, 5, 9, 12), 4, 9) == [9, 5]


@run_by(run_alone)
async def test_leader_epoch_missing_from_its_file_is_found_in_the_log() -> None:
    """The epoch file is written with the index entries after the first batch of an epoch. A kill before that write
    costs a walk over the log, but no epoch."""
    where = disk()
    log = await open_log(where)
    for number in range(4):
        append(log, batch(number), epoch=3)
    await log.flush()
    assert where.exists(f"{DIRECTORY}/leader-epoch-checkpoint")
    held = where.open(f"{DIRECTORY}/leader-epoch-checkpoint").pread(0, 100)
    for number in range(4, 30):
        append(log, batch(number), epoch=5 if number < 9 else 8)
    assert log.segments.count > 1
    again = await open_log(where)
    assert again.epochs.lineage == log.epochs.lineage == ((3, 0), (5, 4), (8, 9))
    fresh = disk(1)
    log = await open_log(fresh)
    append(log, batch(0), epoch=7)
    assert not fresh.exists(f"{DIRECTORY}/leader-epoch-checkpoint") and held.startswith(b"0\n1\n3 0\n")
    assert (await open_log(fresh)).epochs.lineage == ((7, 0),)
