"""Checks of requests about the cluster, and about settings of any resource."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiered.security.acls import Operation
from tiered_api.kafka.protocol.messages import (
    alter_configs,
    describe_cluster,
    describe_configs,
    elect_leaders,
    incremental_alter_configs,
    write_txn_markers,
)
from tiered_api.kafka.server.requests.config_resources import ConfigResourceType
from tiered_api.kafka.server.rights.rights import Rights
from tiered_api.kafka.server.rights.verdict import (
    ALLOWED,
    CLUSTER_REFUSED,
    GROUP_REFUSED,
    TOPIC_REFUSED,
    WHY,
    Guard,
    Verdict,
    split_items,
)


def check_cluster(operation: Operation, response_type: Callable[..., Any], *, has_text: bool = True) -> Guard:
    """An operation on the cluster. `has_text` says that the response has words for its error."""

    async def check(rights: Rights, request: Any, version: int) -> Verdict:
        if rights.on_cluster(operation):
            return ALLOWED
        return Verdict(response_type(error_code=CLUSTER_REFUSED, **({"error_message": WHY} if has_text else {})))

    return check


async def check_elect_leaders(rights: Rights, request: elect_leaders.ElectLeadersRequest, version: int) -> Verdict:
    """ALTER on the cluster."""
    if rights.on_cluster(Operation.ALTER):
        return ALLOWED
    results = [
        elect_leaders.ReplicaElectionResult(
            each.topic, [elect_leaders.PartitionResult(number, CLUSTER_REFUSED, WHY) for number in each.partitions]
        )
        for each in request.topic_partitions or ()
    ]
    return Verdict(elect_leaders.ElectLeadersResponse(0, CLUSTER_REFUSED, results))


async def check_markers(rights: Rights, request: write_txn_markers.WriteTxnMarkersRequest, version: int) -> Verdict:
    """ALTER or CLUSTER_ACTION on the cluster. Brokers send their credential instead, which the handler checks."""
    if request.credential or rights.on_cluster(Operation.ALTER) or rights.on_cluster(Operation.CLUSTER_ACTION):
        return ALLOWED
    refused = write_txn_markers.WritableTxnMarkerPartitionResult
    return Verdict(
        write_txn_markers.WriteTxnMarkersResponse(
            [
                write_txn_markers.WritableTxnMarkerResult(
                    marker.producer_id,
                    [
                        write_txn_markers.WritableTxnMarkerTopicResult(
                            topic.name, [refused(number, CLUSTER_REFUSED) for number in topic.partition_indexes]
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )
    )


async def check_describe_cluster(
    rights: Rights, request: describe_cluster.DescribeClusterRequest, version: int
) -> Verdict:
    """DESCRIBE on the cluster, for its operations and its health. A caller that asks for the health is told what the
    cluster hides from it, by its rights alone."""
    asks_for_health = request.include_health
    if not rights.on_cluster(Operation.DESCRIBE):
        request.include_health = False

    async def finish(response: describe_cluster.DescribeClusterResponse) -> None:
        if asks_for_health and not response.error_code:
            response.hides_health = not request.include_health
            response.hides_topics = not rights.on_every_topic(Operation.DESCRIBE)
        if request.include_cluster_authorized_operations and not response.error_code:
            response.cluster_authorized_operations = rights.cluster_mask()

    return Verdict(None, finish)


async def check_describe_configs(
    rights: Rights, request: describe_configs.DescribeConfigsRequest, version: int
) -> Verdict:
    """DESCRIBE_CONFIGS on each topic or group, or on the cluster."""
    return await split_items(
        rights, request, "resources", describe_configs.DescribeConfigsResponse, "results",
        lambda each: not _find_refusal(rights, Operation.DESCRIBE_CONFIGS, each),
        lambda each: describe_configs.DescribeConfigsResult(
            _find_refusal(rights, Operation.DESCRIBE_CONFIGS, each), WHY, each.resource_type, each.resource_name
        ),
    )  # fmt: skip


async def check_alter_configs(rights: Rights, request: alter_configs.AlterConfigsRequest, version: int) -> Verdict:
    """ALTER_CONFIGS on each topic or group, or on the cluster."""
    return await split_items(
        rights, request, "resources", alter_configs.AlterConfigsResponse, "responses",
        lambda each: not _find_refusal(rights, Operation.ALTER_CONFIGS, each),
        lambda each: alter_configs.AlterConfigsResourceResponse(
            _find_refusal(rights, Operation.ALTER_CONFIGS, each), WHY, each.resource_type, each.resource_name
        ),
    )  # fmt: skip


async def check_incremental_alter_configs(
    rights: Rights, request: incremental_alter_configs.IncrementalAlterConfigsRequest, version: int
) -> Verdict:
    """ALTER_CONFIGS on each topic or group, or on the cluster."""
    return await split_items(
        rights, request, "resources", incremental_alter_configs.IncrementalAlterConfigsResponse, "responses",
        lambda each: not _find_refusal(rights, Operation.ALTER_CONFIGS, each),
        lambda each: incremental_alter_configs.AlterConfigsResourceResponse(
            _find_refusal(rights, Operation.ALTER_CONFIGS, each), WHY, each.resource_type, each.resource_name
        ),
    )  # fmt: skip


def _find_refusal(rights: Rights, operation: Operation, resource: Any) -> int:
    """Returns the error code for a resource with settings; 0 if the caller may carry out the operation."""
    name = resource.resource_name
    if resource.resource_type == ConfigResourceType.TOPIC:
        return 0 if rights.on_topic(operation, name) else TOPIC_REFUSED
    if resource.resource_type == ConfigResourceType.GROUP:
        return 0 if rights.on_group(operation, name) else GROUP_REFUSED
    return 0 if rights.on_cluster(operation) else CLUSTER_REFUSED
