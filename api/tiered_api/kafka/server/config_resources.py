"""What DescribeConfigs, AlterConfigs and IncrementalAlterConfigs have in common: resources, and how they are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from tiered.config.settings import TopicConfig, topic_rows
from tiered.controller.requests import AlterBrokerConfigs, AlterTopicConfigs
from tiered.errors import Code, Refused
from tiered.metadata.changes import ALL_BROKERS, ListEdit
from tiered.metadata.effective_config import apply_edits
from tiered.metadata.topic_names import check_name
from tiered_api.kafka.server.bounded_tasks import in_time
from tiered_api.kafka.server.context import Site
from tiered_api.kafka.server.error_codes import ALTER_MS, MANY

Edits = Mapping[str, str | ListEdit | None]
NO_LOGGERS = "levels of single loggers cannot be changed; log.level of a broker is that of all its loggers"


class Kind(IntEnum):
    """Types of resources, as Kafka numbers them."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Resource(Protocol):
    """What a request names."""

    resource_type: int
    resource_name: str


R = TypeVar("R", bound=Resource)


class Outcome(NamedTuple):
    """Whether the settings of a resource were changed."""

    code: Code = Code.NONE
    why: str | None = None


LATE = Outcome(Code.REQUEST_TIMED_OUT, "it is not done yet; it may be")


def node_of(name: str, known: Iterable[int]) -> int:
    """The broker that a resource names, `CLUSTER` when it names none. `Refused` when there is no such broker."""
    if not name:
        return ALL_BROKERS
    if not name.isdecimal() or int(name) not in known:
        raise Refused(Code.INVALID_REQUEST, f"there is no broker {name[:60]!r}")
    return int(name)


def _check(site: Site, edits: Edits) -> None:
    """Refuses settings that no topic could have. Kafka says so first, and then that there is no such topic."""
    defaults = site.node.settings.topic_defaults()
    after = apply_edits(edits, {}, defaults.to_strings(), topic_rows(), replace=False)
    TopicConfig.from_strings({key: value for key, value in after.items() if value is not None}, defaults=defaults)


async def alter_each(
    site: Site, resources: Sequence[R], edits_of: Callable[[R], Edits], *, validate_only: bool, replace: bool
) -> list[Outcome]:
    """Changes the settings of each resource, all of its edits or none: one outcome for each, in their order. A resource
    may be there once; `edits_of` refuses what is wrong with the edits themselves."""
    times = Counter((each.resource_type, each.resource_name) for each in resources)

    async def alter(each: R) -> Outcome:
        if times[each.resource_type, each.resource_name] > 1:
            return Outcome(Code.INVALID_REQUEST, "each resource may be there once")
        try:
            edits = edits_of(each)
        except Refused as refused:
            return Outcome(refused.code, refused.why)
        return await _alter(
            site, each.resource_type, each.resource_name, edits, validate_only=validate_only, replace=replace
        )

    return await in_time([partial(alter, each) for each in resources], ALTER_MS, lambda _: LATE, at_once=MANY)


async def _alter(site: Site, kind: int, name: str, edits: Edits, *, validate_only: bool, replace: bool) -> Outcome:
    timeout = ALTER_MS / 1000
    try:
        if kind == Kind.TOPIC:
            if not name:
                raise Refused(Code.INVALID_REQUEST, "a topic has to be named")
            check_name(name)
            if name not in site.node.image.topics:
                _check(site, edits)
            await site.node.submit(AlterTopicConfigs(name, edits, validate_only, replace), timeout)
        elif kind == Kind.BROKER:
            node_id = node_of(name, site.node.image.brokers)
            await site.node.submit(AlterBrokerConfigs(node_id, edits, validate_only, replace), timeout)
        elif kind == Kind.BROKER_LOGGER:
            raise Refused(Code.INVALID_REQUEST, NO_LOGGERS)
        else:
            raise Refused(Code.INVALID_REQUEST, f"resources of type {kind} have no settings here")
    except Refused as refused:
        of_broker = kind == Kind.BROKER and refused.code is Code.INVALID_CONFIG
        return Outcome(Code.INVALID_REQUEST if of_broker else refused.code, refused.why)
    return Outcome()
