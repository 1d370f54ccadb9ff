"""The group coordinator of one partition of `__consumer_offsets`, as a pure shard.

Hard state (committed offsets, and each group as its last rebalance left it) changes only by `apply`; it is what the
log holds, and all that a reply promises for good. Joins under way, parked callers and deadlines are soft: `decide` and
`due` change them, and a coordinator that moved begins without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tiered.metadata.groups.records import Record
from tiered.metadata.groups.requests import Now, Reply, Request
from tiered.metadata.groups.settings import GroupSettings


@dataclass(frozen=True, slots=True)
class Outcome:
    """What to append, and whom to answer once that and all before it is committed."""

    changes: tuple[Record, ...] = ()
    replies: tuple[tuple[int, Reply], ...] = ()


class GroupShard:
    """The changes of an outcome are applied already when the carrier gets it: it appends them, in order, and gives the
    replies out once they are committed. When an append fails the shard is dropped and loaded anew. `draw` gives a fresh
    UUID in text form. `next_due_ms` (None: never) is on the monotonic clock; look at it after each call."""

    def __init__(self, settings: GroupSettings, draw: Callable[[], str]) -> None: ...

    # -- the log -------------------------------------------------------------------------------------------------------

    def load(self, records: Iterable[Record]) -> None:
        """From an image, then from the log, in order; records of other kinds and of other formats are passed over."""

    def loaded(self, now: Now) -> None:
        """All is read: groups come alive, each member with a fresh session."""

    def apply(self, records: Iterable[Record]) -> None:
        """The only way in which hard state changes."""

    def image(self) -> list[Record]:
        """The hard state, as the fewest records that give it."""
        return []

    # -- decisions -----------------------------------------------------------------------------------------------------

    def decide(self, request: Request, now: Now, token: int) -> Outcome:
        """Answers `token` now or in a later outcome. Changes promise what the replies of this outcome say."""
        return Outcome()

    def due(self, now: Now) -> Outcome:
        """Does all whose time has come."""
        return Outcome()

    @property
    def next_due_ms(self) -> int | None:
        """When `due` has something to do."""
        return None

    def forget(self, token: int) -> None:
        """Whoever waits under this token is gone; a reply to it is not given any more."""

    def abandon(self) -> tuple[int, ...]:
        """The tokens that still wait (the shard is given up: the carrier refuses them)."""
        return ()
