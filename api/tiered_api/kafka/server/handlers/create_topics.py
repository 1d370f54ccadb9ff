"""CreateTopics (API key 19): new topics, many at once, each with its own error.

-1 stands for the broker's number of partitions and replicas (v4+, KIP-464); an assignment by hand excludes both. v5+
answers with what was made (KIP-525), v7+ with the topic id. The topics of one request are decided together and written
as one entry of the metadata log; each is usable everywhere once this is answered. A name that is there twice is refused
once, with the rest done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from tiered.config.setting import unknown
from tiered.config.settings import topic_rows
from tiered.controller.requests import CreateTopic, CreateTopics
from tiered.errors import Code, Refused
from tiered.metadata.config_sources import TopicConfigEntries
from tiered.metadata.image import TopicImage
from tiered.metadata.topic_names import check_name
from tiered_api.kafka.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tiered_api.kafka.server.context import Call, Site
from tiered_api.kafka.server.error_codes import PARTITIONS_AT_ONCE, timeout_ms, twice

CHANGES_AT_ONCE = 2_000
"""Changes of one entry of the metadata log, about: two for a topic of one partition."""
DETAILED = 5
BETWEEN_TURNS = 500
"""Topics that are looked at before others get their turn."""

Shown = dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]]
"""Settings as they are answered, by those that a topic has of its own: most topics of a request have the same."""


async def handle(site: Site, call: Call[CreateTopicsRequest]) -> CreateTopicsResponse:
    """One result per name."""
    request = call.request
    doubled = twice(topic.name for topic in request.topics)
    room = PARTITIONS_AT_ONCE
    results: dict[str, CreatableTopicResult] = {}
    wanted: list[CreateTopic] = []
    for number, topic in enumerate(request.topics):
        if number % BETWEEN_TURNS == 0:
            await site.turns.wait()
        results[topic.name] = CreatableTopicResult(topic.name)
        try:
            if topic.name in doubled:
                raise Refused(Code.INVALID_REQUEST, "the topic is there twice in this request")
            if request.timeout_ms <= 0:
                raise Refused(Code.REQUEST_TIMED_OUT, "the request has no time left")
            check_name(topic.name)
            if topic.name in site.node.image.topics:
                raise Refused(Code.TOPIC_ALREADY_EXISTS, f"Topic {topic.name!r} already exists.")
            wish = _wish(topic, request.validate_only)
            room -= _partitions(wish, site.node.settings.num_partitions)
            if room < 0:
                raise Refused(Code.POLICY_VIOLATION, f"a request creates {PARTITIONS_AT_ONCE} partitions at most")
            wanted.append(wish)
        except Refused as refused:
            results[topic.name] = _refused(topic.name, refused)
    timeout = timeout_ms(request.timeout_ms) / 1000
    shares = list(_shares(wanted))
    made = await asyncio.gather(*(_create(site, share, timeout) for share in shares))
    settings = TopicConfigEntries(site.node.image, site.node.started_with)
    shown: Shown = {}
    for share, outcomes in zip(shares, made, strict=True):
        await site.turns.wait()
        for wish, outcome in zip(share, outcomes, strict=True):
            if isinstance(outcome, Refused):
                results[wish.name] = _refused(wish.name, outcome)
            else:
                results[wish.name] = _made(settings, outcome, call.version, shown)
    return CreateTopicsResponse(topics=list(results.values()))


async def _create(site: Site, share: tuple[CreateTopic, ...], timeout: float) -> Sequence[TopicImage | Refused]:
    await site.turns.wait()
    try:
        made: Sequence[TopicImage | Refused] = await site.node.submit(CreateTopics(share), timeout)
    except Refused as refused:
        return [refused] * len(share)
    return made


def _wish(topic: CreatableTopic, validate_only: bool) -> CreateTopic:
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.name not in topic_rows():
            raise unknown(config.name, topic_rows(), "topic")
        if config.value is None:
            raise Refused(Code.INVALID_CONFIG, f"{config.name}: a setting of a new topic has to have a value")
        if config.name in configs:
            raise Refused(Code.INVALID_REQUEST, f"{config.name} is there twice")
        configs[config.name] = config.value
    return CreateTopic(
        topic.name, topic.num_partitions, topic.replication_factor, _assignments(topic), configs, validate_only
    )


def _assignments(topic: CreatableTopic) -> list[list[int]] | None:
    """The replicas by partition; None when they are not given. `Refused` for a gap."""
    if not topic.assignments:
        return None
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise Refused(Code.INVALID_REQUEST, "an assignment by hand excludes a partition count and a replication factor")
    given = {each.partition_index: each.broker_ids for each in topic.assignments}
    if len(given) != len(topic.assignments) or set(given) != set(range(len(given))):
        raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, "the assigned partitions are not 0, 1, 2 ...")
    return [given[number] for number in range(len(given))]


def _shares(wanted: Iterable[CreateTopic]) -> Iterable[tuple[CreateTopic, ...]]:
    """The wishes in runs that make about as many changes as one entry of the metadata log takes."""
    share: list[CreateTopic] = []
    changes = 0
    for wish in wanted:
        partitions = _partitions(wish, 1)
        if share and changes + 1 + partitions > CHANGES_AT_ONCE:
            yield tuple(share)
            share, changes = [], 0
        share.append(wish)
        changes += 1 + partitions
    if share:
        yield tuple(share)


def _partitions(wish: CreateTopic, default: int) -> int:
    """How many there will be; wrong numbers are the controller's to refuse."""
    if wish.assignments is not None:
        return len(wish.assignments)
    return default if wish.partitions == -1 else max(wish.partitions, 1)


def _refused(name: str, refused: Refused) -> CreatableTopicResult:
    return CreatableTopicResult(name, error_code=refused.code.number, error_message=refused.why, configs=[])


def _made(settings: TopicConfigEntries, topic: TopicImage, version: int, shown: Shown) -> CreatableTopicResult:
    result = CreatableTopicResult(topic.name, topic.topic_id, error_message=None)
    if version < DETAILED:
        return result
    result.num_partitions = len(topic.partitions)
    result.replication_factor = len(topic.partitions[0].replicas)
    given = tuple(sorted(topic.configs.items()))
    if given not in shown:
        shown[given] = [
            CreatableTopicConfigs(each.row.name, each.value, config_source=each.source) for each in settings.entries_of(topic)
        ]
    result.configs = shown[given]
    return result
