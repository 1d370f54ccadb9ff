"""Object keys in the bucket, and the bytes of a cold segment object (docs/internals/formats.md).

Pure. Keeps I20. A cold segment has three parts: the log as it was on disk, its sections (indexes, producer snapshot,
lineage), and a footer with the CRCs of both. The manifest repeats the section table, so readers need the footer only
without a manifest.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from tiered.errors import Code, Corrupt, Refused
from tiered.hot.leader_epochs import Lineage
from tiered.ids import PartitionId, TopicId, decode_uuid
from tiered.ports import Buffer
from tiered.records.native import crc32c

DATA = "data/"
FOOTER_VERSION = 1
FOOTER_MAGIC = b"TIEREDSG"

_TABLE = struct.Struct(">HHIQQ")
_FACTS = struct.Struct(">16siiqqqqqQIHH")
_END = struct.Struct(">II8s")

FOOTER_BYTES_MAX = 16 * _TABLE.size + _FACTS.size + _END.size
"""Limit on the length of a footer of this version: one ranged get of so many last bytes has all of it."""

_OBJECT_KEY = re.compile(r"data/([A-Za-z0-9_-]{22})/(\d{1,10})/(\d{20})-(\d{10})-([0-9a-f]{32})\.(seg|sub)")


class SectionKind(IntEnum):
    """The kinds of sections after the log in a cold segment. The numbers are part of the format."""

    OFFSET_INDEX = 1
    TIME_INDEX = 2
    TXN_INDEX = 3
    PRODUCERS = 4
    LINEAGE = 5
    KEYS = 6
    """Hashes of the keys of the object. Older programs wrote it, and this one does not read it."""


class SectionRef(NamedTuple):
    """The place of a section: byte position from the start of the object, length, CRC-32C."""

    kind: int
    position: int
    length: int
    crc: int


class SegmentFacts(NamedTuple):
    """Facts about the log part of a cold segment, from a check of all its batches.

    `next_offset` is where the next segment begins. Timestamps are milliseconds (-1: no record has one). `crc` is the
    CRC-32C of all `log_bytes` bytes.
    """

    base_offset: int
    next_offset: int
    base_timestamp: int
    max_timestamp: int
    record_count: int
    log_bytes: int
    crc: int


class SegmentSections(NamedTuple):
    """The sections of one cold segment, checked against their CRCs.

    Index entries count from the segment's base offset and from byte 0 of the object. `producers` is Kafka's snapshot
    file, empty if there is none. `lineage` is that of the whole log up to the segment's end.
    """

    offset_index: bytes
    time_index: bytes
    txn_index: bytes
    producers: bytes
    lineage: Lineage


class Footer(NamedTuple):
    """The parsed footer of a cold segment object."""

    partition: PartitionId
    leader_epoch: int
    facts: SegmentFacts
    sections: tuple[SectionRef, ...]


class ObjectName(NamedTuple):
    """The parts of the key of a segment (`seg`) or sub-manifest (`sub`): enough to decide if the object is garbage."""

    partition: PartitionId
    base_offset: int
    leader_epoch: int
    unique: str
    suffix: str


def topic_prefix(topic_id: TopicId) -> str:
    """Returns the prefix of all objects of a topic."""
    return f"{DATA}{topic_id}/"


def partition_prefix(partition_id: PartitionId) -> str:
    """Returns the prefix of all objects of a partition."""
    return f"{DATA}{partition_id.topic_id}/{partition_id.partition}/"


def manifest_key(partition_id: PartitionId) -> str:
    """Returns the key of the manifest, the one mutable object of a partition."""
    return partition_prefix(partition_id) + "manifest"


def segment_key(partition_id: PartitionId, base_offset: int, leader_epoch: int, unique: str) -> str:
    """Returns the key of a segment. `unique` is 32 new random hexadecimal digits: a key is never written twice."""
    return f"{partition_prefix(partition_id)}{base_offset:020d}-{leader_epoch:010d}-{unique}.seg"


def submanifest_key(partition_id: PartitionId, base_offset: int, leader_epoch: int, unique: str) -> str:
    """Returns the key of a sub-manifest. It has the form of a segment key, so that one rule finds garbage of both
    kinds."""
    return f"{partition_prefix(partition_id)}{base_offset:020d}-{leader_epoch:010d}-{unique}.sub"


def parse_key(key: str) -> ObjectName | None:
    """Parses the key of a segment or sub-manifest. Returns None for any other key."""
    found = _OBJECT_KEY.fullmatch(key)
    if found is None:
        return None
    topic_id, partition, base, epoch, unique, suffix = found.groups()
    return ObjectName(PartitionId(TopicId(topic_id), int(partition)), int(base), int(epoch), unique, suffix)


def build_trailer(
    partition_id: PartitionId, leader_epoch: int, facts: SegmentFacts, sections: Mapping[SectionKind, bytes]
) -> tuple[bytes, tuple[SectionRef, ...]]:
    """Returns the bytes after the log in the object (sections, then footer), and the section table. Leaves out empty
    sections."""
    refs: list[SectionRef] = []
    position = facts.log_bytes
    parts: list[bytes] = []
    for kind in SectionKind:
        data = sections.get(kind, b"")
        if data:
            refs.append(SectionRef(kind, position, len(data), crc32c(data)))
            parts.append(data)
            position += len(data)
    body = b"".join(_TABLE.pack(ref.kind, 0, ref.crc, ref.position, ref.length) for ref in refs)
    body += _FACTS.pack(
        decode_uuid(partition_id.topic_id),
        partition_id.partition,
        leader_epoch,
        facts.base_offset,
        facts.next_offset,
        facts.base_timestamp,
        facts.max_timestamp,
        facts.record_count,
        facts.log_bytes,
        facts.crc,
        len(refs),
        FOOTER_VERSION,
    )
    end = _END.pack(crc32c(body), len(body) + _END.size, FOOTER_MAGIC)
    return b"".join([*parts, body, end]), tuple(refs)


def parse_footer(partition_id: PartitionId, last: Buffer, object_bytes: int, *, where: str) -> Footer:
    """Parses the footer from the last bytes of an object. `FOOTER_BYTES_MAX` bytes are always enough.

    Raises `Corrupt` if the footer is invalid, and `Refused` if a newer program wrote it.
    """
    view = memoryview(last)
    if len(view) < _FACTS.size + _END.size:
        raise Corrupt("object is shorter than a footer", where=where)
    crc, length, magic = _END.unpack_from(view, len(view) - _END.size)
    if magic != FOOTER_MAGIC or not _FACTS.size + _END.size <= length <= len(view):
        raise Corrupt("no footer at the end of the object", where=where, position=object_bytes)
    body = view[len(view) - length : len(view) - _END.size]
    if crc32c(body) != crc:
        raise Corrupt("footer CRC is wrong", where=where, position=object_bytes - length)
    table_bytes = len(body) - _FACTS.size
    topic_id, partition, epoch, base, next_offset, base_ts, max_ts, count, log_bytes, log_crc, refs, version = (
        _FACTS.unpack_from(body, table_bytes)
    )
    if version > FOOTER_VERSION:
        raise Refused(Code.UNSUPPORTED_VERSION, f"{where} has footer version {version}, this program reads 1")
    if table_bytes != refs * _TABLE.size or (topic_id, partition) != (
        decode_uuid(partition_id.topic_id),
        partition_id.partition,
    ):
        raise Corrupt("footer belongs to another object, or its section count is wrong", where=where)
    sections = tuple(
        SectionRef(kind, position, size, section_crc)
        for kind, _, section_crc, position, size in _TABLE.iter_unpack(body[:table_bytes])
    )
    facts = SegmentFacts(base, next_offset, base_ts, max_ts, count, log_bytes, log_crc)
    _check_table(log_bytes, sections, object_bytes - length, where)
    return Footer(partition_id, epoch, facts, sections)


def _check_table(log_bytes: int, sections: Sequence[SectionRef], end: int, where: str) -> None:
    """Checks that the sections fill the object from the end of the log to the footer without a gap."""
    position = log_bytes
    for ref in sections:
        if ref.position != position:
            raise Corrupt("section table has a gap", where=where, position=position)
        position += ref.length
    if position != end:
        raise Corrupt("section table does not reach the footer", where=where, position=position)
