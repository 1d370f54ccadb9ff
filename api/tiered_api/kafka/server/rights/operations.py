"""The table of rights: for each API, the operations that its requests need, and the check of a request.

Keeps I29. docs/reference/acls.md is made from the table. A need holds for each resource that a request names. If a row
has several needs for one resource type, its note says which of them are enough.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tiered.security.acls import Operation, ResourceType
from tiered_api.kafka.protocol.messages import (
    alter_client_quotas,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    create_acls,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_log_dirs,
    describe_quorum,
    describe_user_scram_credentials,
    heartbeat,
    leave_group,
    list_config_resources,
    list_partition_reassignments,
    sync_group,
    tiered_acknowledge,
    tiered_metrics,
    tiered_rotate_secret,
    unregister_broker,
    update_features,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.rights import cluster, consumer_groups, groups, share_state, topics
from tiered_api.kafka.server.rights.rights import Rights, find_rights
from tiered_api.kafka.server.rights.verdict import (
    ALLOWED,
    CLUSTER_REFUSED,
    WHY,
    Guard,
    Verdict,
    allow,
    run_without_pause,
)

CREDENTIAL = "only brokers send it, with the credential of the cluster"


class Need(NamedTuple):
    """An operation on a type of resource."""

    operation: Operation
    kind: ResourceType


class Rule(NamedTuple):
    """The rights that requests of one API need. `note` says what the needs do not."""

    needs: tuple[Need, ...]
    guard: Guard = allow
    note: str = ""


_BY_CREDENTIAL = "brokers send their credential instead"


def _topic(operation: Operation) -> Need:
    return Need(operation, ResourceType.TOPIC)


def _group(operation: Operation) -> Need:
    return Need(operation, ResourceType.GROUP)


def _transactional_id(operation: Operation) -> Need:
    return Need(operation, ResourceType.TRANSACTIONAL_ID)


def _cluster(operation: Operation) -> Need:
    return Need(operation, ResourceType.CLUSTER)


def _refuse_create_acls(request: create_acls.CreateAclsRequest) -> create_acls.CreateAclsResponse:
    results = [create_acls.AclCreationResult(CLUSTER_REFUSED, WHY) for _ in request.creations]
    return create_acls.CreateAclsResponse(results=results)


def _refuse_delete_acls(request: delete_acls.DeleteAclsRequest) -> delete_acls.DeleteAclsResponse:
    results = [delete_acls.DeleteAclsFilterResult(CLUSTER_REFUSED, WHY) for _ in request.filters]
    return delete_acls.DeleteAclsResponse(filter_results=results)


def _refuse_alter_users(
    request: alter_user_scram_credentials.AlterUserScramCredentialsRequest,
) -> alter_user_scram_credentials.AlterUserScramCredentialsResponse:
    users = dict.fromkeys([*(each.name for each in request.deletions), *(each.name for each in request.upsertions)])
    refused = alter_user_scram_credentials.AlterUserScramCredentialsResult
    results = [refused(user, CLUSTER_REFUSED, WHY) for user in users]
    return alter_user_scram_credentials.AlterUserScramCredentialsResponse(results=results)


def _refuse_alter_quotas(
    request: alter_client_quotas.AlterClientQuotasRequest,
) -> alter_client_quotas.AlterClientQuotasResponse:
    refused = alter_client_quotas.AlterClientQuotasResult
    entries = [refused(CLUSTER_REFUSED, WHY, each.entity) for each in request.entries]
    return alter_client_quotas.AlterClientQuotasResponse(entries=entries)


_READ, _WRITE, _CREATE, _DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
_ALTER, _DESCRIBE = Operation.ALTER, Operation.DESCRIBE
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
_CONFIG_NOTE = "the one of the resource: settings of brokers are those of the cluster"

API_RULES: dict[str, Rule] = {
    "Produce": Rule(
        (_topic(_WRITE), _transactional_id(_WRITE)), note="the transactional id only if the request names one"
    ),
    "Fetch": Rule((_topic(_READ),), note="brokers send their credential instead"),
    "ListOffsets": Rule((_topic(_DESCRIBE),), topics.check_list_offsets),
    "Metadata": Rule(
        (_topic(_DESCRIBE), _topic(_CREATE), _cluster(_CREATE)),
        note="DESCRIBE; to create a missing topic, CREATE on the topic or on the cluster too",
    ),
    "OffsetCommit": Rule((_group(_READ), _topic(_READ)), groups.check_offset_commit),
    "OffsetFetch": Rule((_group(_DESCRIBE), _topic(_DESCRIBE)), groups.check_offset_fetch),
    "FindCoordinator": Rule(
        (_group(_DESCRIBE), _transactional_id(_DESCRIBE)), groups.check_find_coordinator, "the one that the key names"
    ),
    "JoinGroup": Rule((_group(_READ),), groups.check_join),
    "Heartbeat": Rule((_group(_READ),), groups.check_member(heartbeat.HeartbeatResponse)),
    "LeaveGroup": Rule((_group(_READ),), groups.check_member(leave_group.LeaveGroupResponse)),
    "SyncGroup": Rule((_group(_READ),), groups.check_member(sync_group.SyncGroupResponse)),
    "DescribeGroups": Rule((_group(_DESCRIBE),), groups.check_describe_groups),
    "ConsumerGroupHeartbeat": Rule((_group(_READ), _topic(_DESCRIBE)), consumer_groups.check_consumer_heartbeat),
    "ConsumerGroupDescribe": Rule(
        (_group(_DESCRIBE),),
        consumer_groups.check_describe_consumer_groups,
        "also DESCRIBE on each topic that its members have or get",
    ),
    "ListGroups": Rule(
        (_cluster(_DESCRIBE), _group(_DESCRIBE)), groups.check_list_groups, "one of them; other groups are left out"
    ),
    "SaslHandshake": Rule((), note="nothing"),
    "ApiVersions": Rule((), note="nothing"),
    "CreateTopics": Rule((_cluster(_CREATE), _topic(_CREATE)), topics.check_create_topics, "one of them"),
    "DeleteTopics": Rule((_topic(_DELETE),), topics.check_delete_topics),
    "DeleteRecords": Rule((_topic(_DELETE),), topics.check_delete_records),
    "InitProducerId": Rule(
        (_transactional_id(_WRITE), _cluster(Operation.IDEMPOTENT_WRITE), _topic(_WRITE)),
        groups.check_init_producer_id,
        "the transactional id; without one, IDEMPOTENT_WRITE or WRITE on any topic",
    ),
    "OffsetForLeaderEpoch": Rule((_topic(_DESCRIBE),), topics.check_leader_epochs),
    "AddPartitionsToTxn": Rule(
        (_transactional_id(_WRITE), _topic(_WRITE)),
        groups.check_add_partitions,
        "from version 4 on CLUSTER_ACTION on CLUSTER; brokers send their credential instead",
    ),
    "AddOffsetsToTxn": Rule((_transactional_id(_WRITE), _group(_READ)), groups.check_add_offsets),
    "EndTxn": Rule((_transactional_id(_WRITE),), groups.check_end_txn),
    "WriteTxnMarkers": Rule(
        (_cluster(_ALTER), _cluster(Operation.CLUSTER_ACTION)),
        cluster.check_markers,
        "one of them, to abort; brokers send their credential instead",
    ),
    "TxnOffsetCommit": Rule((_transactional_id(_WRITE), _group(_READ), _topic(_READ)), groups.check_txn_offset_commit),
    "DescribeAcls": Rule((_cluster(_DESCRIBE),), cluster.check_cluster(_DESCRIBE, describe_acls.DescribeAclsResponse)),
    "CreateAcls": Rule((_cluster(_ALTER),), cluster.guard_cluster(_ALTER, _refuse_create_acls)),
    "DeleteAcls": Rule((_cluster(_ALTER),), cluster.guard_cluster(_ALTER, _refuse_delete_acls)),
    "DescribeConfigs": Rule(
        (_topic(_DESCRIBE_CONFIGS), _group(_DESCRIBE_CONFIGS), _cluster(_DESCRIBE_CONFIGS)),
        cluster.check_describe_configs,
        _CONFIG_NOTE,
    ),
    "AlterConfigs": Rule(
        (_topic(_ALTER_CONFIGS), _group(_ALTER_CONFIGS), _cluster(_ALTER_CONFIGS)),
        cluster.check_alter_configs,
        _CONFIG_NOTE,
    ),
    "IncrementalAlterConfigs": Rule(
        (_topic(_ALTER_CONFIGS), _group(_ALTER_CONFIGS), _cluster(_ALTER_CONFIGS)),
        cluster.check_incremental_alter_configs,
        _CONFIG_NOTE,
    ),
    "DescribeLogDirs": Rule(
        (_cluster(_DESCRIBE),),
        cluster.check_cluster(_DESCRIBE, describe_log_dirs.DescribeLogDirsResponse, has_text=False),
    ),
    "SaslAuthenticate": Rule((), note="nothing"),
    "CreatePartitions": Rule((_topic(_ALTER),), topics.check_create_partitions),
    "CreateDelegationToken": Rule(
        (Need(Operation.CREATE_TOKENS, ResourceType.USER),), note="only for a token of another owner"
    ),
    "RenewDelegationToken": Rule((), note="only the owner and the renewers of the token"),
    "ExpireDelegationToken": Rule((), note="only the owner and the renewers of the token"),
    "DescribeDelegationToken": Rule(
        (Need(_DESCRIBE, ResourceType.DELEGATION_TOKEN), Need(Operation.DESCRIBE_TOKENS, ResourceType.USER)),
        note="one of them, for tokens of others; other tokens are left out",
    ),
    "DeleteGroups": Rule((_group(_DELETE),), groups.check_delete_groups),
    "ElectLeaders": Rule((_cluster(_ALTER),), cluster.guard_cluster(_ALTER, cluster.refuse_elect_leaders)),
    "AlterPartitionReassignments": Rule(
        (_cluster(_ALTER),),
        cluster.check_cluster(_ALTER, alter_partition_reassignments.AlterPartitionReassignmentsResponse),
    ),
    "ListPartitionReassignments": Rule(
        (_cluster(_DESCRIBE),),
        cluster.check_cluster(_DESCRIBE, list_partition_reassignments.ListPartitionReassignmentsResponse),
    ),
    "OffsetDelete": Rule((_group(_DELETE), _topic(_READ)), groups.check_offset_delete),
    "DescribeClientQuotas": Rule(
        (_cluster(_DESCRIBE_CONFIGS),),
        cluster.check_cluster(_DESCRIBE_CONFIGS, describe_client_quotas.DescribeClientQuotasResponse),
    ),
    "AlterClientQuotas": Rule((_cluster(_ALTER_CONFIGS),), cluster.guard_cluster(_ALTER_CONFIGS, _refuse_alter_quotas)),
    "DescribeUserScramCredentials": Rule(
        (_cluster(_DESCRIBE),),
        cluster.check_cluster(_DESCRIBE, describe_user_scram_credentials.DescribeUserScramCredentialsResponse),
    ),
    "AlterUserScramCredentials": Rule((_cluster(_ALTER),), cluster.guard_cluster(_ALTER, _refuse_alter_users)),
    "UpdateFeatures": Rule((_cluster(_ALTER),), cluster.check_cluster(_ALTER, update_features.UpdateFeaturesResponse)),
    "DescribeCluster": Rule(
        (),
        cluster.check_describe_cluster,
        "nothing; its operations and the health of the broker need DESCRIBE on CLUSTER",
    ),
    "DescribeQuorum": Rule(
        (_cluster(_DESCRIBE),), cluster.check_cluster(_DESCRIBE, describe_quorum.DescribeQuorumResponse)
    ),
    "DescribeProducers": Rule((_topic(_READ),), topics.check_describe_producers),
    "UnregisterBroker": Rule(
        (_cluster(_ALTER),), cluster.check_cluster(_ALTER, unregister_broker.UnregisterBrokerResponse)
    ),
    "DescribeTransactions": Rule(
        (_transactional_id(_DESCRIBE), _topic(_DESCRIBE)),
        groups.check_describe_transactions,
        "topics that the caller may not describe are left out",
    ),
    "ListTransactions": Rule(
        (_transactional_id(_DESCRIBE),),
        groups.check_list_transactions,
        "other ids are left out; brokers send their credential instead",
    ),
    "ListConfigResources": Rule(
        (_cluster(_DESCRIBE_CONFIGS),),
        cluster.check_cluster(_DESCRIBE_CONFIGS, list_config_resources.ListConfigResourcesResponse, has_text=False),
    ),
    "DescribeTopicPartitions": Rule((_topic(_DESCRIBE),), topics.check_topic_pages),
    "InitializeShareGroupState": Rule((_cluster(Operation.CLUSTER_ACTION),), share_state.INITIALIZE, _BY_CREDENTIAL),
    "ReadShareGroupState": Rule((_cluster(Operation.CLUSTER_ACTION),), share_state.READ, _BY_CREDENTIAL),
    "WriteShareGroupState": Rule((_cluster(Operation.CLUSTER_ACTION),), share_state.WRITE, _BY_CREDENTIAL),
    "DeleteShareGroupState": Rule((_cluster(Operation.CLUSTER_ACTION),), share_state.DELETE, _BY_CREDENTIAL),
    "ReadShareGroupStateSummary": Rule((_cluster(Operation.CLUSTER_ACTION),), share_state.SUMMARIZE, _BY_CREDENTIAL),
    "TieredFollow": Rule((), note=CREDENTIAL),
    "TieredSubmit": Rule((), note=CREDENTIAL),
    "TieredHeard": Rule((), note=CREDENTIAL),
    "TieredActFor": Rule((), note=CREDENTIAL),
    "TieredQuotaUse": Rule((), note=CREDENTIAL),
    "TieredAppendAt": Rule((), note=CREDENTIAL),
    "TieredAcknowledge": Rule(
        (_cluster(_ALTER),), cluster.check_cluster(_ALTER, tiered_acknowledge.TieredAcknowledgeResponse)
    ),
    "TieredMetrics": Rule(
        (_cluster(_DESCRIBE),), cluster.check_cluster(_DESCRIBE, tiered_metrics.TieredMetricsResponse)
    ),
    "TieredRotateSecret": Rule(
        (_cluster(_ALTER),), cluster.check_cluster(_ALTER, tiered_rotate_secret.TieredRotateSecretResponse)
    ),
    "TieredCompact": Rule(
        (_topic(_DESCRIBE), _topic(_ALTER)), topics.check_compact, "DESCRIBE to look, ALTER to clean"
    ),
}
"""The rule of each API, by its name."""


async def check_call(context: KafkaContext, call: Call[Any], api_name: str) -> Verdict:
    """Checks a request, and takes out of it the parts that its caller may not use."""
    rights = find_rights(context, call, context.turns)
    return ALLOWED if rights is None else await _check(rights, call, api_name)


def check_call_now(context: KafkaContext, call: Call[Any], api_name: str) -> Verdict:
    """Does the same for a small request, without a pause."""
    rights = find_rights(context, call)
    return ALLOWED if rights is None else run_without_pause(_check(rights, call, api_name))


async def _check(rights: Rights, call: Call[Any], api_name: str) -> Verdict:
    verdict = await API_RULES[api_name].guard(rights, call.request, call.version)
    if verdict is not ALLOWED:
        rights.record_refusals()
    return verdict
