"""A run of the cleaner over 100 GiB in the bucket of which 1 % a day is written again. The objects are simulated.

The store keeps objects without the values of their records, which are all alike, and returns them whole. Uploads make
the requests of an upload, and the sections of its objects. Everything else is the program: the cleaner, its reads and
its objects, manifests, and deletions. The disk has none of the log.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.cold import PID
from bench.compaction import admit, run_inline
from bench.figures import Figure
from tiered.cold.cache import ChunkCache
from tiered.cold.cleaner import ColdCleaner
from tiered.cold.collector import Collector
from tiered.cold.kept_tails import KeptTails
from tiered.cold.layout import SectionKind, SegmentFacts, build_trailer, segment_key
from tiered.cold.manifest import Manifest, SegmentEntry, Submanifests
from tiered.cold.manifest_store import ManifestStore
from tiered.cold.object_keys import KeysBuilder
from tiered.cold.reader import ColdReader
from tiered.config.settings import Settings, TopicConfig
from tiered.hot.checkpoints import encode_lineage
from tiered.hot.index import IndexBuilder
from tiered.hot.log_cleaning import CleanerResources
from tiered.hot.producer_state import ProducerStates
from tiered.metrics import Metrics
from tiered.object_store.memory import MemoryStore
from tiered.object_store.metered import MeteredStore
from tiered.ports import Buffer, Clock, FileSlice, GetResult, NotFound, PutResult
from tiered.records.batch import encode_batch
from tiered.records.pure_compact import KEY_ROW_BYTES
from tiered.replication.cold_tier import CLEANER_BYTES
from tiered.system.clock import SystemClock, SystemRng

VALUE_BYTES, BATCH_RECORDS, SEGMENT_BATCHES = 1 << 17, 8, 63
SEGMENT_RECORDS = BATCH_RECORDS * SEGMENT_BATCHES
SEGMENTS, SEGMENTS_A_DAY = 1626, 16
DAY_MS = 86_400_000
VALUE = random.Random(1).randbytes(VALUE_BYTES)
MARK = random.Random(2).randbytes(16)
SHARE = Settings().tiered_cleaner_max_request_share


class SimulatedStore(MemoryStore):
    """A store in memory. It has the keys of what was uploaded, and makes the batches when they are read. It has what a
    clean has put without the values, with a mark in their place."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.uploaded: dict[str, tuple[int, Sequence[int]]] = {}
        """Base offset and keys of each segment by object key."""

    async def upload(self, key: str, parts: Sequence[Buffer | FileSlice]) -> PutResult:
        kept: list[bytes] = []
        for part in parts:
            assert not isinstance(part, FileSlice)
            data, at, begin = bytes(part), 0, 0
            while (at := data.find(VALUE[:16], at)) >= 0:
                assert data[at : at + VALUE_BYTES] == VALUE
                kept += [data[begin:at], MARK]
                begin = at = at + VALUE_BYTES
            kept.append(data[begin:])
        return await self.put(key, b"".join(kept))

    async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        got = await super().get(key)
        if isinstance(got, NotFound):
            return got
        segment = self.uploaded.get(key)
        parts = got.data.split(MARK)
        tail_at = SEGMENT_BYTES if segment is not None else len(got.data) - len(parts[-1])
        tail_at += (len(parts) - 1) * (VALUE_BYTES - len(MARK))
        size = tail_at + len(parts[-1])
        end = size if length is None else min(start + length, size)
        if start >= tail_at:
            return GetResult(parts[-1][start - tail_at : end - tail_at], size, got.version)
        whole = encode_segment(*segment, VALUE) + got.data if segment is not None else VALUE.join(parts)
        assert len(whole) == size
        return GetResult(whole[start:end], size, got.version)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in keys:
            self.uploaded.pop(key, None)


def encode_segment(base: int, keys: Sequence[int], value: bytes) -> bytes:
    """Returns the batches of a segment with one record of each key."""
    parts: list[bytes] = []
    for at in range(0, len(keys), BATCH_RECORDS):
        rows = [(0, b"%08d" % key, value, ()) for key in keys[at : at + BATCH_RECORDS]]
        parts.append(encode_batch(rows, base_offset=base + at, leader_epoch=0))
    return b"".join(parts)


SEGMENT_BYTES = len(encode_segment(0, range(SEGMENT_RECORDS), VALUE))


@dataclass
class DayCost:
    """Sums over the days up to the last clean. `shadowed_bytes` of older records have a newer one that was cleaned."""

    dirty_bytes: int = 0
    shadowed_bytes: int = 0
    moved_bytes: int = 0
    clean_requests: int = 0
    upload_requests: int = 0
    cleans: int = 0
    largest: int = 0
    seconds: float = 0.0


class SimulatedTopic:
    """A topic of which each record was once the last of its key, and keys that are written again."""

    def __init__(self, *, same_keys: bool, dirty_ratio: float, segments: int = SEGMENTS) -> None:
        clock, rng, metrics = SystemClock(), SystemRng(), Metrics()
        self._clock: Clock = clock
        self._objects = SimulatedStore(clock)
        self._store = MeteredStore(self._objects, clock, metrics)
        self._manifests = ManifestStore(self._store, clock, rng, metrics)
        self._collector = Collector(self._store, self._manifests, lambda _: frozenset(), clock, metrics, grace_ms=0)
        self._tails = KeptTails()
        self._reader = ColdReader(
            self._store, self._manifests, ChunkCache(metrics, CLEANER_BYTES), metrics, clock,
            window_bytes=CLEANER_BYTES // 2, tails=self._tails,
        )  # fmt: skip
        self._cleaner = ColdCleaner(self._store, self._manifests, self._reader, self._collector, rng, metrics)
        self._config = replace(TopicConfig(), cleanup_policy=("compact",), min_cleanable_dirty_ratio=dirty_ratio)
        self._resources = CleanerResources(run_inline, admit, 128 << 20, 512 << 10, 0.9, b"seed")
        self._keys = segments * SEGMENT_RECORDS
        self._seed, self._drawn, self._same_keys = random.Random(3).randbytes(16), random.Random(4), same_keys
        self._last = array("q", range(self._keys))
        self._end = self._puts = 0
        self.cost = DayCost()

    async def fill(self) -> None:
        """Puts the segments of the clean topic."""
        manifest = await self._manifests.take_over(PID, "bench", 0)
        bases = range(0, self._keys, SEGMENT_RECORDS)
        entries = [await self._put(range(base, base + SEGMENT_RECORDS)) for base in bases]
        await self._add(manifest, entries, is_clean=True)

    async def run(self, days: int) -> DayCost:
        """Writes for so many days, and cleans at the end of each if a clean is due and worth its requests."""
        cost = self.cost
        manifest = await self._manifests.take_over(PID, "bench", 0)
        started, waiting = time.perf_counter(), 0
        for day in range(1, days + 1):
            for number in range(SEGMENTS_A_DAY):
                before = self._store.request_count()
                first = number * SEGMENT_RECORDS
                keys = (
                    range(first, first + SEGMENT_RECORDS)
                    if self._same_keys
                    else self._drawn.sample(range(self._keys), SEGMENT_RECORDS)
                )
                manifest = await self._add(manifest, [await self._put(keys)])
                waiting += self._store.request_count() - before
            cost.largest = max(cost.largest, manifest.cold_bytes)
            now_ms = day * DAY_MS
            found = await self._cleaner.find_cleanable(manifest, self._config, now_ms)
            if not found.is_due(self._config) or self._cleaner.is_put_off(manifest, found, now_ms, SHARE):
                continue
            before, size = self._store.request_count(), manifest.cold_bytes
            result = await self._cleaner.clean(manifest, 0, self._config, now_ms, self._resources, request_share=SHARE)
            await self._collector.delete_expired()
            manifest = result.manifest
            cost.clean_requests += self._store.request_count() - before
            cost.moved_bytes += result.bytes_read + result.bytes_written
            if result.is_put_off:
                continue
            cost.cleans += 1
            cost.dirty_bytes += found.dirty_bytes
            cost.shadowed_bytes += size - manifest.cold_bytes
            cost.upload_requests, waiting = cost.upload_requests + waiting, 0
        cost.seconds = time.perf_counter() - started
        await self._check(manifest)
        self._reader.close()
        return cost

    async def _put(self, keys: Sequence[int]) -> SegmentEntry:
        """Puts the object of one segment, with the requests of an upload. The log part is made when it is read."""
        base, interval = self._end, self._config.index_interval_bytes
        for number, key in enumerate(keys):
            self._last[key] = base + number
        index, builder = IndexBuilder(base, interval), KeysBuilder(self._seed, base, SEGMENT_BYTES)
        size = SEGMENT_BYTES // SEGMENT_BATCHES
        for number in range(SEGMENT_BATCHES):
            index.add_batch(number * size, size, base + (number + 1) * BATCH_RECORDS - 1, 0)
        index.finish()
        builder.add(encode_segment(base, keys, b""))
        self._end, self._puts = base + len(keys), self._puts + 1
        facts = SegmentFacts(base, self._end, 0, 0, len(keys), SEGMENT_BYTES, 0)
        lineage = ((0, 0),)
        trailer, refs = build_trailer(
            PID, 0, facts,
            {
                SectionKind.OFFSET_INDEX: bytes(index.offsets),
                SectionKind.TIME_INDEX: bytes(index.times),
                SectionKind.PRODUCERS: ProducerStates().encode_snapshot(),
                SectionKind.LINEAGE: encode_lineage(lineage),
                SectionKind.KEYS: builder.finish(SEGMENT_BYTES, base),
            },
        )  # fmt: skip
        name = segment_key(PID, base, 0, f"{self._puts:032x}")
        self._objects.uploaded[name] = base, array("q", keys)
        await self._store.upload(name, [trailer])
        got = await self._store.get(name, SEGMENT_BYTES, len(trailer))
        assert isinstance(got, GetResult) and got.data == trailer and got.size == SEGMENT_BYTES + len(trailer)
        self._tails.keep(name, trailer)
        return SegmentEntry(
            key=name, base_offset=base, next_offset=self._end, leader_epoch=0, lineage=lineage, base_timestamp=0,
            max_timestamp=0, record_count=len(keys), log_bytes=SEGMENT_BYTES, log_crc=0,
            object_bytes=SEGMENT_BYTES + len(trailer), sections=refs, uploaded_ms=0,
        )  # fmt: skip

    async def _add(self, manifest: Manifest, entries: Sequence[SegmentEntry], *, is_clean: bool = False) -> Manifest:
        def change(current: Manifest, _: Submanifests) -> Manifest:
            for each in entries:
                current = current.add(each)
            clean_to = current.cold_end_offset if is_clean else current.clean_to
            return replace(current, key_seed=self._seed.hex(), clean_to=clean_to, cleaned_ms=max(current.cleaned_ms, 0))

        return await self._manifests.change(PID, manifest.topic, 0, change)

    async def _check(self, manifest: Manifest) -> None:
        """Checks that the bucket says to have the last record of each key."""
        there = set[int]()
        async for entry in self._manifests.list_segments(manifest):
            keys = await self._reader.read_keys(entry)
            assert keys is not None
            there.update(entry.base_offset + offset for *_, offset in struct.iter_unpack(ROW, keys.rows))
        assert there.issuperset(self._last)


ROW = f">{KEY_ROW_BYTES - 4}sI"


def main() -> list[Figure]:
    figures: list[Figure] = []
    for same_keys, ratio, days in ((True, 0.05, 40), (False, 0.05, 60)):
        topic = SimulatedTopic(same_keys=same_keys, dirty_ratio=ratio)
        asyncio.run(topic.fill())
        cost = asyncio.run(topic.run(days))
        which = "the same keys" if same_keys else "keys at random"
        text = f"1 % a day of {which}, dirty ratio {ratio}"
        figures += [
            Figure(
                f"bytes read and written for each dirty and each shadowed byte, {text}",
                cost.moved_bytes / (cost.dirty_bytes + cost.shadowed_bytes), "", 1, at_most=True,
                note=f"{cost.moved_bytes / cost.dirty_bytes:.2f} per dirty byte; {cost.cleans} cleans of "
                f"{cost.dirty_bytes / (1 << 30):.0f} GiB; at most "
                f"{cost.largest / SEGMENTS / SEGMENT_BYTES:.2f} times the last records are in the bucket",
            ),
            Figure(
                f"requests of cleans per request of uploads, {text}",
                cost.clean_requests / max(cost.upload_requests, 1), "", 0.15, at_most=True,
                note=f"{cost.clean_requests} and {cost.upload_requests}; {cost.seconds:.0f} s",
            ),
        ]  # fmt: skip
    return figures
