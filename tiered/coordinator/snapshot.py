"""The image of one group coordinator's committed state in the bucket: its name, its bytes, and which one to begin with.

Pure. An image of (epoch, offset) is what the log says below `offset`, written by the leader of `epoch`. The newest is
the one of the highest epoch, then of the highest offset: what a fenced leader still writes is never the newest once
its successor has written one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tiered.errors import Code, Corrupt, Refused
from tiered.groups.records import CoordinatorRecord
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.ids import PartitionId, TopicId, id_bytes
from tiered.records import batch
from tiered.records.native import crc32c, walk

GROUPS = "groups/"
MAGIC = b"TIEREDGI"
VERSION = 1
BATCH_RECORDS = 1_000
BATCH_BYTES = 1 << 20
"""With so much a batch is full, or with so many records."""

_PREAMBLE = struct.Struct(">8sHHI")
_HEADER = struct.Struct(">16siiqqq")
_KEY = re.compile(r"groups/([A-Za-z0-9_-]{22})/(\d{1,10})/(\d{10})-(\d{20})")


class SnapshotName(NamedTuple):
    """Which state an image holds. Names of one partition compare as the images do: the newer is the greater."""

    pid: PartitionId
    epoch: int
    offset: int

    @property
    def key(self) -> str:
        """Its key in the bucket."""
        return f"{topic_prefix(self.pid.topic_id)}{self.pid.partition}/{self.epoch:010d}-{self.offset:020d}"


def topic_prefix(topic_id: TopicId) -> str:
    """All images of one `__consumer_offsets` are below it."""
    return f"{GROUPS}{topic_id}/"


def parse_key(key: str) -> SnapshotName | None:
    """What a key names; None for any other key."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    topic_id, partition, epoch, offset = found.groups()
    return SnapshotName(PartitionId(TopicId(topic_id), int(partition)), int(epoch), int(offset))


# -- bytes ------------------------------------------------------------------------------------------------------------


def encode_batches(records: Sequence[CoordinatorRecord], now_ms: int) -> Iterator[bytes]:
    """The records of an image as batches, numbered from 0 on; step by step, so that others have a turn in between."""
    first, size = 0, 0
    for end, each in enumerate(records, 1):
        size += len(each.key) + len(each.value or b"")
        if end == len(records) or end - first == BATCH_RECORDS or size >= BATCH_BYTES:
            yield batch.encode_batch(
                [(now_ms, one.key, one.value, ()) for one in records[first:end]], base_offset=first
            )
            first, size = end, 0


def encode_snapshot(name: SnapshotName, batches: Iterable[bytes], count: int, now_ms: int) -> bytes:
    """The whole object: what it is, then the batches; its CRC covers all that follows it."""
    header = _HEADER.pack(id_bytes(name.pid.topic_id), name.pid.partition, name.epoch, name.offset, count, now_ms)
    body = b"".join((header, *batches))
    return _PREAMBLE.pack(MAGIC, VERSION, 0, crc32c(body)) + body


def decode_snapshot(name: SnapshotName, data: bytes) -> list[bytes]:
    """The batches of an image. `Corrupt` when it does not prove itself, `Refused` when a newer program wrote it."""
    if len(data) < _PREAMBLE.size + _HEADER.size:
        raise Corrupt("image is shorter than its header", where=name.key)
    magic, version, _, crc = _PREAMBLE.unpack_from(data)
    if magic != MAGIC:
        raise Corrupt("no image of groups", where=name.key)
    if version > VERSION:
        raise Refused(Code.UNSUPPORTED_VERSION, f"{name.key} has version {version}, this program reads {VERSION}")
    view = memoryview(data)
    if crc32c(view[_PREAMBLE.size :]) != crc:
        raise Corrupt("image fails its check sum", where=name.key)
    topic_id, partition, epoch, offset, count, _ = _HEADER.unpack_from(data, _PREAMBLE.size)
    if (topic_id, partition, epoch, offset) != (id_bytes(name.pid.topic_id), name.pid.partition, *name[1:]):
        raise Corrupt("image belongs to another name", where=name.key)
    walked = walk(view[_PREAMBLE.size + _HEADER.size :], check_crc=False)
    if walked.why or sum(each.count for each in walked.batches) != count:
        raise Corrupt(f"image does not hold {count} records", where=name.key)
    at = _PREAMBLE.size + _HEADER.size
    return [data[at + each.position : at + each.position + each.size] for each in walked.batches]


def decode_batch(data: bytes) -> list[CoordinatorRecord]:
    """The records of one batch, of an image or of the log; records without a key say nothing."""
    return [CoordinatorRecord(each.key, each.value) for each in batch.decode_records(data) if each.key is not None]


# -- where to begin ---------------------------------------------------------------------------------------------------


class SnapshotChoice(NamedTuple):
    """What a new leader begins with. `base`: the image below the log, None for none. `restart`: the log ends below it,
    or is of a history that parted before: it begins anew at the image's offset."""

    base: SnapshotName | None
    restarts_log: bool


def choose_snapshot(names: Iterable[SnapshotName], start: int, end: int, epochs: LeaderEpochs) -> SnapshotChoice:
    """The newest image that agrees with a log of `[start, end)` written by `epochs`.

    An image beyond the log's end wins over the log, unless the log knows a later leader than the one that wrote it: it
    was fenced by then. One within the log is used where the log's history holds that leader's at its offset.
    """
    for name in sorted(names, reverse=True):
        if name.offset > end:
            if name.epoch >= epochs.latest:
                return SnapshotChoice(name, True)
        elif name.offset >= start and _matches_history(name, end, epochs):
            return SnapshotChoice(name, False)
    return SnapshotChoice(max(names_below(names, start), default=None), False)


def names_below(names: Iterable[SnapshotName], start: int) -> list[SnapshotName]:
    """Images that end before a log begins: what lies between is lost, and they are better than nothing."""
    return [name for name in names if name.offset < start]


def _matches_history(name: SnapshotName, end: int, epochs: LeaderEpochs) -> bool:
    """Whether the leader that wrote the image wrote (or had) what the log holds below its offset."""
    if name.epoch > epochs.latest:
        return True
    return epochs.end_offset_for(name.epoch, end)[1] >= name.offset
