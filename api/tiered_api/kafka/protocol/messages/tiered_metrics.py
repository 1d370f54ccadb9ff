"""TieredMetrics (API key 20008, ours): the metrics of a broker, for another process of its machine."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, data, integer, message, string


@message(20008, "0", "0+")
@dataclass(slots=True)
class TieredMetricsRequest(Message):
    """It has no fields."""


@message(20008, "0", "0+")
@dataclass(slots=True)
class TieredMetricsResponse(Message):
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)
    text: bytes = data()
