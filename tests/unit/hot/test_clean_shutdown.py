"""Entries of small logs after a clean shutdown: a log that is loaded from one equals the log from its own files."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.sim.harness.disk import Op, SimDisk
from tests.unit.hot.fixtures import (
    DIRECTORY,
    NOW,
    TOPIC_ID,
    FixedClock,
    append,
    batch,
    config,
    disk,
    open_log,
    read_all,
)
from tiered.errors import Corrupt
from tiered.hot import checkpoints
from tiered.hot.clean_shutdown import CleanLogEntry, encode, encode_log, parse
from tiered.hot.disk_log import DiskLog
from tiered.hot.time_lookup import TimeLookups, offset_for_timestamp
from tiered.ids import TopicPartition
from tiered.metrics import Metrics
from tiered.records.native import crc32c, walk

AT = TopicPartition("t", 0)


def run(scenario: Callable[[SimDisk], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario(disk()))


async def resumed(where: SimDisk, left: CleanLogEntry) -> DiskLog:
    """The log, opened with what a clean stop said of it."""
    return await DiskLog.open(
        where, FixedClock(), DIRECTORY, config(), same_boot=True, clean=True, clean_entry=left,
        metrics=Metrics(), topic_id=TOPIC_ID, name="t-0",
    )  # fmt: skip


async def closed(where: SimDisk, batches: int) -> CleanLogEntry | None:
    """Returns the entry of a log of so many batches, after its clean stop."""
    log = await open_log(where)
    for number in range(batches):
        append(log, batch(number), epoch=3)
    await log.close_clean()
    return log.make_clean_entry(3, False)


def file(where: SimDisk, suffix: str) -> bytes:
    opened = where.open(f"{DIRECTORY}/{0:020d}{suffix}")
    return opened.pread(0, opened.size())


def test_the_file_gives_back_what_was_put_in_and_a_flipped_bit_is_found() -> None:
    async def scenario(where: SimDisk) -> None:
        left = await closed(where, 2)
        assert left is not None
        other = left._replace(has_cold_segments=True, lineage=())
        data = encode([encode_log(AT, left), encode_log(TopicPartition("u", 7), other)])
        assert parse(data) == {AT: left, TopicPartition("u", 7): left._replace(has_cold_segments=True, lineage=())}
        for position in range(len(data)):
            torn = bytearray(data)
            torn[position] ^= 1
            with pytest.raises(Corrupt):
                parse(bytes(torn))

    run(scenario)


@pytest.mark.parametrize(
    "body", [b"{}x", b'{"version":2}', b'[["t",0,"id"]]', b"[1]", b'[["t",0,"i",0,0,[],[1],"","",0]]']
)
def test_a_file_of_another_version_is_not_used(body: bytes) -> None:
    with pytest.raises(Corrupt):
        parse(b"%08x\n" % crc32c(body) + body)


def test_a_log_that_is_resumed_goes_on_like_one_that_was_opened() -> None:
    """The same records in two directories, one resumed and one opened: every file is the same afterwards."""

    async def scenario(where: SimDisk) -> None:
        other = disk()
        left = await closed(where, 5)
        assert left is not None and await closed(other, 5) == left
        first, second = await resumed(where, left), await open_log(other, clean=True)
        assert await offset_for_timestamp(first, NOW, TimeLookups()) == (0, NOW, 3)
        assert await offset_for_timestamp(second, NOW, TimeLookups()) == (0, NOW, 3)
        assert (first.end_offset, first.flushed_offset, first.epochs.lineage) == (5, 5, ((3, 0),))
        for log in (first, second):
            for number in range(5, 60):
                append(log, batch(number), epoch=4)
            await log.close_clean()
        for suffix in (".log", ".index", ".timeindex"):
            assert file(where, suffix) == file(other, suffix)
        assert read_all(first) == read_all(second)

    run(scenario)


def test_a_log_file_of_another_size_is_opened_by_itself() -> None:
    async def scenario(where: SimDisk) -> None:
        left = await closed(where, 5)
        assert left is not None
        where.open(f"{DIRECTORY}/{0:020d}.log").append([b"torn"])
        log = await resumed(where, left)
        assert (log.truncated_bytes, log.end_offset) == (4, 5)
        where.remove(f"{DIRECTORY}/{0:020d}.log")
        assert (await resumed(where, left)).end_offset == 0

    run(scenario)


def test_nothing_is_said_of_larger_logs_and_of_those_with_producers() -> None:
    async def scenario(where: SimDisk) -> None:
        log = await open_log(where)
        append(log, batch(0, producer=7, sequence=0))
        assert log.make_clean_entry(0, False) is None

    run(scenario)

    async def many(where: SimDisk) -> None:
        assert await closed(where, 400) is None

    run(many)


@pytest.mark.parametrize("seed", range(4))
def test_a_resumed_log_survives_every_crash_that_a_log_does(seed: int) -> None:
    """A kill and a power cut at each change of the disk after the resumption: all that was fsynced is there, in the
    epochs that it was written in; after a kill all that was written."""

    async def scenario(where: SimDisk) -> None:
        rng = random.Random(f"left {seed}")
        left = await closed(where, rng.randint(0, 5))
        assert left is not None
        log = await resumed(where, left)
        images: list[tuple[SimDisk, bool, int]] = []

        def take(op: Op) -> None:
            # At an append of the log itself, what it appends is there or not: nobody was answered yet.
            images.append((where.crash_image(random.Random(f"{seed} {op.number}")), False, log.flushed_offset))
            images.append((where.clone(), True, log.end_offset))

        where.on_op = take
        for number in range(40):
            append(log, batch(log.end_offset, size=rng.randint(0, 300)), epoch=4 + number // 20)
            if rng.random() < 0.2:
                await log.flush(rng.choice((None, log.end_offset)))
            if rng.random() < 0.1:
                log.roll()
        where.on_op = None
        whole = read_all(log)
        assert len(images) > 80
        for image, same_boot, kept in images:
            again = await open_log(image, same_boot=same_boot, recovery_point=0 if same_boot else kept)
            served = read_all(again)
            assert kept <= again.end_offset and whole.startswith(served)
            for one in walk(served).batches:
                assert again.epochs.epoch_at(one.base_offset) == one.leader_epoch

    run(scenario)


async def begun(where: SimDisk) -> DiskLog:
    """A log that was made just now."""
    return await DiskLog.open(
        where, FixedClock(), DIRECTORY, config(), same_boot=True, clean=False, is_new=True,
        metrics=Metrics(), topic_id=TOPIC_ID, name="t-0",
    )  # fmt: skip


def test_only_a_log_that_changed_since_it_was_made_or_left_is_synced_by_a_clean_stop() -> None:
    async def scenario(where: SimDisk) -> None:
        log = await begun(where)
        assert log.is_unchanged_since_stop, "there is nothing in it to lose"
        append(log, batch(0), epoch=3)
        assert not log.is_unchanged_since_stop
        await log.close_clean()
        left = log.make_clean_entry(3, False)
        assert left is not None
        log = await resumed(where, left)
        assert log.is_unchanged_since_stop, "the stop before synced it"
        append(log, batch(1), epoch=3)
        log.truncate_to(1)
        assert (log.end_offset, log.is_unchanged_since_stop) == (1, False), "its end is the same, its files are not"
        assert not (await open_log(where)).is_unchanged_since_stop, "nobody said how it was left"

    run(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_a_log_without_records_that_nobody_synced_comes_back_from_a_power_cut(seed: int) -> None:
    """A power cut may damage the directory of the log in any way: the log still takes records under its topic id,
    and is not suspect."""

    async def scenario(where: SimDisk) -> None:
        log = await begun(where)
        log.close()
        left = log.make_clean_entry(-1, False)
        assert left is not None
        image = where.crash_image(random.Random(f"unsynced {seed}"))
        log = await resumed(image, left)
        assert (log.end_offset, log.suspect) == (0, False)
        append(log, batch(0), epoch=3)
        await log.flush()
        metadata = image.open(f"{DIRECTORY}/{checkpoints.METADATA_FILE}", write=False).pread(0, 100)
        assert checkpoints.parse_metadata(metadata) == TOPIC_ID
        assert (await open_log(image, clean=True)).end_offset == 1

    run(scenario)


@pytest.mark.parametrize("torn", [b"", b"\0" * 40, None])
def test_empty_log_names_its_topic_id_before_its_first_record(torn: bytes | None) -> None:
    async def scenario(where: SimDisk) -> None:
        left, path = await closed(where, 0), f"{DIRECTORY}/{checkpoints.METADATA_FILE}"
        assert left is not None
        where.remove(path)
        if torn is not None:
            where.open(path, create=True).append([torn])
        log = await resumed(where, left)
        append(log, batch(0), epoch=3)
        assert checkpoints.parse_metadata(where.open(path, write=False).pread(0, 100)) == TOPIC_ID

    run(scenario)
