"""Requests of the active controller to brokers that have become silent, as `suspicion` decides (I19)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from tiered.controller.member_view import MemberView
from tiered.controller.suspicion import OwnPauses, SilentBrokers
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import machine_of
from tiered.peers import Peers
from tiered.ports import Clock

log = logging.getLogger(__name__)

TICK_NS = 100_000_000

Spawn = Callable[[str, int, Coroutine[Any, Any, None]], bool]
"""Starts a task of a kind for a broker. Returns False if one of this kind for this broker runs already."""


class LastContact(NamedTuple):
    """The previous controller, and how long this broker had no contact with it: that time counts for its session.
    `is_unanswered`: a request to it got no reply at the end of that time."""

    node_id: int
    silent_ms: int
    is_unanswered: bool = False


class SilenceWatch:
    """The silent brokers of one controller epoch. The owner tells `brokers` which ones are live, and what they send."""

    def __init__(self, view: MemberView, peers: Peers | None, clock: Clock, spawn: Spawn) -> None:
        self.brokers = SilentBrokers(
            view.suspect_ms * 1_000_000, lambda node_id: view.suspect_ms_of(node_id) * 1_000_000,
            is_enabled=view.is_early,
        )  # fmt: skip
        self._view = view
        self._peers = peers
        self._clock = clock
        self._spawn = spawn
        self._own_pauses = OwnPauses(TICK_NS)

    def backdate(self, last: LastContact, now_ns: int) -> None:
        """Counts the silence of the previous controller before this one began."""
        self.brokers.backdate(last.node_id, last.silent_ms * 1_000_000, now_ns, is_unanswered=last.is_unanswered)

    def find_silent(self, now_ns: int) -> list[tuple[int, str]]:
        """Sends the requests that are due. Returns (node id, incarnation) of the brokers to fence now. The owner calls
        this once in each `TICK_NS`."""
        if pause_ns := self._own_pauses.tick(now_ns):
            self.brokers.on_pause(pause_ns, now_ns)
        for node_id, incarnation in self.brokers.take_queries_due(now_ns):
            self._query(node_id, incarnation, now_ns)
        own = machine_of(self._view.node_id, self._view.settings.process)
        near = {each.node_id for each in self._view.image.brokers.values() if each.machine == own}
        return self.brokers.find_silent(now_ns, near)

    def _query(self, node_id: int, incarnation: str, now_ns: int) -> None:
        """Starts a request. A broker without an address, which has only just registered, keeps its session."""
        address = self._view.address_of(node_id)
        if (
            self._peers is None
            or not address
            or not self._spawn("silent", node_id, self._await_reply(self._peers, node_id, incarnation, address))
        ):
            self.brokers.end_query(node_id, incarnation, now_ns, now_ns, is_answered=None)

    async def _await_reply(self, peers: Peers, node_id: int, incarnation: str, address: str) -> None:
        """Sends a request to a silent broker: any reply shows that it runs, and that both directions work."""
        began_ns, is_answered = self._clock.mono_ns(), False
        try:
            view = await peers.get_controller_view(address, self.brokers.query_ns / 1e9)
            is_answered = view.incarnation == incarnation
        except Refused:
            is_answered = True
        except (Unavailable, Corrupt) as error:
            log.debug("silent broker does not reply node_id=%d why=%s", node_id, error)
        finally:
            self.brokers.end_query(node_id, incarnation, began_ns, self._clock.mono_ns(), is_answered=is_answered)
