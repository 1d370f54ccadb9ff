"""TieredAcknowledge (API key 20004, ours): an operator acknowledges possible losses.

Null names all topics, or all partitions of one topic.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.messages.describe_cluster import PossibleLoss
from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@dataclass(slots=True)
class AcknowledgedTopic:
    topic: str = string()
    partitions: list[int] | None = array(FieldType.INT32, nullable="0+", default=None)


@message(20004, "0", "0+")
@dataclass(slots=True)
class TieredAcknowledgeRequest(Message):
    topics: list[AcknowledgedTopic] | None = array(AcknowledgedTopic, nullable="0+", default=None)
    timeout_ms: int = integer(FieldType.INT32, default=30_000)


@message(20004, "0", "0+")
@dataclass(slots=True)
class TieredAcknowledgeResponse(Message):
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)
    losses: list[PossibleLoss] = array(PossibleLoss)
