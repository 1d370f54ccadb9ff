"""REST v3: topics are listed, created, described, deleted, and get more partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from tiered.controller.requests import CreatePartitions, CreateTopic, DeleteTopic
from tiered.security.acls import CLUSTER_NAME, Operation, ResourceType
from tiered_api.http.exchange.errors import BAD_REQUEST, HttpError
from tiered_api.http.exchange.fields import check_fields
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response, no_content
from tiered_api.http.exchange.schemas import CONFIG, TOPIC_CREATION, TOPIC_GROWTH, names
from tiered_api.http.partitions.produce import find_topic
from tiered_api.http.v3.shapes import check_cluster, list_response, topic_shape

MAX_INT = (1 << 31) - 1
CREATION_FIELDS = names(TOPIC_CREATION)
CONFIG_FIELDS = names(CONFIG)
GROWTH_FIELDS = names(TOPIC_GROWTH)


async def list_topics(request: HttpRequest) -> web.StreamResponse:
    """Lists all topics that the caller may describe."""
    check_cluster(request)
    topics = await request.list_topics(Operation.DESCRIBE)
    return await list_response(request, "KafkaTopic", topics, lambda topic: (topic_shape(request, topic),))


async def get_topic(request: HttpRequest) -> web.StreamResponse:
    """Returns one topic."""
    check_cluster(request)
    return json_response(topic_shape(request, find_topic(request.context, request.args["topic"])))


async def create_topic(request: HttpRequest) -> web.StreamResponse:
    """Creates a topic: 201; with `validate_only` it is only checked: 200."""
    check_cluster(request)
    wanted = parse_creation(await request.read_json_object())
    if not request.may(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
        request.require(Operation.CREATE, ResourceType.TOPIC, wanted.name)
    topic = await request.context.broker.submit(wanted, by=request.submitter)
    shape = topic_shape(request, topic)
    if wanted.validate_only:
        return json_response(shape)
    return json_response(shape, status=201, headers=(("Location", shape["metadata"]["self"]),))


def parse_creation(body: dict[str, Any]) -> CreateTopic:
    """Parses the body of a creation. Raises `HttpError` 400 or 422 with the field that is wrong."""
    check_fields(body, CREATION_FIELDS, "the body")
    name = body.get("topic_name")
    if not isinstance(name, str):
        raise HttpError(422, "topic_name has to be a string")
    assignments = body.get("replicas_assignments")
    if assignments == {}:
        assignments = None
    if assignments is not None and ("partitions_count" in body or "replication_factor" in body):
        raise HttpError(BAD_REQUEST, "replicas_assignments excludes partitions_count and replication_factor")
    return CreateTopic(
        name,
        partitions=positive_integer(body, "partitions_count"),
        replication_factor=positive_integer(body, "replication_factor"),
        assignments=None if assignments is None else _assignments(assignments),
        configs=_configs(body.get("configs")),
        validate_only=boolean_field(body, "validate_only"),
    )


def positive_integer(body: dict[str, Any], name: str) -> int:
    """Returns a positive integer, or -1 if the field is missing."""
    value = body.get(name)
    if value is None:
        return -1
    if type(value) is not int or not 1 <= value <= MAX_INT:
        raise HttpError(BAD_REQUEST, f"{name} has to be an integer of at least 1")
    return value


def boolean_field(body: dict[str, Any], name: str) -> bool:
    """Returns a boolean, False if the field is missing."""
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise HttpError(422, f"{name} has to be true or false")
    return value


def _assignments(value: Any) -> Sequence[Sequence[int]]:
    """Returns `{"0": [1, 2], "1": [2, 3]}` as a list in the order of the partitions."""
    wrong = HttpError(BAD_REQUEST, 'replicas_assignments has to be {"0": [brokers...], "1": ...} without a gap')
    if not isinstance(value, dict) or set(value) != {str(n) for n in range(len(value))}:
        raise wrong
    lists = [value[str(n)] for n in range(len(value))]
    for brokers in lists:
        if not isinstance(brokers, list) or any(type(broker) is not int for broker in brokers):
            raise wrong
    return lists


def _configs(value: Any) -> dict[str, str]:
    """Returns `[{"name", "value"}]` as a dict; entries without a value keep the default."""
    configs: dict[str, str] = {}
    for entry in [] if value is None else value if isinstance(value, list) else [None]:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise HttpError(422, "configs has to be an array of objects with name and value")
        check_fields(entry, CONFIG_FIELDS, "a config")
        if entry["name"] in configs:
            raise HttpError(BAD_REQUEST, f"config {entry['name'][:80]!r} appears twice")
        if entry.get("value") is not None:
            configs[entry["name"]] = config_text(entry["value"])
    return configs


def config_text(value: Any) -> str:
    """Returns a config value as Kafka writes it: clients send strings, users also numbers and booleans."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise HttpError(422, "a config value has to be a string, a number or a boolean")


async def grow_topic(request: HttpRequest) -> web.StreamResponse:
    """Adds partitions: `partitions_count` is the new total."""
    check_cluster(request)
    topic = find_topic(request.context, request.args["topic"])
    body = await request.read_json_object()
    check_fields(body, GROWTH_FIELDS, "the body")
    count = positive_integer(body, "partitions_count")
    if count < 0:
        raise HttpError(422, "partitions_count is missing")
    only = boolean_field(body, "validate_only")
    updated = await request.context.broker.submit(
        CreatePartitions(topic.name, count, validate_only=only), by=request.submitter
    )
    return json_response(topic_shape(request, updated))


async def delete_topic(request: HttpRequest) -> web.StreamResponse:
    """Deletes a topic at once; its objects in the bucket are deleted after a delay."""
    check_cluster(request)
    topic = find_topic(request.context, request.args["topic"])
    await request.context.broker.submit(DeleteTopic(topic.name), by=request.submitter)
    return no_content()
