"""The committed offsets of groups: read, written and deleted at their coordinators."""

from __future__ import annotations

from collections.abc import Mapping

from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.client.leader_routing import PartitionOutcomes, send_to_coordinator
from tiered_api.kafka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tiered_api.kafka.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from tiered_api.kafka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)


async def fetch_committed_offsets(
    client: KafkaClient, group: str, *, require_stable: bool = False
) -> dict[TopicPartition, int]:
    """Returns all offsets that a group has committed. `require_stable` waits for transactions that may change one of
    them. Raises `Refused` if its coordinator cannot return them."""
    deadline = client.new_deadline()
    for pause in client.backoffs():
        try:
            return await _fetch_once(client, group, require_stable)
        except Refused as refused:
            if refused.code is not Code.UNSTABLE_OFFSET_COMMIT or client.has_passed(deadline):
                raise
        await pause()
    raise AssertionError("pauses never end")


async def _fetch_once(client: KafkaClient, group: str, require_stable: bool) -> dict[TopicPartition, int]:
    request = OffsetFetchRequest(
        group_id=group, topics=None, groups=[OffsetFetchRequestGroup(group_id=group, topics=None)],
        require_stable=require_stable,
    )  # fmt: skip
    got = await send_to_coordinator(client, group, request, OffsetFetchResponse, _fetch_error_code)
    if number := _fetch_error_code(got):
        raise to_refused(number, f"offsets of group {group}")
    out = {}
    for topic in got.groups[0].topics if got.groups else got.topics:
        for each in topic.partitions:
            if each.error_code:
                raise to_refused(each.error_code, f"offset of group {group} in {topic.name}-{each.partition_index}")
            if each.committed_offset >= 0:
                out[TopicPartition(topic.name, each.partition_index)] = each.committed_offset
    return out


def _fetch_error_code(got: OffsetFetchResponse) -> int:
    return got.groups[0].error_code if got.groups else got.error_code


async def commit_offsets(
    client: KafkaClient,
    group: str,
    offsets: Mapping[TopicPartition, int],
    *,
    generation_id: int = -1,
    member_id: str = "",
    deadline: int | None = None,
) -> PartitionOutcomes[int]:
    """Commits offsets, as a member or for a group without members; returns the outcome by partition. The coordinator is
    looked up again until the deadline: by default for the client's retry time."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (name, partition), offset in offsets.items():
        topic = topics.setdefault(name, OffsetCommitRequestTopic(name=name))
        topic.partitions.append(
            OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata="")
        )
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=generation_id, member_id=member_id, topics=list(topics.values())
    )
    got = await send_to_coordinator(client, group, request, OffsetCommitResponse, _commit_error_code, deadline=deadline)
    out: PartitionOutcomes[int] = {}
    for each_topic in got.topics:
        for each in each_topic.partitions:
            tp = TopicPartition(each_topic.name, each.partition_index)
            out[tp] = to_refused(each.error_code, str(tp)) if each.error_code else offsets[tp]
    return out


def _commit_error_code(got: OffsetCommitResponse) -> int:
    """Returns the code of the first partition: a broker that is not the coordinator returns the same for all."""
    return next((each.error_code for topic in got.topics for each in topic.partitions), 0)


async def delete_offsets(
    client: KafkaClient, group: str, partitions: Mapping[str, list[int]]
) -> PartitionOutcomes[None]:
    """Deletes committed offsets; returns the outcome by partition."""
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=number) for number in numbers]
            )
            for name, numbers in partitions.items()
        ],
    )
    got = await send_to_coordinator(client, group, request, OffsetDeleteResponse, lambda got: got.error_code)
    if got.error_code:
        raise to_refused(got.error_code, f"group {group}")
    out: PartitionOutcomes[None] = {}
    for topic in got.topics:
        for each in topic.partitions:
            tp = TopicPartition(topic.name, each.partition_index)
            out[tp] = to_refused(each.error_code, str(tp)) if each.error_code else None
    return out
