"""Checker DURABLE: what a log or the data directory takes for durable survives a power cut, and no start believes more.

The simulated disk knows its durable bytes and names. The checker compares them with what the code relies on, whenever a
log was opened or fsynced, before a log grows that was cut, and whenever a file of the data directory was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, NamedTuple

from tests.sim.harness.disk import SimDisk
from tests.sim.harness.durable_bytes import Folder, Inode
from tiered.durability.data_directory import ROOT, DataDirectory, LogOffsets
from tiered.errors import Corrupt
from tiered.hot import checkpoints, proof_file
from tiered.hot.disk_log import DiskLog
from tiered.hot.segments import Segment
from tiered.ids import TopicPartition
from tiered.ports import Disk
from tiered.records.model import WalkedBatch
from tiered.records.native import walk

Report = Callable[[str, str], None]
"""Reports a broken rule: its name and the event."""


@contextmanager
def replaced(owner: type[Any] | ModuleType, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces `owner.name` by `make(original)` for the duration of the context. The name must exist."""
    original = owner.__dict__[name]
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


class Cut(NamedTuple):
    """The last truncation of a log. `had_records`: it, or one before it that was not settled, took records.
    Records below the log start do not count: nobody gets them if they come back.

    `removed` are the log files that were gone then, and not durably.
    """

    log: DiskLog
    had_records: bool
    removed: tuple[Inode, ...]


class DurableLogs:
    """The hooks of one run, and the logs that were cut since they grew."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._cut: dict[int, Cut] = {}
        """By identity: the logs that were cut and did not grow since."""
        self._recovery_points: dict[int, bytes] = {}
        """By identity of a data directory: the file as it was judged last."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Observes all simulated disks within the context."""
        hooks: tuple[tuple[type[Any] | ModuleType, str, Callable[[Any], Any]], ...] = (
            (DiskLog, "open", self._open),
            (DiskLog, "flush", self._flush),
            (DiskLog, "close_clean", self._close_clean),
            (DiskLog, "_run_truncation", self._run_truncation),
            (DiskLog, "_write", self._write),
            (DataDirectory, "open", self._open_directory),
            (DataDirectory, "_save_offsets", self._save_offsets),
            (checkpoints, "save", self._save),
        )
        with ExitStack() as stack:
            for owner, name, make in hooks:
                stack.enter_context(replaced(owner, name, make))
            yield

    def _find(self, what: str) -> None:
        self._report("DURABLE", what)

    # -- logs ---------------------------------------------------------------------------------------------------------

    def _open(self, original: Any) -> Any:
        async def open(cls: type[DiskLog], *args: Any, **options: Any) -> DiskLog:
            disk, _, directory, _, left = args
            if left.recovery_point and isinstance(disk, SimDisk) and disk._find(directory) is None:
                self._find(f"{options['name']} is new, and opened with a recovery point of {left.recovery_point}")
            log: DiskLog = await original.__func__(cls, *args, **options)
            if not isinstance(log._writer.files.disk, SimDisk):
                return log
            if not left.is_whole and log.flushed_offset < log.end_offset:
                self._find(f"{log.name} is served up to {log.end_offset}, fsynced is {log.flushed_offset}")
            if log.end_offset < read_recovery_points(disk).get(_parse_name(log.name), 0):
                self._cut[id(log)] = Cut(log, True, ())
            for what in (*find_lost(log), *find_leftovers(log)):
                self._find(f"{log.name} is opened: {what}")
            return log

        return classmethod(open)

    def _flush(self, original: Any) -> Any:
        async def flush(log: DiskLog, up_to: int | None = None) -> int:
            before = log.flushed_offset
            flushed: int = await original(log, up_to)
            if log.flushed_offset != before:
                for what in find_lost(log):
                    self._find(f"{log.name} is fsynced: {what}")
            return flushed

        return flush

    def _close_clean(self, original: Any) -> Any:
        async def close_clean(log: DiskLog) -> None:
            await original(log)
            if log.flushed_offset < log.end_offset:
                self._find(f"{log.name} is closed at {log.end_offset}, fsynced is {log.flushed_offset}")

        return close_clean

    def _run_truncation(self, original: Any) -> Any:
        def run_truncation(log: DiskLog, action: Callable[[], None]) -> None:
            had_records = log.end_offset > log.local_start_offset
            earlier = self._cut.get(id(log))
            had_records |= earlier is not None and earlier.had_records and log.truncations.is_unsettled
            original(log, action)
            self._cut[id(log)] = Cut(log, had_records, list_removed(log))

        return run_truncation

    def _write(self, original: Any) -> Any:
        def write(log: DiskLog, data: Any, batches: Sequence[WalkedBatch], *args: Any) -> None:
            cut = self._cut.pop(id(log), None) if self._cut else None
            if cut is not None and isinstance(log._writer.files.disk, SimDisk):
                for what in find_remains(cut, batches[0].last_offset):
                    self._find(f"{log.name} grows from {log.end_offset}: {what}")
            original(log, data, batches, *args)

        return write

    # -- the data directory -------------------------------------------------------------------------------------------

    def _open_directory(self, original: Any) -> Any:
        async def open(directory: DataDirectory, *args: Any) -> Any:
            disk = directory._disk
            boot = read_boot(disk)
            state = await original(directory, *args)
            if not isinstance(disk, SimDisk):
                return state
            if state.same_boot and boot != disk.boot_mark(ROOT):
                self._find("a start believes the page cache of another boot")
            folder = disk._find(ROOT)
            if isinstance(folder, Folder) and {checkpoints.CLEAN_MARK} & (folder.names.keys() | folder.durable.keys()):
                self._find("a start leaves the mark of a clean stop")
            if state.clean_entries and not state.clean:
                self._find("a start believes what an earlier clean stop said")
            return state

        return open

    def _save_offsets(self, original: Any) -> Any:
        async def save_offsets(
            directory: DataDirectory, logs: dict[TopicPartition, DiskLog], closed: Mapping[TopicPartition, LogOffsets]
        ) -> None:
            await original(directory, logs, closed)
            file = read_names(directory._disk, f"{ROOT}/{checkpoints.RECOVERY_POINTS}")
            saved = bytes(file.durable) if file is not None else b""
            if self._recovery_points.get(id(directory)) == saved:
                return
            self._recovery_points[id(directory)] = saved
            for tp, noted in read_recovery_points(directory._disk).items():
                log = logs.get(tp)
                if log is not None and not log.truncations.is_unsettled and noted > log.flushed_offset:
                    self._find(f"the recovery point of {tp} is {noted}, fsynced is {log.flushed_offset}")

        return save_offsets

    def _save(self, original: Any) -> Any:
        async def save(disk: Disk, directory: str, name: str, data: bytes) -> None:
            await original(disk, directory, name, data)
            if isinstance(disk, SimDisk) and not has_saved(disk, directory, name, data):
                self._find(f"{directory}/{name} is saved, and a power cut takes it")

        return save


@contextmanager
def judged_disks() -> Iterator[None]:
    """Fails at its end if a log or a data directory broke the rule within the context."""
    found: list[str] = []
    with DurableLogs(lambda rule, what: found.append(f"{rule}: {what}")).watch():
        yield
    assert not found, "; ".join(found[:3])


def read_boot(disk: Disk) -> str:
    """Returns the boot that the proof in the data directory names, without an operation of the disk."""
    proof, old = (read_names(disk, f"{ROOT}/{name}") for name in (proof_file.FILE, proof_file.OLD_BOOT))
    try:
        if proof is not None:
            return proof_file.parse(bytes(proof.data)).boot
        return proof_file.parse_old(bytes(old.data), None, None).boot if old is not None else ""
    except Corrupt:
        return ""


def read_names(disk: Disk, path: str) -> Inode | None:
    """Returns a file of a simulated disk; None if it is absent. Reads past the disk's faults."""
    node = disk._find(path) if isinstance(disk, SimDisk) else None
    return node if isinstance(node, Inode) else None


def read_recovery_points(disk: Disk) -> dict[TopicPartition, int]:
    """Returns the recovery points that are on the disk after a power cut."""
    node = read_names(disk, f"{ROOT}/{checkpoints.RECOVERY_POINTS}")
    try:
        return checkpoints.parse_offsets(bytes(node.durable)) if node is not None else {}
    except Corrupt:
        return {}


def has_saved(disk: SimDisk, directory: str, name: str, data: bytes) -> bool:
    """True if a power cut leaves a file with these bytes."""
    folder = disk._find(directory)
    node = folder.durable.get(name) if isinstance(folder, Folder) else None
    return isinstance(node, Inode) and bytes(node.durable) == data


def find_lost(log: DiskLog) -> Iterator[str]:
    """Yields what a power cut at this moment could take of the records below the flushed offset."""
    disk, files, flushed = log._writer.files.disk, log._writer.files, log.flushed_offset
    if not isinstance(disk, SimDisk) or log.status.write_failure:
        return
    above: Folder | Inode | None = disk._contents.root
    for name in files.directory.split("/"):
        above = above.durable.get(name) if isinstance(above, Folder) else None
    for segment in log._writer.segments[-3:]:
        if segment.base_offset >= flushed or segment.next_offset <= segment.base_offset:
            continue
        node = above.durable.get(f"{segment.base_offset:020d}.log") if isinstance(above, Folder) else None
        seen = read_names(disk, files.path(segment.base_offset, ".log"))
        if isinstance(above, Folder) and seen is not node and is_undone_clean(log, segment, seen, above):
            continue
        if not isinstance(node, Inode) or node is not seen:
            yield f"fsynced is {flushed}, and a power cut takes the name of segment {segment.base_offset}"
            continue
        size = segment.size
        if segment.next_offset > flushed:
            batches = walk(bytes(node.data), check_crc=False).batches
            size = max((each.position + each.size for each in batches if each.last_offset < flushed), default=0)
        if len(node.durable) < size or node.durable[:size] != node.data[:size]:
            yield f"fsynced is {flushed}, and a power cut takes bytes of segment {segment.base_offset}"


def is_undone_clean(log: DiskLog, segment: Segment, cleaned: Inode | None, folder: Folder) -> bool:
    """True if a power cut leaves the segments that a clean has replaced, and they have all records of the cleaned one.

    A start after a kill finishes a swap without an fsync. The old files then stay until the next flush.
    """
    if log.compaction.state is None or cleaned is None:
        return False
    held = {
        (each.last_offset, each.leader_epoch)
        for name, node in folder.durable.items()
        if name.endswith(".log") and segment.base_offset <= int(name[:20]) < segment.next_offset
        for each in (walk(bytes(node.durable)).batches if isinstance(node, Inode) else ())
    }
    batches = walk(bytes(cleaned.data), check_crc=False).batches
    return all(
        (each.last_offset, each.leader_epoch) in held for each in batches if each.last_offset < log.flushed_offset
    )


def find_leftovers(log: DiskLog) -> Iterator[str]:
    """Yields what a start left that belongs to no record of the log, and what it says that the records do not."""
    disk, end = log._writer.files.disk, log.end_offset
    folder = disk._find(log._writer.files.directory) if isinstance(disk, SimDisk) else None
    if not isinstance(folder, Folder) or log.suspect:
        return
    bases = [segment.base_offset for segment in log._writer.segments]
    for name in folder.names:
        number, _, suffix = name.partition(".")
        if suffix == "log" and int(number) not in bases:
            yield f"segment {name} is none of {bases}"
        if suffix == "snapshot" and int(number) > end:
            yield f"producers of {name}, the end is {end}"
    owner = folder.names.get(checkpoints.METADATA_FILE)
    if isinstance(owner, Inode) and not log._writer.unconfirmed_topic_id:
        named = bytes(owner.data).decode(errors="replace").partition("topic_id: ")[2].strip()
        if named != log.topic_id:
            yield f"it is of topic {log.topic_id!r}, the disk says {named!r}"
    lineage = log.epochs.lineage
    if lineage and lineage[-1][1] >= max(end, 1):
        yield f"epochs {lineage}, the end is {end}"
    if log.compaction.may_have_gaps or log.segments.gaps or disk_has_rotted(disk):
        return
    expected = log.local_start_offset
    for base in bases:
        node = folder.names.get(f"{base:020d}.log")
        for each in walk(bytes(node.data), check_crc=True).batches if isinstance(node, Inode) else ():
            if each.base_offset > expected:
                yield f"a hole between {expected} and {each.base_offset}"
            expected = each.last_offset + 1
            if log.epochs.epoch_at(each.base_offset) != each.leader_epoch and each.base_offset >= log.start_offset:
                yield f"epochs {lineage}, and {each.base_offset} is of epoch {each.leader_epoch}"
                return
    if expected < end:
        yield f"its records end at {expected}, its end is {end}"


def disk_has_rotted(disk: Disk) -> bool:
    """True if a bit of any file was flipped."""
    return isinstance(disk, SimDisk) and disk._contents.has_rotted


def list_removed(log: DiskLog) -> tuple[Inode, ...]:
    """Returns the log files that are gone, and that a power cut at this moment could bring back."""
    disk = log._writer.files.disk
    folder = disk._find(log._writer.files.directory) if isinstance(disk, SimDisk) else None
    if not isinstance(folder, Folder):
        return ()
    durable = ((name, node) for name, node in folder.durable.items() if name.endswith(".log"))
    return tuple(node for name, node in durable if isinstance(node, Inode) and folder.names.get(name) is not node)


def find_remains(cut: Cut, last_offset: int) -> Iterator[str]:
    """Yields what a power cut brings back of the records that a log was cut of. `last_offset` is that of the batch with
    which the log grows.

    Files that went after the cut do not count: they held the first records of the log, or those that a clean replaced.
    """
    log, disk, files = cut.log, cut.log._writer.files.disk, cut.log._writer.files
    folder = disk._find(files.directory) if isinstance(disk, SimDisk) else None
    if not isinstance(folder, Folder):
        return
    noted = read_recovery_points(disk).get(_parse_name(log.name), 0)
    if not cut.had_records:
        # A follower restarts an empty log lower to take the batch that holds its end. The recovery point may then lie
        # within this batch. A start believes it only for segments that end below it, and the batch is in none.
        if noted > max(last_offset, log.end_offset):
            yield f"its recovery point is {noted}, beyond the batch"
        return
    for name, node in folder.durable.items():
        if not isinstance(node, Inode) or not name.endswith(".log"):
            continue
        now = folder.names.get(name)
        if now is not node and node.durable and any(node is each for each in cut.removed):
            yield f"a power cut brings {name} back"
        if now is node and len(node.durable) > len(node.data):
            yield f"a power cut brings the end of {name} back"
    if noted > log.end_offset:
        yield f"its recovery point is {noted}"


def _parse_name(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))
