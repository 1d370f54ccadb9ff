"""Observes brokers by hooks around a few production functions, and feeds the reference model.

Production code does not know of the hooks. They wrap functions of classes for the duration of a run; the context
(`PROCESS`) tells which broker acts. A broken rule goes to `Findings`, which the run checks after every step: an
exception raised here would only be one more error that a broker handles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from struct import Struct
from types import ModuleType
from typing import Any, NamedTuple

from tests.sim.cluster.clean_watch import CleanWatch, JudgedLog, read_segment
from tests.sim.cluster.cold_cleans import mark_sweep
from tests.sim.cluster.compacted_logs import HeldBatch, held_batches_of
from tests.sim.cluster.disk_logs import LOG_DIR, batches_of
from tests.sim.cluster.expiry import LogBatch
from tests.sim.cluster.known_producers import KnownProducers
from tests.sim.cluster.model import ClusterModel
from tests.sim.cluster.model_of_copies import COPIED_AGAIN
from tests.sim.harness.disk import SimDisk
from tests.sim.harness.durable_bytes import Folder, Inode
from tests.sim.harness.durable_logs import read_boot
from tests.sim.harness.loop import PROCESS
from tiered.cold.collector import Collector
from tiered.durability.data_directory import DataDirectory
from tiered.errors import Unavailable
from tiered.hot.checkpoints import CLEAN_MARK, METADATA_FILE, is_torn_metadata
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_writer import LogWriter
from tiered.ids import PartitionId, TopicId
from tiered.ports import Disk
from tiered.replication import become_leader
from tiered.replication import follower_replica as copy
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.leader_state import LeaderState

_CRC = Struct(">I")
_CRC_AT = 17


class Finding(NamedTuple):
    """A broken rule."""

    rule: str
    what: str


class BrokenRules(AssertionError):
    """Raised by a run with findings. `rules` are the broken rules, the first one first."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("; ".join(f"{each.rule}: {each.what}" for each in findings[:3]))
        self.rules = [each.rule for each in findings]


class Findings:
    """The broken rules so far."""

    def __init__(self, log_event: Callable[[str], None]) -> None:
        self.found: list[Finding] = []
        self._log_event = log_event

    def report(self, rule: str, what: str) -> None:
        self.found.append(Finding(rule, what))
        self._log_event(f"BROKEN {rule}: {what}")

    def raise_if_any(self) -> None:
        """Raises if any rule is broken."""
        if self.found:
            raise BrokenRules(self.found)


@contextmanager
def patched(owner: type[Any] | ModuleType, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces `owner.name` by `make(original)` for the duration of the context. The name must exist."""
    original = owner.__dict__[name]
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def acting_node() -> int:
    """Returns the node id of the broker that acts; 0 if none does."""
    name = PROCESS.get().partition(".")[0]
    return int(name[1:]) if name else 0


class Observer:
    """The hooks of one run."""

    def __init__(self, model: ClusterModel) -> None:
        self._model = model
        self._leaders: dict[int, tuple[PartitionId, LeaderState, DiskLog]] = {}
        self.known_producers = KnownProducers()
        self._clean_watch = CleanWatch(self._find_judged)
        self._copied_again: list[DiskLog] = []
        """The log that a follower truncates at this moment to copy it again."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Observes everything within the context."""
        hooks: tuple[tuple[type[Any] | ModuleType, str, Callable[[Any], Any]], ...] = (
            (DiskLog, "open", self._open),
            (DiskLog, "_write", self._write),
            (DiskLog, "truncate_to", self._truncate_to),
            (DiskLog, "truncate_fully_and_start_at", self._restart_at),
            (DiskLog, "advance_start", self._advance_start),
            (DiskLog, "drop_local_below", self._drop_local_below),
            (DataDirectory, "mark_clean", self._mark_clean),
            (LeaderReplica, "__init__", self._replica),
            (LeaderState, "_advance_high_watermark", self._move),
            (FollowerReplica, "_append", self._follower_append),
            (FollowerReplica, "_copy_again", self._copy_again),
            (become_leader, "restart_at_cold_end", self._begin_behind),
            (copy, "restart_at_cold_end", self._begin_behind),
            *self._clean_watch.hooks,
            (Collector, "sweep", mark_sweep),
        )
        with ExitStack() as stack:
            for owner, name, make in hooks:
                stack.enter_context(patched(owner, name, make))
            yield

    # -- logs ---------------------------------------------------------------------------------------------------------

    def _pid(self, log: DiskLog) -> PartitionId | None:
        """Returns None for partitions that the model does not cover: committed offsets of groups, and deleted
        topics."""
        partition_id = PartitionId(TopicId(log.topic_id), int(log.name.rpartition("-")[2]))
        return partition_id if self._model.is_modelled(partition_id) else None

    def _open(self, original: Any) -> Any:
        async def open(cls: type[DiskLog], *args: Any, **options: Any) -> DiskLog:
            log: DiskLog = await original.__func__(cls, *args, **options)
            partition_id = self._pid(log)
            if partition_id is not None:
                self._model.copies_of(partition_id).on_opened(
                    acting_node(), log.end_offset, self._read_batches(partition_id, log)
                )
            return log

        return classmethod(open)

    def _mark_clean(self, original: Any) -> Any:
        async def mark_clean(directory: DataDirectory, *args: Any) -> None:
            for copies in self._model.copies.values():  # whether it lasts, a process that ends now does not learn
                copies.on_clean_stop(acting_node())
            await original(directory, *args)

        return mark_clean

    def _write(self, original: Any) -> Any:
        def write(log: DiskLog, data: Any, batches: Any, *times: int) -> None:
            original(log, data, batches, *times)
            if may_be_marked_clean(log._writer.files.disk):
                self._model.report(
                    "R1", f"b{acting_node()} writes to {log.name}, and a power cut brings its clean mark back"
                )
            partition_id = self._pid(log)
            if partition_id is not None:
                copies, compacted = self._model.copies_of(partition_id), self._model.compacted_log(partition_id)
                for each in batches:
                    crc = _CRC.unpack_from(data, each.position + _CRC_AT)[0]
                    # Batches of a produce request are stamped in place: what was walked before may say less.
                    base, epoch = read_stamp(data, each.position)
                    last = base + each.last_offset - each.base_offset
                    batch = LogBatch(base, last, epoch, crc, each.size, each.max_timestamp)
                    self.known_producers.note(partition_id, batch, each)
                    if compacted is None:
                        copies.on_append(acting_node(), batch)
                        continue
                    held = HeldBatch(batch, bytes(data[each.position : each.position + each.size]))
                    copy = copies.copy(acting_node())
                    for one in compacted.take(copy.end, held):
                        if one.base >= copy.end or not copy.batches or copy.batches[-1] != one:
                            copies.on_append(acting_node(), one)

        return write

    def _truncate_to(self, original: Any) -> Any:
        def truncate_to(log: DiskLog, offset: int) -> None:
            before = log.end_offset
            try:
                original(log, offset)
            except Unavailable:
                self._on_failed_truncation(log)
                raise
            partition_id = self._pid(log)
            if partition_id is not None and log.end_offset < before:
                why = COPIED_AGAIN if log in self._copied_again else "truncate"
                self._model.copies_of(partition_id).on_truncated(acting_node(), log.end_offset, why=why)

        return truncate_to

    def _restart_at(self, original: Any) -> Any:
        def restart_at(log: DiskLog, offset: int, *args: Any) -> None:
            try:
                original(log, offset, *args)
            except Unavailable:
                self._on_failed_truncation(log)
                raise
            partition_id = self._pid(log)
            if partition_id is not None:
                self._model.copies_of(partition_id).on_log_reset(acting_node(), offset)

        return restart_at

    def _begin_behind(self, original: Any) -> Any:
        def begin_behind(log: DiskLog, *args: Any) -> None:
            original(log, *args)
            partition_id = self._pid(log)
            if partition_id is not None:
                self._model.copies_of(partition_id).on_begun_behind_cold(acting_node())

        return begin_behind

    def _on_failed_truncation(self, log: DiskLog) -> None:
        """Handles a cut that failed on a full disk: the next open finds what is there now."""
        partition_id, disk = self._pid(log), log._writer.files.disk
        if partition_id is not None:
            assert isinstance(disk, SimDisk)
            start, batches = self._model.read_disk_log(
                partition_id, disk, log._writer.files.directory.partition("/")[2]
            )
            end = batches[-1].last + 1 if batches else start
            self._model.copies_of(partition_id).on_truncated(acting_node(), end, why="a cut that failed")

    def _advance_start(self, original: Any) -> Any:
        def advance_start(log: DiskLog, offset: int) -> None:
            before = log.start_offset
            original(log, offset)
            partition_id = self._pid(log) if log.start_offset > before else None
            if partition_id is not None:
                self._model.on_local_log_start(partition_id, log.start_offset)

        return advance_start

    def _drop_local_below(self, original: Any) -> Any:
        async def drop_local_below(log: DiskLog, offset: int) -> int:
            dropped: int = await original(log, offset)
            partition_id = self._pid(log)
            if partition_id is not None and dropped:
                self._model.copies_of(partition_id).on_local_delete(acting_node(), log._writer.segments[0].base_offset)
            return dropped

        return drop_local_below

    def _copy_again(self, original: Any) -> Any:
        def copy_again(copy: FollowerReplica, offset: int) -> None:
            self._copied_again.append(copy.log)
            try:
                original(copy, offset)
            finally:
                self._copied_again.clear()

        return copy_again

    def _follower_append(self, original: Any) -> Any:
        def append(copy: FollowerReplica, part: Any) -> None:
            partition_id = self._pid(copy.log)
            if partition_id is not None:
                self._model.copies_of(partition_id).on_follow(acting_node(), copy.leader_epoch)
            original(copy, part)

        return append

    # -- cleans -------------------------------------------------------------------------------------------------------

    def _read_batches(self, partition_id: PartitionId, log: DiskLog) -> list[LogBatch]:
        """Returns the batches that an open log stands for."""
        compacted = self._model.compacted_log(partition_id)
        if compacted is None:
            return read_batches(log)
        held = list[HeldBatch]()
        for view in (*log.segments.closed(), log.segments.active):
            held += held_batches_of(read_segment(log._writer, view.base_offset, view.size))
        found, hole = compacted.restore(log.local_start_offset, held)
        if hole:
            self._model.report("I26", f"b{acting_node()} opens a log: {hole}")
        return found

    def _find_judged(self, writer: LogWriter) -> JudgedLog | None:
        """Returns the log of a compacted topic as this broker's copy has it."""
        name, _, number = writer.files.directory.rpartition("/")[2].rpartition("-")
        topic = self._model.image.topics.get(name)
        partition_id = PartitionId(topic.topic_id, int(number)) if topic is not None else None
        compacted = self._model.compacted_log(partition_id) if partition_id is not None else None
        if partition_id is None or compacted is None:
            return None
        copies = self._model.copies_of(partition_id)
        batches = copies.copy(acting_node()).batches
        skew_ms = self._model.max_clock_skew_ms()
        return JudgedLog(compacted, batches, copies.committed_end, copies.log_start, skew_ms, copies.cold_end)

    # -- leaders ------------------------------------------------------------------------------------------------------

    def _replica(self, original: Any) -> Any:
        def begin(replica: LeaderReplica, *args: Any, **options: Any) -> None:
            given = (*args, *options.values())
            state = next(each for each in given if isinstance(each, LeaderState))
            log = next(each for each in given if isinstance(each, DiskLog))
            partition_id = self._pid(log)
            if partition_id is not None:
                self._leaders[id(state)] = (partition_id, state, log)
                node = acting_node()
                incarnation = self._model.incarnation(node)
                copies = self._model.copies_of(partition_id)
                copies.on_leader(node, incarnation, state.leader_epoch, log.end_offset, state.high_watermark)
                compacted = self._model.compacted_log(partition_id)
                for forgotten in self.known_producers.find_forgotten(
                    partition_id, node, copies, log.producers, compacted
                ):
                    self._model.report("I11", forgotten)
            original(replica, *args, **options)

        return begin

    def _move(self, original: Any) -> Any:
        def move(state: LeaderState, min_isr: int) -> bool:
            moved: bool = original(state, min_isr)
            known = self._leaders.get(id(state))
            if moved and known is not None and self._model.is_modelled(known[0]):
                partition_id = known[0]
                needed = self._model.min_isr(partition_id, acting_node(), min_isr, len(state.replicas))
                self._model.copies_of(partition_id).on_high_watermark(
                    acting_node(), state.leader_epoch, state.high_watermark, state.isr, needed,
                    is_controller=self._model.is_controller(acting_node()),
                )  # fmt: skip
            return moved

        return move


def read_stamp(data: Any, at: int) -> tuple[int, int]:
    """Returns base offset and leader epoch from the bytes of a batch."""
    return int.from_bytes(data[at : at + 8], "big"), int.from_bytes(data[at + 12 : at + 16], "big", signed=True)


def read_batches(log: DiskLog) -> list[LogBatch]:
    """Returns all batches of the segments of an open log; reads past the disk's faults."""
    files = log._writer.files
    disk = files.disk
    assert isinstance(disk, SimDisk)
    found: list[LogBatch] = []
    for view in (*log.segments.closed(), log.segments.active):
        node = disk._find(files.path(view.base_offset, ".log"))
        if isinstance(node, Inode):
            found += batches_of(bytes(node.data[: view.size]))
    return found


def has_boot_mark(disk: SimDisk) -> bool:
    """True if the next start trusts all that was written since the machine booted."""
    return read_boot(disk) == disk.boot_mark(LOG_DIR)


def may_be_marked_clean(disk: Disk) -> bool:
    """True if the mark of a clean stop is there after a power cut, though it may be removed by now."""
    assert isinstance(disk, SimDisk)
    folder = disk._find(LOG_DIR)
    return isinstance(folder, Folder) and CLEAN_MARK in folder.durable


def has_torn_metadata(disk: SimDisk, directory: str) -> bool:
    """True if a power cut tore the file that names the topic of a log, or took it. If nothing of the log counted as
    synced, the next start deletes it, with all records that the cut left."""
    folder = disk._find(f"{LOG_DIR}/{directory}")
    metadata = folder.names.get(METADATA_FILE) if isinstance(folder, Folder) else None
    return isinstance(folder, Folder) and is_torn_metadata(bytes(metadata.data) if isinstance(metadata, Inode) else b"")
