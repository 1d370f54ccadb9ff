"""ListConfigResources (API key 74)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@message(74, "0-1", "0+")
@dataclass(slots=True)
class ListConfigResourcesRequest(Message):
    resource_types: list[int] = array(FieldType.INT8, "1+")


@dataclass(slots=True)
class ConfigResource:
    resource_name: str = string()
    resource_type: int = integer(FieldType.INT8, "1+", default=16)


@message(74, "0-1", "0+")
@dataclass(slots=True)
class ListConfigResourcesResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    config_resources: list[ConfigResource] = array(ConfigResource)
