"""Tests of a log with a loss that no crash explains: the log is suspect, from before its truncation until the cluster
knows of the loss."""

from __future__ import annotations

import random

import pytest

from tests.scenario import run_by
from tests.seeds import first_seeds
from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import DIRECTORY, append, batch, config, open_log, run_scenario
from tiered.errors import Corrupt
from tiered.hot import recovery
from tiered.hot.disk_log import DiskLog
from tiered.hot.recovery import WHOLE_LOG, TruncationPoint, is_corruption, is_torn
from tiered.records.model import CRC_FROM, HEADER, HEADER_BYTES, LENGTH_FROM
from tiered.records.native import walk

LOG = f"{DIRECTORY}/{0:020d}.log"
SIZE = len(batch(0))


# -- the decision -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "rot", "cut", "clean", "start", "trusted_to"),
    [
        ("a death in the same boot, in the middle of a write", False, TruncationPoint(7, True), False, 0, WHOLE_LOG),
        ("the same, but what is left is no write cut short", True, TruncationPoint(7, False), False, 0, WHOLE_LOG),
        ("a clean stop leaves no write cut short either", True, TruncationPoint(7, True), True, 0, WHOLE_LOG),
        ("a power cut, above all that was fsynced", False, TruncationPoint(7, False), False, 0, 0),
        ("a power cut, at the fsynced end", False, TruncationPoint(7, False), False, 0, 7),
        ("a power cut, below what was fsynced", True, TruncationPoint(7, False), False, 0, 8),
        ("the same, but only deleted records are missing", False, TruncationPoint(7, False), False, 8, 8),
    ],
)
def test_damage_that_no_crash_explains_is_corruption(
    what: str, rot: bool, cut: TruncationPoint, clean: bool, start: int, trusted_to: int
) -> None:
    assert is_corruption(cut, clean=clean, start_offset=start, trusted_to=trusted_to) is rot, what


def stored_batches(first: int, count: int) -> bytes:
    """Returns `count` batches of one record each with their offsets, from `first` on, as a log stores them."""
    made = bytearray()
    for number in range(first, first + count):
        one = batch(number)
        one[:8] = number.to_bytes(8, "big")
        made += one
    return bytes(made)


def test_any_prefix_of_a_write_is_torn() -> None:
    one = stored_batches(7, 1)
    assert all(is_torn(one[:size], 7) for size in range(1, len(one)))


def test_write_of_several_batches_is_torn_in_its_last_batch() -> None:
    """The whole batches of the write pass their CRC. They are not part of the torn rest."""
    several = stored_batches(7, 3)
    left = several[walk(several[:-1], 0).end : -1]
    assert len(left) == SIZE - 1
    assert is_torn(left, 9)


@pytest.mark.parametrize("behind", [0, 1, 3])
def test_flipped_bit_is_not_taken_for_a_torn_write(behind: int) -> None:
    """Flips each bit of the length, the magic, the CRC and the bytes below the CRC, in a batch with others behind it
    and in the last batch. The CRC does not cover base offset and leader epoch: only the batches around prove these."""
    tail = stored_batches(7, 1 + behind)
    for bit in (*range(8 * 8, 12 * 8), *range(16 * 8, CRC_FROM * 8), *range(CRC_FROM * 8, SIZE * 8)):
        rotten = bytearray(tail)
        rotten[bit // 8] ^= 1 << bit % 8
        assert not is_torn(bytes(rotten), 7), bit


def test_older_batch_inside_a_torn_write_is_no_later_batch() -> None:
    """A user may store whole batches in the values of records."""
    outer = bytearray(stored_batches(7, 1))
    outer[8:12] = (4 * SIZE).to_bytes(4, "big")
    assert is_torn(bytes(outer) + stored_batches(3, 1), 7)
    assert not is_torn(bytes(outer) + stored_batches(8, 1), 7)


def header_with_wrong_crc(offset: int, length: int) -> bytes:
    """Returns a batch header with a wrong CRC."""
    return HEADER.pack(offset, length, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 1)


def test_header_exposes_bytes_that_look_like_a_later_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "SEARCHED_BYTES", 0)
    outer = bytearray(stored_batches(7, 1))
    outer[8:12] = (1 << 20).to_bytes(4, "big")
    for offset, length in ((7, 100), (3, 100), (8, 48), (8, -1), (8, 1 << 19)):
        assert is_torn(bytes(outer) + header_with_wrong_crc(offset, length) * 100, 7)


@pytest.mark.parametrize("enough", [True, False])
def test_search_for_a_later_batch_ends_on_hostile_records(monkeypatch: pytest.MonkeyPatch, enough: bool) -> None:
    """If the search takes too long, the log reports a possible loss."""
    count, outer = 100, bytearray(stored_batches(7, 1))
    outer[8:12] = (1 << 20).to_bytes(4, "big")
    sizes = [(count - number) * HEADER_BYTES for number in range(count)]
    monkeypatch.setattr(recovery, "SEARCHED_BYTES", sum(sizes) - (not enough))
    inner = b"".join(header_with_wrong_crc(8, size - LENGTH_FROM) for size in sizes)
    assert is_torn(bytes(outer) + inner, 7) is enough


def test_later_batch_is_found_across_the_borders_of_searched_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    outer = bytearray(stored_batches(7, 1))
    outer[8:12] = (1 << 20).to_bytes(4, "big")
    for piece in range(1, 3 * SIZE):
        monkeypatch.setattr(recovery, "PIECE_BYTES", piece)
        assert not is_torn(bytes(outer) + stored_batches(8, 1), 7), piece


# -- the log ----------------------------------------------------------------------------------------------------------


async def fill_log(on: SimDisk, count: int = 10, epochs: int = 2, *, flush: bool = False) -> None:
    log = await open_log(on, config(segment_bytes=1 << 20, index_interval_bytes=1 << 20))
    for number in range(count):
        append(log, batch(number), epoch=number * epochs // count)
    if flush:
        await log.flush()


@run_by(run_scenario)
async def test_log_stays_suspect_until_cleared_however_its_process_ends(on: SimDisk) -> None:
    await fill_log(on, flush=True)
    on.flip_bit(LOG, 8 * (4 * SIZE + 40))
    seen: list[bool] = []
    on.on_op = lambda op: seen.append(on.exists(f"{DIRECTORY}/rotten")) if op.verb == "truncate" else None
    first = await open_log(on)
    assert (first.end_offset, first.suspect) == (4, True)
    assert seen and all(seen), "noted before anything is cut"
    again = await open_log(on)
    assert (again.end_offset, again.suspect) == (4, True), "it looks well, and lacks what it had"
    after_power_cut = await open_log(on.crash_image(random.Random(1)), same_boot=False)
    assert after_power_cut.suspect, "the note is fsynced"
    await again.clear_suspicion()
    assert not again.suspect
    assert not (await open_log(on)).suspect
    for seed in range(20):
        after_power_cut = await open_log(on.crash_image(random.Random(seed)), same_boot=False)
        assert not after_power_cut.suspect, "that it is gone is fsynced too"


@pytest.mark.parametrize("seed", first_seeds(5, 20))
@run_by(run_scenario)
async def test_corruption_that_returns_after_a_power_cut_is_truncated_again(on: SimDisk, *, seed: int) -> None:
    """The corruption is durable, and lies below the offset from which a start checks."""
    await fill_log(on, flush=True)
    on.flip_bit(LOG, 8 * (4 * SIZE + 40))
    first = await open_log(on)
    assert (first.end_offset, first.suspect) == (4, True)
    after = on.crash_image(random.Random(seed))
    again = await open_log(after, same_boot=False, recovery_point=10)
    assert (again.end_offset, again.suspect) == (4, True)


@run_by(run_scenario)
async def test_torn_write_of_a_killed_process_makes_no_log_suspect(on: SimDisk) -> None:
    await fill_log(on)
    on.open(LOG).truncate(10 * SIZE - 5)
    log = await open_log(on)
    assert (log.end_offset, log.truncated_bytes, log.suspect) == (9, SIZE - 5, False)


@run_by(run_scenario)
async def test_power_cut_above_the_fsynced_end_makes_no_log_suspect(on: SimDisk) -> None:
    await fill_log(on)
    on.flip_bit(LOG, 8 * (4 * SIZE + 40))
    log = await open_log(on, same_boot=False)
    assert (log.end_offset, log.suspect) == (4, False)


@pytest.mark.parametrize("whole", [False, True])
@run_by(run_scenario)
async def test_power_cut_below_the_recovery_point_makes_a_log_suspect(on: SimDisk, *, whole: bool) -> None:
    """A flush for an acknowledgement (`flush=ack`) writes no line in the segment checkpoint. The recovery point alone
    says that the records were fsynced."""
    await fill_log(on)
    log = await open_log(on)
    await log.flush(None if whole else log.end_offset)
    append(log, batch(10))
    log.close()
    on.flip_bit(LOG, 8 * (10 * SIZE + 40))
    fine = await open_log(on.clone(), same_boot=False, recovery_point=10)
    assert (fine.end_offset, fine.suspect) == (10, False)
    if whole:  # without its indexes, the line of the checkpoint proves nothing
        on.flip_bit(LOG.replace(".log", ".index"), 0)
    on.flip_bit(LOG, 8 * (4 * SIZE + 40))
    rotten = await open_log(on, same_boot=False, recovery_point=10)
    assert (rotten.end_offset, rotten.suspect) == (4, True)


@run_by(run_scenario)
async def test_log_that_ends_elsewhere_after_a_clean_stop_is_corrupt(on: SimDisk) -> None:
    await fill_log(on)
    on.open(LOG).truncate(9 * SIZE)
    assert not (await open_log(on.clone(), clean=True, recovery_point=9)).suspect
    assert (await open_log(on.clone(), clean=True, recovery_point=10)).suspect
    on.open(LOG).append([b"x"])
    assert (await open_log(on, clean=True, recovery_point=9)).suspect


@run_by(run_scenario)
async def test_base_offset_out_of_sequence_is_corruption(on: SimDisk) -> None:
    """No CRC covers the base offset. A log with a gap in the middle of a segment would end at an offset that no leader
    wrote."""
    await fill_log(on)
    on.flip_bit(LOG, 8 * 9 * SIZE + 8 * 3)
    log = await open_log(on)
    assert (log.end_offset, log.suspect) == (9, True)


@run_by(run_scenario)
async def test_base_offset_of_another_segment_ends_a_closed_segment(on: SimDisk) -> None:
    """The segment's line of the checkpoint is lost too, so that a start reads the headers of the batches."""
    log = await fill_two_segments(on)
    await log.close_clean()
    on.remove(f"{DIRECTORY}/segment-checkpoint")
    on.flip_bit(LOG, 8 * 4 * SIZE + 8 * 3)
    log = await open_log(on, clean=True, recovery_point=20)
    assert log.end_offset == 20
    found = log.read(0, 1 << 20, end_offset=20)
    assert found is not None and found.length == 4 * SIZE
    assert log.read(12, 1 << 20, end_offset=20) is not None


@run_by(run_scenario)
async def test_index_is_not_rebuilt_from_a_base_offset_of_another_segment(on: SimDisk) -> None:
    log = await fill_two_segments(on)
    await log.close_clean()
    on.flip_bit(LOG.replace(".log", ".index"), 0)
    on.flip_bit(LOG, 8 * 4 * SIZE + 8 * 3)
    log = await open_log(on, clean=True, recovery_point=20)
    with pytest.raises(Corrupt, match="is of another segment"):
        log.read(0, 1 << 20, end_offset=20)


async def fill_two_segments(on: SimDisk) -> DiskLog:
    """Returns a log of a closed and an active segment with 20 batches together."""
    log = await open_log(on, config(segment_bytes=SIZE * 11))
    for number in range(20):
        append(log, batch(number))
    assert log.segments.count == 2
    return log
