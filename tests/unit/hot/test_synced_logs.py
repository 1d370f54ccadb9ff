"""Tests of the note of fully synced logs: no start finds a log in it if a power cut took records that counted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.scenario import GIVEN, run_by
from tests.seeds import first_seeds
from tests.sim.harness.disk import DiskFault, Op, SimDisk
from tests.unit.hot.fixtures import DIRECTORY, TOPIC_ID, FixedClock, append, batch, config, disk, open_log
from tiered.config.settings import TopicConfig
from tiered.errors import Refused, Unavailable
from tiered.hot import proof_file
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_recovery import LogRecovery
from tiered.hot.proof_file import FILE, ProofFile, SyncedRow
from tiered.hot.synced_logs import SyncedLogEntry, SyncedLogs
from tiered.ids import TopicId, TopicPartition
from tiered.metrics import Metrics

AT = TopicPartition("t", 0)
TOPIC = TopicId(TOPIC_ID)
ACK, NONE = config(flush="ack"), config(flush="none")


ROW = (AT, TOPIC)
NO_ROWS: tuple[tuple[str, ...], frozenset[SyncedRow]] = ((), frozenset())


def read_rows(disk: SimDisk) -> tuple[tuple[str, ...], frozenset[SyncedRow]]:
    """Returns incarnations and rows that a start finds."""
    proof = proof_file.load(disk, "log") if disk.exists("log") else proof_file.Proof()
    return proof.incarnations, proof.synced


def make_rows(disk: SimDisk, *incarnations: str) -> SyncedLogs:
    return SyncedLogs(ProofFile(disk, "log", proof_file.Proof(incarnations)), lambda tp: True)


async def open_synced_log(disk: SimDisk, logs: SyncedLogs, settings: TopicConfig, *, same_boot: bool = True) -> DiskLog:
    return await DiskLog.open(
        disk,
        FixedClock(),
        DIRECTORY,
        settings,
        LogRecovery(same_boot=same_boot, clean=False),
        metrics=Metrics(),
        topic_id=TOPIC_ID,
        name=str(AT),
        synced_entry=SyncedLogEntry(logs, AT, TOPIC),
    )  # fmt: skip


def run_scenario(scenario: Callable[[SimDisk, SyncedLogs], Coroutine[Any, Any, None]], seed: int = 0) -> None:
    made = disk(seed)
    made.make_dirs("log")
    asyncio.run(scenario(made, make_rows(made, "me")))


@run_by(run_scenario)
async def test_log_gets_its_row_once_all_that_counted_is_fsynced(disk: SimDisk, logs: SyncedLogs) -> None:
    log = await open_synced_log(disk, logs, NONE)
    append(log, batch(0, 3))
    assert (log.synced_entry.fsynced_only, log.synced_entry.is_due) == (False, False)
    log.configure(ACK)
    assert (log.synced_entry.fsynced_only, log.synced_entry.is_due) == (True, True)
    await log.update_synced_entry()
    assert read_rows(disk) == NO_ROWS, "three records counted, and no fsync covers them"
    append(log, batch(3))
    await log.flush()
    await log.update_synced_entry()
    assert read_rows(disk) == (("me",), frozenset({ROW})) and not log.synced_entry.is_due


@run_by(run_scenario)
async def test_log_with_unreported_loss_gets_no_row(disk: SimDisk, logs: SyncedLogs) -> None:
    logs.may_add = lambda at: False
    log = await open_synced_log(disk, logs, ACK)
    await log.update_synced_entry()
    assert read_rows(disk) == NO_ROWS and log.synced_entry.is_due
    logs.may_add = lambda at: at == AT
    await log.update_synced_entry()
    assert ROW in read_rows(disk)[1]


@run_by(run_scenario)
async def test_no_offset_counts_unsynced_while_a_start_could_find_the_row(disk: SimDisk, logs: SyncedLogs) -> None:
    log = await open_synced_log(disk, logs, ACK)
    await log.update_synced_entry()
    log.configure(NONE)
    assert (log.synced_entry.fsynced_only, log.synced_entry.is_due) == (True, True)
    disk.faults.append(DiskFault("append", FILE, "ENOSPC"))
    await log.update_synced_entry()
    assert log.synced_entry.fsynced_only, "the row could not be taken out; the log is fsynced on"
    await log.update_synced_entry()
    assert (log.synced_entry.fsynced_only, log.synced_entry.is_due) == (False, False) and not read_rows(disk)[1]


@run_by(run_scenario)
async def test_requested_row_that_cannot_be_written_is_an_error(disk: SimDisk, logs: SyncedLogs) -> None:
    log = await open_synced_log(disk, logs, ACK)
    disk.faults.append(DiskFault("append", FILE, "ENOSPC"))
    with pytest.raises(Unavailable) as caught:
        await log.update_synced_entry()
    assert not caught.value.final and log.synced_entry.is_due
    await log.update_synced_entry()
    assert not log.synced_entry.is_due
    log.configure(NONE)
    disk.faults.append(DiskFault("sync", FILE))
    with pytest.raises(Unavailable) as caught:
        await log.update_synced_entry()
    assert caught.value.final and log.synced_entry.fsynced_only


@run_by(run_scenario)
async def test_row_requested_during_a_write_is_written_by_the_next_write(disk: SimDisk, logs: SyncedLogs) -> None:
    """A change that arrives while the file is written does not count as part of that write."""
    log = await open_synced_log(disk, logs, ACK)
    disk.sync_seconds = lambda: 0.01
    running = asyncio.ensure_future(log.update_synced_entry())
    await asyncio.sleep(0)
    log.configure(NONE)
    assert log.synced_entry.fsynced_only, "the row is on its way to the disk"
    await running
    assert ROW in read_rows(disk)[1] and log.synced_entry.is_due
    await log.update_synced_entry()
    assert not read_rows(disk)[1] and not log.synced_entry.fsynced_only


@run_by(run_scenario)
async def test_a_thousand_logs_share_a_few_writes(disk: SimDisk, logs: SyncedLogs) -> None:
    many = [SyncedLogEntry(logs, TopicPartition("t", number), TOPIC) for number in range(1000)]
    for each in many:
        each.configure(ack=True, end_offset=0)
    written: list[str] = []
    disk.on_op = lambda op: written.append(op.path) if op.verb == "rename" else None
    disk.sync_seconds = lambda: 0.001
    await asyncio.gather(*(each.save_if_due(0, 0) for each in many))
    assert len(written) <= 2 and len(read_rows(disk)[1]) == 1000


@run_by(run_scenario)
async def test_next_incarnation_adopts_the_rows_of_the_last_one(disk: SimDisk, logs: SyncedLogs) -> None:
    await (await open_synced_log(disk, logs, ACK)).update_synced_entry()
    again = make_rows(disk, "next", *read_rows(disk)[0])
    again.adopt_rows(read_rows(disk)[1])
    log = await open_synced_log(disk, again, ACK)
    assert log.synced_entry.is_due, "as long as it is the word of the last incarnation alone"
    await again.save()
    log.synced_entry.refresh()
    assert not log.synced_entry.is_due and read_rows(disk) == (("next", "me"), frozenset({ROW}))
    changed = make_rows(disk, "third")
    changed.adopt_rows(read_rows(disk)[1])
    log = await open_synced_log(disk, changed, NONE)
    assert log.synced_entry.fsynced_only
    await changed.save()
    log.synced_entry.refresh()
    assert not log.synced_entry.fsynced_only and not read_rows(disk)[1]


class RandomLogRun:
    """A random sequence of operations on one log whose setting changes, with disk faults. `counted` is the end offset
    that the log has reported as safe."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"synced {seed}")
        self.images: list[tuple[SimDisk, int]] = []
        self.counted = 0

    async def run(self, disk: SimDisk, logs: SyncedLogs) -> None:
        log = await open_synced_log(disk, logs, NONE)
        disk.sync_seconds = lambda: 1e-6
        draws = self.chance

        def take(op: Op) -> None:
            self.images.append((disk.crash_image(random.Random(draws.random())), self.counted))

        disk.on_op = take
        for _ in range(120):
            try:
                await self._step(log, disk)
            except (Unavailable, Refused) as error:
                assert not getattr(error, "final", False), error
            self._count(log)
        disk.on_op = None

    async def _step(self, log: DiskLog, disk: SimDisk) -> None:
        draw = self.chance.random()
        if draw < 0.40:
            append(log, batch(log.end_offset, self.chance.randint(1, 3)))
        elif draw < 0.60:
            await log.flush(log.end_offset if self.chance.random() < 0.5 else None)
            await log.update_synced_entry()
        elif draw < 0.65:
            await log.update_synced_entry()
        elif draw < 0.75:
            await log.flush()
            await self._interrupt_write(log)
        elif draw < 0.90:
            log.configure(self.chance.choice((ACK, NONE)))
        elif draw < 0.95:
            offset = self.chance.randint(log.end_offset // 2, log.end_offset)
            self.counted = min(self.counted, max(0, offset - 3))  # a batch holds three at most, and goes as a whole
            log.truncate_to(offset)
            await log.flush()
        else:
            disk.faults.append(DiskFault(self.chance.choice(("append", "rename")), FILE, "ENOSPC"))

    async def _interrupt_write(self, log: DiskLog) -> None:
        """Appends records and changes the setting while the note is written. Sometimes cancels the writer."""
        running = asyncio.ensure_future(log.update_synced_entry())
        for _ in range(self.chance.randint(1, 4)):
            await asyncio.sleep(0)
        append(log, batch(log.end_offset))
        log.configure(self.chance.choice((ACK, NONE)))
        self._count(log)
        if self.chance.random() < 0.5:
            running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    def _count(self, log: DiskLog) -> None:
        self.counted = max(self.counted, log.flushed_offset if log.synced_entry.fsynced_only else log.end_offset)


@pytest.mark.parametrize("seed", first_seeds(4, 12))
@run_by(run_scenario, seed=GIVEN)
async def test_power_cut_takes_no_counted_record_of_a_log_with_a_row(
    disk: SimDisk, logs: SyncedLogs, *, seed: int
) -> None:
    log_run = RandomLogRun(seed)
    await log_run.run(disk, logs)
    proved = 0
    for image, counted in log_run.images:
        if ROW in read_rows(image)[1]:
            proved += 1
            assert (await open_log(image, same_boot=False)).end_offset >= counted
    assert proved > 10 and len(log_run.images) - proved > 10
