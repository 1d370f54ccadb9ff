"""The logs of a broker that are proved whole at their fsynced end (R1): rows in the proof of its data directory.

A broker that lost power may lack records that it never fsynced. A row says that its log lacks nothing that ever
counted. All of that was durable when the row was written, and only fsynced offsets have counted since (`flush=ack`).
The row proves this, and today's setting does not. Two orders keep the proof valid:

- The row is durable before any code relies on it.
- The row is durably removed before an offset without fsync counts again.

The proof names the incarnations for which it is valid (`proof_file`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from tiered.errors import Unavailable
from tiered.hot.proof_file import ProofFile, SyncedRow
from tiered.ids import TopicId, TopicPartition

log = logging.getLogger(__name__)

NO_PARTITION = TopicPartition("", -1)


class SyncedLogs:
    """The rows. `may_add` is False for a log whose possible loss of records is not reported yet."""

    def __init__(self, proof_file: ProofFile, may_add: Callable[[TopicPartition], bool]) -> None:
        self.may_add = may_add
        self._proof_file = proof_file
        self._wanted: set[SyncedRow] = set()
        self._durable: frozenset[SyncedRow] = frozenset()
        """Rows that are certainly on the disk."""
        self._possible: frozenset[SyncedRow] = frozenset()
        """Rows that may be on the disk: this includes rows of a write that failed or is still running."""
        self._save_lock = asyncio.Lock()

    def adopt_rows(self, rows: Iterable[SyncedRow]) -> None:
        """Adopts the rows of the last incarnation. They stay valid only if the proof is saved before this incarnation
        registers."""
        self._wanted = set(rows)
        self._possible = frozenset(self._wanted)

    def add_row(self, row: SyncedRow) -> None:
        """Adds a row, which the next `save` writes."""
        self._wanted.add(row)

    def remove_row(self, row: SyncedRow) -> None:
        """Removes a row, which the next `save` takes out of the file."""
        self._wanted.discard(row)

    def is_durable(self, row: SyncedRow) -> bool:
        """True if the row is on the disk and stays there."""
        return row in self._durable and row in self._wanted

    def is_possible(self, row: SyncedRow) -> bool:
        """True if a start may find the row."""
        return row in self._possible

    async def save(self, *, always: bool = False) -> None:
        """Writes the proof, unless the rows on the disk are the same. Callers that come during a write share the next
        one. Raises `Unavailable`."""
        async with self._save_lock:
            rows = frozenset(self._wanted)
            if rows == self._durable == self._possible and not always:
                return
            self._durable &= rows
            self._possible |= rows
            self._proof_file.proof = self._proof_file.proof._replace(synced=rows)
            await self._proof_file.save()
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
