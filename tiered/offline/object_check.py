"""The check of all objects of topics in a bucket: which are missing, damaged, or named by no manifest.

Needs no broker, and may run beside brokers: an object that looks missing or unreferenced is judged again by a manifest
that is read after the listing. Lists each partition once, in the order of keys, beside a walk through its manifest, so
that memory is bounded by a page of the listing. Makes one small request for each segment. It changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from tiered.cold.layout import DATA, FOOTER_BYTES_MAX, manifest_key, parse_footer, parse_key, partition_prefix
from tiered.cold.manifest import Manifest, ManifestNode, SegmentEntry, SubmanifestRef, find_node
from tiered.cold.manifest_store import ManifestStore, ObjectMissing
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import UNKNOWN_END, PartitionId, TopicId
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import TopicImage
from tiered.metadata.topic_names import INTERNAL
from tiered.ports import ListedObject, NotFound, ObjectStore
from tiered.records.native import crc32c
from tiered.time_text import format_time

PAGE_KEYS = 1_000
AT_ONCE = 8
"""Limit on segments that are checked at once."""
PIECE_BYTES = 8 << 20
"""Bytes of one get with `reads_all`: with `AT_ONCE` they bound the memory."""
AFTER_ALL = "~"
"""Sorts after every character of a key."""


class FindingKind(StrEnum):
    """The kinds of findings. Unreferenced objects are no damage: a broker deletes them at its next sweep."""

    MISSING = "missing"
    DAMAGED = "damaged"
    UNREFERENCED = "unreferenced"


class Finding(NamedTuple):
    """One object, the offsets that it has by its manifest (-1: unknown), and the reason."""

    kind: FindingKind
    topic: str
    partition: int
    key: str
    base_offset: int
    next_offset: int
    why: str


class CheckCounts(NamedTuple):
    """The work so far, and the findings by kind."""

    partitions: int = 0
    segments: int = 0
    object_bytes: int = 0
    missing: int = 0
    damaged: int = 0
    unreferenced: int = 0
    unreferenced_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        """True if no object is missing or damaged."""
        return not (self.missing or self.damaged)


class Matched(NamedTuple):
    """Nodes that the listing has, nodes that it lacks, and objects that are no node."""

    there: list[ManifestNode]
    absent: list[ManifestNode]
    extra: list[ListedObject]


class ObjectMatch:
    """A listing beside the nodes of a manifest, both in the order of base offsets. Pure."""

    def __init__(self) -> None:
        self._named: dict[str, ManifestNode] = {}

    def add_named(self, node: ManifestNode) -> None:
        """Takes the next node of the manifest."""
        self._named[node.key] = node

    def match(self, page: Iterable[ListedObject]) -> Matched:
        """Takes the next page of the listing. Every node that begins at or below its last key has to be added
        before."""
        there: list[ManifestNode] = []
        extra: list[ListedObject] = []
        last = ""
        for item in page:
            last = item.key
            node = self._named.pop(item.key, None)
            if node is None:
                extra.append(item)
            else:
                there.append(node)
        absent = [node for key, node in self._named.items() if key <= last]
        for node in absent:
            del self._named[node.key]
        return Matched(there, absent, extra)

    def take_named(self) -> list[ManifestNode]:
        """Returns the nodes that no page had so far."""
        left = list(self._named.values())
        self._named.clear()
        return left


Report = Callable[[Finding], None]
Progress = Callable[[CheckCounts], None]


class _Findings:
    """Counts and reports what a check finds."""

    def __init__(self, report: Report) -> None:
        self.counts = CheckCounts()
        self._report = report

    def count(self, **more: int) -> None:
        """Adds to the counts of these names."""
        counts = self.counts
        self.counts = counts._replace(**{name: getattr(counts, name) + number for name, number in more.items()})

    def add(self, finding: Finding) -> None:
        """Reports and counts one finding."""
        self._report(finding)
        self.count(**{finding.kind.value: 1})

    def add_node(self, kind: FindingKind, topic: str, partition: int, node: ManifestNode, why: str) -> None:
        """Adds a finding about an object that a manifest names."""
        self.add(Finding(kind, topic, partition, node.key, node.base_offset, node.next_offset, why))

    def add_unreferenced(self, topic: str, partition: int, item: ListedObject, why: str) -> None:
        """Adds an object that no manifest names. It may be the newest one: of an upload that is not in the manifest
        yet."""
        name = parse_key(item.key)
        base = -1 if name is None else name.base_offset
        written = format_time(item.modified_ms)
        self.add(Finding(FindingKind.UNREFERENCED, topic, partition, item.key, base, -1, f"{why}; written {written}"))
        self.count(unreferenced_bytes=item.size)


class ObjectCheck:
    """The objects of the topics of one bucket. `report` gets each finding at once, `progress` the counts after each
    page of a listing. With `reads_all` every byte of a segment is read and compared with its CRC."""

    def __init__(
        self, store: ObjectStore, manifests: ManifestStore, report: Report, progress: Progress, *, reads_all: bool
    ) -> None:
        self._store = store
        self._manifests = manifests
        self._findings = _Findings(report)
        self._progress = progress
        self._reads_all = reads_all

    async def check_all(self, image: Image) -> CheckCounts:
        """Checks all partitions, and finds the objects of topics that are gone. Raises `Unavailable`."""
        for name in sorted(image.topics):
            await self.check_topic(image.topics[name])
        await self._find_other_topics({topic.topic_id for topic in image.topics.values()})
        return self._findings.counts

    async def check_topic(self, topic: TopicImage, only: int | None = None) -> CheckCounts:
        """Checks the partitions of one topic, or `only` one of them. Raises `Unavailable`."""
        for number, partition in enumerate(topic.partitions):
            if only in (None, number):
                check = _PartitionCheck(
                    self._store, self._manifests, self._findings, topic, number, reads_all=self._reads_all
                )
                stored_end = UNKNOWN_END if topic.name in INTERNAL else partition.stored_end
                await check.run(stored_end, lambda: self._progress(self._findings.counts))
                self._findings.count(partitions=1)
                self._progress(self._findings.counts)
        return self._findings.counts

    async def _find_other_topics(self, known: set[TopicId]) -> None:
        """Reports the objects of topics that the metadata does not know. The listing passes over all others."""
        after = ""
        while page := await self._store.list(DATA, after, PAGE_KEYS):
            for item in page:
                after = item.key
                topic_id = item.key.removeprefix(DATA).partition("/")[0]
                if topic_id in known:
                    after = f"{DATA}{topic_id}/{AFTER_ALL}"
                    break
                self._findings.add_unreferenced("-", -1, item, "the metadata has no topic of this id")
            self._progress(self._findings.counts)


class _PartitionCheck:
    """The check of one partition. Objects are not judged where a sub-manifest that has them cannot be read."""

    def __init__(
        self, store: ObjectStore, manifests: ManifestStore, findings: _Findings, topic: TopicImage, number: int, *,
        reads_all: bool,
    ) -> None:  # fmt: skip
        self._store = store
        self._manifests = manifests
        self._findings = findings
        self._topic = topic.name
        self._id = PartitionId(topic.topic_id, number)
        self._reads_all = reads_all
        self._unread: list[tuple[int, int]] = []
        """Ranges of offsets of sub-manifests that cannot be read."""

    async def run(self, stored_end: int, progress: Callable[[], None]) -> None:
        """Reports the findings of the partition. The metadata says that all records below `stored_end` are in the
        bucket, if it is not `UNKNOWN_END`."""
        try:
            manifest = await self._manifests.load(self._id)
        except Corrupt as error:
            self._add_manifest(FindingKind.DAMAGED, f"{error.why}: its segments are not judged")
            return
        if manifest is None:
            await self._judge_absence(stored_end)
            return
        if manifest.cold_end_offset < stored_end != UNKNOWN_END:
            why = f"it ends at offset {manifest.cold_end_offset}, and the metadata says that {stored_end} was reached"
            self._add_manifest(FindingKind.DAMAGED, why)
        await self._compare(manifest, progress)

    async def _judge_absence(self, stored_end: int) -> None:
        """A partition without any cold record has no manifest and no objects."""
        has_objects = bool(await self._store.list(partition_prefix(self._id), "", 1))
        if (has_objects or stored_end > 0) and await self._manifests.load(self._id) is None:
            why = "there are segments" if has_objects else f"the metadata says that {stored_end} was reached"
            self._add_manifest(FindingKind.MISSING, why)

    async def _compare(self, manifest: Manifest, progress: Callable[[], None]) -> None:
        """Walks through the manifest beside the listing."""
        matched = ObjectMatch()
        nodes = self._walk(manifest)
        ahead = await anext(nodes, None)
        after = ""
        while page := await self._store.list(partition_prefix(self._id), after, PAGE_KEYS):
            after = page[-1].key
            items = [item for item in page if item.key != manifest_key(self._id)]
            last = max((name.base_offset for item in items if (name := parse_key(item.key)) is not None), default=-1)
            while ahead is not None and _base_in_key(ahead) <= last:
                matched.add_named(ahead)
                ahead = await anext(nodes, None)
            there, absent, extra = matched.match(items)
            await self._check_segments([node for node in there if isinstance(node, SegmentEntry)])
            await self._judge_missing(absent)
            await self._judge_unreferenced(extra)
            progress()
        while ahead is not None:
            await self._judge_missing([*matched.take_named(), ahead])
            ahead = await anext(nodes, None)
        await self._judge_missing(matched.take_named())

    async def _walk(self, manifest: Manifest) -> AsyncGenerator[ManifestNode]:
        """Yields all live nodes, each sub-manifest before its own. Reports damaged sub-manifests, and offsets between
        two segments that no segment has."""
        stack: list[ManifestNode] = list(reversed(manifest.nodes))
        end = manifest.log_start_offset
        while stack:
            node = stack.pop()
            if node.next_offset <= manifest.log_start_offset:
                continue
            if node.base_offset > end:
                self._add_manifest(FindingKind.DAMAGED, f"no segment has the offsets {end} to {node.base_offset}")
                end = node.base_offset
            if isinstance(node, SegmentEntry) or not (children := await self._read_children(node)):
                end = node.next_offset
            else:
                stack += reversed(children)
            yield node

    async def _read_children(self, ref: SubmanifestRef) -> tuple[ManifestNode, ...]:
        """Returns the nodes of a sub-manifest; none if it cannot be read. One that is missing is found beside the
        listing."""
        try:
            return await self._manifests.read_submanifest(ref)
        except ObjectMissing:
            self._unread.append((ref.base_offset, ref.next_offset))
        except Corrupt as error:
            self._unread.append((ref.base_offset, ref.next_offset))
            why = f"{error.why}: its segments are not judged"
            self._findings.add_node(FindingKind.DAMAGED, self._topic, self._id.partition, ref, why)
        return ()

    async def _check_segments(self, entries: Sequence[SegmentEntry]) -> None:
        for at in range(0, len(entries), AT_ONCE):
            some = entries[at : at + AT_ONCE]
            found = await asyncio.gather(*(self._find_fault(entry) for entry in some))
            for entry, why in zip(some, found, strict=True):
                if why is not None:
                    self._findings.count(segments=1, object_bytes=entry.object_bytes)
                if why:
                    self._findings.add_node(FindingKind.DAMAGED, self._topic, self._id.partition, entry, why)
            await self._judge_missing([entry for entry, why in zip(some, found, strict=True) if why is None])

    async def _find_fault(self, entry: SegmentEntry) -> str | None:
        """Returns the reason why a segment is damaged, "" if it is whole; None if it is gone by now."""
        try:
            why = await self._check_footer(entry)
            return await self._check_bytes(entry) if why == "" and self._reads_all else why
        except Corrupt as error:
            return error.why
        except Refused as error:  # a newer program wrote it
            return str(error)
        except Unavailable as error:
            if not error.refused:
                raise
            return str(error)  # its key is not in the key file, or the store denies it

    async def _check_footer(self, entry: SegmentEntry) -> str | None:
        length = min(FOOTER_BYTES_MAX, entry.object_bytes)
        got = await self._store.get(entry.key, entry.object_bytes - length, length)
        if isinstance(got, NotFound):
            return None
        if got.size != entry.object_bytes:
            return f"it has {got.size} bytes, and its manifest says {entry.object_bytes}"
        footer = parse_footer(self._id, got.data, entry.object_bytes, where=entry.key)
        facts = footer.facts
        said = (facts.base_offset, facts.next_offset, facts.log_bytes, facts.crc, footer.sections)
        named = (entry.base_offset, entry.next_offset, entry.log_bytes, entry.log_crc, entry.sections)
        return "" if said == named else "its footer is not that of the segment that its manifest names"

    async def _check_bytes(self, entry: SegmentEntry) -> str | None:
        parts = [("log", 0, entry.log_bytes, entry.log_crc)]
        parts += [(f"section {ref.kind}", ref.position, ref.length, ref.crc) for ref in entry.sections]
        for name, begin, length, crc in parts:
            at, found = begin, 0
            while at < begin + length:
                got = await self._store.get(entry.key, at, min(PIECE_BYTES, begin + length - at))
                if isinstance(got, NotFound):
                    return None
                if not got.data:
                    return f"it ends at byte {at}"
                found = crc32c(got.data, found)
                at += len(got.data)
            if found != crc:
                return f"its {name}, bytes {begin} to {begin + length}, has a wrong CRC"
        return ""

    async def _judge_missing(self, nodes: Sequence[ManifestNode]) -> None:
        """Reports objects that are gone and that the manifest in the bucket still names: else they have expired, or a
        clean has replaced them."""
        gone = [node for node in nodes if isinstance(await self._store.get(node.key, 0, 1), NotFound)]
        named = await self._find_named([(node.key, node.base_offset) for node in gone])
        for node in gone:
            if node.key in named:
                kind = "segment" if isinstance(node, SegmentEntry) else "sub-manifest"
                why = f"its manifest names this {kind}"
                self._findings.add_node(FindingKind.MISSING, self._topic, self._id.partition, node, why)

    async def _judge_unreferenced(self, items: Sequence[ListedObject]) -> None:
        named = await self._find_named(
            [(item.key, name.base_offset) for item in items if (name := parse_key(item.key)) is not None]
        )
        for item in items:
            name = parse_key(item.key)
            is_unread = name is not None and any(begin <= name.base_offset < end for begin, end in self._unread)
            if item.key not in named and not is_unread:
                self._findings.add_unreferenced(self._topic, self._id.partition, item, "its manifest does not name it")

    async def _find_named(self, objects: Sequence[tuple[str, int]]) -> set[str]:
        """Returns the keys, of these with their base offsets, that the manifest in the bucket names now. It names all
        if it cannot be read."""
        try:
            manifest = await self._manifests.load(self._id) if objects else None
            if manifest is None:
                return set()
            return {key for key, base_offset in objects if await self._is_named(manifest, key, base_offset)}
        except Corrupt:
            return {key for key, _ in objects}

    async def _is_named(self, manifest: Manifest, key: str, base_offset: int) -> bool:
        offset = max(base_offset, manifest.log_start_offset)
        node = manifest.find_node(offset)
        while isinstance(node, SubmanifestRef) and node.key != key:
            node = find_node(await self._manifests.read_submanifest(node), offset)
        return node is not None and node.key == key

    def _add_manifest(self, kind: FindingKind, why: str) -> None:
        key = manifest_key(self._id)
        self._findings.add(Finding(kind, self._topic, self._id.partition, key, -1, -1, why))


def _base_in_key(node: ManifestNode) -> int:
    """Returns the base offset in the key of a node. That of a sub-manifest may be below its live part."""
    name = parse_key(node.key)
    return node.base_offset if name is None else name.base_offset
