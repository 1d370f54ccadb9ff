"""RenewDelegationToken (API key 39)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, data, integer, message


@message(39, "1-2", "2+")
@dataclass(slots=True)
class RenewDelegationTokenRequest(Message):
    hmac: bytes = data()
    renew_period_ms: int = integer(FieldType.INT64)


@message(39, "1-2", "2+")
@dataclass(slots=True)
class RenewDelegationTokenResponse(Message):
    error_code: int = integer(FieldType.INT16)
    expiry_timestamp_ms: int = integer(FieldType.INT64)
    throttle_time_ms: int = integer(FieldType.INT32)
