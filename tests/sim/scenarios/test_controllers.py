"""Tests of the choice of the controller among three brokers on one bucket: they find and lose each other, and never two
of them write."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from tests.refusal import refuses
from tests.scenario import GIVEN, run_by
from tests.seeds import chosen, first_seeds
from tests.sim.harness.clock import SimClock
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.three import PORT, QUIET, SESSION, SUSPECT, SimBroker, ThreeBrokers, run_scenario
from tiered.controller.requests import AlterBrokerConfigs, CreateTopic
from tiered.errors import Code, Fenced, Refused
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.changes import Change, TopicCreated
from tiered.metadata.image import Image
from tiered.metadata.layout import Entry, encode_entry, slot_key
from tiered.metadata.log_reader import read_boundary
from tiered.ports import Ok
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica
from tiered_api.kafka.client.client import Address, KafkaClient
from tiered_api.kafka.client.group_offsets import commit_offsets


@pytest.mark.parametrize("seed", first_seeds(4, of=12))
@run_by(run_scenario, seed=GIVEN)
async def test_three_brokers_that_start_together_keep_one_controller(three: ThreeBrokers) -> None:
    await asyncio.sleep(30)
    assert len(three.controller_ids()) == 1
    assert {each.node.image.controller_epoch for each in three.brokers.values()} == {1}


@run_by(run_scenario)
async def test_any_broker_forwards_a_request_and_has_its_result_in_the_image(three: ThreeBrokers) -> None:
    for number, each in enumerate(three.brokers.values()):
        made = await each.node.submit(CreateTopic(f"t{number}", 3))
        assert each.node.image.topics[made.name] == made
        with pytest.raises(Refused, match="already exists"):
            await each.node.submit(CreateTopic(f"t{number}", 3))
    for each in three.brokers.values():
        assert [replica.partition for replica in each.node.leader_replicas()].count(0) == 1
    assert {p.leader for p in made.partitions} == {1, 2, 3}


@run_by(run_scenario)
async def test_new_topic_is_open_on_every_broker_when_the_reply_is_sent(three: ThreeBrokers) -> None:
    start = three.now
    made = await three.others()[0].node.submit(CreateTopic("t", 6))
    assert three.now - start < 0.5, "nobody was waited for in vain"
    for p, partition in enumerate(made.partitions):
        assert three.brokers[partition.leader].node.leader_replica("t", p).leader_epoch == 0


@pytest.mark.parametrize("seed", first_seeds(2, of=8))
@run_by(run_scenario, seed=GIVEN)
async def test_dead_controller_is_replaced_within_a_second(three: ThreeBrokers) -> None:
    old = three.controller
    await old.kill()
    survivors = [each for each in three.brokers.values() if each is not old]
    start = three.now
    made = await survivors[0].node.submit(CreateTopic("t", 2))
    assert three.now - start < 1.5
    await three.wait_until(lambda: all(not s.node.image.brokers[old.node_id].live for s in survivors), 2)
    assert {each.leader for each in made.partitions} <= {1, 2, 3}
    assert survivors[0].node.image.controller_epoch == survivors[1].node.image.controller_epoch == 2
    await old.start()
    await three.wait_until(lambda: survivors[0].node.image.brokers[old.node_id].live, 2)
    assert old.node.cluster.active_controller is None, "who comes back follows"


@run_by(run_scenario)
async def test_dead_broker_is_fenced_at_once_and_a_cut_off_one_after_its_silence(three: ThreeBrokers) -> None:
    controller = three.controller
    first, second = three.others()
    await controller.node.submit(CreateTopic("t", assignments=[[second.node_id, controller.node_id]]))
    await first.kill()
    seen = controller.node.image.brokers
    took = await three.wait_until(lambda: not controller.node.image.brokers[first.node_id].live, 2)
    assert took < 1 and seen[first.node_id].live
    await first.start()
    for target in (controller, first):
        three.network.cut(second.name, target.name)
        three.network.cut(target.name, second.name)
    took = await three.wait_until(lambda: not controller.node.image.brokers[second.node_id].live, SESSION / 2)
    assert took > SUSPECT / 2
    assert not second.node.cluster.has_controller_contact
    with refuses(Code.NOT_LEADER_OR_FOLLOWER):
        second.node.leader_replica("t", 0).append_now(batch([b"late"]), ACKS_ALL)
    second.node.leader_replica("t", 0).append_now(batch([b"of no account"]), 1)
    three.network.heal()
    await three.wait_until(lambda: second.node.cluster.has_controller_contact, 5)
    await three.wait_until(lambda: controller.node.image.brokers[second.node_id].live, 5)


@pytest.mark.parametrize("seed", first_seeds(2, of=6))
@run_by(run_scenario, seed=GIVEN)
async def test_frozen_controller_resumes_as_a_standby(three: ThreeBrokers) -> None:
    old = three.controller
    three.loop.freeze(old.process)
    survivors = [each for each in three.brokers.values() if each is not old]
    took = await three.wait_until(lambda: all(each.node.image.controller_epoch == 2 for each in survivors), 3 * SESSION)
    took += await three.wait_until(lambda: not survivors[0].node.image.brokers[old.node_id].live, SESSION)
    assert took < 1.5 * SESSION, "its silence was counted twice"
    await survivors[0].node.submit(CreateTopic("while-asleep"))
    three.loop.resume(old.process)
    assert not old.node.cluster.has_controller_contact, "it acknowledges records that its successor may not know of"
    with suppress(Refused):
        await old.node.submit(CreateTopic("by-the-old-one"))
    await three.wait_until(lambda: old.node.cluster.active_controller is None, 5)
    await three.wait_until(lambda: "while-asleep" in old.node.image.topics, 5)
    await three.wait_until(three.is_everyone_known, 10)
    assert len(three.controller_ids()) == 1
    assert len({each.node.image.slot for each in three.brokers.values()}) == 1


@run_by(run_scenario)
async def test_paused_controller_has_no_contact_until_it_finds_no_successor(three: ThreeBrokers) -> None:
    old = three.controller
    three.loop.freeze(old.process)
    await asyncio.sleep(0.6 * SUSPECT)
    three.loop.resume(old.process)
    assert not old.node.cluster.has_controller_contact
    await three.wait_until(lambda: old.node.cluster.has_controller_contact, 1)
    assert old.node.cluster.active_controller is not None and three.controller_ids() == [old.node_id]


@pytest.mark.parametrize("seed", first_seeds(2, of=6))
@run_by(run_scenario, seed=GIVEN)
async def test_one_controller_is_left_soon_after_a_cut_heals(three: ThreeBrokers) -> None:
    """The old controller reaches neither the others nor the bucket. Only the brokers that it misses can tell it about
    the new one."""
    old = three.controller
    for other in three.others():
        three.network.cut(old.name, other.name)
        three.network.cut(other.name, old.name)
    old.machine.faults.outage = True
    await three.wait_until(lambda: len(three.controller_ids()) == 2, 2 * SESSION)
    await asyncio.sleep(2 * SESSION)
    assert len(three.controller_ids()) == 2
    three.network.heal()
    # A request from before the cut may arrive now, and counts as contact.
    await three.wait_until(lambda: len(three.controller_ids()) == 1, 2 * SESSION + 2)
    old.machine.faults.outage = False
    await three.wait_until(three.is_everyone_known, SESSION)


@run_by(run_scenario)
async def test_brokers_follow_a_new_controller_without_the_bucket(three: ThreeBrokers) -> None:
    old = three.controller
    first, second = three.others()
    second.machine.faults.outage = True
    await old.kill()
    await three.wait_until(lambda: first.node.cluster.active_controller is not None, 3 * SESSION)
    await first.node.submit(CreateTopic("t"))
    await three.wait_until(lambda: "t" in second.node.image.topics, SESSION)
    assert second.node.image.brokers[second.node_id].live


@run_by(run_scenario)
async def test_bucket_outage_changes_neither_controller_nor_metadata(three: ThreeBrokers) -> None:
    epoch = three.controller.node.image.controller_epoch
    for each in three.brokers.values():
        each.machine.faults.outage = True
    waiting = asyncio.create_task(three.others()[0].node.submit(CreateTopic("later"), timeout=120))
    await asyncio.sleep(60)
    assert not waiting.done()
    assert all(each.node.cluster.has_controller_contact for each in three.brokers.values())
    assert {each.node.image.controller_epoch for each in three.brokers.values()} == {epoch}
    assert len(three.controller_ids()) == 1
    for each in three.brokers.values():
        each.machine.faults.outage = False
    try:
        await waiting
    except Refused as refused:  # whoever finds the bucket first may be another one
        assert refused.code is Code.REQUEST_TIMED_OUT
        await three.wait_until(lambda: len(three.controller_ids()) == 1, SESSION)
        with suppress(Refused):
            await three.controller.node.submit(CreateTopic("later"))
    await three.wait_until(three.is_everyone_known, 5)
    await three.wait_until(lambda: all("later" in each.node.image.topics for each in three.brokers.values()), 5)


@run_by(run_scenario)
async def test_controller_that_cannot_write_finds_its_successor(three: ThreeBrokers) -> None:
    """It cannot fence brokers that no longer follow it. Therefore it asks the brokers that it misses."""
    old = three.controller
    dead, successor = three.others()
    old.machine.faults.outage = True
    await dead.kill()
    await three.wait_until(lambda: successor.node.cluster.active_controller is not None, 5 * SESSION)
    await three.wait_until(lambda: old.node.cluster.active_controller is None, 3 * SESSION)
    old.machine.faults.outage = False
    await three.wait_until(lambda: successor.node.image.brokers[old.node_id].live, SESSION)


@run_by(run_scenario)
async def test_controller_resigns_if_it_alone_cannot_write(three: ThreeBrokers) -> None:
    old = three.controller
    old.machine.faults.outage = True
    with suppress(Refused):
        await three.others()[0].node.submit(AlterBrokerConfigs(-1, {"log.retention.ms": "1000000"}), timeout=1)
    survivors = [each for each in three.brokers.values() if each is not old]
    await three.wait_until(lambda: any(each.node.cluster.active_controller for each in survivors), 5 * SESSION)
    old.machine.faults.outage = False
    await three.wait_until(
        lambda: old.node.cluster.active_controller is None and old.node.cluster.has_controller_contact, 30
    )
    await three.wait_until(three.is_everyone_known, 10)


@run_by(run_scenario)
async def test_broker_that_was_frozen_takes_no_entry_below_the_boundary(three: ThreeBrokers) -> None:
    """M3: a put that lands late fills a slot that was collected."""
    controller, away = three.controller, three.others()[0]
    for source, target in ((controller, away), (away, controller)):
        three.network.cut(source.name, target.name)
    away.machine.faults.outage = True
    slot = away.node.image.slot + 1
    node, controller_run = controller.node, controller.node.cluster.active_controller
    assert controller_run is not None
    for name in ("a", "b", "c"):
        await node.submit(CreateTopic(name))
        await controller_run._metadata.write_snapshot(node.image)
    boundary, _ = await read_boundary(node.store)
    assert away.node.image.slot < slot < boundary.collected
    told, seen = away.node.cluster.loader._on_changes, set[str]()

    def note(changes: Sequence[Change], before: Image, image: Image) -> None:
        seen.update(image.topics)
        told(changes, before, image)

    away.node.cluster.loader._on_changes = note
    late = TopicCreated("late", TopicId("A" * 21 + "Q"), ((away.node_id,),), {}, 0)
    entry = Entry(slot, node.image.controller_epoch, "late", (late,), node.cluster_id)
    assert isinstance(await node.store.put(slot_key(slot), encode_entry(entry), if_absent=True), Ok)
    away.machine.faults.outage = False
    await three.wait_until(lambda: "c" in seen, 10)
    assert "late" not in seen


@run_by(run_scenario)
async def test_fenced_broker_returns_only_after_it_applied_all_committed_changes(three: ThreeBrokers) -> None:
    controller, slow = three.controller, three.others()[0]
    for source, target in ((controller, slow), (slow, controller)):
        three.network.cut(source.name, target.name)
    await three.wait_until(lambda: controller.node.image.brokers[slow.node_id].fenced, 2 * SESSION)
    async with slow.node.hosted_replicas._role_change_lock:
        await controller.node.submit(CreateTopic("t"))
        three.network.heal()
        await three.wait_until(
            lambda: "t" in slow.node.image.topics and slow.node.cluster.has_controller_contact, 2 * SESSION
        )
        await asyncio.sleep(SESSION)
        assert slow.node.cluster.loader.applied_slot < slow.node.image.slot
        assert controller.node.image.brokers[slow.node_id].fenced
    await three.wait_until(three.is_everyone_known, 5)


SETTLE_SECONDS = 180.0
"""Seconds until no sweep of objects of earlier epochs is due any more."""


@pytest.mark.parametrize("filled", chosen([False, True], [True]))
@run_by(run_scenario, **QUIET)
async def test_idle_cluster_sends_few_requests_to_the_bucket(three: ThreeBrokers, *, filled: bool) -> None:
    """Each broker sends one request a minute, also if the cluster has hot and cold records and a group."""
    if filled:
        await fill(three)
        await asyncio.sleep(SETTLE_SECONDS)
    await asyncio.sleep(60)
    stores = {i: each.machine.store for i, each in three.brokers.items()}
    before = {i: dict(store.calls) for i, store in stores.items()}
    minutes = 3 if filled else 10
    await asyncio.sleep(60 * minutes)
    for i, store in stores.items():
        asked = {verb: count - before[i][verb] for verb, count in store.calls.items()}
        assert sum(asked.values()) <= minutes, f"broker {i}: {asked}"


async def fill(three: ThreeBrokers) -> None:
    """Creates topics of three replicas, with closed segments in the bucket and an open one, and a group with a
    commit."""
    configs = {"internal.segment.bytes": "4096", "retention.ms": "3600000", "local.retention.bytes": "4096"}
    for name in ("s", "t"):
        await three.controller.node.submit(CreateTopic(name, 3, 3, configs=configs))
        for number, partition in enumerate(three.controller.node.image.topics[name].partitions):
            leader = three.brokers[partition.leader].node.leader_replica(name, number)
            for _ in range(10):
                await leader.append(batch([b"x" * 1000]), acks=ACKS_ALL, timeout_ms=5_000)
    addresses = [Address(each.name, PORT) for each in three.brokers.values()]
    client = KafkaClient(three.network.host("client"), SimClock(three.loop), addresses, client_id="client")
    assert await commit_offsets(client, "g", {TopicPartition("t", 0): 7}) == {TopicPartition("t", 0): 7}
    await client.close()
    await three.wait_until(
        lambda: all(each.cold_end_offset for b in three.brokers.values() for each in led_replicas(b)), 60
    )


def led_replicas(broker: SimBroker) -> list[LeaderReplica]:
    return [each for each in broker.node.leader_replicas() if each.topic in ("s", "t")]


@run_by(run_scenario)
async def test_clean_stop_does_not_count_as_a_death(three: ThreeBrokers) -> None:
    first = three.others()[0]
    await three.controller.node.submit(CreateTopic("t", 6))
    await first.stop()
    image = three.controller.node.image
    assert not image.brokers[first.node_id].alive
    await first.start()
    await three.wait_until(three.is_everyone_known, 5)
    assert {each.leader for each in three.controller.node.image.topics["t"].partitions} == {1, 2, 3}


@run_by(run_scenario)
async def test_controller_that_is_replaced_during_its_stop_stops(three: ThreeBrokers) -> None:
    """The end as controller and the stop of the broker come in one turn of the event loop. Neither may hide the
    other."""

    async def another() -> None:
        raise Fenced("a newer controller is there")

    controller = three.controller
    controller_run, main = controller.node.cluster.active_controller, controller.node._main
    assert controller_run is not None and controller_run._group is not None and main is not None
    controller_run._group.create_task(another())
    main.cancel()
    await three.wait_until(main.done, 5)
