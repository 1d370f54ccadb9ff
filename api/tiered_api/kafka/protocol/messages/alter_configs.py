"""AlterConfigs (API key 33)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, boolean, integer, message, string


@dataclass(slots=True)
class AlterableConfig:
    name: str = string()
    value: str | None = string(nullable="0+")


@dataclass(slots=True)
class AlterConfigsResource:
    resource_type: int = integer(FieldType.INT8)
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


@message(33, "0-2", "2+")
@dataclass(slots=True)
class AlterConfigsRequest(Message):
    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


@dataclass(slots=True)
class AlterConfigsResourceResponse:
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")
    resource_type: int = integer(FieldType.INT8)
    resource_name: str = string()


@message(33, "0-2", "2+")
@dataclass(slots=True)
class AlterConfigsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
