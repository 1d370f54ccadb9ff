"""One broker with its Kafka and HTTP servers, on the loop of its cluster. It has its own directory; the bucket, the
clock and the faults are the cluster's."""

from __future__ import annotations

import contextlib
import os
import socket
from contextlib import AsyncExitStack
from dataclasses import replace

from tiered.broker.broker import Broker
from tiered.config.listeners import Endpoint
from tiered.config.quick_settings import QUICK
from tiered.config.settings import Settings
from tiered.metrics import Metrics
from tiered.object_store.faulty import Faults, faulty
from tiered.ports import Clock, ObjectStore, World
from tiered.system.clock import SystemRng
from tiered.system.local_disk import LocalDisk
from tiered.system.network import SocketNet
from tiered.testing.inherited_sockets import drop_in_children, forget
from tiered.testing.late_network import Delay, LateNet
from tiered_api.http.server.server import HttpServer, serve_http
from tiered_api.kafka.client.peers import KafkaPeers
from tiered_api.kafka.server.server import KafkaServer, serve_kafka

CLIENTS = "PLAINTEXT"
BROKERS = "BROKER"
LOOPBACK = "127.0.0.1"
SESSION_MS = 20 * 86_400_000

SETTINGS = replace(
    Settings.from_strings(QUICK),
    listeners=(f"{BROKERS}://{LOOPBACK}:0", f"{CLIENTS}://{LOOPBACK}:0"),
    listener_security_protocol_map=(f"{BROKERS}:PLAINTEXT", f"{CLIENTS}:PLAINTEXT"),
    inter_broker_listener_name=BROKERS,
    http=f"{LOOPBACK}:0",
    # A test moves the time by steps below these. A broker that is killed is found by its closed port instead.
    broker_session_timeout_ms=SESSION_MS,
    tiered_broker_suspect_timeout_ms=SESSION_MS,
    replica_lag_time_max_ms=SESSION_MS,
)
"""The settings of brokers in tests: quick ones, on two listeners of this machine."""


class InProcessBroker:
    """A broker that can be killed and started again on its directory, at the addresses that it had."""

    def __init__(self, settings: Settings, bucket: ObjectStore, clock: Clock, faults: Faults, delay: Delay) -> None:
        self.node_id = settings.node_id
        self.is_running = False
        self.kafka_address = ""
        self.http_url = ""
        self._settings = settings
        self._bucket = bucket
        self._clock = clock
        self._faults = faults
        self._delay = delay
        self._reserved: list[socket.socket] = []

    async def start(self) -> None:
        """Starts the broker. Returns once clients can reach it."""
        settings, net = self._settings, LateNet(SocketNet(), self._delay)
        os.makedirs(settings.data_dir, exist_ok=True)
        store = faulty(self._bucket, self._faults, self._clock)
        world = World(self._clock, SystemRng(), LocalDisk(settings.data_dir), store, net)
        self.broker = Broker(settings, world, Metrics(), peers=KafkaPeers(net, client_id=f"broker-{self.node_id}"))
        async with AsyncExitStack() as opened:  # what is open is closed if the start fails
            opened.push_async_callback(self.broker.stop, clean=False)
            await self.broker.start()
            self._http: HttpServer = await serve_http(self.broker, LOOPBACK, _port_of(self.http_url))
            opened.push_async_callback(self._http.close)
            self._kafka: KafkaServer = await serve_kafka(self.broker, {BROKERS: Endpoint(BROKERS, LOOPBACK, 0)})
            opened.push_async_callback(self._kafka.close)
            net.opens_for_clients = True
            await self._kafka.listen(Endpoint(CLIENTS, LOOPBACK, _port_of(self.kafka_address)))
            addresses = {name: each.address for name, each in self._kafka.addresses.items()}
            self.kafka_address, self.http_url = addresses[CLIENTS], self._http.url
            await self.broker.announce(self.http_url.removeprefix("http://"), addresses)
            opened.pop_all()
        self._ports = {_port_of(each) for each in (*addresses.values(), self.http_url)}
        drop_in_children(self._ports)
        self.release_addresses()
        self.is_running = True

    def is_in_contact(self, silent_ms_max: float) -> bool:
        """True if the broker is the controller and may decide, or heard of the controller within so much time."""
        member = self.broker.cluster
        if not member.has_controller_contact:
            return False
        return member.active_controller is not None or member.standby.silent_ms < silent_ms_max

    async def end(self, *, clean: bool) -> None:
        """Stops the broker cleanly, or kills it: without a word to clients or to other brokers."""
        self.is_running = False
        if clean:
            await self.broker.hand_over()
        else:
            for connection in list(self._kafka.connections):
                connection.close()
        await self._kafka.close()
        await self.broker.stop(clean=clean)
        await self._http.close()
        forget(self._ports)
        self._reserved = [_reserve(_port_of(each)) for each in (self.kafka_address, self.http_url)]

    def release_addresses(self) -> None:
        """Lets other programs have the addresses of a broker that is down."""
        for each in self._reserved:
            each.close()
        self._reserved = []


def _reserve(port: int) -> socket.socket:
    """Returns a socket that has a port and does not listen. No connection of a client gets the port as its own, and
    `start` may have it beside the socket. Without an address of its own if another program was faster."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with contextlib.suppress(OSError):  # `start` says so
        made.bind((LOOPBACK, port))
    return made


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2]) if address else 0
