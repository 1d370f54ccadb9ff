"""The newest entries of the metadata log, as the bucket has them: what a controller sends to who follows it."""

from __future__ import annotations

from collections import deque

SLOTS_MAX = 1_000
BYTES_MAX = 16 << 20
REPLY_BYTES = 1 << 20


class RecentEntries:
    """Bodies of consecutive slots, the oldest dropped first."""

    def __init__(self) -> None:
        self._bodies: deque[bytes] = deque()
        self._first_slot = 0
        self._bytes = 0

    def add(self, slot: int, body: bytes) -> None:
        """The next slot; one that does not follow makes it begin anew."""
        if slot != self._first_slot + len(self._bodies):
            self.restart_at(slot)
        self._bodies.append(body)
        self._bytes += len(body)
        while len(self._bodies) > SLOTS_MAX or (self._bytes > BYTES_MAX and len(self._bodies) > 1):
            self._bytes -= len(self._bodies.popleft())
            self._first_slot += 1

    def restart_at(self, slot: int) -> None:
        """Anew: the next entry will be that of `slot`."""
        self._bodies.clear()
        self._first_slot, self._bytes = slot, 0

    def read(self, slot: int) -> list[bytes] | None:
        """Bodies from `slot` on, about 1 MiB of them; none at the end; None when it is not here."""
        if slot < self._first_slot:
            return None
        found: list[bytes] = []
        size = 0
        for at in range(slot - self._first_slot, len(self._bodies)):
            if found and size + len(self._bodies[at]) > REPLY_BYTES:
                break
            found.append(self._bodies[at])
            size += len(self._bodies[at])
        return found
