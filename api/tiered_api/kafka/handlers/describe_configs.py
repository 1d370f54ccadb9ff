"""DescribeConfigs (API key 32): every setting of topics and brokers, with where it comes from.

v1+ has sources and synonyms, v3+ types and documentation (KIP-569). The broker "" stands for all brokers: what is set
for them. A default for which brokers have no setting is no synonym, as in Kafka. Kafka's other names of a setting
(broker.id, log.dirs) are shown too: tools look for them. A resource that does not exist, or of a type without settings,
has an error of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiered.config import broker_rows
from tiered.errors import Code, Refused
from tiered.kafka_names import SAME_MEANING
from tiered.metadata.changes import CLUSTER
from tiered.metadata.config_layers import Shown, Source, of_all_brokers, of_broker, of_topic
from tiered.metadata.topic_names import check_name
from tiered.setting import Row
from tiered_api.kafka.config_resources import Kind, node_of
from tiered_api.kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from tiered_api.kafka.site import Call, Site

INT_MAX = 2**31 - 1
LIST, LONG, INT = 7, 5, 3
TYPES = {"boolean": 1, "text": 2, "number": 6, "list": LIST}


async def handle(site: Site, call: Call[DescribeConfigsRequest]) -> DescribeConfigsResponse:
    """One result per resource, in their order."""
    request = call.request

    def one(resource: DescribeConfigsResource) -> DescribeConfigsResult:
        try:
            shown = _of(site, resource)
        except Refused as refused:
            return DescribeConfigsResult(
                refused.code.number, refused.why, resource.resource_type, resource.resource_name
            )
        wanted = set(resource.configuration_keys or ())
        configs = [
            _config(each, name, synonyms=request.include_synonyms, documentation=request.include_documentation)
            for name, each in _named(shown, resource.resource_type)
            if not wanted or name in wanted
        ]
        return DescribeConfigsResult(0, "", resource.resource_type, resource.resource_name, configs)

    return DescribeConfigsResponse(results=[one(resource) for resource in request.resources])


def _of(site: Site, resource: DescribeConfigsResource) -> list[Shown]:
    image, started_with = site.node.image, site.node.started_with
    if resource.resource_type == Kind.TOPIC:
        check_name(resource.resource_name)
        topic = image.topics.get(resource.resource_name)
        if topic is None:
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {resource.resource_name!r}")
        return of_topic(image, started_with, topic)
    if resource.resource_type == Kind.BROKER:
        node_id = node_of(resource.resource_name, image.brokers)
        return of_all_brokers(image) if node_id == CLUSTER else of_broker(image, started_with, node_id)
    if resource.resource_type in (Kind.BROKER_LOGGER, Kind.CLIENT_METRICS, Kind.GROUP):
        return []
    raise Refused(Code.INVALID_REQUEST, f"resources of type {resource.resource_type} have no settings")


def _named(shown: Iterable[Shown], kind: int) -> Iterable[tuple[str, Shown]]:
    by_name = {each.row.name: each for each in shown}
    if kind == Kind.BROKER:
        by_name |= {other: by_name[name] for other, name in SAME_MEANING.items() if name in by_name}
    return sorted(by_name.items())


def _config(shown: Shown, name: str, *, synonyms: bool, documentation: bool) -> DescribeConfigsResourceResult:
    told = [
        DescribeConfigsSynonym(other, value, source)
        for other, value, source in shown.synonyms
        if synonyms and (source != Source.DEFAULT_CONFIG or other in broker_rows())
    ]
    return DescribeConfigsResourceResult(
        name,
        shown.value,
        shown.is_read_only,
        shown.source,
        synonyms=told,
        config_type=type_of(shown.row),
        documentation=shown.row.sentence if documentation else None,
    )


def type_of(row: Row) -> int:
    """Kafka's number for the type of a setting."""
    if row.type_name == "integer":
        return INT if row.high is not None and row.high <= INT_MAX else LONG
    return TYPES[row.type_name]
