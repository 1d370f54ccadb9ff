"""Explanations of partitions, segments and fetches: by the metadata, the leader and the other replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from aiohttp import web

from tiered.broker.stored_segments import OPEN_TRANSACTION
from tiered.config.kafka_aliases import RACK_AWARE
from tiered.controller.partition_health import unacknowledged_losses
from tiered.ids import TopicPartition
from tiered.metadata.effective_config import topic_config
from tiered.metadata.parts.topics import TopicImage
from tiered.security.acls import CLUSTER_NAME, Operation, ResourceType
from tiered_api.explanation.cause import Cause, describe_causes
from tiered_api.explanation.fetch import QUOTAS, FetchFacts, find_bound
from tiered_api.explanation.fetch import explain_fetch as explain_one_fetch
from tiered_api.explanation.partition import PartitionFacts, explain_replicas
from tiered_api.explanation.partition import explain_partition as explain
from tiered_api.explanation.segment import BUCKET_MEND, SegmentFacts, explain_no_segment
from tiered_api.explanation.segment import explain_segment as explain_one_segment
from tiered_api.http.exchange.errors import PARTITION_NOT_FOUND, HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.explanations.outages import find_outage
from tiered_api.http.explanations.transactions import describe_held
from tiered_api.http.overview.cluster import PARTITION_BYTES, find_since_ms, judge_topics
from tiered_api.http.overview.segments import ask_broker
from tiered_api.http.partitions.produce import find_topic
from tiered_api.kafka.protocol.messages.describe_log_dirs import DescribeLogDirsPartition, ReportedLeader

OFFSET_MAX = (1 << 63) - 1
NAME_CHARACTERS = 249
ISOLATION = {"read_committed": True, "read_uncommitted": False}


async def explain_partition(request: HttpRequest) -> web.StreamResponse:
    """Tells why a partition has no leader, refuses acks=all, or its offsets do not move."""
    topic, number = _find_partition(request)
    facts = await fetch_partition_facts(request, topic, number)
    return _reply(topic, number, explain(facts))


async def explain_segment(request: HttpRequest) -> web.StreamResponse:
    """Tells why the segment that holds an offset is on a disk, in the bucket, or in both."""
    topic, number = _find_partition(request)
    start = _path_offset(request, "base")
    places = await _ask_replicas(request, topic, number, start, 1)
    leader = places.get(topic.partitions[number].leader, "no broker leads the partition now")
    if isinstance(leader, str):
        return _reply(topic, number, explain_replicas(await fetch_partition_facts(request, topic, number)))
    if leader.segments is None:
        why = leader.segments_problem or "its leader does not list them"
        unknown = Cause("segments-unknown", f"the segments of the partition are not known: {why}", {}, BUCKET_MEND)
        return _reply(topic, number, [unknown])
    if not leader.segments or leader.segments[0].base_offset > start:
        return _reply(topic, number, [explain_no_segment(f"{topic.name}/{number}", start, leader)])
    [segment] = leader.segments[:1]
    disks = [
        node
        for node, place in sorted(places.items())
        if not isinstance(place, str) and place.local_start < segment.end_offset and place.log_end > segment.base_offset
    ]
    state, tp = _leader_of(leader), TopicPartition(topic.name, number)
    is_held = segment.why_code == OPEN_TRANSACTION
    facts = SegmentFacts(
        f"{topic.name}/{number}", segment, disks, state, request.context.broker.settings.tiered_upload_max_lag_ms,
        await describe_held(request, tp, state) if is_held and state is not None else None,
        await find_outage(request),
    )  # fmt: skip
    return _reply(topic, number, explain_one_segment(facts), base_offset=segment.base_offset)


async def explain_fetch(request: HttpRequest) -> web.StreamResponse:
    """Tells which broker answers a fetch at an offset, from which tier, and what bounds it."""
    topic, number = _find_partition(request)
    given = request.query_integer("offset", -1, 0, OFFSET_MAX)
    isolation = request.query_parameters().get("isolation_level", "read_committed")
    if isolation not in ISOLATION:
        raise HttpError(400, f"isolation_level={isolation[:40]!r} is not read_committed or read_uncommitted")
    user, client_id = _find_client(request)
    partition = await fetch_partition_facts(request, topic, number)
    table = request.context.broker.client_quotas.table
    limits = [each for key in QUOTAS if (each := table.find_limit(key, user, client_id)) is not None]
    is_committed = ISOLATION[isolation]
    offset = given if given >= 0 or partition.leader is None else find_bound(partition.leader, is_committed)
    selects = request.context.broker.settings.replica_selector_class == RACK_AWARE
    facts = FetchFacts(partition, offset, is_committed, limits, selects)
    return _reply(topic, number, explain_one_fetch(facts), offset=offset)


async def fetch_partition_facts(request: HttpRequest, topic: TopicImage, number: int) -> PartitionFacts:
    """Returns what an explanation of a partition needs."""
    broker, part, tp = request.context.broker, topic.partitions[number], TopicPartition(topic.name, number)
    settings, image = broker.settings, broker.image
    seen, unhealthy = await request.run_job(
        len(topic.partitions) * PARTITION_BYTES, judge_topics, image, [topic], settings
    )
    config = topic_config(topic, settings.topic_defaults())
    found, since_ms = next((each for each in unhealthy if each.partition == number), None), -1
    if found is not None:
        spare = len(found.replicas) - found.min_isr
        since_ms = find_since_ms(broker.partition_troubles, topic.topic_id, number, found.problems[0], spare)
    facts = PartitionFacts(
        tp, part, await _ask_replicas(request, topic, number, 0, 0), config.min_insync_replicas,
        config.copies_to_bucket, settings.replica_lag_time_max_ms, settings.tiered_upload_max_lag_ms,
        request.context.clock.wall_ms(),
        found, since_ms, None, unacknowledged_losses(image).get(tp), await find_outage(request), image.live_ids(),
        frozenset(node for node, each in image.brokers.items() if not each.alive),
        frozenset(node for node, each in image.brokers.items() if each.is_disk_full),
        seen.machines(),
    )  # fmt: skip
    leader = facts.leader
    if leader is None:
        return facts
    if not request.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        leader.outage_why = ""  # of the bucket, not of this topic
    return replace(facts, transaction=(await describe_held(request, tp, leader)).transaction)


async def _ask_replicas(
    request: HttpRequest, topic: TopicImage, number: int, start: int, most: int
) -> dict[int, DescribeLogDirsPartition | str]:
    """Returns the reply of each broker with a replica, that of the leader with its state and so many segments."""
    part, live = topic.partitions[number], request.context.broker.image.live_ids()

    async def ask(node: int) -> DescribeLogDirsPartition | str:
        if node not in live:
            return f"broker {node} is not live"
        is_leader = node == part.leader
        return await ask_broker(request, topic, number, node, start, most if is_leader else 0, with_leader=is_leader)

    return dict(zip(part.replicas, await asyncio.gather(*map(ask, part.replicas)), strict=True))


def _leader_of(place: DescribeLogDirsPartition) -> ReportedLeader | None:
    return place.leader[0] if place.leader else None


def _find_partition(request: HttpRequest) -> tuple[TopicImage, int]:
    topic, number = find_topic(request.context, request.args["topic"]), request.path_number("partition")
    if number >= len(topic.partitions):
        raise HttpError(PARTITION_NOT_FOUND, f"topic {topic.name!r} has no partition {number}")
    return topic, number


def _path_offset(request: HttpRequest, name: str) -> int:
    text = request.args[name]
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= OFFSET_MAX):
        raise HttpError(404, f"{name} {text[:40]!r} is not an offset")
    return int(text)


def _find_client(request: HttpRequest) -> tuple[str, str]:
    """Returns the user and the client id of the fetch: the caller, unless the query names others. The quotas of others
    are settings of the cluster."""
    given = request.query_parameters()
    user, client_id = given.get("user", request.caller.principal.name), given.get("client_id", "")
    if len(user) > NAME_CHARACTERS or len(client_id) > NAME_CHARACTERS:
        raise HttpError(400, f"a user or client id has at most {NAME_CHARACTERS} characters")
    if "user" in given and user != request.caller.principal.name:
        request.require(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
    return user, client_id


def _reply(topic: TopicImage, number: int, causes: Iterable[Cause], **more: Any) -> web.StreamResponse:
    head = {"topic": topic.name, "topic_id": str(topic.topic_id), "partition": number}
    return json_response(head | more | describe_causes(causes))
