"""Traced requests as spans of OpenTelemetry, sent by its own SDK. Only `trace_exporter` imports this file.

A request is a span with the id that `tiered trace` prints, and each of its phases a span below it. The ids follow from
that id: a collector that gets a trace twice has it once.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from typing import Any, cast

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind, set_span_in_context

from tiered import __version__
from tiered.request_trace import RequestTrace

LOGGER = "opentelemetry"
"""Parent of the SDK's loggers. They say why an export failed, which the result does not."""
NS_PER_MS = 1_000_000


class TraceIds:
    """The ids of the spans of one trace at a time, as the SDK asks for them."""

    def __init__(self) -> None:
        self._trace_id = 0
        self._random = random.Random()

    def begin(self, trace_id: str) -> None:
        """Makes ids for this trace from now on."""
        self._trace_id = int(trace_id, 16)
        self._random = random.Random(self._trace_id)

    def generate_trace_id(self) -> int:
        """Returns the id of the trace."""
        return self._trace_id

    def generate_span_id(self) -> int:
        """Returns the id of its next span."""
        return self._random.getrandbits(64) or 1

    def is_trace_id_random(self) -> bool:
        """True: the id of a trace is drawn."""
        return True


class LastWarning(logging.Handler):
    """Keeps the last line that the SDK logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the line."""
        self.text = record.getMessage()


class SpanSender:
    """Sends requests to one collector. Its variables of the environment, such as OTEL_EXPORTER_OTLP_HEADERS, are those
    of the SDK."""

    def __init__(self, endpoint: str, seconds: float, cluster_id: str, node_id: int) -> None:
        own = {
            "service.name": "tiered",
            "service.version": __version__,
            "service.instance.id": str(node_id),
            "tiered.cluster.id": cluster_id,
        }
        self._ids = TraceIds()
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource(own).merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
            id_generator=cast(Any, self._ids),
        )
        self._tracer = provider.get_tracer("tiered", __version__)
        self._exporter = OTLPSpanExporter(endpoint, timeout=seconds)
        self._warning = LastWarning()
        logger = logging.getLogger(LOGGER)
        logger.handlers, logger.propagate = [self._warning], False

    def send(self, traces: Sequence[RequestTrace]) -> str:
        """Sends requests. Returns why the collector did not take them; nothing if it did."""
        self._warning.text = ""
        spans = [span for trace in traces for span in self._make_spans(trace)]
        if self._exporter.export(spans) == SpanExportResult.SUCCESS:
            return ""
        return self._warning.text or "the exporter does not say why"

    def _make_spans(self, trace: RequestTrace) -> Iterator[Any]:
        self._ids.begin(trace.trace_id)
        offset_ns = trace.began_ms * NS_PER_MS - trace.began_ns
        host, _, port = trace.peer.rpartition(":")
        attributes: dict[str, str | int | float] = {
            "messaging.system": "kafka",
            "messaging.client.id": trace.client_id,
            "network.peer.address": host,
            "network.peer.port": int(port) if port.isdigit() else 0,
            "user.name": trace.principal,
            "tiered.api.version": trace.version,
            "tiered.request.bytes": trace.size,
            "tiered.idle_ms": trace.idle_ns / NS_PER_MS,
            "tiered.phases_left_out": trace.left_out,
        }
        request = self._tracer.start_span(
            trace.api, Context(), SpanKind.SERVER, attributes, start_time=trace.began_ns + offset_ns
        )
        below = set_span_in_context(request, Context())
        for phase in tuple(trace.phases):
            span = self._tracer.start_span(phase.name, below, start_time=phase.start_ns + offset_ns)
            span.end(phase.end_ns + offset_ns)
            yield span
        request.end(trace.end_ns + offset_ns)
        yield request
