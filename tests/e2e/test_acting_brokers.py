"""Tests of brokers that send requests for a client of HTTP: the other broker judges that client, and only brokers can
name one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.http_cluster import HttpCluster
from tests.e2e.http_cluster import run as run_cluster
from tests.e2e.http_site import HttpReply, wait_until
from tests.e2e.kafka_site import KafkaBroker
from tests.e2e.test_http_login import basic, set_user
from tests.e2e.test_kafka_login import run_with_login
from tests.scenario import run_by
from tests.sim.rig.broker_rig import batch
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.controller.requests import AlterClientQuotas, CreateAcls, QuotaAlteration
from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.metadata.changes import AclAdded
from tiered.quotas.precedence import Limit
from tiered.security.principal import Caller, Principal
from tiered.security.secret import Secret
from tiered.system.network import SocketNet
from tiered_api.http.exchange.remote_brokers import RemoteBrokers
from tiered_api.kafka.client.connection import BrokerConnection, open_connection
from tiered_api.kafka.client.login import UserLogin, log_in_broker, log_in_user
from tiered_api.kafka.protocol.messages.fetch import FetchRequest, FetchResponse
from tiered_api.kafka.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tiered_api.kafka.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tiered_api.kafka.protocol.messages.tiered_act_for import TieredActForRequest, TieredActForResponse
from tiered_api.kafka.protocol.messages.tiered_heard import TieredHeardRequest, TieredHeardResponse

ALICE, BOB = (Caller(Principal("User", name), "10.1.2.3") for name in ("alice", "bob"))
REFUSED = Code.CLUSTER_AUTHORIZATION_FAILED.number
BASIC = ("BASIC",)


def allow(name: str, operation: str, host: str = "*") -> CreateAcls:
    """Returns the request for one rule about the topic t."""
    return CreateAcls((AclAdded("TOPIC", "LITERAL", "t", f"User:{name}", host, operation, "ALLOW"),))


@run_by(run_cluster, "tmp_path", numbers=(1, 2), authorizer_class_name=STANDARD_AUTHORIZER)
async def test_leader_judges_the_client_and_not_the_broker_that_asks(pair: HttpCluster) -> None:
    await pair.create("t", [2])
    asking = pair[1].broker
    topic = asking.image.topics["t"]
    tp = TopicPartition("t", 0)
    remote_brokers = RemoteBrokers(asking)
    leader = remote_brokers.leader(tp, topic.topic_id)
    await asking.submit(allow("alice", "WRITE", ALICE.host))

    async def produce(caller: Caller | None) -> Code:
        try:
            await remote_brokers.produce(leader, tp, topic.topic_id, batch([b"x"]), 5000, caller)
        except Refused as refused:
            return refused.code
        return Code.NONE

    for _ in range(2):
        assert await produce(ALICE) is Code.NONE
        # Brokers name topics by id, and who may not describe a topic does not learn that it exists.
        assert await produce(BOB) is Code.UNKNOWN_TOPIC_ID
        assert await produce(ALICE._replace(host="10.9.9.9")) is Code.UNKNOWN_TOPIC_ID
        assert await produce(None) is Code.NONE, "a request of the broker itself"
    for caller, code in ((ALICE, Code.TOPIC_AUTHORIZATION_FAILED), (None, Code.NONE)):
        try:
            await remote_brokers.fetch(leader, tp, topic.topic_id, 0, 100, 0, caller=caller)
            found = Code.NONE
        except Refused as refused:
            found = refused.code
        assert found is code
    await remote_brokers.close()


@run_by(run_cluster, "tmp_path", numbers=(1, 2), authorizer_class_name=STANDARD_AUTHORIZER, authentication_method=BASIC)
async def test_user_of_http_has_the_same_rights_at_every_broker(pair: HttpCluster) -> None:
    await pair.create("t", [1], [2])
    for user in ("alice", "bob"):
        await set_user(pair[1], user, "secret")
    for operation in ("WRITE", "READ"):
        await pair[1].broker.submit(allow("alice", operation))
    rules = pair[1].broker.image.acls
    for broker in (pair[1], pair[2]):
        await wait_until(lambda broker=broker: broker.broker.image.acls == rules)  # type: ignore[misc]
        for partition in (0, 1):
            body = {"records": [{"value": partition}]}
            path = f"/topics/t/partitions/{partition}"
            for user, status in (("alice", 200), ("bob", 403)):
                login = basic(user, "secret")
                written = await broker.ask(
                    "POST", path, body, kind="application/vnd.kafka.json.v2+json",
                    Authorization=login,
                )  # fmt: skip
                read = await broker.ask("GET", f"{path}/records?format=json", Authorization=login)
                assert (written.status, read.status) == (status, status), (broker.number, user)
                if status == 200:
                    assert not written.json["offsets"][0]["error"] and read.json["records"]


async def connect(site: KafkaBroker) -> BrokerConnection:
    host, port = site.address.rsplit(":", 1)
    return await open_connection(SocketNet(), host, int(port), "test", 5)


async def act_for(link: BrokerConnection, name: str, credential: bytes = b"") -> int:
    request = TieredActForRequest("", credential, "User", name, "10.1.2.3")
    return (await link.send(request, TieredActForResponse, 5, 0)).error_code


def callers(site: KafkaBroker) -> set[str]:
    return {str(each.caller.principal) for each in site.server.connections}


@run_by(run_with_login, "tmp_path")
async def test_client_that_has_logged_in_cannot_act_for_another(site: KafkaBroker) -> None:
    link = await connect(site)
    await log_in_user(link, UserLogin("alice", Secret("pencil"), "SCRAM-SHA-256"), 5)
    for credential in (b"", bytes(16), site.broker.credential[:-1]):
        assert await act_for(link, "root", credential) == REFUSED
    assert callers(site) == {"User:alice"}
    link.close()


@run_by(run_with_login, "tmp_path")
async def test_broker_that_has_logged_in_acts_for_one_client_after_another(site: KafkaBroker) -> None:
    link = await connect(site)
    await log_in_broker(link, site.broker.credential, 2, 5)
    for name in ("alice", "bob", "alice"):
        assert await act_for(link, name) == 0
        assert callers(site) == {f"User:{name}"}
    heard = await link.send(TieredHeardRequest("", bytes(16)), TieredHeardResponse, 5, 0)
    assert heard.error_code == REFUSED, "a request of the client is none of a broker"
    assert await act_for(link, "") == Code.INVALID_REQUEST.number
    assert callers(site) == {"User:alice"}
    link.close()


@run_by(run_with_login, "tmp_path")
async def test_time_of_a_request_that_a_broker_sends_for_a_client_counts(site: KafkaBroker) -> None:
    """The reply names no pause, and the connection goes on: it serves other clients too."""
    alteration = QuotaAlteration((("user", "alice"),), (("request_percentage", 1e-6),))
    assert await site.broker.submit(AlterClientQuotas((alteration,))) == (None,)
    link = await connect(site)
    await log_in_broker(link, site.broker.credential, 2, 5)
    assert await act_for(link, "alice") == 0
    for _ in range(20):
        assert (await link.send(ListGroupsRequest(), ListGroupsResponse, 5, 4)).throttle_time_ms == 0
    refused = await link.send(FetchRequest(max_bytes=1, topics=[]), FetchResponse, 5, 16)
    assert refused.error_code == Code.THROTTLING_QUOTA_EXCEEDED.number and refused.throttle_time_ms > 0
    lookup = await link.send(ListOffsetsRequest(-1, 0, [], 1000), ListOffsetsResponse, 5, 10)
    assert (lookup.throttle_time_ms > 0, lookup.topics) == (True, [])
    assert await act_for(link, "bob") == 0
    served = await link.send(FetchRequest(max_bytes=1, topics=[]), FetchResponse, 5, 16)
    assert (served.error_code, served.throttle_time_ms) == (0, 0)
    link.close()


@run_by(run_cluster, "tmp_path", numbers=(1, 2))
async def test_stream_waits_for_the_quota_of_its_client_at_the_leader(pair: HttpCluster) -> None:
    asking, leader = pair[1], pair[2]
    await pair.create("t", [2])
    [entity, limit] = ("user", "ANONYMOUS"), Limit(1e-3, "ANONYMOUS", "", "store_request_rate")

    async def put(rate: float | None) -> None:
        alteration = QuotaAlteration((entity,), (("store_request_rate", rate),))
        assert await asking.broker.submit(AlterClientQuotas((alteration,))) == (None,)
        await wait_until(
            lambda: pair.is_known_by_all(lambda node: node.client_quotas.table.has_client_quotas == (rate is not None))
        )

    seen = bytearray()
    url = f"{asking.url}/topics/t/partitions/0/records?offset=0"
    async with asking.session.get(url, headers={"Accept": "text/event-stream"}) as response:

        async def read_on() -> None:
            async for piece in response.content.iter_any():
                seen.extend(piece)

        reading = asyncio.get_running_loop().create_task(read_on())
        await leader.produce("t", "first")
        await wait_until(lambda: b"first" in seen)
        await put(limit.bound)
        leader.broker.client_quotas.record(limit, 1)
        await leader.produce("t", "second")
        await wait_until(lambda: seen.endswith(b": silence\n\n"))
        assert b"second" not in seen and b"event: error" not in seen
        await put(None)
        await wait_until(lambda: b"second" in seen)
        assert b"event: error" not in seen
        reading.cancel()


@pytest.mark.parametrize("name", ["user", "client-id"])
@run_by(
    run_cluster, "tmp_path", numbers=(1, 2), log_retention_check_interval_ms=50, remote_log_manager_task_interval_ms=50
)
async def test_reads_of_the_bucket_count_at_the_leader_for_the_client(pair: HttpCluster, *, name: str) -> None:
    asking, leader = pair[1], pair[2]
    await pair.create("t", [2], internal_segment_bytes="4096", local_retention_bytes="1")
    for number in range(12):
        await leader.produce("t", f"{number:03}" * 300)
    replica = leader.broker.leader_replica("t", 0)
    await wait_until(lambda: replica.local_start_offset >= 6)
    entity = ("user", "ANONYMOUS") if name == "user" else ("client-id", "app")
    alteration = QuotaAlteration((entity,), (("store_request_rate", 0.1),))
    assert await asking.broker.submit(AlterClientQuotas((alteration,))) == (None,)
    await wait_until(lambda: pair.is_known_by_all(lambda node: node.client_quotas.table.has_client_quotas))

    async def read(offset: int, client: str = "app") -> HttpReply:
        path = f"/topics/t/partitions/0/records?offset={offset}&max_bytes=1"
        return await asking.ask("GET", path, X_Client_Id=client)

    replies = [await read(0)]
    while replies[-1].status == 200 and len(replies) < 6:
        replies.append(await read(len(replies)))
    assert [each.status for each in replies] == [200] * (len(replies) - 1) + [429] and len(replies) > 1
    assert int(replies[-1].headers["Retry-After"]) >= 1
    lookup = await asking.ask("GET", "/topics/t/partitions/0/records?timestamp=1", X_Client_Id="app")
    assert lookup.status == 429
    counted = leader.broker.metrics.counter("tiered_throttled_total", "", ("quota", "entity"))
    assert counted.value("store_request_rate", " ".join(entity)) >= 1
    assert (await read(0, "other")).status == (429 if name == "user" else 200)
    assert (await asking.ask("POST", "/topics/t", {"records": [{"value": "eA=="}]}, X_Client_Id="app")).status == 200
    lifted = QuotaAlteration((entity,), (("store_request_rate", None),))
    await asking.broker.submit(AlterClientQuotas((lifted,)))
    await wait_until(lambda: pair.is_known_by_all(lambda node: not node.client_quotas.table.has_client_quotas))
    assert (await read(3)).status == 200


@run_by(run_with_login, "tmp_path")
async def test_request_before_the_login_ends_the_connection(site: KafkaBroker) -> None:
    link = await connect(site)
    with pytest.raises(Unavailable):
        await act_for(link, "alice", site.broker.credential)
    link.close()


def test_brokers_write_a_transaction_of_a_caller_with_rights(tmp_path: Path) -> None:
    async def scenario(pair: HttpCluster) -> None:
        await pair.create("t", [1], [2])
        await set_user(pair[1], "alice", "secret")
        write = AclAdded("TRANSACTIONAL_ID", "LITERAL", "tiered-http", "User:alice", "*", "WRITE", "ALLOW")
        await pair[1].broker.submit(CreateAcls((write,)))
        await pair[1].broker.submit(allow("alice", "WRITE"))
        records = [
            {"topic_name": "t", "partition_id": number, "value": {"type": "JSON", "data": 1}} for number in (0, 1)
        ]
        path, login = "/tiered/v1/transactions", basic("alice", "secret")
        written = await pair[1].ask("POST", path, {"records": records}, Authorization=login)
        assert written.status == 200, written

    settings = {"authorizer_class_name": STANDARD_AUTHORIZER, "authentication_method": BASIC}
    run_cluster(tmp_path, scenario, numbers=(1, 2), **settings)


def test_transaction_that_brokers_write_counts_for_its_caller(tmp_path: Path) -> None:
    """The id of an idempotency key, its producer ids, and the group whose offsets are committed."""

    async def scenario(pair: HttpCluster) -> None:
        await pair.create("t", [1], [2])
        await set_user(pair[1], "alice", "secret")
        rights = (("TRANSACTIONAL_ID", "tiered-http", "WRITE"), ("GROUP", "g", "READ"), ("TOPIC", "t", "READ"))
        for kind, name, operation in rights:
            rule = AclAdded(kind, "LITERAL", name, "User:alice", "*", operation, "ALLOW")
            await pair[1].broker.submit(CreateAcls((rule,)))
        await pair[1].broker.submit(allow("alice", "WRITE"))
        brokers = [each.broker for each in pair.brokers.values()]
        pots = {
            "ids": [each.transaction_coordinators.holdings for each in brokers],
            "groups": [each.group_coordinators.holdings for each in brokers],
            "producers": [each.hosted_replicas.log_store.producer_limits.holdings for each in brokers],
        }

        def held() -> dict[str, int]:
            return {name: sum(each.own("User:alice") for each in parts) for name, parts in pots.items()}

        async def commit(place: int, **headers: str) -> None:
            records = [{"topic_name": "t", "partition_id": n, "value": {"type": "JSON", "data": 1}} for n in (0, 1)]
            offsets = [{"topic_name": "t", "partition_id": 0, "offset": place}]
            body = {"records": records, "consumer_group": {"consumer_group_id": "g", "offsets": offsets}}
            login = basic("alice", "secret")
            made = await pair[1].ask("POST", "/tiered/v1/transactions", body, Authorization=login, **headers)
            assert made.status == 200, made

        assert not any(held().values())
        await commit(1)
        shared = held()
        assert shared["groups"] > 0 == shared["ids"] == shared["producers"], "those ids are the broker's"
        await commit(2, Idempotency_Key="one")
        keyed = held()
        assert keyed["ids"] > 0 and keyed["producers"] == 2 and keyed["groups"] > 0

    settings = {"authorizer_class_name": STANDARD_AUTHORIZER, "authentication_method": BASIC}
    run_cluster(tmp_path, scenario, numbers=(1, 2), **settings)
