"""The table of sensors: bounded, and empty of what idles."""

from __future__ import annotations

from tiered.quotas.rate import SampledRate
from tiered.quotas.sensors import IDLE_MS, Sensors


def make(bound: float, now_ms: int) -> SampledRate:
    """Returns a rate with Kafka's defaults."""
    return SampledRate(11, 1000, now_ms)


def test_entity_keeps_its_sensor_until_it_idles_for_an_hour() -> None:
    sensors = Sensors(make)
    first = sensors.find(("k", "u", ""), 1.0, 0)
    assert sensors.find(("k", "u", ""), 1.0, IDLE_MS - 1) is first
    sensors.find(("k", "v", ""), 1.0, 2 * IDLE_MS - 1)
    assert list(sensors) == [("k", "v", "")]


def test_full_table_forgets_the_entity_that_waited_longest() -> None:
    sensors = Sensors(make, most=2)
    for user, at_ms in (("a", 0), ("b", 1), ("a", 2), ("c", 3)):
        sensors.find(("k", user, ""), 1.0, at_ms)
    assert list(sensors) == [("k", "a", ""), ("k", "c", "")]
    assert (len(sensors), sensors.peek(("k", "b", ""))) == (2, None)
