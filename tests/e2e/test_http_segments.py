"""Tests of the segments of a partition over HTTP: both tiers, the same from each broker, in pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.http_cluster import HttpCluster
from tests.e2e.http_cluster import run as run_cluster
from tests.e2e.http_site import HttpBroker, run, wait_until
from tests.e2e.test_http_cluster import write
from tests.scenario import run_by
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.object_store.faulty import Faults, faulty
from tiered.ports import World

PART = "/tiered/v1/topics/t/partitions/0"
PATH = f"{PART}/segments"
SMALL = {"internal_segment_bytes": "1024", "local_retention_bytes": "1500", "retention_ms": "-1"}


async def fill(site: HttpBroker, records: int = 30) -> None:
    """Writes records until some are in the bucket alone."""
    for n in range(records):
        await site.produce("t", f"{n:0100d}")
    replica = site.broker.leader_replica("t", 0)
    await wait_until(lambda: replica.local_start_offset > 0 and not replica.unified_log.waiting_segments)


async def explain(site: HttpBroker, path: str) -> dict[str, Any]:
    """Returns the facts of an explanation by their codes."""
    reply = await site.get(path)
    assert reply.status == 200 and len(reply.json["sentences"]) == len(reply.json["facts"]), reply
    return {each["code"]: each for each in reply.json["facts"]}


async def check_explanations(three: HttpCluster, rows: list[dict[str, Any]]) -> None:
    """Fails if a broker explains another state than that of the segments."""
    cold, end = rows[0], rows[-1]["end_offset"]
    for broker in three.brokers.values():
        facts = await explain(broker, f"{PART}/explain")
        assert facts.keys() == {"leader", "high-watermark", "in-bucket"}
        assert facts["leader"]["values"]["isr"] == [1, 2] and not any(each["trouble"] for each in facts.values())
        facts = await explain(broker, f"{PART}/segments/{cold['base_offset']}/explain")
        assert facts["in-bucket"]["values"]["key"] == cold["object"]["key"] and facts.keys() == {"in-bucket"}
        facts = await explain(broker, f"{PART}/segments/{end - 1}/explain")
        assert facts.keys() == {"not-in-bucket", "on-disk", "open"} and facts["on-disk"]["values"]["brokers"] == [1, 2]
        assert "from-bucket" in await explain(broker, f"{PART}/fetch/explain?offset=0")
        assert "from-disk" in await explain(broker, f"{PART}/fetch/explain?offset={end - 1}")
        assert "waits" in await explain(broker, f"{PART}/fetch/explain?offset={end}&isolation_level=read_uncommitted")
        facts = await explain(broker, "/tiered/v1/topics/t/explain")
        assert facts["retention"]["values"]["retention.ms"] == {"value": "-1", "source": "DYNAMIC_TOPIC_CONFIG"}
        assert facts["not-in-bucket"]["values"]["records"] == end - find_cold_end(rows)


def find_cold_end(rows: list[dict[str, Any]]) -> int:
    """Returns the offset behind the last segment in the bucket."""
    return max(int(row["end_offset"]) for row in rows if row["object"])


def check_rows(rows: list[dict[str, Any]], end: int) -> None:
    """Fails if rows leave a gap or overlap."""
    ends = [0, *(row["end_offset"] for row in rows)]
    assert ends == [*(row["base_offset"] for row in rows), end]


@run_by(run, "tmp_path", log_retention_check_interval_ms=20)
async def test_segments_of_both_tiers_are_listed_in_order(site: HttpBroker) -> None:
    await site.create("t", 1, **SMALL)
    await fill(site)
    found = (await site.get(PATH)).json
    rows, replica = found["segments"], site.broker.leader_replica("t", 0)
    check_rows(rows, 30)
    cold, active = rows[0], rows[-1]
    assert cold["on_brokers"] == [] and cold["why_local"] is None and cold["created_ms"] is None
    assert cold["object"]["key"].endswith(".seg") and cold["object"]["uploaded_ms"] > cold["newest_timestamp"] > 0
    assert active["object"] is None and active["on_brokers"] == [1] and active["why_local"].startswith("it is open")
    assert any(row["object"] and "local.retention.bytes=1500" in (row["why_local"] or "") for row in rows)
    assert sum(row["bytes"] for row in rows if row["object"]) == replica.unified_log.cold_bytes
    [broker] = found["brokers"]
    assert broker["local_start_offset"] == replica.local_start_offset and broker["log_end_offset"] == 30
    assert (found["next_from"], found["error"]) == (None, None)


@run_by(run, "tmp_path", log_retention_check_interval_ms=20)
async def test_pages_of_segments_follow_each_other(site: HttpBroker) -> None:
    await site.create("t", 1, **SMALL)
    await fill(site)

    async def list_pages() -> list[dict[str, Any]]:
        rows, start = list[dict[str, Any]](), 0
        while start is not None:
            page = (await site.get(f"{PATH}?from={start}&limit=2")).json
            assert 0 < len(page["segments"]) <= 2
            rows, start = [*rows, *page["segments"]], page["next_from"]
        return rows

    whole, rows = (await site.get(PATH)).json["segments"], await list_pages()
    while whole != (after := (await site.get(PATH)).json["segments"]):  # retention went on meanwhile
        whole, rows = after, await list_pages()
    assert rows == whole and len(whole) > 4
    middle = (await site.get(f"{PATH}?from=15&limit=1")).json["segments"]
    assert middle[0]["base_offset"] <= 15 < middle[0]["end_offset"]
    assert (await site.get(f"{PATH}?from=1000")).json["segments"] == []


@run_by(run, "tmp_path")
async def test_bad_requests_for_segments_are_refused(site: HttpBroker) -> None:
    await site.create("t")
    for query in ("from=-1", "from=x", "limit=0", "limit=x", "from=1&from=2"):
        assert (await site.get(f"{PATH}?{query}")).status == 400, query
    assert (await site.get(f"{PATH}?limit=1000000000")).status == 200
    assert (await site.get(PATH.replace("/0/", "/1/"))).json["error_code"] == 40402
    assert (await site.get(PATH.replace("/0/", "/x/"))).status == 404
    assert (await site.get(PATH.replace("/t/", "/absent/"))).json["error_code"] == 40401
    for path, status in {
        f"{PATH}/x/explain": 404, f"{PATH}/{10**20}/explain": 404, f"{PATH}/5/explain": 200,
        PATH.replace("/0/segments", "/1/explain"): 404, PATH.replace("/0/segments", "/0/fetch/explain"): 200,
        PATH.replace("/0/segments", "/0/fetch/explain?offset=-1"): 400,
        PATH.replace("/0/segments", "/0/fetch/explain?offset=1&isolation_level=x"): 400,
        PATH.replace("/0/segments", f"/0/fetch/explain?offset=1&user={'u' * 250}"): 400,
    }.items():  # fmt: skip
        assert (await site.get(path)).status == status, path


@run_by(run, "tmp_path", authorizer_class_name=STANDARD_AUTHORIZER)
async def test_segments_need_the_right_to_describe_the_topic(site: HttpBroker) -> None:
    await site.create("t")
    assert (await site.get(PATH)).json["error_code"] == 40301
    assert (await site.get(PATH.replace("/t/", "/absent/"))).json["error_code"] == 40301


def test_older_segments_in_an_outage_of_the_bucket_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest segments are in the memory of the leader. Older ones are in sub-manifests."""
    monkeypatch.setattr("tiered.cold.manifest_store.OPENED_MAX", 1)
    faults = Faults(reply_seconds=0.01)

    def ports(world: World) -> World:
        return replace(world, store=faulty(world.store, faults, world.clock))

    async def scenario(site: HttpBroker) -> None:
        await site.create("t", 1, **SMALL)
        site.broker.leader_replica("t", 0).cold.manifests._fan = 2
        await fill(site, 60)
        check_rows((await site.get(PATH)).json["segments"], 60)
        faults.outage = True
        found = (await site.get(PATH)).json
        assert found["segments"] == [] and "cannot be read" in found["error"], found
        assert (await site.get(f"{PATH}?from=59")).json["error"] is None

    run(tmp_path, scenario, ports=ports, log_retention_check_interval_ms=20)


@run_by(
    run_cluster, "tmp_path", log_retention_check_interval_ms=20, remote_log_manager_task_interval_ms=20,
    tiered_internal_configs_enable=True,
)  # fmt: skip
async def test_segments_are_the_same_from_each_broker(three: HttpCluster) -> None:
    await three.create("t", [1, 2], **SMALL)
    for n in range(20):
        await write(three[1], "t", 0, f"{n:0100d}")
    leader = three[1].broker.leader_replica("t", 0)
    await wait_until(lambda: leader.local_start_offset > 0 and not leader.unified_log.waiting_segments)
    follower = three[2].broker.hosted_replicas.find_follower(leader.tp)
    assert follower is not None
    await wait_until(lambda: leader.local_start_offset == follower.log.local_start_offset == 10)
    found = (await three.get_from_all(PATH)).json
    check_rows(found["segments"], 20)
    assert [each["node_id"] for each in found["brokers"]] == [1, 2]
    assert found["segments"][0]["on_brokers"] == [] and found["segments"][-1]["on_brokers"] == [1, 2]
    await check_explanations(three, found["segments"])
    await three.end(2)
    await wait_until(lambda: not three[1].broker.image.brokers[2].live)
    left = (await three[3].get(PATH)).json
    assert left["segments"][-1]["on_brokers"] == [1] and left["brokers"][1]["error"].startswith("broker 2 does not")
    await three.end(1)
    await wait_until(lambda: not three[3].broker.image.brokers[1].live)
    gone = (await three[3].get(PATH)).json
    for path in (f"{PART}/explain", f"{PART}/segments/19/explain", f"{PART}/fetch/explain?offset=19"):
        facts = {each["code"]: each for each in (await three[3].get(path)).json["facts"]}
        assert (
            facts["leaderless"]["values"]["replicas"] == [1, 2]
            and "see if broker 1 runs" in facts["leaderless"]["mend"]
        )
    assert gone["error"].startswith("no broker leads the partition now: these are the segments in the bucket alone")
    cold = [each for each in found["segments"] if each["object"]]
    assert [each["object"] for each in gone["segments"]] == [each["object"] for each in cold] and len(cold) > 2
    check_rows(gone["segments"], cold[-1]["end_offset"])
    assert all(each["on_brokers"] == [] and each["why_local"] is None for each in gone["segments"])
    page = (await three[3].get(f"{PATH}?from={cold[1]['base_offset']}&limit=1")).json
    assert [each["base_offset"] for each in page["segments"]] == [cold[1]["base_offset"]]
    assert page["next_from"] == cold[1]["end_offset"] and gone["next_from"] is None
