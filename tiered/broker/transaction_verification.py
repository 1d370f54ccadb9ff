"""Asks the coordinator of a transaction about partitions: if they belong to it (KIP-890), or to add them.

The coordinator may be another broker. Requests to it that come together go in one frame.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from tiered.broker.transaction_coordinators import TransactionCoordinators
from tiered.controller.member_view import MemberView
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
ANSWER_SECONDS = 2 * REQUEST_SECONDS
"""Time limit of a question, with the requests before it."""
BATCH_TRANSACTIONS = 500
"""Most transactions of one request."""
REQUESTS_MAX = 4
"""Most requests to one broker at the same time."""
WAITING_MAX = 20_000
"""Most transactions that wait for one broker. Further ones are refused."""
ADDED_VERSION = 2
"""Transaction version of partitions that join with their first record."""


class _Waiting(NamedTuple):
    asked: TransactionPartitions
    reply: asyncio.Future[PartitionCodes]


class TransactionVerification:
    """The questions of one broker to all coordinators. Without `peers` it has no other brokers."""

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

    async def ask(self, asked: TransactionPartitions) -> Mapping[TopicPartition, Code]:
        """Returns a code for each partition: NONE if it is in the transaction.

        The code is that of the coordinator, or NETWORK_EXCEPTION or a code about the coordinator if none replied.
        """
        codes = await self._ask(asked)
        failures = sum(code is not Code.NONE for code in codes.values())
        if failures:
            self._failures.inc(failures)
        return codes

    def confirm_now(self, asked: TransactionPartitions) -> bool:
        """True if this broker is the coordinator, and replies without a wait that all partitions are in the
        transaction. Otherwise `ask` says what is wrong."""
        try:
            reply = self._coordinators.submit_now(asked.transactional_id, _request_of(asked))
        except Refused:
            return False
        return reply is not None and all(code is Code.NONE for code in _codes_of(reply, asked).values())

    async def _ask(self, asked: TransactionPartitions) -> Mapping[TopicPartition, Code]:
        leader = self._coordinator_of(asked.transactional_id)
        if leader == self._view.node_id:
            return await self.ask_here(asked)
        if leader < 0 or self._peers is None or len(self._waiting[leader]) >= WAITING_MAX:
            return dict.fromkeys(asked.partitions, Code.COORDINATOR_NOT_AVAILABLE)
        reply: asyncio.Future[PartitionCodes] = asyncio.get_running_loop().create_future()
        self._waiting[leader].append(_Waiting(asked, reply))
        self._start_request(leader)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await reply
        except TimeoutError:
            return dict.fromkeys(asked.partitions, Code.NETWORK_EXCEPTION)

    def on_image(self) -> None:
        """Ends the requests to brokers that are no longer coordinators: they may be silent."""
        for limit, (node_id, asked) in list(self._limits.items()):
            if limit.expired():  # its task ends it at its next turn
                continue
            if any(self._coordinator_of(each.transactional_id) != node_id for each in asked):
                limit.reschedule(asyncio.get_running_loop().time())

    def _coordinator_of(self, transactional_id: str) -> int:
        """Returns the coordinator, or NO_LEADER."""
        topic = self._view.image.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return NO_LEADER
        return topic.partitions[partition_of(transactional_id, len(topic.partitions))].leader

    async def ask_here(self, asked: TransactionPartitions) -> PartitionCodes:
        """Does the same if this broker is the coordinator."""
        try:
            reply = await self._coordinators.submit(asked.transactional_id, _request_of(asked))
        except Refused as refused:
            return dict.fromkeys(asked.partitions, refused.code)
        return _codes_of(reply, asked)

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
            codes = await self._send(node_id, [each.asked for each in batch])
            for each, found in zip(batch, codes, strict=True):
                if not each.reply.done():
                    each.reply.set_result(found)

    async def _send(self, node_id: int, asked: list[TransactionPartitions]) -> list[PartitionCodes]:
        assert self._peers is not None
        address = self._view.address_of(node_id)
        code = Code.NETWORK_EXCEPTION
        if not address or any(self._coordinator_of(each.transactional_id) != node_id for each in asked):
            return [dict.fromkeys(each.partitions, code) for each in asked]
        try:
            async with asyncio.timeout(REQUEST_SECONDS) as limit:
                self._limits[limit] = node_id, asked
                try:
                    replies = await self._peers.add_partitions_to_txn(address, asked, REQUEST_SECONDS)
                finally:
                    del self._limits[limit]
            return [
                {tp: found.get(tp, Code.NETWORK_EXCEPTION) for tp in each.partitions}
                for each, found in zip(asked, replies, strict=True)
            ]
        except Refused as refused:
            code = refused.code
        except (Unavailable, TimeoutError, ValueError):  # ValueError: a reply of another length
            pass
        return [dict.fromkeys(each.partitions, code) for each in asked]


def _request_of(asked: TransactionPartitions) -> VerifyPartitions | AddPartitions:
    """Returns the request to the coordinator."""
    wanted = frozenset(asked.partitions)
    if asked.verify_only:
        return VerifyPartitions(asked.transactional_id, asked.producer_id, asked.producer_epoch, wanted)
    return AddPartitions(asked.transactional_id, asked.producer_id, asked.producer_epoch, wanted, ADDED_VERSION)


def _codes_of(reply: Reply, asked: TransactionPartitions) -> dict[TopicPartition, Code]:
    """Returns the code of each partition in the coordinator's reply."""
    if isinstance(reply, VerifyReply):
        return dict(reply.codes)
    assert isinstance(reply, CodeReply)
    return dict.fromkeys(asked.partitions, reply.code)
