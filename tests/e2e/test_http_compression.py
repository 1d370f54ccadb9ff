"""Tests of batches of HTTP that take long to compress: a thread compresses them, and nothing else changes."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Any

import pytest

from tests.e2e.http_cluster import HttpCluster
from tests.e2e.http_cluster import run as run_cluster
from tests.e2e.http_site import TEST_SECONDS, HttpBroker, HttpReply, run, wait_until
from tests.e2e.test_http_login import BASIC, basic, remove_user, set_user
from tests.e2e.test_http_quotas import APP, put
from tests.scenario import run_by
from tiered_api.http.exchange.context import INLINE_BYTES, WORKERS, HttpContext

V2_JSON = "application/vnd.kafka.json.v2+json"
KIB = 1 << 10
SLOW = {"gzip": (9, 60 * KIB, "ab"), "lz4": (17, 60 * KIB, "ab"), "zstd": (12, 4096 * KIB, "0123456789abcdef")}
"""Level, size and letters of a value. A thread compresses at high levels of gzip and lz4 below INLINE_BYTES too."""
ONE_OF_EACH = [(codec, () if codec == "gzip" else pytest.mark.also("values")) for codec in SLOW]
"""Codecs and marks of tests of another form: v3 has all codecs."""
TRANSACTIONS = "/tiered/v1/transactions"


def random_text(size: int, letters: str) -> str:
    return "".join(random.Random(7).choices(letters, k=size))


def context_of(site: HttpBroker) -> HttpContext:
    return site.http._listener.context


async def create_slow(site: HttpBroker, codec: str) -> str:
    """Creates a topic of the codec, and returns a value that takes long."""
    level, size, letters = SLOW[codec]
    configs = {f"compression_{codec}_level": str(level), "max_message_bytes": "16000000"}
    await site.create("plain", 1, max_message_bytes="16000000")
    await site.create("slow", 1, compression_type=codec, **configs)
    return random_text(size, letters)


def v2(topic: str, value: str, **more: str) -> tuple[str, dict[str, Any], dict[str, str]]:
    return f"/topics/{topic}", {"records": [{"value": value}]}, {"kind": V2_JSON, **more}


def v3(cluster: str, topic: str, value: str, **more: str) -> tuple[str, dict[str, Any], dict[str, str]]:
    data = {"partition_id": 0, "value": {"type": "STRING", "data": value}}
    return f"{cluster}/topics/{topic}/records", data, more


async def write(site: HttpBroker, sent: tuple[str, dict[str, Any], dict[str, str]]) -> HttpReply:
    path, body, more = sent
    return await site.ask("POST", path, body, **more)


async def seconds_taken(site: HttpBroker, sent: tuple[str, dict[str, Any], dict[str, str]]) -> tuple[float, float]:
    """Returns the CPU time of the event loop and that of other threads for a request, of each the less of two."""
    loop, threads = [], []
    for _ in range(2):
        began, all_began = time.thread_time(), time.process_time()
        reply = await write(site, sent)
        loop.append(time.thread_time() - began)
        threads.append(time.process_time() - all_began - loop[-1])
        assert reply.status == 200, reply
    return min(loop), min(threads)


@pytest.mark.parametrize(
    ("form", "codec"),
    [*((v3, codec) for codec in SLOW), *(pytest.param(v2, codec, marks=also) for codec, also in ONE_OF_EACH)],
)
@run_by(run, "tmp_path")
async def test_slow_compression_does_not_hold_the_event_loop(site: HttpBroker, *, codec: str, form: Any) -> None:
    value = await create_slow(site, codec)
    forms = (v3(site.cluster, each, value) if form is v3 else v2(each, value) for each in ("plain", "slow"))
    (plain, _), (slow, compressed) = [await seconds_taken(site, each) for each in forms]
    assert slow < plain + compressed / 2
    assert site.broker.leader_replica("slow", 0).high_watermark == 2


@pytest.mark.parametrize("codec", [pytest.param(codec, marks=also) for codec, also in ONE_OF_EACH])
@run_by(run_cluster, "tmp_path")
async def test_transaction_that_is_slow_to_compress_does_not_hold_the_loop(three: HttpCluster, *, codec: str) -> None:
    level, size, letters = SLOW[codec]
    value = random_text(size, letters)
    configs = {f"compression_{codec}_level": str(level), "compression_type": codec}
    await three.create("plain", [1], max_message_bytes="16000000")
    await three.create("slow", [1], max_message_bytes="16000000", **configs)
    taken = []
    for name in ("plain", "slow"):
        record = {"topic_name": name, "partition_id": 0, "value": {"type": "STRING", "data": value}}
        taken.append(await seconds_taken(three[1], (TRANSACTIONS, {"records": [record]}, {})))
    (plain, _), (slow, compressed) = taken
    assert slow < plain + compressed / 2


@pytest.mark.parametrize("key", ["", "once"])
@run_by(run, "tmp_path", authentication_method=BASIC)
async def test_removed_user_writes_nothing_after_a_wait_for_compression(site: HttpBroker, *, key: str) -> None:
    await set_user(site, "alice", "wonderland")
    value, context, go = await create_slow(site, "gzip"), context_of(site), threading.Event()
    busy = [asyncio.create_task(context.run_job(INLINE_BYTES + 1, go.wait, TEST_SECONDS)) for _ in range(WORKERS)]
    await wait_until(lambda: context._turns.taken == WORKERS)
    more = {"Authorization": basic("alice", "wonderland"), **({"Idempotency_Key": key} if key else {})}
    written = asyncio.create_task(write(site, v2("slow", value, **more)))
    await wait_until(lambda: context._turns.waiting > 0)
    await remove_user(site, "alice")
    go.set()
    reply = await written
    assert site.broker.leader_replica("slow", 0).log.end_offset == 0, reply
    assert b"the login has ended" in reply.body
    await asyncio.gather(*busy)


@run_by(run, "tmp_path")
async def test_slow_and_quick_records_of_one_connection_keep_their_order(site: HttpBroker) -> None:
    value = await create_slow(site, "gzip")
    path = f"{site.cluster}/topics/slow/records"
    for _ in range(2):  # the second head takes the short path
        for each in (value, "quick", value, "quick"):
            reply = await write(site, (path, v3(site.cluster, "slow", each)[1], {}))
            assert reply.status == 200, reply
    rows = (await site.get("/topics/slow/partitions/0/records?offset=0&format=string")).json["records"]
    assert [len(row["value"]) for row in rows] == [len(value), 5, len(value), 5] * 2


@run_by(run, "tmp_path")
async def test_key_of_a_batch_that_is_slow_to_compress_writes_it_once(site: HttpBroker) -> None:
    value = await create_slow(site, "lz4")
    sent = v2("slow", value, Idempotency_Key="k1")
    replies = await asyncio.gather(*(write(site, sent) for _ in range(3)))
    assert {reply.status for reply in replies} <= {200, 409}, replies
    again = await write(site, sent)
    assert (again.status, again.json["offsets"][0]["offset"]) == (200, 0)
    assert site.broker.leader_replica("slow", 0).high_watermark == 1


@run_by(run, "tmp_path")
async def test_many_batches_of_one_request_leave_turns_to_others(site: HttpBroker) -> None:
    """Each batch is small enough for the event loop, and all together take 40 times as long."""
    await site.create("slow", 1, compression_type="gzip", max_message_bytes="70000")
    records = [{"value": random_text(50 * KIB, "ab") + str(n)} for n in range(40)]
    written = asyncio.create_task(site.ask("POST", "/topics/slow", {"records": records}, kind=V2_JSON))
    turns, ended = list[float](), asyncio.Event()
    written.add_done_callback(lambda _: ended.set())
    while not ended.is_set():
        began = time.thread_time()
        await asyncio.sleep(0)
        turns.append(time.thread_time() - began)
    assert (await written).status == 200
    assert site.broker.leader_replica("slow", 0).high_watermark == 40
    assert max(turns) < sum(turns) / 4


@run_by(run, "tmp_path")
async def test_level_above_the_limit_of_the_broker_is_refused_over_http(site: HttpBroker) -> None:
    topics = f"{site.cluster}/topics"
    for level, status in (("22", 400), ("12", 201)):
        configs = [{"name": "compression.zstd.level", "value": level}]
        made = await site.ask("POST", topics, {"topic_name": f"t{level}", "configs": configs})
        assert made.status == status, made
    for name, value in (("compression.zstd.level", "13"), ("max.message.bytes", "104857601")):
        altered = await site.ask("POST", f"{topics}/t12/configs:alter", {"data": [{"name": name, "value": value}]})
        assert (altered.status, f"tiered.{name}.max" in altered.json["message"]) == (400, True), altered
        put = await site.ask("PUT", f"{topics}/t12/configs/{name}", {"value": value})
        assert (put.status, f"tiered.{name}.max" in put.json["message"]) == (400, True), put


@pytest.mark.parametrize("kind", ["records", "transaction"])
@run_by(run_cluster, "tmp_path")
async def test_time_of_compression_in_threads_is_charged_to_the_client(three: HttpCluster, *, kind: str) -> None:
    """The batch takes 100 ms, and the event loop less than 10 ms."""
    level, size, letters = SLOW["gzip"]
    value, site = random_text(size, letters), three[1]
    await three.create("slow", [1], compression_type="gzip", compression_gzip_level=str(level))
    record = {"topic_name": "slow", "partition_id": 0, "value": {"type": "STRING", "data": value}}
    sent = v2("slow", value, **APP) if kind == "records" else (TRANSACTIONS, {"records": [record]}, APP)
    await put(site, request_percentage=0.1)
    first = await write(site, sent)
    second = await site.ask("GET", "/topics", **APP)
    assert (first.status, second.status) == (200, 429), first
    assert int(second.headers["Retry-After"]) > 30, "30 ms are 30 s of the quota"
