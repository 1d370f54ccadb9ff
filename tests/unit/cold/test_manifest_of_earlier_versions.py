"""Tests of cold segments of earlier versions, whose headers and manifest entries do not say how late their records
are: look-ups by time, retention and cleans."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from tests.scenario import in_rig
from tests.sim.harness.disk import SimDisk
from tests.unit.cold.rig import PID, TOPIC, Broker, Rig, Segment, entry, manifest
from tests.unit.cold.test_cleaner import clean
from tests.unit.hot.fixtures import config, open_log
from tests.unit.hot.test_time_lookup_of_earlier_versions import put_old
from tests.unit.hot.test_validation_of_timestamps import made, with_header
from tiered.cold.manifest import Manifest, SegmentEntry, Submanifests
from tiered.cold.planner import Expiry, find_expiry, may_expire
from tiered.cold.reader import LOOKUP_BYTES
from tiered.hot.time_lookup import NO_TIMESTAMP, TimeLookups
from tiered.records.batch import decode_header, decode_records, encode_batch, set_append_time, stamp
from tiered.records.model import Codec
from tiered.records.native import walk

NOW = 1_700_000_000_000


def write(rig: Rig, batches: Sequence[bytearray]) -> Segment:
    """Adds a closed segment of these batches, which get the next offsets."""
    at = rig.log.files[-1].next_offset if rig.log.files else 0
    for data in batches:
        stamp(data, 0, at, 1)
        at = walk(data).batches[0].last_offset + 1
    return rig.log.write([bytes(data) for data in batches], at)


async def upload_as_before(broker: Broker, rig: Rig) -> Manifest:
    """Uploads all segments. Each entry names timestamps as the headers have them, as entries of earlier versions do."""
    now = await broker.take_over(1)
    for segment in rig.log.segments.closed():
        batches = walk(rig.log.content(segment)).batches
        first, newest = batches[0].base_timestamp, max(each.max_timestamp for each in batches)
        now = await broker.uploader.upload_next(rig.log, now, 1, segment.next_offset) or now

        now = await broker.manifests.change(PID, TOPIC, 1, partial(_rename_times, first, newest))
    return now


def _rename_times(first: int, newest: int, current: Manifest, _: Submanifests) -> Manifest:
    last = current.nodes[-1]
    assert isinstance(last, SegmentEntry)
    renamed = replace(last, base_timestamp=first, max_timestamp=newest)
    return replace(current, nodes=(*current.nodes[:-1], renamed))


def _delete_below(offset: int, current: Manifest, opened: Submanifests) -> Manifest:
    return current.advance_start(offset, opened)


async def compare(broker: Broker, rig: Rig, now: Manifest, moments: Sequence[int]) -> None:
    """Compares look-ups by time, and by the greatest timestamp, with the list of all live records."""
    data, start, end = rig.log.all_bytes, now.log_start_offset, now.cold_end_offset
    written = [record for found in walk(data).batches for record in decode_records(data, found.position)]
    rows = [(each.offset, each.timestamp, 1) for each in written if each.offset >= start]
    for moment in moments:
        first = next((row for row in rows if row[1] >= moment), None)
        assert await broker.reader.offset_for_timestamp(PID, moment, manifest=now) == first, (moment, start)
    newest = await broker.reader.find_max_timestamp(PID, now, end, 1 << 62, TimeLookups())
    assert newest == max(row[1] for row in rows)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@in_rig(Rig)
async def test_cold_records_with_unset_headers_are_found_by_time(rig: Rig, *, codec: Codec) -> None:
    for at in range(NOW, NOW + 480, 30):
        write(rig, [made([ms, ms + 7, ms + 3], codec, newest=-1) for ms in range(at, at + 30, 10)])
    broker = rig.broker(fan=2)
    now = await upload_as_before(broker, rig)
    assert {node.max_timestamp for node in now.nodes} == {-1} and now.submanifests
    for start in (0, 20):
        now = await broker.manifests.change(PID, TOPIC, 1, partial(_delete_below, start))
        await compare(rig.broker("reader", fan=2), rig, now, range(NOW - 2, NOW + 500))


def test_unset_cold_segments_before_and_between_others_are_found_by_time() -> None:
    """The broker was replaced by one of this version, or producers of both kinds took turns."""
    for seed in range(60):
        rng, rig, now_ms = random.Random(seed), Rig(seed), NOW
        upgrade = rng.choice((9, rng.randrange(30)))
        for number in range(rng.randrange(1, 30)):
            batches = []
            for _ in range(rng.randrange(1, 6)):
                times = [now_ms, *(now_ms + rng.randrange(10) for _ in range(rng.randrange(4)))]
                is_unset = number < upgrade and (upgrade == 9 or rng.random() < 0.6)
                batches.append(made(times, rng.choice(list(Codec)), newest=-1 if is_unset else None))
                now_ms += 10
                if number < upgrade:  # within a segment all producers are of one kind
                    batches = batches[-1:]
            write(rig, batches)

        async def scenario(rig: Rig = rig, rng: random.Random = rng, end: int = now_ms) -> None:
            now = await upload_as_before(rig.broker(fan=2), rig)
            await compare(rig.broker("reader", fan=2), rig, now, [rng.randrange(NOW - 5, end + 5) for _ in range(30)])

        rig.run(scenario)


@in_rig(Rig)
async def test_time_is_found_at_the_end_of_a_large_unset_segment(rig: Rig) -> None:
    batches = [made_with_key("k", NOW + number, size=1_000_000) for number in range((LOOKUP_BYTES >> 20) + 8)]
    write(rig, batches)
    now = await upload_as_before(rig.broker(), rig)
    reader, last = rig.broker("reader", window_bytes=1 << 23).reader, len(batches) - 1
    for at in (0, 66, last):
        assert await reader.offset_for_timestamp(PID, NOW + at, manifest=now) == (at, NOW + at, 1)
    assert await reader.offset_for_timestamp(PID, NOW + last + 1, manifest=now) is None
    assert await reader.find_max_timestamp(PID, now, last + 1, 1 << 62, TimeLookups()) == NOW + last


def test_segment_with_an_unset_batch_is_uploaded_as_unset() -> None:
    for newest in ([None, -1], [-1, None], [0, None], [-1, -1]):
        rig = Rig()
        write(rig, [made([NOW + 10 * n, NOW + 10 * n + 9], newest=each) for n, each in enumerate(newest)])
        write(rig, [made([NOW + 50])])

        async def scenario(rig: Rig = rig) -> None:
            broker = rig.broker()
            now = await broker.upload_all(rig.log, 1)
            assert [node.max_timestamp for node in now.nodes] == [NO_TIMESTAMP, NOW + 50]
            await compare(broker, rig, now, range(NOW - 1, NOW + 60))

        rig.run(scenario)


@pytest.mark.parametrize("is_old", [False, True])
def test_segments_without_timestamps_hide_no_unset_ones(is_old: bool) -> None:
    """A producer without a clock took turns with those that leave the greatest timestamp unset."""
    for seed in range(40):
        rng, rig, now_ms = random.Random(seed), Rig(seed), NOW
        for kind in ("unset", *rng.choices(("set", "unset", "none"), k=rng.randrange(13))):
            batches = []
            for _ in range(rng.randrange(1, 4)):
                times = [now_ms, now_ms + rng.randrange(10)]
                batches.append(made([-1] if kind == "none" else times, newest=-1 if kind == "unset" else None))
                now_ms += 10
            write(rig, batches)

        async def scenario(rig: Rig = rig, fan: int = rng.choice((2, 64)), end: int = now_ms) -> None:
            broker = rig.broker(fan=fan)
            now = await (upload_as_before(broker, rig) if is_old else broker.upload_all(rig.log, 1))
            await compare(rig.broker("reader", fan=fan), rig, now, range(NOW - 1, end + 3))

        rig.run(scenario)


@in_rig(Rig)
async def test_unset_batch_after_one_without_a_timestamp_is_found_by_time(rig: Rig) -> None:
    write(rig, [made([-1]), made([NOW, NOW + 5]), made([NOW + 6, NOW + 9], newest=-1)])
    broker = rig.broker()
    now = await broker.upload_all(rig.log, 1)
    assert [(each.base_timestamp, each.is_time_unset) for each in now.entries] == [(NOW, True)]
    await compare(broker, rig, now, range(NOW - 1, NOW + 12))


@pytest.mark.parametrize("base", [-1, NOW])
@in_rig(Rig)
async def test_segment_without_records_at_the_end_hides_no_unset_one(rig: Rig, *, base: int) -> None:
    """Entries of cleaned segments without records have the timestamp of a record that was dropped, or none."""
    for at in (0, 10):
        write(rig, [made([NOW + at, NOW + at + 9], newest=-1)])

    def empty_last(current: Manifest, _: Submanifests) -> Manifest:
        *before, last = current.entries
        return replace(current, nodes=(*before, replace(last, base_timestamp=base, max_timestamp=-1, record_count=0)))

    broker = rig.broker()
    await broker.upload_all(rig.log, 1)
    now = await broker.manifests.change(PID, TOPIC, 1, empty_last)
    assert now.entries[-1].is_timeless
    assert await broker.reader.find_max_timestamp(PID, now, 2, 1 << 62, TimeLookups()) == NOW + 9
    assert await broker.reader.offset_for_timestamp(PID, NOW + 8, manifest=now) == (1, NOW + 9, 1)


@pytest.mark.parametrize("is_old", [False, True])
def test_timestamps_of_a_broker_are_set_though_producers_are_ahead(is_old: bool) -> None:
    """The base timestamp of such a batch is that of the producer."""
    day = 86_400_000
    rig = Rig()
    for at in range(NOW, NOW + 40, 10):
        batches = [made([at + day + ms], newest=at + ms) for ms in range(2)]
        for data in batches:
            set_append_time(data, 0, decode_header(data).max_timestamp)
        write(rig, batches)

    async def scenario() -> None:
        now = await (upload_as_before(rig.broker(), rig) if is_old else rig.broker().upload_all(rig.log, 1))
        assert [segment.base_timestamp - NOW < day for segment in now.entries] == [not is_old] * 4
        assert [segment.newest_ms for segment in now.entries] == [NOW + 1, NOW + 11, NOW + 21, NOW + 31]
        await compare(rig.broker("reader"), rig, now, range(NOW - 1, NOW + 40))

    rig.run(scenario)


class Limits:
    retention_ms = 500
    retention_bytes = -1


@pytest.mark.parametrize("newest", [-1, 0, 6])
def test_segment_that_cannot_be_that_old_ages_from_its_upload(newest: int) -> None:
    """The first record is later than the greatest timestamp that the entry names."""
    segment = replace(entry(10, 20, newest=newest), base_timestamp=7)
    for now_ms, wanted in ((5500, None), (5501, Expiry(20, "retention.ms"))):
        found = find_expiry(
            replace(manifest(segment), log_start_offset=10), 1, Limits(),
            local_bytes_above_cold=0, now_ms=now_ms, submanifests={},
        )  # fmt: skip
        assert found == wanted
        is_due = may_expire(manifest(segment), segment, Limits(), local_bytes_above_cold=0, now_ms=now_ms)
        assert is_due is bool(wanted)


@in_rig(Rig)
async def test_cleaned_segments_with_unset_batches_stay_unset(rig: Rig) -> None:
    log, broker = await open_log(SimDisk(random.Random(1)), config(segment_bytes=300)), rig.broker(fan=2)
    for number, key in enumerate("aaaabcadeafa"):
        batch = made_with_key(key, NOW + 10 * number)
        put_old(log, with_header(batch, newest=NOW + 10 * number) if number % 3 == 1 else batch)
    log.roll()
    now = await broker.upload_all(log, 0)  # type: ignore[arg-type]
    assert {node.max_timestamp for node in now.nodes} == {-1}
    result = await clean(broker.make_cleaner(object_bytes=300), now, settings=config(cleanup_policy=("compact",)))
    assert result.records_kept == 6
    now, data = result.manifest, await broker.read_all()
    heads = {each.base_offset: each for each in walk(data).batches}
    for segment in now.entries:
        inside = [each for at, each in heads.items() if segment.base_offset <= at < segment.next_offset]
        assert segment.is_time_unset is any(each.is_time_unset for each in inside)
    assert any(segment.is_time_unset for segment in now.entries)
    kept = [record for each in walk(data).batches for record in decode_records(data, each.position)]
    for moment in range(NOW - 1, NOW + 120):
        first = next(((each.offset, each.timestamp, 0) for each in kept if each.timestamp >= moment), None)
        assert await broker.reader.offset_for_timestamp(PID, moment, manifest=now) == first, moment


@pytest.mark.parametrize("seed", range(8))
def test_objects_of_one_clean_begin_at_their_own_times(seed: int) -> None:
    """Each had the base timestamp of the first segment in its run, and hid those before it."""
    rng, rig = random.Random(seed), Rig(seed)

    async def scenario() -> None:
        log = await open_log(SimDisk(random.Random(1)), config(segment_bytes=rng.choice((200, 500, 1000))))
        for number in range(30):
            put_old(
                log, made_with_key(rng.choice("abcdefghijklmnopqrstuvwxyz"), NOW + 10 * number, rng.choice((9, 60)))
            )
        log.roll()
        broker, settings = rig.broker(fan=2), config(cleanup_policy=("compact",))
        now = await broker.upload_all(log, 0)  # type: ignore[arg-type]
        now = (await clean(broker.make_cleaner(object_bytes=400), now, settings=settings)).manifest
        data = await broker.read_all()
        kept = [record for each in walk(data).batches for record in decode_records(data, each.position)]
        for moment in range(NOW - 1, NOW + 300, 5):
            first = next(((each.offset, each.timestamp, 0) for each in kept if each.timestamp >= moment), None)
            assert await broker.reader.offset_for_timestamp(PID, moment, manifest=now) == first, moment

    rig.run(scenario)


@in_rig(Rig)
async def test_lag_of_compaction_counts_from_the_upload_of_an_unset_segment(rig: Rig) -> None:
    for number in range(4):
        write(rig, [made([NOW + number], newest=0)])
    broker = rig.broker()
    now = await upload_as_before(broker, rig)
    uploaded_ms = max(each.uploaded_ms for each in now.entries)
    settings = config(cleanup_policy=("compact",), min_compaction_lag_ms=1000)
    cleaner = broker.make_cleaner()
    assert (await cleaner.find_cleanable(now, settings, uploaded_ms + 1000 - 1)).first_uncleanable < 4
    assert (await cleaner.find_cleanable(now, settings, uploaded_ms + 1000)).first_uncleanable == 4


def made_with_key(key: str, ms: int, size: int = 9) -> bytearray:
    return with_header(encode_batch([(ms, key.encode(), b"v" * size, ())]), newest=-1)
