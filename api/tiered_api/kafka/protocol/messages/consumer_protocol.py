"""The subscriptions and assignments that members of a consumer group exchange through the coordinator.

Both are preceded by their version (int16). The coordinator does not read them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, data, integer, message, string


@dataclass(slots=True)
class OwnedTopic:
    topic: str = string("1+")
    partitions: list[int] = array(FieldType.INT32, "1+")


@message(-1, "0-3")
@dataclass(slots=True)
class ConsumerProtocolSubscription(Message):
    topics: list[str] = array(FieldType.STRING)
    user_data: bytes | None = data(nullable="0+", default=None)
    owned_partitions: list[OwnedTopic] = array(OwnedTopic, "1+")
    generation_id: int = integer(FieldType.INT32, "2+", default=-1)
    rack_id: str | None = string("3+", nullable="3+", default=None)


@dataclass(slots=True)
class AssignedTopic:
    topic: str = string()
    partitions: list[int] = array(FieldType.INT32)


@message(-1, "0-3")
@dataclass(slots=True)
class ConsumerProtocolAssignment(Message):
    assigned_partitions: list[AssignedTopic] = array(AssignedTopic)
    user_data: bytes | None = data(nullable="0+", default=None)
