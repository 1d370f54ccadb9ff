"""Resources and edits of DescribeConfigs, AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from tiered.config.settings import TopicConfig, topic_rows
from tiered.controller.group_configs import check_level
from tiered.controller.requests import AlterBrokerConfigs, AlterGroupConfigs, AlterTopicConfigs
from tiered.errors import Code, Refused
from tiered.metadata.changes import ALL_BROKERS, ListEdit
from tiered.metadata.effective_config import apply_edits
from tiered.metadata.topic_names import check_name
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import CONCURRENT_CHANGES_MAX, DEFAULT_TIMEOUT_MS
from tiered_api.kafka.server.context.mutation_charges import MutationCharges
from tiered_api.kafka.server.slots.bounded_tasks import run_bounded

Edits = Mapping[str, str | ListEdit | None]
NO_LOGGERS = "levels of single loggers cannot be changed; log.level of a broker is that of all its loggers"


class ConfigResourceType(IntEnum):
    """Types of resources, as Kafka numbers them."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Resource(Protocol):
    """The resource that a request names."""

    resource_type: int
    resource_name: str


T = TypeVar("T")


class AlterResult(NamedTuple):
    """Result of changing the settings of one resource."""

    code: Code = Code.NONE
    why: str | None = None


TIMED_OUT = AlterResult(Code.REQUEST_TIMED_OUT, "it is not done within the timeout, and may still be done")


def parse_broker_id(name: str, broker_ids: Iterable[int]) -> int:
    """Returns the broker that a resource names, `ALL_BROKERS` for an empty name. `Refused` if there is no such
    broker."""
    if not name:
        return ALL_BROKERS
    if not name.isdecimal() or int(name) not in broker_ids:
        raise Refused(Code.INVALID_REQUEST, f"there is no broker {name[:60]!r}")
    return int(name)


def _check_topic_configs(context: KafkaContext, edits: Edits) -> None:
    """Refuses settings that no topic can have. Kafka reports these before it reports a missing topic."""
    defaults = context.broker.settings.topic_defaults()
    after = apply_edits(edits, {}, defaults.to_strings(), topic_rows(), replace=False)
    TopicConfig.from_strings({key: value for key, value in after.items() if value is not None}, defaults=defaults)


async def alter_resources(
    context: KafkaContext,
    call: Call[Any],
    read_edits: Callable[[Any], Edits],
    result_type: Callable[[int, str | None, int, str], T],
    *,
    replace: bool,
) -> list[T]:
    """Changes the settings of each resource of a request: all its edits or none. Returns one result per resource, in
    their order. A resource that the request names twice is refused. `read_edits` refuses edits that are wrong in
    themselves."""
    resources: Sequence[Resource] = call.request.resources
    turns, times, charges = context.turns, Counter[tuple[int, str]](), MutationCharges(context, call)
    async for resource in turns.each_of(resources):
        times[resource.resource_type, resource.resource_name] += 1

    async def alter(each: Resource) -> AlterResult:
        if times[each.resource_type, each.resource_name] > 1:
            return AlterResult(Code.INVALID_REQUEST, "the request names the resource twice")
        try:
            edits = read_edits(each)
        except Refused as refused:
            return AlterResult(refused.code, refused.why)
        return await _alter_resource(
            context,
            charges,
            each.resource_type,
            each.resource_name,
            edits,
            validate_only=call.request.validate_only,
            replace=replace,
        )

    outcomes = await run_bounded(
        [partial(alter, each) async for each in turns.each_of(resources)],
        DEFAULT_TIMEOUT_MS,
        lambda _: TIMED_OUT,
        turns,
        concurrency=CONCURRENT_CHANGES_MAX,
    )
    return [
        result_type(outcome.code.number, outcome.why, each.resource_type, each.resource_name)
        async for each, outcome in turns.each_of(zip(resources, outcomes, strict=True))
    ]


async def _alter_resource(
    context: KafkaContext,
    charges: MutationCharges,
    kind: int,
    name: str,
    edits: Edits,
    *,
    validate_only: bool,
    replace: bool,
) -> AlterResult:
    timeout = DEFAULT_TIMEOUT_MS / 1000
    try:
        if kind == ConfigResourceType.TOPIC:
            if not name:
                raise Refused(Code.INVALID_REQUEST, "a topic has to be named")
            check_name(name)
            if name not in context.broker.image.topics:
                _check_topic_configs(context, edits)
            await context.broker.submit(AlterTopicConfigs(name, edits, validate_only, replace), timeout, by=charges)
        elif kind == ConfigResourceType.BROKER:
            node_id = parse_broker_id(name, context.broker.image.brokers)
            await context.broker.submit(AlterBrokerConfigs(node_id, edits, validate_only, replace), timeout, by=charges)
        elif kind == ConfigResourceType.GROUP:
            check_level(context.broker.image)
            await context.broker.submit(AlterGroupConfigs(name, edits, validate_only, replace), timeout, by=charges)
        elif kind == ConfigResourceType.BROKER_LOGGER:
            raise Refused(Code.INVALID_REQUEST, NO_LOGGERS)
        else:
            raise Refused(Code.INVALID_REQUEST, f"resources of type {kind} have no settings here")
    except Refused as refused:
        of_broker = kind == ConfigResourceType.BROKER and refused.code is Code.INVALID_CONFIG
        return AlterResult(Code.INVALID_REQUEST if of_broker else refused.code, refused.why)
    return AlterResult()
