"""Checks of requests to coordinators of groups and of transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiered.errors import Code
from tiered.security.acls import Operation, ResourceType
from tiered_api.kafka.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    delete_groups,
    describe_groups,
    describe_transactions,
    end_txn,
    find_coordinator,
    init_producer_id,
    join_group,
    list_groups,
    list_transactions,
    offset_commit,
    offset_delete,
    offset_fetch,
    txn_offset_commit,
)
from tiered_api.kafka.server.rights.rights import Rights
from tiered_api.kafka.server.rights.verdict import (
    ALLOWED,
    CLUSTER_REFUSED,
    GROUP_REFUSED,
    TOPIC_REFUSED,
    TRANSACTIONAL_ID_REFUSED,
    WHY,
    Guard,
    Verdict,
    keep,
    part,
    split_items,
)

GROUP, TRANSACTION = 0, 1
MANY_KEYS_FROM = 4
COMMIT_BY_ID_FROM = FETCH_BY_ID_FROM = 10
MANY_GROUPS_FROM, GROUP_ERROR_FROM = 8, 2
NULL_PROTOCOL_FROM = 7
BATCHED_FROM = 4
NO_OFFSET = -1


def check_member(response_type: Callable[..., Any]) -> Guard:
    """READ on the group, for requests of its members."""

    async def check(rights: Rights, request: Any, version: int) -> Verdict:
        if rights.on_group(Operation.READ, request.group_id):
            return ALLOWED
        return Verdict(response_type(error_code=GROUP_REFUSED))

    return check


async def check_join(rights: Rights, request: join_group.JoinGroupRequest, version: int) -> Verdict:
    """READ on the group."""
    if rights.on_group(Operation.READ, request.group_id):
        return ALLOWED
    protocol = None if version >= NULL_PROTOCOL_FROM else ""
    return Verdict(
        join_group.JoinGroupResponse(
            error_code=GROUP_REFUSED, generation_id=-1, protocol_name=protocol, member_id=request.member_id
        )
    )


async def check_find_coordinator(
    rights: Rights, request: find_coordinator.FindCoordinatorRequest, version: int
) -> Verdict:
    """DESCRIBE on each group or transactional id."""

    def is_allowed(key: str) -> bool:
        if request.key_type == TRANSACTION:
            return rights.on_transactional_id(Operation.DESCRIBE, key)
        return rights.on_group(Operation.DESCRIBE, key)

    refused = TRANSACTIONAL_ID_REFUSED if request.key_type == TRANSACTION else GROUP_REFUSED
    if version < MANY_KEYS_FROM:
        if is_allowed(request.key):
            return ALLOWED
        return Verdict(
            find_coordinator.FindCoordinatorResponse(
                error_code=refused, error_message=WHY, node_id=-1, host="", port=-1
            )
        )
    return await split_items(
        rights, request, "coordinator_keys", find_coordinator.FindCoordinatorResponse, "coordinators", is_allowed,
        lambda key: find_coordinator.Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=refused, error_message=WHY
        ),
    )  # fmt: skip


async def check_describe_groups(
    rights: Rights, request: describe_groups.DescribeGroupsRequest, version: int
) -> Verdict:
    """DESCRIBE on each group."""
    verdict = await split_items(
        rights, request, "groups", describe_groups.DescribeGroupsResponse, "groups",
        lambda name: rights.on_group(Operation.DESCRIBE, name),
        lambda name: describe_groups.DescribedGroup(error_code=GROUP_REFUSED, group_id=name),
    )  # fmt: skip
    if not request.include_authorized_operations or verdict.response is not None:
        return verdict

    async def finish(response: describe_groups.DescribeGroupsResponse) -> None:
        for group in response.groups:
            if not group.error_code:
                group.authorized_operations = rights.mask(ResourceType.GROUP, group.group_id)
        if verdict.finish is not None:
            await verdict.finish(response)

    return Verdict(None, finish)


async def check_list_groups(rights: Rights, request: list_groups.ListGroupsRequest, version: int) -> Verdict:
    """DESCRIBE on the cluster or on each group. Other groups are left out."""
    if rights.on_cluster(Operation.DESCRIBE):
        return ALLOWED

    async def finish(response: list_groups.ListGroupsResponse) -> None:
        response.groups = await keep(
            rights, response.groups, lambda each: rights.on_group(Operation.DESCRIBE, each.group_id)
        )

    return Verdict(None, finish)


async def check_delete_groups(rights: Rights, request: delete_groups.DeleteGroupsRequest, version: int) -> Verdict:
    """DELETE on each group."""
    return await split_items(
        rights, request, "groups_names", delete_groups.DeleteGroupsResponse, "results",
        lambda name: rights.on_group(Operation.DELETE, name),
        lambda name: delete_groups.DeletableGroupResult(name, GROUP_REFUSED),
    )  # fmt: skip


async def check_offset_commit(rights: Rights, request: offset_commit.OffsetCommitRequest, version: int) -> Verdict:
    """READ on the group and on each topic."""
    has_group = rights.on_group(Operation.READ, request.group_id)

    def find_code(topic: offset_commit.OffsetCommitRequestTopic) -> int:
        if not has_group:
            return GROUP_REFUSED
        return rights.find_refusal(topic.topic_id).code if version >= COMMIT_BY_ID_FROM else TOPIC_REFUSED

    def is_allowed(topic: offset_commit.OffsetCommitRequestTopic) -> bool:
        if version >= COMMIT_BY_ID_FROM:
            return has_group and rights.on_topic_id(Operation.READ, topic.topic_id)
        return has_group and rights.on_topic(Operation.READ, topic.name)

    return await split_items(
        rights, request, "topics", offset_commit.OffsetCommitResponse, "topics", is_allowed,
        lambda topic: offset_commit.OffsetCommitResponseTopic(
            topic.name, topic.topic_id,
            [
                offset_commit.OffsetCommitResponsePartition(each.partition_index, code)
                for code in (find_code(topic),)
                for each in topic.partitions
            ],
        ),
    )  # fmt: skip


async def check_txn_offset_commit(
    rights: Rights, request: txn_offset_commit.TxnOffsetCommitRequest, version: int
) -> Verdict:
    """WRITE on the transactional id, READ on the group and on each topic."""
    code = 0
    if not rights.on_transactional_id(Operation.WRITE, request.transactional_id):
        code = TRANSACTIONAL_ID_REFUSED
    elif not rights.on_group(Operation.READ, request.group_id):
        code = GROUP_REFUSED
    return await split_items(
        rights, request, "topics", txn_offset_commit.TxnOffsetCommitResponse, "topics",
        lambda topic: not code and rights.on_topic(Operation.READ, topic.name),
        lambda topic: txn_offset_commit.TxnOffsetCommitResponseTopic(
            topic.name,
            [
                txn_offset_commit.TxnOffsetCommitResponsePartition(each.partition_index, code or TOPIC_REFUSED)
                for each in topic.partitions
            ],
        ),
    )  # fmt: skip


async def check_offset_fetch(rights: Rights, request: offset_fetch.OffsetFetchRequest, version: int) -> Verdict:
    """DESCRIBE on each group and topic. Without names of topics, other topics are left out."""
    if version < MANY_GROUPS_FROM:
        return await _check_one_group(rights, request, version)
    request.groups, refused = await part(
        rights, request.groups, lambda group: rights.on_group(Operation.DESCRIBE, group.group_id)
    )
    hidden = {}
    for group in request.groups:
        if group.topics is not None:
            group.topics, hidden[group.group_id] = await part(
                rights, group.topics, lambda topic: _may_see(rights, topic, version)
            )

    async def finish(response: offset_fetch.OffsetFetchResponse) -> None:
        for group in response.groups:
            group.topics = await keep(rights, group.topics, lambda topic: _may_see(rights, topic, version))
            if not group.error_code:
                async for each in rights.each_of(hidden.get(group.group_id, ())):
                    group.topics.append(_refuse_topic(each, rights, version))
        response.groups += [offset_fetch.OffsetFetchResponseGroup(each.group_id, [], GROUP_REFUSED) for each in refused]

    if not request.groups:
        response = offset_fetch.OffsetFetchResponse()
        await finish(response)
        return Verdict(response)
    return Verdict(None, finish)


async def _check_one_group(rights: Rights, request: offset_fetch.OffsetFetchRequest, version: int) -> Verdict:
    if not rights.on_group(Operation.DESCRIBE, request.group_id):
        if version >= GROUP_ERROR_FROM:
            return Verdict(offset_fetch.OffsetFetchResponse(error_code=GROUP_REFUSED))
        topics = [_refuse_old_topic(each, GROUP_REFUSED) for each in request.topics or ()]
        return Verdict(offset_fetch.OffsetFetchResponse(topics=topics))
    if request.topics is not None:
        return await split_items(
            rights, request, "topics", offset_fetch.OffsetFetchResponse, "topics",
            lambda topic: rights.on_topic(Operation.DESCRIBE, topic.name),
            lambda topic: _refuse_old_topic(topic, TOPIC_REFUSED),
        )  # fmt: skip

    async def finish(response: offset_fetch.OffsetFetchResponse) -> None:
        response.topics = await keep(
            rights, response.topics, lambda each: rights.on_topic(Operation.DESCRIBE, each.name)
        )

    return Verdict(None, finish)


def _may_see(
    rights: Rights,
    topic: offset_fetch.OffsetFetchRequestTopics | offset_fetch.OffsetFetchResponseTopics,
    version: int,
) -> bool:
    if version >= FETCH_BY_ID_FROM:
        return rights.on_topic_id(Operation.DESCRIBE, topic.topic_id)
    return rights.on_topic(Operation.DESCRIBE, topic.name)


def _refuse_topic(
    topic: offset_fetch.OffsetFetchRequestTopics, rights: Rights, version: int
) -> offset_fetch.OffsetFetchResponseTopics:
    code = rights.find_refusal(topic.topic_id).code if version >= FETCH_BY_ID_FROM else TOPIC_REFUSED
    return offset_fetch.OffsetFetchResponseTopics(
        topic.name,
        topic.topic_id,
        [offset_fetch.OffsetFetchResponsePartitions(each, NO_OFFSET, -1, "", code) for each in topic.partition_indexes],
    )


def _refuse_old_topic(topic: offset_fetch.OffsetFetchRequestTopic, code: int) -> offset_fetch.OffsetFetchResponseTopic:
    return offset_fetch.OffsetFetchResponseTopic(
        topic.name,
        [offset_fetch.OffsetFetchResponsePartition(each, NO_OFFSET, -1, "", code) for each in topic.partition_indexes],
    )


async def check_offset_delete(rights: Rights, request: offset_delete.OffsetDeleteRequest, version: int) -> Verdict:
    """DELETE on the group, READ on each topic."""
    if not rights.on_group(Operation.DELETE, request.group_id):
        return Verdict(offset_delete.OffsetDeleteResponse(error_code=GROUP_REFUSED))
    return await split_items(
        rights, request, "topics", offset_delete.OffsetDeleteResponse, "topics",
        lambda topic: rights.on_topic(Operation.READ, topic.name),
        lambda topic: offset_delete.OffsetDeleteResponseTopic(
            topic.name,
            [
                offset_delete.OffsetDeleteResponsePartition(each.partition_index, TOPIC_REFUSED)
                for each in topic.partitions
            ],
        ),
    )  # fmt: skip


async def check_init_producer_id(
    rights: Rights, request: init_producer_id.InitProducerIdRequest, version: int
) -> Verdict:
    """WRITE on the transactional id; without one, IDEMPOTENT_WRITE on the cluster or WRITE on any topic."""
    if request.transactional_id is not None:
        code = TRANSACTIONAL_ID_REFUSED
        is_allowed = rights.on_transactional_id(Operation.WRITE, request.transactional_id)
    else:
        code = CLUSTER_REFUSED
        is_allowed = rights.on_cluster(Operation.IDEMPOTENT_WRITE) or rights.on_any_topic(Operation.WRITE)
    if is_allowed:
        return ALLOWED
    return Verdict(init_producer_id.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1))


async def check_add_partitions(
    rights: Rights, request: add_partitions_to_txn.AddPartitionsToTxnRequest, version: int
) -> Verdict:
    """WRITE on the transactional id and on each topic. From v4 on CLUSTER_ACTION on the cluster; brokers send their
    credential instead, which the handler checks."""
    if version >= BATCHED_FROM:
        if request.credential or rights.on_cluster(Operation.CLUSTER_ACTION):
            return ALLOWED
        return Verdict(add_partitions_to_txn.AddPartitionsToTxnResponse(error_code=CLUSTER_REFUSED))
    topics = request.v3_and_below_topics

    def may_write(topic: add_partitions_to_txn.AddPartitionsToTxnTopic) -> bool:
        return rights.on_topic(Operation.WRITE, topic.name)

    refused = {each.name for each in (await part(rights, topics, may_write))[1]}
    has_id = rights.on_transactional_id(Operation.WRITE, request.v3_and_below_transactional_id)
    if has_id and not refused:
        return ALLOWED

    def code_of(name: str) -> int:
        if not has_id:
            return TRANSACTIONAL_ID_REFUSED
        return TOPIC_REFUSED if name in refused else Code.OPERATION_NOT_ATTEMPTED.number

    results: list[add_partitions_to_txn.AddPartitionsToTxnTopicResult] = []
    async for each in rights.each_of(topics):
        partitions = [
            add_partitions_to_txn.AddPartitionsToTxnPartitionResult(number, code_of(each.name))
            for number in each.partitions
        ]
        results.append(add_partitions_to_txn.AddPartitionsToTxnTopicResult(each.name, partitions))
    return Verdict(add_partitions_to_txn.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results))


async def check_add_offsets(
    rights: Rights, request: add_offsets_to_txn.AddOffsetsToTxnRequest, version: int
) -> Verdict:
    """WRITE on the transactional id, READ on the group."""
    if not rights.on_transactional_id(Operation.WRITE, request.transactional_id):
        return Verdict(add_offsets_to_txn.AddOffsetsToTxnResponse(error_code=TRANSACTIONAL_ID_REFUSED))
    if not rights.on_group(Operation.READ, request.group_id):
        return Verdict(add_offsets_to_txn.AddOffsetsToTxnResponse(error_code=GROUP_REFUSED))
    return ALLOWED


async def check_end_txn(rights: Rights, request: end_txn.EndTxnRequest, version: int) -> Verdict:
    """WRITE on the transactional id."""
    if rights.on_transactional_id(Operation.WRITE, request.transactional_id):
        return ALLOWED
    return Verdict(end_txn.EndTxnResponse(error_code=TRANSACTIONAL_ID_REFUSED))


async def check_describe_transactions(
    rights: Rights, request: describe_transactions.DescribeTransactionsRequest, version: int
) -> Verdict:
    """DESCRIBE on each transactional id. Topics that the caller may not describe are left out."""
    verdict = await split_items(
        rights, request, "transactional_ids", describe_transactions.DescribeTransactionsResponse, "transaction_states",
        lambda name: rights.on_transactional_id(Operation.DESCRIBE, name),
        lambda name: describe_transactions.TransactionState(
            error_code=TRANSACTIONAL_ID_REFUSED, transactional_id=name
        ),
    )  # fmt: skip
    if verdict.response is not None:
        return verdict

    async def finish(response: describe_transactions.DescribeTransactionsResponse) -> None:
        for state in response.transaction_states:
            state.topics = await keep(
                rights, state.topics, lambda each: rights.on_topic(Operation.DESCRIBE, each.topic)
            )
        if verdict.finish is not None:
            await verdict.finish(response)

    return Verdict(None, finish)


async def check_list_transactions(
    rights: Rights, request: list_transactions.ListTransactionsRequest, version: int
) -> Verdict:
    """DESCRIBE on each transactional id. Others are left out. A broker sends its credential instead, which the handler
    checks."""
    if request.credential:
        return ALLOWED

    async def finish(response: list_transactions.ListTransactionsResponse) -> None:
        response.transaction_states = await keep(
            rights, response.transaction_states,
            lambda each: rights.on_transactional_id(Operation.DESCRIBE, each.transactional_id),
        )  # fmt: skip

    return Verdict(None, finish)
