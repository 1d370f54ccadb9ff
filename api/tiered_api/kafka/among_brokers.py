"""What brokers ask each other beside Kafka's APIs: whom such a request is for, and how it is refused."""

from __future__ import annotations

from typing import Protocol

from tiered.errors import Code, Refused
from tiered.peers import FollowAnswer, FollowAsk, HeardAnswer, SubmitAnswer
from tiered_api.kafka.site import Call, R, Site

WHY_BYTES = 2_000
"""Of a refusal's words."""


class Cluster(Protocol):
    """This broker as the others see it."""

    async def followed(self, ask: FollowAsk) -> FollowAnswer: ...
    async def submitted(self, request: bytes, timeout: float) -> SubmitAnswer: ...
    def heard(self) -> HeardAnswer: ...


def misplaced(site: Site, listener: str) -> Refused | None:
    """Why what brokers ask each other is not taken on a listener: where one is named for them, clients that reach only
    others cannot pass for a broker."""
    named = site.node.settings.inter_broker_listener_name
    if not named or listener == named:
        return None
    why = f"listener {listener} is not for brokers: inter.broker.listener.name is {named}, set it alike on all of them"
    return Refused(Code.CLUSTER_AUTHORIZATION_FAILED, why)


def cluster_of(site: Site, call: Call[R], cluster_id: str) -> Cluster:
    """Who answers here. `Refused`: INCONSISTENT_CLUSTER_ID, where the asker takes this broker for one of his own
    cluster that was at this address before; CLUSTER_AUTHORIZATION_FAILED on a listener for clients."""
    wrong = misplaced(site, call.listener)
    if wrong is not None:
        site.refusals.note("stranger", call.client_host, wrong.why)
        raise wrong
    ours = site.node.cluster_id
    if cluster_id and cluster_id != ours:
        raise Refused(Code.INCONSISTENT_CLUSTER_ID, f"this broker is of the cluster {ours}")
    return site.node.cluster


def words(refused: Refused) -> str:
    """What is said of a refusal."""
    return refused.why[:WHY_BYTES]
