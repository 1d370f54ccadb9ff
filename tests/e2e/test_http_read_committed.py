"""Tests of committed reads over HTTP: aborted records are in no reply, an open transaction holds reads back, and every
position moves on over aborted records and markers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.e2e.http_cluster import HttpCluster
from tests.e2e.http_cluster import run as run_cluster
from tests.e2e.http_site import RAW, HttpBroker, run, wait_until
from tests.e2e.test_http_consumers import HttpConsumer
from tests.scenario import run_by
from tiered.records.batch import encode_batch
from tiered.records.marker import TransactionMarker
from tiered.records.native import walk
from tiered.replication.leader_replica import LeaderReplica

PATH = "/topics/t/partitions/0/records"
EVENTS = "text/event-stream"
V2 = "application/vnd.kafka.v2+json"
V2_BINARY = "application/vnd.kafka.binary.v2+json"
TIME_MS = 1_700_000_000_000
ONE, TWO = 1001, 1002
"""Producer ids."""


class Producers:
    """Writes transactions to the leader of partition 0, as brokers do for their clients."""

    def __init__(self, where: HttpBroker, sequences: Mapping[int, int] | None = None) -> None:
        self._replica: LeaderReplica = where.broker.leader_replica("t", 0)
        self._sequences = dict(sequences or {})

    async def write(self, producer_id: int, *values: str) -> list[int]:
        """Writes records of the producer's transaction, which begins with them if none is open."""
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + len(values)
        data = encode_batch(
            [(TIME_MS, None, value.encode(), ()) for value in values],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        guard = self._replica.transactions.begin_verification(producer_id, 0, sequence)
        try:
            info = await self._replica.append(bytearray(data), guard=guard)
        finally:
            self._replica.transactions.end_verification(guard)
        return list(range(info.base_offset, info.last_offset + 1))

    async def end(self, producer_id: int, *, commit: bool) -> None:
        await self._replica.transactions.append_marker(TransactionMarker(producer_id, 0, commit, 0))


async def write_transactions(where: HttpBroker) -> list[int]:
    """Writes the offsets 0 to 8. Returns the offsets of committed records.

    0, 1: aborted; 2: committed; 3: the abort; 4: the commit; 5, 6: aborted; 7: the abort; 8: committed, not of a
    transaction.
    """
    producers = Producers(where)
    await producers.write(ONE, "a", "b")
    committed = await producers.write(TWO, "c")
    await producers.end(ONE, commit=False)
    await producers.end(TWO, commit=True)
    await producers.write(ONE, "d", "e")
    await producers.end(ONE, commit=False)
    await where.produce("t", "f")
    return [*committed, 8]


def offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


@run_by(run_cluster, "tmp_path")
async def test_any_broker_leaves_out_aborted_records_in_every_form(three: HttpCluster) -> None:
    await three.create("t", [1, 2])
    committed = await write_transactions(three[1])
    got = (await three.get_from_all(PATH)).json
    assert (offsets(got["records"]), got["next_offset"], got["last_stable_offset"]) == (committed, 9, 9)
    every = (await three.get_from_all(f"{PATH}?isolation_level=read_uncommitted")).json
    assert offsets(every["records"]) == [0, 1, 2, 5, 6, 8]
    for broker in three.brokers.values():
        listed = await broker.get(PATH, V2_BINARY)
        assert (offsets(listed.json), listed.headers["Tiered-Next-Offset"]) == (committed, "9")
        raw = await broker.get(PATH, RAW)
        assert [batch.base_offset for batch in walk(raw.body).batches] == [2, 3, 4, 7, 8]
        assert raw.headers["Tiered-Next-Offset"] == "9"
        whole = await broker.get(f"{PATH}?isolation_level=read_uncommitted", RAW)
        assert [batch.base_offset for batch in walk(whole.body).batches] == [0, 2, 3, 4, 5, 7, 8]
    refused = await three[2].get(f"{PATH}?isolation_level=serializable")
    assert (refused.status, "read_committed, read_uncommitted" in refused.json["message"]) == (400, True)


@run_by(run_cluster, "tmp_path")
async def test_any_broker_shows_the_markers_that_a_reader_wants(three: HttpCluster) -> None:
    await three.create("t", [1, 2])
    await write_transactions(three[1])
    wanted = f"{PATH}?control_records=true"
    got = (await three.get_from_all(wanted)).json
    shown = [(row["offset"], row.get("control"), row.get("producer_id")) for row in got["records"]]
    ends = {3: (3, "abort", ONE), 4: (4, "commit", TWO), 7: (7, "abort", ONE)}
    assert shown == [(2, None, None), ends[3], ends[4], ends[7], (8, None, None)]
    every = (await three.get_from_all(f"{wanted}&isolation_level=read_uncommitted")).json
    assert offsets(every["records"]) == [*range(9)]
    back = (await three.get_from_all(f"{wanted}&before=8&limit=4")).json
    assert (offsets(back["records"]), back["records"][0]["control"], back["next_before"]) == ([7, 4], "abort", 4)
    one = await three[3].get(f"{wanted}&offset=4&max_bytes=1")
    assert (offsets(one.json["records"]), one.json["next_offset"]) == ([4], 5)
    plain = await three[3].get(f"{PATH}?control_records=false")
    assert offsets(plain.json["records"]) == [2, 8]
    for accept, query, why in (
        (RAW, "true", "is for reads of application/json and text/event-stream"),
        (V2_BINARY, "true", "is for reads of application/json and text/event-stream"),
        ("application/json", "true&contains=c", "without contains, key, header, json"),
        ("application/json", "yes", "is neither true nor false"),
    ):
        refused = await three[2].get(f"{PATH}?control_records={query}", accept)
        assert refused.status == 400 and why in refused.json["message"]


@run_by(run, "tmp_path")
async def test_event_stream_has_the_markers_that_a_reader_wants(site: HttpBroker) -> None:
    await site.create("t")
    await write_transactions(site)
    seen = b""
    url = f"{site.url}{PATH}?control_records=true"
    async with site.session.get(url, headers={"Accept": EVENTS}) as stream:
        while seen.count(b"id: ") < 5:
            seen += await stream.content.readline()
    assert [int(line[4:]) for line in seen.splitlines() if line.startswith(b"id: ")] == [2, 3, 4, 7, 8]


@pytest.mark.parametrize("accept", ["application/json", RAW, V2_BINARY])
@run_by(run, "tmp_path")
async def test_reader_of_one_batch_at_a_time_moves_on_to_the_end(site: HttpBroker, *, accept: str) -> None:
    await site.create("t")
    committed = await write_transactions(site)
    at, seen, turns = 0, [], 0
    while at < 9:
        reply = await site.get(f"{PATH}?offset={at}&max_bytes=1", accept)
        if accept == RAW:
            batches = walk(reply.body).batches
            seen += [batch.base_offset for batch in batches if not batch.attributes & 0x20]
            at = int(reply.headers.get("Tiered-Next-Offset", batches[-1].last_offset + 1 if batches else -1))
        elif accept == V2_BINARY:
            seen += offsets(reply.json)
            at = int(reply.headers["Tiered-Next-Offset"])
        else:
            seen += offsets(reply.json["records"])
            at = reply.json["next_offset"]
        turns += 1
        assert turns <= 9, "the reader does not move on"
    assert seen == committed


@run_by(run_cluster, "tmp_path")
async def test_open_transaction_holds_committed_reads_back_until_it_ends(three: HttpCluster) -> None:
    await three.create("t", [1, 2])
    producers = Producers(three[1])
    await three[1].produce("t", "a")
    await producers.write(ONE, "b")
    await three[1].produce("t", "c")
    got = (await three.get_from_all(PATH)).json
    assert (offsets(got["records"]), got["next_offset"]) == ([0], 1)
    assert (got["last_stable_offset"], got["high_watermark"]) == (1, 3)
    assert (await three.get_from_all(f"{PATH}?offset=latest")).json["next_offset"] == 1
    every = (await three.get_from_all(f"{PATH}?offset=latest&isolation_level=read_uncommitted")).json
    assert every["next_offset"] == 3
    waiting = [asyncio.create_task(each.get(f"{PATH}?offset=1&timeout=30000")) for each in three.brokers.values()]
    await producers.end(ONE, commit=True)
    for reply in await asyncio.gather(*waiting):
        assert offsets(reply.json["records"]) in ([1], [1, 2])


@run_by(run, "tmp_path")
async def test_event_stream_skips_aborted_records_and_continues(site: HttpBroker) -> None:
    await site.create("t")
    committed = await write_transactions(site)
    producers, seen = Producers(site, {TWO: 1}), b""
    async with site.session.get(site.url + PATH, headers={"Accept": EVENTS}) as stream:
        while seen.count(b"id: ") < 2:
            seen += await stream.content.readline()
        await producers.write(TWO, "g")
        await producers.end(TWO, commit=False)
        await site.produce("t", "h")
        while seen.count(b"id: ") < 3:
            seen += await stream.content.readline()
    assert [int(line[4:]) for line in seen.splitlines() if line.startswith(b"id: ")] == [*committed, 11]


@run_by(run_cluster, "tmp_path")
async def test_consumer_reads_committed_records_unless_its_settings_differ(three: HttpCluster) -> None:
    await three.create("t", [1, 2])
    committed = await write_transactions(three[1])
    await Producers(three[1]).write(1003, "open")
    settings: tuple[tuple[dict[str, str], list[int]], ...] = (
        ({}, committed),
        ({"isolation.level": "read_committed"}, committed),
        ({"isolation_level": "read_uncommitted"}, [0, 1, 2, 5, 6, 8, 9]),
    )
    for number, (setting, wanted) in enumerate(settings):
        consumer = await create_consumer(three, f"readers-{number}", setting)
        await consumer.ask("POST", "/assignments", {"partitions": [{"topic": "t", "partition": 0}]})
        seen: list[int] = []
        while len(seen) < len(wanted):
            seen += offsets((await consumer.ask("GET", "/records?timeout=1000", accept=V2_BINARY)).json)
        assert seen == wanted
        assert (await consumer.ask("GET", "/records?timeout=0", accept=V2_BINARY)).json == []


async def create_consumer(three: HttpCluster, group: str, setting: dict[str, str]) -> HttpConsumer:
    """Creates a consumer on the broker that has the consumers of the group."""
    body = {"format": "binary", "auto.offset.reset": "earliest", **setting}
    made = (await three[1].ask("POST", f"/consumers/{group}", body, kind=V2)).json
    where = next(broker for broker in three.brokers.values() if made["base_uri"].startswith(broker.url))
    return HttpConsumer(where, made["base_uri"].removeprefix(where.url))


@run_by(run, "tmp_path", log_retention_check_interval_ms=20)
async def test_cold_records_are_read_as_hot_ones(site: HttpBroker) -> None:
    await site.create("t", 1, internal_segment_bytes="1024", local_retention_bytes="1")
    producers, committed = Producers(site), []
    for n in range(30):
        await producers.write(ONE, "a" * 200)
        committed += await producers.write(TWO, "c" * 200)
        await producers.end(TWO, commit=True)
        if n % 4 == 3:  # some transactions reach over several segments
            await producers.end(ONE, commit=False)
    await producers.end(ONE, commit=False)
    replica, at = site.broker.leader_replica("t", 0), 0
    await wait_until(lambda: replica.log.local_start_offset >= 60)
    seen: list[int] = []
    while at < replica.last_stable_offset:
        reply = (await site.get(f"{PATH}?offset={at}&max_bytes=3000")).json
        seen += offsets(reply["records"])
        assert reply["next_offset"] > at
        at = reply["next_offset"]
    assert seen == committed
