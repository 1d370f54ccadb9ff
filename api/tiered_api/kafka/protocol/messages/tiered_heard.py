"""TieredHeard (API key 20003, ours): a broker reports its view of the controller, and its own identity."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, data, integer, message, string


@message(20003, "0", "0+")
@dataclass(slots=True)
class TieredHeardRequest(Message):
    cluster_id: str = string()
    credential: bytes = data()


@message(20003, "0", "0+")
@dataclass(slots=True)
class TieredHeardResponse(Message):
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)
    controller_epoch: int = integer(FieldType.INT32, default=-1)
    controller: int = integer(FieldType.INT32, default=-1)
    heard_ms_ago: int = integer(FieldType.INT64, default=-1)
    node_id: int = integer(FieldType.INT32, default=-1)
    incarnation: str = string()
