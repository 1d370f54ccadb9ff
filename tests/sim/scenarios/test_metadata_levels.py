"""Tests of the level of the metadata, which is raised once every broker has said that it supports the level."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

import pytest

from tests.refusal import refuses
from tests.sim.scenarios.three import ThreeBrokers, run_scenario
from tests.unit.controller.earlier_program import unknown_in_object
from tiered.controller.requests import (
    AlterTopicConfigs,
    CreateTopic,
    FeatureUpdate,
    FenceBroker,
    RegisterBroker,
    ReportDisk,
    ReportLoss,
    StopBroker,
    UpdateFeatures,
)
from tiered.errors import Code, Refused
from tiered.metadata.changes import DISK_FULL
from tiered.metadata.features import FEATURES, METADATA_VERSION, FeatureLevels
from tiered.metadata.layout import SNAPSHOT_PREFIX

RAISE = UpdateFeatures((FeatureUpdate(METADATA_VERSION, 1),))
OLDER = 4, "O" * 21 + "A"
CHANGES = 60


def test_level_is_raised_once_the_last_older_broker_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(three: ThreeBrokers) -> None:
        controller, other = three.controller, three.others()[0]
        assert controller.node.image.metadata_version == 0
        monkeypatch.undo()
        await asyncio.sleep(10)  # each broker sends heartbeats
        await controller.node.submit(RegisterBroker(*OLDER, "d", "", metadata_version=0))
        for fence in (False, True):
            if fence:
                await controller.node.submit(FenceBroker(*OLDER))
            with pytest.raises(Refused, match="broker 4 ") as refused:
                await other.node.submit(RAISE)
            assert refused.value.code is Code.INVALID_UPDATE_VERSION
        await controller.node.submit(StopBroker(*OLDER))
        await other.node.submit(RAISE)
        assert controller.node.image.metadata_version == 1
        with pytest.raises(Refused, match=r"broker 4 .* level 0"):
            await controller.node.submit(RegisterBroker(4, "P" * 21 + "A", "d", "", metadata_version=0))
        await other.kill()
        await other.start()
        await three.wait_until(lambda: controller.node.image.live_ids() == {1, 2, 3}, 60)

    monkeypatch.setitem(FEATURES, METADATA_VERSION, FeatureLevels(0, 0, 0))
    run_scenario(scenario)


def test_broker_starts_while_the_level_is_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its registration tells no level at level 0. In one of the runs it arrives after the level was raised."""

    async def scenario(delay_ms: int, three: ThreeBrokers) -> None:
        monkeypatch.undo()
        await asyncio.sleep(10)
        late, controller = three.others()[0], three.controller.node
        await late.stop()
        await late.clear()
        starting = asyncio.create_task(late.start())
        await asyncio.sleep(delay_ms / 1000)
        while controller.image.metadata_version == 0:
            with suppress(Refused):  # its first heartbeat with the new process is under way
                await controller.submit(RAISE)
            await asyncio.sleep(0.001)
        await starting
        assert controller.image.live_ids() == {1, 2, 3}

    for delay_ms in range(8):
        monkeypatch.setitem(FEATURES, METADATA_VERSION, FeatureLevels(0, 0, 0))
        run_scenario(partial(scenario, delay_ms))
    assert "registration is refused, and repeated why=broker 2 supports" in caplog.text


def test_brokers_that_are_replaced_one_by_one_write_only_level_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every object of the metadata is read by the strict reader of the earlier program, until the level is raised."""

    async def act(three: ThreeBrokers, name: str) -> None:
        controller = three.controller.node
        await controller.submit(CreateTopic(name, 2, 2, creator="User:a"))
        topic = controller.image.topics[name]
        await controller.submit(
            ReportLoss(topic.topic_id, 0, controller.image.topics[name].partitions[0].leader_epoch, 5, newest_ms=9)
        )
        for number in range(CHANGES):  # more than there are between two snapshots
            await controller.submit(AlterTopicConfigs(name, {"retention.ms": str(number)}))

    async def scenario(three: ThreeBrokers) -> None:
        await act(three, "before")
        monkeypatch.undo()
        for each in (*three.others(), three.controller):
            await each.stop()
            await each.clear()
            await three.wait_until(lambda: len(three.controller_ids()) == 1, 60)
            await act(three, f"without-{each.node_id}")
            await each.start()
            await three.wait_until(lambda: three.controller.node.image.live_ids() == {1, 2, 3}, 60)
            await act(three, f"with-{each.node_id}")
        controller = three.controller.node
        with refuses(Code.UNSUPPORTED_VERSION):
            await controller.submit(ReportDisk(1, controller.image.brokers[1].incarnation, DISK_FULL))
        written = [*three.bucket.written]
        assert any(key.startswith(SNAPSHOT_PREFIX) for key, _ in written)
        assert [(key, parts) for key, data in written if (parts := unknown_in_object(key, data))] == []
        await asyncio.sleep(10)  # each broker sends heartbeats
        await controller.submit(RAISE)
        await act(three, "raised")
        newer = [part for key, data in three.bucket.written[len(written) :] for part in unknown_in_object(key, data)]
        assert {"creator", "newest_ms"} <= {*newer}
        assert len(controller.image.topics) == 8 and controller.image.topics["raised"].creator == "User:a"

    monkeypatch.setitem(FEATURES, METADATA_VERSION, FeatureLevels(0, 0, 0))
    run_scenario(scenario)
