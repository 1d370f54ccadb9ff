"""The runtime of the controller's shard: decides one request at a time, replies once its changes are committed (M5).

The shard runs ahead of the log: it has the decided changes at once, and callers get their replies after the commit. One
append is in progress at a time; changes decided meanwhile go into the next entry (group commit). A lost slot ends the
runtime for good (M2).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from tiered.controller.decision import ControllerResult
from tiered.errors import Code, Fenced, Refused
from tiered.metadata.changes import Change
from tiered.ports import Clock
from tiered.shard import Shard

log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT")
PENDING_MAX = 1_000
ENTRY_CHANGES_MAX = 2_000

OnCommitted = Callable[[Sequence[Change], int], Awaitable[None]]


class ChangeLog(Protocol):
    """The log that commits changes. `append` returns the slot, or raises `Fenced` if another writer has taken it."""

    async def append(self, changes: Sequence[Change]) -> int: ...


class _ParkedRequest(NamedTuple):
    decision: ControllerResult[Any]
    reply: asyncio.Future[Any]

    def refuse(self, why: Refused) -> None:
        if not self.reply.done():
            self.reply.set_exception(why)


class Runtime(Generic[RequestT]):
    """A shard, its log, and the callers that wait for a commit. `on_committed` runs before they get their replies."""

    def __init__(
        self,
        shard: Shard[RequestT, int, ControllerResult[Any], Change],
        log: ChangeLog,
        clock: Clock,
        on_committed: OnCommitted,
    ) -> None:
        self._shard = shard
        self._log = log
        self._clock = clock
        self._on_committed = on_committed
        self._parked: list[_ParkedRequest] = []
        self._in_flight: list[_ParkedRequest] = []
        self._wake = asyncio.Event()
        self._ended = False

    @property
    def pending(self) -> int:
        """Number of requests that are decided and not yet committed."""
        return len(self._parked) + len(self._in_flight)

    async def submit(self, request: RequestT, timeout: float) -> Any:
        """Returns the shard's reply after its changes are committed.

        `Refused` with REQUEST_TIMED_OUT leaves the outcome open: the changes may still be committed later.
        """
        if self._ended:
            raise Refused(Code.NOT_CONTROLLER, "this broker is no longer the controller")
        if self.pending >= PENDING_MAX:
            raise Refused(Code.THROTTLING_QUOTA_EXCEEDED, f"{PENDING_MAX} requests already wait for the metadata log")
        decision = self._shard.decide(request, self._clock.wall_ms())
        if not decision.changes and not self.pending:
            return decision.reply
        self._shard.apply(decision.changes)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._parked.append(_ParkedRequest(decision, reply))
        self._wake.set()
        try:
            async with asyncio.timeout(timeout):
                return await reply
        except TimeoutError:
            raise Refused(
                Code.REQUEST_TIMED_OUT,
                f"the metadata log did not confirm the change within {timeout:g} s; it may still be made",
            ) from None

    async def run(self) -> None:
        """Commits entries until it is cancelled or fenced. Raises `Fenced` after all callers have a reply."""
        not_controller = Refused(Code.NOT_CONTROLLER, "this broker is no longer the controller")
        outcome_unknown = Refused(
            Code.REQUEST_TIMED_OUT,
            "this broker stopped being the controller; the change may have been made, or still be made",
        )
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._parked:
                    await self._commit()
        except Fenced as error:
            log.error("controller is fenced why=%s", error)
            outcome_unknown = not_controller  # another writer took the slot: the changes are nowhere
            raise
        finally:
            self._ended = True
            for parked in self._in_flight:
                parked.refuse(outcome_unknown)
            for parked in self._parked:
                parked.refuse(not_controller)

    async def _commit(self) -> None:
        count, changes = 0, list[Change]()
        for parked in self._parked:
            if changes and len(changes) + len(parked.decision.changes) > ENTRY_CHANGES_MAX:
                break
            changes.extend(parked.decision.changes)
            count += 1
        self._in_flight, self._parked = self._parked[:count], self._parked[count:]
        if changes:
            slot = await self._log.append(changes)
            await self._on_committed(changes, slot)
        for parked in self._in_flight:
            if not parked.reply.done():
                parked.reply.set_result(parked.decision.reply)
        self._in_flight = []
