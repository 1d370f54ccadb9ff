"""DescribeAcls (API key 29)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@message(29, "1-3", "2+")
@dataclass(slots=True)
class DescribeAclsRequest(Message):
    resource_type_filter: int = integer(FieldType.INT8)
    resource_name_filter: str | None = string(nullable="0+")
    pattern_type_filter: int = integer(FieldType.INT8, "1+", default=3)
    principal_filter: str | None = string(nullable="0+")
    host_filter: str | None = string(nullable="0+")
    operation: int = integer(FieldType.INT8)
    permission_type: int = integer(FieldType.INT8)


@dataclass(slots=True)
class AclDescription:
    principal: str = string()
    host: str = string()
    operation: int = integer(FieldType.INT8)
    permission_type: int = integer(FieldType.INT8)


@dataclass(slots=True)
class DescribeAclsResource:
    resource_type: int = integer(FieldType.INT8)
    resource_name: str = string()
    pattern_type: int = integer(FieldType.INT8, "1+", default=3)
    acls: list[AclDescription] = array(AclDescription)


@message(29, "1-3", "2+")
@dataclass(slots=True)
class DescribeAclsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")
    resources: list[DescribeAclsResource] = array(DescribeAclsResource)
