"""Tests of the check of all objects of topics: every missing and damaged one is found, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tiered.cold.layout import SectionKind, SegmentFacts, build_trailer, manifest_key, partition_prefix, segment_key
from tiered.cold.manifest import Manifest, SegmentEntry, Submanifests
from tiered.cold.manifest_store import ManifestStore
from tiered.ids import PartitionId, TopicId
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import PartitionImage, TopicImage, TopicsImage
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.metrics import Metrics
from tiered.object_store.memory import MemoryStore
from tiered.offline import object_check
from tiered.offline.object_check import CheckCounts, Finding, FindingKind, ObjectCheck
from tiered.ports import ListedObject, NotFound
from tiered.records.native import crc32c
from tiered.system.clock import SystemClock, SystemRng

TOPIC_ID = TopicId("AAAAAAAAQACAAAAAAAAAAQ")
PID = PartitionId(TOPIC_ID, 0)
RECORDS = 10
FAN = 2


class Rig:
    """A bucket with the segments of one partition; its manifest has sub-manifests of `FAN` nodes."""

    def __init__(self, segments: int, partition: PartitionImage | None = None) -> None:
        self.store = MemoryStore(SystemClock())
        self.partition = partition or PartitionImage((1,))
        self.topic = "t"
        self.entries: list[SegmentEntry] = []
        self.found: list[Finding] = []
        self._writer = self._open_manifests()
        asyncio.run(self._fill(segments))

    def _open_manifests(self) -> ManifestStore:
        return ManifestStore(self.store, SystemClock(), SystemRng(), Metrics(), fan=FAN)

    async def _fill(self, segments: int) -> None:
        if segments:
            await self._writer.take_over(PID, "t", 1)
        for number in range(segments):
            await self.add(number * RECORDS)

    async def add(self, base: int) -> None:
        """Uploads one more segment."""
        data = b"records from %d on " % base * 100
        facts = SegmentFacts(base, base + RECORDS, 1, 1, RECORDS, len(data), crc32c(data))
        trailer, sections = build_trailer(PID, 1, facts, {SectionKind.OFFSET_INDEX: b"index" * 8})
        key = segment_key(PID, base, 1, f"{base:032x}")
        entry = SegmentEntry(
            key, base, base + RECORDS, 1, ((1, base),), 1, 1, RECORDS, len(data), facts.crc,
            len(data) + len(trailer), sections, 1,
        )  # fmt: skip
        await self.store.put(key, data + trailer)
        await self._change(lambda manifest, _: manifest.add(entry))
        self.entries.append(entry)

    async def _change(self, change: Callable[[Manifest, Submanifests], Manifest]) -> None:
        await self._writer.change(PID, "t", 1, change)

    async def expire_below(self, offset: int) -> None:
        """Moves the log start."""
        await self._change(lambda manifest, opened: manifest.advance_start(offset, opened))

    async def damage(self, key: str, change: Callable[[bytes], bytes]) -> None:
        got = await self.store.get(key)
        assert not isinstance(got, NotFound)
        await self.store.put(key, change(got.data))

    async def sub_manifests(self) -> list[str]:
        return [item.key for item in await self.store.list("data/") if item.key.endswith(".sub")]

    async def check(self, *, reads_all: bool = False) -> CheckCounts:
        self.found.clear()
        topic = TopicImage(self.topic, TOPIC_ID, (self.partition,), {}, 1)
        image = Image(topics_image=TopicsImage({self.topic: topic}))
        check = ObjectCheck(
            self.store, self._open_manifests(), self.found.append, lambda _: None, reads_all=reads_all
        )  # fmt: skip
        return await check.check_all(image)

    def said(self) -> list[tuple[FindingKind, str]]:
        return [(each.kind, each.key) for each in self.found]


@pytest.fixture(autouse=True)
def few_keys_in_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_check, "PAGE_KEYS", 3)


def test_whole_bucket_has_no_findings() -> None:
    rig = Rig(23)
    counts = asyncio.run(rig.check(reads_all=True))
    assert rig.found == []
    assert (counts.partitions, counts.segments, counts.is_whole) == (1, 23, True)
    assert len(asyncio.run(rig.sub_manifests())) > 2


def test_partition_without_cold_records_has_no_findings() -> None:
    rig = Rig(0, PartitionImage((1,), stored_end=0))
    assert asyncio.run(rig.check()).partitions == 1 and rig.found == []


@pytest.mark.parametrize("number", [0, 7, 22])
def test_missing_segment_is_found_with_its_offsets(number: int) -> None:
    rig = Rig(23)
    gone = rig.entries[number]
    asyncio.run(rig.store.delete([gone.key]))
    counts = asyncio.run(rig.check())
    assert rig.said() == [(FindingKind.MISSING, gone.key)]
    assert (rig.found[0].base_offset, rig.found[0].next_offset) == (gone.base_offset, gone.next_offset)
    assert (counts.missing, counts.segments, counts.is_whole) == (1, 22, False)


def test_all_missing_segments_are_found() -> None:
    rig = Rig(23)
    asyncio.run(rig.store.delete([each.key for each in rig.entries]))
    assert asyncio.run(rig.check()).missing == 23


def test_missing_sub_manifest_is_found_without_its_segments() -> None:
    rig = Rig(23)
    gone = asyncio.run(rig.sub_manifests())[0]
    asyncio.run(rig.store.delete([gone]))
    asyncio.run(rig.check())
    assert rig.said() == [(FindingKind.MISSING, gone)]


def test_damaged_sub_manifest_is_found() -> None:
    rig = Rig(23)
    key = asyncio.run(rig.sub_manifests())[-1]
    asyncio.run(rig.damage(key, lambda data: data[:-20]))
    asyncio.run(rig.check())
    assert rig.said() == [(FindingKind.DAMAGED, key)]


def test_segment_of_another_size_is_damaged() -> None:
    rig = Rig(3)
    asyncio.run(rig.damage(rig.entries[1].key, lambda data: data[:-1]))
    counts = asyncio.run(rig.check())
    assert rig.said() == [(FindingKind.DAMAGED, rig.entries[1].key)] and not counts.is_whole


def test_segment_with_another_footer_is_damaged() -> None:
    rig = Rig(3)
    asyncio.run(rig.damage(rig.entries[1].key, lambda data: data[:-30] + bytes([data[-30] ^ 1]) + data[-29:]))
    asyncio.run(rig.check())
    assert rig.said() == [(FindingKind.DAMAGED, rig.entries[1].key)] and "CRC" in rig.found[0].why


@pytest.mark.parametrize("position", ["log", "section"])
def test_flipped_bit_is_found_only_by_a_read_of_all_bytes(position: str) -> None:
    rig = Rig(3)
    at = 5 if position == "log" else rig.entries[1].log_bytes + 3
    asyncio.run(rig.damage(rig.entries[1].key, lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]))
    asyncio.run(rig.check())
    assert rig.found == []
    asyncio.run(rig.check(reads_all=True))
    assert rig.said() == [(FindingKind.DAMAGED, rig.entries[1].key)] and position in rig.found[0].why


def test_objects_that_no_manifest_names_are_no_damage() -> None:
    rig = Rig(5)
    left = [segment_key(PID, 10, 0, "f" * 32), segment_key(PID, 40, 1, "e" * 32)]
    other = segment_key(PartitionId(TopicId("BBBBBBBBQACAAAAAAAAAAQ"), 2), 0, 0, "d" * 32)
    for key in (*left, other):
        asyncio.run(rig.store.put(key, b"leftover"))
    counts = asyncio.run(rig.check())
    assert rig.said() == [(FindingKind.UNREFERENCED, key) for key in (*left, other)]
    assert (counts.unreferenced, counts.unreferenced_bytes, counts.is_whole) == (3, 24, True)


def test_segment_before_a_key_of_another_form_is_checked() -> None:
    rig = Rig(2)
    asyncio.run(rig.damage(rig.entries[1].key, lambda data: data[:-1]))
    asyncio.run(rig.store.put(f"{partition_prefix(PID)}foreign", b"x"))
    asyncio.run(rig.check())
    assert sorted(each.kind for each in rig.found) == [FindingKind.DAMAGED, FindingKind.UNREFERENCED]


def test_damaged_manifest_is_found_without_its_segments() -> None:
    rig = Rig(5)
    asyncio.run(rig.damage(manifest_key(PID), lambda data: data[: len(data) // 2]))
    asyncio.run(rig.check())
    assert rig.said() == [(FindingKind.DAMAGED, manifest_key(PID))]


@pytest.mark.parametrize("stored_end", [-1, 50])
def test_missing_manifest_is_found_by_its_segments(stored_end: int) -> None:
    rig = Rig(5, PartitionImage((1,), stored_end=stored_end))
    asyncio.run(rig.store.delete([manifest_key(PID)]))
    asyncio.run(rig.check())
    assert rig.said() == [(FindingKind.MISSING, manifest_key(PID))]


def test_missing_manifest_without_segments_is_found_by_the_metadata() -> None:
    rig = Rig(0, PartitionImage((1,), stored_end=7))
    asyncio.run(rig.check())
    assert rig.said() == [(FindingKind.MISSING, manifest_key(PID))] and "7" in rig.found[0].why


def test_internal_topic_needs_no_manifest() -> None:
    """Snapshots of its coordinator take the place of its segments."""
    rig = Rig(0, PartitionImage((1,), stored_end=7))
    rig.topic = OFFSETS_TOPIC
    asyncio.run(rig.check())
    assert rig.found == []


def test_manifest_that_ends_early_is_found_by_the_metadata() -> None:
    rig = Rig(5, PartitionImage((1,), stored_end=51))
    asyncio.run(rig.check())
    assert rig.said() == [(FindingKind.DAMAGED, manifest_key(PID))]


class Busy(MemoryStore):
    """A store beside a broker that expires segments and uploads one, once the manifest and the first page are read."""

    act: Callable[[], object] | None = None

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[ListedObject]:
        listed = await super().list(prefix, after, limit)
        if self.act is not None:
            act, self.act = self.act, None
            await act()  # type: ignore[misc]
        return listed


def test_segments_that_expire_or_come_meanwhile_are_no_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.MemoryStore", Busy)
    rig = Rig(23)
    assert isinstance(rig.store, Busy)

    async def act() -> None:
        await rig.expire_below(95)
        await rig.store.delete([each.key for each in rig.entries[:9]])
        await rig.add(230)

    rig.store.act = act
    counts = asyncio.run(rig.check())
    assert rig.found == []
    assert counts.segments == 14
