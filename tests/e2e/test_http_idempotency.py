"""Tests of `Idempotency-Key` on every produce route: a request that is sent again writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.e2e.http_cluster import HttpCluster
from tests.e2e.http_cluster import run as run_cluster
from tests.e2e.http_site import RAW, HttpBroker, HttpReply, http_broker, run
from tests.scenario import run_alone, run_by
from tiered.ids import KEYED_FROM
from tiered.records.batch import encode_batch

V2_BINARY = "application/vnd.kafka.binary.v2+json"
TIME_MS = 1_700_000_000_000
Send = Callable[[HttpBroker, str, str], Awaitable[HttpReply]]
"""Sends a request with this key and this value."""


async def send_v2(where: HttpBroker, key: str, value: str) -> HttpReply:
    body = {"records": [{"value": value}, {"key": "aw==", "value": value}]}
    return await where.ask("POST", "/topics/t", body, kind=V2_BINARY, Idempotency_Key=key)


async def send_v2_partition(where: HttpBroker, key: str, value: str) -> HttpReply:
    body = {"records": [{"value": value}]}
    return await where.ask("POST", "/topics/t/partitions/1", body, kind=V2_BINARY, Idempotency_Key=key)


async def send_v3(where: HttpBroker, key: str, value: str) -> HttpReply:
    body = {"value": {"type": "STRING", "data": value}, "timestamp": TIME_MS}
    return await where.ask("POST", f"{where.cluster}/topics/t/records", body, Idempotency_Key=key)


async def send_v3_stream(where: HttpBroker, key: str, value: str) -> HttpReply:
    text = b'{"value": {"type": "STRING", "data": "%b"}, "timestamp": %d}\n' % (value.encode(), TIME_MS)
    return await where.ask("POST", f"{where.cluster}/topics/t/records", text * 3, Idempotency_Key=key)


async def send_v3_batch(where: HttpBroker, key: str, value: str) -> HttpReply:
    entries = [
        {"id": f"{n}", "partition_id": n, "value": {"type": "STRING", "data": value}, "timestamp": TIME_MS}
        for n in range(2)
    ]
    path = f"{where.cluster}/topics/t/records:batch"
    return await where.ask("POST", path, {"entries": entries}, Idempotency_Key=key)


async def send_raw(where: HttpBroker, key: str, value: str) -> HttpReply:
    data = encode_batch([(TIME_MS, None, value.encode(), ())] * 2)
    reply = await where.ask("POST", "/topics/t/partitions/0/records", data, kind=RAW, Idempotency_Key=key)
    return reply._replace(body=reply.body.replace(b'"duplicate":true', b'"duplicate":false'))


ROUTES: dict[str, Send] = {
    "v2": send_v2,
    "v2 partition": send_v2_partition,
    "v3": send_v3,
    "v3 stream": send_v3_stream,
    "v3 batch": send_v3_batch,
    "raw": send_raw,
}


async def high_watermarks(where: HttpBroker) -> list[int]:
    return [(await where.get(f"/topics/t/partitions/{n}/offsets")).json["end_offset"] for n in range(2)]


@pytest.mark.parametrize("route", ROUTES)
@run_by(run, "tmp_path")
async def test_request_sent_again_gets_the_first_offsets_and_writes_nothing(site: HttpBroker, *, route: str) -> None:
    await site.create("t", 2)
    await site.produce("t", "before")
    send = ROUTES[route]
    first = await send(site, '"one"', "YQ==")
    assert first.status in (200, 207), first
    ends = await high_watermarks(site)
    for name in ('"one"', "one"):
        again = await send(site, name, "YQ==")
        assert (again.status, again.body) == (first.status, first.body)
    assert await high_watermarks(site) == ends
    other = await send(site, '"one"', "Yg==")
    assert (other.status, other.json["error_code"]) == (422, 42209), other
    assert await high_watermarks(site) == ends
    fresh = await send(site, '"two"', "Yg==")
    assert fresh.status == first.status
    assert sum(await high_watermarks(site)) > sum(ends)


@run_by(run_cluster, "tmp_path")
async def test_key_survives_a_restart_and_the_loss_of_the_leader(three: HttpCluster) -> None:
    await three.create("t", [2, 3, 1], [3, 1, 2], min_insync_replicas="1")
    first = await send_v3_batch(three[1], "one", "a")
    assert not first.json["failures"], first
    assert (await send_v3_batch(three[3], "one", "a")).json == first.json
    await three.end(2)
    again = await send_v3_batch(three[1], "one", "a")
    assert again.json == first.json
    assert await high_watermarks(three[3]) == [1, 1]
    other = await send_v3_batch(three[3], "one", "b")
    assert (other.status, other.json["error_code"]) == (422, 42209), other


@run_by(run_alone)
async def test_key_is_in_the_log_after_a_restart(*, tmp_path: Path) -> None:
    async with http_broker(tmp_path / "data") as site:
        await site.create("t", 2)
        first = await send_v3_stream(site, "one", "a")
    async with http_broker(tmp_path / "data") as site:
        assert (await send_v3_stream(site, "one", "a")).body == first.body
        assert (await send_v3_stream(site, "one", "b")).json["error_code"] == 42209


async def send_to(where: HttpBroker, partitions: list[int], value: str) -> HttpReply:
    body = {"records": [{"partition": each, "value": value} for each in partitions]}
    return await where.ask("POST", "/topics/t", body, kind=V2_BINARY, Idempotency_Key="one")


def is_refused(reply: HttpReply) -> bool:
    return (reply.status, reply.json.get("error_code")) == (422, 42209)


@run_by(run_alone)
async def test_refused_reuse_of_a_key_writes_no_partition_after_a_restart(*, tmp_path: Path) -> None:
    async with http_broker(tmp_path / "data") as site:
        await site.create("t", 2)
        assert (await send_to(site, [0], "YQ==")).status == 200
    async with http_broker(tmp_path / "data") as site:
        for partitions in ([1, 0], [0, 1]):
            assert is_refused(await send_to(site, partitions, "Yg=="))
        assert await high_watermarks(site) == [1, 0]


@run_by(run_cluster, "tmp_path")
async def test_reuse_refused_by_another_broker_writes_nothing_here(three: HttpCluster) -> None:
    await three.create("t", [1], [2])
    assert (await send_to(three[1], [0], "YQ==")).status == 200
    assert is_refused(await send_to(three[2], [1, 0], "Yg=="))
    assert await high_watermarks(three[3]) == [1, 0]


@run_by(run_cluster, "tmp_path")
async def test_reuse_refused_in_part_names_the_records_that_are_written(three: HttpCluster) -> None:
    await three.create("t", [1], [2], [3])
    assert (await send_to(three[1], [0], "YQ==")).status == 200
    reply = await send_to(three[3], [2, 1, 0], "Yg==")
    assert reply.status == 200, reply
    rows = [(row["partition"], row["offset"], row["error_code"]) for row in reply.json["offsets"]]
    assert rows == [(None, None, 1), (1, 0, None), (None, None, 1)]
    assert await high_watermarks(three[3]) == [1, 1]
    assert (await three[3].get("/topics/t/partitions/2/offsets")).json["end_offset"] == 0
    again = await send_to(three[3], [2, 1, 0], "Yg==")
    assert again.json == reply.json, "the reply of a retry must name them too"


@run_by(run_cluster, "tmp_path")
async def test_retry_of_a_reuse_names_what_its_own_broker_has_by_now(three: HttpCluster) -> None:
    await three.create("t", [1, 2], [2, 1], min_insync_replicas="1")
    assert (await send_to(three[1], [0], "YQ==")).status == 200
    first = await send_to(three[3], [1, 0], "Yg==")
    assert [row["offset"] for row in first.json["offsets"]] == [0, None]
    await three.end(1)
    again = await send_to(three[2], [1, 0], "Yg==")
    while again.json["offsets"][1]["error"] != first.json["offsets"][1]["error"]:  # partition 0 has no leader yet
        again = await send_to(three[2], [1, 0], "Yg==")
    assert again.json == first.json
    assert await high_watermarks(three[2]) == [1, 1]


@run_by(run, "tmp_path", producer_id_expiration_ms=1)
async def test_key_is_free_once_its_time_is_over(site: HttpBroker) -> None:
    await site.create("t", 2)
    for partition in range(2):  # the log of the other partition does not know the key
        body = {"records": [{"value": "aw==", "partition": partition}]}
        reply = await site.ask("POST", "/topics/t", body, kind=V2_BINARY, Idempotency_Key="one")
        while reply.status == 422:  # its time is not over yet
            reply = await site.ask("POST", "/topics/t", body, kind=V2_BINARY, Idempotency_Key="one")
        assert reply.status == 200 and reply.json["offsets"][0]["partition"] == partition, reply


@run_by(run_cluster, "tmp_path")
async def test_same_key_at_once_is_written_once(three: HttpCluster) -> None:
    await three.create("t", [1, 2], [2, 3])
    replies = await asyncio.gather(*(send_v3(three[1 + n % 3], "one", "a") for n in range(12)))
    assert {reply.status for reply in replies} <= {200, 409}
    assert len({reply.body for reply in replies if reply.status == 200}) == 1
    assert sum(await high_watermarks(three[1])) == 1
    conflicts = [reply.json for reply in replies if reply.status == 409]
    assert all(each["error_code"] == 40904 for each in conflicts)


@run_by(run, "tmp_path")
async def test_key_of_a_mebibyte_is_refused_and_the_longest_key_is_taken(site: HttpBroker) -> None:
    await site.create("t", 2)
    for length in (1 << 20, (1 << 20) + 1):
        reply = await send_v3(site, "x" * length, "a")
        assert reply.status == 431, reply
    assert (await send_v3(site, "x" * 256, "a")).status == 400
    assert (await send_v3(site, "x" * 255, "a")).status == 200
    assert sum(await high_watermarks(site)) == 1


@run_by(run, "tmp_path")
async def test_record_key_of_a_mebibyte_is_written_once(site: HttpBroker) -> None:
    await site.create("t", 2)
    await site.create("large", 1, max_message_bytes=str(2 << 20))
    record = {"key": {"type": "STRING", "data": "k" * (1 << 20)}, "value": {"type": "STRING", "data": "v"}}
    status = []
    for topic in ("t", "large", "large"):
        path = f"{site.cluster}/topics/{topic}/records"
        status.append((await site.ask("POST", path, record, Idempotency_Key="one")).status)
    assert status == [413, 200, 200]
    assert await high_watermarks(site) == [0, 0]
    assert (await site.get("/topics/large/partitions/0/offsets")).json["end_offset"] == 1


@run_by(run, "tmp_path")
async def test_raw_batch_under_the_id_of_a_key_is_refused(site: HttpBroker) -> None:
    await site.create("t", 2)
    fine = encode_batch([(TIME_MS, None, b"v", ())])
    forged = encode_batch([(TIME_MS, None, b"v", ())], producer_id=KEYED_FROM, producer_epoch=0, base_sequence=0)
    for body in (forged, fine + forged):
        reply = await site.ask("POST", "/topics/t/partitions/0/records", body, kind=RAW)
        assert (reply.status, "Idempotency-Key" in reply.json["message"]) == (400, True), reply
    assert await high_watermarks(site) == [0, 0]


@run_by(run, "tmp_path")
async def test_refused_requests_leave_their_key_unused(site: HttpBroker) -> None:
    await site.create("t", 2, max_message_bytes="300")
    large = await send_v3(site, "one", "a" * 500)
    assert large.status == 413, large
    assert (await send_v3(site, "one", "a")).status == 200
    many = {"records": [{"value": "YWFhYWFhYWFhYWFhYWFhYWFh", "partition": 0}] * 30}
    split = await site.ask("POST", "/topics/t", many, kind=V2_BINARY, Idempotency_Key="two")
    assert (split.status, "one batch" in split.json["message"]) == (413, True), split
    for key in ('"open', "x" * 256):
        assert (await send_v3(site, key, "a")).status == 400
    own = encode_batch([(TIME_MS, None, b"v", ())], producer_id=5, producer_epoch=0, base_sequence=0)
    raw = await site.ask("POST", "/topics/t/partitions/0/records", own, kind=RAW, Idempotency_Key="three")
    assert raw.status == 422, raw
    twice = encode_batch([(TIME_MS, None, b"v", ())]) * 2
    raw = await site.ask("POST", "/topics/t/partitions/0/records", twice, kind=RAW, Idempotency_Key="three")
    assert raw.status == 422, raw
