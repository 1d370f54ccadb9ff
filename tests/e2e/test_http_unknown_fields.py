"""Tests of unknown and missing fields where a body has several parts, or where a missing value has a meaning.

`test_http_bodies` puts a fault into each field of each body.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.http_bodies import RECORD, TYPO
from tests.e2e.http_site import HttpBroker, run
from tests.scenario import run_by


@run_by(run, "tmp_path")
async def test_batch_takes_the_entries_that_have_no_unknown_field(where: HttpBroker) -> None:
    await where.create("t")
    path = f"{where.cluster}/topics/t/records:batch"
    refused = await where.ask("POST", path, {"entries": [{"id": "a", **RECORD}], TYPO: 1})
    assert (refused.status, refused.json["error_code"]) == (400, 40002)
    entries = [{"id": "a", **RECORD}, {"id": "b", TYPO: {"type": "JSON", "data": 1}}]
    mixed = (await where.ask("POST", path, {"entries": entries})).json
    assert [each["id"] for each in mixed["successes"]] == ["a"]
    assert [(each["id"], each["error_code"]) for each in mixed["failures"]] == [("b", 40002)]


@run_by(run, "tmp_path")
async def test_stream_of_records_reports_a_typo_and_goes_on(where: HttpBroker) -> None:
    await where.create("t")
    body = b"".join(json.dumps(each).encode() for each in (RECORD, {TYPO: 1}, RECORD))
    reply = await where.ask("POST", f"{where.cluster}/topics/t/records", body)
    codes = [json.loads(line)["error_code"] for line in reply.body.splitlines() if line]
    assert codes == [200, 40002, 200]


@pytest.mark.parametrize("change", [{"name": "retention.ms"}, {"name": "retention.ms", "value": None}])
@run_by(run, "tmp_path")
async def test_setting_without_a_value_is_not_reset(where: HttpBroker, *, change: dict[str, Any]) -> None:
    await where.create("t", retention_ms="-1")
    configs = f"{where.cluster}/topics/t/configs"
    refused = await where.ask("POST", f"{configs}:alter", {"data": [change]})
    assert refused.status == 422 and "DELETE" in refused.json["message"]
    refused = await where.ask("PUT", f"{configs}/retention.ms", {"value": change.get("value")})
    assert refused.status == 422 and "DELETE" in refused.json["message"]
    assert (await where.get(f"{configs}/retention.ms")).json["value"] == "-1"
    reset = {"data": [{"name": "retention.ms", "operation": "DELETE"}]}
    assert (await where.ask("POST", f"{configs}:alter", reset)).status == 204
    assert (await where.get(f"{configs}/retention.ms")).json["is_default"]


@run_by(run, "tmp_path")
async def test_tombstone_is_written_only_for_a_value_that_is_null(where: HttpBroker) -> None:
    await where.create("t", cleanup_policy="compact")
    path = f"{where.cluster}/topics/t/records"
    key = {"key": {"type": "STRING", "data": "k"}}
    for value in ({"type": "STRING"}, {}):
        refused = await where.ask("POST", path, {**key, "value": value})
        assert (refused.status, refused.json["error_code"]) == (422, 42206) and "null" in refused.json["message"]
    assert (await where.ask("POST", path, {**key, "value": {"type": "STRING", "data": None}})).status == 200


@run_by(run, "tmp_path")
async def test_names_in_a_value_of_the_user_may_repeat(where: HttpBroker) -> None:
    await where.create("t")
    twice, v2 = b'{"data":1,"n":{"a":1,"a":2},"n":3}', "application/vnd.kafka.json.v2+json"
    record = b'{"key":{"type":"JSON","data":%b},"value":{"type":"JSON","data":%b}}' % (twice, twice)
    path = f"{where.cluster}/topics/t/records"
    for body in (record, record, record + record):  # the second one takes the short path
        assert (await where.ask("POST", path, body)).status == 200
    entries = b'{"entries":[{"id":"a",%b]}' % record[1:]
    assert (await where.ask("POST", f"{path}:batch", entries)).json["failures"] == []
    body = b'{"records":[{"key":%b,"value":%b}]}' % (twice, twice)
    assert (await where.ask("POST", "/topics/t", body, kind=v2)).status == 200
    rows = (await where.get("/topics/t/partitions/0/records?format=json")).json["records"]
    assert [(row["key"], row["value"]) for row in rows] == [({"data": 1, "n": 3},) * 2] * 6


@run_by(run, "tmp_path")
async def test_short_path_refuses_a_field_that_is_there_twice(where: HttpBroker) -> None:
    await where.create("t", cleanup_policy="compact")
    path, head = f"{where.cluster}/topics/t/records", b'{"key":{"type":"STRING","data":"k"},'
    good = head + b'"value":{"type":"STRING","data":"v"},"value":null}'.replace(b'"value":null', b'"headers":[]')
    bad = head + b'"value":{"type":"STRING","data":"v"},"value":null}'.ljust(len(good) - len(head))
    assert [(await where.ask("POST", path, good)).status for _ in range(3)] == [200] * 3
    refused = await where.ask("POST", path, bad)
    assert len(bad) == len(good) and (refused.status, refused.json["error_code"]) == (400, 40002)
    assert "'value' appears twice" in refused.json["message"]
    assert (await where.get("/topics/t/partitions/0/offsets")).json["end_offset"] == 3


@run_by(run, "tmp_path")
async def test_consumer_with_both_names_of_a_setting_is_refused(where: HttpBroker) -> None:
    for body in ({"id": "a", "name": "b"}, {"isolation.level": "read_committed", "isolation_level": "x"}):
        refused = await where.ask("POST", "/consumers/g", body, kind="application/vnd.kafka.v2+json")
        assert (refused.status, refused.json["error_code"]) == (422, 422)
        assert "means the same" in refused.json["message"]
