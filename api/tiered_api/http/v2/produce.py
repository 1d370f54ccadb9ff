"""REST v2 produce, to a topic or to one partition, in the embedded formats binary, json, and those with a schema."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson
from aiohttp import web

from tiered.metadata.parts.topics import TopicImage
from tiered.system.turns import each_of
from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.errors import PARTITION_NOT_FOUND, HttpError
from tiered_api.http.exchange.fields import V2_FREE, check_fields
from tiered_api.http.exchange.json_entries import JsonEntries, load_with_entries, malformed_json
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.exchange.schemas import PRODUCE_V2, names
from tiered_api.http.partitions.idempotency import find_key
from tiered_api.http.partitions.produce import RecordMetadata, append_once, find_topic
from tiered_api.http.partitions.record_formats import SCHEMA_FORM, ProducerRecord, parse_record_v2
from tiered_api.http.partitions.schema_spec import parse_spec_v2
from tiered_api.http.registry.record_encoding import encode_records, find_ids
from tiered_api.http.v2.topics import response_type

NOT_RETRIABLE, RETRIABLE = 1, 2
RECORDS_MAX = 100_000
"""Most records in one body. Each one and its row of the response take some 700 bytes of memory, however short it is."""
FIELDS = names(PRODUCE_V2)
"""The fields of the REST Proxy. Its embedded formats binary and json take no notice of schemas."""
KINDS = frozenset(media_types.V2_WITH_SCHEMAS.values())


async def produce_to_topic(request: HttpRequest) -> web.StreamResponse:
    """Appends records to the partitions that they name, or that their keys belong to."""
    form = media_types.V2_FORMS[media_types.body_type(request.headers.get("Content-Type"), tuple(media_types.V2_FORMS))]
    topic = find_topic(request.context, request.args["topic"])
    return await _produce(request, topic, form, None)


async def produce_to_partition(request: HttpRequest) -> web.StreamResponse:
    """Appends records to one partition."""
    form = media_types.V2_FORMS[media_types.body_type(request.headers.get("Content-Type"), tuple(media_types.V2_FORMS))]
    topic, number = find_topic(request.context, request.args["topic"]), request.path_number("partition")
    if number >= len(topic.partitions):
        raise HttpError(PARTITION_NOT_FOUND, f"topic {topic.name!r} has no partition {number}")
    return await _produce(request, topic, form, number)


async def _produce(request: HttpRequest, topic: TopicImage, form: str, partition: int | None) -> web.StreamResponse:
    kind = response_type(request)
    body = await request.read_body()
    records = await request.run_job(len(body), parse_records, body, form, request.context.clock.wall_ms(), partition)
    key = await find_key(request, topic.topic_id, body)
    del body  # its memory is needed for the batches
    key_schema_id = value_schema_id = None
    if form in KINDS:
        records = await _encode(request, topic.name, records)
        key_schema_id, value_schema_id = find_ids(records)
    outcomes = await append_once(request, topic, records, key)
    offsets = [_offset_row(each) async for each in each_of(outcomes)]
    return json_response(
        {"offsets": offsets, "key_schema_id": key_schema_id, "value_schema_id": value_schema_id}, media_type=kind
    )


async def _encode(request: HttpRequest, topic: str, records: list[ProducerRecord]) -> list[ProducerRecord]:
    """Returns the records with keys and values as bytes. Raises the error of the first one that cannot be encoded: then
    none is appended."""
    encoded: list[ProducerRecord] = []
    for each in await encode_records(request, topic, records):
        if isinstance(each, HttpError):
            raise each
        encoded.append(each)
    return encoded


def parse_records(body: bytes | bytearray, form: str, now_ms: int, partition: int | None) -> list[ProducerRecord]:
    """Parses the records of a body. Raises `HttpError` 4xx if one of them is bad: then none is appended."""
    try:
        value = load_with_entries(body, "records", V2_FREE, 422)
    except orjson.JSONDecodeError as error:
        raise malformed_json(error) from None
    if not isinstance(value, dict):
        raise HttpError(422, "the body has to be a JSON object with records")
    check_fields(value, FIELDS, "the body", 422)
    entries = value.get("records")
    if not isinstance(entries, list | JsonEntries) or not entries:
        raise HttpError(422, "records has to be an array that is not empty")
    if len(entries) > RECORDS_MAX:
        raise HttpError(413, f"records has {len(entries)} entries: {RECORDS_MAX} are the most in one request")
    parse = partial(parse_record_v2, form=form, now_ms=now_ms)
    if form in KINDS:
        schemas = parse_spec_v2(value, "key", form), parse_spec_v2(value, "value", form)
        parse = partial(parse_record_v2, form=SCHEMA_FORM, now_ms=now_ms, schemas=schemas)
    records = list(map(parse, entries))  # keeps no entry meanwhile
    if partition is None:
        return records
    if any(record.partition not in (None, partition) for record in records):
        raise HttpError(422, "a record names another partition than the address does")
    return [record._replace(partition=partition) for record in records]


def _offset_row(outcome: RecordMetadata | HttpError) -> dict[str, Any]:
    if isinstance(outcome, RecordMetadata):
        return {"partition": outcome.partition, "offset": outcome.offset, "error_code": None, "error": None}
    code = RETRIABLE if outcome.status >= 500 else NOT_RETRIABLE
    return {"partition": None, "offset": None, "error_code": code, "error": outcome.message}
