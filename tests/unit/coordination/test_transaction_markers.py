"""Tests of markers on their way to leaders: a silent broker holds up only what it still leads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from tests.scenario import run_alone, run_by
from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tests.unit.member_view import make_view
from tiered.config.settings import Settings
from tiered.coordination.marker_writer import MarkerDue
from tiered.coordination.transaction_markers import OWN_BATCH_PARTITIONS, MarkerPorts, TransactionMarkers
from tiered.errors import Code, Refused
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.changes import BrokerRegistered, PartitionChanged, TopicCreated
from tiered.metadata.image import Image
from tiered.metrics import Metrics
from tiered.peers import MarkerRequest, PartitionCodes, Peers
from tiered.system.clock import SystemClock
from tiered.transactions.requests import MarkersDue, MarkersWritten

PLACES = (TopicPartition("t", 0), TopicPartition("t", 1))
TOPIC_ID = TopicId("t" * 22)


class SilentPeers:
    """Brokers by address, of which one never replies."""

    def __init__(self, silent: str) -> None:
        self.silent = silent
        self.written: list[tuple[str, TopicPartition]] = []

    async def write_txn_markers(
        self, address: str, markers: Sequence[MarkerRequest], timeout: float
    ) -> Sequence[PartitionCodes]:
        if address == self.silent:
            await asyncio.get_running_loop().create_future()
        self.written += [(address, tp) for each in markers for tp in each.partitions]
        return [dict.fromkeys(each.partitions, Code.NONE) for each in markers]


class NoPartitions:
    """The partitions of a broker that leads nothing."""

    def write_now(self, due: MarkerDue) -> bool:
        raise AssertionError("this broker leads nothing")

    async def try_write(self, due: MarkerDue) -> Code:
        raise AssertionError("this broker leads nothing")


class OwnLeaders:
    """Partitions that this broker leads alone."""

    def __init__(self) -> None:
        self.at_once: list[TopicPartition] = []
        self.later: list[TopicPartition] = []
        self.refuses = False

    def write_now(self, due: MarkerDue) -> bool:
        if self.refuses:
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, "moves")
        self.at_once.append(due.tp)
        return True

    async def try_write(self, due: MarkerDue) -> Code:
        self.later.append(due.tp)
        return Code.NONE


class FencingPeers:
    """A broker that takes a marker for one of an earlier coordinator, a few times."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals

    async def write_txn_markers(
        self, address: str, markers: Sequence[MarkerRequest], timeout: float
    ) -> Sequence[PartitionCodes]:
        self.refusals -= 1
        code = Code.TRANSACTION_COORDINATOR_FENCED if self.refusals >= 0 else Code.NONE
        return [dict.fromkeys(each.partitions, code) for each in markers]


def two_brokers() -> Image:
    """Returns an image in which broker 2 leads both partitions."""
    changes = [BrokerRegistered(node, str(node), "d", "", "", 0, {"PLAINTEXT": f"b{node}:1"}) for node in (2, 3)]
    created = TopicCreated("t", TOPIC_ID, ((2, 3), (2, 3)), {}, 0)
    led = [PartitionChanged(TOPIC_ID, partition, 2, 0, (2, 3), ()) for partition in range(2)]
    return Image().apply([*changes, created, *led], 0)


def test_own_partitions_get_their_markers_in_the_call_of_the_decision() -> None:
    loop = SimLoop(1)
    own, reports = OwnLeaders(), list[MarkersWritten]()
    ports = MarkerPorts(make_view(two_brokers(), Settings(node_id=2)), SimClock(loop), None, own)
    markers = TransactionMarkers(ports, lambda partition, epoch, written: reports.append(written), Metrics())

    async def scenario() -> None:
        running = asyncio.create_task(markers.run())
        await asyncio.sleep(1)
        with markers.write_at_once(2):
            markers.send(MarkersDue("a", 5, 0, True, frozenset(PLACES), 0), 0, 1)
            assert [each.partitions for each in reports] == [frozenset(PLACES)] and own.at_once == list(PLACES)
            markers.send(MarkersDue("b", 5, 0, True, frozenset(PLACES), 0), 0, 1)
            assert own.at_once == list(PLACES) and not own.later, "other work has its turn"
        await asyncio.sleep(1)
        assert len(reports) == 2 and own.later == list(PLACES)
        with markers.write_at_once(2):
            pass
        markers.send(MarkersDue("a", 5, 1, True, frozenset(PLACES), 0), 0, 1)
        assert own.at_once == list(PLACES), "the decision came with no request"
        own.refuses = True
        with markers.write_at_once(2):
            markers.send(MarkersDue("b", 5, 1, True, frozenset(PLACES), 0), 0, 1)
        await asyncio.sleep(1)
        assert len(reports) == 4 and own.later == 3 * list(PLACES)
        running.cancel()

    loop.run(scenario())


@run_by(run_alone)
async def test_markers_of_many_own_partitions_leave_turns_to_others() -> None:
    count = 3 * OWN_BATCH_PARTITIONS + 1
    created = TopicCreated("t", TOPIC_ID, ((2,),) * count, {}, 0)
    led = [PartitionChanged(TOPIC_ID, partition, 2, 0, (2,), ()) for partition in range(count)]
    image = Image().apply([BrokerRegistered(2, "2", "d", "", "", 0, {"PLAINTEXT": "b2:1"}), created, *led], 0)
    own, reports = OwnLeaders(), list[MarkersWritten]()
    ports = MarkerPorts(make_view(image, Settings(node_id=2)), SystemClock(), None, own)
    markers = TransactionMarkers(ports, lambda partition, epoch, written: reports.append(written), Metrics())
    all_partitions = frozenset(TopicPartition("t", partition) for partition in range(count))
    running = asyncio.create_task(markers.run())
    await asyncio.sleep(0)
    for producer_id in range(2):
        markers.send(MarkersDue(f"{producer_id}", producer_id, 0, True, all_partitions, 0), 0, 1)
    written = [0]
    while sum(len(each.partitions) for each in reports) < 2 * count:
        await asyncio.sleep(0)  # one turn of the event loop
        written.append(len(own.later))
    steps = [later - earlier for earlier, later in pairwise(written)]
    assert sum(steps) == 2 * count and max(steps) == OWN_BATCH_PARTITIONS, steps
    running.cancel()


def test_refused_coordinator_sends_its_markers_until_it_resigns() -> None:
    loop = SimLoop(1)
    peers, reports = FencingPeers(3), list[MarkersWritten]()
    ports = MarkerPorts(make_view(two_brokers()), SimClock(loop), cast(Peers, peers), NoPartitions())
    markers = TransactionMarkers(ports, lambda partition, epoch, written: reports.append(written), Metrics())

    async def scenario() -> None:
        running = asyncio.create_task(markers.run())
        markers.send(MarkersDue("txn", 5, 0, True, frozenset(PLACES), 0), 0, 1)
        await asyncio.sleep(10)
        assert [each.partitions for each in reports] == [frozenset(PLACES)]
        peers.refusals = 1_000
        for _ in range(2):  # a coordinator that loads again asks for the same markers again
            markers.send(MarkersDue("txn", 5, 1, True, frozenset(PLACES), 0), 0, 1)
            await asyncio.sleep(5)
        markers.cancel(0)
        await asyncio.sleep(5)
        left = peers.refusals
        await asyncio.sleep(10)
        assert (len(reports), peers.refusals) == (1, left), "its successor sends them"
        running.cancel()

    loop.run(scenario())


def test_markers_go_to_a_new_leader_though_the_old_one_is_silent() -> None:
    loop = SimLoop(1)
    view, peers = make_view(two_brokers()), SilentPeers("b2:1")
    reports: list[MarkersWritten] = []
    ports = MarkerPorts(view, SimClock(loop), cast(Peers, peers), NoPartitions())
    markers = TransactionMarkers(ports, lambda partition, epoch, written: reports.append(written), Metrics())

    async def scenario() -> None:
        running = asyncio.create_task(markers.run())
        markers.send(MarkersDue("txn", 5, 0, True, frozenset(PLACES), 0), 0, 1)
        await asyncio.sleep(3)
        assert peers.written == []
        moved = PartitionChanged(TOPIC_ID, 0, 3, 1, (3,), ())
        view.loader.image = view.image.apply([moved], view.image.slot + 1)
        markers.on_image()
        await asyncio.sleep(0)  # the limit has ended, and its task did not run yet
        markers.on_image()
        await asyncio.sleep(0.5)
        assert peers.written == [("b3:1", PLACES[0])]
        peers.silent = ""
        await asyncio.sleep(20)
        assert peers.written[1:] == [("b2:1", PLACES[1])]
        assert frozenset().union(*(each.partitions for each in reports)) == frozenset(PLACES)
        running.cancel()

    loop.run(scenario())
