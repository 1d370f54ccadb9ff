"""Tests of client quotas over HTTP: 429 with Retry-After, and streams that wait."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.http_site import HttpBroker, run, wait_until
from tests.scenario import run_by
from tiered.controller.requests import AlterClientQuotas, QuotaAlteration
from tiered_api.http.exchange import media_types, metering
from tiered_api.http.server.server import HttpConnection

RECORD = {"value": {"type": "STRING", "data": "x" * 2000}}
APP = {"X_Client_Id": "app"}
READ = "/topics/t/partitions/0/records?offset=0"


async def put(site: HttpBroker, **quotas: float | None) -> None:
    """Sets or removes quotas of the client id `app`."""
    alteration = QuotaAlteration((("client-id", "app"),), tuple(quotas.items()))
    assert await site.broker.submit(AlterClientQuotas((alteration,))) == (None,)


@run_by(run, "tmp_path")
async def test_writer_over_its_quota_gets_429_and_others_do_not(site: HttpBroker) -> None:
    await site.create("t")
    path = f"{site.cluster}/topics/t/records"

    async def write(**headers: str) -> int:
        answer = await site.ask("POST", path, RECORD, **headers)
        if answer.status == 429:
            assert 1_000 < int(answer.headers["Retry-After"]) < 2_500, "about 2,000 bytes at one a second"
        return answer.status

    assert [await write(**APP) for _ in range(3)] == [200] * 3, "the head is known now"
    await put(site, producer_byte_rate=1.0)
    assert [await write(**APP) for _ in range(3)] == [200, 429, 429], "the first request may go beyond the quota"
    assert [await write(), await write(X_Client_Id="other")] == [200, 200]
    batches = await site.ask("POST", f"{path}:batch", {"entries": [{"id": "1", **RECORD}]}, **APP)
    v2 = await site.ask("POST", "/topics/t", b"{}", kind="application/vnd.kafka.json.v2+json", **APP)
    assert (batches.status, v2.status) == (429, 429)
    await put(site, producer_byte_rate=None)
    assert await write(**APP) == 200


@run_by(run, "tmp_path")
async def test_compressed_body_counts_by_what_it_writes(site: HttpBroker) -> None:
    await site.create("t")
    await put(site, producer_byte_rate=100_000.0)
    body = gzip.compress(json.dumps({"records": [{"value": "x" * 500_000}] * 20}).encode())
    kind = media_types.V2_JSON
    for expected in (200, 429):
        reply = await site.ask("POST", "/topics/t", body, kind=kind, Content_Encoding="gzip", **APP)
        assert reply.status == expected


@run_by(run, "tmp_path")
async def test_reader_over_its_quota_gets_429(site: HttpBroker) -> None:
    await site.create("t")
    await site.produce("t", "x" * 2000)
    await put(site, consumer_byte_rate=1.0)
    answers = [await site.ask("GET", READ, **APP) for _ in range(2)]
    assert [each.status for each in answers] == [200, 429]
    assert 1_000 < int(answers[1].headers["Retry-After"]) < 4_000
    assert (await site.get(READ)).status == 200
    assert (await site.ask("GET", "/topics", **APP)).status == 200, "no records"


@run_by(run, "tmp_path", log_retention_check_interval_ms=50, remote_log_manager_task_interval_ms=50)
async def test_reader_that_costs_too_many_requests_to_the_bucket_gets_429(site: HttpBroker) -> None:
    await site.create("t", internal_segment_bytes="4096", local_retention_bytes="1")
    for number in range(12):
        await site.produce("t", f"{number:03}" * 300)
    replica = site.broker.leader_replica("t", 0)
    await wait_until(lambda: replica.local_start_offset >= 6)
    await put(site, store_request_rate=0.1)
    statuses = list[int]()
    while 429 not in statuses and len(statuses) < 5:
        path = f"/topics/t/partitions/0/records?offset={2 * len(statuses)}&max_bytes=1"
        statuses.append((await site.ask("GET", path, **APP)).status)
    assert statuses == [200] * (len(statuses) - 1) + [429] and 1 < len(statuses) < 5
    assert (await site.ask("POST", "/topics/t", {"records": [{"value": "eA=="}]}, **APP)).status == 200, "a write"
    assert (await site.get(READ)).status == 200, "another client"


@run_by(run, "tmp_path")
async def test_write_that_fails_is_charged_and_a_refused_one_is_not(site: HttpBroker) -> None:
    await put(site, producer_byte_rate=1.0)
    path = f"{site.cluster}/topics/absent/records:batch"
    answers = [await site.ask("POST", path, {"entries": [{"id": "1", **RECORD}]}, **APP) for _ in range(3)]
    assert [each.status for each in answers] == [404, 429, 429]
    assert int(answers[2].headers["Retry-After"]) < 2_500, "about 2,000 bytes at one a second"


@run_by(run, "tmp_path")
async def test_client_above_its_share_of_time_gets_429(site: HttpBroker) -> None:
    await put(site, request_percentage=0.0001)
    answers = [await site.ask("GET", "/topics", **APP) for _ in range(2)]
    assert [each.status for each in answers] == [200, 429]
    assert int(answers[1].headers["Retry-After"]) > 1, "a millisecond is about a hundred seconds of the quota"
    assert (await site.ask("GET", "/topics", X_Client_Id="other")).status == 200
    assert (await site.ask("GET", "/healthz", **APP)).status == 200, "probes have no quota"
    await put(site, request_percentage=None)
    assert (await site.ask("GET", "/topics", **APP)).status == 200


@run_by(run, "tmp_path")
async def test_time_of_a_change_counts_for_its_client(site: HttpBroker) -> None:
    await put(site, request_percentage=50.0)
    site.broker.view.change_time.spend(10**12)
    topics = f"{site.cluster}/topics"
    made = await site.ask("POST", topics, {"topic_name": "dear", "partitions_count": 800}, **APP)
    assert made.status == 201
    assert (await site.ask("GET", topics, **APP)).status == 429, "8 s, of which it has 5"


@pytest.mark.parametrize("work", ["parse", "decompress"])
def test_time_of_threads_counts_for_the_client(tmp_path: Path, work: str) -> None:
    """The body is refused in the end, so the event loop does next to nothing."""
    if work == "parse":
        record = b'{"value":[%b1]},' % (b"[]," * 50)
        sent, headers, refusal = b'{"records":[%b{"wrong":1}]}' % (record * 20_000), APP, 422
    else:
        sent, headers, refusal = gzip.compress(bytes(60 << 20))[:-9], {**APP, "Content_Encoding": "gzip"}, 400

    async def scenario(site: HttpBroker) -> None:
        await site.create("t")
        await put(site, request_percentage=0.1)
        first = await site.ask("POST", "/topics/t", sent, kind=media_types.V2_JSON, **headers)
        second = await site.ask("GET", "/topics", **APP)
        assert (first.status, second.status) == (refusal, 429)
        assert int(second.headers["Retry-After"]) > 30, "30 ms are 30 s of the quota"

    run(tmp_path, scenario)


@run_by(run, "tmp_path")
async def test_client_in_debt_of_partitions_gets_429(site: HttpBroker) -> None:
    await put(site, controller_mutation_rate=1.0)
    topics = f"{site.cluster}/topics"

    async def create(name: str, count: int, **headers: str) -> int:
        body = {"topic_name": name.strip("?"), "partitions_count": count, "validate_only": name.endswith("?")}
        answer = await site.ask("POST", topics, body, **headers)
        if answer.status == 429:
            assert 1 < int(answer.headers["Retry-After"]) <= 9, "twenty, less the eleven of the window"
        return answer.status

    assert [await create("a", 20, **APP), await create("b", 1, **APP)] == [201, 429]
    assert await create("b?", 1, **APP) == 429, "the controller decides it too"
    assert (await site.ask("DELETE", f"{topics}/a", **APP)).status == 429
    assert (await site.ask("PATCH", f"{topics}/a", {"partitions_count": 21}, **APP)).status == 429
    setting = await site.ask("PUT", f"{topics}/a/configs/retention.ms", {"value": "1000"}, **APP)
    assert setting.status == 429 and "retention.ms" not in site.broker.image.topics["a"].configs
    assert await create("b", 1) == 201, "another client"
    assert "b" in site.broker.image.topics and len(site.broker.image.topics["a"].partitions) == 20


@run_by(run, "tmp_path")
async def test_client_id_has_a_limit(site: HttpBroker) -> None:
    await put(site, consumer_byte_rate=1.0)
    assert (await site.ask("GET", "/topics", X_Client_Id="a" * 256)).status == 400


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
@run_by(run, "tmp_path")
async def test_stream_of_events_waits_until_the_quota_allows_more(
    site: HttpBroker, *, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quota is set before the stream begins, or after its first event. A stream that waits sends comments."""
    monkeypatch.setattr(metering, "NAP_SECONDS", 0.05)
    await site.create("t")
    await site.produce("t", "x" * 2000)
    if not is_late:
        await put(site, consumer_byte_rate=1.0)
    headers = {"Accept": "text/event-stream", "X-Client-Id": "app"}
    timeout = aiohttp.ClientTimeout(total=60)
    async with site.session.get(site.url + READ, headers=headers, timeout=timeout) as response:
        seen = bytearray()

        async def read_on() -> None:
            async for piece in response.content.iter_any():
                seen.extend(piece)

        reading = asyncio.get_running_loop().create_task(read_on())
        await wait_until(lambda: b"x" * 2000 in seen)
        if is_late:
            await put(site, consumer_byte_rate=1.0)
            await site.produce("t", "z" * 2000)
        throttled = site.broker.metrics.counter("tiered_throttled_total", "", ("quota", "entity"))
        await wait_until(lambda: throttled.value("consumer_byte_rate", "client-id app") >= 1)
        await site.produce("t", "y" * 50)
        comments = seen.count(b": silence")
        await wait_until(lambda: seen.count(b": silence") > comments + 1)
        assert b"y" * 50 not in seen
        reading.cancel()


@run_by(run, "tmp_path")
async def test_body_is_charged_while_it_comes_and_waits_for_the_quota(
    site: HttpBroker, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, bodies of one-byte chunks kept the broker busy until their end, whatever their client had used."""
    monkeypatch.setattr(metering, "NAP_SECONDS", 0.01)
    await site.create("t")
    await put(site, request_percentage=0.0001)
    limits = site.broker.client_quotas.find_limits("ANONYMOUS", "app")
    assert limits is not None and limits.requests is not None
    host, port = site.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST {site.cluster}/topics/t/records:batch HTTP/1.1\r\nHost: localhost\r\nX-Client-Id: app\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n".encode()
    )
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"1\r\n \r\n" * 1000)
    limit = limits.requests
    await wait_until(lambda: site.broker.client_quotas.find_pause(limit) > 0)
    (transport,) = [
        each.transport
        for each in site.http._listener.connections
        if isinstance(each, HttpConnection) and each.transport is not None and not each.is_idle
    ]
    for _ in range(40):
        writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
    await wait_until(lambda: not transport.is_reading())
    body = json.dumps({"entries": [{"id": "1", **RECORD}]}).encode()
    writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
    await put(site, request_percentage=None)
    assert (await reader.readline()).startswith(b"HTTP/1.1 207")
    writer.close()
