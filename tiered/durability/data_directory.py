"""The broker's own files in its data directory: its owner, the state it was left in, and the durable end of each log.

- `log/meta.properties` names cluster, node and directory, as Kafka's does.
- The proof (`hot/proof_file.py`) says what a start may believe of page cache and logs. Its boot mark is written after a
  recovery whose result is fsynced. An I/O error removes the proof for good: the directory is then untrusted.
- The clean mark, Kafka's own, proves that all logs are durable (R1). It too names an incarnation.
- `adopted` names logs that another process of this machine gave to this directory (I36).
- `metadata_position` detects an older bucket. Operators remove this note alone, so it is a file of its own.

`open` returns what the files say. `discard_untrusted` (`broker/registration.py`) decides what of it counts.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from tiered.durability import metadata_position
from tiered.durability.adopted_logs import ADOPTED_FILE, AdoptedLog, parse_adopted
from tiered.durability.metadata_position import MetadataPosition
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.hot import checkpoints, clean_shutdown, proof_file
from tiered.hot.clean_shutdown import CleanLogEntry
from tiered.hot.disk_log import DiskLog
from tiered.hot.proof_file import NO_ENTRIES, CleanEntries, ProofFile, SyncedRow
from tiered.ids import TopicPartition
from tiered.ports import Disk
from tiered.system.turns import each_of

log = logging.getLogger(__name__)

ROOT = "log"
META_FILE = "meta.properties"
VERSION = "1"
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
"""Ends the name of a log that is no replica of this broker and is kept, as in Kafka."""
INCARNATIONS_MAX = 100
"""Incarnations in the proof: starts in a row that could not register."""
NAME_BYTES_MAX = 255
"""Longest name of a file or directory on common file systems; the name of a topic may take nearly all of it."""


class LogOffsets(NamedTuple):
    """The lines of one log in the checkpoint files. A log without a recovery point was perhaps never durable."""

    recovery_point: int | None
    start: int


NO_LOGS: Mapping[TopicPartition, LogOffsets] = MappingProxyType({})


class DirectoryState(NamedTuple):
    """The state in which the last process left the directory."""

    directory_id: str
    same_boot: bool
    clean: bool
    recovery_points: Mapping[TopicPartition, int]
    log_starts: Mapping[TopicPartition, int]
    clean_entries: CleanEntries = NO_ENTRIES
    """The entries of small logs that a clean stop wrote; empty after any other end."""
    synced_logs: frozenset[SyncedRow] = frozenset()
    """The logs that have all records which their process fsynced."""
    incarnations: tuple[str, ...] = ()
    """The incarnations of the proof: one must have been the last that ran."""
    clean_incarnation: str = ""
    """The incarnation of the clean mark: it must have been the last that ran."""
    adopted: tuple[AdoptedLog, ...] = ()
    """Logs that another process of this machine gave to this directory."""

    @property
    def is_intact(self) -> bool:
        """True if every log is as its process wrote it."""
        return self.same_boot or self.clean


class DataDirectory:
    """The files under `log/` that belong to no partition."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.proof_file = ProofFile(disk, ROOT)
        self._pending_deletions: list[tuple[int, str]] = []
        self._rename_numbers = itertools.count()
        self._renames = self._renames_saved = 0
        """Directories that were renamed for deletion, and how many of them the checkpoints have forgotten since."""
        self._save_ended: asyncio.Event | None = None
        """Set when the writing of offsets ends that runs now."""
        self._saves_requested = 0
        self._saves_done = 0
        self._noted_position: MetadataPosition | None = None

    async def open(self, cluster_id: str, node_id: int, new_directory_id: str) -> DirectoryState:
        """Returns the state of the directory; gives a new directory to this node, under `new_directory_id`.

        Removes the clean mark durably: from now on only a clean stop counts as one. Raises `Refused` if another node
        owns the directory, and `Corrupt` if its owner cannot be read.
        """
        self._disk.make_dirs(ROOT)
        held = checkpoints.load(self._disk, ROOT, META_FILE)
        directory_id = (
            self._check_owner(held.decode(errors="replace"), cluster_id, node_id) if held else new_directory_id
        )
        clean_mark = checkpoints.load(self._disk, ROOT, checkpoints.CLEAN_MARK)
        clean, proof = clean_mark is not None, proof_file.load(self._disk, ROOT)
        found = DirectoryState(
            directory_id,
            proof.boot == self._disk.boot_mark(ROOT),
            clean,
            self._load_offsets(checkpoints.RECOVERY_POINTS),
            self._load_offsets(checkpoints.LOG_STARTS),
            proof.clean if clean else {},
            proof.synced,
            proof.incarnations,
            checkpoints.parse_clean_mark(clean_mark or b""),
            self._load_adopted(),
        )
        if not held:
            if not found.adopted and self._list_logs():
                log.warning(
                    "%s of the data directory is gone or empty, and logs are there: the directory counts as another"
                    " one, whose logs may lack their ends",
                    META_FILE,
                )
            text = f"version={VERSION}\ncluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id={directory_id}\n"
            await checkpoints.save(self._disk, ROOT, META_FILE, text.encode())
        self._disk.remove(f"{ROOT}/{checkpoints.CLEAN_MARK}")
        await self._disk.sync_dir(ROOT)
        return found

    def _load_adopted(self) -> tuple[AdoptedLog, ...]:
        data = checkpoints.load(self._disk, ROOT, ADOPTED_FILE)
        return parse_adopted(data, f"{ROOT}/{ADOPTED_FILE}") if data is not None else ()

    async def forget_adopted(self) -> None:
        """Removes the file of adopted logs: the metadata names this broker for them now. Raises `Unavailable`."""
        if self._disk.exists(f"{ROOT}/{ADOPTED_FILE}"):
            self._disk.remove(f"{ROOT}/{ADOPTED_FILE}")
            await self._disk.sync_dir(ROOT)

    def set_aside(self, tp: TopicPartition) -> str:
        """Renames the directory of a log that is no replica of this broker, to keep it. Returns the new name; "" if
        there is no such directory. Raises `Unavailable`."""
        return self._rename_aside(tp, "adopted", STRAY_SUFFIX) if self._disk.exists(self.log_path(tp)) else ""

    def read_cluster_id(self) -> str:
        """Returns the id of the cluster that the directory belongs to; "" if it belongs to none yet."""
        held = checkpoints.load(self._disk, ROOT, META_FILE)
        rows = dict(parse_properties((held or b"").decode(errors="replace").splitlines()))
        return rows.get("cluster.id", "")

    def refuse_older_bucket(self, found: MetadataPosition) -> None:
        """Raises `Refused` if the metadata log was further when this directory noted it. Changes nothing."""
        data = checkpoints.load(self._disk, ROOT, metadata_position.FILE)
        try:
            noted = metadata_position.parse(data, where=metadata_position.FILE) if data is not None else None
        except Corrupt as error:
            log.warning("note of the metadata log is not used why=%s", error)
            return
        if noted is not None:
            metadata_position.refuse_older(found, noted, f"{ROOT}/{metadata_position.FILE}")

    async def note_metadata(self, reached: MetadataPosition) -> None:
        """Notes durably what the metadata log has reached, if that is new. One call at a time."""
        if reached != self._noted_position:
            await checkpoints.save(self._disk, ROOT, metadata_position.FILE, metadata_position.encode(reached))
            self._noted_position = reached

    def set_proof(self, *, same_boot: bool, incarnations: Iterable[str]) -> None:
        """Sets what the next proof says of page cache and incarnations. Keeps the first 100 incarnations."""
        boot, names = self._disk.boot_mark(ROOT) if same_boot else "", tuple(dict.fromkeys(incarnations))
        proof = self.proof_file.proof
        self.proof_file.proof = proof._replace(boot=boot, incarnations=names[:INCARNATIONS_MAX])

    async def write_boot_mark(self, *incarnations: str) -> None:
        """Writes that recovery is finished and fsynced, so the page cache outlives a kill of the process.

        It holds if the last incarnation that ran is one of these.
        """
        self.set_proof(same_boot=True, incarnations=incarnations)
        await self.proof_file.save()

    async def remove_boot_mark(self) -> None:
        """Writes that the page cache is not proved: the next start finds the same logs unproved again."""
        self.proof_file.proof = self.proof_file.proof._replace(boot="")
        await self.proof_file.save()

    async def save_offsets(
        self, logs: Mapping[TopicPartition, DiskLog], closed: Mapping[TopicPartition, LogOffsets] = NO_LOGS
    ) -> None:
        """Saves how far each log is durable, and where it starts. The lines of `closed` logs stay as they are.

        Calls during a save share the next one: a thousand logs that change at once cause two saves, not a thousand.
        """
        self._saves_requested = ticket = self._saves_requested + 1
        while self._saves_done < ticket:
            if self._save_ended is not None:
                await self._save_ended.wait()
                continue
            ended = self._save_ended = asyncio.Event()
            try:
                number = self._saves_requested
                await self._save_offsets(logs, closed)
                self._saves_done = number
            finally:
                self._save_ended = None
                ended.set()

    async def _save_offsets(
        self, logs: Mapping[TopicPartition, DiskLog], closed: Mapping[TopicPartition, LogOffsets]
    ) -> None:
        renames = self._renames
        known = [
            (tp, hot, hot.truncations.made, hot.recovery_point, hot.start_offset, hot.end_offset)
            for tp, hot in logs.items()
        ]
        points = [(tp, point) for tp, _, _, point, _, _ in known]
        starts = [(tp, start) for tp, _, _, _, start, _ in known if start]
        for tp, kept in closed.items():
            if kept.recovery_point is not None:
                points.append((tp, kept.recovery_point))
            if kept.start:
                starts.append((tp, kept.start))
        for _, hot, _, point, _, _ in known:
            hot.truncations.begin_checkpoint(point)
        for name, offsets in (
            (checkpoints.RECOVERY_POINTS, points),
            (checkpoints.LOG_STARTS, starts),
            (checkpoints.HIGH_WATERMARKS, [(tp, end) for tp, _, _, _, _, end in known]),
        ):
            await checkpoints.save(self._disk, ROOT, name, await _encode_offsets(offsets))
        self._renames_saved = renames
        for _, hot, made, point, start, _ in known:
            hot.truncations.mark_checkpointed(made, point)
            hot.checkpointed_start_offset = start

    async def mark_clean(self, entries: Iterable[tuple[TopicPartition, CleanLogEntry]], incarnation: str) -> None:
        """Marks a clean stop of an incarnation: all logs are closed and durable.

        The next start need not read the small logs that have an entry.
        """
        rows: list[bytes] = []
        async for tp, each in each_of(entries):
            rows.append(clean_shutdown.encode_log(tp, each))
        await self.proof_file.save(rows)
        await checkpoints.save(self._disk, ROOT, checkpoints.CLEAN_MARK, checkpoints.encode_clean_mark(incarnation))

    # -- log directories ----------------------------------------------------------------------------------------------

    def log_path(self, tp: TopicPartition) -> str:
        """Returns the directory of a partition's log."""
        return f"{ROOT}/{tp}"

    async def delete_stray_logs(
        self, topic_ids: Mapping[TopicPartition, str], state: DirectoryState
    ) -> tuple[DirectoryState, Collection[TopicPartition]]:
        """Deletes directories that an earlier run had renamed for deletion, and logs of topics that are gone. Returns
        what is left: the state, and the partitions of `topic_ids` whose logs are lost.

        A log whose file with the topic id is torn or lost by a power cut was never durable, and may belong to an
        earlier topic of that name: it is deleted too. The state has no checkpoint of a log that is not there, except
        the log start of a lost one: a checkpoint may belong to an earlier topic as well. A log is lost if its directory
        is gone and the checkpoints note it as durable.

        Each directory gets its new name durably before any of its files is removed. Otherwise a process that ends in
        between could leave records without their topic id. The checkpoints forget the log before that too: without
        its directory, the next start would take it for a lost one.
        """
        strays = [name for name in self._disk.list(ROOT) if name.endswith(DELETE_SUFFIX)]
        for name, tp in self._list_logs():
            if await self._is_stray_log(name, tp, topic_ids.get(tp), state):
                strays.append(self._rename_aside(tp, "stray"))
        present = {tp for name, tp in self._list_logs() if tp in topic_ids and not self._is_empty(name)}
        gone = {tp for tp in topic_ids.keys() - present if _counts_as_durable(state, tp)}
        lost = gone - _find_renamed(gone, strays)
        kept = state._replace(
            recovery_points={tp: offset for tp, offset in state.recovery_points.items() if tp in present},
            log_starts={tp: offset for tp, offset in state.log_starts.items() if tp in present or tp in lost},
        )
        is_forgotten = not strays or await self._forget_logs(kept)
        for name in strays:
            if is_forgotten:
                await self._disk.discard(f"{ROOT}/{name}")
            else:
                await self._empty(name)
                self._pending_deletions.append((0, name))
        return kept, lost

    def _list_logs(self) -> list[tuple[str, TopicPartition]]:
        """Returns the directories of logs with their partitions."""
        named = ((name, parse_log_name(name)) for name in self._disk.list(ROOT))
        return [(name, tp) for name, tp in named if tp is not None]

    async def _forget_logs(self, kept: DirectoryState) -> bool:
        """Saves the checkpoints of the logs that are kept, and makes new names of directories durable. Returns False if
        the disk has no room for the checkpoints."""
        try:
            for name, offsets in (
                (checkpoints.RECOVERY_POINTS, kept.recovery_points), (checkpoints.LOG_STARTS, kept.log_starts),
            ):  # fmt: skip
                await checkpoints.save(self._disk, ROOT, name, await _encode_offsets(list(offsets.items())))
        except Unavailable as error:
            if error.final:
                raise
            log.warning("checkpoints keep the lines of deleted logs for now why=%s", error)
            await self._disk.sync_dir(ROOT)
            return False
        return True

    async def _empty(self, name: str) -> None:
        """Removes the files of a directory that is renamed for deletion. Its name stays: it tells the next start that
        the lines of the checkpoints are those of a deleted log, not of a lost one."""
        for each in self._disk.list(f"{ROOT}/{name}"):
            await self._disk.discard(f"{ROOT}/{name}/{each}")

    def _is_empty(self, name: str) -> bool:
        """True if the files of a log are gone, with its topic id."""
        if self._disk.exists(f"{ROOT}/{name}/{checkpoints.METADATA_FILE}"):
            return False
        return not any(each.endswith(".log") for each in self._disk.list(f"{ROOT}/{name}"))

    async def mark_lost(self, tp: TopicPartition) -> None:
        """Notes durably, in the place of a log that is gone, that records are missing: each start finds the log corrupt
        until the loss is reported. Raises `Unavailable`."""
        self._disk.make_dirs(self.log_path(tp))
        await checkpoints.save(self._disk, self.log_path(tp), checkpoints.SUSPECT_FILE, b"the log is gone\n")
        await self._disk.sync_dir(ROOT)

    async def _is_stray_log(self, name: str, tp: TopicPartition, topic_id: str | None, state: DirectoryState) -> bool:
        """True if a log is of no topic that is here now, or was never durable. `topic_id` None: no replica is here.

        Restores a topic id that has rotted.
        """
        if tp in state.clean_entries and state.clean_entries[tp].topic_id == topic_id:
            return False
        owner = checkpoints.load(self._disk, f"{ROOT}/{name}", checkpoints.METADATA_FILE)
        if owner is None and topic_id is None:
            return False
        # The first flush of a log syncs this file. The checkpoint has a line for a log that was never flushed too.
        was_flushed = state.recovery_points.get(tp, 0) > 0
        if not state.is_intact and not was_flushed and checkpoints.is_torn_metadata(owner or b""):
            log.warning("log that was never durable is deleted name=%s", name)
            return True
        if owner is None:
            return False
        if topic_id is not None and checkpoints.is_rotten_metadata(owner, topic_id):
            log.warning("topic id of a log has rotted and is written again name=%s topic_id=%s", name, topic_id)
            metadata = checkpoints.encode_metadata(topic_id)
            await checkpoints.save(self._disk, f"{ROOT}/{name}", checkpoints.METADATA_FILE, metadata)
            return False
        try:
            found = checkpoints.parse_metadata(owner, where=name)
        except Corrupt as error:
            log.warning("log directory cannot be read and stays name=%s why=%s", name, error)
            return False
        if topic_id != found:
            log.info("log of a deleted topic is deleted name=%s topic_id=%s", name, found)
        return topic_id != found

    def rename_for_deletion(self, tp: TopicPartition, topic_id: str, due_ms: int) -> None:
        """Renames a partition's directory; `delete_one_due` deletes it at `due_ms`, when its readers are done."""
        if self._disk.exists(self.log_path(tp)):
            self._pending_deletions.append((due_ms, self._rename_aside(tp, topic_id)))

    def _rename_aside(self, tp: TopicPartition, label: str, suffix: str = DELETE_SUFFIX) -> str:
        """Renames a partition's directory for its deletion, or to keep it, and returns the name."""
        while True:
            end = f".{label}.{next(self._rename_numbers)}{suffix}"
            name = str(tp)[: NAME_BYTES_MAX - len(end)] + end
            if not self._disk.exists(f"{ROOT}/{name}"):  # an earlier process may have left one
                self._disk.rename(self.log_path(tp), f"{ROOT}/{name}")
                self._renames += suffix == DELETE_SUFFIX
                return name

    def must_save_offsets(self, now_ms: int) -> bool:
        """True if the checkpoints may still have lines of a log whose deletion is due. A start that found the lines
        without the log would take it for a lost one."""
        return self._renames != self._renames_saved and any(due <= now_ms for due, _ in self._pending_deletions)

    async def delete_one_due(self, now_ms: int) -> bool:
        """Deletes one renamed directory that is due. Returns False if there is none.

        Deletes only the files as long as the checkpoints may have lines of the log: the disk may be full.
        """
        if self.must_save_offsets(now_ms):
            await self._disk.sync_dir(ROOT)  # else a power cut could give a directory without files its old name back
            for name in [name for due_ms, name in self._pending_deletions if due_ms <= now_ms]:
                await self._empty(name)
            return False
        entry = next((each for each in self._pending_deletions if each[0] <= now_ms), None)
        if entry is None:
            return False
        await self._disk.discard(f"{ROOT}/{entry[1]}")
        self._pending_deletions.remove(entry)
        return True

    def _check_owner(self, text: str, cluster_id: str, node_id: int) -> str:
        rows = dict(parse_properties(text.splitlines()))
        for name in ("cluster.id", "node.id", "directory.id"):
            if not rows.get(name):
                raise Corrupt(
                    f"the data directory's {META_FILE} names no {name}; remove the file to start as after a loss",
                    where=f"{ROOT}/{META_FILE}",
                )
        if rows.get("version", VERSION) != VERSION:
            why = f"{META_FILE} of the data directory has version {rows['version']}, this program knows {VERSION}"
            raise Refused(Code.UNSUPPORTED_VERSION, f"{why}: start the program that wrote it, or with another data.dir")
        if rows.get("cluster.id") != cluster_id:
            why = f"the data directory belongs to cluster {rows['cluster.id']}, the store to {cluster_id}"
            raise Refused(Code.INCONSISTENT_CLUSTER_ID, f"{why}: either store or data.dir is the wrong one")
        if rows.get("node.id") != str(node_id):
            why = f"node.id={node_id}: the data directory belongs to node {rows['node.id']}"
            raise Refused(Code.INVALID_CONFIG, f"{why}: give that node.id, or a data.dir of its own")
        return rows["directory.id"]

    def _load_offsets(self, name: str) -> dict[TopicPartition, int]:
        """Returns the offsets in a checkpoint file; none if it is corrupt: recovery then checks more than it must."""
        try:
            return checkpoints.parse_offsets(checkpoints.load(self._disk, ROOT, name) or b"", where=name)
        except Corrupt as error:
            log.warning("checkpoint is not used name=%s why=%s", name, error)
            return {}


async def _encode_offsets(offsets: list[tuple[TopicPartition, int]]) -> bytes:
    """Encodes a checkpoint of offsets. Others have their turn between the rows of many logs."""
    offsets.sort()
    return checkpoints.encode_rows([row async for row in each_of(checkpoints.encode_offset_rows(offsets))])


def parse_log_name(name: str) -> TopicPartition | None:
    """Returns the partition whose log has this directory name; None if the name is of no log."""
    topic, dash, number = name.rpartition("-")
    return TopicPartition(topic, int(number)) if dash and number.isdecimal() else None


def _find_renamed(tps: Iterable[TopicPartition], strays: Sequence[str]) -> set[TopicPartition]:
    """Returns the partitions whose logs were renamed for deletion. A name of full length has a part of the old one."""
    whole = {name.rsplit(".", 2)[0] for name in strays}
    parts = tuple(name.rsplit(".", 2)[0] for name in strays if len(name) == NAME_BYTES_MAX)
    return {tp for tp in tps if str(tp) in whole or str(tp).startswith(parts)}


def _counts_as_durable(state: DirectoryState, tp: TopicPartition) -> bool:
    """True if the checkpoints note a log as durable: its recovery point is above 0, or 0 in the same boot. A power cut
    may take a log that was never flushed, even one closed cleanly."""
    point = state.recovery_points.get(tp, -1)
    return point > 0 or (point == 0 and state.same_boot)


def parse_properties(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            yield key.strip(), value.strip()
