"""The attacked broker, and the judge of the latency of other clients and of the memory of the broker."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.certificates import sign
from tests.e2e.kafka_site import RawClient
from tests.e2e.serving import SECONDS, ServeProcess
from tests.e2e.test_machine import processes_of
from tiered.security.scram import ScramClient, ScramMechanism
from tiered_api.kafka.protocol.messages import alter_client_quotas as altering
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tiered_api.kafka.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tiered_api.kafka.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

FULL = os.environ.get("HOSTILE") == "full"
OUT = os.environ.get("HOSTILE_OUT")
P99_MS, WORST_MS, QUIET_TIMES = 50.0, 500.0, 2
"""Limits on the latency of other clients, judged at full size only. The first one is at least twice that of a quiet
time."""


def scale(small: int, full: int) -> int:
    """Returns the scaled size of an attack."""
    return full if FULL else small


ATTACK_SECONDS = 10


def rounds(small: int, full: int) -> Iterator[int]:
    """Yields the numbers of equal rounds of an attack. None begins after ten seconds: these give thousands of latencies
    of other clients."""
    began = time.monotonic()
    for number in range(scale(small, full)):
        if number and time.monotonic() - began > ATTACK_SECONDS:
            return
        yield number


BUSY = 0.2
"""Share of the time in which the broker waits for a core, above which latencies are not judged."""
QUIET_SECONDS = scale(20, 1_000) / 1000
"""Time before an attack in which the latency of other clients is measured."""
LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
ROOT, PASSWORD = "root", "eighty-eight"
GOOD, HOSTILE = "good", "hostile"
"""Tenants. Each user has the same password."""
MEASURED: list[dict[str, object]] = []
"""The figures that this process has measured."""


class AttackedBroker:
    """A broker in a process of its own, as an attack sees it: without TLS and login. `processes` above 1 are those of a
    machine: their memory counts together, and the one that delays other clients most is judged."""

    def __init__(self, served: ServeProcess, directory: Path, processes: int = 1) -> None:
        self.served = served
        self.directory = directory
        self.processes = processes
        self._clients: list[RawClient] = []
        self._connections: list[HTTPConnection] = []

    @property
    def pid(self) -> int:
        return self.served.process.pid

    @property
    def pids(self) -> list[int]:
        """The processes that serve."""
        return [self.pid] if self.processes == 1 else list(processes_of(self.served).values())

    def own_addresses(self) -> list[str]:
        """Returns an address of each process for the Kafka protocol."""
        if self.processes == 1:
            return [self.address]
        return [each["address"] for each in self.ask("GET", "/tiered/v1/cluster")[1]["brokers"]]

    def leader_port(self, topic: str, partition: int = 0) -> int:
        """Returns the port of the process that leads a partition, without TLS and login."""
        if self.processes == 1:
            return self.port_of("PLAINTEXT")
        leader = self.ask("GET", f"/topics/{topic}")[1]["partitions"][partition]["leader"]
        brokers = self.ask("GET", "/tiered/v1/cluster")[1]["brokers"]
        [address] = [each["address"] for each in brokers if each["node_id"] == leader]
        return int(address.rpartition(":")[2])

    @property
    def address(self) -> str:
        """The first listener of Kafka's protocol."""
        return self.served.kafka.split(",")[0]

    def port_of(self, protocol: str) -> int:
        """Returns the port of the listener with a security protocol."""
        return int(self.served.kafka.split(",")[LISTENERS.index(protocol)].rsplit(":", 1)[1])

    def name(self, short: str) -> str:
        """Returns the name of a topic or transactional id of this attack. Another attack has other names."""
        return short

    async def client(self, own: str = "127.0.0.1", port: int = 0) -> RawClient:
        """A connection from one of this machine's addresses, which can send requests; with a port, one that has only
        connected to it."""
        return await self._connect(own, port or self.port_of("PLAINTEXT"), None)

    async def logged_in(self, own: str = "127.0.0.1") -> RawClient:
        """A connection of the hostile user, who has logged in."""
        client = await self._connect(own, self.port_of("SASL_PLAINTEXT"), None)
        await log_in(client, HOSTILE)
        return client

    async def _connect(self, own: str, port: int, trust: ssl.SSLContext | None) -> RawClient:
        found = RawClient(
            *await asyncio.open_connection("127.0.0.1", port, limit=1 << 27, local_addr=(own, 0), ssl=trust)
        )
        self._clients.append(found)
        return found

    def http(self, timeout: float = 200, own: str = "127.0.0.1") -> HTTPConnection:
        """Returns a connection from one of this machine's addresses for requests over HTTP."""
        made = HTTPConnection(urlsplit(self.served.url).netloc, timeout=timeout, source_address=(own, 0))
        self._connections.append(made)
        return made

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, Any]:
        """Sends one request over HTTP; returns status and JSON (or text)."""
        connection = self.http()
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": kind} if data else {})
            response = connection.getresponse()
            answer = response.read()
            is_json = "json" in response.headers.get("Content-Type", "")
            return response.status, json.loads(answer) if is_json and answer else answer.decode()
        finally:
            connection.close()

    async def create(self, *topics: CreatableTopic) -> None:
        client = await self.client()
        made = await client.ask(CreateTopicsRequest(list(topics), 60_000), 7, CreateTopicsResponse)
        assert {each.error_code for each in made.topics} == {0}, made.topics[0]
        client.close()

    async def limit(self, key: str, value: float, client_id: str = "test") -> None:
        """Gives a client id a quota: that of raw clients, if none is given."""
        client = await self.client()
        await set_quota(client, "client-id", client_id, {key: value})
        client.close()

    def memory(self, what: str = "VmRSS") -> int:
        """Returns MB of the processes; `VmHWM`: the maximum since `forget_peak`."""
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in self.pids]
        return sum(int(text.partition(f"{what}:")[2].split()[0]) for text in texts) // 1024

    def forget_peak(self) -> int:
        """Lets `VmHWM` begin anew. Returns the MB of the processes."""
        for pid in self.pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        return self.memory()

    def cpu_wait_seconds(self) -> float:
        """Returns the seconds in which a process was runnable while others ran on all cores: those of the process that
        waited most."""
        return max(int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) for pid in self.pids) / 1e9

    def close_clients(self) -> None:
        """Ends all connections at once, also those that wait for a reply in another thread."""
        for client in self._clients:
            client.writer.transport.abort()
        self._clients.clear()
        self.close_http()

    def close_http(self) -> None:
        """Ends all connections for HTTP. None of them opens again."""
        for each in self._connections:
            each.auto_open = 0
            if each.sock is not None:
                with suppress(OSError):
                    each.sock.shutdown(socket.SHUT_RDWR)
            each.close()

    @asynccontextmanager
    async def attack(self, name: str, *, memory: int, probe_kind: str = "") -> AsyncIterator[None]:
        """Judges the attack inside the context: the processes may grow by `memory` MB, and other clients get replies of
        each all the time. `probe_kind` is "heartbeat" for requests that take turns with those of the attackers."""
        kind, pids = [probe_kind] if probe_kind else [], self.pids
        probes = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.hostile.probe", address, *kind, stdin=PIPE, stdout=PIPE
            )
            for address in self.own_addresses()
        ]
        try:
            for probe in probes:
                assert probe.stdout is not None and await probe.stdout.readline() == b"ready\n"
            await asyncio.sleep(QUIET_SECONDS)
            quiet = await measure_worst(probes)
            before, began = self.forget_peak(), time.monotonic()
            queued = self.cpu_wait_seconds()
            yield
            took, queued = time.monotonic() - began, self.cpu_wait_seconds() - queued
            waited = await measure_worst(probes)
        finally:
            for probe in probes:
                if probe.returncode is None:
                    with suppress(ProcessLookupError):
                        probe.kill()
                await probe.wait()
            self.close_clients()
        grown = self.memory("VmHWM") - before
        busy = round(queued / took, 2)
        measured = {
            "attack": name + (f", {self.processes} processes" if self.processes > 1 else ""), **waited,
            "quiet_p99": quiet["p99"], "memory_mb": grown, "memory_bound_mb": memory, "queued": busy,
            "seconds": round(took, 1),
        }  # fmt: skip
        write_measured(measured)
        assert self.served.process.poll() is None and self.pids == pids, "the broker has ended"
        assert grown <= memory, measured
        if FULL and busy > BUSY:
            pytest.skip(f"the machine is busy, so times are not judged: {measured}")
        if FULL:
            assert waited["p99"] <= max(P99_MS, QUIET_TIMES * quiet["p99"]) and waited["worst"] <= WORST_MS, measured


async def log_in(client: RawClient, user: str) -> None:
    """Logs in by SCRAM-SHA-512."""
    shaken = await client.ask(SaslHandshakeRequest("SCRAM-SHA-512"), 1, SaslHandshakeResponse)
    assert shaken.error_code == 0
    machine = ScramClient(ScramMechanism.SHA_512, user, PASSWORD, f"nonce-of-{user}")
    message = machine.make_first()
    for _ in range(2):
        reply = await client.ask(SaslAuthenticateRequest(message), 2, SaslAuthenticateResponse)
        assert reply.error_code == 0, reply.error_message
        message = machine.step(reply.auth_bytes)


async def measure(process: asyncio.subprocess.Process) -> dict[str, float]:
    """Returns the latencies of a probe or tenant since the last call."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"\n")
    async with asyncio.timeout(60):
        line = await process.stdout.readline()
    assert line, "another client has ended: a request got no reply"
    found: dict[str, float] = json.loads(line)
    return found


async def measure_worst(probes: Sequence[asyncio.subprocess.Process]) -> dict[str, float]:
    """Returns the latencies of several probes since the last call: the worst of each kind, and the number of all."""
    found = [await measure(each) for each in probes]
    worst = {name: max(each.get(name, 0) for each in found) for name in ("p50", "p99", "worst")}
    return {"count": sum(each["count"] for each in found), **worst}


async def set_quota(
    client: RawClient, kind: str, name: str, limits: dict[str, float], *, is_lifted: bool = False
) -> None:
    """Gives a user or client id quotas, or takes them away."""
    values = [altering.OpData(key, value, is_lifted) for key, value in limits.items()]
    request = altering.AlterClientQuotasRequest([altering.EntryData([altering.EntityData(kind, name)], values)])
    answer = await client.ask(request, 1, altering.AlterClientQuotasResponse)
    assert [each.error_code for each in answer.entries] == [0]


def write_measured(measured: dict[str, object]) -> None:
    MEASURED.append(measured)
    if OUT:
        with Path(OUT).open("a") as out:
            out.write(json.dumps(measured) + "\n")


@contextmanager
def attacked_broker(
    directory: Path,
    *arguments: str,
    stop_seconds: float = SECONDS,
    http: str = "127.0.0.1:0",
    processes: int = 1,
    **settings: object,
) -> Iterator[AttackedBroker]:
    """Yields a broker with these arguments and settings, or the `processes` of a machine, which must end cleanly in
    time. It has a listener for each security protocol, and users."""
    users = directory.with_name(f"{directory.name}-users")
    users.write_text("".join(f"SCRAM-SHA-512=[name={each},password={PASSWORD}]\n" for each in (ROOT, GOOD, HOSTILE)))
    key = directory.with_name(f"{directory.name}.pem")
    made = sign("CN=broker")
    key.write_text(made.key_pem + made.certificate_pem)
    listeners = ",".join(f"{each}://127.0.0.1:0" for each in LISTENERS)
    given = {"listeners": listeners, "ssl_keystore_location": key, "tiered_processes": processes, **settings}
    words = [word for name, value in given.items() for word in ("-c", f"{name.replace('_', '.')}={value}")]
    with ServeProcess(directory, "--add-scram", f"@{users}", *arguments, *words, http=http) as served:
        yield AttackedBroker(served, directory, processes)
        served.process.terminate()
        assert served.process.wait(stop_seconds) == 0
    log = served.log.read_text()
    assert log.count("clean=True") == processes and "Traceback" not in log, log[-2_000:]
    # The processes of a machine stop one after the other, and the last controller misses those before.
    assert "is fenced" not in log.partition("stopping process-")[0], log[-2_000:]
