"""Whom the controller hears: brokers ask for the metadata log all the time, and who stops asking is fenced.

Pure; times are monotonic nanoseconds. Safety does not rest on any of it: a broker that is fenced by mistake loses its
leaderships to others under later epochs, and is taken back when it asks again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SUSPECT_NS = 300_000_000
"""A broker without a request under way for so long may be gone: it asks again at once when it is answered."""

LOOK_NS = (1_000_000_000, 60_000_000_000)
"""Between two looks into the log for a newer controller while brokers are missing: at least and at most."""


class Missing:
    """Brokers that a controller does not hear: it may be that another one does. That is asked often at first, and ever
    more seldom of one that stays away."""

    def __init__(self) -> None:
        self._since: dict[int, int] = {}
        self._looked_ns: int | None = None

    def look_is_due(self, missing: Iterable[int], now_ns: int) -> bool:
        """Whether the log should be looked at now; it is taken to be."""
        self._since = {node_id: self._since.get(node_id, now_ns) for node_id in missing}
        if not self._since:
            return False
        least, most = LOOK_NS
        pause_ns = min(max((now_ns - max(self._since.values())) // 6, least), most)
        if self._looked_ns is not None and now_ns - self._looked_ns < pause_ns:
            return False
        self._looked_ns = now_ns
        return True


@dataclass(slots=True)
class _Session:
    incarnation: str
    heard_ns: int
    asking: int = 0
    """Its requests that are under way: they wait for something new."""
    applied: int = -1
    probed_ns: int = 0


class Sessions:
    """The live brokers other than the controller's own, and when each was heard last."""

    def __init__(self, timeout_ns: int) -> None:
        self.timeout_ns = timeout_ns
        self._sessions: dict[int, _Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def expect(self, live: Iterable[tuple[int, str]], now_ns: int) -> None:
        """(node id, incarnation) of all that are to be heard from now on. Who is new has the whole timeout."""
        before, self._sessions = self._sessions, {}
        for node_id, incarnation in live:
            known = before.get(node_id)
            if known is None or known.incarnation != incarnation:
                known = _Session(incarnation, now_ns)
            self._sessions[node_id] = known

    def was_silent(self, node_id: int, silent_ns: int, now_ns: int) -> None:
        """It is known to have been silent for so long already, unless it has been heard meanwhile."""
        session = self._sessions.get(node_id)
        if session is not None and not session.asking:
            session.heard_ns = min(session.heard_ns, now_ns - silent_ns)

    def asks(self, node_id: int, incarnation: str, applied: int, now_ns: int) -> bool:
        """A request of it has come. Whether that incarnation is expected; `answered` has to follow then."""
        session = self._of(node_id, incarnation)
        if session is None:
            return False
        session.heard_ns = now_ns
        session.asking += 1
        session.applied = max(session.applied, applied)
        return True

    def answered(self, node_id: int, incarnation: str, now_ns: int, *, broken: bool = False) -> None:
        """Its request has ended; `broken`: because its connection did, which a process that dies leaves behind."""
        session = self._of(node_id, incarnation)
        if session is None:
            return
        session.asking = max(0, session.asking - 1)
        if not broken:
            session.heard_ns = now_ns

    def suspects(self, now_ns: int) -> list[int]:
        """Brokers of which somebody should look whether their process is still there; each is named once in a while."""
        found = []
        for node_id, session in self._sessions.items():
            silent = now_ns - max(session.heard_ns, session.probed_ns)
            if not session.asking and silent >= SUSPECT_NS:
                session.probed_ns = now_ns
                found.append(node_id)
        return found

    def expired(self, now_ns: int) -> list[tuple[int, str]]:
        """(node id, incarnation) of those that were not heard for the whole timeout."""
        return [
            (node_id, session.incarnation)
            for node_id, session in self._sessions.items()
            if now_ns - session.heard_ns >= self.timeout_ns
        ]

    def silent(self, now_ns: int) -> list[int]:
        """Those that were not heard for half of it: somebody else may hear them soon."""
        return [
            node_id
            for node_id, session in self._sessions.items()
            if not session.asking and now_ns - session.heard_ns >= self.timeout_ns // 2
        ]

    def incarnation(self, node_id: int) -> str | None:
        """Which incarnation is expected."""
        session = self._sessions.get(node_id)
        return session.incarnation if session is not None else None

    def applied_by_all(self, slot: int) -> bool:
        """Whether every one of them has done what the log asks up to `slot`."""
        return all(session.applied >= slot for session in self._sessions.values())

    def _of(self, node_id: int, incarnation: str) -> _Session | None:
        session = self._sessions.get(node_id)
        return session if session is not None and session.incarnation == incarnation else None
