"""Tests of questions to coordinators: a silent broker is not waited for once another coordinates."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from tests.sim.harness.loop import SimLoop
from tests.unit.member_view import make_view
from tiered.coordination.transaction_verification import TransactionVerification
from tiered.errors import Code
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.changes import BrokerRegistered, PartitionChanged, TopicCreated
from tiered.metadata.image import Image
from tiered.metadata.topic_names import TRANSACTIONS_TOPIC
from tiered.metrics import Metrics
from tiered.peers import PartitionCodes, Peers, TransactionPartitions

TOPIC_ID = TopicId("t" * 22)
PLACE = TopicPartition("data", 0)
ASKED = TransactionPartitions("txn", 5, 0, True, (PLACE,))


class SilentPeers:
    """Brokers by address, of which one never replies."""

    def __init__(self, silent: str) -> None:
        self.silent = silent
        self.asked: list[str] = []

    async def add_partitions_to_txn(
        self, address: str, transactions: Sequence[TransactionPartitions], timeout: float
    ) -> Sequence[PartitionCodes]:
        self.asked.append(address)
        if address == self.silent:
            await asyncio.get_running_loop().create_future()
        return [dict.fromkeys(each.partitions, Code.NONE) for each in transactions]


def test_coordinator_that_moved_is_not_waited_for() -> None:
    """All that waited for the silent broker is refused at once, so that the clients ask again."""
    brokers = [BrokerRegistered(node, str(node), "d", "", "", 0, {"PLAINTEXT": f"b{node}:1"}) for node in (2, 3)]
    created = TopicCreated(TRANSACTIONS_TOPIC, TOPIC_ID, ((2, 3),), {}, 0)
    view = make_view(Image().apply([*brokers, created, PartitionChanged(TOPIC_ID, 0, 2, 0, (2, 3), ())], 0))
    peers = SilentPeers("b2:1")
    none_here: Any = None
    verification = TransactionVerification(view, none_here, cast(Peers, peers), Metrics())

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        waiting = [asyncio.create_task(verification.query(ASKED)) for _ in range(10)]
        await asyncio.sleep(3)
        view.loader.image = view.image.apply([PartitionChanged(TOPIC_ID, 0, 3, 1, (3,), ())], view.image.slot + 1)
        verification.on_image()
        await asyncio.sleep(0)  # the limit has ended, and its task did not run yet
        verification.on_image()
        assert await asyncio.gather(*waiting) == [{PLACE: Code.NETWORK_EXCEPTION}] * 10
        assert loop.time() < 3.1
        assert await verification.query(ASKED) == {PLACE: Code.NONE}
        assert peers.asked[-1] == "b3:1"
        await verification.close()

    SimLoop(1).run(scenario())
