"""Brokers that may hang, as the controller sees them: a broker that is silent in every way is fenced early (I19).

Pure; times are monotonic nanoseconds. A broker hangs if its process is stopped, if its disk or its loop stalls, or if a
link to it is cut in one direction. It is fenced after the suspect timeout if two witnesses agree: no fetch of the
metadata log came from it, and a request that the controller sent to it meanwhile got no reply. A broker that replies is
only slow: it keeps its session (`heartbeats`). One that was fenced and came back soon gets a longer suspect timeout
(`false_alarms`). A broker acknowledges nothing with acks=all by then (R6), and safety does not depend on that (M4).

A pause of the controller itself is no silence of others: silence counts only while the controller runs. A broker that
waited for it may pause next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

ISOLATED_QUARTERS = 5
"""Quarters of the suspect timeout after which a controller fences brokers if it hears no broker of another machine. It
may be cut off itself, and the others then choose a new controller before that."""
LATE_SHARE = 2
"""A request without a reply counts unless it took longer than its time limit by more than the limit's half."""


class OwnPauses:
    """The pauses of this process, by the time between two of its ticks, which are `tick_ns` apart while it runs."""

    def __init__(self, tick_ns: int) -> None:
        self._tick_ns = tick_ns
        self._ticked_ns: int | None = None

    def tick(self, now_ns: int) -> int:
        """Returns for how long the process was paused since the last tick: 0 for less than another tick or two."""
        gap_ns = now_ns - self._ticked_ns if self._ticked_ns is not None else 0
        self._ticked_ns = now_ns
        return gap_ns - self._tick_ns if gap_ns > 3 * self._tick_ns else 0


@dataclass(slots=True)
class _Contact:
    """One broker: when something came from it last, and the last request to it that got no reply in time."""

    incarnation: str
    heard_ns: int
    is_queried: bool = False
    """True while a request to it is in progress."""
    unanswered_ns: int | None = None
    """When the last request without a reply was sent."""


class SilentBrokers:
    """The live brokers other than the controller's own, by what came from them last. `timeout_ns` is the shortest
    suspect timeout, and `timeout_of` returns that of a broker. `is_enabled` is False if the session timeout is not
    longer, and then no broker is fenced early."""

    def __init__(self, timeout_ns: int, timeout_of: Callable[[int], int], *, is_enabled: bool) -> None:
        self.timeout_ns = timeout_ns
        self._timeout_of = timeout_of
        self._is_enabled = is_enabled
        self._contacts: dict[int, _Contact] = {}

    @property
    def query_ns(self) -> int:
        """The time for a reply. Two requests end before the suspect timeout does: the first may wait on a connection
        that is broken, and the second has a new one."""
        return self.timeout_ns // 5

    def set_live_brokers(self, live: Iterable[tuple[int, str]], now_ns: int) -> None:
        """Sets the (node id, incarnation) pairs to track. A new pair counts as heard now."""
        before, self._contacts = self._contacts, {}
        for node_id, incarnation in live:
            known = before.get(node_id)
            if known is None or known.incarnation != incarnation:
                known = _Contact(incarnation, now_ns)
            self._contacts[node_id] = known

    def backdate(self, node_id: int, silent_ns: int, now_ns: int, *, is_unanswered: bool) -> None:
        """Counts `silent_ns` of earlier silence of the last controller. `is_unanswered`: a request to it got no reply
        at the end of that time."""
        known = self._contacts.get(node_id)
        if known is not None:
            known.heard_ns = min(known.heard_ns, now_ns - silent_ns)
            if is_unanswered:
                known.unanswered_ns = now_ns

    def on_pause(self, pause_ns: int, now_ns: int) -> None:
        """Leaves a pause of this process out of the silence of all brokers."""
        for known in self._contacts.values():
            known.heard_ns = min(known.heard_ns + pause_ns, now_ns)

    def on_heard(self, node_id: int, incarnation: str, now_ns: int) -> None:
        """Notes that a request or a reply of a broker came."""
        known = self._contacts.get(node_id)
        if known is not None and known.incarnation == incarnation:
            known.heard_ns, known.unanswered_ns = max(known.heard_ns, now_ns), None

    def take_queries_due(self, now_ns: int) -> Iterator[tuple[int, str]]:
        """Yields (node id, incarnation) of brokers that have been silent for half the suspect timeout. The caller sends
        a request to each and then calls `end_query`."""
        for node_id, known in self._contacts.items() if self._is_enabled else ():
            if not known.is_queried and 2 * (now_ns - known.heard_ns) >= self._timeout_of(node_id):
                known.is_queried = True
                yield node_id, known.incarnation

    def end_query(
        self, node_id: int, incarnation: str, began_ns: int, now_ns: int, *, is_answered: bool | None
    ) -> None:
        """Notes the end of a request; `is_answered` is None if none was sent. It proves nothing if it took much longer
        than its time limit: then this process was paused itself, and a reply may lie unread."""
        known = self._contacts.get(node_id)
        if known is None or known.incarnation != incarnation:
            return
        known.is_queried = False
        if is_answered:
            self.on_heard(node_id, incarnation, now_ns)
        elif is_answered is False and is_conclusive(now_ns - began_ns, self.query_ns) and began_ns >= known.heard_ns:
            known.unanswered_ns = began_ns

    def find_silent(self, now_ns: int, near: Collection[int]) -> list[tuple[int, str]]:
        """Returns (node id, incarnation) of the brokers to fence now. `near` are processes of the controller's own
        machine: they reply although the machine is cut off."""
        far = [each for node_id, each in self._contacts.items() if node_id not in near]
        is_isolated = len(far) > 1 and all(2 * (now_ns - each.heard_ns) >= self.timeout_ns for each in far)
        quarters = ISOLATED_QUARTERS if is_isolated else 4
        return [
            (node_id, known.incarnation)
            for node_id, known in (self._contacts.items() if self._is_enabled else ())
            if self._is_silent(known, self._timeout_of(node_id), quarters, now_ns)
        ]

    def _is_silent(self, known: _Contact, timeout_ns: int, quarters: int, now_ns: int) -> bool:
        """True if nothing came for the whole timeout, and a request got no reply that was sent in the second half of
        the silence, or later."""
        if now_ns - known.heard_ns < timeout_ns * quarters // 4 or known.unanswered_ns is None:
            return False
        return known.unanswered_ns - known.heard_ns >= timeout_ns * 5 // 8


def is_conclusive(took_ns: int, limit_ns: int) -> bool:
    """True if a request without a reply says something about its receiver: its time limit was measured by a process
    that ran."""
    return took_ns <= limit_ns + limit_ns // LATE_SHARE
