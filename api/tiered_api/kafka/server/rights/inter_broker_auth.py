"""The check of requests that only brokers of this cluster may send.

Any client can learn the cluster id, node ids and epochs. A client cannot know the credential, which is derived from an
object in the bucket or is in the metadata log there. Every inter-broker request carries the credential.
"""

from __future__ import annotations

from typing import Protocol

from tiered.errors import Code, Refused
from tiered.peers import ControllerView, ForwardReply, MetadataFetch, MetadataFetchReply
from tiered.security.principal import BROKER, Caller
from tiered_api.kafka.server.context.context import Call, KafkaContext, R

REFUSAL_TEXT_MAX = 2_000
"""Most characters of a refusal's text."""


class InterBrokerHandler(Protocol):
    """This broker as other brokers see it."""

    async def handle_metadata_fetch(self, metadata_fetch: MetadataFetch) -> MetadataFetchReply: ...
    async def handle_forwarded(self, request: bytes, timeout: float) -> ForwardReply: ...
    def controller_view(self) -> ControllerView: ...


class Sender(Protocol):
    """The connection or the call that a request came with."""

    @property
    def caller(self) -> Caller:
        """The principal that the connection has proved, and its host."""

    @property
    def listener(self) -> str:
        """Name of the listener that the sender connected to."""

    def on_credential(self) -> None:
        """Called when the sender has proved by its credential that it is a broker."""


def is_inter_broker_listener(context: KafkaContext, listener: str) -> bool:
    """True if other brokers may use the listener."""
    return listener == (context.broker.settings.inter_broker_listener_name or listener)


def check_credential(context: KafkaContext, sender: Sender, credential: bytes) -> Refused | None:
    """Returns why the sender may not make inter-broker requests, None if it may. The reason is a wrong credential, or a
    listener other than `inter.broker.listener.name`. A sender that has logged in as a broker needs no credential."""
    listener, named = sender.listener, context.broker.settings.inter_broker_listener_name
    if not is_inter_broker_listener(context, listener):
        why = f"listener {listener} is not for brokers: inter.broker.listener.name is {named}"
        return Refused(Code.CLUSTER_AUTHORIZATION_FAILED, f"{why}; give all brokers the same value")
    if sender.caller.principal.kind == BROKER:
        return None
    if not context.broker.secrets.accepts(credential):
        return Refused(
            Code.CLUSTER_AUTHORIZATION_FAILED,
            "only brokers of this cluster may send this request: it lacks their credential",
        )
    sender.on_credential()
    return None


def authorize_call(context: KafkaContext, call: Call[R], cluster_id: str, credential: bytes) -> InterBrokerHandler:
    """Returns the handler of inter-broker requests.

    `Refused` with INCONSISTENT_CLUSTER_ID if the sender means another cluster, whose broker had this address before.
    `Refused` with CLUSTER_AUTHORIZATION_FAILED as in `check_credential`.
    """
    ours = context.broker.cluster_id
    refused = check_credential(context, call, credential)
    if cluster_id and cluster_id != ours:
        refused = Refused(Code.INCONSISTENT_CLUSTER_ID, f"this broker belongs to cluster {ours}")
    if refused is not None:
        context.refusals.record("stranger", call.client_host, refused.why)
        raise refused
    return context.broker.cluster


def is_impostor(context: KafkaContext, call: Call[R], replica_id: int) -> bool:
    """True if a request other than Fetch claims to come from a broker: our brokers send no such requests."""
    if replica_id < 0:
        return False
    context.refusals.record("stranger", call.client_host, f"claims to be broker {replica_id}")
    return True


def refusal_text(refused: Refused) -> str:
    """Returns the text of a refusal, cut to `REFUSAL_TEXT_MAX`."""
    return refused.why[:REFUSAL_TEXT_MAX]
