"""The newest log entries in memory, as the bucket has them: the controller sends them to standby controllers."""

from __future__ import annotations

from collections import deque

SLOTS_MAX = 1_000
BYTES_MAX = 16 << 20
REPLY_BYTES = 1 << 20


class RecentEntries:
    """Bodies of consecutive slots; the oldest are dropped first."""

    def __init__(self) -> None:
        self._bodies: deque[bytes] = deque()
        self._first_slot = 0
        self._bytes = 0

    def add(self, slot: int, body: bytes) -> None:
        """Adds the entry of the next slot. Starts over with `slot` if that does not follow the last one."""
        if slot != self._first_slot + len(self._bodies):
            self.restart_at(slot)
        self._bodies.append(body)
        self._bytes += len(body)
        while len(self._bodies) > SLOTS_MAX or (self._bytes > BYTES_MAX and len(self._bodies) > 1):
            self._bytes -= len(self._bodies.popleft())
            self._first_slot += 1

    def restart_at(self, slot: int) -> None:
        """Drops all entries; the next one will be that of `slot`."""
        self._bodies.clear()
        self._first_slot, self._bytes = slot, 0

    @property
    def first_slot(self) -> int:
        """The oldest slot in memory; the next one of the log if there is none."""
        return self._first_slot

    def find(self, slot: int) -> bytes | None:
        """Returns the body of a slot, None if it is not in memory."""
        at = slot - self._first_slot
        return self._bodies[at] if 0 <= at < len(self._bodies) else None

    def read(self, slot: int) -> list[bytes] | None:
        """Returns bodies from `slot` on, about 1 MiB of them; an empty list at the end; None if `slot` was dropped."""
        if slot < self._first_slot:
            return None
        bodies: list[bytes] = []
        size = 0
        for i in range(slot - self._first_slot, len(self._bodies)):
            if bodies and size + len(self._bodies[i]) > REPLY_BYTES:
                break
            bodies.append(self._bodies[i])
            size += len(self._bodies[i])
        return bodies
