"""Tests of requests among brokers over the simulated network: a real server on one side, with a small cluster behind
it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, run
from tests.sim.scenarios.test_replica_fetch import make_peers
from tiered.config.listeners import Endpoint
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.peers import ClockComparison, ControllerView, ForwardReply, MetadataFetch, MetadataFetchReply
from tiered.security.principal import Caller, Principal
from tiered_api.kafka.client.peers import IDLE_CONNECTIONS_MAX, IN_FLIGHT_MAX
from tiered_api.kafka.protocol.messages.tiered_follow import TieredFollowRequest, TieredFollowResponse
from tiered_api.kafka.server.server import KafkaServer, serve_kafka

THERE = "one:9092"
KEY_IDS = ("k1", "k2")
ASK = MetadataFetch(2, "incarnation", 7, 5, 3, 500, ClockComparison(-7_200_000, 12), 1, "k2")


class ClusterStub:
    """A cluster with fixed replies: `wait` delays metadata fetches, `refused` is the reply to every request."""

    NONSENSE = b"nonsense"

    def __init__(self) -> None:
        self.requests: list[object] = []
        self.may_reply = asyncio.Event()
        self.may_reply.set()
        self.waiting = 0
        self.refused: Refused | None = None

    async def handle_metadata_fetch(self, ask: MetadataFetch) -> MetadataFetchReply:
        self.requests.append(ask)
        if self.refused:
            raise self.refused
        self.waiting += 1
        try:
            await self.may_reply.wait()
        finally:
            self.waiting -= 1
        return MetadataFetchReply(
            4, 9, (b"seven", b"", b"nine" * 10_000), True, 1_200, 1_700_000_000_000, 1_999, KEY_IDS
        )

    async def handle_forwarded(self, request: bytes, timeout: float) -> ForwardReply:
        self.requests.append((request, timeout))
        if self.refused:
            raise self.refused
        if request == self.NONSENSE:
            raise Corrupt("not a message between brokers")
        return ForwardReply(b"done " + request, 12)

    def controller_view(self) -> ControllerView:
        if self.refused:
            raise self.refused
        return ControllerView(6, 1, -1)


class PeerSession:
    """A server on host "one", and a broker on host "two" that sends requests to it."""

    def __init__(self, rig: SimBrokerRig, server: KafkaServer) -> None:
        self.rig = rig
        self.server = server
        self.stub = ClusterStub()
        self.peers = make_peers(rig, "two")
        self._real = rig.broker.cluster
        vars(rig.broker)["cluster"] = self.stub

    def restore(self) -> None:
        """Lets the broker reply for itself again."""
        vars(self.rig.broker)["cluster"] = self._real

    @property
    def connections(self) -> int:
        return len(self.server.connections)


def run_with_peers(scenario: Callable[[PeerSession], Awaitable[None]], seed: int = 1) -> None:
    async def run_all(rig: SimBrokerRig) -> None:
        await rig.start(QUICK)
        server = await serve_kafka(rig.broker, {"PLAINTEXT": Endpoint("PLAINTEXT", "0.0.0.0", 9092)})
        said = PeerSession(rig, server)
        await scenario(said)
        await said.peers.close()
        said.restore()
        await rig.wait_until(lambda: not server.connections)
        assert server.context.refusals.count("fault") == 0
        await server.close()
        await rig.stop()

    run(run_all, seed)


@run_by(run_with_peers)
async def test_requests_and_replies_arrive_unchanged(talk: PeerSession) -> None:
    peers = talk.peers
    assert await peers.fetch_metadata(THERE, ASK, 5) == MetadataFetchReply(
        4, 9, (b"seven", b"", b"nine" * 10_000), True, 1_200, 1_700_000_000_000, 1_999, KEY_IDS
    )
    assert talk.stub.requests == [ASK]
    going: list[str] = []
    answer = await peers.forward(THERE, b"request", 5, lambda: going.append("it leaves"))
    assert (answer, going) == (ForwardReply(b"done request", 12), ["it leaves"])
    assert talk.stub.requests[1] == (b"request", 4.5), "the answer shall come before the asker's time is over"
    assert await peers.get_controller_view(THERE, 5) == ControllerView(6, 1, -1)


@run_by(run_with_peers)
async def test_refusal_arrives_with_code_and_text(talk: PeerSession) -> None:
    talk.stub.refused = Refused(Code.NOT_CONTROLLER, "it is broker 3")
    for ask in (
        talk.peers.fetch_metadata(THERE, ASK, 5),
        talk.peers.forward(THERE, b"request", 5),
        talk.peers.get_controller_view(THERE, 5),
    ):
        with pytest.raises(Refused, match="it is broker 3") as caught:
            await ask
        assert caught.value.code is Code.NOT_CONTROLLER
    assert talk.connections == 1, "a refusal is an answer like any other"


@run_by(run_with_peers)
async def test_unreadable_request_to_the_controller_is_refused(talk: PeerSession) -> None:
    with pytest.raises(Refused, match="not a message") as caught:
        await talk.peers.forward(THERE, ClusterStub.NONSENSE, 5)
    assert caught.value.code is Code.INVALID_REQUEST
    assert talk.connections == 1


@run_by(run_with_peers)
async def test_stopping_broker_ends_the_fetches_of_its_followers(talk: PeerSession) -> None:
    talk.stub.may_reply.clear()
    following = asyncio.create_task(talk.peers.fetch_metadata(THERE, ASK, 60))
    await talk.rig.wait_until(lambda: talk.stub.waiting == 1)
    began = talk.rig.loop.time()
    await talk.server.close()
    assert talk.rig.loop.time() - began < 0.1
    with pytest.raises(Unavailable):
        await following
    assert talk.stub.waiting == 0


@run_by(run_with_peers)
async def test_broker_of_another_cluster_refuses(talk: PeerSession) -> None:
    await talk.peers.get_controller_view(THERE, 5)
    talk.peers.cluster_id = "another"
    for ask in (
        talk.peers.fetch_metadata(THERE, ASK, 5),
        talk.peers.forward(THERE, b"request", 5),
        talk.peers.get_controller_view(THERE, 5),
    ):
        with refuses(Code.INCONSISTENT_CLUSTER_ID):
            await ask
    assert talk.stub.requests == []


@run_by(run_with_peers)
async def test_waiting_metadata_fetch_delays_no_other_request(talk: PeerSession) -> None:
    talk.stub.may_reply.clear()
    following = asyncio.create_task(talk.peers.fetch_metadata(THERE, ASK, 60))
    await talk.rig.wait_until(lambda: talk.stub.waiting == 1)
    for _ in range(20):
        await talk.peers.forward(THERE, b"request", 0.5)
    assert talk.connections == 2
    talk.stub.may_reply.set()
    await following


@run_by(run_with_peers)
async def test_missing_reply_times_out_and_closes_its_connection(talk: PeerSession) -> None:
    talk.stub.may_reply.clear()
    began = talk.rig.loop.time()
    with pytest.raises(Unavailable) as caught:
        await talk.peers.fetch_metadata(THERE, ASK, 2)
    assert 2 <= talk.rig.loop.time() - began < 2.1
    assert not caught.value.refused
    await talk.rig.wait_until(lambda: talk.stub.waiting == 0)
    assert talk.connections == 0
    await talk.peers.get_controller_view(THERE, 1)


@run_by(run_with_peers)
async def test_cancelled_caller_ends_its_request(talk: PeerSession) -> None:
    talk.stub.may_reply.clear()
    following = asyncio.create_task(talk.peers.fetch_metadata(THERE, ASK, 60))
    await talk.rig.wait_until(lambda: talk.stub.waiting == 1)
    following.cancel()
    await talk.rig.wait_until(lambda: talk.stub.waiting == 0)


def fail_if_called() -> None:
    raise AssertionError("something can have been done")


@run_by(run_with_peers)
async def test_ended_process_is_distinguished_from_a_cut_connection(talk: PeerSession) -> None:
    assert not await talk.peers.is_gone(THERE, 1)
    talk.rig.network.cut("one", "two")
    assert not await talk.peers.is_gone(THERE, 1)
    with pytest.raises(Unavailable) as caught:
        await talk.peers.forward(THERE, b"request", 1, fail_if_called)
    assert caught.value.refused, "it could not even be asked"
    talk.rig.network.heal()
    assert await talk.peers.is_gone("one:9", 1)
    with pytest.raises(Unavailable) as caught:
        await talk.peers.forward("one:9", b"request", 1, fail_if_called)
    assert caught.value.refused
    assert not await talk.peers.is_gone("nonsense", 1)


@run_by(run_with_peers)
async def test_broken_connections_are_not_reused(talk: PeerSession) -> None:
    talk.stub.may_reply.clear()
    following = [asyncio.create_task(talk.peers.fetch_metadata(THERE, ASK, 60)) for _ in range(3)]
    await talk.rig.wait_until(lambda: talk.stub.waiting == 3)
    talk.stub.may_reply.set()
    await asyncio.gather(*following)
    assert talk.connections == 3
    talk.rig.network.cut("one", "two")
    with pytest.raises(Unavailable):
        await talk.peers.get_controller_view(THERE, 1)
    talk.rig.network.heal()
    for _ in range(3):
        await talk.peers.get_controller_view(THERE, 1)
    await talk.rig.wait_until(lambda: talk.connections == 1)


@run_by(run_with_peers)
async def test_concurrent_requests_and_idle_connections_are_bounded(talk: PeerSession) -> None:
    talk.stub.may_reply.clear()
    following = [asyncio.create_task(talk.peers.fetch_metadata(THERE, ASK, 60)) for _ in range(IN_FLIGHT_MAX)]
    await talk.rig.wait_until(lambda: talk.stub.waiting == IN_FLIGHT_MAX)
    with pytest.raises(Unavailable, match="requests in flight already"):
        await talk.peers.get_controller_view(THERE, 2)
    talk.stub.may_reply.set()
    await asyncio.gather(*following)
    await talk.rig.wait_until(lambda: talk.connections == IDLE_CONNECTIONS_MAX)


@run_by(run_with_peers)
async def test_request_of_another_holder_finds_a_slot_beside_a_greedy_one(talk: PeerSession) -> None:
    talk.stub.may_reply.clear()
    greedy, other = (Caller(Principal("User", name), "10.0.0.7") for name in ("greedy", "other"))
    request = TieredFollowRequest("", talk.rig.broker.credential, 2, "incarnation", 7, 5, 3, 500)

    async def ask(caller: Caller) -> None:
        await talk.peers.send(THERE, request, TieredFollowResponse, 600, caller=caller)

    asked = [asyncio.create_task(ask(greedy)) for _ in range(4 * IN_FLIGHT_MAX)]
    most = IN_FLIGHT_MAX * 3 // 4
    await talk.rig.wait_until(lambda: talk.stub.waiting >= most)
    assert await talk.peers.get_controller_view(THERE, 5) == ControllerView(6, 1, -1), "the broker has no share"
    before = talk.stub.waiting
    asked.append(asyncio.create_task(ask(other)))
    await talk.rig.wait_until(lambda: talk.stub.waiting == before + 1)
    talk.stub.may_reply.set()
    await asyncio.gather(*asked)


@pytest.mark.parametrize("seed", range(3))
def test_any_fault_is_unavailable_and_leaves_no_connection(seed: int) -> None:
    async def scenario(talk: PeerSession) -> None:
        talk.rig.network.chunk_bytes_max = 500
        answered = lost = 0

        async def ask(number: int) -> None:
            nonlocal answered, lost
            for _ in range(20):
                try:
                    await talk.peers.forward(THERE, b"%d" % number * 3_000, 3)
                    answered += 1
                except Unavailable:
                    lost += 1

        async def harm() -> None:
            while True:
                await asyncio.sleep(0.03)
                talk.rig.network.reset("two")

        harming = asyncio.create_task(harm())
        await asyncio.gather(*(ask(number) for number in range(5)))
        harming.cancel()
        assert answered and lost

    run_with_peers(scenario, seed)
