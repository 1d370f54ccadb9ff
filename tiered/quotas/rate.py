"""Rates over a sampled window, token buckets, and throttle times: Kafka's arithmetic, step by step.

A rate is the sum over the last `samples` windows by the time since the oldest of them began. This time counts as
`samples` - 1 windows at least, so that a client may use its quota of some seconds at once after a pause. One sample
more is kept, because the oldest one overlaps the window.
"""

from __future__ import annotations

import math

PAUSE_MS_MAX = 2**53
"""Longest pause: a tiny bound makes more milliseconds than a number can hold."""
DEBT_LEAST = 100
"""Tokens that any client may owe: a small bucket has less than one large request takes."""


def round_half_up(value: float) -> int:
    """Returns the nearest whole number, as `Math.round` of Java."""
    return math.floor(value + 0.5)


def throttle_ms(rate: float, bound: float, window_ms: int) -> int:
    """Returns the pause after which a rate is back at its bound; 0 if it is not above."""
    return round_half_up(min((rate - bound) / bound * window_ms, PAUSE_MS_MAX)) if rate > bound else 0


class SampledRate:
    """The rate of a quantity, in units a second. `now_ms` never goes back."""

    __slots__ = (
        "_current",
        "_full_seconds",
        "_keep_ms",
        "_samples",
        "_starts",
        "_times",
        "_total",
        "_values",
        "_window_ms",
        "spare",
    )

    def __init__(self, samples: int, window_ms: int, now_ms: int) -> None:
        self.spare = 0.0
        """The part that was counted ahead, and is not used yet (`ClientQuotas.count_ahead`)."""
        self._samples = samples
        self._window_ms = window_ms
        self._keep_ms = samples * window_ms
        self._full_seconds = (samples - 1) * window_ms / 1000
        self._total = 0.0
        """Sum of all samples, those that are too old included."""
        self._current = 0
        self._starts, self._times, self._values = [now_ms], [now_ms], [0.0]
        """Start of each sample, the time of its last value, and its sum."""

    def record(self, value: float, now_ms: int) -> None:
        """Counts a value."""
        at = self._current
        if now_ms - self._starts[at] >= self._window_ms:
            at = self._current = (at + 1) % (self._samples + 1)
            if at == len(self._starts):
                self._starts.append(now_ms)
                self._times.append(now_ms)
                self._values.append(0.0)
            else:
                self._total -= self._values[at]
                self._starts[at], self._values[at] = now_ms, 0.0
        self._values[at] += value
        self._total += value
        self._times[at] = now_ms

    def is_low(self, bound: float) -> bool:
        """True if less than half of what a bound allows at once was used in all samples."""
        return self._total * 2 < bound * self._full_seconds

    def measure(self, now_ms: int) -> float:
        """Returns the rate."""
        elapsed_ms = self.elapsed_ms(now_ms)
        return math.fsum(self._values) / (elapsed_ms / 1000)

    def elapsed_ms(self, now_ms: int) -> int:
        """Returns the time over which the rate is measured. Empties samples that are too old."""
        for at, last in enumerate(self._times):
            if now_ms - last >= self._keep_ms:
                self._starts[at] = self._times[at] = now_ms
                self._total -= self._values[at]
                self._values[at] = 0.0
        elapsed_ms = now_ms - min(self._starts)
        missing = self._samples - 1 - elapsed_ms // self._window_ms
        return max(1, elapsed_ms + missing * self._window_ms if missing > 0 else elapsed_ms)

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """Returns the pause after which the rate is back at a bound; 0 if it is not above."""
        if self._total <= bound * self._full_seconds:
            return 0  # the rate is measured over this time at least
        rate = self.measure(now_ms)
        return throttle_ms(rate, bound, self.elapsed_ms(now_ms)) if rate > bound else 0


class TokenBucket:
    """Tokens that come at a rate, up to a burst of `samples` windows (KIP-599). A caller may go into debt once.

    The rate may differ from call to call: tokens, and a debt of them, keep their number. Without a sample there is no
    burst, and the first caller goes into debt. Quotas of clients, of copied replicas and of cleans share this
    arithmetic.
    """

    __slots__ = ("_at_ms", "_burst_seconds", "_tokens")

    def __init__(self, samples: int, window_ms: int, bound: float, now_ms: float) -> None:
        self._burst_seconds = samples * window_ms / 1000
        self._tokens = self._burst_seconds * bound
        self._at_ms = now_ms

    def measure(self, bound: float, now_ms: float) -> float:
        """Returns the number of tokens; below 0 is a debt."""
        passed_seconds = (now_ms - self._at_ms) / 1000
        self._tokens = min(self._burst_seconds * bound, self._tokens + bound * passed_seconds)
        self._at_ms = now_ms
        return self._tokens

    def record(self, value: float, bound: float, now_ms: float) -> None:
        """Takes tokens, or gives them back if the value is below 0."""
        self._tokens = min(self._burst_seconds * bound, self.measure(bound, now_ms) - value)

    def is_overdrawn(self, bound: float, now_ms: float) -> bool:
        """True if the debt is as large as a full bucket, and as `DEBT_LEAST`."""
        return self.measure(bound, now_ms) <= -max(DEBT_LEAST, self._burst_seconds * bound)

    def debt_ms(self, bound: float, now_ms: float) -> float:
        """Returns the time after which there is no debt; 0 if there is none."""
        tokens = self.measure(bound, now_ms)
        return min(-tokens / bound * 1000, PAUSE_MS_MAX) if tokens < 0 else 0

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """Returns the pause for a caller with a debt, in whole milliseconds."""
        return round_half_up(self.debt_ms(bound, now_ms))
