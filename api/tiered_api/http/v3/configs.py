"""REST v3: settings of topics, of one broker and of all brokers, with where each value comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tiered.config import broker_rows, topic_rows
from tiered.metadata.changes import CLUSTER
from tiered.metadata.image import TopicImage
from tiered.metadata.requests import AlterBrokerConfigs, AlterTopicConfigs
from tiered.setting import Row, text_of
from tiered_api.http.answers import as_json, no_content
from tiered_api.http.errors import BAD_REQUEST, HttpError
from tiered_api.http.media import JSON, body_type
from tiered_api.http.produce import topic_image
from tiered_api.http.request import Request
from tiered_api.http.site import Site
from tiered_api.http.v3.clusters import broker_of_path
from tiered_api.http.v3.shapes import Shape, cluster, head, link, listing
from tiered_api.http.v3.topics import flag, text

TYPES = {"boolean": "BOOLEAN", "integer": "LONG", "text": "STRING", "list": "LIST"}


@dataclass(frozen=True)
class Layer:
    """Settings from one source, by their names there. `of` names a topic setting's name in this layer."""

    source: str
    values: Mapping[str, str]
    of: Mapping[str, str]


def _layers(site: Site, node_id: int) -> list[Layer]:
    """Where a broker setting may come from, the strongest first."""
    dynamic = site.node.image.broker_configs
    same = {name: name for name in broker_rows()}
    layers = [
        Layer("DYNAMIC_BROKER_CONFIG", dynamic.get(node_id, {}) if node_id != CLUSTER else {}, same),
        Layer("DYNAMIC_DEFAULT_BROKER_CONFIG", dynamic.get(CLUSTER, {}), same),
    ]
    if node_id == CLUSTER:
        return layers
    defaults = {name: text_of(row.default) for name, row in broker_rows().items()}
    static = site.node.settings.to_strings() if node_id == site.node.settings.node_id else {}
    set_here = {name: value for name, value in static.items() if value != defaults[name]}
    return [*layers, Layer("STATIC_BROKER_CONFIG", set_here, same), Layer("DEFAULT_CONFIG", defaults, same)]


def _topic_layers(site: Site, topic: TopicImage) -> list[Layer]:
    names = {row.topic_name: name for name, row in broker_rows().items() if row.topic_name}
    own = Layer("DYNAMIC_TOPIC_CONFIG", topic.configs, {name: name for name in topic_rows()})
    below = [Layer(each.source, each.values, names) for each in _layers(site, site.node.settings.node_id)]
    defaults = {names.get(name, name): text_of(row.default) for name, row in topic_rows().items()}
    fallback = {name: names.get(name, name) for name in topic_rows()}
    return [own, *below[:-1], Layer("DEFAULT_CONFIG", defaults, fallback)]


def config_shape(
    request: Request, kind: str, url: str, names: tuple[object, ...], row: Row, layers: Iterable[Layer]
) -> Shape | None:
    """One setting as v3 shows it; None when no layer has it."""
    synonyms = [
        {"name": layer.of[row.name], "value": layer.values[layer.of[row.name]], "source": layer.source}
        for layer in layers
        if layer.of.get(row.name) in layer.values
    ]
    if not synonyms:
        return None
    return head(request, kind, url, *names, "config", row.name) | {
        "name": row.name,
        "value": synonyms[0]["value"],
        "is_default": synonyms[0]["source"] == "DEFAULT_CONFIG",
        "is_read_only": False,
        "is_sensitive": False,
        "source": synonyms[0]["source"],
        "synonyms": synonyms,
        "config_type": TYPES[row.type_name],
        "documentation": row.sentence,
    }


def topic_configs(request: Request, topic: TopicImage) -> dict[str, Shape]:
    """All settings of a topic by name."""
    layers = _topic_layers(request.site, topic)
    return _shapes(
        request,
        "KafkaTopicConfig",
        ("topics", topic.name),
        ("topic", topic.name),
        topic_rows(),
        layers,
        {"topic_name": topic.name},
    )


def broker_configs(request: Request, node_id: int) -> dict[str, Shape]:
    """All settings of a broker by name; those of another broker as far as the cluster knows them."""
    layers = _layers(request.site, node_id)
    return _shapes(
        request,
        "KafkaBrokerConfig",
        ("brokers", node_id),
        ("broker", node_id),
        broker_rows(),
        layers,
        {"broker_id": node_id},
    )


def cluster_configs(request: Request) -> dict[str, Shape]:
    """What is set for all brokers, by name."""
    layers = _layers(request.site, CLUSTER)
    return _shapes(request, "KafkaClusterConfig", (), (), broker_rows(), layers, {"config_type": "BROKER"})


def _shapes(
    request: Request,
    kind: str,
    path: tuple[object, ...],
    names: tuple[object, ...],
    rows: Mapping[str, Row],
    layers: list[Layer],
    more: Shape,
) -> dict[str, Shape]:
    folder = "configs" if path else "broker-configs"
    shapes: dict[str, Shape] = {}
    for name, row in sorted(rows.items()):
        shape = config_shape(request, kind, link(request, *path, folder, name), names, row, layers)
        if shape is not None:
            shapes[name] = shape | more
    return shapes


def _one(shapes: Mapping[str, Shape], name: str) -> Shape:
    if name not in shapes:
        raise HttpError(404, f"config {name[:80]!r} not found")
    return shapes[name]


# -- what a body asks for ---------------------------------------------------------------------------------------------


async def _changes(request: Request) -> tuple[dict[str, str | None], bool]:
    """The changes of `{"data": [{name, value, operation}], "validate_only"}`."""
    body_type(request.headers.get("Content-Type"), (JSON,))
    body = await request.json_object()
    data = body.get("data")
    if not isinstance(data, list) or not data:
        raise HttpError(422, "data has to be an array that is not empty")
    changes: dict[str, str | None] = {}
    for entry in data:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise HttpError(422, "each entry of data needs a name")
        if entry["name"] in changes:
            raise HttpError(BAD_REQUEST, f"config {entry['name'][:80]!r} is there twice")
        changes[entry["name"]] = _change(entry)
    return changes, flag(body, "validate_only")


def _change(entry: dict[str, Any]) -> str | None:
    operation, value = entry.get("operation") or "SET", entry.get("value")
    if operation not in ("SET", "DELETE"):
        raise HttpError(422, "operation has to be SET or DELETE")
    return None if operation == "DELETE" or value is None else text(value)


async def _value(request: Request) -> str | None:
    """The value of `{"value": ...}`; null returns to the default."""
    body_type(request.headers.get("Content-Type"), (JSON,))
    body = await request.json_object()
    if "value" not in body:
        raise HttpError(422, "value is missing")
    return None if body["value"] is None else text(body["value"])


# -- topics -----------------------------------------------------------------------------------------------------------


def _topic(request: Request) -> TopicImage:
    cluster(request)
    return topic_image(request.site, request.args["topic"])


async def list_topic_configs(request: Request) -> web.StreamResponse:
    """The settings of a topic."""
    return as_json(listing(request, "KafkaTopicConfig", [*topic_configs(request, _topic(request)).values()]))


async def list_all_topic_configs(request: Request) -> web.StreamResponse:
    """The settings of all topics."""
    cluster(request)
    topics = sorted(request.site.node.image.topics.items())
    shapes = [shape for _, topic in topics for shape in topic_configs(request, topic).values()]
    return as_json(listing(request, "KafkaTopicConfig", shapes))


async def get_topic_config(request: Request) -> web.StreamResponse:
    """One setting of a topic."""
    return as_json(_one(topic_configs(request, _topic(request)), request.args["config"]))


async def _alter_topic(request: Request, changes: Mapping[str, str | None], validate_only: bool) -> web.StreamResponse:
    topic = _topic(request)
    await request.site.node.submit(AlterTopicConfigs(topic.name, changes, validate_only=validate_only))
    return no_content()


async def set_topic_config(request: Request) -> web.StreamResponse:
    """Sets one setting of a topic."""
    return await _alter_topic(request, {request.args["config"]: await _value(request)}, False)


async def reset_topic_config(request: Request) -> web.StreamResponse:
    """Returns one setting of a topic to its default."""
    return await _alter_topic(request, {_known(topic_rows(), request.args["config"]): None}, False)


async def alter_topic_configs(request: Request) -> web.StreamResponse:
    """Sets and resets several settings of a topic at once, all or none."""
    return await _alter_topic(request, *await _changes(request))


def _known(rows: Mapping[str, Row], name: str) -> str:
    if name not in rows:
        raise HttpError(404, f"config {name[:80]!r} not found")
    return name


# -- brokers ----------------------------------------------------------------------------------------------------------


def _broker(request: Request) -> int:
    cluster(request)
    return broker_of_path(request).node_id


async def list_broker_configs(request: Request) -> web.StreamResponse:
    """The settings of a broker."""
    return as_json(listing(request, "KafkaBrokerConfig", [*broker_configs(request, _broker(request)).values()]))


async def list_all_broker_configs(request: Request) -> web.StreamResponse:
    """The settings of all brokers."""
    cluster(request)
    brokers = sorted(request.site.node.image.brokers)
    shapes = [shape for broker in brokers for shape in broker_configs(request, broker).values()]
    return as_json(listing(request, "KafkaBrokerConfig", shapes))


async def get_broker_config(request: Request) -> web.StreamResponse:
    """One setting of a broker."""
    return as_json(_one(broker_configs(request, _broker(request)), request.args["config"]))


async def _alter_broker(
    request: Request, node_id: int, changes: Mapping[str, str | None], validate_only: bool
) -> web.StreamResponse:
    await request.site.node.submit(AlterBrokerConfigs(node_id, changes, validate_only=validate_only))
    return no_content()


async def set_broker_config(request: Request) -> web.StreamResponse:
    """Sets one setting of a broker."""
    return await _alter_broker(request, _broker(request), {request.args["config"]: await _value(request)}, False)


async def reset_broker_config(request: Request) -> web.StreamResponse:
    """Returns one setting of a broker to what it was started with."""
    node_id = _broker(request)
    return await _alter_broker(request, node_id, {_known(broker_rows(), request.args["config"]): None}, False)


async def alter_broker_configs(request: Request) -> web.StreamResponse:
    """Sets and resets several settings of a broker at once, all or none."""
    return await _alter_broker(request, _broker(request), *await _changes(request))


# -- all brokers ------------------------------------------------------------------------------------------------------


async def list_cluster_configs(request: Request) -> web.StreamResponse:
    """What is set for all brokers."""
    cluster(request)
    return as_json(listing(request, "KafkaClusterConfig", [*cluster_configs(request).values()]))


async def get_cluster_config(request: Request) -> web.StreamResponse:
    """One setting for all brokers."""
    cluster(request)
    return as_json(_one(cluster_configs(request), request.args["config"]))


async def set_cluster_config(request: Request) -> web.StreamResponse:
    """Sets one setting for all brokers."""
    cluster(request)
    return await _alter_broker(request, CLUSTER, {request.args["config"]: await _value(request)}, False)


async def reset_cluster_config(request: Request) -> web.StreamResponse:
    """Takes one setting for all brokers back."""
    cluster(request)
    return await _alter_broker(request, CLUSTER, {_known(broker_rows(), request.args["config"]): None}, False)


async def alter_cluster_configs(request: Request) -> web.StreamResponse:
    """Sets and resets several settings for all brokers at once, all or none."""
    cluster(request)
    return await _alter_broker(request, CLUSTER, *await _changes(request))
