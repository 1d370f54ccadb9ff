"""REST v2 consumers: created in a group, subscribed or assigned, read, committed and deleted.

A consumer is on the broker that coordinates its group; other brokers redirect to this broker (307). Unlike in the REST
Proxy, a read returns as soon as there is a record, and a consumer with a subscription is restored after a restart of
the broker.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from aiohttp import web

from tiered.groups.requests import NO_OFFSET, PartitionOffset
from tiered.hot.time_lookup import TimeLookups
from tiered.ids import TopicId, TopicPartition
from tiered.security.acls import Operation, ResourceType
from tiered.system.turns import each_of
from tiered_api.http.consumers.coordinator_calls import find_coordinator, retry_while_loading
from tiered_api.http.consumers.instance import (
    FORMATS,
    METADATA_BYTES,
    RESETS,
    TIMEOUT_MS_MAX,
    ConsumerConfig,
    ConsumerInstance,
)
from tiered_api.http.consumers.instances import ConsumerInstances, InstanceKey
from tiered_api.http.consumers.reading import poll_records
from tiered_api.http.consumers.subscriptions import Subscription
from tiered_api.http.consumers.topic_patterns import TopicPattern
from tiered_api.http.exchange import media_types
from tiered_api.http.exchange.errors import (
    FORMAT_MISMATCH,
    INVALID_CONSUMER,
    PARTITION_NOT_FOUND,
    TOPIC_NOT_FOUND,
    HttpError,
)
from tiered_api.http.exchange.fields import check_fields
from tiered_api.http.exchange.limits import Exhausted
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import HttpResponse
from tiered_api.http.exchange.schemas import (
    COMMIT_V2,
    OFFSET_V2,
    PARTITION_V2,
    PARTITIONS_V2,
    POSITIONS_V2,
    SUBSCRIPTION_V2,
    TIMESTAMP_V2,
    Schema,
    names,
)
from tiered_api.http.partitions.reads import ISOLATION_LEVELS
from tiered_api.http.partitions.record_formats import TIMESTAMP_CHARACTERS
from tiered_api.http.partitions.remote_partition import fetch_bounds, offset_for_timestamp
from tiered_api.http.v2.topics import v2_response

RECORD_TYPES = dict(
    zip(FORMATS, (media_types.V2_BINARY, media_types.V2_JSON, *media_types.V2_WITH_SCHEMAS), strict=True)
)
NAME_CHARACTERS = 249
NAME_ALIASES = {
    "id": "name",
    "responseMinBytes": "fetch.min.bytes",
    "requestWaitMs": "consumer.request.timeout.ms",
    "isolation_level": "isolation.level",
}
OFFSET_MAX = (1 << 63) - 2
ROW_FIELDS = {
    "partitions": names(PARTITION_V2),
    "offsets": names(OFFSET_V2),
    "timestamps": names(TIMESTAMP_V2),
}


# -- coordinator ------------------------------------------------------------------------------------------------------


async def _require_local_group(request: HttpRequest) -> str:
    """Returns the group if this broker coordinates it. Raises `HttpError` 307 to the broker that does."""
    group, context = request.args["group"], request.context
    leader = await retry_while_loading(context, lambda: find_coordinator(context, group))
    if leader != context.broker.settings.node_id:
        raise context.remote_brokers.redirect_error(request.target, leader, "has the consumers of this group")
    return group


async def _find_instance(request: HttpRequest) -> ConsumerInstance:
    return await request.context.service(ConsumerInstances).find(
        InstanceKey(await _require_local_group(request), request.args["instance"]),
        request.caller, request.has_user,
    )  # fmt: skip


async def _read_body(request: HttpRequest) -> dict[str, Any]:
    """Returns the body as an object; an empty one if there is no body."""
    data = await request.read_body(request.context.limits.object_bytes)
    return await request.parse_json_object(data, code=422) if data else {}


async def _read_fields(request: HttpRequest, schema: Schema) -> dict[str, Any]:
    """Returns the body as an object that has no other fields than a schema."""
    body = await _read_body(request)
    check_fields(body, names(schema), "the body", 422)
    return body


def _no_content() -> HttpResponse:
    return HttpResponse(b"", status=204)


# -- create and delete ------------------------------------------------------------------------------------------------


async def create_consumer(request: HttpRequest) -> web.StreamResponse:
    """Creates a consumer in a group."""
    group = await _require_local_group(request)
    given = _resolve_aliases(await _read_body(request))
    name = given.pop("name", None)
    if not isinstance(name, str | None) or len(name or "") > NAME_CHARACTERS:
        raise HttpError(422, f"the name has to be a string of at most {NAME_CHARACTERS} characters")
    name = name or f"rest-consumer-{request.context.broker.settings.node_id}-{uuid.uuid4()}"
    await request.context.service(ConsumerInstances).create(
        InstanceKey(group, name), parse_config(given), request.caller, request.has_user
    )
    path = f"/consumers/{quote(group, safe='')}/instances/{quote(name, safe='')}"
    return v2_response(request, {"instance_id": name, "base_uri": request.advertised_origin() + path})


def _resolve_aliases(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields by their own names. Raises `HttpError` 422 if one is there under both of its names."""
    given: dict[str, Any] = {}
    for name, value in body.items():
        known = NAME_ALIASES.get(name, name)
        if known in given:
            raise HttpError(422, f"field {known!r} appears twice: {name!r} means the same")
        given[known] = value
    return given


def parse_config(given: Mapping[str, Any]) -> ConsumerConfig:
    """Parses the settings of a consumer. Raises `HttpError` 422 for one that is unknown or has a bad value."""
    check_fields(given, CONFIG_FIELDS.keys(), "a consumer", INVALID_CONSUMER)
    made: dict[str, Any] = {}
    for name, value in given.items():
        field, take, allowed = CONFIG_FIELDS[name]
        made[field] = take(value)
        if made[field] is None:
            raise HttpError(INVALID_CONSUMER, f"{name}={str(value)[:40]!r}: it must be {allowed}")
    return ConsumerConfig(**made)


def _integer(value: Any, low: int, high: int) -> int | None:
    text = str(value)
    if not re.fullmatch(r"-?[0-9]{1,18}", text) or int(text) < low:
        return None
    return min(int(text), high)


CONFIG_FIELDS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "format": (
        "format",
        lambda text: str(text).lower() if str(text).lower() in RECORD_TYPES else None,
        " or ".join(RECORD_TYPES),
    ),
    "auto.offset.reset": ("reset", lambda text: text if text in RESETS else None, " or ".join(RESETS)),
    "auto.commit.enable": (
        "auto_commit",
        lambda text: {"true": True, "false": False}.get(str(text).lower()),
        "true or false",
    ),
    "isolation.level": (
        "read_committed",
        lambda text: text == ISOLATION_LEVELS[0] if text in ISOLATION_LEVELS else None,
        " or ".join(ISOLATION_LEVELS),
    ),
    "fetch.min.bytes": ("min_bytes", lambda text: _integer(text, -1, 1 << 26), "an integer from -1 on"),
    "consumer.request.timeout.ms": (
        "timeout_ms",
        lambda text: _integer(text, 0, TIMEOUT_MS_MAX),
        "an integer from 0 on",
    ),
}
"""By name: the field of `ConsumerConfig`, the parser of its value (None: bad value), and the allowed values in
words."""


async def delete_consumer(request: HttpRequest) -> web.StreamResponse:
    """Deletes a consumer, which leaves its group."""
    await request.context.service(ConsumerInstances).delete(
        InstanceKey(await _require_local_group(request), request.args["instance"]),
        request.caller, request.has_user,
    )  # fmt: skip
    return _no_content()


# -- assignment -------------------------------------------------------------------------------------------------------


async def subscribe(request: HttpRequest) -> web.StreamResponse:
    """Subscribes to topics, by name or by a pattern, as a member of its group."""
    instance, body = await _find_instance(request), await _read_fields(request, SUBSCRIPTION_V2)
    topics, pattern = body.get("topics"), body.get("topic_pattern")
    if (topics is None) == (pattern is None):
        raise HttpError(422, "either topics or topic_pattern has to be given")
    subscription = _parse_subscription(topics, pattern)
    await _require_topics(request, Operation.READ, subscription.topics)
    async with instance.use():
        await instance.subscribe(subscription)
    return _no_content()


def _parse_subscription(topics: Any, pattern: Any) -> Subscription:
    if topics is not None:
        if not isinstance(topics, list) or not topics or not all(isinstance(topic, str) for topic in topics):
            raise HttpError(422, "topics has to be a list of names")
        if any(len(topic) > NAME_CHARACTERS for topic in topics):
            raise HttpError(422, f"the name of a topic has at most {NAME_CHARACTERS} characters")
        return Subscription(tuple(dict.fromkeys(topics)))
    if not isinstance(pattern, str) or not pattern:
        raise HttpError(422, "topic_pattern has to be a regular expression")
    try:
        TopicPattern(pattern)
    except ValueError as error:
        raise HttpError(422, f"topic_pattern is not supported: {error}") from None
    return Subscription(pattern=pattern)


async def get_subscription(request: HttpRequest) -> web.StreamResponse:
    """Returns the topics of the subscription."""
    instance = await _find_instance(request)
    membership = instance.member
    topics: tuple[str, ...] = ()
    if membership is not None:
        try:
            async with request.context.timeout(request.context.limits.job_seconds):
                topics = await membership.subscribed_topics()
        except TimeoutError:
            raise Exhausted("matching the topics of a pattern took too long") from None
    return v2_response(request, {"topics": topics})


async def unsubscribe(request: HttpRequest) -> web.StreamResponse:
    """Leaves the group; the consumer stays."""
    instance = await _find_instance(request)
    async with instance.use():
        await instance.unsubscribe()
    return _no_content()


async def assign(request: HttpRequest) -> web.StreamResponse:
    """Assigns these partitions by hand, independent of the group's members."""
    instance, body = await _find_instance(request), await _read_fields(request, PARTITIONS_V2)
    partitions = [tp for tp, _ in _parse_rows(body, "partitions")]
    await _check_partitions(request, partitions)
    async with instance.use():
        await instance.assign(partitions)
    return _no_content()


async def get_assignments(request: HttpRequest) -> web.StreamResponse:
    """Returns the partitions that are assigned now."""
    instance = await _find_instance(request)
    mine = instance.manual_assignment if instance.member is None else instance.member.assigned or []
    return v2_response(request, {"partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in mine]})


async def read_consumer(request: HttpRequest) -> web.StreamResponse:
    """Returns new records of any of its partitions."""
    instance = await _find_instance(request)
    kind = RECORD_TYPES[instance.config.format]
    if (
        media_types.negotiate_type(request.headers.get("Accept"), (kind, media_types.V2_JSON, media_types.V2_BINARY))
        != kind
    ):
        raise HttpError(FORMAT_MISMATCH, f"this consumer returns {kind}: Accept has to allow it")
    limits = request.context.limits
    timeout_ms = request.query_integer("timeout", instance.config.timeout_ms, 0, instance.config.timeout_ms)
    async with instance.use():
        max_bytes = request.query_integer("max_bytes", limits.json_bytes, 1, limits.json_bytes)
        reading = await poll_records(request, instance, max_bytes, timeout_ms)
        response = HttpResponse([b"[", *reading.pieces, b"]"], media_type=kind)
        await response.send(request)
        reading.mark_delivered()
    return response


# -- offsets ----------------------------------------------------------------------------------------------------------


async def commit(request: HttpRequest) -> web.StreamResponse:
    """Commits all positions, or the named offsets. A named offset is that of the last record that was processed. The
    reply lists what was committed: an empty list says that there was nothing."""
    instance, body = await _find_instance(request), await _read_fields(request, COMMIT_V2)
    async with instance.use():
        if "offsets" in body:
            last = {tp: (offset, metadata) for tp, offset, metadata in _parse_offsets(body)}
            await _check_partitions(request, last)
            offsets = [
                PartitionOffset(*tp, offset + 1, metadata=metadata, topic_id=instance.find_read_topic_id(tp))
                for tp, (offset, metadata) in last.items()
            ]
            await instance.commit(offsets)
        else:
            offsets = await instance.commit_positions()
    rows = [
        {"topic": each.topic, "partition": each.partition, "consumed": each.offset, "committed": each.offset}
        for each in offsets
    ]
    return v2_response(request, rows)


async def get_committed(request: HttpRequest) -> web.StreamResponse:
    """Returns the committed offsets of the partitions in the body, without those that have none."""
    instance, body = await _find_instance(request), await _read_fields(request, PARTITIONS_V2)
    partitions = list(dict.fromkeys(tp for tp, _ in _parse_rows(body, "partitions")))
    await _require_topics(request, Operation.DESCRIBE, (tp.topic for tp in partitions))
    found = await instance.fetch_committed(partitions)
    rows = [
        {"topic": each.topic, "partition": each.partition, "offset": each.offset, "metadata": each.metadata}
        for each in found
        if each.offset != NO_OFFSET
    ]
    return v2_response(request, {"offsets": rows})


async def seek(request: HttpRequest) -> web.StreamResponse:
    """Moves the positions to offsets, or to the first records at or after timestamps."""
    instance, body = await _find_instance(request), await _read_fields(request, POSITIONS_V2)
    if not {"offsets", "timestamps"} & body.keys():
        raise HttpError(422, "offsets or timestamps have to be given")
    async with instance.use():
        targets = [
            (tp, instance.find_topic_id(tp), offset)
            for tp, offset, _ in (_parse_offsets(body) if "offsets" in body else [])
        ]
        lookups = TimeLookups(request.peer, request.connection_name)
        rows = dict(_parse_rows(body, "timestamps")) if "timestamps" in body else {}
        instance.check_assigned([*rows, *(tp for tp, _, _ in targets)])
        async for tp, row in each_of(rows.items()):
            request.require(Operation.READ, ResourceType.TOPIC, tp.topic)
            source = instance.open_partition(tp)
            end = (await fetch_bounds(source, instance.config.read_committed))[1]  # records that come later count
            found = await offset_for_timestamp(source, _parse_timestamp(row), lookups)
            targets.append((tp, source.topic_id, found[0] if found is not None else end))
        _seek_to_offsets(request, instance, targets)
    return _no_content()


def _seek_to_offsets(
    request: HttpRequest, instance: ConsumerInstance, targets: Sequence[tuple[TopicPartition, TopicId, int]]
) -> None:
    """Moves the positions to offsets of these topics: the last one counts for a partition that is named twice. The
    assignment and the rights may have changed meanwhile."""
    last = {tp: (topic_id, offset) for tp, topic_id, offset in targets}
    instance.check_assigned(last)
    for topic in {tp.topic for tp in last}:
        request.require(Operation.READ, ResourceType.TOPIC, topic)
    for tp, (topic_id, offset) in last.items():
        instance.seek(tp, topic_id, offset)


async def seek_to_beginning(request: HttpRequest) -> web.StreamResponse:
    """Moves the positions to the first records of these partitions."""
    return await _seek_to(request, 0)


async def seek_to_end(request: HttpRequest) -> web.StreamResponse:
    """Moves the positions past the last records of these partitions."""
    return await _seek_to(request, 1)


async def _seek_to(request: HttpRequest, which: int) -> web.StreamResponse:
    """Moves the positions to the first or the second of each partition's bounds."""
    instance, body = await _find_instance(request), await _read_fields(request, PARTITIONS_V2)
    async with instance.use():
        partitions = list(dict.fromkeys(tp for tp, _ in _parse_rows(body, "partitions")))
        instance.check_assigned(partitions)
        await _require_topics(request, Operation.READ, (tp.topic for tp in partitions))
        targets = []
        async for tp in each_of(partitions):
            source = instance.open_partition(tp)
            bounds = await fetch_bounds(source, instance.config.read_committed)
            targets.append((tp, source.topic_id, bounds[which]))
        _seek_to_offsets(request, instance, targets)
    return _no_content()


# -- bodies -----------------------------------------------------------------------------------------------------------


def _parse_rows(body: Mapping[str, Any], name: str) -> list[tuple[TopicPartition, dict[str, Any]]]:
    rows = body.get(name)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise HttpError(422, f"{name} has to be a list of objects")
    found = []
    allowed = ROW_FIELDS[name]
    for row in rows:
        check_fields(row, allowed, f"an entry of {name}", 422)
        topic, partition = row.get("topic"), row.get("partition")
        if not isinstance(topic, str) or type(partition) is not int or not 0 <= partition < 1 << 31:
            raise HttpError(422, f"each of {name} has to name a topic and a partition")
        found.append((TopicPartition(topic, partition), row))
    return found


def _parse_offsets(body: Mapping[str, Any]) -> list[tuple[TopicPartition, int, str]]:
    """Parses `offsets`: the partition, offset and metadata of each."""
    return [(tp, _offset(row, "offset"), _metadata(row)) for tp, row in _parse_rows(body, "offsets")]


async def _require_topics(request: HttpRequest, operation: Operation, topics: Iterable[str]) -> None:
    """Raises `HttpError` if the caller may not carry out an operation on a topic. Other requests run meanwhile."""
    async for topic in each_of(dict.fromkeys(topics)):
        request.require(operation, ResourceType.TOPIC, topic)


async def _check_partitions(request: HttpRequest, partitions: Iterable[TopicPartition]) -> None:
    """Raises `HttpError` if the caller may not read a partition, or if there is none of that name."""
    await _require_topics(request, Operation.READ, (tp.topic for tp in partitions))
    topics = request.context.broker.image.topics
    for tp in partitions:
        topic = topics.get(tp.topic)
        if topic is None:
            raise HttpError(TOPIC_NOT_FOUND, f"topic {tp.topic[:249]!r} not found")
        if tp.partition >= len(topic.partitions):
            raise HttpError(PARTITION_NOT_FOUND, f"topic {tp.topic!r} has no partition {tp.partition}")


def _offset(row: Mapping[str, Any], name: str) -> int:
    offset = row.get(name)
    if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
        raise HttpError(422, f"{name} has to be a non-negative integer")
    return offset


def _metadata(row: Mapping[str, Any]) -> str:
    text = row.get("metadata")
    if text is None:
        return ""
    if not isinstance(text, str) or len(text) > METADATA_BYTES:
        raise HttpError(422, f"metadata has to be a string of at most {METADATA_BYTES} characters")
    return text


def _parse_timestamp(row: Mapping[str, Any]) -> int:
    text = row.get("timestamp")
    try:
        when = datetime.fromisoformat(text if isinstance(text, str) and len(text) <= TIMESTAMP_CHARACTERS else "")
    except ValueError:
        raise HttpError(422, "timestamp has to be a time in ISO 8601") from None
    if when.tzinfo is None:
        raise HttpError(422, "timestamp has to name its offset from UTC")
    return int(when.timestamp() * 1000)
