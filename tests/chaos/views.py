"""The cluster as each of its brokers reports it to clients: a broker that was cut off may report an old state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from tiered.errors import Corrupt, Unavailable
from tiered.system.network import SocketNet
from tiered_api.kafka.client.connection import open_connection
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest, MetadataResponse

VERSION = 12
ALONE_TOPIC = "alone"
"""The topic whose partitions have one replica: all others have three."""
LOOK_SECONDS = 2.0


@dataclass(frozen=True)
class ClusterView:
    """The brokers, and the leader (-1: none), ISR and replicas of each partition."""

    controller: int
    brokers: tuple[int, ...]
    leaders: dict[tuple[str, int], int]
    in_sync: dict[tuple[str, int], tuple[int, ...]]
    replicas: dict[tuple[str, int], tuple[int, ...]]

    def is_settled(self, nodes: tuple[int, ...]) -> bool:
        """True if these brokers have all replicas, each of them some; every partition is led and in sync, and nothing
        moves."""
        led = all(leader in nodes for leader in self.leaders.values())
        still = all(
            len(held) == (1 if place[0] == ALONE_TOPIC else 3) and held == self.in_sync[place]
            for place, held in self.replicas.items()
        )
        holders = {node for held in self.replicas.values() for node in held}
        return self.controller in nodes and self.brokers == nodes and led and still and holders <= set(nodes)

    def describe_unsettled(self) -> str:
        """Returns the controller, the brokers, and each partition that has no leader or is not in sync, as one line."""
        found = [
            f"{topic}-{number}: leader {self.leaders[topic, number]}, in sync {self.in_sync[topic, number]} of {held}"
            for (topic, number), held in self.replicas.items()
            if self.leaders[topic, number] < 0 or self.in_sync[topic, number] != held
        ]
        return f"controller {self.controller}, brokers {self.brokers}; {'; '.join(found) or 'all in sync'}"

    def partitions_led_by(self, node: int) -> list[tuple[str, int]]:
        return [place for place, leader in self.leaders.items() if leader == node]


def fetch_views(ports: Mapping[int, int]) -> dict[int, ClusterView | None]:
    """Returns the view of each listening broker, by node; None if it does not reply."""
    return asyncio.run(_fetch_all(ports))


async def _fetch_all(ports: Mapping[int, int]) -> dict[int, ClusterView | None]:
    return dict(zip(ports, await asyncio.gather(*map(_fetch_view, ports.values())), strict=True))


async def _fetch_view(port: int) -> ClusterView | None:
    try:
        link = await open_connection(SocketNet(), "127.0.0.1", port, "chaos", LOOK_SECONDS)
    except Unavailable:
        return None
    try:
        return _parse_view(await link.send(MetadataRequest(topics=None), MetadataResponse, LOOK_SECONDS, VERSION))
    except (Unavailable, Corrupt):
        return None
    finally:
        link.close()


def _parse_view(said: MetadataResponse) -> ClusterView:
    parts = {(topic.name or "", each.partition_index): each for topic in said.topics for each in topic.partitions}
    return ClusterView(
        said.controller_id,
        tuple(sorted(each.node_id for each in said.brokers)),
        {place: each.leader_id for place, each in parts.items()},
        {place: tuple(sorted(each.isr_nodes)) for place, each in parts.items()},
        {place: tuple(sorted(each.replica_nodes)) for place, each in parts.items()},
    )
