"""Runs transcripts of a compacted log: each command prints what it changes.

put KEY=VALUE..., delete KEY...   one batch for each record
write 7 KEY...                    records with the value v, in a transaction of producer 7
commit 7, abort 7                 the marker of its transaction
roll                              all is committed, and the active segment is closed and flushed
clean [keys=N]                    a clean of all closed segments; its map has room for so many keys
restart                           the process dies and starts again
read [from=OFFSET]                the records that a reader gets
segments                          the base offsets of the segments
tick MS                           time passes
"""

from __future__ import annotations

import asyncio

from tests.sim.harness.disk import SimDisk
from tests.transcript import Command
from tests.unit.hot.cleaning import clean, facts, put, read_all
from tests.unit.hot.fixtures import FixedClock, config, disk, open_log
from tests.unit.hot.transactions import TransactionWriter
from tiered.config.settings import TopicConfig
from tiered.hot.disk_log import DiskLog

DELETE_RETENTION_MS = 60_000
KEY_BYTES = 24
"""Memory of a clean for each key."""


class CompactionNarrator:
    """One log with `cleanup.policy=compact`."""

    def __init__(self) -> None:
        self._disk: SimDisk = disk()
        self._clock = FixedClock()
        self._log: DiskLog = asyncio.run(self._open())
        self._writer = TransactionWriter(self._log)

    def say(self, command: Command) -> str:
        return "\n".join(asyncio.run(getattr(self, f"_{command.verb}")(command)))

    async def _open(self) -> DiskLog:
        settings: TopicConfig = config(
            cleanup_policy=("compact",), segment_bytes=1 << 20, delete_retention_ms=DELETE_RETENTION_MS
        )
        return await open_log(self._disk, settings, clock=self._clock)

    # -- commands -----------------------------------------------------------------------------------------------------

    async def _put(self, command: Command) -> list[str]:
        return [f"{put(self._log, key, value)}: {key}={value}" for key, value in command.named.items()]

    async def _write(self, command: Command) -> list[str]:
        producer, *keys = command.words
        return [f"{self._writer.write(int(producer), size=1, key=key.encode())}: {key}=v" for key in keys]

    async def _delete(self, command: Command) -> list[str]:
        return [f"{put(self._log, key, None)}: {key} gone" for key in command.words]

    async def _commit(self, command: Command) -> list[str]:
        return [f"{self._writer.end(int(command.words[0]), commit=True)}: marker"]

    async def _abort(self, command: Command) -> list[str]:
        return [f"{self._writer.end(int(command.words[0]), commit=False)}: marker"]

    async def _roll(self, _: Command) -> list[str]:
        self._log.producers.txns.on_high_watermark(self._log.end_offset)
        self._log.roll()
        await self._log.flush()
        return []

    async def _clean(self, command: Command) -> list[str]:
        keys = command.number("keys", 1000)
        got = await clean(self._log, now_ms=self._clock.wall, map_bytes=keys * KEY_BYTES)
        more = ", the map is full" if got.is_map_full else ""
        return [f"clean to {got.clean_to}, {got.records_kept} of {got.records_read} records stay{more}"]

    async def _restart(self, _: Command) -> list[str]:
        self._log = await self._open()
        self._writer.log = self._log
        return [f"log ends at {self._log.end_offset}"]

    async def _read(self, command: Command) -> list[str]:
        start = command.number("from", 0)
        rows = [row for row in facts(read_all(self._log, start)) if row[0] >= start]
        return [f"{offset}: {key}={value or 'gone'}" for offset, key, value in rows] or ["nothing"]

    async def _segments(self, _: Command) -> list[str]:
        closed = [str(view.base_offset) for view in self._log.segments.closed()]
        return [" ".join([*closed, f"{self._log.segments.active.base_offset} active"])]

    async def _tick(self, command: Command) -> list[str]:
        self._clock.wall += int(command.words[0])
        return []
