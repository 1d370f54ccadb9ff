"""The shape of replicated state behind a log: decide, append, commit, reply.

`decide` judges a request against the state and says what to append. A carrier appends that, and sends replies once it
is committed. `apply` alone changes the state that the log has. A shard that loses its log is dropped and loaded again
by replay, so there is no rollback.

`Shard` is what all shards share. The controller is one; its log is the metadata log. A `CoordinatorShard` stands behind
one partition of an internal topic, and is run by `tiered.coordinator`: it parks requests and has deadlines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

Request_contra = TypeVar("Request_contra", contravariant=True)
Now_contra = TypeVar("Now_contra", contravariant=True)
Decision_co = TypeVar("Decision_co", covariant=True)
Change_contra = TypeVar("Change_contra", contravariant=True)
Reply_co = TypeVar("Reply_co", covariant=True)
Event_co = TypeVar("Event_co", covariant=True)

UNAWAITED = 0
"""The token of a request whose reply nobody waits for."""


class Shard(Protocol[Request_contra, Now_contra, Decision_co, Change_contra]):
    """State behind a log. A decision names the changes to append, and the replies to send once they are committed."""

    def decide(self, request: Request_contra, now: Now_contra, /) -> Decision_co: ...
    def apply(self, changes: Sequence[Change_contra], /) -> None: ...


# -- coordinators -----------------------------------------------------------------------------------------------------


class Now(NamedTuple):
    """The clocks at one instant: `mono_ms` (any origin) for deadlines, `wall_ms` for the content of records.

    `expiry_ms` is the time by which ages are judged. It is earlier than `wall_ms` while that may be fast.
    """

    mono_ms: int
    wall_ms: int
    expiry_ms: int


class ProducerIdAndEpoch(NamedTuple):
    """The producer of a transaction."""

    producer_id: int
    epoch: int


class CoordinatorRecord(NamedTuple):
    """One record of an internal topic. A record without a value is a tombstone.

    A record with a `producer` belongs to its open transaction: the end of that decides about the effect of the record.
    """

    key: bytes
    value: bytes | None
    producer: ProducerIdAndEpoch | None = None


class CoordinatorResult(NamedTuple, Generic[Reply_co, Event_co]):
    """Records to append. Once these and all records before them are committed, `replies` (by token) are sent.

    `events` say what the decision did. They go to the shard's observer together with the replies.
    """

    records: tuple[CoordinatorRecord, ...] = ()
    replies: tuple[tuple[int, Reply_co], ...] = ()
    events: tuple[Event_co, ...] = ()


class CoordinatorShard(
    Shard[Request_contra, Now, CoordinatorResult[Reply_co, Event_co], CoordinatorRecord],
    Protocol[Request_contra, Reply_co, Event_co],
):
    """State behind one partition of an internal topic.

    The records of a result are applied already when the caller gets it. The reply to a request comes with its decision
    or with a later one, under the request's token. `next_due_ms` (None: never) is on the monotonic clock; it may change
    with each call.
    """

    @property
    def next_due_ms(self) -> int | None: ...
    def decide(
        self, request: Request_contra, now: Now, token: int = UNAWAITED, /
    ) -> CoordinatorResult[Reply_co, Event_co]: ...
    def due(self, now: Now, /) -> CoordinatorResult[Reply_co, Event_co]:
        """Handles all deadlines that have come."""

    def cancel_request(self, token: int, /) -> None:
        """Drops the parked request of a caller that is gone."""

    def end_transaction(self, marker: ProducerIdAndEpoch, is_commit: bool, /) -> None:
        """Applies a marker of the log: the producer's records before it take effect or vanish. `marker` has the epoch
        of the marker, which is that of the records, or a later one."""

    def on_loaded(self, now: Now, /) -> None:
        """Starts deadlines, once `apply` got all records of the snapshot and of the log."""

    def snapshot(self) -> Iterator[Sequence[CoordinatorRecord]]:
        """Yields the fewest records that give the state, in parts.

        The state may change between two parts. The records of such a change, applied after the snapshot, have to give
        the state as it is then.
        """
