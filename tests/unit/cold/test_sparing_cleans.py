"""Tests of cleans in the bucket that leave segments alone of which little is superseded."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import pytest

from tests.sim.harness.disk import SimDisk
from tests.unit.cold.rig import PID, Broker, Rig
from tests.unit.cold.test_cold_cleaner import check_bucket, clean, filled, last_of_each, read, run, upload
from tests.unit.hot.cleaning import facts, put, read_all
from tests.unit.hot.fixtures import NOW, append, config, open_log
from tests.unit.hot.transactions import TransactionWriter
from tiered.cold.layout import SectionKind
from tiered.cold.manifest import Manifest
from tiered.cold.reader import ColdReader
from tiered.compaction.request_budget import WAIT_MAX_MS
from tiered.config.settings import LONG_MAX, TopicConfig
from tiered.errors import Unavailable
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_cleaning import LogChanged
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.records import compression, pieces
from tiered.records.batch import decode_header, encode_batch
from tiered.records.model import Codec
from tiered.records.native import walk

SETTINGS = config(cleanup_policy=("compact",), segment_bytes=2048)
ONE_SEGMENT = config(cleanup_policy=("compact",), segment_bytes=1 << 20)
HOT_KEYS, COLD_KEYS = 4, 60


async def written(broker: Broker) -> tuple[DiskLog, Manifest]:
    """Returns a log that is clean in the bucket, with a record of each cold key."""
    log = await open_log(SimDisk(random.Random(1)), config(segment_bytes=1024))
    write(log, [f"cold{number}" for number in range(COLD_KEYS)], "first")
    manifest = await upload_keyed(broker, log)
    assert broker.cleaner is not None
    return log, (await clean(broker.cleaner, manifest, settings=SETTINGS)).manifest


def write(log: DiskLog, keys: list[str], value: str) -> None:
    for key in keys:
        put(log, key, value)
    log.roll()


async def upload_keyed(broker: Broker, log: DiskLog) -> Manifest:
    return await broker.upload_all(log, 1, with_keys=True)  # type: ignore[arg-type]


def test_segments_of_which_little_is_superseded_stay_as_they_are() -> None:
    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        broker.make_cleaner()
        log, manifest = await written(broker)
        cold = [each.key for each in manifest.entries]
        assert broker.cleaner is not None and len(cold) > 2
        for number in range(8):
            write(log, [f"hot{key}" for key in range(HOT_KEYS)] * 3 + [f"cold{number}"], f"v{number}")
            manifest = await upload_keyed(broker, log)
            result = await clean(broker.cleaner, manifest, settings=SETTINGS)
            manifest = result.manifest
            assert result.is_whole
            assert (await broker.cleaner.find_cleanable(manifest, SETTINGS, NOW)).dirty_bytes == 0
        assert [each.key for each in manifest.entries][: len(cold)] == cold
        assert manifest.segment_count < len(cold) + 8 and manifest.clean_to < manifest.cold_end_offset
        before = facts(await broker.read_all())
        hot = [each for each in before if each[1].startswith("hot")]
        assert len(hot) < 8 * HOT_KEYS * 3 / 2
        assert set(last_of_each(before)) <= set(before)
        successor = rig.broker("successor")
        again = await successor.take_over(2)
        dirty = await successor.make_cleaner().find_cleanable(again, SETTINGS, NOW)
        assert dirty.first_dirty == manifest.clean_to and dirty.dirty_bytes, "it looks again"
        await check_bucket(rig, broker, manifest)

    run(scenario)


def test_cheap_clean_reads_the_log_of_no_segment_that_stays() -> None:
    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        broker.make_cleaner()
        log, manifest = await written(broker)
        assert broker.cleaner is not None
        write(log, ["hot"] * 12, "v")
        manifest = await upload_keyed(broker, log)
        stay = [each.log_bytes for each in manifest.entries[:-1]]
        result = await clean(broker.cleaner, manifest, settings=SETTINGS, local=log)
        assert 0 < result.bytes_read < sum(stay) / 2 and result.records_kept == 1
        assert result.manifest.clean_to == result.manifest.cold_end_offset, "keys apply to all older segments"

    run(scenario)


def test_clean_by_the_uploader_reads_no_section_and_no_manifest() -> None:
    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        broker.make_cleaner()
        log, manifest = await written(broker)
        assert broker.cleaner is not None
        write(log, ["hot"] * 12, "v")
        manifest = await upload_keyed(broker, log)
        before = dict(broker.store.calls)
        result = await clean(broker.cleaner, manifest, settings=SETTINGS, local=log)
        made = {verb: count - before[verb] for verb, count in broker.store.calls.items() if count != before[verb]}
        assert result.manifest.clean_to == result.manifest.cold_end_offset
        assert made == {"upload": 1, "get": 1, "put": 1}, "an object, the check of its end, and the manifest"
        fresh = rig.broker("successor")
        again = await fresh.take_over(2)
        write(log, ["hot"] * 12, "v")
        again = await fresh.upload_all(log, 2, with_keys=True)  # type: ignore[arg-type]
        assert (await clean(fresh.make_cleaner(), again, settings=SETTINGS, local=log)).is_whole
        assert all(fresh.tails.find(each.key) for each in (await fresh.take_over(2)).entries), "read once"

    run(scenario)


def test_clean_waits_for_uploads_until_it_is_worth_its_requests() -> None:
    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        cleaner = broker.make_cleaner()
        log, manifest = await written(broker)
        waited = 0
        for number in range(20):
            write(log, ["hot"] * 12, f"v{number}")
            manifest = await upload_keyed(broker, log)
            found = await cleaner.find_cleanable(manifest, SETTINGS, NOW)
            assert found.dirty_segments == number + 1
            if cleaner.is_put_off(manifest, found, NOW, 0.15):
                waited += 1
                continue
            calls = sum(broker.store.calls.values())
            result = await clean(cleaner, manifest, settings=SETTINGS, local=log, request_share=0.15)
            if not result.is_put_off:
                break
            assert sum(broker.store.calls.values()) == calls and result.manifest == manifest, "a look is free"
        requests = sum(broker.store.calls.values()) - calls + 1
        assert result.is_whole and requests <= 0.15 * 4 * found.dirty_segments and found.dirty_segments < 10 and waited
        assert not cleaner.is_put_off(result.manifest, found, NOW, 0.15)

    run(scenario)


@pytest.mark.parametrize("why", ["requested", "old", "overdue", "other share"])
def test_clean_that_was_put_off_comes_at_once(why: str) -> None:
    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        cleaner = broker.make_cleaner()
        log, manifest = await written(broker)
        write(log, ["hot"] * 12, "v")
        manifest = await upload_keyed(broker, log)
        assert (await clean(cleaner, manifest, settings=SETTINGS, request_share=0.15)).is_put_off
        found = await cleaner.find_cleanable(manifest, SETTINGS, NOW)
        assert cleaner.is_put_off(manifest, found, NOW, 0.15)
        now, settings, share = NOW, SETTINGS, 0.15
        if why == "requested":
            cleaner.request_thorough(PID)
        elif why == "old":
            now += WAIT_MAX_MS + 1
        elif why == "overdue":
            now, settings = NOW + 2000, replace(SETTINGS, max_compaction_lag_ms=1000)
            found = await cleaner.find_cleanable(manifest, settings, now)
        else:
            share = 10.0
        assert not cleaner.is_put_off(manifest, found, now, share)
        result = await clean(cleaner, manifest, settings=settings, now=now, request_share=share)
        assert result.is_whole and not result.is_put_off and result.manifest.clean_to == manifest.cold_end_offset

    run(scenario)


@pytest.mark.parametrize("ends_dead", [False, True])
def test_objects_of_which_no_record_stays_are_not_read(ends_dead: bool) -> None:
    """But for the last batch of a run, and for the last sequence of a producer."""

    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        cleaner = broker.make_cleaner()
        log, _ = await written(broker)
        first = log.end_offset
        groups = [[f"{letter}{number}" for number in range(12)] for letter in "abc"]
        for keys in [*groups, *([] if ends_dead else [["stays", *groups[0][1:]]])]:
            for number, key in enumerate(keys):
                put(log, key, "v", producer=7 if (key, number) == ("b3", 3) else -1)
            log.roll()
        end = log.end_offset
        for keys in groups:
            write(log, keys, "newest")
        log.producers.on_high_watermark(log.end_offset)
        manifest = await upload_keyed(broker, log)
        before = facts(await broker.read_all())
        sections = [await broker.reader.read_keys(each) for each in manifest.entries]
        rows = sum(len(each.rows) for each in sections if each is not None)
        old = [each for each in manifest.entries if first <= each.base_offset < end]
        assert [each.base_offset - first for each in old] == [0, 12, 24, 36][: len(old)]
        result = await clean(cleaner, manifest, settings=replace(SETTINGS, segment_bytes=1 << 13))
        assert result.is_whole and [each.base_offset for each in result.manifest.entries].count(first) == 1
        is_read = old[1].log_bytes + (old[2].log_bytes // 12 if ends_dead else old[3].log_bytes)
        assert rows + is_read - 12 <= result.bytes_read <= rows + is_read + 12
        data = await rig.broker("reader").read_all()
        assert facts(data) == last_of_each(before)
        kept = [each.last_offset for each in walk(data).batches if first <= each.base_offset < end]
        assert kept == [first + 12 + 3, first + 35 if ends_dead else first + 36, *([] if ends_dead else [end - 1])]
        await check_bucket(rig, broker, result.manifest)

    run(scenario)


async def split(broker: Broker) -> tuple[DiskLog, Manifest]:
    """Returns a log of one segment that a clean took to several objects. The first one has no batch at its end, 25."""
    log = await open_log(SimDisk(random.Random(1)), config(segment_bytes=1 << 20))
    for number in range(40):
        put(log, f"k{number}", "v" * 20)
        put(log, "dup", f"{number}")
    log.roll()
    cleaner, manifest = broker.make_cleaner(object_bytes=1200), await upload_keyed(broker, log)
    manifest = (await clean(cleaner, manifest, settings=ONE_SEGMENT)).manifest
    offsets = [each[0] for each in await read(broker)]
    assert len(manifest.entries) > 2 and manifest.entries[0].next_offset == 26 and 24 in offsets and 25 not in offsets
    return log, manifest


def test_dead_object_that_ends_without_a_batch_is_replaced() -> None:
    """Once, its clean failed, as no batch was there to read."""

    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        log, before = await split(broker)
        assert broker.cleaner is not None
        write(log, [each[1] for each in await read(broker) if each[0] < 26], "new")
        result = await clean(broker.cleaner, await upload_keyed(broker, log), settings=ONE_SEGMENT)
        first = result.manifest.entries[0]
        assert result.is_whole and first.key != before.entries[0].key and first.record_count == 0
        assert await read(rig.broker("reader")) == last_of_each(facts(read_all(log, 0)))
        await check_bucket(rig, broker, result.manifest)

    run(scenario)


def test_object_whose_last_batch_is_below_the_log_start_stays() -> None:
    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        log, manifest = await split(broker)
        assert broker.cleaner is not None
        write(log, ["k30"], "new")
        await broker.collector.advance_start(manifest, 1, 25)
        manifest = await upload_keyed(broker, log)
        broker.cleaner.request_thorough(PID)
        result = await clean(broker.cleaner, manifest, settings=ONE_SEGMENT)
        assert result.is_whole and result.clean_to == log.end_offset
        assert result.manifest.entries[0] == manifest.entries[0] and result.manifest.entries[1:] != manifest.entries[1:]
        assert await read(rig.broker("reader"), 26) == last_of_each(facts(read_all(log, 26)))
        await check_bucket(rig, broker, result.manifest)

    run(scenario)


@pytest.mark.parametrize("is_committed", [False, True])
def test_read_at_an_object_without_records_returns_the_records_after_it(is_committed: bool) -> None:
    """librdkafka takes a reply without records for a message that is too large, and other clients wait for ever."""

    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        cleaner = broker.make_cleaner()
        log, _ = await written(broker)
        first = log.end_offset
        write(log, [f"a{number}" for number in range(12)], "v")
        write(log, [f"b{number}" for number in range(12)], "v")
        end = log.end_offset
        for letter in "ab":
            write(log, [f"{letter}{number}" for number in range(12)], "newest")
        manifest = (await clean(cleaner, await upload_keyed(broker, log), settings=SETTINGS)).manifest
        empty = [each for each in manifest.entries if each.base_offset >= first and not each.record_count]
        assert empty and empty[0].base_offset == first and empty[-1].next_offset == end, "no record of them stays"
        reader = rig.broker("reader").reader
        for offset in range(first, end):
            found = walk(await _read(reader, manifest, offset, is_committed)).batches
            assert [each.base_offset for each in found][:1] == [end] and all(each.count for each in found)
        alone = replace(
            manifest, nodes=tuple(each for each in manifest.nodes if each.base_offset < end), cold_end_offset=end
        )
        found = walk(await _read(reader, alone, first, is_committed)).batches
        assert found[-1].last_offset == end - 1 and not found[-1].count, "nothing comes after it"
        for newer in (manifest, None):
            await _read(reader, alone, first - 1, is_committed)
            found = walk(await _read(reader, newer, first, is_committed)).batches
            assert found[0].base_offset == end and found[0].count, "the kept stream has an older manifest"

    run(scenario)


async def _read(reader: ColdReader, manifest: Manifest | None, offset: int, is_committed: bool) -> bytes:
    if is_committed:
        return (await reader.read_committed(PID, manifest, offset, 1 << 20))[0]
    return await reader.read(PID, manifest, offset, 1 << 20)


def test_tombstone_and_marker_stay_while_older_segments_need_them() -> None:
    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        cleaner = broker.make_cleaner()
        log, manifest = await written(broker)
        writer = TransactionWriter(log)
        open_offset = writer.write(3, key=b"transactional")
        write(log, [f"warm{number}" for number in range(10)], "v")
        hot = [f"hot{number}" for number in range(12)] * 2
        tombstone, marker = put(log, "cold1", None), writer.end(3, commit=True)
        write(log, hot, "v")
        log.producers.on_high_watermark(log.end_offset)
        merging = replace(SETTINGS, segment_bytes=1 << 13)
        for number in range(4):
            manifest = await upload_keyed(broker, log)
            now = NOW + number * 2 * SETTINGS.delete_retention_ms
            manifest = (await clean(cleaner, manifest, settings=merging, now=now)).manifest
            write(log, hot, f"v{number}")
        data = await rig.broker("reader").read_all()
        seen = {each[0]: each[1:] for each in facts(data)}
        assert seen[1] == ("cold1", "first") and seen[tombstone] == ("cold1", None)
        assert seen[open_offset][0] == "transactional" and marker in markers_of(data)
        written_again = next(each for each in manifest.entries if each.base_offset <= tombstone < each.next_offset)
        assert written_again.cleaned_ms >= NOW + 2 * SETTINGS.delete_retention_ms, "another clean wrote it again"
        for number, left in enumerate([[(tombstone, "cold1", None)], []]):
            cleaner.request_thorough(PID)
            write(log, ["hot0"], f"last{number}")
            manifest = await upload_keyed(broker, log)
            now = NOW + (10 + number) * SETTINGS.delete_retention_ms
            await clean(cleaner, manifest, settings=SETTINGS, now=now)
            data = await rig.broker(f"later{number}").read_all()
            assert [each for each in facts(data) if each[1] == "cold1"] == left and marker in markers_of(data)

    run(scenario)


def test_reader_of_a_value_gets_its_tombstone_for_delete_retention_ms() -> None:
    """The sparing clean that met the tombstone left the value where it was. A thorough clean takes it, and only then
    the time of the tombstone begins."""

    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        cleaner = broker.make_cleaner()
        log, manifest = await written(broker)
        hot = [f"hot{number}" for number in range(12)] * 2
        tombstone = put(log, "cold1", None)
        write(log, hot, "v")
        merging = replace(SETTINGS, segment_bytes=1 << 13)
        for number in range(2):
            manifest = await upload_keyed(broker, log)
            manifest = (await clean(cleaner, manifest, settings=merging)).manifest
            write(log, hot, f"v{number}")
        later = NOW + 2 * SETTINGS.delete_retention_ms
        assert (1, "cold1", "first") in facts(await rig.broker("reader").read_all())
        waits = [0, SETTINGS.delete_retention_ms - 1, SETTINGS.delete_retention_ms]
        for number, (wait_ms, stays) in enumerate(zip(waits, [True, True, False], strict=True)):
            cleaner.request_thorough(PID)
            write(log, ["hot0"], f"last{number}")
            manifest = await upload_keyed(broker, log)
            manifest = (await clean(cleaner, manifest, settings=SETTINGS, now=later + wait_ms)).manifest
            seen = [each for each in facts(await rig.broker(f"reader{number}").read_all()) if each[1] == "cold1"]
            assert seen == ([(tombstone, "cold1", None)] if stays else []), wait_ms

    run(scenario)


def test_marker_below_the_mark_stays_for_records_in_an_older_segment() -> None:
    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        cleaner = broker.make_cleaner()
        log, _ = await written(broker)
        writer, hot = TransactionWriter(log), [f"hot{number}" for number in range(12)]
        offset = writer.write(3, key=b"transactional")
        write(log, [f"warm{number}" for number in range(10)], "v")
        marker = writer.end(3, commit=True)
        write(log, hot, "v")
        log.producers.on_high_watermark(log.end_offset)
        cleaner.request_thorough(PID)
        apart = replace(SETTINGS, segment_bytes=1024)
        manifest = (await clean(cleaner, await upload_keyed(broker, log), settings=apart)).manifest
        assert manifest.clean_to == manifest.cold_end_offset > marker
        merging = replace(SETTINGS, segment_bytes=1 << 13)
        for number in range(1, 5):
            write(log, hot, f"v{number}")
            manifest = await upload_keyed(broker, log)
            now = NOW + number * 2 * SETTINGS.delete_retention_ms
            manifest = (await clean(cleaner, manifest, settings=merging, now=now)).manifest
        data = await rig.broker("reader").read_all()
        assert (offset, "transactional") in [each[:2] for each in facts(data)] and marker in markers_of(data)

    run(scenario)


@pytest.mark.parametrize("how", ["asked for", "with an age"])
def test_thorough_clean_applies_all_keys(how: str) -> None:
    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        broker.make_cleaner()
        log, manifest = await written(broker)
        assert broker.cleaner is not None
        write(log, ["cold1"], "second")
        manifest = (await clean(broker.cleaner, await upload_keyed(broker, log), settings=SETTINGS)).manifest
        assert len(await read(rig.broker("r1"))) == COLD_KEYS + 1
        settings = SETTINGS
        if how == "asked for":
            broker.cleaner.request_thorough(PID)
        else:
            settings = config(cleanup_policy=("compact",), segment_bytes=2048, max_compaction_lag_ms=LONG_MAX - 1)
        result = await clean(broker.cleaner, manifest, settings=settings)
        assert result.clean_to == result.manifest.cold_end_offset
        assert len(await read(rig.broker("r2"))) == COLD_KEYS

    run(scenario)


def test_log_with_more_keys_than_the_map_is_cleaned_by_its_half() -> None:
    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        cleaner = broker.make_cleaner()
        log, manifest = await written(broker)
        clean_to = manifest.clean_to
        for number in range(4):
            write(log, [f"cold{key}" for key in range(COLD_KEYS // 3)], f"v{number}")
            manifest = await upload_keyed(broker, log)
            result = await clean(cleaner, manifest, settings=SETTINGS, memory=12 * 24)
            manifest = result.manifest
            above = sum(each.log_bytes for each in manifest.entries if each.next_offset > clean_to)
            assert result.is_whole and (manifest.clean_to > clean_to or above <= manifest.cold_bytes / 2)
        assert manifest.clean_to > clean_to

    run(scenario)


def test_objects_without_keys_get_them_in_the_next_clean() -> None:
    """An older program uploaded and cleaned them. It dropped the seed of the keys, too."""

    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        broker.make_cleaner()
        log = await filled()
        assert broker.cleaner is not None
        manifest = (await clean(broker.cleaner, await upload(broker, log), settings=SETTINGS)).manifest
        for number in range(COLD_KEYS):
            put(log, f"cold{number}", "v")
        log.roll()
        manifest = (await clean(broker.cleaner, await upload(broker, log), settings=SETTINGS)).manifest
        write(log, ["k1"], "last")
        manifest = (await clean(broker.cleaner, await upload(broker, log), settings=SETTINGS)).manifest
        assert all(any(ref.kind == SectionKind.KEYS for ref in each.sections) for each in manifest.entries)
        seen = await read(rig.broker("reader"))
        assert len(last_of_each(seen)) == 5 + COLD_KEYS and len(seen) <= 6 + COLD_KEYS

    run(scenario)


def test_clean_of_a_log_that_changed_ends_while_it_reads_keys() -> None:
    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        cleaner = broker.make_cleaner()
        log, _ = await written(broker)
        write(log, ["cold1"], "second")
        manifest = await upload_keyed(broker, log)

        async def resign() -> None:
            raise LogChanged

        with pytest.raises(LogChanged):
            await clean(cleaner, manifest, settings=SETTINGS, on_step=resign)
        assert (await cleaner.find_cleanable(manifest, SETTINGS, NOW)).dirty_bytes > 0

    run(scenario)


def test_deposed_leader_forgets_how_far_it_looked() -> None:
    async def scenario(rig: Rig) -> None:
        broker = rig.broker()
        broker.make_cleaner()
        log, manifest = await written(broker)
        assert broker.cleaner is not None
        write(log, ["cold1"], "second")
        manifest = (await clean(broker.cleaner, await upload_keyed(broker, log), settings=SETTINGS)).manifest
        assert (await broker.cleaner.find_cleanable(manifest, SETTINGS, NOW)).dirty_bytes == 0
        broker.cleaner.forget(PID)
        assert (await broker.cleaner.find_cleanable(manifest, SETTINGS, NOW)).dirty_bytes > 0

    run(scenario)


@pytest.mark.parametrize("seed", [0, 3, 12])
def test_any_writes_and_cleans_keep_last_records_and_bring_none_back(seed: int) -> None:
    write_and_clean(seed, 0, nullcontext)


@pytest.mark.parametrize("seed", [0, 9, 23])
def test_batches_too_large_to_open_stay_and_bring_none_back(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller bound for the cleaner than for the readers here makes some batches too large for it alone."""

    @contextmanager
    def bound() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(pieces, "RATIO_FROM", 1)
            patch.setattr(pieces, "RATIO_MAX", 0)
            patch.setattr(pieces, "PIECE_BYTES", 60)
            patch.setattr(compression, "PIECE_BYTES", 60)
            patch.setattr(pieces, "RECORD_BYTES_MAX", 200)
            yield

    write_and_clean(seed, 0.06, bound)


def write_and_clean(seed: int, large_share: float, bound: Callable[[], AbstractContextManager[None]]) -> None:
    """Writes, uploads and cleans in turn, and judges the bucket after each turn. `bound` holds while a broker works."""

    async def scenario(rig: Rig) -> None:
        rng, log = random.Random(seed), await open_log(SimDisk(random.Random(1)), config(segment_bytes=1024))
        large_rng, large = random.Random(seed), set[int]()
        broker, writer = rig.broker(), TransactionWriter(log)
        cleaner = broker.make_cleaner(object_bytes=3000)
        settings: TopicConfig = config(cleanup_policy=("compact",), segment_bytes=4096, delete_retention_ms=1000)
        raw: list[tuple[int, str, str | None]] = []
        unopened: list[str] = []
        for number in range(14):
            for step in range(rng.randrange(5, 40)):
                key = f"k{min(rng.randrange(40), rng.randrange(40))}"
                if rng.random() < 0.2:
                    raw.append((writer.write(rng.randrange(3), key=key.encode()), key, "v" * 40))
                elif writer.open and rng.random() < 0.4:
                    writer.end(rng.choice(list(writer.open)), commit=rng.random() < 0.6)
                else:
                    value = None if rng.random() < 0.15 else f"{number}.{step}" * rng.randrange(1, 9)
                    raw.append((put(log, key, value), key, value))
                if large_rng.random() < large_share:
                    value = f"{number}.{step}" * 80
                    batch = encode_batch([(NOW, key.encode(), value.encode(), ())], codec=Codec.ZSTD)
                    raw.append((append(log, bytearray(batch)).base_offset, key, value))
                    large.add(raw[-1][0])
            for producer in list(writer.open):
                writer.end(producer, commit=rng.random() < 0.6)
            log.roll()
            log.producers.on_high_watermark(log.end_offset)
            with bound():
                manifest = await broker.upload_all(log, 1, with_keys=rng.random() < 0.9)  # type: ignore[arg-type]
            if rng.random() < 0.2:
                cleaner.forget(PID)
            if rng.random() < 0.15:
                broker.fail(FaultRule(FaultKind.ERROR, ("put",), skip=rng.randrange(3), times=1))
            local = log if rng.random() < 0.5 else None
            memory = rng.choice([20 * 24, 1 << 16])
            now = NOW + number * 600
            try:
                with bound():
                    result = await clean(cleaner, manifest, settings=settings, now=now, local=local, memory=memory)
                manifest = result.manifest
                unopened.append(result.unopened)
            except Unavailable:
                broker.fail()
                manifest = await cleaner.settle(await broker.take_over(1), 1)
            broker.fail()
            await check_state(rig.broker(f"reader{number}"), raw, writer, manifest, large)
        assert any(unopened) == bool(large)
        await check_bucket(rig, broker, manifest)

    run(scenario, seed)


def markers_of(data: bytes) -> set[int]:
    """Returns the offsets of the markers in whole batches."""
    found, at = set[int](), 0
    while at < len(data):
        head = decode_header(data, at)
        found |= {head.base_offset} if head.is_control and head.count else set()
        at += head.size
    return found


async def check_state(
    broker: Broker,
    raw: list[tuple[int, str, str | None]],
    writer: TransactionWriter,
    manifest: Manifest,
    large: Collection[int],
) -> None:
    data = await broker.read_all()
    aborted = {offset for each in writer.ended if not each.commit for offset in each.offsets}
    seen, markers = facts(data), markers_of(data)
    offsets = {each[0] for each in seen}
    for transaction in writer.ended:
        if offsets & set(transaction.offsets):
            assert transaction.marker_offset in markers, "a marker goes after the records of its transaction"
    committed = [each for each in raw if each[0] not in aborted]
    assert set(seen) <= set(raw) and offsets.issuperset(large)
    latest = {key: (offset, key, value) for offset, key, value in committed}
    there = [each for each in seen if each[0] not in aborted]
    for key, last in latest.items():
        kept = [each for each in there if each[1] == key]
        assert last in kept or (last[2] is None and not kept), (key, last, kept)
    below = [each[1] for each in there if each[0] < manifest.clean_to and each[0] not in large]
    assert len(below) == len(set(below)), "keys below the mark are applied"
