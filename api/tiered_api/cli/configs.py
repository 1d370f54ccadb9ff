"""Settings of topics and brokers over the Kafka protocol: reads and changes (KIP-339)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tiered_api.cli.output import Row
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tiered_api.kafka.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
ALL_BROKERS = ""
SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
}


async def describe_configs(
    client: KafkaClient, kind: int, names: Iterable[str], keys: list[str] | None = None, *, node: int | None = None
) -> list[DescribeConfigsResult]:
    """Returns settings of topics or brokers, all or those in `keys`. An error is in the result of its topic or
    broker."""
    resources = [DescribeConfigsResource(kind, name, keys) for name in names]
    return (
        await client.send(DescribeConfigsRequest(resources=resources), DescribeConfigsResponse, node_id=node)
    ).results


async def alter_configs(
    client: KafkaClient,
    kind: int,
    changes: Mapping[str, Sequence[AlterableConfig]],
    *,
    node: int | None = None,
    dry_run: bool = False,
) -> list[AlterConfigsResourceResponse]:
    """Changes settings of each topic or broker in `changes`; the controller does it, or broker `node`."""
    resources = [AlterConfigsResource(kind, name, list(rows)) for name, rows in changes.items()]
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=dry_run)
    if node is None:
        got = await client.send_to_controller(request, IncrementalAlterConfigsResponse)
    else:
        got = await client.send(request, IncrementalAlterConfigsResponse, node_id=node)
    return got.responses


def config_rows(configs: Iterable[DescribeConfigsResourceResult]) -> list[Row]:
    """Returns settings as rows, by name; a secret has no value."""
    return [
        {"key": each.name, "value": each.value, "source": SOURCES.get(each.config_source, "UNKNOWN")}
        for each in sorted(configs, key=lambda each: each.name)
    ]
