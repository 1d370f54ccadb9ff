"""Requests to other brokers: `tiered.peers.Peers` in Kafka's frames.

Replies come in order on a connection, so a late one blocks all behind it. So each connection has one request at a time,
and there are as many connections as concurrent requests: a long poll delays nothing. Brokers of one cluster know the
same versions, so none are negotiated. No request is repeated here, because only the caller knows if that is safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import NoReturn, TypeVar

from tiered.config.listeners import parse_host_port
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.fair_slots import FairSlots
from tiered.ids import TopicId
from tiered.peers import (
    ControllerView,
    DivergingEpoch,
    FetchedPartition,
    ForwardReply,
    FoundTransaction,
    MarkerRequest,
    MetadataFetch,
    MetadataFetchReply,
    PartitionCodes,
    QuotaUse,
    ReplicaFetch,
    TransactionPartitions,
)
from tiered.ports import Net
from tiered.quotas.shares import has_room
from tiered.security.principal import Caller
from tiered_api.kafka.client.client import code_from_number
from tiered_api.kafka.client.connection import BrokerConnection
from tiered_api.kafka.client.login import log_in_broker
from tiered_api.kafka.client.response_buffers import POOL_BYTES, ResponseBuffers
from tiered_api.kafka.client.transaction_calls import (
    ADD_PARTITIONS_VERSION,
    MARKERS_VERSION,
    make_add_partitions_request,
    make_markers_request,
    read_add_partitions_response,
    read_markers_response,
)
from tiered_api.kafka.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from tiered_api.kafka.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from tiered_api.kafka.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tiered_api.kafka.protocol.messages.tiered_act_for import TieredActForRequest, TieredActForResponse
from tiered_api.kafka.protocol.messages.tiered_append_at import TieredAppendAtRequest, TieredAppendAtResponse
from tiered_api.kafka.protocol.messages.tiered_follow import TieredFollowRequest, TieredFollowResponse
from tiered_api.kafka.protocol.messages.tiered_heard import TieredHeardRequest, TieredHeardResponse
from tiered_api.kafka.protocol.messages.tiered_quota_use import (
    QuotaUseData,
    TieredQuotaUseRequest,
    TieredQuotaUseResponse,
)
from tiered_api.kafka.protocol.messages.tiered_submit import TieredSubmitRequest, TieredSubmitResponse
from tiered_api.kafka.protocol.messages.write_txn_markers import WriteTxnMarkersResponse
from tiered_api.kafka.protocol.schema import Message

IN_FLIGHT_MAX = 64
"""Most requests in flight to one broker; more wait within their time limit, in turn by holder. A holder that has its
share of them waits too, so that others find a free one."""
WAITING_MAX = 4_096
"""Most requests to one broker that wait for their turn."""
OPENINGS_MAX = 16
"""Most connections to one broker that are opened at a time. A connection counts for `max.connections.per.ip` there
before it has proved that a broker opened it."""
IDLE_CONNECTIONS_MAX = 16
"""Most idle connections to one broker: with fewer, each of many concurrent requests costs a handshake of TLS."""
FETCH_VERSION = 17
CONNECT_SECONDS = 3.0
"""Time limit of connecting: it is short, so that a repaired network is used again soon."""
BUFFERS_IDLE_SECONDS = 10.0
"""Memory for copied records is freed if no records came for this long."""
REMOTE_TIMEOUT_SHARE = 0.9
"""Part of a caller's time limit that the request carries, so that the reply comes in time."""

A = TypeVar("A", bound=Message)


class _BrokerConnections:
    """The connections to one address."""

    def __init__(self, in_flight_max: int) -> None:
        self.idle: list[BrokerConnection] = []
        self.slots = FairSlots(in_flight_max, WAITING_MAX, self._has_room)
        self.openings = asyncio.Semaphore(OPENINGS_MAX)
        self.requests = 0
        self._in_flight_max = in_flight_max

    def _has_room(self, holder: str) -> bool:
        """True if a holder may have one more request in flight. The broker itself always may."""
        slots = self.slots
        return not holder or has_room(self._in_flight_max, slots.taken, slots.by_owner.get(holder, 0), 1)


class KafkaPeers:
    """Implements `Peers`. Inter-broker requests carry `cluster_id` and `credential` once they are known.
    With `login_node_id`, each connection logs in as that broker first. Requests have zeros for the credential then.
    `in_flight_max` bounds the requests to one broker. `pool_bytes` of memory are kept for large replies."""

    def __init__(
        self,
        net: Net,
        *,
        client_id: str = "broker",
        cluster_id: str = "",
        credential: bytes = b"",
        login_node_id: int | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        pool_bytes: int = POOL_BYTES,
    ) -> None:
        self.cluster_id = cluster_id
        self.credential = credential
        self._login_node_id = login_node_id
        self._in_flight_max = in_flight_max
        self._net = net
        self._client_id = client_id
        self._brokers: dict[str, _BrokerConnections] = {}
        self._connections: dict[BrokerConnection, None] = {}
        self._buffers = ResponseBuffers(pool_bytes)
        self._last_records_at = 0.0

    async def fetch_metadata(self, address: str, metadata_fetch: MetadataFetch, timeout: float) -> MetadataFetchReply:
        """See `Peers.fetch_metadata`."""
        request = TieredFollowRequest(
            self.cluster_id, self._sent_credential, metadata_fetch.node_id, metadata_fetch.incarnation,
            metadata_fetch.slot, metadata_fetch.applied, metadata_fetch.controller_epoch, metadata_fetch.wait_ms,
            metadata_version=metadata_fetch.metadata_version, active_key=metadata_fetch.active_key,
        )  # fmt: skip
        if metadata_fetch.clock is not None:
            request.clock_ahead_ms, request.clock_error_ms = metadata_fetch.clock
        response = await self.send(address, request, TieredFollowResponse, timeout)
        _check_error(response.error_code, response.error_message)
        return MetadataFetchReply(
            response.controller_epoch,
            response.next_slot,
            tuple(response.entries),
            response.too_old,
            response.store_age_ms,
            response.wall_ms,
            response.held_ms,
            tuple(response.active_keys),
        )

    async def forward(
        self, address: str, request: bytes, timeout: float, on_send: Callable[[], None] = lambda: None
    ) -> ForwardReply:
        """See `Peers.forward`."""
        timeout_ms = int(timeout * 1000 * REMOTE_TIMEOUT_SHARE)
        submit = TieredSubmitRequest(self.cluster_id, self._sent_credential, timeout_ms, request)
        response = await self.send(address, submit, TieredSubmitResponse, timeout, on_send=on_send)
        _check_error(response.error_code, response.error_message)
        return ForwardReply(response.reply, response.slot)

    async def get_controller_view(self, address: str, timeout: float) -> ControllerView:
        """See `Peers.get_controller_view`."""
        request = TieredHeardRequest(self.cluster_id, self._sent_credential)
        response = await self.send(address, request, TieredHeardResponse, timeout)
        _check_error(response.error_code, response.error_message)
        return ControllerView(
            response.controller_epoch,
            response.controller,
            response.heard_ms_ago,
            response.node_id,
            response.incarnation,
        )

    async def fetch(self, address: str, replica_fetch: ReplicaFetch, timeout: float) -> Sequence[FetchedPartition]:
        """See `Peers.fetch`. Records are views of the reply's frame."""
        request = make_fetch_request(replica_fetch, self._sent_credential)
        response = await self.send(address, request, FetchResponse, timeout, FETCH_VERSION)
        _check_error(response.error_code, None)
        parts = list(_read_fetched_parts(response))
        now = asyncio.get_running_loop().time()
        if any(part.records for part in parts):
            self._last_records_at = now
        elif now - self._last_records_at > BUFFERS_IDLE_SECONDS:
            self._buffers.clear()
        return parts

    async def write_txn_markers(
        self, address: str, markers: Sequence[MarkerRequest], timeout: float
    ) -> Sequence[PartitionCodes]:
        """See `Peers.write_txn_markers`."""
        request = make_markers_request(markers, self._sent_credential)
        reply = await self.send(address, request, WriteTxnMarkersResponse, timeout, MARKERS_VERSION)
        return read_markers_response(reply, len(markers))

    async def add_partitions_to_txn(
        self, address: str, transactions: Sequence[TransactionPartitions], timeout: float
    ) -> Sequence[PartitionCodes]:
        """See `Peers.add_partitions_to_txn`."""
        request = make_add_partitions_request(transactions, self._sent_credential)
        reply = await self.send(address, request, AddPartitionsToTxnResponse, timeout, ADD_PARTITIONS_VERSION)
        _check_error(reply.error_code, None)
        return read_add_partitions_response(reply, len(transactions))

    async def find_transactions(
        self, address: str, states: Collection[str], producer_ids: Collection[int], timeout: float
    ) -> Sequence[FoundTransaction]:
        """See `Peers.find_transactions`."""
        request = ListTransactionsRequest(list(states), list(producer_ids), credential=self._sent_credential)
        reply = await self.send(address, request, ListTransactionsResponse, timeout)
        _check_error(reply.error_code, None)
        if not reply.is_complete:  # an earlier version lists what the sender may describe
            raise Refused(Code.CLUSTER_AUTHORIZATION_FAILED, f"{address} may have left out transactions")
        found, epochs = reply.transaction_states, reply.committed_epochs
        epochs = epochs if len(epochs) == len(found) else [-1] * len(found)  # an earlier version knows none
        return [
            FoundTransaction(each.producer_id, each.transaction_state, epoch)
            for each, epoch in zip(found, epochs, strict=True)
        ]

    async def report_quota_use(self, address: str, uses: Sequence[QuotaUse], timeout: float) -> None:
        """See `Peers.report_quota_use`."""
        request = TieredQuotaUseRequest(self.cluster_id, self._sent_credential, [QuotaUseData(*each) for each in uses])
        response = await self.send(address, request, TieredQuotaUseResponse, timeout)
        _check_error(response.error_code, response.error_message)

    async def append_at(
        self,
        address: str,
        topic_id: str,
        partition: int,
        leader_epoch: int,
        end_offset: int,
        data: bytes,
        timeout: float,
    ) -> None:
        """Appends a batch to a partition that the broker leads, if its log ends at `end_offset`. Returns once it is
        committed. Raises `Refused` with OFFSET_OUT_OF_RANGE if the log ends elsewhere."""
        request = TieredAppendAtRequest(
            self.cluster_id, self._sent_credential, int(timeout * 1000 * REMOTE_TIMEOUT_SHARE), topic_id, partition,
            leader_epoch, end_offset, data,
        )  # fmt: skip
        response = await self.send(address, request, TieredAppendAtResponse, timeout)
        _check_error(response.error_code, response.error_message)

    async def check_listening(self, address: str, timeout: float) -> None:
        """See `Peers.check_listening`."""
        (await self._net.connect(*_split_address(address), timeout)).close()

    async def is_gone(self, address: str, timeout: float) -> bool:
        """See `Peers.is_gone`."""
        try:
            await self.check_listening(address, timeout)
        except Unavailable as error:
            return error.refused
        return False

    async def close(self) -> None:
        """Ends all connections, and fails the requests that wait on them."""
        for connection in list(self._connections):
            connection.close()
        self._connections.clear()
        self._brokers.clear()

    # -- connections --------------------------------------------------------------------------------------------------

    async def send(
        self,
        address: str,
        request: Message,
        response_type: type[A],
        timeout: float,
        version: int = 0,
        on_send: Callable[[], None] = lambda: None,
        caller: Caller | None = None,
    ) -> A:
        """Sends a request to the broker at `address` and returns the reply. Raises `Unavailable` if the broker is
        unreachable or does not reply in time. `on_send` is called when the request is sent. The broker judges the
        request as that of `caller`, if one is given."""
        broker = self._brokers.setdefault(address, _BrokerConnections(self._in_flight_max))
        broker.requests += 1
        end = asyncio.get_running_loop().time() + timeout
        try:
            async with AsyncExitStack() as slot:
                try:
                    async with asyncio.timeout_at(end):
                        await slot.enter_async_context(broker.slots.take("" if caller is None else caller.holder))
                except Refused:  # too many wait
                    raise TimeoutError from None
                return await self._exchange(broker, address, request, response_type, end, version, on_send, caller)
        except TimeoutError:
            raise Unavailable(f"{address} has {self._in_flight_max} requests in flight already") from None
        except (Unavailable, Corrupt) as error:
            # Idle connections are as old as the one that has just failed.
            while broker.idle:
                self._discard(broker.idle.pop())
            raise Unavailable(str(error), refused=isinstance(error, Unavailable) and error.refused) from None
        finally:
            broker.requests -= 1
            if not broker.requests and not broker.idle and self._brokers.get(address) is broker:
                del self._brokers[address]

    async def _exchange(
        self,
        broker: _BrokerConnections,
        address: str,
        request: Message,
        response_type: type[A],
        end: float,
        version: int,
        on_send: Callable[[], None],
        caller: Caller | None,
    ) -> A:
        loop = asyncio.get_running_loop()
        connection = self._take_idle(broker, caller) or await self._open_for(broker, address, caller, end)
        try:
            if caller is not None and caller != connection.caller:
                await self._act_for(connection, caller, end - loop.time())
            on_send()
            got = await connection.send(request, response_type, end - loop.time(), version)
        except BaseException:
            self._discard(connection)  # its reply may still come, ahead of the next one
            raise
        self._return_idle(broker, connection)
        return got

    def _take_idle(self, broker: _BrokerConnections, caller: Caller | None) -> BrokerConnection | None:
        """Returns the healthy idle connection that was used last: one of the same caller if there is one. A connection
        that acts for a caller has no requests of the broker itself any more."""
        for connection in [each for each in broker.idle if each.closed is not None]:
            broker.idle.remove(connection)
            self._discard(connection)
        for connection in reversed(broker.idle):
            if connection.caller == caller:
                broker.idle.remove(connection)
                return connection
        return broker.idle.pop() if broker.idle and caller is not None else None

    async def _act_for(self, connection: BrokerConnection, caller: Caller, timeout: float) -> None:
        """Names the caller of the requests that follow. Nothing was requested yet if this fails."""
        kind, name = caller.principal
        request = TieredActForRequest(
            self.cluster_id, self._sent_credential, kind, name, caller.host, caller.shares_of, caller.client_id
        )
        try:
            reply = await connection.send(request, TieredActForResponse, timeout, 0)
        except (Unavailable, Corrupt) as error:
            raise Unavailable(str(error), refused=True) from None
        _check_error(reply.error_code, reply.error_message)
        connection.caller = caller

    async def _open_for(
        self, broker: _BrokerConnections, address: str, caller: Caller | None, end: float
    ) -> BrokerConnection:
        """Opens a connection and names its caller, in turn: the broker there knows only then that a broker opened
        it."""
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as opening:
            async with asyncio.timeout_at(end):
                await opening.enter_async_context(broker.openings)
            connection = await self._open(address, end - loop.time())
            try:
                if caller is not None:
                    await self._act_for(connection, caller, end - loop.time())
            except BaseException:
                self._discard(connection)
                raise
            return connection

    async def _open(self, address: str, timeout: float) -> BrokerConnection:
        try:
            stream = await self._net.connect(*_split_address(address), min(timeout, CONNECT_SECONDS))
        except Unavailable as error:
            raise Unavailable(str(error), refused=True) from None
        connection = BrokerConnection(stream, address, self._client_id, self._buffers)
        self._connections[connection] = None
        if self._login_node_id is not None:
            try:
                await log_in_broker(connection, self.credential, self._login_node_id, min(timeout, CONNECT_SECONDS))
            except Refused as refused:
                self._discard(connection)
                raise Refused(Code.CLUSTER_AUTHORIZATION_FAILED, refused.why) from None
            except (Unavailable, Corrupt) as error:
                self._discard(connection)
                raise Unavailable(str(error), refused=True) from None  # nothing was requested yet
            except BaseException:
                self._discard(connection)
                raise
        return connection

    @property
    def _sent_credential(self) -> bytes:
        return self.credential if self._login_node_id is None else bytes(len(self.credential))

    def _return_idle(self, broker: _BrokerConnections, connection: BrokerConnection) -> None:
        if connection.closed is None and len(broker.idle) < IDLE_CONNECTIONS_MAX and connection in self._connections:
            broker.idle.append(connection)
        else:
            self._discard(connection)

    def _discard(self, connection: BrokerConnection) -> None:
        self._connections.pop(connection, None)
        connection.close()


def make_fetch_request(replica_fetch: ReplicaFetch, credential: bytes) -> FetchRequest:
    """Returns a follower's fetch as the one request of a Fetch without a session."""
    topics: dict[str, FetchTopic] = {}
    for each in replica_fetch.partitions:
        topic = topics.get(each.topic_id)
        if topic is None:
            topic = topics[each.topic_id] = FetchTopic(topic_id=each.topic_id)
        topic.partitions.append(
            FetchPartition(
                each.partition, each.leader_epoch, each.offset, each.last_epoch, each.log_start_offset,
                replica_fetch.partition_max_bytes, local_start_offset=each.local_start_offset,
            )
        )  # fmt: skip
    return FetchRequest(
        replica_state=ReplicaState(replica_fetch.node_id, replica_fetch.incarnation),
        credential=credential,
        max_wait_ms=replica_fetch.max_wait_ms,
        min_bytes=1,
        max_bytes=replica_fetch.max_bytes,
        topics=list(topics.values()),
    )


def _read_fetched_parts(response: FetchResponse) -> Iterator[FetchedPartition]:
    for topic in response.responses:
        topic_id = TopicId(topic.topic_id)
        for part in topic.partitions:
            diverging = part.diverging_epoch
            yield FetchedPartition(
                topic_id,
                part.partition_index,
                part.error_code,
                part.high_watermark,
                part.log_start_offset,
                part.local_start_offset,
                part.cold_end_offset,
                DivergingEpoch(diverging.epoch, diverging.end_offset) if diverging.end_offset >= 0 else None,
                part.records or b"",
                part.may_have_gaps,
            )


def _split_address(address: str) -> tuple[str, int]:
    place = parse_host_port(address)
    if place is None:
        raise Unavailable(f"{address!r} is no HOST:PORT")
    return place


def _check_error(number: int, message: str | None) -> None:
    if number:
        _raise_refused(number, message)


def _raise_refused(number: int, message: str | None) -> NoReturn:
    code = code_from_number(number)
    raise Refused(code, message or code.name)
