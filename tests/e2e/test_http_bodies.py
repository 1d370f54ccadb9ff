"""Tests of JSON bodies with one fault, made from the document of the API: each is refused before anything is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.http_bodies import (
    BODIES,
    ONE,
    TYPO,
    V2_JSON,
    Body,
    Schema,
    with_repeated_field,
    with_unknown_field,
    with_wrong_shape,
    without_required_field,
)
from tests.e2e.http_cluster import HttpCluster
from tests.e2e.http_cluster import run as run_cluster
from tests.e2e.http_site import HttpBroker, HttpReply
from tests.e2e.test_http_consumers import HttpConsumer
from tests.scenario import run_by


def run(directory: Path, scenario: Callable[[HttpBroker], Awaitable[None]]) -> None:
    """Runs a scenario on a broker with a Kafka listener, which transactions need."""

    async def run_one(cluster: HttpCluster) -> None:
        await scenario(cluster[1])

    run_cluster(directory, run_one, numbers=(1,))


async def _prepare(where: HttpBroker) -> HttpConsumer:
    """Makes the objects that the bodies name. Returns the consumer, which stands at record 1 of 3."""
    await where.create("t")
    await where.produce("t", "1", "2", "3")
    await HttpConsumer.create(where, "g", "free")
    one = await HttpConsumer.create(where, "g", "one", auto_commit_enable="false")
    await one.ask_without_reply("POST", "/assignments", {"partitions": [ONE]})
    await _rewind(one)
    assert (await one.ask("POST", "/offsets", {"offsets": [{**ONE, "offset": 1}]})).status == 200
    return one


async def _rewind(one: HttpConsumer) -> None:
    await one.ask_without_reply("POST", "/positions", {"offsets": [{**ONE, "offset": 1}]})


async def _state(where: HttpBroker, one: HttpConsumer) -> tuple[Any, ...]:
    """Returns all that a refused body must not change: records, topics, settings, groups and consumers."""
    image = where.broker.image
    ends = (await where.get("/topics/t/partitions/0/offsets")).json
    groups = [each["consumer_group_id"] for each in (await where.get(f"{where.cluster}/consumer-groups")).json["data"]]
    consumers = [line for line in (await where.get("/metrics")).body.splitlines() if b"http_consumers " in line]
    next_records = [row["offset"] for row in (await one.ask("GET", "/records?timeout=500", accept=V2_JSON)).json]
    await _rewind(one)
    committed = (await one.ask("GET", "/offsets", {"partitions": [ONE]})).json
    subscription = (await where.get("/consumers/g/instances/free/subscription")).json
    return (
        ends, sorted(image.topics), image.topics["t"], image.broker_configs, sorted(groups), consumers, next_records,
        committed, subscription,
    )  # fmt: skip


def _schema(document: dict[str, Any], body: Body) -> Schema:
    content = document["paths"][body.route][body.method.lower()]["requestBody"]["content"]
    found: Schema = document["components"]["schemas"][content[body.kind]["schema"]["$ref"].rpartition("/")[2]]
    return found


def _is_refused(reply: HttpReply) -> bool:
    if reply.status == 207:  # entries of a batch fail one by one
        return not reply.json["successes"] and all(
            400 <= int(str(row["error_code"])[:3]) < 500 for row in reply.json["failures"]
        )
    return 400 <= reply.status < 500


def _refuse_all(
    directory: Path, faulty: Callable[[Any, Schema], list[bytes]], check: Callable[[Body, HttpReply], bool]
) -> None:
    """Sends all bodies with a kind of fault, and checks that they are refused and change nothing."""

    async def scenario(where: HttpBroker) -> None:
        one = await _prepare(where)
        document = (await where.get("/openapi.json")).json
        before = await _state(where, one)
        taken: list[Any] = []
        for body in BODIES:
            for case in faulty(body.body, _schema(document, body)):
                reply = await where.ask(body.method, body.path(where.broker.cluster_id), case, kind=body.kind)
                if not _is_refused(reply) or not check(body, reply):
                    taken.append((body.method, body.route, case, reply.status, reply.body))
            if await _state(where, one) != before:
                taken.append((body.method, body.route, "something was changed"))
                before = await _state(where, one)
        assert not taken, "\n".join(map(str, taken))

    run(directory, scenario)


def _error(reply: HttpReply) -> tuple[int, str]:
    error = reply.json["failures"][0] if reply.status == 207 else reply.json
    return error["error_code"], error["message"]


def test_body_with_an_unknown_field_at_any_level_is_refused(tmp_path: Path) -> None:
    def check(body: Body, reply: HttpReply) -> bool:
        code, message = _error(reply)
        return code == body.code and f"no field '{TYPO}'" in message

    _refuse_all(tmp_path, with_unknown_field, check)


def test_body_with_a_field_twice_at_any_level_is_refused(tmp_path: Path) -> None:
    def check(body: Body, reply: HttpReply) -> bool:
        code, message = _error(reply)
        return code == (body.twice_code or body.code) and "appears twice in one object" in message

    _refuse_all(tmp_path, with_repeated_field, check)


@pytest.mark.parametrize("faulty", [without_required_field, with_wrong_shape])
def test_body_without_a_field_or_with_another_shape_is_refused(
    tmp_path: Path, faulty: Callable[[Any, Schema], list[bytes]]
) -> None:
    _refuse_all(tmp_path, faulty, lambda body, reply: not body.own_refusal or body.own_refusal not in _error(reply)[1])


@pytest.mark.parametrize("body", BODIES, ids=lambda body: f"{body.method} {body.route} {','.join(body.body)}")
@run_by(run, "tmp_path")
async def test_valid_body_is_accepted(where: HttpBroker, *, body: Body) -> None:
    await _prepare(where)
    reply = await where.ask(body.method, body.path(where.broker.cluster_id), body.body, kind=body.kind)
    if body.own_refusal:
        assert reply.status in (400, 404, 422) and body.own_refusal in reply.json["message"], reply
    else:
        assert reply.status in (200, 201, 204) or (reply.status == 207 and not reply.json["failures"]), reply
