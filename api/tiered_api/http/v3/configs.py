"""REST v3: the settings of topics, of one broker and of the whole cluster: listed, set and reset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from tiered.config.setting import SettingRow
from tiered.config.settings import broker_rows, topic_rows
from tiered.controller.requests import AlterBrokerConfigs, AlterTopicConfigs
from tiered.metadata.changes import ALL_BROKERS
from tiered.metadata.parts.topics import TopicImage
from tiered.security.acls import Operation
from tiered_api.http.exchange.errors import BAD_REQUEST, HttpError
from tiered_api.http.exchange.fields import check_fields
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response, no_content
from tiered_api.http.exchange.schemas import CONFIG_CHANGE, CONFIG_CHANGES, CONFIG_VALUE, names
from tiered_api.http.partitions.produce import find_topic
from tiered_api.http.v3.clusters import broker_of_path
from tiered_api.http.v3.config_shapes import broker_configs, cluster_configs, topic_configs
from tiered_api.http.v3.shapes import Shape, check_cluster, list_response, short_list_response
from tiered_api.http.v3.topics import boolean_field, config_text

ALTER_FIELDS = names(CONFIG_CHANGES)
CHANGE_FIELDS = names(CONFIG_CHANGE)
VALUE_FIELDS = names(CONFIG_VALUE)
TOPIC_BYTES = 30_000
"""Approximate size of one topic's settings in a list."""


def _find_config(shapes: Mapping[str, Shape], name: str) -> Shape:
    if name not in shapes:
        raise HttpError(404, f"config {name[:80]!r} not found")
    return shapes[name]


# -- what a body asks for ---------------------------------------------------------------------------------------------


async def _parse_changes(request: HttpRequest, rows: Mapping[str, SettingRow]) -> tuple[dict[str, str | None], bool]:
    """Parses the changes of `{"data": [{name, value, operation}], "validate_only"}`."""
    body = await request.read_json_object()
    check_fields(body, ALTER_FIELDS, "the body")
    data = body.get("data")
    if not isinstance(data, list) or not data:
        raise HttpError(422, "data has to be an array that is not empty")
    changes: dict[str, str | None] = {}
    for entry in data:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise HttpError(422, "each entry of data needs a name")
        if entry["name"] in changes:
            raise HttpError(BAD_REQUEST, f"config {entry['name'][:80]!r} appears twice")
        changes[entry["name"]] = _parse_change(entry)
        if changes[entry["name"]] is None:
            _check_resettable(rows, entry["name"])
    return changes, boolean_field(body, "validate_only")


def _parse_change(entry: dict[str, Any]) -> str | None:
    check_fields(entry, CHANGE_FIELDS, "an entry of data")
    operation, value = entry.get("operation"), entry.get("value")
    if operation not in (None, "SET", "DELETE"):
        raise HttpError(422, "operation has to be SET or DELETE")
    if operation == "DELETE":
        return None
    if value is None:
        raise HttpError(422, f"config {entry['name'][:80]!r} needs a value; operation DELETE resets it")
    return config_text(value)


def _check_resettable(rows: Mapping[str, SettingRow], name: str) -> None:
    """Raises `HttpError` 400 for an unknown setting: a reset to its default would silently do nothing."""
    if name not in rows:
        raise HttpError(BAD_REQUEST, f"{name[:80]!r}: unknown setting")


async def _parse_value(request: HttpRequest) -> str:
    """Parses the value of `{"value": ...}`."""
    body = await request.read_json_object()
    check_fields(body, VALUE_FIELDS, "the body")
    if body.get("value") is None:
        raise HttpError(422, "value is missing; DELETE of this address resets the setting")
    return config_text(body["value"])


# -- topics -----------------------------------------------------------------------------------------------------------


def _topic(request: HttpRequest) -> TopicImage:
    check_cluster(request)
    return find_topic(request.context, request.args["topic"])


async def list_topic_configs(request: HttpRequest) -> web.StreamResponse:
    """Lists the settings of a topic."""
    return await short_list_response(request, "KafkaTopicConfig", [*topic_configs(request, _topic(request)).values()])


async def list_all_topic_configs(request: HttpRequest) -> web.StreamResponse:
    """Lists the settings of all topics."""
    check_cluster(request)
    topics = await request.list_topics(Operation.DESCRIBE_CONFIGS)
    return await list_response(
        request, "KafkaTopicConfig", topics, lambda topic: topic_configs(request, topic).values(), TOPIC_BYTES
    )


async def get_topic_config(request: HttpRequest) -> web.StreamResponse:
    """Returns one setting of a topic."""
    return json_response(_find_config(topic_configs(request, _topic(request)), request.args["config"]))


async def _alter_topic(
    request: HttpRequest, changes: Mapping[str, str | None], validate_only: bool
) -> web.StreamResponse:
    topic = _topic(request)
    await request.context.broker.submit(
        AlterTopicConfigs(topic.name, changes, validate_only=validate_only), by=request.submitter
    )
    return no_content()


async def set_topic_config(request: HttpRequest) -> web.StreamResponse:
    """Sets one setting of a topic."""
    return await _alter_topic(request, {request.args["config"]: await _parse_value(request)}, False)


async def reset_topic_config(request: HttpRequest) -> web.StreamResponse:
    """Returns one setting of a topic to its default."""
    return await _alter_topic(request, {_check_known(topic_rows(), request.args["config"]): None}, False)


async def alter_topic_configs(request: HttpRequest) -> web.StreamResponse:
    """Sets and resets several settings of a topic at once, all or none."""
    return await _alter_topic(request, *await _parse_changes(request, topic_rows()))


def _check_known(rows: Mapping[str, SettingRow], name: str) -> str:
    if name not in rows:
        raise HttpError(404, f"config {name[:80]!r} not found")
    return name


# -- brokers ----------------------------------------------------------------------------------------------------------


def _broker(request: HttpRequest) -> int:
    check_cluster(request)
    return broker_of_path(request).node_id


def _require_local_broker(request: HttpRequest) -> int:
    """Returns the broker if it is this one, or one that is unreachable. Raises `HttpError` 307 to any other broker."""
    node_id, node = _broker(request), request.context.broker
    if node_id != node.settings.node_id and node.image.brokers[node_id].live:
        raise request.context.remote_brokers.redirect_error(request.target, node_id, "knows its settings")
    return node_id


async def list_broker_configs(request: HttpRequest) -> web.StreamResponse:
    """Lists the settings of a broker; 307 to that broker, which alone knows the values that it was started with."""
    return await short_list_response(
        request, "KafkaBrokerConfig", [*broker_configs(request, _require_local_broker(request)).values()]
    )


async def list_all_broker_configs(request: HttpRequest) -> web.StreamResponse:
    """Lists the settings of all brokers."""
    check_cluster(request)
    brokers = sorted(request.context.broker.image.brokers)
    return await list_response(
        request, "KafkaBrokerConfig", brokers, lambda broker: broker_configs(request, broker).values()
    )


async def get_broker_config(request: HttpRequest) -> web.StreamResponse:
    """Returns one setting of a broker; 307 to that broker."""
    return json_response(_find_config(broker_configs(request, _require_local_broker(request)), request.args["config"]))


async def _alter_broker(
    request: HttpRequest, node_id: int, changes: Mapping[str, str | None], validate_only: bool
) -> web.StreamResponse:
    await request.context.broker.submit(
        AlterBrokerConfigs(node_id, changes, validate_only=validate_only), by=request.submitter
    )
    return no_content()


async def set_broker_config(request: HttpRequest) -> web.StreamResponse:
    """Sets one setting of a broker."""
    return await _alter_broker(request, _broker(request), {request.args["config"]: await _parse_value(request)}, False)


async def reset_broker_config(request: HttpRequest) -> web.StreamResponse:
    """Returns one setting of a broker to what it was started with."""
    node_id = _broker(request)
    return await _alter_broker(request, node_id, {_check_known(broker_rows(), request.args["config"]): None}, False)


async def alter_broker_configs(request: HttpRequest) -> web.StreamResponse:
    """Sets and resets several settings of a broker at once, all or none."""
    return await _alter_broker(request, _broker(request), *await _parse_changes(request, broker_rows()))


# -- all brokers ------------------------------------------------------------------------------------------------------


async def list_cluster_configs(request: HttpRequest) -> web.StreamResponse:
    """Lists the cluster-wide settings of brokers."""
    check_cluster(request)
    return await short_list_response(request, "KafkaClusterConfig", [*cluster_configs(request).values()])


async def get_cluster_config(request: HttpRequest) -> web.StreamResponse:
    """Returns one cluster-wide setting of brokers."""
    check_cluster(request)
    return json_response(_find_config(cluster_configs(request), request.args["config"]))


async def set_cluster_config(request: HttpRequest) -> web.StreamResponse:
    """Sets one setting for all brokers."""
    check_cluster(request)
    return await _alter_broker(request, ALL_BROKERS, {request.args["config"]: await _parse_value(request)}, False)


async def reset_cluster_config(request: HttpRequest) -> web.StreamResponse:
    """Resets one setting for all brokers."""
    check_cluster(request)
    return await _alter_broker(request, ALL_BROKERS, {_check_known(broker_rows(), request.args["config"]): None}, False)


async def alter_cluster_configs(request: HttpRequest) -> web.StreamResponse:
    """Sets and resets several settings for all brokers at once, all or none."""
    check_cluster(request)
    return await _alter_broker(request, ALL_BROKERS, *await _parse_changes(request, broker_rows()))
