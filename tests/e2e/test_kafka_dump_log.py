"""Tests of log directories against Kafka's: its dump tool reads ours without an error, our log opens its files, and the
same batches become the same bytes in every file."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peer.kafka import Peer, tool
from tests.scenario import run_alone, run_by
from tests.unit.hot.fixtures import NOW, TOPIC_ID, FixedClock, batch, read_all
from tests.unit.hot.transactions import TransactionWriter
from tiered.config.settings import TopicConfig
from tiered.hot.checkpoints import parse_metadata
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_recovery import LogRecovery
from tiered.hot.segment_files import OpenFiles
from tiered.metrics import Metrics
from tiered.records.batch import encode_batch
from tiered.records.model import Codec
from tiered.records.native import walk
from tiered.system.local_disk import LocalDisk

SEGMENT_BYTES = 1 << 20
RECORDS = 4000
TRANSACTIONAL = ("--transactional-id", "perf", "--transaction-duration-ms", "100")
COMPLAINTS = re.compile(r"mismatch|misordered|not found|non-consecutive|corrupt|invalid|exception|error", re.IGNORECASE)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LocalDisk]:
    opened = LocalDisk(str(tmp_path))
    yield opened
    opened.close()


async def open_log(
    disk: LocalDisk, *, directory: str = "t-0", topic_id: str = TOPIC_ID, files: OpenFiles | None = None
) -> DiskLog:
    return await DiskLog.open(
        disk,
        FixedClock(),
        directory,
        TopicConfig(segment_bytes=SEGMENT_BYTES),
        LogRecovery(same_boot=True, clean=True),
        metrics=Metrics(),
        topic_id=topic_id,
        name=directory,
        files=files,
    )


def dump_log(directory: Path, suffix: str, *options: str) -> str:
    """Returns the output of Kafka's dump tool for all files of one kind."""
    names = sorted(str(path) for path in directory.glob("*" + suffix))
    assert names, f"no {suffix} in {directory}"
    text = tool("dump-log", "--files", ",".join(names), *options)
    complaints = [row for row in text.splitlines() if COMPLAINTS.search(row) and "isvalid: true" not in row]
    assert not complaints, complaints[:5]
    return text


@run_by(run_alone)
async def test_open_files_are_bounded_and_slices_stay_readable(*, disk: LocalDisk) -> None:
    files = OpenFiles(disk, 6)
    logs = [await open_log(disk, directory=f"t-{number}", files=files) for number in range(20)]
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for number in range(40):
        for log in logs:
            log.append(batch(number), leader_epoch=0, now_ms=NOW)
    first = logs[0].read(0, 1 << 20, end_offset=40)
    assert first is not None
    for log in logs[1:]:
        assert len(read_all(log, max_bytes=1000)) == first.length
    assert len(first.file.pread(first.start, first.length)) == first.length
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before + 8


@pytest.mark.java
def test_kafkas_dump_tool_reads_our_files(disk: LocalDisk, tmp_path: Path) -> None:
    async def run() -> None:
        log = await open_log(disk)
        for number in range(3000):
            codec = Codec(number % 5)
            made = [(NOW + number * 7 % 1000, b"k", random.Random(number).randbytes(900), (("h", b"v"),))]
            data = encode_batch(made, codec=codec, producer_id=9, producer_epoch=0, base_sequence=number)
            log.append(bytearray(data), leader_epoch=number // 1000, now_ms=NOW)
        assert log.segments.count > 1
        await log.close_clean()

    asyncio.run(run())
    text = dump_log(tmp_path / "t-0", ".log", "--deep-iteration")
    assert text.count("isvalid: true") == 3000
    assert len(re.findall(r"\| offset: \d+", text)) == 3000
    for suffix in (".index", ".timeindex"):
        dump_log(tmp_path / "t-0", suffix, "--verify-index-only")
        assert "passed sanity check" in dump_log(tmp_path / "t-0", suffix, "--index-sanity-check")
    assert "producerId: 9" in dump_log(tmp_path / "t-0", ".snapshot")


@pytest.mark.java
def test_kafkas_dump_tool_reads_our_transactions(disk: LocalDisk, tmp_path: Path) -> None:
    async def run() -> TransactionWriter:
        log = await open_log(disk)
        writer = TransactionWriter(log)
        writer.write_at_random(random.Random(1), 300)
        await log.close_clean()
        return writer

    writer = asyncio.run(run())
    text = dump_log(tmp_path / "t-0", ".log", "--deep-iteration")
    aborted = [txn for txn in writer.ended if not txn.commit]
    assert text.count("endTxnMarker: ABORT") == len(aborted) > 0
    assert text.count("endTxnMarker: COMMIT") == len(writer.ended) - len(aborted) > 0
    index = re.findall(
        r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+)", dump_log(tmp_path / "t-0", ".txnindex")
    )
    assert [tuple(map(int, each)) for each in index] == [
        (txn.producer_id, txn.offsets[0], txn.marker_offset) for txn in aborted
    ]
    open_offsets = re.findall(r"currentTxnFirstOffset: OptionalLong\[(\d+)\]", dump_log(tmp_path / "t-0", ".snapshot"))
    assert sorted(map(int, open_offsets)) == sorted(offsets[0] for offsets in writer.open.values())


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.also("kafka")
@pytest.mark.parametrize("options", [(), TRANSACTIONAL], ids=["idempotent", "transactional"])
def test_same_batches_become_the_same_files(disk: LocalDisk, tmp_path: Path, options: tuple[str, ...]) -> None:
    with Peer() as peer:
        address = ("--bootstrap-server", peer.address)
        tool("topics", *address, "--create", "--topic", "t", "--config", f"segment.bytes={SEGMENT_BYTES}")
        sizes = ("--num-records", str(RECORDS), "--record-size", "900", "--throughput", "-1")
        small = (f"bootstrap.servers={peer.address}", "batch.size=3000", "enable.idempotence=true")
        tool("producer-perf", "--topic", "t", *sizes, *options, "--producer-props", *small)
        peer.stop()
        theirs = peer.logs / "t-0"
        files = {path.name: path.read_bytes() for path in theirs.iterdir()}
        topic_id = parse_metadata(files["partition.metadata"])

        async def run() -> None:
            ours = await open_log(disk, topic_id=topic_id)
            for name in sorted(name for name in files if name.endswith(".log")):
                for one in walk(files[name]).batches:
                    ours.append_as_follower(files[name][one.position : one.position + one.size], now_ms=NOW)
            await ours.close_clean()
            written = {path.name: path.read_bytes() for path in (tmp_path / "t-0").iterdir()}
            assert len([name for name in files if name.endswith(".log")]) > 2
            assert {name for name in files if written.get(name) != files[name]} == set()

            opened = await open_log(LocalDisk(str(peer.logs)), topic_id=topic_id)
            assert (opened.end_offset > RECORDS) if options else (opened.end_offset == RECORDS)
            opened.producers.txns.on_high_watermark(opened.end_offset)
            assert opened.producers.txns.first_unstable_offset is None
            assert opened.segments.gaps == []
            assert len(read_all(opened, max_bytes=1 << 20)) == sum(len(files[n]) for n in files if n.endswith(".log"))
            assert len(opened.producers) == 1
            opened.close()

        asyncio.run(run())
