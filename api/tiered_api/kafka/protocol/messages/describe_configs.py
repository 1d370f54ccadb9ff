"""DescribeConfigs (API key 32)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, boolean, integer, message, string


@dataclass(slots=True)
class DescribeConfigsResource:
    resource_type: int = integer(FieldType.INT8)
    resource_name: str = string()
    configuration_keys: list[str] | None = array(FieldType.STRING, nullable="0+")


@message(32, "1-4", "4+")
@dataclass(slots=True)
class DescribeConfigsRequest(Message):
    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean("1+")
    include_documentation: bool = boolean("3+")


@dataclass(slots=True)
class DescribeConfigsSynonym:
    name: str = string("1+")
    value: str | None = string("1+", nullable="0+")
    source: int = integer(FieldType.INT8, "1+")


@dataclass(slots=True)
class DescribeConfigsResourceResult:
    name: str = string()
    value: str | None = string(nullable="0+")
    read_only: bool = boolean()
    config_source: int = integer(FieldType.INT8, "1+", default=-1)
    is_sensitive: bool = boolean()
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, "1+")
    config_type: int = integer(FieldType.INT8, "3+")
    documentation: str | None = string("3+", nullable="0+")


@dataclass(slots=True)
class DescribeConfigsResult:
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")
    resource_type: int = integer(FieldType.INT8)
    resource_name: str = string()
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


@message(32, "1-4", "4+")
@dataclass(slots=True)
class DescribeConfigsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)
