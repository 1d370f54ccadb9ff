"""One share partition on the leader of its topic partition: rule I39.

A member acquires records for a time. It acknowledges each, renews its lock, or loses it when the time is over. The
state machine reads neither logs nor clocks. Its caller fetches at `next_fetch_offset` and tells which batches are
there, persists each `StateWrite`, and says how that ended.

Persist before promise: acknowledged records stay acquired until their write is persisted, and an acknowledgement is
answered after that. Locks that run out do not wait: their records are available at once. A write that gets lost takes
a delivery from the count of the next leader, and nothing else. So does a leader that ends before a record is released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

from tiered.errors import Code, Refused, check_invariant
from tiered.share.in_flight import NO_WRITE, InFlight, Run
from tiered.share.limits import ShareLimits
from tiered.share.state import DELIVERY_COUNT_LAST, RecordState, ShareState, StateBatch, append_batch


class AcknowledgeType(IntEnum):
    """Kafka's numbers for what a member says of a record. GAP: there is no record at this offset."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


ACKNOWLEDGE_TYPES = bytes(AcknowledgeType)
_NEXT_STATES = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
}


class OffsetRange(NamedTuple):
    """Offsets from the first to the last one."""

    first_offset: int
    last_offset: int


class AcquiredRecords(NamedTuple):
    """Records that a member got, all for the same number of times."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Acknowledgement(NamedTuple):
    """Acknowledged records: one type for all of them, or one for each."""

    first_offset: int
    last_offset: int
    types: bytes


class StateWrite(NamedTuple):
    """Changes to persist. The epochs fence a leader that has a successor, and the state before a reset of offsets."""

    write_id: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    """Records at or above the start offset that no member gets any more."""
    batches: tuple[StateBatch, ...]


class SharePartition:
    """The in-flight records of one group in one partition, from the state that an earlier leader left."""

    def __init__(self, state: ShareState, leader_epoch: int, limits: ShareLimits) -> None:
        check_invariant(state.start_offset >= 0, state)
        self.limits = limits
        self.state_epoch = state.state_epoch
        self.leader_epoch = leader_epoch
        self.in_flight = InFlight(state.start_offset)
        self.next_due_ms: int | None = None
        """No lock runs out before this time; None if there are no locks."""
        self._available_from = state.start_offset
        """No record below is available."""
        self._last_write_id = NO_WRITE
        self._writes: dict[int, OffsetRange] = {}
        """The offsets of writes that are on their way, by id. Each has runs of its own."""
        for batch in state.batches:
            self.in_flight.extend(batch.first_offset - self.end_offset, RecordState.AVAILABLE)
            first, last, number, count = batch
            self.in_flight.append(Run(first, last, RecordState(number), count))
        self.in_flight.drop_done()

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """The first offset whose record may still be delivered."""
        return self.in_flight.start_offset

    @property
    def end_offset(self) -> int:
        """The first offset that no member has acquired."""
        return self.in_flight.end_offset

    @property
    def next_fetch_offset(self) -> int:
        """The first available record of those that were released, else the end offset."""
        end = self.end_offset
        for run in self.in_flight.overlapping(self._available_from, end):
            if run.state is RecordState.AVAILABLE:
                self._available_from = run.first_offset
                return run.first_offset
        self._available_from = end
        return end

    @property
    def can_acquire(self) -> bool:
        """True if a fetch at `next_fetch_offset` may give records to a member."""
        return self.next_fetch_offset < self.end_offset or self._room > 0

    @property
    def delivery_complete_count(self) -> int:
        """Records at or above the start offset that no member gets any more."""
        return sum(map(_size, filter(_is_terminal, self.in_flight.runs)))

    @property
    def _room(self) -> int:
        return self.limits.in_flight_max - (self.end_offset - self.start_offset)

    # -- acquiring ----------------------------------------------------------------------------------------------------

    def acquire(
        self,
        member_id: str,
        fetch_offset: int,
        fetched: Sequence[OffsetRange],
        max_records: int,
        now_ms: int,
        *,
        is_strict: bool = False,
    ) -> tuple[AcquiredRecords, ...]:
        """Gives a member the available records of a fetch.

        `fetched` are the batches that a read at `fetch_offset` found, in order. Offsets before and between them have no
        records. A batch is given as a whole, even if that is more than `max_records`, unless the limit `is_strict`. The
        bound of in-flight records is always strict.
        """
        check_invariant(fetch_offset <= self.end_offset, fetch_offset, self.end_offset)
        acquired: list[AcquiredRecords] = []
        left, at, until_ms = max_records, fetch_offset, now_ms + self.limits.lock_ms
        for first, last in fetched:
            if left <= 0:
                break
            self._archive_gap(at, min(first, last + 1) - 1)
            wanted = left if is_strict else last - first + 1
            for run in self._take(max(first, self.start_offset), last, wanted):
                run.state, run.member_id, run.lock_until_ms = RecordState.ACQUIRED, member_id, until_ms
                run.delivery_count = min(run.delivery_count + 1, DELIVERY_COUNT_LAST)
                left -= _size(run)
                _append_acquired(acquired, run)
            at = last + 1
            if self.end_offset <= last:
                break  # no more may be in flight, and the rest of the batch comes later
        if acquired:
            self._advance_due(until_ms)
        self.in_flight.unite(min(fetch_offset, fetched[0].first_offset) if fetched else at, at)
        self.in_flight.drop_done()
        return tuple(acquired)

    def _take(self, first: int, last: int, wanted: int) -> Iterator[Run]:
        """Yields runs of available records in a range, those at the end included."""
        for run in self._available_runs(first, last):
            if wanted <= 0:
                return
            self.in_flight.cut_out(run.first_offset, min(run.last_offset, run.first_offset + wanted - 1))
            wanted -= _size(run)
            yield run
        size = min(last - self.end_offset + 1, self._room, wanted)
        if size > 0:
            yield self.in_flight.extend(size, RecordState.AVAILABLE)

    def _available_runs(self, first: int, last: int) -> list[Run]:
        if first > last or not any(
            run.state is RecordState.AVAILABLE for run in self.in_flight.overlapping(first, last)
        ):
            return []
        return [run for run in self.in_flight.cut_out(first, last) if run.state is RecordState.AVAILABLE]

    def _archive_gap(self, first: int, last: int) -> None:
        """Archives offsets that have no records: those of batches that compaction removed."""
        for run in self._available_runs(max(first, self.start_offset), last):
            run.state = RecordState.ARCHIVED
        self.in_flight.extend(last + 1 - self.end_offset, RecordState.ARCHIVED)
        self.in_flight.drop_done()

    # -- acknowledging ------------------------------------------------------------------------------------------------

    def acknowledge(self, member_id: str, batches: Sequence[Acknowledgement], now_ms: int) -> StateWrite | None:
        """Acknowledges records that a member holds. Returns the write that the reply waits for; None for none.

        Records below the start offset are skipped: the log or a reset of offsets took them. Raises `Refused`, and then
        changes nothing: INVALID_REQUEST for a request that is malformed or beyond the records that were acquired,
        INVALID_RECORD_STATE for records that the member does not hold.
        """
        self._check_form(batches)
        for first, last, _ in batches:
            for run in self.in_flight.overlapping(max(first, self.start_offset), last):
                if not run.is_held or run.member_id != member_id:
                    raise Refused(
                        Code.INVALID_RECORD_STATE, f"{first} to {last}: the member does not hold {run.first_offset}"
                    )
        changed: list[Run] = []
        for first, last, types in batches:
            for begin, end, each in _pieces(first, last, types):
                runs = self.in_flight.cut_out(max(begin, self.start_offset), end)
                if each is AcknowledgeType.RENEW:
                    for run in runs:
                        run.lock_until_ms = now_ms + self.limits.lock_ms
                else:
                    for run in runs:
                        run.next_state = self._state_after(run, _NEXT_STATES[each])
                    changed += runs
        write = self._begin_write(changed)
        if batches:
            self.in_flight.unite(batches[0].first_offset, batches[-1].last_offset)
        return write

    def _check_form(self, batches: Sequence[Acknowledgement]) -> None:
        at = -1
        for first, last, types in batches:
            if not at < first <= last:
                raise Refused(Code.INVALID_REQUEST, f"{first} to {last}: batches are in order and do not overlap")
            if len(types) not in (1, last - first + 1):
                raise Refused(Code.INVALID_REQUEST, f"{first} to {last}: {len(types)} types of acknowledgement")
            if types.strip(ACKNOWLEDGE_TYPES):
                raise Refused(Code.INVALID_REQUEST, f"{first} to {last}: a type of acknowledgement is not known")
            at = last
        if at >= self.end_offset:
            raise Refused(Code.INVALID_REQUEST, f"{at} is past the acquired records, which end at {self.end_offset}")

    def release_member(self, member_id: str) -> StateWrite | None:
        """Releases all records that a member holds: its session is over. Returns the write to persist."""
        runs = [run for run in self.in_flight.runs if run.is_held and run.member_id == member_id]
        for run in runs:
            run.next_state = self._state_after(run, RecordState.AVAILABLE)
        return self._begin_write(runs)

    def _state_after(self, run: Run, state: RecordState) -> RecordState:
        """Returns the next state: a record that was delivered as often as permitted is archived in place of another
        delivery."""
        is_last = state is RecordState.AVAILABLE and run.delivery_count >= self.limits.delivery_count_max
        return RecordState.ARCHIVED if is_last else state

    # -- locks --------------------------------------------------------------------------------------------------------

    def due(self, now_ms: int) -> StateWrite | None:
        """Releases the records whose locks ran out. Returns a write to persist, for which nothing waits."""
        if self.next_due_ms is None or now_ms < self.next_due_ms:
            return None
        held = [run for run in self.in_flight.runs if run.is_held]
        late = [run for run in held if run.lock_until_ms <= now_ms]
        for run in late:
            run.next_state = self._state_after(run, RecordState.AVAILABLE)
        write = self._begin_write(late)
        self.next_due_ms = min((run.lock_until_ms for run in held if run.lock_until_ms > now_ms), default=None)
        if write is not None:
            self.on_written(write.write_id)
        return write

    def _advance_due(self, due_ms: int) -> None:
        self.next_due_ms = due_ms if self.next_due_ms is None else min(self.next_due_ms, due_ms)

    # -- writes -------------------------------------------------------------------------------------------------------

    def _begin_write(self, runs: Sequence[Run]) -> StateWrite | None:
        """Makes a write of the next states of runs, which are in the order of their offsets."""
        if not runs:
            return None
        self._last_write_id += 1
        batches: list[StateBatch] = []
        done = self.delivery_complete_count
        for run in runs:
            run.write_id = self._last_write_id
            done += _size(run) if run.next_state.is_terminal else 0
            append_batch(batches, StateBatch(run.first_offset, run.last_offset, run.next_state, run.delivery_count))
        self._writes[self._last_write_id] = OffsetRange(runs[0].first_offset, runs[-1].last_offset)
        return StateWrite(
            self._last_write_id, self.state_epoch, self.leader_epoch, self.start_offset, done, tuple(batches)
        )

    def on_written(self, write_id: int) -> None:
        """Gives the records of a persisted write their next state."""

        def finish(run: Run) -> None:
            run.state, run.member_id, run.lock_until_ms = run.next_state, "", 0
            if run.state is RecordState.AVAILABLE:
                self._available_from = min(self._available_from, run.first_offset)

        self._end_write(write_id, finish)
        self.in_flight.drop_done()

    def on_write_failed(self, write_id: int) -> None:
        """Leaves the records of a write with their member, whose lock goes on: the write may be persisted or not."""
        self._end_write(write_id, lambda run: self._advance_due(run.lock_until_ms))

    def _end_write(self, write_id: int, end: Callable[[Run], None]) -> None:
        written = self._writes.pop(write_id)
        for run in self.in_flight.overlapping(*written):
            if run.write_id == write_id:
                end(run)
                run.write_id, run.next_state = NO_WRITE, RecordState.AVAILABLE
        self.in_flight.unite(*written)

    # -- the log ------------------------------------------------------------------------------------------------------

    def on_log_start(self, offset: int) -> None:
        """Drops the records below the start of the log. Their acknowledgements are skipped."""
        if offset > self.start_offset:
            self.in_flight.drop_below(offset)
            self.in_flight.drop_done()


def _size(run: Run) -> int:
    return run.last_offset - run.first_offset + 1


def _is_terminal(run: Run) -> bool:
    return run.state.is_terminal


def _append_acquired(acquired: list[AcquiredRecords], run: Run) -> None:
    if acquired:
        first, last, count = acquired[-1]
        if last + 1 == run.first_offset and count == run.delivery_count:
            acquired[-1] = AcquiredRecords(first, run.last_offset, count)
            return
    acquired.append(AcquiredRecords(run.first_offset, run.last_offset, run.delivery_count))


def _pieces(first: int, last: int, types: bytes) -> Iterable[tuple[int, int, AcknowledgeType]]:
    """Yields the parts of a batch that have one type each, by their first and last offset."""
    if len(types) == 1:
        yield first, last, AcknowledgeType(types[0])
        return
    for each, group in groupby(types):
        size = sum(1 for _ in group)
        yield first, first + size - 1, AcknowledgeType(each)
        first += size
