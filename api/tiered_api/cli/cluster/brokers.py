"""`tiered cluster brokers|unregister`: the brokers of the cluster, their state, and the removal of one."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections import Counter

from tiered.errors import Refused, Unavailable
from tiered_api.cli.cluster.view import fetch_cluster_view
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_json, print_lines, print_rows
from tiered_api.cli.reach import open_client
from tiered_api.health.view import LIVE, ClusterView
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tiered_api.kafka.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

Lags = dict[int, dict[tuple[str, int], int]]
"""By reporting broker: the lag in records of each replica on its disk."""


async def brokers(args: Namespace) -> int:
    """Prints a row for each broker."""
    async with open_client(args) as client:
        seen = await fetch_cluster_view(client)
        live = [each.node_id for each in seen.brokers.values() if each.state == LIVE]
        lags = await asyncio.gather(*(_lags(client, node) for node in live))
    found = broker_rows(seen, dict(zip(live, lags, strict=True)))
    if args.format == "text":
        found = [{**row, "controller": "yes" if row["controller"] else None} for row in found]
    print_rows(found, args.format)
    return Exit.OK


async def unregister(args: Namespace) -> int:
    """Removes a broker that has left for good from the metadata."""
    async with open_client(args) as client:
        await unregister_broker(client, args.broker)
    if args.format == "json":
        print_json({"id": args.broker, "status": "OK"})
    else:
        print_lines([f"broker {args.broker} is unregistered"])
    return Exit.OK


async def unregister_broker(client: KafkaClient, node: int) -> None:
    """Removes a broker from the metadata. Raises `Refused` while it is live or has replicas."""
    got = await client.send(UnregisterBrokerRequest(node), UnregisterBrokerResponse)
    if got.error_code:
        raise to_refused(got.error_code, f"unregister {node}", got.error_message)


def broker_rows(seen: ClusterView, lags: Lags) -> list[Row]:
    """Returns the rows to print. The lag is the sum over all replicas of a broker, null if it is not known for each."""
    leaders, in_sync = Counter[int](), Counter[int]()
    held: dict[int, list[tuple[str, int]]] = {}
    for topic in seen.topics:
        for each in topic.partitions:
            leaders[each.leader_id] += 1
            in_sync.update(each.isr_nodes)
            for node in each.replica_nodes:
                held.setdefault(node, []).append((topic.name or "", each.partition_index))
    return [
        {
            "id": broker.node_id,
            "address": broker.address,
            "rack": broker.rack,
            "machine": broker.machine,
            "state": broker.state,
            "controller": broker.node_id == seen.controller,
            "leaders": leaders[broker.node_id],
            "replicas": len(held.get(broker.node_id, ())),
            "in_sync": in_sync[broker.node_id],
            "lag": _total_lag(held.get(broker.node_id, []), lags.get(broker.node_id)),
        }
        for broker in seen.brokers.values()
    ]


def _total_lag(held: list[tuple[str, int]], lags: dict[tuple[str, int], int] | None) -> int | None:
    if lags is None or not all(at in lags for at in held):
        return None
    return sum(lags[at] for at in held)


async def _lags(client: KafkaClient, node: int) -> dict[tuple[str, int], int]:
    """Returns the lags that one broker reports for its replicas; nothing if the broker does not reply or does not
    report them. A broker that has just ended is not waited for."""
    request = DescribeLogDirsRequest(topics=None)
    try:
        got = await client.send(request, DescribeLogDirsResponse, node_id=node, connects_once=True)
    except (Refused, Unavailable):
        return {}
    return {
        (topic.name, each.partition_index): each.offset_lag
        for directory in got.results
        for topic in directory.topics
        for each in topic.partitions
        if not each.is_future_key
    }
