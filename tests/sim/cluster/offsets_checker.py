"""I18 at the moment of a reply: an offset that a coordinator returns is committed in the log of groups.

Hooks observe writes to logs of `__consumer_offsets`, and the high watermarks of their leaders. An offset that no batch
below any of these high watermarks set is not committed, even if a coordinator has it in memory. The marker that commits
a transaction sets the offsets of its batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.sim.cluster.model_of_copies import ReportFinding
from tests.sim.cluster.observer import patched, read_batches, read_stamp
from tests.sim.harness.loop import PROCESS
from tiered.coordination.group_coordinators import GroupCoordinators
from tiered.errors import Code, Unavailable
from tiered.groups.records import OffsetKey, read_key, read_offset
from tiered.groups.requests import FetchOffsets
from tiered.hot.disk_log import DiskLog
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.records.batch import decode_records
from tiered.records.marker import decode_marker
from tiered.records.model import CONTROL, TRANSACTIONAL, WalkedBatch
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.leader_state import LeaderState

BatchKey = tuple[int, int]
"""Leader epoch and base offset of one batch."""
CommittedOffset = tuple[str, str, int, int]
"""Group, topic, partition, offset."""


class OffsetsChecker:
    """The hooks of one run."""

    def __init__(self, report: ReportFinding) -> None:
        self.replies_checked = 0
        self._report = report
        self._offsets_by_batch: dict[BatchKey, tuple[CommittedOffset, ...]] = {}
        self._batches_by_log: dict[DiskLog, list[BatchKey]] = {}
        self._leaders: dict[int, tuple[LeaderState, DiskLog]] = {}
        self._committed: set[CommittedOffset] = set()
        self._transactional: dict[int, set[CommittedOffset]] = {}
        """Offsets by the producer that wrote them in transactions."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Observes everything within the context."""
        hooks: tuple[tuple[type[Any], str, Callable[[Any], Any]], ...] = (
            (DiskLog, "open", self._open),
            (DiskLog, "_write", self._write),
            (DiskLog, "_run_truncation", self._cut),
            (LeaderReplica, "__init__", self._replica),
            (LeaderState, "_advance_high_watermark", self._move),
            (GroupCoordinators, "submit", self._submit),
        )
        with ExitStack() as stack:
            for owner, name, make in hooks:
                stack.enter_context(patched(owner, name, make))
            yield

    def _open(self, original: Any) -> Any:
        async def open(cls: type[DiskLog], *args: Any, **options: Any) -> DiskLog:
            log: DiskLog = await original.__func__(cls, *args, **options)
            if log.name.startswith(OFFSETS_TOPIC):
                self._batches_by_log[log] = [(each.epoch, each.base) for each in read_batches(log)]
            return log

        return classmethod(open)

    def _write(self, original: Any) -> Any:
        def write(log: DiskLog, data: Any, batches: Any, *times: int) -> None:
            original(log, data, batches, *times)
            held = self._batches_by_log.get(log)
            if held is not None:
                for each in batches:
                    base, epoch = read_stamp(data, each.position)
                    held.append((epoch, base))
                    if (epoch, base) not in self._offsets_by_batch:
                        self._offsets_by_batch[epoch, base] = self._rows_of(each, data)

        return write

    def _rows_of(self, batch: WalkedBatch, data: Any) -> tuple[CommittedOffset, ...]:
        """Returns the offsets that a batch brings into force: of a commit marker, all that its producer ever wrote."""
        written = self._transactional.setdefault(batch.producer_id, set())
        if batch.attributes & CONTROL:
            marker = decode_marker(memoryview(data)[batch.position : batch.position + batch.size])
            return tuple(written) if marker.commit else ()
        rows = tuple(_committed_rows(data, batch.position))
        if not batch.attributes & TRANSACTIONAL:
            return rows
        written.update(rows)
        return ()

    def _cut(self, original: Any) -> Any:
        def cut(log: DiskLog, *args: Any) -> None:
            try:
                original(log, *args)
            except Unavailable:
                self._batches_by_log.pop(log, None)  # only opening it anew says what is left
                raise
            if log in self._batches_by_log:
                self._batches_by_log[log] = [at for at in self._batches_by_log[log] if at[1] < log.end_offset]

        return cut

    def _replica(self, original: Any) -> Any:
        def begin(replica: LeaderReplica, *args: Any, **options: Any) -> None:
            given = (*args, *options.values())
            state = next(each for each in given if isinstance(each, LeaderState))
            log = next(each for each in given if isinstance(each, DiskLog))
            if log in self._batches_by_log:
                self._leaders[id(state)] = state, log
            original(replica, *args, **options)

        return begin

    def _move(self, original: Any) -> Any:
        def move(state: LeaderState, min_isr: int) -> bool:
            moved: bool = original(state, min_isr)
            known = self._leaders.get(id(state)) if moved else None
            if known is not None:
                held = self._batches_by_log.get(known[1], [])
                for at in [at for at in held if at[1] < state.high_watermark]:
                    self._committed.update(self._offsets_by_batch.get(at, ()))
                self._batches_by_log[known[1]] = [at for at in held if at[1] >= state.high_watermark]
            return moved

        return move

    def _submit(self, original: Any) -> Any:
        async def submit(coordinators: GroupCoordinators, group: str, request: Any, *args: Any, **options: Any) -> Any:
            reply = await original(coordinators, group, request, *args, **options)
            if type(request) is FetchOffsets and reply.code is Code.NONE:
                for row in reply.offsets:
                    self.replies_checked += 1
                    place = (group, row.topic, row.partition, row.offset)
                    if row.offset >= 0 and place not in self._committed:
                        self._report("I18", f"{PROCESS.get()} shows {place}, which is not committed")
            return reply

        return submit


def _committed_rows(data: Any, at: int) -> Iterator[CommittedOffset]:
    for row in decode_records(data, at):
        key = read_key(row.key) if row.key is not None else None
        if isinstance(key, OffsetKey) and row.value is not None:
            yield key.group, key.topic, key.partition, read_offset(row.value).offset
