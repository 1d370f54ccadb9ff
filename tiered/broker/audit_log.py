"""The audit log: the logins that were accepted or refused, and what rights and shares refused, as lines of JSON.

The events go to the logger `tiered.audit`, and to the subscribers. A kind of event has `LINES_PER_SECOND` lines in a
second at most. Others are counted, and the next line of that kind has their number in `suppressed`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from tiered.ports import Clock
from tiered.security.acls import Operation, ResourceType
from tiered.security.principal import ANONYMOUS, Caller

LOGGER = "tiered.audit"
LINES_PER_SECOND = 10
TEXT_MAX = 250
"""Most characters of a text in an event. A request may name anything."""
LOGIN, OPERATION, SHARE = "login", "operation", "share"
ALLOWED, REFUSED, ENDED = "allowed", "refused", "ended"
_SECOND_NS = 10**9

log = logging.getLogger(LOGGER)


class LineLimiter:
    """A bounded number of lines in each second, and a count of the others, by kind. There are few kinds."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], tuple[int, int, int]] = {}
        """By kind: start of its second, lines in it, and events without a line."""

    def admit(self, kind: tuple[str, str], now_ns: int) -> int | None:
        """Returns the events without a line since the last line if this event gets one, else None."""
        start, lines, suppressed = self._kinds.get(kind, (now_ns, 0, 0))
        if now_ns - start >= _SECOND_NS:
            start, lines = now_ns, 0
        if lines >= LINES_PER_SECOND:
            self._kinds[kind] = start, lines, suppressed + 1
            return None
        self._kinds[kind] = start, lines + 1, 0
        return suppressed

    def take_suppressed(self) -> dict[tuple[str, str], int]:
        """Returns the kinds with events without a line, and forgets them."""
        found = {kind: suppressed for kind, (_, _, suppressed) in self._kinds.items() if suppressed}
        self._kinds.clear()
        return found


class AuditLog:
    """The audit log of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limiter = LineLimiter()
        self._on_line: list[Callable[[str], object]] = []

    def subscribe(self, on_line: Callable[[str], object]) -> None:
        """Calls a function with each line. It must not wait."""
        self._on_line.append(on_line)

    def record_login(self, caller: Caller, mechanism: str, listener: str) -> None:
        """Records that a login was accepted."""
        self._record(LOGIN, ALLOWED, **_describe_caller(caller), mechanism=mechanism, listener=listener)

    def record_certificate(self, caller: Caller, listener: str) -> None:
        """Records the principal of a connection with a certificate. A connection without a principal is no login."""
        if caller.principal != ANONYMOUS:
            self.record_login(caller, "certificate", listener)

    def record_ended_login(self, caller: Caller, mechanism: str, listener: str) -> None:
        """Records that a login was ended, because what it had proved has changed."""
        self._record(LOGIN, ENDED, **_describe_caller(caller), mechanism=mechanism, listener=listener)

    def record_refused_login(self, peer: str, listener: str, why: str) -> None:
        """Records that a login was refused. Its principal is not proved, so the event has none."""
        self._record(LOGIN, REFUSED, host=peer, listener=listener, why=why)

    def record_refusal(self, caller: Caller, operation: Operation, kind: ResourceType, name: str) -> None:
        """Records that rights refused an operation to a caller."""
        self._record(
            OPERATION, REFUSED, **_describe_caller(caller), operation=operation.name, resource_type=kind.name,
            resource_name=name,
        )  # fmt: skip

    def record_share(self, holder: str, pot: str, why: str) -> None:
        """Records that a pot has no room for more of a holder: a principal, or the network of an address."""
        self._record(SHARE, REFUSED, holder=holder, pot=pot, why=why)

    def write_counts(self) -> None:
        """Writes the number of the events that had no line, before the end of the log or of a subscriber."""
        for (event, outcome), suppressed in self._limiter.take_suppressed().items():
            self._write(event, outcome, suppressed, {})

    def _record(self, event: str, outcome: str, **fields: str) -> None:
        suppressed = self._limiter.admit((event, outcome), self._clock.mono_ns())
        if suppressed is not None:
            self._write(event, outcome, suppressed, fields)

    def _write(self, event: str, outcome: str, suppressed: int, fields: dict[str, str]) -> None:
        if not self._on_line and not log.isEnabledFor(logging.INFO):
            return
        at = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        shortened = {name: text[:TEXT_MAX] for name, text in fields.items()}
        counted = {"suppressed": suppressed} if suppressed else {}
        line = json.dumps({"time": at, "event": event, "outcome": outcome, **shortened, **counted})
        log.info("%s", line)
        for on_line in self._on_line:
            on_line(line)


def _describe_caller(caller: Caller) -> dict[str, str]:
    proof = {"proof": "delegation token"} if caller.by_token else {}
    return {"principal": str(caller.principal), "host": caller.host, **proof}
