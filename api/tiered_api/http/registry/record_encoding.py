"""Records of requests whose keys or values have schemas: from the JSON of the client to framed bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tiered.registry.record_validation import KEY, VALUE
from tiered.registry.refusals import RegistryRefused
from tiered.registry.values import SchemaCodec
from tiered_api.http.exchange.errors import CONVERSION_FAILED, EXPECTED_ERRORS, INVALID_RECORD, HttpError, to_http_error
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.partitions.record_formats import NO_SCHEMAS, ProducerRecord
from tiered_api.http.partitions.schema_spec import SCHEMA_TYPES, SchemaSpec
from tiered_api.http.registry.value_codecs import ValueCodecs

SCHEMAS_MAX = 100
"""Most schemas of one request: each may be a registration."""
WORK_PER_BYTE = 16
"""Bytes of other work that take as long as a byte of JSON takes here."""
_TYPES = {kind: name for name, kind in SCHEMA_TYPES.items()}

Found = Mapping[tuple[str, SchemaSpec], SchemaCodec | HttpError]


async def encode_records(
    request: HttpRequest, topic: str, records: Sequence[ProducerRecord | HttpError]
) -> list[ProducerRecord | HttpError]:
    """Returns the records with keys and values as bytes. One that cannot be encoded becomes the error that says why."""
    given = [each for each in records if isinstance(each, ProducerRecord) and each.schemas is not NO_SCHEMAS]
    if not given:
        return list(records)
    wanted: dict[tuple[str, SchemaSpec], SchemaCodec | HttpError] = {}
    codecs = request.context.lazy_service(ValueCodecs)
    for record in given:
        for part, spec in zip((KEY, VALUE), record.schemas, strict=True):
            if spec is None or (part, spec) in wanted:
                continue
            if len(wanted) >= SCHEMAS_MAX:
                raise HttpError(413, f"the records name more than {SCHEMAS_MAX} schemas: use several requests")
            try:
                wanted[part, spec] = await codecs.resolve(request, topic, part, spec)
            except EXPECTED_ERRORS as error:
                wanted[part, spec] = _to_error(error)
    size = sum(len(each.key or b"") + len(each.value or b"") for each in given)
    return await request.run_job(size * WORK_PER_BYTE, _encode_all, records, wanted)


def _to_error(error: Exception) -> HttpError:
    """Returns the error of a record. The codes of the registry for what it lacks mean topics and partitions here."""
    found = to_http_error(error)
    if isinstance(error, RegistryRefused) and found.status == 404:
        return HttpError(INVALID_RECORD, found.message)
    return found.without_traceback()


async def encode_record(request: HttpRequest, topic: str, record: ProducerRecord) -> ProducerRecord:
    """Returns one record with key and value as bytes. Raises `HttpError` if it cannot be encoded."""
    [encoded] = await encode_records(request, topic, [record])
    if isinstance(encoded, HttpError):
        raise encoded
    return encoded


def find_ids(records: Sequence[ProducerRecord]) -> tuple[int | None, int | None]:
    """Returns the ids of the schemas of encoded keys and values, of the first record that has one."""
    return _first_id([each.key for each in records]), _first_id([each.value for each in records])


def _first_id(framed: Sequence[bytes | None]) -> int | None:
    return next((int.from_bytes(each[1:5], "big") for each in framed if each is not None), None)


def _encode_all(records: Sequence[ProducerRecord | HttpError], found: Found) -> list[ProducerRecord | HttpError]:
    return [each if isinstance(each, HttpError) else _encode(each, found) for each in records]


def _encode(record: ProducerRecord, found: Found) -> ProducerRecord | HttpError:
    data, kinds = [record.key, record.value], list(record.kinds)
    for n, (part, spec) in enumerate(zip((KEY, VALUE), record.schemas, strict=True)):
        text = data[n]
        if spec is None or text is None:
            continue
        codec = found[part, spec]
        if isinstance(codec, HttpError):
            return codec
        try:
            data[n], kinds[n] = codec.encode(text), _TYPES[codec.kind]
        except ValueError as error:
            return HttpError(CONVERSION_FAILED, f"the {part} is not of schema id {codec.id}: {error}")
    key, value = data
    return record._replace(key=key, value=value, kinds=(kinds[0], kinds[1]), schemas=NO_SCHEMAS)
