"""Tests of HTTP bodies and patterns that take long, and of pages of other sites."""

from __future__ import annotations

import asyncio
import gzip

from tests.hostile.attacks import attack
from tests.hostile.target import AttackedBroker, rounds, scale
from tiered.records.batch import encode_batch
from tiered_api.http.exchange import media_types
from tiered_api.http.partitions.records import BATCHES_MAX
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic

MIB = 1 << 20


def ask(to: AttackedBroker, method: str, path: str, body: bytes = b"", **headers: str) -> int:
    """Returns the status of a request."""
    connection = to.http()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body or None, named)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


@attack()
async def test_gzip_bodies_of_many_members_or_empty_ones_are_refused(to: AttackedBroker) -> None:
    await to.create(CreatableTopic(to.name("t"), 1, 1))
    empty = gzip.compress(b"")
    members = empty * (scale(4, 60) * MIB // len(empty))
    bomb = gzip.compress(bytes(scale(80, 400) * MIB))
    async with to.attack("gzip bodies", memory=550):
        for body, status in ((members, 400), (bomb, 413)):
            calls = [
                asyncio.to_thread(
                    ask,
                    to,
                    "POST",
                    f"/topics/{to.name('t')}",
                    body,
                    Content_Type=media_types.V2_JSON,
                    Content_Encoding="gzip",
                )
                for _ in range(3)
            ]
            assert set(await asyncio.gather(*calls)) <= {status, 503}


@attack()
async def test_bodies_of_many_small_batches_are_refused(to: AttackedBroker) -> None:
    await to.create(CreatableTopic(to.name("t"), 1, 1))
    batch = encode_batch([(0, None, b"", ())])
    body = batch * (scale(8, 60) * MIB // len(batch))
    most = batch * BATCHES_MAX
    async with to.attack("bodies of small batches", memory=300):
        for _ in rounds(3, 10):
            for data, status in ((body, 413), (most, 200)):
                path = f"/topics/{to.name('t')}/partitions/0/records"
                assert await asyncio.to_thread(ask, to, "POST", path, data, Content_Type=media_types.BINARY) == status


@attack()
async def test_long_setting_values_are_refused(to: AttackedBroker) -> None:
    await to.create(CreatableTopic(to.name("t"), 1, 1))
    (cluster,) = to.ask("GET", "/v3/clusters")[1]["data"]
    topics = f"/v3/clusters/{cluster['cluster_id']}/topics"
    value = ",".join(["1:1"] * 750_000)
    configs = [{"name": "leader.replication.throttled.replicas", "value": value}]
    async with to.attack("long values of settings", memory=150):
        for n in rounds(3, 30):
            for path, body in (
                (topics, {"topic_name": to.name(f"n{n}"), "configs": configs}),
                (f"{topics}/{to.name('t')}/configs:alter", {"data": configs}),
            ):
                status, told = await asyncio.to_thread(to.ask, "POST", path, body)
                assert status == 400 and "32767" in told["message"], told


@attack()
async def test_slow_topic_patterns_delay_nobody(to: AttackedBroker) -> None:
    count = scale(100, 2_000)
    await to.create(*(CreatableTopic(to.name("a" * 200 + f"{n:04}"), 1, 1) for n in range(count)))
    async with to.attack("patterns of topics", memory=120):
        for n in range(scale(5, 20)):
            made = ask(to, "POST", f"/consumers/g{n}", b"{}", Content_Type=media_types.V2_JSON)
            assert made in (200, 400, 415, 422)
            status, told = await asyncio.to_thread(to.ask, "POST", f"/consumers/p{n}", {"name": "c"}, media_types.V2)
            assert status == 200, told
            pattern = {"topic_pattern": ".*(a|aa)*(a|aa)*(a|aa)*" + f"{n}.*b$"}
            status, told = await asyncio.to_thread(
                to.ask, "POST", f"/consumers/p{n}/instances/c/subscription", pattern, media_types.V2
            )
            assert status in (204, 422), told
        for n in range(scale(2, 10)):
            await to.create(CreatableTopic(to.name("a" * 200 + f"new{n}"), 1, 1))


@attack(tiered_http_max_connection_creation_rate=100_000)  # each request has a connection of its own
async def test_pages_of_other_sites_create_no_consumers(to: AttackedBroker) -> None:
    pages: list[tuple[dict[str, str], int]] = [
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example", "Content_Type": media_types.V2}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Content_Type": media_types.V2}, 403),
        ({}, 415),
    ]
    async with to.attack("pages of other sites", memory=60):
        for headers, status in pages:
            for n in range(scale(5, 1_000)):
                assert await asyncio.to_thread(ask, to, "POST", f"/consumers/g{n}", b"{}", **headers) == status
