"""The records of `_schemas`, in the form of Confluent's registry: JSON keys and values.

So the topic of another registry can be copied here, record by record, and this one there. Keys have exactly the bytes
that Confluent writes: compaction keeps one record for each. A record that is not understood changes nothing.

One kind is ours, in a form that other registries skip: `NOOP` with the highest ids that were ever given. Without it, an
id whose schemas were all deleted could be given again after compaction, and old records would be read by another
schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from tiered.registry.refusals import RegistryRefused
from tiered.registry.schema import AVRO, KINDS, Reference, Schema
from tiered.registry.subjects import GLOBAL, parse_subject


class RegistryRecord(NamedTuple):
    """Key and value of one record; None is a tombstone."""

    key: bytes
    value: bytes | None


class VersionWritten(NamedTuple):
    """A version as it is from now on."""

    subject: str
    version: int
    id: int
    schema: Schema
    is_deleted: bool


class VersionErased(NamedTuple):
    """A version is gone for ever."""

    subject: str
    version: int


class SubjectDeleted(NamedTuple):
    """All versions up to this one are soft-deleted."""

    subject: str
    version: int


class RuleSet(NamedTuple):
    """A level or a mode of a subject, a context or all; None removes it."""

    kind: str
    subject: str
    value: Mapping[str, Any] | None


class HighestIds(NamedTuple):
    """The highest ids that were given, by context."""

    ids: Mapping[str, int]


Fact = VersionWritten | VersionErased | SubjectDeleted | RuleSet | HighestIds

LEVEL, MODE = "CONFIG", "MODE"
HIGHEST_IDS = "highestIds"
_NUMBERS_MAX = (1 << 31) - 1


# -- records to facts -------------------------------------------------------------------------------------------------


def read_record(key: bytes | None, value: bytes | None) -> Fact | None:
    """Returns what a record says; None if it says nothing that this registry understands."""
    try:
        name = orjson.loads(key or b"")
        said = orjson.loads(value) if value is not None else None
        if not isinstance(name, dict) or not isinstance(said, dict | None):
            return None
        return _read(name, said)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, RegistryRefused):
        return None


def _read(key: dict[str, Any], value: dict[str, Any] | None) -> Fact | None:
    match key.get("keytype"):
        case "SCHEMA":
            subject, version = parse_subject(_text(key["subject"])), _number(key["version"])
            if value is None:
                return VersionErased(subject, version)
            is_deleted = value.get("deleted", False) is True
            return VersionWritten(subject, version, _number(value["id"]), _read_schema(value), is_deleted)
        case "DELETE_SUBJECT" if value is not None:
            return SubjectDeleted(parse_subject(_text(key["subject"])), _number(value["version"]))
        case "CLEAR_SUBJECT":
            return SubjectDeleted(parse_subject(_text(key["subject"])), _NUMBERS_MAX)
        case "CONFIG" | "MODE" as kind:
            named = key.get("subject")
            scope = parse_subject(_text(named), may_be_context=True) if named else GLOBAL
            return RuleSet(kind, scope, value)
        case "NOOP" if value is not None:
            return HighestIds({_text(context): _number(each) for context, each in dict(value[HIGHEST_IDS]).items()})
    return None


def _read_schema(value: dict[str, Any]) -> Schema:
    kind = value.get("schemaType") or AVRO
    if kind not in KINDS:
        raise ValueError(kind)
    references = tuple(
        Reference(_text(each["name"]), _text(each["subject"]), _number(each["version"]))
        for each in value.get("references") or ()
    )
    return Schema(_text(value["schema"]), kind, references, encode_extra(value))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _NUMBERS_MAX:
        raise ValueError(value)
    return value


def encode_extra(value: Mapping[str, Any]) -> str:
    """Returns metadata and rule set of a schema as JSON; empty if it has none."""
    found = {name: value[name] for name in ("metadata", "ruleSet") if value.get(name) is not None}
    return orjson.dumps(found, option=orjson.OPT_SORT_KEYS).decode() if found else ""


# -- facts to records -------------------------------------------------------------------------------------------------


def version_key(subject: str, version: int) -> bytes:
    """Returns the key of a version."""
    return orjson.dumps({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})


def write_version(subject: str, version: int, id: int, schema: Schema, *, is_deleted: bool = False) -> RegistryRecord:
    """Returns the record of a version."""
    value: dict[str, Any] = {"subject": subject, "version": version, "id": id}
    value |= describe_schema(schema)
    return RegistryRecord(version_key(subject, version), orjson.dumps(value | {"deleted": is_deleted}))


def describe_schema(schema: Schema) -> dict[str, Any]:
    """Returns a schema with the fields that records and replies have in common. Avro is not named, as at Confluent."""
    found: dict[str, Any] = {} if schema.kind == AVRO else {"schemaType": schema.kind}
    if schema.references:
        found["references"] = [each._asdict() for each in schema.references]
    if schema.extra:
        found |= orjson.loads(schema.extra)
    return found | {"schema": schema.text}


def erase_version(subject: str, version: int) -> RegistryRecord:
    """Returns the tombstone of a version."""
    return RegistryRecord(version_key(subject, version), None)


def delete_subject(subject: str, version: int) -> RegistryRecord:
    """Returns the record of the soft deletion of all versions up to `version`."""
    key = orjson.dumps({"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0})
    return RegistryRecord(key, orjson.dumps({"subject": subject, "version": version}))


def write_rule(kind: str, subject: str, value: Mapping[str, Any] | None) -> RegistryRecord:
    """Returns the record of a level or mode of a subject, a context, or all."""
    key = orjson.dumps({"keytype": kind, "subject": None if subject == GLOBAL else subject, "magic": 0})
    if value is None:
        return RegistryRecord(key, None)
    named = {} if subject == GLOBAL else {"subject": subject}
    return RegistryRecord(key, orjson.dumps({**named, **value}))


def write_highest_ids(ids: Mapping[str, int]) -> RegistryRecord:
    """Returns the record of the highest ids that were given."""
    return RegistryRecord(orjson.dumps({"keytype": "NOOP", "magic": 0}), orjson.dumps({HIGHEST_IDS: dict(ids)}))
