"""Which APIs there are, in which versions: what ApiVersions answers, and what every request is looked up in.

The versions are those of Kafka 4.2. A request of a key or version that is not here ends its connection, as in Kafka;
ApiVersions alone is answered (KIP-511), so that a client of any age learns what there is.
"""

from __future__ import annotations

from typing import NamedTuple

from tiered_api.kafka.messages import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)
from tiered_api.kafka.schema import Message

API_VERSIONS = 18


class Api(NamedTuple):
    """One API: `low` to `high` are the versions that ApiVersions answers."""

    key: int
    name: str
    request: type[Message]
    response: type[Message]
    low: int
    high: int

    @property
    def served(self) -> range:
        """The versions that are served: of those offered the ones that the tables know."""
        known = self.request.spec.versions
        return range(max(self.low, known.low), min(self.high, known.high) + 1)

    def is_flexible(self, version: int) -> bool:
        """Whether a version has tagged fields and lengths that are varints (KIP-482)."""
        return version in self.request.spec.flexible


def _api(request: type[Message], response: type[Message], low: int, high: int) -> Api:
    return Api(request.spec.key, request.__name__.removesuffix("Request"), request, response, low, high)


_TABLE = (
    # Produce 0-2 are offered and refused: librdkafka before 2.4 would send some codecs uncompressed (KAFKA-18659).
    _api(produce.ProduceRequest, produce.ProduceResponse, 0, 13),
    _api(fetch.FetchRequest, fetch.FetchResponse, 4, 18),
    _api(list_offsets.ListOffsetsRequest, list_offsets.ListOffsetsResponse, 1, 11),
    _api(metadata.MetadataRequest, metadata.MetadataResponse, 0, 13),
    _api(offset_commit.OffsetCommitRequest, offset_commit.OffsetCommitResponse, 2, 10),
    _api(offset_fetch.OffsetFetchRequest, offset_fetch.OffsetFetchResponse, 1, 10),
    _api(find_coordinator.FindCoordinatorRequest, find_coordinator.FindCoordinatorResponse, 0, 6),
    _api(join_group.JoinGroupRequest, join_group.JoinGroupResponse, 0, 9),
    _api(heartbeat.HeartbeatRequest, heartbeat.HeartbeatResponse, 0, 4),
    _api(leave_group.LeaveGroupRequest, leave_group.LeaveGroupResponse, 0, 5),
    _api(sync_group.SyncGroupRequest, sync_group.SyncGroupResponse, 0, 5),
    _api(describe_groups.DescribeGroupsRequest, describe_groups.DescribeGroupsResponse, 0, 6),
    _api(list_groups.ListGroupsRequest, list_groups.ListGroupsResponse, 0, 5),
    _api(api_versions.ApiVersionsRequest, api_versions.ApiVersionsResponse, 0, 4),
    _api(create_topics.CreateTopicsRequest, create_topics.CreateTopicsResponse, 2, 7),
    _api(delete_topics.DeleteTopicsRequest, delete_topics.DeleteTopicsResponse, 1, 6),
    _api(delete_records.DeleteRecordsRequest, delete_records.DeleteRecordsResponse, 0, 2),
    _api(init_producer_id.InitProducerIdRequest, init_producer_id.InitProducerIdResponse, 0, 5),
    _api(
        offset_for_leader_epoch.OffsetForLeaderEpochRequest, offset_for_leader_epoch.OffsetForLeaderEpochResponse, 2, 4
    ),
    _api(describe_configs.DescribeConfigsRequest, describe_configs.DescribeConfigsResponse, 1, 4),
    _api(alter_configs.AlterConfigsRequest, alter_configs.AlterConfigsResponse, 0, 2),
    _api(describe_log_dirs.DescribeLogDirsRequest, describe_log_dirs.DescribeLogDirsResponse, 1, 4),
    _api(create_partitions.CreatePartitionsRequest, create_partitions.CreatePartitionsResponse, 0, 3),
    _api(delete_groups.DeleteGroupsRequest, delete_groups.DeleteGroupsResponse, 0, 2),
    _api(elect_leaders.ElectLeadersRequest, elect_leaders.ElectLeadersResponse, 0, 2),
    _api(
        incremental_alter_configs.IncrementalAlterConfigsRequest,
        incremental_alter_configs.IncrementalAlterConfigsResponse,
        0,
        1,
    ),
    _api(
        list_partition_reassignments.ListPartitionReassignmentsRequest,
        list_partition_reassignments.ListPartitionReassignmentsResponse,
        0,
        0,
    ),
    _api(offset_delete.OffsetDeleteRequest, offset_delete.OffsetDeleteResponse, 0, 0),
    _api(describe_cluster.DescribeClusterRequest, describe_cluster.DescribeClusterResponse, 0, 2),
    _api(describe_producers.DescribeProducersRequest, describe_producers.DescribeProducersResponse, 0, 0),
    _api(list_config_resources.ListConfigResourcesRequest, list_config_resources.ListConfigResourcesResponse, 0, 1),
    _api(
        describe_topic_partitions.DescribeTopicPartitionsRequest,
        describe_topic_partitions.DescribeTopicPartitionsResponse,
        0,
        0,
    ),
)

APIS: dict[int, Api] = {api.key: api for api in _TABLE}
_SERVED = {(api.key, version): api for api in _TABLE for version in api.served}


def find(key: int, version: int) -> Api | None:
    """The API of a request, or None when its key or version is not served."""
    return _SERVED.get((key, version))


def offered() -> list[api_versions.ApiVersion]:
    """What ApiVersions lists."""
    return [api_versions.ApiVersion(api_key=api.key, min_version=api.low, max_version=api.high) for api in _TABLE]
