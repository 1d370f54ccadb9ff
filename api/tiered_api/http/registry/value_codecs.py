"""The encodings of schemas at this broker, by the ids of the registry, for callers who may see these schemas."""

from __future__ import annotations

from tiered.registry import record_validation
from tiered.registry.record_validation import SubjectRule
from tiered.registry.refusals import INVALID_SCHEMA, SCHEMA_NOT_FOUND, RegistryRefused
from tiered.registry.registration import Resolved, resolve
from tiered.registry.schema import Schema
from tiered.registry.state import RegistryState
from tiered.registry.subjects import DEFAULT_CONTEXT, parse_subject
from tiered.registry.values import FramedValues, SchemaCodec, make_codec
from tiered.security.acls import Operation
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.errors import (
    CONVERSION_FAILED,
    EXPECTED_ERRORS,
    SCHEMA_UNREADABLE,
    HttpError,
    to_http_error,
)
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.partitions.schema_spec import SchemaSpec
from tiered_api.http.registry import rights
from tiered_api.http.registry.bodies import Given
from tiered_api.http.registry.registrations import register, run_in_thread
from tiered_api.http.registry.schema_log import SchemaLog

CODECS_MAX = 500
"""Most schemas whose encoding is kept."""
TEXTS_MAX = 500
"""Most texts of schemas whose ids are kept."""
KEPT_CHARACTERS_MAX = 4 << 20
"""Characters of the schemas whose encoding is kept, and of the texts whose ids are: a parsed schema takes more."""
_STRATEGIES = {
    "TOPIC_NAME": record_validation.TOPIC_NAME,
    "RECORD_NAME": record_validation.RECORD_NAME,
    "TOPIC_RECORD_NAME": record_validation.TOPIC_RECORD_NAME,
}


class ValueCodecs:
    """The encodings that were used lately, and the ids of the texts that came with requests."""

    def __init__(self, context: HttpContext) -> None:
        self._log = context.lazy_service(SchemaLog)
        self._codecs: dict[int, tuple[Schema, SchemaCodec]] = {}
        self._ids: dict[tuple[str, str, str], int] = {}
        self._codec_characters = self._id_characters = 0

    async def find(self, request: HttpRequest, id: int) -> SchemaCodec:
        """Returns the encoding of an id. Raises `RegistryRefused` if there is none that the caller may see."""
        state = self._log.state
        schema = state.find_schema(DEFAULT_CONTEXT, id)
        if schema is None:
            state = await self._log.read()
            schema = state.find_schema(DEFAULT_CONTEXT, id)
        request.require_login()
        uses = state.find_uses(DEFAULT_CONTEXT, id, deleted=True)
        if schema is None or not any(rights.may(request, Operation.DESCRIBE, subject) for subject, _ in uses):
            raise RegistryRefused(SCHEMA_NOT_FOUND, f"Schema {id} not found")
        kept = self._codecs.get(id)
        if kept is not None and kept[0] is schema:
            return kept[1]
        codec = await run_in_thread(request, make_codec, id, resolve(state, uses[0][0], schema))
        if len(self._codecs) >= CODECS_MAX or self._codec_characters + schema.size > KEPT_CHARACTERS_MAX:
            self._codecs.clear()
            self._codec_characters = 0
        self._codecs[id] = (schema, codec)
        self._codec_characters += schema.size
        return codec

    async def load(self, request: HttpRequest, values: FramedValues, id: int) -> None:
        """Makes a schema known to the values of a reply, or the reason why it cannot be."""
        try:
            values.known[id] = await self.find(request, id)
        except EXPECTED_ERRORS as error:
            failure = to_http_error(error)
            if failure.status >= 500:
                raise
            values.known[id] = failure.message

    async def resolve(self, request: HttpRequest, topic: str, part: str, spec: SchemaSpec) -> SchemaCodec:
        """Returns the encoding of the schema that a request names. A text is registered if it is new."""
        if spec.id >= 0:
            codec = await self.find(request, spec.id)
        elif spec.text:
            codec = await self.find(request, await self._register(request, topic, part, spec))
        else:
            subject = parse_subject(spec.subject) if spec.subject else f"{topic}-{part}"
            rights.require(request, Operation.DESCRIBE, subject)
            codec = await self.find(request, (await self._log.read()).find_version(subject, spec.version).id)
        if spec.kind and codec.kind != spec.kind:
            raise HttpError(CONVERSION_FAILED, f"schema id {codec.id} is of {codec.kind}, and not of {spec.kind}")
        return codec

    async def _register(self, request: HttpRequest, topic: str, part: str, spec: SchemaSpec) -> int:
        schema = Schema(spec.text, spec.kind)
        subject = parse_subject(spec.subject) if spec.subject else ""
        if not subject:
            rule = SubjectRule(topic, part, _STRATEGIES[spec.strategy])
            names = await self._list_names(request, schema) if rule.needs_record_names else ()
            subjects = rule.list_subjects(names)
            if not subjects:
                raise HttpError(CONVERSION_FAILED, f"the schema of the {part} has no name for {spec.strategy}")
            subject = parse_subject(subjects[0])
        rights.require(request, Operation.WRITE, subject)
        at = (subject, spec.kind, spec.text)
        known = self._ids.get(at)
        if known is not None and _is_used(self._log.state, subject, known):
            return known
        try:
            written = await register(request, subject, Given(schema, -1, -1), normalize=False)
        except RegistryRefused as refused:
            if refused.error_code == INVALID_SCHEMA:  # in REST v2 this number says that there is no schema of the keys
                raise HttpError(SCHEMA_UNREADABLE, refused.why) from None
            raise
        if len(self._ids) >= TEXTS_MAX or self._id_characters + schema.size > KEPT_CHARACTERS_MAX:
            self._ids.clear()
            self._id_characters = 0
        self._ids[at] = written.id
        self._id_characters += schema.size
        return written.id

    async def _list_names(self, request: HttpRequest, schema: Schema) -> tuple[str, ...]:
        return (await run_in_thread(request, make_codec, 0, Resolved(schema))).record_names


def _is_used(state: RegistryState, subject: str, id: int) -> bool:
    """True if a version of the subject, not deleted as far as is known here, has this id."""
    return any(each == subject for each, _ in state.find_uses(DEFAULT_CONTEXT, id))
