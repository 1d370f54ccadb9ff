"""Tests of a prefix that is emptied under a running cluster, where another cluster begins: the first cluster must stop
writing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.scenario import run_by
from tests.sim.harness.machine import SimMachine
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, run
from tests.sim.scenarios.three import ThreeBrokers, run_scenario
from tiered.broker.broker import Broker
from tiered.controller.requests import CreateTopic
from tiered.errors import Code, Corrupt, Refused
from tiered.metadata import layout
from tiered.metadata.log_reader import load_metadata
from tiered.metrics import Metrics

NOTICE_SECONDS = 3 * 61 + 5.0
"""Seconds until an idle controller notices: it sends one request a minute, for one of three objects in turn."""
WRITE_SECONDS = 65.0


async def start_other_cluster(rig: SimBrokerRig | ThreeBrokers) -> Broker:
    """Starts a cluster in the emptied prefix."""
    machine = SimMachine(rig.loop, "other", rig.bucket, rig.network)
    await machine.store.delete(list(rig.bucket.objects))
    node = Broker(replace(QUICK, node_id=9), machine.process(), Metrics())
    await node.start()
    return node


def count_entries(rig: SimBrokerRig, cluster_id: str) -> int:
    """Returns how many entries of the log belong to a cluster."""
    found = [
        layout.decode_entry(held.data, layout.slot_of(key))
        for key, held in rig.bucket.objects.items()
        if key.startswith(layout.LOG_PREFIX)
    ]
    return sum(entry.cluster_id == cluster_id for entry in found)


def reports_shared_prefix(node: Broker) -> bool:
    health = node.health()
    return not health.ok and "two clusters cannot share a prefix" in " ".join(health.problems)


@run_by(run)
async def test_writing_cluster_ends_within_a_minute_of_another_ones_start(rig: SimBrokerRig) -> None:
    first = await rig.start()
    for number in range(20):
        await rig.create(f"early-{number}")
    other = await start_other_cluster(rig)
    start = rig.loop.now_ns
    number = 0
    while not first.ended.is_set():
        assert rig.loop.now_ns - start < WRITE_SECONDS * 1e9, f"{count_entries(rig, first.cluster_id)} entries written"
        number += 1
        with suppress(Refused):
            await first.submit(CreateTopic(f"late-{number}"), timeout=5)
        await asyncio.sleep(1)
    assert reports_shared_prefix(first)
    written = count_entries(rig, first.cluster_id)
    await rig.stop()
    await other.submit(CreateTopic("theirs"))
    await asyncio.sleep(60)
    assert count_entries(rig, first.cluster_id) == written and other.health().ok
    with pytest.raises(Refused) as refused:
        await rig.start()
    assert other.cluster_id in refused.value.why
    await rig.stop()
    await other.stop()


@run_by(run)
async def test_idle_cluster_ends_by_its_request_each_minute(rig: SimBrokerRig) -> None:
    first = await rig.start()
    await rig.create()
    other = await start_other_cluster(rig)
    await rig.wait_until(first.ended.is_set, NOTICE_SECONDS)
    assert reports_shared_prefix(first)
    await rig.stop()
    await other.stop()


@run_by(run_scenario)
async def test_standby_brokers_notice_another_cluster_too(three: ThreeBrokers) -> None:
    followers = three.others()
    other = await start_other_cluster(three)
    await three.wait_until(lambda: all(each.node.ended.is_set() for each in followers), 65)
    await three.wait_until(
        lambda: all(reports_shared_prefix(each.node) for each in three.brokers.values()), NOTICE_SECONDS
    )
    await other.stop()


@run_by(run)
async def test_cluster_ends_when_another_one_has_written_its_next_slot(rig: SimBrokerRig) -> None:
    first = await rig.start()
    slot = first.image.slot + 1
    theirs = layout.Entry(slot, 1, "n", (), "another-cluster")
    await rig.machine.store.put(layout.slot_key(slot), layout.encode_entry(theirs), if_absent=True)
    with suppress(Refused):
        await first.submit(CreateTopic("t"), timeout=5)
    await rig.wait_until(first.ended.is_set, 5)
    assert reports_shared_prefix(first) and "another-cluster" in " ".join(first.health().problems)
    await rig.stop()
    with pytest.raises(Refused, match="another-cluster") as refused:
        await rig.start()
    assert refused.value.code is Code.INCONSISTENT_CLUSTER_ID


@run_by(run)
async def test_entries_without_a_cluster_id_are_read(rig: SimBrokerRig) -> None:
    await rig.start()
    await rig.create("old")
    await rig.stop()
    for key in [key for key in rig.bucket.objects if key.startswith(layout.LOG_PREFIX)]:
        entry = layout.decode_entry(rig.bucket.objects[key].data, layout.slot_of(key))
        assert entry.cluster_id == rig.broker.cluster_id
        bare = layout.encode_entry(entry._replace(cluster_id=""))
        assert b"cluster_id" not in bare
        await rig.machine.process().store.put(key, bare)
    node = await rig.start()
    assert "old" in node.image.topics
    await rig.create("new")
    assert "new" in (await load_metadata(rig.machine.store, node.cluster_id)).image.topics


@run_by(run_scenario)
async def test_cluster_without_its_format_object_continues_and_is_not_replaced(three: ThreeBrokers) -> None:
    """An accident deleted `meta/FORMAT` alone. A start refuses until it is restored, and running brokers continue to
    write."""
    (a, b), c = three.others(), three.controller
    held = three.bucket.memory._objects.pop(layout.FORMAT_KEY)
    await asyncio.sleep(NOTICE_SECONDS)
    await c.node.submit(CreateTopic("t", 1, 3))
    await a.kill()
    with pytest.raises(Corrupt, match="is missing, but its metadata log exists"):
        await a.start()
    await a.clear()
    assert layout.FORMAT_KEY not in three.bucket.objects
    await asyncio.sleep(NOTICE_SECONDS)
    assert not b.node.ended.is_set() and not c.node.ended.is_set()
    three.bucket.memory._objects[layout.FORMAT_KEY] = held
    await a.start()
    await three.wait_until(three.is_everyone_known, 30)
