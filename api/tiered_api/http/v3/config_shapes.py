"""Settings as REST v3 objects: the value in force, and all its sources, the strongest first."""

from __future__ import annotations

from collections.abc import Iterable

from tiered.metadata.config_sources import (
    ConfigEntry,
    ConfigSource,
    broker_config_entries,
    cluster_config_entries,
    topic_config_entries,
)
from tiered.metadata.parts.topics import TopicImage
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.v3.shapes import Shape, base_shape, link

TYPES = {"boolean": "BOOLEAN", "integer": "LONG", "number": "DOUBLE", "text": "STRING", "list": "LIST"}


def config_shape(request: HttpRequest, kind: str, url: str, names: tuple[object, ...], shown: ConfigEntry) -> Shape:
    """Returns one setting as a v3 object."""
    return base_shape(request, kind, url, *names, "config", shown.row.name) | {
        "name": shown.row.name,
        "value": shown.value,
        "is_default": shown.source is ConfigSource.DEFAULT_CONFIG,
        "is_read_only": shown.is_read_only,
        "is_sensitive": shown.row.secret,
        "source": shown.source.name,
        "synonyms": [{"name": name, "value": value, "source": source.name} for name, value, source in shown.synonyms],
        "config_type": TYPES[shown.row.type_name],
        "documentation": shown.row.sentence,
    }


def topic_configs(request: HttpRequest, topic: TopicImage) -> dict[str, Shape]:
    """Returns all settings of a topic by name."""
    node = request.context.broker
    settings = topic_config_entries(node.image, node.startup_settings, topic)
    more = {"topic_name": topic.name}
    return _shapes(request, "KafkaTopicConfig", ("topics", topic.name), ("topic", topic.name), settings, more)


def broker_configs(request: HttpRequest, node_id: int) -> dict[str, Shape]:
    """Returns all settings of a broker by name; of another broker, those that the metadata has."""
    node = request.context.broker
    settings = broker_config_entries(node.image, node.startup_settings, node_id)
    more = {"broker_id": node_id}
    return _shapes(request, "KafkaBrokerConfig", ("brokers", node_id), ("broker", node_id), settings, more)


def cluster_configs(request: HttpRequest) -> dict[str, Shape]:
    """Returns the cluster-wide settings of brokers, by name."""
    settings = cluster_config_entries(request.context.broker.image)
    return _shapes(request, "KafkaClusterConfig", (), (), settings, {"config_type": "BROKER"})


def _shapes(
    request: HttpRequest,
    kind: str,
    path: tuple[object, ...],
    names: tuple[object, ...],
    settings: Iterable[ConfigEntry],
    more: Shape,
) -> dict[str, Shape]:
    folder = "configs" if path else "broker-configs"
    return {
        shown.row.name: config_shape(request, kind, link(request, *path, folder, shown.row.name), names, shown) | more
        for shown in settings
    }
