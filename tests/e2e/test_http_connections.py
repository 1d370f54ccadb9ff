"""Tests of bounded connections, also by address: health and metrics are served when all connections are taken."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.http_site import HttpBroker, run, wait_until
from tests.e2e.test_http_hostile import body_of, status_of
from tests.scenario import run_by
from tiered.config.settings import Settings
from tiered.controller.requests import AlterBrokerConfigs, AlterClientQuotas, QuotaAlteration
from tiered.metadata.changes import ALL_BROKERS
from tiered_api.http.consumers import instances
from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.limits import HttpLimits, max_streams

TOPICS = b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n"
OTHER_ADDRESS = "127.0.0.2"
SECONDS = 120


class RawConnection:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def get(self, path: str, *headers: str) -> tuple[int, bytes]:
        """Returns status and head of a reply; reads its body if it has a length."""
        lines = (f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", "")
        self.writer.write("\r\n".join(lines).encode())
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), SECONDS)
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if length:
            await self.reader.readexactly(int(length))
        return status_of(head), head

    async def is_ended(self) -> bool:
        """True once the broker has closed it."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), SECONDS) == b""
        return True


@contextlib.asynccontextmanager
async def open_clients(site: HttpBroker, count: int, address: str = "127.0.0.1") -> AsyncIterator[list[RawConnection]]:
    """Opens connections from an address; returns once the broker has accepted them."""
    host, port = site.url.removeprefix("http://").split(":")
    opened = [await asyncio.open_connection(host, int(port), local_addr=(address, 0)) for _ in range(count)]
    try:
        yield [RawConnection(*each) for each in opened]
    finally:
        for _, writer in opened:
            writer.close()


def count_refused(site: HttpBroker) -> float:
    return site.broker.metrics.counter("tiered_http_connections_refused_total", "").value()


@pytest.mark.parametrize(
    "settings",
    [
        {"tiered_http_connections_max": 3},
        {"tiered_http_connections_max": 9, "tiered_http_connections_max_per_ip": 3},
    ],
)
def test_health_and_metrics_are_served_when_all_connections_are_taken(tmp_path: Path, settings: dict[str, int]) -> None:
    async def scenario(site: HttpBroker) -> None:
        async with open_clients(site, 3) as held:
            for path in ("/healthz", "/metrics"):
                async with open_clients(site, 1) as (more,):
                    status, head = await more.get(path)
                    assert status == 200 and b"connection: close" in head.lower()
                    assert await more.is_ended()
            answer = await site.raw(TOPICS)
            assert status_of(answer) == 503 and body_of(answer)["error_code"] == 503
            assert b"Retry-After" in answer and "tiered.http.connections.max" in str(body_of(answer)["message"])
            assert count_refused(site) == 3
            assert (await held[0].get("/topics"))[0] == 200, "who came before is served"
        gauge = site.broker.metrics.gauge("tiered_http_connections", "")
        await wait_until(lambda: gauge.value() == 0)
        assert (await site.get("/topics")).status == 200

    run(tmp_path, scenario, None, **settings)


@run_by(run, "tmp_path", tiered_http_connections_max=5, tiered_http_connections_max_per_ip=3)
async def test_one_address_cannot_take_all_connections(site: HttpBroker) -> None:
    async with open_clients(site, 5) as held, open_clients(site, 1, OTHER_ADDRESS) as (other,):
        assert (await other.get("/topics"))[0] == 200
        assert [(await each.get("/topics"))[0] for each in held] == [200, 200, 200, 503, 503]


@run_by(run, "tmp_path", tiered_http_connections_max=6, tiered_http_connections_max_per_ip=3)
async def test_two_addresses_cannot_take_all_connections(site: HttpBroker) -> None:
    """Once, two addresses with half of the connections each locked out all others."""
    await site.create("t")
    poll = "/topics/t/partitions/0/records?timeout=20000&offset=0"
    async with open_clients(site, 3, "127.0.0.3") as first, open_clients(site, 3, "127.0.0.4") as second:
        assert [(await each.get("/topics"))[0] for each in (*first, *second)] == [200] * 6
        first[0].writer.write(f"GET {poll} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        held = site.http._listener._open["127.0.0.3"]
        await wait_until(lambda: not next(iter(held)).is_idle)
        async with open_clients(site, 2, OTHER_ADDRESS) as others:
            assert [(await each.get("/topics"))[0] for each in others] == [200, 200]
            assert await first[1].is_ended() and await second[0].is_ended(), "idle ones before the one that waits"
            assert site.http.open_connections() == 6
            async with open_clients(site, 1, OTHER_ADDRESS) as (more,):
                assert (await more.get("/topics"))[0] == 503, "each address has its share"
        assert [(await each.get("/topics"))[0] for each in (first[2], *second[1:])] == [200] * 3
    await wait_until(lambda: not site.http.open_connections() and not site.http._listener._peers)


def test_addresses_of_one_network_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback has one address of IPv6 only: 127.0.0.0/8 stands for a network here. A limit of one address stays so."""
    monkeypatch.setattr("tiered_api.http.server.server.network_of", lambda host: "127.0.0.0/8")

    async def scenario(site: HttpBroker) -> None:
        for _ in range(2):
            async with open_clients(site, 2) as held, open_clients(site, 1, OTHER_ADDRESS) as (other,):
                assert [(await each.get("/topics"))[0] for each in (*held, other)] == [200, 200, 503]
                async with open_clients(site, 3, "127.0.0.4") as own:
                    assert [(await each.get("/topics"))[0] for each in own] == [200, 200, 200]
            await wait_until(lambda: not site.http.open_connections())

    run(tmp_path, scenario, tiered_http_connections_max_per_ip=2, max_connections_per_ip_overrides=("127.0.0.4:3",))


@run_by(run, "tmp_path")
async def test_limits_of_connections_change_while_clients_are_connected(site: HttpBroker) -> None:
    async def alter(site: HttpBroker, **limits: int) -> None:
        configs = {f"tiered.http.connections.{name.replace('_', '.')}": str(value) for name, value in limits.items()}
        await site.broker.submit(AlterBrokerConfigs(ALL_BROKERS, configs))

    async def count_served(site: HttpBroker, count: int) -> int:
        async with open_clients(site, count) as opened:
            return [(await each.get("/topics"))[0] for each in opened].count(200)

    await site.create("t")
    events = ("/topics/t/partitions/0/records", f"Accept: {media_types.EVENTS}")
    async with open_clients(site, 3) as held:
        assert [(await each.get("/topics"))[0] for each in held] == [200, 200, 200]
        await alter(site, max=2)
        assert await count_served(site, 1) == 0
        assert (await held[2].get("/topics"))[0] == 200, "who came before stays"
        await alter(site, max=9, max_per_ip=4)
        assert await count_served(site, 2) == 1
        assert [(await each.get(*events))[0] for each in held] == [200, 200, 429]
        await alter(site, max=9, max_per_ip=6)
        assert (await held[2].get(*events))[0] == 200
        assert await count_served(site, 4) == 3


@run_by(run, "tmp_path")
async def test_address_has_a_limit_of_its_own(site: HttpBroker) -> None:
    configs = {"max.connections.per.ip.overrides": f"{OTHER_ADDRESS}:1"}
    await site.broker.submit(AlterBrokerConfigs(ALL_BROKERS, configs))
    async with open_clients(site, 2, OTHER_ADDRESS) as held, open_clients(site, 2) as others:
        assert [(await each.get("/topics"))[0] for each in held] == [200, 503]
        assert [(await each.get("/topics"))[0] for each in others] == [200, 200]


@run_by(run, "tmp_path")
async def test_address_above_its_rate_of_new_connections_gets_503(site: HttpBroker) -> None:
    alteration = QuotaAlteration((("ip", OTHER_ADDRESS),), (("connection_creation_rate", 1.0),))
    assert await site.broker.submit(AlterClientQuotas((alteration,))) == (None,)
    async with open_clients(site, 11, OTHER_ADDRESS) as held, open_clients(site, 1) as (other,):
        statuses = [(await each.get("/topics"))[0] for each in held]
        assert statuses == [200] * 10 + [503], "ten seconds of the rate at once"
        assert (await other.get("/topics"))[0] == 200


@run_by(run, "tmp_path")
async def test_new_connections_above_the_rate_of_the_broker_get_503(site: HttpBroker) -> None:
    await site.broker.submit(AlterBrokerConfigs(ALL_BROKERS, {"tiered.http.max.connection.creation.rate": "1"}))
    async with open_clients(site, 3) as held:
        statuses = [(await each.get("/topics"))[0] for each in held]
        assert statuses[0] == 200 and 503 in statuses


def test_one_address_may_have_half_of_all_connections_by_default() -> None:
    settings = Settings()
    assert settings.tiered_http_connections_max_per_ip * 2 == settings.tiered_http_connections_max
    assert max_streams(settings) * 2 == settings.tiered_http_connections_max_per_ip


@run_by(run, "tmp_path", tiered_http_connections_max=1)
async def test_health_is_served_despite_idle_connections_above_the_limit(site: HttpBroker) -> None:
    """The oldest idle connection is closed for it."""
    async with open_clients(site, 60) as held:
        for _ in range(3):
            async with open_clients(site, 1) as (more,):
                assert (await more.get("/healthz"))[0] == 200
        assert await held[1].is_ended(), "the oldest one above the limit"
        assert (await held[0].get("/topics"))[0] == 200
    gauge = site.broker.metrics.gauge("tiered_http_connections", "")
    await wait_until(lambda: gauge.value() == 0)


def test_connection_without_a_request_is_closed_sooner_than_a_used_one(tmp_path: Path) -> None:
    async def scenario(site: HttpBroker) -> None:
        async with open_clients(site, 3) as (idle, slow, used):
            assert (await used.get("/topics"))[0] == 200
            slow.writer.write(b"GET /topics HTTP/1.1\r\nHost: loc")
            assert await idle.is_ended() and await slow.is_ended()
            assert (await used.get("/topics"))[0] == 200

    run(tmp_path, scenario, HttpLimits(first_request_seconds=0.3))


@run_by(run, "tmp_path", tiered_http_connections_max_per_ip=5)
async def test_event_streams_are_bounded_per_address(site: HttpBroker) -> None:
    await site.create("t")
    path, events = "/topics/t/partitions/0/records", f"Accept: {media_types.EVENTS}"
    async with open_clients(site, 3) as held, open_clients(site, 1, OTHER_ADDRESS) as (other,):
        assert (await held[0].get(path, events))[0] == 200
        assert (await held[1].get(path, events))[0] == 200
        status, head = await held[2].get(path, events)
        assert status == 429 and b"Retry-After" in head
        assert (await held[2].get(path))[0] == 200, "other reads are not bounded so"
        assert (await other.get(path, events))[0] == 200
        held[0].writer.transport.abort()
        streams = site.http._listener.context.streams
        await wait_until(lambda: len(streams["127.0.0.1"]) == 1)
        assert (await held[2].get(path, events))[0] == 200
    await wait_until(lambda: not streams)


def test_connections_above_the_limit_leave_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(site: HttpBroker) -> None:
        async with open_clients(site, 100):
            await wait_until(lambda: count_refused(site) == 99)
        gauge = site.broker.metrics.gauge("tiered_http_connections", "")
        await wait_until(lambda: gauge.value() == 0)

    run(tmp_path, scenario, tiered_http_connections_max=1)
    lines = [each.getMessage() for each in caplog.records]
    assert len([line for line in lines if "http connection refused" in line]) == 1
    assert not [each for each in caplog.records if each.exc_info or "never retrieved" in each.getMessage()]


def test_two_addresses_cannot_create_all_rest_consumers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def create(site: HttpBroker, address: str) -> int:
        async with open_clients(site, 1, address) as (client,):
            head = f"POST /consumers/g HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media_types.V2}\r\n"
            client.writer.write(f"{head}Content-Length: 0\r\n\r\n".encode())
            return status_of(await client.reader.readuntil(b"\r\n\r\n"))

    async def scenario(site: HttpBroker) -> None:
        made = [await site.ask("POST", "/consumers/g", {}, kind=media_types.V2) for _ in range(7)]
        assert [each.status for each in made] == [200] * 6 + [429]
        assert made[6].headers["Retry-After"] == "10"
        assert "127.0.0.1 has 6, and nobody may have more than 1 while so few are free" in made[6].json["message"]
        assert [await create(site, "127.0.0.2") for _ in range(2)] == [200, 429]
        assert await create(site, "127.0.0.9") == 200
        problems = (await site.get("/healthz")).json["problems"]
        assert [
            each for each in problems if "8 of 8 REST consumers are taken" in each and "6 of them by 127.0.0.1" in each
        ]
        for gone in made[:3]:
            name = gone.json["instance_id"]
            assert (await site.ask("DELETE", f"/consumers/g/instances/{name}")).status == 204
        assert (await site.ask("POST", "/consumers/g", {}, kind=media_types.V2)).status == 200

    assert instances.INSTANCES_MAX == 1_000
    monkeypatch.setattr(instances, "INSTANCES_MAX", 8)
    run(tmp_path, scenario)


def test_idle_consumer_ends_when_its_holder_needs_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "INSTANCES_MAX", 4)

    async def scenario(site: HttpBroker) -> None:
        made = [await site.ask("POST", "/consumers/g", {}, kind=media_types.V2) for _ in range(3)]
        monkeypatch.setattr(instances, "SPARE_IDLE_SECONDS", 0)
        assert (await site.ask("POST", "/consumers/g", {}, kind=media_types.V2)).status == 200
        gone, kept = (each.json["instance_id"] for each in made[:2])
        assert (await site.ask("DELETE", f"/consumers/g/instances/{gone}")).status == 404
        assert (await site.ask("DELETE", f"/consumers/g/instances/{kept}")).status == 204

    run(tmp_path, scenario)
