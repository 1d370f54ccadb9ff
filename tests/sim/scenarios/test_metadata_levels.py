"""Tests of the level of the metadata, which is raised once every broker has said that it supports the level."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

import pytest

from tests.sim.scenarios.three import ThreeBrokers, run_scenario
from tiered.controller.requests import FeatureUpdate, FenceBroker, RegisterBroker, StopBroker, UpdateFeatures
from tiered.errors import Code, Refused
from tiered.metadata.features import FEATURES, METADATA_VERSION, FeatureLevels

RAISE = UpdateFeatures((FeatureUpdate(METADATA_VERSION, 1),))
OLDER = 4, "O" * 21 + "A"


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
