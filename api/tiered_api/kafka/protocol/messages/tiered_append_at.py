"""TieredAppendAt (API key 20010, ours): a broker appends a batch to a partition if its log ends at an offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tiered_api.kafka.protocol.schema import FieldType, Message, data, integer, message, records, string, uuid


@message(20010, "0", "0+")
@dataclass(slots=True)
class TieredAppendAtRequest(Message):
    cluster_id: str = string()
    credential: bytes = data()
    timeout_ms: int = integer(FieldType.INT32)
    topic_id: str = uuid()
    partition: int = integer(FieldType.INT32)
    leader_epoch: int = integer(FieldType.INT32)
    end_offset: int = integer(FieldType.INT64)
    records: Any = records(nullable="0+")


@message(20010, "0", "0+")
@dataclass(slots=True)
class TieredAppendAtResponse(Message):
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)
