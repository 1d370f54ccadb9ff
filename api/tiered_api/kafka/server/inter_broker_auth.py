"""What brokers ask each other beside Kafka's APIs: whom such a request is for, who may send it, how it is refused.

The id of the cluster is told to every client, and so are node ids and epochs. What a stranger cannot know is the
credential, which is made of an object in the bucket: every request among brokers says it.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import Protocol

from tiered.errors import Code, Refused
from tiered.peers import FollowAnswer, FollowAsk, HeardAnswer, SubmitAnswer
from tiered_api.kafka.server.context import Call, R, Site

WHY_BYTES = 2_000
"""Of a refusal's words."""


class Cluster(Protocol):
    """This broker as the others see it."""

    async def followed(self, ask: FollowAsk) -> FollowAnswer: ...
    async def submitted(self, request: bytes, timeout: float) -> SubmitAnswer: ...
    def heard(self) -> HeardAnswer: ...


def outsider(site: Site, listener: str, credential: bytes) -> Refused | None:
    """Why what brokers ask each other is not taken from somebody, if it is not: he is no broker of this cluster, or
    asks on a listener that is not for brokers where one is named for them."""
    named = site.node.settings.inter_broker_listener_name
    if named and listener != named:
        why = f"listener {listener} is not for brokers: inter.broker.listener.name is {named}"
        return Refused(Code.CLUSTER_AUTHORIZATION_FAILED, f"{why}, set it alike on all of them")
    ours = site.node.credential
    if not ours or not compare_digest(credential, ours):
        return Refused(
            Code.CLUSTER_AUTHORIZATION_FAILED, "this is for brokers of this cluster, who know its credential"
        )
    return None


def cluster_of(site: Site, call: Call[R], cluster_id: str, credential: bytes) -> Cluster:
    """Who answers here. `Refused`: INCONSISTENT_CLUSTER_ID, where the asker takes this broker for one of his own
    cluster that was at this address before; CLUSTER_AUTHORIZATION_FAILED as `outsider` says."""
    ours = site.node.cluster_id
    refused = outsider(site, call.listener, credential)
    if cluster_id and cluster_id != ours:
        refused = Refused(Code.INCONSISTENT_CLUSTER_ID, f"this broker is of the cluster {ours}")
    if refused is not None:
        site.refusals.note("stranger", call.client_host, refused.why)
        raise refused
    return site.node.cluster


def only_pretends(site: Site, call: Call[R], replica_id: int) -> bool:
    """Whether a request other than Fetch names a broker as its sender: ours send none such."""
    if replica_id < 0:
        return False
    site.refusals.note("stranger", call.client_host, f"says to be broker {replica_id}")
    return True


def words(refused: Refused) -> str:
    """What is said of a refusal."""
    return refused.why[:WHY_BYTES]
