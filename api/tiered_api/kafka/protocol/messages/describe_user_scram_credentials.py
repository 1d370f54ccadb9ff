"""DescribeUserScramCredentials (API key 50)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@dataclass(slots=True)
class UserName:
    name: str = string()


@message(50, "0", "0+")
@dataclass(slots=True)
class DescribeUserScramCredentialsRequest(Message):
    users: list[UserName] | None = array(UserName, nullable="0+")


@dataclass(slots=True)
class CredentialInfo:
    mechanism: int = integer(FieldType.INT8)
    iterations: int = integer(FieldType.INT32)


@dataclass(slots=True)
class DescribeUserScramCredentialsResult:
    user: str = string()
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")
    credential_infos: list[CredentialInfo] = array(CredentialInfo)


@message(50, "0", "0+")
@dataclass(slots=True)
class DescribeUserScramCredentialsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult)
