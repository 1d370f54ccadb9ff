"""Tests of clients that pretend to be a broker and know all that every client can learn, and more: each of their
requests is refused and has no effect."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, batch, run
from tests.sim.scenarios.test_reassignments import is_leading, partition_image, write
from tests.sim.scenarios.test_replica_fetch import make_peers
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tiered.config.listeners import SASL_PLAINTEXT, Endpoint
from tiered.controller.request_codec import encode_request
from tiered.controller.requests import CreateTopic, FenceBroker, HandOver, RegisterBroker, Request, StopBroker
from tiered.errors import Code, Refused
from tiered.ids import decode_uuid, incarnation_digest, incarnation_number
from tiered.metadata.image import Image, to_json
from tiered.peers import MetadataFetch, PartitionFetch, ReplicaFetch
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica
from tiered.security.broker_secrets import BrokerSecrets
from tiered_api.kafka.client.connection import BrokerConnection, open_connection
from tiered_api.kafka.client.login import log_in_broker
from tiered_api.kafka.client.peers import KafkaPeers
from tiered_api.kafka.protocol.apis import INTER_BROKER_APIS
from tiered_api.kafka.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from tiered_api.kafka.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tiered_api.kafka.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tiered_api.kafka.protocol.schema import field_specs
from tiered_api.kafka.server.server import serve_kafka

REFUSED = Code.CLUSTER_AUTHORIZATION_FAILED


@dataclass
class UntrustedClient:
    """A client on the network that also knows the incarnations of all brokers, which no reply contains."""

    three: ThreeBrokers
    leader: SimBroker
    link: BrokerConnection
    cluster_id: str

    @property
    def replica(self) -> LeaderReplica:
        return self.leader.node.leader_replica("t", 0)

    @property
    def image(self) -> Image:
        return self.leader.node.image

    @property
    def address(self) -> str:
        return f"{self.leader.name}:9092"

    def followers(self) -> list[SimBroker]:
        return [each for each in self.three.brokers.values() if each is not self.leader]

    def forged_peers(self) -> Iterator[KafkaPeers]:
        """Connections without a cluster id and with the right one, with every credential that the client can derive."""
        incarnation, public = self.leader.node.incarnation, self.cluster_id
        made = hashlib.sha256(f"tiered brokers {public} ".encode()).digest()[:16]
        digest = bytes.fromhex(incarnation_digest(incarnation))
        guesses = (
            b"",
            bytes(16),
            made,
            digest,
            digest[:16],
            decode_uuid(incarnation),
            decode_uuid(public),
            public.encode(),
        )
        for cluster_id in ("", public):
            for guess in guesses:
                net = self.three.network.host("far")
                yield KafkaPeers(net, cluster_id=cluster_id, credential=guess)

    def fetch(self, node_id: int, offset: int) -> ReplicaFetch:
        number = incarnation_number(self.image.brokers[node_id].incarnation)
        where = PartitionFetch(
            self.replica.topic_id, 0, self.replica.leader_epoch, offset, self.replica.leader_epoch, 0, 0
        )
        return ReplicaFetch(node_id, number, 0, 1 << 20, 1 << 20, [where])

    def forged_requests(self) -> list[Request]:
        """Requests that would harm the cluster if its controller carried them out."""
        other = self.followers()[0].node
        who = other.settings.node_id, other.incarnation
        return [
            FenceBroker(*who), StopBroker(*who), HandOver(*who),
            RegisterBroker(who[0], "S" * 21 + "A", "d", "far:1", "", True, {"PLAINTEXT": "far:9092"}),
        ]  # fmt: skip


async def create_untrusted_client(three: ThreeBrokers) -> UntrustedClient:
    """Creates a topic on all three brokers, led by the controller, and a client that has read all that clients may."""
    leader = three.controller
    order = [leader.node_id, *(each.node_id for each in three.others())]
    await leader.node.submit(CreateTopic("t", assignments=[order], configs={"min.insync.replicas": "2"}))
    await three.wait_until(lambda: is_leading(leader) and len(partition_image(three).isr) == 3, 20)
    link = await open_connection(three.network.host("far"), leader.name, 9092, "far", 5)
    answer = await link.send(MetadataRequest(), MetadataResponse, 5)
    assert answer.cluster_id
    return UntrustedClient(three, leader, link, answer.cluster_id)


async def assert_refused(peers: KafkaPeers, client: UntrustedClient) -> None:
    """Sends each request among brokers to the controller, which leads too; checks that it is refused."""
    other = client.followers()[0].node
    newer = MetadataFetch(other.settings.node_id, other.incarnation, 0, 10**9, 10**9, 0)
    end = client.replica.log.end_offset
    works = [
        peers.get_controller_view(client.address, 5),
        peers.fetch_metadata(client.address, newer, 5),
        *(peers.forward(client.address, encode_request(requested), 5) for requested in client.forged_requests()),
        *(peers.fetch(client.address, client.fetch(each.node_id, end), 5) for each in client.followers()),
        peers.find_transactions(client.address, (), (), 5),
    ]
    for work in works:
        with refuses(REFUSED):
            await work


@run_by(run_scenario)
async def test_forged_fetch_acknowledges_nothing_for_cut_off_followers(three: ThreeBrokers) -> None:
    untrusted = await create_untrusted_client(three)
    acked = await write(three, 5)
    await three.wait_until(lambda: untrusted.replica.high_watermark == 5, 5)
    for each in untrusted.followers():
        three.network.cut(each.name, untrusted.leader.name)
        three.network.cut(untrusted.leader.name, each.name)
    waiting = asyncio.create_task(untrusted.replica.append(batch([b"late"]), acks=ACKS_ALL, timeout_ms=1_000))
    await three.wait_until(lambda: untrusted.replica.log.end_offset == 6, 1)
    image, began = to_json(untrusted.image), three.now
    for peers in untrusted.forged_peers():
        await assert_refused(peers, untrusted)
        await peers.close()
    assert three.now - began < 1, "before anybody's time was over"
    assert untrusted.replica.high_watermark == len(acked) and not waiting.done()
    assert to_json(untrusted.image) == image and three.controller_ids() == [untrusted.leader.node_id]
    with pytest.raises(Refused):
        await waiting
    three.network.heal()
    await three.wait_until(lambda: len(partition_image(three).isr) == 3 and untrusted.replica.high_watermark == 6, 20)
    untrusted.link.close()


@run_by(run_scenario)
async def test_request_without_a_credential_keeps_no_dead_broker_alive(three: ThreeBrokers) -> None:
    """A metadata fetch of a broker is also its heartbeat."""
    untrusted = await create_untrusted_client(three)
    dead = untrusted.followers()[0]
    for name in (untrusted.leader.name, untrusted.followers()[1].name):
        three.network.cut(dead.name, name)
        three.network.cut(name, dead.name)
    ask = MetadataFetch(dead.node_id, dead.node.incarnation, 0, untrusted.image.slot, 0, 0)
    peers = KafkaPeers(three.network.host("far"), cluster_id=untrusted.cluster_id)
    while untrusted.image.brokers[dead.node_id].live:
        assert three.now < 60
        with pytest.raises(Refused):
            await peers.fetch_metadata(untrusted.address, ask, 5)
        await asyncio.sleep(0.05)
    await peers.close()
    untrusted.link.close()


@run_by(run_scenario)
async def test_request_with_a_replica_id_is_refused_in_every_api(three: ThreeBrokers) -> None:
    untrusted = await create_untrusted_client(three)
    acked = await write(three, 3)
    for each in untrusted.followers():
        three.network.cut(each.name, untrusted.leader.name)
    untrusted.replica.append_now(batch([b"late"]), 1)
    replica, link, node = untrusted.replica, untrusted.link, untrusted.followers()[0].node_id
    number = incarnation_number(untrusted.image.brokers[node].incarnation)
    answer: Any
    for version in range(4, 19):
        where = FetchPartition(0, fetch_offset=replica.log.end_offset, partition_max_bytes=1 << 10)
        request = FetchRequest(topics=[FetchTopic("t", replica.topic_id, [where])])
        if version < 15:
            request.replica_id = node
        else:
            request.replica_state = ReplicaState(node, number)
        answer = await link.send(request, FetchResponse, 5, version)
        assert answer.responses[0].partitions[0].error_code == REFUSED.number
    for version in range(1, 12):
        offsets = ListOffsetsRequest(node, topics=[ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, -1)])])
        answer = await link.send(offsets, ListOffsetsResponse, 5, version)
        assert answer.topics[0].partitions[0].error_code == REFUSED.number
    for version in (3, 4):
        epochs = OffsetForLeaderEpochRequest(node, [OffsetForLeaderTopic("t", [OffsetForLeaderPartition(0, -1, 0)])])
        answer = await link.send(epochs, OffsetForLeaderEpochResponse, 5, version)
        assert answer.topics[0].partitions[0].error_code == REFUSED.number
    assert replica.high_watermark == len(acked)
    assert untrusted.leader.server.context.refusals.count("stranger") == 15 + 11 + 2
    link.close()


@pytest.mark.parametrize("key", sorted(INTER_BROKER_APIS))
@run_by(run)
async def test_every_request_among_brokers_has_the_credential(rig: SimBrokerRig, *, key: int) -> None:
    """The test also covers later APIs: their table must have the credential, and their handler must check it."""
    node = await rig.start(QUICK)
    server = await serve_kafka(node, {"PLAINTEXT": Endpoint("PLAINTEXT", "0.0.0.0", 9092)})
    link = await open_connection(rig.network.host("far"), "one", 9092, "far", 5)
    api = INTER_BROKER_APIS[key]
    assert {"cluster_id", "credential"} <= {each.name for each in field_specs(api.request_type)}
    for cluster_id in ("", node.cluster_id):
        for credential in (b"", bytes(16), node.credential[:-1], node.credential + b"c"):
            request: Any = api.request_type()
            request.cluster_id, request.credential = cluster_id, credential
            answer: Any = await link.send(request, api.response_type, 5, 0)
            assert answer.error_code == REFUSED.number
    node.secrets, ours = BrokerSecrets(), node.secrets
    answer = await link.send(api.request_type(), api.response_type, 5, 0)
    assert answer.error_code == REFUSED.number, "a broker that has not read the store knows nobody"
    node.secrets = ours
    peers = make_peers(rig, "two")
    assert (await peers.get_controller_view("one:9092", 5)).node_id == 1
    await peers.close()
    link.close()
    await server.close()


@run_by(run)
async def test_brokers_log_in_on_their_own_listener_only(rig: SimBrokerRig) -> None:
    """A secret that has leaked is of no use on a listener for clients."""
    ports = {"BETWEEN": 9092, "CLIENTS": 9093}
    node = await rig.start(
        replace(QUICK, inter_broker_listener_name="BETWEEN", connection_failed_authentication_delay_ms=0)
    )
    endpoints = {name: Endpoint(name, "0.0.0.0", port, SASL_PLAINTEXT) for name, port in ports.items()}
    server = await serve_kafka(node, endpoints)

    async def log_in(listener: str) -> BrokerConnection:
        link = await open_connection(rig.network.host("far"), "one", ports[listener], "far", 5)
        await log_in_broker(link, node.credential, 2, 5)
        return link

    with refuses(Code.UNSUPPORTED_SASL_MECHANISM):
        await log_in("CLIENTS")
    (await log_in("BETWEEN")).close()
    await server.close()
