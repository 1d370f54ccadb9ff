"""Tests of the objects that cleans in the bucket put: objects without records, batches that stay, any history."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import pytest

from tests.scenario import run_by
from tests.sim.harness.disk import SimDisk
from tests.unit.cold.rig import PID, Broker, Rig
from tests.unit.cold.test_cleaner import check_bucket, clean, last_of_each, read, run, upload
from tests.unit.hot.cleaning import facts, put, read_all
from tests.unit.hot.fixtures import NOW, append, config, open_log
from tests.unit.hot.transactions import TransactionWriter
from tiered.cold import uploader
from tiered.cold.layout import SectionKind
from tiered.cold.manifest import Manifest
from tiered.cold.reader import ColdReader
from tiered.config.settings import TopicConfig
from tiered.errors import Unavailable
from tiered.hot.disk_log import DiskLog
from tiered.hot.leader_epochs import Lineage
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.records import compression, pieces
from tiered.records.batch import decode_header, encode_batch
from tiered.records.model import Codec
from tiered.records.native import walk

SETTINGS = config(cleanup_policy=("compact",), segment_bytes=2048)
ONE_SEGMENT = config(cleanup_policy=("compact",), segment_bytes=1 << 20)
COLD_KEYS = 60


async def written(broker: Broker) -> tuple[DiskLog, Manifest]:
    """Returns a log that is clean in the bucket, with a record of each cold key."""
    log = await open_log(SimDisk(random.Random(1)), config(segment_bytes=1024))
    write(log, [f"cold{number}" for number in range(COLD_KEYS)], "first")
    manifest = await upload(broker, log)
    assert broker.cleaner is not None
    return log, (await clean(broker.cleaner, manifest, settings=SETTINGS)).manifest


def write(log: DiskLog, keys: list[str], value: str) -> None:
    for key in keys:
        put(log, key, value)
    log.roll()


async def split(broker: Broker) -> tuple[DiskLog, Manifest]:
    """Returns a log of one segment that a clean took to several objects. The first one has no batch at its end, 25."""
    log = await open_log(SimDisk(random.Random(1)), config(segment_bytes=1 << 20))
    for number in range(40):
        put(log, f"k{number}", "v" * 20)
        put(log, "dup", f"{number}")
    log.roll()
    cleaner, manifest = broker.make_cleaner(object_bytes=1200), await upload(broker, log)
    manifest = (await clean(cleaner, manifest, settings=ONE_SEGMENT)).manifest
    offsets = [each[0] for each in await read(broker)]
    assert len(manifest.entries) > 2 and manifest.entries[0].next_offset == 26 and 24 in offsets and 25 not in offsets
    return log, manifest


@run_by(run)
async def test_object_of_which_no_record_stays_is_replaced(rig: Rig) -> None:
    """Once, its clean failed, as no batch was there to read."""
    broker = rig.broker()
    log, before = await split(broker)
    assert broker.cleaner is not None
    write(log, [each[1] for each in await read(broker) if each[0] < 26], "new")
    result = await clean(broker.cleaner, await upload(broker, log), settings=ONE_SEGMENT)
    first = result.manifest.entries[0]
    assert result.is_whole and first.key != before.entries[0].key and first.record_count == 0
    assert await read(rig.broker("reader")) == last_of_each(facts(read_all(log, 0)))
    await check_bucket(rig, broker, result.manifest)


@run_by(run)
async def test_object_whose_last_batch_is_below_the_log_start_stays(rig: Rig) -> None:
    broker = rig.broker()
    log, manifest = await split(broker)
    assert broker.cleaner is not None
    write(log, ["k30"], "new")
    await broker.collector.advance_start(manifest, 1, 25)
    manifest = await upload(broker, log)
    result = await clean(broker.cleaner, manifest, settings=ONE_SEGMENT)
    assert result.is_whole and result.clean_to == log.end_offset
    assert result.manifest.entries[0] == manifest.entries[0] and result.manifest.entries[1:] != manifest.entries[1:]
    assert await read(rig.broker("reader"), 26) == last_of_each(facts(read_all(log, 26)))
    await check_bucket(rig, broker, result.manifest)


@pytest.mark.parametrize("is_committed", [False, True])
@run_by(run)
async def test_read_at_an_object_without_records_returns_the_records_after_it(rig: Rig, *, is_committed: bool) -> None:
    """librdkafka takes a reply without records for a message that is too large, and other clients wait for ever."""
    broker = rig.broker()
    cleaner = broker.make_cleaner()
    log, _ = await written(broker)
    first = log.end_offset
    write(log, [f"a{number}" for number in range(12)], "v")
    write(log, [f"b{number}" for number in range(12)], "v")
    end = log.end_offset
    for letter in "ab":
        write(log, [f"{letter}{number}" for number in range(12)], "newest")
    apart = replace(SETTINGS, segment_bytes=1024)
    manifest = (await clean(cleaner, await upload(broker, log), settings=apart)).manifest
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


async def _read(reader: ColdReader, manifest: Manifest | None, offset: int, is_committed: bool) -> bytes:
    if is_committed:
        return (await reader.read_committed(PID, manifest, offset, 1 << 20))[0]
    return await reader.read(PID, manifest, offset, 1 << 20)


@run_by(run)
async def test_object_with_a_keys_section_is_read_and_cleaned(rig: Rig, *, monkeypatch: pytest.MonkeyPatch) -> None:
    section_bytes = uploader._section_bytes

    def with_keys(sections: uploader.LogSections, lineage: Lineage) -> dict[SectionKind, bytes]:
        return section_bytes(sections, lineage) | {SectionKind.KEYS: b"hashes of keys"}

    broker, log = rig.broker(), await open_log(SimDisk(random.Random(1)), config(segment_bytes=1024))
    write(log, [f"k{number % 5}" for number in range(60)], "v")
    with monkeypatch.context() as patch:
        patch.setattr(uploader, "_section_bytes", with_keys)
        manifest = await upload(broker, log)
    assert all(each.sections[-1].kind == SectionKind.KEYS for each in manifest.entries)
    before = await read(rig.broker("reader"))
    assert before == facts(read_all(log, 0))
    cleaned = (await clean(broker.make_cleaner(), manifest, settings=ONE_SEGMENT)).manifest
    assert await read(rig.broker("later")) == last_of_each(before)
    assert all(each.sections[-1].kind == SectionKind.LINEAGE for each in cleaned.entries)


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
            log.producers.txns.on_high_watermark(log.end_offset)
            with bound():
                manifest = await upload(broker, log)
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
