"""REST v2 consumers: created in a group, subscribed or assigned, read, committed and deleted.

They live where the group's coordinator is; a broker that is asked for one of another's sends the caller there (307).
Unlike the REST Proxy a read answers as soon as there is a record, and a consumer with a subscription is there again
after the broker was restarted.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from aiohttp import web

from tiered.groups.requests import NO_OFFSET, PartitionOffset
from tiered.ids import TopicPartition
from tiered_api.http.consumers.coordinator_calls import coordinator_of, patiently
from tiered_api.http.consumers.instance import METADATA_BYTES, Choices, Instance
from tiered_api.http.consumers.instances import Place
from tiered_api.http.consumers.member import Wish
from tiered_api.http.consumers.reading import read
from tiered_api.http.consumers.topic_patterns import Pattern
from tiered_api.http.partitions.remote_partition import bounds
from tiered_api.http.server import media_types
from tiered_api.http.server.errors import BAD_CONSUMER, FORMAT_DIFFERS, PARTITION_NOT_FOUND, TOPIC_NOT_FOUND, HttpError
from tiered_api.http.server.limits import Exhausted
from tiered_api.http.server.request import Request
from tiered_api.http.server.responses import Answer, as_json
from tiered_api.http.v2.topics import shown

RECORD_TYPES = {"binary": media_types.V2_BINARY, "json": media_types.V2_JSON}
RESETS = ("earliest", "latest", "none")
NAME_CHARACTERS = 249
OTHER_NAMES = {"id": "name", "responseMinBytes": "fetch.min.bytes", "requestWaitMs": "consumer.request.timeout.ms"}
TIMEOUT_MS_MAX = 30_000
OFFSET_MAX = (1 << 63) - 2


# -- who is asked -----------------------------------------------------------------------------------------------------


async def _here(request: Request) -> str:
    """The group, which this broker coordinates; HttpError 307 names the broker that does."""
    group, site = request.args["group"], request.site
    leader = await patiently(site, lambda: coordinator_of(site, group))
    if leader != site.node.settings.node_id:
        raise site.elsewhere.away(request.target, leader, "has the consumers of this group")
    return group


async def _instance(request: Request) -> Instance:
    return await request.site.instances.find(Place(await _here(request), request.args["instance"]), request.peer)


async def _body(request: Request) -> dict[str, Any]:
    """The body, if there is one, as an object."""
    data = await request.whole()
    return await request.parsed_object(data) if data else {}


def _done() -> Answer:
    return Answer(b"", status=204)


# -- a consumer's life ------------------------------------------------------------------------------------------------


async def create_consumer(request: Request) -> web.StreamResponse:
    """A new consumer in a group."""
    group = await _here(request)
    given = {OTHER_NAMES.get(name, name): value for name, value in (await _body(request)).items()}
    name = given.pop("name", None) or f"rest-consumer-{request.site.node.settings.node_id}-{uuid.uuid4()}"
    if not isinstance(name, str) or len(name) > NAME_CHARACTERS:
        raise HttpError(422, f"the name has to be a string of at most {NAME_CHARACTERS} characters")
    await request.site.instances.create(Place(group, name), choices(given), request.peer)
    path = f"/consumers/{quote(group, safe='')}/instances/{quote(name, safe='')}"
    return shown(request, {"instance_id": name, "base_uri": request.told_origin() + path})


def choices(given: Mapping[str, Any]) -> Choices:
    """The settings of a consumer; HttpError 422 for one that is not known or cannot be."""
    made: dict[str, Any] = {}
    for name, value in given.items():
        if name not in CHOICES:
            raise HttpError(BAD_CONSUMER, f"{name[:80]} is not a setting of a consumer; there are {', '.join(CHOICES)}")
        field, take, allowed = CHOICES[name]
        made[field] = take(value)
        if made[field] is None:
            raise HttpError(BAD_CONSUMER, f"{name}={str(value)[:40]!r}: it must be {allowed}")
    return Choices(**made)


def _integer(value: Any, low: int, high: int) -> int | None:
    text = str(value)
    if not re.fullmatch(r"-?[0-9]{1,18}", text) or int(text) < low:
        return None
    return min(int(text), high)


CHOICES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
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
    "fetch.min.bytes": ("min_bytes", lambda text: _integer(text, -1, 1 << 26), "an integer from -1 on"),
    "consumer.request.timeout.ms": (
        "timeout_ms",
        lambda text: _integer(text, 0, TIMEOUT_MS_MAX),
        "an integer from 0 on",
    ),
}
"""By name: the field of `Choices`, how a value is read (None: it cannot be), and what it may be in words."""


async def delete_consumer(request: Request) -> web.StreamResponse:
    """The consumer leaves its group and is gone."""
    await request.site.instances.delete(Place(await _here(request), request.args["instance"]), request.peer)
    return _done()


# -- what it reads ----------------------------------------------------------------------------------------------------


async def subscribe(request: Request) -> web.StreamResponse:
    """Reads topics, by name or by a pattern, together with the others of its group."""
    instance, body = await _instance(request), await _body(request)
    topics, pattern = body.get("topics"), body.get("topic_pattern")
    if (topics is None) == (pattern is None):
        raise HttpError(422, "either topics or topic_pattern has to be given")
    async with instance.use():
        await instance.subscribe(_wish(topics, pattern))
    return _done()


def _wish(topics: Any, pattern: Any) -> Wish:
    if topics is not None:
        if not isinstance(topics, list) or not topics or not all(isinstance(topic, str) for topic in topics):
            raise HttpError(422, "topics has to be a list of names")
        return Wish(tuple(dict.fromkeys(topics)))
    if not isinstance(pattern, str) or not pattern:
        raise HttpError(422, "topic_pattern has to be a regular expression")
    try:
        Pattern(pattern)
    except ValueError as error:
        raise HttpError(422, f"topic_pattern is not taken: {error}") from None
    return Wish(pattern=pattern)


async def get_subscription(request: Request) -> web.StreamResponse:
    """The topics that it is subscribed to."""
    instance = await _instance(request)
    membership = instance.membership
    topics: tuple[str, ...] = ()
    if membership is not None:
        try:
            async with request.site.patience(request.site.limits.work_seconds):
                topics = await membership.topics()
        except TimeoutError:
            raise Exhausted("the topics of a pattern are not known in time") from None
    return shown(request, {"topics": topics})


async def unsubscribe(request: Request) -> web.StreamResponse:
    """Leaves the group; the consumer stays."""
    instance = await _instance(request)
    async with instance.use():
        await instance.unsubscribe()
    return _done()


async def assign(request: Request) -> web.StreamResponse:
    """Reads these partitions, whatever others of the group read."""
    instance, body = await _instance(request), await _body(request)
    partitions = [_known(request, at) for at, _ in _rows(body, "partitions")]
    async with instance.use():
        instance.assign(partitions)
    return _done()


async def get_assignments(request: Request) -> web.StreamResponse:
    """The partitions that it has now."""
    instance = await _instance(request)
    mine = instance.given if instance.membership is None else instance.membership.assigned or []
    return shown(request, {"partitions": [{"topic": at.topic, "partition": at.partition} for at in mine]})


async def read_consumer(request: Request) -> web.StreamResponse:
    """Records that it has not read yet, from any of its partitions."""
    instance = await _instance(request)
    kind = RECORD_TYPES[instance.choices.format]
    if (
        media_types.answer_type(request.headers.get("Accept"), (kind, media_types.V2_JSON, media_types.V2_BINARY))
        != kind
    ):
        raise HttpError(FORMAT_DIFFERS, f"this consumer gives {kind}: Accept has to take that")
    limits = request.site.limits
    timeout_ms = request.integer("timeout", instance.choices.timeout_ms, 0, instance.choices.timeout_ms)
    async with instance.use():
        max_bytes = request.integer("max_bytes", limits.json_bytes, 1, limits.json_bytes)
        reading = await read(request, instance, max_bytes, timeout_ms)
        answer = as_json(reading.rows, kind=kind)
        await answer.send(request)
        reading.given()
    return answer


# -- how far it is ----------------------------------------------------------------------------------------------------


async def commit(request: Request) -> web.StreamResponse:
    """Commits all that was read, or the offsets that are named: those of the last records that were dealt with."""
    instance, body = await _instance(request), await _body(request)
    async with instance.use():
        if "offsets" in body:
            offsets = [
                PartitionOffset(*_known(request, at), _offset(row, "offset") + 1, metadata=_metadata(row))
                for at, row in _rows(body, "offsets")
            ]
            await instance.commit(offsets)
        else:
            offsets = await instance.commit_read()
    rows = [
        {"topic": each.topic, "partition": each.partition, "consumed": each.offset, "committed": each.offset}
        for each in offsets
    ]
    return shown(request, rows)


async def get_committed(request: Request) -> web.StreamResponse:
    """What the group committed of the partitions that the body names; what it never committed is left out."""
    instance, body = await _instance(request), await _body(request)
    found = await instance.committed([at for at, _ in _rows(body, "partitions")])
    rows = [
        {"topic": each.topic, "partition": each.partition, "offset": each.offset, "metadata": each.metadata}
        for each in found
        if each.offset != NO_OFFSET
    ]
    return shown(request, {"offsets": rows})


async def seek(request: Request) -> web.StreamResponse:
    """Goes on at these offsets, or at the first records at or after these times."""
    instance, body = await _instance(request), await _body(request)
    if not {"offsets", "timestamps"} & body.keys():
        raise HttpError(422, "offsets or timestamps have to be given")
    async with instance.use():
        targets = [(at, _offset(row, "offset")) for at, row in _rows(body, "offsets")] if "offsets" in body else []
        for at, row in _rows(body, "timestamps") if "timestamps" in body else []:
            instance.own(at)
            source = instance.source(at)
            found = await source.offset_for_timestamp(_moment(row))
            targets.append((at, found[0] if found is not None else (await bounds(source))[1]))
        for at, _ in targets:
            instance.own(at)
        for at, offset in targets:
            instance.seek(at, offset)
    return _done()


async def seek_to_beginning(request: Request) -> web.StreamResponse:
    """Goes on at the first records of these partitions."""
    return await _seek_to(request, 0)


async def seek_to_end(request: Request) -> web.StreamResponse:
    """Goes on behind the last records of these partitions."""
    return await _seek_to(request, 1)


async def _seek_to(request: Request, which: int) -> web.StreamResponse:
    """Of each partition's bounds the first or the second."""
    instance, body = await _instance(request), await _body(request)
    async with instance.use():
        partitions = [at for at, _ in _rows(body, "partitions")]
        for at in partitions:
            instance.own(at)
        for at in partitions:
            instance.seek(at, (await bounds(instance.source(at)))[which])
    return _done()


# -- bodies -----------------------------------------------------------------------------------------------------------


def _rows(body: Mapping[str, Any], name: str) -> list[tuple[TopicPartition, dict[str, Any]]]:
    rows = body.get(name)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise HttpError(422, f"{name} has to be a list of objects")
    found = []
    for row in rows:
        topic, partition = row.get("topic"), row.get("partition")
        if not isinstance(topic, str) or type(partition) is not int or not 0 <= partition < 1 << 31:
            raise HttpError(422, f"each of {name} has to name a topic and a partition")
        found.append((TopicPartition(topic, partition), row))
    return found


def _known(request: Request, at: TopicPartition) -> TopicPartition:
    topic = request.site.node.image.topics.get(at.topic)
    if topic is None:
        raise HttpError(TOPIC_NOT_FOUND, f"topic {at.topic[:249]!r} not found")
    if at.partition >= len(topic.partitions):
        raise HttpError(PARTITION_NOT_FOUND, f"topic {at.topic!r} has no partition {at.partition}")
    return at


def _offset(row: Mapping[str, Any], name: str) -> int:
    offset = row.get(name)
    if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
        raise HttpError(422, f"{name} has to be a non-negative integer")
    return offset


def _metadata(row: Mapping[str, Any]) -> str:
    text = row.get("metadata") or ""
    if not isinstance(text, str) or len(text) > METADATA_BYTES:
        raise HttpError(422, f"metadata has to be a string of at most {METADATA_BYTES} characters")
    return text


def _moment(row: Mapping[str, Any]) -> int:
    try:
        when = datetime.fromisoformat(str(row.get("timestamp")))
    except ValueError:
        raise HttpError(422, "timestamp has to be a time in ISO 8601") from None
    if when.tzinfo is None:
        raise HttpError(422, "timestamp has to name its offset from UTC")
    return int(when.timestamp() * 1000)
