"""TieredCompact (API key 20005, ours): the facts of compaction for the partitions that this broker leads, and a clean
of them as soon as possible.

A log that is not tiered is cleaned by each of its replicas, so the sender asks every broker. Only leaders report.
"""

from __future__ import annotations

from tiered.broker.partition_report import describe_compaction
from tiered.compaction.cleanable_range import is_compacted
from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.protocol.messages.tiered_compact import (
    CompactedTopic,
    CompactionFacts,
    TieredCompactRequest,
    TieredCompactResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext


async def handle(context: KafkaContext, call: Call[TieredCompactRequest]) -> TieredCompactResponse:
    """Returns a row for each compacted partition that this broker leads, and for each that is refused."""
    hosted, found = context.broker.hosted_replicas, list[CompactionFacts]()
    async for tp in context.turns.each_of(_list_partitions(context, call.request.topics)):
        replica = hosted.find_leader(tp) or hosted.find_follower(tp)
        if replica is not None and (row := _handle_one(context, replica, clean=call.request.clean)) is not None:
            found.append(row)
    return TieredCompactResponse(found)


def _list_partitions(context: KafkaContext, topics: list[CompactedTopic]) -> list[TopicPartition]:
    """Returns the partitions that exist, each once. A request may name them all any number of times."""
    wanted: dict[str, set[int] | None] = {}
    for each in topics:
        if each.partitions is None:
            wanted[each.topic] = None
        elif (numbers := wanted.setdefault(each.topic, set())) is not None:
            numbers.update(each.partitions)
    found = []
    for name, partitions in wanted.items():
        known = context.broker.image.topics.get(name)
        count = len(known.partitions) if known is not None else 0
        found += [TopicPartition(name, each) for each in range(count) if partitions is None or each in partitions]
    return found


def _handle_one(
    context: KafkaContext, replica: LeaderReplica | FollowerReplica, *, clean: bool
) -> CompactionFacts | None:
    if clean:
        try:
            context.broker.log_cleaner.request_clean(replica)
        except Refused as refused:
            if isinstance(replica, FollowerReplica):
                return None
            return CompactionFacts(*replica.tp, refused.code.number, refused.why)
    if isinstance(replica, FollowerReplica):
        return None
    facts = describe_compaction(replica)
    if facts is None or not (is_compacted(replica.config) or facts.last.clean_to >= 0):
        return None
    return CompactionFacts(
        *replica.tp, Code.NONE.number, None, facts.is_in_bucket, *facts.last, facts.found.clean_bytes,
        facts.found.dirty_bytes, context.broker.log_cleaner.uncleanable.get(replica.tp),
    )  # fmt: skip
