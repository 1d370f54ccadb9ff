"""Requests of a standby that lost the controller: to the controller itself, and to other brokers for their view of it
(M4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tiered.controller.member_view import MemberView
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import machine_of
from tiered.log_limiter import LogLimiter
from tiered.peers import ControllerView, Peers
from tiered.ports import Clock

log = logging.getLogger(__name__)

QUERY_SECONDS = 1.0
"""Longest time for another broker to send its view of the controller, if the suspect timeout bounds no other one."""
QUERY_SHARE = 5
"""Part of the suspect timeout that a request may take."""


class ControllerQueries:
    """The requests of one standby."""

    def __init__(self, view: MemberView, peers: Peers | None, clock: Clock) -> None:
        self._view = view
        self._peers = peers
        self._failure_log = LogLimiter(clock)

    @property
    def seconds(self) -> float:
        """Longest time for another broker to reply."""
        return self._view.suspect_ms / (1000 * QUERY_SHARE) if self._view.is_early else QUERY_SECONDS

    async def is_controller_gone(self) -> bool:
        """True if the process of the controller has ended."""
        address = self._view.controller_address
        return self._peers is not None and bool(address) and await self._peers.is_gone(address, self.seconds)

    async def query_controller(self) -> bool:
        """True if the controller replies to another request than the fetch, and still is the controller."""
        image, address = self._view.image, self._view.controller_address
        if not self._view.is_early or not address:
            return False
        view = await self._query(address)
        return view is not None and (view.controller, view.node_id) == (image.controller, image.controller)

    def other_addresses(self) -> tuple[list[str], list[str]]:
        """Returns addresses of other brokers that may know a controller, fenced brokers included: first those whose
        reply does not show that this broker is not cut off.

        Processes of this broker's machine reply to each other when the machine is cut off. Their replies show something
        if the controller is on this machine too.
        """
        image, near, far = self._view.image, list[str](), list[str]()
        controller = image.brokers.get(image.controller)
        own_machine = machine_of(self._view.node_id, self._view.settings.process)
        is_elsewhere = controller is not None and controller.machine != own_machine
        for each in image.brokers.values():
            address = self._view.address_of(each.node_id)
            if each.alive and address and each.node_id not in (self._view.node_id, image.controller):
                (near if is_elsewhere and each.machine == own_machine else far).append(address)
        return near, far

    async def query_others(self, addresses: Sequence[str]) -> list[ControllerView]:
        """Returns the controller views of the brokers that reply."""
        views = await asyncio.gather(*(self._query(each) for each in addresses))
        return [each for each in views if each is not None]

    async def _query(self, address: str) -> ControllerView | None:
        if self._peers is None:
            return None
        try:
            return await self._peers.get_controller_view(address, self.seconds)
        except (Unavailable, Refused, Corrupt) as error:
            suppressed = self._failure_log.admit(address)
            if suppressed is not None:
                log.info(
                    "broker sends no view of the controller address=%s suppressed=%d why=%s", address, suppressed, error
                )
            return None
