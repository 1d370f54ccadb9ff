"""The way of traced requests to a collector of OpenTelemetry, while `tiered.trace.otlp.endpoint` names one.

Every few seconds the exporter sends the slowest requests that were kept since it last looked. A request that no
collector takes is sent again until it is ten minutes old. So `RequestTraces` bounds what waits here too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from tiered.broker.request_traces import Kept, RequestTraces
from tiered.errors import Code, Refused, Unavailable
from tiered.log_limiter import LogLimiter
from tiered.metrics import Metrics
from tiered.ports import Clock
from tiered.request_trace import RequestTrace
from tiered.thread_pool import ThreadPool

log = logging.getLogger(__name__)

EXPORT_SECONDS, EXPORT_SECONDS_MAX = 5.0, 60.0
"""Pause between two exports, and the longest one after exports that failed."""
SEND_SECONDS = 10.0
"""Time that a collector has for one export."""
NO_SDK = "tiered.trace.otlp.endpoint needs the packages of OpenTelemetry: pip install 'tiered[otel]'"

SendSpans = Callable[[Sequence[RequestTrace]], str]
"""Sends requests as spans. Returns why the collector did not take them; nothing if it did."""


class TraceExporter:
    """Exports the traces of one broker. The packages of OpenTelemetry are imported when it starts."""

    def __init__(self, traces: RequestTraces, endpoint: str, clock: Clock, metrics: Metrics) -> None:
        self._traces = traces
        self._endpoint = endpoint
        self._clock = clock
        self._exported = metrics.counter("tiered_trace_exported_total", "Traced requests that a collector has taken.")
        self._failures = metrics.counter(
            "tiered_trace_export_failures_total", "Exports of traces that a collector did not take; they are repeated."
        )
        self._threads = ThreadPool("otlp", 1)
        self._limiter = LogLimiter(clock)
        self._send: SendSpans | None = None
        self._last = -1
        """Number of the newest request that a collector has taken."""

    async def start(self, cluster_id: str, node_id: int) -> None:
        """Imports the packages. Raises `Refused` (INVALID_CONFIG) if they are missing, or refuse their settings."""
        try:
            self._send = await self._threads.run(
                partial(_connect, self._endpoint, cluster_id, node_id), 6 * SEND_SECONDS
            )
        except TimeoutError:
            raise Unavailable("the packages of OpenTelemetry could not be read in time") from None

    async def run(self) -> None:
        """Exports until it is cancelled."""
        pause = EXPORT_SECONDS
        while True:
            await self._clock.sleep(pause)
            pause = EXPORT_SECONDS if await self.export() else min(2 * pause, EXPORT_SECONDS_MAX)

    async def export(self) -> bool:
        """Sends what was kept since the last export. False if the collector did not take it."""
        kept: Sequence[Kept] = self._traces.list_after(self._last)
        if not kept or self._send is None:
            return True
        try:
            why = await self._threads.run(partial(self._send, [each.trace for each in kept]), 2 * SEND_SECONDS)
        except (TimeoutError, Unavailable) as error:
            why = str(error) or "it did not reply in time"
        if not why:
            self._last = kept[-1].number
            self._exported.inc(len(kept))
            return True
        self._failures.inc()
        suppressed = self._limiter.admit()
        if suppressed is not None:
            log.warning("traces are not exported, will try again endpoint=%s requests=%d suppressed=%d why=%s",
                        self._endpoint, len(kept), suppressed, why)  # fmt: skip
        return False

    def close(self) -> None:
        """Ends the thread. Traces of the last seconds are not sent."""
        self._threads.close()


def _connect(endpoint: str, cluster_id: str, node_id: int) -> SendSpans:
    try:
        from tiered.broker.otlp_spans import SpanSender
    except ImportError:
        raise Refused(Code.INVALID_CONFIG, NO_SDK) from None
    try:
        return SpanSender(endpoint, SEND_SECONDS, cluster_id, node_id).send
    except ValueError as error:  # of a variable OTEL_...
        raise Refused(Code.INVALID_CONFIG, f"the exporter of OpenTelemetry refuses its settings: {error}") from None
