"""The manifest of one partition: an ordered list of cold segments without gaps, with look-ups by offset, epoch and
time.

Pure. Keeps I3, I16, I21 and I26. Old runs of segments are packed into immutable sub-manifests, and the manifest has one
`SubmanifestRef` for each. Runs of these are packed into sub-manifests of a higher level. Therefore the manifest stays
small however long the history is, and a change costs O(1).

This file has values only: `manifest_store` decides who may change them. `check_change` has the rules over (old, new): a
manifest that breaks one never reaches the bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from typing import NamedTuple

from tiered.cold.layout import SectionRef
from tiered.errors import check_invariant
from tiered.hot.leader_epochs import LeaderEpochs, Lineage
from tiered.ids import NO_EPOCH, PartitionId, TopicId, TopicPartition
from tiered.records.model import NO_TIMESTAMP
from tiered.value import value

FAN = 64
"""Number of nodes in one sub-manifest. A manifest has fewer than 2 * FAN nodes of each level."""


@value
class SegmentEntry:
    """One cold segment. Timestamps are milliseconds. `lineage` is the part of the lineage that wrote this segment's
    offsets. `cleaned_ms` is when a clean wrote the object; -1: it is as it was uploaded."""

    key: str
    base_offset: int
    next_offset: int
    leader_epoch: int
    lineage: Lineage
    base_timestamp: int
    max_timestamp: int
    record_count: int
    log_bytes: int
    log_crc: int
    object_bytes: int
    sections: tuple[SectionRef, ...]
    uploaded_ms: int
    cleaned_ms: int = -1

    level = 0
    segment_count = 1

    @property
    def is_time_unset(self) -> bool:
        """True if the entry does not say how late its records are: the greatest timestamp is below that of the first
        record. Producers left it unset, and earlier versions stored that. Producers may have clocks that are ahead:
        where the broker set the timestamps, that of the first record may be later than the upload."""
        is_below = self.max_timestamp < self.base_timestamp and self.record_count > 0
        return is_below and (self.max_timestamp < 0 or self.base_timestamp <= self.uploaded_ms)

    @property
    def is_timeless(self) -> bool:
        """True if no record has a timestamp. Such a segment says nothing about the time of those before it."""
        return self.max_timestamp < 0 and not self.is_time_unset

    @property
    def newest_ms(self) -> int:
        """Returns the greatest timestamp (ms) of the records; -1 if none is known."""
        return NO_TIMESTAMP if self.is_time_unset else self.max_timestamp

    @property
    def is_cleaned(self) -> bool:
        """True if a clean wrote the object: offsets without a record are lawful."""
        return self.cleaned_ms >= 0

    @property
    def is_dense(self) -> bool:
        """True if every offset of the segment has a record: then each batch begins where the one before it ends."""
        return self.record_count == self.next_offset - self.base_offset


@value
class SubmanifestRef:
    """A reference to the sub-manifest `key` with a run of nodes. The figures count only its live part."""

    key: str
    level: int
    base_offset: int
    next_offset: int
    max_timestamp: int
    log_bytes: int
    segment_count: int


ManifestNode = SegmentEntry | SubmanifestRef
Submanifests = Mapping[str, Sequence[ManifestNode]]
"""Contents of sub-manifests by key, as far as a change needs them."""


class SubmanifestNeeded(Exception):
    """A pure step needs the contents of this sub-manifest: read it and call again."""

    def __init__(self, ref: SubmanifestRef) -> None:
        super().__init__(ref.key)
        self.ref = ref


class UnwrittenSubmanifest(NamedTuple):
    """A new sub-manifest that has to be in the bucket before a manifest names it."""

    key: str
    level: int
    nodes: tuple[ManifestNode, ...]


class PackRange(NamedTuple):
    """Nodes to pack into a new sub-manifest, and their place in the manifest."""

    level: int
    first: int
    nodes: tuple[ManifestNode, ...]


@value
class Manifest:
    """The cold part of one partition, `[log_start_offset, cold_end_offset)`.

    `leader_epoch` is the highest that took the manifest over: lower ones are fenced. `nonce` identifies one write (M1),
    and `sequence` counts writes. `clean_to` is where the last clean ended, at `cleaned_ms`; both are -1 before it. That
    clean took `clean_bytes_before` of log to `clean_bytes_after`.
    """

    topic: str
    topic_id: TopicId
    partition: int
    leader_epoch: int = NO_EPOCH
    log_start_offset: int = 0
    cold_end_offset: int = 0
    nodes: tuple[ManifestNode, ...] = ()
    sequence: int = 0
    nonce: str = ""
    clean_to: int = -1
    cleaned_ms: int = -1
    clean_bytes_before: int = 0
    clean_bytes_after: int = 0
    unwritten: tuple[UnwrittenSubmanifest, ...] = field(default=(), compare=False)
    """Sub-manifests that `nodes` name and that are not in the bucket yet: the store puts them first."""

    @property
    def partition_id(self) -> PartitionId:
        """Returns the partition of this manifest."""
        return PartitionId(self.topic_id, self.partition)

    @property
    def tp(self) -> TopicPartition:
        """Returns the partition with the topic's name, for people."""
        return TopicPartition(self.topic, self.partition)

    @property
    def cold_bytes(self) -> int:
        """Returns the live bytes of log in the bucket, without indexes and footers."""
        return sum(node.log_bytes for node in self.nodes)

    @property
    def segment_count(self) -> int:
        """Returns the number of live segments in the bucket."""
        return sum(node.segment_count for node in self.nodes)

    @property
    def entries(self) -> tuple[SegmentEntry, ...]:
        """Returns the newest segments, which are in the manifest itself."""
        return tuple(node for node in self.nodes if isinstance(node, SegmentEntry))

    @property
    def submanifests(self) -> tuple[SubmanifestRef, ...]:
        """Returns the references to older segments in sub-manifests."""
        return tuple(node for node in self.nodes if isinstance(node, SubmanifestRef))

    def find_node(self, offset: int) -> ManifestNode | None:
        """Returns the node that holds `offset`, or None outside `[log_start_offset, cold_end_offset)`."""
        if not self.log_start_offset <= offset < self.cold_end_offset:
            return None
        return find_node(self.nodes, offset)

    def adopt_epoch(self, leader_epoch: int) -> Manifest:
        """Returns the manifest taken over by the leader of `leader_epoch`, or this one if it already is."""
        return self if leader_epoch == self.leader_epoch else replace(self, leader_epoch=leader_epoch)

    def add(self, entry: SegmentEntry) -> Manifest:
        """Returns the manifest with one more segment at the end, or this one if it names that object already."""
        if any(node.key == entry.key for node in self.nodes[-FAN:]):
            return self
        return replace(self, nodes=(*self.nodes, entry), cold_end_offset=entry.next_offset)

    def advance_start(self, offset: int, submanifests: Submanifests) -> Manifest:
        """Returns the manifest without the whole segments below `offset`. Beyond the cold end no segment is left, and
        the end moves too.

        Raises `SubmanifestNeeded` if `offset` is inside a sub-manifest that `submanifests` lacks.
        """
        if offset <= self.log_start_offset:
            return self
        nodes = tuple(kept for node in self.nodes if (kept := trim_node(node, offset, submanifests)) is not None)
        end = max(self.cold_end_offset, offset)
        return replace(self, log_start_offset=offset, cold_end_offset=end, nodes=nodes)

    def replace_segments(
        self,
        replaced: Sequence[SegmentEntry],
        successors: Sequence[SegmentEntry],
        submanifests: Submanifests,
        new_key: Callable[[int], str],
    ) -> Manifest:
        """Returns the manifest with cleaned successors in place of a run of segments. They cover the same offsets.

        Returns this manifest if it does not name the whole run any more: the log start moved into it, or another clean
        replaced a part. Each sub-manifest with a part of the run is written again under a `new_key` (of its first
        offset). The successors take the place of the newest replaced segment, so the newest segment stays in the
        manifest itself. Raises `SubmanifestNeeded`.
        """
        check_invariant(_covers_same(replaced, successors), "successors cover other offsets", replaced, successors)
        known = {**submanifests, **{each.key: each.nodes for each in self.unwritten}}
        splice = _Splice(replaced, successors, self.log_start_offset, known, new_key)
        nodes = splice.replace_in(self.nodes)
        if splice.found_keys != [entry.key for entry in replaced]:
            return self
        kept = [each for each in self.unwritten if each.key not in splice.rewritten_keys]
        return replace(self, nodes=tuple(nodes), unwritten=(*kept, *splice.unwritten))

    def find_pack_range(self, fan: int = FAN) -> PackRange | None:
        """Returns the oldest `fan` nodes of a level that has twice as many, or None while every level is small."""
        counts: dict[int, int] = {}
        for node in self.nodes:
            counts[node.level] = counts.get(node.level, 0) + 1
        for level, count in sorted(counts.items()):
            if count >= 2 * fan:
                first = next(i for i, node in enumerate(self.nodes) if node.level == level)
                return PackRange(level + 1, first, self.nodes[first : first + fan])
        return None

    def pack(self, pack_range: PackRange, key: str) -> Manifest:
        """Returns the manifest with these nodes replaced by a reference to the sub-manifest `key`."""
        ref = _summarize(key, pack_range.level, pack_range.nodes)
        rest = self.nodes[pack_range.first + len(pack_range.nodes) :]
        return replace(self, nodes=(*self.nodes[: pack_range.first], ref, *rest))

    def find_fault(self) -> str:
        """Returns what is inconsistent, or "".

        Nodes are in order, without gap or overlap. They reach down to the log start and end at the cold end.
        """
        if not self.nodes:
            return "" if self.log_start_offset == self.cold_end_offset else "no segments between start and end"
        if not self.nodes[0].base_offset <= self.log_start_offset < self.nodes[0].next_offset:
            return f"log start {self.log_start_offset} is not in the first node"
        if self.nodes[-1].next_offset != self.cold_end_offset:
            return f"the last node does not end at the cold end {self.cold_end_offset}"
        for earlier, later in pairwise(self.nodes):
            if earlier.next_offset != later.base_offset or earlier.level < later.level:
                return f"hole, overlap or wrong order at {later.base_offset}"
        return "" if all(node.base_offset < node.next_offset for node in self.nodes) else "empty node"


class _Splice:
    """One replacement of a run of segments in a tree of nodes."""

    def __init__(
        self,
        replaced: Sequence[SegmentEntry],
        successors: Sequence[SegmentEntry],
        start: int,
        submanifests: Submanifests,
        new_key: Callable[[int], str],
    ) -> None:
        self.unwritten: list[UnwrittenSubmanifest] = []
        self.rewritten_keys: set[str] = set()
        self._found: list[str] = []
        self._begin, self._end = replaced[0].base_offset, replaced[-1].next_offset
        self._successors = tuple(successors)
        self._start = start
        self._submanifests = submanifests
        self._new_key = new_key

    @property
    def found_keys(self) -> list[str]:
        """Returns the keys of the segments that were in the place of the run, oldest first."""
        return self._found[::-1]

    def replace_in(self, nodes: Sequence[ManifestNode]) -> list[ManifestNode]:
        """Returns live nodes without the run, from the newest on, so that the first place found takes the
        successors."""
        newest_first: list[ManifestNode] = []
        for node in reversed(nodes):
            if node.next_offset <= self._begin or node.base_offset >= self._end:
                newest_first.append(node)
            elif isinstance(node, SegmentEntry):
                self._found.append(node.key)
                newest_first += reversed(self._successors)
                self._successors = ()
            else:
                newest_first += self._rewrite(node)
        return newest_first[::-1]

    def _rewrite(self, ref: SubmanifestRef) -> list[ManifestNode]:
        if ref.key not in self._submanifests:
            raise SubmanifestNeeded(ref)
        self.rewritten_keys.add(ref.key)
        trimmed = (trim_node(child, self._start, self._submanifests) for child in self._submanifests[ref.key])
        nodes = self.replace_in([node for node in trimmed if node is not None])
        if not nodes:
            return []
        made = UnwrittenSubmanifest(self._new_key(nodes[0].base_offset), ref.level, tuple(nodes))
        self.unwritten.append(made)
        return [_summarize(made.key, made.level, made.nodes)]


def _covers_same(replaced: Sequence[SegmentEntry], successors: Sequence[SegmentEntry]) -> bool:
    """True if both runs have no gap and the same ends."""
    runs = (replaced, successors)
    return all(one.next_offset == other.base_offset for run in runs for one, other in pairwise(run)) and (
        (replaced[0].base_offset, replaced[-1].next_offset) == (successors[0].base_offset, successors[-1].next_offset)
    )


def find_node(nodes: Sequence[ManifestNode], offset: int) -> ManifestNode | None:
    """Returns the node of an ordered run that holds `offset`, by binary search."""
    low, high = 0, len(nodes)
    while low < high:
        middle = (low + high) // 2
        if nodes[middle].next_offset <= offset:
            low = middle + 1
        else:
            high = middle
    return nodes[low] if low < len(nodes) and nodes[low].base_offset <= offset else None


def epoch_at(entry: SegmentEntry, offset: int) -> int:
    """Returns the leader epoch that wrote `offset` of this segment."""
    return LeaderEpochs(entry.lineage).epoch_at(offset)


def trim_node(node: ManifestNode, start: int, submanifests: Submanifests) -> ManifestNode | None:
    """Returns the rest of a node without the segments that end at or below `start`, or None if nothing is left.

    A reference keeps its key and gets smaller figures: the sub-manifest is immutable and still names the deleted
    segments.
    """
    if node.next_offset <= start:
        return None
    if isinstance(node, SegmentEntry) or node.base_offset >= start:
        return node
    if node.key not in submanifests:
        raise SubmanifestNeeded(node)
    alive = [kept for child in submanifests[node.key] if (kept := trim_node(child, start, submanifests)) is not None]
    return _summarize(node.key, node.level, alive)


def is_cleaned(node: ManifestNode) -> bool:
    """True if this is a segment that a clean wrote."""
    return isinstance(node, SegmentEntry) and node.is_cleaned


def matches_ref(ref: SubmanifestRef, nodes: Sequence[ManifestNode]) -> bool:
    """True if these can be the contents of a sub-manifest: they cover its live offsets and are of lower levels."""
    begin, end = nodes[0].base_offset, nodes[-1].next_offset
    return begin <= ref.base_offset and end == ref.next_offset and all(node.level < ref.level for node in nodes)


def _summarize(key: str, level: int, nodes: Sequence[ManifestNode]) -> SubmanifestRef:
    return SubmanifestRef(
        key=key,
        level=level,
        base_offset=nodes[0].base_offset,
        next_offset=nodes[-1].next_offset,
        max_timestamp=max(node.max_timestamp for node in nodes),
        log_bytes=sum(node.log_bytes for node in nodes),
        segment_count=sum(node.segment_count for node in nodes),
    )


def check_change(old: Manifest, new: Manifest) -> None:
    """Checks the rules over (old, new).

    Identity stays, and epoch, start and end never go back. An offset that stays cold moves to another object only if a
    clean wrote that, and a clean adds no record. A violation is a bug and stops the broker before anything is written.
    """
    fault = new.find_fault()
    check_invariant(not fault, fault, new)
    check_invariant(
        (old.topic_id, old.partition) == (new.topic_id, new.partition), "identity", old.partition_id, new.partition_id
    )
    check_invariant(new.leader_epoch >= old.leader_epoch, "leader epoch", old.leader_epoch, new.leader_epoch)
    check_invariant(
        new.log_start_offset >= old.log_start_offset, "log start", old.log_start_offset, new.log_start_offset
    )
    check_invariant(new.cold_end_offset >= old.cold_end_offset, "cold end", old.cold_end_offset, new.cold_end_offset)
    before = {node.key: (node.level, node.next_offset) for node in old.nodes}
    for node in new.nodes:
        if node.key in before:
            check_invariant(before[node.key] == (node.level, node.next_offset), "another object under its key", node)
        elif node.level == 0 and old.nodes:
            check_invariant(node.base_offset >= old.cold_end_offset or is_cleaned(node), "below the cold end", node)
    check_invariant(new.clean_to <= new.cold_end_offset, "clean beyond the cold end", new.clean_to)
    if not (old.submanifests or new.submanifests) and new.cold_end_offset == old.cold_end_offset:
        were = sum(node.record_count for node in old.entries)
        check_invariant(sum(node.record_count for node in new.entries) <= were, "a clean added records", were)
