"""Which logs are whole at what they synced: a note that outlives a power cut, one file for all logs of a broker.

A broker that lost power may lack what it never fsynced. A row says that a log lacks nothing that ever counted: all of
that was durable when the row was written, and only fsynced offsets have counted since (`flush=ack`). So the proof is a
fact about the log, and the setting of today proves nothing. Two orders keep it. The row is durable before anybody
counts on it. It is gone, durably, before an offset counts again that is not fsynced.

The file names the incarnations whose word it is. The metadata log names the last one that ran. The rows are void once
another one ran that wrote no such file, as an older version does.
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
    """What the file says: the rows, and the incarnations of which any must have been the last that ran."""

    incarnations: tuple[str, ...] = ()
    logs: Mapping[TopicPartition, TopicId] = MappingProxyType({})

    def is_fully_synced(self, tp: TopicPartition, topic_id: TopicId) -> bool:
        """True if the log of this very topic is whole at what it synced."""
        return self.logs.get(tp) == topic_id


NO_SYNCED_LOGS = SyncedLogsContent()


def encode(incarnations: Iterable[str], rows: Iterable[Row]) -> bytes:
    """Returns a CRC, then one JSON object."""
    logs = [[*tp, topic_id] for tp, topic_id in sorted(rows)]
    body = orjson.dumps({"incarnations": list(incarnations), "logs": logs})
    return b"%08x\n" % crc32c(body) + body


def parse(data: bytes, *, where: str = "") -> SyncedLogsContent:
    """Reads what `encode` wrote; `Corrupt` when the bytes do not prove themselves."""
    crc, _, body = data.partition(b"\n")
    if crc != b"%08x" % crc32c(body):
        raise Corrupt("its CRC does not hold", where=where)
    try:
        found = orjson.loads(body)
        logs = {TopicPartition(topic, partition): TopicId(topic_id) for topic, partition, topic_id in found["logs"]}
        return SyncedLogsContent(tuple(found["incarnations"]), logs)
    except (ValueError, TypeError, KeyError) as error:
        raise Corrupt(f"it is of another version: {error}", where=where) from None


class SyncedLogs:
    """The file. `may_note` says of a log that nobody has still to hear of records it may lack."""

    def __init__(self, disk: Disk, directory: str, incarnation: str, may_add: Callable[[TopicPartition], bool]) -> None:
        self.may_add = may_add
        self._disk = disk
        self._directory = directory
        self._incarnation = incarnation
        self._wanted: set[Row] = set()
        self._durable: frozenset[Row] = frozenset()
        """Rows that are on the disk under this incarnation, whatever happens."""
        self._possible: frozenset[Row] = frozenset()
        """Rows that may be on the disk: also of a write that failed or still runs."""
        self._save_lock = asyncio.Lock()

    def adopt_rows(self, rows: Iterable[Row]) -> None:
        """Takes over what the last incarnation wrote. `save` before this incarnation registers: else it is void."""
        self._wanted = set(rows)
        self._possible = frozenset(self._wanted)

    def add_row(self, row: Row) -> None:
        """Wants a row in the file."""
        self._wanted.add(row)

    def remove_row(self, row: Row) -> None:
        """Wants a row out of the file."""
        self._wanted.discard(row)

    def is_durable(self, row: Row) -> bool:
        """True if the row is on the disk and stays there."""
        return row in self._durable and row in self._wanted

    def is_possible(self, row: Row) -> bool:
        """True if a start may find the row."""
        return row in self._possible

    async def save(self, other_incarnations: Iterable[str] = ()) -> None:
        """Writes the file, unless it says all that already. Callers that come while it is written share the next
        writing. `before` are other incarnations whose word it is too. `Unavailable`."""
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
    """The part of one open log; without `logs` nothing is noted. `only`: nothing counts of it but what is fsynced.
    `is_due`: its row is not yet what its setting asks for, and the next `settle` is to write it."""

    def __init__(self, logs: SyncedLogs | None = None, tp: TopicPartition = NO_PARTITION, topic_id: str = "") -> None:
        self._logs = logs
        self._row = (tp, TopicId(topic_id))
        self._ack = False
        self._fsynced_only_from = 0
        """From here on only fsynced offsets have counted; below, others may have."""
        self.fsynced_only = False
        self.is_due = False

    def configure(self, *, ack: bool, end_offset: int) -> None:
        """The topic says `flush=ack` from now on, or says it no more."""
        was, self._ack = self.fsynced_only, ack
        if self._logs is not None and not ack:
            self._logs.remove_row(self._row)
        self.refresh()
        if self.fsynced_only and not was:
            self._fsynced_only_from = end_offset

    def refresh(self) -> None:
        """Goes by what the file says now. While a start may find the row, only fsynced offsets count."""
        logs, row = self._logs, self._row
        possible = logs is not None and logs.is_possible(row)
        self.fsynced_only = self._ack or possible
        self.is_due = logs is not None and (not logs.is_durable(row) if self._ack else possible)

    async def save_if_due(self, flushed_offset: int, end_offset: int) -> None:
        """Writes the row once all that counted before is durable, or takes it out. `Unavailable` where a row that is
        asked for cannot be written: nothing is to be acknowledged without it."""
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
            log.warning("log is fsynced on although flush says none partition=%s why=%s", self._row[0], error)
        finally:
            self.refresh()
