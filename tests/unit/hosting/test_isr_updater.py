"""Tests of requests for ISR changes: a proposed ISR counts from before it is sent to the controller (R3)."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from tests.scenario import in_rig
from tests.unit.member_view import make_view
from tests.unit.replication.rig import TOPIC_ID, TP, LeaderList, ReplicationRig, append_batch
from tiered.config.settings import Settings
from tiered.durability.possible_losses import PossibleLosses
from tiered.errors import Code, Unavailable
from tiered.hosting.isr_updater import IsrUpdater
from tiered.ids import encode_uuid, incarnation_number
from tiered.metadata.changes import BrokerRegistered
from tiered.metadata.image import Image
from tiered.metrics import Metrics
from tiered.peers import PartitionFetch
from tiered.replication.leader_replica import LeaderReplica

INCARNATIONS = {node: encode_uuid(uuid.UUID(int=node << 64, version=4)) for node in (1, 2)}


class IsrRequests:
    """The ISR updater of broker 1, which leads with broker 2 out of sync. The controller replies when the test says
    so."""

    def __init__(self, rig: ReplicationRig, replica: LeaderReplica) -> None:
        self.replica = replica
        self.requests: list[Any] = []
        self.answer: asyncio.Future[tuple[Code, ...]] = asyncio.get_running_loop().create_future()
        image = Image().apply([BrokerRegistered(node, name, "d", "", "", 0) for node, name in INCARNATIONS.items()], 0)
        view = make_view(image, Settings(node_id=1), INCARNATIONS[1])
        self.losses = PossibleLosses(view)
        self.sets = IsrUpdater(view, self, LeaderList(replica), self.losses, rig.clock, Metrics())
        self._task = asyncio.create_task(self.sets.run())

    async def submit(self, request: Any, timeout: float = 10.0) -> tuple[Code, ...]:
        self.requests.append(request)
        return await self.answer

    async def catch_up(self) -> None:
        """Lets the follower fetch at the log end."""
        number, end = incarnation_number(INCARNATIONS[2]), self.replica.log.end_offset
        isr_requests = PartitionFetch(TOPIC_ID, TP.partition, self.replica.leader_epoch, end, 0, 0, 0)
        self.replica.handle_follower_fetch(2, number, isr_requests, 0)
        self.sets.wake(self.replica)
        await asyncio.sleep(0.1)

    def stop(self) -> None:
        self._task.cancel()


@pytest.mark.parametrize(
    ("answer", "committed"),
    [(None, 1), (Unavailable("the way to the controller is cut"), 1), (Code.INELIGIBLE_REPLICA, 2)],
    ids=["no answer yet", "no answer", "refused"],
)
@in_rig(ReplicationRig)
async def test_proposed_member_counts_until_the_isr_change_is_refused(
    rig: ReplicationRig, *, answer: Unavailable | Code | None, committed: int
) -> None:
    replica = await rig.brokers[1].lead(0, [1], [1, 2])
    append_batch(replica, 0)
    isr_requests = IsrRequests(rig, replica)
    await isr_requests.catch_up()
    assert len(isr_requests.requests) == 1
    assert append_batch(replica, 1) == 2 and replica.high_watermark == 1, "granted, it would have to have it"
    if isinstance(answer, Unavailable):
        isr_requests.answer.set_exception(answer)
    elif answer is not None:
        isr_requests.answer.set_result((answer,))
    await asyncio.sleep(0.1)
    assert replica.high_watermark == committed
    isr_requests.stop()


@in_rig(ReplicationRig)
async def test_isr_does_not_grow_while_a_loss_is_unreported(rig: ReplicationRig) -> None:
    """A follower that joined could lead next without a report of the loss."""
    replica = await rig.brokers[1].lead(0, [1], [1, 2])
    append_batch(replica, 0)
    isr_requests = IsrRequests(rig, replica)
    isr_requests.losses.add_unreported(replica)
    await isr_requests.catch_up()
    assert isr_requests.requests == []
    isr_requests.losses.unreported.clear()
    await isr_requests.catch_up()
    assert len(isr_requests.requests) == 1
    isr_requests.stop()
