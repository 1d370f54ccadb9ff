"""A bounded table of what each entity has used. An entity that used nothing for an hour is forgotten, as in Kafka.

If the table is full, the entity that has waited longest is forgotten. Its next use begins a new window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

IDLE_MS = 3_600_000
SENSORS_MAX = 10_000
"""Most entities with a sensor, for each quota. A sensor has about 1 KiB."""

S = TypeVar("S")
SensorKey = tuple[str, str, str]
"""Key of the quota, user and client id; for an address its text in place of the user."""


class Sensors(Generic[S]):
    """Sensors by key. `make` makes one at a time."""

    def __init__(self, make: Callable[[float, int], S], most: int = SENSORS_MAX) -> None:
        self._make = make
        self._most = most
        self._sensors: dict[SensorKey, tuple[S, int]] = {}
        """Each with the time of its last use, the longest idle one first."""

    def __len__(self) -> int:
        return len(self._sensors)

    def __iter__(self) -> Iterator[SensorKey]:
        """Yields the keys, the longest idle one first."""
        return iter(self._sensors)

    def find(self, key: SensorKey, bound: float, now_ms: int) -> S:
        """Returns the sensor of an entity, a new one if it has none, and notes its use."""
        known = self._sensors.get(key)
        if known is None:
            self._forget(now_ms)
            sensor = self._make(bound, now_ms)
        else:
            sensor, used_ms = known
            if used_ms == now_ms:
                return sensor
            del self._sensors[key]
        self._sensors[key] = sensor, now_ms
        return sensor

    def peek(self, key: SensorKey) -> S | None:
        """Returns the sensor of an entity if it has one."""
        known = self._sensors.get(key)
        return None if known is None else known[0]

    def _forget(self, now_ms: int) -> None:
        while self._sensors:
            oldest = next(iter(self._sensors))
            if now_ms - self._sensors[oldest][1] < IDLE_MS and len(self._sensors) < self._most:
                break
            del self._sensors[oldest]
