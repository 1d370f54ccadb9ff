"""TieredCompact (API key 20005, ours): what compaction has done and has to do in partitions, and a clean now.

Null partitions name all of a topic that this broker has.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, boolean, integer, message, string


@dataclass(slots=True)
class CompactedTopic:
    topic: str = string()
    partitions: list[int] | None = array(FieldType.INT32, nullable="0+", default=None)


@message(20005, "0", "0+")
@dataclass(slots=True)
class TieredCompactRequest(Message):
    topics: list[CompactedTopic] = array(CompactedTopic)
    clean: bool = boolean()


@dataclass(slots=True)
class CompactionFacts:
    """`clean_to` and `cleaned_ms` are -1 before the first clean. `problem` is why the log cannot be cleaned."""

    topic: str = string()
    partition: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)
    is_in_bucket: bool = boolean()
    clean_to: int = integer(FieldType.INT64, default=-1)
    cleaned_ms: int = integer(FieldType.INT64, default=-1)
    bytes_before: int = integer(FieldType.INT64)
    bytes_after: int = integer(FieldType.INT64)
    clean_bytes: int = integer(FieldType.INT64)
    dirty_bytes: int = integer(FieldType.INT64)
    problem: str | None = string(nullable="0+", default=None)


@message(20005, "0", "0+")
@dataclass(slots=True)
class TieredCompactResponse(Message):
    partitions: list[CompactionFacts] = array(CompactionFacts)
