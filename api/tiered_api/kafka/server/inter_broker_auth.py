"""What brokers ask each other beside Kafka's APIs: whom such a request is for, who may send it, how it is refused.

The id of the cluster is told to every client, and so are node ids and epochs. What a stranger cannot know is the
credential, which is made of an object in the bucket: every request among brokers says it.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import Protocol

from tiered.errors import Code, Refused
from tiered.peers import ControllerView, ForwardReply, MetadataFetch, MetadataFetchReply
from tiered_api.kafka.server.context import Call, KafkaContext, R

REFUSAL_TEXT_MAX = 2_000
"""Of a refusal's words."""


class InterBrokerHandler(Protocol):
    """This broker as the others see it."""

    async def handle_metadata_fetch(self, metadata_fetch: MetadataFetch) -> MetadataFetchReply: ...
    async def handle_forwarded(self, request: bytes, timeout: float) -> ForwardReply: ...
    def controller_view(self) -> ControllerView: ...


def check_credential(context: KafkaContext, listener: str, credential: bytes) -> Refused | None:
    """Why what brokers ask each other is not taken from somebody, if it is not: he is no broker of this cluster, or
    asks on a listener that is not for brokers where one is named for them."""
    named = context.broker.settings.inter_broker_listener_name
    if named and listener != named:
        why = f"listener {listener} is not for brokers: inter.broker.listener.name is {named}"
        return Refused(Code.CLUSTER_AUTHORIZATION_FAILED, f"{why}, set it alike on all of them")
    ours = context.broker.credential
    if not ours or not compare_digest(credential, ours):
        return Refused(
            Code.CLUSTER_AUTHORIZATION_FAILED, "this is for brokers of this cluster, who know its credential"
        )
    return None


def authorize_call(context: KafkaContext, call: Call[R], cluster_id: str, credential: bytes) -> InterBrokerHandler:
    """Who answers here. `Refused`: INCONSISTENT_CLUSTER_ID, where the asker takes this broker for one of his own
    cluster that was at this address before; CLUSTER_AUTHORIZATION_FAILED as `check_credential` says."""
    ours = context.broker.cluster_id
    refused = check_credential(context, call.listener, credential)
    if cluster_id and cluster_id != ours:
        refused = Refused(Code.INCONSISTENT_CLUSTER_ID, f"this broker is of the cluster {ours}")
    if refused is not None:
        context.refusals.record("stranger", call.client_host, refused.why)
        raise refused
    return context.broker.cluster


def is_impostor(context: KafkaContext, call: Call[R], replica_id: int) -> bool:
    """Whether a request other than Fetch names a broker as its sender: ours send none such."""
    if replica_id < 0:
        return False
    context.refusals.record("stranger", call.client_host, f"says to be broker {replica_id}")
    return True


def refusal_text(refused: Refused) -> str:
    """What is said of a refusal."""
    return refused.why[:REFUSAL_TEXT_MAX]
