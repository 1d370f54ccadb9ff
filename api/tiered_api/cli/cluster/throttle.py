"""Settings that go with reassignments: replication throttles (KIP-73), and cordoned brokers (KIP-1066).

The names are those that Kafka's kafka-reassign-partitions.sh sets, so each tool can remove the settings of the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence

from tiered.config.setting import VALUE_BYTES_MAX
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
"""By partition: the brokers that it moves from and to."""


async def throttle(client: KafkaClient, moves: ReplicaMoves, rate: int) -> None:
    """Limits the copying of moving partitions to `rate` bytes per second, at each source and each target broker."""
    await _alter_topics(
        client, {name: _list_configs(words, APPEND) for name, words in _throttled_replicas(moves).items()}
    )
    await _alter_brokers(client, _brokers(moves), [AlterableConfig(name, SET, str(rate)) for name in RATES])


async def unthrottle(client: KafkaClient, moves: ReplicaMoves) -> None:
    """Removes the rates, and removes the moved partitions from the lists."""
    await _alter_brokers(client, _brokers(moves), [AlterableConfig(name, DELETE, None) for name in RATES])
    await _alter_topics(
        client, {name: _list_configs(words, SUBTRACT) for name, words in _throttled_replicas(moves).items()}
    )


async def unthrottle_all(client: KafkaClient) -> tuple[int, int]:
    """Removes every rate and every list. Returns the numbers of brokers and topics that had one."""
    got = await client.fetch_metadata(None)
    topics = sorted(each.name for each in got.topics if each.name)
    brokers = sorted(each.node_id for each in got.brokers)
    await _alter_brokers(client, brokers, [AlterableConfig(name, DELETE, None) for name in RATES])
    rows = [AlterableConfig(name, DELETE, None) for name in LISTS]
    await _alter_topics(client, dict.fromkeys(topics, rows))
    return len(brokers), len(topics)


async def cordon(client: KafkaClient, node: int, *, lift: bool = False) -> None:
    """Stops or allows the placement of new replicas on a broker. Only our brokers can do so for an unreachable broker,
    which then gets no new replicas while it is unreachable."""
    row = AlterableConfig(CORDONED, DELETE if lift else SET, None if lift else "*")
    await client.fetch_metadata([])
    if node in client.brokers:
        _check_accepted(await alter_configs(client, BROKER, {str(node): [row]}, node=node))
    else:
        with contextlib.suppress(Refused):
            _check_accepted(await alter_configs(client, BROKER, {str(node): [row]}))


async def fetch_cordoned(client: KafkaClient, nodes: Iterable[int]) -> set[int]:
    """Returns the cordoned brokers among these live ones; none if the brokers do not support it."""
    found = await asyncio.gather(*(_is_cordoned(client, node) for node in nodes))
    return {node for node in found if node is not None}


async def _is_cordoned(client: KafkaClient, node: int) -> int | None:
    """True if the broker is cordoned. Kafka's brokers return the settings of a broker only from this broker itself."""
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
    """Returns the two lists of each topic."""
    topics: dict[str, dict[int, tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    for tp, each in moves.items():
        topics.setdefault(tp.topic, {})[tp.partition] = each
    return {name: list_throttled_replicas(rows) for name, rows in sorted(topics.items())}


def _list_configs(words: tuple[tuple[str, ...], tuple[str, ...]], how: int) -> list[AlterableConfig]:
    """Returns the edits of both lists. `*`, which is all replicas of the topic, stands for a list that is too long."""
    texts = [",".join(each) for each in words]
    return [
        AlterableConfig(name, how, text if len(text) <= VALUE_BYTES_MAX else "*")
        for name, text in zip(LISTS, texts, strict=True)
        if text
    ]


def _brokers(moves: ReplicaMoves) -> list[int]:
    return sorted({node for each in moves.values() for nodes in each for node in nodes})


async def _alter_brokers(client: KafkaClient, nodes: Sequence[int], rows: list[AlterableConfig]) -> None:
    """Changes settings of brokers. Kafka's brokers change them only on the broker itself, so an unreachable broker
    keeps its settings."""
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
