"""DescribeClientQuotas (API key 48)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, boolean, double, integer, message, string


@dataclass(slots=True)
class ComponentData:
    entity_type: str = string()
    match_type: int = integer(FieldType.INT8)
    match: str | None = string(nullable="0+")


@message(48, "0-1", "1+")
@dataclass(slots=True)
class DescribeClientQuotasRequest(Message):
    components: list[ComponentData] = array(ComponentData)
    strict: bool = boolean()


@dataclass(slots=True)
class EntityData:
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


@dataclass(slots=True)
class ValueData:
    key: str = string()
    value: float = double()


@dataclass(slots=True)
class EntryData:
    entity: list[EntityData] = array(EntityData)
    values: list[ValueData] = array(ValueData)


@message(48, "0-1", "1+")
@dataclass(slots=True)
class DescribeClientQuotasResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")
    entries: list[EntryData] | None = array(EntryData, nullable="0+")
