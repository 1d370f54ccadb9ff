"""Replication under the reference model: slow and deposed replicas, lost replies to ISR changes, copies that diverge.

Each scenario brings about one situation of the protocol. The model judges every append, cut, high watermark and ISR.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.judged import LAG_MS, Judged, held_batches, run_judged
from tests.sim.scenarios.test_manifests_ahead import TIERED, upload_all
from tests.sim.scenarios.three import SESSION, SimBroker
from tiered.controller.requests import AlterTopicConfigs, Move, Reassign
from tiered.errors import Code
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.replication.leader_replica import ACKS_ALL

LAG = LAG_MS / 1000


@run_by(run_judged)
async def test_deposed_leaders_are_cut_to_their_successors(of: Judged) -> None:
    """Each leader writes what no other replica gets, and is cut off. The next one writes other records there."""

    async def depose(of: Judged, old: SimBroker) -> None:
        of.isolate(old, *(each for each in (of.a, of.b, of.c) if each is not old))
        await of.write(old, 3, acks=1)
        await of.wait(lambda: of.now.leader not in (-1, old.node_id))
        lead = of.three.brokers[of.now.leader]
        await of.wait(lambda: of.leads(lead))
        await of.write(lead, 2)
        of.heal()
        await of.wait_alike(of.a, of.b, of.c)

    await of.create(of.a, of.b, of.c, min_insync_replicas="2")
    await of.write(of.a, 5)
    for _ in range(3):
        await depose(of, of.three.brokers[of.now.leader])


@run_by(run_judged)
async def test_copies_that_parted_over_several_epochs_become_alike(of: Judged) -> None:
    """Any replica may lead. Each leads alone for a while, and writes what the others never see (KIP-279)."""
    a, b, c = await of.begin(replicas=2, records=4, min_insync_replicas="1", unclean_leader_election_enable="true")
    for count in (3, 2, 4):
        await of.kill(b)
        await of.wait_isr(a)
        await of.write(a, count)
        await of.kill(a)
        await of.wait(lambda: of.now.leader == -1)
        await b.start()
        await of.wait(lambda: of.now.leader == b.node_id and of.leads(b))
        await of.write(b, count - 1)
        await of.kill(b)
        await of.wait(lambda: of.now.leader == -1)
        await a.start()
        await of.wait(lambda: of.now.leader == a.node_id and of.leads(a))
        await of.write(a, 1)
        await b.start()
        await of.wait_alike(a, b)
    assert c.node_id not in of.now.replicas


@run_by(run_judged, replica_fetch_max_bytes=1)
async def test_slow_follower_joins_with_everything_only(of: Judged) -> None:
    """It gets one batch in a fetch. The leader has just begun, and does not know yet what is committed (R2)."""
    a, b, c = await of.begin(replicas=3, records=5, min_insync_replicas="2")
    await of.kill(c)
    await of.wait_isr(a, b)
    await of.write(a, 40)
    await of.kill(a)
    await of.wait(lambda: of.leads(b))
    assert of.leader(b).high_watermark < of.leader(b).log.end_offset, "nobody else is in sync"
    await c.start()
    await of.wait_isr(b, c)
    assert of.follower(c).log.end_offset >= 45
    await a.start()
    await of.wait_alike(a, b, c)


@run_by(run_judged, replica_fetch_max_bytes=1)
async def test_follower_that_is_behind_what_is_committed_does_not_join(of: Judged) -> None:
    a, b, c = of.a, of.b, of.c
    await of.create(a, b, c, min_insync_replicas="2")
    await of.kill(c)
    await of.wait_isr(a, b)
    await of.write(a, 40)
    await c.start()
    await of.wait_isr(a, b, c)
    await of.wait_alike(a, b, c)


@run_by(run_judged)
async def test_high_watermark_waits_for_a_member_that_does_not_fetch(of: Judged) -> None:
    """It does not move below `min.insync.replicas` either, and producers learn of that at once."""
    a, b, c = await of.begin_alike(replicas=3, records=3, min_insync_replicas="3")
    of.isolate(b, a)
    await of.write(a, 1, acks=1)
    waiting = asyncio.ensure_future(of.write(a, timeout_ms=60_000))
    began = of.three.now
    await of.wait(lambda: a.node_id in of.now.isr and len(of.now.isr) < 3)
    assert of.three.now - began > LAG / 2
    with refuses(Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
        await asyncio.wait_for(waiting, 2)
    with refuses(Code.NOT_ENOUGH_REPLICAS):
        await of.write(a)
    await of.write(a, 2, acks=1)
    await of.sleep(2 * LAG)
    assert of.leader(a).high_watermark == 3
    of.heal()
    await of.wait_alike(a, b, c)


@run_by(run_judged)
async def test_member_that_has_everything_stays_in_sync_in_silence(of: Judged) -> None:
    a, b, c = await of.begin_alike(replicas=3, records=3, min_insync_replicas="2")
    of.isolate(b, a)
    await of.sleep(4 * LAG)
    assert b.node_id in of.now.isr
    await of.write(a, acks=1)
    await of.wait_isr(a, c)
    of.heal()
    await of.wait_alike(a, b, c)


@run_by(run_judged, replica_lag_time_max_ms=100)
async def test_follower_that_reads_all_there_was_stays_in_sync(of: Judged) -> None:
    """The leader never waits: at no fetch of the followers is there nothing new."""
    a, b, c = of.a, of.b, of.c
    await of.create(a, b, c, min_insync_replicas="2")
    until = of.three.now + 0.3
    while of.three.now < until:
        await of.write(a, 1, acks=1)
        await asyncio.sleep(0.001)
        of.judge()
        assert len(of.now.isr) == 3
    await of.wait_alike(a, b, c)


@run_by(run_judged, replica_fetch_max_bytes=1, replica_lag_time_max_ms=100)
async def test_follower_that_reads_less_than_there_was_leaves_the_isr(of: Judged) -> None:
    """It gets one batch in a fetch, and the leader writes more."""
    a, b, c = of.a, of.b, of.c
    await of.create(a, b, c, min_insync_replicas="1")
    until = of.three.now + 0.4
    while of.three.now < until and len(of.now.isr) == 3:
        await of.write(a, 4, acks=1)
        await asyncio.sleep(0.002)
        of.judge()
    assert len(of.now.isr) < 3


@pytest.mark.parametrize("direction", ["request", "reply"])
@run_by(run_judged)
async def test_isr_change_without_a_reply_counts(of: Judged, *, direction: str) -> None:
    """The leader asks for a member more, or for one less, and nobody answers. Both ISRs count until it knows."""
    a, b, c = await of.begin(replicas=2, records=3, min_insync_replicas="1")
    await of.kill(b)
    await of.wait_isr(a)
    await of.write(a, 2)
    of.isolate(a, b)
    await b.start()
    of.cut((a, c) if direction == "request" else (c, a))
    of.mend(a, b)
    await of.wait(lambda: of.leader(a).state.follower_offset(b.node_id) == 5)
    if direction == "reply":
        await of.wait_isr(a, b)
    await of.sleep(0.05)
    of.isolate(a, b)
    await of.write(a, 2, acks=1)
    await of.sleep(SESSION / 2)
    of.heal()
    await of.wait(lambda: of.now.leader != -1)
    await of.wait_alike(a, b)


@pytest.mark.parametrize("direction", ["request", "reply"])
@run_by(run_judged)
async def test_member_counts_until_it_has_left_the_isr(of: Judged, *, direction: str) -> None:
    a, b, c = await of.begin_alike(replicas=3, records=3, min_insync_replicas="1")
    of.isolate(a, b)
    await of.write(a, 2, acks=1)
    await of.sleep(LAG * 0.7)
    of.cut((a, c) if direction == "request" else (c, a))
    await of.sleep(SESSION / 2)
    of.heal()
    await of.wait_alike(a, b, c)


@run_by(run_judged)
async def test_replica_that_was_removed_and_is_back_begins_anew(of: Judged) -> None:
    a, b, c = await of.begin(replicas=3, records=6, min_insync_replicas="1")
    topic_id = of.model.image.topics["t"].topic_id
    for replicas in ((a, b), (a, b, c), (b, a), (a, b, c)):
        nodes = tuple(each.node_id for each in replicas)
        assert await of.c.node.submit(Reassign((Move(topic_id, 0, nodes),))) == (None,)
        await of.wait(lambda nodes=nodes: {*of.now.isr} == {*nodes} and not of.now.is_reassigning)  # type: ignore[misc]
        lead = of.three.brokers[of.now.leader]
        await of.wait(lambda lead=lead: of.leads(lead))  # type: ignore[misc]
        await of.write(lead, 2)
    await of.wait_alike(a, b, c)


@run_by(run_judged)
async def test_broker_that_stops_joins_no_isr(of: Judged) -> None:
    """Producers would wait for it again. Its last replica stays until it has stopped."""
    a, b, c = await of.begin_alike(replicas=3, records=3, min_insync_replicas="2")
    await b.node.hand_over()
    await of.wait_isr(a, c)
    await of.write(a, 3)
    await of.sleep(2 * LAG)
    assert b.node_id not in of.now.isr
    await of.kill(b)
    await b.start()
    await of.wait_alike(a, b, c)


@run_by(run_judged)
async def test_leader_that_learns_of_its_successor_takes_nothing(of: Judged) -> None:
    a, _, _ = await of.begin(replicas=3, records=3, min_insync_replicas="2")
    old = of.leader(a)
    await a.node.hand_over()
    await of.wait(lambda: of.now.leader != a.node_id and old.is_stopped)
    for acks in (0, 1, ACKS_ALL):
        with refuses(Code.NOT_LEADER_OR_FOLLOWER):
            old.append_now(batch([b"late"]), acks)
    assert len(held_batches(a)) == 3


@run_by(run_judged)
async def test_topic_that_begins_to_count_fsyncs_keeps_what_is_committed(of: Judged) -> None:
    """The leader's fsynced offset is below the high watermark for a while: records come during an fsync."""
    a, b, c = await of.begin(replicas=3, records=6, min_insync_replicas="1")
    a.machine.disk.sync_seconds = lambda: 0.5
    flushing = asyncio.ensure_future(of.leader(a).flush())
    await asyncio.sleep(0.1)
    await of.write(a, 4)
    await of.c.node.submit(AlterTopicConfigs("t", {"flush": "ack"}))
    await flushing
    a.machine.disk.sync_seconds = lambda: 2.0  # slow, and not stalled
    assert of.leader(a).log.flushed_offset < of.leader(a).high_watermark
    await of.kill(b)
    await of.wait_isr(a, c)
    a.machine.disk.sync_seconds = lambda: 0.0
    await of.write(a, 2, timeout_ms=20_000)
    await b.start()
    await of.wait_alike(a, b, c)


@run_by(run_judged)
async def test_broker_that_restarted_unseen_is_fenced_when_it_dies(of: Judged) -> None:
    """The controller takes the new process for no continuation of the one before."""
    a, b, c = of.a, of.b, of.c
    await of.create(a, b, c, min_insync_replicas="2")
    b.machine.kill()
    await b.clear()
    await b.start()
    await of.wait_isr(a, b, c)
    of.isolate(b, a, c)
    await of.wait(lambda: not of.model.image.brokers[b.node_id].live, 2 * SESSION)
    of.heal()
    await of.wait_alike(a, b, c)


@run_by(run_judged)
async def test_records_expire_in_the_manifest_first(of: Judged) -> None:
    """The bucket is away while records expire that are not uploaded yet. They stay before the manifest has the new log
    start: a later leader may serve them (I21)."""
    a, b, _ = await of.begin(replicas=2, records=12, internal_segment_bytes="1024", retention_bytes="3000")
    await of.wait(lambda: of.leader(a).cold_end_offset > 0)
    start = of.leader(a).log_start_offset
    for each in (a, b):
        each.machine.faults.outage = True
    await of.write(a, 40)
    await of.sleep(5)
    assert of.leader(a).log_start_offset == start
    for each in (a, b):
        each.machine.faults.outage = False
    await of.wait(lambda: of.leader(a).log_start_offset > start + 12)
    await of.kill(a)
    await of.wait(lambda: of.leads(b))
    await of.write(b, 8)
    await a.start()
    await of.wait_alike(a, b)


@run_by(run_judged)
async def test_leader_without_the_controller_acknowledges_nothing_to_all(of: Judged) -> None:
    """It has one follower, which still reaches it."""
    a, b, c = await of.begin(replicas=2, records=2, min_insync_replicas="1")
    of.isolate(a, c)
    await of.wait(lambda: not a.node.cluster.has_controller_contact, 2 * SESSION)
    with refuses(Code.NOT_LEADER_OR_FOLLOWER):
        await of.write(a)
    of.heal()
    await of.wait_alike(a, b)


@run_by(run_judged)
async def test_new_leader_begins_with_the_high_watermark_that_it_knows(of: Judged) -> None:
    """Too few replicas are in sync to move it."""
    a, b, _ = await of.begin_alike(replicas=2, records=5, min_insync_replicas="2")
    await of.kill(a)
    await of.wait(lambda: of.leads(b))
    assert of.leader(b).high_watermark == 5
    await a.start()
    await of.wait_alike(a, b)


@run_by(run_judged)
async def test_topic_that_counts_fsyncs_commits_what_is_fsynced(of: Judged) -> None:
    a, b, _ = await of.begin(replicas=2, records=2, min_insync_replicas="1", flush="ack")
    a.machine.disk.sync_seconds = lambda: 0.5
    for acks in (1, ACKS_ALL):
        writing = asyncio.ensure_future(of.write(a, 2, acks=acks, timeout_ms=20_000))
        until = of.three.now + 2
        while of.three.now < until:
            assert of.leader(a).high_watermark <= of.leader(a).log.flushed_offset
            await of.sleep(0.02)
        await writing
    await of.wait_alike(a, b)


@run_by(run_judged)
async def test_isr_change_that_the_controller_lost_holds_nothing_up(of: Judged) -> None:
    """It dies before it has written the change, and the follower that was to join dies too."""
    a, b, c = await of.begin(replicas=2, records=3, min_insync_replicas="1")
    of.isolate(a, b)
    await of.write(a, acks=1)
    await of.wait_isr(a)
    c.machine.faults.outage = True
    of.mend(a, b)
    await of.wait(lambda: not of.leader(a).state.is_sole_member)
    await of.kill(b)
    await of.kill(c)
    c.machine.faults.outage = False
    await of.write(a, acks=1)
    await of.wait(lambda: of.three.controller_ids() == [a.node_id])
    await of.sleep(15)
    await of.write(a)


@run_by(run_judged)
async def test_late_reply_of_a_leader_changes_no_log_that_leads_by_now(of: Judged) -> None:
    a, b, c = await of.begin_alike(replicas=2, records=3, min_insync_replicas="1")
    of.cut((a, b))
    of.isolate(a, c)
    await of.write(a, acks=1)
    await of.wait(lambda: of.leads(b))
    of.heal()
    await of.sleep(1)
    assert of.leader(b).log.end_offset == 3
    await of.write(b, 2)
    await of.wait_alike(a, b)


@run_by(run_judged)
async def test_follower_cut_below_its_high_watermark_forgets_it(of: Judged) -> None:
    """Its records above were committed under an earlier leader, and lost in an unclean election."""
    a, b, c = of.a, of.b, of.c
    configs = {"unclean_leader_election_enable": "true", "remote_storage_enable": "false"}
    await of.create(a, b, min_insync_replicas="1", **configs)
    await of.write(a, 3)
    await of.wait_alike(a, b)
    await of.kill(b)
    await of.wait_isr(a)
    await of.write(a, 3)
    of.isolate(a, b, c)
    await b.start()
    await of.wait(lambda: of.leads(b))
    await of.write(b)
    of.heal()
    await of.wait_alike(a, b)


@run_by(run_judged, tiered_upload_max_lag_ms=3_600_000)
async def test_restore_that_ends_late_drops_no_record_of_a_leader(of: Judged) -> None:
    """The follower was about to restart at the cold end when it was elected."""
    a, b = of.a, of.b
    await of.create(a, b, **TIERED)
    await of.wait_isr(a, b)
    of.isolate(a, b)
    await of.write(a, 6, acks=1)
    await of.wait_isr(a)
    end = await upload_all(of, a)
    await of.wait(lambda: of.leader(a).local_start_offset == end)
    slow = FaultRule(FaultKind.DELAY, ("get",), "/manifest", times=1, seconds=10)
    b.machine.faults.rules.append(slow)
    of.mend(a, b)
    await of.wait(lambda: slow.times == 0)
    await of.kill(a)
    await of.wait(lambda: of.leads(b))
    await of.write(b, 3)
    await of.sleep(10)
    assert of.leader(b).log.end_offset == end + 3
    await a.start()
    await of.wait_alike(a, b)
