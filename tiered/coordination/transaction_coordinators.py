"""The transaction coordinators of one broker: transaction shards, run by a coordinator host over `__transaction_state`.

The host loads, runs and ends the coordinators. This file adds what is of transactions: producer ids that the shards
need, the sending of markers, waits for a transaction that is about to complete, log lines and metrics.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tiered.controller.channel import RequestChannel
from tiered.controller.member_view import MemberView
from tiered.coordination.internal_topic import InternalTopic, InternalTopicSize
from tiered.coordination.producer_ids import ProducerIds
from tiered.coordination.transaction_markers import MarkerPorts, OwnPartitions, TransactionMarkers
from tiered.coordinator.host import CoordinatorHost, HostPorts
from tiered.coordinator.log_records import encode_batches
from tiered.coordinator.partition import CoordinatorPartition
from tiered.coordinator.routing import partition_of
from tiered.coordinator.runtime import FindExpiryMs
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore
from tiered.durability.loss_rules import ANY_TIME, find_renewal
from tiered.errors import Code
from tiered.hosting.hosted_replicas import HostedReplicas
from tiered.metadata.topic_names import TRANSACTIONS_TOPIC
from tiered.metrics import Metrics
from tiered.object_store.metered import MeteredStore
from tiered.peers import Peers
from tiered.ports import Clock
from tiered.quotas.shares import TRANSACTION_BYTES, Holdings
from tiered.replication.leader_replica import LeaderReplica
from tiered.shard import CoordinatorRecord
from tiered.transactions.limits import TransactionSettings
from tiered.transactions.metadata import NO_PRODUCER_ID
from tiered.transactions.records import transaction_record
from tiered.transactions.renewal import renew_producer
from tiered.transactions.requests import (
    AddPartitions,
    EndTransaction,
    Event,
    InitProducerId,
    KeysForgotten,
    ListedTransaction,
    ListReply,
    ListTransactions,
    MarkersDue,
    MarkersWritten,
    Reply,
    Request,
    TransactionTimedOut,
)
from tiered.transactions.shard import TransactionShard

log = logging.getLogger(__name__)

SUBMIT_SECONDS = 30.0
COMPLETION_SECONDS = 0.1
"""Longest time that a request waits for the markers of the transaction before its own, instead of a retry by the client
(Kafka's add.partitions.to.txn.retry.backoff.max.ms)."""
RENEWED_AT_ONCE = 500
"""Producers that are renewed before others have their turn."""
COUNTED_EVERY = 32
"""Calls after which the memory of all ids is counted again."""
RECHECK_SECONDS = 0.005
"""Pause before a request is decided again if no marker is missing."""
PARTITIONS_AT_ONCE = 16
"""Partitions of a transaction whose requests are decided at once: each of its records names all partitions."""
COMPLETION_WAITS_MAX = 10_000
"""Most requests that wait for a completion at the same time. Further ones get CONCURRENT_TRANSACTIONS at once."""


@dataclass(frozen=True)
class TransactionPorts:
    """The parts of a broker that its transaction coordinators use."""

    view: MemberView
    channel: RequestChannel
    replicas: HostedReplicas
    store: MeteredStore
    snapshot_store: CoordinatorSnapshotStore
    clock: Clock
    peers: Peers | None
    producer_ids: ProducerIds
    own_partitions: OwnPartitions
    has_controller_contact: Callable[[], bool]
    find_expiry_ms: FindExpiryMs


class TransactionCoordinators:
    """Serves all requests about transactions that this broker coordinates."""

    noun = "transactional ids"
    parked_requests = frozenset[type]()

    def __init__(self, ports: TransactionPorts, metrics: Metrics) -> None:
        self.timed_out = 0
        self.keys_forgotten = 0
        self._view = ports.view
        self._clock = ports.clock
        self._producer_ids = ports.producer_ids
        self._topic = InternalTopic(TRANSACTIONS_TOPIC, self._topic_size, ports.view, ports.channel)
        loader, store = ports.view.loader, ports.store
        self.host: CoordinatorHost[TransactionShard, Request, Reply] = CoordinatorHost(
            self,
            ports.snapshot_store,
            HostPorts(
                ports.view.node_id, ports.clock, ports.replicas, lambda: loader.image, ports.has_controller_contact,
                lambda: store.takes_writes, ports.find_expiry_ms,
            ),
            self._topic.ensure,
            metrics.histogram(
                "tiered_transaction_load_seconds", "From leading a partition of transactional ids to serving them.",
                (0.01, 0.1, 1, 10, 60),
            ),
        )  # fmt: skip
        self.markers = TransactionMarkers(
            MarkerPorts(ports.view, ports.clock, ports.peers, ports.own_partitions), self._on_markers_written, metrics
        )
        self._completion_waits: dict[str, list[asyncio.Future[None]]] = {}
        self._renewed_epochs: dict[int, int] = {}
        """Leader epoch in which the producers of a partition were renewed last, by partition."""
        self._waiting = 0
        self._calls_until_count = self._counted_bytes = 0
        self.holdings = Holdings(
            TRANSACTION_BYTES,
            lambda: self._view.settings.tiered_transactions_max_bytes,
            lambda: self.memory_bytes,
            lambda: (shard.state.by_holder for shard in self.host.shards()),
        )
        self._add_metrics(metrics)

    def _topic_size(self) -> InternalTopicSize:
        settings = self._view.settings
        return InternalTopicSize(
            settings.transaction_state_log_num_partitions, settings.transaction_state_log_replication_factor
        )

    def _add_metrics(self, metrics: Metrics) -> None:
        metrics.gauge(
            "tiered_transactional_ids", "Transactional ids that this broker coordinates, by state.", ("state",)
        ).set_function(self._count_by_state)
        metrics.gauge(
            "tiered_transactional_id_bytes", "Memory that all transactional ids hold here, about."
        ).set_function(lambda: float(self.memory_bytes))
        metrics.counter(
            "tiered_transactions_timed_out_total", "Transactions that were aborted at their timeout."
        ).set_function(lambda: self.timed_out)
        metrics.counter(
            "tiered_transaction_keys_forgotten_total",
            "Idempotency keys of transactions that made room for others before their time was over.",
        ).set_function(lambda: self.keys_forgotten)
        metrics.gauge(
            "tiered_transaction_image_lag_seconds", "Age of the oldest change of transactional ids not in the bucket."
        ).set_function(self.host.snapshot_lag_seconds)
        metrics.gauge(
            "tiered_transaction_partitions_loading", "Partitions of transactional ids that are not served yet."
        ).set_function(lambda: float(self.host.count_loading()))

    # -- requests -----------------------------------------------------------------------------------------------------

    async def submit(self, transactional_id: str, request: Request, timeout: float = SUBMIT_SECONDS) -> Any:
        """Returns the reply that the request names. Raises `Refused` like `CoordinatorHost.submit`.

        A request that would begin a transaction, or fence its producer, waits a short time for the markers of the
        transaction before.
        """
        until = asyncio.get_running_loop().time() + COMPLETION_SECONDS
        while True:
            reply: Any = await self.host.submit(transactional_id, await self._add_producer_id(request), timeout)
            if not isinstance(request, AddPartitions | InitProducerId):
                return reply
            if reply.code is not Code.CONCURRENT_TRANSACTIONS or not await self._wait_completed(
                transactional_id, until
            ):
                return reply

    def submit_now(self, transactional_id: str, request: Request) -> Reply | None:
        """Returns the reply if it is there without a wait, as `submit` does. Returns None, without effect, if `submit`
        has to wait or to look. Raises `Refused` like `submit`."""
        coordinator = self.host.find_committing(transactional_id)
        if coordinator is None or coordinator.shard.needs_producer_id(request):
            return None
        state = coordinator.shard.state
        if transactional_id in state.unmarked and isinstance(request, AddPartitions | InitProducerId):
            return None
        found = state.transactions.get(transactional_id)
        if found is not None and len(found.partitions) > PARTITIONS_AT_ONCE:
            return None
        with self.markers.write_at_once(PARTITIONS_AT_ONCE):
            return coordinator.submit_now(request)

    async def _add_producer_id(self, request: Request) -> Request:
        """Returns the request with a new producer id, if its decision needs one."""
        if not isinstance(request, InitProducerId | EndTransaction):
            return request
        await self.host.partition_for(request.transactional_id)
        shard = self.host.find_shard(request.transactional_id)
        if shard is None or not shard.needs_producer_id(request):
            return request
        return replace(request, new_producer_id=await self._producer_ids.next_id())

    async def ensure_topic(self) -> None:
        """Creates `__transaction_state` if it does not exist. Raises `Refused` with COORDINATOR_NOT_AVAILABLE."""
        await self._topic.ensure()

    async def list_transactions(
        self,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int = -1,
        pause: Callable[[], Awaitable[None]] | None = None,
    ) -> list[ListedTransaction]:
        """Returns the transactional ids that this broker coordinates, and that pass all filters.

        Raises `Refused` with COORDINATOR_LOAD_IN_PROGRESS while not all are known.
        """
        request = ListTransactions(frozenset(states), frozenset(producer_ids), duration_ms)
        replies = await self.host.submit_to_each(request, pause)
        return [each for reply in replies if isinstance(reply, ListReply) for each in reply.transactions]

    def find_names(self, producer_ids: Collection[int]) -> dict[int, str]:
        """Returns the transactional ids of these producer ids, as far as this broker coordinates them."""
        return {
            value.producer_id: name
            for shard in self.host.shards()
            for name, value in shard.state.transactions.items()
            if value.producer_id in producer_ids
        }

    @property
    def memory_bytes(self) -> int:
        """About how many bytes of memory all transactional ids of this broker take."""
        return sum(shard.state.memory_bytes for shard in self.host.shards())

    def _count_memory(self) -> int:
        """Returns the memory of all ids as it was at most `COUNTED_EVERY` calls ago: each transaction needs it."""
        if not self._calls_until_count:
            self._calls_until_count, self._counted_bytes = COUNTED_EVERY, self.memory_bytes
        self._calls_until_count -= 1
        return self._counted_bytes

    # -- completion ---------------------------------------------------------------------------------------------------

    async def _wait_completed(self, transactional_id: str, until: float) -> bool:
        """Returns True once the markers of a decided transaction are written; False if that takes too long."""
        if self._waiting >= COMPLETION_WAITS_MAX:
            return False
        shard = self.host.find_shard(transactional_id)
        if shard is None or transactional_id not in shard.state.unmarked:
            await self._clock.sleep(RECHECK_SECONDS)  # a request without a pause could try for ever
            return shard is not None and asyncio.get_running_loop().time() < until
        completed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waits = self._completion_waits.setdefault(transactional_id, [])
        waits.append(completed)
        self._waiting += 1
        try:
            async with asyncio.timeout_at(until):
                await completed
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
            waits.remove(completed)
            if not waits and self._completion_waits.get(transactional_id) is waits:
                del self._completion_waits[transactional_id]
        return True

    def _on_markers_written(self, partition: int, coordinator_epoch: int, written: MarkersWritten) -> None:
        """Tells a coordinator about its markers. One that has ended since does not need it."""
        found = self.host.led_partitions.get(partition)
        coordinator = found.coordinator if found is not None else None
        if found is None or coordinator is None or found.replica.leader_epoch != coordinator_epoch:
            return
        coordinator.submit_unawaited(written, at_once=coordinator.commits_on_append)
        name = written.transactional_id
        if name in self._completion_waits and name not in coordinator.shard.state.unmarked:
            for completed in self._completion_waits[name]:
                if not completed.done():
                    completed.set_result(None)

    # -- the cluster --------------------------------------------------------------------------------------------------

    def on_resign(self, replica: LeaderReplica) -> None:
        """Ends the coordinator of a partition, and its markers."""
        if replica.topic == TRANSACTIONS_TOPIC:
            self.markers.cancel(replica.partition)
        self.host.on_resign(replica)

    def on_image(self) -> None:
        """Sends markers again whose partitions may have other leaders."""
        self.markers.on_image()

    # -- shards -------------------------------------------------------------------------------------------------------

    @property
    def observer(self) -> TransactionCoordinators:
        """Takes the events of the shards."""
        return self

    def make_shard(self) -> TransactionShard:
        """Returns a shard without transactional ids."""
        settings = self._view.settings
        shard = TransactionShard(
            TransactionSettings(
                timeout_max_ms=settings.transaction_max_timeout_ms,
                id_expiration_ms=settings.transactional_id_expiration_ms,
                expiration_check_ms=settings.transaction_remove_expired_transaction_cleanup_interval_ms,
                bytes_max=settings.tiered_transactions_max_bytes,
                key_expiration_ms=settings.producer_id_expiration_ms,
            ),
            lambda: self._count_memory() - shard.state.memory_bytes,
        )
        shard.state.find_own, shard.state.on_refused = self.holdings.own, self.holdings.on_refused
        return shard

    async def find_corrections(
        self,
        shard: TransactionShard,
        partition: CoordinatorPartition[TransactionShard, Request, Reply],
        *,
        is_part_lost: bool,
    ) -> Sequence[Request]:
        """Renews the producers of a log that may have lost records (R5), or that lacks some behind its snapshot.

        Raises `Refused` if the partition is led no more: the log takes nothing of an earlier leadership.

        Returns nothing: a loaded shard requests the markers of decided transactions by itself.
        """
        if shard.state.skipped_records:
            log.error(
                "records of transactional ids cannot be read, the next snapshot lacks them partition=%s count=%d",
                partition.replica.tp, shard.state.skipped_records,
            )  # fmt: skip
        replica, names = partition.replica, list(shard.state.transactions)
        topic = self._view.image.topics_by_id.get(replica.topic_id)
        if topic is None or not names:
            return ()
        number, epoch = replica.partition, replica.leader_epoch
        until_ms = find_renewal(
            topic.partitions[number].loss, epoch,
            is_part_lost=is_part_lost, is_renewed=self._renewed_epochs.get(number) == epoch,
        )  # fmt: skip
        if until_ms is not None:
            await self._renew_producers(replica, shard, names, until_ms)
        if until_ms == ANY_TIME:
            self._renewed_epochs[number] = epoch
        return ()

    async def _renew_producers(
        self, replica: LeaderReplica, shard: TransactionShard, names: Sequence[str], until_ms: int
    ) -> None:
        """Writes records that give new producer ids to ids that are no newer, before the shard is served."""
        renewed = 0
        for first in range(0, len(names), RENEWED_AT_ONCE):
            records: list[CoordinatorRecord] = []
            for name in names[first : first + RENEWED_AT_ONCE]:
                value = shard.state.transactions[name]
                if value.updated_ms <= until_ms:
                    new_id = await self._producer_ids.next_id() if value.state.is_prepared else NO_PRODUCER_ID
                    records.append(transaction_record(name, renew_producer(value, self._clock.wall_ms(), new_id)))
            for each in encode_batches(records, self._clock.wall_ms()):
                await replica.append(bytearray(each))
            shard.apply(records)
            renewed += len(records)
            await self._clock.sleep(0)  # an append to the local log waits for nothing
        if renewed:
            log.warning("producers get new ids after a loss partition=%s transactional_ids=%d", replica.tp, renewed)

    def on_request(self, request: Request) -> None:
        """Notes nothing."""

    def on_event(self, event: Event) -> None:
        """Sends the markers of decided transactions, and logs timeouts."""
        match event:
            case MarkersDue():
                topic = self._view.image.topics.get(TRANSACTIONS_TOPIC)
                number = partition_of(event.transactional_id, len(topic.partitions)) if topic is not None else -1
                led = self.host.led_partitions.get(number)
                if led is not None:
                    self.markers.send(event, number, led.replica.leader_epoch)
            case KeysForgotten():
                self.keys_forgotten += event.keys
            case TransactionTimedOut():
                self.timed_out += 1
                log.warning(
                    "transaction is aborted at its timeout transactional_id=%r producer_id=%d timeout_ms=%d",
                    event.transactional_id, event.producer_id, event.timeout_ms,
                )  # fmt: skip

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs the coordinators and sends their markers until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.host.run())
            group.create_task(self.markers.run())

    def _count_by_state(self) -> Mapping[tuple[str, ...], float]:
        states = Counter(
            value.state.label for shard in self.host.shards() for value in shard.state.transactions.values()
        )
        return {(state,): count for state, count in states.items()}
