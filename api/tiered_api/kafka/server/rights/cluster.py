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


def guard_cluster(operation: Operation, refuse: Callable[[Any], Any]) -> Guard:
    """An operation on the cluster. `refuse` returns the response to a request that is refused."""

    async def check(rights: Rights, request: Any, version: int) -> Verdict:
        return ALLOWED if rights.on_cluster(operation) else Verdict(refuse(request))

    return check


def check_cluster(operation: Operation, response_type: Callable[..., Any], *, has_text: bool = True) -> Guard:
    """An operation on the cluster. `has_text` says that the response has words for its error."""
    why = {"error_message": WHY} if has_text else {}
    return guard_cluster(operation, lambda request: response_type(error_code=CLUSTER_REFUSED, **why))


def refuse_elect_leaders(request: elect_leaders.ElectLeadersRequest) -> elect_leaders.ElectLeadersResponse:
    """Returns the response to a caller that may not elect leaders."""
    results = [
        elect_leaders.ReplicaElectionResult(
            each.topic, [elect_leaders.PartitionResult(number, CLUSTER_REFUSED, WHY) for number in each.partitions]
        )
        for each in request.topic_partitions or ()
    ]
    return elect_leaders.ElectLeadersResponse(0, CLUSTER_REFUSED, results)


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
    """DESCRIBE on the cluster, for its operations, its health and its use of the bucket. A caller that asks for the
    health is told what the cluster hides from it, by its rights alone."""
    asks_for_health = request.include_health
    if not rights.on_cluster(Operation.DESCRIBE):
        request.include_health = False
        request.usage_from_ms = -1

    async def finish(response: describe_cluster.DescribeClusterResponse) -> None:
        if asks_for_health and not response.error_code:
            response.hides_health = not request.include_health
            response.hides_topics = not rights.on_every_topic(Operation.DESCRIBE)
        if request.include_cluster_authorized_operations and not response.error_code:
            response.cluster_authorized_operations = rights.cluster_mask()

    return Verdict(None, finish)


def check_configs(
    operation: Operation, response_type: Callable[[], Any], results: str, result_type: Callable[..., Any]
) -> Guard:
    """An operation on each topic or group, or on the cluster. `results` names the list in the response."""

    async def check(rights: Rights, request: Any, version: int) -> Verdict:
        return await split_items(
            rights, request, "resources", response_type, results,
            lambda each: not _find_refusal(rights, operation, each),
            lambda each: result_type(
                _find_refusal(rights, operation, each), WHY, each.resource_type, each.resource_name
            ),
        )  # fmt: skip

    return check


check_describe_configs = check_configs(
    Operation.DESCRIBE_CONFIGS,
    describe_configs.DescribeConfigsResponse,
    "results",
    describe_configs.DescribeConfigsResult,
)
check_alter_configs = check_configs(
    Operation.ALTER_CONFIGS,
    alter_configs.AlterConfigsResponse,
    "responses",
    alter_configs.AlterConfigsResourceResponse,
)
check_incremental_alter_configs = check_configs(
    Operation.ALTER_CONFIGS,
    incremental_alter_configs.IncrementalAlterConfigsResponse,
    "responses",
    incremental_alter_configs.AlterConfigsResourceResponse,
)


def _find_refusal(rights: Rights, operation: Operation, resource: Any) -> int:
    """Returns the error code for a resource with settings; 0 if the caller may carry out the operation."""
    name = resource.resource_name
    if resource.resource_type == ConfigResourceType.TOPIC:
        return 0 if rights.on_topic(operation, name) else TOPIC_REFUSED
    if resource.resource_type == ConfigResourceType.GROUP:
        return 0 if rights.on_group(operation, name) else GROUP_REFUSED
    return 0 if rights.on_cluster(operation) else CLUSTER_REFUSED
