"""Calls between brokers as plain values, without their encoding: requests, replies and the `Peers` protocol.

The wire format is Kafka's and lives above the engine (`tiered_api.kafka.client.peers`), which passes its one
implementation to the broker. Every call has a deadline. A broker that cannot be reached or does not reply in time is
`Unavailable`; a refusal is `Refused` with Kafka's code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from tiered.errors import Code
from tiered.ids import TopicId, TopicPartition
from tiered.ports import Buffer


class FoundTransaction(NamedTuple):
    """The transaction of a producer id at its coordinator: the name of its state, and the epoch of its records if it is
    committed, or -1."""

    producer_id: int
    state: str
    committed_epoch: int


class ClockComparison(NamedTuple):
    """How far a broker's wall clock is ahead of the controller's; negative if it is behind. The true difference is at
    most `error_ms` more or less."""

    ahead_ms: int
    error_ms: int


class MetadataFetch(NamedTuple):
    """A broker's request for the metadata log from `slot` on; it also serves as the broker's heartbeat. The controller
    replies at once if it has entries, else after `wait_ms`. The broker has carried out the slots up to `applied`;
    `controller_epoch` is the highest that it knows. `clock` is what the broker's last heartbeat found of its clock.
    The broker supports levels of `tiered.metadata.version` up to `metadata_version`. It encrypts what it writes to the
    bucket by the key `active_key` ("": it does not)."""

    node_id: int
    incarnation: str
    slot: int
    applied: int
    controller_epoch: int
    wait_ms: int
    clock: ClockComparison | None = None
    metadata_version: int = 0
    active_key: str = ""


class MetadataFetchReply(NamedTuple):
    """The reply to a `MetadataFetch`. `entries` are the bodies of slots as the bucket has them, from the requested slot
    on, without a gap. `too_old` means that the requested slot is no longer in memory and has to be read from the
    bucket. `store_age_ms` is for how long the controller has tried in vain to write; 0 if it has nothing to write.
    `wall_ms` is the controller's wall clock when it replied, -1 if it does not say so. It held the request for
    `held_ms`. `active_keys` are the ids of the keys by which brokers encrypt."""

    controller_epoch: int
    next_slot: int
    entries: tuple[bytes, ...]
    too_old: bool
    store_age_ms: int
    wall_ms: int = -1
    held_ms: int = 0
    active_keys: tuple[str, ...] = ()


class ControllerView(NamedTuple):
    """A broker's view of the controller: the highest epoch, the broker that has it, and how long ago that controller
    was last in contact (-1: never). `node_id` and `incarnation` are those of the replying broker."""

    controller_epoch: int
    controller: int
    heard_ms_ago: int
    node_id: int = -1
    incarnation: str = ""


class ForwardReply(NamedTuple):
    """The controller's reply to a forwarded request (`controller/request_codec.py`), committed up to `slot`."""

    reply: bytes
    slot: int


class PartitionFetch(NamedTuple):
    """One partition in a follower's fetch. The follower has all records below `offset`, the last of them from
    `last_epoch`. It never serves records below `log_start_offset`. `local_start_offset` is the first offset on its
    disk."""

    topic_id: TopicId
    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int
    log_start_offset: int
    local_start_offset: int


class ReplicaFetch(NamedTuple):
    """A follower's fetch from one leader. `incarnation` is an `incarnation_number`."""

    node_id: int
    incarnation: int
    max_wait_ms: int
    max_bytes: int
    partition_max_bytes: int
    partitions: Sequence[PartitionFetch]


class DivergingEpoch(NamedTuple):
    """The place where the leader's log and the follower's diverge: the leader's largest epoch that is not above the
    follower's, and its end offset."""

    leader_epoch: int
    end_offset: int


class FetchedPartition(NamedTuple):
    """The leader's reply for one partition. `code` is Kafka's number, 0 for none. `log_start_offset` includes cold
    records, `local_start_offset` is the first offset on the leader's disk. `cold_end_offset` is the end of what the
    bucket has: the follower may delete local records below it. `may_have_gaps`: compaction may have removed offsets
    from the leader's log, between batches too."""

    topic_id: TopicId
    partition: int
    code: int
    high_watermark: int
    log_start_offset: int
    local_start_offset: int
    cold_end_offset: int
    diverging_epoch: DivergingEpoch | None
    records: Buffer
    may_have_gaps: bool = False


class MarkerRequest(NamedTuple):
    """The marker of one transaction, for partitions that another broker leads. `version` is the transaction version:
    from 2 on, the epoch of the marker is above that of the transaction's records."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    version: int
    partitions: Sequence[TopicPartition]


class TransactionPartitions(NamedTuple):
    """Partitions that join the transaction of a producer. With `verify_only` none joins, and the reply says which of
    them are in the transaction (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool
    partitions: Sequence[TopicPartition]


class QuotaUse(NamedTuple):
    """The use of a quota by a client: bytes, seconds or changes. `user` and `client_id` are those of its `Limit`."""

    key: str
    user: str
    client_id: str
    value: float
    bound: float


PartitionCodes = Mapping[TopicPartition, Code]
"""Kafka's code for each partition of a request."""


class Peers(Protocol):
    """Calls to the other brokers, each at its HOST:PORT. Timeouts are in seconds.

    Every call carries `cluster_id` and `credential` once they are known. A broker of another cluster that now has the
    address replies `Refused(INCONSISTENT_CLUSTER_ID)`. A broker of this cluster replies
    `Refused(CLUSTER_AUTHORIZATION_FAILED)` to a caller without its credential.
    """

    cluster_id: str
    credential: bytes

    async def fetch_metadata(self, address: str, metadata_fetch: MetadataFetch, timeout: float) -> MetadataFetchReply:
        """Fetches the metadata log from the controller. Raises `Refused(NOT_CONTROLLER)` if another broker is the
        controller, or none is yet."""
        ...

    async def forward(
        self, address: str, request: bytes, timeout: float, on_send: Callable[[], None] = lambda: None
    ) -> ForwardReply:
        """Sends a request to the controller. Raises `Refused` if the controller refuses it. NOT_CONTROLLER means that
        nothing was done. The request leaves this broker only after `on_send` was called; an error before that call also
        means that nothing was done."""
        ...

    async def get_controller_view(self, address: str, timeout: float) -> ControllerView:
        """Returns another broker's view of the controller."""
        ...

    async def fetch(self, address: str, replica_fetch: ReplicaFetch, timeout: float) -> Sequence[FetchedPartition]:
        """Fetches records from a leader: one reply for each requested partition, in any order. A partition without news
        may be missing: its previous reply still holds."""
        ...

    async def write_txn_markers(
        self, address: str, markers: Sequence[MarkerRequest], timeout: float
    ) -> Sequence[PartitionCodes]:
        """Writes markers to partitions that another broker leads. Returns the codes of each marker, once the markers
        are committed or refused."""
        ...

    async def add_partitions_to_txn(
        self, address: str, transactions: Sequence[TransactionPartitions], timeout: float
    ) -> Sequence[PartitionCodes]:
        """Adds partitions to transactions, or verifies them, at the broker that coordinates these. Returns the codes of
        each transaction."""
        ...

    async def find_transactions(
        self, address: str, states: Collection[str], producer_ids: Collection[int], timeout: float
    ) -> Sequence[FoundTransaction]:
        """Returns the transactions of these producer ids that are in one of these states at the broker that coordinates
        them. Raises `Refused` if the broker has not loaded all of its coordinators, or may leave out some ids."""
        ...

    async def report_quota_use(self, address: str, uses: Sequence[QuotaUse], timeout: float) -> None:
        """Reports to another process of this machine what clients used of their quotas here."""
        ...

    async def check_listening(self, address: str, timeout: float) -> None:
        """Returns if a process listens at the address. Raises `Unavailable` with the obstacle otherwise."""
        ...

    async def is_gone(self, address: str, timeout: float) -> bool:
        """True only if the connection was refused, so that the process has ended."""
        ...

    async def close(self) -> None:
        """Closes all connections."""
        ...
