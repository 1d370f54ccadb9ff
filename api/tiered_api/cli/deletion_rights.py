"""The topics and groups that the caller may delete, for dry runs: what a broker would refuse, they say first."""

from __future__ import annotations

from collections.abc import Iterable

from tiered.security.acls import Operation
from tiered_api.kafka.client.client import KafkaClient, only_result
from tiered_api.kafka.client.leader_routing import send_to_coordinator
from tiered_api.kafka.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

UNKNOWN_OPERATIONS = -(2**31)
"""The mask of operations of a broker that does not tell them."""


async def find_kept_topics(client: KafkaClient, names: Iterable[str]) -> set[str]:
    """Returns those of the topics in which the caller may delete nothing."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    got = await client.send(request, MetadataResponse)
    return {each.name or "" for each in got.topics if not _may_delete(each.topic_authorized_operations)}


async def may_delete_group(client: KafkaClient, name: str) -> bool:
    """True if the caller may delete a group and its offsets."""
    request = DescribeGroupsRequest(groups=[name], include_authorized_operations=True)
    got = await send_to_coordinator(
        client, name, request, DescribeGroupsResponse, lambda got: only_result(got.groups).error_code
    )
    return _may_delete(only_result(got.groups).authorized_operations)


def _may_delete(operations: int) -> bool:
    return operations == UNKNOWN_OPERATIONS or bool(operations >> Operation.DELETE & 1)
