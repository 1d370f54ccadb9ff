"""Differences between the wall clocks of brokers and the controller's, measured by heartbeats.

Pure; times are milliseconds. A fetch of metadata is a heartbeat. Its reply has the controller's wall clock, and the
time that the controller held the request. The rest of the round trip is on the way, and half of that bounds the error,
as in NTP. Safety does not depend on this file (M4). Tokens, certificates and timestamps of records go by these clocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tiered.peers import ClockComparison

ROUNDING_MS = 1
"""Error of a difference between two clocks in whole milliseconds."""


def compare_clocks(here_ms: int, there_ms: int, round_trip_ms: int, held_ms: int) -> ClockComparison:
    """Returns how far the clock here is ahead of the controller's.

    `here_ms` was read when the reply arrived, `there_ms` when it was sent. The controller held the request for
    `held_ms` of the round trip.
    """
    travel_ms = max(0, round_trip_ms - held_ms)
    half_ms = travel_ms // 2
    return ClockComparison(here_ms - there_ms - half_ms, travel_ms - half_ms + ROUNDING_MS)


@dataclass(slots=True)
class ClockSkew:
    """The state of one broker's clock. `is_beyond` is True once the clock surely differs by more than the limit, until
    it surely does not. A comparison that is too coarse to tell changes nothing."""

    comparison: ClockComparison | None = None
    is_beyond: bool = False

    def judge(self, comparison: ClockComparison, max_ms: int) -> bool:
        """Takes the newest comparison. Returns True if `is_beyond` has changed."""
        before, self.comparison = self.is_beyond, comparison
        distance_ms = abs(comparison.ahead_ms)
        if distance_ms - comparison.error_ms > max_ms:
            self.is_beyond = True
        elif distance_ms + comparison.error_ms <= max_ms:
            self.is_beyond = False
        return self.is_beyond != before


def describe_own_clock(skew: ClockSkew, controller: int) -> list[str]:
    """Returns the problem of this broker's clock, if it has one. Broker `controller` is the controller."""
    if skew.comparison is None or not skew.is_beyond:
        return []
    whose = f"the controller's (broker {controller})"
    return [f"the clock of this broker is {_describe(skew.comparison, whose)}"]


def describe_clocks(skews: Mapping[int, ClockSkew], max_ms: int) -> tuple[list[str], list[str]]:
    """Returns the problems that the controller finds: those of its own clock, and those of other brokers' clocks.

    `skews` are those of the other brokers. If two or more of them agree with each other and none with the controller,
    the clock of the controller is the problem.
    """
    beyond = {node_id: skew.comparison for node_id, skew in sorted(skews.items()) if skew.is_beyond and skew.comparison}
    compared = sum(skew.comparison is not None for skew in skews.values())
    if len(beyond) >= 2 and len(beyond) == compared:
        ahead_ms = sorted(each.ahead_ms for each in beyond.values())
        if ahead_ms[-1] - ahead_ms[0] <= max_ms:
            middle = ClockComparison(-ahead_ms[len(ahead_ms) // 2], max(each.error_ms for each in beyond.values()))
            return [f"the clock of this broker, the controller, is {_describe(middle, 'those of all others')}"], []
    whose = "the controller's"
    return [], [f"the clock of broker {node_id} is {_describe(each, whose)}" for node_id, each in beyond.items()]


def _describe(comparison: ClockComparison, whose: str) -> str:
    side = "ahead of" if comparison.ahead_ms > 0 else "behind"
    seconds, error = abs(comparison.ahead_ms) / 1000, comparison.error_ms / 1000
    return f"{seconds:,.1f} s {side} {whose}; +-{error:.2f} s"
