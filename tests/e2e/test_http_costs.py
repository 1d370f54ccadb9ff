"""Tests of the use of the bucket over HTTP: of all brokers, over restarts, and at the operator's prices."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.http_cluster import HttpCluster
from tests.e2e.http_cluster import run as run_three
from tests.e2e.http_site import HttpBroker, http_broker, run, wait_until
from tests.e2e.test_http_cluster import write
from tests.e2e.test_http_rights import SETTINGS, ask, grant, start
from tests.scenario import run_by
from tests.sources import ROOT
from tiered.durability.data_directory import ROOT as LOG
from tiered_api.http.overview.usage_log import FILE, UsageLog

PRICES = str(ROOT / "infra" / "prices" / "s3-standard.toml")


async def wait_for_record(site: HttpBroker) -> None:
    await wait_until(lambda: site.broker.store_usage.is_kept)


@run_by(run_three, "tmp_path")
async def test_use_of_the_bucket_is_that_of_all_brokers(three: HttpCluster) -> None:
    await three.create("t", [2, 3])
    await write(three[1], "t", 0, "a")
    for broker in three.brokers.values():
        await wait_for_record(broker)
        broker.http._listener.context.service(UsageLog).look()
    found = (await three[1].get("/tiered/v1/costs?days=2")).json
    assert [each["node_id"] for each in found["brokers"]] == [1, 2, 3]
    assert all(each["since_ms"] and each["problem"] is None for each in found["brokers"])
    today, yesterday = found["days"]
    counted = sum(broker.broker.store.count_by_verb().get("put", 0) for broker in three.brokers.values())
    assert 0 < today["classes"]["put"]["requests"] <= counted and today["classes"]["put"]["bytes"] > 0
    assert yesterday["classes"]["put"] == {"requests": 0, "bytes": 0, "cost": None} and today["cost"] is None
    assert found["prices"] is None and "tiered.console.prices" in found["problem"]
    assert len((await three[2].get("/tiered/v1/costs?days=999")).json["days"]) == 31
    assert (await three[2].get("/tiered/v1/costs?days=0")).status == 400
    await three.end(3)
    found = (await three[1].get("/tiered/v1/costs")).json
    assert "does not reply" in found["brokers"][2]["problem"] and len(found["days"]) == 8


async def count_puts(site: HttpBroker) -> int:
    await wait_for_record(site)
    found = (await site.get("/tiered/v1/costs?days=2")).json
    assert found["prices"] == {"currency": "USD", "as_of": "2024-04-29", "source": "https://aws.amazon.com/s3/pricing/"}
    requests = sum(each["classes"]["put"]["requests"] for each in found["days"])
    spent = sum(each["classes"]["put"]["cost"] or 0 for each in found["days"])
    assert abs(spent - requests * 0.005 / 1000) < 1e-9 and found["days"][0]["cost"] > 0
    return int(requests)


@run_by(run, "tmp_path")
async def test_use_of_the_bucket_survives_a_restart(site: HttpBroker, *, tmp_path: Path) -> None:
    place = tmp_path / "again"
    async with http_broker(place, tiered_console_prices=PRICES) as first:
        await first.create("t")
        before = await count_puts(first)
        assert before > 0
    async with http_broker(place, tiered_console_prices=PRICES) as second:
        own = second.broker.store.count_by_verb()["put"]
        assert await count_puts(second) >= before + own > own
    (place / LOG / FILE).write_bytes(b"damaged")
    async with http_broker(place, tiered_console_prices=PRICES) as third:
        assert 0 < await count_puts(third) < before + own


@run_by(run, "tmp_path", **SETTINGS)
async def test_costs_are_for_those_who_may_describe_the_cluster(site: HttpBroker) -> None:
    await start(site, "t")
    assert (await ask(site, "alice", "GET", "/tiered/v1/costs")).json["error_code"] == 40301
    await grant(site, "alice", ("CLUSTER", "kafka-cluster", "DESCRIBE"))
    assert (await ask(site, "alice", "GET", "/tiered/v1/costs")).status == 200
