"""I34: a group of REST consumers gets each record from its first read of a partition on, at least once.

Hooks observe where resets put the group, and which positions it commits. The clients report what they have read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.sim.cluster.checkers import LossPredicate
from tests.sim.cluster.history import ReadRecord, Send, SendVerdict
from tests.sim.cluster.model_of_copies import ReportFinding
from tests.sim.cluster.observer import Finding, patched
from tiered.errors import Code
from tiered.groups.requests import PartitionOffset
from tiered.ids import TopicPartition
from tiered_api.http.consumers.instance import ConsumerInstance
from tiered_api.http.consumers.member import RestMember
from tiered_api.http.partitions.remote_partition import AnyPartition

Positions = Mapping[TopicPartition, int]


class Skip(NamedTuple):
    """Records that a reset passed over, from `start` to `end`: the position was deleted."""

    tp: TopicPartition
    start: int
    end: int


@dataclass
class RestReads:
    """The reads and commits of a group of REST consumers. `begins_at_end`: its resets go to the end, which moves, so
    that a position counts only once the group has it. `commits_alone`: each read commits the position of a reset; the
    group has it unless it refused the commit."""

    begins_at_end: bool = False
    commits_alone: bool = True
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    """The position from which on each record must be delivered."""
    delivered: dict[TopicPartition, dict[int, bytes]] = field(default_factory=dict)
    skips: list[Skip] = field(default_factory=list)
    _committed: set[TopicPartition] = field(default_factory=set)
    _refused: set[TopicPartition] = field(default_factory=set)
    """Partitions whose first commit was refused, or may have been."""

    def on_read(self, rows: Mapping[TopicPartition, Sequence[ReadRecord]], positions: Positions) -> None:
        """Handles one reply. `positions` are those from which it was read."""
        for tp, records in rows.items():
            self.delivered.setdefault(tp, {}).update((each.offset, each.value) for each in records)
        firsts = {tp: records[0].offset for tp, records in rows.items()}
        for tp in firsts.keys() | positions.keys():
            known = [each[tp] for each in (firsts, positions) if tp in each]
            if not self.begins_at_end or (self.commits_alone and tp not in self._refused):
                self.starts.setdefault(tp, min(known))

    def on_committed(self, tp: TopicPartition, offset: int) -> None:
        """The group has a position from now on."""
        if tp not in self._committed:
            self._committed.add(tp)
            self._refused.discard(tp)
            self.starts.setdefault(tp, offset)

    def on_commit_failed(self, tp: TopicPartition) -> None:
        """A commit was refused, or its outcome is unknown: the next member may begin at another end."""
        if self.begins_at_end and tp not in self._committed:
            self._refused.add(tp)
            self.starts.pop(tp, None)


class RestChecker:
    """The hooks of one run. `log_start` returns the true log start of a partition; `is_judged` is true for one that
    lasts for the whole run."""

    def __init__(
        self,
        report: ReportFinding,
        log_start: Callable[[TopicPartition], int],
        is_judged: Callable[[TopicPartition], bool],
        reads: RestReads,
    ) -> None:
        self.reads = reads
        self.counts = {"resets": 0, "deleted_positions": 0, "commits": 0, "generations": 0}
        self._report = report
        self._log_start = log_start
        self._is_judged = is_judged
        self._reached: dict[TopicPartition, int] = {}
        """The highest position that a delivery or a reset gave."""
        self._assigned: dict[tuple[str, int], frozenset[TopicPartition]] = {}
        """Partitions of a member, by its instance and its generation."""

    def on_read(self, rows: Mapping[TopicPartition, Sequence[ReadRecord]], positions: Positions) -> None:
        """Handles a reply that a client has read."""
        self.reads.on_read(rows, positions)
        for tp, records in rows.items():
            self._raise(tp, records[-1].offset + 1)

    def _raise(self, tp: TopicPartition, position: int) -> None:
        self._reached[tp] = max(self._reached.get(tp, -1), position)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Observes everything within the context."""
        hooks: tuple[tuple[type[Any], str, Callable[[Any], Any]], ...] = (
            (ConsumerInstance, "_reset_offset", self._reset_offset),
            (ConsumerInstance, "reset_position", self._reset_position),
            (ConsumerInstance, "commit", self._commit),
            (RestMember, "_join_group", self._join),
        )
        with ExitStack() as stack:
            for owner, name, make in hooks:
                stack.enter_context(patched(owner, name, make))
            yield

    def _reset_offset(self, original: Any) -> Any:
        async def reset_offset(instance: ConsumerInstance, source: AnyPartition, why: str) -> int:
            offset: int = await original(instance, source, why)
            self.counts["resets"] += 1
            self._raise(source.tp, offset)
            return offset

        return reset_offset

    def _reset_position(self, original: Any) -> Any:
        async def reset_position(
            instance: ConsumerInstance, tp: TopicPartition, source: AnyPartition, position: int
        ) -> None:
            before = instance._positions.find(tp)
            await original(instance, tp, source, position)
            after = instance._positions.find(tp)
            if before is not None and after is not None and before.offset < min(after.offset, self._log_start(tp)):
                self.counts["deleted_positions"] += 1
                self.reads.skips.append(Skip(tp, before.offset, after.offset))

        return reset_position

    def _join(self, original: Any) -> Any:
        async def join_group(member: RestMember) -> Code:
            code: Code = await original(member)
            if code is Code.NONE:
                self.counts["generations"] += 1
                self._assigned[member.instance_id, member.generation] = frozenset(member.assigned or ())
            return code

        return join_group

    def _commit(self, original: Any) -> Any:
        async def commit(instance: ConsumerInstance, offsets: list[PartitionOffset]) -> None:
            member = instance.member
            owned = self._assigned.get((member.instance_id, member.generation)) if member is not None else None
            for each in offsets:
                tp = TopicPartition(each.topic, each.partition)
                if self._is_judged(tp):
                    self.counts["commits"] += 1
                    for finding in check_commit(tp, each.offset, self._reached.get(tp, -1), owned):
                        self._report(*finding)
            partitions = {TopicPartition(each.topic, each.partition): each.offset for each in offsets}
            try:
                await original(instance, offsets)
            except BaseException:
                for tp in partitions:
                    self.reads.on_commit_failed(tp)
                raise
            for tp, offset in partitions.items():
                self.reads.on_committed(tp, offset)

        return commit


def check_commit(
    tp: TopicPartition, offset: int, reached: int, owned: Iterable[TopicPartition] | None
) -> Iterator[Finding]:
    """I34: a committed position is not above the last one that a delivery or a reset gave, and the partition belongs to
    the member in its generation. `owned` is None for a consumer without a generation."""
    if offset > reached:
        yield Finding("I34", f"{tp}: {offset} is committed, records were delivered up to {reached}")
    if owned is not None and tp not in owned:
        yield Finding("I34", f"{tp}: {offset} is committed by a member that has another assignment now")


def check_deliveries(
    reads: RestReads,
    sends: Iterable[Send],
    ends: Positions,
    log_starts: Positions,
    lost_from: Positions,
    may_be_gone: LossPredicate,
) -> Iterator[Finding]:
    """I34: each acknowledged record from the first read on, and below `ends`, was delivered as it was sent.

    Records below the log starts at the end do not count, nor those that a reset passed over. From the first loss of a
    partition (`lost_from`) on, its offsets mean other records than before.
    """
    for send in sends:
        tp = send.tp
        if send.acks != -1 or send.verdict is not SendVerdict.OK or send.base_offset < 0 or tp not in reads.starts:
            continue
        delivered = reads.delivered.get(tp, {})
        first, last = max(reads.starts[tp], log_starts.get(tp, 0)), min(ends.get(tp, -1), lost_from.get(tp, 1 << 62))
        for offset, value in enumerate(send.values, send.base_offset):
            if not first <= offset < last or delivered.get(offset) == value:
                continue
            if _is_skipped(reads, tp, offset) or may_be_gone(tp, offset, send.invoked_ns):
                continue
            got = f"was delivered as {delivered[offset]!r}" if offset in delivered else "was delivered to nobody"
            yield Finding("I34", f"{tp}: {value!r} at {offset} {got}; the first read began at {reads.starts[tp]}")


def _is_skipped(reads: RestReads, tp: TopicPartition, offset: int) -> bool:
    return any(each.tp == tp and each.start <= offset < each.end for each in reads.skips)
