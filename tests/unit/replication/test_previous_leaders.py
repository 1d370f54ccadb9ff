"""Who inherits a partition serves before the manifest is its own; what that asks of it and of who led before."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.hot.fixtures import batch
from tests.unit.replication.rig import ReplicationRig, append_batch, read_bytes
from tests.unit.replication.test_roles import led, until
from tests.unit.replication.three_brokers import ThreeBrokers
from tiered.broker.retention_clock import RetentionClock
from tiered.broker.tiering import Tiering
from tiered.config.settings import Settings, TopicConfig
from tiered.errors import Fenced, Refused
from tiered.replication.become_leader import PreviousLeader
from tiered.replication.leader_replica import ACKS_ALL


def test_an_heir_serves_before_it_writes_to_the_bucket_and_a_late_upload_of_the_leader_before_harms_nothing() -> None:
    town = ThreeBrokers()

    async def scenario() -> None:
        await town.start(segment_bytes="2000")
        first = await led(town)
        for number in range(40):
            await first.append(batch(number), acks=ACKS_ALL)
        manifest = await first.cold.manifests.take_over(first.partition_id, first.topic, first.leader_epoch)
        await town.fence(first.state.node_id)
        await until(lambda: first.is_stopped)
        second = await led(town)
        assert second.manifest == manifest, "read, and not taken over yet"
        await second.append(batch(40), acks=ACKS_ALL)
        late = await first.cold.uploader.upload_next(first.log, manifest, first.leader_epoch, 40)
        assert late is not None and 0 < late.cold_end_offset <= 40
        taken = await second.cold.manifests.take_over(second.partition_id, second.topic, second.leader_epoch)
        assert taken.cold_end_offset == late.cold_end_offset
        cold = await second.cold.reader.read(second.partition_id, taken, 0, 1)
        hot = second.log.read(0, 1, end_offset=41)
        assert hot is not None and bytes(cold)[:61] == read_bytes(hot)[:61]
        with pytest.raises(Fenced):
            await first.cold.manifests.take_over(first.partition_id, first.topic, first.leader_epoch)

    town.run(scenario)


@pytest.mark.parametrize("known", [True, False], ids=["some of it was cold", "nothing was cold"])
def test_what_the_leader_before_still_does_to_the_manifest_an_heir_knows_after_its_first_pass(known: bool) -> None:
    town = ThreeBrokers()

    async def scenario() -> None:
        await town.start(segment_bytes="2000")
        first = await led(town)
        for number in range(40):
            await first.append(batch(number), acks=ACKS_ALL)
        cold, partition_id, epoch = first.cold, first.partition_id, first.leader_epoch
        if known:
            await cold.manifests.take_over(partition_id, first.topic, epoch)
        await town.fence(first.state.node_id)
        second = await led(town)
        assert (second.manifest is not None) == known
        await until(lambda: first.is_stopped)
        with pytest.raises(Refused):
            await first.delete_records(30)  # it is done all the same, and nobody may rely on that
        broker = town.members[second.state.node_id].broker
        tiering = Tiering(
            Settings(),
            lambda: [second],
            lambda *_: None,
            RetentionClock(broker.clock),
            broker.clock,
            broker.rng,
            broker.metrics,
        )
        await tiering.run_steps(second)
        assert second.log_start_offset == 30 and second.manifest is not None
        assert second.manifest.leader_epoch == second.leader_epoch
        with pytest.raises(Fenced):
            await cold.manifests.take_over(partition_id, first.topic, epoch)

    town.run(scenario)


@pytest.mark.parametrize("tiered", ["true", "false"], ids=["tiered", "untiered"])
def test_deposed_leader_that_still_hears_the_controller_does_not_answer_a_deletion(
    tiered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader has read the manifest before, and serves what would be said to be gone."""
    town = ThreeBrokers()

    async def scenario() -> None:
        await town.start(segment_bytes="2000", remote_storage_enable=tiered)
        first = await led(town)
        for number in range(40):
            await first.append(batch(number), acks=ACKS_ALL)
        if tiered == "true":
            await first.cold.manifests.take_over(first.partition_id, first.topic, first.leader_epoch)
        monkeypatch.setattr(town.members[town.partition.leader], "receive_image", lambda image: None)
        await town.fence(first.state.node_id)
        second = await led(town)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await first.delete_records(30)
        assert second.log_start_offset == 0, "so nobody may have been told of the deletion"
        assert first.pending_deletions == 0

    town.run(scenario)


def test_who_hears_no_controller_deletes_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one may lead by then, which has read the manifest before, and would serve what is said to be gone."""
    town = ThreeBrokers()

    async def scenario() -> None:
        await town.start(segment_bytes="2000")
        first = await led(town)
        for number in range(40):
            await first.append(batch(number), acks=ACKS_ALL)
        monkeypatch.setattr(town.members[town.partition.leader], "receive_image", lambda image: None)
        monkeypatch.setattr(first, "_has_controller_contact", lambda: False)
        await town.fence(first.state.node_id)
        with pytest.raises(Refused, match="no controller is heard"):
            await first.delete_records(30)
        assert (await led(town)).log_start_offset == 0

    town.run(scenario)


def test_bytes_that_an_earlier_leader_made_cold_do_not_count_twice() -> None:
    """Its segments ended elsewhere: one of the heir's lies across the cold end."""
    rig = ReplicationRig(config=TopicConfig(segment_bytes=1 << 20))

    async def scenario() -> None:
        first, second = await rig.brokers[1].lead(0, [1]), await rig.brokers[2].lead(0, [2])
        for number in range(20):
            for each in (first, second):
                append_batch(each, number)
            if number == 9:
                first.roll()
        manifest = await first.cold.manifests.take_over(first.partition_id, first.topic, 0)
        written = await first.cold.uploader.upload_next(first.log, manifest, 0, first.log.end_offset)
        assert written is not None and written.cold_end_offset == 10
        second = await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.STOPPED_CLEANLY)
        assert second.cold_end_offset == 10 and second.bytes_above_cold == 0
        second.roll()
        assert append_batch(second, 20) and second.bytes_above_cold == len(batch(20))

    rig.run(scenario)


@pytest.mark.parametrize("known", [True, False], ids=["some of it was cold", "nothing was cold"])
def test_an_heir_with_nothing_to_upload_takes_the_manifest_over_within_a_tick(known: bool) -> None:
    """No segment is closed here, nothing expires: the manifest is its own all the same."""
    town = ThreeBrokers()

    async def scenario() -> None:
        await town.start()
        first = await led(town)
        await first.append(batch(0), acks=ACKS_ALL)
        if known:
            await first.cold.manifests.take_over(first.partition_id, first.topic, first.leader_epoch)
        await town.fence(first.state.node_id)
        await until(lambda: first.is_stopped)
        second = await led(town)
        assert not second.waiting_segments and (second.manifest is not None) == known
        broker, settings = town.members[second.state.node_id].broker, Settings()
        tiering = Tiering(
            settings,
            lambda: [second],
            lambda *_: None,
            RetentionClock(broker.clock),
            broker.clock,
            broker.rng,
            broker.metrics,
        )
        task = town.rig.loop.create_task(tiering.run())
        await asyncio.sleep(settings.remote_log_manager_task_interval_ms / 1000 + 1)
        task.cancel()
        there = await second.cold.manifests.load(second.partition_id)
        assert there is not None and there.leader_epoch == second.leader_epoch
        with pytest.raises(Fenced):
            await first.cold.manifests.take_over(first.partition_id, first.topic, first.leader_epoch)

    town.run(scenario)
