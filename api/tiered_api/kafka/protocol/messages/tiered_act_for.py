"""TieredActFor (API key 20006, ours): a broker names the client for which it sends the requests that follow on its
connection. Kafka's Envelope carries the same for one request."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, data, integer, message, string


@message(20006, "0", "0+")
@dataclass(slots=True)
class TieredActForRequest(Message):
    cluster_id: str = string()
    credential: bytes = data()
    principal_type: str = string()
    principal_name: str = string()
    client_host: str = string()
    holder: str = string("0+", tag=0, tagged="0+")
    """The holder that a broker works for, if the principal is a broker. Earlier versions do not know it."""
    client_id: str = string("0+", tag=1, tagged="0+")
    """The client id of the client, if quotas depend on it. Earlier versions do not know it."""


@message(20006, "0", "0+")
@dataclass(slots=True)
class TieredActForResponse(Message):
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)
