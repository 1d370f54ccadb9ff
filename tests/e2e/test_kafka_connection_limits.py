"""Tests of limits of connections for one listener and one address, while they change."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.http_cluster import HttpCluster
from tests.e2e.http_cluster import run as run_cluster
from tests.e2e.kafka_site import KafkaBroker, RawClient, run, wait_until
from tests.e2e.test_kafka_limits import hello
from tests.e2e.test_kafka_login import run_with_login
from tests.scenario import run_by
from tiered.config.listener_overrides import ListenerOverride
from tiered.controller.requests import AlterBrokerConfigs
from tiered.errors import Code
from tiered.metadata.changes import ALL_BROKERS
from tiered.system.network import SocketNet
from tiered_api.kafka.client.connection import open_connection
from tiered_api.kafka.client.login import log_in_broker
from tiered_api.kafka.protocol.messages.tiered_heard import TieredHeardRequest, TieredHeardResponse

LISTENERS = ("BETWEEN://127.0.0.1:0", "CLIENT://127.0.0.1:0")
OTHER_ADDRESS = "127.0.0.2"
REFUSED = Code.CLUSTER_AUTHORIZATION_FAILED.number
JSON = "application/vnd.kafka.json.v2+json"


async def change(site: KafkaBroker, **configs: str) -> None:
    """Changes settings of all brokers while they run."""
    named = {name.replace("_", "."): value for name, value in configs.items()}
    await site.broker.submit(AlterBrokerConfigs(ALL_BROKERS, named))


def test_listener_has_a_limit_of_its_own_that_changes(tmp_path: Path) -> None:
    async def scenario(site: KafkaBroker) -> None:
        clients = [await site.client(listener="CLIENT") for _ in range(2)]
        assert [await hello(client) for client in clients] == [0, 0]
        assert await (await site.client(listener="CLIENT")).read_to_end() == b""
        assert await hello(await site.client(listener="BETWEEN")) == 0, "the other listener has room"
        await change(site, listener_name_client_max_connections="3")
        assert await hello(await site.client(listener="CLIENT")) == 0
        assert await (await site.client(listener="CLIENT")).read_to_end() == b""
        clients[0].close()
        await wait_until(lambda: len(site.server.connections) == 3)
        assert await hello(await site.client(listener="CLIENT")) == 0
        assert site.count_refusals("too_many") == 2

    overrides = (ListenerOverride("CLIENT", "max.connections", 2),)
    run(tmp_path, scenario, listeners=LISTENERS, inter_broker_listener_name="BETWEEN", listener_overrides=overrides)


@run_by(run, "tmp_path", listeners=LISTENERS, inter_broker_listener_name="BETWEEN", max_connections=8)
async def test_broker_is_let_in_when_clients_have_all_connections(site: KafkaBroker) -> None:
    """The longest idle client of the address with most connections gives way; Kafka takes that of any address."""
    crowd = [await site.client(listener="CLIENT") for _ in range(8)]
    assert [await hello(client) for client in crowd] == [0] * 8
    assert await (await site.client(listener="CLIENT")).read_to_end() == b""
    brokers = [await site.client(listener="BETWEEN") for _ in range(2)]
    assert [await hello(each) for each in brokers] == [0, 0]
    assert [await each.read_to_end() for each in crowd[:2]] == [b"", b""]
    assert site.count_refusals("crowded_out") == 2
    assert await (await site.client(listener="CLIENT")).read_to_end() == b"", "it takes no place of a broker"


@run_by(run, "tmp_path", listeners=LISTENERS, inter_broker_listener_name="BETWEEN", max_connections=8)
async def test_unauthorized_clients_between_brokers_crowd_out_few_clients(site: KafkaBroker) -> None:
    """Anybody may connect to the listener between brokers. Each connection there ended one of a client."""
    lone = await site.client(OTHER_ADDRESS, listener="CLIENT")
    crowd = [await site.client(listener="CLIENT") for _ in range(7)]
    assert [await hello(each) for each in (lone, *crowd)] == [0] * 8
    unauthorized = [await site.client(listener="BETWEEN") for _ in range(2)]
    assert [await hello(each) for each in unauthorized] == [0, 0]
    assert [await each.read_to_end() for each in crowd[:2]] == [b"", b""], "their address has most"
    assert [await (await site.client(listener="BETWEEN")).read_to_end() for _ in range(3)] == [b""] * 3
    assert await hello(lone) == 0 and await hello(crowd[2]) == 0


@run_by(
    run,
    "tmp_path",
    listeners=LISTENERS,
    inter_broker_listener_name="BETWEEN",
    max_connection_creation_rate=1,
    listener_overrides=(ListenerOverride("BETWEEN", "max.connection.creation.rate", 1000),),
)
async def test_broker_is_opened_while_clients_wait_for_their_rate(site: KafkaBroker) -> None:
    crowd = [await site.client(listener="CLIENT") for _ in range(3)]
    assert await hello(crowd[0]) == 0
    waiting = [asyncio.create_task(hello(client)) for client in crowd[1:]]
    await wait_until(lambda: site.count_refusals("delayed") == 2)
    assert [await hello(await site.client(listener="BETWEEN")) for _ in range(3)] == [0] * 3
    assert not any(each.done() for each in waiting)
    await change(site, listener_name_client_max_connection_creation_rate="1000", max_connection_creation_rate="999")
    assert await asyncio.gather(*waiting) == [0, 0]


@run_by(run, "tmp_path", max_connections_per_ip=0, max_connections_per_ip_overrides=("127.0.0.1:2",))
async def test_address_has_a_limit_of_its_own_that_changes(site: KafkaBroker) -> None:
    clients = [await site.client() for _ in range(2)]
    assert [await hello(client) for client in clients] == [0, 0]
    assert await (await site.client()).read_to_end() == b""
    assert await (await site.client(OTHER_ADDRESS)).read_to_end() == b"", "0 for all others"
    await change(site, max_connections_per_ip_overrides=f"127.0.0.1:2,{OTHER_ADDRESS}:1")
    assert await hello(await site.client(OTHER_ADDRESS)) == 0
    assert await (await site.client(OTHER_ADDRESS)).read_to_end() == b""
    assert site.count_refusals("too_many_of_one") == 3


def test_addresses_of_one_network_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback has one address of IPv6 only: 127.0.0.0/8 stands for a network here. A limit of one address stays so."""
    monkeypatch.setattr("tiered_api.kafka.server.connection.network_of", lambda host: "127.0.0.0/8")

    async def scenario(site: KafkaBroker) -> None:
        clients = [await site.client(), await site.client(OTHER_ADDRESS)]
        assert [await hello(client) for client in clients] == [0, 0]
        assert await (await site.client("127.0.0.3")).read_to_end() == b""
        own = [await site.client("127.0.0.4") for _ in range(3)]
        assert [await hello(client) for client in own] == [0, 0, 0]
        assert await (await site.client("127.0.0.4")).read_to_end() == b""
        for client in (*clients, *own):
            client.close()
        await wait_until(lambda: not site.server.connections)
        clients = [await site.client("127.0.0.3"), await site.client(OTHER_ADDRESS)]
        assert [await hello(client) for client in clients] == [0, 0]
        assert site.count_refusals("too_many_of_one") == 2

    run(tmp_path, scenario, max_connections_per_ip=2, max_connections_per_ip_overrides=("127.0.0.4:3",))


@run_by(
    run,
    "tmp_path",
    listeners=("PLAINTEXT://[::]:0",),
    tiered_insecure=True,
    advertised_listeners=("PLAINTEXT://localhost:9999",),
    max_connections_per_ip_overrides=("127.0.0.1:2",),
)
async def test_limit_of_an_address_holds_on_a_listener_for_all_addresses(site: KafkaBroker) -> None:
    """Such a listener has one socket for both families. It shows the address as ::ffff:127.0.0.1."""
    port = int(site.address.rpartition(":")[2])
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    assert await streams[2][0].read() == b""
    assert [each.host for each in site.server.connections] == ["127.0.0.1"] * 2
    assert site.count_refusals("too_many_of_one") == 1
    for _, writer in streams:
        writer.close()


async def prove_broker(client: RawClient, credential: bytes) -> int:
    """Sends a request that only a broker may send. Returns its error code."""
    request = TieredHeardRequest("", credential)
    return (await client.ask(request, 0, TieredHeardResponse)).error_code


@run_by(run, "tmp_path", max_connections_per_ip=2)
async def test_proven_brokers_do_not_count_for_their_address(site: KafkaBroker) -> None:
    for _ in range(4):
        assert await prove_broker(await site.client(), site.broker.credential) == 0
    unauthorized = [await site.client() for _ in range(2)]
    assert [await prove_broker(each, bytes(16)) for each in unauthorized] == [REFUSED, REFUSED]
    assert await (await site.client()).read_to_end() == b"", "a wrong credential proves nothing"
    assert site.count_refusals("too_many_of_one") == 1
    for each in unauthorized:
        each.close()
    await wait_until(lambda: len(site.server.connections) == 4)
    for proven in list(site.server.connections):
        proven.close()
    assert not site.server._connections_by_host, "a proven one is given back once"


@run_by(run_with_login, "tmp_path", max_connections_per_ip=2)
async def test_brokers_that_logged_in_do_not_count_for_their_address(site: KafkaBroker) -> None:
    host, port = site.address.rsplit(":", 1)
    opened = []
    for _ in range(4):
        opened.append(await open_connection(SocketNet(), host, int(port), "test", 5))
        await log_in_broker(opened[-1], site.broker.credential, 1, 5)
    assert not site.server._connections_by_host and not site.count_refusals("too_many_of_one")
    for each in opened:
        each.close()


@run_by(run, "tmp_path", listeners=LISTENERS, inter_broker_listener_name="BETWEEN", max_connections_per_ip=2)
async def test_clients_on_the_host_of_a_broker_leave_it_its_connections(site: KafkaBroker) -> None:
    crowd = [await site.client(listener="CLIENT") for _ in range(2)]
    assert [await hello(client) for client in crowd] == [0, 0]
    assert await (await site.client(listener="CLIENT")).read_to_end() == b""
    brokers = [await site.client(listener="BETWEEN") for _ in range(2)]
    assert [await hello(each) for each in brokers] == [0, 0]
    assert await (await site.client(listener="BETWEEN")).read_to_end() == b"", "they have proved nothing"


@run_by(run_cluster, "tmp_path", numbers=(1, 2), max_connections_per_ip=40)
async def test_long_polls_over_http_take_no_connection_of_a_broker(pair: HttpCluster) -> None:
    """Each one is a connection to the leader, from the address of the broker that the client asks."""
    await pair.create("t", [2])
    path = "/topics/t/partitions/0/records?offset=0&timeout=20000"
    polls = [asyncio.create_task(pair[1].get(path)) for _ in range(60)]
    await wait_until(lambda: sum(each.pending for each in pair[2].kafka.connections) >= 60)
    assert pair[2].kafka.context.refusals.count("too_many_of_one") == 0
    assert not pair[2].kafka._connections_by_host, "all of them are proven"
    await pair[1].ask("POST", "/topics/t/partitions/0", {"records": [{"value": 1}]}, kind=JSON)
    assert {(await each).status for each in polls} == {200}
