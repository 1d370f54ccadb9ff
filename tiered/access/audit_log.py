"""The audit log as lines of JSON: logins that were accepted or refused, what rights and shares refused, and the changes
that callers made.

The events go to the logger `tiered.audit`, and to the subscribers. A flood of one caller does not hide the lines of
others: `LineLimiter` has the rule. Events without a line are counted, and the next line of their kind has their number
in `suppressed`. Each event of a super user has its line.

A change is never only counted: nobody hides a deletion behind others. Changes above the bound share lines, which have
the names of many resources.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from tiered.controller.change_descriptions import DescribedChange
from tiered.networks import network_of
from tiered.ports import Clock
from tiered.security.acls import Operation, ResourceType
from tiered.security.principal import ANONYMOUS, Caller

LOGGER = "tiered.audit"
LINES_PER_SECOND = 10
"""Lines of one holder in a second, for each kind of event: a principal, or the network of an address."""
CHANGES_PER_SECOND = 100
"""Lines of one holder in a second for changes."""
FOLDED_CHARACTERS = 4_000
"""Characters of names after which a line of several resources is written."""
FOLDED_MAX = 1000
"""Lines of several resources that gather names. Another one is written before a new one begins."""
HOLDERS_PER_SECOND = 1000
"""Holders that have lines of one kind in a second."""
TEXT_MAX = 250
"""Most characters of a text in an event. A request may name anything."""
DETAIL_MAX = 2000
"""Most characters of the detail of a change: it has room for all settings that a request may change in practice."""
CUT = "..."
"""The end of a text that was cut."""
LOGIN, OPERATION, SHARE, CHANGE = "login", "operation", "share", "change"
ALLOWED, REFUSED, ENDED = "allowed", "refused", "ended"
DONE, UNKNOWN = "done", "unknown"
_SECOND_NS = 10**9

log = logging.getLogger(LOGGER)


class _Second:
    """One second of a kind of event."""

    __slots__ = ("lines", "start_ns", "suppressed")

    def __init__(self, start_ns: int, suppressed: int) -> None:
        self.start_ns = start_ns
        self.lines: dict[str, int] = {}
        """Lines by holder."""
        self.suppressed = suppressed
        """Events without a line since the last line."""


class LineLimiter:
    """A bounded number of lines in each second, for each holder and kind, and a count of the others by kind. There are
    few kinds."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], _Second] = {}

    def admit(self, kind: tuple[str, str], holder: str, now_ns: int, most: int | None = LINES_PER_SECOND) -> int | None:
        """Returns the events without a line since the last line if this event gets one, else None. `most` is the number
        of lines of the holder in a second; None is no limit."""
        second = self._kinds.get(kind)
        if second is None or now_ns - second.start_ns >= _SECOND_NS:
            second = self._kinds[kind] = _Second(now_ns, 0 if second is None else second.suppressed)
        if most is not None:
            lines = second.lines.get(holder, 0)
            if lines >= most or (not lines and len(second.lines) >= HOLDERS_PER_SECOND):
                second.suppressed += 1
                return None
            second.lines[holder] = lines + 1
        suppressed, second.suppressed = second.suppressed, 0
        return suppressed

    def uncount(self, kind: tuple[str, str]) -> None:
        """Counts one event less: it shares a line."""
        self._kinds[kind].suppressed -= 1

    def take_suppressed(self) -> dict[tuple[str, str], int]:
        """Returns the kinds with events without a line, and forgets them."""
        found = {kind: second.suppressed for kind, second in self._kinds.items() if second.suppressed}
        self._kinds.clear()
        return found


class AuditLog:
    """The audit log of one broker."""

    def __init__(self, clock: Clock, super_users: frozenset[str] = frozenset()) -> None:
        self._clock = clock
        self._super_users = super_users
        self._limiter = LineLimiter()
        self._folded: dict[tuple[str, ...], list[str]] = {}
        """Names of resources that wait for a shared line, by what they have in common."""
        self._on_line: list[Callable[[str], object]] = []

    def subscribe(self, on_line: Callable[[str], object]) -> None:
        """Calls a function with each line. It must not wait."""
        self._on_line.append(on_line)

    def record_login(self, caller: Caller, mechanism: str, listener: str) -> None:
        """Records that a login was accepted."""
        self._record(LOGIN, ALLOWED, caller, mechanism=mechanism, listener=listener)

    def record_certificate(self, caller: Caller, listener: str) -> None:
        """Records the principal of a connection with a certificate. A connection without a principal is no login."""
        if caller.principal != ANONYMOUS:
            self.record_login(caller, "certificate", listener)

    def record_ended_login(self, caller: Caller, mechanism: str, listener: str) -> None:
        """Records that a login was ended, because what it had proved has changed."""
        self._record(LOGIN, ENDED, caller, mechanism=mechanism, listener=listener)

    def record_refused_login(self, host: str, listener: str, why: str, claimed_user: str = "") -> None:
        """Records that a login was refused. Its principal is not proved, so the event has none: it has the user that
        the client named."""
        claimed = {"claimed_user": claimed_user} if claimed_user else {}
        self._record_limited(LOGIN, REFUSED, network_of(host), host=host, listener=listener, why=why, **claimed)

    def record_refusal(self, caller: Caller, operation: Operation, kind: ResourceType, name: str) -> None:
        """Records that rights refused an operation to a caller."""
        self._record(OPERATION, REFUSED, caller, operation=operation.name, resource_type=kind.name, resource_name=name)

    def record_share(self, holder: str, pot: str, why: str) -> None:
        """Records that a pot has no room for more of a holder: a principal, or the network of an address."""
        self._record_limited(SHARE, REFUSED, holder, holder=holder, pot=pot, why=why)

    def record_changes(self, caller: Caller, changes: Iterable[DescribedChange], outcome: str = DONE) -> None:
        """Records what a caller changed. The outcome is `UNKNOWN` if the controller did not reply in time."""
        for each in changes:
            detail = {"detail": each.detail} if each.detail else {}
            shared = {"operation": each.operation, "resource_type": each.resource_type}
            if not self._record(
                CHANGE, outcome, caller, CHANGES_PER_SECOND, **shared, resource_name=each.resource_name, **detail
            ):
                self._limiter.uncount((CHANGE, outcome))
                self._fold(outcome, {**_describe_caller(caller), **shared}, each.resource_name)

    def _fold(self, outcome: str, fields: dict[str, str], name: str) -> None:
        key = (outcome, *(part for pair in fields.items() for part in pair))
        if key not in self._folded and len(self._folded) >= FOLDED_MAX:
            self._write_folded(next(iter(self._folded)))
        names = self._folded.setdefault(key, [])
        names.append(_shorten(name, TEXT_MAX))
        if sum(map(len, names)) + len(names) >= FOLDED_CHARACTERS:
            self._write_folded(key)

    def write_folded(self) -> None:
        """Writes the changes that wait for a shared line. The broker calls it each second."""
        for key in list(self._folded):
            self._write_folded(key)

    def _write_folded(self, key: tuple[str, ...]) -> None:
        names, fields = self._folded.pop(key), dict(zip(key[1::2], key[2::2], strict=True))
        self._write(CHANGE, key[0], 0, fields, names)

    def write_counts(self) -> None:
        """Writes changes that share lines, and the number of the events that had no line, before the end of the log or
        of a subscriber."""
        self.write_folded()
        for (event, outcome), suppressed in self._limiter.take_suppressed().items():
            self._write(event, outcome, suppressed, {})

    def _record(self, event: str, outcome: str, caller: Caller, most: int = LINES_PER_SECOND, **fields: str) -> bool:
        """Records an event of a caller. It counts for its principal, or for its network if it is anonymous. Returns
        True if it has a line."""
        principal = str(caller.principal)
        holder = network_of(caller.host) if caller.principal == ANONYMOUS else principal
        limit = None if principal in self._super_users else most
        return self._record_limited(event, outcome, holder, limit, **_describe_caller(caller), **fields)

    def _record_limited(
        self, event: str, outcome: str, holder: str, most: int | None = LINES_PER_SECOND, /, **fields: str
    ) -> bool:
        suppressed = self._limiter.admit((event, outcome), holder, self._clock.mono_ns(), most)
        if suppressed is not None:
            self._write(event, outcome, suppressed, fields)
        return suppressed is not None

    def _write(
        self, event: str, outcome: str, suppressed: int, fields: dict[str, str], names: Sequence[str] = ()
    ) -> None:
        if not self._on_line and not log.isEnabledFor(logging.INFO):
            return
        at = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        shortened = {
            name: _shorten(text, DETAIL_MAX if name == "detail" else TEXT_MAX) for name, text in fields.items()
        }
        counted = {"suppressed": suppressed} if suppressed else {}
        several = {"resource_names": names} if names else {}
        line = json.dumps({"time": at, "event": event, "outcome": outcome, **shortened, **several, **counted})
        log.info("%s", line)
        for on_line in self._on_line:
            on_line(line)


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - len(CUT)] + CUT


def _describe_caller(caller: Caller) -> dict[str, str]:
    proof = {"proof": "delegation token"} if caller.by_token else {}
    return {"principal": str(caller.principal), "host": caller.host, **proof}
