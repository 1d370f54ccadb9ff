"""What is set beside moves of partitions: rates of copying (KIP-73), and brokers that get nothing new (KIP-1066).

The names are those that Kafka's kafka-reassign-partitions.sh sets, so either tool can take away what the other has set.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence

from tiered.controller.reassignment_planner import PartitionName
from tiered.errors import Code, Refused
from tiered.replication.replication_quota import list_throttled_replicas
from tiered_api.cli.configs import APPEND, BROKER, DELETE, SET, SUBTRACT, TOPIC, alter_configs, describe_configs
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.protocol.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResourceResponse

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
CORDONED = "cordoned.log.dirs"

ReplicaMoves = Mapping[PartitionName, tuple[tuple[int, ...], tuple[int, ...]]]
"""From where to where each partition goes."""


async def throttle(client: KafkaClient, moves: ReplicaMoves, rate: int) -> None:
    """What moves is copied at `rate` bytes per second at most, at each broker that gives and each that takes."""
    await _alter_topics(
        client, {name: _list_configs(words, APPEND) for name, words in _throttled_replicas(moves).items()}
    )
    await _alter_brokers(client, _brokers(moves), [AlterableConfig(name, SET, str(rate)) for name in RATES])


async def unthrottle(client: KafkaClient, moves: ReplicaMoves) -> None:
    """Takes that away: the rates, and from the lists what moved."""
    await _alter_brokers(client, _brokers(moves), [AlterableConfig(name, DELETE, None) for name in RATES])
    await _alter_topics(
        client, {name: _list_configs(words, SUBTRACT) for name, words in _throttled_replicas(moves).items()}
    )


async def unthrottle_all(client: KafkaClient) -> tuple[int, int]:
    """Takes away every rate and every list; of how many brokers and topics."""
    got = await client.fetch_metadata(None)
    topics = sorted(each.name for each in got.topics if each.name)
    brokers = sorted(each.node_id for each in got.brokers)
    await _alter_brokers(client, brokers, [AlterableConfig(name, DELETE, None) for name in RATES])
    rows = [AlterableConfig(name, DELETE, None) for name in LISTS]
    await _alter_topics(client, dict.fromkeys(topics, rows))
    return len(brokers), len(topics)


async def cordon(client: KafkaClient, node: int, *, lift: bool = False) -> None:
    """New replicas are not placed on a broker any more, or are again. Of one that is away only our brokers can be told;
    it gets nothing new as long as it is."""
    row = AlterableConfig(CORDONED, DELETE if lift else SET, None if lift else "*")
    await client.fetch_metadata([])
    if node in client.brokers:
        _check_accepted(await alter_configs(client, BROKER, {str(node): [row]}, node=node))
    else:
        with contextlib.suppress(Refused):
            _check_accepted(await alter_configs(client, BROKER, {str(node): [row]}))


async def fetch_cordoned(client: KafkaClient, nodes: Iterable[int]) -> set[int]:
    """Which of these live brokers get nothing new; none where brokers do not know of it."""
    found = await asyncio.gather(*(_is_cordoned(client, node) for node in nodes))
    return {node for node in found if node is not None}


async def _is_cordoned(client: KafkaClient, node: int) -> int | None:
    """Kafka's brokers tell the settings of one broker by that broker only."""
    by = node if node in client.brokers else None
    try:
        got = await describe_configs(client, BROKER, [str(node)], [CORDONED], node=by)
    except Refused as no:
        if no.code is Code.UNSUPPORTED_VERSION:
            return None
        raise
    there = any(row.name == CORDONED and row.value for each in got for row in each.configs)
    return node if there else None


def _throttled_replicas(moves: ReplicaMoves) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """The two lists of each topic."""
    topics: dict[str, dict[int, tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    for tp, each in moves.items():
        topics.setdefault(tp.topic, {})[tp.partition] = each
    return {name: list_throttled_replicas(rows) for name, rows in sorted(topics.items())}


def _list_configs(words: tuple[tuple[str, ...], tuple[str, ...]], how: int) -> list[AlterableConfig]:
    return [AlterableConfig(name, how, ",".join(each)) for name, each in zip(LISTS, words, strict=True) if each]


def _brokers(moves: ReplicaMoves) -> list[int]:
    return sorted({node for each in moves.values() for nodes in each for node in nodes})


async def _alter_brokers(client: KafkaClient, nodes: Sequence[int], rows: list[AlterableConfig]) -> None:
    """Kafka's brokers take settings of one broker by that broker only; one that is away keeps what it has."""
    await client.fetch_metadata([])
    for node in nodes:
        if node in client.brokers:
            _check_accepted(await alter_configs(client, BROKER, {str(node): rows}, node=node))


async def _alter_topics(client: KafkaClient, changes: Mapping[str, Sequence[AlterableConfig]]) -> None:
    if some := {name: rows for name, rows in changes.items() if rows}:
        _check_accepted(await alter_configs(client, TOPIC, some))


def _check_accepted(outcomes: Iterable[AlterConfigsResourceResponse]) -> None:
    for each in outcomes:
        if each.error_code:
            raise to_refused(each.error_code, f"settings of {each.resource_name}", each.error_message)
