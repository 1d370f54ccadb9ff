"""DescribeDelegationToken (API key 41)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, data, integer, message, string


@dataclass(slots=True)
class DescribeDelegationTokenOwner:
    principal_type: str = string()
    principal_name: str = string()


@message(41, "1-3", "2+")
@dataclass(slots=True)
class DescribeDelegationTokenRequest(Message):
    owners: list[DescribeDelegationTokenOwner] | None = array(DescribeDelegationTokenOwner, nullable="0+")


@dataclass(slots=True)
class DescribedDelegationTokenRenewer:
    principal_type: str = string()
    principal_name: str = string()


@dataclass(slots=True)
class DescribedDelegationToken:
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string("3+")
    token_requester_principal_name: str = string("3+")
    issue_timestamp: int = integer(FieldType.INT64)
    expiry_timestamp: int = integer(FieldType.INT64)
    max_timestamp: int = integer(FieldType.INT64)
    token_id: str = string()
    hmac: bytes = data()
    renewers: list[DescribedDelegationTokenRenewer] = array(DescribedDelegationTokenRenewer)


@message(41, "1-3", "2+")
@dataclass(slots=True)
class DescribeDelegationTokenResponse(Message):
    error_code: int = integer(FieldType.INT16)
    tokens: list[DescribedDelegationToken] = array(DescribedDelegationToken)
    throttle_time_ms: int = integer(FieldType.INT32)
