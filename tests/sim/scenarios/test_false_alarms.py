"""Tests of a loaded cluster whose processes pause for a second, and whose fsyncs may take two: nobody is suspected."""

from __future__ import annotations

import pytest

from tests.sim.false_alarms import count_alarms
from tiered.controller.suspicion import SilentBrokers

SECONDS = 90.0


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.also("seeds"))])
def test_pauses_of_a_second_and_slow_fsyncs_fence_nobody(seed: int) -> None:
    """`make false-alarms` runs a day of it."""
    assert count_alarms(seed, SECONDS) == (0, 0)


def test_pause_of_the_controller_that_counts_is_a_false_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker that waited for the controller pauses next: its silence is two seconds."""

    def forget(silent: SilentBrokers, pause_ns: int, now_ns: int) -> None:
        pass

    monkeypatch.setattr(SilentBrokers, "on_pause", forget)
    assert count_alarms(1, SECONDS)[0] > 0
