"""The use of the bucket by the hour: requests and bytes of each verb, and the bytes that were stored. Pure.

Counters of metrics begin at 0 with each start. This record goes on: it takes what a counter grew by since the last
look, and puts it into the hour of the look. It has the last 32 days, so that 31 whole days are in it at any hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tiered.errors import Corrupt
from tiered.object_store.envelope import seal, unseal

HOUR_MS = 3_600_000
HOURS_MAX = 32 * 24
LOOK_MS_MAX = 300_000
"""Longest time between two looks for which stored bytes count. After a longer one nobody knows what was stored."""


class VerbUsage(NamedTuple):
    """Requests of a verb in an hour, and their bytes."""

    hour_ms: int
    verb: str
    requests: int
    bytes: int


class StoredUsage(NamedTuple):
    """Stored bytes in an hour, times the hours for which they were stored."""

    hour_ms: int
    byte_hours: float


class StoreUsage:
    """The hours of one broker. It counts the stored bytes of the partitions that it leads."""

    def __init__(self) -> None:
        self._verbs: dict[tuple[int, str], tuple[int, int]] = {}
        self._stored: dict[int, float] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._last_ms: int | None = None
        self.is_kept = False
        """True once somebody looks, and writes the record."""

    def look(self, now_ms: int, counters: Mapping[str, tuple[int, int]], stored_bytes: int) -> None:
        """Takes the counters as they are now: requests and bytes by verb since the start of the process."""
        hour_ms = now_ms - now_ms % HOUR_MS
        for verb, now in counters.items():
            was = self._seen.get(verb, (0, 0))
            self._add(hour_ms, verb, max(now[0] - was[0], 0), max(now[1] - was[1], 0))
            self._seen[verb] = now
        if self._last_ms is not None and 0 < now_ms - self._last_ms <= LOOK_MS_MAX:
            byte_hours = stored_bytes * (now_ms - self._last_ms) / HOUR_MS
            self._stored[hour_ms] = self._stored.get(hour_ms, 0) + byte_hours
        self._last_ms = now_ms
        oldest_ms = hour_ms - (HOURS_MAX - 1) * HOUR_MS
        self._verbs = {key: sums for key, sums in self._verbs.items() if key[0] >= oldest_ms}
        self._stored = {hour: sums for hour, sums in self._stored.items() if hour >= oldest_ms}

    def list_verbs(self, from_ms: int) -> list[VerbUsage]:
        """Returns the requests of each hour from a time on, oldest first."""
        return [VerbUsage(*key, *sums) for key, sums in sorted(self._verbs.items()) if key[0] >= from_ms]

    def list_stored(self, from_ms: int) -> list[StoredUsage]:
        """Returns the stored bytes of each hour from a time on, oldest first."""
        return [StoredUsage(*each) for each in sorted(self._stored.items()) if each[0] >= from_ms]

    def encode(self) -> bytes:
        """Returns the content of a file."""
        return seal({"verbs": list(map(list, self.list_verbs(0))), "stored": list(map(list, self.list_stored(0)))})

    def add_encoded(self, data: bytes, where: str) -> None:
        """Adds the hours of an earlier process. Raises `Corrupt`, and adds nothing then."""
        body = unseal(data, where)
        try:
            verbs = [VerbUsage(int(hour), str(verb), int(a), int(b)) for hour, verb, a, b in body["verbs"]]
            stored = [StoredUsage(int(hour), float(byte_hours)) for hour, byte_hours in body["stored"]]
        except (KeyError, TypeError, ValueError):
            raise Corrupt("the use of the bucket has another format", where=where) from None
        for each in verbs:
            self._add(*each)
        for hour_ms, byte_hours in stored:
            self._stored[hour_ms] = self._stored.get(hour_ms, 0) + byte_hours

    def _add(self, hour_ms: int, verb: str, requests: int, moved: int) -> None:
        if requests or moved:
            had = self._verbs.get((hour_ms, verb), (0, 0))
            self._verbs[hour_ms, verb] = had[0] + requests, had[1] + moved
