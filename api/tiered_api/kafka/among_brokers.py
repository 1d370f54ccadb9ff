"""What brokers ask each other beside Kafka's APIs: whom such a request is for, and how it is refused."""

from __future__ import annotations

from typing import Protocol

from tiered.errors import Code, Refused
from tiered.peers import FollowAnswer, FollowAsk, HeardAnswer, SubmitAnswer
from tiered_api.kafka.site import Site

WHY_BYTES = 2_000
"""Of a refusal's words."""


class Cluster(Protocol):
    """This broker as the others see it."""

    async def followed(self, ask: FollowAsk) -> FollowAnswer: ...
    async def submitted(self, request: bytes, timeout: float) -> SubmitAnswer: ...
    def heard(self) -> HeardAnswer: ...


def cluster_of(site: Site, cluster_id: str) -> Cluster:
    """Who answers here. `Refused`: INCONSISTENT_CLUSTER_ID, where the asker takes this broker for one of his own
    cluster that was at this address before."""
    ours = site.node.cluster_id
    if cluster_id and cluster_id != ours:
        raise Refused(Code.INCONSISTENT_CLUSTER_ID, f"this broker is of the cluster {ours}")
    return site.node.cluster


def words(refused: Refused) -> str:
    """What is said of a refusal."""
    return refused.why[:WHY_BYTES]
