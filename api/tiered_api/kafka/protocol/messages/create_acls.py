"""CreateAcls (API key 30)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@dataclass(slots=True)
class AclCreation:
    resource_type: int = integer(FieldType.INT8)
    resource_name: str = string()
    resource_pattern_type: int = integer(FieldType.INT8, "1+", default=3)
    principal: str = string()
    host: str = string()
    operation: int = integer(FieldType.INT8)
    permission_type: int = integer(FieldType.INT8)


@message(30, "1-3", "2+")
@dataclass(slots=True)
class CreateAclsRequest(Message):
    creations: list[AclCreation] = array(AclCreation)


@dataclass(slots=True)
class AclCreationResult:
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")


@message(30, "1-3", "2+")
@dataclass(slots=True)
class CreateAclsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    results: list[AclCreationResult] = array(AclCreationResult)
