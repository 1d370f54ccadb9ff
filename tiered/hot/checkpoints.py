"""Small text files in Kafka's checkpoint formats.

Each partition has one for its leader epochs and one for its topic id. The data directory has files with an offset for
each partition of the broker.

Parsers raise `Corrupt` instead of guessing. Every caller can do without the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import orjson

from tiered.errors import Corrupt
from tiered.hot.leader_epochs import Lineage
from tiered.ids import TopicPartition
from tiered.ports import Disk

EPOCHS_FILE = "leader-epoch-checkpoint"
METADATA_FILE = "partition.metadata"
SEGMENTS_FILE = "segment-checkpoint"
SUSPECT_FILE = "rotten"
"""Marks a log that lost records to corruption. Written before the corrupt part is truncated, and removed once the
cluster knows that records are missing."""

COMPACTION_FILE = "compaction"
"""Marks a log that compaction may have left with gaps between its offsets, and says how far the last clean went."""

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEAN_MARK = ".kafka_cleanshutdown"

_VERSION = "0"
_TOPIC_ID = re.compile("[A-Za-z0-9_-]{22}")


def encode_rows(rows: Iterable[str]) -> bytes:
    """Encodes a version line, a count line, and one line for each row."""
    listed = list(rows)
    return "".join(f"{row}\n" for row in (_VERSION, str(len(listed)), *listed)).encode()


def parse_rows(data: bytes, *, where: str = "") -> list[str]:
    """Returns the rows of a checkpoint. An empty file has none, as in Kafka.

    Raises `Corrupt` if the version or the count is wrong.
    """
    if not data:
        return []
    try:
        version, count, *rest = data.decode().split("\n")
    except ValueError:
        raise Corrupt("checkpoint has no version and count lines", where=where) from None
    if version != _VERSION:
        raise Corrupt(f"checkpoint has version {version[:16]!r}, this program reads {_VERSION}", where=where)
    if rest[-1:] != [""] or count != str(len(rest) - 1):
        raise Corrupt(f"checkpoint announces {count[:16]!r} rows and has {len(rest) - 1}", where=where)
    return rest[:-1]


def encode_lineage(lineage: Lineage) -> bytes:
    return encode_rows(f"{epoch} {start}" for epoch, start in lineage)


def parse_lineage(data: bytes, *, where: str = "") -> Lineage:
    """Parses `leader-epoch-checkpoint`. Raises `Corrupt` also if its entries are out of order."""
    try:
        pairs = tuple(
            (int(epoch), int(start)) for epoch, start in (row.split() for row in parse_rows(data, where=where))
        )
    except ValueError:
        raise Corrupt("leader epochs are not numbers", where=where) from None
    if any(a[0] >= b[0] or a[1] >= b[1] for a, b in pairwise(pairs)):
        raise Corrupt("leader epochs are out of order", where=where)
    return pairs


class CompactionState(NamedTuple):
    """The last clean of a log: all below `clean_to` was cleaned, at `cleaned_ms`. It took `bytes_before` to
    `bytes_after`. -1 if there was none."""

    clean_to: int = -1
    cleaned_ms: int = -1
    bytes_before: int = 0
    bytes_after: int = 0


def encode_compaction(state: CompactionState) -> bytes:
    return encode_rows([" ".join(map(str, state))])


def parse_compaction(data: bytes, *, where: str = "") -> CompactionState:
    """Parses `compaction`. A file that a power cut left empty still marks the log."""
    try:
        rows = [tuple(map(int, row.split())) for row in parse_rows(data, where=where)]
        return CompactionState(*rows[0]) if rows else CompactionState()
    except (ValueError, TypeError):
        raise Corrupt("the state of compaction is not four numbers", where=where) from None


def encode_clean_mark(incarnation: str) -> bytes:
    """Encodes the clean mark: Kafka's, and the incarnation that stopped."""
    return orjson.dumps({"version": 0, "brokerEpoch": -1, "incarnation": incarnation})


def parse_clean_mark(data: bytes) -> str:
    """Returns the incarnation in the clean mark; "" if it names none, as Kafka's does: it proves nothing here."""
    try:
        return str(orjson.loads(data)["incarnation"])
    except (ValueError, TypeError, KeyError):
        return ""


def encode_metadata(topic_id: str) -> bytes:
    """Encodes `partition.metadata`."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def parse_metadata(data: bytes, *, where: str = "") -> str:
    """Returns the topic id in `partition.metadata`."""
    fields = dict(row.split(": ", 1) for row in data.decode(errors="replace").splitlines() if ": " in row)
    if fields.get("version") != "0" or not _TOPIC_ID.fullmatch(fields.get("topic_id", "")):
        raise Corrupt("partition metadata is not version 0", where=where)
    return fields["topic_id"]


def is_torn_metadata(data: bytes) -> bool:
    """Returns True if a power cut can leave this of an unsynced `partition.metadata`: nothing, zeros, or its
    beginning."""
    return len(data.rstrip(b"\0")) < len(encode_metadata("x" * 22))


def is_rotten_metadata(data: bytes, topic_id: str) -> bool:
    """Returns True if `partition.metadata` of this topic has one wrong byte: no other topic's id is that near."""
    whole = encode_metadata(topic_id)
    return len(data) == len(whole) and sum(a != b for a, b in zip(data, whole, strict=True)) == 1


def encode_offset_rows(offsets: Iterable[tuple[TopicPartition, int]]) -> Iterator[str]:
    """Yields the rows of a checkpoint of the data directory."""
    for (topic, partition), offset in offsets:
        yield f"{topic} {partition} {offset}"


def parse_offsets(data: bytes, *, where: str = "") -> dict[TopicPartition, int]:
    """Parses a checkpoint of the data directory into offsets by partition."""
    found = {}
    try:
        for topic, partition, offset in (row.split(" ") for row in parse_rows(data, where=where)):
            found[TopicPartition(topic, int(partition))] = int(offset)
    except ValueError:
        raise Corrupt("offsets are not numbers", where=where) from None
    return found


# -- on disk ----------------------------------------------------------------------------------------------------------


async def save(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Replaces a file durably: after any crash the file has all of its old content or all of the new.

    Concurrent calls for one file are not allowed.
    """
    path = f"{directory}/{name}"
    disk.remove(path + ".tmp")
    file = disk.open(path + ".tmp", create=True)
    try:
        file.append([data])
        await file.sync()
    finally:
        file.close()
    disk.rename(path + ".tmp", path)
    await disk.sync_dir(directory)


def load(disk: Disk, directory: str, name: str) -> bytes | None:
    """Returns the bytes of a small file, or None if it is absent."""
    path = f"{directory}/{name}"
    if not disk.exists(path):
        return None
    file = disk.open(path, write=False)
    try:
        return file.pread(0, file.size())
    finally:
        file.close()
