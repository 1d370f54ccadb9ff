"""Manifests and sub-manifests as bytes: JSON inside an envelope that proves it (docs/FORMATS.md, "Partition manifest").

Decoding trusts nothing: whatever is not exactly such a document is Corrupt, whatever a newer program wrote is Refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from tiered.cold.layout import SectionRef, parse_key
from tiered.cold.manifest import Manifest, Node, SegmentEntry, Spill
from tiered.errors import Code, Corrupt, Refused
from tiered.ids import PartitionId, TopicId
from tiered.object_store.envelope import seal, unseal

FORMAT = 1

Json = Mapping[str, Any]


def _body(data: bytes, where: str) -> Json:
    """The body of a sealed document; Corrupt unless it proves itself, Refused when its format is newer."""
    body = unseal(data, where)
    version = body.get("format")
    if not isinstance(version, int):
        raise Corrupt("object is no manifest", where=where)
    if version > FORMAT:
        raise Refused(Code.UNSUPPORTED_VERSION, f"{where} has format {version}, this program reads {FORMAT}")
    return body


def encode(manifest: Manifest) -> bytes:
    """A manifest as it stands in the bucket."""
    return seal(
        {
            "format": FORMAT,
            "topic": manifest.topic,
            "topic_id": manifest.topic_id,
            "partition": manifest.partition,
            "leader_epoch": manifest.leader_epoch,
            "log_start_offset": manifest.log_start_offset,
            "cold_end_offset": manifest.cold_end_offset,
            "cold_bytes": manifest.cold_bytes,
            "segment_count": manifest.segment_count,
            "sequence": manifest.sequence,
            "nonce": manifest.nonce,
            "spilled": [_spill_json(node) for node in manifest.spilled],
            "entries": [_entry_json(node) for node in manifest.entries],
        }
    )


def decode(data: bytes, where: str) -> Manifest:
    """The reverse of `encode`. Corrupt, Refused when a newer program wrote it."""
    body = _body(data, where)
    try:
        manifest = Manifest(
            topic=str(body["topic"]),
            topic_id=TopicId(str(body["topic_id"])),
            partition=int(body["partition"]),
            leader_epoch=int(body["leader_epoch"]),
            log_start_offset=int(body["log_start_offset"]),
            cold_end_offset=int(body["cold_end_offset"]),
            nodes=_nodes(body),
            sequence=int(body["sequence"]),
            nonce=str(body["nonce"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise Corrupt(f"manifest is not such a document: {error!r}"[:200], where=where) from None
    if manifest.fault():
        raise Corrupt(f"manifest does not hold together: {manifest.fault()}", where=where)
    return manifest


def encode_sub(pid: PartitionId, level: int, nodes: Sequence[Node]) -> bytes:
    """A sub-manifest as it stands in the bucket: written once, never changed."""
    return seal(
        {
            "format": FORMAT,
            "topic_id": pid.topic_id,
            "partition": pid.partition,
            "level": level,
            "spilled": [_spill_json(node) for node in nodes if isinstance(node, Spill)],
            "entries": [_entry_json(node) for node in nodes if isinstance(node, SegmentEntry)],
        }
    )


def decode_sub(data: bytes, where: str) -> tuple[Node, ...]:
    """The nodes of a sub-manifest, in order of offset. Corrupt, Refused when a newer program wrote it."""
    body = _body(data, where)
    try:
        nodes, pid = _nodes(body), PartitionId(TopicId(str(body["topic_id"])), int(body["partition"]))
    except (ValueError, TypeError, KeyError) as error:
        raise Corrupt(f"sub-manifest is not such a document: {error!r}"[:200], where=where) from None
    if not nodes or any(a.next_offset != b.base_offset for a, b in pairwise(nodes)):
        raise Corrupt("sub-manifest has a gap or is empty", where=where)
    name = parse_key(where)
    if name is not None and name.partition != pid:
        raise Corrupt(f"sub-manifest of {pid} under another's key", where=where)
    return nodes


def _nodes(body: Json) -> tuple[Node, ...]:
    spilled = [_spill(row) for row in body["spilled"]]
    entries = [_entry(row) for row in body["entries"]]
    return (*spilled, *entries)


def _spill_json(spill: Spill) -> Json:
    return {name: getattr(spill, name) for name in Spill.__slots__}


def _entry_json(entry: SegmentEntry) -> Json:
    row = {name: getattr(entry, name) for name in SegmentEntry.__slots__}
    row["sections"] = [tuple(ref) for ref in entry.sections]
    return row


def _spill(row: Json) -> Spill:
    return Spill(
        key=str(row["key"]),
        level=int(row["level"]),
        base_offset=int(row["base_offset"]),
        next_offset=int(row["next_offset"]),
        max_timestamp=int(row["max_timestamp"]),
        log_bytes=int(row["log_bytes"]),
        segment_count=int(row["segment_count"]),
    )


def _entry(row: Json) -> SegmentEntry:
    return SegmentEntry(
        key=str(row["key"]),
        base_offset=int(row["base_offset"]),
        next_offset=int(row["next_offset"]),
        leader_epoch=int(row["leader_epoch"]),
        lineage=tuple((int(epoch), int(start)) for epoch, start in row["lineage"]),
        base_timestamp=int(row["base_timestamp"]),
        max_timestamp=int(row["max_timestamp"]),
        record_count=int(row["record_count"]),
        log_bytes=int(row["log_bytes"]),
        log_crc=int(row["log_crc"]),
        object_bytes=int(row["object_bytes"]),
        sections=tuple(SectionRef(*map(int, ref)) for ref in row["sections"]),
        uploaded_ms=int(row["uploaded_ms"]),
    )
