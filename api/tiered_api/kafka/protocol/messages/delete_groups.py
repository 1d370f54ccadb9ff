"""DeleteGroups (API key 42)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@message(42, "0-2", "2+")
@dataclass(slots=True)
class DeleteGroupsRequest(Message):
    groups_names: list[str] = array(FieldType.STRING)


@dataclass(slots=True)
class DeletableGroupResult:
    group_id: str = string()
    error_code: int = integer(FieldType.INT16)


@message(42, "0-2", "2+")
@dataclass(slots=True)
class DeleteGroupsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
