"""The settings of one group: names, defaults and limits as Kafka has them for consumer groups (KIP-848).

A group that does not set one has the broker's setting `group.consumer...`. The bounds of brokers hold when a setting is
changed; a value from before stays in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

from tiered.config.setting import SettingRow, rows, setting, unknown_setting
from tiered.errors import Code, Refused

INT_MAX = 2**31 - 1
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
NOT_SERVED = ("share.", "streams.")
"""Beginnings of Kafka's settings of groups of other kinds."""


class GroupBounds(Protocol):
    """The broker settings that are defaults and bounds of the settings of groups."""

    @property
    def group_consumer_session_timeout_ms(self) -> int: ...
    @property
    def group_consumer_min_session_timeout_ms(self) -> int: ...
    @property
    def group_consumer_max_session_timeout_ms(self) -> int: ...
    @property
    def group_consumer_heartbeat_interval_ms(self) -> int: ...
    @property
    def group_consumer_min_heartbeat_interval_ms(self) -> int: ...
    @property
    def group_consumer_max_heartbeat_interval_ms(self) -> int: ...


@dataclass(frozen=True)
class GroupConfig:
    """Settings of one group. The constructor takes typed values unchecked; text goes through `from_strings`."""

    consumer_session_timeout_ms: int = setting(
        45_000, "Time without a heartbeat after which a member of this consumer group is removed.", 1, INT_MAX
    )
    consumer_heartbeat_interval_ms: int = setting(
        5_000, "Time between two heartbeats of a member of this consumer group.", 1, INT_MAX
    )

    @classmethod
    def of_broker(cls, settings: GroupBounds) -> GroupConfig:
        """Returns the settings of groups that set none."""
        return cls(settings.group_consumer_session_timeout_ms, settings.group_consumer_heartbeat_interval_ms)

    @classmethod
    def from_strings(cls, given: Mapping[str, str], defaults: GroupConfig) -> GroupConfig:
        """Returns `defaults` with the values in `given`. Raises `Refused` (INVALID_CONFIG) with what is wrong."""
        values: dict[str, Any] = {}
        for name, text in given.items():
            values[name.replace(".", "_")] = find_group_row(name).parse(text)
        return replace(defaults, **values)


@cache
def group_rows() -> dict[str, SettingRow]:
    """Returns the rows of the settings of groups by name."""
    return rows(GroupConfig)


def find_group_row(name: str) -> SettingRow:
    """Returns the row of a setting. Raises `Refused` (INVALID_CONFIG) for a name that no group has here."""
    row = group_rows().get(name)
    if row is None and name.startswith(NOT_SERVED):
        kind = name.partition(".")[0]
        raise Refused(Code.INVALID_CONFIG, f"{name[:200]}: it is a setting of {kind} groups, and there are none here")
    if row is None:
        raise unknown_setting(name, group_rows(), "group")
    return row


def check_group(config: GroupConfig, bounds: GroupBounds, table: Mapping[str, SettingRow], prefix: str = "") -> None:
    """Checks that timeouts are within the bounds of brokers, and that more than one heartbeat is due in a session.

    `table` has the rows of these settings, with `prefix` before their names. Raises `Refused` (INVALID_CONFIG).
    """
    for name, value, low, high in (
        (
            SESSION,
            config.consumer_session_timeout_ms,
            bounds.group_consumer_min_session_timeout_ms,
            bounds.group_consumer_max_session_timeout_ms,
        ),
        (
            HEARTBEAT,
            config.consumer_heartbeat_interval_ms,
            bounds.group_consumer_min_heartbeat_interval_ms,
            bounds.group_consumer_max_heartbeat_interval_ms,
        ),
    ):
        kind, _, what = name.partition(".")
        if value < low:
            why = f"it must be at least group.{kind}.min.{what}={low}"
            raise table[prefix + name].refuse(str(value), why)
        if value > high:
            why = f"it must be at most group.{kind}.max.{what}={high}"
            raise table[prefix + name].refuse(str(value), why)
    if config.consumer_session_timeout_ms <= config.consumer_heartbeat_interval_ms:
        why = f"it must be greater than {prefix}{HEARTBEAT}={config.consumer_heartbeat_interval_ms}"
        raise table[prefix + SESSION].refuse(str(config.consumer_session_timeout_ms), why)
