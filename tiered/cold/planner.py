"""Plans of the cold tier: the next upload, the expiry of cold segments, and garbage.

Pure. Keeps I20 and I21, and avoids these mistakes:

- A leader that has not taken over the manifest does not know the size in the bucket, so it expires nothing.
- Every negative limit means no limit.
- Bytes that are both local and cold count once.
- Garbage is only what no manifest can name any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from tiered.cold.layout import parse_key
from tiered.cold.manifest import Manifest, ManifestNode, SegmentEntry, SubmanifestNeeded, Submanifests
from tiered.errors import Corrupt
from tiered.hot.retention import age_start_ms
from tiered.ports import ListedObject


class LocalSegment(Protocol):
    """The facts of a closed local segment that a plan needs."""

    @property
    def base_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...


class RetentionLimits(Protocol):
    """Total retention of a topic, in milliseconds and bytes. Negative means no limit."""

    @property
    def retention_ms(self) -> int: ...
    @property
    def retention_bytes(self) -> int: ...


class UploadPlan(NamedTuple):
    """The upload of the local segment `base_offset`, from the batch that holds `from_offset` on."""

    base_offset: int
    from_offset: int


class Expiry(NamedTuple):
    """The log may start at `start_offset`, because of the setting `why`."""

    start_offset: int
    why: str


def next_upload(closed: Sequence[LocalSegment], manifest: Manifest, stable_offset: int) -> UploadPlan | None:
    """Returns the next closed segment to upload, oldest first, only below `stable_offset` (last stable offset, high
    watermark).

    Raises `Corrupt` if the local log begins above the cold end: an upload would leave a permanent gap.
    """
    cold_end = manifest.cold_end_offset
    for segment in closed:
        if segment.next_offset <= cold_end:
            continue
        if segment.base_offset > cold_end:
            raise Corrupt(f"gap between the cold end {cold_end} and the local start {segment.base_offset}")
        if segment.next_offset > stable_offset:
            return None
        return UploadPlan(segment.base_offset, max(segment.base_offset, cold_end))
    return None


def find_expiry(
    manifest: Manifest | None,
    leader_epoch: int,
    limits: RetentionLimits,
    *,
    local_bytes_above_cold: int,
    now_ms: int,
    submanifests: Submanifests,
) -> Expiry | None:
    """Returns where the log may start by total retention over cold and local records, or None if nothing expires.

    Only whole cold segments expire here. Records above the cold end are for the hot log's own retention, once no cold
    segment is left. `local_bytes_above_cold` are the bytes that are not cold yet. Raises `SubmanifestNeeded` if the
    result is inside a sub-manifest that `submanifests` lacks.
    """
    if manifest is None or manifest.leader_epoch != leader_epoch:
        return None
    if limits.retention_ms < 0 and limits.retention_bytes < 0:
        return None
    excess_bytes = manifest.cold_bytes + local_bytes_above_cold - limits.retention_bytes
    start, why = manifest.log_start_offset, ""
    for entry in _oldest_first(manifest.nodes, manifest.log_start_offset, submanifests):
        reason = _exceeded_limit(entry, excess_bytes, limits, now_ms)
        if not reason:
            break
        why = reason
        excess_bytes -= entry.log_bytes
        start = entry.next_offset
    return Expiry(start, why) if start > manifest.log_start_offset else None


def may_expire(
    manifest: Manifest, oldest: SegmentEntry, limits: RetentionLimits, *, local_bytes_above_cold: int, now_ms: int
) -> bool:
    """True if `find_expiry` would find anything. Only the oldest live segment counts, so no sub-manifest has to be
    read."""
    excess_bytes = manifest.cold_bytes + local_bytes_above_cold - limits.retention_bytes
    return bool(_exceeded_limit(oldest, excess_bytes, limits, now_ms))


def _exceeded_limit(entry: SegmentEntry, surplus: int, limits: RetentionLimits, now_ms: int) -> str:
    """Returns the setting that lets this oldest segment expire, or ""."""
    since_ms = age_start_ms(entry.newest_ms, entry.uploaded_ms, now_ms)
    if limits.retention_ms >= 0 and now_ms - since_ms > limits.retention_ms:
        return "retention.ms"
    if limits.retention_bytes >= 0 and surplus >= entry.log_bytes:
        return "retention.bytes"
    return ""


def _oldest_first(nodes: Iterable[ManifestNode], start: int, submanifests: Submanifests) -> Iterable[SegmentEntry]:
    for node in nodes:
        if node.next_offset <= start:
            continue
        if isinstance(node, SegmentEntry):
            yield node
        elif node.key in submanifests:
            yield from _oldest_first(submanifests[node.key], start, submanifests)
        else:
            raise SubmanifestNeeded(node)


def find_dropped_keys(
    nodes: Iterable[ManifestNode], old_start: int, new_start: int, submanifests: Submanifests
) -> list[str]:
    """Returns keys of segments and sub-manifests that are live at `old_start` and not at `new_start`, children first.

    Raises `SubmanifestNeeded` while `submanifests` lacks one that may have such keys.
    """
    keys: list[str] = []
    for node in nodes:
        if node.next_offset <= old_start or node.base_offset >= new_start:
            continue
        if not isinstance(node, SegmentEntry):
            if node.key not in submanifests:
                raise SubmanifestNeeded(node)
            keys += find_dropped_keys(submanifests[node.key], old_start, new_start, submanifests)
        if node.next_offset <= new_start:
            keys.append(node.key)
    return keys


def find_replaced_keys(nodes: Iterable[ManifestNode], begin: int, end: int, submanifests: Submanifests) -> list[str]:
    """Returns keys of the segments in `[begin, end)`, and of each sub-manifest with one of them, children first. The
    replacement of these segments has dropped all of them.

    Raises `SubmanifestNeeded` while `submanifests` lacks one that has such keys.
    """
    keys: list[str] = []
    for node in nodes:
        if node.next_offset <= begin or node.base_offset >= end:
            continue
        if not isinstance(node, SegmentEntry):
            if node.key not in submanifests:
                raise SubmanifestNeeded(node)
            keys += find_replaced_keys(submanifests[node.key], begin, end, submanifests)
        keys.append(node.key)
    return keys


def find_garbage(
    listed: Iterable[ListedObject], alive: Collection[str], in_flight: Collection[str], leader_epoch: int
) -> list[ListedObject]:
    """Returns objects that no manifest can name any more: of this epoch or a lower one, neither live nor in flight.

    This is final, because the manifest is taken over under `leader_epoch`. Lower epochs can no longer add keys. Keys of
    this epoch are in `in_flight` until their change is decided. Objects of higher epochs belong to a newer leader and
    stay.
    """
    return [
        item
        for item in listed
        if item.key not in alive
        and item.key not in in_flight
        and (name := parse_key(item.key)) is not None
        and name.leader_epoch <= leader_epoch
    ]
