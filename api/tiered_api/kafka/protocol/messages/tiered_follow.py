"""TieredFollow (API key 20001, ours): a broker fetches the metadata log from the active controller."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, boolean, data, integer, message, string


@message(20001, "0", "0+")
@dataclass(slots=True)
class TieredFollowRequest(Message):
    cluster_id: str = string()
    credential: bytes = data()
    node_id: int = integer(FieldType.INT32)
    incarnation: str = string()
    slot: int = integer(FieldType.INT64)
    applied: int = integer(FieldType.INT64)
    controller_epoch: int = integer(FieldType.INT32)
    wait_ms: int = integer(FieldType.INT32)
    clock_ahead_ms: int = integer(FieldType.INT64, tag=0, tagged="0+")
    clock_error_ms: int = integer(FieldType.INT64, default=-1, tag=1, tagged="0+")
    metadata_version: int = integer(FieldType.INT16, tag=2, tagged="0+")
    active_key: str = string(tag=3, tagged="0+")


@message(20001, "0", "0+")
@dataclass(slots=True)
class TieredFollowResponse(Message):
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)
    controller_epoch: int = integer(FieldType.INT32, default=-1)
    next_slot: int = integer(FieldType.INT64, default=-1)
    entries: list[bytes] = array(FieldType.BYTES)
    too_old: bool = boolean()
    store_age_ms: int = integer(FieldType.INT64)
    wall_ms: int = integer(FieldType.INT64, default=-1, tag=0, tagged="0+")
    held_ms: int = integer(FieldType.INT64, tag=1, tagged="0+")
    active_keys: list[str] = array(FieldType.STRING, tag=2, tagged="0+")
