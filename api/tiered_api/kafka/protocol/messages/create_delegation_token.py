"""CreateDelegationToken (API key 38)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, data, integer, message, string


@dataclass(slots=True)
class CreatableRenewers:
    principal_type: str = string()
    principal_name: str = string()


@message(38, "1-3", "2+")
@dataclass(slots=True)
class CreateDelegationTokenRequest(Message):
    owner_principal_type: str | None = string("3+", nullable="3+")
    owner_principal_name: str | None = string("3+", nullable="3+")
    renewers: list[CreatableRenewers] = array(CreatableRenewers)
    max_lifetime_ms: int = integer(FieldType.INT64)


@message(38, "1-3", "2+")
@dataclass(slots=True)
class CreateDelegationTokenResponse(Message):
    error_code: int = integer(FieldType.INT16)
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string("3+")
    token_requester_principal_name: str = string("3+")
    issue_timestamp_ms: int = integer(FieldType.INT64)
    expiry_timestamp_ms: int = integer(FieldType.INT64)
    max_timestamp_ms: int = integer(FieldType.INT64)
    token_id: str = string()
    hmac: bytes = data()
    throttle_time_ms: int = integer(FieldType.INT32)
