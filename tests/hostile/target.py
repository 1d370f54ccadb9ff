"""The attacked broker, and the judge of the latency of other clients and of the memory of the broker."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from tests.e2e.kafka_site import RawClient
from tests.e2e.serving import SECONDS, ServeProcess
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

FULL = os.environ.get("HOSTILE") == "full"
OUT = os.environ.get("HOSTILE_OUT")
P99_MS, WORST_MS = 50.0, 500.0
"""Limits on the latency of other clients, judged at full size only."""


def scale(small: int, full: int) -> int:
    """Returns the scaled size of an attack."""
    return full if FULL else small


BUSY = 0.2
"""Share of the time in which the broker waits for a core, above which latencies are not judged."""


class AttackedBroker:
    """A broker in a process of its own."""

    def __init__(self, served: ServeProcess) -> None:
        self.served = served
        self._clients: list[RawClient] = []

    @property
    def pid(self) -> int:
        return self.served.process.pid

    @property
    def address(self) -> str:
        """The first listener of Kafka's protocol."""
        return self.served.kafka.split(",")[0]

    @property
    def ports(self) -> list[int]:
        """The ports of all listeners of Kafka's protocol."""
        return [int(each.rsplit(":", 1)[1]) for each in self.served.kafka.split(",")]

    async def client(self, own: str = "127.0.0.1", port: int = 0) -> RawClient:
        """A connection from one of this machine's addresses, to the first listener if no port is given."""
        found = RawClient(
            *await asyncio.open_connection("127.0.0.1", port or self.ports[0], limit=1 << 27, local_addr=(own, 0))
        )
        self._clients.append(found)
        return found

    async def create(self, *topics: CreatableTopic) -> None:
        client = await self.client()
        made = await client.ask(CreateTopicsRequest(list(topics), 60_000), 7, CreateTopicsResponse)
        assert {each.error_code for each in made.topics} == {0}, made.topics[0]
        client.close()

    def memory(self, what: str = "VmRSS") -> int:
        """Returns MB of the process; `VmHWM`: the maximum since `forget_peak`."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(text.partition(f"{what}:")[2].split()[0]) // 1024

    def forget_peak(self) -> int:
        """Lets `VmHWM` begin anew. Returns the MB of the process."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.memory()

    def _cpu_wait_seconds(self) -> float:
        """Returns the seconds in which the broker was runnable while others ran on all cores."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9

    @asynccontextmanager
    async def attack(self, name: str, *, memory: int, probe_kind: str = "") -> AsyncIterator[None]:
        """Judges the attack inside the context: the process may grow by `memory` MB, and other clients get replies all
        the time. `probe_kind` is "heartbeat" for requests that take turns with those of the attackers."""
        kind = [probe_kind] if probe_kind else []
        probe = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.hostile.probe", self.address, *kind, stdin=PIPE, stdout=PIPE
        )
        assert probe.stdin is not None and probe.stdout is not None
        try:
            assert await probe.stdout.readline() == b"ready\n"
            before, began = self.forget_peak(), time.monotonic()
            queued = self._cpu_wait_seconds()
            yield
            took, queued = time.monotonic() - began, self._cpu_wait_seconds() - queued
            probe.stdin.close()
            waited = json.loads(await probe.stdout.readline())
        finally:
            if probe.returncode is None:
                with suppress(ProcessLookupError):
                    probe.kill()
            await probe.wait()
            for each in self._clients:
                each.close()
            self._clients.clear()
        grown = self.memory("VmHWM") - before
        busy = round(queued / took, 2)
        measured = {"attack": name, **waited, "memory_mb": grown, "memory_bound_mb": memory, "queued": busy}
        write_measured(measured)
        assert self.served.process.poll() is None, "the broker has ended"
        assert grown <= memory, measured
        if FULL and busy > BUSY:
            pytest.skip(f"the machine is busy, so times are not judged: {measured}")
        if FULL:
            assert waited["p99"] <= P99_MS and waited["worst"] <= WORST_MS, measured


def write_measured(measured: dict[str, object]) -> None:
    if OUT:
        with Path(OUT).open("a") as out:
            out.write(json.dumps(measured) + "\n")


@contextmanager
def attacked_broker(
    directory: Path, *arguments: str, stop_seconds: float = SECONDS, **settings: object
) -> Iterator[AttackedBroker]:
    """Yields a broker with these arguments and settings, which must end cleanly in time."""
    given = [word for name, value in settings.items() for word in ("-c", f"{name.replace('_', '.')}={value}")]
    with ServeProcess(directory, *arguments, *given) as served:
        yield AttackedBroker(served)
        served.process.terminate()
        assert served.process.wait(stop_seconds) == 0
    assert "clean=True" in served.log.read_text()
    assert "Traceback" not in served.log.read_text()
