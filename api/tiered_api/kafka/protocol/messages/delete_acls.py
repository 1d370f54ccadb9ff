"""DeleteAcls (API key 31)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@dataclass(slots=True)
class DeleteAclsFilter:
    resource_type_filter: int = integer(FieldType.INT8)
    resource_name_filter: str | None = string(nullable="0+")
    pattern_type_filter: int = integer(FieldType.INT8, "1+", default=3)
    principal_filter: str | None = string(nullable="0+")
    host_filter: str | None = string(nullable="0+")
    operation: int = integer(FieldType.INT8)
    permission_type: int = integer(FieldType.INT8)


@message(31, "1-3", "2+")
@dataclass(slots=True)
class DeleteAclsRequest(Message):
    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter)


@dataclass(slots=True)
class DeleteAclsMatchingAcl:
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")
    resource_type: int = integer(FieldType.INT8)
    resource_name: str = string()
    pattern_type: int = integer(FieldType.INT8, "1+", default=3)
    principal: str = string()
    host: str = string()
    operation: int = integer(FieldType.INT8)
    permission_type: int = integer(FieldType.INT8)


@dataclass(slots=True)
class DeleteAclsFilterResult:
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl)


@message(31, "1-3", "2+")
@dataclass(slots=True)
class DeleteAclsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult)
