"""CreateTopics (API key 19): creates many topics at once, each with its own error.

-1 stands for the broker's default number of partitions and replicas (v4+, KIP-464). A manual assignment excludes both
numbers. v5+ replies with the settings of the new topic (KIP-525), v7+ with the topic id. The controller decides
some hundred topics of a request in one turn. After the reply, every broker can use each topic. A name that stands twice
is refused once, and the other topics are created.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from tiered.config.settings import topic_rows, unknown_topic_setting
from tiered.controller.change_costs import count_changes
from tiered.controller.requests import CreateTopic, CreateTopics
from tiered.errors import Code, Refused
from tiered.metadata.config_sources import TopicConfigEntries
from tiered.metadata.parts.topics import TopicImage
from tiered.metadata.topic_names import check_name
from tiered.quotas.timed_steps import spend
from tiered_api.kafka.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import PARTITIONS_PER_REQUEST_MAX, clamp_timeout_ms, find_duplicates
from tiered_api.kafka.server.context.mutation_charges import MutationCharges

CHANGES_AT_ONCE = 800
"""Approximate number of changes that the controller decides in one turn: a topic of one partition takes two. Changes
that are decided while it writes an entry of the metadata log form the next entry."""
CONFIGS_FROM = 5

ConfigRowsByOverrides = dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]]
"""Encoded settings by the settings that a topic overrides: most topics of a request override the same."""


async def handle(context: KafkaContext, call: Call[CreateTopicsRequest]) -> CreateTopicsResponse:
    """Returns one result per name."""
    request = call.request
    doubled = find_duplicates(topic.name for topic in request.topics)
    room = PARTITIONS_PER_REQUEST_MAX
    charges = MutationCharges(context, call)
    results: dict[str, CreatableTopicResult] = {}
    wanted: list[CreateTopic] = []
    async for topic in context.turns.each_of(request.topics):
        results[topic.name] = CreatableTopicResult(topic.name)
        try:
            if topic.name in doubled:
                raise Refused(Code.INVALID_REQUEST, "the request names the topic twice")
            if request.timeout_ms <= 0:
                raise Refused(Code.REQUEST_TIMED_OUT, "the request has no time left")
            check_name(topic.name)
            if topic.name in context.broker.image.topics:
                raise Refused(Code.TOPIC_ALREADY_EXISTS, f"Topic {topic.name!r} already exists.")
            requested = _parse_topic(topic, request.validate_only)
            partitions = _count_partitions(requested, context.broker.settings.num_partitions)
            room -= partitions
            if room < 0:
                raise Refused(
                    Code.POLICY_VIOLATION, f"a request creates {PARTITIONS_PER_REQUEST_MAX} partitions at most"
                )
            charges.pay(count_changes(requested, context.broker.image, partitions))
            wanted.append(requested)
        except Refused as refused:
            results[topic.name] = _make_refused_result(topic.name, refused)
    timeout = clamp_timeout_ms(request.timeout_ms) / 1000
    shares = list(_split_by_changes(wanted))
    made = await asyncio.gather(
        *(spend(_create(context, charges, share, timeout), context.clock.mono_ns) for share in shares)
    )
    settings = TopicConfigEntries(context.broker.image, context.broker.startup_settings)
    shown: ConfigRowsByOverrides = {}
    for share, outcomes in zip(shares, made, strict=True):
        await context.turns.wait_turn()
        for requested, outcome in zip(share, outcomes, strict=True):
            if isinstance(outcome, Refused):
                results[requested.name] = _make_refused_result(requested.name, outcome)
            else:
                results[requested.name] = _make_created_result(settings, outcome, call.version, shown)
    return CreateTopicsResponse(0, list(results.values()))


async def _create(
    context: KafkaContext, charges: MutationCharges, topics: tuple[CreateTopic, ...], timeout: float
) -> Sequence[TopicImage | Refused]:
    await context.turns.wait_turn()
    try:
        made: Sequence[TopicImage | Refused] = await context.broker.submit(CreateTopics(topics), timeout, by=charges)
    except Refused as refused:
        return [refused] * len(topics)
    return made


def _parse_topic(topic: CreatableTopic, validate_only: bool) -> CreateTopic:
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.name not in topic_rows():
            raise unknown_topic_setting(config.name)
        if config.value is None:
            raise Refused(Code.INVALID_CONFIG, f"{config.name}: a setting of a new topic has to have a value")
        if config.name in configs:
            raise Refused(Code.INVALID_REQUEST, f"the request names {config.name} twice")
        configs[config.name] = config.value
    return CreateTopic(
        topic.name, topic.num_partitions, topic.replication_factor, _assignments(topic), configs, validate_only
    )


def _assignments(topic: CreatableTopic) -> list[list[int]] | None:
    """Returns the replicas by partition, None without a manual assignment. `Refused` if partition numbers have a
    gap."""
    if not topic.assignments:
        return None
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise Refused(Code.INVALID_REQUEST, "an assignment by hand excludes a partition count and a replication factor")
    given = {each.partition_index: each.broker_ids for each in topic.assignments}
    if len(given) != len(topic.assignments) or set(given) != set(range(len(given))):
        raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, "the assigned partitions are not 0, 1, 2 ...")
    return [given[number] for number in range(len(given))]


def _split_by_changes(topics: Iterable[CreateTopic]) -> Iterable[tuple[CreateTopic, ...]]:
    """Splits the topics into runs that each take about one turn of the controller."""
    share: list[CreateTopic] = []
    changes = 0
    for requested in topics:
        partitions = _count_partitions(requested, 1)
        if share and changes + 1 + partitions > CHANGES_AT_ONCE:
            yield tuple(share)
            share, changes = [], 0
        share.append(requested)
        changes += 1 + partitions
    if share:
        yield tuple(share)


def _count_partitions(topic: CreateTopic, default: int) -> int:
    """Returns the number of partitions of the new topic. The controller refuses invalid numbers."""
    if topic.assignments is not None:
        return len(topic.assignments)
    return default if topic.partitions == -1 else max(topic.partitions, 1)


def _make_refused_result(name: str, refused: Refused) -> CreatableTopicResult:
    return CreatableTopicResult(name, error_code=refused.code.number, error_message=refused.why, configs=[])


def _make_created_result(
    settings: TopicConfigEntries, topic: TopicImage, version: int, shown: ConfigRowsByOverrides
) -> CreatableTopicResult:
    result = CreatableTopicResult(topic.name, topic.topic_id, error_message=None)
    if version < CONFIGS_FROM:
        return result
    result.num_partitions = len(topic.partitions)
    result.replication_factor = len(topic.partitions[0].replicas)
    given = tuple(sorted(topic.configs.items()))
    if given not in shown:
        shown[given] = [
            CreatableTopicConfigs(each.row.name, each.value, config_source=each.source)
            for each in settings.entries_of(topic)
        ]
    result.configs = shown[given]
    return result
