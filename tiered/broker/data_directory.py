"""The broker's own files in its data directory: whose it is, how it was left, and how far its logs are safe.

`log/meta.properties` names cluster, node and directory, as Kafka's does. The boot mark says that everything written
since is in the page cache unless the machine died; it is written only after a recovery whose result is fsynced, and
taken away for good when an I/O error makes the directory untrusted. The clean mark says that all logs are durable.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from tiered.errors import Code, Corrupt, Refused
from tiered.hot import checkpoints
from tiered.hot import clean_shutdown as left_logs
from tiered.hot import synced_logs as synced
from tiered.hot.clean_shutdown import CleanLogEntry
from tiered.hot.disk_log import DiskLog
from tiered.hot.synced_logs import NO_SYNCED_LOGS, SyncedLogsContent
from tiered.ids import TopicPartition
from tiered.ports import Disk

log = logging.getLogger(__name__)

ROOT = "log"
META_FILE = "meta.properties"
VERSION = "1"
DELETE_SUFFIX = "-delete"
LOGS_PER_YIELD = 1_000
"""Logs that are dealt with before others get their turn."""
ROWS_PER_YIELD = 5_000
"""Rows of a checkpoint that are encoded before others get their turn: some 5 ms."""
NAME_BYTES_MAX = 255
"""Of one file or directory, as file systems have it; the name of a topic may take nearly all of it."""


class DirectoryState(NamedTuple):
    """How the directory was left. `whole`: every log in it is as its process wrote it."""

    directory_id: str
    same_boot: bool
    clean: bool
    recovery_points: Mapping[TopicPartition, int]
    log_starts: Mapping[TopicPartition, int]
    clean_entries: Mapping[TopicPartition, CleanLogEntry] = MappingProxyType({})
    """What a clean stop said of small logs; empty after any other end."""
    synced_logs: SyncedLogsContent = NO_SYNCED_LOGS
    """Which logs are whole at what they synced."""

    @property
    def is_intact(self) -> bool:
        return self.same_boot or self.clean


class DataDirectory:
    """The files under `log/` that belong to no partition."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._pending_deletions: list[tuple[int, str]] = []
        self._rename_numbers = itertools.count()
        self._save_ended: asyncio.Event | None = None
        """Set when the writing of offsets ends that runs now."""
        self._saves_requested = 0
        self._saves_done = 0

    async def open(self, cluster_id: str, node_id: int, new_directory_id: str) -> DirectoryState:
        """What is there; a new directory becomes this node's under `new_directory_id`. `Refused` when it is another's,
        `Corrupt` when it does not say whose it is.

        The clean mark is gone, durably, when this returns: from now on a death is not a clean stop.
        """
        self._disk.make_dirs(ROOT)
        held = checkpoints.load(self._disk, ROOT, META_FILE)
        directory_id = (
            self._check_owner(held.decode(errors="replace"), cluster_id, node_id) if held else new_directory_id
        )
        clean = self._disk.exists(f"{ROOT}/{checkpoints.CLEAN_MARK}")
        mark = checkpoints.load(self._disk, ROOT, checkpoints.BOOT_MARK)
        found = DirectoryState(
            directory_id,
            mark is not None and mark.decode(errors="replace") == self._disk.boot_mark(),
            clean,
            self._load_offsets(checkpoints.RECOVERY_POINTS),
            self._load_offsets(checkpoints.LOG_STARTS),
            self._load_clean_entries() if clean else {},
            self._load_synced_logs(),
        )
        if not held:
            if self._disk.exists(f"{ROOT}/{checkpoints.RECOVERY_POINTS}"):
                log.warning(
                    "%s of the data directory is gone or empty, and logs are there: it is taken for another one, whose"
                    " logs may lack their ends",
                    META_FILE,
                )
            text = f"version={VERSION}\ncluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id={directory_id}\n"
            await checkpoints.save(self._disk, ROOT, META_FILE, text.encode())
        self._disk.remove(f"{ROOT}/{checkpoints.CLEAN_MARK}")
        await self._disk.sync_dir(ROOT)
        return found

    def read_cluster_id(self) -> str:
        """Returns the id of the cluster that the directory belongs to; "" if it belongs to none yet."""
        held = checkpoints.load(self._disk, ROOT, META_FILE)
        rows = dict(_parse_properties((held or b"").decode(errors="replace").splitlines()))
        return rows.get("cluster.id", "")

    async def write_boot_mark(self) -> None:
        """Recovery is finished and fsynced: after a mere death of the process the page cache is whole."""
        await checkpoints.save(self._disk, ROOT, checkpoints.BOOT_MARK, self._disk.boot_mark().encode())

    def remove_boot_mark(self) -> None:
        """After an I/O error: the next start believes only what was fsynced."""
        self._disk.remove(f"{ROOT}/{checkpoints.BOOT_MARK}")

    async def save_offsets(self, logs: Mapping[TopicPartition, DiskLog]) -> None:
        """How far each log is durable, and where it starts. Callers that come while it is written share the next
        writing: a thousand logs that begin anew at once do not write it a thousand times."""
        self._saves_requested = asked = self._saves_requested + 1
        while self._saves_done < asked:
            if self._save_ended is not None:
                await self._save_ended.wait()
                continue
            ended = self._save_ended = asyncio.Event()
            try:
                number = self._saves_requested
                await self._save_offsets(logs)
                self._saves_done = number
            finally:
                self._save_ended = None
                ended.set()

    async def _save_offsets(self, logs: Mapping[TopicPartition, DiskLog]) -> None:
        known = [
            (tp, hot, hot.truncations.made, hot.flushed_offset, hot.start_offset, hot.end_offset)
            for tp, hot in logs.items()
        ]
        for name, offsets in (
            (checkpoints.RECOVERY_POINTS, [(tp, flushed) for tp, _, _, flushed, _, _ in known]),
            (checkpoints.LOG_STARTS, [(tp, start) for tp, _, _, _, start, _ in known if start]),
            (checkpoints.HIGH_WATERMARKS, [(tp, end) for tp, _, _, _, _, end in known]),
        ):
            await checkpoints.save(self._disk, ROOT, name, await _encode_offsets(offsets))
        for _, hot, made, _, start, _ in known:
            hot.truncations.mark_checkpointed(made)
            hot.checkpointed_start_offset = start

    def _load_clean_entries(self) -> dict[TopicPartition, CleanLogEntry]:
        try:
            data = checkpoints.load(self._disk, ROOT, left_logs.FILE)
            return left_logs.parse(data, where=left_logs.FILE) if data is not None else {}
        except Corrupt as error:
            log.warning("what a clean stop said is not used why=%s", error)
            return {}

    def _load_synced_logs(self) -> SyncedLogsContent:
        try:
            data = checkpoints.load(self._disk, ROOT, synced.FILE)
            return synced.parse(data, where=synced.FILE) if data is not None else NO_SYNCED_LOGS
        except Corrupt as error:
            log.warning("which logs are whole at what they synced is not known why=%s", error)
            return NO_SYNCED_LOGS

    async def mark_clean(self, entries: Iterable[tuple[TopicPartition, CleanLogEntry]]) -> None:
        """All logs are closed and durable; of the small ones the next start need only read this."""
        rows: list[bytes] = []
        for tp, each in entries:
            rows.append(left_logs.encode_log(tp, each))
            if len(rows) % LOGS_PER_YIELD == 0:
                await asyncio.sleep(0)
        await checkpoints.save(self._disk, ROOT, left_logs.FILE, left_logs.encode(rows))
        await checkpoints.save(self._disk, ROOT, checkpoints.CLEAN_MARK, b'{"version":0,"brokerEpoch":-1}')

    # -- partitions that are not any more -----------------------------------------------------------------------------

    def log_path(self, tp: TopicPartition) -> str:
        """Where the log of a partition lies."""
        return f"{ROOT}/{tp}"

    def delete_stray_logs(self, topic_ids: Mapping[TopicPartition, str], state: DirectoryState) -> DirectoryState:
        """Deletes what an earlier run condemned, and logs of topics that are gone. `known`: topic id by partition.
        What is noted of a log that is not there may be of an earlier topic of that name: it is left out of the answer.

        A topic id that a power cut tore off was never durable, so nothing of that log was: it may be of an earlier
        topic of that name, and goes too."""
        for name in self._disk.list(ROOT):
            if name.endswith(DELETE_SUFFIX):
                self._disk.remove(f"{ROOT}/{name}")
                continue
            tp = _parse_directory_name(name)
            if tp is None:
                continue
            if tp in state.clean_entries and state.clean_entries[tp].topic_id == topic_ids.get(tp):
                continue
            owner = checkpoints.load(self._disk, f"{ROOT}/{name}", checkpoints.METADATA_FILE)
            if owner is None:
                continue
            if not state.is_intact and tp not in state.recovery_points and checkpoints.is_torn_metadata(owner):
                log.warning("log that was never durable goes name=%s", name)
                self._disk.remove(f"{ROOT}/{name}")
                continue
            try:
                topic_id = checkpoints.parse_metadata(owner, where=name)
            except Corrupt as error:
                log.warning("log directory keeps its place unread name=%s why=%s", name, error)
                continue
            if topic_ids.get(tp) != topic_id:
                log.info("log of a deleted topic goes name=%s topic_id=%s", name, topic_id)
                self._disk.remove(f"{ROOT}/{name}")
        there = topic_ids.keys() & map(_parse_directory_name, self._disk.list(ROOT))
        return state._replace(
            recovery_points={tp: offset for tp, offset in state.recovery_points.items() if tp in there},
            log_starts={tp: offset for tp, offset in state.log_starts.items() if tp in there},
        )

    def rename_for_deletion(self, tp: TopicPartition, topic_id: str, due_ms: int) -> None:
        """Takes a partition's directory out of the way; `sweep` deletes it at `due_ms`, for readers in its middle."""
        if self._disk.exists(self.log_path(tp)):
            end = f".{topic_id}.{next(self._rename_numbers)}{DELETE_SUFFIX}"
            aside = f"{ROOT}/{str(tp)[: NAME_BYTES_MAX - len(end)]}{end}"
            self._disk.rename(self.log_path(tp), aside)
            self._pending_deletions.append((due_ms, aside))

    async def delete_one_due(self, now_ms: int) -> bool:
        """Deletes one condemned directory whose time has come; whether there was one."""
        for due in self._pending_deletions:
            if due[0] <= now_ms:
                await self._disk.discard(due[1])
                self._pending_deletions.remove(due)
                return True
        return False

    def _check_owner(self, text: str, cluster_id: str, node_id: int) -> str:
        rows = dict(_parse_properties(text.splitlines()))
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
            raise Refused(
                Code.INCONSISTENT_CLUSTER_ID, f"{why}: one of store and data.dir is not the one that is meant"
            )
        if rows.get("node.id") != str(node_id):
            why = f"node.id={node_id}: the data directory belongs to node {rows['node.id']}"
            raise Refused(Code.INVALID_CONFIG, f"{why}: give that node.id, or a data.dir of its own")
        return rows["directory.id"]

    def _load_offsets(self, name: str) -> dict[TopicPartition, int]:
        """A checkpoint; nothing when it does not prove itself: then more is checked than need be."""
        try:
            return checkpoints.parse_offsets(checkpoints.load(self._disk, ROOT, name) or b"", where=name)
        except Corrupt as error:
            log.warning("checkpoint is not used name=%s why=%s", name, error)
            return {}


async def _encode_offsets(offsets: list[tuple[TopicPartition, int]]) -> bytes:
    """Encodes a checkpoint of offsets. Others have their turn between the rows of many logs."""
    offsets.sort()
    rows: list[str] = []
    for first in range(0, len(offsets), ROWS_PER_YIELD):
        if first:
            await asyncio.sleep(0)
        rows += checkpoints.encode_offset_rows(offsets[first : first + ROWS_PER_YIELD])
    return checkpoints.encode_rows(rows)


def _parse_directory_name(name: str) -> TopicPartition | None:
    """The partition whose log a directory of this name holds."""
    topic, dash, number = name.rpartition("-")
    return TopicPartition(topic, int(number)) if dash and number.isdecimal() else None


def _parse_properties(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            yield key.strip(), value.strip()
