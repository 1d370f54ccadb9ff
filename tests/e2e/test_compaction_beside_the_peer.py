"""The same log, cleaned by Kafka and by us: the same records stay, each reads the files of the other."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.kafka_site import RawClient
from tests.peer.kafka import Peer, tool
from tests.unit.hot.cleaning import admit_all, read_all, run_inline
from tests.unit.hot.fixtures import NOW, FixedClock
from tiered.config.settings import TopicConfig
from tiered.errors import Code
from tiered.hot.checkpoints import parse_metadata
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_cleaning import CleanerResources
from tiered.hot.log_recovery import LogRecovery
from tiered.ids import PartitionId, TopicId
from tiered.metrics import Metrics
from tiered.object_store.directory import DirectoryStore
from tiered.records.batch import decode_header, decode_records, encode_batch, stamp
from tiered.records.model import Codec
from tiered.replication.cold_tier import ColdTier
from tiered.system.clock import SystemClock, SystemRng
from tiered.system.local_disk import LocalDisk
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.also("kafka")]

SEGMENT_BYTES = 1 << 20
BATCHES, RECORDS, KEYS = 70, 50, 400
CLEAN_SECONDS = 90.0
QUICK = {"log.cleaner.backoff.ms": "200", "log.initial.task.delay.ms": "100"}


def batches() -> list[bytes]:
    """Returns batches of some keys in all codecs, with tombstones."""
    rng, made = random.Random(7), []
    for number in range(BATCHES):
        records = [
            (NOW + number, b"k%d" % rng.randrange(KEYS), None if rng.random() < 0.1 else rng.randbytes(900), ())
            for _ in range(RECORDS)
        ]
        made.append(encode_batch(records, codec=Codec(number % 5)))
    return made


def facts_of(data: bytes) -> list[tuple[int, bytes | None, bytes | None, int]]:
    """Returns (offset, key, value, timestamp) of all records in whole batches."""
    found, at = [], 0
    while at < len(data):
        found += [(each.offset, each.key, each.value, each.timestamp) for each in decode_records(data, at)]
        at += decode_header(data, at).size
    return found


async def produce_all(address: str, made: list[bytes]) -> None:
    host, port = address.rsplit(":", 1)
    client = RawClient(*await asyncio.open_connection(host, int(port), limit=1 << 24))

    async def produce(data: bytes) -> int:
        part = PartitionProduceData(index=0, records=data)
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData("t", partition_data=[part])])
        reply = await client.ask(request, 9, ProduceResponse)
        return reply.responses[0].partition_responses[0].error_code

    with closing(client):
        async with asyncio.timeout(120):  # the broker may not lead its new topic yet
            while (code := await produce(made[0])) == Code.NOT_LEADER_OR_FOLLOWER.number:
                await asyncio.sleep(0.1)
        assert [code, *[await produce(data) for data in made[1:]]] == [0] * len(made)


async def open_log(root: Path, topic_id: str) -> DiskLog:
    config = TopicConfig(segment_bytes=SEGMENT_BYTES, cleanup_policy=("compact",), remote_storage_enable=False)
    return await DiskLog.open(
        LocalDisk(str(root)),
        FixedClock(int(time.time() * 1000)),
        "t-0",
        config,
        LogRecovery(same_boot=True, clean=True),
        metrics=Metrics(),
        topic_id=topic_id,
        name="t-0",
    )  # fmt: skip


async def clean_in_bucket(root: Path, log: DiskLog) -> list[tuple[int, bytes | None, bytes | None, int]]:
    """Uploads all closed segments, and cleans them in the bucket. Returns the facts of all records of the log then."""
    clock, rng, metrics = SystemClock(), SystemRng(), Metrics()
    store = DirectoryStore(str(root / "bucket"), clock, rng)
    cold = ColdTier.build(store, clock, rng, metrics, admit_request, clean_object_bytes=SEGMENT_BYTES // 3)
    partition_id = PartitionId(TopicId(log.topic_id), 0)
    manifest = await cold.manifests.take_over(partition_id, "t", 0)
    while (uploaded := await cold.uploader.upload_next(log, manifest, 0, log.end_offset)) is not None:
        manifest = uploaded
    resources = CleanerResources(run_inline, admit_all, 1 << 20, 1 << 18, 0.9, b"seed")
    result = await cold.cleaner.clean(manifest, 0, log.config, NOW, resources)
    assert result.is_whole and result.manifest.clean_to == manifest.cold_end_offset
    found = b"".join([bytes(piece.data) async for piece in cold.reader.iterate(partition_id, 0)])
    cold.reader.close()
    await store.close()
    return facts_of(found + read_all(log, manifest.cold_end_offset, max_bytes=1 << 20))


async def admit_request() -> None:
    """Waits for nothing."""


def wait_until_cleaned(peer: Peer) -> int:
    """Returns the offset up to which Kafka has cleaned everything that it may clean."""
    deadline, active = time.monotonic() + CLEAN_SECONDS, -1
    while time.monotonic() < deadline:
        bases = sorted(int(path.stem) for path in (peer.logs / "t-0").glob("*.log"))
        checkpoint = peer.logs / "cleaner-offset-checkpoint"
        rows = checkpoint.read_text().splitlines() if checkpoint.exists() else []
        cleaned = [int(row.split()[2]) for row in rows if row.startswith("t 0 ")]
        active = bases[-1]
        if cleaned and cleaned[0] >= active:
            return cleaned[0]
        time.sleep(0.2)
    raise AssertionError(f"Kafka has not cleaned up to {active}")


def test_both_keep_the_same_records_and_read_each_others_files(tmp_path: Path) -> None:
    made = batches()
    with Peer(QUICK) as peer:
        settings = {"cleanup.policy": "compact", "segment.bytes": SEGMENT_BYTES, "min.cleanable.dirty.ratio": "0.01"}
        options = [word for name, value in settings.items() for word in ("--config", f"{name}={value}")]
        tool("topics", "--bootstrap-server", peer.address, "--create", "--topic", "t", *options)
        asyncio.run(produce_all(peer.address, made))
        cleaned_to = wait_until_cleaned(peer)
        peer.stop()
        topic_id = parse_metadata((peer.logs / "t-0" / "partition.metadata").read_bytes())

        async def compare() -> None:
            theirs = await open_log(peer.logs, topic_id)
            ours = await open_log(tmp_path, topic_id)
            for data in made:
                copied = bytearray(data)
                stamp(copied, 0, ours.end_offset, 0)
                ours.append_as_follower(copied, now_ms=NOW)
            await ours.flush()
            assert ours.end_offset == theirs.end_offset == BATCHES * RECORDS
            resources = CleanerResources(run_inline, admit_all, 1 << 20, 1 << 18, 0.9, b"seed")
            found = ours.compaction.find_cleanable(ours.start_offset, ours.end_offset, NOW)
            assert found.first_uncleanable == cleaned_to
            from_bucket = await clean_in_bucket(tmp_path, ours)
            await ours.compaction.clean(found, resources)
            mine = facts_of(read_all(ours, max_bytes=1 << 20))
            assert mine == from_bucket
            assert mine == facts_of(read_all(theirs, max_bytes=1 << 20))
            assert len(mine) < BATCHES * RECORDS and any(value is None for _, _, value, _ in mine)
            await ours.close_clean()
            theirs.close()

        asyncio.run(compare())
    names = ",".join(str(path) for path in sorted((tmp_path / "t-0").glob("*.log")))
    text = tool("dump-log", "--files", names, "--deep-iteration")
    assert text.count("isvalid: true") > 10 and "isvalid: false" not in text and "Found" not in text
