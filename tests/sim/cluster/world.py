"""A simulated cluster: machines with a broker each, one bucket, one network. This file defines the faults of a machine;
the nemesis chooses when they happen.

Where a machine has several processes, each is a `SimHost` with a directory of its own; they share the machine's clock.

A broker runs as on a real machine: a supervisor starts its process, and starts it again if it could not start or ended.
A kill is not a cancel: the ports of the process are revoked first, then its tasks are cleared away, and none of them
ever runs again. All tasks of a process carry its name (`tests.sim.harness.loop.PROCESS`).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar, overload

from tests.sim.cluster.broker_factory import new_broker
from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop, process_context
from tests.sim.harness.machine import SimMachine
from tests.sim.harness.network import SimNetwork
from tests.sim.harness.store import SimBucket
from tiered.broker.broker import Broker
from tiered.config.settings import Settings
from tiered.errors import Corrupt, Fenced, Refused, Unavailable
from tiered.ids import machine_of
from tiered_api.kafka.client.client import Address, KafkaClient
from tiered_api.kafka.protocol.schema import Message
from tiered_api.kafka.server.server import KafkaServer, serve_kafka

A = TypeVar("A", bound=Message)
C = TypeVar("C", bound="ObservedClient")

PORT = 9092
LISTENER = "PLAINTEXT"
STARTS_MAX = 200
CLEAR_TURNS = 2_000
STOP_SECONDS = 40.0
CLIENT_SECONDS = 4.0
CLIENT_RETRY_SECONDS = 1.0
BUSY_SECONDS = 2.0
"""Longest time that a broker may spend on other work before it can be made to act late."""
EVENTS = 200
EVENT_CHARS = 200
OPERATING_ERRORS = (Refused, Unavailable, Corrupt, Fenced)


class EventLog:
    """The last events of a run."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._events: deque[str] = deque(maxlen=EVENTS)

    def add(self, what: str) -> None:
        self._events.append(f"{self._loop.now_ns / 1e9:9.3f} {what[:EVENT_CHARS]}")

    def lines(self) -> list[str]:
        return list(self._events)


class SimHost:
    """One machine, and the broker on it while one runs. `on_end` gets the end of each process before the next one
    begins: "kill", "power" (cut), "disk" (lost), "stop" (clean), or "failed" after an error of the disk ("failed stop"
    if it had reached the end of a clean stop)."""

    def __init__(
        self,
        loop: SimLoop,
        settings: Settings,
        bucket: SimBucket,
        network: SimNetwork,
        events: EventLog,
        fan: int,
        slots: int,
    ) -> None:
        self.node_id = settings.node_id
        self.machine_id = machine_of(settings.node_id, settings.process)
        """The node id of the first process of its machine."""
        self.name = f"b{self.node_id}"
        self.machine = SimMachine(loop, self.name, bucket, network)
        self.node: Broker | None = None
        self.latest_node: Broker | None = None
        """The broker that was made last, which may still be starting."""
        self.server: KafkaServer | None = None
        self.process = ""
        self.lives = 0
        self.on_end: Callable[[SimHost, str], None] = lambda host, how: None
        self.on_start: Callable[[SimHost, str], None] = lambda host, incarnation: None
        """Callback with the incarnation of each start."""
        self.is_absent = False
        """True if the broker has not joined yet, or has left for good."""
        self.disk_full_lives: set[int] = set()
        """Numbers of the processes in which the disk became full, or had room again."""
        self.is_protected = False
        """True if no other fault may take the machine down."""
        self.restart_seconds: Callable[[], float] = lambda: 0.5
        self.close_http: Callable[[], Awaitable[None]] | None = None
        """Closes the HTTP side of the present process, if it has one."""
        self._settings = settings
        self._loop = loop
        self._events = events
        self._sizes = (fan, slots)
        self._supervisor: asyncio.Task[None] | None = None
        self._ending = False
        self.late_count = 0
        """Number of faults that make the broker act late now."""

    @property
    def up(self) -> bool:
        """True if a broker has started here and has not ended."""
        return self.node is not None and not self.node.ended.is_set()

    @property
    def frozen(self) -> bool:
        return self._loop.is_frozen(self.process)

    @property
    def idle(self) -> bool:
        """True if no fault is taking the machine down or up."""
        return self._supervisor is not None and not self._ending and not self.is_protected

    def power_on(self) -> None:
        """Lets the supervisor start the broker, and start it again whenever it ends."""
        assert self._supervisor is None, self.name
        self._supervisor = self._loop.create_task(self._supervise(), name=f"supervisor-{self.name}")

    async def end(self, how: str) -> None:
        """Ends the process at once, with the losses of that kind of end."""
        await self._cancel_supervisor()
        await self._end(how)

    async def stop(self, seconds: float = STOP_SECONDS, then: str = "kill") -> bool:
        """Stops the broker as SIGTERM does, and kills it after a time limit; returns true if it stopped by itself.
        `then` is "power" or "disk" if the machine loses that right after, however far the stop came."""
        node, server = self.node, self.server
        await self._cancel_supervisor()
        stopped = False
        if node is not None:
            self._loop.resume(self.process)
            context = process_context(self.process)
            stopping = _stop(node, server, self.close_http)
            task = self._loop.create_task(stopping, name=f"stop-{self.name}", context=context)
            await asyncio.wait([task], timeout=seconds)
            stopped = task.done()
        await self._end("stop" if stopped and then == "kill" else then)
        return stopped

    def limit_disk(self, capacity: int | None) -> None:
        """Limits the room on the disk from now on; None: no limit."""
        self.machine.disk.capacity = capacity
        self.disk_full_lives.add(self.lives)

    def set_processes(self, count: int) -> None:
        """Sets the number of processes of its machine, for the next start."""
        self._settings = replace(self._settings, processes=count)

    @property
    def settings(self) -> Settings:
        """Returns the settings of the next start."""
        return self._settings

    def freeze(self) -> None:
        self._loop.freeze(self.process)

    def resume(self) -> None:
        self._loop.resume(self.process)

    @asynccontextmanager
    async def acts_late(self) -> AsyncIterator[None]:
        """Delays the broker: it receives the metadata changes but acts on them late."""
        busy = self.node.hosted_replicas._role_change_lock if self.node is not None else asyncio.Lock()
        try:
            async with asyncio.timeout(BUSY_SECONDS):
                await busy.acquire()
        except TimeoutError:
            yield
            return
        self._events.add(f"{self.process} applies images late")
        self.late_count += 1
        try:
            yield
        finally:
            self.late_count -= 1
            busy.release()

    def failure(self) -> BaseException | None:
        """Returns the reason for which the supervisor gave up, if it did."""
        done = self._supervisor
        return done.exception() if done is not None and done.done() and not done.cancelled() else None

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _cancel_supervisor(self) -> None:
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.gather(supervisor, return_exceptions=True)

    async def _end(self, how: str) -> None:
        self._events.add(f"{self.name} ends: {how}")
        self._loop.resume(self.process)
        failed = self.machine.disk.failed and how != "disk"
        if how == "power":
            self.machine.power_cut()
        elif how == "disk":
            self.machine.lose_disk()
        else:
            self.machine.kill()
        self.on_end(self, ("failed stop" if how == "stop" else "failed") if failed else how)
        self.node = self.latest_node = self.server = self.close_http = None
        await self._clear_tasks()

    async def _clear_tasks(self) -> None:
        """Clears the tasks of a process whose ports are revoked."""
        process, self.process = self.process, ""
        if not process:
            return
        for _ in range(CLEAR_TURNS):
            tasks = self._loop.tasks_of(process)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.01)
            for task in tasks:
                if task.done() and not task.cancelled():
                    task.exception()  # asked for, so that nobody complains
        self._loop.end_process(process)

    async def _supervise(self) -> None:
        for _ in range(STARTS_MAX):
            self.lives += 1
            self.process = f"{self.name}.{self.lives}"
            context = process_context(self.process)
            node = context.run(new_broker, self._settings, self.machine.process(), *self._sizes)
            self.latest_node = node
            self.on_start(self, node.incarnation)
            starting = self._loop.create_task(_start(node), name=self.process, context=context)
            try:
                self.server = await asyncio.shield(starting)
            except OPERATING_ERRORS as error:
                self._events.add(f"{self.process} did not start: {error}")
                await self._end_and_pause()
                continue
            self.node = node
            self._events.add(f"{self.process} serves epoch={node.image.controller_epoch} slot={node.image.slot}")
            await node.ended.wait()
            why = node.health().problems[:1]
            self._events.add(f"{self.process} ended: {why}")
            assert self.machine.disk.failed, f"{self.process} ended by itself: {why}"
            await self._end_and_pause()
        raise AssertionError(f"liveness: {self.name} did not start within {STARTS_MAX} tries")

    async def _end_and_pause(self) -> None:
        self._ending = True
        try:
            await self._end("kill")
        finally:
            self._ending = False
        await asyncio.sleep(self.restart_seconds())


async def _start(node: Broker) -> KafkaServer:
    await node.start()
    server = await serve_kafka(node)
    listeners = {name: endpoint.address for name, endpoint in server.addresses.items()}
    await node.announce(node.settings.http, listeners)
    return server


async def _stop(node: Broker, server: KafkaServer | None, close_http: Callable[[], Awaitable[None]] | None) -> None:
    with suppress(*OPERATING_ERRORS):
        await node.hand_over()
    if server is not None:
        await server.close()
    if close_http is not None:
        await close_http()
    with suppress(*OPERATING_ERRORS):
        await node.stop()


OnReply = Callable[[Message, Message, int | None, Any, int], None]
"""Callback for a reply: request, reply, requested broker (None: any), result of `on_request`, and time of the
request."""


class ObservedClient(KafkaClient):
    """Client with observers of its requests and replies."""

    on_request: Callable[[Message], Any] = staticmethod(lambda request: None)
    on_reply: OnReply = staticmethod(lambda *told: None)

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
        before, asked_ns = self.on_request(request), self.clock.mono_ns()
        got = await super().send(
            request, response_type, node_id=node_id, timeout=timeout, version_max=version_max,
            connects_once=connects_once,
        )  # fmt: skip
        self.on_reply(request, got, node_id, before, asked_ns)
        return got


class SimWorld:
    """All machines of a run, with the bucket and the network between them."""

    def __init__(self, loop: SimLoop, settings: Sequence[Settings], *, fan: int, slots: int) -> None:
        self.loop = loop
        self.events = EventLog(loop)
        self.bucket = SimBucket(loop)
        self.clients: list[str] = []
        """Hosts without a broker."""
        self.on_request: Callable[[Message], Any] = lambda request: None
        self.on_reply: OnReply = lambda *told: None
        self.network = SimNetwork(loop, random.Random(f"{loop.seed}/net"))
        self.hosts = {
            each.node_id: SimHost(loop, each, self.bucket, self.network, self.events, fan, slots) for each in settings
        }
        for host in self.hosts.values():
            host.machine.clock = self.hosts[host.machine_id].machine.clock

    @overload
    def client(self, name: str) -> ObservedClient: ...

    @overload
    def client(self, name: str, of: type[C]) -> C: ...

    def client(self, name: str, of: type[ObservedClient] = ObservedClient) -> ObservedClient:
        """Returns a client on its own host, with a short timeout."""
        self.clients.append(name)
        clock = SimClock(self.loop)
        client = of(
            self.network.host(name), clock, self.addresses, client_id=name, timeout=CLIENT_SECONDS,
            retry_seconds=CLIENT_RETRY_SECONDS,
        )  # fmt: skip
        client.on_request, client.on_reply = self.on_request, self.on_reply
        return client

    @property
    def addresses(self) -> list[Address]:
        """Returns the bootstrap addresses of clients."""
        return [Address(host.name, PORT) for host in self.hosts.values()]

    def processes_beside(self, host: SimHost) -> list[SimHost]:
        """Returns the host and the other processes of its machine."""
        others = (each for each in self.hosts.values() if each.machine_id == host.machine_id and each is not host)
        return [host, *others]

    def nodes(self) -> Iterator[tuple[SimHost, Broker]]:
        """Returns the running brokers, frozen or not."""
        for host in self.hosts.values():
            if host.node is not None and host.up:
                yield host, host.node

    async def shut_down(self) -> None:
        """Removes every machine, so that the loop can end."""
        for host in self.hosts.values():
            await host.end("kill")
