"""A client of a Kafka cluster over the Net and Clock ports, for the command line, for brokers and for simulations.

The client keeps one connection to each broker that it needs, and a small view of the cluster: brokers, leaders,
coordinators. The client repeats no request, because only the caller knows if that is safe: a request that was sent
without a reply is `Unavailable`. Connecting to a certain broker is retried with growing pauses, up to `retry_seconds`.
A request that any leader, coordinator or controller can serve is not sent to a broker that refuses the connection: it
is `NotConnected`, and the caller looks up who serves it by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.ports import Clock, Net
from tiered_api.kafka.client.connection import BrokerConnection, open_connection
from tiered_api.kafka.client.error_sentences import explain_error
from tiered_api.kafka.client.login import TokenLogin, UserLogin, log_in_user
from tiered_api.kafka.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from tiered_api.kafka.protocol.schema import Message

CONNECT_SECONDS = 5.0
SESSION_SHARE, SESSION_SHARE_MAX = 0.5, 0.9
"""Shares of the time of a session after which a new connection logs in: an idle one, and one with requests under way.
"""
BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_MAX_SECONDS = 2.0

A = TypeVar("A", bound=Message)
T = TypeVar("T")
_CODES = {code.number: code for code in Code}


class Address(NamedTuple):
    """The address of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def code_from_number(number: int) -> Code:
    """Returns the error code of a number on the wire."""
    return _CODES.get(number, Code.UNKNOWN_SERVER_ERROR)


def to_refused(number: int, subject: str, message: str | None = None) -> Refused:
    """Returns the refusal of a broker in words."""
    return Refused(code_from_number(number), f"{subject}: {explain_error(number, message)}")


def only_result(results: Sequence[T]) -> T:
    """Returns the result of a request about one thing. Raises `Unavailable` for a reply with another number of them."""
    if len(results) != 1:
        raise Unavailable(f"the reply has {len(results)} results, but the request needs one")
    return results[0]


class NotConnected(Unavailable):
    """A request was not sent, because its broker could not be connected. Another broker may serve it by now."""


class KafkaClient:
    """A client with its view of one cluster. `timeout` bounds each request. `retry_seconds` bounds the retries while
    known brokers are unreachable. With a `login`, each connection logs in first. One whose session will end (KIP-368)
    is replaced in time by another one that logs in."""

    def __init__(
        self,
        net: Net,
        clock: Clock,
        brokers: Sequence[Address],
        *,
        client_id: str = "tiered",
        login: UserLogin | TokenLogin | None = None,
        timeout: float = 30.0,
        retry_seconds: float = 30.0,
        brokers_from: str = "--brokers",
    ) -> None:
        self.clock = clock
        self.timeout = timeout
        self.brokers: dict[int, Address] = {}
        self.coordinators: dict[tuple[int, str], int] = {}
        self.connect_faults: dict[int, str] = {}
        """Why the last attempt to connect to a broker failed; nothing for one that could be reached."""
        self._unanswered = ""
        """Why the last search for any broker failed; "" if a broker was found."""
        self._net = net
        self._client_id = client_id
        self._login = login
        self._retry_ns = int(retry_seconds * 1e9)
        self._bootstrap = list(brokers)
        self._brokers_from = brokers_from
        self._leaders: dict[TopicPartition, int] = {}
        self._connections: dict[Address, BrokerConnection] = {}
        self._retired: list[BrokerConnection] = []
        """Connections that were replaced, and still wait for replies."""
        self._locks: dict[Address, asyncio.Lock] = {}

    @property
    def timeout_ms(self) -> int:
        """The time limit that requests carry: less than the client's own, so that the broker replies first."""
        return int(self.timeout * 900)

    async def close(self) -> None:
        """Ends all connections."""
        for connection in (*self._connections.values(), *self._retired):
            connection.close()
        self._connections.clear()

    # -- requests -----------------------------------------------------------------------------------------------------

    async def send(
        self,
        request: Message,
        response_type: type[A],
        *,
        node_id: int | None = None,
        timeout: float | None = None,
        version_max: int | None = None,
        connects_once: bool = False,
    ) -> A:
        """Sends a request to broker `node_id`, or to any broker. Returns the reply. `version_max` is the highest
        version of the request that the caller can use. With `connects_once` a failed connection is not retried: it
        raises `NotConnected`, for callers that look up the broker again."""
        connection = await (self._connect_any() if node_id is None else self._connect_to(node_id, once=connects_once))
        version = None if version_max is None else min(version_max, connection.choose_version(request))
        return await connection.send(request, response_type, self.timeout if timeout is None else timeout, version)

    async def send_without_reply(self, request: Message, *, node_id: int) -> None:
        """Sends a request that has no reply. Raises `NotConnected` as `send` does with `connects_once`."""
        await (await self._connect_to(node_id, once=True)).send_without_reply(request, self.timeout)

    async def send_to_controller(self, request: Message, response_type: type[A]) -> A:
        """Sends a request to the controller, or to the broker that forwards requests to it. Returns the reply. The
        controller is looked up again after a failed connection, for the client's retry time."""
        deadline = self.new_deadline()
        for pause in self.backoffs():
            got = await self.fetch_metadata([])
            node = got.controller_id if got.controller_id in self.brokers else None
            try:
                return await self.send(request, response_type, node_id=node, connects_once=True)
            except NotConnected:
                if self.has_passed(deadline):
                    raise
            await pause()
        raise AssertionError("pauses never end")

    async def fetch_metadata(self, topics: Sequence[str] | None, *, create: bool = False) -> MetadataResponse:
        """Fetches the metadata of topics (None: of all), and updates the view with it."""
        names = None if topics is None else [MetadataRequestTopic(name=topic) for topic in topics]
        request = MetadataRequest(topics=names, allow_auto_topic_creation=create)
        try:
            got = await self.send(request, MetadataResponse)
        except Unavailable as fault:
            # The connection had ended without a sign: a retry over another one costs nothing.
            if fault.final or not self.brokers:
                raise
            got = await self.send(request, MetadataResponse)
        for broker in got.brokers:
            self.add_broker(broker.node_id, broker.host, broker.port)
        for topic in got.topics:
            for each in topic.partitions:
                tp = TopicPartition(topic.name or "", each.partition_index)
                if each.leader_id >= 0:
                    self._leaders[tp] = each.leader_id
                else:
                    self._leaders.pop(tp, None)
        return got

    def add_broker(self, node_id: int, host: str, port: int) -> None:
        """Adds the address of a broker that a reply names."""
        self.brokers[node_id] = Address(host, port)

    # -- leaders ------------------------------------------------------------------------------------------------------

    async def fetch_topic(self, name: str, *, create: bool = False) -> MetadataResponseTopic:
        """Returns one topic by the cluster's current metadata. Raises `Refused` if there is none."""
        got = (await self.fetch_metadata([name], create=create)).topics
        if not got:
            raise to_refused(Code.UNKNOWN_TOPIC_OR_PARTITION.number, name)
        if got[0].error_code:
            raise to_refused(got[0].error_code, name)
        return got[0]

    async def group_by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, Refused]]:
        """Groups partitions by the node that leads them; returns a refusal for each partition without a leader."""
        wanted = list(partitions)
        unknown = sorted({tp.topic for tp in wanted if tp not in self._leaders})
        why: dict[str, int] = {}
        if unknown:
            why = {topic.name or "": topic.error_code for topic in (await self.fetch_metadata(unknown)).topics}
        shares: dict[int, list[TopicPartition]] = {}
        leaderless = {}
        for tp in wanted:
            if tp in self._leaders:
                shares.setdefault(self._leaders[tp], []).append(tp)
            else:
                number = why.get(tp.topic) or Code.LEADER_NOT_AVAILABLE.number
                leaderless[tp] = to_refused(number, str(tp))
        return shares, leaderless

    def forget_leaders(self, partitions: Iterable[TopicPartition]) -> None:
        """Drops the leaders of these partitions from the view, so that the next request fetches metadata."""
        for tp in partitions:
            self._leaders.pop(tp, None)

    # -- retries ------------------------------------------------------------------------------------------------------

    def new_deadline(self) -> int:
        """Returns the end of retries that start now, on the monotonic clock."""
        return self.clock.mono_ns() + self._retry_ns

    def has_passed(self, deadline: int) -> bool:
        """True if the deadline has passed."""
        return self.clock.mono_ns() >= deadline

    def describe_wait(self) -> str:
        """Returns why brokers cannot be connected now; "" if each one can that a request needed."""
        return self._unanswered or "; ".join(self.connect_faults.values())

    def backoffs(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Yields, for each try, the function that pauses before the next try; pauses grow, and there is no end."""
        seconds = BACKOFF_FIRST_SECONDS
        while True:
            yield partial(self.clock.sleep, seconds)
            seconds = min(2 * seconds, BACKOFF_MAX_SECONDS)

    # -- connections --------------------------------------------------------------------------------------------------

    async def _connect_any(self) -> BrokerConnection:
        """Connects to any broker that replies. The first contact is tried once; a cluster that was reachable before is
        retried for longer."""
        deadline = self.new_deadline()
        for pause in self.backoffs():
            for connection in self._connections.values():
                if connection.closed is None and not self._is_due(connection):
                    self._unanswered = ""
                    return connection
            faults = []
            for address in dict.fromkeys([*self.brokers.values(), *self._bootstrap]):
                try:
                    connection = await self._open(address)
                    self._unanswered = ""
                    return connection
                except Unavailable as fault:
                    faults.append(str(fault))
            if not self.brokers or self.has_passed(deadline):
                tried = ", ".join(map(str, self._bootstrap))
                raise NotConnected(f"no broker replies at {tried} ({'; '.join(faults)}): check {self._brokers_from}")
            self._unanswered = f"no broker replies ({'; '.join(faults)})"
            await pause()
        raise AssertionError("pauses never end")

    async def _connect_to(self, node_id: int, *, once: bool = False) -> BrokerConnection:
        deadline = self.new_deadline()
        for pause in self.backoffs():
            if node_id not in self.brokers:
                await self.fetch_metadata([])
            if node_id in self.brokers:
                address = self.brokers[node_id]
                try:
                    connection = await self._open(address)
                    self.connect_faults.pop(node_id, None)
                    return connection
                except Unavailable as fault:
                    why = f"broker {node_id} is advertised at {address}: {fault}"
            else:
                why = f"broker {node_id} is not in the cluster"
            self.connect_faults[node_id] = why
            if once or self.has_passed(deadline):
                raise NotConnected(why)
            await pause()
            await self.fetch_metadata([])
        raise AssertionError("pauses never end")

    async def _open(self, address: Address) -> BrokerConnection:
        """Returns the connection to an address, opened if there is none; concurrent callers share it."""
        async with self._locks.setdefault(address, asyncio.Lock()):
            connection = before = self._connections.get(address)
            if connection is None or connection.closed or self._is_due(connection):
                timeout = min(CONNECT_SECONDS, self.timeout)
                opened_ns = self.clock.mono_ns()
                connection = await open_connection(self._net, address.host, address.port, self._client_id, timeout)
                if self._login is not None:
                    await log_in_user(connection, self._login, self.timeout)
                connection.opened_ns = opened_ns
                self._connections[address] = connection
                self._retire(before)
            return connection

    def _retire(self, connection: BrokerConnection | None) -> None:
        """Ends a connection that was replaced, once its replies are there."""
        if connection is not None:
            self._retired.append(connection)
        for each in self._retired:
            if each.is_idle:
                each.close()
        self._retired = [each for each in self._retired if each.closed is None]

    def _is_due(self, connection: BrokerConnection) -> bool:
        """True if a connection should be replaced before its session ends. One with requests under way is kept until
        later, so that they stay in their order: the broker replies to a request that came in time."""
        if not connection.session_lifetime_ms:
            return False
        share = SESSION_SHARE if connection.is_idle else SESSION_SHARE_MAX
        age_ms = (self.clock.mono_ns() - connection.opened_ns) / 1e6
        return age_ms >= share * connection.session_lifetime_ms
