"""Tests of crash images of the hot log: a kill and a power cut at every change of the disk.

Recovery keeps every fsynced byte and never serves a torn batch. All that it serves survives a second power cut.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from tests.scenario import run_alone, run_by
from tests.seeds import first_seeds
from tests.sim.harness.disk import Op, SimDisk
from tests.unit.hot.fixtures import (
    DIRECTORY,
    NOW,
    TOPIC_ID,
    append,
    batch,
    disk,
    max_timestamp,
    offset_for_timestamp,
    offsets,
    open_log,
    read_all,
)
from tiered.hot import checkpoints
from tiered.hot.disk_log import DiskLog
from tiered.hot.time_lookup import TimeLookups
from tiered.hot.unsynced_truncations import NO_PLAN
from tiered.records.native import walk

PRODUCER = 5


@dataclass
class Image:
    """The disk after a crash, and the records that the log had promised to keep by then."""

    op: Op
    disk: SimDisk
    same_boot: bool
    recovery_point: int
    flushed_bytes: bytes


@dataclass
class LogRun:
    """A random sequence of operations on one log, with two crash images of every change of the disk."""

    seed: int
    disk: SimDisk = field(init=False)
    images: list[Image] = field(default_factory=list)
    written: dict[int, bytes] = field(default_factory=dict)
    """Bytes of each batch that was not cut off, by base offset."""
    old: set[bytes] = field(default_factory=set)
    """Batches that were cut off."""
    promised: int | None = None
    recovery_point: int = 0
    """The value in the checkpoint of the data directory. It may lie above the end of a truncated log that has not grown
    again."""

    def __post_init__(self) -> None:
        self.disk = disk(self.seed)
        self.rng = random.Random(f"story {self.seed}")

    async def run(self, steps: int, *, cuts: bool) -> None:
        log = await open_log(self.disk)
        self.disk.on_op = lambda op: self._take_images(op, log)
        epoch = 0
        for _ in range(steps):
            draw = self.rng.random()
            if draw < 0.70:
                self._append(log, epoch)
            elif draw < 0.80:
                await log.flush()
                self._save_recovery_point(log)
            elif draw < 0.88:
                await log.flush(log.end_offset)
            elif draw < 0.94 or not cuts:
                log.roll()
                epoch += 1
            else:
                await self._truncate(log)
                epoch += 1
        self.disk.on_op = None

    def _append(self, log: DiskLog, epoch: int) -> None:
        known = log.producers.get(PRODUCER)
        following = known.batches[-1].last_sequence + 1 if known is not None else 0
        count, first = self.rng.randint(1, 3), log.end_offset
        data = batch(first, count, size=self.rng.randint(0, 200), producer=PRODUCER, sequence=following)
        append(log, data, epoch)
        self.written[first] = bytes(data)

    async def _truncate(self, log: DiskLog) -> None:
        offset = self.rng.randint(log.end_offset // 2, log.end_offset)
        # From the call on, nothing is promised of what it cuts.
        self.promised = max((base for base in self.written if base <= offset), default=0)
        for _ in range(2):
            if not log.plan_truncation(offset):
                self._save_recovery_point(log)
            log.truncate_to(offset)
            await log.flush()
        log.truncations.planned_end = NO_PLAN
        self._save_recovery_point(log)
        self.promised = None
        for base in [base for base in self.written if base >= log.end_offset]:
            self.old.add(self.written.pop(base))

    def _save_recovery_point(self, log: DiskLog) -> None:
        self.recovery_point = log.truncations.checkpointed_point = log.recovery_point

    def _take_images(self, op: Op, log: DiskLog) -> None:
        flushed = log.flushed_offset if self.promised is None else min(log.flushed_offset, self.promised)
        kept = b"".join(data for base, data in sorted(self.written.items()) if base < flushed)
        power = self.disk.crash_image(random.Random(f"{self.seed} {op.number}"))
        self.images.append(Image(op, power, False, self.recovery_point, kept))
        self.images.append(Image(op, self.disk.clone(), True, self.recovery_point, kept))


async def recover(image: Image) -> DiskLog:
    return await open_log(image.disk, same_boot=image.same_boot, recovery_point=image.recovery_point)


async def check(image: Image, log_run: LogRun) -> None:
    log = await recover(image)
    served = read_all(log)
    walked = walk(served)
    assert not log.suspect, "a crash is taken for rot"
    assert not walked.why, f"a torn batch is served: {walked.why}"
    assert list(offsets(served)) == list(range(log.end_offset)), "offsets have a hole"
    assert served.startswith(image.flushed_bytes), "an fsynced byte is gone"
    batches = [served[one.position : one.position + one.size] for one in walked.batches]
    ever = log_run.old | set(log_run.written.values())
    assert all(one in ever for one in batches), "a batch is served that nobody wrote"
    assert log.producers.end_offset == log.end_offset
    if batches:
        producer = log.producers.get(PRODUCER)
        assert producer is not None
        assert producer.batches[-1].last_offset == log.end_offset - 1, (
            "a retry of the last batch would be written twice"
        )
        assert producer.batches[-1].base_offset == walked.batches[-1].base_offset
        newest = max(one.max_timestamp for one in walked.batches)
        found = await offset_for_timestamp(log, max_timestamp(log), TimeLookups())
        assert found == (newest - NOW, newest, walked.batches[-1].leader_epoch) or log_run.old
    lineage = [(a.leader_epoch, a.base_offset) for a in walked.batches]
    assert all(log.epochs.epoch_at(base) == epoch for epoch, base in lineage), "the lineage does not fit the batches"
    log.epochs.check()
    log.producers.check()
    for segment in log.segments.closed():
        assert log.segments.data(segment.base_offset).next_offset == segment.next_offset
    if not image.same_boot:
        assert log.flushed_offset == log.end_offset
        again = await open_log(image.disk.after_power_cut(), same_boot=False, recovery_point=log.flushed_offset)
        assert read_all(again) == served, "what was served vanished in the second power cut"


@pytest.mark.parametrize("seed", first_seeds(2, 8))
@run_by(run_alone)
async def test_crash_keeps_fsynced_batches_and_serves_no_torn_batch(*, seed: int) -> None:
    log_run = LogRun(seed)
    await log_run.run(30, cuts=False)
    assert len(log_run.images) > 60
    for image in log_run.images:
        await check(image, log_run)


@pytest.mark.parametrize("seed", first_seeds(2, 8))
@run_by(run_alone)
async def test_crash_during_a_cut_keeps_fsynced_batches(*, seed: int) -> None:
    log_run = LogRun(100 + seed)
    await log_run.run(30, cuts=True)
    for image in log_run.images:
        await check(image, log_run)


@pytest.mark.parametrize("seed", first_seeds(2, 4))
@run_by(run_alone)
async def test_crash_during_recovery_does_not_change_its_result(*, seed: int) -> None:
    """Interrupts recovery at each of its own changes of the disk, and recovers again in another boot."""
    log_run = LogRun(200 + seed)
    await log_run.run(25, cuts=False)
    for image in [one for one in log_run.images if not one.same_boot][::7]:
        within: list[SimDisk] = []
        image.disk.on_op = lambda op, of=image, into=within: into.append(of.disk.crash_image(random.Random(op.number)))
        await recover(image)
        image.disk.on_op = None
        for broken in within:
            await check(Image(image.op, broken, False, image.recovery_point, image.flushed_bytes), log_run)


@pytest.mark.parametrize("seed", first_seeds(2, 8))
@run_by(run_alone)
async def test_topic_id_of_a_log_survives_kill_flush_and_power_cut(*, seed: int) -> None:
    """A process that was killed had not fsynced the topic id. The topic id is durable as soon as records of the log are
    durable."""
    on = disk(seed)
    append(await open_log(on), batch(0))
    on = on.after_kill()
    await (await open_log(on)).flush()
    after = on.after_power_cut()
    owner = checkpoints.load(after, DIRECTORY, checkpoints.METADATA_FILE)
    assert owner is not None
    assert checkpoints.parse_metadata(owner) == TOPIC_ID


@run_by(run_alone)
async def test_crash_after_a_restart_below_the_end_loses_nothing() -> None:
    """A follower has only records below the log start, and the leader's first batch begins below the follower's end.
    The log restarts there, and takes the batch before any fsync."""
    on, images = disk(), list[SimDisk]()
    log = await open_log(on)
    for number in range(17):
        append(log, batch(number))
    await log.flush()
    log.advance_start(17)

    def take_images(op: Op) -> None:
        count = 60 if op.path.endswith("15.log") else 1
        images.extend(on.crash_image(random.Random(f"{op.number} {draw}")) for draw in range(count))

    on.on_op = take_images
    log.truncate_fully_and_start_at(15, (), None)
    sent = batch(15, 3)
    sent[:8] = (15).to_bytes(8, "big")
    log.append_as_follower(sent, now_ms=NOW)
    await log.flush()
    for image in images:
        after = await open_log(image, same_boot=False, recovery_point=17, start_offset=17)
        assert (after.start_offset, after.suspect, after.segments.gaps) == (17, False, [])
        assert after.end_offset in (17, 18)
        assert after.end_offset == 17 or read_all(after) == sent
