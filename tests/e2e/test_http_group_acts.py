"""Tests of groups over HTTP beyond REST v3: the lag in seconds, reset of offsets with a preview, and deletion."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.http_cluster import HttpCluster, run
from tests.e2e.http_site import HttpBroker, HttpReply
from tests.e2e.test_http_acls import grant
from tests.e2e.test_http_groups import GROUP, fill, join_and_commit
from tests.scenario import run_by
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.groups.requests import CommitOffsets, PartitionOffset
from tiered.ids import TopicPartition
from tiered.records.batch import encode_batch
from tiered_api.http.overview import unread

PATH = f"/tiered/v1/groups/{GROUP}"
ONE = (1,)
OLD_MS = 1_600_000_000_000


async def commit(three: HttpCluster, *offsets: tuple[str, int, int], group: str = GROUP) -> None:
    """Commits offsets (topic, partition, offset) without a member, at the coordinator."""
    for broker in three.brokers.values():
        coordinators = broker.broker.group_coordinators
        partition = await coordinators.host.partition_for(group)
        if broker.broker.image.topics["__consumer_offsets"].partitions[partition].leader == broker.number:
            rows = tuple(PartitionOffset(*each) for each in offsets)
            reply = await coordinators.submit(group, CommitOffsets(group, rows))
            assert not any(code.number for code in reply.codes), reply
            return
    raise AssertionError("no broker coordinates the group")


async def write_at(three: HttpCluster, topic: str, partition: int, *times_ms: int) -> None:
    """Writes one record for each time, each in its own batch."""
    for time_ms in times_ms:
        data = {"type": "JSON", "data": time_ms}
        record = {"partition_id": partition, "timestamp": time_ms, "key": data, "value": data}
        assert (await three[1].ask("POST", f"{three.url}/topics/{topic}/records", record)).status == 200


async def ask_until_led(broker: HttpBroker, path: str, body: Any) -> HttpReply:
    """Sends a request until the leaders reply, which a loaded machine delays."""
    while True:
        reply = await broker.ask("POST", path, body)
        if reply.status != 404 or reply.json["error_code"] != 40404:
            return reply


async def committed(three: HttpCluster, number: int = 1) -> dict[tuple[str, int], int]:
    found = (await three[number].get(PATH)).json["partitions"]
    return {(row["topic"], row["partition"]): row["current_offset"] for row in found}


def moves(reply: dict[str, Any]) -> list[tuple[int | None, int, int, int]]:
    """Returns (current, new, again, skipped) of each row."""
    return [(row["current_offset"], row["new_offset"], row["again"], row["skipped"]) for row in reply["partitions"]]


@run_by(run, "tmp_path")
async def test_lag_in_seconds_is_the_age_of_the_oldest_unread_record(three: HttpCluster) -> None:
    await three.create("t", [1, 2], [2, 3], retention_ms="-1")
    for partition in (0, 1):
        await write_at(three, "t", partition, OLD_MS, OLD_MS + 5_000, OLD_MS + 9_000)
    await commit(three, ("t", 0, 2), ("t", 1, 1))
    await commit(three, ("t", 0, 3), ("t", 1, 3), group="idle")
    for broker in three.brokers.values():
        lags = (await broker.get(PATH)).json
        assert [row["oldest_unread_ms"] for row in lags["partitions"]] == [OLD_MS + 9_000, OLD_MS + 5_000]
        assert (lags["lag"], lags["oldest_unread_ms"], lags["times_missing"]) == (3, OLD_MS + 5_000, 0)
        assert abs(lags["seconds"] * 1000 - (broker.broker.world.clock.wall_ms() - OLD_MS - 5_000)) < 60_000
        rows = {row["group"]: row for row in (await broker.get("/tiered/v1/groups")).json["groups"]}
        assert (rows[GROUP]["lag"], rows[GROUP]["oldest_unread_ms"], rows[GROUP]["topics"]) == (
            3,
            OLD_MS + 5_000,
            ["t"],
        )
        assert (rows["idle"]["lag"], rows["idle"]["seconds"]) == (0, None)
        found = (await broker.get("/tiered/v1/groups?contains=IDL")).json["groups"]
        assert [row["group"] for row in found] == ["idle"]


@run_by(run, "tmp_path")
async def test_large_batch_is_not_opened_for_its_times(three: HttpCluster, *, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "BATCH_BYTES", 100)
    await three.create("t", [1, 2], retention_ms="-1")
    records = [(OLD_MS + later, None, b"x" * 100, ()) for later in (0, 5_000, 9_000)]
    await write_at(three, "t", 0, OLD_MS)  # once the leader is there
    await three[1].broker.leader_replica("t", 0).append(bytearray(encode_batch(records)))
    await commit(three, ("t", 0, 2))
    for broker in three.brokers.values():
        [row] = (await broker.get(PATH)).json["partitions"]
        assert row["oldest_unread_ms"] == OLD_MS + 9_000


@run_by(run, "tmp_path", numbers=ONE)
async def test_times_of_unread_records_are_read_once_and_no_more_than_the_bound(
    three: HttpCluster, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three.create("t", *[[1]] * 3, retention_ms="-1")
    for partition in range(3):
        await write_at(three, "t", partition, OLD_MS + partition)
    await commit(three, *(("t", partition, 0) for partition in range(3)))
    monkeypatch.setattr(unread, "READS_MAX", 2)
    assert (await three[1].get(PATH)).json["times_missing"] == 1
    monkeypatch.setattr(unread, "READS_MAX", 1)
    assert (await three[1].get(PATH)).json["times_missing"] == 0, "two of three were known"
    monkeypatch.setattr(unread, "READS_MAX", 0)
    rows = (await three[1].get(PATH)).json["partitions"]
    assert [row["oldest_unread_ms"] for row in rows] == [OLD_MS, OLD_MS + 1, OLD_MS + 2]


@run_by(run, "tmp_path")
async def test_reset_tells_what_it_does_and_commits_what_was_told(three: HttpCluster) -> None:
    await three.create("t", [1, 2], [2, 3], retention_ms="-1")
    for partition in (0, 1):
        await write_at(three, "t", partition, *range(OLD_MS, OLD_MS + 10_000, 1_000))
    await commit(three, ("t", 0, 4), ("t", 1, 10))
    wanted: list[tuple[dict[str, Any], list[tuple[int | None, int, int, int]]]] = [
        ({"to": "earliest"}, [(4, 0, 4, 0), (10, 0, 10, 0)]),
        ({"to": "latest"}, [(4, 10, 0, 6), (10, 10, 0, 0)]),
        ({"to": "timestamp", "timestamp": OLD_MS + 6_500}, [(4, 7, 0, 3), (10, 7, 3, 0)]),
        ({"to": "timestamp", "timestamp": OLD_MS + 99_000, "topics": ["t"]}, [(4, 10, 0, 6), (10, 10, 0, 0)]),
        ({"offsets": [{"topic": "t", "partition": 1, "offset": 2}]}, [(10, 2, 8, 0)]),
    ]
    for body, rows in wanted:
        for broker in three.brokers.values():
            shown = await ask_until_led(broker, f"{PATH}/offsets", body | {"validate_only": True})
            assert shown.status == 200 and moves(shown.json) == rows, (body, shown)
            assert shown.json["again"] == sum(row[2] for row in rows)
            assert shown.json["skipped"] == sum(row[3] for row in rows)
    assert await committed(three) == {("t", 0): 4, ("t", 1): 10}
    for number, offset in ((1, 2), (2, 3), (3, 5)):
        offsets = [{"topic": "t", "partition": partition, "offset": offset} for partition in (0, 1)]
        done = (await ask_until_led(three[number], f"{PATH}/offsets", {"offsets": offsets})).json
        assert [row["error"] for row in done["partitions"]] == [None, None] and not done["validate_only"]
        assert await committed(three, number) == {("t", 0): offset, ("t", 1): offset}


@run_by(run, "tmp_path", numbers=ONE)
async def test_group_with_members_is_neither_reset_nor_deleted(three: HttpCluster) -> None:
    site = three[1]
    await fill(site)
    await join_and_commit(site, TopicPartition("t", 0), TopicPartition("t", 1))
    found = (await site.get(PATH)).json
    [member] = found["members"]
    assert member["partitions"] == ["t/0", "t/1"] and member["client_id"] == "app"
    assert (await site.ask("POST", f"{PATH}/offsets", {"to": "latest", "validate_only": True})).status == 200
    for method, path, body in (("POST", f"{PATH}/offsets", {"to": "latest"}), ("DELETE", PATH, None)):
        refused = await site.ask(method, path, body)
        assert (refused.status, refused.json["error_code"]) == (409, 40903), refused
        assert "members" in refused.json["message"]
    assert await committed(three) == {("t", 0): 2, ("t", 1): 3}


@run_by(run, "tmp_path")
async def test_group_without_members_is_deleted_from_any_broker(three: HttpCluster) -> None:
    await three.create("t", [1, 2], retention_ms="-1")
    for number, broker in three.brokers.items():
        await commit(three, ("t", 0, 0), group=f"gone-{number}")
        assert (await broker.ask("DELETE", f"/tiered/v1/groups/gone-{number}")).status == 204
        missing = await broker.ask("DELETE", f"/tiered/v1/groups/gone-{number}")
        assert (missing.status, missing.json["error_code"]) == (404, 40405)
    assert (await three[1].get("/tiered/v1/groups")).json["groups"] == []


@run_by(run, "tmp_path", numbers=ONE)
async def test_bad_resets_are_refused_and_change_nothing(three: HttpCluster) -> None:
    await three.create("t", [1], retention_ms="-1")
    await write_at(three, "t", 0, OLD_MS)
    await commit(three, ("t", 0, 1))
    place = {"topic": "t", "partition": 0, "offset": 0}
    for body, code in (
        ({}, 422),
        ({"to": "yesterday"}, 422),
        ({"to": "timestamp"}, 422),
        ({"to": "latest", "timestamp": 1}, 422),
        ({"to": "latest", "topics": "t"}, 422),
        ({"to": "latest", "topics": []}, 40002),
        ({"to": "latest", "topics": ["absent"]}, 40401),
        ({"to": "latest", "offsets": [place]}, 422),
        ({"offsets": []}, 422),
        ({"offsets": [{"topic": "t", "partition": 0}]}, 422),
        ({"offsets": [place, place]}, 40002),
        ({"offsets": [place | {"offset": -1}]}, 40002),
        ({"offsets": [place | {"offset": 2}]}, 40002),
        ({"offsets": [place | {"partition": 7}]}, 40402),
        ({"offsets": [place | {"ofset": 0}]}, 40002),
        ({"to": "latest", "dry": True}, 40002),
    ):
        refused = await three[1].ask("POST", f"{PATH}/offsets", body)
        assert (refused.json["error_code"], refused.status) == (code, code if code < 1000 else code // 100), body
    absent = await three[1].ask("POST", "/tiered/v1/groups/absent/offsets", {"to": "latest"})
    assert absent.json["error_code"] == 40405
    assert (await three[1].get("/tiered/v1/groups/absent")).json["error_code"] == 40405
    assert await committed(three) == {("t", 0): 1}


@run_by(run, "tmp_path", numbers=ONE, authorizer_class_name=STANDARD_AUTHORIZER)
async def test_reset_needs_the_rights_of_a_commit_and_deletion_that_of_the_group(three: HttpCluster) -> None:
    site = three[1]
    await three.create("t", [1], retention_ms="-1")
    await three.create("hidden", [1])
    await commit(three, ("t", 0, 0), ("hidden", 0, 0))
    assert (await site.get("/tiered/v1/groups")).json["groups"] == []
    await grant(site, ("GROUP", GROUP, "READ"))
    assert (await site.get(PATH)).json["partitions"] == []
    body = {"to": "latest", "topics": ["t"]}
    refused = await site.ask("POST", f"{PATH}/offsets", body)
    assert refused.json["error_code"] == 40301 and "READ on TOPIC 't'" in refused.json["message"]
    await grant(site, ("TOPIC", "t", "READ"))
    [row] = (await site.ask("POST", f"{PATH}/offsets", body)).json["partitions"]
    assert row["error"] is None
    refused = await site.ask("POST", f"{PATH}/offsets", {"to": "latest"})
    assert refused.json["error_code"] == 40301 and "'hidden'" in refused.json["message"]
    assert (await site.ask("DELETE", PATH)).json["error_code"] == 40301
    await grant(site, ("GROUP", GROUP, "DELETE"))
    assert (await site.ask("DELETE", PATH)).status == 204
