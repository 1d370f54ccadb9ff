"""The audit log as a topic (`tiered.audit.topic`): the lines of this broker, written from a bounded queue.

A request never waits for the topic. Lines that find no room are dropped and counted, and the topic gets their number
once it takes lines again. The broker writes in its own name: its writes are no events. A line whose reply was lost may
be in the topic twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from tiered.errors import Code, Refused
from tiered.log_limiter import LogLimiter
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.errors import EXPECTED_ERRORS, HttpError
from tiered_api.http.partitions.produce import append_many
from tiered_api.http.partitions.record_formats import ProducerRecord

log = logging.getLogger(__name__)

SETTING = "tiered.audit.topic"
QUEUE_BYTES_MAX = 4 << 20
"""Most bytes of lines that wait for the topic."""
LINES_PER_WRITE = 500
GATHER_SECONDS = 1.0
"""Time in which lines are gathered for one write."""
RETRY_SECONDS = 5.0
CLOSE_SECONDS = 2.0
"""Longest time for the last lines when the broker stops."""


class AuditTopic:
    """The lines that wait, and their writer. Without the setting it does nothing."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._topic = context.broker.settings.tiered_audit_topic
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = 0
        """Dropped lines that the topic was not told of."""
        self._has_lines = asyncio.Event()
        self._limiter = LogLimiter(context.clock)
        self._writer: asyncio.Task[None] | None = None
        self._drops = context.broker.metrics.counter(
            "tiered_audit_dropped_total", "Lines of the audit log that found no room in the queue for the topic."
        )
        if self._topic:
            context.broker.audit.subscribe(self.add)
            self._writer = asyncio.get_running_loop().create_task(self._write_all(), name="audit topic")

    @property
    def waiting_lines(self) -> int:
        """The number of lines that wait."""
        return len(self._lines)

    def add(self, line: str) -> None:
        """Adds a line, or drops it if the queue is full."""
        data = line.encode()
        if self._bytes + len(data) > QUEUE_BYTES_MAX:
            self._dropped += 1
            self._drops.inc(1)
            self._warn("drop", "the queue is full, so lines of the audit log are dropped")
            return
        self._lines.append(data)
        self._bytes += len(data)
        self._has_lines.set()

    async def close(self) -> None:
        """Ends the writer, and writes the lines that wait and the counts of others, for `CLOSE_SECONDS` at most."""
        if self._writer is None:
            return
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)
        self._context.broker.audit.write_counts()
        with suppress(TimeoutError, *EXPECTED_ERRORS):
            async with asyncio.timeout(CLOSE_SECONDS):
                while self._lines:
                    await self._write_some()

    async def _write_all(self) -> None:
        await self._context.broker.served.wait()
        while True:
            await self._has_lines.wait()
            await asyncio.sleep(GATHER_SECONDS)
            try:
                await self._write_some()
            except EXPECTED_ERRORS as error:
                self._warn("write", str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _write_some(self) -> None:
        """Writes the oldest lines. They stay in the queue if the topic does not take them."""
        topic = self._context.broker.image.topics.get(self._topic)
        if topic is None:
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {self._topic}: create it")
        lines = [self._lines[at] for at in range(min(LINES_PER_WRITE, len(self._lines)))]
        dropped = self._dropped
        now_ms = self._context.clock.wall_ms()
        told = [json.dumps({"event": "audit", "outcome": "dropped", "lines": dropped}).encode()] if dropped else []
        records = [ProducerRecord(None, now_ms, None, line, ()) for line in (*told, *lines)]
        outcomes = await append_many(self._context, topic, records)
        failed = next((each for each in outcomes if isinstance(each, HttpError)), None)
        if failed is not None:
            raise failed
        self._forget(lines)
        self._dropped -= dropped

    def _forget(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            self._lines.popleft()
            self._bytes -= len(line)
        if not self._lines:
            self._has_lines.clear()

    def _warn(self, kind: str, why: str) -> None:
        suppressed = self._limiter.admit(kind)
        if suppressed is not None:
            log.warning(
                "the audit topic takes no lines %s=%s waiting=%d suppressed=%d why=%s",
                SETTING, self._topic, len(self._lines), suppressed, why,
            )  # fmt: skip
