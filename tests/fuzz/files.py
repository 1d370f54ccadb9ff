"""Fuzzing of the files of a partition's directory, of the broker's data directory and of the bucket, as a start reads
them.

A file with a CRC is also tried with a valid one: the CRC catches a damaged disk, but not a bug that wrote the file.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from contextlib import nullcontext, suppress
from random import Random
from typing import Any

from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import DIRECTORY, append, batch, disk, open_log
from tiered.cold import manifest_codec
from tiered.cold.layout import FOOTER_MAGIC, parse_footer
from tiered.coordination.snapshot_stores import GROUP_SNAPSHOTS
from tiered.coordinator import log_records, snapshot
from tiered.errors import Corrupt, Refused
from tiered.groups import records as group_records
from tiered.hot import checkpoints, index, proof_file
from tiered.hot.disk_log import DiskLog
from tiered.ids import PartitionId, TopicId
from tiered.metadata import layout
from tiered.producers.aborted_txns import MAX_OFFSET, decode_aborted_txns, find_in_index
from tiered.producers.states import ProducerStates
from tiered.records.native import crc32c, walk
from tiered.wal import layout as chain_layout

CHAIN = chain_layout.ChainId(3, "AAAAAAAAQACAAAAAAAAAAQ")
PID = PartitionId(TopicId("AAAAAAAAAAAAAAAAAAAAAQ"), 3)
IMAGE = snapshot.SnapshotName(GROUP_SNAPSHOTS, PID, 1, 50)
BASES = (0, 11)
"""Base offsets of the segments of the log in which one file is replaced."""

LOG_FILES = {
    "log": f"{BASES[0]:020d}.log",
    "activelog": f"{BASES[1]:020d}.log",
    "index": f"{BASES[0]:020d}.index",
    "timeindex": f"{BASES[0]:020d}.timeindex",
    "activeindex": f"{BASES[1]:020d}.index",
    "activetimeindex": f"{BASES[1]:020d}.timeindex",
    "snapshot": f"{16:020d}.snapshot",
    "segments": "segment-checkpoint",
    "epochs": "leader-epoch-checkpoint",
    "metadata": "partition.metadata",
}
"""Kinds of inputs that are a file of a log, and the name of the file."""
UNPROVED = ("activeindex", "activetimeindex")
"""Files of which a start in the same boot checks the last entry only, because the page cache is whole. They are tried
in another boot."""


def check(kind: str, data: bytes) -> None:
    """Gives an input to its reader. Only Corrupt and Refused may be raised."""
    if kind in LOG_FILES:
        asyncio.run(check_log_opens(LOG_FILES[kind], data, unproved=kind in UNPROVED))
    if kind in PARSERS:
        for each in {data, *(seal(data) for seal in (CRCS.get(kind),) if seal)}:
            for parse in PARSERS[kind]:
                with suppress(Corrupt, Refused):
                    parse(each)
    assert kind in LOG_FILES or kind in PARSERS, kind


# -- a log with one file that is another one --------------------------------------------------------------------------


async def write_log() -> SimDisk:
    """Returns a log of two segments with a producer and two leader epochs, all of it on the disk."""
    made = disk()
    log = await open_log(made)
    for number in range(16):
        append(log, batch(number, producer=7, sequence=number, at=1_700_000_000_000 + number), epoch=number // 9)
    await log.flush()
    await log.close_clean()
    return made


async def read_stored(made: SimDisk) -> bytes:
    """Returns the content of the log."""
    log = await open_log(made.clone(), clean=True, recovery_point=16)
    return read(log)


async def check_log_opens(name: str, data: bytes, unproved: bool) -> None:
    """Checks that the log opens or raises with a reason. Only another `.log` changes the served records. The next start
    serves the same, or suspects the log, because bytes that a start did not read may rot."""
    rng = Random(data)
    tried = _WRITTEN.clone()
    file = tried.open(f"{DIRECTORY}/{name}")
    file.truncate(0)
    file.append([data])
    await file.sync()
    file.close()
    same_boot, clean, point = rng.random() < 0.5, rng.random() < 0.3, rng.choice((0, 11, 16))
    if unproved:
        same_boot = clean = False
    try:
        log = await open_log(tried, same_boot=same_boot, clean=clean, recovery_point=point)
    except (Corrupt, Refused):
        return
    rotten = name.endswith(".log")
    with suppress(Corrupt) if rotten else nullcontext():
        served = read(log)
        assert rotten or served == _RECORDS
        served = served[: walk(served).end]  # what rotted, and what is behind it, comes as it is cut into pieces
        append(log, batch(99), epoch=9)
        assert read(log)[: len(served)] == served
        end = log.end_offset
        await log.close_clean()
        again = await open_log(tried.after_kill(), same_boot=True, clean=True, recovery_point=end)
        assert (rotten and again.suspect) or (again.end_offset == end and read(again)[: len(served)] == served)
        again.close()


def read(log: DiskLog) -> bytes:
    """Returns all records of a log, batch by batch as a consumer reads it. Raises Corrupt for bytes that are no
    batch."""
    offset, out = log.local_start_offset, b""
    while (found := log.read(offset, 400, end_offset=log.end_offset)) is not None:
        part = found.file.pread(found.start, found.length)
        seen = walk(part, check_crc=False)
        if not seen.batches:
            raise Corrupt(seen.why)
        last = seen.batches[-1].last_offset
        if last >= log.end_offset:
            raise Corrupt(f"offset {last} is beyond the log")
        assert last >= offset and len(part) == found.length > 0
        offset, out = last + 1, out + part
    return out


_WRITTEN = asyncio.run(write_log())
_RECORDS = asyncio.run(read_stored(_WRITTEN))


# -- files that are read as a whole -----------------------------------------------------------------------------------


def check_indexes(data: bytes) -> None:
    """Checks both kinds of index: the accepted entries are valid, and a look-up is defined for any bytes."""
    kept = data[: index.valid_offset_bytes(data, 1 << 20)]
    assert index.valid_offset_bytes(kept, 1 << 20) == len(kept)
    times = data[: index.valid_time_bytes(data)]
    assert index.valid_time_bytes(times) == len(times)
    index.IndexBuilder(0, 100, kept, times).add_batch(5, 10, 3, 7)
    for wanted in (-1, 0, 5, 2**31 - 1, 2**63 - 1):
        offset, _ = index.lookup_offset(kept, wanted)
        assert offset <= wanted or offset == -1
        index.lookup_position(kept, wanted)
        index.lookup_timestamp(times, wanted)
        index.time_bytes_below(times, wanted)
    index.rebase_indexes(kept, times, 2, 3)


def check_producers(data: bytes) -> None:
    """Checks that an accepted producer snapshot can be encoded again."""
    ProducerStates.from_snapshot(data, 100).get(7)


def check_aborted_txns(data: bytes) -> None:
    """Checks that a search in any bytes is defined, and that an accepted transaction index is found as a whole."""
    find_in_index(data, 100, 200)
    entries = decode_aborted_txns(data, begin=0, end=MAX_OFFSET, where="x")
    assert find_in_index(data, 0, MAX_OFFSET).aborted == entries


def check_group_records(data: bytes) -> None:
    """Keys and values of `__consumer_offsets`."""
    for read in (group_records.read_key, group_records.read_offset, group_records.read_group):
        with suppress(Corrupt):
            read(data)


def check_window(data: bytes) -> None:
    """Checks that the accepted object of a chain names whole numbers, and bytes that it has."""
    found = chain_layout.decode(data, CHAIN, 7, "cluster", len(data))
    if isinstance(found, chain_layout.Fence):
        assert all(type(number) is int for place, epoch in found.epochs.items() for number in (place.partition, epoch))
        return
    for extent in found.extents:
        assert all(type(number) is int for number in (extent.partition.partition, *extent[1:]))
        assert len(data[extent.position :][: extent.length]) == extent.length > 0
        assert 0 <= extent.committed <= extent.base_offset < extent.end_offset


def seal_window(data: bytes) -> bytes:
    """Returns the object of a chain with a valid length and CRC of its header, which ends with the last brace."""
    end = data.rfind(b"}") + 1
    return data[:8] + struct.pack(">II", end - 16, crc32c(data[16:end])) + data[16:] if end > 16 else data


def seal_json(data: bytes) -> bytes:
    """Returns the JSON in an envelope, or the bytes themselves, with a valid CRC."""
    body = data[24:-1] if data.startswith(b'{"crc":"') else data
    return b'{"crc":"%08x","body":%s}' % (crc32c(body), body)


def seal_lines(data: bytes) -> bytes:
    """Returns the bytes with a valid CRC in their first line."""
    body = data.partition(b"\n")[2]
    return b"%08x\n" % crc32c(body) + body


def seal_footer(data: bytes) -> bytes:
    """Returns the end of an object with a valid CRC."""
    size = struct.calcsize(END)
    if len(data) < size:
        return data
    proved_bytes = data[:-size]
    return proved_bytes + struct.pack(END, crc32c(proved_bytes), len(data), FOOTER_MAGIC)


END = ">II8s"
CRCS: dict[str, Callable[[bytes], bytes]] = {
    "snapshot": lambda data: data[:2] + crc32c(data[6:]).to_bytes(4, "big") + data[6:],
    **dict.fromkeys(("left", "synced", "proof"), seal_lines),
    "footer": seal_footer,
    "window": seal_window,
    "groupimage": lambda data: data[:12] + crc32c(data[16:]).to_bytes(4, "big") + data[16:],
    **dict.fromkeys(("manifest", "entry", "format", "boundary", "image"), seal_json),
}


PARSERS: dict[str, tuple[Callable[[bytes], Any], ...]] = {
    "epochs": (checkpoints.parse_lineage, checkpoints.parse_offsets),
    "metadata": (checkpoints.parse_metadata, checkpoints.is_torn_metadata),
    **dict.fromkeys(("index", "timeindex", "activeindex", "activetimeindex"), (check_indexes,)),
    "snapshot": (check_producers,),
    "aborted": (check_aborted_txns,),
    "left": (lambda data: proof_file.parse_old(None, data, None),),
    "synced": (lambda data: proof_file.parse_old(b"boot\none two\n", None, data),),
    "proof": (proof_file.parse,),
    "footer": (lambda data: parse_footer(PID, data, 5000 + len(data), where="x"),),
    "manifest": (
        lambda data: manifest_codec.decode(data, "x"),
        lambda data: manifest_codec.decode_submanifest(data, "x"),
    ),
    "entry": (lambda data: layout.decode_entry(data, 3),),
    "format": (layout.decode_format,),
    "boundary": (layout.decode_boundary,),
    "image": (lambda data: layout.decode_snapshot(data, "x"),),
    "groupimage": (lambda data: [log_records.decode_batch(each) for each in snapshot.decode_snapshot(IMAGE, data)],),
    "group": (check_group_records,),
    "window": (check_window,),
}
