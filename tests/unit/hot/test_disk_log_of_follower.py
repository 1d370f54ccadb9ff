"""Tests of a follower's log, which takes batches as its leader wrote them."""

from __future__ import annotations

import struct

import pytest

from tests.scenario import run_by
from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import NOW, append, config, disk, open_log, read_all
from tests.unit.hot.test_disk_log import fill_log, refusal, run_scenario
from tiered.errors import Code, Corrupt
from tiered.records.batch import (
    decode_records,
    encode_batch,
    first_at_or_after,
    open_section,
    stamp,
)
from tiered.records.model import CRC_AT, CRC_FROM, Codec
from tiered.records.native import crc32c, walk
from tiered.records.pieces import BATCH_BYTES_MAX


@run_by(run_scenario)
async def test_follower_refuses_batches_that_do_not_continue_its_log(on: SimDisk) -> None:
    leader = await fill_log(on, 4)
    data = read_all(leader)
    follower = await open_log(disk(1))
    follower.append_as_follower(data, now_ms=NOW)
    assert read_all(follower) == data
    assert follower.epochs.lineage == ((0, 0),)
    assert refusal(lambda: follower.append_as_follower(data, now_ms=NOW)) is Code.CORRUPT_MESSAGE
    assert refusal(lambda: follower.append_as_follower(data[:-1], now_ms=NOW)) is Code.CORRUPT_MESSAGE


@run_by(run_scenario)
async def test_follower_takes_no_hole_and_no_damaged_batch(on: SimDisk) -> None:
    data = read_all(await fill_log(on, 4))
    first, second = [each.size for each in walk(data).batches][:2]
    follower = await open_log(disk(1))
    follower.append_as_follower(data[:first], now_ms=NOW)
    assert refusal(lambda: follower.append_as_follower(data[first + second :], now_ms=NOW)) is Code.CORRUPT_MESSAGE
    rotten = bytearray(data[first:])
    rotten[-1] ^= 1
    assert refusal(lambda: follower.append_as_follower(rotten, now_ms=NOW)) is Code.CORRUPT_MESSAGE
    assert read_all(follower) == data[:first]
    follower.append_as_follower(data[first:], now_ms=NOW)


@run_by(run_scenario)
async def test_batch_that_states_too_much_is_copied_and_not_opened(on: SimDisk) -> None:
    """A follower that refused a batch of its leader could never be in sync."""
    expanding = bytearray(encode_batch([(NOW, None, b"", ())], codec=Codec.GZIP))
    expanding[-4:] = (BATCH_BYTES_MAX + 1).to_bytes(4, "little")  # the size in gzip's trailer
    struct.pack_into(">I", expanding, CRC_AT, crc32c(memoryview(expanding)[CRC_FROM:]))
    leader = await open_log(on)
    assert refusal(lambda: append(leader, bytearray(expanding))) is Code.INVALID_RECORD
    stamp(expanding, 0, 0, 0)
    follower = await open_log(disk(1))
    follower.append_as_follower(expanding, now_ms=NOW)
    found = follower.read(0, 1 << 20, end_offset=1)
    assert found is not None
    data = found.file.pread(found.start, found.length)
    assert data == expanding
    for read in (decode_records, open_section, lambda data: first_at_or_after(data, 0, NOW)):
        with pytest.raises(Corrupt, match="gzip"):
            read(data)


@run_by(run_scenario)
async def test_follower_takes_batches_larger_than_its_own_segments(on: SimDisk) -> None:
    data = read_all(await fill_log(on, 12))
    follower = await open_log(disk(1), config(segment_bytes=len(data) // 3))
    follower.append_as_follower(data, now_ms=NOW)
    assert read_all(follower) == data
    assert follower.segments.count > 2
    smallest = await open_log(disk(2), config(segment_bytes=20))
    smallest.append_as_follower(data, now_ms=NOW)
    assert read_all(smallest) == data
