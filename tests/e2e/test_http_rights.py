"""Tests of the rights of REST consumers and of transactions over HTTP: the names in a body, and the owner."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.e2e.http_site import TEST_SECONDS, HttpBroker, HttpReply, http_broker, run
from tests.e2e.test_http_login import BASIC, basic, set_user
from tests.scenario import run_alone, run_by
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.controller.requests import AclChoice, CreateAcls, DeleteAcls
from tiered.groups.requests import CommitOffsets, PartitionOffset
from tiered.metadata.changes import AclAdded

V2, V2_JSON = "application/vnd.kafka.v2+json", "application/vnd.kafka.json.v2+json"
SETTINGS: dict[str, Any] = {
    "authentication_method": BASIC,
    "authorizer_class_name": STANDARD_AUTHORIZER,
    "super_users": "User:root",
    "group_initial_rebalance_delay_ms": 0,
}
ONE = [{"topic": "t", "partition": 0}]


async def start(site: HttpBroker, *topics: str) -> None:
    """Makes three users, and topics with a record each."""
    for user in ("root", "alice", "bob"):
        await set_user(site, user, "secret")
    for topic in topics:
        await site.create(topic)
        body = {"records": [{"value": topic}]}
        assert (await ask(site, "root", "POST", f"/topics/{topic}", body, V2_JSON)).status == 200


async def grant(site: HttpBroker, user: str, *acls: tuple[str, str, str]) -> None:
    """Adds rules (resource type, name, operation) for a user."""
    added = tuple(
        AclAdded(kind, "LITERAL", name, f"User:{user}", "*", operation, "ALLOW") for kind, name, operation in acls
    )
    assert set(await site.broker.submit(CreateAcls(added))) == {None}


async def take_away(site: HttpBroker, topic: str) -> None:
    await site.broker.submit(DeleteAcls((AclChoice("TOPIC", "ANY", topic, None, None, "ANY", "ANY"),)))


async def ask(
    site: HttpBroker, user: str, method: str, path: str, body: Any = None, kind: str = V2, accept: str = ""
) -> HttpReply:
    """Sends a request of a user."""
    return await site.ask(method, path, body, kind=kind, accept=accept, Authorization=basic(user, "secret"))


async def create(site: HttpBroker, user: str, name: str = "c", **config: Any) -> HttpReply:
    """Creates a consumer of JSON records in the group g, from the first record on."""
    given = {"name": name, "format": "json", "auto.offset.reset": "earliest", **config}
    return await ask(site, user, "POST", "/consumers/g", given)


CONSUMER = "/consumers/g/instances/c"


async def read(site: HttpBroker, user: str, timeout_ms: int = 0) -> HttpReply:
    return await ask(site, user, "GET", f"{CONSUMER}/records?timeout={timeout_ms}", accept=V2_JSON)


async def read_topics(site: HttpBroker, user: str, count: int) -> set[str]:
    """Reads until the records of so many topics have come; returns the topics."""
    found: set[str] = set()
    async with asyncio.timeout(TEST_SECONDS):
        while len(found) < count:
            reply = await read(site, user, 300)
            assert reply.status == 200, reply
            found |= {row["topic"] for row in reply.json}
    return found


@run_by(run, "tmp_path", **SETTINGS)
async def test_consumer_belongs_to_its_principal(site: HttpBroker) -> None:
    await start(site, "t")
    for user in ("alice", "bob"):
        await grant(site, user, ("GROUP", "g", "READ"), ("TOPIC", "t", "READ"))
    assert (await create(site, "alice")).status == 200
    assert (await create(site, "bob")).json["error_code"] == 40902
    calls: list[tuple[str, str, Any]] = [
        ("GET", "/subscription", None), ("GET", "/assignments", None), ("GET", "/records", None),
        ("POST", "/subscription", {"topics": ["t"]}), ("DELETE", "/subscription", None),
        ("POST", "/assignments", {"partitions": ONE}), ("POST", "/offsets", {"offsets": [{**ONE[0], "offset": 0}]}),
        ("GET", "/offsets", {"partitions": ONE}), ("POST", "/positions", {"offsets": [{**ONE[0], "offset": 0}]}),
        ("POST", "/positions/end", {"partitions": ONE}), ("DELETE", "", None),
    ]  # fmt: skip
    for method, rest, body in calls:
        absent = await ask(site, "bob", method, f"/consumers/g/instances/x{rest}", body)
        foreign = await ask(site, "bob", method, f"{CONSUMER}{rest}", body)
        assert (foreign.status, foreign.json["error_code"]) == (404, 40403), rest
        assert foreign.body == absent.body.replace(b"'x'", b"'c'"), "it looks as if it did not exist"
    assert (await ask(site, "alice", "POST", f"{CONSUMER}/assignments", {"partitions": ONE})).status == 204
    assert [row["value"] for row in (await read(site, "alice")).json] == ["t"]


@run_by(run, "tmp_path", **SETTINGS)
async def test_consumer_needs_rights_on_its_group_and_topics(site: HttpBroker) -> None:
    await start(site, "t", "hidden")
    await grant(site, "alice", ("TOPIC", "t", "READ"))
    assert (await create(site, "alice")).json["error_code"] == 40301
    await grant(site, "alice", ("GROUP", "g", "READ"))
    assert (await create(site, "alice")).status == 200
    for topic in ("hidden", "absent"):
        place = {"topic": topic, "partition": 0}
        for method, rest, body in (
            ("POST", "/subscription", {"topics": ["t", topic]}),
            ("POST", "/assignments", {"partitions": [place]}),
            ("POST", "/offsets", {"offsets": [{**place, "offset": 0}]}),
            ("GET", "/offsets", {"partitions": [place]}),
        ):
            reply = await ask(site, "alice", method, f"{CONSUMER}{rest}", body)
            assert (reply.status, reply.json["error_code"]) == (403, 40301), (topic, rest)
    assert (await ask(site, "alice", "POST", f"{CONSUMER}/assignments", {"partitions": ONE})).status == 204
    assert [row["value"] for row in (await read(site, "alice")).json] == ["t"]
    assert (await ask(site, "alice", "POST", f"{CONSUMER}/offsets")).json[0]["committed"] == 1
    await take_away(site, "t")
    seeks: list[tuple[str, Any]] = [
        ("/beginning", {"partitions": ONE}),
        ("", {"offsets": [{**ONE[0], "offset": 0}]}),
        ("", {"timestamps": [{**ONE[0], "timestamp": "2026-01-01T00:00:00Z"}]}),
    ]
    for rest, seek in seeks:
        assert (await ask(site, "alice", "POST", f"{CONSUMER}/positions{rest}", seek)).status == 403, seek
    assert (await read(site, "alice")).status == 403


@run_by(run, "tmp_path", **SETTINGS)
async def test_pattern_follows_the_rights_of_the_owner(site: HttpBroker) -> None:
    await start(site, "flights", "fares", "forbidden")
    await grant(site, "alice", ("GROUP", "g", "READ"), ("TOPIC", "flights", "READ"))
    assert (await create(site, "alice")).status == 200
    path = f"{CONSUMER}/subscription"
    assert (await ask(site, "alice", "POST", path, {"topic_pattern": "f.*"})).status == 204
    assert await read_topics(site, "alice", 1) == {"flights"}
    assert (await ask(site, "alice", "GET", path)).json == {"topics": ["flights"]}
    await grant(site, "alice", ("TOPIC", "fares", "READ"))
    assert await read_topics(site, "alice", 1) == {"fares"}


@run_by(run_alone)
async def test_consumer_still_belongs_to_its_principal_after_a_restart(*, tmp_path: Path) -> None:
    async with http_broker(tmp_path, **SETTINGS) as site:
        await start(site, "t")
        for user in ("alice", "bob"):
            await grant(site, user, ("GROUP", "g", "READ"), ("TOPIC", "t", "READ"))
        assert (await create(site, "alice")).status == 200
        assert (await ask(site, "alice", "POST", f"{CONSUMER}/subscription", {"topics": ["t"]})).status == 204
        assert await read_topics(site, "alice", 1) == {"t"}
    async with http_broker(tmp_path, **SETTINGS) as site:
        assert (await create(site, "bob")).json["error_code"] == 40902
        assert (await read(site, "bob")).status == 404
        assert (await ask(site, "alice", "GET", f"{CONSUMER}/subscription")).json == {"topics": ["t"]}


@run_by(run, "tmp_path", **SETTINGS)
async def test_transaction_needs_every_right_before_it_writes(site: HttpBroker) -> None:
    await start(site, "t", "read", "hidden")
    path = "/tiered/v1/transactions"

    def body(topic: str, consumed: str) -> dict[str, Any]:
        offsets = [{"topic_name": consumed, "partition_id": 0, "offset": 1}]
        return {
            "records": [{"topic_name": topic, "value": {"type": "JSON", "data": 1}}],
            "consumer_group": {"consumer_group_id": "g", "offsets": offsets},
        }

    rights = [
        ("TRANSACTIONAL_ID", "tiered-http", "WRITE"),
        ("TOPIC", "t", "WRITE"),
        ("GROUP", "g", "READ"),
        ("TOPIC", "read", "READ"),
    ]
    whys = set()
    for right in rights:
        refused = await ask(site, "alice", "POST", path, body("t", "read"), "application/json")
        assert (refused.status, refused.json["error_code"]) == (403, 40301)
        whys.add(refused.json["message"])
        await grant(site, "alice", right)
    assert len(whys) == 4, "each right is asked for"
    for topic, consumed in (("hidden", "read"), ("absent", "read"), ("t", "hidden"), ("t", "absent")):
        refused = await ask(site, "alice", "POST", path, body(topic, consumed), "application/json")
        assert refused.status == 403, (topic, consumed)
    written = await ask(site, "alice", "POST", path, body("t", "read"), "application/json")
    assert written.json["error_code"] == 40002 and "Kafka listener" in written.json["message"]


@run_by(run, "tmp_path", **SETTINGS)
async def test_idempotency_key_is_of_one_principal(site: HttpBroker) -> None:
    """Otherwise a tenant that guesses a key could make the record of another one look as if it were written."""
    await start(site, "t")
    for user in ("alice", "bob"):
        await grant(site, user, ("TOPIC", "t", "WRITE"))
    path, body = f"{site.cluster}/topics/t/records", {"value": {"type": "JSON", "data": 1}}

    async def write(user: str) -> int:
        login, key = basic(user, "secret"), '"order-1"'
        reply = await site.ask("POST", path, body, Authorization=login, Idempotency_Key=key)
        assert reply.status == 200, reply
        return int(reply.json["offset"])

    assert [await write(user) for user in ("alice", "bob", "alice", "bob")] == [1, 2, 1, 2]


@run_by(run, "tmp_path", **SETTINGS)
async def test_topic_is_created_by_a_right_on_it_or_on_the_cluster(site: HttpBroker) -> None:
    """A pattern of names is enough, which holds on the Kafka port too."""
    await start(site)
    await grant(site, "bob", ("CLUSTER", "kafka-cluster", "CREATE"))
    prefixed = AclAdded("TOPIC", "PREFIXED", "mine", "User:alice", "*", "CREATE", "ALLOW")
    assert set(await site.broker.submit(CreateAcls((prefixed,)))) == {None}

    async def make(user: str, name: str) -> int:
        topics, body = f"{site.cluster}/topics", {"topic_name": name}
        return (await ask(site, user, "POST", topics, body, "application/json")).status

    assert [await make("alice", name) for name in ("mine.a", "other")] == [201, 403]
    assert [await make("bob", name) for name in ("mine.b", "other")] == [201, 201]


@run_by(run, "tmp_path", **SETTINGS)
async def test_groups_are_listed_by_a_right_on_each_or_on_the_cluster(site: HttpBroker) -> None:
    await start(site, "t")
    for group in ("g", "h"):
        await site.broker.group_coordinators.submit(group, CommitOffsets(group, (PartitionOffset("t", 0, 1),)))
    await grant(site, "alice", ("GROUP", "g", "DESCRIBE"))
    await grant(site, "bob", ("CLUSTER", "kafka-cluster", "DESCRIBE"))

    async def list_groups(user: str) -> list[str]:
        reply = await ask(site, user, "GET", f"{site.cluster}/consumer-groups")
        return sorted(each["consumer_group_id"] for each in reply.json["data"])

    assert [await list_groups("alice"), await list_groups("bob")] == [["g"], ["g", "h"]]
