"""Settings as REST v3 shows them: the value in force, and every place that has a say in it, the strongest first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tiered.config import broker_rows, topic_rows
from tiered.metadata.changes import CLUSTER
from tiered.metadata.image import TopicImage
from tiered.setting import Row, text_of
from tiered_api.http.request import Request
from tiered_api.http.site import Site
from tiered_api.http.v3.shapes import Shape, head, link

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
    dynamic_names = {name for layer in layers for name in layer.values}
    set_here = {name: value for name, value in static.items() if value != defaults[name] and name not in dynamic_names}
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
        "is_read_only": kind != "KafkaTopicConfig" and not row.topic_name,
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
