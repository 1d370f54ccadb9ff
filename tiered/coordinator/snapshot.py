"""Snapshots of one coordinator in the bucket: their keys, their bytes, and the choice of one to start from. Pure.

A snapshot of (epoch, offset) is the state of the log below `offset`, written by the leader of `epoch`. The newest is
the one of the highest epoch, then of the highest offset. So a snapshot by a fenced leader is never the newest once its
successor has written one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import NamedTuple

from tiered.errors import Code, Corrupt, Refused
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.ids import PartitionId, TopicId, decode_uuid
from tiered.records.model import ATTRIBUTES_END, TRANSACTIONAL
from tiered.records.native import crc32c, walk

VERSION, TRANSACTIONAL_VERSION = 1, 2
"""Format versions. A snapshot with records of open transactions has the second one: older programs would take these
records for committed ones."""

_PREAMBLE = struct.Struct(">8sHHI")
_HEADER = struct.Struct(">16siiqqq")
_KEY = re.compile(r"([A-Za-z0-9_-]{22})/(\d{1,10})/(\d{10})-(\d{20})")


class SnapshotKind(NamedTuple):
    """The snapshots of one kind of coordinator: the prefix of their keys, and the magic of 8 bytes in front of each."""

    prefix: str
    magic: bytes

    def topic_prefix(self, topic_id: TopicId) -> str:
        """Returns the prefix of all snapshots of one internal topic."""
        return f"{self.prefix}{topic_id}/"

    def parse_key(self, key: str) -> SnapshotName | None:
        """Returns the name in a key; None for any other key."""
        found = _KEY.fullmatch(key.removeprefix(self.prefix)) if key.startswith(self.prefix) else None
        if found is None:
            return None
        topic_id, partition, epoch, offset = found.groups()
        return SnapshotName(self, PartitionId(TopicId(topic_id), int(partition)), int(epoch), int(offset))


class SnapshotName(NamedTuple):
    """The state that a snapshot holds. The greater of two names of one partition is the newer snapshot."""

    kind: SnapshotKind
    partition_id: PartitionId
    epoch: int
    offset: int

    @property
    def key(self) -> str:
        """The key in the bucket."""
        at = self.partition_id
        return f"{self.kind.topic_prefix(at.topic_id)}{at.partition}/{self.epoch:010d}-{self.offset:020d}"


# -- bytes ------------------------------------------------------------------------------------------------------------


def encode_snapshot(name: SnapshotName, batches: Iterable[bytes], count: int, now_ms: int) -> bytes:
    """Encodes the whole object: a header, then the batches. The CRC covers all that follows it."""
    batches = list(batches)
    has_open = any(each[ATTRIBUTES_END - 1] & TRANSACTIONAL for each in batches)
    header = _HEADER.pack(
        decode_uuid(name.partition_id.topic_id), name.partition_id.partition, name.epoch, name.offset, count, now_ms
    )
    body = b"".join((header, *batches))
    version = TRANSACTIONAL_VERSION if has_open else VERSION
    return _PREAMBLE.pack(name.kind.magic, version, 0, crc32c(body)) + body


def decode_snapshot(name: SnapshotName, data: bytes) -> list[bytes]:
    """Returns the batches of a snapshot.

    Raises `Corrupt` if the bytes fail a check, `Refused` if a newer version of this program wrote them.
    """
    if len(data) < _PREAMBLE.size + _HEADER.size:
        raise Corrupt("snapshot is shorter than its header", where=name.key)
    magic, version, _, crc = _PREAMBLE.unpack_from(data)
    if magic != name.kind.magic:
        raise Corrupt("object is no snapshot of this kind", where=name.key)
    if version > TRANSACTIONAL_VERSION:
        raise Refused(
            Code.UNSUPPORTED_VERSION,
            f"{name.key} has version {version}, this program reads {TRANSACTIONAL_VERSION}: upgrade it",
        )
    view = memoryview(data)
    if crc32c(view[_PREAMBLE.size :]) != crc:
        raise Corrupt("snapshot fails its checksum", where=name.key)
    topic_id, partition, epoch, offset, count, _ = _HEADER.unpack_from(data, _PREAMBLE.size)
    if (topic_id, partition, epoch, offset) != (
        decode_uuid(name.partition_id.topic_id),
        name.partition_id.partition,
        name.epoch,
        name.offset,
    ):
        raise Corrupt("snapshot has the header of another one", where=name.key)
    walked = walk(view[_PREAMBLE.size + _HEADER.size :], check_crc=False)
    if walked.why or sum(each.count for each in walked.batches) != count:
        raise Corrupt(f"snapshot does not hold {count} records", where=name.key)
    at = _PREAMBLE.size + _HEADER.size
    return [data[at + each.position : at + each.position + each.size] for each in walked.batches]


# -- where to start ---------------------------------------------------------------------------------------------------


class SnapshotChoice(NamedTuple):
    """Start of a new leader.

    `base` is the snapshot below the log, None for none. `restarts_log`: the log ends below that snapshot, or diverged
    from it earlier, and starts over at the snapshot's offset.
    """

    base: SnapshotName | None
    restarts_log: bool


def choose_snapshot(names: Iterable[SnapshotName], start: int, end: int, epochs: LeaderEpochs) -> SnapshotChoice:
    """Chooses the newest snapshot that agrees with a log of `[start, end)` written by `epochs`.

    A snapshot beyond the log's end wins over the log, unless the log knows a later leader epoch: then the writer of the
    snapshot was fenced. A snapshot within the log is used if the log holds the same history below its offset.
    """
    for name in sorted(names, reverse=True):
        if name.offset > end:
            if name.epoch >= epochs.latest:
                return SnapshotChoice(name, True)
        elif name.offset >= start and _matches_history(name, end, epochs):
            return SnapshotChoice(name, False)
    return SnapshotChoice(max(names_below(names, start), default=None), False)


def names_below(names: Iterable[SnapshotName], start: int) -> list[SnapshotName]:
    """Returns the snapshots that end before the log starts: better than none, though records in between are lost."""
    return [name for name in names if name.offset < start]


def _matches_history(name: SnapshotName, end: int, epochs: LeaderEpochs) -> bool:
    """True if the leader that wrote the snapshot wrote, or had, the log's records below its offset."""
    if name.epoch > epochs.latest:
        return True
    return epochs.end_offset_for(name.epoch, end)[1] >= name.offset
