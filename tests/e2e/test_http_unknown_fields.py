"""Tests of JSON bodies with an unknown field: each is refused, with the known ones, before anything is done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.http_site import HttpBroker, run
from tests.e2e.test_http_consumers import JSON, V2, HttpConsumer

TYPO = "vaule"
FREE = frozenset(("data", "value", "replicas_assignments"))
"""Fields whose objects have the names that a client chooses, where the value of the field is none of ours."""


class Body(NamedTuple):
    """A valid body of a route. `code` is the one of a refusal."""

    method: str
    path: str
    body: dict[str, Any]
    code: int
    kind: str = "application/json"


RECORD = {
    "partition_id": 0,
    "key": {"type": "STRING", "data": "k"},
    "value": {"type": "JSON", "data": {"n": 1}},
    "headers": [{"name": "h", "value": "eA=="}],
    "timestamp": 1,
}
OFFSET = {"topic": "t", "partition": 0, "offset": 0, "metadata": ""}
ONE = {"topic": "t", "partition": 0}
BODIES = (
    Body("POST", "/topics/t", {"records": [{"key": "k", "value": {"n": 1}, "partition": 0}]}, 422, JSON),
    Body("POST", "/topics/t/partitions/0", {"records": [{"value": 1}], "value_schema_id": 1}, 422, JSON),
    Body("POST", "C/topics/t/records", RECORD, 40002),
    Body("POST", "C/topics", {"topic_name": "new", "configs": [{"name": "retention.ms", "value": "1"}]}, 40002),
    Body("PATCH", "C/topics/t", {"partitions_count": 2, "validate_only": True}, 40002),
    Body("POST", "C/topics/t/configs:alter", {"data": [{"name": "retention.ms", "value": "1"}]}, 40002),
    Body("POST", "C/brokers/1/configs:alter", {"data": [{"name": "log.retention.ms", "value": "1"}]}, 40002),
    Body("POST", "C/broker-configs:alter", {"data": [{"name": "log.retention.ms", "value": "1"}]}, 40002),
    Body("PUT", "C/topics/t/configs/retention.ms", {"value": "1"}, 40002),
    Body("PUT", "C/brokers/1/configs/log.retention.ms", {"value": "1"}, 40002),
    Body("PUT", "C/broker-configs/log.retention.ms", {"value": "1"}, 40002),
    Body("POST", "/tiered/v1/transactions", {"records": [{"topic_name": "t", **RECORD}]}, 422),
    Body("POST", "/consumers/g", {"name": "two", "format": "json"}, 42204, V2),
    Body("POST", "I/subscription", {"topics": ["t"]}, 422, V2),
    Body("POST", "I/assignments", {"partitions": [ONE]}, 422, V2),
    Body("POST", "I/offsets", {"offsets": [OFFSET]}, 422, V2),
    Body("GET", "I/offsets", {"partitions": [ONE]}, 422, V2),
    Body("POST", "I/positions", {"offsets": [OFFSET]}, 422, V2),
    Body("POST", "I/positions", {"timestamps": [{**ONE, "timestamp": "2026-01-01T00:00:00Z"}]}, 422, V2),
    Body("POST", "I/positions/beginning", {"partitions": [ONE]}, 422, V2),
    Body("POST", "I/positions/end", {"partitions": [ONE]}, 422, V2),
)


def with_typos(value: Any) -> Iterator[Any]:
    """Yields the value with one more field, once for each of its objects whose fields are ours."""
    if isinstance(value, list):
        for at, each in enumerate(value):
            for changed in with_typos(each):
                yield [*value[:at], changed, *value[at + 1 :]]
    if isinstance(value, dict):
        yield {**value, TYPO: 1}
        for name, each in value.items():
            if name not in FREE or isinstance(each, list) or "type" in (each if isinstance(each, dict) else ()):
                for changed in with_typos(each):
                    yield {**value, name: changed}


async def _state(where: HttpBroker) -> tuple[Any, ...]:
    """Returns all that a refused body must not change: records, topics and settings."""
    image = where.broker.image
    ends = (await where.get("/topics/t/partitions/0/offsets")).json
    return ends, sorted(image.topics), image.topics["t"], image.broker_configs


def test_body_with_an_unknown_field_at_any_level_is_refused(tmp_path: Path) -> None:
    async def scenario(where: HttpBroker) -> None:
        await where.create("t")
        one = await HttpConsumer.create(where, "g", "one")
        await one.ask_without_reply("POST", "/assignments", {"partitions": [ONE]})
        for method, path, body, code, kind in BODIES:
            path = path.replace("C/", f"{where.cluster}/", 1) if path.startswith("C/") else path
            path = path.replace("I/", "/consumers/g/instances/one/", 1) if path.startswith("I/") else path
            before, cases = await _state(where), list(with_typos(body))
            assert cases
            for case in cases:
                refused = await where.ask(method, path, case, kind=kind)
                assert refused.status == (code if code < 1000 else code // 100), (path, case, refused.body)
                assert refused.json["error_code"] == code and f"no field '{TYPO}'" in refused.json["message"], case
            assert await _state(where) == before, path

    run(tmp_path, scenario)


def test_batch_takes_the_entries_that_have_no_unknown_field(tmp_path: Path) -> None:
    async def scenario(where: HttpBroker) -> None:
        await where.create("t")
        path = f"{where.cluster}/topics/t/records:batch"
        refused = await where.ask("POST", path, {"entries": [{"id": "a", **RECORD}], TYPO: 1})
        assert (refused.status, refused.json["error_code"]) == (400, 40002)
        entries = [{"id": "a", **RECORD}, {"id": "b", TYPO: {"type": "JSON", "data": 1}}]
        mixed = (await where.ask("POST", path, {"entries": entries})).json
        assert [each["id"] for each in mixed["successes"]] == ["a"]
        assert [(each["id"], each["error_code"]) for each in mixed["failures"]] == [("b", 40002)]

    run(tmp_path, scenario)


def test_stream_of_records_reports_a_typo_and_goes_on(tmp_path: Path) -> None:
    async def scenario(where: HttpBroker) -> None:
        await where.create("t")
        body = b"".join(json.dumps(each).encode() for each in (RECORD, {TYPO: 1}, RECORD))
        reply = await where.ask("POST", f"{where.cluster}/topics/t/records", body)
        codes = [json.loads(line)["error_code"] for line in reply.body.splitlines() if line]
        assert codes == [200, 40002, 200]

    run(tmp_path, scenario)


@pytest.mark.parametrize("change", [{"name": "retention.ms"}, {"name": "retention.ms", "value": None}])
def test_setting_without_a_value_is_not_reset(tmp_path: Path, change: dict[str, Any]) -> None:
    async def scenario(where: HttpBroker) -> None:
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

    run(tmp_path, scenario)


def test_tombstone_is_written_only_for_a_value_that_is_null(tmp_path: Path) -> None:
    async def scenario(where: HttpBroker) -> None:
        await where.create("t", cleanup_policy="compact")
        path = f"{where.cluster}/topics/t/records"
        key = {"key": {"type": "STRING", "data": "k"}}
        refused = await where.ask("POST", path, {**key, "value": {"type": "STRING"}})
        assert (refused.status, refused.json["error_code"]) == (422, 42206) and "null" in refused.json["message"]
        assert (await where.ask("POST", path, {**key, "value": {"type": "STRING", "data": None}})).status == 200

    run(tmp_path, scenario)
