"""TieredRotateSecret (API key 20007, ours): an operator sets the next secret of the brokers.

The expected version -1 sets nothing: the reply has the version that the broker knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, integer, message, string


@message(20007, "0", "0+")
@dataclass(slots=True)
class TieredRotateSecretRequest(Message):
    expected_version: int = integer(FieldType.INT32, default=-1)
    timeout_ms: int = integer(FieldType.INT32, default=30_000)


@message(20007, "0", "0+")
@dataclass(slots=True)
class TieredRotateSecretResponse(Message):
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)
    version: int = integer(FieldType.INT32, default=-1)
