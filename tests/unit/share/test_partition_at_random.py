"""Any steps of members, leaders and a coordinator in any order (I39).

A model beside the share partition knows which member holds each record until when, how often it was delivered, and
which acknowledgements were answered. Writes may be persisted late, in any order, twice, or never. The leader may end at
any time: the next one begins with what is persisted.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tiered.errors import Refused
from tiered.share.invariants import find_violations
from tiered.share.limits import ShareLimits
from tiered.share.partition import Acknowledgement, AcknowledgeType, OffsetRange, SharePartition, StateWrite
from tiered.share.state import RecordState, ShareState, join_batches

LIMITS = ShareLimits(delivery_count_max=3, lock_ms=100, in_flight_max=12)
MEMBERS = st.sampled_from("abc")
SIZES = st.integers(1, 7)


class Shares(RuleBasedStateMachine):
    """Members of one share group in one partition."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.log: list[OffsetRange] = []
        self.records: set[int] = set()
        self.log_start = 0
        self.leader_epoch = 0
        self.stored = ShareState(0)
        self.share = SharePartition(self.stored, 0, LIMITS)
        self.holders: dict[int, tuple[str, int]] = {}
        """Member of each record that is acquired, and the end of its lock."""
        self.deliveries: dict[int, int] = {}
        """Deliveries by this leader, and those that an earlier one had persisted."""
        self.accepted: set[int] = set()
        """Records whose acceptance was answered."""
        self.finished: set[int] = set()
        """Records that were rejected, or acknowledged as a gap, or delivered as often as permitted."""
        self.waiting: list[StateWrite] = []
        """Writes that members wait for."""
        self.sent: list[StateWrite] = []
        """All writes of any leader, which the network may still bring."""

    @initialize(sizes=st.lists(SIZES, min_size=1, max_size=8), gaps=st.lists(st.integers(0, 2), min_size=8, max_size=8))
    def begin(self, sizes: list[int], gaps: list[int]) -> None:
        """Makes a log with batches, and with holes that compaction left."""
        at = 0
        for size, gap in zip(sizes, gaps, strict=False):
            self.log.append(OffsetRange(at + gap, at + gap + size - 1))
            at += gap + size
            self.records |= set(range(at - size, at))

    # -- members -------------------------------------------------------------------------------------------------------

    def fetch(self, member: str, most: int, count: int, *, is_strict: bool) -> int:
        """Reads `count` batches where the share partition says, and acquires from them."""
        offset = max(self.share.next_fetch_offset, self.log_start)
        found = [each for each in self.log if each.last_offset >= offset][:count]
        if not found or not self.share.can_acquire:
            return 0
        got = self.share.acquire(member, offset, found, most, self.now, is_strict=is_strict)
        for first, last, delivery_count in got:
            for each in range(first, last + 1):
                assert each not in self.holders, f"{member} got {each}, which {self.holders[each]} holds"
                assert each not in self.accepted | self.finished, f"{each} came again after its acknowledgement"
                assert delivery_count > self.deliveries.get(each, 0), f"{each} has count {delivery_count}"
                self.deliveries[each] = delivery_count
                self.holders[each] = member, self.now + LIMITS.lock_ms
        taken = sum(last - first + 1 for first, last, _ in got)
        assert not is_strict or taken <= most
        return taken

    @rule(member=MEMBERS, most=st.integers(1, 9), count=st.integers(1, 4), is_strict=st.booleans())
    def acquire(self, member: str, most: int, count: int, is_strict: bool) -> None:
        self.fetch(member, most, count, is_strict=is_strict)

    @rule(member=MEMBERS, skip=st.integers(0, 5), types=st.lists(st.sampled_from(AcknowledgeType), min_size=1))
    def acknowledge(self, member: str, skip: int, types: list[AcknowledgeType]) -> None:
        """Acknowledges neighbours that a member holds."""
        held = sorted({each for each, (holder, _) in self.holders.items() if holder == member} - self.in_writes())[
            skip:
        ]
        if not held:
            return
        run = [each for at, each in enumerate(held) if each == held[0] + at][: len(types)]
        kinds = bytes(types[: len(run)])
        write = self.share.acknowledge(member, [Acknowledgement(run[0], run[-1], kinds)], self.now)
        for each, kind in zip(run, kinds, strict=True):
            if kind == AcknowledgeType.RENEW:
                self.holders[each] = member, self.now + LIMITS.lock_ms
        self.send(write)

    @rule(member=MEMBERS, first=st.integers(-1, 30), size=st.integers(0, 9), types=st.binary(max_size=3))
    def acknowledge_anything(self, member: str, first: int, size: int, types: bytes) -> None:
        """Acknowledges what the member may not hold: a refusal changes nothing, which the invariants see."""
        last = first + size
        if all(self.holders.get(each, ("",))[0] == member for each in range(first, last + 1)):
            return
        if last < self.log_start or (first < self.log_start <= last):
            return
        try:
            write = self.share.acknowledge(member, [Acknowledgement(first, last, types)], self.now)
        except Refused:
            return
        assert write is None, f"{member} acknowledged {first} to {last}"
        assert last < self.share.start_offset

    @rule(member=MEMBERS)
    def leave(self, member: str) -> None:
        self.send(self.share.release_member(member))

    def send(self, write: StateWrite | None) -> None:
        if write is not None:
            self.sent.append(write)
            self.waiting.append(write)

    # -- time ----------------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 40, 100]))
    def pass_time(self, ms: int) -> None:
        self.now += ms
        write = self.share.due(self.now)
        late = {each for each, (_, until) in self.holders.items() if until <= self.now and each >= self.log_start}
        assert (set() if write is None else set(offsets_of(write))) == late - self.in_writes()
        if write is not None:
            self.sent.append(write)
            self.end_holds(write)

    def in_writes(self) -> set[int]:
        """Returns the records that members wait for."""
        return {each for one in self.waiting for each in offsets_of(one)}

    def end_holds(self, write: StateWrite) -> None:
        for batch in write.batches:
            for each in range(batch.first_offset, batch.last_offset + 1):
                self.holders.pop(each, None)
                if batch.state is RecordState.ARCHIVED:
                    self.finished.add(each)

    # -- the coordinator -----------------------------------------------------------------------------------------------

    def persist(self, write: StateWrite) -> bool:
        if write.leader_epoch < self.leader_epoch:
            return False
        start = max(self.stored.start_offset, write.start_offset)
        self.stored = ShareState(start, 0, join_batches((*self.stored.batches, *write.batches), start))
        return True

    @precondition(lambda self: self.waiting)
    @rule(number=st.integers(0, 9))
    def answer(self, number: int) -> None:
        """A write that members wait for is persisted."""
        write = self.waiting.pop(number % len(self.waiting))
        assert self.persist(write)
        self.share.on_written(write.write_id)
        self.end_holds(write)
        for batch in write.batches:
            if batch.state is RecordState.ACKNOWLEDGED:
                self.accepted |= set(range(batch.first_offset, batch.last_offset + 1))

    @precondition(lambda self: self.waiting)
    @rule(number=st.integers(0, 9))
    def lose(self, number: int) -> None:
        """The reply to a write gets lost. The write may still come."""
        self.share.on_write_failed(self.waiting.pop(number % len(self.waiting)).write_id)

    @precondition(lambda self: self.sent)
    @rule(number=st.integers(0, 99))
    def persist_late(self, number: int) -> None:
        """The network brings some write, maybe again."""
        self.persist(self.sent[number % len(self.sent)])

    @rule()
    def move_leader(self) -> None:
        """The next leader reads the persisted state, which fences the one before."""
        self.leader_epoch += 1
        self.holders.clear()
        self.waiting.clear()
        self.deliveries.clear()
        for batch in self.stored.batches:
            for each in range(batch.first_offset, batch.last_offset + 1):
                self.deliveries[each] = batch.delivery_count
        self.share = SharePartition(self.stored, self.leader_epoch, LIMITS)
        self.finished = {
            each for each in self.finished if self.is_done(each)
        }  # an expiry that was not persisted is repeated
        self.share.on_log_start(self.log_start)

    def is_done(self, offset: int) -> bool:
        return offset < self.stored.start_offset or any(
            each.first_offset <= offset <= each.last_offset and RecordState(each.state).is_terminal
            for each in self.stored.batches
        )

    @rule(by=st.integers(1, 4))
    def delete_records(self, by: int) -> None:
        self.log_start = min(self.log_start + by, self.log[-1].last_offset + 1)
        self.share.on_log_start(self.log_start)
        self.holders = {each: held for each, held in self.holders.items() if each >= self.log_start}

    @invariant()
    def holds(self) -> None:
        assert not list(find_violations(self.share))
        held = {
            each
            for run in self.share.in_flight.runs
            if run.state is RecordState.ACQUIRED
            for each in range(run.first_offset, run.last_offset + 1)
        }
        assert held == set(self.holders)
        assert not [each for each in self.accepted if each >= self.stored.start_offset and not self.is_done(each)]

    def teardown(self) -> None:
        """All records come to an end once the coordinator answers and members accept what they get."""
        if not self.log:
            return
        for _ in range(100):
            while self.waiting:
                self.answer(0)
            self.pass_time(100)
            if self.fetch("z", 9, 3, is_strict=False):
                held = sorted(each for each, (holder, _) in self.holders.items() if holder == "z")
                for each in held:
                    self.send(self.share.acknowledge("z", [Acknowledgement(each, each, b"\1")], self.now))
        end = self.log[-1].last_offset + 1
        assert self.share.start_offset == self.share.end_offset == max(end, self.log_start)
        left = self.records - self.accepted - self.finished
        assert all(each < self.log_start or self.is_done(each) for each in left), f"{left} were skipped"


def offsets_of(write: StateWrite) -> list[int]:
    """Returns the offsets of a write."""
    return [each for first, last, _, _ in write.batches for each in range(first, last + 1)]


Shares.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestShares = Shares.TestCase
