"""Brokers that were fenced although they were only slow: they get more time before the next fence (I19).

Pure; times are monotonic nanoseconds. A broker that is back within two session timeouts of its fence was slow, and the
fence a false alarm. Each one doubles the suspect timeout of that broker for an hour, up to the session timeout. On an
overloaded cluster short timeouts would move all leaders again and again, and that makes the load worse.

Every broker takes this from the metadata log, so that a new controller knows it too. A broker that has just started
knows only the base timeout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tiered.metadata.parts.brokers import BrokerImage

FORGET_NS = 3_600_000_000_000
"""Time without a false alarm after which a broker has the base timeout again."""
BACK_SESSIONS = 2
"""Session timeouts from a fence within which a broker that was only slow is back: its silence, and the time in which it
takes what was decided meanwhile."""


class _Alarms(NamedTuple):
    """The number of false alarms of one broker in a row, and the time of the last one."""

    in_a_row: int
    last_ns: int


class FalseAlarms:
    """The false alarms of all brokers, as one broker sees them. It remembers only brokers that are registered."""

    def __init__(self) -> None:
        self._brokers: Mapping[int, BrokerImage] = {}
        self._fenced_ns: dict[int, int] = {}
        """By node id: when the present incarnation was fenced."""
        self._alarms: dict[int, _Alarms] = {}

    def on_brokers(self, brokers: Mapping[int, BrokerImage], session_ms: int, now_ns: int) -> None:
        """Takes the brokers of a newer image."""
        before, self._brokers = self._brokers, brokers
        if brokers is before:
            return
        for node_id, known in brokers.items():
            was = before.get(node_id)
            if was is None or was.incarnation != known.incarnation or not known.alive:
                self._fenced_ns.pop(node_id, None)
            elif known.fenced and not was.fenced:
                self._fenced_ns[node_id] = now_ns
            elif was.fenced and not known.fenced:
                fenced_ns = self._fenced_ns.pop(node_id, None)
                if fenced_ns is not None and now_ns - fenced_ns <= BACK_SESSIONS * session_ms * 1_000_000:
                    self._alarms[node_id] = _Alarms(self._count(node_id, now_ns) + 1, now_ns)
        self._fenced_ns = {node_id: each for node_id, each in self._fenced_ns.items() if node_id in brokers}
        self._alarms = {node_id: each for node_id, each in self._alarms.items() if node_id in brokers}

    def suspect_ms(self, node_id: int, base_ms: int, session_ms: int, now_ns: int) -> int:
        """Returns the suspect timeout of a broker, which is at least the base and at most the session timeout."""
        return min(base_ms << min(self._count(node_id, now_ns), 20), max(base_ms, session_ms))

    def _count(self, node_id: int, now_ns: int) -> int:
        known = self._alarms.get(node_id)
        return known.in_a_row if known is not None and now_ns - known.last_ns < FORGET_NS else 0
