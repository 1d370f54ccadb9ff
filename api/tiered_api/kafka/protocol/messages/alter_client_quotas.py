"""AlterClientQuotas (API key 49)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, boolean, double, integer, message, string


@dataclass(slots=True)
class EntityData:
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


@dataclass(slots=True)
class OpData:
    key: str = string()
    value: float = double()
    remove: bool = boolean()


@dataclass(slots=True)
class EntryData:
    entity: list[EntityData] = array(EntityData)
    ops: list[OpData] = array(OpData)


@message(49, "0-1", "1+")
@dataclass(slots=True)
class AlterClientQuotasRequest(Message):
    entries: list[EntryData] = array(EntryData)
    validate_only: bool = boolean()


@dataclass(slots=True)
class AlterClientQuotasResult:
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")
    entity: list[EntityData] = array(EntityData)


@message(49, "0-1", "1+")
@dataclass(slots=True)
class AlterClientQuotasResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    entries: list[AlterClientQuotasResult] = array(AlterClientQuotasResult)
