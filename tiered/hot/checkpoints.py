"""Small text files in Kafka's formats: leader epochs and topic id of a partition, offsets of all of a broker's.

Parsers say `Corrupt` instead of guessing; whoever reads one knows how to do without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

from tiered.errors import Corrupt
from tiered.hot.leader_epochs import Lineage
from tiered.ids import TopicPartition
from tiered.ports import Disk

EPOCHS_FILE = "leader-epoch-checkpoint"
METADATA_FILE = "partition.metadata"
SEGMENTS_FILE = "segment-checkpoint"
SUSPECT_FILE = "rotten"
"""Is there from before rot is cut off until the cluster knows that records are missing."""

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEAN_MARK = ".kafka_cleanshutdown"
BOOT_MARK = ".boot"

_VERSION = "0"
_TOPIC_ID = re.compile("[A-Za-z0-9_-]{22}")


def encode_rows(rows: Iterable[str]) -> bytes:
    """Version, count, one row a line."""
    listed = list(rows)
    return "".join(f"{row}\n" for row in (_VERSION, str(len(listed)), *listed)).encode()


def parse_rows(data: bytes, *, where: str = "") -> list[str]:
    """The rows of a checkpoint; `Corrupt` when version or count do not hold. An empty file has none, as in Kafka."""
    if not data:
        return []
    try:
        version, count, *rest = data.decode().split("\n")
    except ValueError:
        raise Corrupt("checkpoint has no head", where=where) from None
    if version != _VERSION:
        raise Corrupt(f"checkpoint has version {version[:16]!r}", where=where)
    if rest[-1:] != [""] or count != str(len(rest) - 1):
        raise Corrupt(f"checkpoint names {count[:16]!r} rows", where=where)
    return rest[:-1]


def encode_lineage(lineage: Lineage) -> bytes:
    return encode_rows(f"{epoch} {start}" for epoch, start in lineage)


def parse_lineage(data: bytes, *, where: str = "") -> Lineage:
    """`leader-epoch-checkpoint`; `Corrupt` also when it is not in order."""
    try:
        pairs = tuple(
            (int(epoch), int(start)) for epoch, start in (row.split() for row in parse_rows(data, where=where))
        )
    except ValueError:
        raise Corrupt("leader epochs are no numbers", where=where) from None
    if any(a[0] >= b[0] or a[1] >= b[1] for a, b in pairwise(pairs)):
        raise Corrupt("leader epochs are out of order", where=where)
    return pairs


def encode_metadata(topic_id: str) -> bytes:
    """`partition.metadata`."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def parse_metadata(data: bytes, *, where: str = "") -> str:
    """The topic id in `partition.metadata`."""
    fields = dict(row.split(": ", 1) for row in data.decode(errors="replace").splitlines() if ": " in row)
    if fields.get("version") != "0" or not _TOPIC_ID.fullmatch(fields.get("topic_id", "")):
        raise Corrupt("partition metadata is not version 0", where=where)
    return fields["topic_id"]


def is_torn_metadata(data: bytes) -> bool:
    """Whether this is what a power cut leaves of an unsynced `partition.metadata`: nothing, zeros or its beginning."""
    return len(data.rstrip(b"\0")) < len(encode_metadata("x" * 22))


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return encode_rows(f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items()))


def parse_offsets(data: bytes, *, where: str = "") -> dict[TopicPartition, int]:
    """A broker-wide checkpoint: offset by partition."""
    found = {}
    try:
        for topic, partition, offset in (row.split(" ") for row in parse_rows(data, where=where)):
            found[TopicPartition(topic, int(partition))] = int(offset)
    except ValueError:
        raise Corrupt("offsets are no numbers", where=where) from None
    return found


# -- on disk ----------------------------------------------------------------------------------------------------------


async def save(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Replaces a file durably: all of the old or all of the new after any crash. One call at a time for one file."""
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
    """The bytes of a small file; None when it is absent."""
    path = f"{directory}/{name}"
    if not disk.exists(path):
        return None
    file = disk.open(path, write=False)
    try:
        return file.pread(0, file.size())
    finally:
        file.close()
