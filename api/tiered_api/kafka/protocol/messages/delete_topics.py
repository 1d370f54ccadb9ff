"""DeleteTopics (API key 20)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string, uuid


@dataclass(slots=True)
class DeleteTopicState:
    name: str | None = string("6+", nullable="6+", default=None)
    topic_id: str = uuid("6+")


@message(20, "1-6", "4+")
@dataclass(slots=True)
class DeleteTopicsRequest(Message):
    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+")
    topic_names: list[str] = array(FieldType.STRING, "0-5")
    timeout_ms: int = integer(FieldType.INT32)


@dataclass(slots=True)
class DeletableTopicResult:
    name: str | None = string(nullable="6+")
    topic_id: str = uuid("6+")
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string("5+", nullable="5+", default=None)


@message(20, "1-6", "4+")
@dataclass(slots=True)
class DeleteTopicsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32, "1+")
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)
