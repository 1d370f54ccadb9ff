"""Settings with all their sources, as Kafka's DescribeConfigs shows them: the value in force first.

The sources, the strongest first: the topic or group, one broker, all brokers, the broker's start, the default. The
Kafka API and HTTP show the same. The numbers of the sources are Kafka's and are part of the wire format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tiered.config.group_config import GroupBounds, GroupConfig, group_rows
from tiered.config.listener_overrides import PREFIX, is_shown, override_row
from tiered.config.setting import SettingRow, text_of
from tiered.config.settings import Settings, broker_rows, topic_rows
from tiered.config.unserved import CHANGEABLE
from tiered.metadata.changes import ALL_BROKERS
from tiered.metadata.effective_config import MIN_ISR
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import TopicImage
from tiered.metadata.stored_configs import stored_rows


class ConfigSource(IntEnum):
    """Source of a value, with Kafka's number."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


class Synonym(NamedTuple):
    """A value from one source, under its name there. A secret has the value None."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One setting. `synonyms` is never empty; the first one is in force."""

    row: SettingRow
    synonyms: tuple[Synonym, ...]
    is_read_only: bool

    @property
    def value(self) -> str | None:
        return self.synonyms[0].value

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source


@dataclass(frozen=True)
class ConfigLayer:
    """Settings from one source. `names` maps each setting that the source knows to its name there."""

    source: ConfigSource
    values: Mapping[str, str]
    names: Mapping[str, str]


class TopicConfigEntries:
    """The settings of any topic, as seen by the broker that was `started_with` these settings.

    Values that a topic does not set are the same for all topics and are computed once.
    """

    def __init__(self, image: Image, started_with: Settings) -> None:
        names = {row.topic_name: name for name, row in broker_rows().items() if row.topic_name}
        layers = _broker_layers(image, started_with, started_with.node_id)[:-1]
        below = [ConfigLayer(each.source, each.values, names) for each in layers]
        fallback = {name: names.get(name, name) for name in topic_rows()}
        defaults = {fallback[name]: text_of(row.default) for name, row in topic_rows().items()}
        default = ConfigLayer(ConfigSource.DEFAULT_CONFIG, defaults, fallback)
        self._all_entries = _build_entries(topic_rows(), [*below, default], is_topic=True)
        self._default_entries = [each for each in self._all_entries if not each.row.internal]

    def entries_of(self, topic: TopicImage) -> list[ConfigEntry]:
        """Returns all settings of a topic, by name. Entries that the topic does not set are shared by all topics.
        Internal settings are among them only if the topic sets them, as in Kafka."""
        configs = topic.configs
        if not configs:
            return self._default_entries
        return [
            _with_topic_value(each, configs[each.row.name]) if each.row.name in configs else each
            for each in self._all_entries
            if not each.row.internal or each.row.name in configs
        ]


def _with_topic_value(entry: ConfigEntry, value: str) -> ConfigEntry:
    return entry._replace(synonyms=(Synonym(entry.row.name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG), *entry.synonyms))


def topic_config_entries(image: Image, started_with: Settings, topic: TopicImage) -> list[ConfigEntry]:
    """Returns all settings of one topic, by name."""
    return TopicConfigEntries(image, started_with).entries_of(topic)


def broker_config_entries(image: Image, started_with: Settings, node_id: int) -> list[ConfigEntry]:
    """Returns all settings of a broker, by name; those of another broker as far as the metadata has them."""
    return _build_broker_entries(_broker_layers(image, started_with, node_id))


def group_config_entries(image: Image, settings: GroupBounds, group: str) -> list[ConfigEntry]:
    """Returns all settings of a group, by name. Each has one source, as in Kafka, and the broker's is the default."""
    own, default = image.group_configs.get(group, {}), ConfigSource.DEFAULT_CONFIG
    in_force = GroupConfig.from_strings(own, GroupConfig.of_broker(settings))
    entries = list[ConfigEntry]()
    for name, row in sorted(group_rows().items()):
        source = ConfigSource.DYNAMIC_GROUP_CONFIG if name in own else default
        text = text_of(getattr(in_force, name.replace(".", "_")))
        entries.append(ConfigEntry(row, (Synonym(name, text, source),), is_read_only=False))
    return entries


def cluster_config_entries(image: Image) -> list[ConfigEntry]:
    """Returns the settings that are set for all brokers, by name."""
    return _build_broker_entries(_dynamic_layers(image, ALL_BROKERS))


def _build_broker_entries(layers: Sequence[ConfigLayer]) -> list[ConfigEntry]:
    table = broker_rows()
    of_listeners = {name for layer in layers for name in layer.values if is_shown(name, table)}
    shown = {**table, **{name: override_row(name, table) for name in of_listeners}}
    changed = [layer.values for layer in layers if layer.source != ConfigSource.DEFAULT_CONFIG]
    shown |= {name: row for name, row in CHANGEABLE.items() if any(name in values for values in changed)}
    return _build_entries(shown, layers, is_topic=False)


def _dynamic_layers(image: Image, node_id: int) -> list[ConfigLayer]:
    broker_configs = image.broker_configs.get(node_id, {}) if node_id != ALL_BROKERS else {}
    all_configs = image.broker_configs.get(ALL_BROKERS, {})
    same = {name: name for name in (*broker_rows(), *broker_configs, *all_configs)}
    return [
        ConfigLayer(ConfigSource.DYNAMIC_BROKER_CONFIG, broker_configs, same),
        ConfigLayer(ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, all_configs, same),
    ]


def _broker_layers(image: Image, started_with: Settings, node_id: int) -> list[ConfigLayer]:
    """Returns the sources of broker settings, the strongest first."""
    defaults = {name: text_of(row.default) for name, row in stored_rows().items()}
    given, own = {}, dict[str, str]()
    if node_id == started_with.node_id:
        given = started_with.to_strings()
        own = {
            f"{PREFIX}{each.listener.lower()}.{each.name}": text_of(each.value)
            for each in started_with.listener_overrides
        }
    static = {name: value for name, value in given.items() if value != defaults[name] or name in started_with.given}
    static |= _derived_listeners(image, started_with, node_id, static)
    static.pop(MIN_ISR, None)  # set for a topic or for all brokers only
    static |= own
    same = {name: name for name in (*stored_rows(), *own)}
    if not started_with.remote_log_storage_system_enable:
        static["log.remote.storage.enable"] = "false"
    return [
        *_dynamic_layers(image, node_id),
        ConfigLayer(ConfigSource.STATIC_BROKER_CONFIG, static, same),
        ConfigLayer(ConfigSource.DEFAULT_CONFIG, defaults, same),
    ]


def _derived_listeners(image: Image, started_with: Settings, node_id: int, static: Mapping[str, str]) -> dict[str, str]:
    """Returns the listeners that follow from other settings of the start, in Kafka's form: clients look for them."""
    is_own, known, derived = node_id == started_with.node_id, image.brokers.get(node_id), {}
    if is_own and not static.get("listeners") and "kafka" in static:
        places = ((each.name, each.address) for each in started_with.effective_listeners())
        derived["listeners"] = ",".join(f"{name}://{place}" for name, place in places)
    is_given = not is_own or not static.keys().isdisjoint(("kafka", "listeners"))
    if is_given and not static.get("advertised.listeners") and known is not None:
        derived["advertised.listeners"] = ",".join(f"{name}://{place}" for name, place in known.listeners.items())
    return {name: text for name, text in derived.items() if text}


def _build_entries(
    rows: Mapping[str, SettingRow], layers: Iterable[ConfigLayer], *, is_topic: bool
) -> list[ConfigEntry]:
    layers = tuple(layers)
    entries = []
    for name, row in sorted(rows.items()):
        synonyms = tuple(
            Synonym(layer.names[name], None if row.secret else layer.values[layer.names[name]], layer.source)
            for layer in layers
            if layer.names.get(name) in layer.values
        )
        if synonyms:
            entries.append(ConfigEntry(row, synonyms, not is_topic and not row.dynamic))
    return entries
