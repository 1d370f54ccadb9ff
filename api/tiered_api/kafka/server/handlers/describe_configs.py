"""DescribeConfigs (API key 32): every setting of topics, brokers and groups, with its source.

v1+ has sources and synonyms, v3+ types and documentation (KIP-569). The broker "" stands for the settings of all
brokers. A default for which brokers have no setting is no synonym, as in Kafka. The reply also shows Kafka's other
names of a setting (broker.id, log.dirs), because tools look for them. Each resource that does not exist, or whose type
has no settings, gets its own error. So does a resource that the request names again: a reply is thousands of times as
long as its request.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiered.config.group_config import group_rows
from tiered.config.kafka_aliases import SAME_MEANING
from tiered.config.setting import SettingRow
from tiered.errors import Code, Refused
from tiered.metadata.changes import ALL_BROKERS
from tiered.metadata.config_sources import (
    ConfigEntry,
    ConfigSource,
    TopicConfigEntries,
    broker_config_entries,
    cluster_config_entries,
    group_config_entries,
)
from tiered.metadata.stored_configs import stored_rows
from tiered.metadata.topic_names import check_name
from tiered_api.kafka.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.config_resources import ConfigResourceType, parse_broker_id

INT_MAX = 2**31 - 1
PASSWORD, LIST, LONG, INT = 9, 7, 5, 3
TYPES = {"boolean": 1, "text": 2, "number": 6, "list": LIST}


async def handle(context: KafkaContext, call: Call[DescribeConfigsRequest]) -> DescribeConfigsResponse:
    """Returns one result per resource, in the order of the request."""
    describer = _Describer(context, call.request)
    results = [describer.describe(each) async for each in context.turns.each_of(call.request.resources)]
    return DescribeConfigsResponse(results=results)


class _Describer:
    """The describer of one request. It encodes settings that several topics share only once."""

    def __init__(self, context: KafkaContext, request: DescribeConfigsRequest) -> None:
        self._image, self._started_with = context.broker.image, context.broker.startup_settings
        self._synonyms = request.include_synonyms
        self._documentation = request.include_documentation
        self._topics = TopicConfigEntries(self._image, self._started_with)
        self._seen: set[tuple[int, str]] = set()
        self._encoded: dict[tuple[str, int], tuple[ConfigEntry, DescribeConfigsResourceResult]] = {}

    def describe(self, resource: DescribeConfigsResource) -> DescribeConfigsResult:
        """Returns all settings of a resource, or the requested ones; an error if it has none."""
        kind, name = resource.resource_type, resource.resource_name
        try:
            if (kind, name) in self._seen:
                raise Refused(Code.INVALID_REQUEST, "the request names the resource twice")
            self._seen.add((kind, name))
            shown = self._find_configs(kind, name)
        except Refused as refused:
            return DescribeConfigsResult(refused.code.number, refused.why, kind, name)
        wanted = set(resource.configuration_keys or ())
        configs = [
            self._encode_config(key, each) for key, each in _by_shown_name(shown, kind) if not wanted or key in wanted
        ]
        return DescribeConfigsResult(0, "", kind, name, configs)

    def _find_configs(self, kind: int, name: str) -> list[ConfigEntry]:
        if kind == ConfigResourceType.TOPIC:
            check_name(name)
            topic = self._image.topics.get(name)
            if topic is None:
                raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
            return self._topics.entries_of(topic)
        if kind == ConfigResourceType.BROKER:
            node_id = parse_broker_id(name, self._image.brokers)
            if node_id == ALL_BROKERS:
                return cluster_config_entries(self._image)
            return broker_config_entries(self._image, self._started_with, node_id)
        if kind in (ConfigResourceType.BROKER_LOGGER, ConfigResourceType.CLIENT_METRICS, ConfigResourceType.GROUP):
            if not name:
                raise Refused(Code.INVALID_REQUEST, "a resource has to be named")
            if kind == ConfigResourceType.GROUP:
                return group_config_entries(self._image, self._started_with, name)
            if kind == ConfigResourceType.BROKER_LOGGER:
                parse_broker_id(name, self._image.brokers)
            return []
        raise Refused(Code.INVALID_REQUEST, f"resources of type {kind} have no settings")

    def _encode_config(self, name: str, shown: ConfigEntry) -> DescribeConfigsResourceResult:
        made = self._encoded.get((name, id(shown)))
        if made is None:
            synonyms = [
                DescribeConfigsSynonym(other, value, source)
                for other, value, source in shown.synonyms
                if self._synonyms
                and (source != ConfigSource.DEFAULT_CONFIG or other in stored_rows() or other in group_rows())
            ]
            result = DescribeConfigsResourceResult(
                name,
                shown.value,
                shown.is_read_only,
                shown.source,
                shown.row.secret,
                synonyms=synonyms,
                config_type=config_type_of(shown.row),
                documentation=shown.row.sentence if self._documentation else None,
            )
            made = self._encoded[name, id(shown)] = shown, result
        return made[1]


def _by_shown_name(shown: Iterable[ConfigEntry], kind: int) -> Iterable[tuple[str, ConfigEntry]]:
    by_name = {each.row.name: each for each in shown}
    if kind == ConfigResourceType.BROKER:
        by_name |= {other: by_name[name] for other, name in SAME_MEANING.items() if name in by_name}
        return sorted(by_name.items())
    return by_name.items()


def config_type_of(row: SettingRow) -> int:
    """Returns Kafka's number for the type of a setting."""
    if row.secret:
        return PASSWORD
    if row.type_name == "integer":
        return INT if row.high is not None and row.high <= INT_MAX else LONG
    return TYPES[row.type_name]
