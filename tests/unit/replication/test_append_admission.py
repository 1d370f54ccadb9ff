"""The conditions of an append: leadership, contact with the controller (R6), in-sync replicas, reported losses."""

from __future__ import annotations

import asyncio

import pytest

from tests.refusal import refuses
from tests.scenario import in_rig
from tests.unit.hot.fixtures import batch
from tests.unit.replication.rig import ReplicationRig, append_batch
from tiered.config.settings import TopicConfig
from tiered.errors import Code, Refused
from tiered.replication.append_admission import AppendAdmission
from tiered.replication.leader_replica import ACKS_ALL


def find_refusal(admission: AppendAdmission, *, acks_all: bool) -> Code:
    """Returns the code with which an append is refused, NONE if it may be made."""
    try:
        admission.check(acks_all=acks_all)
    except Refused as refused:
        return refused.code
    return Code.NONE


@in_rig(ReplicationRig, config=TopicConfig(min_insync_replicas=2))
async def test_small_isr_refuses_acks_all_alone(rig: ReplicationRig) -> None:
    admission = (await rig.brokers[1].lead(0, [1], [1, 2])).admission
    assert find_refusal(admission, acks_all=True) is Code.NOT_ENOUGH_REPLICAS
    assert find_refusal(admission, acks_all=False) is Code.NONE
    assert find_refusal((await rig.brokers[2].lead(1, [1, 2])).admission, acks_all=True) is Code.NONE


@in_rig(ReplicationRig)
async def test_lost_contact_refuses_acks_all_where_others_may_lead(rig: ReplicationRig) -> None:
    for replicas, code in (([1], Code.NONE), ([1, 2], Code.NOT_LEADER_OR_FOLLOWER)):
        admission = (await rig.brokers[1].lead(0, [1], replicas)).admission
        admission._has_controller_contact = lambda: False
        assert find_refusal(admission, acks_all=True) is code
        assert find_refusal(admission, acks_all=False) is Code.NONE


@in_rig(ReplicationRig)
async def test_leader_that_resigned_refuses_each_append_with_its_reason(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1])
    assert not replica.admission.is_stopped
    replica.resign(Refused(Code.FENCED_LEADER_EPOCH, "over"))
    assert replica.admission.is_stopped
    for acks_all in (False, True):
        assert find_refusal(replica.admission, acks_all=acks_all) is Code.FENCED_LEADER_EPOCH


@in_rig(ReplicationRig)
async def test_append_with_unknown_acks_is_refused(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1])
    with pytest.raises(Refused) as refused:
        append_batch(replica, 0, acks=2)
    assert refused.value.code is Code.INVALID_REQUIRED_ACKS and replica.log.end_offset == 0


@in_rig(ReplicationRig)
async def test_unreported_loss_refuses_each_append_until_it_is_reported(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1])
    replica.admission.block_appends()
    assert replica.admission.has_unreported_loss and not replica.commits_on_append
    for acks_all in (False, True):
        assert find_refusal(replica.admission, acks_all=acks_all) is Code.NOT_LEADER_OR_FOLLOWER
    replica.admission.on_loss_reported()
    assert find_refusal(replica.admission, acks_all=True) is Code.NONE and replica.commits_on_append
    replica.admission.on_loss_reported()  # a later report of another loss


@in_rig(ReplicationRig)
async def test_append_waits_for_the_report_of_a_loss(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1])
    replica.admission.block_appends()
    appending = asyncio.create_task(replica.append(batch(0), timeout_ms=1000))
    await asyncio.sleep(0.5)
    assert not appending.done()
    replica.admission.on_loss_reported()
    assert (await appending).base_offset == 0


@in_rig(ReplicationRig)
async def test_wait_for_a_report_takes_its_time_from_the_timeout(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1])
    replica.admission.block_appends()
    asyncio.get_running_loop().call_later(0.4, replica.admission.on_loss_reported)
    assert await replica.admission.wait_loss_reported_within(1000) == 600
    replica.admission.block_appends()
    assert await replica.admission.wait_loss_reported_within(1000) == 0
    with refuses(Code.NOT_LEADER_OR_FOLLOWER):
        await replica.append(batch(0), acks=ACKS_ALL, timeout_ms=10)


@in_rig(ReplicationRig)
async def test_resigned_leader_ends_the_wait_for_a_report(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1])
    replica.admission.block_appends()
    waiting = asyncio.create_task(replica.admission.wait_loss_reported())
    await asyncio.sleep(0)
    replica.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "over"))
    await asyncio.wait_for(waiting, 1)
