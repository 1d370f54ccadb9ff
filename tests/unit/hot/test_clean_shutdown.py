"""Tests of the entries that a clean stop writes for small logs: a log that opens from its entry equals the log that
opens from its own files."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.scenario import run_by
from tests.seeds import first_seeds
from tests.sim.harness.disk import Op, SimDisk
from tests.sim.harness.durable_logs import judged_disks
from tests.unit.hot.fixtures import (
    DIRECTORY,
    NOW,
    TOPIC_ID,
    FixedClock,
    append,
    batch,
    config,
    disk,
    offset_for_timestamp,
    open_log,
    read_all,
)
from tiered.errors import Corrupt
from tiered.hot import checkpoints
from tiered.hot.clean_shutdown import CleanLogEntry, encode_log
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_recovery import LogRecovery
from tiered.hot.proof_file import Proof, encode, parse, parse_old
from tiered.hot.time_lookup import TimeLookups
from tiered.ids import TopicPartition
from tiered.metrics import Metrics
from tiered.records.native import crc32c, walk

AT = TopicPartition("t", 0)


def run_scenario(scenario: Callable[[SimDisk], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario(disk()))


async def open_from_entry(on: SimDisk, entry: CleanLogEntry) -> DiskLog:
    """Opens the log from the entry of its clean stop."""
    return await DiskLog.open(
        on,
        FixedClock(),
        DIRECTORY,
        config(),
        LogRecovery(same_boot=True, clean=True, clean_entry=entry),
        metrics=Metrics(),
        topic_id=TOPIC_ID,
        name="t-0",
    )  # fmt: skip


async def close_and_make_entry(on: SimDisk, batches: int) -> CleanLogEntry | None:
    """Returns the entry of a log with this many batches after its clean stop. None if the log is too large for an
    entry."""
    log = await open_log(on)
    for number in range(batches):
        append(log, batch(number), epoch=3)
    await log.close_clean()
    return log.make_clean_entry(3, False)


def read_file(on: SimDisk, suffix: str) -> bytes:
    opened = on.open(f"{DIRECTORY}/{0:020d}{suffix}")
    return opened.pread(0, opened.size())


@run_by(run_scenario)
async def test_entries_decode_to_what_was_encoded_and_a_flipped_bit_is_refused(on: SimDisk) -> None:
    entry = await close_and_make_entry(on, 2)
    assert entry is not None
    other = entry._replace(has_cold_segments=True, lineage=())
    data = encode(Proof(("one",)), [encode_log(AT, entry), encode_log(TopicPartition("u", 7), other)])
    found = {AT: entry, TopicPartition("u", 7): entry._replace(has_cold_segments=True, lineage=())}
    assert parse(data) == Proof(("one",), clean=found)
    for position in range(len(data)):
        torn = bytearray(data)
        torn[position] ^= 1
        with pytest.raises(Corrupt):
            parse(bytes(torn))


@pytest.mark.parametrize(
    "body", [b"{}x", b'{"version":2}', b'[["t",0,"id"]]', b"[1]", b'[["t",0,"i",0,0,[],[1],"","",0]]']
)
def test_entries_of_another_format_version_are_refused(body: bytes) -> None:
    with pytest.raises(Corrupt):
        parse_old(None, b"%08x\n" % crc32c(body) + body, None)
    body = b'{"incarnations":[],"boot":"","synced":[],"clean":' + body + b"}"
    with pytest.raises(Corrupt):
        parse(b"%08x\n" % crc32c(body) + body)


@run_by(run_scenario)
async def test_log_opened_from_its_entry_writes_the_same_files(on: SimDisk) -> None:
    """Appends the same records in two directories. One log is opened from its entry, the other from its files. Every
    file is the same afterwards."""
    other = disk()
    entry = await close_and_make_entry(on, 5)
    assert entry is not None and await close_and_make_entry(other, 5) == entry
    first, second = await open_from_entry(on, entry), await open_log(other, clean=True)
    assert await offset_for_timestamp(first, NOW, TimeLookups()) == (0, NOW, 3)
    assert await offset_for_timestamp(second, NOW, TimeLookups()) == (0, NOW, 3)
    assert (first.end_offset, first.flushed_offset, first.epochs.lineage) == (5, 5, ((3, 0),))
    for log in (first, second):
        for number in range(5, 60):
            append(log, batch(number), epoch=4)
    assert read_all(first) == read_all(second)
    for log in (first, second):
        await log.close_clean()
    for suffix in (".log", ".index", ".timeindex"):
        assert read_file(on, suffix) == read_file(other, suffix)


@run_by(run_scenario)
async def test_entry_is_ignored_if_the_log_file_has_another_size(on: SimDisk) -> None:
    entry = await close_and_make_entry(on, 5)
    assert entry is not None
    on.open(f"{DIRECTORY}/{0:020d}.log").append([b"torn"])
    log = await open_from_entry(on, entry)
    assert (log.truncated_bytes, log.end_offset) == (4, 5)
    on.remove(f"{DIRECTORY}/{0:020d}.log")
    assert (await open_from_entry(on, entry)).end_offset == 0


def test_large_logs_and_logs_with_producers_get_no_entry() -> None:
    async def scenario(on: SimDisk) -> None:
        log = await open_log(on)
        append(log, batch(0, producer=7, sequence=0))
        assert log.make_clean_entry(0, False) is None

    run_scenario(scenario)

    async def many_batches(on: SimDisk) -> None:
        assert await close_and_make_entry(on, 400) is None

    run_scenario(many_batches)


@pytest.mark.parametrize("seed", first_seeds(2, 4))
@run_by(run_scenario)
async def test_log_opened_from_its_entry_survives_every_crash(on: SimDisk, *, seed: int) -> None:
    """Kills the process and cuts the power at each change of the disk after the log was opened from its entry. All
    fsynced records remain, in the epochs that wrote them. After a kill all written records remain."""
    rng = random.Random(f"left {seed}")
    entry = await close_and_make_entry(on, rng.randint(0, 5))
    assert entry is not None
    log = await open_from_entry(on, entry)
    images: list[tuple[SimDisk, bool, int]] = []

    def take(op: Op) -> None:
        # At an append of the log itself, what it appends is there or not: nobody was answered yet.
        images.append((on.crash_image(random.Random(f"{seed} {op.number}")), False, log.flushed_offset))
        images.append((on.clone(), True, log.end_offset))

    on.on_op = take
    for number in range(40):
        append(log, batch(log.end_offset, size=rng.randint(0, 300)), epoch=4 + number // 20)
        if rng.random() < 0.2:
            await log.flush(rng.choice((None, log.end_offset)))
        if rng.random() < 0.1:
            log.roll()
    on.on_op = None
    whole = read_all(log)
    assert len(images) > 80
    for image, same_boot, kept in images:
        again = await open_log(image, same_boot=same_boot, recovery_point=0 if same_boot else kept)
        served = read_all(again)
        assert kept <= again.end_offset and whole.startswith(served)
        for one in walk(served).batches:
            assert again.epochs.epoch_at(one.base_offset) == one.leader_epoch


async def create_log(on: SimDisk) -> DiskLog:
    """Opens a log that is new."""
    return await DiskLog.open(
        on,
        FixedClock(),
        DIRECTORY,
        config(),
        LogRecovery(same_boot=True, clean=False, is_new=True),
        metrics=Metrics(),
        topic_id=TOPIC_ID,
        name="t-0",
    )  # fmt: skip


@run_by(run_scenario)
async def test_log_is_unchanged_since_stop_until_an_append_or_a_cut(on: SimDisk) -> None:
    log = await create_log(on)
    assert log.is_unchanged_since_stop, "there is nothing in it to lose"
    append(log, batch(0), epoch=3)
    assert not log.is_unchanged_since_stop
    await log.close_clean()
    entry = log.make_clean_entry(3, False)
    assert entry is not None
    log = await open_from_entry(on, entry)
    assert log.is_unchanged_since_stop, "the stop before synced it"
    append(log, batch(1), epoch=3)
    log.truncate_to(1)
    assert (log.end_offset, log.is_unchanged_since_stop) == (1, False), "its end is the same, its files are not"
    assert not (await open_log(on)).is_unchanged_since_stop, "nobody said how it was left"


@pytest.mark.parametrize("is_appended", [False, True])
@run_by(run_scenario)
async def test_dropped_segment_does_not_come_back_after_a_clean_stop(on: SimDisk, *, is_appended: bool) -> None:
    """A start from an entry looks at no other file: the segment stayed on the disk, and a later start that reads the
    directory found it again."""
    entry = await close_and_make_entry(on, 2)
    assert entry is not None
    log = await open_from_entry(on, entry)
    if is_appended:
        append(log, batch(2), epoch=3)
    log.roll()
    await log.drop_local_below(log.end_offset)
    assert log.segments.count == 1 and not log.is_unchanged_since_stop
    await log.close_clean()
    entry = log.make_clean_entry(3, False)
    assert entry is not None
    for seed in range(20):
        image = on.crash_image(random.Random(f"dropped {seed}"))
        with judged_disks():
            assert (await open_from_entry(image, entry)).local_start_offset == log.end_offset


@pytest.mark.parametrize("seed", first_seeds(5, 20))
@run_by(run_scenario)
async def test_unsynced_empty_log_opens_after_a_power_cut(on: SimDisk, *, seed: int) -> None:
    """A power cut may damage the directory of an empty log in any way. The log still takes records under its topic id,
    and is not suspect."""
    log = await create_log(on)
    log.close()
    entry = log.make_clean_entry(-1, False)
    assert entry is not None
    image = on.crash_image(random.Random(f"unsynced {seed}"))
    log = await open_from_entry(image, entry)
    assert (log.end_offset, log.suspect) == (0, False)
    append(log, batch(0), epoch=3)
    await log.flush()
    metadata = image.open(f"{DIRECTORY}/{checkpoints.METADATA_FILE}", write=False).pread(0, 100)
    assert checkpoints.parse_metadata(metadata) == TOPIC_ID
    assert (await open_log(image, clean=True)).end_offset == 1


@pytest.mark.parametrize("torn", [b"", b"\0" * 40, None])
@run_by(run_scenario)
async def test_empty_log_names_its_topic_id_before_its_first_record(on: SimDisk, *, torn: bytes | None) -> None:
    entry, path = await close_and_make_entry(on, 0), f"{DIRECTORY}/{checkpoints.METADATA_FILE}"
    assert entry is not None
    on.remove(path)
    if torn is not None:
        on.open(path, create=True).append([torn])
    log = await open_from_entry(on, entry)
    append(log, batch(0), epoch=3)
    assert checkpoints.parse_metadata(on.open(path, write=False).pread(0, 100)) == TOPIC_ID
