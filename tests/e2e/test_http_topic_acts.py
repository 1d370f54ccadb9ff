"""Tests of acts on topics over HTTP that REST v3 lacks: each tells what it changes, then changes exactly that."""

from __future__ import annotations

from typing import Any

from tests.e2e.http_cluster import HttpCluster, run
from tests.e2e.http_site import HttpReply, wait_until
from tests.e2e.test_http_acls import grant
from tests.e2e.test_http_group_acts import OLD_MS, ONE, ask_until_led, write_at
from tests.scenario import run_by
from tiered.config.settings import STANDARD_AUTHORIZER

PATH = "/tiered/v1/topics/t"
PREFERRED = {"election_type": "PREFERRED"}
ACTS: dict[str, dict[str, Any]] = {
    "records:delete": {"offsets": [{"partition": 0, "offset": 0}]},
    "compaction": {},
    "elections": PREFERRED,
    "reassignments": {"partitions": [{"partition": 0, "replicas": [1]}]},
}


async def act(
    three: HttpCluster, number: int, name: str, body: dict[str, Any] | None = None, *, only: bool = False
) -> HttpReply:
    return await ask_until_led(three[number], f"{PATH}/{name}", {**(body or {}), "validate_only": only})


async def starts(three: HttpCluster) -> list[int]:
    rows = (await three[1].get(f"{PATH}/storage")).json["partitions"]
    return [row["log_start_offset"] for row in rows]


@run_by(run, "tmp_path")
async def test_records_are_deleted_as_many_as_were_told(three: HttpCluster) -> None:
    await three.create("t", [1, 2], [2, 3], [3, 1], retention_ms="-1")
    for partition in range(3):
        await write_at(three, "t", partition, *range(OLD_MS, OLD_MS + 10_000, 1_000))
    offsets = [{"partition": 0, "offset": 4}, {"partition": 2, "offset": 10}]
    for only, kept in ((True, [0, 0, 0]), (False, [4, 0, 10])):
        reply = await act(three, 1, "records:delete", {"offsets": offsets}, only=only)
        assert reply.status == 200
        assert [(row["partition"], row["deleted"], row["error"]) for row in reply.json["partitions"]] == [
            (0, 4, None),
            (2, 10, None),
        ]
        assert await starts(three) == kept
    for only in (True, False):
        reply = await act(three, 3, "records:delete", {"before_timestamp": OLD_MS + 5_500}, only=only)
        assert [row["deleted"] for row in reply.json["partitions"]] == [2, 6, 0]
        assert [row["new_start_offset"] for row in reply.json["partitions"]] == [6, 6, 10]
    assert await starts(three) == [6, 6, 10]


@run_by(run, "tmp_path")
async def test_compaction_is_told_and_begun_at_each_leader(three: HttpCluster) -> None:
    await three.create("t", [1, 2], [2, 3], cleanup_policy="compact", retention_ms="-1")
    await three.create("plain", [1])
    told = await ask_until_led(three[3], "/tiered/v1/topics/plain/compaction", {"validate_only": True})
    assert told.json["partitions"][0]["error"] == "cleanup.policy is delete, and not compact"
    place = (await three[3].get("/tiered/v1/topics/plain/storage")).json
    assert (place["cleanup_policy"], place["is_internal"]) == (["delete"], False)
    for partition in range(2):
        await write_at(three, "t", partition, OLD_MS)
    for only in (True, False):
        rows = (await act(three, 3, "compaction", only=only)).json["partitions"]
        assert [(row["partition"], row["error"]) for row in rows] == [(0, None), (1, None)]
        assert all(row.keys() >= {"dirty_bytes", "clean_bytes", "cleaned_ms"} for row in rows)
    await three[1].ask("POST", f"{three.url}/topics/t/configs:alter", {
        "data": [{"name": "cleanup.policy", "value": "delete"}]
    })  # fmt: skip
    await wait_until(lambda: three.is_known_by_all(lambda node: "delete" in node.image.topics["t"].configs.values()))
    rows = (await act(three, 3, "compaction")).json["partitions"]
    assert all("compact" in (row["error"] or "") for row in rows), rows


@run_by(run, "tmp_path")
async def test_partition_moves_and_its_preferred_leader_is_elected(three: HttpCluster) -> None:
    await three.create("t", [1, 2], retention_ms="-1")
    moved = {"partitions": [{"partition": 0, "replicas": [3, 1]}]}
    [told] = (await act(three, 2, "reassignments", moved, only=True)).json["partitions"]
    assert (told["replicas"], told["adding"], told["removing"]) == ([1, 2], [3], [2])
    assert three[1].broker.image.topics["t"].partitions[0].replicas == (1, 2)
    [done] = (await act(three, 2, "reassignments", moved)).json["partitions"]
    assert done["error"] is None

    def is_moved() -> bool:
        part = three[1].broker.image.topics["t"].partitions[0]
        return part.replicas == (3, 1) and not part.is_reassigning and 3 in part.isr

    await wait_until(is_moved)
    part = three[1].broker.image.topics["t"].partitions[0]
    [row] = (await act(three, 1, "elections", PREFERRED, only=True)).json["partitions"]
    assert (row["preferred_leader"], row["changes"]) == (3, part.leader != 3)
    [row] = (await act(three, 1, "elections", PREFERRED)).json["partitions"]
    assert row["error"] is None
    await wait_until(lambda: three[1].broker.image.topics["t"].partitions[0].leader == 3)
    cancelled = {"partitions": [{"partition": 0, "replicas": None}]}
    [row] = (await act(three, 1, "reassignments", cancelled)).json["partitions"]
    assert "NO_REASSIGNMENT_IN_PROGRESS" in row["error"]


@run_by(run, "tmp_path", numbers=ONE)
async def test_bad_acts_on_topics_are_refused(three: HttpCluster) -> None:
    await three.create("t", [1], retention_ms="-1")
    await write_at(three, "t", 0, OLD_MS)
    for name, body, code in (
        ("records:delete", {}, 422),
        ("records:delete", {"offsets": [], "before_timestamp": 1}, 422),
        ("records:delete", {"before_timestamp": "x"}, 422),
        ("records:delete", {"offsets": [{"partition": 0}]}, 422),
        ("records:delete", {"offsets": [{"partition": 0, "offset": 2}]}, 40002),
        ("records:delete", {"offsets": [{"partition": 0, "offset": -1}]}, 40002),
        ("records:delete", {"offsets": [{"partition": 1, "offset": 0}]}, 40402),
        ("records:delete", {"offsets": [{"partition": 0, "offset": 0}] * 2}, 40002),
        ("elections", {"election_type": "BEST"}, 422),
        ("elections", {"election_type": "PREFERRED", "partitions": []}, 422),
        ("elections", {"election_type": "PREFERRED", "partitions": [1]}, 40402),
        ("reassignments", {"partitions": [{"partition": 0, "replicas": []}]}, 422),
        ("reassignments", {"partitions": [{"partition": 0, "replicas": [7]}]}, 40002),
        ("reassignments", {"partitions": [{"partition": 0, "replicas": [1, 1]}]}, 40002),
        ("reassignments", {"partitions": [{"partition": 0}]}, 422),
    ):
        for only in (True, False):
            refused = await act(three, 1, name, body, only=only)
            assert refused.json["error_code"] == code, (name, body, refused)
    for name, body in ACTS.items():
        absent = await three[1].ask("POST", f"/tiered/v1/topics/absent/{name}", body)
        assert absent.json["error_code"] == 40401
    assert await starts(three) == [0]


@run_by(run, "tmp_path", numbers=ONE, authorizer_class_name=STANDARD_AUTHORIZER)
async def test_acts_on_topics_need_the_rights_of_the_protocol(three: HttpCluster) -> None:
    await three.create("t", [1], cleanup_policy="compact", retention_ms="-1")
    await grant(three[1], ("TOPIC", "t", "READ"), ("TOPIC", "t", "WRITE"))
    for name, body in ACTS.items():
        assert (await three[1].ask("POST", f"{PATH}/{name}", body)).json["error_code"] == 40301, name
    await grant(three[1], ("TOPIC", "t", "DELETE"), ("TOPIC", "t", "ALTER"), ("CLUSTER", "kafka-cluster", "ALTER"))
    for name, body in ACTS.items():
        done = await three[1].ask("POST", f"{PATH}/{name}", body)
        assert done.status == 200 and done.json["partitions"][0]["error"] is None, (name, done)
