"""Requests of this broker to the controller, wherever it is: in this process, or on another broker.

A request is sent again until a controller takes it. It is not sent again if it may have been carried out: then the
caller gets REQUEST_TIMED_OUT. The decision itself is in `controller`.

Requests of clients that go to another broker take turns by caller, and few are under way at a time. So they leave room
for the broker's own requests and for its heartbeats, which use the same connections.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from random import Random
from typing import Any, Protocol

from tiered.controller.member_view import MemberView
from tiered.controller.request_codec import decode_reply, encode_request
from tiered.controller.requests import Request
from tiered.errors import Code, Refused, Unavailable
from tiered.fair_slots import FairSlots
from tiered.peers import Peers
from tiered.ports import Clock

log = logging.getLogger(__name__)

SUBMIT_SECONDS = 30.0
PAUSE_SECONDS = (0.05, 0.5)
"""Shortest and longest pause between two attempts to submit a request to a controller."""
RETRY_SECONDS = 0.2
"""Pause before a request is submitted again whose controller ended first."""


FORWARDED_MAX = 32
"""Most requests of clients that are under way to a controller on another broker: half of all requests that may be."""
WAITING_MAX = 1_000
"""Most requests of clients that wait for that."""


class RequestChannel(Protocol):
    """Takes requests to the controller: `ControllerChannel`, or a controller without a cluster in tests."""

    async def submit(self, request: Any, timeout: float = SUBMIT_SECONDS) -> Any:
        """Returns the controller's reply; its type stands with each request. Raises `Refused` or `Unavailable`."""


class LocalController(Protocol):
    """The controller role of this broker, which another broker may have now."""

    @property
    def is_controller(self) -> bool: ...

    async def decide(self, request: Request, timeout: float) -> Any:
        """Returns the reply after the commit. Raises `Refused` (NOT_CONTROLLER) if another broker has the role."""


class ControllerChannel:
    """The way of one broker to the controller. It is closed until `open`: a broker that does not run sends nothing."""

    def __init__(
        self, view: MemberView, local: LocalController, peers: Peers | None, clock: Clock, rng: Random
    ) -> None:
        self._view = view
        self._local = local
        self._peers = peers
        self._clock = clock
        self._rng = rng
        self._is_open = False
        self._turns = FairSlots(FORWARDED_MAX, WAITING_MAX)
        """The turns of clients whose requests go to another broker."""
        self._forwarded: dict[asyncio.Timeout, tuple[int, str]] = {}
        """Forwarded requests without a reply, each with the controller (node id, incarnation) that got it."""

    def open(self) -> None:
        """Takes requests from now on."""
        self._is_open = True

    def on_image(self) -> None:
        """Gives up requests that an earlier controller got.

        The image has all entries of that controller, so no reply follows any more.
        """
        for timeout, controller in list(self._forwarded.items()):
            if controller != self._view.controller:
                del self._forwarded[timeout]
                if not timeout.expired():
                    timeout.reschedule(0)

    async def submit(self, request: Request, timeout: float = SUBMIT_SECONDS, holder: str = "") -> Any:
        """Returns the controller's reply, after this broker has applied the change. `holder` is the client that sent
        the request, "" the broker itself.

        Raises `Refused` with the controller's code. NOT_CONTROLLER means that no controller was found in time and
        nothing was done, and THROTTLING_QUOTA_EXCEEDED that too many requests of clients wait. REQUEST_TIMED_OUT means
        that the request may have been carried out.
        """
        if not self._is_open:
            raise Refused(Code.NOT_CONTROLLER, "the broker does not run")
        loader = self._view.loader
        deadline = self._clock.mono_ns() + int(timeout * 1e9)
        while True:
            left_seconds = (deadline - self._clock.mono_ns()) / 1e9
            try:
                reply, slot = await self._submit_once(request, max(left_seconds, 0.001), holder)
                break
            except Refused as refused:
                if refused.code is not Code.NOT_CONTROLLER or loader.has_ended or left_seconds <= PAUSE_SECONDS[1]:
                    raise
            shortest, longest = PAUSE_SECONDS
            await self._clock.sleep(shortest + (longest - shortest) * self._rng.random())
        await loader.wait_until_applied(slot, (deadline - self._clock.mono_ns()) / 1e9)
        if loader.applied_slot < slot and loader.has_ended:
            raise Refused(
                Code.REQUEST_TIMED_OUT, "the change is committed, but this broker stopped before it applied it"
            )
        return reply

    async def submit_with_retry(self, request: Request, timeout: float = SUBMIT_SECONDS) -> None:
        """Submits a request again if its controller ended first: for requests that may be carried out twice."""
        end = self._clock.mono_ns() + int(timeout * 1e9)
        while True:
            left_seconds = (end - self._clock.mono_ns()) / 1e9
            try:
                await self.submit(request, max(left_seconds, 0.001))
                return
            except Refused as refused:
                is_last = left_seconds <= RETRY_SECONDS or self._view.loader.has_ended
                if refused.code is not Code.REQUEST_TIMED_OUT or is_last:
                    raise
                log.info("request to the controller is repeated request=%s why=%s", type(request).__name__, refused.why)
            await self._clock.sleep(RETRY_SECONDS)

    async def _submit_once(self, request: Request, timeout: float, holder: str) -> tuple[Any, int]:
        """Returns the reply, and the slot that has the change."""
        if self._local.is_controller:
            return await self._local.decide(request, timeout), self._view.image.slot
        if not holder:
            return await self._forward(request, timeout)
        end = self._clock.mono_ns() + int(timeout * 1e9)
        async with AsyncExitStack() as turn:
            try:
                async with asyncio.timeout(timeout):
                    await turn.enter_async_context(self._turns.take(holder))
            except (TimeoutError, Refused):
                waiting = self._turns.waiting
                why = f"{waiting} requests of clients wait for the controller: try again later"
                raise Refused(Code.THROTTLING_QUOTA_EXCEEDED, why) from None
            return await self._forward(request, max((end - self._clock.mono_ns()) / 1e9, 0.001))

    async def _forward(self, request: Request, timeout: float) -> tuple[Any, int]:
        address = self._view.controller_address
        if self._peers is None or not address:
            raise Refused(Code.NOT_CONTROLLER, "this broker knows no controller")
        sent = asyncio.Event()
        try:
            async with asyncio.timeout(None) as takeover_timeout:
                self._forwarded[takeover_timeout] = self._view.controller
                try:
                    reply = await self._peers.forward(
                        address, encode_request(request, self._view.image.metadata_version), timeout, sent.set
                    )
                finally:
                    self._forwarded.pop(takeover_timeout, None)
        except TimeoutError:
            why = "another controller took over before the previous one confirmed the change"
        except Unavailable as error:
            why = f"the controller did not confirm the change: {error}"
        else:
            return decode_reply(reply.reply), reply.slot
        if not sent.is_set():
            raise Refused(Code.NOT_CONTROLLER, f"the request was not sent: {why}")
        # The controller may have written the change before it died.
        raise Refused(Code.REQUEST_TIMED_OUT, f"{why}; the change may have been made")
