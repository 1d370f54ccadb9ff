"""Tests of brokers with invalid settings or a false identity: each is refused with a reason, and the cluster loses
nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.harness.machine import SimMachine
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, batch, run
from tests.sim.scenarios.test_reassignments import is_leading, partition_image, read_log, write
from tests.sim.scenarios.test_replica_fetch import INCARNATION, make_peers
from tests.sim.scenarios.three import QUIET, ThreeBrokers, run_scenario
from tests.sim.settings import SETTINGS
from tiered.broker.broker import Broker
from tiered.broker.registration import REACH_SECONDS
from tiered.config.listeners import Endpoint
from tiered.controller.request_codec import encode_request
from tiered.controller.requests import CreateTopic, FenceBroker, RegisterBroker
from tiered.coordinator.routing import partition_of
from tiered.errors import Code, Refused
from tiered.groups.requests import CommitOffsets, FetchOffsets, PartitionOffset
from tiered.ids import incarnation_number
from tiered.metadata import layout
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.metrics import Metrics
from tiered.peers import MetadataFetch, PartitionFetch, ReplicaFetch
from tiered.replication.leader_replica import ACKS_ALL
from tiered_api.kafka.client.peers import KafkaPeers
from tiered_api.kafka.server.server import serve_kafka

NAMED = replace(QUICK, inter_broker_listener_name="BROKERS", broker_session_timeout_ms=3_600_000)


@run_by(run)
async def test_requests_among_brokers_are_served_on_their_own_listener_only(rig: SimBrokerRig) -> None:
    await rig.start(NAMED)
    ports = {"BROKERS": 9092, "CLIENTS": 9093}
    server = await serve_kafka(rig.broker, {name: Endpoint(name, "0.0.0.0", port) for name, port in ports.items()})
    listeners = {"BROKERS": "two:9092"}
    await rig.broker.submit(RegisterBroker(2, INCARNATION, "d", "two:1", "", True, listeners))
    await rig.broker.submit(CreateTopic("t", assignments=[[1, 2]]))
    leader = rig.broker.leader_replica("t", 0)
    leader.append_now(batch([b"a"]), 1)
    peers = make_peers(rig, "two")
    where = PartitionFetch(leader.topic_id, 0, 0, 1, 0, 0, 0)
    fetch = ReplicaFetch(2, incarnation_number(INCARNATION), 0, 1 << 20, 1 << 20, [where])
    ask = MetadataFetch(2, INCARNATION, 0, 0, 10**9, 0)
    fence = encode_request(FenceBroker(1, rig.broker.incarnation))
    asked = (
        lambda: peers.get_controller_view("one:9093", 5),
        lambda: peers.fetch_metadata("one:9093", ask, 5),
        lambda: peers.forward("one:9093", fence, 5),
        lambda: peers.fetch("one:9093", fetch, 5),
    )
    for each in asked:
        with refuses(Code.CLUSTER_AUTHORIZATION_FAILED):
            await each()
    assert leader.high_watermark == 0 and rig.broker.image.brokers[1].live
    assert server.context.refusals.count("stranger") == len(asked)
    with pytest.raises(Refused, match="give all brokers the same value"):
        await peers.get_controller_view("one:9093", 5)
    assert (await peers.get_controller_view("one:9092", 5)).controller == 1
    await peers.fetch("one:9092", fetch, 5)
    assert leader.high_watermark == 1
    await peers.close()
    await server.close()


@pytest.mark.parametrize(("version", "words"), [(2, "upgrade it"), (0, "use the program that wrote it")])
@run_by(run)
async def test_store_of_another_format_is_refused_and_unchanged(rig: SimBrokerRig, *, version: int, words: str) -> None:
    await rig.start()
    await rig.stop()
    held = await rig.machine.process().store.get(layout.FORMAT_KEY)
    other = layout.encode_format(layout.Format(version, "c", "n"))
    await rig.machine.process().store.put(layout.FORMAT_KEY, other)
    before = dict(rig.bucket.objects)
    node = Broker(QUICK, rig.machine.process(), Metrics())
    with pytest.raises(Refused, match=words) as refused:
        await node.start()
    assert refused.value.code is Code.UNSUPPORTED_VERSION and f"format {version}" in refused.value.why
    await node.stop()
    assert rig.bucket.objects == before and held is not None


@pytest.mark.parametrize("is_controller", [True, False])
@run_by(run_scenario)
async def test_second_broker_of_a_node_id_is_refused_while_the_first_answers(
    three: ThreeBrokers, *, is_controller: bool
) -> None:
    first = three.controller if is_controller else three.others()[0]
    epoch = first.node.image.controller_epoch
    machine = SimMachine(three.loop, "twin", three.bucket, three.network)
    world = machine.process()
    duplicate = Broker(replace(SETTINGS, node_id=first.node_id), world, Metrics(), peers=KafkaPeers(world.net))
    with pytest.raises(Refused, match=rf"replies at {first.name}:9092; stop it first, or give .* another node.id"):
        await duplicate.start()
    await duplicate.stop()
    assert (first.node.image.controller_epoch, len(three.controller_ids())) == (epoch, 1)
    assert three.is_everyone_known() and not first.node.ended.is_set()
    await first.kill()
    await first.start()
    await three.wait_until(three.is_everyone_known, 20)


@pytest.mark.parametrize("hours", [1, -1])
@run_by(run_scenario)
async def test_clock_an_hour_off_is_reported_and_loses_nothing(
    three: ThreeBrokers, *, hours: int, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = three.others()[0]
    await wrong.stop()
    await wrong.clear()
    wrong.machine.clock.jump(hours * 3_600_000)
    caplog.clear()
    await wrong.start()
    await three.wait_until(three.is_everyone_known, 10)
    (said,) = [each.getMessage() for each in caplog.records if "clock differs" in each.getMessage()]
    assert f"ahead_seconds={hours * 3600}" in said or f"ahead_seconds={hours * 3600 - 1}" in said
    others = [each.node_id for each in three.brokers.values() if each is not wrong]
    await three.controller.node.submit(CreateTopic("t", assignments=[[wrong.node_id, *others]]))
    acked = await write(three, 10)
    await wrong.kill()
    acked += await write(three, 10)
    await wrong.start()
    await three.wait_until(lambda: len(partition_image(three).isr) == 3 and is_leading(wrong), 30)
    acked += await write(three, 10)
    assert all(value in read_log(wrong) for value in acked)


@pytest.mark.parametrize("flush", ["hot", "cold"])
def test_clock_an_hour_fast_keeps_records_for_their_whole_retention(flush: str) -> None:
    """While the leader's clock is so far ahead, retention uses the controller's time, and deletes the records that are
    due by it."""
    minutes = 5
    configs = {"retention.ms": str(minutes * 60_000), "internal.segment.bytes": "1024", "segment.ms": "5000"}
    if flush == "hot":
        configs["remote.storage.enable"] = "false"

    async def scenario(three: ThreeBrokers) -> None:
        wrong = three.others()[0]
        await wrong.stop()
        await wrong.clear()
        wrong.machine.clock.jump(3_600_000)
        await wrong.start()
        await three.wait_until(three.is_everyone_known, 10)
        others = [each.node_id for each in three.brokers.values() if each is not wrong]
        await three.controller.node.submit(CreateTopic("t", assignments=[[wrong.node_id, *others]], configs=configs))
        right_ms = three.controller.machine.clock.wall_ms()
        leader = wrong.node.leader_replica("t", 0)
        for number in range(20):
            await leader.append(batch([b"%d" % number + b"x" * 600], right_ms), acks=ACKS_ALL, timeout_ms=5_000)
        end = leader.log.end_offset
        await asyncio.sleep(minutes * 60 - 120)
        assert (leader.leader_epoch, leader.log_start_offset) == (partition_image(three).leader_epoch, 0), (
            "nothing is lost"
        )
        if flush == "cold":
            assert leader.cold_end_offset == end
        await three.wait_until(lambda: leader.log_start_offset == end, 300)
        fresh = three.controller.machine.clock.wall_ms()
        await leader.append(batch([b"fresh" + b"x" * 600], fresh), acks=ACKS_ALL, timeout_ms=5_000)
        wrong.machine.clock.jump(-3_600_000)
        await asyncio.sleep(minutes * 60 - 120)
        assert leader.log_start_offset == end
        await three.wait_until(lambda: leader.log_start_offset == end + 1, 300)

    run_scenario(scenario, **QUIET)


@run_by(run_scenario, offsets_topic_num_partitions=3, **QUIET)
async def test_broker_that_starts_with_a_fast_clock_expires_no_offsets_early(three: ThreeBrokers) -> None:
    wrong = three.others()[0]
    await three.controller.node.submit(CreateTopic("t", 1, 3))
    await wrong.node.group_coordinators.ensure_topic()
    await three.wait_until(lambda: OFFSETS_TOPIC in wrong.node.image.topics, 10)
    partitions = wrong.node.image.topics[OFFSETS_TOPIC].partitions
    led = next(number for number, each in enumerate(partitions) if each.replicas[0] == wrong.node_id)
    group = next(name for name in map(str, range(100)) if partition_of(name, len(partitions)) == led)

    def is_served() -> bool:
        host = wrong.node.group_coordinators.host
        return led in host.led_partitions and not host.count_loading()

    await three.wait_until(is_served, 30)
    committed = CommitOffsets(group, (PartitionOffset("t", 0, 5),))
    assert (await wrong.node.group_coordinators.submit(group, committed)).codes == (Code.NONE,)
    await wrong.stop()
    await wrong.clear()
    wrong.machine.clock.jump(8 * 86_400_000)
    await wrong.start()
    await three.wait_until(is_served, 400)
    await asyncio.sleep(700)  # a look for expired offsets comes every ten minutes
    found = await wrong.node.group_coordinators.submit(group, FetchOffsets(group, (("t", 0),)))
    assert found.offsets[0].offset == 5


@run_by(run_scenario)
async def test_unreachable_address_of_a_broker_is_reported_and_delays_no_other(three: ThreeBrokers) -> None:
    leader, *_ = three.others()
    cut = next(each for each in three.others() if each is not leader)
    order = [leader.node_id, three.controller.node_id, cut.node_id]
    await three.controller.node.submit(CreateTopic("t", assignments=[order]))
    for other in ("b1", "b2", "b3"):
        if other != cut.name:
            three.network.cut(other, cut.name)
    await three.wait_until(lambda: cut.node_id not in partition_image(three).isr, 30)
    acked = [batch([b"%d" % number]) for number in range(5)]
    for each in acked:
        await leader.node.leader_replica("t", 0).append(each, acks=ACKS_ALL, timeout_ms=2_000)
    problems = " ".join(leader.node.health().problems)
    assert f"broker {cut.node_id}" in problems and "t-0" in problems, problems
    three.network.heal()
    await three.wait_until(lambda: len(partition_image(three).isr) == 3, 30)
    assert not leader.node.health().problems


@run_by(run_scenario)
async def test_broker_with_an_unreachable_address_is_not_in_client_metadata(three: ThreeBrokers) -> None:
    """Otherwise it would lead partitions that no client could write or read and no follower could copy. It joins once
    its address is reachable."""
    astray = three.others()[0]
    await astray.stop()
    astray.advertised, start = "astray:9092", three.now
    with pytest.raises(Refused, match=rf"broker {astray.node_id} cannot be reached .* astray:9092: .*refused") as said:
        await astray.start()
    assert said.value.code is Code.BROKER_NOT_AVAILABLE and REACH_SECONDS <= three.now - start < 2 * REACH_SECONDS
    assert "astray:9092" not in three.controller.node.image.brokers[astray.node_id].listeners.values()
    await astray.kill()
    starting = asyncio.create_task(astray.start())
    await asyncio.sleep(REACH_SECONDS / 2)
    assert not starting.done()
    await three.network.host("astray").listen("astray", 9092, lambda stream: None)
    await asyncio.wait_for(starting, 2)
    assert three.controller.node.image.brokers[astray.node_id].listeners == {"PLAINTEXT": "astray:9092"}


@run_by(run_scenario)
async def test_broker_with_the_address_of_another_one_is_refused(three: ThreeBrokers) -> None:
    one, other = three.others()
    before = three.controller.node.image.brokers[one.node_id].listeners
    with pytest.raises(Refused, match=rf"broker {other.node_id} is at {other.name}:9092") as refused:
        await one.node.announce("", dict(before) | {"OTHER": f"{other.name}:9092"})
    assert refused.value.code is Code.INVALID_REGISTRATION
    assert three.controller.node.image.brokers[one.node_id].listeners == before
