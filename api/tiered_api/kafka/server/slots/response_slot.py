"""The protocols through which dispatch, handlers and delayed fetches see a connection.

The protocols break the import circle: a connection knows the dispatch, and the dispatch and its handlers know only
these protocols. Each handler adds to `RequestConnection` what it uses itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from tiered.security.principal import Caller
from tiered.system.turns import TurnShare
from tiered_api.kafka.server.slots.socket_writer import Part


class SlotCharge(Protocol):
    """The charge of a request whose reply comes later."""

    def spend(self, spent_ns: int) -> None:
        """Charges time of the event loop that a step of the request took."""

    def find_wait(self) -> Awaitable[None] | None:
        """Returns the wait before the next step of the request, for the quota of its client; None if there is none."""

    def settle(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Charges the client. Returns the reply with the pause of the client."""

    def charge_sending(self, send: Callable[[], object]) -> None:
        """Sends the reply, and charges the time of it. The pause follows at the next request."""


class ResponseSlot(Protocol):
    """The place of one reply among the replies of its connection, which leave in the order of the requests."""

    api_key: int
    """API key of the request, for the latency metrics."""
    started_ns: int
    """Time at which the request began, by the monotonic clock."""
    charge: SlotCharge | None
    """The charge of the request against quotas; None if its client has none."""
    on_close: Callable[[], object] | None
    """Ends the work on the reply if the connection closes first."""

    def reply(self, parts: Sequence[Part]) -> None:
        """Fills the slot. The reply leaves once all replies before it are there."""


class RequestConnection(Protocol):
    """The connection that a request came from."""

    api_key: int
    """API key of the request that is handled now. A handler may replace it by a finer one for the metrics."""

    @property
    def peer(self) -> str:
        """HOST:PORT of the client."""

    @property
    def turn_share(self) -> TurnShare:
        """The share that the connection used of the turns for long work."""

    @property
    def listener(self) -> str:
        """Name of the listener that the client connected to."""

    @property
    def caller(self) -> Caller:
        """The principal that the connection has proved, and its host."""

    def on_credential(self) -> None:
        """Called when a request has proved by its credential that a broker sent it: no quota counts from now on."""

    def reserve_slot(self, on_close: Callable[[], object] | None = None) -> ResponseSlot:
        """Reserves the place of a reply that comes later, in the order of the requests."""

    def refuse(self, reason: str, why: str = "") -> None:
        """Closes the connection, counts the reason and logs it."""

    def close(self) -> None:
        """Closes the connection and ends the work on its requests."""


RunGuarded = Callable[[RequestConnection, Callable[[], None], str], None]
"""Runs a later step of a request. An error closes the connection, not the broker. The text names the request."""
Work = Callable[[], Awaitable[Sequence[Part] | None]]
"""Starts the work that a reply waits for. A task calls it: a task that is cancelled before it ran starts nothing."""
Spawn = Callable[[RequestConnection, Work, str], None]
"""Runs work in a task, and fills a slot that is reserved now with its result; None closes the connection."""
