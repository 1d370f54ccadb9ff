"""Queries the coordinator of a transaction: partitions belong to the transaction (KIP-890), or are added to it.

The coordinator may be another broker. Requests to it that come together go in one frame.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from tiered.controller.member_view import MemberView
from tiered.coordination.transaction_coordinators import TransactionCoordinators
from tiered.coordinator.routing import partition_of
from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.topic_names import TRANSACTIONS_TOPIC
from tiered.metrics import Metrics
from tiered.peers import PartitionCodes, Peers, TransactionPartitions
from tiered.transactions.requests import AddPartitions, CodeReply, Reply, VerifyPartitions, VerifyReply

REQUEST_SECONDS = 10.0
"""Time limit of a request to another coordinator."""
QUERY_SECONDS = 2 * REQUEST_SECONDS
"""Time limit of a query, with the requests before it."""
BATCH_TRANSACTIONS = 500
"""Most transactions of one request."""
REQUESTS_MAX = 4
"""Most requests to one broker at the same time."""
WAITING_MAX = 20_000
"""Most transactions that wait for one broker. Further ones are refused."""
ADDED_VERSION = 2
"""Transaction version of partitions that join with their first record."""


class _Waiting(NamedTuple):
    requested: TransactionPartitions
    reply: asyncio.Future[PartitionCodes]


class TransactionVerification:
    """The queries of one broker to all coordinators. Without `peers` it has no other brokers."""

    def __init__(
        self, view: MemberView, coordinators: TransactionCoordinators, peers: Peers | None, metrics: Metrics
    ) -> None:
        self._view = view
        self._coordinators = coordinators
        self._peers = peers
        self._waiting: defaultdict[int, list[_Waiting]] = defaultdict(list)
        self._requests: defaultdict[int, set[asyncio.Task[None]]] = defaultdict(set)
        self._failures = metrics.counter(
            "kafka_server_addpartitionstotxnmanager_verificationfailures_total",
            "Partitions that were not in the transaction, or whose coordinator did not say so.",
        )
        self._limits: dict[asyncio.Timeout, tuple[int, list[TransactionPartitions]]] = {}
        """Requests in progress by their time limit."""

    async def query(self, requested: TransactionPartitions) -> Mapping[TopicPartition, Code]:
        """Returns a code for each partition: NONE if it is in the transaction.

        The code is that of the coordinator, or NETWORK_EXCEPTION or a code about the coordinator if none replied.
        """
        codes = await self._query(requested)
        failures = sum(code is not Code.NONE for code in codes.values())
        if failures:
            self._failures.inc(failures)
        return codes

    def confirm_now(self, requested: TransactionPartitions) -> bool:
        """True if this broker is the coordinator, and replies without a wait that all partitions are in the
        transaction. Otherwise `query` says what is wrong."""
        try:
            reply = self._coordinators.submit_now(requested.transactional_id, _request_of(requested))
        except Refused:
            return False
        return reply is not None and all(code is Code.NONE for code in _codes_of(reply, requested).values())

    async def _query(self, requested: TransactionPartitions) -> Mapping[TopicPartition, Code]:
        leader = self._coordinator_of(requested.transactional_id)
        if leader == self._view.node_id:
            return await self.query_here(requested)
        if leader < 0 or self._peers is None or len(self._waiting[leader]) >= WAITING_MAX:
            return dict.fromkeys(requested.partitions, Code.COORDINATOR_NOT_AVAILABLE)
        reply: asyncio.Future[PartitionCodes] = asyncio.get_running_loop().create_future()
        self._waiting[leader].append(_Waiting(requested, reply))
        self._start_request(leader)
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                return await reply
        except TimeoutError:
            return dict.fromkeys(requested.partitions, Code.NETWORK_EXCEPTION)

    def on_image(self) -> None:
        """Ends the requests to brokers that are no longer coordinators: they may be silent."""
        for limit, (node_id, requested) in list(self._limits.items()):
            if limit.expired():  # its task ends it at its next turn
                continue
            if any(self._coordinator_of(each.transactional_id) != node_id for each in requested):
                limit.reschedule(asyncio.get_running_loop().time())

    def _coordinator_of(self, transactional_id: str) -> int:
        """Returns the coordinator, or NO_LEADER."""
        topic = self._view.image.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return NO_LEADER
        return topic.partitions[partition_of(transactional_id, len(topic.partitions))].leader

    async def query_here(self, requested: TransactionPartitions) -> PartitionCodes:
        """Does the same if this broker is the coordinator."""
        try:
            reply = await self._coordinators.submit(requested.transactional_id, _request_of(requested))
        except Refused as refused:
            return dict.fromkeys(requested.partitions, refused.code)
        return _codes_of(reply, requested)

    async def close(self) -> None:
        """Ends all requests. The callers that wait are cancelled by their owner."""
        tasks = [task for tasks in self._requests.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_request(self, node_id: int) -> None:
        tasks = self._requests[node_id]
        if len(tasks) < REQUESTS_MAX:
            task = asyncio.get_running_loop().create_task(self._send_waiting(node_id))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _send_waiting(self, node_id: int) -> None:
        """Sends all that waits for a broker, in frames."""
        while waiting := [each for each in self._waiting.pop(node_id, ()) if not each.reply.done()]:
            batch, rest = waiting[:BATCH_TRANSACTIONS], waiting[BATCH_TRANSACTIONS:]
            if rest:
                self._waiting[node_id] = rest
            codes = await self._send(node_id, [each.requested for each in batch])
            for each, found in zip(batch, codes, strict=True):
                if not each.reply.done():
                    each.reply.set_result(found)

    async def _send(self, node_id: int, requested: list[TransactionPartitions]) -> list[PartitionCodes]:
        assert self._peers is not None
        address = self._view.address_of(node_id)
        code = Code.NETWORK_EXCEPTION
        if not address or any(self._coordinator_of(each.transactional_id) != node_id for each in requested):
            return [dict.fromkeys(each.partitions, code) for each in requested]
        try:
            async with asyncio.timeout(REQUEST_SECONDS) as limit:
                self._limits[limit] = node_id, requested
                try:
                    replies = await self._peers.add_partitions_to_txn(address, requested, REQUEST_SECONDS)
                finally:
                    del self._limits[limit]
            return [
                {tp: found.get(tp, Code.NETWORK_EXCEPTION) for tp in each.partitions}
                for each, found in zip(requested, replies, strict=True)
            ]
        except Refused as refused:
            code = refused.code
        except (Unavailable, TimeoutError, ValueError):  # ValueError: a reply of another length
            pass
        return [dict.fromkeys(each.partitions, code) for each in requested]


def _request_of(requested: TransactionPartitions) -> VerifyPartitions | AddPartitions:
    """Returns the request to the coordinator."""
    wanted = frozenset(requested.partitions)
    if requested.verify_only:
        return VerifyPartitions(requested.transactional_id, requested.producer_id, requested.producer_epoch, wanted)
    return AddPartitions(
        requested.transactional_id, requested.producer_id, requested.producer_epoch, wanted, ADDED_VERSION
    )


def _codes_of(reply: Reply, requested: TransactionPartitions) -> dict[TopicPartition, Code]:
    """Returns the code of each partition in the coordinator's reply."""
    if isinstance(reply, VerifyReply):
        return dict(reply.codes)
    assert isinstance(reply, CodeReply)
    return dict.fromkeys(requested.partitions, reply.code)
