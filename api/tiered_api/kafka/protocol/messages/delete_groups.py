"""DeleteGroups (API key 42)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import Kind, Message, array, integer, message, string


@message(42, "0-2", "2+")
@dataclass(slots=True)
class DeleteGroupsRequest(Message):
    groups_names: list[str] = array(Kind.STRING)


@dataclass(slots=True)
class DeletableGroupResult:
    group_id: str = string()
    error_code: int = integer(Kind.INT16)


@message(42, "0-2", "2+")
@dataclass(slots=True)
class DeleteGroupsResponse(Message):
    throttle_time_ms: int = integer(Kind.INT32)
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
