"""Sends the markers of decided transactions to the leaders of their partitions, until each marker is committed.

A leader is looked up in the image for every attempt, so a partition that moved is found again. A partition whose topic
is gone needs no marker. The coordinator ends the work when it resigns: its successor requests all markers again. A
marker that is written twice changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

from tiered.controller.member_view import MemberView
from tiered.coordination.marker_writer import MarkerDue
from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.log_limiter import LogLimiter
from tiered.metadata.changes import NO_LEADER
from tiered.metrics import Metrics
from tiered.peers import MarkerRequest, PartitionCodes, Peers
from tiered.ports import Clock
from tiered.records.marker import TransactionMarker
from tiered.transactions.requests import MarkersDue, MarkersWritten

log = logging.getLogger(__name__)

BATCH_PARTITIONS = 500
"""Most partitions of one request to a broker."""
REQUESTS_MAX = 16
"""Most requests to another broker at the same time: a partition that waits for its replicas delays few others."""
OWN_BATCH_PARTITIONS = 100
"""Most partitions of one batch of this broker's own. One batch begins in a turn of the event loop, so that requests of
clients run between batches."""
OWN_REQUESTS_MAX = 5_000
"""Most batches of this broker's own partitions at the same time."""
REQUEST_SECONDS = 15.0
"""Time limit of a request to another broker."""
RETRY_SECONDS = (0.05, 1.0)
"""Shortest and longest pause before partitions that refused a marker get it again. A new image ends the pause."""


class OwnPartitions(Protocol):
    """The partitions of this broker: `MarkerWriter` in a broker."""

    def write_now(self, due: MarkerDue) -> bool:
        """Writes a marker if that needs no wait. True if it is committed then. Raises `Refused`."""

    async def try_write(self, due: MarkerDue) -> Code:
        """Writes a marker if it is not there yet, and returns once it is committed or refused."""


@dataclass(eq=False, slots=True)
class PendingMarkers:
    """The markers of one transaction that are not committed yet, in the partitions that are `left`."""

    coordinator: tuple[int, int]
    """Partition of `__transaction_state`, and its leader epoch."""
    transactional_id: str
    marker: TransactionMarker
    left: set[TopicPartition]
    is_dropped: bool = False


class _Target(NamedTuple):
    pending: PendingMarkers
    tp: TopicPartition


@dataclass(frozen=True)
class MarkerPorts:
    """The parts of a broker that send markers. Without `peers` there are no other brokers."""

    view: MemberView
    clock: Clock
    peers: Peers | None
    own_partitions: OwnPartitions


class TransactionMarkers:
    """The markers of all coordinators of one broker.

    `on_written` gets the partition of `__transaction_state`, its leader epoch, and the partitions that have the marker.
    """

    def __init__(
        self, ports: MarkerPorts, on_written: Callable[[int, int, MarkersWritten], None], metrics: Metrics
    ) -> None:
        self._view = ports.view
        self._peers = ports.peers
        self._own_partitions = ports.own_partitions
        self._on_written = on_written
        self._pending: dict[str, PendingMarkers] = {}
        self._ready: defaultdict[int, dict[_Target, None]] = defaultdict(dict)
        """Targets by the broker that leads them."""
        self._requests: defaultdict[int, int] = defaultdict(int)
        """Requests in progress by broker."""
        self._own_turn: asyncio.Handle | None = None
        """The later turn in which the next batch of own partitions begins."""
        self._requests_there: dict[asyncio.Timeout, tuple[int, Sequence[_Target]]] = {}
        """Requests in progress to other brokers by their time limit."""
        self._delayed: dict[_Target, None] = {}
        self._delay_began = asyncio.Event()
        self._retry_now = asyncio.Event()
        self._room_now = 0
        """Markers that may still be written in the call that brings the decision."""
        self._tasks: asyncio.TaskGroup | None = None
        self._log_limiter = LogLimiter(ports.clock)
        metrics.gauge(
            "tiered_transaction_markers_pending", "Transactions whose markers are not all committed yet."
        ).set_function(lambda: float(len(self._pending)))
        metrics.gauge(
            "kafka_coordinator_transaction_transactionmarkerchannelmanager_unknowndestinationqueuesize",
            "Partitions that have no leader for their marker, or refused it.",
        ).set_function(lambda: float(len(self._delayed)))
        self._written = metrics.counter(
            "tiered_transaction_markers_total", "Markers of transactions by outcome.", ("outcome",)
        )

    # -- the coordinators ---------------------------------------------------------------------------------------------

    def send(self, due: MarkersDue, partition: int, coordinator_epoch: int) -> None:
        """Sends the markers of a decided transaction. Markers that were due for its id before are dropped."""
        marker = TransactionMarker(due.producer_id, due.producer_epoch, due.commit, coordinator_epoch, due.version)
        self._drop(due.transactional_id)
        pending = PendingMarkers((partition, coordinator_epoch), due.transactional_id, marker, set(due.partitions))
        self._pending[due.transactional_id] = pending
        self._route([_Target(pending, tp) for tp in sorted(due.partitions)])

    @contextmanager
    def write_at_once(self, room: int) -> Iterator[None]:
        """Lets decisions that come meanwhile write up to `room` markers in their calls, where that needs no wait."""
        self._room_now = room
        try:
            yield
        finally:
            self._room_now = 0

    def cancel(self, partition: int) -> None:
        """Drops all markers of a coordinator that has ended."""
        for each in [each for each in self._pending.values() if each.coordinator[0] == partition]:
            self._drop(each.transactional_id)

    def on_image(self) -> None:
        """Tries again at once: partitions may have other leaders. No request waits for a broker that lost one."""
        for limit, (node_id, targets) in list(self._requests_there.items()):
            if limit.expired():  # its task ends it at its next turn
                continue
            if any(self._leader_of(target) != node_id for target in targets):
                limit.reschedule(asyncio.get_running_loop().time())
        if self._delayed:
            self._retry_now.set()

    def _drop(self, transactional_id: str) -> None:
        pending = self._pending.pop(transactional_id, None)
        if pending is not None:
            pending.is_dropped = True

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Sends markers until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            self._tasks = group
            for node_id in list(self._ready):
                self._start_requests(node_id)
            try:
                await self._run_retries()
            finally:
                if self._own_turn is not None:
                    self._own_turn.cancel()

    async def _run_retries(self) -> None:
        pause = RETRY_SECONDS[0]
        while True:
            if not self._delayed:
                pause = RETRY_SECONDS[0]
            await self._delay_began.wait()
            self._delay_began.clear()
            self._retry_now.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._retry_now.wait()
            except TimeoutError:
                pause = min(2 * pause, RETRY_SECONDS[1])
            delayed, self._delayed = self._delayed, {}
            self._route(delayed)

    def _route(self, targets: Iterable[_Target]) -> None:
        """Gives each target to the broker that leads it. A partition that is gone is done."""
        done: list[_Target] = []
        written: list[_Target] = []
        nodes: dict[int, None] = {}
        for target in targets:
            if target.pending.is_dropped:
                continue
            leader = self._leader_of(target)
            if leader is None:
                done.append(target)
            elif leader == NO_LEADER:
                self._delay(target)
            elif leader == self._view.node_id and self._is_written_now(target):
                written.append(target)
            else:
                self._ready[leader][target] = None
                nodes[leader] = None
        for node_id in nodes:
            self._start_requests(node_id)
        if written:
            self._finish(written, "written")
        self._finish(done, "gone")

    def _leader_of(self, target: _Target) -> int | None:
        """Returns the leader of a target's partition, or None if the partition is gone."""
        topic = self._view.image.topics.get(target.tp.topic)
        if topic is None or target.tp.partition >= len(topic.partitions):
            return None
        return topic.partitions[target.tp.partition].leader

    def _delay(self, target: _Target) -> None:
        self._delayed[target] = None
        self._delay_began.set()

    def _start_requests(self, node_id: int) -> None:
        """Starts requests to a broker while targets wait for it, and it has few requests in progress."""
        ready, is_own = self._ready[node_id], node_id == self._view.node_id
        most, most_partitions = (OWN_REQUESTS_MAX, OWN_BATCH_PARTITIONS) if is_own else (REQUESTS_MAX, BATCH_PARTITIONS)
        while self._tasks is not None and ready and self._requests[node_id] < most:
            if is_own and self._own_turn is not None:
                return
            batch = list(islice(ready, most_partitions))
            for target in batch:
                del ready[target]
            if is_own and ready:
                self._own_turn = asyncio.get_running_loop().call_soon(self._continue_own)
            live = [target for target in batch if not target.pending.is_dropped]
            if live:
                self._requests[node_id] += 1
                self._tasks.create_task(self._send(node_id, live))
        if not ready:
            self._ready.pop(node_id, None)

    def _continue_own(self) -> None:
        self._own_turn = None
        self._start_requests(self._view.node_id)

    async def _send(self, node_id: int, targets: Sequence[_Target]) -> None:
        try:
            if node_id == self._view.node_id:
                codes = await self._write_here(targets)
            else:
                codes = await self._write_there(node_id, targets)
        finally:
            self._requests[node_id] -= 1
            if not self._requests[node_id]:
                del self._requests[node_id]
        self._take_codes(node_id, targets, codes)
        if node_id in self._ready:
            self._start_requests(node_id)

    async def _write_here(self, targets: Sequence[_Target]) -> Mapping[_Target, Code]:
        writes = (self._own_partitions.try_write(MarkerDue(each.tp, each.pending.marker)) for each in targets)
        return dict(zip(targets, await asyncio.gather(*writes), strict=True))

    def _is_written_now(self, target: _Target) -> bool:
        """Writes a marker, while there is room. True if it is committed without a wait, because this broker has the
        only replica in sync."""
        if not self._room_now:
            return False
        self._room_now -= 1
        try:
            return self._own_partitions.write_now(MarkerDue(target.tp, target.pending.marker))
        except (Refused, Unavailable):  # the write that follows gets the same
            return False

    async def _write_there(self, node_id: int, targets: Sequence[_Target]) -> Mapping[_Target, Code]:
        by_transaction: dict[PendingMarkers, list[TopicPartition]] = {}
        for pending, tp in targets:
            by_transaction.setdefault(pending, []).append(tp)
        markers = [
            MarkerRequest(
                each.marker.producer_id, each.marker.producer_epoch, each.marker.commit, each.marker.coordinator_epoch,
                each.marker.version, tps,
            )
            for each, tps in by_transaction.items()
        ]  # fmt: skip
        address = self._view.address_of(node_id)
        try:
            if self._peers is None or not address:
                raise Unavailable(f"broker {node_id} has announced no address")
            async with asyncio.timeout(REQUEST_SECONDS) as limit:
                self._requests_there[limit] = node_id, targets
                try:
                    replies: Sequence[PartitionCodes] = await self._peers.write_txn_markers(
                        address, markers, REQUEST_SECONDS
                    )
                finally:
                    del self._requests_there[limit]
        except TimeoutError:
            self._warn("request", f"broker {node_id} has not replied, or no longer leads all partitions")
            return {}
        except (Refused, Unavailable) as error:
            self._warn("request", f"broker {node_id}: {error}")
            return {}
        return {
            _Target(pending, tp): code
            for (pending, _), codes in zip(by_transaction.items(), replies, strict=False)
            for tp, code in codes.items()
        }

    # -- outcomes -----------------------------------------------------------------------------------------------------

    def _take_codes(self, node_id: int, targets: Sequence[_Target], codes: Mapping[_Target, Code]) -> None:
        done: dict[str, list[_Target]] = defaultdict(list)
        for target in targets:
            if target.pending.is_dropped:
                continue
            code = codes.get(target, Code.NETWORK_EXCEPTION)
            match code:
                case Code.NONE:
                    done["written"].append(target)
                case Code.INVALID_PRODUCER_EPOCH | Code.UNSUPPORTED_FOR_MESSAGE_FORMAT:
                    # The partition has a later epoch of the producer, which ended every transaction before it.
                    log.warning(
                        "marker is out of date partition=%s producer_id=%d code=%s",
                        target.tp,
                        target.pending.marker.producer_id,
                        code,
                    )
                    done["late"].append(target)
                case Code.TRANSACTION_COORDINATOR_FENCED:
                    # A later coordinator has written there. `cancel` drops these markers once this broker knows of it.
                    # If it is the coordinator still, nobody else would send them.
                    self._warn("fenced", f"{target.tp} knows a later coordinator of {target.pending.transactional_id}")
                    self._written.inc(1, "fenced")
                    self._delay(target)
                case _:
                    if code is not Code.NETWORK_EXCEPTION:
                        self._warn("marker", f"{target.tp} at broker {node_id}: {code}")
                    self._written.inc(1, "failed")
                    self._delay(target)
        for outcome, found in done.items():
            self._finish(found, outcome)

    def _finish(self, targets: Iterable[_Target], outcome: str) -> None:
        """Tells the coordinators which partitions have their markers."""
        by_transaction: dict[PendingMarkers, list[TopicPartition]] = {}
        for pending, tp in targets:
            if not pending.is_dropped and tp in pending.left:
                pending.left.discard(tp)
                by_transaction.setdefault(pending, []).append(tp)
        for pending, tps in by_transaction.items():
            self._written.inc(len(tps), outcome)
            if not pending.left:
                self._pending.pop(pending.transactional_id, None)
            marker = pending.marker
            written = MarkersWritten(
                pending.transactional_id, marker.producer_id, marker.producer_epoch, frozenset(tps)
            )
            self._on_written(*pending.coordinator, written)

    def _warn(self, kind: str, why: str) -> None:
        suppressed = self._log_limiter.admit(kind)
        if suppressed is not None:
            log.warning("markers are sent again later suppressed=%d why=%s", suppressed, why)
