"""The list of logs that are proved whole at their fsynced end (R1): one file for all logs of a broker.

A broker that lost power may lack records that it never fsynced. A row says that its log lacks nothing that ever
counted. All of that was durable when the row was written, and only fsynced offsets have counted since (`flush=ack`).
The row proves this, and today's setting does not. Two orders keep the proof valid:

- The row is durable before any code relies on it.
- The row is durably removed before an offset without fsync counts again.

The file names the incarnations for which it is valid. The metadata log names the last incarnation that ran. The rows
are void if another incarnation ran since and wrote no such file, as an older version does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import orjson

from tiered.errors import Corrupt, Unavailable
from tiered.hot import checkpoints
from tiered.ids import TopicId, TopicPartition
from tiered.ports import Disk
from tiered.records.native import crc32c

log = logging.getLogger(__name__)

FILE = "synced-logs"
Row = tuple[TopicPartition, TopicId]
NO_PARTITION = TopicPartition("", -1)


class SyncedLogsContent(NamedTuple):
    """The content of the file: the rows, and the incarnations. One of these must have been the last that ran."""

    incarnations: tuple[str, ...] = ()
    logs: Mapping[TopicPartition, TopicId] = MappingProxyType({})

    def is_fully_synced(self, tp: TopicPartition, topic_id: TopicId) -> bool:
        """True if the log of exactly this topic is proved whole at its fsynced end."""
        return self.logs.get(tp) == topic_id


NO_SYNCED_LOGS = SyncedLogsContent()


def encode(incarnations: Iterable[str], rows: Iterable[Row]) -> bytes:
    """Encodes a CRC line, then one JSON object."""
    logs = [[*tp, topic_id] for tp, topic_id in sorted(rows)]
    body = orjson.dumps({"incarnations": list(incarnations), "logs": logs})
    return b"%08x\n" % crc32c(body) + body


def parse(data: bytes, *, where: str = "") -> SyncedLogsContent:
    """Parses the output of `encode`. Raises `Corrupt` if the bytes are invalid."""
    crc, _, body = data.partition(b"\n")
    if crc != b"%08x" % crc32c(body):
        raise Corrupt("CRC of the list of synced logs is wrong", where=where)
    try:
        found = orjson.loads(body)
        logs = {TopicPartition(topic, partition): TopicId(topic_id) for topic, partition, topic_id in found["logs"]}
        return SyncedLogsContent(tuple(found["incarnations"]), logs)
    except (ValueError, TypeError, KeyError) as error:
        raise Corrupt(f"list of synced logs has another format: {error}", where=where) from None


class SyncedLogs:
    """The file. `may_add` is False for a log whose possible loss of records is not reported yet."""

    def __init__(self, disk: Disk, directory: str, incarnation: str, may_add: Callable[[TopicPartition], bool]) -> None:
        self.may_add = may_add
        self._disk = disk
        self._directory = directory
        self._incarnation = incarnation
        self._wanted: set[Row] = set()
        self._durable: frozenset[Row] = frozenset()
        """Rows that are certainly on the disk under this incarnation."""
        self._possible: frozenset[Row] = frozenset()
        """Rows that may be on the disk: this includes rows of a write that failed or is still running."""
        self._save_lock = asyncio.Lock()

    def adopt_rows(self, rows: Iterable[Row]) -> None:
        """Adopts the rows of the last incarnation. They stay valid only if `save` runs before this incarnation
        registers."""
        self._wanted = set(rows)
        self._possible = frozenset(self._wanted)

    def add_row(self, row: Row) -> None:
        """Adds a row, which the next `save` writes."""
        self._wanted.add(row)

    def remove_row(self, row: Row) -> None:
        """Removes a row, which the next `save` takes out of the file."""
        self._wanted.discard(row)

    def is_durable(self, row: Row) -> bool:
        """True if the row is on the disk and stays there."""
        return row in self._durable and row in self._wanted

    def is_possible(self, row: Row) -> bool:
        """True if a start may find the row."""
        return row in self._possible

    async def save(self, other_incarnations: Iterable[str] = ()) -> None:
        """Writes the file, unless the rows on the disk are the same. Callers that come during a write share the next
        one.

        `other_incarnations` are further incarnations for which the file is valid. Raises `Unavailable`.
        """
        async with self._save_lock:
            rows = frozenset(self._wanted)
            if rows == self._durable == self._possible:
                return
            self._durable &= rows
            self._possible |= rows
            data = encode(dict.fromkeys((self._incarnation, *other_incarnations)), rows)
            await checkpoints.save(self._disk, self._directory, FILE, data)
            self._durable = self._possible = rows


class SyncedLogEntry:
    """The row of one open log. Without `logs` there is no row.

    `fsynced_only`: only fsynced offsets count. `is_due`: the row does not match the topic's setting yet, and the next
    `save_if_due` writes the file.
    """

    __slots__ = ("_ack", "_fsynced_only_from", "_logs", "_row", "fsynced_only", "is_due")

    def __init__(self, logs: SyncedLogs | None = None, tp: TopicPartition = NO_PARTITION, topic_id: str = "") -> None:
        self._logs = logs
        self._row = (tp, TopicId(topic_id))
        self._ack = False
        self._fsynced_only_from = 0
        """From this offset on only fsynced offsets have counted. Below it others may have counted."""
        self.fsynced_only = False
        self.is_due = False

    def configure(self, *, ack: bool, end_offset: int) -> None:
        """Applies a change of the topic's setting: `ack` is True if it is now `flush=ack`."""
        was_fsynced_only, self._ack = self.fsynced_only, ack
        if self._logs is not None and not ack:
            self._logs.remove_row(self._row)
        self.refresh()
        if self.fsynced_only and not was_fsynced_only:
            self._fsynced_only_from = end_offset

    def refresh(self) -> None:
        """Updates both flags from the file's state. While a start may find the row, only fsynced offsets count."""
        logs, row = self._logs, self._row
        possible = logs is not None and logs.is_possible(row)
        self.fsynced_only = self._ack or possible
        self.is_due = logs is not None and (not logs.is_durable(row) if self._ack else possible)

    async def save_if_due(self, flushed_offset: int, end_offset: int) -> None:
        """Writes the row once all that counted before is durable, or removes it.

        Raises `Unavailable` if a required row cannot be written: nothing may be acknowledged without it.
        """
        logs, ack = self._logs, self._ack
        if logs is None or not self.is_due:
            return
        if ack:
            if flushed_offset < min(self._fsynced_only_from, end_offset) or not logs.may_add(self._row[0]):
                return
            logs.add_row(self._row)
        try:
            await logs.save()
        except Unavailable as error:
            if ack or error.final:
                raise
            log.warning(
                "row of a log cannot be removed, so the log still waits for fsync partition=%s why=%s",
                self._row[0],
                error,
            )
        finally:
            self.refresh()
