"""Tests of compacted topics on a whole broker: cleans go on by themselves, readers lose no last record, and a topic
changes its policy at any time."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

from tests.e2e.http_site import wait_until
from tests.e2e.kafka_site import KafkaBroker, RawClient, fetch, produce, run
from tests.e2e.serving import INTERNAL_CONFIGS, ServeProcess
from tiered.broker.partition_report import explain
from tiered.controller.requests import AlterTopicConfigs
from tiered.errors import Code
from tiered.records.batch import decode_header, decode_records, encode_batch
from tiered.records.model import Codec
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.protocol.messages.fetch import FetchResponse
from tiered_api.kafka.protocol.messages.produce import ProduceResponse

NOW = 1_700_000_000_000
QUICK: dict[str, Any] = {"log_cleaner_backoff_ms": 20, "log_flush_offset_checkpoint_interval_ms": 20}
COMPACTED: dict[str, Any] = {
    "cleanup_policy": "compact",
    "remote_storage_enable": "false",
    "internal_segment_bytes": "4096",
    "retention_ms": "-1",
}
KEYS = 7


def keyed(*pairs: tuple[bytes | None, bytes | None], codec: Codec = Codec.NONE) -> bytes:
    return encode_batch([(NOW, key, value, ()) for key, value in pairs], codec=codec)


async def write(client: RawClient, replica: LeaderReplica, start: int, count: int) -> list[tuple[int, bytes, bytes]]:
    """Produces one record a batch, with values that carry their number. Returns the facts of all."""
    written = []
    for number in range(start, start + count):
        key, value = b"k%d" % (number % KEYS), b"%d" % number + b"." * 200
        codec = Codec.ZSTD if number % 3 else Codec.NONE
        reply = await client.ask(produce(replica, raw=keyed((key, value), codec=codec)), 12, ProduceResponse)
        [part] = reply.responses[0].partition_responses
        assert part.error_code == 0
        written.append((part.base_offset, key, value))
    return written


async def read(client: RawClient, replica: LeaderReplica, offset: int = 0) -> list[tuple[int, bytes, bytes]]:
    """Returns the facts of all records from `offset` on, read as a consumer does."""
    found: list[tuple[int, bytes, bytes]] = []
    while offset < replica.high_watermark:
        reply = await client.ask(fetch((replica, offset), each_bytes=2000), 12, FetchResponse)
        data, at = bytes(reply.responses[0].partitions[0].records or b""), 0
        assert data, offset
        while at < len(data):
            head = decode_header(data, at)
            found += [(each.offset, each.key or b"", each.value or b"") for each in decode_records(data, at)]
            offset, at = head.next_offset, at + head.size
    return found


def is_clean(replica: LeaderReplica, end: int) -> bool:
    return replica.log.compaction.state is not None and replica.log.compaction.state.clean_to >= end


def last_of_each(written: list[tuple[int, bytes, bytes]]) -> set[tuple[int, bytes, bytes]]:
    latest = {key: offset for offset, key, _ in written}
    return {each for each in written if latest[each[1]] == each[0]}


def test_cleaned_topic_keeps_its_records_over_policies_and_restarts(tmp_path: Path) -> None:
    async def check(site: KafkaBroker, written: list[tuple[int, bytes, bytes]]) -> None:
        client = await site.client()
        seen = await read(client, site.broker.leader_replica("t", 0))
        assert last_of_each(written) <= set(seen) <= set(written) and seen == sorted(seen)

    async def scenario(site: KafkaBroker) -> None:
        client = await site.client()
        replica = await site.create("t", **COMPACTED)
        written = await write(client, replica, 0, 120)
        closed = replica.log.segments.active.base_offset
        await wait_until(lambda: is_clean(replica, closed))
        assert len(await read(client, replica)) < 120 // 2
        shown = explain(replica)["compaction"]
        assert shown["clean_to"] >= closed and shown["bytes_after"] < shown["bytes_before"] and not shown["dirty_bytes"]
        await check(site, written)
        await site.broker.submit(AlterTopicConfigs("t", {"cleanup.policy": "delete"}))
        written += await write(client, replica, 120, 20)
        await check(site, written)
        await site.broker.submit(AlterTopicConfigs("t", {"cleanup.policy": "compact,delete"}))
        written += await write(client, replica, 140, 60)
        closed = replica.log.segments.active.base_offset
        await wait_until(lambda: is_clean(replica, closed))
        await check(site, written)
        assert site.broker.log_cleaner.uncleanable == {} and not site.broker.health().problems
        all_written.extend(written)

    all_written: list[tuple[int, bytes, bytes]] = []
    run(tmp_path / "data", scenario, **QUICK)

    async def again(site: KafkaBroker) -> None:
        await check(site, all_written)

    run(tmp_path / "data", again, **QUICK)


def test_reader_at_the_head_sees_every_record_while_older_ones_are_cleaned(tmp_path: Path) -> None:
    async def scenario(site: KafkaBroker) -> None:
        client = await site.client()
        replica = await site.create("t", **COMPACTED)
        written: list[tuple[int, bytes, bytes]] = []
        seen: list[tuple[int, bytes, bytes]] = []
        for _ in range(4):
            for _ in range(30):
                written += await write(client, replica, len(written), 1)
                seen += await read(client, replica, written[-1][0])
            await wait_until(partial(is_clean, replica, replica.log.segments.active.base_offset))
        assert seen == written
        assert len(await read(client, replica)) < len(written) // 2

    run(tmp_path / "data", scenario, **QUICK)


def test_record_without_a_key_is_refused_and_named(tmp_path: Path) -> None:
    async def scenario(site: KafkaBroker) -> None:
        client = await site.client()
        replica = await site.create("t", **COMPACTED)
        for codec in (Codec.NONE, Codec.GZIP):
            mixed = keyed((b"a", b"1"), (None, b"2"), (b"b", None), (None, b"3"), codec=codec)
            reply = await client.ask(produce(replica, raw=mixed), 12, ProduceResponse)
            [part] = reply.responses[0].partition_responses
            assert part.error_code == Code.INVALID_RECORD.number
            assert [each.batch_index for each in part.record_errors] == [1, 3]
            assert "no key" in (part.record_errors[0].batch_index_error_message or "")
        assert replica.high_watermark == 0
        await write(client, replica, 0, 1)

    run(tmp_path / "data", scenario)


def test_log_that_cannot_be_cleaned_is_named_and_stops_no_other(tmp_path: Path) -> None:
    async def scenario(site: KafkaBroker) -> None:
        client = await site.client()
        good = await site.create("good", **COMPACTED)
        bad = await site.create("bad", **COMPACTED, min_cleanable_dirty_ratio="1")
        for replica in (good, bad):
            await write(client, replica, 0, 60)
        [file] = list((tmp_path / "data").rglob("bad-0/00000000000000000000.log"))
        data = bytearray(file.read_bytes())
        data[70] ^= 1
        file.write_bytes(data)
        await site.broker.submit(AlterTopicConfigs("bad", {"min.cleanable.dirty.ratio": "0.1"}))
        await wait_until(lambda: bool(site.broker.log_cleaner.uncleanable))
        await wait_until(lambda: good.log.compaction.state is not None and good.log.compaction.state.clean_to > 0)
        [problem] = site.broker.health().problems
        assert problem.startswith("compaction of bad-0 stopped: crc mismatch"), problem
        assert bad.high_watermark == 60

    run(tmp_path / "data", scenario, **QUICK)


def test_process_killed_while_it_cleans_keeps_each_keys_last_record(tmp_path: Path) -> None:
    """Over HTTP, whose readers go on over the gaps too."""
    words = ("-c", "log.cleaner.backoff.ms=5", "-c", "log.flush.offset.checkpoint.interval.ms=5")
    expected: dict[str, int] = {}
    number = 0
    for life in range(3):
        with ServeProcess(tmp_path / "data", *INTERNAL_CONFIGS, *words) as broker:
            if life == 0:
                broker.create_topic("t", **{**COMPACTED, "min_cleanable_dirty_ratio": "0"})
                keyless = {"records": [{"value": 1}]}
                status, found = broker.ask("POST", "/topics/t", keyless, "application/vnd.kafka.json.v2+json")
                assert status == 200 and "no key" in found["offsets"][0]["error"], found
            offset = 0
            seen: dict[str, int] = {}
            while True:
                status, found = broker.ask("GET", f"/topics/t/partitions/0/records?offset={offset}&format=json")
                assert status == 200, found
                seen |= {record["key"]: record["value"]["n"] for record in found["records"]}
                if found["next_offset"] == offset:
                    break
                offset = found["next_offset"]  # a page may hold nothing but what a clean left of a batch
            assert seen == expected
            for _ in range(12):
                keys = [f"k{each}" for each in range(number, number + 20)]
                records = [{"key": key[-1], "value": {"n": number, "pad": "." * 90}} for key in keys]
                status, found = broker.ask(
                    "POST", "/topics/t", {"records": records}, "application/vnd.kafka.json.v2+json"
                )
                assert status == 200, found
                expected |= {record["key"]: number for record in records}  # type: ignore[misc]
                number += 1
            broker.stop(signal.SIGKILL)
    assert len(expected) == 10 and len(list((tmp_path / "data").rglob("t-0/compaction"))) == 1
