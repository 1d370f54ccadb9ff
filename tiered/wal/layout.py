"""Keys and bytes of the objects of a write-ahead chain (docs/FORMATS.md, "Write-ahead chains"). Pure.

wal/<node id>/<incarnation>/<slot %020d>   created once: a window with batches, or a fence

An object has a magic, the length and the CRC-32C of its header, the header (JSON), and the batches of each extent one
after the other. A fence has no extents. The chain belongs to one incarnation of one broker, and its slots are dense:
a slot counts only if all slots before it are decided.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from tiered.errors import Code, Corrupt, Refused
from tiered.ids import PartitionId, TopicId
from tiered.ports import Buffer
from tiered.records.native import crc32c
from tiered.value import value

WAL = "wal/"
MAGIC = b"TIEREDWL"
VERSION = 1

_HEAD = struct.Struct(">8sII")
HEADER_BYTES = 64 << 10
"""One ranged get of so many first bytes has the header of a window of some hundred partitions."""
_KEY = re.compile(r"wal/(\d{1,10})/([A-Za-z0-9_-]{1,64})/(\d{20})")


class ChainId(NamedTuple):
    """The chain of one incarnation of a broker."""

    node_id: int
    incarnation: str

    @property
    def prefix(self) -> str:
        """The prefix of its keys."""
        return f"{WAL}{self.node_id}/{self.incarnation}/"


class Extent(NamedTuple):
    """Batches of one partition in a window: the offsets [base_offset, end_offset), put by the leader of `leader_epoch`.

    They are `length` bytes from `position` in the object, with the CRC-32C `crc`. A batch keeps the epoch of who
    appended it, which may be lower: a leader also puts what it found in its log. All records below
    `committed` were committed when the window was put, and in the bucket.
    """

    partition: PartitionId
    leader_epoch: int
    base_offset: int
    end_offset: int
    committed: int
    position: int
    length: int
    crc: int


@value
class Window:
    """One object with batches. All slots below `decided` had an object when it was put: they may be deleted, and are
    never free."""

    slot: int
    nonce: str
    decided: int
    extents: tuple[Extent, ...]


@value
class Fence:
    """One object without batches: `epochs` has the leader epoch of each partition that its writer takes over.

    Records that a leader of a lower epoch puts into a later slot of this chain count for nothing. `decided` is as for a
    window: a fence that stops a busy owner may stand ahead of free slots.
    """

    slot: int
    nonce: str
    decided: int
    epochs: Mapping[PartitionId, int]


class NewExtent(NamedTuple):
    """Batches of one partition that are to be put."""

    partition: PartitionId
    leader_epoch: int
    base_offset: int
    end_offset: int
    committed: int
    data: Buffer


def slot_key(chain: ChainId, slot: int) -> str:
    """Returns the key of a slot."""
    return f"{chain.prefix}{slot:020d}"


def parse_key(key: str) -> tuple[ChainId, int] | None:
    """Returns chain and slot of a key; None for any other key."""
    found = _KEY.fullmatch(key)
    return (ChainId(int(found[1]), found[2]), int(found[3])) if found is not None else None


def encode_window(
    chain: ChainId, slot: int, nonce: str, cluster_id: str, decided: int, extents: Sequence[NewExtent]
) -> bytes:
    """Returns the bytes of a window: the batches of its extents are at its end."""
    rows = [(*each.partition, *each[1:5], len(each.data), crc32c(each.data)) for each in extents]
    return _encode(
        chain, slot, nonce, cluster_id, {"decided": decided, "extents": rows}, [each.data for each in extents]
    )


def encode_fence(
    chain: ChainId, slot: int, nonce: str, cluster_id: str, decided: int, epochs: Mapping[PartitionId, int]
) -> bytes:
    """Returns the bytes of a fence."""
    rows = [[*each, epoch] for each, epoch in epochs.items()]
    return _encode(chain, slot, nonce, cluster_id, {"decided": decided, "fence": rows}, [])


def _encode(
    chain: ChainId, slot: int, nonce: str, cluster_id: str, content: dict[str, Any], parts: Sequence[Buffer]
) -> bytes:
    header = orjson.dumps(
        {
            "version": VERSION, "cluster_id": cluster_id, "node_id": chain.node_id, "incarnation": chain.incarnation,
            "slot": slot, "nonce": nonce, **content,
        }
    )  # fmt: skip
    return b"".join([_HEAD.pack(MAGIC, len(header), crc32c(header)), header, *parts])


def header_end(first: Buffer, where: str) -> int:
    """Returns where the header ends, given the first bytes of an object. Raises `Corrupt`."""
    if len(first) < _HEAD.size:
        raise Corrupt("object is shorter than the head of a chain's object", where=where)
    magic, length, _ = _HEAD.unpack_from(first)
    if magic != MAGIC:
        raise Corrupt("object does not begin as one of a chain", where=where)
    return int(_HEAD.size + length)


def decode(first: Buffer, chain: ChainId, slot: int, cluster_id: str, size: int) -> Window | Fence:
    """Parses the header from the first bytes of an object of `size` bytes.

    Raises `Corrupt` for damage and for the object of another slot, `Refused` for another cluster and for a newer
    program.
    """
    where = slot_key(chain, slot)
    end = header_end(first, where)
    header = bytes(memoryview(first)[_HEAD.size : end])
    if len(header) != end - _HEAD.size or crc32c(header) != _HEAD.unpack_from(first)[2]:
        raise Corrupt("header is cut or has a wrong CRC", where=where)
    try:
        body = orjson.loads(header)
        if body["version"] > VERSION:
            raise Refused(Code.UNSUPPORTED_VERSION, f"{where} has version {body['version']}, this program reads 1")
        named = body["node_id"], body["incarnation"], body["slot"]
        if named != (*chain, slot):
            raise Corrupt(f"object says that it is slot {named[2]} of the chain of broker {named[0]}", where=where)
        if cluster_id and body["cluster_id"] != cluster_id:
            raise Refused(Code.INCONSISTENT_CLUSTER_ID, f"{where} belongs to the cluster {body['cluster_id']}")
        nonce = str(body["nonce"])
        if "fence" in body:
            rows = [_whole(row, where) for row in body["fence"]]
            epochs = {PartitionId(TopicId(topic_id), p): epoch for topic_id, p, epoch in rows}
            return Fence(slot, nonce, int(body.get("decided", slot)), epochs)
        return Window(slot, nonce, int(body["decided"]), _place_extents(body["extents"], end, size, where))
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"header lacks something: {error!r}", where=where) from None


def _whole(row: Sequence[Any], where: str) -> Sequence[Any]:
    """Returns a row of a header: a topic id and whole numbers. Raises `Corrupt`."""
    if not isinstance(row[0], str) or any(type(number) is not int for number in row[1:]):
        raise Corrupt(f"row of the header is not a topic id and numbers: {row!r}", where=where)
    return row


def _place_extents(rows: Sequence[Sequence[Any]], begin: int, size: int, where: str) -> tuple[Extent, ...]:
    found, position = [], begin
    for row in rows:
        topic_id, partition, leader_epoch, base, end, committed, length, crc = _whole(row, where)
        if not 0 <= committed <= base < end or length <= 0:
            raise Corrupt(f"extent of {topic_id}/{partition} is empty or goes back", where=where)
        partition_id = PartitionId(TopicId(topic_id), partition)
        found.append(Extent(partition_id, leader_epoch, base, end, committed, position, length, crc))
        position += length
    if position != size:
        raise Corrupt(f"object has {size} bytes, and its header says {position}", where=where)
    return tuple(found)
