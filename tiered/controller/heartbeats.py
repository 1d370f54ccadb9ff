"""Whom the controller hears: brokers ask for the metadata log all the time, and who stops asking is fenced.

Pure; times are monotonic nanoseconds. Safety does not rest on any of it: a broker that is fenced by mistake loses its
leaderships to others under later epochs, and is taken back when it asks again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PROBE_AFTER_NS = 300_000_000
"""A broker without a request under way for so long may be gone: it asks again at once when it is answered."""

LOG_CHECK_INTERVALS_NS = (1_000_000_000, 60_000_000_000)
"""Between two looks into the log for a newer controller while brokers are missing: at least and at most."""


class UnreachableBrokers:
    """Brokers that a controller does not hear: it may be that another one does. That is asked often at first, and ever
    more seldom of one that stays away."""

    def __init__(self) -> None:
        self._unreachable_since_ns: dict[int, int] = {}
        self._checked_ns: int | None = None

    def is_log_check_due(self, unreachable: Iterable[int], now_ns: int) -> bool:
        """Whether the log should be looked at now; it is taken to be."""
        self._unreachable_since_ns = {
            node_id: self._unreachable_since_ns.get(node_id, now_ns) for node_id in unreachable
        }
        if not self._unreachable_since_ns:
            return False
        least, most = LOG_CHECK_INTERVALS_NS
        pause_ns = min(max((now_ns - max(self._unreachable_since_ns.values())) // 6, least), most)
        if self._checked_ns is not None and now_ns - self._checked_ns < pause_ns:
            return False
        self._checked_ns = now_ns
        return True


@dataclass(slots=True)
class _Session:
    incarnation: str
    contact_ns: int
    fetches_in_flight: int = 0
    """Its requests that are under way: they wait for something new."""
    applied_slot: int = -1
    probed_ns: int = 0


class BrokerHeartbeats:
    """The live brokers other than the controller's own, and when each was heard last."""

    def __init__(self, timeout_ns: int) -> None:
        self.timeout_ns = timeout_ns
        self._sessions: dict[int, _Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def set_live_brokers(self, live: Iterable[tuple[int, str]], now_ns: int) -> None:
        """(node id, incarnation) of all that are to be heard from now on. Who is new has the whole timeout."""
        before, self._sessions = self._sessions, {}
        for node_id, incarnation in live:
            known = before.get(node_id)
            if known is None or known.incarnation != incarnation:
                known = _Session(incarnation, now_ns)
            self._sessions[node_id] = known

    def backdate_contact(self, node_id: int, silent_ns: int, now_ns: int) -> None:
        """It is known to have been silent for so long already, unless it has been heard meanwhile."""
        session = self._sessions.get(node_id)
        if session is not None and not session.fetches_in_flight:
            session.contact_ns = min(session.contact_ns, now_ns - silent_ns)

    def begin_fetch(self, node_id: int, incarnation: str, applied_slot: int, now_ns: int) -> bool:
        """A request of it has come. Whether that incarnation is expected; `answered` has to follow then."""
        session = self._session_of(node_id, incarnation)
        if session is None:
            return False
        session.contact_ns = now_ns
        session.fetches_in_flight += 1
        session.applied_slot = max(session.applied_slot, applied_slot)
        return True

    def end_fetch(self, node_id: int, incarnation: str, now_ns: int, *, connection_lost: bool = False) -> None:
        """Its request has ended; `broken`: because its connection did, which a process that dies leaves behind."""
        session = self._session_of(node_id, incarnation)
        if session is None:
            return
        session.fetches_in_flight = max(0, session.fetches_in_flight - 1)
        if not connection_lost:
            session.contact_ns = now_ns

    def take_probes_due(self, now_ns: int) -> list[int]:
        """Brokers of which somebody should look whether their process is still there; each is named once in a while."""
        found = []
        for node_id, session in self._sessions.items():
            silent = now_ns - max(session.contact_ns, session.probed_ns)
            if not session.fetches_in_flight and silent >= PROBE_AFTER_NS:
                session.probed_ns = now_ns
                found.append(node_id)
        return found

    def expired_sessions(self, now_ns: int) -> list[tuple[int, str]]:
        """(node id, incarnation) of those that were not heard for the whole timeout."""
        return [
            (node_id, session.incarnation)
            for node_id, session in self._sessions.items()
            if now_ns - session.contact_ns >= self.timeout_ns
        ]

    def silent_brokers(self, now_ns: int) -> list[int]:
        """Those that were not heard for half of it: somebody else may hear them soon."""
        return [
            node_id
            for node_id, session in self._sessions.items()
            if not session.fetches_in_flight and now_ns - session.contact_ns >= self.timeout_ns // 2
        ]

    def incarnation(self, node_id: int) -> str | None:
        """Which incarnation is expected."""
        session = self._sessions.get(node_id)
        return session.incarnation if session is not None else None

    def is_applied_by_all(self, slot: int) -> bool:
        """Whether every one of them has done what the log asks up to `slot`."""
        return all(session.applied_slot >= slot for session in self._sessions.values())

    def _session_of(self, node_id: int, incarnation: str) -> _Session | None:
        session = self._sessions.get(node_id)
        return session if session is not None and session.incarnation == incarnation else None
