"""AlterUserScramCredentials (API key 51)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, data, integer, message, string


@dataclass(slots=True)
class ScramCredentialDeletion:
    name: str = string()
    mechanism: int = integer(FieldType.INT8)


@dataclass(slots=True)
class ScramCredentialUpsertion:
    name: str = string()
    mechanism: int = integer(FieldType.INT8)
    iterations: int = integer(FieldType.INT32)
    salt: bytes = data()
    salted_password: bytes = data()


@message(51, "0", "0+")
@dataclass(slots=True)
class AlterUserScramCredentialsRequest(Message):
    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


@dataclass(slots=True)
class AlterUserScramCredentialsResult:
    user: str = string()
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")


@message(51, "0", "0+")
@dataclass(slots=True)
class AlterUserScramCredentialsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)
