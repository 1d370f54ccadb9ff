"""Contact times of brokers as seen by the controller: a broker that stops fetching the metadata log is fenced (I19).

Pure; times are monotonic nanoseconds. Safety does not depend on this file (M4). A broker that is fenced by mistake
loses its leaderships to other brokers under later epochs, and is unfenced when it fetches again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tiered.controller.clock_skew import ClockSkew
from tiered.peers import ClockComparison

PROBE_AFTER_NS = 300_000_000
"""Time without a fetch in progress after which a broker may be gone: brokers fetch again right after a reply."""

LOG_CHECK_INTERVALS_NS = (1_000_000_000, 60_000_000_000)
"""Shortest and longest time between two reads of the log for a newer controller while brokers are unreachable."""


class UnreachableBrokers:
    """Brokers without contact to this controller: they may follow a newer one, so the log is checked.

    The checks are frequent at first and become rarer while the same brokers stay unreachable.
    """

    def __init__(self) -> None:
        self._unreachable_since_ns: dict[int, int] = {}
        self._checked_ns: int | None = None

    def is_log_check_due(self, unreachable: Iterable[int], now_ns: int) -> bool:
        """True if the log should be read now; the call counts as that read."""
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


class FetchProgress(NamedTuple):
    """The slot that a broker has applied, the time of its last fetch, and that of the last one that had all entries of
    its time; -1 if unknown. `log_slot` is the last entry at the last fetch."""

    applied_slot: int = -1
    fetched_ns: int = -1
    caught_up_ns: int = -1
    log_slot: int = -1

    def advance(self, applied_slot: int, log_slot: int, now_ns: int) -> FetchProgress:
        """Returns the progress after another fetch, as Kafka's leader counts it."""
        caught_up_ns = self.caught_up_ns
        if applied_slot >= log_slot:
            caught_up_ns = now_ns
        elif self.fetched_ns >= 0 and applied_slot >= self.log_slot:
            caught_up_ns = max(caught_up_ns, self.fetched_ns)
        return FetchProgress(max(self.applied_slot, applied_slot), now_ns, caught_up_ns, log_slot)


NO_PROGRESS = FetchProgress()


@dataclass(slots=True)
class _Session:
    incarnation: str
    contact_ns: int
    fetches_in_flight: int = 0
    """Fetches of the broker that wait for the next entry."""
    applied_slot: int = -1
    probed_ns: int = 0
    fetch: FetchProgress = NO_PROGRESS
    clock_skew: ClockSkew = field(default_factory=ClockSkew)
    active_key: str = ""
    """Id of the key by which the broker encrypts; "" for none."""


class BrokerHeartbeats:
    """The live brokers other than the controller's own, with the time of the last contact with each."""

    def __init__(self, timeout_ns: int) -> None:
        self.timeout_ns = timeout_ns
        self._sessions: dict[int, _Session] = {}
        self._metadata_versions: dict[str, int] = {}
        """Levels of `tiered.metadata.version` that brokers support, by incarnation. Those of live brokers stay."""

    def __len__(self) -> int:
        return len(self._sessions)

    def set_live_brokers(self, live: Iterable[tuple[int, str]], now_ns: int) -> None:
        """Sets the (node id, incarnation) pairs to track. A new pair starts with a full session timeout.

        So each broker has one session to find a new controller, as in Kafka. A longer one would spare some brokers that
        are late a fence without a loss (I10), and leave the partitions of all that are gone without a leader for as
        much longer.
        """
        before, self._sessions = self._sessions, {}
        for node_id, incarnation in live:
            known = before.get(node_id)
            if known is None or known.incarnation != incarnation:
                known = _Session(incarnation, now_ns)
            self._sessions[node_id] = known
        incarnations = {session.incarnation for session in self._sessions.values()}
        self._metadata_versions = {key: each for key, each in self._metadata_versions.items() if key in incarnations}

    def backdate_contact(self, node_id: int, silent_ns: int, now_ns: int) -> None:
        """Counts `silent_ns` of earlier silence, unless the broker has a fetch in progress."""
        session = self._sessions.get(node_id)
        if session is not None and not session.fetches_in_flight:
            session.contact_ns = min(session.contact_ns, now_ns - silent_ns)

    def begin_fetch(self, node_id: int, incarnation: str, applied_slot: int, now_ns: int, log_slot: int = -1) -> bool:
        """Records the start of a fetch from a log whose last entry is `log_slot`.

        Returns True if the incarnation is tracked; the caller must then call `end_fetch`.
        """
        session = self._session_of(node_id, incarnation)
        if session is None:
            return False
        session.contact_ns = now_ns
        session.fetches_in_flight += 1
        session.applied_slot = max(session.applied_slot, applied_slot)
        session.fetch = session.fetch.advance(applied_slot, log_slot, now_ns)
        return True

    def note_metadata_version(self, incarnation: str, level: int) -> None:
        """Records the highest level of `tiered.metadata.version` that a registered incarnation supports. It may have
        registered just now: then it is not tracked yet."""
        self._metadata_versions[incarnation] = level

    def metadata_versions(self) -> dict[str, int]:
        """Returns the levels that brokers support, by incarnation, as far as the brokers have told them."""
        return dict(self._metadata_versions)

    def note_active_key(self, node_id: int, incarnation: str, key_id: str) -> None:
        """Records the id of the key by which a broker encrypts; "" for none."""
        session = self._session_of(node_id, incarnation)
        if session is not None:
            session.active_key = key_id

    def active_keys(self) -> set[str]:
        """Returns the ids of the keys by which brokers encrypt."""
        return {session.active_key for session in self._sessions.values() if session.active_key}

    def judge_clock(self, node_id: int, incarnation: str, clock: ClockComparison, max_ms: int) -> bool | None:
        """Takes what a broker found of its clock. Returns True if the clock now differs by more than `max_ms`, False if
        it no longer does, and None without a change."""
        session = self._session_of(node_id, incarnation)
        if session is None or not session.clock_skew.judge(clock, max_ms):
            return None
        return session.clock_skew.is_beyond

    def clock_skews(self) -> dict[int, ClockSkew]:
        """Returns the states of the brokers' clocks, by node id."""
        return {node_id: session.clock_skew for node_id, session in self._sessions.items()}

    def end_fetch(self, node_id: int, incarnation: str, now_ns: int, *, connection_lost: bool = False) -> None:
        """Records the end of a fetch. `connection_lost`: the connection broke, as it does when a process dies."""
        session = self._session_of(node_id, incarnation)
        if session is None:
            return
        session.fetches_in_flight = max(0, session.fetches_in_flight - 1)
        if not connection_lost:
            session.contact_ns = now_ns

    def take_probes_due(self, now_ns: int) -> list[int]:
        """Returns brokers whose processes should be probed now, each at most once in `PROBE_AFTER_NS`."""
        due = []
        for node_id, session in self._sessions.items():
            silent_ns = now_ns - max(session.contact_ns, session.probed_ns)
            if not session.fetches_in_flight and silent_ns >= PROBE_AFTER_NS:
                session.probed_ns = now_ns
                due.append(node_id)
        return due

    def expired_sessions(self, now_ns: int) -> list[tuple[int, str]]:
        """Returns (node id, incarnation) of brokers without contact for the whole session timeout."""
        return [
            (node_id, session.incarnation)
            for node_id, session in self._sessions.items()
            if now_ns - session.contact_ns >= self.timeout_ns
        ]

    def silent_brokers(self, now_ns: int, silent_ns: int) -> list[int]:
        """Returns brokers without contact for `silent_ns`, half of the time after which another controller may have
        them."""
        return [
            node_id
            for node_id, session in self._sessions.items()
            if not session.fetches_in_flight and now_ns - session.contact_ns >= silent_ns
        ]

    def incarnation(self, node_id: int) -> str | None:
        """Returns the incarnation of a broker that is tracked."""
        session = self._sessions.get(node_id)
        return session.incarnation if session is not None else None

    def fetch_progress(self, node_id: int) -> FetchProgress:
        """Returns the progress of a broker through the log; unknown if it is not tracked."""
        session = self._sessions.get(node_id)
        return session.fetch if session is not None else NO_PROGRESS

    def is_applied_by_all(self, slot: int) -> bool:
        """True if every tracked broker has applied the log up to `slot`."""
        return all(session.applied_slot >= slot for session in self._sessions.values())

    def _session_of(self, node_id: int, incarnation: str) -> _Session | None:
        session = self._sessions.get(node_id)
        return session if session is not None and session.incarnation == incarnation else None
