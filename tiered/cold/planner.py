"""Plans of the cold tier: what to copy next, what may expire, what is garbage. Values in, values out.

The traps they are written against: a leader that has not taken the manifest over knows no remote size and expires
nothing; every negative limit means infinite; bytes that are both local and cold count once; garbage is only what nobody
can name any more.
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
    """What a plan must know of a closed local segment."""

    @property
    def base_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...


class RetentionLimits(Protocol):
    """Total retention of a topic, in milliseconds and bytes; negative is infinite."""

    @property
    def retention_ms(self) -> int: ...
    @property
    def retention_bytes(self) -> int: ...


class UploadPlan(NamedTuple):
    """Copy the local segment `base_offset`, from the batch that holds `from_offset` on."""

    base_offset: int
    from_offset: int


class Expiry(NamedTuple):
    """The log may start at `start_offset`, because of `why`."""

    start_offset: int
    why: str


def next_upload(closed: Sequence[LocalSegment], manifest: Manifest, stable_offset: int) -> UploadPlan | None:
    """The next closed segment to copy, oldest first, only below `stable_offset` (last stable and high watermark).

    Corrupt when the local log begins above the cold end: copying on would leave a hole for ever.
    """
    cold_end = manifest.cold_end_offset
    for segment in closed:
        if segment.next_offset <= cold_end:
            continue
        if segment.base_offset > cold_end:
            raise Corrupt(f"hole between the cold end {cold_end} and the local start {segment.base_offset}")
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
    """Where the log may start by total retention over cold and local together; None when nothing expires.

    Whole cold segments only; what lies above the cold end is the hot log's own retention, which may follow when
    nothing is left here. `local_bytes_above_cold` are the bytes that are not cold yet. NeedsOpen when the answer lies
    inside a spill that `opened` lacks.
    """
    if manifest is None or manifest.leader_epoch != leader_epoch:
        return None
    if limits.retention_ms < 0 and limits.retention_bytes < 0:
        return None
    surplus = manifest.cold_bytes + local_bytes_above_cold - limits.retention_bytes
    start, why = manifest.log_start_offset, ""
    for entry in _oldest_first(manifest.nodes, manifest.log_start_offset, submanifests):
        reason = _exceeded_limit(entry, surplus, limits, now_ms)
        if not reason:
            break
        why = reason
        surplus -= entry.log_bytes
        start = entry.next_offset
    return Expiry(start, why) if start > manifest.log_start_offset else None


def may_expire(
    manifest: Manifest, oldest: SegmentEntry, limits: RetentionLimits, *, local_bytes_above_cold: int, now_ms: int
) -> bool:
    """Whether `expire` would find anything, told by the oldest live segment alone: no sub-manifest need be opened."""
    surplus = manifest.cold_bytes + local_bytes_above_cold - limits.retention_bytes
    return bool(_exceeded_limit(oldest, surplus, limits, now_ms))


def _exceeded_limit(entry: SegmentEntry, surplus: int, limits: RetentionLimits, now_ms: int) -> str:
    """The limit that lets this oldest segment go; "" while none does."""
    since_ms = age_start_ms(entry.max_timestamp, entry.uploaded_ms, now_ms)
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
    """Keys of segments and sub-manifests that were alive at `old_start` and are not at `new_start`, children first.

    NeedsOpen while `opened` lacks a spill that may hold some.
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


def find_garbage(
    listed: Iterable[ListedObject], alive: Collection[str], in_flight: Collection[str], leader_epoch: int
) -> list[ListedObject]:
    """Objects that nobody can name any more: of this epoch or a lower one, not alive in the manifest nor in the making.

    Final, because the manifest has been taken over under `leader_epoch`: no lower epoch can name its keys any more, and
    this epoch's own are in `busy` until they are decided. Keys of higher epochs belong to a newer leader and stay.
    """
    return [
        item
        for item in listed
        if item.key not in alive
        and item.key not in in_flight
        and (name := parse_key(item.key)) is not None
        and name.leader_epoch <= leader_epoch
    ]
