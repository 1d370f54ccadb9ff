"""Encodes and decodes manifests and sub-manifests: JSON in an envelope with a CRC (docs/internals/formats.md,
"Partition manifest").

Decoding trusts nothing: any other document raises `Corrupt`, and one of a newer program raises `Refused`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

from tiered.cold.layout import SectionRef, parse_key
from tiered.cold.manifest import Manifest, ManifestNode, SegmentEntry, SubmanifestRef, is_cleaned
from tiered.errors import Code, Corrupt, Refused
from tiered.ids import PartitionId, TopicId
from tiered.object_store.envelope import seal, unseal

FORMAT = 2
"""Newest format that this program reads: 2 has cleaned segments. Without one, format 1 is written."""

Json = Mapping[str, Any]

_CLEAN_FIELDS = ("clean_to", "cleaned_ms", "clean_bytes_before", "clean_bytes_after")
"""Fields of a manifest about its last clean: absent before the first one."""
_REF_FIELDS = tuple(each.name for each in fields(SubmanifestRef))
_ENTRY_FIELDS = tuple(each.name for each in fields(SegmentEntry))


def _unseal_body(data: bytes, where: str) -> Json:
    """Returns the body of a sealed document. Raises `Corrupt` if it is invalid, and `Refused` if its format is
    newer."""
    body = unseal(data, where)
    version = body.get("format")
    if not isinstance(version, int):
        raise Corrupt("object is not a manifest: it has no format number", where=where)
    if version > FORMAT:
        raise Refused(Code.UNSUPPORTED_VERSION, f"{where} has format {version}, this program reads {FORMAT}")
    return body


def encode(manifest: Manifest) -> bytes:
    """Encodes a manifest for the bucket."""
    clean = {} if manifest.clean_to < 0 else {name: getattr(manifest, name) for name in _CLEAN_FIELDS}
    return seal(
        {
            "format": FORMAT if clean else _format_of(manifest.nodes),
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
            **clean,
            "spilled": [_encode_ref(node) for node in manifest.submanifests],
            "entries": [_encode_entry(node) for node in manifest.entries],
        }
    )


def decode(data: bytes, where: str) -> Manifest:
    """Decodes the output of `encode`. Raises `Corrupt`, and `Refused` if a newer program wrote it."""
    body = _unseal_body(data, where)
    try:
        manifest = Manifest(
            topic=str(body["topic"]),
            topic_id=TopicId(str(body["topic_id"])),
            partition=int(body["partition"]),
            leader_epoch=int(body["leader_epoch"]),
            log_start_offset=int(body["log_start_offset"]),
            cold_end_offset=int(body["cold_end_offset"]),
            nodes=_decode_nodes(body),
            sequence=int(body["sequence"]),
            nonce=str(body["nonce"]),
            clean_to=int(body.get("clean_to", -1)),
            cleaned_ms=int(body.get("cleaned_ms", -1)),
            clean_bytes_before=int(body.get("clean_bytes_before", 0)),
            clean_bytes_after=int(body.get("clean_bytes_after", 0)),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise Corrupt(f"manifest lacks a field or has a wrong one: {error!r}"[:200], where=where) from None
    if manifest.find_fault():
        raise Corrupt(f"manifest is inconsistent: {manifest.find_fault()}", where=where)
    return manifest


def encode_submanifest(partition_id: PartitionId, level: int, nodes: Sequence[ManifestNode]) -> bytes:
    """Encodes a sub-manifest for the bucket: it is written once and never changed."""
    return seal(
        {
            "format": _format_of(nodes),
            "topic_id": partition_id.topic_id,
            "partition": partition_id.partition,
            "level": level,
            "spilled": [_encode_ref(node) for node in nodes if isinstance(node, SubmanifestRef)],
            "entries": [_encode_entry(node) for node in nodes if isinstance(node, SegmentEntry)],
        }
    )


def decode_submanifest(data: bytes, where: str) -> tuple[ManifestNode, ...]:
    """Returns the nodes of a sub-manifest, in order of offset. Raises `Corrupt`, and `Refused` if a newer program wrote
    it."""
    body = _unseal_body(data, where)
    try:
        nodes, partition_id = _decode_nodes(body), PartitionId(TopicId(str(body["topic_id"])), int(body["partition"]))
    except (ValueError, TypeError, KeyError) as error:
        raise Corrupt(f"sub-manifest lacks a field or has a wrong one: {error!r}"[:200], where=where) from None
    if not nodes or any(a.next_offset != b.base_offset for a, b in pairwise(nodes)):
        raise Corrupt("sub-manifest has a gap or is empty", where=where)
    name = parse_key(where)
    if name is not None and name.partition != partition_id:
        raise Corrupt(f"sub-manifest of {partition_id} has the key of another partition", where=where)
    return nodes


def _format_of(nodes: Sequence[ManifestNode]) -> int:
    return FORMAT if any(map(is_cleaned, nodes)) else 1


def _decode_nodes(body: Json) -> tuple[ManifestNode, ...]:
    refs = [_decode_ref(row) for row in body["spilled"]]
    entries = [_decode_entry(row) for row in body["entries"]]
    return (*refs, *entries)


def _encode_ref(ref: SubmanifestRef) -> Json:
    return {name: getattr(ref, name) for name in _REF_FIELDS}


def _encode_entry(entry: SegmentEntry) -> Json:
    row = {name: getattr(entry, name) for name in _ENTRY_FIELDS}
    row["sections"] = [tuple(ref) for ref in entry.sections]
    if not entry.is_cleaned:
        del row["cleaned_ms"]
    return row


def _decode_ref(row: Json) -> SubmanifestRef:
    return SubmanifestRef(
        key=str(row["key"]),
        level=int(row["level"]),
        base_offset=int(row["base_offset"]),
        next_offset=int(row["next_offset"]),
        max_timestamp=int(row["max_timestamp"]),
        log_bytes=int(row["log_bytes"]),
        segment_count=int(row["segment_count"]),
    )


def _decode_entry(row: Json) -> SegmentEntry:
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
        cleaned_ms=int(row.get("cleaned_ms", -1)),
    )
