"""Tests of REST v3 against a real broker: topics, settings, partitions, records."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.e2e.http_site import HttpBroker, run
from tests.scenario import run_by
from tiered.controller.requests import CreateTopic, CreateTopics
from tiered.system import turns
from tiered_api.http.exchange.limits import HttpLimits


def value(data: Any, kind: str = "JSON") -> dict[str, Any]:
    return {"value": {"type": kind, "data": data}}


@run_by(run, "tmp_path")
async def test_topic_is_created_shown_and_deleted(site: HttpBroker) -> None:
    topics = f"{site.cluster}/topics"
    wanted = {"topic_name": "t", "partitions_count": 2, "configs": [{"name": "segment.bytes", "value": 2097152}]}
    rehearsed = await site.ask("POST", topics, {**wanted, "validate_only": True})
    assert rehearsed.status == 200 and (await site.get(topics)).json["data"] == []
    made = await site.ask("POST", topics, wanted)
    assert made.status == 201
    assert made.json["kind"] == "KafkaTopic" and made.json["partitions_count"] == 2
    assert made.json["metadata"]["self"] == f"{site.url}{topics}/t" == made.headers["Location"]
    assert made.json["metadata"]["resource_name"] == f"crn:///kafka={site.broker.cluster_id}/topic=t"
    assert (await site.get(f"{topics}/t")).json == made.json
    assert [each["topic_name"] for each in (await site.get(topics)).json["data"]] == ["t"]
    grown = await site.ask("PATCH", f"{topics}/t", {"partitions_count": 3})
    assert (grown.status, grown.json["partitions_count"]) == (200, 3)
    assert (await site.ask("PATCH", f"{topics}/t", {"partitions_count": 2})).status == 400
    gone = await site.ask("DELETE", f"{topics}/t")
    assert (gone.status, gone.body) == (204, b"")
    for answer in (await site.get(f"{topics}/t"), await site.ask("DELETE", f"{topics}/t")):
        assert (answer.status, answer.json["error_code"]) == (404, 40401)


@run_by(run, "tmp_path")
async def test_invalid_topic_is_refused_with_a_reason(site: HttpBroker) -> None:
    topics = f"{site.cluster}/topics"
    await site.create("there")
    for body, status, code, reason in (
        ({"topic_name": "there"}, 400, 40002, "exists"),
        ({"topic_name": "../etc"}, 400, 40002, "name"),
        ({"topic_name": ".."}, 400, 40002, "name"),
        ({"topic_name": ""}, 400, 40002, "name"),
        ({"topic_name": "x" * 250}, 400, 40002, "name"),
        ({"topic_name": "a\u0000b"}, 400, 40002, "name"),
        ({"topic_name": 5}, 422, 422, "topic_name"),
        ({}, 422, 422, "topic_name"),
        ([], 422, 422, "object"),
        ({"topic_name": "n", "partitions_count": 0}, 400, 40002, "partitions_count"),
        ({"topic_name": "n", "partitions_count": "1"}, 400, 40002, "partitions_count"),
        ({"topic_name": "n", "replication_factor": 3}, 400, 40002, "replication factor"),
        ({"topic_name": "n", "replicas_assignments": {"1": [1]}}, 400, 40002, "replicas_assignments"),
        ({"topic_name": "n", "replicas_assignments": {"0": [77]}}, 400, 40002, "broker"),
        ({"topic_name": "n", "replicas_assignments": []}, 400, 40002, "replicas_assignments"),
        ({"topic_name": "n", "configs": [{"name": "no.such", "value": "1"}]}, 400, 40002, "no.such"),
        ({"topic_name": "n", "configs": [{"name": "segment.bytes", "value": "x"}]}, 400, 40002, "segment.bytes"),
        ({"topic_name": "n", "configs": [{"name": "cleanup.policy", "value": "shred"}]}, 400, 40002, "shred"),
        (
            {"topic_name": "n", "configs": [{"name": "retention.ms", "value": " " * 40_000 + "1"}]},
            400,
            40002,
            "32767",
        ),
        ({"topic_name": "n", "configs": {"a": 1}}, 422, 422, "configs"),
        ({"topic_name": "n", "validate_only": 1}, 422, 422, "validate_only"),
    ):
        answer = await site.ask("POST", topics, body)
        assert (answer.status, answer.json["error_code"]) == (status, code), (body, answer)
        assert reason in answer.json["message"], (body, answer.json)
    assert [each["topic_name"] for each in (await site.get(topics)).json["data"]] == ["there"]


@run_by(run, "tmp_path")
async def test_settings_show_their_source_and_change_all_or_none(site: HttpBroker) -> None:
    await site.create("t", segment_bytes="2097152")
    configs = f"{site.cluster}/topics/t/configs"

    async def read_setting(name: str) -> tuple[str, str, bool]:
        one = (await site.get(f"{configs}/{name}")).json
        return one["value"], one["source"], one["is_default"]

    assert await read_setting("segment.bytes") == ("2097152", "DYNAMIC_TOPIC_CONFIG", False)
    assert await read_setting("flush") == ("none", "DEFAULT_CONFIG", True)
    assert (await site.ask("PUT", f"{configs}/retention.ms", {"value": "60000"})).status == 204
    assert await read_setting("retention.ms") == ("60000", "DYNAMIC_TOPIC_CONFIG", False)
    both = [{"name": "flush", "value": "ack"}, {"name": "segment.bytes", "operation": "DELETE"}]
    assert (await site.ask("POST", f"{configs}:alter", {"data": both, "validate_only": True})).status == 204
    assert await read_setting("flush") == ("none", "DEFAULT_CONFIG", True)
    assert (await site.ask("POST", f"{configs}:alter", {"data": both})).status == 204
    assert await read_setting("flush") == ("ack", "DYNAMIC_TOPIC_CONFIG", False)
    assert (await read_setting("segment.bytes"))[0] == str(1 << 30)
    wrong = [{"name": "flush", "value": "none"}, {"name": "retention.ms", "value": "soon"}]
    refused = await site.ask("POST", f"{configs}:alter", {"data": wrong})
    assert (refused.status, refused.json["error_code"]) == (400, 40002)
    assert (await read_setting("flush"))[0] == "ack"
    refused = await site.ask("POST", f"{configs}:alter", {"data": [{"name": "no.such", "operation": "DELETE"}]})
    assert (refused.status, refused.json["error_code"]) == (400, 40002) and "no.such" in refused.json["message"]
    assert (await site.ask("DELETE", f"{configs}/flush")).status == 204
    assert await read_setting("flush") == ("none", "DEFAULT_CONFIG", True)
    assert (await site.get(f"{configs}/no.such")).status == 404

    everywhere = f"{site.cluster}/broker-configs"
    assert (await site.get(everywhere)).json["data"] == []
    assert (await site.ask("PUT", f"{everywhere}/log.flush", {"value": "ack"})).status == 204
    assert await read_setting("flush") == ("ack", "DYNAMIC_DEFAULT_BROKER_CONFIG", False)
    own = f"{site.cluster}/brokers/1/configs"
    assert (await site.ask("PUT", f"{own}/log.flush", {"value": "none"})).status == 204
    one = (await site.get(f"{own}/log.flush")).json
    assert [each["source"] for each in one["synonyms"]] == [
        "DYNAMIC_BROKER_CONFIG",
        "DYNAMIC_DEFAULT_BROKER_CONFIG",
        "DEFAULT_CONFIG",
    ]
    assert (await site.get(f"{own}/node.id")).json["is_read_only"]
    assert (await site.ask("PUT", f"{own}/node.id", {"value": "2"})).status == 400
    assert len((await site.get(f"{site.cluster}/topics/-/configs")).json["data"]) > 20


@run_by(run, "tmp_path")
async def test_cluster_brokers_partitions_and_replicas_are_linked(site: HttpBroker) -> None:
    await site.create("t", 2)
    await site.produce("t", "a", "b", partition=1)
    listed = (await site.get("/v3/clusters")).json
    assert listed["kind"] == "KafkaClusterList" and listed["metadata"]["self"] == f"{site.url}/v3/clusters"
    cluster = listed["data"][0]
    assert (await site.get(site.cluster)).json == cluster
    for name in ("brokers", "topics", "broker_configs"):
        path = cluster[name]["related"].removeprefix(site.url)
        assert (await site.get(path)).status == 200
    assert (await site.get(f"{site.cluster}/brokers/1")).json["broker_id"] == 1
    partitions = (await site.get(f"{site.cluster}/topics/t/partitions")).json["data"]
    assert [each["partition_id"] for each in partitions] == [0, 1]
    leader = (await site.get(partitions[1]["leader"]["related"].removeprefix(site.url))).json
    assert leader["is_leader"] and leader["is_in_sync"] and leader["broker_id"] == 1
    held = (await site.get(f"{site.cluster}/brokers/1/partition-replicas")).json["data"]
    assert held[1] == leader and len(held) == 2
    offset = (await site.get(f"{site.cluster}/topics/t/partitions/1/offset")).json
    assert (offset["earliest_offset"], offset["latest_offset"]) == (0, 2)
    for path, code in (
        ("/v3/clusters/other", 404),
        (f"{site.cluster}/brokers/9", 404),
        (f"{site.cluster}/brokers/x", 404),
        (f"{site.cluster}/topics/t/partitions/2", 40403),
        (f"{site.cluster}/topics/t/partitions/0/replicas/9", 404),
        (f"{site.cluster}/topics/no/partitions", 40401),
    ):
        answer = await site.get(path)
        assert (answer.status, answer.json["error_code"]) == (404, code), path


@run_by(run, "tmp_path")
async def test_every_link_is_served(site: HttpBroker) -> None:
    await site.create("t", 2)
    await site.create("-")
    waiting, seen = [f"{site.url}/v3/clusters"], set[str]()

    def collect(shape: Any) -> None:
        if isinstance(shape, dict):
            waiting.extend(shape[name] for name in ("self", "related") if isinstance(shape.get(name), str))
        for below in shape.values() if isinstance(shape, dict) else shape if isinstance(shape, list) else ():
            collect(below)

    while waiting:
        url = waiting.pop()
        if url not in seen:
            seen.add(url)
            answer = await site.get(url.removeprefix(site.url))
            assert answer.status == 200, (url, answer)
            assert answer.json.get("metadata", {}).get("self", url) == url
            collect(answer.json)
    below = (
        "acls",
        "consumer-groups",
        "topics/-/partitions/-/reassignment",
        "topics/t/partitions/-/reassignment",
        "topics/t/partitions/1/reassignment",
    )
    assert {f"{site.url}{site.cluster}/{name}" for name in below} <= seen
    moving = (await site.get(f"{site.cluster}/topics/t/partitions/1/reassignment")).json
    assert (moving["kind"], moving["adding_replicas"], moving["removing_replicas"]) == ("KafkaReassignment", [], [])


@run_by(run, "tmp_path")
async def test_topic_with_the_name_of_the_wildcard_can_be_used_and_deleted(site: HttpBroker) -> None:
    topics = f"{site.cluster}/topics"
    assert (await site.ask("POST", topics, {"topic_name": "-"})).status == 201
    assert (await site.ask("POST", f"{topics}/-/records", value(1))).json["offset"] == 0
    assert (await site.get(f"{topics}/-/partitions/0/offset")).json["latest_offset"] == 1
    assert (await site.ask("DELETE", f"{topics}/-")).status == 204
    assert (await site.get(f"{topics}/-")).json["error_code"] == 40401


@run_by(run, "tmp_path")
async def test_setting_is_stored_as_its_value(site: HttpBroker) -> None:
    typed = [
        {"name": "retention.ms", "value": " +5000 "},
        {"name": "min.cleanable.dirty.ratio", "value": 0.25},
        {"name": "preallocate", "value": True},
        {"name": "cleanup.policy", "value": "compact , delete"},
    ]
    created = await site.ask("POST", f"{site.cluster}/topics", {"topic_name": "t", "configs": typed})
    assert created.status == 201
    configs, shown = (
        f"{site.cluster}/topics/t/configs",
        {"retention.ms": "5000", "cleanup.policy": "compact,delete"},
    )
    for name, text in (shown | {"min.cleanable.dirty.ratio": "0.25", "preallocate": "true"}).items():
        assert (await site.get(f"{configs}/{name}")).json["value"] == text
    for value, status in (("1_000", 400), ("+6", 204), (1e-5, 400)):
        assert (await site.ask("PUT", f"{configs}/retention.ms", {"value": value})).status == status
    data = [{"name": "min.cleanable.dirty.ratio", "value": 1e-5}]
    assert (await site.ask("POST", f"{configs}:alter", {"data": data})).status == 204
    assert (await site.get(f"{configs}/retention.ms")).json["value"] == "6"
    assert (await site.get(f"{configs}/min.cleanable.dirty.ratio")).json["value"] == "1.0E-5"
    threads = f"{site.cluster}/brokers/1/configs/log.cleaner.threads"
    assert (await site.ask("PUT", threads, {"value": " +2 "})).status == 204
    assert (await site.get(threads)).json["value"] == "2"


@run_by(run, "tmp_path")
async def test_record_is_reported_with_partition_and_offset(site: HttpBroker) -> None:
    await site.create("t", 6)
    path = f"{site.cluster}/topics/t/records"
    record = {
        "key": {"type": "STRING", "data": "21"},
        **value({"n": 1}),
        "headers": [{"name": "h", "value": "AA=="}],
        "timestamp": "2013-01-01T05:00:00Z",
    }
    await site.ask("PUT", f"{site.cluster}/topics/t/configs/retention.ms", {"value": "-1"})
    answer = await site.ask("POST", path, record)
    partition = (-973932308 & 0x7FFFFFFF) % 6
    assert answer.status == 200
    assert answer.json == {
        "error_code": 200,
        "cluster_id": site.broker.cluster_id,
        "topic_name": "t",
        "partition_id": partition,
        "offset": 0,
        "timestamp": "2013-01-01T05:00:00.000Z",
        "key": {"type": "STRING", "size": 2},
        "value": {"type": "JSON", "size": 7},
    }
    read = (await site.get(f"/topics/t/partitions/{partition}/records?offset=0")).json["records"]
    assert read == [
        {
            "offset": 0,
            "timestamp": 1357016400000,
            "leader_epoch": read[0]["leader_epoch"],
            "key": "21",
            "value": '{"n":1}',
            "headers": [{"name": "h", "value": "AA=="}],
        }
    ]
    for body, status, code in (
        ({"partition_id": 6, **value(1)}, 404, 40402),
        (value(1, "AVRO"), 422, 42206),
        ({"value": {"type": "BINARY", "data": "?"}}, 422, 42206),
        (b"{", 400, 400),
        (b"", 400, 400),
        (b'{"value":{"type":"STRING","data":"\xff"}}', 400, 400),
        (b'{"value":{"type":"JSON","data":NaN}}', 400, 400),
        (b"hello world", 400, 400),
        ({**value(1), "headers": ""}, 422, 42206),
        ({**value(1), "headers": False}, 422, 42206),
        (value("x" * 2_000_000), 413, 413),
    ):
        refused = await site.ask("POST", path, body)
        assert (refused.status, refused.json["error_code"]) == (status, code), refused
    missing = await site.ask("POST", f"{site.cluster}/topics/no/records", value(1))
    assert (missing.status, missing.json["error_code"]) == (404, 40401)


@run_by(run, "tmp_path")
async def test_repeated_request_takes_the_fast_path_to_the_same_replies(site: HttpBroker) -> None:
    await site.create("t", 3)
    path = f"{site.cluster}/topics/t/records"
    offsets = []
    for n in range(10):
        answer = await site.ask("POST", path, {"partition_id": 0, **value(f"{n}")})
        assert answer.headers["Content-Type"] == "application/json" and answer.headers["Date"].endswith("GMT")
        offsets.append((answer.status, answer.json["offset"], answer.json["value"]))
    assert offsets == [(200, n, {"type": "JSON", "size": 3}) for n in range(10)]
    # The same head with bodies that are not as the first one's was.
    assert (await site.ask("POST", path, b'{"partition_id": 0, "value": 5555555555555555}'[:46])).status in (
        400,
        422,
    )
    assert (await site.ask("POST", path, {"partition_id": 3, **value("x")})).json["error_code"] == 40402
    assert (await site.ask("POST", path, {"partition_id": 2, **value("x")})).json["offset"] == 0
    await site.ask("PUT", f"{site.cluster}/topics/t/configs/flush", {"value": "ack"})
    assert (await site.ask("POST", path, {"partition_id": 0, **value("y")})).json["offset"] == 10
    await site.ask("DELETE", f"{site.cluster}/topics/t")
    assert (await site.ask("POST", path, {"partition_id": 0, **value("z")})).status == 404
    assert site.broker.metrics.counter("tiered_http_records_written_total", "").value() == 12


@run_by(run, "tmp_path")
async def test_stream_reports_every_record_in_order_and_ends_at_garbage(site: HttpBroker) -> None:
    await site.create("t", 3)
    path = f"{site.url}{site.cluster}/topics/t/records"

    async def chunks() -> Any:
        for n in range(100):
            record = json.dumps({"partition_id": n % 4, **value(n)}).encode()
            yield record[:10]
            yield record[10:] + (b"\n" if n % 2 else b"")

    kind = {"Content-Type": "application/json"}
    async with site.session.post(path, data=chunks(), headers=kind) as response:
        reports = [json.loads(line) for line in (await response.read()).splitlines()]
    assert response.status == 200 and len(reports) == 100
    for n, report in enumerate(reports):
        if n % 4 == 3:
            assert report["error_code"] == 40402
        else:
            assert (report["partition_id"], report["offset"]) == (n % 4, n // 4)

    body = b"".join(json.dumps(value(n)).encode() for n in range(3)) + b' {"value": 7} ] {"value": null}'
    async with site.session.post(path, data=body, headers=kind) as response:
        reports = [json.loads(line) for line in (await response.read()).splitlines()]
    assert [report["error_code"] for report in reports] == [200, 200, 200, 42206, 400]
    assert len({report["partition_id"] for report in reports[:3]}) == 1


@run_by(run, "tmp_path")
async def test_connection_stays_open_after_a_body_that_ends_in_garbage(site: HttpBroker) -> None:
    await site.create("t")
    body = json.dumps(value(1)).encode() + b" ]"
    request = f"POST {site.cluster}/topics/t/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    first = f"{request}Content-Length: {len(body)}\r\n\r\n".encode() + body
    answers = await site.raw(first + b"GET /topics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert b'"error_code":400' in answers and answers.endswith(b'["t"]')


@run_by(run, "tmp_path")
async def test_records_of_a_chunk_share_a_batch(site: HttpBroker) -> None:
    await site.create("t")
    body = b"\n".join(json.dumps(value(n)).encode() for n in range(500))
    answer = await site.ask("POST", f"{site.cluster}/topics/t/records", body)
    assert [json.loads(line)["offset"] for line in answer.body.splitlines()] == list(range(500))
    replica = site.broker.leader_replica("t", 0)
    assert replica.log.segments.size_bytes < 500 * 12


def test_compressed_body_is_accepted_and_a_bomb_refused(tmp_path: Path) -> None:
    async def scenario(site: HttpBroker) -> None:
        await site.create("t")
        path = f"{site.cluster}/topics/t/records"
        record = json.dumps(value("hello")).encode()
        for encoding, data in (("gzip", gzip.compress(record)), ("zstd", zstandard.compress(record))):
            answer = await site.ask("POST", path, data, Content_Encoding=encoding)
            assert (answer.status, answer.json["value"]["size"]) == (200, 7)
            torn = await site.ask("POST", path, data[:-3], Content_Encoding=encoding)
            assert (torn.status, torn.json["error_code"]) == (400, 400)
        zeros = b" " * (8 << 20)
        for encoding, data in (("gzip", gzip.compress(zeros)), ("zstd", zstandard.compress(zeros))):
            bomb = await site.ask("POST", path, data, Content_Encoding=encoding)
            assert bomb.status == 413, bomb
        assert (await site.ask("POST", path, record, Content_Encoding="br")).status == 415

        async def send_compressed() -> Any:
            data = zstandard.compress(record * 10)
            yield data[:7]
            yield data[7:]

        headers = {"Content-Type": "application/json", "Content-Encoding": "zstd"}
        async with site.session.post(site.url + path, data=send_compressed(), headers=headers) as response:
            assert len((await response.read()).splitlines()) == 10

    run(tmp_path, scenario, HttpLimits(body_bytes=1 << 20))


@run_by(run, "tmp_path")
async def test_batch_request_has_a_result_per_entry(site: HttpBroker) -> None:
    await site.create("t")
    path = f"{site.cluster}/topics/t/records:batch"
    entries = [
        {"id": "a", **value(1)},
        {"id": "b", **value(1, "AVRO")},
        {"id": "c", "partition_id": 9, **value(1)},
        {"id": "d", **value("x" * 2_000_000)},
        {"id": "e", **value(2)},
    ]
    answer = await site.ask("POST", path, {"entries": entries})
    assert answer.status == 207
    assert [(each["id"], each["offset"]) for each in answer.json["successes"]] == [("a", 0), ("e", 1)]
    failures = {each["id"]: each["error_code"] for each in answer.json["failures"]}
    assert failures == {"b": 42206, "c": 40402, "d": 413}
    twice: list[dict[str, Any]] = [{"entries": [{"id": "x"}, {"id": "x"}]}, {"entries": [{"id": "x" * 81}]}]
    for wrong in ({}, {"entries": []}, *twice):
        refused = await site.ask("POST", path, wrong)
        assert (refused.status, refused.json["error_code"]) == (422, 42208)


@run_by(run, "tmp_path", limits=HttpLimits(memory_bytes=2 << 20, body_seconds=0.2))
async def test_only_long_lists_count_against_the_memory_budget(site: HttpBroker) -> None:
    """Once, 51,000 groups were one uncounted reply of 38 MB."""
    topics = f"{site.cluster}/topics"
    for start in (0, 400):
        await site.broker.submit(CreateTopics(tuple(CreateTopic(f"t{n:04}") for n in range(start, start + 400))))
    budget = site.http._listener.context.budget
    answer = await site.get(topics)
    names = [each["topic_name"] for each in answer.json["data"]]
    assert (answer.status, names) == (200, [f"t{n:04}" for n in range(800)])
    assert answer.json["metadata"] == {"self": f"{site.url}{topics}", "next": None}
    assert budget.free == budget.size
    held = await budget.acquire(budget.size, 1)
    assert (await site.get(topics)).status == 503
    assert (await site.get(f"{topics}/-/partitions/-/reassignment")).json["data"] == []
    budget.release(held)
    assert (await site.get(f"{topics}/-/configs")).status == 503, "there never is so much room"
    assert budget.free == budget.size
    assert (await site.get(topics)).status == 200


@pytest.mark.parametrize("path", ["{cluster}/topics", "{cluster}/topics/-/configs"])
def test_lists_of_topics_leave_turns_to_other_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A list of names alone takes 2 ms for 10,000 topics if the caller may read about all: it needs no turns."""
    monkeypatch.setattr(turns, "PIECE_SECONDS", 0.0)
    count = 300

    async def scenario(site: HttpBroker) -> None:
        await site.broker.submit(CreateTopics(tuple(CreateTopic(f"t{number}", 1) for number in range(count))))
        getting, loop_turns = asyncio.create_task(site.get(path.format(cluster=site.cluster))), 0
        while not getting.done():
            loop_turns += 1
            await asyncio.sleep(0)
        assert getting.result().status == 200 and loop_turns >= count

    run(tmp_path, scenario)
