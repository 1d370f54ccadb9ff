"""The check of records against the registry, as `confluent.value.schema.validation` asks for it.

A key or value must name a schema, and the schema must have the subject of the topic. The bytes behind the name are not
decoded, as at Confluent. A key or value that is null names nothing, and passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tiered.registry.schema import Schema
from tiered.registry.state import RegistryState
from tiered.registry.subjects import DEFAULT_CONTEXT

KEY, VALUE = "key", "value"
HEADERS = {KEY: "__key_schema_id", VALUE: "__value_schema_id"}
"""Headers in which newer serializers name the schema."""
ID_BYTES, GUID_BYTES = 5, 17
"""Bytes of a frame: a zero and an id of 32 bits, or a one and a guid."""

_PACKAGE = "io.confluent.kafka.serializers.subject."
TOPIC_NAME = f"{_PACKAGE}TopicNameStrategy"
RECORD_NAME = f"{_PACKAGE}RecordNameStrategy"
TOPIC_RECORD_NAME = f"{_PACKAGE}TopicRecordNameStrategy"


class SubjectRule(NamedTuple):
    """The subject that the schemas of a topic's keys or values must have. `part` is `KEY` or `VALUE`."""

    topic: str
    part: str
    strategy: str = TOPIC_NAME

    @property
    def needs_record_names(self) -> bool:
        """True if the subject has the name of a record in it."""
        return self.strategy != TOPIC_NAME

    def list_subjects(self, record_names: Sequence[str]) -> list[str]:
        """Returns the subjects that a schema with these names of records may have."""
        if self.strategy == RECORD_NAME:
            return list(record_names)
        if self.strategy == TOPIC_RECORD_NAME:
            return [f"{self.topic}-{name}" for name in record_names]
        return [f"{self.topic}-{self.part}"]


class FoundSchema(NamedTuple):
    """The schema that a frame names."""

    id: int
    schema: Schema


def cut_frame(data: bytes, header: bytes | None) -> bytes:
    """Returns the bytes that name the schema: those of the header, or else those in front."""
    return bytes(data[:ID_BYTES]) if header is None else header[: GUID_BYTES + 1]


def find_schema(state: RegistryState, frame: bytes) -> FoundSchema | None:
    """Returns the schema that a frame names in the default context; None if there is none."""
    if len(frame) == GUID_BYTES and frame[0] == 1:
        found = [id for context, id in state.find_by_fingerprint(frame[1:]) if context == DEFAULT_CONTEXT]
        id = found[0] if found else -1
    elif len(frame) == ID_BYTES and frame[0] == 0:
        id = int.from_bytes(frame[1:], "big")
    else:
        return None
    schema = state.find_schema(DEFAULT_CONTEXT, id)
    return FoundSchema(id, schema) if schema is not None else None


def find_fault(state: RegistryState, rule: SubjectRule, frame: bytes, record_names: Sequence[str] = ()) -> str:
    """Returns what is wrong with a frame, or "". `record_names` are those of its schema, if the rule needs them."""
    found = find_schema(state, frame)
    if found is None:
        return _describe_unknown(rule.part, frame)
    subjects = rule.list_subjects(record_names)
    if any(subject in subjects for subject, _ in state.find_uses(DEFAULT_CONTEXT, found.id)):
        return ""
    which = f"has a {rule.part} with schema id {found.id}, which is not registered under "
    if subjects:
        return which + " or ".join(f"the subject {each!r}" for each in subjects[:3])
    return f"{which}the name of a record, because the schema has none"


def _describe_unknown(part: str, frame: bytes) -> str:
    if len(frame) == ID_BYTES and frame[0] == 0:
        return (
            f"has a {part} with schema id {int.from_bytes(frame[1:], 'big')}, which the schema registry does not have"
        )
    if len(frame) == GUID_BYTES and frame[0] == 1:
        return f"has a {part} with schema guid {frame[1:].hex()}, which the schema registry does not have"
    return f"has a {part} that names no schema: no zero byte with a schema id is in front, nor is the id in a header"
