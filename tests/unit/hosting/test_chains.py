"""Tests of the chains that a broker knows: the own one is read without a fence."""

from __future__ import annotations

from tests.scenario import in_rig
from tests.sim.harness.clock import SimRng
from tests.unit.controller.test_controller import controller, decide
from tests.unit.member_view import make_view
from tests.unit.wal.rig import MemoryLog, Rig
from tiered.controller import requests
from tiered.errors import Unavailable
from tiered.hosting.chains import Chains
from tiered.ids import NO_EPOCH, PartitionId, TopicPartition
from tiered.metadata.delta import Lead
from tiered.metrics import Metrics
from tiered.object_store.faulty import FaultKind, FaultRule, Faults
from tiered.ports import World
from tiered.wal.history import join_extents

TP = TopicPartition("t", 0)


class Returned:
    """Broker 1 led a partition, and leads it again after another broker: its own chain is named."""

    def __init__(self, rig: Rig) -> None:
        shard = controller(1)
        decide(shard, requests.CreateTopic("t", 1, 1, configs={"flush": "bucket"}))
        first = shard.image.topics["t"]
        (incarnation,) = [each.incarnation for each in shard.image.brokers.values()]
        decide(shard, requests.RegisterBroker(1, "later", "d", "127.0.0.1:1", whole=False))
        self.image = shard.image
        self.partition = PartitionId(first.topic_id, 0)
        assert self.image.topics["t"].partitions[0].chains[0][1:] == (1, incarnation)
        self.faults = Faults()
        store = rig.bucket.store(self.faults, rig.clock)
        world = World(rig.clock, SimRng(9), None, store, None)  # type: ignore[arg-type]
        view = make_view(self.image, incarnation=incarnation)
        self.chains = Chains(view, store, world, Metrics(), lambda: "cluster")
        rig.spawn("chain writer", self.chains.writer.run())
        self.log, self.stored = MemoryLog(), 0
        self.owner = self.chains.writer.add(
            self.partition, 0, self.log, 0, on_stored=self.on_stored, on_fenced=lambda: None
        )

    def on_stored(self, end: int) -> None:
        self.stored = end

    def append(self, data: bytes) -> None:
        self.log.batches.append(data)
        self.owner.on_append(len(data))

    async def read(self) -> bytes | None:
        """Returns the records of the partition, for the next leader epoch; None if they cannot be read yet."""
        histories = await self.chains.take_over(self.image, [Lead(TP, self.partition.topic_id, 1, is_new=False)])
        found = histories[TP]
        if isinstance(found, Unavailable):
            return None
        assert not isinstance(found, Exception), found
        joined = join_extents(found.places, 0, NO_EPOCH)
        return b"".join([data async for _, data in found.takeover.read(joined)])


@in_rig(Rig)
async def test_own_chain_is_read_without_a_fence(rig: Rig) -> None:
    """The window whose put runs counts as well: a later leader may find it."""
    broker = Returned(rig)
    for number in range(3):
        broker.append(b"%d" % number)
        while broker.stored <= number:
            await rig.clock.sleep(0.01)
    broker.faults.rules.append(FaultRule(FaultKind.DELAY, ("put",), seconds=3.0))
    broker.append(b"3")
    await rig.clock.sleep(1.0)
    broker.chains.writer.remove(broker.owner)
    broker.append(b"4")
    assert await broker.read() == b"0123"
    own = [key for key in rig.bucket.objects if key.startswith(broker.chains.writer.chain.prefix)]
    assert len(own) == 4, "a fence would take a slot"


@in_rig(Rig)
async def test_own_windows_that_get_nowhere_keep_the_partition_closed(rig: Rig) -> None:
    broker = Returned(rig)
    broker.faults.outage = True
    broker.append(b"a")
    await rig.clock.sleep(1.0)
    broker.chains.writer.remove(broker.owner)
    assert await broker.read() is None
    broker.faults.outage = False
    await rig.clock.sleep(5.0)
    assert await broker.read() == b"a"


@in_rig(Rig)
async def test_own_chain_that_never_began_has_nothing(rig: Rig) -> None:
    broker = Returned(rig)
    assert await broker.read() == b""
