"""Tests of the client against brokers that misbehave, on sockets and on the simulated network."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import pytest

from tests.scenario import run_by
from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.network import SimNetwork
from tests.unit.kafka.scripted import HANG_UP, SILENCE, Scripted, answer_frame
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.ports import Clock, Net
from tiered.system.clock import SystemClock
from tiered.system.network import SocketNet
from tiered_api.kafka.client.client import Address, KafkaClient, NotConnected, only_result
from tiered_api.kafka.client.leader_routing import GROUP, LATEST, TRANSACTION, list_offsets, send_to_coordinator
from tiered_api.kafka.client.transactions import PartitionTransaction, abort_transaction
from tiered_api.kafka.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from tiered_api.kafka.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tiered_api.kafka.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tiered_api.kafka.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tiered_api.kafka.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tiered_api.kafka.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

HOST = "127.0.0.1"
TOPIC = "t"


class Environment(NamedTuple):
    net: Net
    clock: Clock
    run: Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["sockets", "simulated"])
def environment(request: pytest.FixtureRequest) -> Environment:
    if request.param == "sockets":
        return Environment(SocketNet(), SystemClock(), asyncio.run)
    loop = SimLoop(1)
    return Environment(SimNetwork(loop, random.Random(1)).host("a"), SimClock(loop), loop.run)


@asynccontextmanager
async def cluster(
    environment: Environment, brokers: int = 1, **options: float
) -> AsyncIterator[tuple[KafkaClient, list[Scripted]]]:
    """Yields a client and its brokers. The client knows the first broker. Broker n leads partition n."""
    made = [Scripted(number + 1) for number in range(brokers)]
    for each in made:
        await each.start(environment.net, HOST)
    for each in made:
        each.set_leaders(TOPIC, *made)
    client = KafkaClient(environment.net, environment.clock, [Address(HOST, made[0].port)], **options)  # type: ignore[arg-type]
    try:
        yield client, made
    finally:
        await client.close()
        for each in made:
            each.stop()


def run(environment: Environment, test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await test()

    environment.run(main())


@run_by(run, "environment")
async def test_client_uses_the_highest_common_version(*, environment: Environment) -> None:
    async with cluster(environment) as (client, [broker]):
        broker.offered[MetadataRequest.spec.key] = (0, 5)
        assert (await client.fetch_metadata([])).cluster_id == "cluster"
        assert [(type(each.message), each.version) for each in broker.received] == [
            (ApiVersionsRequest, 4),
            (MetadataRequest, 5),
        ]


@run_by(run, "environment")
async def test_client_falls_back_to_an_older_apiversions(*, environment: Environment) -> None:
    async with cluster(environment) as (client, [broker]):
        broker.offered[ApiVersionsRequest.spec.key] = (0, 2)
        usual = broker.script[ApiVersionsRequest]

        def answer(request: ApiVersionsRequest, version: int) -> Any:
            if version <= 2:
                return usual(request, version)
            # The reply of KIP-511: version 0, with the versions of ApiVersions alone.
            no = ApiVersionsResponse(
                error_code=Code.UNSUPPORTED_VERSION.number,
                api_keys=[ApiVersion(api_key=18, min_version=0, max_version=2)],
            )
            return answer_frame(no, 0, 1)

        broker.script[ApiVersionsRequest] = answer
        await client.fetch_metadata([])
        assert [each.version for each in broker.received] == [4, 2, MetadataRequest.spec.versions.high]


@run_by(run, "environment")
async def test_request_that_a_broker_does_not_offer_is_not_sent(*, environment: Environment) -> None:
    async with cluster(environment) as (client, [broker]):
        del broker.offered[ListGroupsRequest.spec.key]
        with pytest.raises(Refused, match="does not offer ListGroups") as refused:
            await client.send(ListGroupsRequest(), ListGroupsResponse)
        assert refused.value.code is Code.UNSUPPORTED_VERSION and broker.count(ListGroupsRequest) == 0


@run_by(run, "environment")
async def test_replies_of_pipelined_requests_are_matched_by_correlation_id(*, environment: Environment) -> None:
    async with cluster(environment) as (client, [broker]):
        await client.fetch_metadata([])
        waiting: list[int] = []

        def answer(request: HeartbeatRequest, version: int) -> bytes:
            # Nothing until all three are here, then the last one first.
            waiting.append(request.generation_id)
            if len(waiting) < 3:
                return SILENCE
            first = len(broker.received) - 2
            frames = [answer_frame(HeartbeatResponse(error_code=waiting[n]), version, first + n) for n in (2, 0, 1)]
            return b"".join(frames)

        broker.script[HeartbeatRequest] = answer
        received = [client.send(HeartbeatRequest(generation_id=n), HeartbeatResponse) for n in (7, 8, 9)]
        assert [got.error_code for got in await asyncio.gather(*received)] == [7, 8, 9]
        assert len(broker.connections) == 1


@run_by(run, "environment")
async def test_missing_reply_closes_the_connection_and_not_the_client(*, environment: Environment) -> None:
    async with cluster(environment, timeout=0.2) as (client, [broker]):
        await client.fetch_metadata([])
        usual = broker.script[MetadataRequest]
        broker.script[MetadataRequest] = lambda request, version: SILENCE
        with pytest.raises(Unavailable, match=r"sent no reply to Metadata within 0\.2 s"):
            await client.fetch_metadata([])
        broker.script[MetadataRequest] = usual
        await client.fetch_metadata([])
        # Asked twice in vain, each time over a connection that is then given up.
        assert [each.connection for each in broker.received] == [0, 0, 0, 1, 1, 2, 2]


@run_by(run, "environment")
async def test_lost_connection_fails_all_pending_requests(*, environment: Environment) -> None:
    async with cluster(environment) as (client, [broker]):
        await client.fetch_metadata([])
        half = answer_frame(MetadataResponse(), 0, 2)[:7]

        def answer(request: MetadataRequest, version: int) -> bytes:
            broker.connections[0].send(half)
            return HANG_UP

        broker.script[MetadataRequest] = answer
        broker.script[ListGroupsRequest] = lambda request, version: SILENCE
        results = await asyncio.gather(
            client.send(ListGroupsRequest(), ListGroupsResponse), client.fetch_metadata([]), return_exceptions=True
        )
        assert [type(result) for result in results] == [Unavailable, Unavailable], results


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak the Kafka protocol"),
        (b"\x00\x00\x00\x02ab", "does not speak the Kafka protocol"),
        (b"\x80\x00\x00\x00", "does not speak the Kafka protocol"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x63abcd", "a reply to no request"),
        (b"\x00\x00\x00\x06\x00\x00\x00\x01ab", "does not speak the Kafka protocol"),
        (HANG_UP, "closed the connection at once"),
    ],
)
@run_by(run, "environment")
async def test_servers_of_other_protocols_are_recognized(*, environment: Environment, data: bytes, words: str) -> None:
    async with cluster(environment) as (client, [broker]):
        broker.script[ApiVersionsRequest] = lambda request, version: data
        with pytest.raises(Unavailable, match=words):
            await client.fetch_metadata([])


@run_by(run, "environment")
async def test_stated_length_alone_takes_no_memory(*, environment: Environment) -> None:
    async with cluster(environment, timeout=0.2) as (client, [broker]):
        await client.fetch_metadata([])
        broker.script[MetadataRequest] = lambda request, version: (200 << 20).to_bytes(4, "big") + b"abcd"
        tracemalloc.start()
        with pytest.raises(Unavailable):
            await client.fetch_metadata([])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 10 << 20


@run_by(run, "environment")
async def test_reply_that_does_not_parse_is_corrupt(*, environment: Environment) -> None:
    async with cluster(environment) as (client, [broker]):
        await client.fetch_metadata([])
        broker.script[MetadataRequest] = lambda request, version: b"\0\0\0\x09\0\0\0\x03\0\xff\xff\xff\xff"
        with pytest.raises(Corrupt, match="Metadata does not parse"):
            await client.fetch_metadata([])


@run_by(run, "environment")
async def test_error_without_a_broker_names_address_and_option(*, environment: Environment) -> None:
    async with cluster(environment) as (_, [broker]):
        port = broker.port
    client = KafkaClient(environment.net, environment.clock, [Address(HOST, port)], retry_seconds=1000)
    with pytest.raises(Unavailable, match=f"no broker replies at {HOST}:{port}.*check --brokers"):
        await client.fetch_metadata([])


@run_by(run, "environment")
async def test_one_reachable_bootstrap_broker_is_enough(*, environment: Environment) -> None:
    async with cluster(environment) as (_, [gone]):
        port = gone.port
    async with cluster(environment) as (_, [broker]):
        client = KafkaClient(environment.net, environment.clock, [Address(HOST, port), Address(HOST, broker.port)])
        assert (await client.fetch_metadata([])).cluster_id == "cluster"
        await client.close()


@run_by(run, "environment")
async def test_client_retries_a_known_broker_until_it_is_back(*, environment: Environment) -> None:
    async with cluster(environment, retry_seconds=20) as (client, [broker]):
        await client.fetch_metadata([])
        broker.stop()
        received = asyncio.ensure_future(client.fetch_metadata([]))
        await environment.clock.sleep(0.3)
        assert not received.done()
        await broker.start(environment.net, HOST, broker.port)
        assert (await received).cluster_id == "cluster"


def _offsets(code: Code, offset: int) -> Callable[[Any, int], ListOffsetsResponse]:
    def answer(request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        each = [
            ListOffsetsPartitionResponse(partition_index=one.partition_index, error_code=code.number, offset=offset)
            for topic in request.topics
            for one in topic.partitions
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=TOPIC, partitions=each)])

    return answer


@run_by(run, "environment")
async def test_request_goes_to_each_leader_and_follows_a_moved_one(*, environment: Environment) -> None:
    async with cluster(environment, 2) as (client, [first, second]):
        first.script[ListOffsetsRequest] = _offsets(Code.NONE, 10)

        def move_leader(request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
            # From now on the first broker leads both.
            for broker in (first, second):
                broker.set_leaders(TOPIC, first, first)
            return _offsets(Code.NOT_LEADER_OR_FOLLOWER, -1)(request, version)

        second.script[ListOffsetsRequest] = move_leader
        both = {TopicPartition(TOPIC, number): LATEST for number in (0, 1)}
        got = await list_offsets(client, both)
        assert got == dict.fromkeys(both, (10, -1))
        received = [each.message for each in first.received if isinstance(each.message, ListOffsetsRequest)]
        assert [[one.partition_index for one in each.topics[0].partitions] for each in received] == [[0], [1]]


@run_by(run, "environment")
async def test_unreachable_leader_is_looked_up_again_until_another_leads(*, environment: Environment) -> None:
    async with cluster(environment, 2, retry_seconds=20) as (client, [first, second]):
        first.script[ListOffsetsRequest] = _offsets(Code.NONE, 10)
        both = {TopicPartition(TOPIC, number): LATEST for number in (0, 1)}
        await client.group_by_leader(both)
        second.stop()
        _move_at_third_look(first)
        started_ns = environment.clock.mono_ns()
        assert await list_offsets(client, both) == dict.fromkeys(both, (10, -1))
        assert environment.clock.mono_ns() - started_ns < 10 * 10**9
        received = [each.message for each in first.received if isinstance(each.message, ListOffsetsRequest)]
        assert [[one.partition_index for one in each.topics[0].partitions] for each in received] == [[0], [1]]


def _move_at_third_look(broker: Scripted) -> None:
    """From the third reply on, this broker leads all partitions, and is the only one of the cluster."""
    before = broker.script[MetadataRequest]
    broker.set_leaders(TOPIC, broker, broker)
    after, looks = broker.script[MetadataRequest], count()
    broker.script[MetadataRequest] = lambda request, version: (before if next(looks) < 2 else after)(request, version)


@run_by(run, "environment")
async def test_leader_that_stays_unreachable_is_reported_after_the_retries(*, environment: Environment) -> None:
    """A caller that tries again first reads from the cluster which broker leads now."""
    async with cluster(environment, 2, retry_seconds=0.1) as (client, [first, second]):
        first.script[ListOffsetsRequest] = _offsets(Code.NONE, 10)
        tp = TopicPartition(TOPIC, 1)
        await client.group_by_leader([tp])
        second.stop()
        with pytest.raises(NotConnected, match="broker 2 is advertised at"):
            await list_offsets(client, {tp: LATEST})
        first.set_leaders(TOPIC, first, first)
        assert await list_offsets(client, {tp: LATEST}) == {tp: (10, -1)}


@pytest.mark.parametrize("kind", [GROUP, TRANSACTION])
@run_by(run, "environment")
async def test_unreachable_coordinator_is_looked_up_again_until_another_is_one(
    *, environment: Environment, kind: int
) -> None:
    async with cluster(environment, 2, retry_seconds=20) as (client, [first, second]):
        looks = count()

        def find(request: FindCoordinatorRequest, version: int) -> FindCoordinatorResponse:
            assert request.key_type == kind
            broker = second if next(looks) < 2 else first
            found = Coordinator(key="g", node_id=broker.node_id, host=broker.host, port=broker.port)
            return FindCoordinatorResponse(coordinators=[found])

        first.script[FindCoordinatorRequest] = find
        first.script[HeartbeatRequest] = lambda request, version: HeartbeatResponse(error_code=0)
        await client.fetch_metadata([])
        second.stop()
        started_ns = environment.clock.mono_ns()
        got = await send_to_coordinator(
            client, "g", HeartbeatRequest(group_id="g"), HeartbeatResponse, lambda got: got.error_code, kind=kind
        )
        assert got.error_code == 0 and first.count(HeartbeatRequest) == 1
        assert environment.clock.mono_ns() - started_ns < 10 * 10**9


@run_by(run, "environment")
async def test_unreachable_controller_is_looked_up_again_until_another_is_one(*, environment: Environment) -> None:
    async with cluster(environment, 2, retry_seconds=20) as (client, [first, second]):
        first.script[ListGroupsRequest] = lambda request, version: ListGroupsResponse()
        reply, looks = first.script[MetadataRequest], count()

        def answer(request: MetadataRequest, version: int) -> Any:
            got: Any = reply(request, version)
            return replace(got, controller_id=(second if next(looks) < 3 else first).node_id)

        first.script[MetadataRequest] = answer
        await client.fetch_metadata([])
        second.stop()
        await client.send_to_controller(ListGroupsRequest(), ListGroupsResponse)
        assert first.count(ListGroupsRequest) == 1


@run_by(run, "environment")
async def test_partition_without_a_leader_has_its_own_error(*, environment: Environment) -> None:
    async with cluster(environment, retry_seconds=0.1) as (client, [broker]):
        broker.script[ListOffsetsRequest] = _offsets(Code.NONE, 3)
        missing = TopicPartition(TOPIC, 5)
        got = await list_offsets(client, {TopicPartition(TOPIC, 0): LATEST, missing: LATEST})
        assert got[TopicPartition(TOPIC, 0)] == (3, -1)
        no = got[missing]
        assert isinstance(no, Refused) and no.code is Code.LEADER_NOT_AVAILABLE


@run_by(run, "environment")
async def test_outcome_without_a_value_is_not_requested_again(*, environment: Environment) -> None:
    """An abort has an error number and nothing else."""
    async with cluster(environment, retry_seconds=0.1) as (client, [broker]):
        aborted = WritableTxnMarkerTopicResult(TOPIC, [WritableTxnMarkerPartitionResult(0, 0)])
        broker.script[WriteTxnMarkersRequest] = lambda request, version: WriteTxnMarkersResponse(
            [WritableTxnMarkerResult(7, [aborted])]
        )
        await abort_transaction(client, PartitionTransaction(TopicPartition(TOPIC, 0), 7, 0, 0, 0, 0))
        assert broker.count(WriteTxnMarkersRequest) == 1


@run_by(run, "environment")
async def test_client_finds_a_coordinator_that_moved(*, environment: Environment) -> None:
    async with cluster(environment, 2) as (client, brokers):
        at = [1]

        def find(request: FindCoordinatorRequest, version: int) -> FindCoordinatorResponse:
            broker = brokers[at[0]]
            found = Coordinator(key="g", node_id=broker.node_id, host=broker.host, port=broker.port)
            return FindCoordinatorResponse(coordinators=[found])

        def reply_not_coordinator(request: HeartbeatRequest, version: int) -> HeartbeatResponse:
            at[0] = 0
            return HeartbeatResponse(error_code=Code.NOT_COORDINATOR.number)

        for broker in brokers:
            broker.script[FindCoordinatorRequest] = find
        brokers[1].script[HeartbeatRequest] = reply_not_coordinator
        brokers[0].script[HeartbeatRequest] = lambda request, version: HeartbeatResponse(error_code=0)
        got = await send_to_coordinator(
            client, "g", HeartbeatRequest(group_id="g"), HeartbeatResponse, lambda got: got.error_code
        )
        assert got.error_code == 0
        assert [broker.count(HeartbeatRequest) for broker in brokers] == [1, 1]


def test_reply_with_another_number_of_results_is_an_error() -> None:
    assert only_result(["one"]) == "one"
    for results in ([], ["one", "two"]):
        with pytest.raises(Unavailable, match=f"the reply has {len(results)} results"):
            only_result(results)
