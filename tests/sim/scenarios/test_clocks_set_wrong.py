"""Clocks that are set wrong while brokers run: each broker and the controller say so within a few heartbeats, and stop
when the clock is right again."""

from __future__ import annotations

import logging

import pytest

from tests.metric_samples import samples
from tests.scenario import run_by
from tests.sim.scenarios.three import ThreeBrokers, run_scenario

HEARTBEATS_SECONDS = 10.0
"""Time within which a clock that was set wrong is a problem."""


@pytest.mark.parametrize(("jump_ms", "side"), [(7_200_000, "7,200.0 s ahead of"), (-3_600_000, "3,600.0 s behind")])
def test_clock_of_a_broker_that_jumps_is_a_problem_until_it_is_right(
    jump_ms: int, side: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(three: ThreeBrokers) -> None:
        wrong, controller = three.others()[0], three.controller
        await three.wait_until(lambda: not wrong.node.health().problems, HEARTBEATS_SECONDS)
        wrong.machine.clock.jump(jump_ms)
        named = f"the clock of broker {wrong.node_id} is {side} the controller's; +-"
        await three.wait_until(
            lambda: any(each.startswith(named) for each in controller.node.health().problems), HEARTBEATS_SECONDS
        )
        assert controller.node.health().own_problems == [], "the other broker reports it"
        for each in three.brokers.values():
            assert each.node.health().ok
        (own,) = wrong.node.health().own_problems
        assert own.startswith(f"the clock of this broker is {side} the controller's (broker {controller.node_id}); +-")
        for node in (wrong.node, controller.node):
            ahead = samples(node.metrics.render(), "tiered_clock_ahead_seconds")
            assert ahead[str(wrong.node_id),] == pytest.approx(jump_ms / 1000, abs=0.1)
            ahead_ms = node.health().details["clocks"][str(wrong.node_id)]["ahead_ms"]
            assert ahead_ms == pytest.approx(jump_ms, abs=100)
        wrong.machine.clock.jump(-jump_ms)
        await three.wait_until(
            lambda: not any(each.node.health().problems for each in three.brokers.values()), HEARTBEATS_SECONDS
        )

    run_scenario(scenario)
    said = [each.getMessage() for each in caplog.records if each.getMessage().startswith("clock ")]
    assert [line.partition(" ahead_seconds")[0].partition(" node_id")[0] for line in said] == [
        "clock differs from the controller's",
        "clock of a broker differs",
        "clock is right again, as the controller's",
        "clock of a broker differs no more",
    ]


@run_by(run_scenario)
async def test_clock_of_the_controller_that_jumps_is_named_as_the_controllers(three: ThreeBrokers) -> None:
    controller = three.controller
    controller.machine.clock.jump(7_200_000)
    named = "the clock of this broker, the controller, is 7,200.0 s ahead of those of all others"
    await three.wait_until(
        lambda: any(each.startswith(named) for each in controller.node.health().own_problems), HEARTBEATS_SECONDS
    )
    await three.wait_until(
        lambda: all("7,200.0 s behind" in " ".join(each.node.health().problems) for each in three.others()),
        HEARTBEATS_SECONDS,
    )


@run_by(run_scenario)
async def test_retention_goes_by_the_controllers_clock_soon_after_a_jump(three: ThreeBrokers) -> None:
    wrong, right = three.others()[0], three.controller
    wrong.machine.clock.jump(7_200_000)

    def ahead_ms() -> int:
        return wrong.node.retention_clock.now_ms() - right.machine.clock.wall_ms()

    await three.wait_until(lambda: ahead_ms() < 100, HEARTBEATS_SECONDS)
    wrong.machine.clock.jump(-7_200_000)
    assert abs(ahead_ms()) < 100, "a clock that is right counts at once"


def test_new_controller_blames_no_broker_for_the_clock_of_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(three: ThreeBrokers) -> None:
        old = three.controller
        old.machine.clock.jump(7_200_000)
        survivors = three.others()
        await three.wait_until(lambda: all(each.node.health().own_problems for each in survivors), HEARTBEATS_SECONDS)
        caplog.clear()
        await old.kill()
        await three.wait_until(
            lambda: not any("clock" in " ".join(each.node.health().problems) for each in survivors), HEARTBEATS_SECONDS
        )

    run_scenario(scenario)
    assert not [each for each in caplog.records if each.getMessage().startswith("clock of a broker differs")]
