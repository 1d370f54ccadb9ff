"""Tests of `tiered cluster health`: it reports the bucket as every broker sees it, and lost records."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.encryption import write_key_file
from tests.scenario import run_by
from tests.sim.harness.clock import SimClock
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.three import PORT, SimBroker, ThreeBrokers, run_prepared, run_scenario
from tiered.controller.requests import CreateTopic
from tiered.errors import Refused
from tiered.ids import TopicPartition
from tiered_api.cli.cluster.health import check_health
from tiered_api.cli.topic.storage import partition_sizes
from tiered_api.kafka.client.client import Address, KafkaClient

LAG = 20


async def fetch_health(three: ThreeBrokers) -> dict[str, Any]:
    """Returns the output of the command, from any broker."""
    addresses = [Address(each.name, PORT) for each in three.brokers.values()]
    client = KafkaClient(three.network.host("operator"), SimClock(three.loop), addresses, timeout=5)
    try:
        return await check_health(client)
    finally:
        await client.close()


async def create_topic(three: ThreeBrokers, name: str) -> None:
    nodes = list(three.brokers)
    await three.controller.node.submit(CreateTopic(name, assignments=[nodes], configs={"min.insync.replicas": "2"}))
    await three.wait_until(lambda: len(three.controller.node.image.topics[name].partitions[0].isr) == 3, 20)


def join_problems(found: dict[str, Any]) -> str:
    return " ".join(found["broker_problems"])


def count_troubled(three: ThreeBrokers) -> int:
    """Returns the number of brokers with a problem of their own."""
    return sum(bool(each.node.health().own_problems) for each in three.brokers.values())


@run_by(run_scenario, tiered_upload_max_lag_ms=LAG * 1000)
async def test_unreachable_bucket_is_reported_with_the_backlog_of_each_broker(three: ThreeBrokers) -> None:
    await create_topic(three, "t")
    before = await fetch_health(three)
    assert before["healthy"] and before["broker_problems"] == [], before
    for each in three.brokers.values():
        each.machine.faults.outage = True
    await three.brokers[1].node.leader_replica("t", 0).append(batch([b"v"]))
    with pytest.raises(Refused):
        await three.controller.node.submit(CreateTopic("never"), timeout=3 * LAG)
    found = await fetch_health(three)
    assert not found["healthy"] and "bucket" in found["reasons"], found
    said = join_problems(found)
    assert f"broker {three.controller.node_id}: store unreachable since" in said
    assert "1 closed segments wait for upload" in said and "1 changes of metadata wait" in said
    assert re.search(r"the oldest record outside the bucket has been here for [56]\d s", said), said
    assert "all records are in the bucket (" in said, "the others lead nothing"
    assert said.startswith("requests to the bucket fail since ") and "say brokers 1 and 2 and 3 " in said
    for each in three.brokers.values():
        each.machine.faults.outage = False
    await asyncio.sleep(3 * LAG)
    after = await fetch_health(three)
    assert after["healthy"], after


def test_broker_without_the_active_key_of_another_names_that_key(tmp_path: Path) -> None:
    """It cannot read what the other writes from now on, and would find out when it has to."""
    files = {node_id: write_key_file(tmp_path / f"keys{node_id}") for node_id in (1, 2, 3)}

    async def scenario(three: ThreeBrokers) -> None:
        await create_topic(three, "t")
        for changed in three.brokers:  # the controller among them
            write_key_file(files[changed], "one", "two", active="two")
            others = [each for each in three.brokers.values() if each.node_id != changed]
            await three.wait_until(lambda: count_troubled(three) == 2, 20)
            for each in others:
                why = "this broker lacks the key two, by which another broker encrypts what it writes: add the key to "
                assert each.node.health().own_problems == [f"{why}{files[each.node_id]}"]
            assert three.brokers[changed].node.health().own_problems == []
            write_key_file(files[changed], "one")
            await three.wait_until(lambda: count_troubled(three) == 0, 20)

    def prepare(each: SimBroker) -> None:
        each.key_file = str(files[each.node_id])

    run_prepared(scenario, prepare)


@run_by(run_scenario)
async def test_broker_that_is_cut_off_or_stopped_says_why_it_is_down(three: ThreeBrokers) -> None:
    """Both are down for the cluster. The first one still replies to the operator."""
    await create_topic(three, "t")
    cut, stopped = three.others()
    for other in three.brokers.values():
        if other is not cut:
            three.network.cut(cut.name, other.name)
            three.network.cut(other.name, cut.name)
    await three.wait_until(lambda: three.controller.node.image.brokers[cut.node_id].fenced, 40)
    await stopped.stop()
    found = await fetch_health(three)
    assert found["nodes_down"] == sorted((cut.node_id, stopped.node_id))
    assert "nodes down" in found["reasons"] and "broker problems" not in found["reasons"]
    said = join_problems(found)
    assert f"broker {cut.node_id}: no contact with the controller" in said, said
    assert f"broker {stopped.node_id}: stopped, and has not joined again (" in said, said


@run_by(run_scenario, tiered_upload_max_lag_ms=LAG * 1000)
async def test_bytes_in_the_bucket_are_those_of_the_leader(three: ThreeBrokers) -> None:
    await create_topic(three, "t")
    leader = three.brokers[1].node.leader_replica("t", 0)
    await leader.append(batch([b"v" * 1000]))
    await three.wait_until(lambda: leader.cold_end_offset > 0, 3 * LAG)
    addresses = [Address(each.name, PORT) for each in three.brokers.values()]
    client = KafkaClient(three.network.host("operator"), SimClock(three.loop), addresses, timeout=5)
    found = await partition_sizes(client)
    await client.close()
    local, remote = found[TopicPartition("t", 0)]
    assert local >= leader.log.segments.size_bytes and remote == leader.unified_log.cold_bytes > 0


@run_by(run_scenario)
async def test_failed_tiering_on_a_reachable_store_is_reported(three: ThreeBrokers) -> None:
    """The store sends wrong replies to some requests."""
    await create_topic(three, "t")
    leader = three.brokers[1].node
    leader.leader_replica("t", 0).upload_problem = "the body breaks off"
    found = await fetch_health(three)
    assert not found["healthy"] and found["reasons"] == ["broker problems"]
    assert found["broker_problems"] == ["broker 1: tiering of t-0 fails: the body breaks off"]


@run_by(run_scenario, tiered_upload_max_lag_ms=LAG * 1000)
async def test_records_outside_the_bucket_for_too_long_are_reported(
    three: ThreeBrokers, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(three, "t")
    leader = three.brokers[1].node
    monkeypatch.setattr(leader.tiering, "wake", lambda replica: None)
    monkeypatch.setattr(leader.tiering, "on_segment_closed", lambda replica: None)
    await leader.leader_replica("t", 0).append(batch([b"v"]))
    await asyncio.sleep(2 * LAG)
    assert (await fetch_health(three))["healthy"], "an upload may take a while"
    await asyncio.sleep(3 * LAG + 60)
    found = await fetch_health(three)
    assert not found["healthy"] and "tiered.upload.max.lag.ms" in join_problems(found), found


@run_by(run_scenario)
async def test_live_broker_that_cannot_be_reached_has_the_reason(three: ThreeBrokers) -> None:
    """The first takes no new connections. The second is behind a broken link."""
    await create_topic(three, "t")
    closed, hidden = three.others()
    three.network.cut("operator", hidden.name)
    three.network.drop_listener(closed.name, PORT)
    said = (await fetch_health(three))["broker_problems"]
    (of_closed,) = [each for each in said if each.startswith(f"broker {closed.node_id}: does not report its health")]
    assert f"broker {closed.node_id} is advertised at {closed.name}:{PORT}: " in of_closed, said
    assert of_closed.endswith("compare advertised.listeners with the addresses that clients reach"), said
    assert f"broker {hidden.node_id}: does not report its health: no reply within 5 s" in said, said
