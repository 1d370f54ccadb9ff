"""Reports on the tables of the warehouse (`tiered.console.warehouse`), each by a process of its own.

The tables may be those of strangers, and the warehouse may be slow: the event loop only reads lines, and a process that
takes too long is killed. This broker does not import the package that reads tables, which needs an extra.

A report is kept for some seconds, and callers who ask for the same share it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, NamedTuple

import orjson

from tiered.errors import Refused
from tiered.fair_slots import FairSlots
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.limits import Exhausted

log = logging.getLogger(__name__)

Table = dict[str, Any]

SETTING = "tiered.console.warehouse"
MODULE = "pyspark_tiered.query.warehouse_report"
EXTRA = "the tables need the Python package pyarrow: pip install '.[sql]' in tiered's source folder"
ENDED = "the process that reads the tables ended too early: the broker's log says more"
READ_SECONDS = 15.0
"""Longest time of a report. A table that is not read by then is named."""
KEPT_SECONDS = 20.0
"""Time for which a report is served again."""
AT_ONCE = 2
"""Processes that run at the same time."""
MAKING_MAX = 4
"""Reports that are being made, or wait for their process."""
KEPT_MAX = 8
TABLES_MAX = 500
REPORT_BYTES = 4 << 20
LINE_BYTES = REPORT_BYTES
"""Most bytes of a line: the metadata of Iceberg of a table with many columns."""


class Asked(NamedTuple):
    """One table, or all of them; a table comes with so many versions, or only with its metadata of Iceberg."""

    table: str | None = None
    versions: int = 0
    iceberg: bool = False


class Report(NamedTuple):
    """The tables by name. `problem` says why some may be missing."""

    tables: dict[str, Table]
    problem: str | None
    read_ms: int


class WarehouseReports:
    """The reports of one broker."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._turns = FairSlots(AT_ONCE, MAKING_MAX - AT_ONCE)
        self._made: OrderedDict[tuple[str, Asked], asyncio.Task[Report]] = OrderedDict()

    @property
    def warehouse(self) -> str:
        """The URL or directory of the warehouse; empty if none is set."""
        return self._context.broker.settings.tiered_console_warehouse

    async def read(self, asked: Asked, holder: str) -> Report:
        """Returns a report that is at most some seconds old. Holders take turns. Raises `Exhausted` if too many are
        being made."""
        if find_spec("pyarrow") is None:
            return Report({}, EXTRA, self._context.clock.wall_ms())
        self._forget_old()
        key = self.warehouse, asked
        task = self._made.get(key)
        if task is None:
            task = self._made[key] = asyncio.create_task(self._make(*key, holder), name="warehouse-report")
        try:
            return await asyncio.shield(task)
        except Refused:
            raise Exhausted(f"{MAKING_MAX} reports on tables are being made") from None

    async def close(self) -> None:
        """Ends the reports that are being made."""
        making = [task for task in self._made.values() if not task.done()]
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)

    def _forget_old(self) -> None:
        """Forgets reports that are too old, and the oldest ones if there are too many."""
        now_ms = self._context.clock.wall_ms()
        done = [key for key, task in self._made.items() if task.done()]
        for number, key in enumerate(done):
            if self._made[key].exception() is not None:  # it got no turn
                del self._made[key]
                continue
            age_ms = now_ms - self._made[key].result().read_ms
            if not 0 <= age_ms <= KEPT_SECONDS * 1000 or len(done) - number > KEPT_MAX:
                del self._made[key]

    async def _make(self, warehouse: str, asked: Asked, holder: str) -> Report:
        lines = ReportLines()
        async with self._turns.take(holder):
            try:
                is_late = not await _run(warehouse, asked, lines)
            except (OSError, ValueError) as fault:  # no process, or a line that is none
                log.warning("tables of the warehouse were not read why=%s", fault)
                lines.problem, is_late = ENDED, False
        return Report(lines.finish(is_late=is_late), lines.problem, self._context.clock.wall_ms())


class ReportLines:
    """The content of the lines of a report."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self._is_done = False
        self._tables: dict[str, Table] = {}
        self._begun: dict[str, None] = {}
        self._bytes = 0

    def add(self, line: bytes) -> bool:
        """Takes a line. Returns false if the report is too large to be read on."""
        self._bytes += len(line)
        if self._bytes > REPORT_BYTES:
            self.problem = f"the tables have more than {REPORT_BYTES >> 20} MiB of facts: some are left out"
            return False
        found = orjson.loads(line)
        if "begun" in found:
            self._begun[found["begun"]] = None
        elif "is_absent" in found:
            del self._begun[found["table"]]
        elif "table" in found:
            self._tables[found["table"]] = found
        elif "done" in found:
            self._is_done = True
            if found["has_more"]:
                self.problem = f"the warehouse has more than {len(self._tables):,} tables: the others are left out"
        else:
            self.problem = found["problem"]
        return True

    def finish(self, *, is_late: bool) -> dict[str, Table]:
        """Returns the tables by name. A table that was begun and not read has a problem, too."""
        late = f"not read within {READ_SECONDS:g} s"
        why = late if is_late else ENDED
        for name in self._begun:
            self._tables.setdefault(name, {"table": name, "problem": why})
        if not self._is_done and self.problem is None:
            self.problem = f"the warehouse was {late}: tables may be missing" if is_late else ENDED
        return dict(sorted(self._tables.items()))


async def _run(warehouse: str, asked: Asked, lines: ReportLines) -> bool:
    """Runs the process to its end. Returns false if the time was over before."""
    wanted = {"warehouse": warehouse, "most": TABLES_MAX, "seconds": int(2 * READ_SECONDS), **asked._asdict()}
    command = (sys.executable, "-P", "-m", MODULE)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=LINE_BYTES)
    try:
        async with asyncio.timeout(READ_SECONDS):
            await _read_lines(process, orjson.dumps(wanted), lines)
        return True
    except TimeoutError:
        log.warning("tables of the warehouse were not read in time seconds=%g", READ_SECONDS)
        return False
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _read_lines(process: Process, request: bytes, lines: ReportLines) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(request)
    process.stdin.close()
    while line := await process.stdout.readline():
        if not lines.add(line):
            return
