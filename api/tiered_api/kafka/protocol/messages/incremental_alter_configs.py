"""IncrementalAlterConfigs (API key 44)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, boolean, integer, message, string


@dataclass(slots=True)
class AlterableConfig:
    name: str = string()
    config_operation: int = integer(FieldType.INT8)
    value: str | None = string(nullable="0+")


@dataclass(slots=True)
class AlterConfigsResource:
    resource_type: int = integer(FieldType.INT8)
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


@message(44, "0-1", "1+")
@dataclass(slots=True)
class IncrementalAlterConfigsRequest(Message):
    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


@dataclass(slots=True)
class AlterConfigsResourceResponse:
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")
    resource_type: int = integer(FieldType.INT8)
    resource_name: str = string()


@message(44, "0-1", "1+")
@dataclass(slots=True)
class IncrementalAlterConfigsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
