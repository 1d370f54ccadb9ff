"""ListGroups (API key 16)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@message(16, "0-5", "3+")
@dataclass(slots=True)
class ListGroupsRequest(Message):
    states_filter: list[str] = array(FieldType.STRING, "4+")
    types_filter: list[str] = array(FieldType.STRING, "5+")


@dataclass(slots=True)
class ListedGroup:
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string("4+")
    group_type: str = string("5+")


@message(16, "0-5", "3+")
@dataclass(slots=True)
class ListGroupsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32, "1+")
    error_code: int = integer(FieldType.INT16)
    groups: list[ListedGroup] = array(ListedGroup)
