"""Checks of requests about the state of share partitions: CLUSTER_ACTION on the cluster, as in Kafka.

Brokers send their credential instead, which the handler checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiered.security.acls import Operation
from tiered_api.kafka.protocol.messages import (
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)
from tiered_api.kafka.server.rights.rights import Rights
from tiered_api.kafka.server.rights.verdict import ALLOWED, CLUSTER_REFUSED, WHY, Guard, Verdict


def _check(response: Callable[..., Any], topic_result: Callable[..., Any], result: Callable[..., Any]) -> Guard:
    def refuse(request: Any) -> Any:
        return response(
            [
                topic_result(topic.topic_id, [result(row.partition, CLUSTER_REFUSED, WHY) for row in topic.partitions])
                for topic in request.topics
            ]
        )

    async def check(rights: Rights, request: Any, version: int) -> Verdict:
        if request.credential or rights.on_cluster(Operation.CLUSTER_ACTION):
            return ALLOWED
        return Verdict(refuse(request))

    return check


INITIALIZE = _check(
    initialize_share_group_state.InitializeShareGroupStateResponse,
    initialize_share_group_state.InitializeStateResult,
    initialize_share_group_state.PartitionResult,
)
READ = _check(
    read_share_group_state.ReadShareGroupStateResponse,
    read_share_group_state.ReadStateResult,
    read_share_group_state.PartitionResult,
)
WRITE = _check(
    write_share_group_state.WriteShareGroupStateResponse,
    write_share_group_state.WriteStateResult,
    write_share_group_state.PartitionResult,
)
DELETE = _check(
    delete_share_group_state.DeleteShareGroupStateResponse,
    delete_share_group_state.DeleteStateResult,
    delete_share_group_state.PartitionResult,
)
SUMMARIZE = _check(
    read_share_group_state_summary.ReadShareGroupStateSummaryResponse,
    read_share_group_state_summary.ReadStateSummaryResult,
    read_share_group_state_summary.PartitionResult,
)
