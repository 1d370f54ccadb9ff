"""Tests of logins over HTTP: HTTP Basic against the users of the cluster, and certificates of clients."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import ssl
import threading
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.certificates import sign
from tests.e2e.http_cluster import http_cluster
from tests.e2e.http_site import RAW, TEST_SECONDS, HttpBroker, HttpReply, http_broker, run, wait_until
from tests.e2e.test_kafka_fetch import QUICK, SMALL, SlowBucket
from tests.scenario import run_alone, run_by
from tests.sim.rig.broker_rig import batch
from tiered.access.audit_log import LOGGER
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.controller.requests import AclChoice, AlterScramCredentials, CreateAcls, DeleteAcls, ScramDeletion
from tiered.errors import Refused
from tiered.groups.requests import DescribeGroup
from tiered.hot.validation import LogAppendInfo
from tiered.metadata.changes import AclAdded, ScramCredentialSet
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica
from tiered.security.scram import ScramCredential, ScramMechanism, make_credential, salt_password
from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.context import INLINE_BYTES, WORKERS
from tiered_api.http.exchange.media_types import V2_BINARY, V2_JSON
from tiered_api.http.exchange.remote_brokers import RemoteBrokers
from tiered_api.http.server.authentication import WAITING_MAX, list_tried
from tiered_api.http.server.server import HttpServer, serve_http

RECORD = {"value": {"type": "JSON", "data": 1}}
SALT = b"0123456789"
BASIC = ("BASIC",)
V2 = "application/vnd.kafka.v2+json"
GRANTED = (("TOPIC", "t"), ("GROUP", "g"))


def credential(password: str, mechanism: ScramMechanism = ScramMechanism.SHA_512) -> ScramCredential:
    """Returns the keys of a password."""
    return make_credential(mechanism, salt_password(mechanism, password, SALT, 4096), SALT, 4096)


async def set_user(
    site: HttpBroker, user: str, password: str, mechanism: ScramMechanism = ScramMechanism.SHA_512
) -> None:
    """Gives the cluster a user, or a user another password."""
    made = credential(password, mechanism)
    salt, stored_key, server_key = (b64encode(each).decode() for each in made[:3])
    change = ScramCredentialSet(user, mechanism.mechanism_name, salt, stored_key, server_key, made.iterations)
    await site.broker.submit(AlterScramCredentials((), (change,)))


async def remove_user(site: HttpBroker, user: str, mechanism: str = "SCRAM-SHA-512") -> None:
    await site.broker.submit(AlterScramCredentials((ScramDeletion(user, mechanism),), ()))


def basic(user: str, password: str) -> str:
    """Returns the value of the header Authorization."""
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


async def ask_as(site: HttpBroker, login: str, path: str = "/topics") -> HttpReply:
    return await site.ask("GET", path, Authorization=login)


@run_by(run, "tmp_path", authentication_method=BASIC, connection_failed_authentication_delay_ms=1)
async def test_user_with_its_password_is_served_and_nobody_else(site: HttpBroker) -> None:
    await set_user(site, "alice", "wonder: land ü")
    assert (await ask_as(site, basic("alice", "wonder: land ü"))).status == 200
    assert (await ask_as(site, basic("alice", "wonder: land ü").replace("Basic", "bASIC "))).status == 200
    refused = [
        await ask_as(site, login)
        for login in (
            basic("alice", "wonderland"), basic("bob", "wonder: land ü"), basic("", ""), basic("alice", ""),
            "Basic", "Basic !", "Basic YWxpY2U=", f"Basic {b64encode(b'a:' + bytes([255])).decode()}", "Bearer x",
        )
    ]  # fmt: skip
    refused.append(await site.get("/topics"))
    for reply in refused:
        assert (reply.status, reply.json["error_code"]) == (401, 40101)
        assert reply.headers["WWW-Authenticate"] == 'Basic realm="tiered", charset="UTF-8"'
    assert len({reply.body for reply in refused[:4]}) == 1, "an unknown user and a wrong password look the same"


@run_by(run, "tmp_path", authentication_method=BASIC)
async def test_health_and_identity_without_a_login_have_no_details(site: HttpBroker) -> None:
    await set_user(site, "alice", "wonderland")
    assert (await site.get("/healthz")).json == {"ok": True}
    assert (await ask_as(site, basic("alice", "wonderland"), "/healthz")).json["details"]
    assert (await site.get("/tiered/v1/node")).status == 200
    for path in ("/metrics", "/", "/openapi.json", "/v3/clusters"):
        assert (await site.get(path)).status == 401, path
        assert (await ask_as(site, basic("alice", "wonderland"), path)).status == 200, path
    assert (await site.get("/absent")).status == 404


def test_change_of_a_password_and_removal_of_a_user_count_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)

    async def scenario(site: HttpBroker) -> None:
        old, new = basic("alice", "wonderland"), basic("alice", "underland")
        await set_user(site, "alice", "wonderland")
        assert [(await ask_as(site, old)).status for _ in range(2)] == [200, 200]
        await set_user(site, "alice", "underland")
        assert [(await ask_as(site, each)).status for each in (old, new)] == [401, 200]
        await remove_user(site, "alice")
        assert (await ask_as(site, new)).status == 401
        events = [json.loads(record.getMessage()) for record in caplog.records if record.name == LOGGER]
        outcomes = [(each["outcome"], each.get("principal")) for each in events]
        assert outcomes == [("allowed", "User:alice"), ("refused", None)] * 2, "what is remembered is no new login"

    run(tmp_path, scenario, authentication_method=BASIC, connection_failed_authentication_delay_ms=1)


@run_by(run, "tmp_path", authentication_method=BASIC)
async def test_streams_of_a_removed_user_end(site: HttpBroker) -> None:
    """A stream of events, and one of records that the client writes."""
    await set_user(site, "alice", "wonderland")
    await site.create("t")
    login = {"Authorization": basic("alice", "wonderland")}
    events = {**login, "Accept": "text/event-stream"}
    removed = asyncio.Event()

    async def write() -> AsyncIterator[bytes]:
        yield json.dumps(RECORD).encode()
        await removed.wait()
        yield json.dumps(RECORD).encode()

    path = f"{site.url}{site.cluster}/topics/t/records"
    headers = {**login, "Content-Type": "application/json"}
    async with (
        site.session.get(f"{site.url}/topics/t/partitions/0/records", headers=events) as read,
        site.session.post(path, headers=headers, data=write()) as written,
    ):
        assert await read.content.readuntil(b"\n\n") == b": open\n\n"
        await wait_until(lambda: site.broker.leader_replica("t", 0).log.end_offset == 1)
        assert b"offset" in await written.content.readline()
        await remove_user(site, "alice")
        removed.set()
        await site.broker.leader_replica("t", 0).append(batch([b"hidden"]), acks=ACKS_ALL, timeout_ms=5_000)
        told = await read.content.read()
        assert b"40101" in told and b"hidden" not in told
        assert b"40101" in await written.content.read()
        assert site.broker.leader_replica("t", 0).log.end_offset == 2


def test_consumer_of_a_user_that_has_gone_leaves_its_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumers of others stay, also that of a user that moves to the other mechanism."""
    monkeypatch.setattr("tiered_api.http.consumers.instances.SWEEP_SECONDS", 0.01)
    names = ("removed", "changed", "denied", "moved", "stays")
    logins = {"Authorization": ""}

    async def subscribe(site: HttpBroker, user: str) -> None:
        logins["Authorization"] = basic(user, "secret")
        made = await site.ask("POST", f"/consumers/{user}", {"name": "c"}, kind=V2, **logins)
        below = made.json["base_uri"].removeprefix(site.url)
        topics = {"topics": ["t"]}
        assert (await site.ask("POST", f"{below}/subscription", topics, kind=V2, **logins)).status == 204
        await site.ask("GET", f"{below}/assignments", **logins)

    async def count_members(site: HttpBroker, user: str) -> int:
        group = await site.broker.group_coordinators.submit(user, DescribeGroup(user))
        return len(group.members)

    async def scenario(site: HttpBroker) -> None:
        await site.create("t")
        for user in names:
            await set_user(site, user, "secret")
            await subscribe(site, user)
            while not await count_members(site, user):
                await asyncio.sleep(0.01)
        await remove_user(site, "removed")
        await set_user(site, "changed", "other")
        rule = AclAdded("GROUP", "LITERAL", "denied", "User:denied", "*", "READ", "DENY")
        await site.broker.submit(CreateAcls((rule,)))
        await set_user(site, "moved", "other", ScramMechanism.SHA_256)
        for user in names[:3]:
            while await count_members(site, user):
                await asyncio.sleep(0.01)
        assert [await count_members(site, user) for user in names[3:]] == [1, 1]

    run(
        tmp_path, scenario, authentication_method=BASIC, authorizer_class_name=STANDARD_AUTHORIZER,
        allow_everyone_if_no_acl_found=True,
    )  # fmt: skip


@pytest.mark.parametrize("accept", ["application/json", "application/octet-stream"])
@run_by(run, "tmp_path", authentication_method=BASIC)
async def test_read_that_waits_tells_a_removed_user_nothing(site: HttpBroker, *, accept: str) -> None:
    await set_user(site, "alice", "wonderland")
    await site.create("t")
    replica = site.broker.leader_replica("t", 0)
    path = "/topics/t/partitions/0/records?offset=0&timeout=20000"
    login = basic("alice", "wonderland")
    read = asyncio.create_task(site.ask("GET", path, accept=accept, Authorization=login))
    await wait_until(lambda: bool(replica.reads._parked))
    await remove_user(site, "alice")
    await replica.append(batch([b"hidden"]), acks=ACKS_ALL, timeout_ms=5_000)
    reply = await read
    assert reply.status == 401 and b"hidden" not in reply.body


@pytest.mark.parametrize("accept", ["application/json", "application/octet-stream"])
def test_read_that_waits_for_the_bucket_tells_a_removed_user_nothing(tmp_path: Path, accept: str) -> None:
    async def scenario(site: HttpBroker) -> None:
        await set_user(site, "alice", "wonderland")
        await site.create("t", 1, **SMALL)
        replica = site.broker.leader_replica("t", 0)
        for _ in range(20):
            await replica.append(batch([b"hidden" * 200]))
        await wait_until(lambda: replica.local_start_offset >= 1)
        bucket.open.clear()
        path, login = "/topics/t/partitions/0/records?offset=0", basic("alice", "wonderland")
        read = asyncio.create_task(site.ask("GET", path, accept=accept, Authorization=login))
        await wait_until(lambda: bucket.gets > 0)
        await remove_user(site, "alice")
        bucket.open.set()
        reply = await read
        assert reply.status == 401 and b"hidden" not in reply.body

    bucket = SlowBucket()
    bucket.open.set()
    run(tmp_path, scenario, None, ports=bucket.ports, authentication_method=BASIC, **QUICK)


@pytest.mark.parametrize("path", ["/topics/t", "{cluster}/topics/t/records", "{cluster}/topics/t/records:batch"])
@run_by(run, "tmp_path", authentication_method=BASIC)
async def test_body_that_ends_after_its_user_was_removed_writes_nothing(site: HttpBroker, *, path: str) -> None:
    await set_user(site, "alice", "wonderland")
    await site.create("t")
    budget, removed = site.http._listener.context.budget, asyncio.Event()
    free = budget.free
    entries = {"entries": [{"id": "1", **RECORD}]}
    body = {"/topics/t": {"records": [{"value": 1}]}}.get(path, entries if path.endswith("batch") else RECORD)
    data = json.dumps(body).encode()

    async def send() -> AsyncIterator[bytes]:
        yield data[:5]
        await removed.wait()
        yield data[5:]

    headers = {
        "Authorization": basic("alice", "wonderland"), "Content-Length": str(len(data)),
        "Content-Type": media_types.V2_JSON if path == "/topics/t" else media_types.JSON,
    }  # fmt: skip
    url = site.url + path.format(cluster=site.cluster)
    written = asyncio.create_task(site.session.post(url, headers=headers, data=send()).__aenter__())
    await wait_until(lambda: budget.free < free)
    await remove_user(site, "alice")
    removed.set()
    assert (await written).status == 401
    assert site.broker.leader_replica("t", 0).log.end_offset == 0


@pytest.mark.parametrize("path", ["/topics/t", "{cluster}/topics/t/records"])
@run_by(run, "tmp_path", authentication_method=BASIC)
async def test_body_of_a_removed_user_that_waits_for_memory_writes_nothing(site: HttpBroker, *, path: str) -> None:
    await set_user(site, "alice", "wonderland")
    await site.create("t")
    budget = site.http._listener.context.budget
    held = await budget.acquire(budget.size, 5)
    body = {"records": [{"value": 1}]} if path == "/topics/t" else RECORD
    kind = V2_JSON if path == "/topics/t" else media_types.JSON
    headers = {"Authorization": basic("alice", "wonderland"), "Content_Encoding": "gzip"}
    data = gzip.compress(json.dumps(body).encode())
    written = asyncio.create_task(site.ask("POST", path.format(cluster=site.cluster), data, kind=kind, **headers))
    await wait_until(lambda: bool(budget._waiters))
    await remove_user(site, "alice")
    budget.release(held)
    reply = await written
    assert (reply.status, site.broker.leader_replica("t", 0).log.end_offset) == (401, 0), reply
    await wait_until(lambda: budget.free == budget.size)


@pytest.mark.parametrize("kind", [V2_JSON, RAW])
@run_by(run, "tmp_path", authentication_method=BASIC)
async def test_body_of_a_removed_user_that_waits_for_a_thread_writes_nothing(site: HttpBroker, *, kind: str) -> None:
    await set_user(site, "alice", "wonderland")
    await site.create("t")
    value, context, go = "x" * INLINE_BYTES, site.http._listener.context, threading.Event()
    path, body = ("/topics/t", {"records": [{"value": value}]})
    raw = ("/topics/t/partitions/0/records", bytes(batch([value.encode()])))
    busy = [asyncio.create_task(context.run_job(INLINE_BYTES + 1, go.wait, TEST_SECONDS)) for _ in range(WORKERS)]
    await wait_until(lambda: context._turns.taken == WORKERS)
    sent = raw if kind == RAW else (path, body)
    login = basic("alice", "wonderland")
    written = asyncio.create_task(site.ask("POST", *sent, kind=kind, Authorization=login))
    await wait_until(lambda: context._turns.waiting > 0)
    await remove_user(site, "alice")
    go.set()
    reply = await written
    assert (reply.status, site.broker.leader_replica("t", 0).log.end_offset) == (401, 0), reply
    await asyncio.gather(*busy)


@pytest.mark.parametrize("kind", ["json", "consumer"])
@run_by(run, "tmp_path", authentication_method=BASIC)
async def test_read_that_waits_for_memory_tells_a_removed_user_nothing(site: HttpBroker, *, kind: str) -> None:
    await set_user(site, "alice", "wonderland")
    await site.create("t")
    login = basic("alice", "wonderland")
    await site.broker.leader_replica("t", 0).append(batch([b"hidden"]), acks=ACKS_ALL, timeout_ms=5_000)
    path, accept = "/topics/t/partitions/0/records?offset=0", media_types.JSON
    if kind == "consumer":
        path, accept = await assign_consumer(site, login), V2_BINARY
    budget = site.http._listener.context.budget
    held = await budget.acquire(budget.size, 5)
    read = asyncio.create_task(site.ask("GET", path, accept=accept, Authorization=login))
    await wait_until(lambda: bool(budget._waiters))
    await remove_user(site, "alice")
    budget.release(held)
    reply = await read
    assert reply.status == 401 and b"offset" not in reply.body, reply


@pytest.mark.parametrize("path", ["/topics/t", "{cluster}/topics/t/records"])
@run_by(run_alone)
async def test_write_that_looks_for_a_leader_asks_for_the_login_again(*, tmp_path: Path, path: str) -> None:
    """The leader judges the principal that a broker names, and knows no login."""
    async with asyncio.timeout(TEST_SECONDS), http_cluster(tmp_path, (1, 2), authentication_method=BASIC) as both:
        site = both[1]
        await set_user(site, "alice", "wonderland")
        await both.create("t", [2])
        await both.end(2)
        await wait_until(lambda: not site.broker.image.brokers[2].live)
        body = {"records": [{"value": 1}]} if path == "/topics/t" else RECORD
        kind = media_types.V2_JSON if path == "/topics/t" else media_types.JSON
        login, url = basic("alice", "wonderland"), path.format(cluster=site.cluster)
        written = asyncio.create_task(site.ask("POST", url, body, kind=kind, Authorization=login))
        await wait_until(lambda: bool(site.http._listener.authenticator._proven))
        await remove_user(site, "alice")
        reply = await written
        assert b"the login has ended" in reply.body, reply


@run_by(run, "tmp_path", authentication_method=BASIC)
async def test_partition_that_waits_its_turn_takes_nothing_of_a_removed_user(
    site: HttpBroker, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_user(site, "alice", "wonderland")
    await site.create("t", 2)
    written, removed, append = asyncio.Event(), asyncio.Event(), LeaderReplica.append

    async def append_slowly(replica: LeaderReplica, data: bytearray, **named: Any) -> LogAppendInfo:
        appended = await append(replica, data, **named)
        written.set()
        await removed.wait()
        return appended

    monkeypatch.setattr(LeaderReplica, "append", append_slowly)
    body = {"records": [{"value": 1, "partition": each} for each in range(2)]}
    login = basic("alice", "wonderland")
    sent = asyncio.create_task(site.ask("POST", "/topics/t", body, kind=V2_JSON, Authorization=login))
    await written.wait()
    await remove_user(site, "alice")
    removed.set()
    outcomes = [each["error"] for each in (await sent).json["offsets"]]
    assert outcomes == [None, "the login has ended: its user, password or token is not good any more"]
    assert [site.broker.leader_replica("t", each).log.end_offset for each in range(2)] == [1, 0]


async def assign_consumer(site: HttpBroker, login: str, min_bytes: int = 1) -> str:
    """Makes a consumer of the whole topic. Returns the path of its records."""
    options = {"name": "c", "auto.offset.reset": "earliest", "fetch.min.bytes": min_bytes}
    made = await site.ask("POST", "/consumers/g", options, kind=V2, Authorization=login)
    below = str(made.json["base_uri"]).removeprefix(site.url)
    rows = {"partitions": [{"topic": "t", "partition": 0}]}
    assert (await site.ask("POST", f"{below}/assignments", rows, kind=V2, Authorization=login)).status == 204
    return f"{below}/records"


@run_by(run, "tmp_path", authentication_method=BASIC)
async def test_consumer_that_waits_for_more_tells_a_removed_user_nothing(site: HttpBroker) -> None:
    """It has records already, but not as many as it wants."""
    await set_user(site, "alice", "wonderland")
    await site.create("t")
    login = basic("alice", "wonderland")
    replica = site.broker.leader_replica("t", 0)
    await replica.append(batch([b"hidden"]), acks=ACKS_ALL, timeout_ms=5_000)
    path = await assign_consumer(site, login, min_bytes=1_000_000)
    read = asyncio.create_task(site.ask("GET", path, accept=V2_BINARY, Authorization=login))
    await wait_until(lambda: bool(replica.reads._parked))
    await remove_user(site, "alice")
    await replica.append(batch([b"more"]), acks=ACKS_ALL, timeout_ms=5_000)
    reply = await read
    assert reply.status == 401 and b"offset" not in reply.body, reply


@run_by(run, "tmp_path", authentication_method=BASIC, authorizer_class_name=STANDARD_AUTHORIZER)
async def test_consumer_that_waits_shows_no_topic_that_it_may_not_read_now(site: HttpBroker) -> None:
    await set_user(site, "alice", "wonderland")
    await site.create("t")
    rules = [AclAdded(kind, "LITERAL", name, "User:alice", "*", "READ", "ALLOW") for kind, name in GRANTED]
    await site.broker.submit(CreateAcls(tuple(rules)))
    login = basic("alice", "wonderland")
    replica = site.broker.leader_replica("t", 0)
    await replica.append(batch([b"hidden"]), acks=ACKS_ALL, timeout_ms=5_000)
    path = await assign_consumer(site, login, min_bytes=1_000_000)
    read = asyncio.create_task(site.ask("GET", path, accept=V2_BINARY, Authorization=login))
    await wait_until(lambda: bool(replica.reads._parked))
    await site.broker.submit(DeleteAcls((AclChoice("TOPIC", "ANY", "t", None, None, "ANY", "ANY"),)))
    await replica.append(batch([b"more"]), acks=ACKS_ALL, timeout_ms=5_000)
    reply = await read
    assert reply.status == 403 and b"offset" not in reply.body, reply


def test_unknown_user_costs_as_many_checks_as_any_user() -> None:
    """Many logins wait for one thread: their time would show how much work a user costs."""
    both = {each.mechanism_name: credential("one", each) for each in ScramMechanism}
    one = {ScramMechanism.SHA_256.mechanism_name: credential("one", ScramMechanism.SHA_256)}
    works = [
        [(mechanism, each.iterations) for mechanism, each in list_tried(found, b"key", "alice")]
        for found in ({}, one, both)
    ]
    assert works[0] == works[1] == works[2] == [(each, 4096) for each in ScramMechanism]
    assert list_tried(both, b"key", "alice") == [(each, both[each.mechanism_name]) for each in ScramMechanism]


@run_by(run, "tmp_path", authentication_method=BASIC)
async def test_login_in_many_spellings_is_remembered_once(site: HttpBroker) -> None:
    await set_user(site, "alice", "wonderland")
    proven = site.http._listener.authenticator._proven
    for spaces in range(1, 4):
        login = basic("alice", "wonderland").replace(" ", " " * spaces)
        assert (await ask_as(site, login)).status == 200
    assert len(proven) == 1


@run_by(run, "tmp_path", authentication_method=BASIC)
async def test_each_mechanism_of_a_user_may_have_its_own_password(site: HttpBroker) -> None:
    await set_user(site, "alice", "one", ScramMechanism.SHA_256)
    await set_user(site, "alice", "two", ScramMechanism.SHA_512)
    assert [(await ask_as(site, basic("alice", each))).status for each in ("one", "two")] == [200, 200]


@run_by(run, "tmp_path", authentication_method=BASIC, connection_failed_authentication_delay_ms=300)
async def test_failed_login_is_answered_after_the_delay(site: HttpBroker) -> None:
    await set_user(site, "alice", "wonderland")
    loop = asyncio.get_running_loop()
    for user in ("alice", "bob"):
        begun = loop.time()
        assert (await ask_as(site, basic(user, "wrong"))).status == 401
        assert loop.time() - begun >= 0.3


@run_by(run, "tmp_path", authentication_method=BASIC, authorizer_class_name=STANDARD_AUTHORIZER)
async def test_rights_are_those_of_the_user_on_every_request_of_a_connection(site: HttpBroker) -> None:
    """A head that the quick way remembered would answer the next caller of the same bytes."""
    await site.create("t")
    for user in ("alice", "bob"):
        await set_user(site, user, "secret")
    rule = AclAdded("TOPIC", "LITERAL", "t", "User:alice", "*", "WRITE", "ALLOW")
    await site.broker.submit(CreateAcls((rule,)))
    records = f"{site.cluster}/topics/t/records"
    for _ in range(3):
        for user, status in (("alice", 200), ("bob", 403)):
            reply = await site.ask("POST", records, RECORD, Authorization=basic(user, "secret"))
            assert reply.status == status, user
        assert (await site.ask("POST", records, RECORD)).status == 401
    assert (await ask_as(site, basic("alice", "secret"))).json == ["t"]
    assert (await ask_as(site, basic("bob", "secret"))).json == []


@run_by(run, "tmp_path", authentication_method=BASIC, connection_failed_authentication_delay_ms=1)
async def test_login_that_succeeded_once_is_not_a_way_in_after_its_user_has_gone(site: HttpBroker) -> None:
    await site.create("t")
    await set_user(site, "alice", "wonderland")
    login, records = basic("alice", "wonderland"), f"{site.cluster}/topics/t/records"
    for _ in range(4):
        assert (await site.ask("POST", records, RECORD, Authorization=login)).status == 200
    await remove_user(site, "alice")
    assert (await site.ask("POST", records, RECORD, Authorization=login)).status == 401


@run_by(run_alone)
async def test_certificate_of_a_client_gives_its_principal(*, tmp_path: Path) -> None:
    authority = sign("CN=authority")
    (tmp_path / "ca.pem").write_text(authority.certificate_pem)
    key = sign("CN=broker", authority).write(tmp_path / "broker.pem")
    client = sign("CN=alice,O=Example", authority).write(tmp_path / "alice.pem")
    settings: dict[str, Any] = {
        "ssl_keystore_location": key,
        "ssl_truststore_location": str(tmp_path / "ca.pem"),
        "ssl_client_auth": "requested",
        "ssl_principal_mapping_rules": "RULE:^CN=(alice),.*$/$1@example/",
        "authorizer_class_name": STANDARD_AUTHORIZER,
    }
    async with http_broker(tmp_path / "data", **settings) as site:
        await site.create("t")
        name = "User:alice@example"
        await site.broker.submit(CreateAcls((AclAdded("TOPIC", "LITERAL", "t", name, "*", "READ", "ALLOW"),)))
        server = await serve_http(site.broker, "127.0.0.1", 0, has_tls=True)
        try:
            context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
            with_certificate = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
            with_certificate.load_cert_chain(client)
            url = f"{server.url}/topics"
            async with site.session.get(url, ssl=context) as anonymous:
                assert await anonymous.json() == []
            async with (
                aiohttp.ClientSession() as session,
                session.get(url, ssl=with_certificate) as known,
            ):
                assert await known.json() == ["t"]
            with_certificate.load_cert_chain(sign("CN=eve", authority).write(tmp_path / "eve.pem"))
            async with aiohttp.ClientSession() as session:
                with pytest.raises(aiohttp.ClientError):
                    await session.get(url, ssl=with_certificate)
        finally:
            await server.close()


@asynccontextmanager
async def https_broker(tmp_path: Path) -> AsyncIterator[tuple[HttpBroker, HttpServer, ssl.SSLContext]]:
    """Yields a broker that serves HTTP with TLS too, that server, and the context of a client that trusts it."""
    authority = sign("CN=authority")
    (tmp_path / "ca.pem").write_text(authority.certificate_pem)
    key = sign("CN=broker", authority).write(tmp_path / "broker.pem")
    async with http_broker(tmp_path / "data", ssl_keystore_location=key) as site:
        server = await serve_http(site.broker, "127.0.0.1", 0, has_tls=True)
        try:
            yield site, server, ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        finally:
            await server.close()


def test_one_address_cannot_take_all_handshakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It loses its oldest one to each that is too many; those of others go on."""
    monkeypatch.setattr("tiered_api.http.server.handshakes.HANDSHAKES_MAX", 4)

    async def scenario() -> None:
        async with https_broker(tmp_path) as (site, server, context):
            port = int(server.url.rpartition(":")[2])

            async def connect(host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                return await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))

            other = await connect("127.0.0.2")
            silent = [await connect("127.0.0.1") for _ in range(7)]
            for reader, _ in silent[:4]:
                assert await reader.read() == b""
            assert not any(reader.at_eof() for reader, _ in silent[4:])
            await other[1].start_tls(context)
            other[1].write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await other[0].readline()).startswith(b"HTTP/1.1 200")
            async with site.session.get(f"{server.url}/healthz", ssl=context) as reply:
                assert reply.status == 200
        for reader, _ in silent[4:]:
            assert await reader.read() == b""
        for _, writer in (other, *silent):
            writer.close()

    asyncio.run(scenario())


@run_by(run_alone)
async def test_request_that_comes_with_the_end_of_the_handshake_is_served(*, tmp_path: Path) -> None:
    async with https_broker(tmp_path) as (_, server, context):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = context.wrap_bio(received, sent, server_hostname="localhost")
        while True:
            try:
                session.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(sent.read())
                received.write(await reader.read(1 << 16))
        session.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        writer.write(sent.read())
        reply = b""
        while not reply:
            received.write(await reader.read(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                reply = session.read(1 << 16)
        assert reply.startswith(b"HTTP/1.1 200")
        writer.close()


@run_by(run_alone)
async def test_raw_batches_over_tls_are_the_bytes_of_the_log(*, tmp_path: Path) -> None:
    async with https_broker(tmp_path) as (site, server, context):
        await site.create("t")
        await site.produce("t", "one", "two" * 50_000)
        path, raw = "/topics/t/partitions/0/records?offset=0", {"Accept": "application/octet-stream"}
        plain = await site.get(path, raw["Accept"])
        for _ in range(2):
            async with site.session.get(server.url + path, headers=raw, ssl=context) as reply:
                assert reply.status == 200 and await reply.read() == plain.body
        async with site.session.head(server.url + path, headers=raw, ssl=context) as head:
            assert head.headers["Content-Length"] == str(len(plain.body))


@run_by(run, "tmp_path", authentication_method=BASIC, connection_failed_authentication_delay_ms=1)
async def test_flood_of_wrong_passwords_from_one_address_leaves_a_bounded_queue(site: HttpBroker) -> None:
    await set_user(site, "alice", "wonderland")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as many:

        async def guess(number: int) -> int:
            login = basic("alice", f"guess {number}")
            async with many.get(f"{site.url}/topics", headers={"Authorization": login}) as reply:
                return reply.status

        guesses = [asyncio.create_task(guess(number)) for number in range(200)]
        await wait_until(lambda: site.http.open_connections() > 100)
        assert (await ask_as(site, basic("alice", "wonderland"))).status in (200, 503)
        statuses = set(await asyncio.gather(*guesses))
    assert statuses <= {401, 503}
    assert (await ask_as(site, basic("alice", "wonderland"))).status == 200


@run_by(run, "tmp_path", http="https://127.0.0.1:0")
async def test_redirect_from_https_never_leads_to_plain_http(site: HttpBroker) -> None:
    remote_brokers = RemoteBrokers(site.broker)
    await site.broker.announce("127.0.0.1:1", {})
    with pytest.raises(Refused, match="no https"):
        remote_brokers.redirect_error("/topics", 1, "has it")
    await site.broker.announce("127.0.0.1:1", {}, "https://broker:1")
    redirect = remote_brokers.redirect_error("/topics", 1, "has it")
    assert redirect.headers == (("Location", "https://broker:1/topics"),)


@run_by(run, "tmp_path", authentication_method=BASIC)
async def test_neighbourhood_full_of_logins_delays_others_by_one_check(site: HttpBroker) -> None:
    """A hundred addresses with wrong passwords took all places: the first login of another address got 503."""
    await set_user(site, "alice", "wonderland")
    slots = site.http._listener.authenticator._slots
    order: list[str] = []
    go = asyncio.Event()

    async def check(address: str) -> None:
        async with site.http._listener.authenticator._take_turn(address):
            order.append(address)
            if len(order) > 1:
                await go.wait()

    async with site.http._listener.authenticator._take_turn("10.0.0.1"):
        checks = [asyncio.create_task(check(f"10.0.0.{each}")) for each in range(2, 102)]
        await wait_until(lambda: slots.waiting == WAITING_MAX)
        login = asyncio.create_task(ask_as(site, basic("alice", "wonderland")))
        await wait_until(lambda: "127.0.0.0/24" in slots._queues)
        assert slots.waiting == WAITING_MAX, "one of the hundred has made room"
    assert (await login).status == 200, "the second check of the neighbourhood came before"
    go.set()
    await asyncio.gather(*checks, return_exceptions=True)
