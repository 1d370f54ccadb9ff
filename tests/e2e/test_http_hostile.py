"""Tests of hostile requests: each gets an error in the usual form or a closed connection, and harms no other client."""

import asyncio
import base64
import gzip
import json
import random
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.http_site import RAW, HttpBroker, run, wait_until
from tests.scenario import run_by
from tiered.records.batch import Codec, encode_batch
from tiered_api.http.exchange.limits import HttpLimits

HOST = b"Host: localhost\r\n"


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def body_of(answer: bytes) -> dict[str, object]:
    body: dict[str, object] = json.loads(answer.split(b"\r\n\r\n", 1)[1])
    return body


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /v3/clusters HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
        b"GET /v3/clusters HTTP/1.1\r\nHost: \xe2\x82\xac\r\n\r\n",
        b'GET /v3/clusters HTTP/1.1\r\nHost: a/b?"<\r\n\r\n',
        b"CONNECT other:443 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/9.9\r\n" + HOST + b"\r\n",
        b"GET /\0 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET / HTTP/1.1\r\nBad Header: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: 1\r\n folded\r\n\r\n",
        b"POST /topics/t HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST /topics/t HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /topics/t HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /topics/t HTTP/1.1\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"A%d: 1\r\n" % n for n in range(200)) + b"\r\n",
    ],
    ids=lambda data: repr(data[:40]),
)
@run_by(run, "tmp_path")
async def test_request_that_is_not_http_gets_400_and_the_connection_ends(
    site: HttpBroker, *, request_bytes: bytes
) -> None:
    answer = await site.raw(request_bytes)
    assert status_of(answer) in (400, 414, 431), answer
    assert body_of(answer)["error_code"] == status_of(answer)
    assert b"Traceback" not in answer and b".py" not in answer
    assert (await site.get("/healthz")).status == 200


@run_by(run, "tmp_path")
async def test_line_of_a_head_that_is_too_long_gets_431_without_its_bytes(site: HttpBroker) -> None:
    key = b"Idempotency-Key: " + b"k" * 20_000
    for head in (b"POST /topics/t HTTP/1.1\r\n" + HOST + key, b"GET /" + b"k" * 20_000 + b" HTTP/1.1\r\n" + HOST):
        answer = await site.raw(head + b"\r\n\r\n")
        assert (status_of(answer), b"kkk" in answer) == (431, False), answer


@run_by(run, "tmp_path")
async def test_wrong_methods_media_types_and_addresses_are_named(site: HttpBroker) -> None:
    await site.create("t")
    topic = f"{site.cluster}/topics/t"
    refused = await site.ask("PUT", topic, {})
    assert (refused.status, refused.json["error_code"]) == (405, 405)
    assert refused.headers["Allow"] == "DELETE, GET, HEAD, PATCH"
    assert (await site.ask("OPTIONS", topic)).status == 405
    assert (await site.ask("POST", f"{topic}/records", b"{}", kind="text/plain")).status == 415
    assert (await site.ask("POST", f"{topic}/records", b"{}", kind="")).status == 415
    assert (await site.get("/../../etc/passwd")).status == 404
    for target in (b"/topics/%2e%2e%2f%2e%2e%2fetc", b"/topics/..", b"/topics/../../etc/passwd", b"/topics//t"):
        answer = await site.raw(b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        assert status_of(answer) == 404, (target, answer)
    for target in (b"/topics/%00", b"/topics/%ff", b"http://other/topics"):
        answer = await site.raw(b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        assert status_of(answer) == 400, (target, answer)
    assert (await site.ask("GET", "/nothing", Expect="sorcery")).status == 404
    assert (await site.ask("HEAD", "/topics")).body == b""


def test_too_large_body_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async def scenario(site: HttpBroker) -> None:
        await site.create("t")
        head = b"POST /topics/t/partitions/0/records HTTP/1.1\r\n" + HOST + b"Content-Type: " + RAW.encode() + b"\r\n"
        grown = b"".join(b"10000\r\n" + b"x" * 65536 + b"\r\n" for _ in range(20))
        announced, chunked = await asyncio.gather(
            site.raw(head + b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n"),
            site.raw(head + b"Transfer-Encoding: chunked\r\n\r\n" + grown),
        )
        assert status_of(announced) == 413 and body_of(announced)["error_code"] == 413
        assert status_of(chunked) == 413

    run(tmp_path, scenario, HttpLimits(body_bytes=1 << 20))


@run_by(run, "tmp_path")
async def test_client_with_expect_continue_gets_100(site: HttpBroker) -> None:
    await site.create("t")
    host, port = site.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = encode_batch([(site.broker.world.clock.wall_ms(), None, b"v", ())])
    writer.write(
        b"POST /topics/t/partitions/0/records HTTP/1.1\r\n" + HOST + b"Content-Type: application/octet-stream\r\n"
        b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(data)
    )
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(data)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
    writer.close()


@run_by(run, "tmp_path")
async def test_stream_with_expect_continue_gets_100_before_its_reply(site: HttpBroker) -> None:
    await site.create("t")
    host, port = site.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST {site.cluster}/topics/t/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n".encode()
    )
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b'26\r\n{"value":{"type":"STRING","data":"a"}}\r\n')
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
    assert b'"offset":0' in await reader.readuntil(b"}\n")
    writer.write(b"0\r\n\r\n")
    assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"0\r\n\r\n")
    writer.close()


@pytest.mark.parametrize("verb", ["records", "records:batch"])
@run_by(run, "tmp_path")
async def test_broken_chunked_body_is_refused_and_earlier_records_stay(site: HttpBroker, *, verb: str) -> None:
    await site.create("t")
    host, port = site.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST {site.cluster}/topics/t/{verb} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n".encode()
    )
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b'26\r\n{"value":{"type":"STRING","data":"a"}}\r\n')
    if verb == "records":
        assert b'"offset":0' in await reader.readuntil(b"}\n")
    writer.write(b"zz\r\nno chunk\r\n")
    rest = await reader.read()
    assert b'"error_code":400' in rest and b"chunk" in rest
    assert len((await site.get("/topics/t/partitions/0/records")).json["records"]) == (verb == "records")
    writer.close()


@run_by(run, "tmp_path")
async def test_too_deeply_nested_json_is_returned_as_base64(site: HttpBroker) -> None:
    await site.create("t")
    deep = "[" * 600 + "]" * 600
    await site.produce("t", deep, "1")
    path = "/topics/t/partitions/0/records"
    first, second = (await site.get(f"{path}?format=json")).json["records"]
    assert first["value"] is None and base64.b64decode(first["value_base64"]).decode() == deep
    assert second["value"] == 1
    refused = await site.get(path, "application/vnd.kafka.json.v2+json")
    assert (refused.status, refused.json["error_code"]) == (422, 42203)


def test_slow_heads_slow_bodies_and_idle_connections_are_closed(tmp_path: Path) -> None:
    async def scenario(site: HttpBroker) -> None:
        await site.create("t")
        body = b"POST /topics/t HTTP/1.1\r\n" + HOST + b"Content-Type: application/vnd.kafka.json.v2+json\r\n"
        records = f"POST {site.cluster}/topics/t/records HTTP/1.1\r\nContent-Type: application/json\r\n".encode()
        nothing, head, slow, stream = await asyncio.gather(
            site.raw(b""),
            site.raw(b"GET /topics HTTP/1.1\r\nHost:"),
            site.raw(body + b"Content-Length: 10\r\n\r\n{"),
            site.raw(records + HOST + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n'),
        )
        assert (nothing, head, status_of(slow)) == (b"", b"", 408) and b'"error_code":408' in stream

    run(tmp_path, scenario, HttpLimits(idle_seconds=0.3, body_seconds=0.3, stream_idle_seconds=0.3))


def test_client_that_never_reads_is_disconnected_and_its_memory_freed(tmp_path: Path) -> None:
    async def scenario(site: HttpBroker) -> None:
        await site.create("t", 1, max_message_bytes="16000000")
        now = site.broker.world.clock.wall_ms()
        data = encode_batch([(now, None, b"x" * 5_000_000, ())])
        for _ in range(4):
            await site.ask("POST", "/topics/t/partitions/0/records", data, kind=RAW)
        host, port = site.url.removeprefix("http://").split(":")
        for accept in (b"application/json", b"application/octet-stream", b"text/event-stream"):
            lazy = socket.socket()
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect((host, int(port)))
            ask = b"GET /topics/t/partitions/0/records?max_bytes=30000000 HTTP/1.1\r\n" + HOST
            lazy.sendall(ask + b"Accept: " + accept + b"\r\n\r\n")
            gauge = site.broker.metrics.gauge("tiered_http_connections", "")
            await wait_until(lambda gauge=gauge: gauge.value() >= 2)  # type: ignore[misc]
            await wait_until(lambda gauge=gauge: gauge.value() <= 1)  # type: ignore[misc]
            lazy.close()
        assert (await site.get("/healthz")).status == 200

    run(tmp_path, scenario, HttpLimits(write_seconds=0.3))


def test_replies_of_expanding_batches_stay_within_the_memory_budget(tmp_path: Path) -> None:
    async def scenario(site: HttpBroker) -> None:
        await site.create("t")
        value = random.Random(1).randbytes(220_000) + bytes(20 << 20)  # not more than a hundred times its size
        bomb = encode_batch([(site.broker.world.clock.wall_ms(), None, value, ())], codec=Codec.ZSTD)
        assert len(bomb) < 230_000
        path = "/topics/t/partitions/0/records?format=binary"
        assert (await site.ask("POST", path.partition("?")[0], bomb, kind=RAW)).status == 200
        host, port = site.url.removeprefix("http://").split(":")
        loop = asyncio.get_running_loop()
        with socket.socket() as whole, socket.socket() as stream:
            for each, accept in ((whole, "application/json"), (stream, "text/event-stream")):
                each.setblocking(False)
                await loop.sock_connect(each, (host, int(port)))
                await loop.sock_sendall(
                    each, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode()
                )
                assert await loop.sock_recv(each, 12) == b"HTTP/1.1 200"
            budget = site.http._listener.context.budget
            await wait_until(lambda: 0 <= budget.free < 20 << 20)  # no third one fits, whoever asks for it
            full = await site.get(path)
            assert (full.status, full.json["error_code"], full.headers["Retry-After"]) == (503, 503, "1")
        gauge = site.broker.metrics.gauge("tiered_http_connections", "")
        await wait_until(lambda: gauge.value() <= 1)
        assert (await site.get(path)).status == 200

    # Three quarters of it, which one address may have, are enough for two replies.
    run(tmp_path, scenario, HttpLimits(memory_bytes=70 << 20, body_seconds=0.5))


@run_by(run, "tmp_path")
async def test_unfinished_record_of_a_stream_counts_in_the_memory_budget(site: HttpBroker) -> None:
    """A KiB that becomes 600 KB, and then nothing for as long as a stream may be silent."""
    await site.create("t")
    budget, ends = site.http._listener.context.budget, asyncio.Event()
    text = b'{"value":{"type":"STRING","data":"' + b" " * 600_000

    async def send() -> AsyncIterator[bytes]:
        yield gzip.compress(text)
        await ends.wait()
        yield gzip.compress(b'"}}')

    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    path = f"{site.url}{site.cluster}/topics/t/records"
    streams = [asyncio.create_task(site.session.post(path, headers=headers, data=send()).__aenter__()) for _ in "ab"]
    await wait_until(lambda: budget.size - budget.free == 2 * len(text))
    ends.set()
    for each in streams:
        assert b"offset" in await (await each).read()
    await wait_until(lambda: budget.free == budget.size)


def test_concurrent_compressed_bodies_do_not_deadlock_on_memory(tmp_path: Path) -> None:
    async def scenario(site: HttpBroker) -> None:
        await site.create("t")
        host, port = site.url.removeprefix("http://").split(":")
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        for reader, writer in opened:
            writer.write(
                b"POST /topics/t HTTP/1.1\r\n" + HOST + b"Content-Type: application/vnd.kafka.json.v2+json\r\n"
                b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
            )
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        body = gzip.compress(b'{"records":[{"value":1}]}')
        for _, writer in opened:
            writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        for reader, writer in opened:
            assert status_of(await reader.readuntil(b"\r\n\r\n")) == 200
            writer.close()

    run(tmp_path, scenario, HttpLimits(memory_bytes=(2 << 20) + 4096, body_bytes=1 << 20, body_seconds=0.5))


@run_by(run, "tmp_path")
async def test_unexpected_error_is_500_without_details(site: HttpBroker) -> None:
    await site.create("t")
    broken = site.broker.leader_replica("t", 0).unified_log
    kept, broken.hot = broken.hot, None  # type: ignore[assignment]
    answer = await site.get("/topics/t/partitions/0/records")
    assert (answer.status, answer.json["error_code"]) == (500, 500)
    assert b"NoneType" not in answer.body and b"Traceback" not in answer.body
    broken.hot = kept


@run_by(run, "tmp_path")
async def test_pipelined_and_split_requests_keep_their_order_with_the_fast_path(site: HttpBroker) -> None:
    await site.create("t")
    body = b'{"value":{"type":"JSON","data":1}}'
    head = (
        f"POST {site.cluster}/topics/t/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    other = b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    host, port = site.url.removeprefix("http://").split(":")

    async def send_pieces(*pieces: bytes, answers: int) -> list[int]:
        """Sends pieces one after the other; returns the offsets (-1 for other replies)."""
        reader, writer = await asyncio.open_connection(host, int(port))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        found: list[int] = []
        for _ in range(answers):
            start = await reader.readuntil(b"\r\n\r\n")
            length = int(start.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            value = json.loads(await reader.readexactly(length))
            found.append(value["offset"] if isinstance(value, dict) else -1)
        writer.close()
        return found

    assert await send_pieces(head + body, answers=1) == [0]
    assert await send_pieces(head + body, head + body, answers=2) == [1, 2]
    assert await send_pieces(head + body + head + body, head + body, answers=3) == [3, 4, 5]
    assert await send_pieces(head + body + head, body, head + body, answers=3) == [6, 7, 8]
    assert await send_pieces(head, body, other, head + body, answers=3) == [9, -1, 10]
    assert await send_pieces(other + head + body, head + body + other, answers=4) == [-1, 11, 12, -1]
    assert await send_pieces(*[bytes([byte]) for byte in head + body], head + body, answers=2) == [13, 14]
