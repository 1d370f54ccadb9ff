"""Three brokers as processes on one machine, each behind a link that can be cut, and the state that they report.

With several processes (`tiered.processes`) each of the three stands for a machine. Each process has links of its own,
and they are cut together.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.chaos.link_proxy import BUCKET, CLIENT, LinkProxy, link_proxy
from tests.chaos.views import ClusterView, fetch_views
from tests.e2e.serving import COMMAND
from tests.fakes3 import FakeS3, S3Server, s3_fake
from tests.ports import hold_ports
from tests.s3_servers import s3_server
from tiered.config.processes import process_directory
from tiered.errors import Refused, Unavailable
from tiered.ids import PROCESS_STEP
from tiered.system.clock import SystemClock
from tiered.system.network import SocketNet
from tiered_api.kafka.client.client import Address, KafkaClient
from tiered_api.kafka.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse

NODES = (1, 2, 3)
FOURTH = 4
"""Number of the broker that joins and leaves."""
STOP_SECONDS = 60.0
MOVE_SECONDS = 120.0
PORT_STEP = 7
"""`tiered.processes.port.step` of machines."""
PAUSE_SECONDS = 0.05
TOPIC = {
    "min.insync.replicas": "2",
    "internal.segment.bytes": "262144",
    "local.retention.bytes": "524288",
    "retention.ms": "-1",
}
"""Settings of topics with small segments: some are uploaded, and lose their local copies, while brokers fail."""
SETTINGS = {
    "remote.log.manager.task.interval.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}
MACHINE_SETTINGS = {"min.insync.replicas": "2"}
"""A controller that is cut off and reaches the bucket fences the others before they take over. A partition that it
leads has no other replica in sync then. With two required ones, the others may lead it all the same (ELR)."""
QUICK_SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "700",
    "replica.lag.time.max.ms": "3000",
}
"""Settings with short timeouts, so that tests are shorter."""


SMALL_SEGMENTS = "internal.segment.bytes"


@dataclass(frozen=True)
class Program:
    """The program of a broker: that of this repository, another one whose sources are in the folder `root`, or an
    installed one."""

    root: Path | None = None
    command: tuple[str, ...] = tuple(COMMAND)
    options: tuple[str, ...] = ("-c", "tiered.internal.configs.enable=true")
    """Options that other programs do not know."""
    segment_bytes: str = SMALL_SEGMENTS
    """The setting of topics for small segments."""

    def find_environment(self) -> dict[str, str]:
        """Returns the variables that let Python import the program, and not this one in its place."""
        if self.root is None:
            return {} if self.command == tuple(COMMAND) else {"PYTHONPATH": ""}
        return {"PYTHONPATH": os.pathsep.join(str(self.root / each) for each in ("", "api", "spark"))}


THIS_PROGRAM = Program()


class ChaosBroker:
    """One process, its directory and its ports. A start does not wait until it is ready. `program` may change while it
    is stopped. With `processes` above 1 it is the parent of that many brokers."""

    def __init__(
        self,
        node: int,
        directory: Path,
        options: Sequence[str],
        env: Mapping[str, str],
        program: Program,
        processes: int = 1,
    ) -> None:
        self.program = program
        self.node = node
        self.processes = processes
        """Number of processes of the next start: at most as many as at first."""
        self.processes_at_first = processes
        self.directory = directory / f"broker-{node}"
        self.log = directory / f"broker-{node}.log"
        held = [hold_ports(processes, PORT_STEP) for _ in range(3)]
        self._held = [each for ports in held for each in ports]
        self.port, self.inter_broker_port, self._http = (ports[0].getsockname()[1] for ports in held)
        """For clients, for brokers, and for HTTP."""
        self._options = options
        self._env = {**os.environ, **env}
        self.process: subprocess.Popen[bytes] | None = None
        self.frozen = False

    def start(self, advertised: int, to_brokers: int) -> None:
        """Starts the process; clients and brokers connect to these ports, or to those of each process above them."""
        assert self.process is None
        command = [
            *self.program.command, "serve", "--node-id", str(self.node), "--data-dir", str(self.directory),
            *self._options, *self.program.options,
            "--http", f"127.0.0.1:{self._http}", "-c", "inter.broker.listener.name=BROKERS",
            "-c", f"listeners=PLAINTEXT://127.0.0.1:{self.port},BROKERS://127.0.0.1:{self.inter_broker_port}",
            "-c", f"advertised.listeners=PLAINTEXT://127.0.0.1:{advertised},BROKERS://127.0.0.1:{to_brokers}",
        ]  # fmt: skip
        if self.processes > 1:
            command += ["-c", f"tiered.processes={self.processes}", "-c", f"tiered.processes.port.step={PORT_STEP}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._env | self.program.find_environment(), cwd=self.program.root
            )

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.frozen = False

    def end(self, how: signal.Signals) -> int:
        """Sends the signal and waits for the end; returns the exit code."""
        process, self.process, self.frozen = self.process, None, False
        assert process is not None
        process.send_signal(how)
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"broker {self.node} did not stop: {self.log_tail()}") from None

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple(self.node + PROCESS_STEP * number for number in range(self.processes))

    @property
    def directories(self) -> list[Path]:
        """Returns the data directory of each process."""
        return [Path(process_directory(str(self.directory), number)) for number in range(self.processes)]

    def ports(self) -> dict[int, int]:
        """Returns the port of each process's own, by node id."""
        if self.processes == 1:
            return {self.node: self.port}
        return {node: self.port + PORT_STEP * number for number, node in enumerate(self.node_ids, 1)}

    def find_processes(self) -> dict[int, int]:
        """Returns the operating system's ids of the running processes of a machine, by node id."""
        assert self.process is not None
        if self.processes == 1:
            return {self.node: self.process.pid}
        parent, found = self.process.pid, dict[int, int]()
        for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            with suppress(OSError):  # it has just ended
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if "--process" in words:
                    found[self.node + PROCESS_STEP * int(words[words.index("--process") + 1].split("/")[0])] = int(pid)
        return found

    def kill_machine(self) -> None:
        """Kills the parent and all processes at once, and returns when all have ended."""
        found = self.find_processes()
        assert self.process is not None
        self.process.kill()
        for pid in found.values():
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
        self.end(signal.SIGKILL)
        until = time.monotonic() + STOP_SECONDS
        for pid in found.values():
            while _is_running(pid):
                assert time.monotonic() < until, f"process {pid} of machine {self.node} goes on"
                time.sleep(PAUSE_SECONDS)

    def close(self) -> None:
        """Frees its ports for other brokers."""
        for held in self._held:
            held.close()

    def wipe(self) -> None:
        """Empties the directory, like a replaced disk."""
        assert self.process is None
        shutil.rmtree(self.directory)

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


class ChaosCluster:
    """The three brokers, sometimes a fourth, their links, and their bucket if it injects faults. See
    `chaos_cluster`."""

    def __init__(
        self,
        directory: Path,
        links: LinkProxy,
        server: S3Server | None,
        settings: Mapping[str, str],
        program: Program,
        processes: int = 1,
    ) -> None:
        self._program = program
        self.processes = processes
        self.links = links
        self._server = server
        self.s3 = server if isinstance(server, FakeS3) else None
        """The bucket's server, if it injects faults."""
        self.directory = directory
        self.environment = server.environment if server is not None else {}
        self.store = "s3://bucket/chaos" if server is not None else f"file://{directory / 'bucket'}"
        given = SETTINGS | (MACHINE_SETTINGS if processes > 1 else {}) | dict(settings)
        words = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
        self._options = ["--store", self.store, *words]
        self.brokers: dict[int, ChaosBroker] = {}
        self.ports: dict[int, int] = {}
        self._advertised: dict[int, tuple[int, int]] = {}
        """The ports that each broker advertises, for clients and for brokers."""
        self._advertised_alone: dict[int, tuple[int, int]] = {}
        """The same, while a machine has one process."""
        self._held: list[socket.socket] = []
        for node in NODES:
            self._add(node)
        self.address = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        self._admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0, "socket.timeout.ms": 5000})

    def _add(self, node: int) -> None:
        env: dict[str, str] = {}
        if self._server is not None:
            own = self.links.add(BUCKET, urlsplit(self._server.endpoint).port or 0, origin=node)
            env = self._server.environment | {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{own}"}
        broker = self.brokers[node] = ChaosBroker(
            node, self.directory, self._options, env, self._program, self.processes
        )
        self.ports[node] = self.links.add(node, broker.port, origin=CLIENT)
        alone = self.ports[node], self.links.add(node, broker.inter_broker_port, origin=None)
        self._advertised_alone[node] = alone
        if self.processes > 1:
            for_clients = self._add_processes(node, broker.port, CLIENT)
            self._advertised[node] = for_clients, self._add_processes(node, broker.inter_broker_port, None)

    def _add_processes(self, node: int, port: int, origin: int | None) -> int:
        """Adds a link to each process of a machine, whose own ports lie above `port`. Returns the port above which the
        links lie as far."""
        base, *doors = hold_ports(self.processes, PORT_STEP)
        self._held.append(base)
        for number, door in enumerate(doors, 1):
            self.links.add(node, port + PORT_STEP * number, origin=origin, door=door)
        advertised: int = base.getsockname()[1]
        return advertised

    def add_fourth(self) -> None:
        """Starts the fourth broker with an empty disk."""
        if FOURTH not in self.brokers:
            self._add(FOURTH)
        self.start(FOURTH)

    def remove_broker(self, node: int) -> None:
        """Stops a broker for good and keeps its disk."""
        code = self.brokers[node].end(signal.SIGTERM)
        assert code == 0, f"broker {node} ended with {code}: {self.brokers[node].log_tail()}"
        self.links.refuse([node])
        self.brokers[node].wipe()

    def command(self, *words: str) -> str:
        """Runs a `tiered` command to its end; returns its output."""
        live = ",".join(f"127.0.0.1:{self.ports[node]}" for node in self.pids())
        done = subprocess.run(
            [*COMMAND, *words, "--brokers", live], capture_output=True, text=True, timeout=MOVE_SECONDS
        )
        assert done.returncode == 0, (
            f"tiered {' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}"
        )
        return done.stdout

    def uncordon(self, node: int) -> None:
        """Lets the broker get replicas again."""
        self.command("cluster", "config", "reset", "cordoned.log.dirs", "--node", str(node))

    def is_settled(self, *nodes: int) -> bool:
        """True if all brokers agree that these are there and have all replicas, each of them some, and that nothing
        moves."""
        view = self.agreed_view()
        holders = {node for held in view.replicas.values() for node in held} if view is not None else set()
        return view is not None and view.is_settled(nodes) and holders == set(nodes)

    def pids(self) -> dict[int, int]:
        return {node: each.process.pid for node, each in self.brokers.items() if each.process is not None}

    def start(self, *nodes: int) -> None:
        for node in nodes:
            broker = self.brokers[node]
            broker.start(*(self._advertised_alone if broker.processes == 1 else self._advertised)[node])

    def kill(self, *nodes: int) -> None:
        """Sends SIGKILL to all of them before it waits for the first end."""
        for node in nodes:
            process = self.brokers[node].process
            assert process is not None
            process.kill()
        self.links.refuse(nodes)
        for node in nodes:
            self.brokers[node].end(signal.SIGKILL)
        self.links.refuse(nodes)  # a link that found one of them not dead yet listens again

    def create(
        self,
        topic: str,
        partitions: int,
        config: Mapping[str, str],
        *,
        has_small_segments: bool = True,
        replicas: int = 3,
    ) -> None:
        """Creates a topic with `min.insync.replicas` 2 unless `config` says otherwise."""
        settings = TOPIC | dict(config)
        segment_bytes = settings.pop(SMALL_SEGMENTS)
        if has_small_segments:
            settings[self._program.segment_bytes] = segment_bytes
        [made] = self._admin.create_topics([NewTopic(topic, partitions, replicas, config=settings)]).values()
        made.result(30)

    def elect_preferred(self) -> None:
        """Elects the preferred leaders, as far as possible now."""
        with suppress(Unavailable, Refused):
            asyncio.run(_elect([Address("127.0.0.1", port) for port in self.ports.values()]))

    def fetch_views(self) -> dict[int, ClusterView | None]:
        """Returns the view of each running broker; None if it does not reply."""
        if self.processes > 1:
            return fetch_views(
                {node: port for each in self.pids() for node, port in self.brokers[each].ports().items()}
            )
        return fetch_views({node: self.ports[node] for node in self.pids()})

    @property
    def node_ids(self) -> tuple[int, ...]:
        """Returns the node ids of all brokers but the fourth."""
        return tuple(sorted(node for each in NODES for node in self.brokers[each].node_ids))

    def kill_machines(self, *machines: int) -> None:
        """Kills all processes of machines."""
        for each in machines:
            self.brokers[each].kill_machine()
        self.links.refuse(machines)

    def agreed_view(self) -> ClusterView | None:
        """Returns the view of all running brokers; None if they disagree, or if one does not reply."""
        said = list(self.fetch_views().values())
        return said[0] if said and all(each == said[0] for each in said) else None

    def is_in_sync(self) -> bool:
        """True if all brokers agree that all are there, and that every partition has a leader and all replicas in
        sync."""
        view = self.agreed_view()
        return view is not None and view.is_settled(self.node_ids)

    def wait_until(self, condition: Callable[[], bool], seconds: float, what: Callable[[], Any]) -> float:
        """Waits until the condition holds; returns the seconds. A broker that ends by itself is an error."""
        began = time.monotonic()
        while not condition():
            for broker in self.brokers.values():
                ended = broker.process is not None and broker.process.poll() is not None
                assert not ended, f"broker {broker.node} ended by itself: {broker.log_tail()}"
            assert time.monotonic() < began + seconds, f"not so within {seconds} s: {what()}"
            time.sleep(PAUSE_SECONDS)
        return time.monotonic() - began

    def heal(self) -> None:
        """Starts all brokers and repairs every link and the bucket, after a fault that a run did not finish."""
        self.links.mend()
        if self.s3 is not None:
            self.s3.faults.clear()
        for node, broker in self.brokers.items():
            if broker.process is not None and broker.process.poll() is not None:
                broker.process = None
            if broker.process is None and node in NODES:
                self.start(node)
            elif broker.frozen:
                broker.thaw()

    def close(self) -> None:
        """Frees the ports."""
        for broker in self.brokers.values():
            broker.close()
        for each in self._held:
            each.close()

    def stop(self) -> dict[int, int]:
        """Sends SIGTERM to one after the other; returns their exit codes."""
        return {node: self.brokers[node].end(signal.SIGTERM) for node in self.pids()}


async def _elect(addresses: Sequence[Address]) -> None:
    client = KafkaClient(SocketNet(), SystemClock(), addresses, timeout=10.0, retry_seconds=10.0)
    try:
        await client.send_to_controller(ElectLeadersRequest(0, None, 10_000), ElectLeadersResponse)
    finally:
        await client.close()


@contextmanager
def chaos_cluster(
    directory: Path, store: str, settings: Mapping[str, str], program: Program = THIS_PROGRAM, processes: int = 1
) -> Iterator[ChaosCluster]:
    """Yields three running brokers of a program that know each other, or three machines of several processes; `store`
    is file, s3, or a server of another maker. No process is left at the end."""
    with ExitStack() as stack:
        server: S3Server | None = None
        if store != "file":
            server = stack.enter_context(s3_fake() if store == "s3" else s3_server(store))
        three = ChaosCluster(directory, stack.enter_context(link_proxy()), server, settings, program, processes)
        try:
            three.start(*NODES)
            three.wait_until(three.is_in_sync, 60, lambda: three.brokers[1].log_tail())
            yield three
        finally:
            (three.kill if processes == 1 else three.kill_machines)(*three.pids())
            three.close()
