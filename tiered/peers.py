"""How brokers talk to each other, without a word about bytes: what is asked, and what is answered.

The wire of it is Kafka's, and stands above the engine (`tiered_api.kafka.client.peers`), which hands its one
implementation to the node. Every call has a deadline. A broker that cannot be reached, or does not answer in time, is
`Unavailable`; its refusal is `Refused` with Kafka's code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tiered.ids import TopicId
from tiered.ports import Buffer


class MetadataFetch(NamedTuple):
    """A broker wants the metadata log from `slot` on, and is heard by asking. Answered at once when there is something,
    after `wait_ms` otherwise. It has done what slots up to `applied` ask of it; `controller_epoch` is the highest that
    it knows."""

    node_id: int
    incarnation: str
    slot: int
    applied: int
    controller_epoch: int
    wait_ms: int


class MetadataFetchReply(NamedTuple):
    """`entries` are the bodies of slots as the bucket has them, from the one asked for on, without a gap. `too_old`: it
    is not in memory any more, read the bucket. `store_age_ms`: for how long the controller has tried in vain to
    write; 0 when it has nothing to write."""

    controller_epoch: int
    next_slot: int
    entries: tuple[bytes, ...]
    too_old: bool
    store_age_ms: int


class ControllerView(NamedTuple):
    """What a broker knows of the controller: the highest epoch, who has it, how long ago it was heard (-1: never). And
    who it is itself."""

    controller_epoch: int
    controller: int
    heard_ms_ago: int
    node_id: int = -1
    incarnation: str = ""


class ForwardReply(NamedTuple):
    """The controller's answer to a forwarded request (`controller/request_codec.py`), committed up to `slot`."""

    reply: bytes
    slot: int


class PartitionFetch(NamedTuple):
    """One partition that a follower copies: it has everything below `offset`, whose last record is of `last_epoch`, and
    never serves what lies below `log_start_offset`. `local_start_offset` is the first that is on its disk."""

    topic_id: TopicId
    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int
    log_start_offset: int
    local_start_offset: int


class ReplicaFetch(NamedTuple):
    """What a follower asks of one leader. `incarnation` is an `incarnation_number`."""

    node_id: int
    incarnation: int
    max_wait_ms: int
    max_bytes: int
    partition_max_bytes: int
    partitions: Sequence[PartitionFetch]


class DivergingEpoch(NamedTuple):
    """Where the leader's history parts from the follower's: the largest epoch not above the follower's, and its end."""

    leader_epoch: int
    end_offset: int


class FetchedPartition(NamedTuple):
    """The leader's answer for one partition. `code` is Kafka's number, 0 for none. `log_start_offset` counts what is
    cold too, `local_start_offset` is the first that the leader has itself, `cold_end_offset` the end of what the bucket
    has: below it a follower may drop what it holds."""

    topic_id: TopicId
    partition: int
    code: int
    high_watermark: int
    log_start_offset: int
    local_start_offset: int
    cold_end_offset: int
    diverging_epoch: DivergingEpoch | None
    records: Buffer


class Peers(Protocol):
    """The other brokers, each at its HOST:PORT. Timeouts are in seconds.

    `cluster_id` and `credential` are said with every call once they are known: a broker of another cluster, which has
    come to be at that address, answers `Refused(INCONSISTENT_CLUSTER_ID)`, and one of this cluster
    `Refused(CLUSTER_AUTHORIZATION_FAILED)` to who has no credential of it."""

    cluster_id: str
    credential: bytes

    async def fetch_metadata(self, address: str, ask: MetadataFetch, timeout: float) -> MetadataFetchReply:
        """The metadata log from its controller. `Refused(NOT_CONTROLLER)`: it is another one, or nobody yet."""
        ...

    async def forward(
        self, address: str, request: bytes, timeout: float, on_send: Callable[[], None] = lambda: None
    ) -> ForwardReply:
        """A request to the controller. `Refused` as the controller refuses it; NOT_CONTROLLER: nothing was done, nor
        was it before `going` was called: only then it leaves."""
        ...

    async def get_controller_view(self, address: str, timeout: float) -> ControllerView:
        """What another broker knows of the controller."""
        ...

    async def fetch(self, address: str, ask: ReplicaFetch, timeout: float) -> Sequence[FetchedPartition]:
        """Records from a leader: a part for each partition asked for, in any order. One of which there is nothing new
        may be missing: what was told of it before still holds."""
        ...

    async def check_listening(self, address: str, timeout: float) -> None:
        """Returns when something listens there. `Unavailable` with what is in the way."""
        ...

    async def is_gone(self, address: str, timeout: float) -> bool:
        """Whether nothing listens there: True only when the connection was refused, so that the process is no more."""
        ...

    async def close(self) -> None:
        """Ends all connections."""
        ...
