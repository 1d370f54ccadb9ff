"""The body of `POST /tiered/v1/transactions`: records in the shapes of REST v3, and offsets of one group."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from tiered.ids import TopicPartition
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.fields import check_fields
from tiered_api.http.exchange.json_entries import JsonEntries
from tiered_api.http.exchange.schemas import (
    TRANSACTION,
    TRANSACTION_GROUP,
    TRANSACTION_OFFSET,
    TRANSACTION_RECORD,
    names,
)
from tiered_api.http.partitions.record_formats import (
    NO_SCHEMAS,
    ProducerRecord,
    check_header_count,
    compact_record,
    parse_record_v3,
)

RECORDS_MAX = 10_000
OFFSETS_MAX = 10_000
OFFSET_MAX = (1 << 63) - 2
METADATA_CHARACTERS = 4096
FIELDS = names(TRANSACTION)
GROUP_FIELDS = names(TRANSACTION_GROUP)
RECORD_FIELDS = names(TRANSACTION_RECORD)
OFFSET_FIELDS = names(TRANSACTION_OFFSET)


class TopicRecord(NamedTuple):
    """A record and its topic."""

    topic: str
    record: ProducerRecord


class ConsumedOffset(NamedTuple):
    """The next offset that a group reads of a partition."""

    tp: TopicPartition
    offset: int
    metadata: str


class GroupOffsets(NamedTuple):
    """Offsets of one group. The group refuses them if generation or member are not its own (KIP-447)."""

    group: str
    generation: int
    member_id: str
    instance_id: str | None
    offsets: tuple[ConsumedOffset, ...]


class TransactionBody(NamedTuple):
    """All that one transaction writes."""

    records: tuple[TopicRecord, ...]
    group: GroupOffsets | None


def parse_body(body: Mapping[str, Any], now_ms: int) -> TransactionBody:
    """Returns the parsed body. Raises `HttpError` with the place of the first fault."""
    check_fields(body, FIELDS, "the body", 422)
    rows = _parse_list(body.get("records", []), "records", RECORDS_MAX)
    records, headers = [], 0
    for record in map(partial(_parse_record, now_ms=now_ms), itertools.count(), rows):  # keeps no row meanwhile
        records.append(record)
        headers += len(record.record.headers)
        check_header_count(headers)
    given = body.get("consumer_group")
    group = None if given is None else _parse_group(given)
    if not records and (group is None or not group.offsets):
        raise HttpError(422, "the transaction has neither records nor offsets")
    return TransactionBody(tuple(records), group)


def _parse_record(at: int, row: Any, now_ms: int) -> TopicRecord:
    try:
        _check_object(row, "a record")
        record = compact_record(parse_record_v3(row, now_ms, RECORD_FIELDS, 422))
        if record.schemas is not NO_SCHEMAS:
            raise HttpError(422, "records of a transaction cannot have formats with a schema: send them as BINARY")
        return TopicRecord(_parse_text(row, "topic_name"), record)
    except HttpError as error:
        raise HttpError(error.error_code, f"records[{at}]: {error.message}") from None


def _parse_group(given: Any) -> GroupOffsets:
    _check_object(given, "consumer_group")
    check_fields(given, GROUP_FIELDS, "consumer_group", 422)
    rows = _parse_list(given.get("offsets"), "consumer_group.offsets", OFFSETS_MAX)
    offsets: dict[TopicPartition, ConsumedOffset] = {}
    for at, row in enumerate(rows):
        try:
            _check_object(row, "an offset")
            check_fields(row, OFFSET_FIELDS, "an offset", 422)
            tp = TopicPartition(_parse_text(row, "topic_name"), _parse_integer(row, "partition_id", (1 << 31) - 1))
            metadata = row.get("metadata", "")
            if not isinstance(metadata, str) or len(metadata) > METADATA_CHARACTERS:
                raise HttpError(422, f"metadata has to be a string of at most {METADATA_CHARACTERS} characters")
            if tp in offsets:
                raise HttpError(422, f"{tp} has two offsets")
            offsets[tp] = ConsumedOffset(tp, _parse_integer(row, "offset", OFFSET_MAX), metadata)
        except HttpError as error:
            raise HttpError(error.error_code, f"consumer_group.offsets[{at}]: {error.message}") from None
    generation = -1 if "generation_id" not in given else _parse_integer(given, "generation_id", (1 << 31) - 1)
    instance = None if given.get("instance_id") is None else _parse_text(given, "instance_id")
    member = "" if "member_id" not in given else _parse_text(given, "member_id")
    return GroupOffsets(_parse_text(given, "consumer_group_id"), generation, member, instance, tuple(offsets.values()))


def _check_object(given: Any, what: str) -> None:
    if not isinstance(given, dict):
        raise HttpError(422, f"{what} has to be an object")


def _parse_list(given: Any, name: str, limit: int) -> list[Any] | JsonEntries:
    if not isinstance(given, list | JsonEntries):
        raise HttpError(422, f"{name} has to be an array")
    if len(given) > limit:
        raise HttpError(413, f"{name} has more than {limit} entries: use several transactions")
    return given


def _parse_text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value or len(value) > 249:
        raise HttpError(422, f"{name} has to be a string of 1 to 249 characters")
    return value


def _parse_integer(given: Mapping[str, Any], name: str, high: int) -> int:
    value = given.get(name)
    if type(value) is not int or not 0 <= value <= high:
        raise HttpError(422, f"{name} has to be an integer from 0 on")
    return value
