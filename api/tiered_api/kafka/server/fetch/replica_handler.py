"""The handler of Fetch (1) from followers, which read a log up to its end to copy it.

A follower's fetch offset moves the high watermark. So the sender must know the cluster's credential, and be the
incarnation that the metadata log names (R6). Any other sender that claims to be a replica is refused and changes
nothing.

Most partitions have nothing new most of the time. A reply leaves out partitions about which the follower was told a
short time ago, so that many idle partitions cost both sides little.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered_api.kafka.server.context.context import KafkaContext
from tiered_api.kafka.server.fetch.delayed_replica_fetch import DelayedReplicaFetch
from tiered_api.kafka.server.fetch.follower_states import FollowerStates
from tiered_api.kafka.server.fetch.parking import ParkedFetches
from tiered_api.kafka.server.fetch.replica_frames import ParsedReplicaFetch, encode_refusal
from tiered_api.kafka.server.rights.inter_broker_auth import check_credential
from tiered_api.kafka.server.slots.response_slot import RequestConnection, RunGuarded
from tiered_api.kafka.server.slots.socket_writer import Part


class ReplicaFetchHandler:
    """Fetch requests of the followers of one broker, parked ones included."""

    def __init__(self, context: KafkaContext, run_guarded: RunGuarded) -> None:
        self.context = context
        self.followers = FollowerStates(context)
        self.parked = ParkedFetches(run_guarded, context.turns)

    def handle_request(
        self, connection: RequestConnection, request: ParsedReplicaFetch, correlation_id: int
    ) -> Sequence[Part] | None:
        """Returns the reply, or None if the fetch is parked."""
        followers = self.followers
        refused = check_credential(self.context, connection, request.credential)
        refused = refused or followers.check_sender(request)
        if refused is not None:
            self.context.refusals.record("stranger", connection.peer, refused.why)
            return encode_refusal(correlation_id, refused)
        max_bytes = min(request.max_bytes, self.context.broker.settings.fetch_max_bytes)
        fetch = DelayedReplicaFetch(followers, self.parked, connection, correlation_id, request, max_bytes)
        fetch.read_partitions(followers.first_partitions.pop(request.node_id, None))
        if fetch.is_done() or not self.parked.has_room(fetch.size):
            return fetch.make_response()
        fetch.park()
        return None

    def evict_stale(self) -> None:
        """Forgets replicas that have stopped, and brokers that are not registered."""
        self.followers.evict_stale()

    def drain(self) -> None:
        """Completes all parked fetches, because the broker stops."""
        self.parked.complete_all()
